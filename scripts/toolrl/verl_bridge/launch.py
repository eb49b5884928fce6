"""verl as a child process: its environment, its log, and an end to hangs."""

import ctypes
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import yaml

from toolrl.cli import log
from toolrl.data.agent_rows import read_tool_config
from toolrl.errors import UserError
from toolrl.extensions import AGENT_LOOPS, absolute
from toolrl.locks import acquire
from toolrl.secrets import redacted, without_secrets
from toolrl.verl_bridge import ray_nodes, settings, worker_forks

TRAINER = ("-m", "verl.trainer.main_ppo")
"""What the child's Python runs."""

VLLM_ON_CPU = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
"""vLLM's environment on the cpu platform: GiB for its cache, and no cores of its own."""

POLL_SECONDS = 0.5
LOCK_SECONDS = 60
STOP_GRACE_SECONDS = 20
HEARTBEAT_SECONDS = 30
PR_SET_PDEATHSIG = 1


def _die_with_parent() -> None:
    """Asks Linux to end this process when its parent dies, even by SIGKILL: no orphan may write on."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


OWN_GROUP: dict[str, Any] = {"start_new_session": True, "preexec_fn": _die_with_parent}


def environment(
    platform: str, threads: int, metrics_file: Path | None = None, tool_config: str | None = None
) -> dict[str, str]:
    """The child's environment: ours, plus what the platform needs. Classes that a user's `tool_config` names are
    found beside it."""
    result = dict(os.environ)
    result |= {"HYDRA_FULL_ERROR": "1", "PYTHONUNBUFFERED": "1", "TOKENIZERS_PARALLELISM": "false"}
    result |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    if metrics_file:
        result["VERL_FILE_LOGGER_PATH"] = str(metrics_file)
    # Ray's workers and the reward manager's file import the package from here, installed or not
    folders = [str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH")]
    folders += [str(Path(tool_config).resolve().parent)] if tool_config else []
    result["PYTHONPATH"] = os.pathsep.join(filter(None, folders))
    # each process of verl imports it; of two launches on one machine one would else get the other's weights
    modules = (os.environ.get("VERL_USE_EXTERNAL_MODULES"), "toolrl.verl_bridge.job_id")
    result |= {"VERL_USE_EXTERNAL_MODULES": ",".join(filter(None, modules)), "TOOLRL_LAUNCH": uuid.uuid4().hex}
    # Slurm sets AMD's variable beside NVIDIA's, and verl refuses to choose
    result.pop("ROCR_VISIBLE_DEVICES", None)
    if platform == "cpu":
        result |= {
            "VERL_PLATFORM": "cpu",
            "VERL_ENGINE_DEVICE": "cuda",  # verl registers its FSDP engine under this name only
            **VLLM_ON_CPU,
            "RAY_worker_niceness": "0",
        }
        result.pop("CUDA_VISIBLE_DEVICES", None)
    # Beside a GPU one for each process, as torchrun has it: the transfer queue's small tensors keep all cores busy
    # otherwise. Snakemake has set the first two to the job's threads, and torch goes by MKL's; the queue goes by its
    # own while it stores or reads.
    computing = str(threads) if platform == "cpu" else "1"
    return result | dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "TQ_NUM_THREADS"), computing)


def agent_loop_entries(loops: Mapping[str, str]) -> list[dict[str, str]]:
    """verl's `agent_loop_config_path` entries: the built-in loops and the user's (name → `file.py:Class`)."""
    named = AGENT_LOOPS | {name: absolute(loop) for name, loop in loops.items()}
    target = "toolrl.verl_bridge.agent_loop.NamedAgentLoop"
    return [{"name": name, "_target_": target, "loop": loop} for name, loop in named.items()]


@contextmanager
def exclusive(folder: Path) -> Iterator[int]:
    """The folder for this launch alone: waits until the child of a killed launch has ended, which holds the lock.

    Yields:
        the lock's file descriptor, for `run_verl`.

    Raises:
        UserError: when another launch still has it after a minute.
    """
    with acquire(folder / ".lock", LOCK_SECONDS) as handle:
        yield handle.fileno()


def run_on_nodes(
    config: Mapping[str, Any],
    options: Mapping[str, Any],
    nodes: int,
    share: ray_nodes.Share,
    folder: Path,
    child_environment: dict[str, str],
    progress: Callable[[], Any],
    lock: int,
) -> None:
    """Runs verl with options of its own, on the nodes of this job or on the Ray cluster that `config` names.

    Args:
        config: the project's configuration.
        options: verl's options, as `settings` makes them.
        nodes: how many nodes verl uses.
        share: what it may use of each.
        folder, child_environment, progress, lock: as for `run_verl`; `ray.log` in the folder gets Ray's output.

    Raises:
        UserError: as `ray_nodes.cluster` and `run_verl` do.
    """
    stall_seconds = 60 * config["watchdog"]["stall_minutes"]
    with ray_nodes.cluster(config["resources"], nodes, share, child_environment, folder / "ray.log") as address:
        joining = settings.cluster_options(address, child_environment) if address else {}
        composed = settings.compose_settings({**options, **joining}, settings.verl_defaults())
        run_verl(composed, folder, child_environment, stall_seconds, progress, lock)


def run_verl(
    config: Any,
    folder: Path,
    child_environment: Mapping[str, str],
    stall_seconds: float,
    progress: Callable[[], Any],
    lock: int,
) -> None:
    """Runs `verl.trainer.main_ppo` with a composed configuration until it ends.

    Args:
        config: the composed verl configuration.
        folder: gets `verl.yaml` (the configuration), `verl.log` (all output) and Hydra's own files, without secrets.
        child_environment: the whole environment of the child.
        stall_seconds: the child is stopped when neither its log nor `progress` has changed for so long.
        progress: called twice a second; returns something that changes when the run gets on; what it raises stops
            the child.
        lock: the descriptor of `exclusive`, which the child keeps open as long as it lives.

    Raises:
        UserError: when verl fails or stalls, naming the log and its first error.
    """
    from omegaconf import OmegaConf

    folder.mkdir(parents=True, exist_ok=True)
    plain = OmegaConf.to_container(config, resolve=False)
    (folder / "verl.yaml").write_text(yaml.safe_dump(without_secrets(plain), sort_keys=False), encoding="utf-8")
    log_path = folder / "verl.log"
    log_start = log_path.stat().st_size if log_path.exists() else 0
    with (
        tempfile.TemporaryDirectory(prefix="toolrl-") as private,
        open(log_path, "ab", buffering=0) as output,
        ExitStack() as cleanup,
    ):
        environment = dict(child_environment)
        if OmegaConf.select(config, settings.WORKER_EXECUTABLE):
            environment |= cleanup.enter_context(_worker_forks(Path(private) / "forks", environment, output))
        OmegaConf.save(config, Path(private) / "verl.yaml")
        command = [sys.executable, *TRAINER, f"--config-path={private}", "--config-name=verl"]
        command += [f"hydra.run.dir={folder}", "hydra.output_subdir=null"]
        child = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            pass_fds=(lock,),
            **OWN_GROUP,
        )
        copier = threading.Thread(target=_copy_redacted, args=(child.stdout, output), daemon=True)
        copier.start()
        try:
            _watch(child, log_path, log_start, stall_seconds, progress)
        finally:
            _stop(child)
            copier.join(STOP_GRACE_SECONDS)
    progress()
    if child.returncode != 0:
        cause = _first_error(log_path, log_start)
        if "No space left on device" in cause or "Disk quota exceeded" in cause:
            raise UserError(
                f"the disk is full: free some space and run the same command again ({cause}; see {log_path})"
            )
        raise UserError(f"verl ended with exit code {child.returncode}: {cause} (all output: {log_path})")


def _copy_redacted(source: Any, target: Any) -> None:
    """Copies a child's output to its log, line by line, without secrets."""
    pending = b""
    for chunk in iter(lambda: source.read1(65536), b""):
        *lines, pending = re.split(rb"(?<=[\r\n])", pending + chunk)
        for line in lines:
            target.write(redacted(line.decode("utf-8", "replace")).encode("utf-8", "replace"))
    target.write(redacted(pending.decode("utf-8", "replace")).encode("utf-8", "replace"))


@contextmanager
def _worker_forks(address: Path, environment: Mapping[str, str], output: Any) -> Iterator[dict[str, str]]:
    """The server that Ray's workers are forked from; yields what their environment needs to find it."""
    worker_forks.write_executable(str(address))
    platform = environment.get("VERL_PLATFORM", "cuda")
    with worker_forks.listening(str(address)) as listener:
        descriptor = listener.fileno()
        command = [sys.executable, str(worker_forks.__file__), "serve", str(descriptor), platform]
        server = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env=environment, pass_fds=(descriptor,), **OWN_GROUP
        )
    try:
        yield {worker_forks.SOCKET_VARIABLE: str(address)}
    finally:
        _stop(server)


def _watch(
    child: subprocess.Popen, log_path: Path, log_start: int, stall_seconds: float, progress: Callable[[], Any]
) -> None:
    started = last_change = last_word = time.monotonic()
    last_size, last_progress = -1, progress()
    log.info("verl: starting Ray, the trainer and the engine; all output: %s", log_path)
    while child.poll() is None:
        time.sleep(POLL_SECONDS)
        now, size, current = time.monotonic(), log_path.stat().st_size, progress()
        if current != last_progress:
            last_word = now
        elif now - last_word > HEARTBEAT_SECONDS:
            log.info("verl: still working, %.0f s since the start", now - started)
            last_word = now
        if (size, current) != (last_size, last_progress):
            last_change, last_size, last_progress = now, size, current
        elif now - last_change > stall_seconds:
            raise UserError(
                f"verl has been silent for {stall_seconds / 60:.0f} minutes (watchdog.stall_minutes) and was stopped: "
                f"{_first_error(log_path, log_start)} (all output: {log_path})"
            )


def _stop(child: subprocess.Popen) -> None:
    """Ends what is left of the child's process group; SIGTERM first, so that Ray can clean up."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(child.pid, number)
        except ProcessLookupError:
            break
        deadline = time.monotonic() + STOP_GRACE_SECONDS
        while time.monotonic() < deadline and _group_lives(child):
            time.sleep(0.2)
    child.wait()


def _group_lives(child: subprocess.Popen) -> bool:
    child.poll()
    try:
        os.killpg(child.pid, 0)
    except ProcessLookupError:
        return False
    return True


_ERROR_LINE = re.compile(r"(?:^|\s)((?:\w+\.)*\w*(?:Error|Exception): .+)")
_MISLEADING = (
    "Warning",
    "WARNING",
    "BufferError",
    "RayTaskError",
    "RayActorError",
    "ActorDiedError",
    "EngineDeadError",
)


def _first_error(log_path: Path, start: int) -> str:
    """The first error after byte `start` of the log (what follows is mostly its consequence), without control
    characters; the last line where nothing looks like an error."""
    with open(log_path, "rb") as handle:
        handle.seek(start)
        lines = handle.read().decode("utf-8", errors="replace").splitlines()
    for line in lines:
        match = _ERROR_LINE.search(line)
        if match and not any(text in line for text in _MISLEADING):
            return printable(match[1])[:300]
    return printable(lines[-1])[:300] if lines else "it wrote nothing"


def printable(text: str) -> str:
    """Text without control characters, so that it cannot steer a terminal."""
    return "".join(character for character in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text) if character.isprintable())


def prepare(paths: settings.Paths, agent: Mapping[str, Any]) -> None:
    """Checks the user's tool config, if there is one, and writes what a launch reads besides its settings."""
    if agent["tool_config"]:
        from toolrl.verl_bridge.tools import check_tool_config  # imports verl, which takes seconds

        check_tool_config(read_tool_config(paths.tool_config), agent["tool_config"])
    paths.episodes.mkdir(parents=True, exist_ok=True)
    paths.agent_loops.write_text(yaml.safe_dump(agent_loop_entries(agent["loops"])), encoding="utf-8")
