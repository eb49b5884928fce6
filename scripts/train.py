"""Trains the agent with verl (GRPO, multi-turn tool agent loop) and exports the model.

Checkpoints live in --out/checkpoints/<fingerprint>, the fingerprint being that of settings, data, start model and the
code that shapes what is learned: the same command continues an interrupted run, and a changed one starts afresh.
Outputs in --out: metrics.jsonl, the model folder `model`, rollouts/<step>.jsonl and manifest.json (written last, with
the record of all attempts).
"""

import argparse
import json
import shutil
import time
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from toolrl import cli, machine, manifest
from toolrl.data.agent_rows import check_prompt_lengths
from toolrl.errors import UserError
from toolrl.secrets import without_secrets
from toolrl.stages import dotted, shaping_settings
from toolrl.training import attempts, checkpoints, contracts
from toolrl.training.loggers import Loggers
from toolrl.training.watchdog import Alarm, Stopped, Watchdog
from toolrl.verl_bridge import launch, ray_nodes, settings
from toolrl.verl_bridge.dumps import episode_means, metrics_entry, read_episodes, read_metrics


@dataclass(frozen=True)
class Run:
    """One training: what was asked for, and where it happens."""

    config: Mapping[str, Any]
    steps: int
    work: Path
    data: Path
    start_model: Path
    validation_split: str
    fingerprint: str


@dataclass(frozen=True)
class Selection:
    """Which checkpoint is exported, and by which rule."""

    step: int
    rule: str
    validated_on: str | None = None


class Progress:
    """Follows verl's metrics file: a line for each new step, the loggers, the watchdog, and old checkpoints."""

    def __init__(self, run: Run, metrics: Path, from_step: int, loggers: Loggers) -> None:
        self.run, self.metrics, self.loggers = run, metrics, loggers
        self.step, self.position = from_step, 0
        self.watchdog = Watchdog(run.config["watchdog"], bool(run.config["agent"]["tools"]))

    def __call__(self) -> int:
        """The last finished step; raises `Stopped` where the watchdog says so."""
        if self.metrics.exists():
            with open(self.metrics, encoding="utf-8") as handle:
                handle.seek(self.position)
                for line in iter(handle.readline, ""):
                    if not line.endswith("\n"):
                        break
                    self.position = handle.tell()
                    self._observe(metrics_entry(line))
        return self.step

    def _observe(self, record: dict[str, Any]) -> None:
        values = record["data"]
        if "critic/score/mean" not in values:
            return
        self.step = record["step"]
        seconds = values["timing_s/step"]
        cli.log.info(
            "train: step %d/%d, reward %.3f, response %.0f tokens, %.1f s a step, about %.0f s left",
            self.step,
            self.run.steps,
            values["critic/score/mean"],
            values["response_length/mean"],
            seconds,
            seconds * (self.run.steps - self.step),
        )
        self.loggers.log(self.step, values)
        # verl dumps in the background: rollouts and validations of this step may still be being written
        recorded = self.step - 1
        complete = [step for step in checkpoints.complete(self.run.work) if step <= recorded]
        best = checkpoints.best_validated(self.run.work, complete)
        keep = self.run.config["train"]["keep_checkpoints"]
        checkpoints.prune(self.run.work, keep, recorded, {best} if best else ())
        for alarm in self.watchdog.observe(self.step, values):
            cli.log.warning("train: watchdog: %s%s", alarm.message, "; stopping" if alarm.stop else "")
            attempts.note_alarm(self.run.work, alarm.record())
            if alarm.stop:
                raise Stopped(alarm)


def main(arguments: argparse.Namespace) -> None:
    config, out = arguments.settings, arguments.out.resolve()
    defaults = settings.verl_defaults()
    for section in ("train", "rollout"):
        settings.check_overrides(section, config[section]["overrides"], defaults)
    rows = manifest.read_json(arguments.data / "manifest.json")
    check_prompt_lengths(rows, config["agent"]["max_prompt_length"])
    start_model = manifest.read_json(arguments.model.parent / "manifest.json")
    fingerprint = manifest.digest([shaping_settings(config), rows["files"], start_model["files"], arguments.code])
    run = Run(
        config,
        settings.total_steps(config, rows["rows"]["train"]),
        out / "checkpoints" / fingerprint,
        arguments.data.resolve(),
        arguments.model.resolve(),
        "validation" if rows["rows"]["validation"] else "test",
        fingerprint,
    )
    with launch.exclusive(run.work) as lock:
        logged = _logged_steps(run.work)
        attempts.close_killed(run.work, max(logged, default=0))
        checkpoints.repair(run.work, _recorded_step(run, logged))
        checkpoints.need_room(run.work, run.start_model, config["train"])
        stopped = None
        if checkpoints.latest(run.work) < run.steps:
            with machine.own_gpus(machine.gpus_of(config["resources"], "train"), "train"):
                share = settings.node_share(config, "train", arguments.threads, arguments.memory_mb)
                stopped = _train(run, arguments.threads, share, lock, out / "loggers")
        _publish(out, run, stopped)


def _train(run: Run, threads: int, share: ray_nodes.Share, lock: int, logger_folder: Path) -> Alarm | None:
    """Runs verl to the last step; returns the alarm if the watchdog stopped it."""
    config, work = run.config, run.work
    from_step = checkpoints.latest(work)
    nodes = config["resources"]["nodes"]
    number = attempts.begin(work, from_step, config["resources"]["train"]["gpu"] * nodes)
    # verl empties the metrics file when it starts, so every attempt has its own
    name = f"{number:03d}"
    paths = settings.Paths.below(work, run.data, run.start_model, name, run.validation_split)
    launch.prepare(paths, config["agent"])
    options = settings.launch_options(config, paths, nodes, share, settings.training_seed(config))
    options |= settings.training_options(config, paths, run.steps)
    cli.log.info(
        "train: %d steps of %d prompts x %d rollouts (run %s)%s",
        run.steps,
        config["train"]["batch_size"],
        config["train"]["rollouts_per_prompt"],
        run.fingerprint,
        f", continuing after step {from_step}, attempt {number}" if number > 1 else "",
    )
    metrics = work / f"metrics-{name}.jsonl"
    loggers = Loggers(config["train"]["loggers"], logger_folder, run.fingerprint, dotted(without_secrets(config)))
    progress = Progress(run, metrics, from_step, loggers)
    environment = launch.environment(config["resources"]["platform"], threads, metrics, config["agent"]["tool_config"])
    reason, stopped = attempts.INTERRUPTED, None
    try:
        launch.run_on_nodes(config, options, nodes, share, work, environment, progress, lock)
        reason = "finished"
    except Stopped as stop:
        stopped, reason = stop.alarm, f"stopped by the watchdog: {stop}"
    except UserError as error:
        reason = f"failed: {error}"
        raise
    finally:
        loggers.close()
        attempts.end(work, reason, progress.step)
    return stopped


def _publish(out: Path, run: Run, stopped: Alarm | None) -> None:
    """Checks that the run did what was asked, then copies its results into place."""
    work = run.work
    episodes = _episodes(work)
    records = _merged_records(work, episodes)
    if stopped is None:
        contracts.check_reached(work, run.steps)
    reached = min(run.steps, max(records, default=0))
    selection = _select(run, stopped)
    exported = checkpoints.exported(work, selection.step)
    checkpoints.make_portable(exported)
    contracts.check_exported(exported, run.start_model)
    sound = reached if stopped is None else stopped.step - 1
    contracts.check_records(records, sound)
    contracts.check_rollouts(work / "rollouts", sound, _rollouts_a_step(run))
    contracts.check_episodes(pd.concat(episodes.values()), run.config["agent"]["agent_name"])
    cli.log.info("train: exporting the model of step %d (%s)", selection.step, selection.rule)
    for name, source in (("model", exported), ("rollouts", work / "rollouts")):
        shutil.rmtree(out / name, ignore_errors=True)
        shutil.copytree(source, out / name)
    lines = [json.dumps(records[step]) + "\n" for step in sorted(records)]
    manifest.write_text(out / "metrics.jsonl", "".join(lines))
    files = [path for name in ("model", "rollouts") for path in (out / name).rglob("*") if path.is_file()]
    record = {
        "files_of_model": manifest.folder_records(out / "model"),
        "fingerprint": run.fingerprint,
        "steps": run.steps,
        "reached": reached,
        "selection": asdict(selection),
        "stopped": stopped.record() if stopped else None,
        "attempts": attempts.read(work),
        "seed": settings.training_seed(run.config),
        "command": cli.command_line(),
        "versions": machine.versions(),
        "hardware": machine.hardware(),
        "lock": lock_digest(run.config),
        "finished": time.time(),
        "files": manifest.file_records(out, [*files, out / "metrics.jsonl"]),
    }
    manifest.write_json(out / "manifest.json", record)


def lock_digest(config: Mapping[str, Any]) -> str | None:
    """The hash of the lock that belongs to the platform and backend."""
    name = machine.lock_name(config["resources"]["platform"], config["rollout"]["backend"])
    lock = Path(__file__).resolve().parents[1] / "locks" / f"{name}.txt"
    return manifest.sha256_file(lock) if lock.is_file() else None


def _select(run: Run, stopped: Alarm | None) -> Selection:
    """The checkpoint to export: the last step, the best by validation, or what is left after a stop."""
    rule = run.config["train"]["select"]
    if stopped is None and rule == "last":
        return Selection(run.steps, "last")
    candidates = [step for step in checkpoints.complete(run.work) if not stopped or step < stopped.step]
    if not candidates:
        raise UserError(
            f"the watchdog stopped training ({stopped.message if stopped else ''}) before a checkpoint was saved: "
            "change what it names, or lower train.save_every."
        )
    best = checkpoints.best_validated(run.work, candidates)
    if best is not None:
        return Selection(best, "best_validation", run.validation_split)
    if stopped is None:
        raise UserError("train.select is best_validation, but no saved step was validated; see train.validate_every.")
    return Selection(candidates[-1], "last before the watchdog's stop")


def _merged_records(work: Path, episodes: Mapping[Path, pd.DataFrame]) -> dict[int, dict[str, Any]]:
    """Every step's metrics with its episodes' means and validation; a step that a later attempt repeated counts as
    that one ran it."""
    records = {}
    for file, notes in episodes.items():
        means = episode_means(notes)
        for entry in read_metrics(file):
            if "critic/score/mean" in entry["data"]:
                entry["data"] |= means.get(entry["step"], {})
                records[entry["step"]] = entry
    for step, right in checkpoints.read_validations(work).items():
        if step in records:
            records[step]["data"] |= {"validation/right": sum(right), "validation/n": len(right)}
    return records


def _logged_steps(work: Path) -> set[int]:
    return {entry["step"] for file in work.glob("metrics-*.jsonl") for entry in read_metrics(file)}


def _recorded_step(run: Run, logged: Collection[int]) -> int:
    """The last step up to which every step has its metrics and all its rollouts."""
    step = 0
    while step + 1 in logged and contracts.rollout_count(run.work / "rollouts", step + 1) == _rollouts_a_step(run):
        step += 1
    return step


def _rollouts_a_step(run: Run) -> int:
    return run.config["train"]["batch_size"] * run.config["train"]["rollouts_per_prompt"]


def _episodes(work: Path) -> dict[Path, pd.DataFrame]:
    """The notes of each attempt's episodes, by its metrics file, in the order of the attempts."""
    return {
        file: read_episodes(work / file.stem.replace("metrics", "episodes"))
        for file in sorted(work.glob("metrics-*.jsonl"))
    }


if __name__ == "__main__":
    command = cli.parser(__doc__)
    cli.add_settings(command)
    command.add_argument("--data", type=Path, required=True, help="folder made by preprocess.py")
    command.add_argument("--model", type=Path, required=True, help="the model folder to start from")
    command.add_argument(
        "--code", default="", help="digest of the code that shapes what is learned, part of the fingerprint"
    )
    command.add_argument("--threads", type=int, required=True, help="CPU threads for each heavy process")
    command.add_argument("--memory-mb", type=int, required=True, help="memory of the job on each node, in MB")
    command.add_argument("--out", type=Path, required=True, help="the folder to write to")
    cli.run(main, command)
