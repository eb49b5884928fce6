"""Evaluation arms as data: which prompt, agent loop and sampling each evaluated row has.

One launch of the engine evaluates all of them, because rows carry what differs:

* `tool`: as in training;
* `tool_withheld`: the same prompt, but no tool is offered: what is lost without it;
* `no_tool`: the task's prompt without tools, in a single turn: what the model knows by itself.

The first configured arm is also evaluated `repeats` times more, greedily again (the noise floor), and `samples` times
at `temperature` (pass@k, maj@k).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from toolrl.tasks.base import Task

ARMS = ("tool", "tool_withheld", "no_tool")
SINGLE_TURN = "single_turn_agent"
PLACE = ("index", "arm", "repeat", "sample")
"""What tells an evaluated row from all others: the item, its arm, and the number of the repeat and of the sample; both
are 0 for the evaluation that is reported."""

PLACE_FIELDS = [
    ("arm", pa.string()),
    ("repeat", pa.int64()),
    ("sample", pa.int64()),
    ("temperature", pa.float64()),
]


def evaluated_rows(test: pa.Table, task: Task, evaluate: Mapping[str, Any], tools: Sequence[str]) -> pa.Table:
    """The rows of all arms, repeats and samples.

    Args:
        test: agent-loop rows of the test set (`toolrl.data.agent_rows.row_schema`).
        task: the task, whose prompt without tools the arm `no_tool` has.
        evaluate: the section of the configuration.
        tools: the tools that the prompt of the arm `tool` was made for.

    Returns:
        the same columns, and in `extra_info` the fields `arm`, `repeat`, `sample` and `temperature`.
    """
    rows = test.to_pylist()
    placed = [_placed(row, task, tools, *place) for place in _places(evaluate) for row in rows]
    extra = test.schema.field("extra_info")
    fields = [*extra.type, *(pa.field(name, kind) for name, kind in PLACE_FIELDS)]
    schema = test.schema.set(test.schema.get_field_index("extra_info"), pa.field("extra_info", pa.struct(fields)))
    return pa.Table.from_pylist(placed, schema=schema)


def _places(evaluate: Mapping[str, Any]) -> Iterator[tuple[str, int, int, float]]:
    primary = evaluate["arms"][0]
    for arm in evaluate["arms"]:
        yield arm, 0, 0, 0.0
    for repeat in range(1, evaluate["repeats"] + 1):
        yield primary, repeat, 0, 0.0
    for sample in range(1, evaluate["samples"] + 1):
        yield primary, 0, sample, evaluate["temperature"]


def _placed(
    row: dict[str, Any], task: Task, tools: Sequence[str], arm: str, repeat: int, sample: int, temperature: float
) -> dict[str, Any]:
    info = row["extra_info"] | {"arm": arm, "repeat": repeat, "sample": sample, "temperature": temperature}
    changed = {**row, "extra_info": info, "agent_name": agent_loop(arm, row["agent_name"], tools)}
    if arm == "no_tool":
        changed["prompt"] = task.prompt(info["question"], [])
    return changed


def agent_loop(arm: str, configured: str, tools: Sequence[str]) -> str:
    """The agent loop of an arm: the configured one, or a single turn where its tools are not offered."""
    return SINGLE_TURN if tools and not offers_tools(arm) else configured


def offers_tools(arm: str) -> bool:
    return arm == "tool"
