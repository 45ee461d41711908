"""Rules that shorten updates: by definition, from round to round, with what liars send."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from holdout.errors import UserError
from holdout.rules import RULES, RuleContext, centered_clipping, norm_bound_mean
from holdout.seeds import stream


def random_updates(n=15, d=40, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, d, generator=generator, dtype=torch.float64).to(dtype)


def context(state=None):
    return RuleContext(1, torch.zeros(1), 0.1, stream(0), {} if state is None else state)


def plain_centered_clipping(updates, centre, radius, iterations):
    """The definition, row by row."""
    rows, v = updates.double(), centre.double()
    for _ in range(iterations):
        total = torch.zeros_like(v)
        for row in rows:
            away = row - v
            total += away * min(1.0, radius / float(away.norm())) if away.any() else 0.0
        v = v + total / len(rows)
    return v.to(updates.dtype)


@given(
    st.integers(1, 12),
    st.integers(1, 30),
    st.floats(0.1, 20),
    st.integers(1, 5),
    st.integers(0, 1000),
)
def test_centered_clipping_equals_its_definition(n, d, radius, iterations, seed):
    updates, centre = random_updates(n, d, seed), random_updates(1, d, seed + 1)[0]
    kept = context({"centre": centre.clone()})
    result = centered_clipping(updates, f=0, context=kept, radius=radius, iterations=iterations)
    expected = plain_centered_clipping(updates, centre, radius, iterations)
    assert torch.allclose(result, expected, atol=1e-5)
    assert torch.equal(kept.state["centre"], result)


def test_centered_clipping_equals_its_definition_over_many_blocks_of_coordinates():
    updates = random_updates(7, 70_000)
    result = centered_clipping(updates, f=2, radius=100.0, iterations=2)
    expected = plain_centered_clipping(updates, torch.zeros(70_000), 100.0, 2)
    assert torch.allclose(result, expected, atol=1e-6)


def test_without_a_context_centered_clipping_starts_from_zero_every_time():
    updates = random_updates() + 9
    first = centered_clipping(updates, f=3, context=context())
    assert torch.equal(centered_clipping(updates, f=3), first)
    assert torch.equal(centered_clipping(updates, f=3), first)


def test_round_by_round_centered_clipping_comes_to_the_honest_updates():
    honest = 5.0 + 0.1 * random_updates(12)
    updates = torch.cat([honest, torch.full((3, 40), -1e30)])
    kept = context()
    for _ in range(30):
        result = centered_clipping(updates, f=3, context=kept, radius=2.0)
    # Twelve pull back with up to 2 each; three pull away with 2 each, whatever they send.
    assert (result - honest.mean(dim=0)).norm() < 1.0
    assert result.isfinite().all()


def test_what_is_kept_is_not_what_is_returned():
    kept = context()
    centered_clipping(random_updates(), f=3, context=kept).zero_()
    assert kept.state["centre"].any()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_row_that_is_not_finite_does_not_move_the_centre(bad):
    updates = random_updates(9)
    centre = random_updates(1, seed=5)[0]
    expected = centered_clipping(
        torch.cat([updates, centre[None]]), f=1, context=context({"centre": centre.clone()})
    )
    spoilt = torch.cat([updates, centre[None]])
    spoilt[9, 3] = bad
    result = centered_clipping(spoilt, f=1, context=context({"centre": centre.clone()}))
    assert torch.allclose(result, expected, atol=1e-6)


@pytest.mark.parametrize("rule", ["centered-clipping", "norm-bound-mean"])
def test_numbers_whose_squares_overflow_count_as_not_finite(rule):
    updates = random_updates(9, dtype=torch.float64)
    updates[4] = 1e300
    updates[5] = math.nan
    expected = updates.clone()
    expected[4] = math.nan
    result = RULES[rule](updates, f=2)
    assert torch.equal(result, RULES[rule](expected, f=2))
    assert result.isfinite().all()


def plain_norm_bound_mean(updates, radius):
    rows = updates.double()
    return torch.stack([row / max(1.0, float(row.norm()) / radius) for row in rows]).mean(dim=0)


@given(st.integers(1, 12), st.integers(1, 30), st.floats(0.1, 20), st.integers(0, 1000))
def test_the_norm_bounded_mean_equals_its_definition(n, d, radius, seed):
    updates = random_updates(n, d, seed)
    result = norm_bound_mean(updates, f=0, radius=radius)
    assert torch.allclose(result, plain_norm_bound_mean(updates, radius).float(), atol=1e-6)


@pytest.mark.parametrize("n", [4, 5, 9])
def test_without_a_radius_the_bound_is_the_median_of_the_norms(n):
    updates = random_updates(n) * torch.arange(1, n + 1)[:, None]
    norms = sorted(float(row.double().norm()) for row in updates)
    middle = (norms[(n - 1) // 2] + norms[n // 2]) / 2
    expected = plain_norm_bound_mean(updates, middle).float()
    assert torch.allclose(norm_bound_mean(updates, f=1), expected, atol=1e-6)


def test_the_norm_bounded_mean_leaves_out_what_is_not_finite():
    updates = random_updates(9)
    updates[3], updates[7, 2] = math.inf, math.nan
    rest = [i for i in range(9) if i not in (3, 7)]
    assert torch.allclose(
        norm_bound_mean(updates, f=2, radius=3.0),
        norm_bound_mean(updates[rest], f=0, radius=3.0),
        atol=1e-6,
    )
    assert norm_bound_mean(torch.full((3, 2), math.nan), f=1).isnan().all()


@pytest.mark.parametrize("radius", [0.0, -1.0, math.nan, math.inf])
def test_what_is_no_length_is_refused(radius):
    with pytest.raises(UserError, match="centered-clipping needs radius > 0; got"):
        centered_clipping(random_updates(), f=1, radius=radius)
    with pytest.raises(UserError, match="norm-bound-mean needs radius > 0; got"):
        norm_bound_mean(random_updates(), f=1, radius=radius)
    with pytest.raises(UserError, match="centered-clipping needs iterations >= 1; got 0"):
        centered_clipping(random_updates(), f=1, iterations=0)
