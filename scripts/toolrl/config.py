"""Checking the configuration, and the part of it that each stage depends on."""

import difflib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import yaml

from toolrl.batches import batch_problems
from toolrl.episodes import PARTS
from toolrl.errors import UserError
from toolrl.extensions import AGENT_LOOPS, split_reference
from toolrl.tasks import load_task

SCHEMA_FILE = Path(__file__).resolve().parents[2] / "config" / "schema.yaml"


def check(config: Mapping[str, Any]) -> None:
    """Checks a whole configuration: its schema, then what no schema can say.

    Raises:
        UserError: a line for everything that is wrong; each names the key, what was expected and how to fix it.
    """
    if problems := list(config_problems(config)):
        raise UserError("\n".join(f"config: {problem}" for problem in problems))


def check_run(config: Mapping[str, Any], name: str) -> None:
    """Checks the configuration of one of several runs.

    Raises:
        UserError: as `check`, naming the run.
    """
    if problems := list(config_problems({**config, "runs": {}})):
        raise UserError("\n".join(f"config: runs.{name}: {problem}" for problem in problems))


def config_problems(config: Mapping[str, Any]) -> Iterator[str]:
    """A sentence for everything that is wrong. Keys are checked across only where the schema holds."""
    errors = sorted(_validator().iter_errors(config), key=lambda e: (len(e.path), str(e.path)))
    yield from map(_sentence, errors)
    if not errors:
        yield from _across_keys(config)


@cache
def _validator() -> Any:
    return jsonschema.Draft202012Validator(yaml.safe_load(SCHEMA_FILE.read_text(encoding="utf-8")))


def _sentence(error: Any) -> str:
    """One sentence for a `jsonschema.ValidationError`."""
    key = ".".join(str(part) for part in error.absolute_path) or "the configuration"
    if error.validator == "additionalProperties":
        known = list(error.schema["properties"])
        unknown = next(name for name in error.instance if name not in known)
        near = difflib.get_close_matches(str(unknown), known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(known)}."
        return f"{'' if not error.absolute_path else key + '.'}{unknown} is not a key; {hint}"
    if error.validator == "required":
        missing = next(name for name in error.validator_value if name not in error.instance)
        return f"{key} lacks the key {missing!r}; see config/config.yaml for its default."
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
    return f"{key} {expected}, not {error.instance!r}{hint}; {error.schema.get('description', '')}"


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


def _across_keys(config: Mapping[str, Any]) -> Iterator[str]:
    yield from _agent_problems(config)
    yield from _source_problems(config)
    yield from _resource_problems(config)
    yield from _run_problems(config)
    yield from batch_problems(config)
    train = config["train"]
    if train["select"] == "best_validation":
        if not config["data"]["validation_rows"]:
            yield (
                "train.select is best_validation, but data.validation_rows is 0: choosing on the test set would "
                "flatter the result; hold out some training rows."
            )
        if not train["validate_every"] or train["save_every"] % train["validate_every"]:
            yield (
                f"train.select is best_validation, so train.validate_every ({train['validate_every']}) must divide "
                f"train.save_every ({train['save_every']}): every saved step needs a validation."
            )


def _run_problems(config: Mapping[str, Any]) -> Iterator[str]:
    for name, changes in config["runs"].items():
        for section in sorted({"resources", "report", "runs"} & changes.keys()):
            yield f"runs.{name}.{section}: all runs share this section; set it at the top."
        if changes.get("rollout", {}).get("backend", config["rollout"]["backend"]) != config["rollout"]["backend"]:
            yield f"runs.{name}.rollout.backend: all runs share one environment; set it at the top."


def _agent_problems(config: Mapping[str, Any]) -> Iterator[str]:
    agent = config["agent"]
    try:
        task = load_task(config["task"])
    except UserError as error:
        yield str(error)
    else:
        for tool in agent["tools"]:
            if tool not in task.tools:
                yield f"agent.tools: task {task.name} has no tool {tool!r}; it has {', '.join(task.tools)}."
    known = [*AGENT_LOOPS, *agent["loops"]]
    if agent["agent_name"] not in known:
        yield f"agent.agent_name must be one of {', '.join(known)}, not {agent['agent_name']!r}; see agent.loops."
    if agent["agent_name"] == "tool_agent" and not agent["tools"] and not agent["tool_config"]:
        yield "agent.tools is empty: name a tool, or set agent.agent_name to single_turn_agent."
    with_tools = agent["tools"] or agent["tool_config"]
    if not with_tools and config["evaluate"]["arms"] != ["no_tool"]:
        yield "evaluate.arms must be [no_tool], as agent.tools is empty: there is no tool to offer or withhold."
    if agent["tool_config"]:
        yield from _missing_file(agent["tool_config"], "agent.tool_config", "it is set")
    for name, reference in agent["loops"].items():
        yield from _reference_problems(f"agent.loops.{name}", reference)
    for name, term in config["reward"]["terms"].items():
        yield from _reference_problems(f"reward.terms.{name}.function", term["function"])
        if name in PARTS:
            yield f"reward.terms.{name}: the name is taken by a built-in part of the return; choose another."


def _reference_problems(key: str, reference: str) -> Iterator[str]:
    try:
        source, _ = split_reference(reference)
    except UserError as error:
        yield f"{key}: {error}."
        return
    if source.endswith(".py"):
        yield from _missing_file(source, key, "it is set")


def _source_problems(config: Mapping[str, Any]) -> Iterator[str]:
    for split, path in config["data"]["path"].items():
        if config["data"]["source"] == "path":
            yield from _missing_file(path, f"data.path.{split}", "data.source is `path`")
    model = config["model"]
    if model["source"] == "path":
        if not model["path"]:
            yield "model.path is not set, although model.source is `path`."
        elif not Path(model["path"]).is_dir():
            yield f"model.path: the folder {model['path']} does not exist."
    if model["source"] == "hub" and not (model["hub"]["repository"] and model["hub"]["revision"]):
        yield "model.hub needs repository and revision, as model.source is `hub`."
    if config["evaluate"]["base"] and not config["warm_start"]["enabled"]:
        yield "evaluate.base must be false, as warm_start.enabled is: the base model is the start model then."
    if model["source"] == "embedded":
        if not config["warm_start"]["enabled"]:
            yield "warm_start.enabled must be true for model.source embedded, which is untrained."
        shape = model["embedded"]
        if shape["hidden_size"] % shape["heads"]:
            yield f"model.embedded.heads ({shape['heads']}) must divide hidden_size ({shape['hidden_size']})."
        elif shape["hidden_size"] // shape["heads"] % 32:
            yield (
                f"model.embedded.hidden_size / heads ({shape['hidden_size'] // shape['heads']}) must be a multiple of "
                "32: vLLM's CPU engine has no attention for other sizes."
            )


def _resource_problems(config: Mapping[str, Any]) -> Iterator[str]:
    resources = config["resources"]
    if resources["platform"] == "cuda":
        for stage in ("train", "evaluate"):
            if resources[stage]["gpu"] < 1:
                yield f"resources.{stage}.gpu must be at least 1, as resources.platform is `cuda`."
    elif any(resources[stage]["gpu"] for stage in ("warm_start", "train", "evaluate")):
        yield "resources.*.gpu must be 0, as resources.platform is `cpu`."


def _missing_file(path: str | None, key: str, reason: str) -> Iterator[str]:
    if not path:
        yield f"{key} is not set, although {reason}."
    elif not Path(path).is_file():
        yield f"{key}: the file {path} does not exist."
