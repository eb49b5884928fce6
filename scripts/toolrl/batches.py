"""The arithmetic of batches: what must divide what, so that verl starts. Its own messages come after minutes, or never.

A step has `train.batch_size` prompts x `train.rollouts_per_prompt` rollouts. They are spread over the GPUs; an update
takes `train.mini_batch_size` prompts, and a forward pass a micro-batch of rollouts on each GPU.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any


def batch_problems(config: Mapping[str, Any]) -> Iterator[str]:
    """A sentence for every size that does not fit the others, with the nearest that would."""
    train, rollout, resources = (config[key] for key in ("train", "rollout", "resources"))
    batch, mini, group = train["batch_size"], train["mini_batch_size"], train["rollouts_per_prompt"]
    micro, tensor_parallel = train["micro_batch_size_per_gpu"], rollout["tensor_parallel"]
    gpus = max(1, resources["train"]["gpu"])
    workers = gpus * resources["nodes"]
    for stage in ("train", "evaluate"):
        available = max(1, resources[stage]["gpu"])
        if available % tensor_parallel:
            yield (
                f"rollout.tensor_parallel ({tensor_parallel}) must divide the {available} GPUs of {stage} on a node "
                f"(resources.{stage}.gpu); {_nearest(tensor_parallel, _divides(available))}."
            )
    if batch % mini:
        yield (
            f"train.mini_batch_size ({mini}) must divide train.batch_size ({batch}); {_nearest(mini, _divides(batch))}."
        )
    elif mini * group % workers:
        yield (
            f"train.mini_batch_size x train.rollouts_per_prompt ({mini} x {group}) must be a multiple of the {workers} "
            "GPUs of training; for mini_batch_size, "
            f"{_nearest(mini, lambda n: batch % n == 0 and n * group % workers == 0)}."
        )
    elif not _dynamic(config):
        share = mini * group // workers
        if share % micro:
            yield (
                f"train.micro_batch_size_per_gpu ({micro}) must divide the {share} rollouts that a GPU gets of a "
                f"mini-batch ({mini} x {group} over {workers}); {_nearest(micro, _divides(share))}."
            )
        share = batch * group // workers
        log_prob = rollout["log_prob_micro_batch_size_per_gpu"]
        if share % log_prob:
            yield (
                f"rollout.log_prob_micro_batch_size_per_gpu ({log_prob}) must divide the {share} rollouts that a GPU "
                f"gets of a step; {_nearest(log_prob, _divides(share))}."
            )


def longest_episode(agent: Mapping[str, Any]) -> int:
    """Tokens of the longest episode that the section `agent` allows, the prompt included."""
    return agent["max_prompt_length"] + agent["max_response_length"]


def _dynamic(config: Mapping[str, Any]) -> bool:
    """Whether micro-batches are filled with tokens, which any number of rollouts can be, unless an override has them
    counted in rollouts."""
    overrides = {**config["rollout"]["overrides"], **config["train"]["overrides"]}
    return all(value for name, value in overrides.items() if name.endswith("use_dynamic_bsz"))


def _divides(number: int) -> Callable[[int], bool]:
    return lambda n: number % n == 0


def _nearest(value: int, fits: Callable[[int], bool]) -> str:
    lower = next((n for n in range(value - 1, 0, -1) if fits(n)), None)
    higher = next((n for n in range(value + 1, 8 * value + 1) if fits(n)), None)
    found = [str(n) for n in (lower, higher) if n is not None]
    return f"the nearest valid values are {' and '.join(found)}" if found else "no value near it fits"
