"""A vLLM plug-in for its CPU backend, loaded through the entry-point group `vllm.general_plugins`.

`vllm.model_executor.layers.utils.dispatch_cpu_unquantized_gemm` hands the weights to oneDNN and replaces the parameter
by an empty one, so that a later weight sync from the trainer has nothing to write to ("no attribute weight_loader").
Without oneDNN it keeps the parameter and calls `torch.nn.functional.linear`.
"""

import multiprocessing
import os

from toolrl.cpu import worker_forks


def register() -> None:
    """Keeps weights writable, and lets vLLM's processes be forked where a launch has a server for it."""
    if os.environ.get("VERL_PLATFORM") != "cpu":
        return
    import vllm._custom_ops

    vllm._custom_ops._supports_onednn = False
    address = os.environ.get(worker_forks.SOCKET_VARIABLE)
    if address:
        multiprocessing.set_executable(os.path.join(os.path.dirname(address), worker_forks.EXECUTABLE_NAME))
