"""verl's tool agent loop, with a record of what happened.

verl hands a reward function the decoded tokens only: turns, dropped calls and the reason of a cut cannot be told from
them for sure. This subclass keeps its behaviour and notes them in `extra_fields["episode"]`, which reaches the reward.
"""

import json
from typing import Any

from verl.experimental.agent_loop.tool_agent_loop import AgentData, AgentState, ToolAgentLoop

from toolrl.episodes import Episode, ToolCall, Turn


class RecordedToolAgentLoop(ToolAgentLoop):
    tokenizer: Any  # verl annotates it as AutoTokenizer, the factory

    async def _handle_generating_state(
        self, agent_data: AgentData, sampling_params: dict[str, Any], ignore_termination: bool = False
    ) -> AgentState:
        agent_data.tool_calls = []
        state = await super()._handle_generating_state(agent_data, sampling_params, ignore_termination)
        cut = None
        if state == AgentState.TERMINATED:
            if len(agent_data.response_mask) >= self.response_length:
                cut = "length"
            elif self.max_assistant_turns and agent_data.assistant_turns >= self.max_assistant_turns:
                # the last turn's calls are not parsed; it is cut only if it went on to call
                text = self.tokenizer.decode(agent_data.response_ids, skip_special_tokens=True)
                cut = "turns" if "<tool_call>" in text else None
        self._record(agent_data, cut)
        return state

    async def _handle_processing_tools_state(self, agent_data: AgentData) -> AgentState:
        already = len(agent_data.messages)
        state = await super()._handle_processing_tools_state(agent_data)
        responses = [message["content"] for message in agent_data.messages[already:]]
        episode = _episode(agent_data)
        calls = tuple(
            ToolCall(call.name, call.arguments, response) for call, response in zip(episode.turns[-1].calls, responses)
        )
        turn = Turn(episode.turns[-1].content, calls + episode.turns[-1].calls[len(calls) :])
        cut = "length" if state == AgentState.TERMINATED else None
        _keep(agent_data, Episode((*episode.turns[:-1], turn), cut))
        return state

    def _record(self, agent_data: AgentData, cut: str | None) -> None:
        calls = tuple(
            ToolCall(call.name, _arguments(call.arguments), dropped=position >= self.max_parallel_calls)
            for position, call in enumerate(agent_data.tool_calls)
        )
        content = self.tokenizer.decode(agent_data.response_ids, skip_special_tokens=True)
        _keep(agent_data, Episode((*_episode(agent_data).turns, Turn(content, calls)), cut))


def _arguments(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def _episode(agent_data: AgentData) -> Episode:
    text = agent_data.extra_fields.get("episode")
    return Episode.from_json(text) if text else Episode(())


def _keep(agent_data: AgentData, episode: Episode) -> None:
    agent_data.extra_fields["episode"] = episode.to_json()
