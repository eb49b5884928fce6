"""Turns question/answer rows into verl's agent-loop parquet, and writes the tool config that the agent is offered.

Outputs in --out: train.parquet, validation.parquet (the last data.validation_rows training rows), test.parquet,
tools.yaml, manifest.json (counts, schema hash, lengths of the prompts in tokens with the tool schema rendered; written
last).
"""

import argparse
from collections import Counter
from pathlib import Path
from typing import Any

import yaml
from toolrl import cli, manifest
from toolrl.data.agent_rows import (
    agent_table,
    read_problems,
    read_tool_config,
    schema_hash,
    tool_config,
    write_parquet,
)
from toolrl.data.sources import SPLITS, read_rows
from toolrl.errors import UserError
from toolrl.tasks import load_task
from toolrl.tasks.base import Problem, Task


def main(arguments: argparse.Namespace) -> None:
    settings, out = arguments.settings, arguments.out
    agent = settings["agent"]
    task = load_task(settings["task"])
    if agent["tool_config"]:
        tools = read_tool_config(Path(agent["tool_config"]))
    else:
        tools = tool_config(settings["task"], task, agent["tools"])
    names = [tool["tool_schema"]["function"]["name"] for tool in tools["tools"]]
    schemas = [tool["tool_schema"] for tool in tools["tools"]]
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(arguments.model)
    record: dict = {"rows": {}, "longest_prompt_tokens": {}, "prompt_tokens": {}, "tools": names}
    files = []
    for split, problems in _splits(arguments.data, task, settings["data"]["validation_rows"]).items():
        table = agent_table(problems, task, split, settings["task"], agent["agent_name"], names)
        path = out / f"{split}.parquet"
        write_parquet(path, table)
        files.append(path)
        lengths = _prompt_lengths(table.column("prompt").to_pylist(), schemas, tokenizer)
        record["rows"][split] = table.num_rows
        record["schema_hash"] = schema_hash(table.schema)
        record["longest_prompt_tokens"][split] = max(lengths, default=0)
        record["prompt_tokens"][split] = dict(Counter(lengths))
        cli.log.info("preprocess: %d %s rows, longest prompt %d tokens", table.num_rows, split, max(lengths, default=0))
        if split == "test":
            alone = [task.prompt(problem.question, []) for problem in problems]
            lengths = _prompt_lengths(alone, [], tokenizer)
            record["longest_prompt_tokens"]["test (no tool)"] = max(lengths)
            record["prompt_tokens"]["test (no tool)"] = dict(Counter(lengths))
    manifest.write_text(out / "tools.yaml", yaml.safe_dump(tools, sort_keys=False, allow_unicode=True))
    record["chat_template"] = manifest.digest(tokenizer.chat_template)
    record["files"] = manifest.file_records(out, [*files, out / "tools.yaml"])
    manifest.write_json(out / "manifest.json", record)


def _splits(folder: Path, task: Task, validation_rows: int) -> dict[str, list[Problem]]:
    """The problems of each split; the validation split is the end of the training rows.

    Raises:
        UserError: when that leaves nothing to train on.
    """
    train, test = (
        read_problems(read_rows(str(folder / f"{split}.jsonl"), split), task, str(folder / f"{split}.jsonl"))
        for split in SPLITS
    )
    kept = len(train) - validation_rows
    if kept < 1:
        raise UserError(
            f"data.validation_rows ({validation_rows}) leaves nothing of the {len(train)} training rows to train on."
        )
    return {"train": train[:kept], "validation": train[kept:], "test": test}


def _prompt_lengths(prompts: list, schemas: list, tokenizer: Any) -> list[int]:
    if not prompts:
        return []
    rendered = tokenizer.apply_chat_template(prompts, tools=schemas, add_generation_prompt=True, tokenize=False)
    return [len(ids) for ids in tokenizer(rendered, add_special_tokens=False)["input_ids"]]


if __name__ == "__main__":
    command = cli.parser(__doc__)
    cli.add_settings(command)
    command.add_argument("--data", type=Path, required=True, help="folder with train.jsonl and test.jsonl")
    command.add_argument("--model", type=Path, required=True, help="model folder whose tokenizer measures the prompts")
    command.add_argument("--out", type=Path, required=True, help="the folder to write to")
    cli.run(main, command)
