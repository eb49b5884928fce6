"""Fixtures: a workflow folder to play in, and the one end-to-end run that several tests read."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import slurm
import yaml

os.environ["VERL_PLATFORM"] = "cpu"
"""verl reads it once, when the first test imports it; the commands under test have to set it themselves."""

ROOT = Path(__file__).resolve().parents[1]
WORKFLOW = ("Snakefile", "rules", "config", "scripts", "profiles", "report", "envs", "locks")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--faults", action="store_true", help="also run the long fault test (about half an hour)")


def default_config() -> dict:
    return yaml.safe_load((ROOT / "config" / "config.yaml").read_text())


@pytest.fixture
def config() -> dict:
    return default_config()


@pytest.fixture
def workflow(tmp_path: Path) -> Path:
    """A copy of the workflow in a folder whose name needs quoting."""
    folder = tmp_path / "a workflow"
    folder.mkdir()
    for name in WORKFLOW:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        else:
            shutil.copy(source, folder / name)
    return folder


PLANTED = {f"PLANTED_{name}": f"5ecr3t-{name}-v4lue" for name in ("API_KEY", "ACCESS_TOKEN", "PASSWORD")}
"""Secrets in the environment of every run; none may reach a file."""


def environment() -> dict[str, str]:
    """Ours, with the running Python's commands first (rules call `python`), and secrets."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    inherited = {name: value for name, value in os.environ.items() if name != "VERL_PLATFORM"}
    return {**inherited, **PLANTED, "PATH": path}


def snakemake(folder: Path, *arguments: str, timeout: float = 600) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "snakemake", "--cores", "2", *arguments],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=timeout,
    )


def script(name: str, *arguments: str, timeout: float = 600) -> subprocess.CompletedProcess:
    command = [sys.executable, str(ROOT / "scripts" / f"{name}.py"), *arguments]
    return subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=timeout)


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small data set in `data` and an untrained embedded model in `base/model`, made by the workflow's commands."""
    folder = tmp_path_factory.mktemp("prepared")
    config = default_config()
    config["data"]["procedural"] = {"train_rows": 64, "test_rows": 8}
    settings = ["--settings", json.dumps(config)]
    raw, base, data = (str(folder / name) for name in ("raw", "base", "data"))
    for name, arguments in {
        "download": ["--out", raw],
        "prepare_model": ["--data", raw, "--out", base],
        "preprocess": ["--data", raw, "--model", f"{base}/model", "--out", data],
    }.items():
        made = script(name, *settings, *arguments)
        assert made.returncode == 0, made.stderr
    return folder


@pytest.fixture(scope="session")
def slurm_problem() -> Iterator[str | None]:
    """A real Slurm on this machine; the reason where there is none."""
    try:
        slurm.start()
    except slurm.Unavailable as reason:
        yield str(reason)
        return
    try:
        yield None
    finally:
        slurm.stop()


@pytest.fixture
def cluster(slurm_problem: str | None) -> None:
    """The test runs beside a real Slurm. CI must have one."""
    if slurm_problem and os.environ.get("CI"):
        pytest.fail(slurm_problem)
    if slurm_problem:
        pytest.skip(slurm_problem)


FAULTS_KEY = "toolrl/faults"


@pytest.fixture(scope="session")
def results(request: pytest.FixtureRequest, slurm_problem: str | None) -> Path:
    """The results of the default experiment in this checkout; made by its one run, and brought up to date.

    A run from the start meets faults on its way, and the same command continues it. Where Slurm can be started, the
    run is submitted to it, but for one start in between.
    """
    import default_run
    from faults import COMMAND, Start, run_with_faults

    plan = snakemake(ROOT, "-n", "results/report.html")
    if not re.search(r"^rule warm_start:", plan.stdout + plan.stderr, re.MULTILINE):
        run_with_faults(ROOT, [Start(COMMAND)])
    else:
        observed: dict[str, Any] = {"where": "here" if slurm_problem else "slurm"}
        starts = default_run.here() if slurm_problem else default_run.submitted(observed)
        observed["faults"] = run_with_faults(ROOT, starts)
        request.config.cache.set(FAULTS_KEY, observed)
    return ROOT / "results"
