"""The default experiment, run for real once: what it must have achieved, and what a change would rerun."""

import ast
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml
from conftest import ROOT, WORKFLOW, default_config, snakemake
from toolrl.episodes import Episode, measure
from toolrl.stats import compare_paired
from toolrl.tasks import load_task

pytestmark = pytest.mark.e2e


def items(results: Path, model: str, arm: str = "tool") -> list[dict]:
    """The reported evaluation of an arm, in the order of the items."""
    rows = pq.read_table(results / "evaluate" / model / "items.parquet").to_pylist()
    return [row for row in rows if (row["arm"], row["repeat"], row["sample"]) == (arm, 0, 0)]


def metrics(results: Path) -> list[dict]:
    return [json.loads(line)["data"] for line in (results / "train" / "metrics.jsonl").read_text().splitlines()]


def test_training_beats_the_start_model(results: Path) -> None:
    start, trained = items(results, "start"), items(results, "trained")
    assert [row["index"] for row in start] == [row["index"] for row in trained]
    assert [row["prompt_hash"] for row in start] == [row["prompt_hash"] for row in trained]
    comparison = compare_paired([r["value_correct"] for r in start], [r["value_correct"] for r in trained], seed=1)
    assert comparison.n >= 200
    assert comparison.difference >= 0.20, comparison
    assert comparison.p_value < 0.01, comparison


def test_the_reward_curve_rises(results: Path) -> None:
    rewards = [record["critic/score/mean"] for record in metrics(results)]
    third = len(rewards) // 3
    assert sum(rewards[-third:]) / third > sum(rewards[:third]) / third + 0.1, rewards


def test_the_weights_reach_the_engine(results: Path) -> None:
    differences = [record["training/rollout_probs_diff_mean"] for record in metrics(results)]
    assert len(differences) == default_config()["train"]["steps"]
    assert max(differences) < 1e-3, differences


def test_the_test_set_is_held_out(results: Path) -> None:
    questions = {
        split: {
            row["extra_info"]["question"] for row in pq.read_table(results / "data" / f"{split}.parquet").to_pylist()
        }
        for split in ("train", "test")
    }
    assert not questions["train"] & questions["test"]


def test_tool_reward_and_evaluation_share_one_scorer(results: Path) -> None:
    """What the evaluation stored, and what the tool answered, is what the task's scorer says now."""
    task = load_task("gsm8k")
    for model in ("start", "trained"):
        for row in items(results, model):
            episode = Episode.from_json(row["episode"])
            measures = measure(episode, row["ground_truth"], task, ["calc_gsm8k_reward"])
            assert measures.value_correct == row["value_correct"] and row["reward"] == float(row["value_correct"])
            for call in (call for turn in episode.turns for call in turn.calls if call.response is not None):
                answer = call.arguments["answer"]
                verdict = task.score_argument(answer, row["ground_truth"])
                assert call.response == f"Current parsed answer={answer!r} reward={float(verdict.value_correct)}"


def test_episodes_are_multi_turn(results: Path) -> None:
    rows = items(results, "trained")
    assert sum(row["turns"] > 1 and row["tool_calls"] > 0 for row in rows) > len(rows) / 2


def test_the_report_is_one_safe_offline_page(results: Path) -> None:
    page = (results / "report.html").read_text(encoding="utf-8")
    assert "Training improved the agent" in page and "A single training seed" in page
    assert "McNemar" in page and page.count("<svg") >= 7
    assert not re.search(r'(?:src|href)="(?!#)', page) and "@import" not in page
    assert "<tool_call>" not in page, "model output is packed"


def test_nothing_is_planned_when_nothing_changed(results: Path) -> None:
    assert planned(ROOT) == set()


ALL = {"download", "prepare_model", "preprocess", "warm_start", "preflight", "train", "evaluate", "report"}


def planned(folder: Path, *arguments: str) -> set[str]:
    result = snakemake(folder, "-n", "results/report.html", *arguments)
    assert result.returncode == 0, result.stderr
    return set(re.findall(r"^rule (\w+):", result.stdout + result.stderr, re.MULTILINE))


def edit_config(key: str, value: object) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        file = folder / "config" / "config.yaml"
        config = yaml.safe_load(file.read_text())
        *parents, leaf = key.split(".")
        target = config
        for parent in parents:
            target = target[parent]
        assert target[leaf] != value
        target[leaf] = value
        file.write_text(yaml.safe_dump(config))

    return edit


def reorder_config(folder: Path) -> None:
    file = folder / "config" / "config.yaml"

    def reverse(value: object) -> object:
        return {key: reverse(value[key]) for key in reversed(value)} if isinstance(value, dict) else value

    file.write_text(yaml.safe_dump(reverse(yaml.safe_load(file.read_text())), sort_keys=False))


def append(name: str, text: str) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        with open(folder / name, "a", encoding="utf-8") as handle:
            handle.write(text)

    return edit


def touch_everything(folder: Path) -> None:
    for name in ("scripts/train.py", "report/template.html", "rules/train.smk", "results/data/train.parquet"):
        os.utime(folder / name)


CHANGES = {
    "number of training rows": (edit_config("data.procedural.train_rows", 7000), ALL),
    "learning rate": (edit_config("train.learning_rate", 2.0e-4), {"preflight", "train", "evaluate", "report"}),
    "reward shaping": (edit_config("reward.format", 0.1), {"preflight", "train", "evaluate", "report"}),
    "warm start epochs": (
        edit_config("warm_start.epochs", 1),
        {"warm_start", "preflight", "train", "evaluate", "report"},
    ),
    "evaluation sample count": (edit_config("evaluate.max_items", 200), {"evaluate", "report"}),
    "report title": (edit_config("report.title", "Another"), {"report"}),
    "report template": (append("report/template.html", "<!-- changed -->\n"), {"report"}),
    "threads": (edit_config("resources.light.threads", 2), {"report"}),
    "watchdog": (edit_config("watchdog.window", 7), {"train", "evaluate", "report"}),
    "a second training seed": (edit_config("train.seed", 2), {"preflight", "train", "evaluate", "report"}),
    "statistics": (append("scripts/toolrl/stats.py", "\nCHANGED = True\n"), {"evaluate", "report"}),
    "comment in a helper": (append("scripts/toolrl/manifest.py", "\n# a comment\n"), set()),
    "comment in an unrelated helper": (append("scripts/toolrl/plots.py", "\n# a comment\n"), set()),
    "touched files": (touch_everything, set()),
    "reordered keys": (reorder_config, set()),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_reruns_what_depends_on_it(results: Path, tmp_path: Path, change: str) -> None:
    edit, expected = CHANGES[change]
    for name in (*WORKFLOW, "results", ".snakemake/metadata"):
        source, target = ROOT / name, tmp_path / name
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "checkpoints", "work"))
        else:
            shutil.copy2(source, target)
    edit(tmp_path)
    assert planned(tmp_path) == expected


def test_the_seed_experiment_plans_every_stage_with_its_gpus(workflow: Path) -> None:
    experiment = "config/experiments/gsm8k-qwen2.5-3b-instruct.yaml"
    result = snakemake(workflow, "-n", "results/report.html", "--configfile", experiment)
    assert result.returncode == 0, result.stderr
    jobs = re.split(r"\n(?=\[)", result.stdout + result.stderr)
    gpus = {}
    for job in jobs:
        if name := re.search(r"^rule (\w+):", job, re.MULTILINE):
            gpu = re.search(r"\bgpu=(\d+)", job)
            gpus[name[1]] = int(gpu[1]) if gpu else 0
    assert gpus == {
        "download": 0, "prepare_model": 0, "preprocess": 0, "preflight": 0, "train": 8, "evaluate": 8, "report": 0,
    }  # fmt: skip


def test_rules_are_complete() -> None:
    """Every rule has a docstring, log, benchmark, conda environment, threads and resources."""
    for file in (ROOT / "rules").glob("*.smk"):
        for rule in re.split(r"\n(?=rule )", file.read_text())[1:]:
            assert re.match(r'rule \w+:\n    """', rule), rule
            for directive in ("log:", "benchmark:", "conda:", "threads:", "resources:", "shell:"):
                assert f"\n    {directive}" in rule, (file.name, directive)


def test_scripts_parse_on_the_oldest_python() -> None:
    for file in (ROOT / "scripts").rglob("*.py"):
        ast.parse(file.read_text(encoding="utf-8"), feature_version=(3, 11))
