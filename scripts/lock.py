"""Resolves locks/*.in into lock files with hashes, and writes the conda environments of the steps from them.

Needs uv. Writes locks/cpu.txt (the embedded default and its tests, Python 3.11 and 3.12), locks/{light,gpu,sglang}.txt,
and from these, for conda, envs/{light,train,sglang}.yaml with exact versions. No file names an index.
"""

import argparse
import re
import shutil
import subprocess
from pathlib import Path

import yaml
from toolrl import cli
from toolrl.errors import UserError

CONDA_PYTHON = "3.12"
CPU = ("--override", "locks/cpu-overrides.txt")
SLURM = ("--override", "locks/slurm-overrides.txt")
LOCKS = {
    "cpu": ("--universal", "--python-version", "3.11", *CPU, *SLURM),
    "light": ("--python-version", CONDA_PYTHON, "--python-platform", "x86_64-manylinux_2_28"),
    "gpu": ("--python-version", CONDA_PYTHON, "--python-platform", "x86_64-manylinux_2_28", *SLURM),
    "sglang": ("--python-version", CONDA_PYTHON, "--python-platform", "x86_64-manylinux_2_34", *SLURM),
}
SUBMISSION = "snakemake-executor-plugin-"
ENVIRONMENTS = {"light": "light", "train": "gpu", "sglang": "sglang"}


def main(arguments: argparse.Namespace) -> None:
    if shutil.which("uv") is None:
        raise UserError("uv is not on the PATH; install it with `pip install uv`.")
    root: Path = arguments.root
    common = ["uv", "pip", "compile", "--quiet", "--no-header", "--no-annotate", "--no-emit-index-url"]
    for name, options in LOCKS.items():
        cli.log.info("lock: resolving locks/%s.in", name)
        files = [f"locks/{name}.in", "--output-file", f"locks/{name}.txt"]
        _run([*common, "--generate-hashes", *options, *files], root)
    for name, lock in ENVIRONMENTS.items():
        locked = (root / "locks" / f"{lock}.txt").read_text(encoding="utf-8")
        _write_environment(root / "envs" / f"{name}.yaml", name, lock, locked)


def _run(command: list[str], folder: Path) -> None:
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if result.returncode:
        raise UserError(f"{' '.join(command)} failed: {result.stderr.strip()}")


def _write_environment(path: Path, name: str, lock: str, locked: str) -> None:
    # jobs submit no jobs, and pip would find what is overridden in the lock
    pins = re.findall(rf"^(?!{SUBMISSION})[A-Za-z0-9._-]+(?:\[[^\]]*\])?==\S+", locked, re.MULTILINE)
    environment = {
        "name": f"toolrl-{name}",
        "channels": ["conda-forge", "nodefaults"],
        "dependencies": [f"python={CONDA_PYTHON}", "pip", {"pip": sorted(pins)}],
    }
    head = f"# Written by `make lock` from locks/{lock}.txt. Do not edit.\n"
    path.write_text(head + yaml.safe_dump(environment, sort_keys=False), encoding="utf-8")


if __name__ == "__main__":
    command = cli.parser(__doc__)
    command.add_argument("--root", type=Path, default=Path("."), help="the repository's root")
    cli.run(main, command)
