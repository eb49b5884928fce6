"""Scorer throughput beside verl's own GSM8K scorer and math-verify, on the same episodes in one run.

Prints a Markdown table of episodes per second and the ratio to ours, best of three rounds on the same final messages
(solutions, lengthened with prose), and with --cases how many hand-made verdicts each scorer agrees with.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

from toolrl.data.procedural import generate
from toolrl.tasks.gsm8k import TASK

PROSE = "Let us think about what is asked and write every step down before we answer. " * 4


def episodes(file: Path | None, count: int) -> list[tuple[str, str]]:
    if file:
        rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()][:count]
    else:
        rows = generate(count, 1, seed=0)[0]
    problems = [TASK.problem(row) for row in rows]
    return [(f"{PROSE}\n{problem.solution}", problem.ground_truth) for problem in problems]


def scorers() -> dict[str, Callable[[str, str], object]]:
    from math_verify import parse, verify
    from verl.utils.reward_score.gsm8k import compute_score

    return {
        "toolrl": lambda text, gold: TASK.score(text, gold),
        "verl gsm8k (strict)": lambda text, gold: compute_score(text, gold, method="strict"),
        "verl gsm8k (flexible)": lambda text, gold: compute_score(text, gold, method="flexible"),
        "math-verify": lambda text, gold: verify(parse(gold), parse(text)),
    }


def agreement(score: Callable[[str, str], object], file: Path) -> str:
    """How many of the file's final messages (`text`, `gold`, `expected_correct`) get the expected verdict."""
    cases = [case for case in json.loads(file.read_text(encoding="utf-8"))["cases"] if case["kind"] == "final"]
    agreed = sum(_is_right(score(case["text"], case["gold"])) == case["expected_correct"] for case in cases)
    return f"{agreed} of {len(cases)}"


def _is_right(result: object) -> bool:
    return bool(getattr(result, "value_correct", result))


def rate(score: Callable[[str, str], object], data: list[tuple[str, str]]) -> float:
    best = float("inf")
    for _ in range(3):
        started = time.perf_counter()
        for text, gold in data:
            score(text, gold)
        best = min(best, time.perf_counter() - started)
    return len(data) / best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="a .jsonl file of question/answer rows instead of generated ones")
    parser.add_argument("--cases", type=Path, help="a JSON file of answer cases")
    parser.add_argument("--count", type=int, default=2000, help="episodes to score")
    arguments = parser.parse_args()
    data = episodes(arguments.data, arguments.count)
    rates = {name: rate(score, data) for name, score in scorers().items()}
    print("| scorer | episodes/s | ratio to toolrl | agrees with |\n|---|---|---|---|")
    for name, score in scorers().items():
        agreed = agreement(score, arguments.cases) if arguments.cases else "not asked"
        print(f"| {name} | {rates[name]:.0f} | {rates[name] / rates['toolrl']:.2f} | {agreed} |")


if __name__ == "__main__":
    main()
