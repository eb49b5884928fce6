"""Where a result comes from: code, configuration, inputs, machine, attempts and cost."""

import hashlib
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from toolrl import manifest
from toolrl.runs import evaluated_models
from toolrl.secrets import without_secrets
from toolrl.stages import dotted

DEFAULTS = Path(__file__).resolve().parents[2] / "config" / "config.yaml"


def code_state(folder: Path) -> dict[str, Any]:
    """The git commit, and a hash of what differs from it; None values where the code is not in a git repository."""
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return {"commit": None, "uncommitted": None}
    changes = (_git(folder, "diff", "HEAD") or "") + (_git(folder, "ls-files", "--others", "--exclude-standard") or "")
    return {"commit": commit.strip(), "uncommitted": hashlib.sha256(changes.encode()).hexdigest() if changes else None}


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        result = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout if result.returncode == 0 else None


def changed_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    """The leaves in which a configuration differs from the defaults, by dotted key."""
    return changed_between(yaml.safe_load(DEFAULTS.read_text(encoding="utf-8")), config)


def changed_between(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """The leaves of the second configuration that differ from the first, by dotted key."""
    one, absent = dotted(first), object()
    return {key: value for key, value in dotted(second).items() if one.get(key, absent) != value}


def gpu_hours(attempts: list[Mapping[str, Any]]) -> float:
    """GPU-hours of all attempts, failed ones included."""
    return sum((attempt["ended"] - attempt["started"]) * attempt["gpus"] for attempt in attempts) / 3600


def run_record(name: str, config: Mapping[str, Any], folders: Mapping[str, Path]) -> dict[str, Any]:
    """One run's provenance.

    Args:
        name: the run's.
        config: its whole configuration.
        folders: of `data`, `train` and each evaluated model, with their manifests.
    """
    records = {stage: manifest.read_json(folder / "manifest.json") for stage, folder in folders.items()}
    training, trained = records["train"], records["trained"]
    hours = gpu_hours(training["attempts"])
    price = config["report"]["gpu_hour_price"]
    return {
        "run": name,
        "configuration": without_secrets(config),
        "configuration_hash": manifest.digest(config),
        "changed_from_defaults": without_secrets(changed_keys(config)),
        "seeds": {"seed": config["seed"], "training": training["seed"]},
        "fingerprint": training["fingerprint"],
        "data": {
            "source": config["data"]["source"],
            "rows": records["data"]["rows"],
            "files": records["data"]["files"],
        },
        "start_model": {"source": without_secrets(config["model"]), "files": records["start"]["model"]},
        "trained_model": {"selection": training["selection"], "files": trained["model"]},
        "tool_config": records["data"]["files"]["tools.yaml"]["sha256"],
        "chat_template": records["data"]["chat_template"],
        "scorer": trained["scorer"],
        "test_set": trained["test_set"],
        "versions": training["versions"],
        "lock": training["lock"],
        "hardware": training["hardware"],
        "commands": {stage: records[stage]["command"] for stage in ("train", *evaluated_models(config))},
        "attempts": training["attempts"],
        "gpu_hours": hours,
        "cost": None if price is None else hours * price,
    }
