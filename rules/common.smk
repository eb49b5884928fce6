"""Helpers of the rules: the checked configuration, what each stage depends on, and its resources. No rules here."""

import re
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
from toolrl.machine import gpus_of, lock_name, visible_gpus
from toolrl.runs import MODELS, Owners, all_runs, evaluated_models, start_stage
from toolrl.stages import stage_settings

SCRIPTS = Path(workflow.basedir) / "scripts"

try:
    configuration.check(config)
    RUNS = {run.root: run for run in all_runs(config)}
    for run in RUNS.values():
        configuration.check_run(run.config, run.name)
    owner = Owners(list(RUNS.values()))
except UserError as error:
    raise WorkflowError(str(error)) from None


wildcard_constraints:
    root="|".join(map(re.escape, RUNS)),
    model="|".join(MODELS),
    stage="train|evaluate",


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
    """The part of a run's configuration that a stage reads, as one canonical JSON text: key order cannot rerun it."""

    def of_run(wildcards):
        return canonical_json(stage_settings(RUNS[wildcards.root].config, stage))

    return of_run


def task_module(run_config):
    """The file of a task: it is loaded by name, so no import leads to it."""
    built_in = SCRIPTS / "toolrl" / "tasks" / f"{run_config['task']}.py"
    return built_in if built_in.is_file() else Path(run_config["task"])


def code(stage, loaded_by_verl=False):
    """A digest of the code behind a stage's script, with what it or verl loads by name."""

    def of_run(wildcards):
        run_config = RUNS[wildcards.root].config
        loaded = (
            episode_files(run_config) if loaded_by_verl else [task_module(run_config)]
        )
        return code_digest(SCRIPTS / f"{stage}.py", *loaded, root=SCRIPTS)

    return of_run


def episode_files(run_config):
    """The modules that verl loads by name in a run: the task, ours, and the user's."""
    return [task_module(run_config), *LOADED_BY_VERL, *user_files(run_config)]


def episode_code(wildcards):
    """A digest of the code that shapes episodes and what is learned from them; a change elsewhere in a stage's code
    runs the stage again, but that finds its checkpoints or its result at hand."""
    return code_digest(*episode_files(RUNS[wildcards.root].config), root=SCRIPTS)


LOADED_BY_VERL = [
    SCRIPTS / "toolrl" / name
    for name in (
        "verl_bridge/agent_loop.py",
        "verl_bridge/packed_attention.py",
        "verl_bridge/reward.py",
        "verl_bridge/sampler.py",
        "verl_bridge/settings.py",
        "verl_bridge/tools.py",
        "cpu/verl_platform.py",
        "cpu/vllm_plugin.py",
    )
]


def gpus(stage):
    """The GPUs that a stage's job asks for: on all its nodes, and none where it joins a running Ray cluster."""
    nodes = config["resources"]["nodes"] if stage == "train" else 1
    return gpus_of(config["resources"], stage) * nodes


def several_nodes():
    """What a job of several nodes asks for besides: to run once, on the first node, with all of them at hand. These are
    the resources that Snakemake has for MPI; `tasks` must not count for each GPU."""
    nodes = config["resources"]["nodes"]
    if nodes == 1 or config["resources"]["ray_address"]:
        return {}
    return {"nodes": nodes, "tasks": nodes, "tasks_per_gpu": 0, "mpi": "srun"}


def cap_gpus():
    """Snakemake ignores a resource that has no limit. On one machine the limit is the GPUs it has, so that jobs wait
    for each other; where there are none, the job itself says so."""
    runs_here = workflow.is_main_process and workflow.local_exec and not workflow.dryrun
    if runs_here and "gpu" not in workflow.global_resources and visible_gpus():
        workflow.register_resource("gpu", visible_gpus())


HEAVY_ENVIRONMENT = (
    "../envs/sglang.yaml"
    if config["rollout"]["backend"] == "sglang"
    else "../envs/train.yaml"
)


def made_by(stage, file):
    """A stage's file, in the folder of the run that owns the stage."""
    return lambda wildcards: f"{owner(wildcards.root, stage)}/{file}"


def local_inputs(*keys):
    """The user's own files that a stage reads, by dotted key, where they are set and used."""

    def of_run(wildcards):
        run_config, paths = RUNS[wildcards.root].config, []
        for key in keys:
            section, *rest = key.split(".")
            value = lookup(dpath=key.replace(".", "/"), within=run_config)
            if value and run_config[section].get("source", rest[0]) == rest[0]:
                paths.append(value)
        return paths

    return of_run


def start_model(file):
    """A file of the model that training starts from: the base model, or the one after the warm start."""

    def of_run(wildcards):
        stage = start_stage(RUNS[wildcards.root].config)
        folder = "start" if stage == "warm_start" else "base"
        return f"{owner(wildcards.root, stage)}/models/{folder}/{file}"

    return of_run


def evaluated_model(file):
    """A file of the model that is evaluated."""
    maker = {
        "base": made_by("prepare_model", f"models/base/{file}"),
        "start": start_model(file),
        "trained": made_by("train", f"train/{file}"),
    }
    return lambda wildcards: maker[wildcards.model](wildcards)


def run_folders():
    """For each run, the folders of its stages' owners, as the report reads them."""
    return {
        run.name: {
            "data": f"{owner(root, 'preprocess')}/data",
            "train": f"{owner(root, 'train')}/train",
            **{
                model: f"{owner(root, f'evaluate_{model}')}/evaluate/{model}"
                for model in evaluated_models(run.config)
            },
        }
        for root, run in RUNS.items()
    }
