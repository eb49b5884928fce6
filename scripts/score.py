"""Scores a file of answers with a task's scorer, one JSON line for each row.

A row of IN.jsonl holds `gold` and one of `text` (a final message), `messages` (a conversation: its last assistant
message is scored) or `tool_argument` (an answer handed to a tool). Each output line holds value_correct, format_ok,
strict, no_answer and extracted.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from toolrl import cli
from toolrl.errors import UserError
from toolrl.tasks import load_task
from toolrl.tasks.base import Task, Verdict


def main(arguments: argparse.Namespace) -> None:
    task = load_task(arguments.task)
    try:
        lines = arguments.rows.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{arguments.rows} cannot be read: {error}") from None
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            verdict = score_row(json.loads(line), task)
        except (UserError, ValueError) as error:
            raise UserError(f"{arguments.rows}, line {number}: {error}") from None
        fields = ("value_correct", "format_ok", "strict", "no_answer", "extracted")
        sys.stdout.write(json.dumps({name: getattr(verdict, name) for name in fields}, ensure_ascii=False) + "\n")


def score_row(row: Any, task: Task) -> Verdict:
    """The verdict on one row.

    Raises:
        UserError: when the row lacks what it needs.
    """
    if not isinstance(row, dict) or "gold" not in row:
        raise UserError("a row needs `gold` and one of `text`, `messages` or `tool_argument`.")
    gold = str(row["gold"])
    if "tool_argument" in row:
        return task.score_argument(str(row["tool_argument"]), gold)
    if "text" in row:
        return task.score(str(row["text"]), gold)
    if isinstance(row.get("messages"), list):
        replies = [m for m in row["messages"] if isinstance(m, dict) and m.get("role") == "assistant"]
        last = replies[-1] if replies else {}
        # a message that calls a tool has not answered yet
        return task.score("" if last.get("tool_calls") else str(last.get("content") or ""), gold)
    raise UserError("a row needs one of `text`, `messages` or `tool_argument` beside `gold`.")


if __name__ == "__main__":
    command = cli.parser(__doc__)
    command.add_argument("rows", type=Path, metavar="IN.jsonl", help="the rows to score")
    command.add_argument("--task", default="gsm8k", help="a built-in task, or the path of a .py file with TASK")
    cli.run(main, command)
