"""Joining a Ray cluster that exists: how many GPUs it must have, and what is said when it has not."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from toolrl.errors import UserError
from toolrl.verl_bridge import ray_nodes


def join(address: str, gpus: int, minutes: float, log: Path) -> str | None:
    share = ray_nodes.Share(cpus=1, gpus=gpus, object_store_bytes=0)
    resources = {"nodes": 1, "ray_address": address, "ray_join_minutes": minutes}
    with ray_nodes.cluster(resources, 1, share, dict(os.environ), log) as joined:
        return joined


@pytest.fixture
def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a cluster with one logical GPU."""
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    address = f"127.0.0.1:{ray_nodes.free_port()}"
    command = [Path(sys.executable).with_name("ray"), "start", "--head", f"--port={address.rpartition(':')[2]}"]
    command += ["--node-ip-address=127.0.0.1", "--num-cpus=1", "--num-gpus=1", "--block", "--include-dashboard=false"]
    command += [f"--ray-client-server-port={ray_nodes.free_port()}", "--object-store-memory=100000000"]
    with open(tmp_path / "ray.log", "wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield address
    finally:
        process.terminate()
        process.wait(30)


def test_a_running_cluster_is_joined_when_it_has_the_gpus(running: str, tmp_path: Path) -> None:
    assert join(running, 1, 1, tmp_path / "log") == running
    with pytest.raises(UserError, match=f"the Ray cluster at {running} .* has 1 GPUs, but 4 are needed"):
        join(running, 4, 0.05, tmp_path / "log")


def test_a_cluster_that_does_not_answer_is_named(tmp_path: Path) -> None:
    address = f"127.0.0.1:{ray_nodes.free_port()}"
    with pytest.raises(UserError, match=f"the Ray cluster at {address} .* does not answer"):
        join(address, 1, 0.05, tmp_path / "log")


def test_several_nodes_need_slurm_or_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    resources = {"nodes": 2, "ray_address": None}
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert "only a Slurm job has several nodes" in (ray_nodes.problem(resources) or "")
    assert ray_nodes.problem(resources | {"ray_address": "head:6379"}) is None
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    assert ray_nodes.problem(resources) is None


def test_a_node_that_srun_gives_up_is_not_blamed_on_the_time(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])
    ended.wait()
    with pytest.raises(UserError, match=r"2 of 2 nodes did not join .* before srun ended with exit status 3: one, two"):
        ray_nodes._wait_for_nodes("127.0.0.1:1", ["one", "two"], 1, 600, ended, tmp_path / "ray.log")
