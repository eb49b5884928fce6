"""verl and vLLM on a machine without a GPU: active only where the environment says VERL_PLATFORM=cpu."""
