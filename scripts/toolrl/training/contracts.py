"""What must be true of a training's files before its result is published: verl can exit 0 without any of it."""

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from toolrl.errors import UserError
from toolrl.models.sources import loading_problem, same_weights
from toolrl.training import checkpoints
from toolrl.training.watchdog import WATCHED_FOR_NAN


def check_reached(work: Path, steps: int) -> None:
    """Training came as far as was asked.

    Raises:
        UserError: naming the step that it reached.
    """
    reached = checkpoints.latest(work)
    if reached != steps:
        raise UserError(f"verl ended without an error, but reached step {reached} of {steps}; see {work / 'verl.log'}.")


def check_exported(exported: Path, start_model: Path) -> None:
    """The exported model is complete, finite, loads, and is not the one that training started from."""
    if not list(exported.glob("*.safetensors")):
        raise UserError(f"verl exported no model weights to {exported}; see verl.log.")
    if problem := loading_problem(exported):
        raise UserError(f"the exported model {exported} {problem}; see verl.log.")
    if same_weights(exported, start_model):
        raise UserError("the exported weights equal those that training started from: nothing was learned.")


def check_records(records: Mapping[int, Mapping[str, Any]], steps: int) -> None:
    """Every step has its metrics, and they are numbers."""
    for step in range(1, steps + 1):
        if step not in records:
            raise UserError(f"the metrics of step {step} are missing, although verl went on to step {steps}.")
        for name in WATCHED_FOR_NAN:
            value = records[step]["data"].get(name, 0.0)
            if not math.isfinite(value):
                raise UserError(
                    f"{name} is {value} at step {step}: training diverged. Lower train.learning_rate, or clip harder "
                    "with actor_rollout_ref.actor.grad_clip in train.overrides."
                )


def check_rollouts(folder: Path, steps: int, expected: int) -> None:
    """Every step's rollouts were dumped, and none is missing (verl pads what failed, in silence)."""
    for step in range(1, steps + 1):
        count = rollout_count(folder, step)
        if count is None:
            raise UserError(f"the rollouts of step {step} are missing from {folder}.")
        if count != expected:
            raise UserError(
                f"step {step} was trained on {count} rollouts instead of {expected}: episodes failed; see verl.log."
            )


def rollout_count(folder: Path, step: int) -> int | None:
    """How many rollouts of a step were dumped; None if there is no dump."""
    dump = folder / f"{step}.jsonl"
    if not dump.is_file():
        return None
    with open(dump, "rb") as handle:
        return sum(line.endswith(b"\n") for line in handle)


def check_episodes(episodes: pd.DataFrame, agent_name: str) -> None:
    """Every episode ran in the agent loop that its row asked for, with a working tool, and rewards differed.

    Args:
        episodes: the notes of the training's episodes (`toolrl.verl_bridge.reward`), one row each.
        agent_name: `agent.agent_name`.

    Raises:
        UserError: saying what was wrong in how many episodes.
    """
    if episodes.empty:
        raise UserError("no training episode was scored: the reward manager never ran; see verl.log.")
    check_agent_loops(episodes["agent_loop"], agent_name)
    check_tools(int(episodes["tool_calls"].sum()), int(episodes["tool_errors"].sum()))
    check_learning_signal(episodes)


def check_agent_loops(ran_in: Iterable[str], agent_name: str) -> None:
    """Every episode ran in the agent loop that its row asked for."""
    names = list(ran_in)
    strays = sum(name != agent_name for name in names)
    if strays:
        raise UserError(
            f"{strays} of {len(names)} episodes did not run in the agent loop {agent_name} that agent.agent_name asks "
            "for (verl falls back to a single turn without tools where a row has no agent_name)."
        )


def check_tools(calls: int, errors: int) -> None:
    """Not every tool call failed."""
    if calls and errors == calls:
        raise UserError(
            f"all {calls} tool calls ended in an error of the tool itself (such as a missing ground truth): see the "
            "tool responses in the rollouts."
        )


def check_learning_signal(episodes: pd.DataFrame) -> None:
    """In at least one group the rewards differed: equal rewards have zero advantages."""
    if bool((episodes.groupby(["step", "index"])["reward"].nunique() > 1).any()):
        return
    mean = episodes["reward"].mean()
    advice = (
        "the task is too hard for this model: use a warm start, easier data, or reward.format"
        if mean < 0.5
        else "the task is too easy for this model: use harder data"
    )
    raise UserError(
        f"no learning signal: the rollouts of every prompt got equal rewards in all steps (mean {mean:.3f}), so "
        f"nothing could be learned; {advice}, more train.rollouts_per_prompt, or a higher train.temperature."
    )
