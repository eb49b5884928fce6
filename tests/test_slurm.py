"""On a real Slurm: the default experiment, GPUs for each job, and a training over two nodes."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import attentive_snakemake
import pytest
import slurm
import yaml
from conftest import ROOT, default_config, environment, snakemake
from test_faults import finished_attempts, lines, observed

__all__ = ["observed"]

pytestmark = pytest.mark.usefixtures("cluster")

SUBMIT = [sys.executable, attentive_snakemake.__file__, "--profile", str(ROOT / "profiles" / "slurm")]

GPU_JOBS = """
rule all:
    input:
        expand("{number}.txt", number=range(3)),


rule gpu_job:
    output:
        "{number}.txt",
    resources:
        gpu=1,
        mem_mb=500,
        runtime=5,
        slurm_partition="single",
    shell:
        "(date +%s; sleep 5; date +%s; echo $CUDA_VISIBLE_DEVICES) > {output}"
"""


@pytest.mark.e2e
def test_the_default_experiment_is_submitted(results: Path, observed: dict) -> None:
    assert observed["where"] == "slurm"
    assert "gres/gpu=1" in observed["train's TRES"].split(",")
    assert observed["left after Ctrl-C"] == []
    assert (results / "report.html").is_file()


@pytest.mark.e2e
def test_lost_jobs_are_in_the_report(results: Path, observed: dict) -> None:
    attempts = finished_attempts(results)
    states = [attempt["job_state"] for attempt in attempts]
    assert states == ["CANCELLED", "FAILED", "TIMEOUT", None]
    job_log = ROOT / ".snakemake" / "slurm_logs" / "rule_train" / "results" / f"{attempts[1]['job']}.log"
    assert "exceeded memory limit" in job_log.read_text()  # with cgroups the state would be OUT_OF_MEMORY
    page = (results / "report.html").read_text()
    assert all(f"({state})" in page for state in states if state)


def test_jobs_have_gpus_of_their_own(tmp_path: Path) -> None:
    """Two jobs on a node with two GPUs have different ones, and a third waits."""
    (tmp_path / "Snakefile").write_text(GPU_JOBS)
    result = subprocess.run(SUBMIT, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    jobs = sorted(tuple(map(int, (tmp_path / f"{number}.txt").read_text().split())) for number in range(3))
    (first, second, third) = jobs
    assert second[0] < first[1], "the first two did not run at the same time"
    assert {first[2], second[2]} == {0, 1}
    assert third[0] >= min(first[1], second[1]) and third[2] in (0, 1)


@contextmanager
def silent_node(name: str) -> Iterator[None]:
    """Nothing more starts on the node. Jobs that want it wait as soon as Slurm has noticed."""
    daemon = int((slurm.FOLDER / f"slurmd-{name}.pid").read_text())
    os.kill(daemon, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(daemon, signal.SIGCONT)
        os.kill(daemon, signal.SIGHUP)  # it registers anew; Slurm itself would ask it minutes later


@pytest.fixture(scope="module")
def two_nodes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workflow of two training steps on two nodes, ready to train."""
    folder = tmp_path_factory.mktemp("two") / "a workflow"
    shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns("results", ".*", "__pycache__", "tests"))
    config = default_config()
    config["data"]["procedural"] = {"train_rows": 32, "test_rows": 8}
    config["warm_start"]["epochs"] = 1
    config["train"] |= {"steps": 2, "save_every": 2, "batch_size": 4, "mini_batch_size": 4, "rollouts_per_prompt": 4}
    config["train"]["micro_batch_size_per_gpu"] = config["rollout"]["log_prob_micro_batch_size_per_gpu"] = 8
    # an untrained model has no right answer, and where all rewards are equal a training fails
    brevity = {"function": str(ROOT / "tests" / "user" / "my_terms.py:brevity"), "weight": 1.0}
    config["reward"]["terms"] = {"brevity": brevity}
    config["resources"] |= {"nodes": 2, "ray_join_minutes": 1}
    (folder / "config" / "config.yaml").write_text(yaml.safe_dump(config))
    prepared = snakemake(folder, "results/data/manifest.json", "results/models/start/manifest.json")
    assert prepared.returncode == 0, prepared.stderr
    return folder


@contextmanager
def training(folder: Path) -> Iterator[subprocess.Popen]:
    """The submitted training; stopped, if it still runs when the test has seen enough."""
    command = [*SUBMIT, "--retries", "0", "--show-failed-logs", "results/train/manifest.json"]
    with subprocess.Popen(command, cwd=folder, env=environment(), stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
                process.communicate()  # it cancels its jobs, if it can say so: `with` closes its stderr before it waits


def wait_until(happened: Callable[[], bool], process: subprocess.Popen, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not happened():
        assert process.poll() is None and time.monotonic() < deadline, slurm.active_jobs()
        time.sleep(0.5)


def test_a_missing_node_is_named(two_nodes: Path) -> None:
    log = two_nodes / "results" / "logs" / "train.log"
    with training(two_nodes) as process:
        wait_until(lambda: slurm.is_running("train"), process, 200)
        with silent_node("two"):
            wait_until(lambda: log.exists() and "error:" in log.read_text(), process, 400)
        _, messages = process.communicate(timeout=200)
    assert process.returncode != 0, messages
    text = log.read_text()
    # srun, which cannot start Ray there, may give up before our patience ends
    when = r"(within 1 minutes \(resources\.ray_join_minutes\)|before srun ended with exit status \d+)"
    assert re.search(rf"1 of 2 nodes did not join Ray with their 1 GPUs {when}: two \(", text), text
    assert slurm.processes() == [] and slurm.active_jobs() == []


def test_two_nodes_train_together(two_nodes: Path) -> None:
    with training(two_nodes) as process:
        _, messages = process.communicate(timeout=900)
    assert process.returncode == 0, messages
    log = (two_nodes / "results" / "logs" / "train.log").read_text()
    assert "ray: 2 nodes with 1 GPUs each have joined" in log
    metrics = lines(two_nodes / "results" / "train" / "metrics.jsonl")
    assert [line["step"] for line in metrics] == [1, 2]
    work = two_nodes / "results" / "train" / "checkpoints"
    assert len(list(work.glob("*/global_step_2/actor/model_world_size_2_rank_*.pt"))) == 2
    assert slurm.processes() == []
