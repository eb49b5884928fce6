"""Whether it will fit: the context window, the disk and the GPUs' memory."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from toolrl.batches import longest_episode
from toolrl.models.sources import parameter_count
from toolrl.preflight import Inputs
from toolrl.training import checkpoints

GIB = 2**30
TRAINED_BYTES = 16
"""Bytes of a parameter under mixed-precision Adam with float32 master weights: weights, gradient, two moments."""

USABLE_SHARE = 0.95


@dataclass(frozen=True)
class GpuMemory:
    """An estimate for each GPU, in bytes; activations come on top.

    Attributes:
        training: sharded weights, gradients and optimizer states, while the engine sleeps.
        engine_weights: the engine's copy, sharded by tensor parallelism.
        cache_per_episode: keys and values of one episode of the greatest length.
    """

    training: float
    engine_weights: float
    cache_per_episode: float


def _model_config(inputs: Inputs) -> Mapping[str, Any]:
    return json.loads((inputs.model / "config.json").read_text(encoding="utf-8"))


def context_window(inputs: Inputs) -> Iterator[str]:
    """Prompt and response together fit the model's positions."""
    agent = inputs.config["agent"]
    longest, window = longest_episode(agent), _model_config(inputs)
    positions = window.get("max_position_embeddings")
    if positions and longest > positions:
        yield (
            f"agent.max_prompt_length + agent.max_response_length ({longest}) is more than the model's context of "
            f"{positions} tokens: lower them."
        )


def disk(inputs: Inputs) -> Iterator[str]:
    problem = checkpoints.room_problem(inputs.work, inputs.model, inputs.config["train"])
    yield from [problem] if problem else []


def estimate_gpu_memory(inputs: Inputs) -> GpuMemory:
    config, shape = inputs.config, _model_config(inputs)
    parameters = parameter_count(inputs.model)
    nodes = config["resources"]["nodes"] if inputs.stage == "train" else 1
    gpus = max(1, config["resources"][inputs.stage]["gpu"]) * nodes
    tensor_parallel = config["rollout"]["tensor_parallel"]
    value_bytes = 4 if config["rollout"]["dtype"] == "float32" else 2
    heads = shape.get("num_key_value_heads") or shape["num_attention_heads"]
    size = shape.get("head_dim") or shape["hidden_size"] // shape["num_attention_heads"]
    cache_per_token = 2 * shape["num_hidden_layers"] * heads * size * value_bytes / tensor_parallel
    return GpuMemory(
        training=parameters * TRAINED_BYTES / gpus,
        engine_weights=parameters * value_bytes / tensor_parallel,
        cache_per_episode=cache_per_token * longest_episode(config["agent"]),
    )


def gpu_memory(inputs: Inputs) -> Iterator[str]:
    """Training fits a GPU, and the engine's share of it holds its weights and one episode."""
    if inputs.config["resources"]["platform"] != "cuda" or not inputs.gpus or not inputs.gpus.count:
        return
    need, have = estimate_gpu_memory(inputs), inputs.gpus.bytes_each
    if need.training > USABLE_SHARE * have:
        yield (
            f"training needs about {need.training / GIB:.0f} GiB on each GPU for weights, gradients and optimizer, but "
            f"a GPU has {have / GIB:.0f} GiB: use more GPUs (resources.train.gpu) or a smaller model."
        )
    share = inputs.config["rollout"]["gpu_memory_utilization"]
    wanted = need.engine_weights + need.cache_per_episode
    if wanted > share * have:
        yield (
            f"the engine needs about {wanted / GIB:.1f} GiB on each GPU for its weights and one episode, but "
            f"rollout.gpu_memory_utilization ({share}) gives it {share * have / GIB:.1f} GiB: raise it, or "
            "rollout.tensor_parallel."
        )
