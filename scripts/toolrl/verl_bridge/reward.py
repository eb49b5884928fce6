"""verl's reward, computed by the task's scorer on the final assistant message."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any
from uuid import uuid4

from verl import DataProto
from verl.experimental.reward_loop.reward_manager.base import RewardManagerBase

from toolrl.arms import offers_tools
from toolrl.episodes import Episode, RewardTerm, Shaping, Turn, measure, reward, with_terms
from toolrl.extensions import load
from toolrl.tasks import load_task


class EpisodeRewardManager(RewardManagerBase):
    """Scores one episode; everything it returns lands in verl's validation dumps."""

    def __init__(self, config: Any, tokenizer: Any, compute_score: Any = None, **unused: Any) -> None:
        super().__init__(config, tokenizer, compute_score)
        settings = config.toolrl
        self._task = load_task(settings.task)
        self._offered = list(settings.tools)
        self._shaping = Shaping(**settings.shaping)
        self._terms = {
            name: RewardTerm(load(term.function), float(term.weight)) for name, term in settings.reward_terms.items()
        }
        # one file for each process, so that no two write to one
        self._notes = Path(settings.episodes) / f"{uuid4().hex}.jsonl" if settings.episodes else None
        self.tokenizer: Any  # verl annotates it as AutoTokenizer, the factory

    async def run_single(self, data: DataProto) -> dict[str, Any]:
        item = data[-1:][0]
        fields = item.non_tensor_batch
        extra = dict(fields.get("tool_extra_fields") or {})
        info = fields["extra_info"]
        episode = self._episode(extra.get("episode"), item)
        ground_truth = fields["reward_model"]["ground_truth"]
        arm = str(info.get("arm") or "tool")
        measures = measure(episode, ground_truth, self._task, self._offered if offers_tools(arm) else [])
        result = reward(measures, extra.get("tool_rewards") or [], self._shaping)
        result = with_terms(result, self._terms, episode, measures, ground_truth)
        values = {
            **{f"reward_{name}": float(value) for name, value in result.parts.items()},
            **{name: _plain(value) for name, value in asdict(measures).items()},
        }
        if self._notes and info["split"] == "train":
            with open(self._notes, "a", encoding="utf-8") as handle:
                place = {"step": int(fields["global_steps"]), "index": int(info["index"]), "reward": result.total}
                handle.write(json.dumps({**place, "agent_loop": extra.get("agent_loop", ""), **values}) + "\n")
        return {
            "reward_score": result.total,
            "reward_extra_info": {
                "index": int(info["index"]),
                "arm": arm,
                "repeat": int(info.get("repeat") or 0),
                "sample": int(info.get("sample") or 0),
                "agent_loop": str(extra.get("agent_loop", "")),
                "episode": episode.to_json(),
                **values,
            },
        }

    def _episode(self, recorded: str | None, item: Any) -> Episode:
        """The recorded episode; for an agent loop that records none, a single turn of all its tokens."""
        if recorded:
            return Episode.from_json(recorded)
        responses = item.batch["responses"]
        length = int(item.batch["attention_mask"][-responses.shape[-1] :].sum())
        cut = "length" if length >= self.config.data.max_response_length else None
        return Episode((Turn(self.tokenizer.decode(responses[:length], skip_special_tokens=True)),), cut)


def _plain(value: Any) -> Any:
    return "" if value is None else int(value) if isinstance(value, bool) else value
