"""Trains the agent with verl (GRPO, multi-turn tool agent loop) and exports the model.

Checkpoints live in --out/checkpoints/<fingerprint>, the fingerprint being that of settings, data, start model and code:
the same command continues an interrupted run, and a changed one starts afresh. Outputs in --out: metrics.jsonl, the
model folder `model`, rollouts/<step>.jsonl and manifest.json (written last).
"""

import argparse
import json
import shutil
import time
from pathlib import Path
from typing import Any

from toolrl import cli, manifest
from toolrl.data.agent_rows import check_prompt_lengths
from toolrl.errors import UserError
from toolrl.models.sources import same_weights
from toolrl.verl_bridge import launch, settings
from toolrl.verl_bridge.dumps import episode_means


class StepProgress:
    """Follows verl's metrics file; a line for each new step."""

    def __init__(self, metrics: Path, total_steps: int) -> None:
        self.metrics, self.total_steps, self.position, self.step = metrics, total_steps, 0, 0

    def __call__(self) -> int:
        if self.metrics.exists():
            with open(self.metrics, encoding="utf-8") as handle:
                handle.seek(self.position)
                for line in iter(handle.readline, ""):
                    if not line.endswith("\n"):
                        break
                    self.position = handle.tell()
                    self._report(json.loads(line))
        return self.step

    def _report(self, record: dict[str, Any]) -> None:
        values = record["data"]
        if "critic/score/mean" not in values:
            return
        self.step = record["step"]
        seconds = values["timing_s/step"]
        cli.log.info(
            "train: step %d/%d, reward %.3f, response %.0f tokens, %.1f s a step, about %.0f s left",
            self.step,
            self.total_steps,
            values["critic/score/mean"],
            values["response_length/mean"],
            seconds,
            seconds * (self.total_steps - self.step),
        )


def main(arguments: argparse.Namespace) -> None:
    config, out = arguments.settings, arguments.out.resolve()
    train = config["train"]
    started = time.time()
    defaults = settings.verl_defaults()
    for section in ("train", "rollout"):
        settings.check_overrides(section, config[section]["overrides"], defaults)
    rows = manifest.read_json(arguments.data / "manifest.json")
    check_prompt_lengths(rows, config["agent"]["max_prompt_length"])
    start_model = manifest.read_json(arguments.model.parent / "manifest.json")
    steps = train["steps"] or rows["rows"]["train"] // train["batch_size"] * train["epochs"]
    if steps < 1:
        raise UserError(
            f"train.batch_size ({train['batch_size']}) is larger than the training set ({rows['rows']['train']} rows): "
            "lower it."
        )
    fingerprint = manifest.digest([config, rows["files"], start_model["files"], arguments.code])
    work = out / "checkpoints" / fingerprint
    # verl empties the file when it starts, so every attempt has its own
    attempt = f"{len(_attempts(work)) + 1:03d}"
    metrics = work / f"metrics-{attempt}.jsonl"
    paths = settings.Paths.below(work, arguments.data.resolve(), arguments.model.resolve(), attempt)
    launch.prepare(paths, config["agent"]["tool_config"])
    options = settings.launch_options(config, paths, config["resources"]["train"]["gpu"])
    options |= settings.training_options(config, paths, steps)
    cli.log.info(
        "train: %d steps of %d prompts x %d rollouts (run %s)",
        steps,
        train["batch_size"],
        train["rollouts_per_prompt"],
        fingerprint,
    )
    launch.run_verl(
        settings.compose_settings(options, defaults),
        work,
        launch.environment(config["resources"]["platform"], arguments.threads, work, metrics),
        60 * config["resources"]["stall_minutes"],
        StepProgress(metrics, steps),
    )
    _publish(
        out, work, steps, arguments.model.resolve(), {"fingerprint": fingerprint, "steps": steps, "started": started}
    )


def _publish(out: Path, work: Path, steps: int, start_model: Path, record: dict[str, Any]) -> None:
    """Checks that the run did what was asked, then copies its results into place."""
    latest = work / "latest_checkpointed_iteration.txt"
    reached = int(latest.read_text()) if latest.exists() else 0
    if reached != steps:
        raise UserError(f"verl ended without an error, but reached step {reached} of {steps}; see {work / 'verl.log'}.")
    exported = work / f"global_step_{steps}" / "actor" / "huggingface"
    if not list(exported.glob("*.safetensors")):
        raise UserError(f"verl exported no model weights to {exported}; see {work / 'verl.log'}.")
    if same_weights(exported, start_model):
        raise UserError("the exported weights equal those that training started from: nothing was learned.")
    records = _merge_attempts(work)
    missing = [step for step in range(1, steps + 1) if step not in records]
    if missing:
        raise UserError(f"metrics of step {missing[0]} are missing from {work}/metrics-*.jsonl.")
    undumped = [step for step in range(1, steps + 1) if not (work / "rollouts" / f"{step}.jsonl").is_file()]
    if undumped:
        raise UserError(f"the rollouts of step {undumped[0]} are missing from {work / 'rollouts'}.")
    for name, source in (("model", exported), ("rollouts", work / "rollouts")):
        shutil.rmtree(out / name, ignore_errors=True)
        shutil.copytree(source, out / name)
    manifest.write_text(out / "metrics.jsonl", "".join(json.dumps(records[step]) + "\n" for step in sorted(records)))
    files = [path for name in ("model", "rollouts") for path in (out / name).rglob("*") if path.is_file()]
    record |= {"finished": time.time(), "files": manifest.file_records(out, [*files, out / "metrics.jsonl"])}
    manifest.write_json(out / "manifest.json", record)


def _attempts(work: Path) -> list[Path]:
    return sorted(work.glob("metrics-*.jsonl"))


def _merge_attempts(work: Path) -> dict[int, dict[str, Any]]:
    """Every step's metrics with its episodes' means; a step that a later attempt repeated counts as that one ran it."""
    records = {}
    for file in _attempts(work):
        means = episode_means(work / file.stem.replace("metrics", "episodes"))
        for entry in _read_lines(file):
            entry["data"] |= means.get(entry["step"], {})
            records[entry["step"]] = entry
    return records


def _read_lines(path: Path) -> list[dict[str, Any]]:
    """The records of a metrics file, without a last line that was cut off when the attempt was killed."""
    with open(path, encoding="utf-8") as handle:
        return [json.loads(line) for line in handle if line.endswith("\n")]


if __name__ == "__main__":
    command = cli.parser(__doc__)
    cli.add_settings(command)
    command.add_argument("--data", type=Path, required=True, help="folder made by preprocess.py")
    command.add_argument("--model", type=Path, required=True, help="the model folder to start from")
    command.add_argument("--code", default="", help="digest of the code, part of the fingerprint")
    command.add_argument("--threads", type=int, required=True, help="CPU threads for each heavy process")
    command.add_argument("--out", type=Path, required=True, help="the folder to write to")
    cli.run(main, command)
