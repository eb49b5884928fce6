"""The class behind every tool in a generated tool config: hands verl's calls to the task's tool."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from verl.tools.base_tool import BaseTool
from verl.tools.schemas import OpenAIFunctionToolSchema, ToolResponse
from verl.tools.tool_registry import get_tool_class

from toolrl.errors import UserError
from toolrl.tasks import load_task
from toolrl.tasks.base import ToolSession


class TaskTool(BaseTool):
    """A tool of a task. Its config names the task; its schema names the tool.

    verl runs create → execute → release on every call, so what a tool remembers within an episode is kept with the
    episode (`agent_data.extra_fields`), not with the instance.
    """

    def __init__(self, config: dict[str, Any], tool_schema: OpenAIFunctionToolSchema) -> None:
        self.config = config
        self.tool_schema = tool_schema
        self.name = tool_schema.function.name
        self._tool = load_task(config["task"]).tools[self.name]
        self._created: dict[str, dict[str, Any]] = {}

    async def create(self, instance_id: str | None = None, **kwargs: Any) -> tuple[str, ToolResponse]:
        instance_id = instance_id or uuid4().hex
        # parquet fills what a row lacks with null; dropped, so that the tool fails instead of reading it
        created = kwargs.get("create_kwargs") or {}
        self._created[instance_id] = {key: value for key, value in created.items() if value is not None}
        return instance_id, ToolResponse()

    async def execute(
        self, instance_id: str, parameters: dict[str, Any], **kwargs: Any
    ) -> tuple[ToolResponse, float, dict[str, Any]]:
        memories = kwargs["agent_data"].extra_fields.setdefault("tool_memory", {})
        session = ToolSession(self._created[instance_id], memories.setdefault(self.name, {}))
        result = self._tool.call(parameters if isinstance(parameters, dict) else {}, session)
        return ToolResponse(text=result.text), result.reward, {}

    async def release(self, instance_id: str, **kwargs: Any) -> None:
        self._created.pop(instance_id, None)


def check_tool_config(config: Mapping[str, Any], file: str) -> None:
    """Checks the classes and schemas of a user's tool config against each other, before anything is started.

    Args:
        config: a tool config whose shape is right (`toolrl.data.agent_rows.read_tool_config`).
        file: its name, for messages.

    Raises:
        UserError: naming the tool and what does not fit.
    """
    for entry in config["tools"]:
        name = entry["tool_schema"]["function"]["name"]
        where = f"agent.tool_config: tool {name!r} of {file}"
        try:
            schema = OpenAIFunctionToolSchema.model_validate(entry["tool_schema"])
        except ValueError as error:
            raise UserError(f"{where} has a schema that verl refuses: {str(error).splitlines()[2].strip()}.") from None
        try:
            with _importable(Path(file).parent):
                tool_class = get_tool_class(entry["class_name"])
        except Exception as error:
            raise UserError(f"{where}: {entry['class_name']} cannot be imported ({error}).") from None
        if not (isinstance(tool_class, type) and issubclass(tool_class, BaseTool)):
            raise UserError(f"{where}: {entry['class_name']} is not a subclass of verl.tools.base_tool.BaseTool.")
        missing = set(schema.function.parameters.required) - set(schema.function.parameters.properties)
        if missing:
            raise UserError(f"{where} requires {sorted(missing)}, which its properties do not describe.")
        if issubclass(tool_class, TaskTool):
            _check_against_task(entry["config"], schema, where)


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """The modules beside a tool config can be imported, as they can in the training's processes."""
    sys.path.append(str(folder.resolve()))
    try:
        yield
    finally:
        sys.path.pop()


def _check_against_task(config: Mapping[str, Any], schema: OpenAIFunctionToolSchema, where: str) -> None:
    tools = load_task(config.get("task", "")).tools
    if schema.function.name not in tools:
        raise UserError(f"{where}: its task has no such tool; it has {', '.join(tools)}.")
    offered = set(schema.function.parameters.properties)
    known = set(tools[schema.function.name].schema["function"]["parameters"]["properties"])
    if offered != known:
        raise UserError(f"{where} takes {sorted(offered)}, but the tool behind it takes {sorted(known)}.")
