"""Upstream failures that verl reports as success, each reproduced with a stand-in for verl, and each caught."""

import argparse
import copy
import importlib.util
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import safetensors.torch
from conftest import ROOT
from toolrl import manifest
from toolrl.errors import UserError
from toolrl.training import checkpoints
from toolrl.verl_bridge import launch


def load_script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"script_{name}", ROOT / "scripts" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


Run = Callable[..., Path]


@pytest.fixture
def run(prepared: Path, config: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs train.py or evaluate.py in this process with the stand-in, which has the given defect."""
    monkeypatch.setattr(launch, "TRAINER", (str(ROOT / "tests" / "fake_verl.py"),))
    monkeypatch.setattr(launch, "POLL_SECONDS", 0.1)

    def environment(*arguments: object, **keywords: object) -> dict[str, str]:
        metrics = arguments[2] if len(arguments) > 2 else None
        paths = {"VERL_FILE_LOGGER_PATH": str(metrics)} if metrics else {}
        return {**os.environ, "PYTHONPATH": str(ROOT / "scripts"), **paths}

    monkeypatch.setattr(launch, "environment", environment)

    def call(name: str = "train", defect: str = "", **changes: dict) -> Path:
        monkeypatch.setenv("FAKE_VERL", defect)
        settings = copy.deepcopy(config)
        settings["train"] |= {"steps": 4, "batch_size": 8, "mini_batch_size": 8, "rollouts_per_prompt": 2}
        settings["train"] |= {"micro_batch_size_per_gpu": 8, "save_every": 2}
        settings["rollout"]["log_prob_micro_batch_size_per_gpu"] = 16
        for section, values in changes.items():
            settings[section] |= values
        load_script(name).main(
            argparse.Namespace(
                settings=settings,
                data=prepared / "data",
                model=prepared / "base" / "model",
                code="test",
                scorer="test",
                threads=1,
                memory_mb=4000,
                out=tmp_path / "out",
            )
        )
        return tmp_path / "out"

    return call


SILENT_FAILURES = {
    ("train", "no steps"): "reached step 0 of 4",
    ("train", "wrong step"): "reached step 3 of 4",
    ("train", "missing dump"): "rollouts of step 1 are missing",
    ("train", "padded rollouts"): "step 1 was trained on 15 rollouts instead of 16",
    ("train", "missing metrics"): "metrics of step 1 are missing",
    ("train", "base exported"): "equal those that training started from",
    ("train", "no export"): "no model weights",
    ("train", "truncated export"): "lacks the tensor model.norm.weight",
    ("train", "NaN exported"): "NaN or infinite values",
    ("train", "no agent_name"): "64 of 64 episodes did not run in the agent loop tool_agent",
    ("train", "equal rewards"): "no learning signal",
    ("train", "no ground truth"): "tool calls ended in an error of the tool itself",
    ("evaluate", "N short"): "31 rows for 32 test items and arms",
    ("evaluate", "missing dump"): "without the validation dump",
    ("evaluate", "val_only trains"): "trained instead of only evaluating",
    ("evaluate", "no agent_name"): "16 of 16 episodes did not run in the agent loop tool_agent",
    ("evaluate", "no ground truth"): "tool calls ended in an error of the tool itself",
}


@pytest.mark.parametrize(("stage", "defect"), SILENT_FAILURES)
def test_a_silent_failure_is_caught(run: Run, tmp_path: Path, stage: str, defect: str) -> None:
    with pytest.raises(UserError) as error:
        run(stage, defect)
    assert SILENT_FAILURES[stage, defect] in str(error.value)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_without_a_defect_both_succeed(run: Run) -> None:
    out = run("train")
    record = manifest.read_json(out / "manifest.json")
    assert record["selection"] == {"step": 4, "rule": "last", "validated_on": None} and record["stopped"] is None
    assert [attempt["reason"] for attempt in record["attempts"]] == ["finished"]
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    assert all(line["data"]["groups/all_equal_share"] == 0.0 for line in lines)
    assert "attn_implementation" not in manifest.read_json(out / "model" / "config.json"), "it loads anywhere"
    run("evaluate")


def test_an_evaluation_cannot_be_made_to_train(run: Run) -> None:
    """The overrides of the rollout come before what makes verl evaluate only."""
    out = run("evaluate", rollout={"overrides": {"trainer.val_before_train": False, "trainer.val_only": False}})
    assert (out / "items.parquet").is_file()


def test_a_failed_attempt_continues_from_its_checkpoint(run: Run) -> None:
    with pytest.raises(UserError, match="the machine is on fire"):
        run("train", "dies at step 3")
    out = run("train")
    attempts = manifest.read_json(out / "manifest.json")["attempts"]
    assert [(a["from_step"], a["to_step"]) for a in attempts] == [(0, 3), (3, 4)]
    assert "the machine is on fire" in attempts[0]["reason"] and attempts[1]["reason"] == "finished"


def test_a_changed_configuration_never_continues(run: Run) -> None:
    with pytest.raises(UserError):
        run("train", "dies at step 3")
    out = run("train", train={"steps": 4, "learning_rate": 5.0e-5})
    assert [a["from_step"] for a in manifest.read_json(out / "manifest.json")["attempts"]] == [0]


def test_a_kill_between_a_checkpoint_and_its_metrics(run: Run, tmp_path: Path) -> None:
    """The checkpoint is complete, but the step's metrics are lost: the step is trained again from the one before."""
    with pytest.raises(UserError):
        run("train", "dies at step 3", train={"steps": 4, "save_every": 1, "keep_checkpoints": 2})
    metrics = next((tmp_path / "out" / "checkpoints").glob("*/metrics-001.jsonl"))
    metrics.write_text("".join(metrics.read_text().splitlines(keepends=True)[:2]))
    out = run("train", train={"steps": 4, "save_every": 1, "keep_checkpoints": 2})
    record = manifest.read_json(out / "manifest.json")
    assert [a["from_step"] for a in record["attempts"]] == [0, 2]


def test_a_kill_after_the_last_step(run: Run, tmp_path: Path) -> None:
    """Nothing is left to train, and the killed attempt is closed all the same."""
    out = run("train")
    file = next((out / "checkpoints").glob("*/attempts.json"))
    record = manifest.read_json(file)
    record["attempts"][0] |= {"ended": None, "reason": None}
    manifest.write_json(file, record)
    (attempt,) = manifest.read_json(run("train") / "manifest.json")["attempts"]
    assert attempt["reason"] == "killed" and attempt["to_step"] == 4 and attempt["ended"] > attempt["started"]


def test_how_a_run_is_watched_does_not_start_it_afresh(run: Run, config: dict) -> None:
    with pytest.raises(UserError):
        run("train", "dies at step 3")
    out = run("train", watchdog={**config["watchdog"], "window": 9}, train={"steps": 4, "save_every": 1})
    assert [a["from_step"] for a in manifest.read_json(out / "manifest.json")["attempts"]] == [0, 3]


def test_nan_stops_and_the_last_good_checkpoint_is_exported(run: Run) -> None:
    out = run("train", "NaN loss")
    record = manifest.read_json(out / "manifest.json")
    assert record["stopped"]["check"] == "non_finite" and record["stopped"]["step"] == 3
    assert record["selection"]["step"] == 2 and record["selection"]["rule"] == "last before the watchdog's stop"
    assert "stopped by the watchdog: step 3: actor/pg_loss" in record["attempts"][0]["reason"]


def test_without_a_watchdog_nan_is_a_failed_contract(run: Run, config: dict) -> None:
    with pytest.raises(UserError, match="actor/pg_loss is nan at step 3: training diverged"):
        run("train", "NaN loss", watchdog={**config["watchdog"], "non_finite": {"action": "off"}})


def test_a_stop_exports_the_best_validated_checkpoint(run: Run, config: dict) -> None:
    collapse = {"action": "stop", "below_share_of_best": 0.5}
    watchdog = {**config["watchdog"], "window": 1, "reward_collapse": collapse}
    out = run("train", "collapse", watchdog=watchdog, train={"steps": 6, "save_every": 1, "validate_every": 1})
    record = manifest.read_json(out / "manifest.json")
    assert record["stopped"]["check"] == "reward_collapse"
    assert record["selection"] == {"step": 2, "rule": "best_validation", "validated_on": "test"}


def test_the_best_validated_checkpoint_survives_and_is_selected(run: Run, tmp_path: Path) -> None:
    train = {"steps": 6, "save_every": 1, "validate_every": 1, "select": "best_validation", "keep_checkpoints": 1}
    out = run("train", train=train)
    record = manifest.read_json(out / "manifest.json")
    assert record["selection"]["step"] == 2
    assert checkpoints.complete(next((out / "checkpoints").iterdir()))[0] == 2


def test_a_validation_that_is_still_being_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "validations").mkdir()
    for step, lines in {2: ["1", "1"], 4: ["0", "1"]}.items():
        text = "".join(f'{{"value_correct": {right}}}\n' for right in lines)
        (tmp_path / "validations" / f"{step}.jsonl").write_text(text + ('{"value_cor' if step == 4 else ""))
    assert checkpoints.read_validations(tmp_path) == {2: [True, True], 4: [False, True]}
    assert checkpoints.best_validated(tmp_path, [2, 4, 6]) == 2


def test_checkpoints_are_pruned_and_half_written_ones_removed(tmp_path: Path) -> None:
    for step in (2, 4, 6, 8):
        (tmp_path / f"global_step_{step}").mkdir()
    tracker = tmp_path / checkpoints.TRACKER
    tracker.write_text("6")
    assert checkpoints.complete(tmp_path) == [2, 4, 6]
    checkpoints.repair(tmp_path, recorded_step=7)
    assert not (tmp_path / "global_step_8").exists() and checkpoints.latest(tmp_path) == 6
    checkpoints.prune(tmp_path, keep=1, recorded_step=7, protected={2})
    assert checkpoints.complete(tmp_path) == [2, 6]
    checkpoints.prune(tmp_path, keep=1, recorded_step=5)
    assert checkpoints.complete(tmp_path) == [2, 6], "nothing is deleted for a checkpoint whose step is not recorded"
    checkpoints.repair(tmp_path, recorded_step=5)
    assert checkpoints.complete(tmp_path) == [2], "the metrics of step 6 were lost by the kill"
    (tmp_path / "global_step_4").mkdir()
    tracker.write_text("")  # killed between opening and writing it
    checkpoints.repair(tmp_path, recorded_step=4)
    assert checkpoints.complete(tmp_path) == [2]
    tracker.write_text("")
    checkpoints.repair(tmp_path, recorded_step=4)
    assert checkpoints.latest(tmp_path) == 0 and not list(tmp_path.glob("global_step_*"))


def test_a_disk_without_room_is_refused_before_training(
    run: Run, prepared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = checkpoints.shutil.disk_usage(prepared)._replace(free=10**6)
    monkeypatch.setattr(checkpoints.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(UserError, match="0.001 GB free, but 1 checkpoints .* lower train.keep_checkpoints"):
        run("train")


def test_checkpoint_size_is_that_of_the_weights_and_adam(prepared: Path) -> None:
    file = next((prepared / "base" / "model").glob("*.safetensors"))
    count = sum(tensor.numel() for tensor in safetensors.torch.load_file(file).values())
    assert checkpoints.bytes_each(prepared / "base" / "model") == 16 * count
