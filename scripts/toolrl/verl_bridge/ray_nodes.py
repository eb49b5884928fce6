"""Ray over several nodes: started over the nodes of a Slurm job and always stopped again, or a cluster that exists.

Run as a script, this file is what `srun` starts on each node of the job.
"""

import argparse
import contextlib
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex as random_token
from typing import Any

import psutil

from toolrl.cli import log
from toolrl.errors import UserError
from toolrl.secrets import register

POLL_SECONDS = 1.0
NODE_GRACE_SECONDS = 5
STOP_GRACE_SECONDS = 30
TOKEN = "RAY_AUTH_TOKEN"
TO_NODES = ("SLURM_JOB_ID", "SLURM_CONF")
"""Of Slurm's variables, what a step needs; the others carry options of the step that we are in."""


@dataclass(frozen=True)
class Share:
    """What Ray may use of each node: logical CPUs, GPUs (on the cpu platform slots), bytes of shared memory."""

    cpus: int
    gpus: int
    object_store_bytes: int


def problem(resources: Mapping[str, Any]) -> str | None:
    """Why a training on several nodes cannot start from here, if it cannot."""
    if resources["nodes"] == 1 or resources["ray_address"] or "SLURM_JOB_ID" in os.environ:
        return None
    return (
        f"resources.nodes is {resources['nodes']}, and only a Slurm job has several nodes: submit with "
        "`--profile profiles/slurm`, or name a running Ray cluster in resources.ray_address."
    )


@contextmanager
def cluster(
    resources: Mapping[str, Any], nodes: int, share: Share, environment: dict[str, str], log_path: Path
) -> Iterator[str | None]:
    """A Ray cluster whose nodes and GPUs have all joined.

    Args:
        resources: the `resources` section.
        nodes: how many nodes are needed.
        share: what Ray may use of each.
        environment: of Ray's processes, and so of verl's workers; a cluster that is started here adds its token.
        log_path: gets the output of all nodes.

    Yields:
        its address; None for one node without an address, where verl starts Ray itself.

    Raises:
        UserError: naming the nodes that have not joined within `resources.ray_join_minutes`.
    """
    patience = 60 * resources["ray_join_minutes"]
    if resources["ray_address"]:
        _wait_for_gpus(resources["ray_address"], nodes * share.gpus, patience)
        yield resources["ray_address"]
    elif nodes == 1:
        yield None
    else:
        if reason := problem(resources):
            raise UserError(reason)
        names = _allocated_nodes(nodes)
        with _started(names, share, environment, log_path) as (address, step):
            _wait_for_nodes(address, names, share.gpus, patience, step, log_path)
            yield address


def _allocated_nodes(nodes: int) -> list[str]:
    """The names of the job's nodes, this one first."""
    listed = _output("squeue", "--noheader", "--jobs", os.environ["SLURM_JOB_ID"], "--format", "%N").strip()
    names = _output("scontrol", "show", "hostnames", listed).split()
    here = os.environ.get("SLURMD_NODENAME")
    if here not in names:
        raise UserError("a training on several nodes has to start on one of them: run it as a batch job of Slurm.")
    if len(names) < nodes:
        raise UserError(
            f"resources.nodes is {nodes}, but Slurm gave this job {len(names)} ({', '.join(names)}): ask for as many."
        )
    return [here, *(name for name in names if name != here)]


def _output(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    except (OSError, subprocess.SubprocessError) as error:
        reason = getattr(error, "stderr", None) or error
        raise UserError(f"Slurm does not answer: `{' '.join(command)}`: {str(reason).strip()}") from None


@contextmanager
def _started(
    names: list[str], share: Share, environment: dict[str, str], log_path: Path
) -> Iterator[tuple[str, subprocess.Popen]]:
    """Ray's address, and the job step that runs it on the nodes, which ends with this block."""
    token = random_token(32)
    register({TOKEN: token})
    access = {TOKEN: token, "RAY_AUTH_MODE": "token"}
    environment |= access
    os.environ |= access  # this process connects, too; Ray reads it when it is imported
    import ray.util

    address = f"{ray.util.get_node_ip_address()}:{free_port()}"
    command = ["srun", "--overlap", "--label", f"--nodelist={','.join(names)}", "--ntasks-per-node=1"]
    command += [f"--nodes={len(names)}", f"--ntasks={len(names)}", "--kill-on-bad-exit=1"]
    if "CUDA_VISIBLE_DEVICES" in environment:
        command += [f"--gres=gpu:{share.gpus}"]
    command += [sys.executable, __file__, "--head", names[0], "--address", address, "--cpus", str(share.cpus)]
    command += ["--gpus", str(share.gpus), "--object-store-bytes", str(share.object_store_bytes)]
    passed = {
        name: value
        for name, value in environment.items()
        if name in TO_NODES or not name.startswith(("SLURM_", "SRUN_", "CUDA_VISIBLE_DEVICES"))
    }
    log.info("ray: starting on %s; output: %s", ", ".join(names), log_path)
    with open(log_path, "ab") as output:
        step = subprocess.Popen(
            command, env=passed, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
    try:
        yield address, step
    finally:
        for name in access:
            os.environ.pop(name)
        step.terminate()  # srun ends the tasks of all nodes
        with contextlib.suppress(subprocess.TimeoutExpired):
            step.wait(STOP_GRACE_SECONDS)
        step.kill()
        step.wait()


def free_port() -> int:
    """A TCP port that nothing listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]


@contextmanager
def _connected(address: str, in_time: Callable[[], bool]) -> Iterator[Any]:
    """The module `ray`, connected to a cluster that may still be starting; None if it has not answered in time."""
    import ray

    connected = False
    while in_time() and not connected:
        try:
            if address != "auto":  # Ray itself waits long for what does not listen
                host, port = address.rsplit(":", 1)
                socket.create_connection((host, int(port)), timeout=POLL_SECONDS).close()
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
            connected = True
        except (OSError, RuntimeError, ValueError):
            time.sleep(POLL_SECONDS)
    try:
        yield ray if connected else None
    finally:
        ray.shutdown()


def _wait_for_gpus(address: str, gpus: int, patience: float) -> None:
    deadline = time.monotonic() + patience
    found = 0
    with _connected(address, lambda: time.monotonic() < deadline) as ray:
        while ray and time.monotonic() < deadline:
            if (found := int(ray.cluster_resources().get("GPU", 0))) >= gpus:
                return
            time.sleep(POLL_SECONDS)
    state = f"has {found} GPUs, but {gpus} are needed" if ray else "does not answer"
    raise UserError(
        f"the Ray cluster at {address} (resources.ray_address) {state}; it was given {patience / 60:g} minutes "
        "(resources.ray_join_minutes)."
    )


def _wait_for_nodes(
    address: str, names: list[str], gpus: int, patience: float, step: subprocess.Popen, log_path: Path
) -> None:
    deadline = time.monotonic() + patience

    def in_time() -> bool:
        return time.monotonic() < deadline and step.poll() is None

    missing = names
    with _connected(address, in_time) as ray:
        while ray and in_time():
            joined = {node["NodeName"]: node["Resources"].get("GPU", 0) for node in ray.nodes() if node["Alive"]}
            missing = [name for name in names if joined.get(name, -1) < gpus]
            if not missing:
                log.info("ray: %d nodes with %d GPUs each have joined", len(names), gpus)
                return
            time.sleep(POLL_SECONDS)
    if step.poll() is None:
        when = f"within {patience / 60:g} minutes (resources.ray_join_minutes)"
    else:
        when = f"before srun ended with exit status {step.returncode}"
    raise UserError(
        f"{len(missing)} of {len(names)} nodes did not join Ray with their {gpus} GPUs {when}: {', '.join(missing)} "
        f"(output: {log_path})"
    )


def run_node(arguments: argparse.Namespace) -> int:
    """Runs this node's part of Ray until it is told to stop; returns Ray's exit status."""
    name = os.environ["SLURMD_NODENAME"]
    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # not TMPDIR: the path of a socket must be short
    command = [str(Path(sys.executable).with_name("ray")), "start", "--block", f"--node-name={name}"]
    command += [f"--num-cpus={arguments.cpus}", f"--num-gpus={arguments.gpus}", f"--temp-dir={folder}"]
    command += [f"--object-store-memory={arguments.object_store_bytes}", "--disable-usage-stats"]
    # ports that another job on the node cannot hold
    command += ["--min-worker-port=0", "--max-worker-port=0", "--dashboard-agent-listen-port=0"]
    if name == arguments.head:
        port = arguments.address.rpartition(":")[2]
        command += ["--head", f"--port={port}", f"--ray-client-server-port={free_port()}", "--include-dashboard=false"]
    else:
        command += [f"--address={arguments.address}"]
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    node = subprocess.Popen(command)
    try:
        return node.wait()
    finally:
        started = psutil.Process().children(recursive=True)
        node.terminate()
        _, left = psutil.wait_procs(started, timeout=NODE_GRACE_SECONDS)
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Runs one node's part of a Ray cluster in a Slurm job.")
    parser.add_argument("--head", required=True, help="name of the node that runs Ray's head")
    parser.add_argument("--address", required=True, help="HOST:PORT of the head")
    parser.add_argument("--cpus", type=int, required=True)
    parser.add_argument("--gpus", type=int, required=True)
    parser.add_argument("--object-store-bytes", type=int, required=True)
    sys.exit(run_node(parser.parse_args()))
