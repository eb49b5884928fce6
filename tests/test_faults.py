"""Kills at any time, and the same command again: nothing stale is used, nothing complete is lost."""

import json
import random
import shutil
from pathlib import Path

import pytest
import yaml
from conftest import KILLS_KEY, ROOT, WORKFLOW, default_config, snakemake
from faults import Kill, after, run_with_kills
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


@pytest.mark.e2e
def test_three_kills_and_the_same_command(results: Path, request: pytest.FixtureRequest) -> None:
    kills = request.config.cache.get(KILLS_KEY, None)
    if kills is None:
        pytest.skip("these results were made without kills: delete results/ to make them anew")
    assert kills == ["during the warm start", "while a checkpoint is written", "while the model is exported"]
    check_complete(results, default_config()["train"]["steps"])
    first, second = finished_attempts(results)
    assert (first["from_step"], first["reason"]) == (0, "killed") and first["to_step"] in (7, 8)
    # the checkpoint of step 8 counts if the kill came just after it was named as complete
    assert second["from_step"] in (4, 8) and (second["to_step"], second["reason"]) == (12, "finished")
    page = (results / "report.html").read_text()
    assert "killed" in page and "to 12" in page


@pytest.mark.e2e
def test_a_resumed_step_repeats_the_killed_one(results: Path, request: pytest.FixtureRequest) -> None:
    """The optimizer, the data order and every rollout's seed are those of the first attempt."""
    if request.config.cache.get(KILLS_KEY, None) is None:
        pytest.skip("these results were made without kills: delete results/ to make them anew")
    work = results / "train" / "checkpoints" / manifest.read_json(results / "train" / "manifest.json")["fingerprint"]
    first, second = (
        {line["step"]: line["data"] for line in lines(work / f"metrics-00{number}.jsonl")} for number in (1, 2)
    )
    repeated = sorted(set(first) & set(second))
    if not repeated:
        pytest.skip("the kill came just after the checkpoint, so that no step was repeated")
    for step in repeated:
        assert different_metrics(first[step], second[step]) == [], step


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
    kills = [Kill(f"after {delay:.0f} s", after(delay)) for delay in (rng.uniform(2, LONGEST_WAIT) for _ in range(12))]
    done = run_with_kills(tmp_path, kills)
    assert done, "the run ended before the first kill"
    while len(done) < RANDOM_KILLS:  # the rest while a changed training is made anew
        config["train"]["learning_rate"] *= 0.9
        (tmp_path / "config" / "config.yaml").write_text(yaml.safe_dump(config))
        done += run_with_kills(tmp_path, kills[len(done) :])
    check_complete(tmp_path / "results", 6)
