"""Writes the report: one self-contained HTML page, and provenance.json, made from the files of finished runs only."""

import argparse
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd
from toolrl import cli, manifest, plots, provenance, trajectories
from toolrl.errors import UserError
from toolrl.evaluation import Evaluation, compare, incomparable, shared_arms
from toolrl.runs import all_runs, evaluated_models
from toolrl.secrets import redacted, without_secrets
from toolrl.stats import (
    PairedComparison,
    Proportion,
    adjusted,
    bootstrap_mean,
    compare_means,
    proportion,
    t_mean,
)
from toolrl.wording import percent, points

MEASURES = (
    ("right, in the required form", "strict", True),
    ("first submission right", "first_submission_correct", True),
    ("no answer stated", "no_answer", True),
    ("tool calls per episode", "tool_calls", False),
    ("assistant turns per episode", "turns", False),
    ("submissions until right", "guess_depth", False),
    ("tool calls that could not be parsed", "parse_failures", False),
    ("cut by the length limit", "cut_by_length", True),
    ("cut by the turn limit", "cut_by_turns", True),
)
OUTCOMES = {
    "improved": "Training improved the agent",
    "worse": "Training made the agent worse",
    "not distinguishable": "Training made no difference that these items can distinguish",
    "invalid": "This result is invalid",
}


@dataclass(frozen=True)
class Run:
    """One run's files, and what the page says of them."""

    name: str
    config: Mapping[str, Any]
    folders: Mapping[str, Path]

    @cached_property
    def evaluations(self) -> dict[str, Evaluation]:
        return {model: Evaluation(self.folders[model]) for model in evaluated_models(self.config)}

    @cached_property
    def training(self) -> dict[str, Any]:
        return manifest.read_json(self.folders["train"] / "manifest.json")

    @cached_property
    def data(self) -> dict[str, Any]:
        return manifest.read_json(self.folders["data"] / "manifest.json")

    @property
    def arms(self) -> list[str]:
        return shared_arms(list(self.evaluations.values()))

    @cached_property
    def comparisons(self) -> dict[str, PairedComparison]:
        """Start against trained for each arm, as one family (Holm)."""
        return self._compared("start", "trained")

    @cached_property
    def warm_start_comparisons(self) -> dict[str, PairedComparison]:
        """Base against start for each arm, as a family of their own; empty where the base model was not evaluated."""
        return self._compared("base", "start") if "base" in self.evaluations else {}

    def _compared(self, before: str, after: str) -> dict[str, PairedComparison]:
        one, other = self.evaluations[before], self.evaluations[after]
        return dict(zip(self.arms, adjusted([compare(one, other, arm, self.config["seed"]) for arm in self.arms])))

    @property
    def primary(self) -> PairedComparison:
        return next(iter(self.comparisons.values()))

    @cached_property
    def accuracies(self) -> dict[str, dict[str, Proportion]]:
        return {
            model: {arm: evaluation.accuracy(arm) for arm in self.arms}
            for model, evaluation in self.evaluations.items()
        }

    @cached_property
    def broken_contract(self) -> str | None:
        """Why the result must not be believed, as a sentence; None if nothing is known against it."""
        *earlier, trained = self.evaluations.values()
        if problem := next(filter(None, (incomparable(one, trained) for one in earlier)), None):
            return problem
        if trained.record["model"] != self.training["files_of_model"]:
            return "The evaluated model is not the one that training exported."
        prompts = [evaluation.reported(self.arms[0])["prompt_hash"] for evaluation in (*earlier, trained)]
        if not all(other.equals(prompts[-1]) for other in prompts):
            return "The evaluated models were not given the same prompts."
        return None

    @property
    def verdict(self) -> str:
        return "invalid" if self.broken_contract else self.primary.verdict

    @cached_property
    def timeline(self) -> plots.Timeline:
        lines = (self.folders["train"] / "metrics.jsonl").read_text("utf-8").splitlines()
        frame = plots.training_frame([json.loads(line) for line in lines])
        gpus = self.training["attempts"][-1]["gpus"]
        resumes = [attempt["from_step"] for attempt in self.training["attempts"][1:] if attempt["from_step"]]
        return plots.Timeline(frame, gpus, resumes)


def main(arguments: argparse.Namespace) -> None:
    started = datetime.now(UTC)
    config = arguments.settings
    runs = [
        Run(run.name, run.config, {stage: Path(folder) for stage, folder in arguments.runs[run.name].items()})
        for run in all_runs(config)
    ]
    folder = arguments.out.parent
    records = [provenance.run_record(run.name, run.config, run.folders) for run in runs]
    code = provenance.code_state(Path(__file__).parent)
    headline = sentence(runs[0]) if len(runs) == 1 else several_sentence(runs)
    page = (
        _environment(arguments.template)
        .get_template(arguments.template.name)
        .render(
            title=config["report"]["title"],
            headline=headline,
            verdict=runs[0].verdict if len(runs) == 1 else "several",
            runs=[_run_section(run, record) for run, record in zip(runs, records)],
            several=_several(runs) if len(runs) > 1 else None,
            style=(arguments.template.parent / "style.css").read_text("utf-8"),
            script=(arguments.template.parent / "viewer.js").read_text("utf-8"),
            packed=trajectories.packed(
                {run.name: (run.evaluations["start"], run.evaluations["trained"]) for run in runs},
                config["report"]["trajectories"],
                config["seed"],
            ),
            trajectories=config["report"]["trajectories"],
            run_times=_run_times(folder),
            code=code,
        )
    )
    manifest.write_text(arguments.out, redacted(page))
    manifest.write_json(arguments.provenance, {"code": code, "verdict": headline, "runs": records})
    cli.log.info("report: %s", headline)
    cli.log.info("report: written in %.1f s", (datetime.now(UTC) - started).total_seconds())


def sentence(run: Run) -> str:
    """What a reader should take away: both accuracies, the paired difference, and how sure it is."""
    if run.broken_contract:
        return f"{OUTCOMES['invalid']}: {run.broken_contract}"
    arm, comparison = run.arms[0], run.primary
    start, trained = (run.accuracies[model][arm] for model in ("start", "trained"))
    low, high = 100 * comparison.low, 100 * comparison.high
    difference = f"{100 * comparison.difference:+.1f} points (95% interval {low:+.1f} to {high:+.1f})"
    family = f", Holm-adjusted over {len(run.arms)} arms" if len(run.arms) > 1 else ""
    return (
        f"{OUTCOMES[comparison.verdict]}: {percent(trained)} of {trained.n} test items right after training, "
        f"{percent(start)} before; paired difference {difference}, exact McNemar "
        f"p {p_value(comparison.adjusted_p)}{family}. A single training seed."
    )


def several_sentence(runs: list[Run]) -> str:
    counts = pd.Series([run.verdict for run in runs]).value_counts()
    return f"{len(runs)} runs: " + ", ".join(f"{count} {verdict}" for verdict, count in counts.items()) + "."


def p_value(value: float) -> str:
    return "< 0.0001" if value < 1e-4 else f"= {value:.4f}"


def _run_section(run: Run, record: dict[str, Any]) -> dict[str, Any]:
    frame = run.timeline.frame
    return {
        "name": run.name,
        "config": run.config,
        "sentence": sentence(run),
        "verdict": run.verdict,
        "data": run.data,
        "training": run.training,
        "models": list(run.evaluations),
        "comparisons": run.comparisons,
        "warm_start_comparisons": run.warm_start_comparisons,
        "accuracies": run.accuracies,
        "noise": {model: evaluation.noise_floor() for model, evaluation in run.evaluations.items()},
        "sampled": _sampled(run),
        "samples": run.config["evaluate"]["samples"],
        "temperature": run.config["evaluate"]["temperature"],
        "measures": _measures(run),
        "failures": _failures(run),
        "figures": [
            plots.accuracies(run.accuracies),
            plots.outcome_flow(run.comparisons),
            *plots.training_figures(run.timeline),
        ],
        "reward_parts": _reward_parts(frame),
        "largest_difference": float(frame["training/rollout_probs_diff_mean"].max()),
        "selection": _selection_sentence(run.training),
        "attempts": _attempts(run.training),
        "determinism": _determinism(run.config),
        "record": record,
        "record_text": json.dumps(record, indent=2, sort_keys=True, ensure_ascii=False),
        "config_text": json.dumps(without_secrets(run.config), indent=2, sort_keys=True, ensure_ascii=False),
    }


def _sampled(run: Run) -> list[dict[str, Any]]:
    """pass@k and maj@k of each model, and start against trained as one family (Holm)."""
    seed = run.config["seed"]
    sampled = {model: evaluation.sampled for model, evaluation in run.evaluations.items()}
    names = list(sampled["trained"])
    comparisons = adjusted([compare_means(sampled["start"][name], sampled["trained"][name], seed) for name in names])
    return [
        {
            "name": name,
            "comparison": comparison,
            "means": {model: bootstrap_mean(values[name], seed) for model, values in sampled.items()},
        }
        for name, comparison in zip(names, comparisons)
    ]


def _measures(run: Run) -> list[dict[str, Any]]:
    reported = {model: evaluation.reported(run.arms[0]) for model, evaluation in run.evaluations.items()}
    return [
        {"name": name, **{model: _measure(items[column], is_share) for model, items in reported.items()}}
        for name, column, is_share in MEASURES
    ]


def _measure(values: pd.Series, is_share: bool) -> str:
    if is_share:
        return percent(proportion(values.tolist()))
    return f"{values.mean():.2f} ± {1.96 * values.sem():.2f}"


def _failures(run: Run) -> list[dict[str, Any]]:
    """How many items are wrong for which reason, in the arm of the verdict."""
    counts = {
        model: evaluation.reported(run.arms[0])["failure"].value_counts()
        for model, evaluation in run.evaluations.items()
    }
    names = sorted({name for count in counts.values() for name in count.index if name})
    return [{"name": name, **{model: int(count.get(name, 0)) for model, count in counts.items()}} for name in names]


def _reward_parts(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Each part of the return at the first and the last step."""
    prefix = "episode/reward_"
    return [
        {"name": column.removeprefix(prefix), "first": frame[column].iloc[0], "last": frame[column].iloc[-1]}
        for column in frame
        if column.startswith(prefix)
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


def _determinism(config: Mapping[str, Any]) -> str:
    """What would be the same in another run of this configuration, and what would not."""
    if not config["deterministic"]:
        return (
            "Every seed derives from the one seed, but rollouts are sampled in the order in which requests arrive, and "
            "GPU kernels sum in varying order: another run has other rollouts (deterministic: true repeats them)."
        )
    if config["resources"]["platform"] == "cpu":
        return (
            "Another run of this configuration on this machine gives the same rollouts, training metrics and items. "
            "Times, memory and throughput differ, and so do the last digits of rollout_corr/* and training/rollout_*: "
            "they hold the engine's rounding, which depends on how requests happen to share a batch."
        )
    return (
        "Every request has a seed of its own and kernels are deterministic; only times, memory and throughput should "
        "differ on the same hardware."
    )


def _several(runs: list[Run]) -> dict[str, Any]:
    """The runs side by side, their trained models compared pairwise, and training seeds summarised."""
    pairs, refused = [], []
    for one, other in combinations(runs, 2):
        try:
            arms = shared_arms([one.evaluations["trained"], other.evaluations["trained"]])
            if not arms:
                raise UserError(f"{one.name} and {other.name} have no evaluated arm in common.")
            found = compare(one.evaluations["trained"], other.evaluations["trained"], arms[0], one.config["seed"])
            pairs.append((one.name, other.name, arms[0], found))
        except UserError as error:
            refused.append(str(error))
    family = adjusted([found for *_, found in pairs])
    return {
        "rows": [
            {
                "name": run.name,
                "changes": provenance.changed_between(runs[0].config, run.config),
                "start": run.accuracies["start"][run.arms[0]],
                "trained": run.accuracies["trained"][run.arms[0]],
                "comparison": run.primary,
                "verdict": run.verdict,
            }
            for run in runs
        ],
        "pairs": [
            {"first": first, "second": second, "arm": arm, "comparison": comparison}
            for (first, second, arm, _), comparison in zip(pairs, family)
        ],
        "refused": refused,
        "seeds": _seed_groups(runs),
    }


def _seed_groups(runs: list[Run]) -> list[dict[str, Any]]:
    """Runs that differ in the training seed alone: the mean of their trained accuracies with Student's interval."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        train = {key: value for key, value in run.config["train"].items() if key != "seed"}
        test_set = run.evaluations["trained"].record["test_set"]
        groups.setdefault(manifest.digest([test_set, {**run.config, "train": train}]), []).append(run)
    return [
        {
            "names": [run.name for run in group],
            "mean": t_mean([run.accuracies["trained"][run.arms[0]].value for run in group]),
        }
        for group in groups.values()
        if len(group) > 1
    ]


def _run_times(results: Path) -> list[dict[str, Any]]:
    """Snakemake's benchmark files: wall seconds and peak memory of each finished job."""
    rows = []
    for path in sorted(results.rglob("benchmarks/*.tsv")):
        record = pd.read_csv(path, sep="\t", na_values=["-", "NA"]).iloc[-1]
        where = path.parent.parent.relative_to(results)
        name = path.stem if str(where) == "." else f"{where.name}: {path.stem}"
        rows.append({"job": name, "seconds": float(record["s"]), "peak_mib": float(record["max_pss"])})
    return rows


def _environment(template: Path) -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(template.parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "percent": percent,
        "points": points,
        "p_value": lambda p: p_value(p).removeprefix("= "),
    }
    return environment


if __name__ == "__main__":
    command = cli.parser(__doc__)
    cli.add_settings(command)
    command.add_argument(
        "--runs", type=json.loads, required=True, help="JSON: run → the folders of data, train and evaluated models"
    )
    command.add_argument("--template", type=Path, required=True, help="the page's Jinja template")
    command.add_argument("--out", type=Path, required=True, help="the page to write")
    command.add_argument("--provenance", type=Path, required=True, help="the provenance file to write (JSON)")
    cli.run(main, command)
