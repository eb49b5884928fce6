"""Intervals and tests for paired evaluations; the mathematics is scipy's and statsmodels'."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import bootstrap
from statsmodels.stats.contingency_tables import mcnemar
from statsmodels.stats.proportion import proportion_confint

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Proportion:
    """A share of successes with its Wilson interval at 95%."""

    successes: int
    n: int
    low: float
    high: float

    @property
    def value(self) -> float:
        return self.successes / self.n


def proportion(outcomes: Sequence[bool]) -> Proportion:
    """The share of true outcomes.

    Raises:
        ValueError: when there are none.
    """
    n = len(outcomes)
    if not n:
        raise ValueError("a proportion needs at least one outcome")
    successes = int(np.sum(outcomes))
    low, high = proportion_confint(successes, n, alpha=1 - CONFIDENCE, method="wilson")
    return Proportion(successes, n, float(low), float(high))


@dataclass(frozen=True)
class PairedComparison:
    """Two evaluations of the same items.

    Attributes:
        both, only_first, only_second, neither: the 2x2 table of right answers.
        difference: second minus first, as a share.
        low, high: bootstrap (BCa over items) interval of the difference at 95%.
        p_value: exact two-sided McNemar test.
    """

    both: int
    only_first: int
    only_second: int
    neither: int
    difference: float
    low: float
    high: float
    p_value: float

    @property
    def n(self) -> int:
        return self.both + self.only_first + self.only_second + self.neither

    @property
    def verdict(self) -> str:
        """`improved`, `worse` or `not distinguishable` at the 5% level."""
        if self.p_value >= 1 - CONFIDENCE:
            return "not distinguishable"
        return "improved" if self.difference > 0 else "worse"


def compare_paired(first: Sequence[bool], second: Sequence[bool], seed: int) -> PairedComparison:
    """Compares outcomes of the same items, given in the same order.

    Raises:
        ValueError: when the numbers of items differ or are zero.
    """
    if len(first) != len(second) or not len(first):
        raise ValueError(f"paired outcomes need the same items, at least one: got {len(first)} and {len(second)}")
    a, b = np.asarray(first, bool), np.asarray(second, bool)
    table = [[int((a & b).sum()), int((a & ~b).sum())], [int((~a & b).sum()), int((~a & ~b).sum())]]
    differences = b.astype(float) - a.astype(float)
    low = high = float(differences.mean())
    if np.ptp(differences) > 0:
        interval = bootstrap(
            (differences,), np.mean, n_resamples=5000, confidence_level=CONFIDENCE, rng=np.random.default_rng(seed)
        ).confidence_interval
        low, high = float(interval.low), float(interval.high)
    return PairedComparison(
        both=table[0][0],
        only_first=table[0][1],
        only_second=table[1][0],
        neither=table[1][1],
        difference=float(differences.mean()),
        low=low,
        high=high,
        p_value=float(mcnemar(table, exact=True).pvalue),
    )
