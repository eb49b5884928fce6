"""Data: the generator, the agent-loop parquet, and the real GSM8K where it is at hand."""

import json
import os
import random
import re
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest
import yaml
from conftest import ROOT, snakemake
from toolrl.data.agent_rows import agent_table, check_prompt_lengths, row_schema, tool_config
from toolrl.data.procedural import generate
from toolrl.errors import UserError
from toolrl.models import embedded
from toolrl.models.sft import IGNORED, tokenize_conversations, train, usable_precision
from toolrl.models.sources import same_weights
from toolrl.tasks.gsm8k import TASK

TOOL = "calc_gsm8k_reward"
NATALIA = {
    "question": "Natalia sold clips to 48 of her friends in April, and then she sold half as many clips in May. How "
    "many clips did Natalia sell altogether in April and May?",
    "answer": "Natalia sold 48/2 = <<48/2=24>>24 clips in May.\nNatalia sold 48+24 = <<48+24=72>>72 clips.\n#### 72",
}


def gsm8k_folder() -> Path:
    """The real GSM8K as {train,test}.jsonl: $GSM8K_DIR, or `shared/gsm8k` beside the checkout."""
    folder = Path(os.environ.get("GSM8K_DIR", ROOT.parent / "shared" / "gsm8k"))
    if not (folder / "train.jsonl").is_file():
        pytest.skip("no GSM8K at hand: set GSM8K_DIR to a folder with train.jsonl and test.jsonl")
    return folder


def test_procedural_splits_are_deterministic_and_disjoint() -> None:
    train, test = generate(3000, 300, seed=1)
    assert (train, test) == generate(3000, 300, seed=1)
    assert generate(500, 300, seed=1)[1] == test, "the test set must not depend on the training set's size"
    assert generate(500, 300, seed=2)[1] != test
    questions = [row["question"] for row in [*train, *test]]
    assert len(set(questions)) == 3300
    forms = {re.sub(r"\d+|[A-Z][a-z]+(?= )", "_", question) for question in questions}
    assert len(forms) > 300
    for row in train:
        assert TASK.score(row["answer"], TASK.problem(row).ground_truth).strict
        for calculation, stated in re.findall(r"<<([^=]+)=(-?\d+)>>", row["answer"]):
            a, operator, b = re.fullmatch(r"(\d+)([-+*])(\d+)", calculation).groups()
            assert {"+": int(a) + int(b), "-": int(a) - int(b), "*": int(a) * int(b)}[operator] == int(stated) >= 0


def test_agent_rows_have_the_seed_fields() -> None:
    table = agent_table([TASK.problem(NATALIA)], TASK, "train", "gsm8k", "tool_agent", [TOOL])
    assert table.schema == row_schema([TOOL])
    row = table.to_pylist()[0]
    assert row["prompt"][0]["role"] == "system" and row["prompt"][0]["content"].startswith("You are a math expert.")
    assert row["prompt"][1]["content"].endswith("Let's think step by step and output the final answer after `####`.")
    assert row["reward_model"] == {"style": "rule", "ground_truth": "72"}
    assert row["extra_info"] == {
        "split": "train",
        "index": 0,
        "question": NATALIA["question"],
        "answer": NATALIA["answer"],
        "need_tools_kwargs": True,
        "tools_kwargs": {TOOL: {"create_kwargs": {"ground_truth": "72"}}},
        "interaction_kwargs": {"query": NATALIA["question"], "ground_truth": "72"},
    }
    without = agent_table([TASK.problem(NATALIA)], TASK, "test", "gsm8k", "single_turn_agent", [])
    assert "tools_kwargs" not in without.to_pylist()[0]["extra_info"]


@pytest.fixture(scope="module")
def tokenizer():
    problems = [TASK.problem(row) for row in generate(300, 10, seed=1)[0]]
    conversations = TASK.demonstrations(problems, [TOOL], 0.5, random.Random(0))
    tools = [dict(TASK.tools[TOOL].schema)]
    return embedded.tokenizer_for(conversations, [[TASK.prompt(p.question, [TOOL]) for p in problems]], tools, 800)


def test_only_the_assistants_tokens_are_trained_on(tokenizer) -> None:
    problems = [TASK.problem(row) for row in generate(20, 10, seed=3)[0]]
    tools = [dict(TASK.tools[TOOL].schema)]
    conversations = TASK.demonstrations(problems, [TOOL], 0.0, random.Random(0))
    for example, conversation in zip(tokenize_conversations(conversations, tools, tokenizer), conversations):
        assert len(example["input_ids"]) == len(example["labels"])
        text = tokenizer.decode([label for label in example["labels"] if label != IGNORED])
        working, final = (message["content"] for message in conversation if message["role"] == "assistant")
        assert text.startswith(working) and text.endswith(f"{final}<|im_end|>")
        assert "Current parsed" not in text and "<|im_start|>" not in text


def test_demonstrations_use_the_offered_tool() -> None:
    problem = TASK.problem(NATALIA)
    oracle, calculator, alone = (
        TASK.demonstrations([problem], tools, 0.0, random.Random(0))[0] for tools in ([TOOL], ["calculator"], [])
    )
    assert [message["role"] for message in oracle] == ["system", "user", "assistant", "tool", "assistant"]
    assert oracle[3]["content"] == "Current parsed answer='72' reward=1.0"
    assert [m["content"] for m in calculator if m["role"] == "tool"] == ["24", "72"]
    assert [message["role"] for message in alone] == ["system", "user", "assistant"]
    assert all(TASK.score(messages[-1]["content"], "72").strict for messages in (oracle, calculator, alone))
    assert all(("calculator" in m[0]["content"]) == (m is calculator) for m in (oracle, calculator, alone))
    mistaken = TASK.demonstrations([problem], [TOOL], 1.0, random.Random(0))[0]
    assert mistaken[-1]["content"] == "#### 24" and "reward=0.0" in mistaken[3]["content"]


def test_numbers_are_single_tokens(tokenizer) -> None:
    for number in (0, 7, 42, 99):
        assert len(tokenizer(str(number))["input_ids"]) == 1
    text = "Ada has 9 apples.\n<tool_call>\nÉ</tool_call>"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_real_gsm8k_round_trips(workflow: Path, tmp_path: Path) -> None:
    import datasets

    folder = gsm8k_folder()
    paths = {split: str(folder / f"{split}.jsonl") for split in ("train", "test")}
    (workflow / "gsm8k.yaml").write_text(yaml.safe_dump({"data": {"source": "path", "path": paths}}))
    targets = [f"results/data/{split}.parquet" for split in paths]
    result = snakemake(workflow, *targets, "--configfile", "gsm8k.yaml")
    assert result.returncode == 0, result.stderr
    out, model = workflow / "results" / "data", workflow / "results" / "models" / "base" / "model"
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["rows"] == {"train": 7473, "validation": 0, "test": 1319}
    for split, count in {"train": 7473, "test": 1319}.items():
        file = str(out / f"{split}.parquet")
        rows = pq.read_table(file).to_pylist()
        assert len(rows) == count
        assert all("," not in row["reward_model"]["ground_truth"] for row in rows)
        loaded = datasets.load_dataset("parquet", data_files=file, split="train", cache_dir=str(tmp_path / "cache"))
        assert loaded.to_list() == rows
        assert [dict(value) for value in pd.read_parquet(file)["reward_model"]] == [r["reward_model"] for r in rows]
    _read_with_verl(out / "test.parquet", model, 1319)


def _read_with_verl(file: Path, model: Path, count: int) -> None:
    from omegaconf import OmegaConf
    from transformers import AutoTokenizer
    from verl.utils.dataset.rl_dataset import RLHFDataset

    config = OmegaConf.create({"prompt_key": "prompt", "max_prompt_length": 4096, "return_raw_chat": True})
    dataset = RLHFDataset(data_files=str(file), tokenizer=AutoTokenizer.from_pretrained(model), config=config)
    assert len(dataset) == count
    for index in range(count):
        row = dataset[index]
        assert row["index"] == index and row["agent_name"] == "tool_agent"
        assert row["tools_kwargs"][TOOL]["create_kwargs"]["ground_truth"] == row["reward_model"]["ground_truth"]


def test_gold_solutions_score_themselves() -> None:
    problems = [
        TASK.problem(json.loads(line))
        for split in ("train", "test")
        for line in (gsm8k_folder() / f"{split}.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    assert len(problems) == 8792
    assert all(TASK.score(problem.solution, problem.ground_truth).strict for problem in problems)
    golds = [problem.ground_truth for problem in problems]
    random.Random(0).shuffle(golds)
    for problem, gold in zip(problems, golds):
        assert TASK.score(problem.solution, gold).value_correct == (gold == problem.ground_truth)


def test_tool_config_is_what_verl_reads() -> None:
    entry = tool_config("gsm8k", TASK, [TOOL])["tools"][0]
    assert entry["config"]["type"] == "native"
    assert entry["tool_schema"]["function"]["parameters"]["required"] == ["answer"]


def test_too_long_prompts_are_refused() -> None:
    lengths = {"train": {"400": 2, "100": 8}, "test": {"380": 1}}
    manifest = {"longest_prompt_tokens": {"train": 400, "test": 380}, "prompt_tokens": lengths}
    check_prompt_lengths(manifest, 400)
    with pytest.raises(UserError, match=r"2 of 10 train prompts .* \(390\): raise it to at least 400"):
        check_prompt_lengths(manifest, 390)


def test_equal_weights_are_recognised_in_another_precision(tmp_path: Path, tokenizer) -> None:
    import torch

    shape = {"hidden_size": 32, "layers": 1, "heads": 2}
    model = embedded.make_model(tokenizer, shape, seed=0)
    model.save_pretrained(tmp_path / "start")
    model.to(torch.bfloat16).save_pretrained(tmp_path / "rounded")
    assert same_weights(tmp_path / "rounded", tmp_path / "start")
    with torch.no_grad():
        model.model.norm.weight[0] += 1
    model.save_pretrained(tmp_path / "trained")
    assert not same_weights(tmp_path / "trained", tmp_path / "start")


def test_precision_follows_the_hardware_unless_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    for has_it, expected in ((True, "bfloat16"), (False, "float32")):
        monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda has_it=has_it: has_it)
        assert usable_precision("auto", on_gpu=False) == expected
        assert usable_precision("auto", on_gpu=True) == "bfloat16"
        assert usable_precision("bfloat16", on_gpu=False) == "bfloat16"
        assert usable_precision("float32", on_gpu=True) == "float32"


def test_a_warm_start_that_diverges_ends_with_a_sentence(tokenizer, tmp_path: Path) -> None:
    size = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 1}
    embedded.save(tmp_path / "start", tokenizer, embedded.random_model(tokenizer, 0, num_key_value_heads=1, **size))
    problems = [TASK.problem(row) for row in generate(30, 10, seed=3)[0]]
    conversations = TASK.demonstrations(problems, [TOOL], 0.0, random.Random(0))
    examples = tokenize_conversations(conversations, [dict(TASK.tools[TOOL].schema)], tokenizer)
    settings = {"epochs": 1, "batch_size": 1, "learning_rate": 1e30, "precision": "float32"}
    with pytest.raises(UserError, match="diverged: the loss is nan at step 25. Lower warm_start.learning_rate"):
        train(tmp_path / "start", tokenizer, examples, settings, 0, 1, False, tmp_path / "out")
    with pytest.raises(UserError, match="diverged: the model has NaN .* Lower warm_start.learning_rate"):
        train(tmp_path / "start", tokenizer, examples[:20], settings, 0, 1, False, tmp_path / "out")
