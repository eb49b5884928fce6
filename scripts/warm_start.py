"""Fine-tunes a model on the task's demonstrations (transformers' Trainer), so that it speaks the tool format before RL.

Only the assistant's own tokens are trained on. Outputs in --out: the model folder `model` and manifest.json.
"""

import argparse
import random
from pathlib import Path

from toolrl import cli, machine, manifest
from toolrl.data.agent_rows import read_problems
from toolrl.data.sources import read_rows
from toolrl.errors import UserError
from toolrl.models.sft import tokenize_conversations, train, usable_precision
from toolrl.tasks import load_task


def main(arguments: argparse.Namespace) -> None:
    settings = arguments.settings
    warm = settings["warm_start"]
    task = load_task(settings["task"])
    names = settings["agent"]["tools"]
    tools = task.tool_schemas(names)
    problems = read_problems(read_rows(str(arguments.data / "train.jsonl"), "train"), task, "train.jsonl")
    conversations = task.demonstrations(problems, names, warm["mistake_rate"], random.Random(settings["seed"]))

    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(arguments.model)
    cli.log.info("warm start: tokenizing %d demonstrations", len(conversations))
    examples = tokenize_conversations(conversations, tools, tokenizer)
    kept = [example for example in examples if len(example["input_ids"]) <= warm["max_length"]]
    if not kept:
        raise UserError(
            f"all demonstrations are longer than warm_start.max_length ({warm['max_length']} tokens): raise it."
        )
    used = {**warm, "precision": usable_precision(warm["precision"], bool(arguments.gpus))}
    cli.log.info("warm start: products in %s", used["precision"])
    with machine.own_gpus(arguments.gpus, "warm_start"):
        losses = train(
            arguments.model,
            tokenizer,
            kept,
            used,
            settings["seed"],
            arguments.threads,
            bool(arguments.gpus),
            arguments.out,
        )
    folder = arguments.out / "model"
    manifest.write_json(
        arguments.out / "manifest.json",
        {
            "demonstrations": len(conversations),
            "left_out_as_too_long": len(examples) - len(kept),
            "losses": losses,
            "settings": used,
            "seed": settings["seed"],
            "files": manifest.folder_records(folder),
        },
    )


if __name__ == "__main__":
    command = cli.parser(__doc__)
    cli.add_settings(command)
    command.add_argument("--data", type=Path, required=True, help="folder with train.jsonl")
    command.add_argument("--model", type=Path, required=True, help="the model folder to start from")
    command.add_argument("--threads", type=int, required=True, help="CPU threads for torch")
    command.add_argument(
        "--gpus", type=int, default=0, choices=(0, 1), help="1 to train on a GPU, which is then its own"
    )
    command.add_argument("--out", type=Path, required=True, help="the folder to write to")
    cli.run(main, command)
