"""The report's figures, as inline SVG that is readable on a light and on a dark page and without colour vision."""

import html
import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt  # noqa: E402
import numpy as np  # noqa: E402
import pandas as pd  # noqa: E402
import seaborn as sns  # noqa: E402
from matplotlib.ticker import MaxNLocator  # noqa: E402

from toolrl.stats import PairedComparison, Proportion, proportion_of  # noqa: E402

INK = "#757d87"
"""Axes and text; in the SVG it becomes the page's own text colour, which is dark on light and light on dark."""
COLOURS = sns.color_palette("colorblind")
WIDTH, HEIGHT = 6.4, 3.0

Draw = Callable[[plt.Axes], None]


@dataclass(frozen=True)
class Figure:
    """An SVG element, its heading, and how to read it."""

    svg: str
    title: str
    note: str


@dataclass(frozen=True)
class Timeline:
    """What the training figures share: the metrics, one row a step, and what the x axes need.

    Attributes:
        frame: verl's metrics with the column `step`.
        gpus: that trained; 0 on a CPU.
        resumed_after: the steps after which an attempt continued.
    """

    frame: pd.DataFrame
    gpus: int
    resumed_after: Sequence[int]

    @property
    def hours(self) -> pd.Series:
        """Hours since the first step began, times the GPUs where there are any."""
        seconds = self.frame["timing_s/step"] + self.column("timing_s/testing").fillna(0.0)
        return seconds.cumsum() * max(1, self.gpus) / 3600

    def column(self, name: str) -> pd.Series:
        """A metric, all NaN where verl did not log it."""
        return self.frame.get(name, pd.Series(np.nan, self.frame.index))


def training_frame(metrics: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """verl's metrics, one row a step, with the column `step`."""
    return pd.DataFrame([{"step": record["step"], **record["data"]} for record in metrics]).sort_values("step")


def _svg(draw: Callable[[Any], None], title: str, alternative: str, rows: int = 1, height: float = HEIGHT) -> str:
    """Draws on one or more stacked axes and returns the SVG element, with a text alternative."""
    style: Any = {
        "text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": INK, "xtick.color": INK, "ytick.color": INK,
        "figure.facecolor": "none", "axes.facecolor": "none", "savefig.facecolor": "none", "legend.facecolor": "none",
        "svg.fonttype": "none", "svg.hashsalt": title, "grid.color": INK, "grid.alpha": 0.25, "font.size": 10,
    }  # fmt: skip
    with sns.axes_style("whitegrid"), plt.rc_context(style):
        canvas, axes = plt.subplots(rows, figsize=(WIDTH, height), layout="constrained", sharex=rows > 1)
        draw(axes)
        for each in np.atleast_1d(axes):
            sns.despine(ax=each)
            if each.get_legend_handles_labels()[0]:
                each.legend(frameon=False, labelcolor=INK, loc="upper left", bbox_to_anchor=(1, 1))
        buffer = io.StringIO()
        canvas.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
        plt.close(canvas)
    text = buffer.getvalue()
    svg = text[text.index("<svg") :]
    # ids must differ between the figures of one page
    prefix = re.sub(r"\W+", "-", title.lower())
    svg = re.sub(r'\bid="', f'id="{prefix}-', svg)
    svg = re.sub(r'(href="#|url\(#)', rf"\g<1>{prefix}-", svg)
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = svg.replace(INK, "var(--soft)")
    return svg.replace("<svg ", f'<svg role="img" aria-label="{html.escape(alternative)}" ', 1)


def _over_steps(
    timeline: Timeline, title: str, note: str, labels: Sequence[str], draws: Sequence[Draw], height: float = HEIGHT
) -> Figure:
    """Stacked panels over the training step, with hours on top, and resumes as dotted lines."""

    def draw(axes: Any) -> None:
        panels = np.atleast_1d(axes)
        for panel, label, paint in zip(panels, labels, draws):
            paint(panel)
            panel.set_ylabel(label)
            panel.set_xlabel("")
            panel.xaxis.set_major_locator(MaxNLocator(integer=True))
            for step in timeline.resumed_after:
                panel.axvline(step + 0.5, color=INK, linestyle=":", linewidth=1.2)
        panels[-1].set_xlabel("training step")
        _time_axis(panels[0], timeline)

    last = timeline.frame["step"].max()
    alternative = f"{title} over {last} training steps. {note}"
    return Figure(_svg(draw, title, alternative, len(draws), height), title, note)


def _time_axis(panel: plt.Axes, timeline: Timeline) -> None:
    """A second x axis: the time that a few of the steps were reached at."""
    hours = timeline.hours
    in_minutes = hours.max() < 1
    places = np.unique(np.linspace(0, len(hours) - 1, 5).round().astype(int))
    times = hours.to_numpy(float)[places] * (60 if in_minutes else 1)
    upper = panel.secondary_xaxis("top")
    upper.set_xticks(timeline.frame["step"].to_numpy()[places], [f"{time:.3g}" for time in times])
    upper.set_xlabel(f"{'GPU-' if timeline.gpus else ''}{'minutes' if in_minutes else 'hours'}")


def _line(timeline: Timeline, name: str, colour: int = 0, style: str = "-", label: str | None = None) -> Draw:
    def draw(axes: plt.Axes) -> None:
        axes.plot(
            timeline.frame["step"],
            timeline.column(name),
            color=COLOURS[colour],
            linestyle=style,
            label=label,
            marker=".",
        )

    return draw


def reward(timeline: Timeline) -> Figure:
    frame = timeline.frame

    def curve(axes: plt.Axes) -> None:
        axes.fill_between(
            frame["step"], frame["critic/score/min"], frame["critic/score/max"], color=COLOURS[0], alpha=0.12,
            label="min to max",
        )  # fmt: skip
        sns.lineplot(data=frame, x="step", y="critic/score/mean", ax=axes, color=COLOURS[0], marker="o", label="mean")
        smooth = frame["critic/score/mean"].rolling(5, min_periods=1, center=True).mean()
        sns.lineplot(x=frame["step"], y=smooth, ax=axes, color=COLOURS[3], linestyle="--", label="mean of 5 steps")

    def equal(axes: plt.Axes) -> None:
        _line(timeline, "groups/all_equal_share", 1)(axes)
        axes.set_ylim(-0.05, 1.05)

    note = "The mean should rise; prompts whose rollouts all got the same reward teach nothing."
    return _over_steps(timeline, "Reward", note, ["reward", "all-equal groups"], [curve, equal], 4.2)


def validation(timeline: Timeline) -> Figure | None:
    """None where training did not validate."""
    validated = timeline.frame.dropna(subset=["validation/n"]) if "validation/n" in timeline.frame else pd.DataFrame()
    if validated.empty:
        return None
    shares = [proportion_of(int(r), int(n)) for r, n in zip(validated["validation/right"], validated["validation/n"])]

    def draw(axes: plt.Axes) -> None:
        low, high = [share.low for share in shares], [share.high for share in shares]
        axes.fill_between(validated["step"], low, high, color=COLOURS[0], alpha=0.2, label="95% interval")
        axes.plot(validated["step"], [share.value for share in shares], color=COLOURS[0], marker="o", label="accuracy")

    return _over_steps(timeline, "Validation accuracy", "Bands are 95% Wilson intervals.", ["accuracy"], [draw])


def optimization(timeline: Timeline) -> Figure:
    names = {
        "actor/kl_loss": "KL loss", "actor/ppo_kl": "PPO KL", "actor/entropy": "entropy",
        "actor/pg_clipfrac": "clip fraction", "actor/grad_norm": "grad norm",
        "training/rollout_probs_diff_mean": "probs. diff",
    }  # fmt: skip
    shown = {name: label for name, label in names.items() if timeline.column(name).notna().any()}
    note = (
        "Entropy falling to zero or a jump in KL or gradient norm announces a collapse; the difference between rollout "
        "and trainer probabilities should stay near zero."
    )
    draws = [_line(timeline, name, position % 6) for position, name in enumerate(shown)]
    return _over_steps(timeline, "Optimization", note, list(shown.values()), draws, 1.2 * len(shown) + 0.6)


def response_length(timeline: Timeline) -> Figure:
    frame = timeline.frame

    def length(axes: plt.Axes) -> None:
        columns = [f"response_length/{name}" for name in ("min", "mean", "max")]
        axes.fill_between(
            frame["step"], frame[columns[0]], frame[columns[2]], color=COLOURS[0], alpha=0.2, label="min to max"
        )
        sns.lineplot(data=frame, x="step", y=columns[1], ax=axes, color=COLOURS[0], label="mean")

    draws = [length, _line(timeline, "response_length/clip_ratio", 1)]
    note = "Tokens after the prompt; a rising clip ratio means that more episodes hit the limit."
    return _over_steps(timeline, "Response length", note, ["tokens", "clip ratio"], draws, 4.2)


def turns_and_calls(timeline: Timeline) -> Figure:
    def draw(axes: plt.Axes) -> None:
        _line(timeline, "episode/turns", 0, "-", "assistant turns")(axes)
        _line(timeline, "episode/tool_calls", 1, "--", "tool calls")(axes)
        axes.set_ylim(bottom=0)

    note = "A fall to zero calls means that the agent gave up its tool."
    return _over_steps(timeline, "Turns and tool calls", note, ["mean per episode"], [draw])


def step_time(timeline: Timeline) -> Figure:
    """A stacked area of the parts that make up a step; what verl does not name is `other`, so that it sums up."""
    names = ["gen", "old_log_prob", "ref", "adv", "update_actor", "update_weights", "save_checkpoint", "testing"]
    parts = {name: timeline.column(f"timing_s/{name}").fillna(0.0) for name in names}
    whole = timeline.frame["timing_s/step"] + parts["testing"]
    parts["other"] = (whole - sum(parts.values())).clip(lower=0)
    shown = {name: part for name, part in parts.items() if part.max() > 0}

    def draw(axes: plt.Axes) -> None:
        axes.stackplot(timeline.frame["step"], *shown.values(), labels=list(shown), colors=COLOURS, alpha=0.85)

    note = "The parts sum to the wall time of a step."
    return _over_steps(timeline, "Time of a step", note, ["seconds"], [draw])


def throughput(timeline: Timeline) -> Figure:
    note = "Tokens of prompts and responses a second and GPU, over the whole step."
    draws = [_line(timeline, "perf/throughput")]
    return _over_steps(timeline, "Throughput", note, ["tokens/s"], draws)


def training_figures(timeline: Timeline) -> list[Figure]:
    figures = [
        reward(timeline), validation(timeline), optimization(timeline), response_length(timeline),
        turns_and_calls(timeline), step_time(timeline), throughput(timeline),
    ]  # fmt: skip
    return [figure for figure in figures if figure]


def accuracies(cells: Mapping[str, Mapping[str, Proportion]]) -> Figure:
    """Accuracy with intervals: model → arm → share."""
    arms = list(next(iter(cells.values())))

    def draw(axes: plt.Axes) -> None:
        for number, (model, shares) in enumerate(cells.items()):
            place = np.arange(len(arms)) + 0.15 * (number - (len(cells) - 1) / 2)
            values = [shares[arm].value for arm in arms]
            low = [share.value - share.low for share in shares.values()]
            high = [share.high - share.value for share in shares.values()]
            axes.errorbar(
                place, values, yerr=[low, high], fmt="os^Dv"[number % 5], color=COLOURS[number % 6], label=model,
                capsize=4,
            )  # fmt: skip
        axes.set_xticks(np.arange(len(arms)), arms)
        axes.set_ylabel("accuracy")
        axes.set_ylim(-0.02, 1.02)

    text = "; ".join(
        f"{model}, {arm}: {100 * share.value:.1f}%" for model, shares in cells.items() for arm, share in shares.items()
    )
    note = "Bars are 95% Wilson intervals."
    return Figure(_svg(draw, "Accuracy by arm", f"Accuracy by arm. {text}"), "Accuracy by arm", note)


def outcome_flow(comparisons: Mapping[str, PairedComparison]) -> Figure:
    """How items moved from the start model to the trained one, by arm."""
    parts = {"both": "both right", "only_second": "fixed", "only_first": "broken", "neither": "both wrong"}
    hatches = {"both": "", "only_second": "//", "only_first": "xx", "neither": ".."}

    def draw(axes: plt.Axes) -> None:
        left = np.zeros(len(comparisons))
        for number, (name, label) in enumerate(parts.items()):
            widths = np.array([getattr(comparison, name) for comparison in comparisons.values()])
            colour = COLOURS[(0, 2, 3, 7)[number]]
            axes.barh(
                list(comparisons), widths, left=left, color=colour, label=label, hatch=hatches[name], edgecolor="white"
            )
            left = left + widths
        axes.invert_yaxis()
        axes.set_xlabel("items")

    text = "; ".join(
        f"{arm}: " + ", ".join(f"{getattr(comparison, name)} {label}" for name, label in parts.items())
        for arm, comparison in comparisons.items()
    )
    title = "Outcomes, start to trained"
    return Figure(
        _svg(draw, title, f"{title}. {text}"), title, "Training helps where more items are fixed than broken."
    )
