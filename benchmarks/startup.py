"""Where the seconds of one launch of verl go, read from the log of a finished evaluation.

python benchmarks/startup.py results/evaluate/start
"""

import argparse
import re
import sys
from datetime import datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))

from toolrl import manifest  # noqa: E402

LONG = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d),(\d{3})")
SHORT = re.compile(r"(?:INFO|WARNING) (\d\d-\d\d \d\d:\d\d:\d\d)")
MILESTONES = (
    ("our own checks, verl's driver imports, Ray starts", "Started a local Ray instance"),
    ("the trainer's process starts and reads the data", "train and validate dataloader initialized"),
    ("the training worker starts and loads the model", "actor and ref model engine initialized"),
    ("vLLM's server and engine start", "checkpoint engine manager initialized"),
    ("agent-loop and reward workers start, weights are sent", "Passing raw prompts to InputProcessor"),
)


def main(arguments: argparse.Namespace) -> None:
    record = manifest.read_json(arguments.evaluation / "manifest.json")
    work = arguments.evaluation / "work" / record["fingerprint"]
    moments = [record["started"]]
    lines = (work / "verl.log").read_text(encoding="utf-8", errors="replace").splitlines()
    print("| what | seconds | since the start |\n|---|---|---|")
    for name, text in MILESTONES:
        moments.append(next(_time(line, record["started"]) for line in lines if text in line))
        print(_row(name, moments))
    moments.append((work / "validations" / "0.jsonl").stat().st_mtime)
    print(_row(f"{record['episodes']} episodes are generated and scored", moments))
    moments.append(record["finished"])
    print(_row("verl stops, the result is checked", moments))


def _row(name: str, moments: list[float]) -> str:
    return f"| {name} | {moments[-1] - moments[-2]:.0f} | {moments[-1] - moments[0]:.0f} |"


def _time(line: str, started: float) -> float:
    if match := LONG.search(line):
        return datetime.strptime(match[1], "%Y-%m-%d %H:%M:%S").timestamp() + int(match[2]) / 1000
    match = SHORT.search(line)
    assert match, line
    year = datetime.fromtimestamp(started).year
    return datetime.strptime(f"{year}-{match[1]}", "%Y-%m-%d %H:%M:%S").timestamp()


if __name__ == "__main__":
    command = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    command.add_argument("evaluation", type=Path, help="folder of a finished evaluation")
    main(command.parse_args())
