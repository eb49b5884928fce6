"""The preflight: every broken input is its own sentence, and all of them are listed."""

import copy
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import ROOT, default_config, script
from toolrl.preflight import Gpus, Inputs, capacity, problems
from toolrl.stages import stage_settings
from toolrl.training import checkpoints

Change = Callable[[Inputs], None]
TEMPLATE = "chat_template.jinja"


def option(key: str, value: object) -> Change:
    def change(inputs: Inputs) -> None:
        *parents, leaf = key.split(".")
        target = inputs.config
        for parent in parents:
            target = target[parent]
        target[leaf] = value

    return change


def override(key: str, value: object) -> Change:
    return option("train.overrides", {key: value})


def template(old: str, new: str) -> Change:
    def change(inputs: Inputs) -> None:
        file = inputs.model / TEMPLATE
        text = file.read_text()
        assert old in text
        file.write_text(text.replace(old, new))

    return change


def model_config(**values: object) -> Change:
    def change(inputs: Inputs) -> None:
        file = inputs.model / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | values))

    return change


def rows(edit: Callable[[pa.Table], pa.Table]) -> Change:
    def change(inputs: Inputs) -> None:
        file = inputs.data / "train.parquet"
        pq.write_table(edit(pq.read_table(file)), file)

    return change


def other_loop(table: pa.Table) -> pa.Table:
    names = pa.array([None, *["tool_agent"] * (table.num_rows - 1)], pa.string())
    return table.set_column(table.column_names.index("agent_name"), "agent_name", names)


def no_ground_truth(table: pa.Table) -> pa.Table:
    changed = table.to_pylist()
    for row in changed:
        row["extra_info"]["tools_kwargs"]["calc_gsm8k_reward"]["create_kwargs"]["ground_truth"] = None
    return pa.Table.from_pylist(changed, schema=table.schema)


def unreadable_truth(table: pa.Table) -> pa.Table:
    changed = table.to_pylist()
    for row in changed:
        row["reward_model"]["ground_truth"] = "a lot"
        row["extra_info"]["tools_kwargs"]["calc_gsm8k_reward"]["create_kwargs"]["ground_truth"] = "a lot"
    return pa.Table.from_pylist(changed, schema=table.schema)


def lock(old: str, new: str) -> Change:
    def change(inputs: Inputs) -> None:
        text = inputs.lock.read_text()
        assert old in text
        inputs.lock = inputs.work.parent / "cpu.txt"
        inputs.lock.write_text(text.replace(old, new))

    return change


def gpus(count: int, gib: int, asked: int = 1) -> Change:
    def change(inputs: Inputs) -> None:
        inputs.config["resources"] |= {"platform": "cuda", "train": {"gpu": asked}, "evaluate": {"gpu": asked}}
        inputs.gpus = Gpus(count, gib * 2**30)

    return change


def both(*changes: Change) -> Change:
    def change(inputs: Inputs) -> None:
        for each in changes:
            each(inputs)

    return change


def full_disk(inputs: Inputs) -> None:
    inputs.work = inputs.work / "full"


COUNTED = override("actor_rollout_ref.actor.use_dynamic_bsz", False)
"""Micro-batches are counted in rollouts."""

TURN = "'<|im_start|>' + message.role"
BROKEN = {
    "another version": (lock("\ntransformers==5.9.0", "\ntransformers==5.8.0"), "but cpu.txt has 5.8.0"),
    "a missing package": (lock("\nvllm-cpu==", "\nsglang=="), "sglang 0.24.0 (cpu.txt) is not installed"),
    "no engine": (both(option("rollout.backend", "sglang"), gpus(1, 80)), "rollout.backend is sglang, which is not"),
    "no CPU engine": (option("rollout.backend", "sglang"), "rollout.backend sglang has no CPU engine"),
    "too few GPUs": (gpus(1, 80, asked=2), "resources.train.gpu asks for 2 GPUs, but 1 are visible"),
    "no way to the nodes": (option("resources.nodes", 2), "resources.nodes is 2, and only a Slurm job has several"),
    "mini-batch": (option("train.mini_batch_size", 7), "nearest valid values are 4 and 8"),
    "micro-batch": (
        both(option("train.micro_batch_size_per_gpu", 12), COUNTED),
        "must divide the 128 rollouts that a GPU gets of a mini",
    ),
    "log-prob batch": (
        both(option("rollout.log_prob_micro_batch_size_per_gpu", 48), COUNTED),
        "the nearest valid values are 32 and 64",
    ),
    "tensor parallel": (
        both(gpus(4, 80, 4), option("rollout.tensor_parallel", 3)),
        "must divide the 4 GPUs of train",
    ),
    "rollouts over GPUs": (
        both(gpus(3, 80, 3), option("train.batch_size", 16)),
        "must be a multiple of the 3 GPUs of training",
    ),
    "unknown option": (override("actor_rollout_ref.actor.clip_ration", 0.2), "did you mean"),
    "refused by verl": (override("actor_rollout_ref.actor.loss_agg_mode", "mean"), "verl refuses the configuration"),
    "ignored filter": (override("algorithm.filter_groups.enable", True), "no effect where deterministic is true"),
    "no such loop": (
        option("agent.loops", {"mine": "gone.py:Loop"}),
        "agent.loops.mine: 'gone.py:Loop': the file gone.py",
    ),
    "not a loop": (
        option("agent.loops", {"mine": "pathlib:Path"}),
        "pathlib:Path is not a subclass of verl's AgentLoopBase",
    ),
    "term's arguments": (
        option("reward.terms", {"brevity": {"function": "os:getcwd", "weight": 1.0}}),
        "os:getcwd must be a function of (episode, measures, ground_truth)",
    ),
    "no agent_name": (rows(lambda table: table.drop_columns(["agent_name"])), "has no column agent_name"),
    "another agent_name": (rows(other_loop), "1 of 64 train rows do not ask for the agent loop tool_agent"),
    "no ground truth": (rows(no_ground_truth), "not given the ground truth in 64 of 64 train rows"),
    "unreadable truth": (rows(unreadable_truth), "scores the ground truth 'a lot' as wrong"),
    "long prompts": (option("agent.max_prompt_length", 20), "64 of 64 train prompts have more tokens"),
    "few rows": (option("train.batch_size", 128), "train.batch_size (128) is larger than the training set (64 rows)"),
    "no tools shown": (template("{%- if tools %}", "{%- if false %}"), "does not show the model its tools"),
    "rewriting template": (
        template(TURN, "'<|im_start|>' + (messages | length | string) + message.role"),
        "is not append-only",
    ),
    "template fails": (template(TURN, "message.role.nothing() + message.role"), "fails on a conversation with tools"),
    "wrong parser": (option("agent.tool_parser", "gpt-oss"), "does not read back a tool call"),
    "no such parser": (option("agent.tool_parser", "hermit"), "agent.tool_parser must be one of"),
    "context window": (model_config(max_position_embeddings=200), "is more than the model's context of 200 tokens"),
    "disk": (full_disk, "GB free, but 1 checkpoints"),
    "GPU memory": (both(gpus(1, 0), option("seed", 1)), "training needs about"),
    "cache memory": (both(gpus(1, 1), option("rollout.gpu_memory_utilization", 0.001)), "the engine needs about"),
}  # fmt: skip


@pytest.fixture
def inputs(prepared: Path, config: dict, tmp_path: Path) -> Inputs:
    for name in ("data", "base/model"):
        shutil.copytree(prepared / name, tmp_path / name)
    work = tmp_path / "work"
    lock_file = ROOT / "locks" / "cpu.txt"
    return Inputs("train", copy.deepcopy(config), tmp_path / "data", tmp_path / "base" / "model", work, lock_file)


def test_nothing_is_wrong_by_default(inputs: Inputs) -> None:
    assert list(problems(inputs)) == []


said: dict[str, str] = {}


@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_input_is_a_sentence_of_its_own(inputs: Inputs, broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    change, words = BROKEN[broken]
    usage = shutil.disk_usage

    def disk_usage(path: Path) -> object:
        return usage(path)._replace(free=1000) if Path(path).name == "full" else usage(path)

    monkeypatch.setattr(checkpoints.shutil, "disk_usage", disk_usage)
    change(inputs)
    found = list(problems(inputs))
    matching = [sentence for sentence in found if words in sentence]
    assert len(matching) == 1, found
    assert "\n" not in matching[0]
    assert matching[0] not in said.values()
    said[broken] = matching[0]


@pytest.mark.parametrize("stage", ["train", "evaluate"])
def test_memory_is_estimated_from_what_a_stage_is_given(inputs: Inputs, stage: str) -> None:
    """The rules pass only the stage's part of the configuration."""
    gpus(1, 80)(inputs)
    inputs.stage, inputs.config = stage, stage_settings(default_config(), f"preflight_{stage}")
    estimate = capacity.estimate_gpu_memory(inputs)
    assert estimate.training > estimate.engine_weights > 0


def test_all_failures_are_listed(inputs: Inputs) -> None:
    for name in ("no such parser", "long prompts", "unknown option", "mini-batch"):
        BROKEN[name][0](inputs)
    assert len(list(problems(inputs))) >= 4


def test_the_command_says_everything_and_fails(inputs: Inputs, tmp_path: Path) -> None:
    option("agent.max_prompt_length", 20)(inputs)
    option("agent.tool_parser", "hermit")(inputs)
    arguments = [
        "--stage",
        "train",
        "--settings",
        json.dumps(inputs.config),
        "--data",
        str(inputs.data),
        "--model",
        str(inputs.model),
    ]
    arguments += ["--work", str(inputs.work), "--locks", str(ROOT / "locks"), "--out", str(tmp_path / "out.json")]
    result = script("preflight", *arguments)
    assert result.returncode == 1 and "Traceback" not in result.stderr
    assert "preflight found 4 problems" in result.stderr and "hermit" in result.stderr
    assert not (tmp_path / "out.json").exists()
