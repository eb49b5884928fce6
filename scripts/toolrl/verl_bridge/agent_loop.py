"""The agent loops that verl runs for a row's `agent_name`.

verl hands a reward function the decoded tokens only: which loop ran, its turns, dropped calls and the reason of a cut
cannot be told from them for sure. `NamedAgentLoop` notes the loop's name, and `RecordedToolAgentLoop` keeps verl's
behaviour and notes the rest, both in `extra_fields`, which reach the reward.
"""

import hashlib
import json
from typing import Any

from verl.experimental.agent_loop.tool_agent_loop import AgentData, AgentState, ToolAgentLoop

from toolrl.episodes import Episode, ToolCall, Turn
from toolrl.extensions import load


class NamedAgentLoop:
    """Any agent loop, with its name on every episode, and for its requests a seed of their own (in a deterministic run)
    and the temperature of the row (in an evaluation).

    verl's `full_determinism` gives all requests one seed, so that all rollouts of a prompt would be the same; here the
    seed is that of the run, the step, the row and the rollout.
    """

    def __init__(self, name: str, loop: str, trainer_config: Any, **arguments: Any) -> None:
        self._name = name
        self._seed = trainer_config.config.toolrl.request_seed
        self._whole_answers = whole_answers(trainer_config.config.actor_rollout_ref.rollout.name)
        self._loop = load(loop)(trainer_config=trainer_config, **arguments)

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> Any:
        info = row.get("extra_info") or {}
        if info.get("temperature") is not None:
            sampling_params = {**sampling_params, "temperature": float(info["temperature"]), "top_p": 1.0, "top_k": -1}
        if self._seed is not None:
            sampling_params = {**sampling_params, "seed": request_seed(self._seed, row)}
        output = await self._loop.run({**self._whole_answers, **sampling_params}, **row)
        for part in output if isinstance(output, list) else [output]:
            part.extra_fields["agent_loop"] = self._name
        return output


def whole_answers(engine: str) -> dict[str, Any]:
    """Sampling parameters that have vLLM's server hand over an answer once, when it is complete, and as tokens: that is
    what verl waits for and takes, and benchmarks/engine_server.py measures what it saves. An agent loop with stop
    strings has to set `detokenize`."""
    return {"output_kind": _FinalOnly(), "detokenize": False} if engine == "vllm" else {}


class _FinalOnly:
    """Becomes vLLM's `RequestOutputKind.FINAL_ONLY` on arrival; importing vLLM would take each worker seconds."""

    def __reduce__(self) -> tuple[Any, tuple[()]]:
        return _final_only, ()


def _final_only() -> Any:
    from vllm.sampling_params import RequestOutputKind

    return RequestOutputKind.FINAL_ONLY


def request_seed(seed: int, row: dict[str, Any]) -> int:
    """A 31-bit seed from the run's seed and what tells this rollout from all others of the run."""
    place = [int(row[key]) for key in ("global_steps", "index", "session_id")]
    info = row.get("extra_info") or {}
    place += [int(info.get(key) or 0) for key in ("repeat", "sample")]
    return int(hashlib.sha256(json.dumps([seed, *place]).encode()).hexdigest()[:8], 16) % 2**31


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
