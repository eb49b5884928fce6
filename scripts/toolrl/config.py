"""Checking the configuration, and the part of it that each stage depends on."""

import copy
import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jsonschema
import yaml

from toolrl.errors import UserError
from toolrl.tasks import load_task

SCHEMA_FILE = Path(__file__).resolve().parents[2] / "config" / "schema.yaml"


def check(config: Mapping[str, Any]) -> None:
    """Checks a whole configuration: its schema, then what no schema can say.

    Raises:
        UserError: one sentence that names the key, what was expected and how to fix it.
    """
    schema = yaml.safe_load(SCHEMA_FILE.read_text(encoding="utf-8"))
    errors = sorted(
        jsonschema.Draft202012Validator(schema).iter_errors(config), key=lambda e: (len(e.path), str(e.path))
    )
    if errors:
        raise UserError(_sentence(errors[0]))
    _check_across_keys(config)


def _sentence(error: Any) -> str:
    """One sentence for a `jsonschema.ValidationError`."""
    key = ".".join(str(part) for part in error.absolute_path) or "the configuration"
    if error.validator == "additionalProperties":
        known = list(error.schema["properties"])
        unknown = next(name for name in error.instance if name not in known)
        near = difflib.get_close_matches(str(unknown), known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(known)}."
        return f"config: {'' if not error.absolute_path else key + '.'}{unknown} is not a key; {hint}"
    if error.validator == "required":
        missing = next(name for name in error.validator_value if name not in error.instance)
        return f"config: {key} lacks the key {missing!r}; see config/config.yaml for its default."
    expected = {
        "type": lambda: f"must be {_words(error.validator_value)}",
        "enum": lambda: f"must be one of {', '.join(map(str, error.validator_value))}",
        "minimum": lambda: f"must be at least {error.validator_value}",
        "maximum": lambda: f"must be at most {error.validator_value}",
        "exclusiveMinimum": lambda: f"must be greater than {error.validator_value}",
        "exclusiveMaximum": lambda: f"must be less than {error.validator_value}",
        "pattern": lambda: f"must match {error.validator_value}",
        "uniqueItems": lambda: "must not name an item twice",
    }.get(str(error.validator), lambda: str(error.message))()
    hint = ""
    if error.validator == "type" and isinstance(error.instance, str) and "number" in str(error.validator_value):
        hint = " (in YAML, write a float in scientific notation with a point: 1.0e-6)"
    return f"config: {key} {expected}, not {error.instance!r}{hint}; {error.schema.get('description', '')}"


def _words(types: str | list[str]) -> str:
    names = {
        "object": "a mapping",
        "array": "a list",
        "integer": "a whole number",
        "null": "null",
        "boolean": "true or false",
    }
    listed = [types] if isinstance(types, str) else types
    return " or ".join(names.get(name, f"a {name}") for name in listed)


def _check_across_keys(config: Mapping[str, Any]) -> None:
    agent, train, rollout, resources = (config[key] for key in ("agent", "train", "rollout", "resources"))
    task = load_task(config["task"])
    for tool in agent["tools"]:
        if tool not in task.tools:
            raise UserError(
                f"config: agent.tools: task {task.name} has no tool {tool!r}; it has {', '.join(task.tools)}."
            )
    if agent["agent_name"] == "tool_agent" and not agent["tools"] and not agent["tool_config"]:
        raise UserError("config: agent.tools is empty: name a tool, or set agent.agent_name to single_turn_agent.")
    for split, path in config["data"]["path"].items():
        if config["data"]["source"] == "path":
            _need_file(path, f"data.path.{split}", "data.source is `path`")
    if config["model"]["source"] == "path":
        if not config["model"]["path"]:
            raise UserError("config: model.path is not set, although model.source is `path`.")
        if not Path(config["model"]["path"]).is_dir():
            raise UserError(f"config: model.path: the folder {config['model']['path']} does not exist.")
    if config["model"]["source"] == "hub" and not (
        config["model"]["hub"]["repository"] and config["model"]["hub"]["revision"]
    ):
        raise UserError("config: model.hub needs repository and revision, as model.source is `hub`.")
    if agent["tool_config"]:
        _need_file(agent["tool_config"], "agent.tool_config", "it is set")
    shape = config["model"]["embedded"]
    if shape["hidden_size"] % shape["heads"]:
        raise UserError(
            f"config: model.embedded.heads ({shape['heads']}) must divide hidden_size ({shape['hidden_size']})."
        )
    if shape["hidden_size"] // shape["heads"] % 32:
        raise UserError(
            f"config: model.embedded.hidden_size / heads ({shape['hidden_size'] // shape['heads']}) must be a multiple "
            "of 32: vLLM's CPU engine has no attention for other sizes."
        )
    if train["batch_size"] % train["mini_batch_size"]:
        raise UserError(
            f"config: train.mini_batch_size ({train['mini_batch_size']}) must divide "
            f"train.batch_size ({train['batch_size']})."
        )
    gpus = resources["train"]["gpu"]
    if resources["platform"] == "cuda" and gpus < 1:
        raise UserError("config: resources.train.gpu must be at least 1, as resources.platform is `cuda`.")
    if resources["platform"] == "cpu" and any(resources[stage]["gpu"] for stage in ("warm_start", "train", "evaluate")):
        raise UserError("config: resources.*.gpu must be 0, as resources.platform is `cpu`.")
    workers = max(1, gpus) * resources["nodes"]
    if workers % rollout["tensor_parallel"]:
        raise UserError(
            f"config: rollout.tensor_parallel ({rollout['tensor_parallel']}) must divide "
            f"the {workers} GPUs of training."
        )
    rollouts = train["mini_batch_size"] * train["rollouts_per_prompt"]
    if rollouts % workers:
        raise UserError(
            f"config: train.mini_batch_size x train.rollouts_per_prompt ({rollouts}) must be a multiple of "
            f"the {workers} GPUs of training."
        )
    if not config["warm_start"]["enabled"] and config["model"]["source"] == "embedded":
        raise UserError("config: warm_start.enabled must be true for model.source embedded, which is untrained.")


def _need_file(path: str | None, key: str, reason: str) -> None:
    if not path:
        raise UserError(f"config: {key} is not set, although {reason}.")
    if not Path(path).is_file():
        raise UserError(f"config: {key}: the file {path} does not exist.")


STAGE_KEYS: Mapping[str, tuple[str, ...]] = {
    "download": ("seed", "task", "data"),
    "prepare_model": ("seed", "task", "model", "agent.tools"),
    "warm_start": ("seed", "task", "agent.tools", "warm_start"),
    "preprocess": ("task", "agent.agent_name", "agent.tools", "agent.tool_config"),
    "train": (
        "seed", "task", "agent", "train", "rollout", "reward", "resources.platform", "resources.nodes",
        "resources.train.gpu", "resources.agent_loop_workers", "resources.reward_workers", "resources.stall_minutes",
    ),
    "evaluate": (
        "seed", "task", "agent", "rollout", "evaluate", "resources.platform", "resources.evaluate.gpu",
        "resources.nodes", "resources.agent_loop_workers", "resources.reward_workers", "resources.stall_minutes",
    ),
}  # fmt: skip
"""The keys that each stage reads. What is not listed cannot rerun the stage."""


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
        if section in result:
            chosen = result[section]["source"]
            result[section] = {"source": chosen, chosen: result[section][chosen]}
    return result
