"""A digest of the code that a stage depends on: a change of meaning changes it, a touch or a comment does not."""

import ast
import hashlib
from collections.abc import Iterable
from functools import cache
from pathlib import Path

PACKAGE = "toolrl"


def code_digest(*scripts: Path, root: Path, data_files: Iterable[Path] = ()) -> str:
    """First 16 hex digits of the sha256 over scripts, the modules of ours that they import (also through others),
    and files that they read, such as a template. `root` is the folder that holds the package.

    Comments, docstrings and layout do not count; neither do modules that the script never imports.
    """
    paths = sorted(_closure([script.resolve() for script in scripts], root.resolve()))
    parts = [f"{path.name}:{_normalised(path)}" for path in paths]
    parts += [f"{path.name}:{path.read_text(encoding='utf-8')}" for path in data_files]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _closure(scripts: list[Path], root: Path) -> set[Path]:
    found: set[Path] = set()
    waiting = list(scripts)
    while waiting:
        path = waiting.pop()
        if path not in found:
            found.add(path)
            waiting.extend(_imports(path, root))
    return found


@cache
def _parsed(path: Path) -> ast.Module:
    """The file without its docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [child for child in body if not _is_docstring(child)]  # type: ignore[attr-defined]
    return tree


@cache
def _normalised(path: Path) -> str:
    return ast.dump(_parsed(path))


def _is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


@cache
def _imports(path: Path, root: Path) -> tuple[Path, ...]:
    found: list[Path] = []
    for node in ast.walk(_parsed(path)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith(f"{PACKAGE}."):
            names = [node.value, node.value.rpartition(".")[0]]  # a class or module named in a setting
        else:
            continue
        for name in names:
            if name == PACKAGE or name.startswith(f"{PACKAGE}."):
                base = root.joinpath(*name.split("."))
                found += [file for file in (base.with_suffix(".py"), base / "__init__.py") if file.is_file()]
    return tuple(found)
