"""Secrets in the environment, the configuration, command lines and URLs reach no file under results/."""

import argparse
import json
import logging
import os
from pathlib import Path

import pytest
import synthetic
from conftest import PLANTED
from test_contracts import run  # noqa: F401
from test_report import build
from toolrl import cli, manifest, secrets

VALUE = "5ecr3t-{}-v4lue"
ENVIRONMENT = (
    "HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "MLFLOW_TRACKING_PASSWORD", "OPENAI_API_KEY", "GITHUB_PAT",
    "DB_CREDENTIALS", "MY_ACCESS_KEY",
)  # fmt: skip
CONFIGURED = {
    "+trainer.wandb_api_key": VALUE.format("config1"),
    "+trainer.auth_token": VALUE.format("config2"),
    "+trainer.password": VALUE.format("config3"),
    "+trainer.wandb_proxy": f"http://user:{VALUE.format('url1')}@proxy:8080",
}
FORMS = (
    f"https://me:{VALUE.format('url2')}@host/repository",
    f"postgres://admin:{VALUE.format('url3')}@db:5432/runs",
    "hf_" + "aB3dE5gH7jK9mN1pQ3sT5vW7yZ",
    "sk-" + "proj-aB3dE5gH7jK9mN1pQ3sT5",
    "ghp_" + "aB3dE5gH7jK9mN1pQ3sT5vW7",
    "AKIA" + "QWERTYUIOPASDFGH",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9P",
    f"Bearer {VALUE.format('bearer')}",
)


def planted() -> list[str]:
    values = [VALUE.format(name) for name in ENVIRONMENT] + [VALUE.format(f"config{n}") for n in (1, 2, 3)]
    values += [VALUE.format(f"url{n}") for n in (1, 2, 3)] + [VALUE.format("bearer")]
    return [*values, *(form for form in FORMS if "://" not in form and "Bearer" not in form)]


@pytest.fixture
def with_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ENVIRONMENT:
        monkeypatch.setenv(name, VALUE.format(name))
    secrets._environment.cache_clear()
    yield
    secrets._environment.cache_clear()
    secrets._configured.clear()


def leaks(folder: Path) -> list[tuple[str, str]]:
    contents = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    assert contents
    return [(str(file), value) for file, text in contents.items() for value in planted() if value.encode() in text]


@pytest.mark.e2e
def test_the_real_run_wrote_no_secret(results: Path) -> None:
    """Ray, verl and vLLM print environments and configurations."""
    for file in results.rglob("*"):
        if file.is_file():
            content = file.read_bytes()
            assert not [value for value in PLANTED.values() if value.encode() in content], file


def test_there_are_twenty() -> None:
    assert len(planted()) == 20


@pytest.mark.parametrize("form", FORMS)
def test_known_forms_are_redacted(form: str) -> None:
    shown = secrets.redacted(f"before {form} after")
    assert shown.startswith("before ") and shown.endswith(" after") and "[secret]" in shown
    assert not any(value in shown for value in planted())


def test_ordinary_text_is_left_alone() -> None:
    text = "max_tokens: 128, tokenizer.json, #### 72, task-specific sketch, http://host:8080/path, 1e-6, user@host"
    assert secrets.redacted(text) == text
    settings = {
        "max_prompt_length": 5,
        "tokenizer": "qwen",
        "num_tokens": "7",
        "nested": [{"title": "a token of love"}],
    }
    assert secrets.without_secrets(settings) == settings


def test_training_writes_no_secret(run, with_secrets: None, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    """Also where verl prints its whole configuration and environment."""
    overrides = {**CONFIGURED, "+trainer.note": " ".join(FORMS)}
    secrets.register({"train": {"overrides": overrides}})
    monkeypatch.setenv("FAKE_VERL_PRINTS", "1")
    out = run("train", train={"steps": 2, "overrides": overrides, "loggers": ["mlflow", "tensorboard"]})
    log = next(out.glob("checkpoints/*/verl.log")).read_text()
    assert "wandb_api_key" in log and "[secret]" in log
    assert leaks(out) == []


def test_the_report_has_no_secret(tmp_path: Path, with_secrets: None) -> None:
    overrides = {**CONFIGURED, "+trainer.note": " ".join(FORMS)}
    made = synthetic.run(tmp_path / "run", items=3, changes={"train": {"overrides": overrides}})
    build(tmp_path / "results", {"main": made})
    assert leaks(tmp_path / "results") == []


def test_messages_and_manifests_have_no_secret(tmp_path: Path, with_secrets: None) -> None:
    parser = cli.parser("test")
    cli.add_settings(parser)

    def main(arguments: argparse.Namespace) -> None:
        cli.log.info("settings %s, environment %s", arguments.settings, dict(os.environ))
        cli.log.info("command: tool --api-key=%s %s", VALUE.format("config1"), " ".join(FORMS))
        manifest.write_json(tmp_path / "manifest.json", {"settings": arguments.settings, "note": " ".join(FORMS)})

    settings = json.dumps({"overrides": CONFIGURED})
    handlers = logging.getLogger().handlers[:]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["test", "--settings", settings, "--log", str(tmp_path / "test.log")])
        logging.getLogger().handlers.clear()
        try:
            cli.run(main, parser)
        finally:
            logging.getLogger().handlers[:] = handlers
    assert "settings" in (tmp_path / "test.log").read_text()
    assert leaks(tmp_path) == []
