"""Several runs in one workflow: each is the configuration with overrides, and stages that are the same run once.

A run lives in a folder of its own, its root: `results` where there is only one, else `results/runs/<name>`. A stage
with the same settings and inputs as an earlier run's is not repeated: that run owns it.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from toolrl.manifest import canonical_json
from toolrl.stages import stage_settings

SINGLE = "results"
MODELS = ("base", "start", "trained")
"""What can be evaluated, in the order of a run: before the warm start, before training, and after it."""

SETTINGS = {f"evaluate_{model}": "evaluate" for model in MODELS}
"""Stages whose settings have another name in `toolrl.stages.STAGE_KEYS`."""


@dataclass(frozen=True)
class Run:
    """One run: its name in the report, its folder, and its whole configuration."""

    name: str
    root: str
    config: Mapping[str, Any]


def merged(base: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The base with the overrides' leaves set; mappings are merged, everything else is replaced."""
    result = copy.deepcopy(dict(base))
    for key, value in overrides.items():
        nested = isinstance(value, Mapping) and isinstance(result.get(key), Mapping)
        result[key] = merged(result[key], value) if nested else copy.deepcopy(value)
    return result


def all_runs(config: Mapping[str, Any]) -> list[Run]:
    """The configured runs, or the one that the configuration itself is."""
    base = {key: value for key, value in config.items() if key != "runs"}
    if not config["runs"]:
        return [Run("main", SINGLE, base)]
    return [Run(name, f"{SINGLE}/runs/{name}", merged(base, changes)) for name, changes in config["runs"].items()]


def start_stage(config: Mapping[str, Any]) -> str:
    """The stage that makes the model which training starts from."""
    return "warm_start" if config["warm_start"]["enabled"] else "prepare_model"


def evaluated_models(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Those of `MODELS` that a run evaluates."""
    return MODELS if config["evaluate"]["base"] else MODELS[1:]


def _upstreams(config: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Every stage that can be shared, with the stages whose results it reads."""
    embedded = ("download",) if config["model"]["source"] == "embedded" else ()
    return {
        "download": (),
        "prepare_model": embedded,
        "warm_start": ("download", "prepare_model"),
        "preprocess": ("download", "prepare_model"),
        "preflight_train": ("preprocess", start_stage(config)),
        "preflight_evaluate": ("preprocess", start_stage(config)),
        "train": ("preprocess", start_stage(config)),
        "evaluate_base": ("preprocess", "prepare_model"),
        "evaluate_start": ("preprocess", start_stage(config)),
        "evaluate_trained": ("preprocess", "train"),
    }


class Owners:
    """For each run and stage, the root of the first run that has the very same stage."""

    def __init__(self, runs: list[Run]) -> None:
        self._configs = {run.root: run.config for run in runs}
        self._first: dict[str, str] = {}
        self._owner: dict[tuple[str, str], str] = {}
        for run in runs:
            for stage in _upstreams(run.config):
                self(run.root, stage)

    def __call__(self, root: str, stage: str) -> str:
        if (root, stage) not in self._owner:
            config = self._configs[root]
            inputs = [self(root, name) for name in _upstreams(config)[stage]]
            settings = stage_settings(config, SETTINGS.get(stage, stage))
            key = canonical_json([stage, settings, inputs])
            self._owner[root, stage] = self._first.setdefault(key, root)
        return self._owner[root, stage]
