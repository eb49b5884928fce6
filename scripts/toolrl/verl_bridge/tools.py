"""The class behind every tool in a generated tool config: hands verl's calls to the task's tool."""

from typing import Any
from uuid import uuid4

from verl.tools.base_tool import BaseTool
from verl.tools.schemas import OpenAIFunctionToolSchema, ToolResponse

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
        self._created[instance_id] = kwargs.get("create_kwargs") or {}
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
