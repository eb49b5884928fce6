"""Models that are fetched or linked rather than made."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from toolrl.errors import UserError


def link_model(path: str | None, folder: Path) -> None:
    """Makes `folder` a link to a local model folder."""
    if path is None:
        raise UserError("model.path is not set: give a Hugging Face model folder, as model.source is `path`.")
    if not Path(path).is_dir():
        raise UserError(f"model.path: the folder {path} does not exist.")
    folder.parent.mkdir(parents=True, exist_ok=True)
    if folder.is_symlink():
        folder.unlink()
    folder.symlink_to(Path(path).resolve(), target_is_directory=True)


def download_model(hub: Mapping[str, str | None], folder: Path) -> None:
    """Downloads a model at its pinned revision; retried and verified by the hub's client."""
    from huggingface_hub import snapshot_download

    if not hub["repository"] or not hub["revision"]:
        raise UserError("model.hub needs `repository` and `revision` (a commit), as model.source is `hub`.")
    try:
        snapshot_download(
            hub["repository"],
            revision=hub["revision"],
            local_dir=folder,
            allow_patterns=["*.json", "*.safetensors", "*.txt", "*.model", "*.jinja"],
        )
    except Exception as error:
        raise UserError(
            f"the model {hub['repository']} could not be downloaded ({type(error).__name__}: "
            f"{str(error).splitlines()[0][:160]}); on a machine without the hub, set model.source to `path` and "
            "model.path to a local folder."
        ) from None


def check_model_folder(folder: Path) -> None:
    """Refuses a folder that is not a Hugging Face model with a chat template."""
    import json

    if not (folder / "config.json").is_file() or not list(folder.glob("*.safetensors")):
        raise UserError(f"{folder.resolve()} is not a Hugging Face model: it needs config.json and *.safetensors.")
    tokenizer = folder / "tokenizer_config.json"
    in_config = tokenizer.is_file() and "chat_template" in json.loads(tokenizer.read_text(encoding="utf-8"))
    if not in_config and not (folder / "chat_template.jinja").is_file():
        raise UserError(f"{folder.resolve()} has no chat template: an agent needs a chat model.")


def same_weights(first: Path, second: Path) -> bool:
    """Whether two model folders hold equal weights, compared tensor by tensor in the first one's precision.

    Tensors that only one folder stores (tied embeddings) are left out.
    """
    ours, theirs = _tensor_files(first), _tensor_files(second)
    return all(
        bool((tensor == _tensor(theirs[name], name).to(tensor.dtype)).all())
        for name in ours
        if name in theirs
        for tensor in [_tensor(ours[name], name)]
    )


def _tensor_files(folder: Path) -> dict[str, Path]:
    from safetensors import safe_open

    found = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as handle:
            found.update(dict.fromkeys(handle.keys(), path))
    return found


def _tensor(path: Path, name: str) -> Any:
    from safetensors import safe_open

    with safe_open(path, framework="pt") as handle:
        return handle.get_tensor(name)


def parameter_count(folder: Path) -> int:
    """How many parameters a model folder stores, read from the headers of its safetensors files."""
    from safetensors import safe_open

    total = 0
    for path in folder.glob("*.safetensors"):
        with safe_open(path, framework="np") as handle:
            total += sum(math.prod(handle.get_slice(name).get_shape()) for name in handle.keys())  # noqa: SIM118
    return total


def loading_problem(folder: Path) -> str | None:
    """What keeps a saved model from being loaded, as the end of a sentence; None if nothing does.

    Its architecture is built without memory, and every stored tensor is read once.
    """
    import torch
    from accelerate import init_empty_weights
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        with init_empty_weights():
            model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
    except (OSError, ValueError) as error:
        return f"has no usable config.json ({str(error).splitlines()[0]})"
    stored = _tensor_files(folder)
    tied = set(getattr(model, "_tied_weights_keys", None) or ())
    for name, parameter in model.state_dict().items():
        if name not in stored:
            if name in tied or name.removesuffix(".weight") == "lm_head":
                continue
            return f"lacks the tensor {name}"
        tensor = _tensor(stored[name], name)
        if tensor.shape != parameter.shape:
            return f"has {name} in shape {tuple(tensor.shape)} instead of {tuple(parameter.shape)}"
        if not torch.isfinite(tensor).all():
            return f"has NaN or infinite values in {name}"
    return None
