"""The user's own agent loop, reward term and loggers, and a repeated run: two real steps, trained once for all."""

import copy
import json
from pathlib import Path

import pytest
from conftest import default_config, script
from mlflow import MlflowClient
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from test_faults import different_metrics, lines
from toolrl import manifest
from toolrl.config import config_problems
from toolrl.stages import dotted
from toolrl.training import loggers
from toolrl.verl_bridge.agent_loop import request_seed, whole_answers

STEPS = 2


@pytest.fixture(scope="module")
def two_steps(results: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The default experiment's first steps with a loop and a term from user files; the term has no weight."""
    folder = tmp_path_factory.mktemp("two steps")
    config = default_config()
    config["agent"] |= {"agent_name": "my_loop", "loops": {"my_loop": "tests/user/my_loop.py:NotedToolAgentLoop"}}
    config["reward"]["terms"] = {"brevity": {"function": "tests/user/my_terms.py:brevity", "weight": 0.0}}
    config["train"] |= {"steps": STEPS, "loggers": ["mlflow", "tensorboard"]}
    assert list(config_problems(config)) == []
    data, base = str(folder / "data"), str(results / "models" / "base" / "model")
    settings = ["--settings", json.dumps(config)]
    made = script("preprocess", *settings, "--data", str(results / "data" / "raw"), "--model", base, "--out", data)
    assert made.returncode == 0, made.stderr
    start = str(results / "models" / "start" / "model")
    places = ["--data", data, "--model", start, "--threads", "2", "--memory-mb", "4000"]
    places += ["--out", str(folder / "train")]
    trained = script("train", *settings, *places)
    assert trained.returncode == 0, trained.stderr
    return folder / "train"


@pytest.mark.e2e
def test_a_user_loop_and_reward_term_are_used(two_steps: Path) -> None:
    """train.py checks that every episode's loop is the configured one; here, that the term was a part of the return."""
    for line in lines(two_steps / "metrics.jsonl"):
        assert line["data"]["episode/reward_brevity"] == 0.0
        assert line["data"]["episode/tool_calls"] > 0


@pytest.mark.e2e
def test_the_same_seed_gives_the_same_metrics(two_steps: Path, results: Path) -> None:
    first, second = (lines(folder / "metrics.jsonl")[:STEPS] for folder in (results / "train", two_steps))
    for one, other in zip(first, second, strict=True):
        other["data"].pop("episode/reward_brevity")
        assert different_metrics(one["data"], other["data"]) == []


@pytest.mark.e2e
def test_mlflow_and_tensorboard_hold_the_metrics(two_steps: Path) -> None:
    expected = [line["data"]["critic/score/mean"] for line in lines(two_steps / "metrics.jsonl")]
    client = MlflowClient(f"sqlite:///{two_steps / 'loggers' / 'mlflow' / 'mlflow.db'}")
    (run,) = client.search_runs([client.get_experiment_by_name("toolrl").experiment_id])
    history = client.get_metric_history(run.info.run_id, "critic/score/mean")
    assert [(entry.step, entry.value) for entry in history] == list(enumerate(expected, start=1))
    assert run.data.params["train.learning_rate"] == "0.0001" and run.info.status == "FINISHED"
    assert run.info.run_name == manifest.read_json(two_steps / "manifest.json")["fingerprint"]
    events = EventAccumulator(str(two_steps / "loggers" / "tensorboard" / run.info.run_name))
    events.Reload()
    assert [event.value for event in events.Scalars("critic/score/mean")] == pytest.approx(expected)


def test_a_failing_logger_ends_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sent = []

    def works(*arguments: object) -> tuple:
        return lambda step, metrics: sent.append((step, dict(metrics))), lambda: None

    def refuses(*arguments: object) -> tuple:
        raise ConnectionError("no server")

    def breaks(*arguments: object) -> tuple:
        def send(step: int, metrics: object) -> None:
            raise TimeoutError("too slow")

        return send, lambda: None

    monkeypatch.setattr(loggers, "OPENERS", {"mlflow": works, "wandb": refuses, "tensorboard": breaks})
    trackers = loggers.Loggers(["mlflow", "wandb", "tensorboard"], tmp_path, "run", dotted(default_config()))
    for step in (1, 2):
        trackers.log(step, {"reward": 0.5, "note": "text"})
    trackers.close()
    assert sent == [(1, {"reward": 0.5}), (2, {"reward": 0.5})]
    assert caplog.text.count("wandb failed") == 1 and caplog.text.count("tensorboard failed") == 1


def test_every_request_has_a_seed_of_its_own() -> None:
    rows = [
        {"global_steps": step, "index": index, "session_id": session}
        for step in range(3) for index in range(3) for session in range(3)
    ]  # fmt: skip
    seeds = [request_seed(1, row) for row in rows]
    assert len(set(seeds)) == len(rows) and seeds == [request_seed(1, row) for row in rows]
    assert request_seed(2, rows[0]) != seeds[0]


def test_user_code_is_part_of_the_code_digest(config: dict, tmp_path: Path) -> None:
    from toolrl.extensions import user_files

    (tmp_path / "my_tools.py").write_text("")
    (tmp_path / "tools.yaml").write_text("tools: [{class_name: my_tools.Search}]\n")
    config["agent"] |= {"loops": {"a": "one.py:A", "b": "json:B"}, "tool_config": str(tmp_path / "tools.yaml")}
    config["reward"]["terms"] = {"t": {"function": "two.py:t", "weight": 1.0}}
    assert user_files(config) == sorted([Path("one.py"), Path("two.py"), tmp_path / "my_tools.py"])


def test_vllm_is_asked_for_whole_answers_by_workers_that_do_not_import_it() -> None:
    from vllm.sampling_params import RequestOutputKind, SamplingParams

    arrived = copy.deepcopy(whole_answers("vllm"))  # as pickling does
    assert SamplingParams(**arrived).output_kind is RequestOutputKind.FINAL_ONLY
    assert whole_answers("sglang") == {}
