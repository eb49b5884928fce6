"""Where question/answer rows come from: the hub, the user's own files, or the embedded generator."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from tenacity import RetryError, retry, retry_if_exception_type, stop_after_attempt, wait_exponential

from toolrl.data.procedural import generate
from toolrl.errors import UserError

SPLITS = ("train", "test")


def load_splits(data: Mapping[str, Any], seed: int) -> dict[str, pa.Table]:
    """The `train` and `test` tables of a `data:` configuration."""
    source = data["source"]
    if source == "procedural":
        sizes = data["procedural"]
        rows = generate(sizes["train_rows"], sizes["test_rows"], seed)
        return {split: pa.Table.from_pylist(part) for split, part in zip(SPLITS, rows)}
    if source == "path":
        return {split: read_rows(data["path"][split], f"data.path.{split}") for split in SPLITS}
    return {split: _from_hub(data["hub"], split) for split in SPLITS}


def read_rows(path: str | None, key: str) -> pa.Table:
    """Reads a .jsonl or .parquet file of question/answer rows.

    Raises:
        UserError: naming the config key and what is wrong with the file.
    """
    import pyarrow.json as pj

    if path is None:
        raise UserError(f"{key} is not set: give the path of a .jsonl or .parquet file, as data.source is `path`.")
    file = Path(path)
    if not file.is_file():
        raise UserError(f"{key}: the file {path} does not exist.")
    if file.stat().st_size == 0:
        raise UserError(f"{key}: {path} is empty; it needs one question/answer row or more.")
    try:
        if file.suffix == ".parquet":
            return pq.read_table(file)
        if file.suffix in (".jsonl", ".json"):
            return pj.read_json(file, parse_options=pj.ParseOptions(newlines_in_values=False))
    except (pa.ArrowInvalid, OSError) as error:
        raise UserError(f"{key}: {path} cannot be read as {file.suffix[1:]} ({str(error).splitlines()[0]}).") from None
    raise UserError(f"{key}: {path} must end in .jsonl or .parquet.")


class _NetworkFailure(Exception):
    pass


@retry(
    retry=retry_if_exception_type(_NetworkFailure),
    stop=stop_after_attempt(4),
    wait=wait_exponential(multiplier=2, max=30),
)
def _try_hub(hub: Mapping[str, str], split: str) -> pa.Table:
    from datasets import load_dataset

    try:
        dataset = load_dataset(hub["repository"], hub["subset"], split=split, revision=hub["revision"])
    except Exception as error:
        raise _NetworkFailure(f"{type(error).__name__}: {error}") from error
    return dataset.data.table.combine_chunks()


def _from_hub(hub: Mapping[str, str], split: str) -> pa.Table:
    try:
        return _try_hub(hub, split)
    except RetryError as error:
        cause = str(error.last_attempt.exception()).splitlines()[0][:200]
        raise UserError(
            f"the dataset {hub['repository']} could not be downloaded ({cause}); on a machine without the hub, "
            "set data.source to `path` and data.path.train and data.path.test to local .jsonl or .parquet files."
        ) from None
