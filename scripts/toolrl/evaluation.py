"""Finished evaluations, and how two of them compare. Reads files only."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from toolrl import manifest
from toolrl.errors import UserError
from toolrl.stats import (
    PairedComparison,
    Proportion,
    compare_paired,
    majority,
    pass_at_k,
    proportion,
)

IDENTITY = ["index", "question", "ground_truth"]


@dataclass(frozen=True)
class Evaluation:
    """One model's evaluated items: the folder of `items.parquet` and `manifest.json`."""

    folder: Path

    @cached_property
    def record(self) -> dict[str, Any]:
        return manifest.read_json(self.folder / "manifest.json")

    @cached_property
    def items(self) -> pd.DataFrame:
        """All episodes (`toolrl.verl_bridge.dumps.ITEM_SCHEMA`), with their failure class."""
        frame = pq.read_table(self.folder / "items.parquet").to_pandas()
        return frame.assign(failure=[failure_class(row) for row in frame.to_dict("records")])

    @property
    def arms(self) -> list[str]:
        """The evaluated arms; the first is the one that the verdict is about."""
        return self.record["evaluate"]["arms"]

    def reported(self, arm: str) -> pd.DataFrame:
        """The one greedy evaluation of an arm that counts, in the order of the items."""
        items = self.items
        chosen = (items["arm"] == arm) & (items["repeat"] == 0) & (items["sample"] == 0)
        return items[chosen].sort_values("index").reset_index(drop=True)

    def accuracy(self, arm: str) -> Proportion:
        return proportion(self.reported(arm)["value_correct"].tolist())

    def noise_floor(self) -> Proportion | None:
        """The share of items whose verdict is not the same in all greedy evaluations; None without repeats."""
        items = self.items[(self.items["arm"] == self.arms[0]) & (self.items["sample"] == 0)]
        if items["repeat"].max() == 0:
            return None
        return proportion((items.groupby("index")["value_correct"].nunique() > 1).tolist())

    @cached_property
    def sampled(self) -> dict[str, np.ndarray]:
        """Each item's pass@k, for the powers of two up to the number of samples, and its maj@k over all samples where
        there are several: whether the most frequent stated answer is right. In the order of the items; empty without
        samples."""
        samples = self.items[self.items["sample"] > 0].sort_values("sample")
        if samples.empty:
            return {}
        n = int(samples["sample"].max())
        groups = samples.groupby("index")
        right = groups["value_correct"].sum().tolist()
        powers = [k for k in (1, 2, 4, 8, 16, 32, 64, 128, 256) if k <= n]
        measures = {f"pass@{k}": pass_at_k(right, n, k) for k in powers}
        if n > 1:
            measures[f"maj@{n}"] = np.array([_majority_is_right(group) for _, group in groups])
        return measures


def _majority_is_right(samples: pd.DataFrame) -> float:
    chosen = majority(samples["extracted"].tolist())
    return float(samples.loc[samples["extracted"] == chosen, "value_correct"].any())


def failure_class(row: dict[str, Any]) -> str:
    """Why an item is wrong, as exactly one class; empty for a right one."""
    if row["value_correct"]:
        return ""
    classes = (
        ("cut by the length limit", row["cut_by_length"]),
        ("cut by the turn limit", row["cut_by_turns"]),
        ("tool call not parsed", row["parse_failures"] > 0),
        ("tool failed", row["tool_errors"] > 0),
        ("no answer stated", row["no_answer"]),
        ("left a right submission", row["first_submission_correct"]),
        ("wrong answer, no tool used", row["arm"] == "tool" and row["tool_calls"] == 0),
    )
    return next((name for name, applies in classes if applies), "wrong answer")


def incomparable(first: Evaluation, second: Evaluation) -> str | None:
    """Why two evaluations must not be compared, as a sentence; None if they may."""
    for key, what in (("test_set", "test sets"), ("scorer", "scorers")):
        if first.record[key] != second.record[key]:
            return (
                f"{first.folder} and {second.folder} cannot be compared: their {what} differ "
                f"({first.record[key]} and {second.record[key]})."
            )
    return None


def compare(first: Evaluation, second: Evaluation, arm: str, seed: int) -> PairedComparison:
    """The paired comparison of an arm on the same items.

    Raises:
        UserError: when test sets or scorers differ, or the items do not pair.
    """
    if problem := incomparable(first, second):
        raise UserError(problem)
    one, other = first.reported(arm), second.reported(arm)
    if one.empty or not one[IDENTITY].equals(other[IDENTITY]):
        raise UserError(
            f"{first.folder} and {second.folder} do not have the same items in the arm {arm!r}, so they cannot be "
            "compared: evaluate both with the same evaluate.arms and evaluate.max_items."
        )
    return compare_paired(one["value_correct"].tolist(), other["value_correct"].tolist(), seed)


def shared_arms(evaluations: Sequence[Evaluation]) -> list[str]:
    """The arms that all have, in the order of the first."""
    return [arm for arm in evaluations[0].arms if all(arm in evaluation.arms for evaluation in evaluations)]
