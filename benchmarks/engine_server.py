"""What vLLM's server process computes for each generated token, with and without an output for every token.

    python benchmarks/engine_server.py --model results/models/start/model

The server is this process, and the engine another: with hundreds of requests and a fast GPU, the server is what limits
generation. Settings take turns, so that a noisy machine is noisy for all of them; medians are printed.
"""

import argparse
import asyncio
import os
import sys
import time
from pathlib import Path
from typing import Any

import pandas as pd

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))

from toolrl.verl_bridge.launch import VLLM_ON_CPU  # noqa: E402

PROMPT_TOKENS = 20


async def answer(engine: Any, name: str, tokens: int, options: dict[str, Any]) -> None:
    from vllm import SamplingParams

    parameters = SamplingParams(max_tokens=tokens, ignore_eos=True, logprobs=0, **options)
    async for output in engine.generate({"prompt_token_ids": [5] * PROMPT_TOKENS}, parameters, request_id=name):
        last = output
    assert len(last.outputs[0].token_ids) == len(last.outputs[0].logprobs) == tokens


async def measure(arguments: argparse.Namespace) -> pd.DataFrame:
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.sampling_params import RequestOutputKind
    from vllm.v1.engine.async_llm import AsyncLLM

    engine = AsyncLLM.from_engine_args(
        AsyncEngineArgs(
            model=str(arguments.model),
            max_num_seqs=arguments.requests,
            max_model_len=PROMPT_TOKENS + arguments.tokens,
        )
    )
    settings: dict[str, dict[str, Any]] = {
        "an output for every token": {},
        "without text": {"detokenize": False},
        "one output at the end": {"output_kind": RequestOutputKind.FINAL_ONLY},
        "one output at the end, without text": {"output_kind": RequestOutputKind.FINAL_ONLY, "detokenize": False},
    }
    rows = []
    for turn in range(arguments.turns + 1):
        for name, options in settings.items():
            computed, started = time.process_time(), time.monotonic()
            requests = (
                answer(engine, f"{turn}-{name}-{number}", arguments.tokens, options)
                for number in range(arguments.requests)
            )
            await asyncio.gather(*requests)
            microseconds = 1e6 * (time.process_time() - computed) / (arguments.requests * arguments.tokens)
            rows.append(
                {
                    "turn": turn,
                    "settings": name,
                    "server's µs/token": microseconds,
                    "seconds": time.monotonic() - started,
                }
            )
    engine.shutdown()
    return pd.DataFrame(rows)


def main(arguments: argparse.Namespace) -> None:
    os.environ |= VLLM_ON_CPU
    frame = asyncio.run(measure(arguments))
    table = frame[frame["turn"] > 0].groupby("settings", sort=False).median().drop(columns="turn")
    table["ratio"] = table["server's µs/token"] / table["server's µs/token"].iloc[0]
    print(table.to_markdown(floatfmt=("", ".1f", ".2f", ".2f")))


if __name__ == "__main__":
    command = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    command.add_argument("--model", type=Path, required=True, help="a model folder")
    command.add_argument("--requests", type=int, default=256, help="at once")
    command.add_argument("--tokens", type=int, default=100, help="of each answer")
    command.add_argument("--turns", type=int, default=5, help="of each setting; one more goes before")
    main(command.parse_args())
