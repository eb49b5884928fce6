"""Evaluates a model on the test set through the same agent loop as training (verl's val_only path).

An evaluation of the same settings, rows, model and code is not repeated: its result in --out/work is used again.

Outputs in --out: items.parquet (one row per test item, arm, repeat and sample) and manifest.json (written last).
"""

import argparse
import dataclasses
import shutil
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from toolrl import cli, machine, manifest
from toolrl.arms import agent_loop, evaluated_rows
from toolrl.data.agent_rows import check_prompt_lengths, write_parquet
from toolrl.errors import UserError
from toolrl.evaluation import Evaluation
from toolrl.tasks import load_task
from toolrl.training import contracts
from toolrl.verl_bridge import dumps, launch, ray_nodes, settings

COMPLETE = "complete"


def main(arguments: argparse.Namespace) -> None:
    config, out, data = arguments.settings, arguments.out.resolve(), arguments.data.resolve()
    started = time.time()
    rows = manifest.read_json(data / "manifest.json")
    check_prompt_lengths(rows, config["agent"]["max_prompt_length"])
    test = pq.read_table(data / "test.parquet").slice(0, config["evaluate"]["max_items"])
    evaluated = evaluated_rows(test, load_task(config["task"]), config["evaluate"], rows["tools"])
    model = manifest.folder_records(arguments.model)
    fingerprint = manifest.digest([config, rows["files"], model, arguments.code])
    work = out / "work" / fingerprint
    with launch.exclusive(out) as lock:
        for other in (out / "work").glob("*"):
            if other != work:
                shutil.rmtree(other)
        if (work / COMPLETE).exists():
            cli.log.info("evaluate: the result of the same evaluation is at hand (%s)", fingerprint)
        else:
            cli.log.info(
                "evaluate: %d items, %d episodes over all arms, with %s",
                test.num_rows,
                evaluated.num_rows,
                arguments.model,
            )
            shutil.rmtree(work, ignore_errors=True)
            with machine.own_gpus(machine.gpus_of(config["resources"], "evaluate"), "evaluate"):
                share = settings.node_share(config, "evaluate", arguments.threads, arguments.memory_mb)
                _launch(config, data, evaluated, arguments.model.resolve(), work, arguments.threads, share, lock)
        table = _checked_items(work, evaluated, config, rows["tools"])
        (work / COMPLETE).touch()
    write_parquet(out / "items.parquet", table)
    questions = test.column("extra_info").combine_chunks().field("question").to_pylist()
    truths = test.column("reward_model").combine_chunks().field("ground_truth").to_pylist()
    manifest.write_json(
        out / "manifest.json",
        {
            "started": started,
            "finished": time.time(),
            "fingerprint": fingerprint,
            "command": cli.command_line(),
            "items": test.num_rows,
            "episodes": table.num_rows,
            "evaluate": config["evaluate"],
            "test_set": manifest.digest([questions, truths]),
            "scorer": arguments.scorer,
            "model": model,
            "files": manifest.file_records(out, [out / "items.parquet"]),
        },
    )
    for arm in config["evaluate"]["arms"]:
        accuracy = Evaluation(out).accuracy(arm)
        cli.log.info("evaluate: %s: %d of %d right (%.1f%%)", arm, accuracy.successes, accuracy.n, 100 * accuracy.value)


def _launch(
    config: dict[str, Any],
    data: Path,
    evaluated: pa.Table,
    model: Path,
    work: Path,
    threads: int,
    share: ray_nodes.Share,
    lock: int,
) -> None:
    """Has verl evaluate the rows, without training."""
    paths = settings.Paths.below(work, data, model, "001")
    # not by verl's val_max_samples, which draws at random
    paths = dataclasses.replace(paths, validation_files=work / "test.parquet")
    write_parquet(paths.validation_files, evaluated)
    launch.prepare(paths, config["agent"])
    options = settings.launch_options(config, paths, 1, share, config["seed"])
    options |= settings.evaluation_options(config["seed"])
    environment = launch.environment(
        config["resources"]["platform"], threads, tool_config=config["agent"]["tool_config"]
    )
    launch.run_on_nodes(config, options, 1, share, work, environment, lambda: None, lock)


def _checked_items(work: Path, evaluated: pa.Table, config: dict[str, Any], tools: list[str]) -> pa.Table:
    """The evaluated items, if verl did what was asked.

    Raises:
        UserError: when it trained, left rows out, ran them in another agent loop, or its tools always failed.
    """
    if trained := [*work.glob("global_step_*"), *work.glob("rollouts/*")]:
        raise UserError(f"verl trained instead of only evaluating: it wrote {trained[0]}; see {work / 'verl.log'}.")
    records = dumps.read_validation(work / "validations" / "0.jsonl")
    for arm in config["evaluate"]["arms"]:
        loop = agent_loop(arm, config["agent"]["agent_name"], tools)
        contracts.check_agent_loops((record["agent_loop"] for record in records if record["arm"] == arm), loop)
    table = dumps.items_table(records, evaluated)
    contracts.check_tools(*(sum(table.column(name).to_pylist()) for name in ("tool_calls", "tool_errors")))
    return table


if __name__ == "__main__":
    command = cli.parser(__doc__)
    cli.add_settings(command)
    command.add_argument("--data", type=Path, required=True, help="folder made by preprocess.py")
    command.add_argument("--model", type=Path, required=True, help="the model folder to evaluate")
    command.add_argument("--code", default="", help="digest of the code that shapes episodes, part of the fingerprint")
    command.add_argument("--scorer", default="", help="digest of the task's code, recorded for comparisons")
    command.add_argument("--threads", type=int, required=True, help="CPU threads for each heavy process")
    command.add_argument("--memory-mb", type=int, required=True, help="memory of the job, in MB")
    command.add_argument("--out", type=Path, required=True, help="the folder to write to")
    cli.run(main, command)
