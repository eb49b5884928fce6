"""Intervals and tests for paired evaluations; the mathematics is scipy's and statsmodels'."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from scipy.special import comb
from scipy.stats import bootstrap, permutation_test, sem, t
from statsmodels.stats.contingency_tables import mcnemar
from statsmodels.stats.multitest import multipletests
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
    return proportion_of(int(np.sum(outcomes)), len(outcomes))


def proportion_of(successes: int, n: int) -> Proportion:
    """A share with its interval, from counts.

    Raises:
        ValueError: when n is zero.
    """
    if not n:
        raise ValueError("a proportion needs at least one outcome")
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
        adjusted_p: Holm's, where it is one of several comparisons; the verdict is by it.
    """

    both: int
    only_first: int
    only_second: int
    neither: int
    difference: float
    low: float
    high: float
    p_value: float
    adjusted_p: float

    @property
    def n(self) -> int:
        return self.both + self.only_first + self.only_second + self.neither

    @property
    def verdict(self) -> str:
        """`improved`, `worse` or `not distinguishable` at the 5% level."""
        if self.adjusted_p >= 1 - CONFIDENCE:
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
    difference = bootstrap_mean(b.astype(float) - a.astype(float), seed)
    p_value = float(mcnemar(table, exact=True).pvalue)
    return PairedComparison(
        both=table[0][0],
        only_first=table[0][1],
        only_second=table[1][0],
        neither=table[1][1],
        difference=difference.value,
        low=difference.low,
        high=difference.high,
        p_value=p_value,
        adjusted_p=p_value,
    )


def pass_at_k(correct: Sequence[int], n: int, k: int) -> np.ndarray:
    """The unbiased estimate of pass@k for each item (Chen et al. 2021, arXiv:2107.03374): the probability that at least
    one of k samples, drawn without replacement from the n taken, is right.

    Args:
        correct: how many of the n samples of each item are right.
    """
    if not 1 <= k <= n:
        raise ValueError(f"pass@{k} needs at least {k} samples, not {n}")
    counts = np.asarray(correct)
    return 1 - comb(n - counts, k) / comb(n, k)


@dataclass(frozen=True)
class Mean:
    """A mean with its interval at 95%."""

    value: float
    n: int
    low: float
    high: float


def bootstrap_mean(values: Sequence[float] | np.ndarray, seed: int) -> Mean:
    """The mean over items, with a bootstrap (BCa) interval over the items."""
    data = np.asarray(values, float)
    mean = float(data.mean())
    if np.ptp(data) == 0:
        return Mean(mean, len(data), mean, mean)
    interval = bootstrap(
        (data,), np.mean, n_resamples=5000, confidence_level=CONFIDENCE, rng=np.random.default_rng(seed)
    ).confidence_interval
    return Mean(mean, len(data), float(interval.low), float(interval.high))


@dataclass(frozen=True)
class MeanComparison:
    """A measure's mean on the same items, twice.

    Attributes:
        difference: second minus first.
        low, high: bootstrap (BCa over items) interval of the difference at 95%.
        p_value: two-sided permutation test that exchanges the two values of items at random.
        adjusted_p: Holm's, where it is one of several comparisons.
    """

    difference: float
    low: float
    high: float
    p_value: float
    adjusted_p: float


def compare_means(first: np.ndarray, second: np.ndarray, seed: int) -> MeanComparison:
    """Compares a measure of the same items, given in the same order.

    Raises:
        ValueError: when the numbers of items differ or are zero.
    """
    if len(first) != len(second) or not len(first):
        raise ValueError(f"paired values need the same items, at least one: got {len(first)} and {len(second)}")
    differences = np.asarray(second, float) - np.asarray(first, float)
    test = permutation_test(
        (differences,), np.mean, permutation_type="samples", batch=1000, rng=np.random.default_rng(seed)
    )
    mean, p_value = bootstrap_mean(differences, seed), float(test.pvalue)
    return MeanComparison(mean.value, mean.low, mean.high, p_value, adjusted_p=p_value)


Comparison = TypeVar("Comparison", PairedComparison, MeanComparison)


def adjusted(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """The comparisons as one family: with Holm's adjusted p values."""
    p_values = holm([comparison.p_value for comparison in comparisons])
    return [replace(comparison, adjusted_p=p) for comparison, p in zip(comparisons, p_values)]


def t_mean(values: Sequence[float]) -> Mean:
    """The mean of several training seeds, with Student's interval.

    Raises:
        ValueError: for a single value, which has no spread.
    """
    if len(values) < 2:
        raise ValueError("an interval over training seeds needs at least two")
    mean, error = float(np.mean(values)), float(sem(values))
    half = float(t.ppf((1 + CONFIDENCE) / 2, len(values) - 1)) * error
    return Mean(mean, len(values), mean - half, mean + half)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's adjusted p values, in the given order."""
    if not p_values:
        return []
    return [float(p) for p in multipletests(p_values, method="holm")[1]]


def majority(answers: Sequence[str | None]) -> str | None:
    """The most frequent stated answer, the earliest of equals; None if none is stated."""
    stated = [answer for answer in answers if answer]
    return Counter(stated).most_common(1)[0][0] if stated else None
