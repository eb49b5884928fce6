"""The benchmark of a GPU's training step: what can be checked of it without a GPU."""

import sys
from pathlib import Path

import pytest
from conftest import ROOT

sys.path.append(str(ROOT / "benchmarks"))

import gpu_step
from gpu_step import SHAPES, VOCABULARY, Work


def test_forced_lengths_are_the_same_work_for_every_prompt() -> None:
    work = Work(prompts=3, rollouts=16, response_length=1024)
    lengths = work.lengths().reshape(3, 16)
    assert (lengths == lengths[0]).all() and lengths.max() <= 1024 and lengths.min() >= 16
    assert lengths[0].mean() == pytest.approx(1024 * 0.25 * 1.25, rel=0.05), "a log-normal mean is above its median"


def test_the_decode_bounds_count_every_byte_and_every_multiplication() -> None:
    shape, work = SHAPES["tiny"], Work(prompts=2, rollouts=2, response_length=64)
    cache = 2 * 2 * 2 * 1 * 32  # keys and values, two bytes, two layers, one head of 32
    reading = longer = 0.0
    for step in range(max(work.lengths())):
        unfinished = [length for length in work.lengths() if step < length]
        read = (2 * 1000 + sum(cache * (10 + step) for _ in unfinished)) / 1e6
        reading, longer = reading + read, longer + max(read, 2 * 1000 * len(unfinished) / 1e5)
    bounds = gpu_step.decode_bounds(shape, 1000, work, 10, gpu_step.Peak(1e6, 1e5))
    assert bounds == pytest.approx((reading, longer)) and bounds[0] < bounds[1]


def test_every_id_of_the_random_model_decodes(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    parameters = gpu_step.make_model(SHAPES["tiny"], ["How many are 3 and 4?"] * 3, tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert len(tokenizer) == VOCABULARY and parameters > VOCABULARY * SHAPES["tiny"]["hidden_size"]
    assert all(tokenizer.decode([number]) for number in (500, 100_000, VOCABULARY - 1))
    assert tokenizer.decode(tokenizer("How many are 3 and 4?")["input_ids"]) == "How many are 3 and 4?"
