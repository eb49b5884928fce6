"""Local GPUs: every job has its own, named by a stand-in for nvidia-smi."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import ROOT, snakemake
from toolrl import machine
from toolrl.errors import UserError

JOB = """
import os, sys, time
from toolrl import machine
machine.GPU_POLL_SECONDS = 0.1
with machine.own_gpus(int(sys.argv[1]), "train"):
    print(os.environ["CUDA_VISIBLE_DEVICES"], flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def two_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\necho 'A GPU'\necho 'A GPU'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "scripts"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def job(count: int) -> subprocess.Popen:
    command = [sys.executable, "-c", JOB, str(count)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_two_jobs_have_different_gpus_and_a_third_waits(two_gpus: None) -> None:
    first, second = job(1), job(1)
    assert {first.stdout.readline(), second.stdout.readline()} == {"0\n", "1\n"}
    third = job(1)
    time.sleep(1.5)
    assert third.poll() is None
    first.kill()  # the lock ends with its process
    freed = third.stdout.readline()
    assert freed in ("0\n", "1\n")
    for process in (second, third):
        process.communicate("")
    first.wait()


def test_two_jobs_that_want_both_do_not_block_each_other(two_gpus: None) -> None:
    jobs = [job(2) for _ in range(3)]
    for process in jobs:
        process.stdin.close()
    for process in jobs:
        assert process.wait(timeout=60) == 0 and process.stdout.read() == "0,1\n"


def test_too_few_gpus_are_refused(two_gpus: None, monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        pytest.raises(UserError, match="resources.train.gpu asks for 3 GPUs, but 2 are visible"),
        machine.own_gpus(3, "train"),
    ):
        pass
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,4,7")
    with machine.own_gpus(3, "train"):
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "3,4,7", "a scheduler's choice is left alone"


def test_snakemake_knows_how_many_there_are(workflow: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    made = snakemake(workflow, "results/data/raw/manifest.json")
    assert made.returncode == 0 and re.search(r"Provided resources: gpu\D+2\b", made.stderr)
    made = snakemake(workflow, "--forceall", "results/data/raw/manifest.json", "--resources", "gpu=1")
    assert made.returncode == 0 and re.search(r"Provided resources: gpu\D+1\b", made.stderr)


@pytest.mark.parametrize("elsewhere", [{"platform": "cpu"}, {"ray_address": "head:6379"}])
def test_a_job_without_gpus_here_takes_none(two_gpus: None, elsewhere: dict) -> None:
    resources = {"platform": "cuda", "ray_address": None, "train": {"gpu": 1}}
    assert machine.gpus_of(resources, "train") == 1
    with machine.own_gpus(machine.gpus_of(resources | elsewhere, "train"), "train"):
        assert "CUDA_VISIBLE_DEVICES" not in os.environ
