"""The geometric median against a plain minimisation and its own condition of optimality."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from holdout.rules import geometric_median


def summed_distance(rows, point):
    return float(np.sqrt(np.square(rows - point).sum(axis=1)).sum())


def plain_least_sum(rows):
    """The least sum that smoothed Weiszfeld steps or the rows themselves reach."""
    point = rows.mean(axis=0)
    for _ in range(1_500):
        weights = 1 / np.sqrt(np.square(rows - point).sum(axis=1) + 1e-20)
        point = weights @ rows / weights.sum()
    return min(summed_distance(rows, p) for p in (point, *rows))


@st.composite
def updates_with_twins(draw):
    n, d = draw(st.integers(1, 12)), draw(st.integers(1, 4))
    row = st.lists(st.integers(-6, 6).map(lambda i: i / 2), min_size=d, max_size=d)
    pool = draw(st.lists(row, min_size=1, max_size=n))
    return torch.tensor([draw(st.sampled_from(pool)) for _ in range(n)], dtype=torch.float64)


@settings(max_examples=60)
@given(updates_with_twins())
def test_no_other_point_has_a_smaller_summed_distance(updates):
    rows = updates.numpy()
    result = geometric_median(updates, f=0).numpy()
    least = plain_least_sum(rows)
    assert summed_distance(rows, result) <= least * (1 + 1e-7) + 1e-9


@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_the_unit_forces_balance_in_many_dimensions(offset):
    generator = torch.Generator().manual_seed(1)
    updates = offset + torch.randn(15, 20_000, generator=generator, dtype=torch.float64)
    pulls = updates - geometric_median(updates, f=3)
    assert (pulls / pulls.norm(dim=1, keepdim=True)).sum(dim=0).norm() < 1e-6


def test_a_majority_of_equal_updates_is_returned_exactly():
    updates = torch.tensor([[9.0, -9.0], [0.1, 0.2], [0.1, 0.2], [5.0, 5.0], [0.1, 0.2]])
    assert torch.equal(geometric_median(updates, f=2), updates[1])


def test_an_update_inside_a_triangle_of_others_is_the_median():
    updates = torch.tensor([[0.0, 3.0], [3.0, -3.0], [-3.0, -3.0], [0.25, -0.5]])
    assert torch.equal(geometric_median(updates, f=1), updates[3])


def test_a_start_that_lands_on_an_update_is_left_again():
    # The coordinate-wise median is the third update, yet the others pull it away.
    updates = torch.tensor(
        [[5.0, 0.0, 0.0], [0.0, 5.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 5.0], [5.0, 5.0, 5.0]],
        dtype=torch.float64,
    )
    result = geometric_median(updates, f=1)
    pulls = updates - result
    assert pulls.norm(dim=1).min() > 0.1
    assert (pulls / pulls.norm(dim=1, keepdim=True)).sum(dim=0).norm() < 1e-6


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_rows_that_are_not_finite_are_left_out(bad):
    updates = torch.randn(9, 50, generator=torch.Generator().manual_seed(2))
    spoilt = updates.clone()
    spoilt[2, 7] = spoilt[5, 0] = bad
    expected = geometric_median(updates[[0, 1, 3, 4, 6, 7, 8]], f=0)
    assert torch.allclose(geometric_median(spoilt, f=2), expected, atol=1e-5)


def test_a_huge_row_pulls_with_unit_force_only():
    # The pull of a far row depends on its direction alone.
    updates = torch.randn(9, 50, generator=torch.Generator().manual_seed(3))
    far, farther = updates.clone(), updates.clone()
    far[4], farther[4] = 1e9, 3e38
    result = geometric_median(farther, f=1)
    assert torch.allclose(result, geometric_median(far, f=1), atol=1e-5)
    assert (result - updates[0]).norm() < 20


def test_rows_too_far_for_float64_are_left_out():
    updates = torch.randn(7, 5, generator=torch.Generator().manual_seed(4)).double()
    spoilt = torch.cat([updates, torch.full((1, 5), 1e300, dtype=torch.float64)])
    expected = geometric_median(updates, f=0)
    assert torch.allclose(geometric_median(spoilt, f=1), expected, atol=1e-6)


def test_nothing_finite_gives_nan():
    assert geometric_median(torch.full((3, 2), math.inf), f=1).isnan().all()
