"""The part of a configuration that each stage depends on."""

import copy
from collections.abc import Mapping
from typing import Any

STAGE_KEYS: Mapping[str, tuple[str, ...]] = {
    "download": ("seed", "task", "data"),
    "prepare_model": ("seed", "task", "model", "agent.tools"),
    "warm_start": ("seed", "task", "agent.tools", "warm_start"),
    "preprocess": ("task", "agent.agent_name", "agent.tools", "agent.tool_config", "data.validation_rows"),
    "preflight_train": (
        "seed", "deterministic", "task", "agent", "train", "rollout", "reward", "resources.platform",
        "resources.nodes", "resources.ray_address", "resources.train.gpu", "resources.evaluate.gpu",
        "resources.agent_loop_workers", "resources.reward_workers",
    ),
    "preflight_evaluate": (
        "deterministic", "task", "agent", "rollout", "resources.platform", "resources.ray_address",
        "resources.evaluate.gpu",
    ),
    "train": (
        "seed", "deterministic", "task", "agent", "train", "rollout", "reward", "watchdog", "resources.platform",
        "resources.nodes", "resources.ray_address", "resources.ray_join_minutes", "resources.train.gpu",
        "resources.agent_loop_workers", "resources.reward_workers",
    ),
    "evaluate": (
        "seed", "deterministic", "task", "agent", "rollout", "evaluate.max_items", "evaluate.arms", "evaluate.repeats",
        "evaluate.samples", "evaluate.temperature", "watchdog.stall_minutes", "resources.platform",
        "resources.evaluate.gpu", "resources.ray_address", "resources.ray_join_minutes",
        "resources.agent_loop_workers", "resources.reward_workers",
    ),
}  # fmt: skip
"""The keys that each stage reads. What is not listed cannot rerun the stage."""


OPERATIONAL = (
    "watchdog", "train.loggers", "train.keep_checkpoints", "train.select", "train.save_every",
    "resources.agent_loop_workers", "resources.reward_workers", "resources.ray_address", "resources.ray_join_minutes",
)  # fmt: skip
"""Keys of training that steer how it is run, but not what it learns: a changed one continues from checkpoints."""


def shaping_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of training that shape its result."""
    result = copy.deepcopy(dict(settings))
    for key in OPERATIONAL:
        *parents, leaf = key.split(".")
        target = result
        for parent in parents:
            target = target[parent]
        target.pop(leaf)
    return result


def dotted(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Every leaf by its dotted key."""
    result: dict[str, Any] = {}
    for key, value in settings.items():
        result |= dotted(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return result


def stage_settings(config: Mapping[str, Any], stage: str) -> dict[str, Any]:
    """The part of a configuration that a stage depends on; of a source's blocks only the one that is used."""
    result: dict[str, Any] = {}
    for key in STAGE_KEYS[stage]:
        source, target = config, result
        *parents, leaf = key.split(".")
        for parent in parents:
            source, target = source[parent], target.setdefault(parent, {})
        target[leaf] = copy.deepcopy(source[leaf])
    for section in ("data", "model"):
        if "source" in result.get(section, {}):
            chosen = result[section]["source"]
            result[section] = {"source": chosen, chosen: result[section][chosen]}
    return result
