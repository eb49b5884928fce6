"""The watchdog's judgement of single steps; tests/test_contracts.py shows what follows from it."""

import math

import pytest
from toolrl.training.watchdog import Watchdog


def healthy(**changed: float) -> dict[str, float]:
    step = {
        "critic/score/mean": 0.5, "critic/advantages/max": 1.0, "critic/advantages/min": -1.0, "actor/pg_loss": 0.1,
        "actor/grad_norm": 1.0, "actor/ppo_kl": 0.001, "num_turns/mean": 4.0,
    }  # fmt: skip
    return step | {name.replace("__", "/"): value for name, value in changed.items()}


@pytest.fixture
def settings(config: dict) -> dict:
    return {**config["watchdog"], "window": 3}


def alarms(settings: dict, steps: list[dict[str, float]], has_tools: bool = True) -> list[tuple[str, int, bool]]:
    watchdog = Watchdog(settings, has_tools)
    return [
        (alarm.check, alarm.step, alarm.stop)
        for number, step in enumerate(steps, start=1)
        for alarm in watchdog.observe(number, step)
    ]


def test_a_healthy_run_is_silent(settings: dict) -> None:
    assert alarms(settings, [healthy(critic__score__mean=0.3 + 0.02 * n) for n in range(20)]) == []


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_no_number_stops(settings: dict, value: float) -> None:
    assert alarms(settings, [healthy(), healthy(actor__pg_loss=value)]) == [("non_finite", 2, True)]


def test_reward_collapse(settings: dict) -> None:
    steps = [healthy(critic__score__mean=value) for value in (0.5, 0.6, 0.7, 0.6, 0.2, 0.1, 0.1, 0.1)]
    assert alarms(settings, steps) == [("reward_collapse", 6, False)], "once, and not for a single bad step"


def test_kl_explosion(settings: dict) -> None:
    assert alarms(settings, [healthy(actor__ppo_kl=-2.0)]) == [("kl_explosion", 1, False)]
    assert alarms(settings, [healthy(actor__kl_loss=1.5)]) == [("kl_explosion", 1, False)]


def test_tool_use_collapse(settings: dict) -> None:
    single = [healthy(num_turns__mean=2.0)] * 3
    assert alarms(settings, single) == [("tool_use_collapse", 3, False)]
    assert alarms(settings, single, has_tools=False) == []


def test_no_learning_signal(settings: dict) -> None:
    flat = [healthy(critic__advantages__max=0.0, critic__advantages__min=0.0)] * 3
    assert alarms(settings, flat) == [("no_learning_signal", 3, False)]


def test_actions(settings: dict) -> None:
    step = [healthy(actor__ppo_kl=5.0)]
    stop = {**settings, "kl_explosion": {"action": "stop", "above": 1.0}}
    assert alarms(stop, step) == [("kl_explosion", 1, True)]
    assert alarms({**settings, "kl_explosion": {"action": "off", "above": 1.0}}, step) == []
