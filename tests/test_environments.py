"""The environments of the steps: pinned, in agreement with the locks, resolvable, and made and used by Snakemake."""

import re
import subprocess
import sys
from pathlib import Path

import conda_stand_in
import pytest
import yaml
from conftest import ROOT, environment, snakemake
from lock import ENVIRONMENTS, LOCKS, SUBMISSION
from spython.main.parse.parsers import DockerParser, SingularityParser

PIN = re.compile(r"(?P<name>[a-z0-9][a-z0-9._-]*)(\[[a-z0-9,_-]+\])?==(?P<version>[^\s;]+)", re.IGNORECASE)


def conda_file(name: str) -> dict:
    return yaml.safe_load((ROOT / "envs" / f"{name}.yaml").read_text())


def pins(name: str) -> list[str]:
    *_, last = conda_file(name)["dependencies"]
    return last["pip"]


def locked(name: str) -> set[str]:
    text = (ROOT / "locks" / f"{name}.txt").read_text()
    return {match[0] for match in re.finditer(rf"^{PIN.pattern}", text, re.MULTILINE | re.IGNORECASE)}


def test_every_step_has_an_environment() -> None:
    rules = "".join(file.read_text() for file in (ROOT / "rules").glob("*.smk"))
    named = set(re.findall(r"envs/(\w+)\.yaml", rules))
    assert named == set(ENVIRONMENTS) == {file.stem for file in (ROOT / "envs").iterdir()}


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_everything_is_pinned_as_in_the_lock(name: str, capsys: pytest.CaptureFixture) -> None:
    """conda brings Python and pip only, whose builds cannot be looked up without its channel."""
    assert conda_file(name)["channels"] == ["conda-forge", "nodefaults"]
    assert conda_file(name)["dependencies"][:-1] == ["python=3.12", "pip"]
    assert all(PIN.fullmatch(pin) for pin in pins(name)), "a package without an exact version"
    from_lock = {pin for pin in locked(ENVIRONMENTS[name]) if not pin.startswith(SUBMISSION)}
    assert set(pins(name)) == from_lock
    with capsys.disabled():
        print(f"\nenvs/{name}.yaml: {len(pins(name))} packages, all pinned")


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_it_resolves_for_linux(name: str, capsys: pytest.CaptureFixture) -> None:
    """A resolver finds no conflict for Python 3.12 on linux-64, and nothing that is missing from the list."""
    options = [option for option in LOCKS[ENVIRONMENTS[name]] if option.startswith(("--python", "3.", "x86"))]
    command = [Path(sys.executable).with_name("uv"), "pip", "compile", "-", "--quiet", "--no-header", "--no-annotate"]
    text = "\n".join(pins(name))
    result = subprocess.run([*command, *options], input=text, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stderr
    resolved = {line.split(";")[0].strip() for line in result.stdout.splitlines() if "==" in line}
    assert resolved == set(pins(name))
    with capsys.disabled():
        print(f"\nenvs/{name}.yaml: resolver exit {result.returncode}")


@pytest.fixture
def conda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in is the machine's conda."""
    conda_stand_in.make_channel(tmp_path / "channel")
    conda_stand_in.install_command(tmp_path / "base")
    monkeypatch.setenv("PATH", f"{tmp_path}/base/bin:{environment()['PATH']}")
    monkeypatch.setenv("STAND_IN_BASE", str(tmp_path / "base"))
    monkeypatch.setenv("STAND_IN_CHANNEL", str(tmp_path / "channel"))
    monkeypatch.setenv("STAND_IN_PYTHON", sys.executable)


def made_environments(folder: Path) -> dict[Path, str]:
    """The environments that Snakemake made, with the Python commands that ran in each."""
    made = [path.with_suffix("") for path in (folder / ".snakemake" / "conda").glob("*_.yaml")]
    return {path: (path / "ran").read_text() if (path / "ran").exists() else "" for path in made}


def test_snakemake_makes_and_uses_a_steps_environment(workflow: Path, conda: None) -> None:
    target = ("results/data/raw/manifest.json", "--sdm", "conda")
    made = snakemake(workflow, *target)
    assert made.returncode == 0, made.stderr
    ((first, ran),) = made_environments(workflow).items()
    assert ran.startswith("scripts/download.py")
    assert set((first / "pip.txt").read_text().splitlines()) == set(pins("light"))
    assert "Nothing to be done" in snakemake(workflow, *target).stderr

    file = workflow / "envs" / "light.yaml"
    text = file.read_text()
    file.write_text(text.replace("- pip\n", "- pip\n- marker=1.0\n", 1))
    again = snakemake(workflow, *target)
    assert again.returncode == 0 and "Software environment definition has changed" in again.stderr
    (second,) = (path for path in made_environments(workflow) if (path / "marker").exists())
    assert made_environments(workflow)[second].startswith("scripts/download.py")

    file.write_text(text.replace("- pip\n", "- pip\n- marker=9\n", 1))
    failed = snakemake(workflow, *target)
    assert failed.returncode != 0
    assert "envs/light.yaml" in failed.stderr and "marker 9" in failed.stderr.replace("=", " ")


def test_all_environments_of_the_default_can_be_made(workflow: Path, conda: None) -> None:
    made = snakemake(workflow, "results/report.html", "--sdm", "conda", "--conda-create-envs-only")
    assert made.returncode == 0, made.stderr
    lists = [set((path / "pip.txt").read_text().splitlines()) for path in made_environments(workflow)]
    assert sorted(map(len, lists)) == sorted(len(pins(name)) for name in ("light", "train"))


@pytest.mark.parametrize("file, parser", [("Dockerfile", DockerParser), ("apptainer.def", SingularityParser)])
def test_a_container_is_built_from_the_lock(file: str, parser: type) -> None:
    """They are parsed and checked, not built: that takes a container engine and GPU packages of 15 GB."""
    recipe = parser(str(ROOT / "containers" / file)).recipe["spython-base"]
    assert recipe.fromHeader == "python:3.12-slim-bookworm"
    (copied,) = {tuple(entry.rsplit(maxsplit=1) if isinstance(entry, str) else entry) for entry in recipe.files}
    source, target = copied
    for lock in {lock for name, lock in ENVIRONMENTS.items() if name != "light"}:
        assert (ROOT / re.sub(r"\$\{LOCK\}|\{\{ LOCK \}\}", lock, source)).is_file()
    (install,) = {line for line in recipe.install if line.startswith("pip install")}
    assert {"--no-deps", "--require-hashes", target} <= set(install.split())
