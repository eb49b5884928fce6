"""The statistics against known values."""

import itertools

import numpy as np
import pytest
from toolrl.stats import adjusted, compare_means, compare_paired, holm, majority, pass_at_k, proportion, t_mean


def test_wilson_interval() -> None:
    share = proportion([True] * 8 + [False] * 2)
    # Brown, Cai and DasGupta (2001) give 0.490 to 0.943 for 8 of 10
    assert (share.value, round(share.low, 3), round(share.high, 3)) == (0.8, 0.49, 0.943)
    with pytest.raises(ValueError):
        proportion([])


def test_paired_comparison() -> None:
    first = [True] * 5 + [False] * 15
    second = [True] * 5 + [True] * 10 + [False] * 5
    result = compare_paired(first, second, seed=1)
    assert (result.both, result.only_first, result.only_second, result.neither) == (5, 0, 10, 5)
    assert result.p_value == pytest.approx(2 * 0.5**10)
    assert result.difference == 0.5 and result.low < 0.5 < result.high
    assert result.verdict == "improved"
    assert compare_paired(second, first, seed=1).verdict == "worse"


def test_no_difference_is_said_so() -> None:
    rng = np.random.default_rng(0)
    same = rng.random(50) < 0.5
    result = compare_paired(same, same, seed=1)
    assert (result.difference, result.p_value, result.verdict) == (0.0, 1.0, "not distinguishable")
    with pytest.raises(ValueError):
        compare_paired([True], [], seed=1)


def test_pass_at_k_is_the_unbiased_estimate() -> None:
    """Against the definition: the share of k-subsets of the samples with at least one right."""
    for n, correct, k in ((5, 2, 1), (5, 2, 3), (6, 0, 2), (6, 6, 2), (8, 1, 4)):
        samples = [True] * correct + [False] * (n - correct)
        subsets = list(itertools.combinations(samples, k))
        assert pass_at_k([correct], n, k)[0] == pytest.approx(sum(map(any, subsets)) / len(subsets))
    with pytest.raises(ValueError, match="pass@9 needs at least 9 samples"):
        pass_at_k([1], 8, 9)


def test_paired_means() -> None:
    rng = np.random.default_rng(0)
    first = rng.binomial(4, 0.3, 200) / 4
    better = compare_means(first, np.minimum(first + rng.binomial(1, 0.5, 200) / 4, 1), seed=1)
    assert 0 < better.low < better.difference < better.high and better.p_value < 0.001
    same = compare_means(first, rng.permutation(first), seed=1)
    assert same.difference == pytest.approx(0) and same.p_value > 0.05
    assert compare_means(first, first, seed=1).p_value == 1.0
    # two of the 2^5 exchanges of five equal differences are as extreme
    assert compare_means(np.zeros(5), np.ones(5), seed=1).p_value == pytest.approx(2 / 2**5)
    assert adjusted([better, better])[0].adjusted_p == pytest.approx(2 * better.p_value)
    with pytest.raises(ValueError, match="got 2 and 1"):
        compare_means(np.zeros(2), np.zeros(1), seed=1)


def test_holm() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([]) == []


def test_the_verdict_is_by_the_adjusted_p() -> None:
    first, second = [False] * 6 + [True] * 30, [True] * 36
    alone = compare_paired(first, second, seed=1)
    assert alone.verdict == "improved"
    family = adjusted([alone, alone, compare_paired(first, first, seed=1)])
    assert family[0].adjusted_p == pytest.approx(3 * alone.p_value) and family[0].verdict == "not distinguishable"


def test_mean_over_seeds_has_students_interval() -> None:
    mean = t_mean([0.5, 0.6, 0.7])
    # 4.303 is Student's 97.5% quantile for 2 degrees of freedom
    assert mean.value == pytest.approx(0.6) and mean.high - mean.value == pytest.approx(4.303 * 0.1 / 3**0.5, rel=1e-3)
    with pytest.raises(ValueError):
        t_mean([0.5])


def test_majority() -> None:
    assert majority(["7", "8", "8", None, ""]) == "8"
    assert majority(["7", "8"]) == "7" and majority([None, ""]) is None
