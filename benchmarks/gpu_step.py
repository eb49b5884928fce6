"""One GRPO step taken apart: the seed recipe's settings against ours, on the same work, without a download.

    python benchmarks/gpu_step.py --shape qwen2.5-3b --arms seed ours
    python benchmarks/gpu_step.py --shape qwen2.5-3b --arms ours --gpus 1 2

The model has the architecture's shape and random weights; prompts are word problems with the tool's schema; answers
have forced lengths (forced_length.py), the same in every step. The work of a GPU does not depend on the number of GPUs.
Each arm is one launch of verl; its first step is left out. `--platform cpu --shape tiny` tries it without a GPU.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "benchmarks")]

from forced_length import response_lengths  # noqa: E402
from toolrl import machine  # noqa: E402
from toolrl.data.agent_rows import read_problems  # noqa: E402
from toolrl.data.sources import read_rows  # noqa: E402
from toolrl.errors import UserError  # noqa: E402
from toolrl.runs import merged  # noqa: E402
from toolrl.tasks import load_task  # noqa: E402
from toolrl.verl_bridge import launch, settings  # noqa: E402
from toolrl.verl_bridge.dumps import read_metrics  # noqa: E402

VOCABULARY = 151_936
PROMPT_LENGTH = 1024
MEMORY_MB = 32_000
"""Of the machine, for each GPU."""

SHAPES: Mapping[str, Mapping[str, int]] = {
    "qwen2.5-3b": {
        "hidden_size": 2048, "intermediate_size": 11008, "num_hidden_layers": 36, "num_attention_heads": 16,
        "num_key_value_heads": 2,
    },
    "qwen2.5-0.5b": {
        "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14,
        "num_key_value_heads": 2,
    },
    "tiny": {
        "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 1,
    },
}  # fmt: skip
"""As in the models' config.json; embeddings are tied in all of them."""

MODEL, ACTOR, ENGINE = settings.MODEL, settings.ACTOR, settings.ENGINE
ATTENTION = f"+{MODEL}.override_config.attn_implementation"
PACKED = {f"{MODEL}.use_remove_padding": True, ATTENTION: settings.PACKED_ATTENTION}
PADDED = {f"{MODEL}.use_remove_padding": False, ATTENTION: "sdpa", f"{ACTOR}.use_dynamic_bsz": False}
SEED_RECIPE: Mapping[str, Any] = {
    **PADDED,
    f"{MODEL}.use_fused_kernels": False,
    f"{ACTOR}.strategy": "fsdp",
    f"{ACTOR}.fsdp_config.strategy": "fsdp",
    "actor_rollout_ref.ref.fsdp_config.strategy": "fsdp",
    "actor_rollout_ref.ref.fsdp_config.param_offload": True,
    f"{ENGINE}.gpu_memory_utilization": 0.5,
    f"{ENGINE}.max_num_seqs": 1024,
    f"{ENGINE}.agent.num_workers": 8,
    "reward.num_workers": 8,
}
"""What the seed script sets, and verl's defaults where it sets nothing. Its `use_remove_padding` needs flash-attn,
which is not in the lock; `seed-packed` has it with the project's attention."""

ENGINE_MEMORY = {f"{ENGINE}.gpu_memory_utilization": 0.75, f"{ENGINE}.max_num_batched_tokens": 32768}
ARMS: Mapping[str, Mapping[str, Any]] = {
    "seed": SEED_RECIPE,
    "seed-packed": {**SEED_RECIPE, **PACKED},
    "ours": {},
    "ours-padded": PADDED,
    "ours-unfused": {f"{MODEL}.use_fused_kernels": False},
    "ours-flex": {ATTENTION: "flex_attention"},
    "ours-triton": {f"{MODEL}.fused_kernel_options.impl_backend": "triton"},
    "ours-engine": ENGINE_MEMORY,
}
"""verl's options on top of the project's own. Where one that is not `ours` wins, it belongs into `settings`."""


@dataclass(frozen=True)
class Peak:
    """What a GPU can do at most: bytes a second from memory, and dense bfloat16 operations a second."""

    bytes: float
    operations: float


PEAKS = {"H200": Peak(4.8e12, 989e12), "H100": Peak(3.35e12, 989e12), "A100": Peak(2.04e12, 312e12)}
"""By the name of the GPU, from NVIDIA's data sheets (SXM)."""

PARTS = ("gen", "old_log_prob", "ref", "update_actor", "update_weights")


@dataclass(frozen=True)
class Work:
    """What each GPU does in a step."""

    prompts: int
    rollouts: int
    response_length: int

    def lengths(self) -> np.ndarray:
        """Tokens of every response of a GPU's step."""
        return np.tile(response_lengths(self.rollouts, self.response_length), self.prompts)


def decode_bounds(
    shape: Mapping[str, int], parameters: int, work: Work, prompt: float, peak: Peak
) -> tuple[float, float]:
    """Seconds that decoding takes at least, if all responses are decoded at once in bfloat16: for reading memory
    alone, and where each decoding step takes the longer of reading and of multiplying by the weights.

    A decoding step reads the weights once, and for every response that is not finished the keys and values of all its
    tokens so far; it multiplies and adds each weight once for every such response. Prompts are taken as read already.

    Args:
        shape: one of `SHAPES`.
        parameters: of the whole model; the tied embeddings count once.
        work: of a GPU.
        prompt: tokens of a prompt, the mean.
        peak: of the GPU.
    """
    head = shape["hidden_size"] // shape["num_attention_heads"]
    cache = 2 * 2 * shape["num_hidden_layers"] * shape["num_key_value_heads"] * head
    lengths = work.lengths()
    steps = np.arange(lengths.max())
    unfinished = (lengths[:, None] > steps).sum(axis=0)
    reading = (2 * parameters + cache * unfinished * (prompt + steps)) / peak.bytes
    multiplying = 2 * parameters * unfinished / peak.operations
    return float(reading.sum()), float(np.maximum(reading, multiplying).sum())


def make_model(shape: Mapping[str, int], texts: Sequence[str], folder: Path) -> int:
    """A model with random weights, and a tokenizer trained on the texts whose every id decodes to something; returns
    the number of parameters."""
    import torch
    from tokenizers import Tokenizer
    from toolrl.models import embedded

    tokenizer = embedded.make_tokenizer(texts, [], vocab_size=4000)
    file = json.loads(tokenizer.backend_tokenizer.to_str())
    file["model"]["vocab"] |= {f"<unused{number}>": number for number in range(len(tokenizer), VOCABULARY)}
    tokenizer = type(tokenizer)(
        tokenizer_object=Tokenizer.from_str(json.dumps(file)),
        eos_token=tokenizer.eos_token,
        pad_token=tokenizer.pad_token,
        chat_template=tokenizer.chat_template,
    )
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = embedded.random_model(tokenizer, 0, max_position_embeddings=32768, dtype="bfloat16", **shape)
    torch.set_default_dtype(torch.float32)
    embedded.save(folder, tokenizer, model)
    return sum(parameter.numel() for parameter in model.parameters())


def experiment(arguments: argparse.Namespace, work: Work, gpus: int, arm: str) -> dict[str, Any]:
    """The configuration: the seed recipe's experiment in its present form, with the work of a step and an arm's
    settings."""
    config = yaml.safe_load((ROOT / "config" / "config.yaml").read_text("utf-8"))
    if arguments.platform == "cuda":
        recipe = ROOT / "config" / "experiments" / "gsm8k-qwen2.5-3b-instruct.yaml"
        config = merged(config, yaml.safe_load(recipe.read_text("utf-8")))
    batch = work.prompts * gpus
    stage = {
        "threads": arguments.threads,
        "mem_mb": MEMORY_MB * gpus,
        "gpu": gpus if arguments.platform == "cuda" else 0,
    }
    return merged(
        config,
        {
            "deterministic": False,
            "data": {"source": "procedural", "procedural": {"train_rows": batch * arguments.steps, "test_rows": 8}},
            "agent": {
                "agent_name": "forced_length",
                "loops": {"forced_length": f"{ROOT / 'benchmarks' / 'forced_length.py'}:ForcedLengthLoop"},
                "max_assistant_turns": 1,
                "max_prompt_length": PROMPT_LENGTH,
                "max_response_length": work.response_length,
            },
            "train": {
                "steps": arguments.steps,
                "epochs": 1,
                "batch_size": batch,
                "mini_batch_size": batch,
                "micro_batch_size_per_gpu": arguments.micro_batch,
                "rollouts_per_prompt": work.rollouts,
                "save_every": -1,
                "validate_every": 0,
                "loggers": [],
                "overrides": ARMS[arm],
            },
            "rollout": {"tensor_parallel": 1, "log_prob_micro_batch_size_per_gpu": arguments.micro_batch},
            "resources": {"platform": arguments.platform, "train": stage},
        },
    )


def prompt_texts(config: Mapping[str, Any], rows: Path) -> list[str]:
    """The texts of the prompts, tools included."""
    task, tools = load_task(config["task"]), config["agent"]["tools"]
    problems = read_problems(read_rows(str(rows), "train"), task, rows.name)
    chats = [task.prompt(problem.question, tools) for problem in problems]
    return [json.dumps(task.tool_schemas(tools)), *(message["content"] for chat in chats for message in chat)]


def script(name: str, config: Mapping[str, Any], **options: Path) -> None:
    command = [sys.executable, str(ROOT / "scripts" / f"{name}.py"), "--settings", json.dumps(config)]
    subprocess.run(command + [f"--{name}={value}" for name, value in options.items()], check=True)


def measure(config: Mapping[str, Any], work: Path, data: Path, model: Path) -> pd.DataFrame:
    """Trains for a few steps; verl's metrics of all but the first."""
    stage = config["resources"]["train"]
    metrics = work / "metrics.jsonl"
    paths = settings.Paths.below(work, data, model, "001")
    launch.prepare(paths, config["agent"])
    with launch.exclusive(work) as lock, machine.own_gpus(machine.gpus_of(config["resources"], "train"), "train"):
        share = settings.node_share(config, "train", stage["threads"], stage["mem_mb"])
        options = settings.launch_options(config, paths, 1, share, config["seed"])
        options |= settings.training_options(config, paths, config["train"]["steps"])
        environment = launch.environment(config["resources"]["platform"], stage["threads"], metrics)
        launch.run_on_nodes(config, options, 1, share, work, environment, lambda: None, lock)
    steps = [entry["data"] for entry in read_metrics(metrics)]
    return pd.DataFrame([step for step in steps if "timing_s/step" in step][1:])


def row(name: str, gpus: int, frame: pd.DataFrame, work: Work, bounds: tuple[float, float] | None) -> dict[str, str]:
    """One line of the table: means over the measured steps."""
    mean = frame.mean(numeric_only=True)
    generated = work.lengths().sum()
    step = mean["timing_s/step"]
    seconds = {part: f"{mean[f'timing_s/{part}']:.1f}" for part in PARTS if f"timing_s/{part}" in mean}
    spread = f" (± {100 * frame['timing_s/step'].std() / step:.0f}%)" if len(frame) > 1 else ""
    return {
        "settings": name,
        "GPUs": str(gpus),
        "s/step": f"{step:.1f}{spread}",
        **seconds,
        "generated tokens/s/GPU": f"{generated / step:.0f}",
        "all tokens/s/GPU": f"{mean['perf/throughput']:.0f}",
        "gen ÷ bounds": " and ".join(f"{mean['timing_s/gen'] / bound:.1f}" for bound in bounds) if bounds else "–",
        "update MFU": f"{100 * mean['perf/mfu/actor']:.0f}%" if "perf/mfu/actor" in mean else "–",
        "training's peak GiB": f"{mean['actor/perf/max_memory_reserved_gb']:.0f}",
        "trainer − engine": f"{mean['training/rollout_probs_diff_mean']:.1e}",
    }


def main(arguments: argparse.Namespace) -> None:
    work = Work(arguments.prompts, arguments.rollouts, arguments.response_length)
    shape = SHAPES[arguments.shape]
    folder = arguments.out.resolve()
    widest = experiment(arguments, work, max(arguments.gpus), arguments.arms[0])
    script("download", widest, out=folder / "raw")
    model = folder / arguments.shape
    parameters = make_model(shape, prompt_texts(widest, folder / "raw" / "train.jsonl"), model)
    script("preprocess", widest, data=folder / "raw", model=model, out=folder / "data")
    names = machine.hardware()["gpus"]
    peak = next((peak for name, peak in PEAKS.items() if names and name in names[0]), None)
    print(
        f"{arguments.shape}, {parameters / 1e9:.2f} billion parameters, {', '.join(names) or 'no GPU'}; each GPU and "
        f"step: {work.prompts} prompts × {work.rollouts} responses, {work.lengths().sum()} tokens, the longest "
        f"{work.lengths().max()}; {arguments.steps - 1} steps measured."
    )
    rows, failed = [], []
    for gpus in arguments.gpus:
        for arm in arguments.arms:
            config = experiment(arguments, work, gpus, arm)
            try:
                frame = measure(config, folder / f"{arm}-{gpus}", folder / "data", model)
            except UserError as error:
                failed.append(f"{arm} on {gpus} GPUs: {error}")
                continue
            prompt = frame["prompt_length/mean"].mean()
            bounds = decode_bounds(shape, parameters, work, prompt, peak) if peak else None
            rows.append(row(arm, gpus, frame, work, bounds))
            print(pd.DataFrame(rows).to_markdown(index=False, disable_numparse=True), flush=True)
    if failed:
        sys.exit("\n".join(failed))


if __name__ == "__main__":
    command = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    command.add_argument("--shape", choices=SHAPES, default="qwen2.5-3b", help="the model's architecture")
    command.add_argument("--arms", nargs="+", choices=ARMS, default=["seed", "ours"], help="settings to measure")
    command.add_argument("--gpus", nargs="+", type=int, default=[1], help="numbers of GPUs to measure with")
    command.add_argument("--steps", type=int, default=4, help="training steps of each; the first is not measured")
    command.add_argument("--prompts", type=int, default=32, help="of each GPU and step")
    command.add_argument("--rollouts", type=int, default=16, help="of each prompt")
    command.add_argument("--micro-batch", type=int, default=32, help="rows of a micro-batch, without a token budget")
    command.add_argument("--response-length", type=int, default=1024, help="of the longest response, in tokens")
    command.add_argument("--threads", type=int, default=16, help="CPU threads")
    command.add_argument("--platform", choices=("cuda", "cpu"), default="cuda")
    command.add_argument("--out", type=Path, default=Path("results/gpu_step"), help="the folder to work in")
    main(command.parse_args())
