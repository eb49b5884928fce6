"""Checks in seconds, on a CPU, what would otherwise fail after minutes of start-up, or silently.

Every failure is one sentence, and all of them are listed. Output: --out, a JSON file with estimates, if all is well.
"""

import argparse
import time
from dataclasses import asdict
from pathlib import Path

from toolrl import cli, manifest
from toolrl.errors import UserError
from toolrl.machine import lock_name
from toolrl.preflight import Inputs, capacity, environment, problems
from toolrl.training.checkpoints import bytes_each


def main(arguments: argparse.Namespace) -> None:
    config, started = arguments.settings, time.monotonic()
    name = lock_name(config["resources"]["platform"], config["rollout"]["backend"])
    lock = arguments.locks / f"{name}.txt"
    if not lock.is_file():
        raise UserError(f"--locks: {lock} does not exist; it is written by `make lock`.")
    on_gpu = config["resources"]["platform"] == "cuda"
    gpus = environment.gpus_here(config["resources"]["ray_address"]) if on_gpu else None
    inputs = Inputs(
        arguments.stage,
        config,
        arguments.data.resolve(),
        arguments.model.resolve(),
        arguments.work.resolve(),
        lock,
        gpus,
    )
    cli.log.info("preflight: checking the environment, options, rows, conversation and capacity")
    found = list(problems(inputs))
    for problem in found:
        cli.log.error("preflight: %s", problem)
    if found:
        raise UserError(f"preflight found {len(found)} problem{'s' if len(found) > 1 else ''}, listed above.")
    record = {
        "lock": manifest.sha256_file(lock),
        "checkpoint_bytes": bytes_each(inputs.model),
        "gpu_memory_bytes": asdict(capacity.estimate_gpu_memory(inputs)) if on_gpu else None,
    }
    manifest.write_json(arguments.out, record)
    cli.log.info("preflight: all is well (%.0f s)", time.monotonic() - started)


if __name__ == "__main__":
    command = cli.parser(__doc__)
    cli.add_settings(command)
    command.add_argument("--stage", choices=("train", "evaluate"), required=True, help="what is about to start")
    command.add_argument("--data", type=Path, required=True, help="folder made by preprocess.py")
    command.add_argument("--model", type=Path, required=True, help="the model folder that training starts from")
    command.add_argument("--work", type=Path, required=True, help="the folder that training will write to")
    command.add_argument("--locks", type=Path, required=True, help="the folder of the lock files")
    command.add_argument("--out", type=Path, required=True, help="the JSON file to write")
    cli.run(main, command)
