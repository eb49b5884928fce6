"""An agent loop whose answers have a forced length, for benchmarks: a random model never ends its answer by itself."""

from math import exp
from statistics import NormalDist
from typing import Any

from toolrl.verl_bridge.agent_loop import RecordedToolAgentLoop

MEDIAN_SHARE, SPREAD, SHORTEST = 0.25, 0.7, 16


def response_lengths(rollouts: int, longest: int) -> list[int]:
    """Tokens of each rollout of a prompt: the quantiles of a log-normal distribution around a quarter of `longest`,
    cut there, as lengths of answers usually are. The same for every prompt, so that every step has the same work."""
    spread = NormalDist(sigma=SPREAD)
    factors = [exp(spread.inv_cdf((number + 0.5) / rollouts)) for number in range(rollouts)]
    return [max(SHORTEST, min(longest, round(MEDIAN_SHARE * longest * factor))) for factor in factors]


class ForcedLengthLoop(RecordedToolAgentLoop):
    async def run(self, sampling_params: dict[str, Any], **row: Any) -> Any:
        lengths = response_lengths(self.rollout_config.n, self.response_length)
        forced = {"max_tokens": lengths[int(row["session_id"])], "ignore_eos": True}
        return await super().run({**sampling_params, **forced}, **row)
