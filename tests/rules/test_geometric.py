"""The geometric median against a plain minimisation and its own condition of optimality."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from holdout.rules import distance, geometric, geometric_median


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


def wide(kind, n=30, d=9_000, seed=5):  # noqa: C901 - one case after another.
    """So many numbers that float32 products are tried first."""
    generator = torch.Generator().manual_seed(seed)
    rows, common = (torch.randn(size, generator=generator) for size in ((n, d), (d,)))
    liars = n // 3
    match kind:
        case "common offset":
            rows += 100 * common
        case "huge liars":
            rows[:liars] *= 1e10
        case "too huge for float32":
            rows[:liars] *= 1e30
        case "near twins":
            rows[:liars] = rows[0] + 1e-6 * rows[:liars]
        case "a cluster":
            rows[: n // 2] = common + 1e-3 * rows[: n // 2]
        case "all lengths":
            rows *= torch.logspace(-3, 3, n)[:, None]
        case "copies":
            rows[:liars] = common
        case "signs":
            rows = rows.sign()
        case "tiny":
            rows *= 1e-11
        case "subnormal":
            rows *= 1e-41
        case "a plane":
            rows = rows[:, :2] @ rows[:2]
        case "not finite":
            rows[3, 7], rows[4] = math.nan, math.inf
    return rows


WIDE = (
    *("noise", "common offset", "huge liars", "too huge for float32", "near twins", "a cluster"),
    *("all lengths", "copies", "signs", "tiny", "subnormal", "a plane", "not finite"),
)
PROVEN = frozenset(WIDE) - {"too huge for float32", "subnormal", "not finite"}


@pytest.mark.parametrize("kind", WIDE)
def test_float32_first_gives_the_least_sum_that_float64_gives(kind, monkeypatch):
    updates = wide(kind)
    quick = geometric_median(updates, f=9)
    proven = geometric._by_float32(updates, distance.central_row(updates))
    assert (proven is not None) == (kind in PROVEN)
    monkeypatch.setattr(geometric, "_by_float32", lambda *_: None)
    exact = geometric_median(updates, f=9)
    rows = updates[updates.isfinite().all(dim=1)].double().numpy()
    sums = [summed_distance(rows, point.double().numpy()) for point in (quick, exact)]
    assert sums[0] <= sums[1] * (1 + 2 * geometric.TOLERANCE)
    assert (quick - exact).norm() <= 1e-6 * exact.norm()


def test_float32_proves_nothing_by_wrong_inner_products(monkeypatch):
    updates = wide("noise")
    centre = distance.central_row(updates)
    right = geometric.centred_gram

    def wrong(*arguments, **options):
        gram = right(*arguments, **options)
        noise = np.random.default_rng(0).normal(size=gram.shape)
        return gram * (1 + 1e-3 * (noise + noise.T))

    assert geometric._by_float32(updates, centre) is not None
    monkeypatch.setattr(geometric, "centred_gram", wrong)
    assert geometric._by_float32(updates, centre) is None


def test_a_second_point_knows_how_far_the_first_was_off(monkeypatch):
    updates = wide("noise")
    centre = distance.central_row(updates)
    right, made = geometric.centred_gram, []

    def off(*arguments, **options):
        return right(*arguments, **options) * (1 + 1e-6 * np.diag(np.arange(30.0)))

    def counted(*arguments):
        made.append(point_and_distances(*arguments))
        return made[-1]

    point_and_distances = geometric._point_and_distances
    monkeypatch.setattr(geometric, "centred_gram", off)
    monkeypatch.setattr(geometric, "_point_and_distances", counted)
    assert geometric._by_float32(updates, centre) is not None
    assert len(made) == 2


@pytest.mark.parametrize("copies", [1, 4])
def test_an_update_that_is_the_median_of_many_numbers_is_returned_exactly(copies):
    rows = wide("noise", n=15, d=20_000)
    median = rows[0].clone()
    # In pairs whose pulls cancel but for rounding.
    updates = torch.cat([median.expand(copies, -1), median + rows[1:], median - rows[1:]])
    assert torch.equal(geometric_median(updates, f=9), median)


@pytest.mark.parametrize("slack", [0.0, 1e-9])
def test_of_an_even_number_of_long_updates_on_a_line_one_is_returned(slack):
    line, off = wide("noise", n=2, d=20_000)
    updates = torch.arange(1.0, 21.0)[:, None] * line + slack * off
    result = geometric_median(updates, f=9)
    assert any(torch.equal(result, row) for row in updates[9:11])
