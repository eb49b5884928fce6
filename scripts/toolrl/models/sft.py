"""Supervised fine-tuning on conversations with tool calls, through transformers' Trainer.

Not TRL's: verl 0.9.1 imports `trl.AutoModelForCausalLMWithValueHead` wherever TRL is installed
(`verl.models.transformers.monkey_patch`), and current TRL no longer has it, so the two cannot share an environment.
"""

import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from toolrl.cli import log
from toolrl.errors import UserError
from toolrl.models.sources import loading_problem
from toolrl.tasks.base import Message

IGNORED = -100
"""The label of a token that is not trained on (PyTorch's cross-entropy leaves it out)."""


def tokenize_conversations(
    conversations: Sequence[Sequence[Message]], tools: Sequence[Mapping[str, Any]], tokenizer: Any
) -> list[dict[str, list[int]]]:
    """Token ids of each conversation and labels of the same length: the token where the assistant wrote it, else -100.

    A prompt is tokenized exactly as in a rollout: everything before an assistant's turn, with the generation prompt.

    Raises:
        UserError: when the chat template is not append-only, so that this cannot be told.
    """
    prompts, wholes = [], []
    for conversation in conversations:
        for position, message in enumerate(conversation):
            if message["role"] == "assistant":
                prompts.append(list(conversation[:position]))
                wholes.append(list(conversation[: position + 1]))
    prompt_ids = _tokenize(prompts, tools, tokenizer, True)
    whole_ids = _tokenize(wholes, tools, tokenizer, False)
    eos = tokenizer.eos_token_id
    examples = []
    turn = 0
    for conversation in conversations:
        ids: list[int] = []
        labels: list[int] = []
        for _ in (message for message in conversation if message["role"] == "assistant"):
            prompt, whole = prompt_ids[turn], whole_ids[turn]
            turn += 1
            if whole[: len(prompt)] != prompt or prompt[: len(ids)] != ids:
                raise UserError(
                    "the model's chat template is not append-only (a later turn changes the text before it), so a "
                    "warm start cannot tell which tokens to train on; use another model or chat template."
                )
            reply = whole[len(prompt) :]
            ends = max((i + 1 for i, token in enumerate(reply) if token == eos), default=len(reply))
            labels += [IGNORED] * (len(prompt) - len(ids)) + reply[:ends] + [IGNORED] * (len(reply) - ends)
            ids = whole
        examples.append({"input_ids": ids, "labels": labels})
    return examples


def _tokenize(
    chats: Sequence[list[Message]], tools: Sequence[Mapping[str, Any]], tokenizer: Any, generation_prompt: bool
) -> list[list[int]]:
    texts = tokenizer.apply_chat_template(
        chats, tools=list(tools) or None, add_generation_prompt=generation_prompt, tokenize=False
    )
    return tokenizer(texts, add_special_tokens=False)["input_ids"]


def train(
    model_folder: Path,
    tokenizer: Any,
    examples: Sequence[Mapping[str, list[int]]],
    settings: Mapping[str, Any],
    seed: int,
    threads: int,
    on_gpu: bool,
    out: Path,
) -> list[dict[str, float]]:
    """Trains on the examples and saves the model to `out/model`; returns the logged losses (step, loss).

    Raises:
        UserError: when the training diverges.
    """
    import torch
    from datasets import Dataset
    from transformers import (
        AutoModelForCausalLM,
        DataCollatorForSeq2Seq,
        PrinterCallback,
        Trainer,
        TrainerCallback,
        TrainingArguments,
    )

    torch.set_num_threads(threads)
    started = time.monotonic()

    class Progress(TrainerCallback):
        """A line every few steps, with the time left; no step after a loss that is no number."""

        def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            logs = kwargs.get("logs")
            if logs and "loss" in logs:
                elapsed = time.monotonic() - started
                left = elapsed / state.global_step * (state.max_steps - state.global_step)
                log.info(
                    "warm start: step %d/%d, loss %.3f, %.0f s left",
                    state.global_step,
                    state.max_steps,
                    logs["loss"],
                    left,
                )
                if not math.isfinite(logs["loss"]):
                    raise UserError(_diverged(f"the loss is {logs['loss']} at step {state.global_step}"))

    if on_gpu:
        # cuDNN's kernel returns NaN gradients where a mask is given and the length is 64 more than a multiple of 128,
        # from torch 2.11 on (https://github.com/pytorch/pytorch/issues/196678)
        torch.backends.cuda.enable_cudnn_sdp(False)
    model = AutoModelForCausalLM.from_pretrained(
        model_folder, dtype=torch.float32, attn_implementation="sdpa" if on_gpu else "eager"
    )
    trainer = Trainer(
        model=model,
        processing_class=tokenizer,
        train_dataset=Dataset.from_list([dict(example) for example in examples]),
        args=TrainingArguments(
            output_dir=str(out / "trainer"),
            num_train_epochs=settings["epochs"],
            per_device_train_batch_size=settings["batch_size"],
            learning_rate=settings["learning_rate"],
            lr_scheduler_type="cosine",
            warmup_steps=0.1,
            adam_beta2=0.98,
            bf16=settings["precision"] == "bfloat16",
            use_cpu=not on_gpu,
            gradient_checkpointing=False,
            dataloader_pin_memory=on_gpu,
            logging_steps=25,
            logging_nan_inf_filter=False,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            seed=seed,
            data_seed=seed,
        ),
        data_collator=DataCollatorForSeq2Seq(tokenizer),
        callbacks=[Progress()],
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    model.save_pretrained(out / "model")
    tokenizer.save_pretrained(out / "model")
    if problem := loading_problem(out / "model"):
        raise UserError(_diverged(f"the model {problem}"))
    return [{"step": entry["step"], "loss": entry["loss"]} for entry in trainer.state.log_history if "loss" in entry]


def usable_precision(asked: str, on_gpu: bool) -> str:
    """The precision of matrix products: what is asked, or for "auto" bfloat16 where the hardware has it, else float32.

    A CPU without it computes such a product element by element, some 85 times as long as in float32.
    """
    import torch

    if asked != "auto":
        return asked
    return "bfloat16" if on_gpu or torch.ops.mkldnn._is_mkldnn_bf16_supported() else "float32"


def _diverged(evidence: str) -> str:
    return f"the warm start diverged: {evidence}. Lower warm_start.learning_rate, or set warm_start.precision: float32."
