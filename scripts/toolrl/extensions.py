"""Classes and functions of the user's own files, named in the configuration as `path/file.py:Name`."""

import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from toolrl.errors import UserError

AGENT_LOOPS = {
    "tool_agent": "toolrl.verl_bridge.agent_loop:RecordedToolAgentLoop",
    "single_turn_agent": "verl.experimental.agent_loop.single_turn_agent_loop:SingleTurnAgentLoop",
}
"""The agent loops that are there without `agent.loops`."""


def split_reference(reference: str) -> tuple[str, str]:
    """The file or module, and the name in it.

    Raises:
        UserError: when the reference has no name.
    """
    source, _, name = reference.rpartition(":")
    if not source or not name.isidentifier():
        raise UserError(f"{reference!r} must have the form path/file.py:Name or package.module:Name")
    return source, name


def load(reference: str) -> Any:
    """The object that `path/file.py:Name` or `package.module:Name` names.

    Raises:
        UserError: naming the reference, when there is no such file, it cannot be imported, or it lacks the name.
    """
    source, name = split_reference(reference)
    try:
        module = load_file(Path(source)) if source.endswith(".py") else importlib.import_module(source)
    except FileNotFoundError:
        raise UserError(f"{reference!r}: the file {source} does not exist") from None
    except Exception as error:  # whatever the user's file raises
        raise UserError(f"{reference!r} cannot be imported ({type(error).__name__}: {error})") from None
    try:
        return getattr(module, name)
    except AttributeError:
        raise UserError(f"{reference!r}: {source} defines no {name}") from None


def load_file(path: Path) -> Any:
    """The module in a Python file; loaded once, under a name of its own."""
    path = path.resolve(strict=True)
    module_name = f"toolrl_extension_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    if module_name not in sys.modules:
        spec = importlib.util.spec_from_file_location(module_name, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[module_name] = module  # dataclasses look their module up
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[module_name]
            raise
    return sys.modules[module_name]


def absolute(reference: str) -> str:
    """The reference with its file's absolute path: Ray's workers run elsewhere."""
    source, name = split_reference(reference)
    return f"{Path(source).resolve()}:{name}" if source.endswith(".py") else reference


def user_files(config: Mapping[str, Any]) -> list[Path]:
    """The user's own code that a configuration names: its agent loop, reward terms, and tool classes beside
    `agent.tool_config`."""
    import yaml

    references = [
        *config["agent"]["loops"].values(),
        *(term["function"] for term in config["reward"]["terms"].values()),
    ]
    sources = [split_reference(reference)[0] for reference in references]
    files = [Path(source) for source in sources if source.endswith(".py")]
    tool_config = config["agent"]["tool_config"]
    if tool_config and Path(tool_config).is_file():
        for tool in yaml.safe_load(Path(tool_config).read_text(encoding="utf-8"))["tools"]:
            module = Path(tool_config).parent.joinpath(*tool["class_name"].split(".")[:-1]).with_suffix(".py")
            files += [module] if module.is_file() else []
    return sorted(set(files))
