"""A vLLM plug-in for its CPU backend, loaded through the entry-point group `vllm.general_plugins`.

`vllm.model_executor.layers.utils.dispatch_cpu_unquantized_gemm` hands the weights to oneDNN and replaces the parameter
by an empty one, so that a later weight sync from the trainer has nothing to write to ("no attribute weight_loader").
Without oneDNN it keeps the parameter and calls `torch.nn.functional.linear`.
"""

import os


def register() -> None:
    """Keeps weights writable."""
    if os.environ.get("VERL_PLATFORM") != "cpu":
        return
    import vllm._custom_ops

    vllm._custom_ops._supports_onednn = False
