"""Fetches or generates the question/answer rows of both splits, and writes a manifest with counts and checksums.

Outputs in --out: train.jsonl, test.jsonl, manifest.json (written last).
"""

import argparse
import json
from pathlib import Path

from toolrl import cli, manifest
from toolrl.data.agent_rows import read_problems
from toolrl.data.sources import SPLITS, load_splits
from toolrl.tasks import load_task


def main(arguments: argparse.Namespace) -> None:
    settings = arguments.settings
    out: Path = arguments.out
    source = settings["data"]["source"]
    cli.log.info("download: rows from source %s", source)
    tables = load_splits(settings["data"], settings["seed"])
    task = load_task(settings["task"])
    files = []
    for split in SPLITS:
        read_problems(tables[split], task, f"the {split} split of data.source {source}")
        path = out / f"{split}.jsonl"
        lines = (json.dumps(row, ensure_ascii=False) for row in tables[split].to_pylist())
        manifest.write_text(path, "".join(f"{line}\n" for line in lines))
        files.append(path)
    manifest.write_json(
        out / "manifest.json",
        {
            "source": settings["data"],
            "seed": settings["seed"],
            "rows": {split: tables[split].num_rows for split in SPLITS},
            "files": manifest.file_records(out, files),
        },
    )
    cli.log.info("download: %s", ", ".join(f"{tables[split].num_rows} {split} rows" for split in SPLITS))


if __name__ == "__main__":
    command = cli.parser(__doc__)
    cli.add_settings(command)
    command.add_argument("--out", type=Path, required=True, help="the folder to write to")
    cli.run(main, command)
