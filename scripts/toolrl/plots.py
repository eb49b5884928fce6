"""The report's figures, as inline SVG that is readable on a light and on a dark page."""

import io
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt  # noqa: E402
import pandas as pd  # noqa: E402
import seaborn as sns  # noqa: E402
from matplotlib.ticker import MaxNLocator  # noqa: E402

INK = "#7a828c"
"""Axes and text: enough contrast on white and on near-black."""
COLOURS = sns.color_palette("colorblind")


def training_frame(metrics: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """verl's metrics, one row a step, with the column `step`."""
    return pd.DataFrame([{"step": record["step"], **record["data"]} for record in metrics]).sort_values("step")


def figure(draw: Callable[[plt.Axes], None], y_label: str, title: str) -> str:
    """Draws on one pair of axes over the training step and returns the SVG element."""
    style: Any = {
        "text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": INK, "xtick.color": INK, "ytick.color": INK,
        "figure.facecolor": "none", "axes.facecolor": "none", "savefig.facecolor": "none", "legend.facecolor": "none",
        "svg.fonttype": "none", "svg.hashsalt": title, "grid.color": INK, "grid.alpha": 0.25, "font.size": 10,
    }  # fmt: skip
    with sns.axes_style("whitegrid"), plt.rc_context(style):
        canvas, axes = plt.subplots(figsize=(6.4, 3.0), layout="constrained")
        draw(axes)
        axes.set_xlabel("training step")
        axes.set_ylabel(y_label)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        sns.despine(ax=axes)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(frameon=False, labelcolor=INK, loc="upper left", bbox_to_anchor=(1, 1))
        buffer = io.StringIO()
        canvas.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Title": title})
        plt.close(canvas)
    text = buffer.getvalue()
    svg = text[text.index("<svg") :]
    # ids must differ between the figures of one page
    prefix = re.sub(r"\W+", "-", title.lower())
    svg = re.sub(r'\bid="', f'id="{prefix}-', svg)
    svg = re.sub(r'(href="#|url\(#)', rf"\g<1>{prefix}-", svg)
    return svg.replace("<svg ", f'<svg role="img" aria-label="{title}" ', 1)


def reward_curve(frame: pd.DataFrame) -> str:
    def draw(axes: plt.Axes) -> None:
        sns.lineplot(
            data=frame, x="step", y="critic/score/mean", ax=axes, color=COLOURS[0], marker="o", label="each step"
        )
        smooth = frame["critic/score/mean"].rolling(5, min_periods=1, center=True).mean()
        sns.lineplot(x=frame["step"], y=smooth, ax=axes, color=COLOURS[3], linestyle="--", label="mean of 5 steps")
        axes.set_ylim(-0.02, 1.02)

    return figure(draw, "mean reward", "Reward")


def response_length(frame: pd.DataFrame) -> str:
    def draw(axes: plt.Axes) -> None:
        columns = [f"response_length/{name}" for name in ("min", "mean", "max")]
        axes.fill_between(
            frame["step"], frame[columns[0]], frame[columns[2]], color=COLOURS[0], alpha=0.2, label="min to max"
        )
        sns.lineplot(data=frame, x="step", y=columns[1], ax=axes, color=COLOURS[0], label="mean")

    return figure(draw, "response tokens", "Response length")


def turns_and_calls(frame: pd.DataFrame) -> str:
    def draw(axes: plt.Axes) -> None:
        for colour, style, name, label in ((0, "-", "turns", "assistant turns"), (1, "--", "tool_calls", "tool calls")):
            axes.plot(frame["step"], frame[f"episode/{name}"], color=COLOURS[colour], linestyle=style, label=label)
        axes.set_ylim(bottom=0)

    return figure(draw, "mean per episode", "Turns and tool calls")


def step_time(frame: pd.DataFrame) -> str:
    """A stacked area of the parts that make up a step; what verl does not name is `other`, so that it sums up."""
    names = ["gen", "old_log_prob", "ref", "adv", "update_actor", "update_weights", "save_checkpoint", "testing"]
    parts = {name: frame.get(f"timing_s/{name}", pd.Series(0.0, frame.index)).fillna(0.0) for name in names}
    whole = frame["timing_s/step"] + parts["testing"]
    parts["other"] = (whole - sum(parts.values())).clip(lower=0)
    shown = {name: part for name, part in parts.items() if part.max() > 0}

    def draw(axes: plt.Axes) -> None:
        axes.stackplot(frame["step"], *shown.values(), labels=list(shown), colors=COLOURS, alpha=0.85)

    return figure(draw, "seconds a step", "Time of a step")
