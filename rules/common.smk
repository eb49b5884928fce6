"""Helpers of the rules: the checked configuration, what each stage depends on, and its resources. No rules here."""

import sys
from pathlib import Path

from snakemake.exceptions import WorkflowError

sys.path.insert(0, str(Path(workflow.basedir) / "scripts"))

from toolrl import config as configuration
from toolrl.errors import UserError
from toolrl.extensions import user_files
from toolrl.fingerprint import code_digest
from toolrl.locks import acquire
from toolrl.manifest import canonical_json
from toolrl.preflight.environment import lock_name

SCRIPTS = Path(workflow.basedir) / "scripts"

try:
    configuration.check(config)
except UserError as error:
    raise WorkflowError(str(error)) from None


FOLDER_LOCK = []


def hold_folder():
    """One run at a time in a folder. Snakemake's own lock outlives a run that is killed; this one does not."""
    try:
        FOLDER_LOCK.append(
            acquire(Path(".snakemake") / "toolrl.lock", patience_seconds=0)
        )
    except UserError as error:
        raise WorkflowError(str(error)) from None


def settings(stage):
    """The part of the configuration that a stage reads, as one canonical JSON text: key order cannot rerun it."""
    return canonical_json(configuration.stage_settings(config, stage))


def task_module():
    """The file of the configured task: it is loaded by name, so no import leads to it."""
    built_in = SCRIPTS / "toolrl" / "tasks" / f"{config['task']}.py"
    return built_in if built_in.is_file() else Path(config["task"])


def code(stage, *loaded, data_files=()):
    """A digest of the code behind a stage's script; `loaded` are files that it loads by name."""
    script = SCRIPTS / f"{stage}.py"
    return code_digest(
        script, task_module(), *loaded, root=SCRIPTS, data_files=data_files
    )


HEAVY_ENVIRONMENT = (
    "../envs/sglang.yaml"
    if config["rollout"]["backend"] == "sglang"
    else "../envs/train.yaml"
)

LOADED_BY_VERL = [
    *(
        SCRIPTS / "toolrl" / name
        for name in (
            "verl_bridge/agent_loop.py",
            "verl_bridge/reward.py",
            "verl_bridge/sampler.py",
            "verl_bridge/tools.py",
            "cpu/verl_platform.py",
            "cpu/vllm_plugin.py",
        )
    ),
    *user_files(config),
]


def local_inputs(*keys):
    """The user's own files that a stage reads, by dotted key, where they are set and used."""
    paths = []
    for key in keys:
        section, *rest = key.split(".")
        value = lookup(dpath=key.replace(".", "/"), within=config)
        if value and config[section].get("source", rest[0]) == rest[0]:
            paths.append(value)
    return paths


MODEL_FOLDER = "results/models/{}/model"
START_MODEL = "start" if config["warm_start"]["enabled"] else "base"


def model_folder(name):
    """The folder of the start model or the trained one."""
    return (
        "results/train/model" if name == "trained" else MODEL_FOLDER.format(START_MODEL)
    )


def model_manifest(name):
    return model_folder(name).removesuffix("model") + "manifest.json"
