"""A stand-in for the `conda` command, for the tests only: it solves and installs with rattler, from one local channel.

It does what Snakemake asks of conda, and answers every channel of an environment with the folder that STAND_IN_CHANNEL
names. Packages of a `pip:` section are only listed, in pip.txt of the environment.
"""

import asyncio
import json
import os
import sys
from pathlib import Path

import rattler
import rattler_build
import yaml
from rattler.exceptions import SolverError
from rattler.index import index_fs

VERSION = "99.0.0"
ACTIVATE = """export CONDA_PREFIX="$1"
export PATH="$1/bin:$PATH"
"""
PYTHON = """#!/bin/sh
echo "$@" >> "$CONDA_PREFIX/ran"
exec "$STAND_IN_PYTHON" "$@"
"""


def make_channel(folder: Path) -> None:
    """Builds a channel with `pip`, `marker` and a `python` that notes its command lines and hands them on."""
    contents = {"python": ("3.12.0", {"bin/python": PYTHON}), "pip": ("1.0", {}), "marker": ("1.0", {"marker": "here"})}
    for name, (version, files) in contents.items():
        source = folder.parent / f"{name}-files"
        source.mkdir()
        for file, text in files.items():
            (source / file).parent.mkdir(exist_ok=True)
            (source / file).write_text(text)
            (source / file).chmod(0o755)
        for archive in ("linux-64", "noarch"):
            (folder / archive).mkdir(parents=True, exist_ok=True)
        rattler_build.assemble_package(name, version, "linux-64", "0", folder / "linux-64", files_dir=source)
    asyncio.run(index_fs(folder))


def install_command(folder: Path) -> None:
    """Writes `bin/conda` and `bin/activate`, as a base environment has them."""
    command = folder / "bin" / "conda"
    command.parent.mkdir(parents=True)
    command.write_text(f'#!/bin/sh\nexec "$STAND_IN_PYTHON" "{Path(__file__).resolve()}" "$@"\n')
    command.chmod(0o755)
    (command.parent / "activate").write_text(ACTIVATE)


async def create(file: Path, prefix: Path) -> None:
    entries = yaml.safe_load(file.read_text())["dependencies"]
    specs = [entry for entry in entries if isinstance(entry, str)]
    channel = rattler.Channel(Path(os.environ["STAND_IN_CHANNEL"]).as_uri())
    records = await rattler.solve([channel], specs, platforms=["linux-64", "noarch"])
    await rattler.install(records, target_prefix=prefix, cache_dir=prefix.parent / "cache", show_progress=False)
    pip = [line for entry in entries if isinstance(entry, dict) for line in entry["pip"]]
    (prefix / "pip.txt").write_text("\n".join(pip))


def main(arguments: list[str]) -> None:
    match arguments:
        case ["--version"]:
            print(f"conda {VERSION}")
        case ["info", "--json"]:
            base = Path(os.environ["STAND_IN_BASE"])
            print(json.dumps({"conda_prefix": str(base), "platform": "linux-64", "conda_version": VERSION}))
        case ["config", "--get", "channel_priority", "--json"]:
            print(json.dumps({"get": {"channel_priority": "strict"}}))
        case ["clean", *_]:
            pass  # rattler keeps no archives
        case ["env", "create", *options]:
            value = {name: Path(options[options.index(name) + 1]) for name in ("--file", "--prefix")}
            status = 0
            try:
                asyncio.run(create(value["--file"], value["--prefix"]))
            except SolverError as error:
                print("the environment cannot be solved:", error, file=sys.stderr, flush=True)
                status = 1
            os._exit(status)  # rattler's threads can crash an interpreter that shuts down
        case _:
            sys.exit(f"the stand-in for conda does not know: {arguments}")


if __name__ == "__main__":
    main(sys.argv[1:])
