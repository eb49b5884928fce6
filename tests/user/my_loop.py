"""A user's agent loop: verl's tool loop with a note of its own on every episode."""

from typing import Any

from toolrl.verl_bridge.agent_loop import RecordedToolAgentLoop


class NotedToolAgentLoop(RecordedToolAgentLoop):
    async def run(self, sampling_params: dict[str, Any], **row: Any) -> Any:
        output = await super().run(sampling_params, **row)
        output.extra_fields["noted"] = True
        return output
