"""Mean, median, trimmed mean and mean around median against plain loops."""

import itertools
import math
from statistics import fmean

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from holdout.rules import mean, mean_around_median, median, trimmed_mean
from holdout.rules.coordinatewise import _network

INF, NAN = math.inf, math.nan


@st.composite
def updates_with_ties(draw, least=1):
    """Rows on a coarse grid, so that ties are common and float64 sums are exact."""
    n, d = draw(st.integers(least, 12)), draw(st.integers(1, 4))
    row = st.lists(st.integers(-8, 8).map(lambda i: i / 4), min_size=d, max_size=d)
    return torch.tensor(draw(st.lists(row, min_size=n, max_size=n)))


def plain_median(values):
    ordered, n = sorted(values), len(values)
    return (ordered[(n - 1) // 2] + ordered[n // 2]) / 2


def plain_trimmed_mean(values, f):
    return fmean(sorted(values)[f : len(values) - f])


def plain_mean_around_median(values, count):
    centre = plain_median(values)
    ranking = sorted(range(len(values)), key=lambda i: (abs(values[i] - centre), i))
    return fmean(values[i] for i in ranking[:count])


def per_coordinate(plain, updates: Tensor, *arguments) -> Tensor:
    return torch.tensor([plain(column, *arguments) for column in updates.T.tolist()])


def close(result: Tensor, expected: Tensor) -> bool:
    return torch.allclose(result, expected.to(result.dtype), rtol=1e-5, atol=1e-6)


@given(updates_with_ties(), st.integers(0, 12))
def test_mean_is_the_average_whatever_f(updates, f):
    assert close(mean(updates, f=f), per_coordinate(fmean, updates))


@given(updates_with_ties())
def test_median_equals_the_plain_median(updates):
    f = (len(updates) - 1) // 2
    assert torch.equal(median(updates, f=f), per_coordinate(plain_median, updates))


@given(updates_with_ties(), st.data())
def test_trimmed_mean_equals_the_plain_one(updates, data):
    f = data.draw(st.integers(0, (len(updates) - 1) // 2))
    assert close(trimmed_mean(updates, f=f), per_coordinate(plain_trimmed_mean, updates, f))


@given(updates_with_ties(), st.data())
def test_mean_around_median_equals_the_plain_one(updates, data):
    f = data.draw(st.integers(0, (len(updates) - 1) // 2))
    expected = per_coordinate(plain_mean_around_median, updates, len(updates) - f)
    assert close(mean_around_median(updates, f=f), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("d", [1, 32_768, 32_769, 70_001])
def test_blocks_leave_no_seam(d, dtype):
    updates = torch.randn(11, d, generator=torch.Generator().manual_seed(d)).to(dtype)
    ordered = np.sort(updates.double().numpy(), axis=0)
    assert close(median(updates, f=5), torch.from_numpy(ordered[5]))
    assert close(trimmed_mean(updates, f=3), torch.from_numpy(ordered[3:8].mean(axis=0)))
    distance = (updates - updates.median(dim=0).values).abs()
    nearest = updates.gather(0, distance.argsort(dim=0, stable=True)[:8]).double().mean(dim=0)
    assert close(mean_around_median(updates, f=3), nearest)


@pytest.mark.parametrize("n", range(1, 11))
def test_the_network_sorts_every_input_of_zeros_and_ones(n):
    # By the zero-one principle it then sorts everything.
    for wanted in (range(n), range((n - 1) // 2, n // 2 + 1)):
        for bits in itertools.product((0, 1), repeat=n):
            values = list(bits)
            for low, high, need_low, need_high in _network(n, wanted):
                pair = sorted((values[low], values[high]))
                values[low] = pair[0] if need_low else NAN
                values[high] = pair[1] if need_high else NAN
            assert all(values[i] == sorted(bits)[i] for i in wanted)


def test_of_two_values_equally_far_from_the_median_the_lower_row_is_kept():
    low_first = torch.tensor([[-4.0], [0.0], [4.0]])
    assert mean_around_median(low_first, f=1).item() == -2.0
    assert mean_around_median(low_first.flip(0), f=1).item() == 2.0


def test_a_tie_in_one_coordinate_leaves_the_others_alone():
    updates = torch.tensor([[4.0, 1.0, 9.0], [0.0, 2.0, 0.0], [-4.0, 5.0, 0.0]])
    assert mean_around_median(updates, f=1).tolist() == [2.0, 1.5, 0.0]


def test_the_even_median_of_huge_values_does_not_overflow():
    updates = torch.tensor([[3e38], [3.2e38]])
    assert median(updates, f=0).item() == pytest.approx(3.1e38, rel=1e-6)


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_mean_hands_on_what_is_not_finite(bad):
    assert not mean(torch.tensor([[1.0], [bad], [2.0]]), f=1).isfinite().any()


def test_nan_counts_as_larger_than_everything():
    updates = torch.tensor([[NAN], [1.0], [2.0], [INF], [3.0]])
    assert median(updates, f=2).item() == 3.0
    assert trimmed_mean(updates, f=2).item() == 3.0
    assert mean_around_median(updates, f=2).item() == 2.0


@pytest.mark.parametrize("rule", [median, trimmed_mean, mean_around_median])
@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_a_majority_that_is_not_finite_never_gives_a_finite_result(rule, bad):
    assert not rule(torch.tensor([[1.0], [bad], [bad], [bad], [2.0]]), f=1).isfinite().any()
