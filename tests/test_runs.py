"""Several runs: what they share, and what is planned for them."""

import re
from pathlib import Path

import pytest
import yaml
from conftest import snakemake
from toolrl.config import check, check_run
from toolrl.errors import UserError
from toolrl.runs import Owners, all_runs, merged

RUNS = {
    "base": {},
    "seed2": {"train": {"seed": 2}},
    "slow": {"train": {"learning_rate": 5.0e-5}},
    "longer": {"warm_start": {"epochs": 3}},
}


def test_one_run_is_the_configuration_itself(config: dict) -> None:
    (run,) = all_runs(config)
    assert (run.name, run.root) == ("main", "results") and "runs" not in run.config


def test_overrides_are_merged_without_touching_the_base(config: dict) -> None:
    before = yaml.safe_dump(config)
    result = merged(config, {"train": {"seed": 2}, "agent": {"tools": ["calculator"]}})
    assert result["train"]["seed"] == 2 and result["train"]["steps"] == config["train"]["steps"]
    assert result["agent"]["tools"] == ["calculator"] and yaml.safe_dump(config) == before


def test_equal_stages_have_one_owner(config: dict) -> None:
    owner = Owners(all_runs({**config, "runs": RUNS}))
    base, seed2, longer = (f"results/runs/{name}" for name in ("base", "seed2", "longer"))
    assert owner(seed2, "warm_start") == owner(seed2, "evaluate_start") == owner(seed2, "download") == base
    assert owner(seed2, "train") == seed2 == owner(seed2, "evaluate_trained")
    assert owner(longer, "download") == base, "the same data"
    assert owner(longer, "warm_start") == longer == owner(longer, "train"), "another start model is another training"


def test_shared_stages_are_planned_once(workflow: Path) -> None:
    (workflow / "runs.yaml").write_text(yaml.safe_dump({"runs": RUNS}))
    result = snakemake(workflow, "-n", "results/report.html", "--configfile", "runs.yaml")
    assert result.returncode == 0, result.stderr
    counts = dict(re.findall(r"^(\w+) +(\d+)$", result.stdout + result.stderr, re.MULTILINE))
    counts.pop("all", None)
    assert {name: int(count) for name, count in counts.items() if name != "total"} == {
        "download": 1, "prepare_model": 1, "preprocess": 1, "warm_start": 2, "preflight": 6, "train": 4, "evaluate": 6,
        "report": 1,
    }  # fmt: skip


def test_the_base_model_is_evaluated_on_demand(workflow: Path) -> None:
    (workflow / "base.yaml").write_text(yaml.safe_dump({"evaluate": {"base": True}}))
    plan = snakemake(workflow, "-n", "results/report.html", "--configfile", "base.yaml")
    assert re.search(r"^evaluate +3$", plan.stdout + plan.stderr, re.MULTILINE), plan.stderr


@pytest.mark.parametrize(
    ("runs", "words"),
    [
        ({"a": {"resources": {"platform": "cuda"}}}, "runs.a.resources: all runs share this section"),
        ({"a": {"rollout": {"backend": "sglang"}}}, "runs.a.rollout.backend: all runs share one environment"),
        ({"a b": {}}, "runs must match"),
        ({"a": 1}, "runs.a must be a mapping"),
    ],
)
def test_bad_runs(config: dict, runs: dict, words: str) -> None:
    with pytest.raises(UserError) as error:
        check({**config, "runs": runs})
    assert words in str(error.value)


def test_a_bad_key_in_a_run_names_the_run(config: dict) -> None:
    run = all_runs({**config, "runs": {"fast": {"train": {"learning_rat": 1.0}}}})[0]
    with pytest.raises(UserError, match="config: runs.fast: train.learning_rat is not a key"):
        check_run(run.config, run.name)
