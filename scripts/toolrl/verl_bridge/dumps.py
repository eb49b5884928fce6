"""What verl writes: its metrics, and its validation dumps → one row per item and arm."""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.json

from toolrl.arms import PLACE
from toolrl.episodes import Measures
from toolrl.errors import UserError
from toolrl.manifest import whole_lines

_TYPES = {bool: pa.bool_(), int: pa.int64(), float: pa.float64(), str: pa.string()}
ITEM_SCHEMA = pa.schema(
    [
        ("index", pa.int64()),
        ("arm", pa.string()),
        ("repeat", pa.int64()),
        ("sample", pa.int64()),
        ("prompt_hash", pa.string()),
        ("question", pa.string()),
        ("ground_truth", pa.string()),
        ("output", pa.string()),
        ("episode", pa.string()),
        ("reward", pa.float64()),
        *((field.name, _TYPES[field.type if isinstance(field.type, type) else str]) for field in fields(Measures)),
    ]
)
"""`extracted` is empty where no answer could be read; `episode` is `toolrl.episodes.Episode` as JSON."""


def read_validation(path: Path) -> list[dict[str, Any]]:
    """The records of one dump.

    Raises:
        UserError: when verl wrote no such dump.
    """
    if not path.is_file():
        raise UserError(f"verl ended without the validation dump {path}; see verl.log beside it.")
    with open(path, encoding="utf-8") as handle:
        return [json.loads(line) for line in handle]


def metrics_entry(line: str) -> dict[str, Any]:
    """A step's entry (`step`, `data`) in verl's metrics file, where NaN and the infinities stand as null."""
    entry = json.loads(line)
    entry["data"] = {name: math.nan if value is None else value for name, value in entry["data"].items()}
    return entry


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The entries of a metrics file."""
    return [metrics_entry(line) for line in whole_lines(path)]


def items_table(records: Sequence[Mapping[str, Any]], evaluated: pa.Table) -> pa.Table:
    """One row per record, in the order of arm, repeat, sample and index.

    Args:
        records: of the dump.
        evaluated: the rows that were to be evaluated (`toolrl.arms.evaluated_rows`).

    Raises:
        UserError: when items are missing or stand twice.
    """
    expected = {_place(row["extra_info"]): row["extra_info"]["question"] for row in evaluated.to_pylist()}
    found = [_place(record) for record in records]
    if len(found) != len(set(found)) or set(found) != set(expected):
        missing = sorted(set(expected) - set(found))[:3]
        raise UserError(
            f"the evaluation has {len(found)} rows for {len(expected)} test items and arms"
            + (f" (missing: {missing})" if missing else " (some stand twice)")
            + ": its result would be wrong; run it again, and see verl.log."
        )
    rows = []
    for place, record in sorted(zip(found, records), key=lambda pair: (*pair[0][1:], pair[0][0])):
        row = {
            **dict(zip(PLACE, place)),
            "prompt_hash": hashlib.sha256(encodable(record["input"]).encode()).hexdigest()[:16],
            "question": expected[place],
            "ground_truth": record["gts"],
            "output": encodable(record["output"]),
            "episode": encodable(record["episode"]),
            "reward": float(record["score"]),
        }
        for field in ITEM_SCHEMA.names[len(row) :]:
            value = record[field]
            row[field] = bool(value) if ITEM_SCHEMA.field(field).type == pa.bool_() else encodable(value)
        rows.append(row)
    return pa.Table.from_pylist(rows, schema=ITEM_SCHEMA)


def _place(record: Mapping[str, Any]) -> tuple[int, str, int, int]:
    return int(record["index"]), str(record["arm"]), int(record["repeat"]), int(record["sample"])


def encodable(value: Any) -> Any:
    """A text with its lone surrogates, which UTF-8 cannot hold, written as escapes; other values as they are."""
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value


def read_episodes(folder: Path) -> pd.DataFrame:
    """The notes of one attempt's training episodes, without lines that were cut off when the attempt was killed."""
    tables = []
    for file in sorted(folder.glob("*.jsonl")):
        notes = file.read_bytes()
        whole = notes[: notes.rfind(b"\n") + 1]
        if whole:
            tables.append(pyarrow.json.read_json(pa.BufferReader(whole)))
    return pa.concat_tables(tables, promote_options="default").to_pandas() if tables else pd.DataFrame()


def episode_means(episodes: pd.DataFrame) -> dict[int, dict[str, float]]:
    """Mean measures and reward parts of training episodes, by step, as `episode/<name>`, and the share of prompts
    whose rollouts all got the same reward as `groups/all_equal_share`."""
    if episodes.empty:
        return {}
    means = episodes.drop(columns="index").groupby("step").mean(numeric_only=True).add_prefix("episode/")
    equal = episodes.groupby(["step", "index"])["reward"].nunique().eq(1)
    means["groups/all_equal_share"] = equal.groupby("step").mean()
    return {
        int(str(step)): {str(name): float(value) for name, value in row.items()}
        for step, row in means.to_dict("index").items()
    }
