"""Evaluates a model on the test set through the same agent loop as training (verl's val_only path).

Outputs in --out: items.parquet (one row per test item, arm, repeat and sample) and manifest.json (written last).
"""

import argparse
import dataclasses
import shutil
import time
from pathlib import Path

import pyarrow.parquet as pq
from toolrl import cli, manifest
from toolrl.arms import agent_loop, evaluated_rows
from toolrl.data.agent_rows import check_prompt_lengths, write_parquet
from toolrl.errors import UserError
from toolrl.stats import proportion
from toolrl.tasks import load_task
from toolrl.training import contracts
from toolrl.verl_bridge import dumps, launch, settings


def main(arguments: argparse.Namespace) -> None:
    config, out = arguments.settings, arguments.out.resolve()
    started = time.time()
    data = arguments.data.resolve()
    rows = manifest.read_json(data / "manifest.json")
    check_prompt_lengths(rows, config["agent"]["max_prompt_length"])
    test = pq.read_table(data / "test.parquet").slice(0, config["evaluate"]["max_items"])
    evaluated = evaluated_rows(test, load_task(config["task"]), config["evaluate"], rows["tools"])
    work = out / "work"
    with launch.exclusive(out) as lock:
        shutil.rmtree(work, ignore_errors=True)
        paths = settings.Paths.below(work, data, arguments.model.resolve(), "001")
        # not by verl's val_max_samples, which draws at random
        paths = dataclasses.replace(paths, validation_files=work / "test.parquet")
        write_parquet(paths.validation_files, evaluated)
        launch.prepare(paths, config["agent"])
        options = settings.launch_options(config, paths, config["resources"]["evaluate"]["gpu"])
        options |= settings.evaluation_options(config["seed"])
        cli.log.info(
            "evaluate: %d items, %d episodes over all arms, with %s",
            test.num_rows,
            evaluated.num_rows,
            arguments.model,
        )
        launch.run_verl(
            settings.compose_settings(options, settings.verl_defaults()),
            work,
            launch.environment(
                config["resources"]["platform"], arguments.threads, tool_config=config["agent"]["tool_config"]
            ),
            60 * config["watchdog"]["stall_minutes"],
            lambda: None,
            lock,
        )
    if trained := [*work.glob("global_step_*"), *work.glob("rollouts/*")]:
        raise UserError(f"verl trained instead of only evaluating: it wrote {trained[0]}; see {work / 'verl.log'}.")
    records = dumps.read_validation(work / "validations" / "0.jsonl")
    for arm in config["evaluate"]["arms"]:
        loop = agent_loop(arm, config["agent"]["agent_name"], rows["tools"])
        contracts.check_agent_loops((record["agent_loop"] for record in records if record["arm"] == arm), loop)
    table = dumps.items_table(records, evaluated)
    contracts.check_tools(*(sum(table.column(name).to_pylist()) for name in ("tool_calls", "tool_errors")))
    write_parquet(out / "items.parquet", table)
    for arm in config["evaluate"]["arms"]:
        reported = [row for row in table.to_pylist() if (row["arm"], row["repeat"], row["sample"]) == (arm, 0, 0)]
        accuracy = proportion([row["value_correct"] for row in reported])
        cli.log.info("evaluate: %s: %d of %d right (%.1f%%)", arm, accuracy.successes, accuracy.n, 100 * accuracy.value)
    manifest.write_json(
        out / "manifest.json",
        {
            "started": started,
            "finished": time.time(),
            "items": test.num_rows,
            "episodes": table.num_rows,
            "evaluate": config["evaluate"],
            "test_set": manifest.digest(test.column("extra_info").combine_chunks().field("question").to_pylist()),
            "scorer": arguments.scorer,
            "model": manifest.read_json(arguments.model.parent / "manifest.json")["files"],
            "files": manifest.file_records(out, [out / "items.parquet"]),
        },
    )


if __name__ == "__main__":
    command = cli.parser(__doc__)
    cli.add_settings(command)
    command.add_argument("--data", type=Path, required=True, help="folder made by preprocess.py")
    command.add_argument("--model", type=Path, required=True, help="the model folder to evaluate")
    command.add_argument("--scorer", default="", help="digest of the task's code, recorded for comparisons")
    command.add_argument("--threads", type=int, required=True, help="CPU threads for each heavy process")
    command.add_argument("--out", type=Path, required=True, help="the folder to write to")
    cli.run(main, command)
