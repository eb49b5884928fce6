"""Question/answer rows → verl's agent-loop parquet, with an explicit schema."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from toolrl.errors import UserError
from toolrl.tasks.base import Problem, Task

TEXT = pa.string()


def row_schema(tools: Sequence[str]) -> pa.Schema:
    """The Arrow schema of an agent-loop file whose rows offer the given tools.

    Readers break on empty structs and null-typed columns, so `tools_kwargs` is left out where no tool is offered.
    """
    tool_kwargs = pa.struct([("create_kwargs", pa.struct([("ground_truth", TEXT)]))])
    extra_info = [("split", TEXT), ("index", pa.int64()), ("question", TEXT), ("answer", TEXT)]
    extra_info += [("need_tools_kwargs", pa.bool_())]
    if tools:
        extra_info.append(("tools_kwargs", pa.struct([(name, tool_kwargs) for name in tools])))
    extra_info.append(("interaction_kwargs", pa.struct([("query", TEXT), ("ground_truth", TEXT)])))
    return pa.schema(
        [
            ("data_source", TEXT),
            ("agent_name", TEXT),
            ("prompt", pa.list_(pa.struct([("role", TEXT), ("content", TEXT)]))),
            ("ability", TEXT),
            ("reward_model", pa.struct([("style", TEXT), ("ground_truth", TEXT)])),
            ("extra_info", pa.struct(extra_info)),
        ]
    )


def read_problems(rows: pa.Table, task: Task, file: str) -> list[Problem]:
    """Reads every row with the task.

    Raises:
        UserError: naming the file and the first row (counted from 1) that cannot be used.
    """
    if not rows.num_rows:
        raise UserError(f"{file} has no rows; a dataset needs at least one question.")
    problems = []
    for number, row in enumerate(rows.to_pylist(), start=1):
        try:
            problems.append(task.problem(row))
        except UserError as error:
            raise UserError(f"{file}, row {number}: {error}.") from None
    return problems


def agent_table(
    problems: Sequence[Problem], task: Task, split: str, data_source: str, agent_name: str, tools: Sequence[str]
) -> pa.Table:
    """The agent-loop rows of one split, in the order of the problems; `extra_info.index` is the row's number."""
    schema = row_schema(tools)
    prompts = [task.prompt(problem.question, tools) for problem in problems]
    questions = pa.array([problem.question for problem in problems], TEXT)
    truths = pa.array([problem.ground_truth for problem in problems], TEXT)
    count = len(problems)
    extra: dict[str, Any] = {
        "split": pa.array([split] * count, TEXT),
        "index": pa.array(range(count), pa.int64()),
        "question": questions,
        "answer": pa.array([problem.solution for problem in problems], TEXT),
        "need_tools_kwargs": pa.array([bool(tools)] * count, pa.bool_()),
        "interaction_kwargs": pa.StructArray.from_arrays([questions, truths], ["query", "ground_truth"]),
    }
    if tools:
        kwargs = [task.tools_kwargs(problem, tools) for problem in problems]
        extra["tools_kwargs"] = pa.array(kwargs, schema.field("extra_info").type.field("tools_kwargs").type)
    extra_type = schema.field("extra_info").type
    columns = [
        pa.array([data_source] * count, TEXT),
        pa.array([agent_name] * count, TEXT),
        pa.array(prompts, schema.field("prompt").type),
        pa.array(["math"] * count, TEXT),
        pa.StructArray.from_arrays([pa.array(["rule"] * count, TEXT), truths], ["style", "ground_truth"]),
        pa.StructArray.from_arrays([extra[field.name] for field in extra_type], fields=list(extra_type)),
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def prompt_length_problems(manifest: Mapping[str, Any], limit: int) -> list[str]:
    """A sentence for each split with prompts longer than `limit` tokens, the tool schema included.

    Args:
        manifest: preprocess's.
        limit: `agent.max_prompt_length`.
    """
    problems = []
    for split, counts in manifest["prompt_tokens"].items():
        too_long = sum(count for length, count in counts.items() if int(length) > limit)
        if too_long:
            longest = manifest["longest_prompt_tokens"][split]
            problems.append(
                f"{too_long} of {sum(counts.values())} {split} prompts have more tokens, with the tool schema, than "
                f"agent.max_prompt_length ({limit}): raise it to at least {longest}."
            )
    return problems


def check_prompt_lengths(manifest: Mapping[str, Any], limit: int) -> None:
    """Refuses to start an agent on prompts that do not fit: verl would leave them out in silence."""
    if problems := prompt_length_problems(manifest, limit):
        raise UserError(problems[0])


def write_parquet(path: Path, table: pa.Table) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path)


def schema_hash(schema: pa.Schema) -> str:
    return hashlib.sha256(str(schema).encode()).hexdigest()[:16]


def tool_config(task_name: str, task: Task, tools: Sequence[str]) -> dict[str, Any]:
    """verl's tool config of a task's tools: OpenAI schema, class and `type: native`."""
    return {
        "tools": [
            {
                "class_name": "toolrl.verl_bridge.tools.TaskTool",
                "config": {"type": "native", "task": task_name},
                "tool_schema": task.tools[name].schema,
            }
            for name in tools
        ]
    }


def read_tool_config(path: Path) -> dict[str, Any]:
    """Reads a user's tool config and checks its shape.

    Raises:
        UserError: naming the file and the first thing that is wrong.
    """
    try:
        config = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"agent.tool_config: the file {path} does not exist.") from None
    except yaml.YAMLError as error:
        raise UserError(f"agent.tool_config: {path} is not valid YAML ({str(error).splitlines()[0]}).") from None
    entries = config.get("tools") if isinstance(config, Mapping) else None
    if not isinstance(entries, list) or not entries:
        raise UserError(f"agent.tool_config: {path} needs a list `tools` with at least one tool.")
    for position, entry in enumerate(entries, start=1):
        schema = entry.get("tool_schema", {}) if isinstance(entry, Mapping) else {}
        function = schema.get("function", {}) if isinstance(schema, Mapping) else {}
        if (
            not isinstance(entry, Mapping)
            or not isinstance(entry.get("class_name"), str)
            or "." not in entry["class_name"]
        ):
            raise UserError(f"agent.tool_config: tool {position} of {path} needs `class_name: package.module.Class`.")
        if (entry.get("config") or {}).get("type") != "native":
            raise UserError(f"agent.tool_config: tool {position} of {path} needs `config: {{type: native}}`.")
        if not isinstance(function.get("name"), str) or not isinstance(function.get("parameters"), Mapping):
            raise UserError(
                f"agent.tool_config: tool {position} of {path} needs `tool_schema.function` with name and parameters."
            )
    return config
