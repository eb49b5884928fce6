"""Kills at any time, and the same command again: nothing stale is used, nothing complete is lost."""

import errno
import json
import os
import random
import shutil
from pathlib import Path

import pytest
import yaml
from conftest import FAULTS_KEY, ROOT, WORKFLOW, default_config, snakemake
from faults import Fault, after, kill_until_it_succeeds
from toolrl import manifest

RANDOM_KILLS = 12
LONGEST_WAIT = 140


def finished_attempts(results: Path) -> list[dict]:
    return manifest.read_json(results / "train" / "manifest.json")["attempts"]


def lines(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text().splitlines() if line.endswith("}")]


def check_complete(results: Path, steps: int) -> None:
    """Every declared file is there and has the checksum of its manifest; metrics and rollouts have every step."""
    for name in ("data", "data/raw", "train", "evaluate/start", "evaluate/trained"):
        record = manifest.read_json(results / name / "manifest.json")
        for file, expected in record["files"].items():
            assert manifest.sha256_file(results / name / file) == expected["sha256"], (name, file)
    assert [line["step"] for line in lines(results / "train" / "metrics.jsonl")] == list(range(1, steps + 1))
    evaluated = manifest.read_json(results / "evaluate" / "trained" / "manifest.json")["model"]
    trained = manifest.read_json(results / "train" / "manifest.json")["files_of_model"]
    assert evaluated == trained, "the evaluation is of another model"
    assert (results / "report.html").stat().st_mtime >= (results / "train" / "manifest.json").stat().st_mtime


@pytest.fixture
def observed(results: Path, request: pytest.FixtureRequest) -> dict:
    """The faults that the run of `results` met."""
    found = request.config.cache.get(FAULTS_KEY, None)
    if found is None:
        pytest.skip("these results were made without faults: delete results/ to make them anew")
    return found


@pytest.mark.e2e
def test_faults_and_the_same_command(results: Path, observed: dict) -> None:
    check_complete(results, default_config()["train"]["steps"])
    attempts = finished_attempts(results)
    if observed["where"] == "here":
        expected = ["during the warm start", "while a checkpoint is written", "while the model is exported"]
        reasons = ["killed", "finished"]
    else:
        expected = [
            "cancelled while a checkpoint is written",
            "out of memory",
            "out of time",
            "Ctrl-C while the model is exported",
            "killed here while the model is exported",
        ]
        reasons = ["killed", "killed", "interrupted", "finished"]
    assert observed["faults"] == expected
    found = [attempt["reason"] for attempt in attempts]
    if found[-2:] == ["killed", "finished"]:  # Slurm gave it too little time to note that it was interrupted
        reasons[-2] = "killed"
    assert found == reasons
    first, *others = attempts
    assert first["from_step"] == 0 and first["to_step"] in (7, 8)
    # the checkpoint of step 8 counts from the moment that it is named as complete
    continued = [attempt["from_step"] for attempt in others]
    assert set(continued) <= {4, 8} and continued == sorted(continued), "each continues from the last checkpoint"
    assert attempts[-1]["to_step"] == 12
    page = (results / "report.html").read_text()
    assert "killed" in page and "to 12" in page


@pytest.mark.e2e
def test_a_resumed_step_repeats_the_killed_one(results: Path, observed: dict) -> None:
    """The optimizer, the data order and every rollout's seed are those of the first attempt."""
    work = results / "train" / "checkpoints" / manifest.read_json(results / "train" / "manifest.json")["fingerprint"]
    first, *others = (
        {line["step"]: line["data"] for line in lines(file)} for file in sorted(work.glob("metrics-*.jsonl"))
    )
    repeated = [(step, other[step]) for other in others for step in sorted(set(first) & set(other))]
    if not repeated:
        pytest.skip("the fault came just after the checkpoint, so that no step was repeated")
    for step, metrics in repeated:
        assert different_metrics(first[step], metrics) == [], step


def different_metrics(first: dict, second: dict) -> list[str]:
    """The metrics that differ, without those that measure time and memory, and those of the engine's rounding, which
    depends on how requests happen to share a batch."""
    measured = ("timing", "perf/", "actor/perf/")
    rounding = ("rollout_corr/", "training/rollout_")
    for name in first:
        if name.startswith(rounding):
            assert first[name] == pytest.approx(second[name], rel=1e-2, abs=1e-5), name
    names = [name for name in first.keys() | second.keys() if not name.startswith(measured + rounding)]
    return sorted(name for name in names if first.get(name) != second.get(name))


def test_a_second_run_in_the_same_folder_is_refused(workflow: Path) -> None:
    from toolrl.locks import acquire

    with acquire(workflow / ".snakemake" / "toolrl.lock", 0):
        result = snakemake(workflow, "results/data/raw/train.jsonl")
        assert result.returncode != 0
        assert "another run works in" in result.stdout + result.stderr
        assert "Traceback" not in result.stdout + result.stderr
    assert snakemake(workflow, "results/data/raw/train.jsonl").returncode == 0


def test_a_file_system_without_locks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from toolrl import locks
    from toolrl.errors import UserError

    def flock(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(locks.fcntl, "flock", flock)
    with pytest.raises(UserError, match=f"the file system of {tmp_path} cannot lock files"):
        locks.attempt(tmp_path / "lock")


def test_random_kills(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """The long form: a small experiment, killed at random times from the download to the report."""
    if not request.config.getoption("--faults"):
        pytest.skip("takes about half an hour: run `make test-faults`")
    for name in WORKFLOW:
        source, target = ROOT / name, tmp_path / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, target)
    config = default_config()
    config["data"]["procedural"] = {"train_rows": 3000, "test_rows": 32}
    config["warm_start"]["epochs"] = 1
    config["train"] |= {"steps": 6, "save_every": 2, "batch_size": 8, "mini_batch_size": 8}
    (tmp_path / "config" / "config.yaml").write_text(yaml.safe_dump(config))
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    rng = random.Random(seed)
    kills = [Fault(f"after {delay:.0f} s", after(delay)) for delay in (rng.uniform(2, LONGEST_WAIT) for _ in range(12))]
    done = kill_until_it_succeeds(tmp_path, kills)
    assert done, "the run ended before the first kill"
    while len(done) < RANDOM_KILLS:  # the rest while a changed training is made anew
        config["train"]["learning_rate"] *= 0.9
        (tmp_path / "config" / "config.yaml").write_text(yaml.safe_dump(config))
        done += kill_until_it_succeeds(tmp_path, kills[len(done) :])
    check_complete(tmp_path / "results", 6)
