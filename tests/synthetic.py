"""Finished runs made up for tests of the report: the files of every stage, with any number of items."""

import json
import random
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pyarrow as pa
from conftest import default_config
from toolrl import manifest
from toolrl.data.agent_rows import write_parquet
from toolrl.episodes import Episode, ToolCall, Turn, measure
from toolrl.runs import evaluated_models
from toolrl.tasks import load_task
from toolrl.verl_bridge.dumps import ITEM_SCHEMA, encodable

TOOL = "calc_gsm8k_reward"
WORDS = ("first", "then", "add", "sold", "clips", "half", "many", "April", "May", "number", "both", "check", "answer")
Hostile = Callable[[int], str]


def run(
    folder: Path, items: int = 40, arms: tuple[str, ...] = ("tool",), accuracy: tuple[float, ...] = (0.4, 0.7),
    hostile: Hostile = lambda index: "", repeats: int = 0, samples: int = 0, changes: dict | None = None,
    test_set: str = "t", seed: int = 1,
) -> dict:  # fmt: skip
    """Writes a run below `folder`; returns its configuration, its `changes` to the default, and its `folders`."""
    config = default_config()
    config.pop("runs")
    config["evaluate"] |= {"arms": list(arms), "repeats": repeats, "samples": samples}
    for section, values in (changes or {}).items():
        config[section] |= values
    rng = random.Random(seed)
    places = [(arm, 0, 0) for arm in arms] + [(arms[0], number, 0) for number in range(1, repeats + 1)]
    places += [(arms[0], 0, number) for number in range(1, samples + 1)]
    for model, share in zip(evaluated_models(config), accuracy, strict=True):
        rows = []
        for arm, repeat, sample in places:
            rows += [_item(index, arm, repeat, sample, rng.random() < share, hostile(index)) for index in range(items)]
        write_parquet(folder / model / "items.parquet", pa.Table.from_pylist(rows, schema=ITEM_SCHEMA))
        record = {
            "evaluate": config["evaluate"],
            "model": {model: 1},
            "scorer": "s",
            "test_set": test_set,
            "command": "e",
        }
        manifest.write_json(folder / model / "manifest.json", record)
    files = {"tools.yaml": {"sha256": "0" * 64, "bytes": 1}}
    rows_of = {"train": 100, "validation": 0, "test": items}
    longest = {"train": 50, "test": 51}
    data = {"rows": rows_of, "files": files, "tools": [TOOL], "chat_template": "c", "longest_prompt_tokens": longest}
    manifest.write_json(folder / "data" / "manifest.json", data)
    (folder / "train").mkdir()
    manifest.write_text(folder / "train" / "metrics.jsonl", "".join(json.dumps(_step(n)) + "\n" for n in range(1, 13)))
    attempt = {"started": 1.8e9, "host": "node1", "job": "17", "job_state": None, "gpus": 2, "alarms": []}
    training = {
        "files_of_model": {"trained": 1}, "fingerprint": "f", "steps": 12, "reached": 12, "stopped": None,
        "selection": {"step": 12, "rule": "last", "validated_on": None}, "seed": 1, "command": "t",
        "attempts": [
            attempt | {"number": 1, "ended": 1.8e9 + 60, "reason": "killed", "from_step": 0, "to_step": 5},
            attempt | {"number": 2, "ended": 1.8e9 + 180, "reason": "finished", "from_step": 4, "to_step": 12},
        ],
        "versions": {"verl": "0.9.1"}, "lock": "1" * 64,
        "hardware": {"processor": "x", "cores": 2, "memory_bytes": 2**34, "gpus": ["H", "H"]},
    }  # fmt: skip
    manifest.write_json(folder / "train" / "manifest.json", training)
    folders = {name: str(folder / name) for name in ("data", "train", *evaluated_models(config))}
    return {"config": config, "changes": changes or {}, "folders": folders}


def _item(index: int, arm: str, repeat: int, sample: int, right: bool, hostile: str) -> dict:
    task, truth = load_task("gsm8k"), str(100 + index)
    said = truth if right else str(99 + index)
    rng = random.Random(f"{index} {arm} {right}")
    prose = " ".join(f"{rng.choice(WORDS)}{rng.randrange(1000)}" for _ in range(60))
    text = f"{prose}{hostile}{index} + 0 = {said}\n"
    calls = (ToolCall(TOOL, {"answer": said}, f"Current parsed answer={said!r} {hostile}"),) if arm == "tool" else ()
    turns = (Turn(text, calls), Turn(f"{prose}{hostile}\n#### {said}")) if calls else (Turn(f"{text}#### {said}"),)
    episode = Episode(turns)
    measures = asdict(measure(episode, truth, task, [TOOL] if calls else []))
    return {
        "index": index, "arm": arm, "repeat": repeat, "sample": sample, "prompt_hash": f"{arm}-{index}",
        "question": encodable(f"How many are {index} and 100? {hostile}"), "ground_truth": truth, "output": "",
        "episode": episode.to_json(), "reward": float(measures["value_correct"]),
        **{name: "" if value is None else encodable(value) for name, value in measures.items()},
    }  # fmt: skip


def _step(number: int) -> dict:
    data = {
        "critic/score/mean": 0.4 + 0.03 * number, "critic/score/min": 0.0, "critic/score/max": 1.0,
        "groups/all_equal_share": 0.3, "actor/ppo_kl": 0.001 * number, "actor/entropy": 0.5 - 0.02 * number,
        "actor/pg_clipfrac": 0.01, "actor/grad_norm": 1.0, "training/rollout_probs_diff_mean": 1e-6,
        "response_length/min": 20.0, "response_length/mean": 50.0, "response_length/max": 90.0,
        "response_length/clip_ratio": 0.05, "episode/turns": 2.0, "episode/tool_calls": 1.1,
        "episode/reward_answer": 0.4, "timing_s/step": 8.0, "timing_s/gen": 4.0, "timing_s/update_actor": 3.0,
        "perf/throughput": 100.0,
    }  # fmt: skip
    if number % 4 == 0:
        data |= {"validation/right": 20 + number, "validation/n": 40}
    return {"step": number, "data": data}
