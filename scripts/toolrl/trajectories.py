"""The trajectories of evaluations, packed for the report's viewer.

Model output and dataset text are hostile: they travel as compressed JSON in base64, which no markup can leave, and the
viewer shows them as text only.
"""

import base64
import gzip
import json
import random
from collections.abc import Mapping
from typing import Any

import pandas as pd

from toolrl.evaluation import Evaluation

FLOWS = {
    (False, True): "fixed",
    (True, False): "broken",
    (True, True): "both right",
    (False, False): "both wrong",
}
"""Outcome of an item in the start model and the trained one."""


def packed(runs: Mapping[str, tuple[Evaluation, Evaluation]], at_most: int | None = None, seed: int = 0) -> str:
    """base64 of gzipped JSON: for each run and arm, the items with the episodes of the start and the trained model.

    `at_most`: how many items of each run, drawn at random from `seed`, the same ones in every arm; None: all.

    `{"runs": {run: {arm: [item]}}}`; an item is `{index, question, truth, flow, sides: [episode, episode]}`; an episode
    is `{turns: [{content, calls: [{name, arguments, response, dropped}]}], cut, extracted, right, strict, failure}`.
    """
    document = {
        "runs": {
            name: _drawn(
                {arm: _items(start.reported(arm), trained.reported(arm)) for arm in start.arms if arm in trained.arms},
                at_most,
                seed,
            )
            for name, (start, trained) in runs.items()
        }
    }
    text = json.dumps(document, separators=(",", ":"))  # ASCII: lone surrogates survive as escapes
    return base64.b64encode(gzip.compress(text.encode("ascii"), compresslevel=6, mtime=0)).decode("ascii")


def _drawn(arms: dict[str, list[dict[str, Any]]], at_most: int | None, seed: int) -> dict[str, list[dict[str, Any]]]:
    indices = sorted({item["index"] for items in arms.values() for item in items})
    if at_most is None or at_most >= len(indices):
        return arms
    chosen = set(random.Random(seed).sample(indices, at_most))
    return {arm: [item for item in items if item["index"] in chosen] for arm, items in arms.items()}


def _items(start: pd.DataFrame, trained: pd.DataFrame) -> list[dict[str, Any]]:
    sides = [frame.set_index("index").to_dict("index") for frame in (start, trained)]
    return [
        {
            "index": int(str(index)),
            "question": row["question"],
            "truth": row["ground_truth"],
            "flow": FLOWS[bool(row["value_correct"]), bool(sides[1][index]["value_correct"])],
            "sides": [_episode(row), _episode(sides[1][index])],
        }
        for index, row in sides[0].items()
        if index in sides[1]
    ]


def _episode(row: Mapping[Any, Any]) -> dict[str, Any]:
    return {
        **json.loads(row["episode"]),
        "extracted": row["extracted"],
        "right": bool(row["value_correct"]),
        "strict": bool(row["strict"]),
        "failure": row["failure"],
    }
