"""Checks the report's statistics by simulation: coverage of the intervals, false alarms of the verdict, its power.

python benchmarks/coverage_and_power.py [--data-sets 2000]
"""

import argparse
import sys
from pathlib import Path

import numpy as np
from scipy.stats import binom, binomtest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))

from toolrl.stats import compare_paired, proportion_of  # noqa: E402

SIZES = (200, 256, 1319)
SHARES = (0.1, 0.3, 0.5, 0.7, 0.9)
# probabilities that an item is right in the first model only, and in the second model only
PAIRED = ((0.05, 0.05), (0.05, 0.15), (0.1, 0.3))
AA_COMPARISONS = 500
EFFECTS = (0.02, 0.05, 0.08, 0.1, 0.15)
DISCORDANT = 0.25


def main(arguments: argparse.Namespace) -> None:
    rng = np.random.default_rng(arguments.seed)
    count = arguments.data_sets
    print(f"Wilson intervals: coverage over {count} data sets\n")
    print("| N | " + " | ".join(f"p = {p}" for p in SHARES) + " | mean |")
    print("|---|" + "---|" * (len(SHARES) + 1))
    for n in SIZES:
        row = [_wilson_coverage(n, p, count, rng) for p in SHARES]
        print(f"| {n} | " + " | ".join(f"{100 * share:.1f}%" for share in [*row, float(np.mean(row))]) + " |")
    print("\nWilson intervals: exact coverage, by enumeration\n")
    print("| N | " + " | ".join(f"p = {p}" for p in SHARES) + " |")
    print("|---|" + "---|" * len(SHARES))
    for n in SIZES:
        print(f"| {n} | " + " | ".join(f"{100 * _wilson_exact(n, p):.1f}%" for p in SHARES) + " |")
    print(f"\nBootstrap intervals of the paired difference: coverage over {count} data sets\n")
    print("| N | " + " | ".join(f"broken {a}, fixed {b}" for a, b in PAIRED) + " |")
    print("|---|" + "---|" * len(PAIRED))
    for n in SIZES:
        row = [_paired_coverage(n, a, b, count, rng) for a, b in PAIRED]
        print(f"| {n} | " + " | ".join(f"{100 * share:.1f}%" for share in row) + " |")
    print(f"\nA/A: {AA_COMPARISONS} comparisons of a model with itself, a quarter of the items flipping at random\n")
    for n in SIZES:
        verdicts = [_verdict(n, DISCORDANT / 2, DISCORDANT / 2, rng) for _ in range(AA_COMPARISONS)]
        alarms = AA_COMPARISONS - verdicts.count("not distinguishable")
        limit = binomtest(alarms, AA_COMPARISONS).proportion_ci(0.95, method="wilson")
        share = f"{100 * alarms / AA_COMPARISONS:.1f}%, 95% interval {100 * limit.low:.1f} to {100 * limit.high:.1f}"
        exact = f"{100 * _exact_size(n, DISCORDANT):.1f}% by enumeration"
        print(f"* N = {n}: {alarms} verdicts of improved or worse ({share}); {exact}")
    print(f"\nPower: share of verdicts `improved`, {DISCORDANT:.0%} of the items discordant, 500 data sets\n")
    print("| N | " + " | ".join(f"+{100 * effect:.0f} points" for effect in EFFECTS) + " |")
    print("|---|" + "---|" * len(EFFECTS))
    for n in (200, 1319):
        row = [_power(n, effect, rng) for effect in EFFECTS]
        print(f"| {n} | " + " | ".join(f"{100 * share:.0f}%" for share in row) + " |")


def _wilson_coverage(n: int, p: float, count: int, rng: np.random.Generator) -> float:
    successes = rng.binomial(n, p, count)
    known = {int(k): proportion_of(int(k), n) for k in np.unique(successes)}
    return float(np.mean([known[int(k)].low <= p <= known[int(k)].high for k in successes]))


def _wilson_exact(n: int, p: float) -> float:
    shares = ((k, proportion_of(k, n)) for k in range(n + 1))
    return float(sum(binom.pmf(k, n, p) for k, share in shares if share.low <= p <= share.high))


def _draw(n: int, broken: float, fixed: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Outcomes of n items in two models; the items on which both agree are half right, half wrong."""
    kind = rng.choice(4, n, p=[broken, fixed, (1 - broken - fixed) / 2, (1 - broken - fixed) / 2])
    return np.isin(kind, (0, 2)), np.isin(kind, (1, 2))


def _paired_coverage(n: int, broken: float, fixed: float, count: int, rng: np.random.Generator) -> float:
    covered = 0
    for number in range(count):
        found = compare_paired(*_draw(n, broken, fixed, rng), seed=number)
        covered += found.low <= fixed - broken <= found.high
    return covered / count


def _verdict(n: int, broken: float, fixed: float, rng: np.random.Generator) -> str:
    return compare_paired(*_draw(n, broken, fixed, rng), seed=0).verdict


def _exact_size(n: int, discordant: float) -> float:
    """How often the exact McNemar test rejects at 5% where fixed and broken items are equally likely."""
    rejected = []
    for d in range(n + 1):
        tails = 2 * binom.cdf(range(d // 2 + 1), d, 0.5)
        rejected.append(max(tails[tails < 0.05], default=0.0))
    return float(np.dot(binom.pmf(range(n + 1), n, discordant), rejected))


def _power(n: int, effect: float, rng: np.random.Generator) -> float:
    verdicts = [_verdict(n, (DISCORDANT - effect) / 2, (DISCORDANT + effect) / 2, rng) for _ in range(500)]
    return verdicts.count("improved") / len(verdicts)


if __name__ == "__main__":
    command = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    command.add_argument("--data-sets", type=int, default=2000, help="simulated data sets for each coverage")
    command.add_argument("--seed", type=int, default=1, help="of the simulation")
    main(command.parse_args())
