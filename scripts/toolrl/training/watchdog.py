"""Watches a training's metrics, step by step, for the ways in which reinforcement learning goes wrong."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Any

WATCHED_FOR_NAN = ("actor/pg_loss", "actor/grad_norm", "actor/kl_loss", "critic/score/mean")
KL = ("actor/kl_loss", "actor/ppo_kl")
NO_SPREAD = 1e-9


@dataclass(frozen=True)
class Alarm:
    """Something wrong at a step; `stop` says whether the configuration asks to end training."""

    check: str
    step: int
    message: str
    stop: bool

    def record(self) -> dict[str, Any]:
        return asdict(self)


class Stopped(Exception):
    """The watchdog ended training."""

    def __init__(self, alarm: Alarm) -> None:
        super().__init__(alarm.message)
        self.alarm = alarm


@dataclass
class Watchdog:
    """Judges each step's metrics by the configuration's section `watchdog`; each check speaks up once."""

    settings: Mapping[str, Any]
    has_tools: bool = True
    _rewards: list[float] = field(default_factory=list)
    _calls: list[float] = field(default_factory=list)
    _spreads: list[float] = field(default_factory=list)
    _said: set[str] = field(default_factory=set)

    def observe(self, step: int, metrics: Mapping[str, float]) -> list[Alarm]:
        """The alarms that this step raises, the first time that each is raised.

        Args:
            step: its number.
            metrics: verl's metrics of the step.
        """
        found = {
            "non_finite": _non_finite(metrics),
            "reward_collapse": self._reward_collapse(metrics),
            "kl_explosion": self._kl_explosion(metrics),
            "tool_use_collapse": self._tool_use_collapse(metrics),
            "no_learning_signal": self._no_learning_signal(metrics),
        }
        alarms = []
        for check, message in found.items():
            action = self.settings[check]["action"]
            if message and action != "off" and check not in self._said:
                self._said.add(check)
                alarms.append(Alarm(check, step, f"step {step}: {message}", action == "stop"))
        return alarms

    def _reward_collapse(self, metrics: Mapping[str, float]) -> str | None:
        self._rewards.append(metrics["critic/score/mean"])
        window, share = self.settings["window"], self.settings["reward_collapse"]["below_share_of_best"]
        means = [fmean(self._rewards[end - window : end]) for end in range(window, len(self._rewards) + 1)]
        if means and max(means) > 0 and means[-1] < share * max(means):
            return f"the mean reward of {window} steps fell to {means[-1]:.3f}, from {max(means):.3f} at its best"
        return None

    def _kl_explosion(self, metrics: Mapping[str, float]) -> str | None:
        limit = self.settings["kl_explosion"]["above"]
        for name in KL:
            if abs(metrics.get(name, 0.0)) > limit:
                return f"{name} is {metrics[name]:.3g}, above {limit:g}"
        return None

    def _tool_use_collapse(self, metrics: Mapping[str, float]) -> str | None:
        if not self.has_tools:
            return None
        # verl counts user + assistant messages + 1; every tool turn adds one of each to a single answer
        self._calls.append((metrics["num_turns/mean"] - 2) / 2)
        window, floor = self.settings["window"], self.settings["tool_use_collapse"]["calls_below"]
        if len(self._calls) >= window and fmean(self._calls[-window:]) < floor:
            mean = fmean(self._calls[-window:])
            return f"the agent called its tools in {mean:.2f} turns of an episode over {window} steps, below {floor:g}"
        return None

    def _no_learning_signal(self, metrics: Mapping[str, float]) -> str | None:
        self._spreads.append(metrics["critic/advantages/max"] - metrics["critic/advantages/min"])
        window = self.settings["window"]
        if len(self._spreads) >= window and max(self._spreads[-window:]) < NO_SPREAD:
            return f"no learning signal: all advantages of {window} steps are zero"
        return None


def _non_finite(metrics: Mapping[str, float]) -> str | None:
    bad = [name for name in WATCHED_FOR_NAN if name in metrics and not math.isfinite(metrics[name])]
    return f"{', '.join(bad)} is not a finite number" if bad else None
