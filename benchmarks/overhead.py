"""Seconds that Snakemake adds: planning many runs, finding nothing to do, and for each job, here and through Slurm.

python benchmarks/overhead.py [--slurm]

Run it in a folder whose results/report.html is up to date. --slurm submits to the Slurm of this machine.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SNAKEMAKE = [sys.executable, "-m", "snakemake"]
RUNS = 100
JOBS_HERE, JOBS_OF_SLURM = 50, 5
CHAIN = """
rule all:
    input:
        "{last}.txt",

rule first:
    output:
        "0.txt",
    shell:
        "touch {{output}}"

rule job:
    input:
        lambda wildcards: f"{{int(wildcards.number) - 1}}.txt",
    output:
        "{{number}}.txt",
    shell:
        "touch {{output}}"

ruleorder: first > job
"""


def seconds(command: list[str], folder: Path) -> float:
    began = time.monotonic()
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return time.monotonic() - began


def many_runs() -> float:
    """A dry run of the default experiment with many seeds."""
    runs = {f"seed{number}": {"train": {"seed": number}} for number in range(RUNS)}
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump({"runs": runs}, file)
        file.flush()
        return seconds([*SNAKEMAKE, "--dry-run", "--quiet", "all", "--configfile", file.name], ROOT)


def each_job(jobs: int, *options: str) -> float:
    """A chain of empty jobs, less a chain of one."""

    def chain(length: int) -> float:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "Snakefile").write_text(CHAIN.format(last=length - 1))
            return seconds([*SNAKEMAKE, *options], folder)

    return (chain(1 + jobs) - chain(1)) / jobs


def main(arguments: argparse.Namespace) -> None:
    print("| what | seconds |\n|---|---|")
    print(f"| dry run of {RUNS} runs | {many_runs():.1f} |")
    print(f"| nothing to do | {seconds([*SNAKEMAKE, '--cores', 'all', 'results/report.html'], ROOT):.1f} |")
    print(f"| each job, here | {each_job(JOBS_HERE, '--cores', '1'):.2f} |")
    if arguments.slurm:
        profile = ["--profile", str(ROOT / "profiles" / "slurm")]
        print(f"| each job, through Slurm, status every 20 s | {each_job(JOBS_OF_SLURM, *profile):.1f} |")
        quick = "--slurm-init-seconds-before-status-checks"
        print(f"| each job, through Slurm, status every 2 s | {each_job(JOBS_OF_SLURM, *profile, quick, '2'):.1f} |")


if __name__ == "__main__":
    command = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    command.add_argument("--slurm", action="store_true", help="also measure jobs that are submitted to Slurm")
    main(command.parse_args())
