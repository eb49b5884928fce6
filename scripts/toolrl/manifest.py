"""Files that prove what a stage did: checksums, canonical JSON, atomic writes."""

import hashlib
import json
import os
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from toolrl.errors import UserError
from toolrl.secrets import without_secrets


def canonical_json(value: Any) -> str:
    """The one JSON text of a value: sorted keys, no spaces; refuses NaN and non-JSON types.

    Raises:
        TypeError, ValueError: when the value has no exact JSON form.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def digest(value: Any) -> str:
    """First 16 hex digits of the sha256 of the value's canonical JSON."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()[:16]


def sha256_file(path: str | os.PathLike[str]) -> str:
    with open(path, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def file_records(root: Path, paths: Iterable[Path]) -> dict[str, dict[str, Any]]:
    """Maps each path, relative to root, to its size in bytes and sha256."""
    return {
        str(path.relative_to(root)): {"bytes": path.stat().st_size, "sha256": sha256_file(path)}
        for path in sorted(paths)
    }


def folder_records(folder: Path) -> dict[str, dict[str, Any]]:
    """`file_records` of all files below a folder, without hidden ones (Snakemake marks directories with one)."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return file_records(folder, [path for path in files if not _is_hidden(path.relative_to(folder))])


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Writes the whole text or nothing: a temporary file beside the target, then a rename. Lone surrogates, which UTF-8
    cannot hold, are written as escapes."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with open(descriptor, "w", encoding="utf-8", errors="backslashreplace") as handle:
            handle.write(text)
            handle.flush()
            os.fsync(handle.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def write_json(path: str | os.PathLike[str], value: Mapping[str, Any]) -> None:
    """Writes a JSON file of ours, without secrets."""
    value = without_secrets(value)
    write_text(path, json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n")


def whole_lines(path: str | os.PathLike[str]) -> list[str]:
    """The lines of a file, without a last one that is still being written, or was cut off by a kill."""
    with open(path, encoding="utf-8") as handle:
        return [line for line in handle if line.endswith("\n")]


def read_json(path: str | os.PathLike[str]) -> Any:
    """Reads a JSON file of ours.

    Raises:
        UserError: when the file is missing or is not JSON.
    """
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path} does not exist; run the stage that makes it.") from None
    except json.JSONDecodeError as error:
        raise UserError(f"{path} is not valid JSON ({error}); delete it and run the workflow again.") from None
