"""Our configuration → verl's: the one place that knows verl's option names."""

import difflib
import importlib.util
import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from toolrl.batches import longest_episode
from toolrl.errors import UserError
from toolrl.extensions import absolute
from toolrl.verl_bridge import ray_nodes, worker_forks

MODEL, ACTOR, ENGINE = "actor_rollout_ref.model", "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
OWN_RAY_ONLY = ("num_gpus", "object_store_memory", "include_dashboard")
PACKED_ATTENTION = "torch_varlen"
"""The attention implementation that `toolrl.verl_bridge.packed_attention` registers."""

WORKER_EXECUTABLE = "ray_kwargs.ray_init.runtime_env.py_executable"
"""What Ray starts its workers with."""

LOGICAL_CPUS = 12
"""On the cpu platform: Ray's actors mostly wait, whatever the number of cores."""

OBJECT_STORE_SHARE = 0.125
"""Of a job's memory."""


@dataclass(frozen=True)
class Paths:
    """Where one launch of verl reads and writes; all absolute."""

    train_files: Path
    validation_files: Path
    tool_config: Path
    agent_loops: Path
    model: Path
    checkpoints: Path
    rollouts: Path
    validations: Path
    episodes: Path

    @classmethod
    def below(cls, work: Path, data: Path, model: Path, attempt: str, validation: str = "test") -> "Paths":
        """A launch that reads preprocess's folder `data` and the folder `model`, and writes below `work`.

        `validation` names the split that is validated on.
        """
        return cls(
            train_files=data / "train.parquet",
            validation_files=data / f"{validation}.parquet",
            tool_config=data / "tools.yaml",
            agent_loops=work / "agent_loops.yaml",
            model=model,
            checkpoints=work,
            rollouts=work / "rollouts",
            validations=work / "validations",
            episodes=work / f"episodes-{attempt}",
        )


@cache
def verl_defaults() -> Any:
    """verl's own composed `ppo_trainer` configuration, without importing verl (which takes seconds)."""
    from hydra import compose, initialize_config_dir

    spec = importlib.util.find_spec("verl")
    if spec is None or not spec.submodule_search_locations:
        raise UserError("verl is not installed in this environment: run `make env`, or use --sdm conda.")
    with initialize_config_dir(f"{spec.submodule_search_locations[0]}/trainer/config", version_base=None):
        return compose("ppo_trainer")


def option_names(config: Any, prefix: str = "") -> list[str]:
    """Every dotted key of a composed configuration."""
    from omegaconf import DictConfig

    names = []
    for key in config:
        names.append(f"{prefix}{key}")
        node = config._get_node(key)
        if isinstance(node, DictConfig) and not node._is_none() and not node._is_missing():
            names.extend(option_names(node, f"{prefix}{key}."))
    return names


def check_overrides(section: str, overrides: Mapping[str, Any], defaults: Any) -> None:
    """Refuses keys that verl does not have; `+key` adds one on purpose.

    Raises:
        UserError: naming the key and the nearest ones that exist.
    """
    names = option_names(defaults)
    known = set(names)
    for key in overrides:
        if key.startswith("+") or key in known:
            continue
        near = difflib.get_close_matches(key, names, n=3, cutoff=0.6)
        hint = f"did you mean {' or '.join(near)}?" if near else "see docs/options.md."
        raise UserError(
            f"config: {section}.overrides: verl has no option {key!r}; {hint} "
            f"(Write +{key} to add a key that verl does not list.)"
        )


def compose_settings(options: Mapping[str, Any], defaults: Any) -> Any:
    """verl's defaults with our options set; `+key` adds a key.

    Raises:
        UserError: when an option cannot be set.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    config = defaults.copy()
    OmegaConf.set_struct(config, True)
    for key, value in options.items():
        try:
            OmegaConf.update(config, key.removeprefix("+"), value, merge=True, force_add=key.startswith("+"))
        except OmegaConfBaseException as error:
            raise UserError(f"verl's option {key} cannot be {value!r}: {str(error).splitlines()[0]}") from None
    OmegaConf.set_struct(config, False)
    return config


def launch_options(
    config: Mapping[str, Any], paths: Paths, nodes: int, share: ray_nodes.Share, seed: int
) -> dict[str, Any]:
    """The options that training and evaluation share; each node gives its share."""
    agent, rollout, resources = (config[key] for key in ("agent", "rollout", "resources"))
    log_prob_rows = rollout["log_prob_micro_batch_size_per_gpu"]
    log_prob_tokens = log_prob_rows * longest_episode(agent)
    options: dict[str, Any] = {
        "+toolrl": {
            "task": _absolute_file(config["task"]),
            "tools": list(agent["tools"]),
            "shaping": {},
            "reward_terms": {},
            "episodes": None,
            "request_seed": seed if config["deterministic"] else None,
        },
        "data.train_files": str(paths.train_files),
        "data.val_files": str(paths.validation_files),
        "data.max_prompt_length": agent["max_prompt_length"],
        "data.max_response_length": agent["max_response_length"],
        "data.seed": seed,
        "data.dataloader_num_workers": 0,
        f"{MODEL}.path": str(paths.model),
        f"{MODEL}.use_remove_padding": True,
        f"{MODEL}.external_lib": "toolrl.verl_bridge.packed_attention",
        f"+{MODEL}.override_config.attn_implementation": PACKED_ATTENTION,
        f"{MODEL}.use_fused_kernels": True,
        f"{ACTOR}.use_dynamic_bsz": True,
        f"{ACTOR}.strategy": "fsdp2",
        f"{ACTOR}.fsdp_config.strategy": "fsdp2",
        f"{ACTOR}.fsdp_config.seed": seed,
        f"{ACTOR}.data_loader_seed": seed,
        "actor_rollout_ref.ref.fsdp_config.strategy": "fsdp2",
        "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": log_prob_rows,
        "actor_rollout_ref.ref.log_prob_max_token_len_per_gpu": log_prob_tokens,
        f"{ENGINE}.name": rollout["backend"],
        f"{ENGINE}.dtype": rollout["dtype"],
        f"{ENGINE}.seed": seed,
        f"{ENGINE}.tensor_model_parallel_size": rollout["tensor_parallel"],
        f"{ENGINE}.gpu_memory_utilization": rollout["gpu_memory_utilization"],
        f"{ENGINE}.max_num_seqs": rollout["max_num_seqs"],
        f"{ENGINE}.enforce_eager": rollout["enforce_eager"],
        f"{ENGINE}.log_prob_micro_batch_size_per_gpu": log_prob_rows,
        f"{ENGINE}.log_prob_max_token_len_per_gpu": log_prob_tokens,
        f"{ENGINE}.multi_turn.enable": True,
        f"{ENGINE}.multi_turn.format": agent["tool_parser"],
        f"{ENGINE}.multi_turn.tool_config_path": str(paths.tool_config),
        f"{ENGINE}.multi_turn.max_assistant_turns": agent["max_assistant_turns"],
        f"{ENGINE}.multi_turn.max_parallel_calls": agent["max_parallel_calls"],
        f"{ENGINE}.multi_turn.max_tool_response_length": agent["max_tool_response_length"],
        f"{ENGINE}.agent.num_workers": resources["agent_loop_workers"],
        f"{ENGINE}.agent.agent_loop_config_path": str(paths.agent_loops),
        "reward.num_workers": resources["reward_workers"],
        "reward.reward_manager.source": "importlib",
        "reward.reward_manager.name": "EpisodeRewardManager",
        "reward.reward_manager.module.path": str(Path(__file__).with_name("reward.py")),
        "algorithm.use_kl_in_reward": False,
        "trainer.nnodes": nodes,
        "trainer.n_gpus_per_node": share.gpus,
        "trainer.project_name": "toolrl",
        "trainer.default_local_dir": str(paths.checkpoints),
        "trainer.rollout_data_dir": str(paths.rollouts),
        "trainer.validation_data_dir": str(paths.validations),
        "transfer_queue.backend.SimpleStorage.num_data_storage_units": 1,
        "+ray_kwargs.ray_init.include_dashboard": False,
        "+ray_kwargs.ray_init.address": "local",
        "ray_kwargs.ray_init.num_cpus": share.cpus,
        "+ray_kwargs.ray_init.num_gpus": share.gpus,
        "+ray_kwargs.ray_init.object_store_memory": share.object_store_bytes,
    }
    if rollout["backend"] == "vllm":
        options[WORKER_EXECUTABLE] = shlex.join([sys.executable, worker_forks.__file__])
    if resources["platform"] == "cpu":
        options |= _cpu_options()
    if config["deterministic"]:
        options |= _deterministic_options(resources["platform"])
    return options | dict(rollout["overrides"])


def _cpu_options() -> dict[str, Any]:
    """What the CPU platform needs; docs/cpu.md says why."""
    return {
        "trainer.device": "cpu",
        f"{MODEL}.enable_gradient_checkpointing": False,
        f"{ACTOR}.use_torch_compile": False,
        f"{ACTOR}.fsdp_config.use_torch_compile": False,
        f"+{ACTOR}.fsdp_config.mixed_precision.param_dtype": "fp32",
        f"+{ACTOR}.fsdp_config.mixed_precision.reduce_dtype": "fp32",
        f"{ENGINE}.free_cache_engine": False,
        f"+{ENGINE}.enable_sleep_mode": False,
        f"{ENGINE}.checkpoint_engine.update_weights_bucket_megabytes": 256,
    }


def node_share(config: Mapping[str, Any], stage: str, threads: int, memory_mb: int) -> ray_nodes.Share:
    """What Ray may use of each node that a stage runs on; several jobs may share the node."""
    cpu = config["resources"]["platform"] == "cpu"
    return ray_nodes.Share(
        cpus=LOGICAL_CPUS if cpu else threads,
        gpus=max(1, config["resources"][stage]["gpu"]),
        object_store_bytes=int(OBJECT_STORE_SHARE * memory_mb * 10**6),
    )


def cluster_options(address: str, environment: Mapping[str, str]) -> dict[str, Any]:
    """Has verl join a Ray cluster, which has its own sizes and its own way to start workers, and whose workers do not
    inherit our environment."""
    names = ("ray_kwargs.ray_init.num_cpus", *(f"+ray_kwargs.ray_init.{name}" for name in OWN_RAY_ONLY))
    ours = {name: value for name, value in environment.items() if os.environ.get(name) != value}
    return {
        **dict.fromkeys((*names, WORKER_EXECUTABLE)),
        "+ray_kwargs.ray_init.address": address,
        "+ray_kwargs.ray_init.runtime_env.env_vars": ours,
    }


def training_seed(config: Mapping[str, Any]) -> int:
    """Training's own seed where it has one, else the one seed."""
    return config["seed"] if config["train"]["seed"] is None else config["train"]["seed"]


def total_steps(config: Mapping[str, Any], train_rows: int) -> int:
    """Training steps: as configured, or as many as the epochs have.

    Raises:
        UserError: when a batch is larger than the training set.
    """
    batch = config["train"]["batch_size"]
    if train_rows < batch:
        raise UserError(f"train.batch_size ({batch}) is larger than the training set ({train_rows} rows): lower it.")
    return config["train"]["steps"] or train_rows // batch * config["train"]["epochs"]


def _deterministic_options(platform: str) -> dict[str, Any]:
    """What a run needs to repeat exactly, besides the seeds; slower on a GPU."""
    options = {
        f"{ACTOR}.fsdp_config.full_determinism": True,
        "trainer.v1.sampler.custom_sampler.path": str(Path(__file__).with_name("sampler.py")),
        "trainer.v1.sampler.custom_sampler.name": "OrderedReplayBuffer",
    }
    if platform == "cuda":
        options[f"{ENGINE}.full_determinism"] = True  # vLLM's batch-invariant kernels, which exist for CUDA only
    return options


def _absolute_file(name: str) -> str:
    """A path of the user's, made absolute (Ray's workers run elsewhere); a built-in name as it is."""
    return str(Path(name).resolve()) if name.endswith(".py") else name


def training_options(config: Mapping[str, Any], paths: Paths, total_steps: int) -> dict[str, Any]:
    train = config["train"]
    shaping = dict(config["reward"])
    terms = {
        name: {"function": absolute(term["function"]), "weight": term["weight"]}
        for name, term in shaping.pop("terms").items()
    }
    return {
        "+toolrl.shaping": shaping,
        "+toolrl.reward_terms": terms,
        "+toolrl.episodes": str(paths.episodes),
        "data.train_batch_size": train["batch_size"],
        "algorithm.adv_estimator": train["algorithm"],
        f"{ACTOR}.ppo_mini_batch_size": train["mini_batch_size"],
        f"{ACTOR}.ppo_micro_batch_size_per_gpu": train["micro_batch_size_per_gpu"],
        f"{ACTOR}.ppo_max_token_len_per_gpu": train["micro_batch_size_per_gpu"] * longest_episode(config["agent"]),
        f"{ACTOR}.optim.lr": train["learning_rate"],
        f"{ACTOR}.use_kl_loss": train["kl_loss_coefficient"] > 0,
        f"{ACTOR}.kl_loss_coef": train["kl_loss_coefficient"],
        f"{ACTOR}.kl_loss_type": train["kl_loss_type"],
        f"{ACTOR}.entropy_coeff": train["entropy_coefficient"],
        f"{ACTOR}.checkpoint.save_contents": ["model", "optimizer", "extra", "hf_model"],
        f"{ACTOR}.checkpoint.load_contents": ["model", "optimizer", "extra"],
        f"{ENGINE}.n": train["rollouts_per_prompt"],
        f"{ENGINE}.temperature": train["temperature"],
        "trainer.total_epochs": train["epochs"],
        "trainer.total_training_steps": total_steps,
        "trainer.logger": ["console", "file"],
        "trainer.save_freq": train["save_every"],
        "trainer.test_freq": train["validate_every"] or -1,
        "trainer.val_before_train": False,
        "trainer.resume_mode": "auto",
        "trainer.max_actor_ckpt_to_keep": None,  # toolrl.training.checkpoints deletes old ones
        "trainer.experiment_name": "train",
        **train["overrides"],
    }


def evaluation_options(seed: int) -> dict[str, Any]:
    """Validation only; what concerns training is set to the smallest values that verl accepts.

    Sampled arms have the seed in their requests, whether or not training is deterministic.
    """
    return {
        "+toolrl.request_seed": seed,
        "data.train_batch_size": 1,
        "data.train_max_samples": 1,
        f"{ACTOR}.ppo_mini_batch_size": 1,
        f"{ACTOR}.ppo_micro_batch_size_per_gpu": 1,
        f"{ACTOR}.use_kl_loss": False,
        "algorithm.adv_estimator": "grpo",
        "trainer.total_epochs": 1,
        "trainer.total_training_steps": 1,
        "trainer.logger": ["console"],
        "trainer.val_before_train": True,
        "trainer.val_only": True,
        "trainer.save_freq": -1,
        "trainer.test_freq": -1,
        "trainer.resume_mode": "disable",
        "trainer.experiment_name": "evaluate",
    }
