"""Base models that a Python package ships as GGUF."""

import json
import zipfile
from pathlib import Path

import pytest
import yaml
from conftest import ROOT, default_config, script
from toolrl.errors import UserError
from toolrl.manifest import sha256_file
from toolrl.models.gguf import unpack_model
from toolrl.models.sources import loading_problem
from toolrl.tasks import load_task

EXPERIMENT = ROOT / "config" / "experiments" / "gsm8k-smollm2-135m.yaml"


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A package `small` without a model, which pip finds."""
    file = tmp_path / "small-1.0-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("small-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: small\nVersion: 1.0\n")
        archive.writestr("small-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr("small-1.0.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    package = {"name": "small", "version": "1.0", "sha256": sha256_file(file), "file": "model.gguf"}
    return package | {"chat_template": "hermes"}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"file": None, "sha256": None}, "model.package needs sha256, file, as model.source is `package`"),
        ({"version": "2.0"}, "small==2.0 could not be downloaded"),
        ({"sha256": "0" * 64}, "has the SHA-256 [0-9a-f]{64}, not the one that is pinned"),
        ({}, "small==1.0 has no file model.gguf"),
    ],
)
def test_a_wrong_package_is_named(wheel: dict[str, str], tmp_path: Path, change: dict, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        unpack_model(wheel | change, tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_a_package_becomes_a_model(tmp_path: Path) -> None:
    """The model of the SmolLM2 experiment: it knows what the original knows, ends its turns and sees tools."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    config = default_config()
    config["model"] |= yaml.safe_load(EXPERIMENT.read_text())["model"]
    made = script("prepare_model", "--settings", json.dumps(config), "--out", str(tmp_path))
    assert made.returncode == 0, made.stderr
    folder = tmp_path / "model"
    assert loading_problem(folder) is None
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|im_end|>", "<|endoftext|>")
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert model.dtype == torch.bfloat16 and model.generation_config.eos_token_id == tokenizer.eos_token_id
    chat = [
        {"role": "system", "content": "You are a helpful AI assistant."},
        {"role": "user", "content": "What is the capital of France?"},
    ]
    inputs = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    reply = tokenizer.decode(
        model.generate(**inputs, max_new_tokens=40, do_sample=False)[0][inputs["input_ids"].shape[1] :]
    )
    assert "Paris" in reply and reply.endswith("<|im_end|>")
    tools = load_task("gsm8k").tool_schemas(["calc_gsm8k_reward"])
    assert "calc_gsm8k_reward" in tokenizer.apply_chat_template(chat, tools=tools, tokenize=False)
