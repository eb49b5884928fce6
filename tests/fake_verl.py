"""Stands in for verl's main_ppo: writes the files of a whole training or evaluation in a second, with one defect.

python fake_verl.py --config-path=FOLDER --config-name=verl …      the defect is named in $FAKE_VERL
"""

import json
import os
import shutil
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import yaml
from safetensors.numpy import load_file, save_file

DEFECT = os.environ.get("FAKE_VERL", "")
GROUP = 2


def main() -> None:
    place = Path(next(argument for argument in sys.argv if argument.startswith("--config-path=")).split("=", 1)[1])
    config = yaml.safe_load((place / "verl.yaml").read_text())
    folder = Path(config["trainer"]["default_local_dir"])
    if os.environ.get("FAKE_VERL_PRINTS"):
        print(json.dumps(config), dict(os.environ), flush=True)
    trainer = config["trainer"]
    if trainer["val_only"] and DEFECT != "val_only trains":
        evaluate(config)
        return
    steps = trainer["total_training_steps"]
    latest = folder / "latest_checkpointed_iteration.txt"
    first = int(latest.read_text()) + 1 if latest.exists() else 1
    if DEFECT == "no steps":
        return
    if DEFECT == "dies at step 3":
        steps = 3
    if DEFECT == "wrong step":
        steps -= 1
    for step in range(first, steps + 1):
        train_step(config, folder, step)
        if step % trainer["save_freq"] == 0 or step == steps:
            save(config, folder, step)
        if trainer["test_freq"] > 0 and step % trainer["test_freq"] == 0:
            validate(folder, step)
        metrics(step, config)
    if DEFECT == "dies at step 3":
        sys.exit("RuntimeError: the machine is on fire")
    if DEFECT == "val_only trains":
        evaluate(config)


def train_step(config: dict, folder: Path, step: int) -> None:
    rows = config["data"]["train_batch_size"] * GROUP
    count = rows - 1 if DEFECT == "padded rollouts" and step == 1 else rows
    if not (DEFECT == "missing dump" and step == 1):
        (folder / "rollouts").mkdir(exist_ok=True)
        (folder / "rollouts" / f"{step}.jsonl").write_text('{"output": ""}\n' * count)
    if not config["toolrl"]["episodes"]:
        return
    with open(Path(config["toolrl"]["episodes"]) / "notes.jsonl", "a") as notes:
        for number in range(rows):
            record = {
                "step": step,
                "index": number // GROUP,
                "reward": 0.0 if DEFECT == "equal rewards" else float(number % 2),
                "agent_loop": "" if DEFECT == "no agent_name" else "tool_agent",
                "tool_calls": 1,
                "tool_errors": int(DEFECT == "no ground truth"),
            }
            notes.write(json.dumps(record) + "\n")


def save(config: dict, folder: Path, step: int) -> None:
    start, exported = (
        Path(config["actor_rollout_ref"]["model"]["path"]), folder / f"global_step_{step}" / "actor" / "huggingface",
    )  # fmt: skip
    if DEFECT == "no export":
        exported.mkdir(parents=True)
    else:
        shutil.copytree(start, exported, dirs_exist_ok=True)
        if DEFECT != "base exported":
            for file in exported.glob("*.safetensors"):
                tensors = {name: tensor + 0.001 * step for name, tensor in load_file(file).items()}
                if DEFECT == "NaN exported":
                    tensors = {name: np.full_like(tensor, np.nan) for name, tensor in tensors.items()}
                if DEFECT == "truncated export":
                    tensors.pop("model.norm.weight")
                save_file(tensors, file, metadata={"format": "pt"})
        settings = json.loads((exported / "config.json").read_text())
        settings |= config["actor_rollout_ref"]["model"]["override_config"]
        (exported / "config.json").write_text(json.dumps(settings))
    (folder / "latest_checkpointed_iteration.txt").write_text(str(step))


def validate(folder: Path, step: int) -> None:
    """Step 2 is the best: half right; the others a quarter."""
    (folder / "validations").mkdir(exist_ok=True)
    right = [number < (4 if step == 2 else 2) for number in range(8)]
    (folder / "validations" / f"{step}.jsonl").write_text(
        "".join(json.dumps({"value_correct": int(value)}) + "\n" for value in right)
    )


def metrics(step: int, config: dict) -> None:
    path = os.environ.get("VERL_FILE_LOGGER_PATH")
    if not path:
        return
    bad = DEFECT == "NaN loss" and step == 3
    data = {
        "critic/score/mean": 0.0 if DEFECT == "collapse" and step > 2 else 0.5,
        "critic/advantages/max": 1.0,
        "critic/advantages/min": -1.0,
        "actor/pg_loss": None if bad else 0.1,  # as verl writes NaN
        "actor/grad_norm": 1.0,
        "num_turns/mean": 4.0,
        "response_length/mean": 50.0,
        "timing_s/step": 0.1,
    }
    if not (DEFECT == "missing metrics" and step == 1):
        with open(path, "a") as handle:
            handle.write(json.dumps({"step": step, "data": data}) + "\n")
    time.sleep(0.7 if DEFECT in ("NaN loss", "collapse") else 0)  # so that the watchdog reads step by step


def evaluate(config: dict) -> None:
    from toolrl.episodes import Episode, Turn

    table = pq.read_table(config["data"]["val_files"]).to_pylist()
    if DEFECT == "N short":
        table = table[1:]
    if DEFECT == "missing dump":
        return
    folder = Path(config["trainer"]["validation_data_dir"])
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "0.jsonl", "w") as handle:
        for row in table:
            record = {
                "input": row["prompt"][1]["content"], "output": "#### 1", "score": 0.0,
                "gts": row["reward_model"]["ground_truth"],
                **{name: row["extra_info"][name] for name in ("index", "arm", "repeat", "sample")},
                "agent_loop": "" if DEFECT == "no agent_name" else row["agent_name"],
                "episode": Episode((Turn("#### 1"),)).to_json(),
                "value_correct": 0, "format_ok": 1, "strict": 0, "no_answer": 0, "extracted": "1",
                "first_submission_correct": 0, "oracle_gain": 0, "guess_depth": 0, "tool_calls": 1,
                "parse_failures": 0, "tool_errors": int(DEFECT == "no ground truth"), "unknown_tools": 0,
                "dropped_calls": 0, "turns": 1, "cut_by_length": 0, "cut_by_turns": 0, "tool_agrees": 1,
            }  # fmt: skip
            handle.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
