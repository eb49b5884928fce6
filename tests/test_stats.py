"""The statistics against known values."""

import numpy as np
import pytest
from toolrl.stats import compare_paired, proportion


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
