"""Every bad input is one sentence that names the key or file, and a non-zero exit."""

import copy
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from conftest import ROOT, script, snakemake
from toolrl.config import check
from toolrl.errors import UserError
from toolrl.verl_bridge.settings import check_overrides, verl_defaults


def changed(config: dict, key: str, value: object) -> dict:
    result = copy.deepcopy(config)
    *parents, leaf = key.split(".")
    target = result
    for parent in parents:
        target = target[parent]
    target[leaf] = value
    return result


def test_the_default_configuration_is_valid(config: dict) -> None:
    check(config)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("train.learning_rat", 1, "train.learning_rat is not a key; did you mean 'learning_rate'?"),
        ("seeds", 1, "seeds is not a key; did you mean 'seed'?"),
        ("train.steps", "ten", "train.steps must be a whole number or null, not 'ten'"),
        ("train.learning_rate", "1e-6", "write a float in scientific notation with a point"),
        ("agent.agent_name", "react_agent", "agent.agent_name must be one of tool_agent, single_turn_agent"),
        ("agent.tools", ["search"], "has no tool 'search'; it has calc_gsm8k_reward, calculator"),
        ("agent.tools", [], "agent.tools is empty"),
        ("agent.tool_config", "no.yaml", "agent.tool_config: the file no.yaml does not exist"),
        ("task", "gsm9k", "there is no task 'gsm9k'"),
        ("task", "gone.py", "the file gone.py does not exist"),
        ("model.source", "path", "model.path is not set"),
        ("data.source", "path", "data.path.train is not set"),
        ("train.mini_batch_size", 7, "train.mini_batch_size (7) must divide train.batch_size"),
        ("model.embedded.heads", 16, "hidden_size / heads (16) must be a multiple of 32"),
        ("resources.platform", "cuda", "resources.train.gpu must be at least 1"),
        ("warm_start.enabled", False, "warm_start.enabled must be true"),
        ("evaluate.base", "yes", "evaluate.base must be true or false, not 'yes'"),
    ],
)
def test_bad_configuration(config: dict, key: str, value: object, words: str) -> None:
    with pytest.raises(UserError) as error:
        check(changed(config, key, value))
    message = str(error.value)
    assert words in message and all(line.startswith("config: ") for line in message.splitlines())


def test_without_a_warm_start_there_is_one_model_before_training(config: dict) -> None:
    with pytest.raises(UserError, match="evaluate.base must be false, as warm_start.enabled is"):
        check(changed(changed(config, "evaluate.base", True), "warm_start.enabled", False))


def test_unknown_verl_option_names_the_nearest() -> None:
    defaults = verl_defaults()
    check_overrides("train", {"actor_rollout_ref.actor.clip_ratio": 0.2, "+anything.at.all": 1}, defaults)
    with pytest.raises(UserError, match=r"actor_rollout_ref\.actor\.clip_ratio"):
        check_overrides("train", {"actor_rollout_ref.actor.clip_ration": 0.2}, defaults)


def test_snakemake_says_it_in_one_sentence(workflow: Path) -> None:
    (workflow / "bad.yaml").write_text("train: {batch_sise: 4}\n")
    result = snakemake(workflow, "-n", "--configfile", "bad.yaml")
    assert result.returncode != 0
    assert "train.batch_sise is not a key; did you mean 'batch_size'?" in result.stdout + result.stderr
    assert "Traceback" not in result.stdout + result.stderr


def download(tmp_path: Path, lines: list[str] | None, config: dict) -> subprocess.CompletedProcess:
    rows = tmp_path / "rows.jsonl"
    if lines is not None:
        rows.write_text("".join(f"{line}\n" for line in lines))
    data = {"source": "path", "path": {"train": str(rows), "test": str(rows)}}
    return script("download", "--settings", json.dumps({**config, "data": data}), "--out", str(tmp_path / "out"))


GOOD = json.dumps({"question": "1 + 1?", "answer": "#### 2"})


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (None, "does not exist"),
        ([], "is empty"),
        (
            [GOOD, json.dumps({"question": "2 + 2?", "answer": "four"})],
            "row 2: its answer does not end with `#### <number>`",
        ),
        ([GOOD, json.dumps({"question": "", "answer": "#### 4"})], "row 2: it needs a text in `question`"),
        (["not json"], "cannot be read as jsonl"),
    ],
)
def test_bad_rows(tmp_path: Path, config: dict, lines: list[str] | None, words: str) -> None:
    result = download(tmp_path, lines, config)
    assert result.returncode == 1
    assert words in result.stderr and "Traceback" not in result.stderr
    assert len(re.findall(r"^\d\d:\d\d:\d\d error: ", result.stderr, re.MULTILINE)) == 1
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_no_hub_is_one_sentence_that_names_path(tmp_path: Path, config: dict) -> None:
    settings = {**config, "data": {**config["data"], "source": "hub"}}
    command = ["--settings", json.dumps(settings), "--out", str(tmp_path)]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(tmp_path / "hf")}
    script_file = str(ROOT / "scripts" / "download.py")
    result = subprocess.run([sys.executable, script_file, *command], env=environment, capture_output=True, text=True)
    assert result.returncode == 1 and "Traceback" not in result.stderr
    assert "set data.source to `path` and data.path.train" in result.stderr


def test_a_full_disk_is_one_sentence(tmp_path: Path, config: dict) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)], capture_output=True)
    if mounted.returncode:
        pytest.skip("mounting a tmpfs needs root")
    try:
        result = script("download", "--settings", json.dumps(config), "--out", str(disk / "raw"))
        assert result.returncode == 1
        assert "the disk is full" in result.stderr and "Traceback" not in result.stderr
        assert not list(disk.rglob("manifest.json")), "a manifest says that the stage is complete"
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_unsupported_python_is_one_sentence(tmp_path: Path) -> None:
    old = tmp_path / "python3"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    result = subprocess.run(
        ["bash", str(ROOT / "scripts" / "make_env.sh"), str(tmp_path / "venv")],
        env={**os.environ, "PYTHON": str(old)},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 1
    assert result.stderr.strip().endswith(
        "is not Python 3.11 or 3.12; name one that is, for example PYTHON=python3.12."
    )


@pytest.mark.parametrize(
    "name",
    [
        "download",
        "prepare_model",
        "preprocess",
        "warm_start",
        "preflight",
        "train",
        "evaluate",
        "report",
        "compare",
        "score",
        "lock",
    ],
)
def test_every_command_has_help(name: str) -> None:
    result = script(name, "--help")
    assert result.returncode == 0 and "usage:" in result.stdout


def test_environments_are_pinned() -> None:
    for file in (ROOT / "envs").glob("*.yaml"):
        python, pip, packages = yaml.safe_load(file.read_text())["dependencies"]
        assert python.startswith("python=") and pip == "pip"
        assert all("==" in package and "://" not in package for package in packages["pip"])
    assert "://" not in (ROOT / "locks" / "cpu.txt").read_text()
