"""Krum, multi-Krum, Bulyan and their choices against plain loops; exact distances."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.asking import called

from holdout.rules import RULES, bulyan, distance, krum, krum_unsquared, multi_krum
from holdout.rules.distance import (
    bulyan_choice,
    krum_choice,
    krum_unsquared_choice,
    multi_krum_choice,
    squared_distances,
)


@st.composite
def updates_with_twins(draw, least):
    """Rows on a coarse grid, some of them repeated: distances and scores are exact, ties common."""
    n, d = draw(st.integers(least, 12)), draw(st.integers(1, 4))
    row = st.lists(st.integers(-6, 6).map(lambda i: i / 2), min_size=d, max_size=d)
    pool = draw(st.lists(row, min_size=2, max_size=n))
    return torch.tensor([draw(st.sampled_from(pool)) for _ in range(n)])


def plain_distance(left, right):
    return sum((a - b) ** 2 for a, b in zip(left, right, strict=True))


def plain_score(rows, index, neighbours):
    others = [plain_distance(rows[index], r) for i, r in enumerate(rows) if i != index]
    return sum(sorted(others)[:neighbours])


def plain_krum_ranking(rows, f):
    scores = [plain_score(rows, i, len(rows) - f - 2) for i in range(len(rows))]
    return sorted(range(len(rows)), key=lambda i: (scores[i], i))


def plain_bulyan_choice(rows, f):
    left = list(range(len(rows)))
    for _ in range(len(rows) - 2 * f):
        remainder = [rows[i] for i in left]
        neighbours = max(1, len(left) - f - 2)
        scores = [plain_score(remainder, i, neighbours) for i in range(len(left))]
        del left[scores.index(min(scores))]
    return tuple(i for i in range(len(rows)) if i not in left)


def plain_bulyan(rows, f):
    chosen = [rows[i] for i in plain_bulyan_choice(rows, f)]
    result = []
    for column in zip(*chosen, strict=True):
        ordered, m = sorted(column), len(column)
        centre = (ordered[(m - 1) // 2] + ordered[m // 2]) / 2
        ranking = sorted(range(m), key=lambda i: (abs(column[i] - centre), i))
        nearest = [column[i] for i in ranking[: len(rows) - 4 * f]]
        result.append(sum(nearest) / len(nearest))
    return result


def close(result, expected):
    return torch.allclose(result, torch.as_tensor(expected, dtype=result.dtype), atol=1e-6)


@given(updates_with_twins(least=3), st.data())
def test_krum_is_the_update_of_least_score(updates, data):
    f = data.draw(st.integers(0, (len(updates) - 3) // 2))
    expected = plain_krum_ranking(updates.tolist(), f)[0]
    assert krum_choice(updates, f=f) == expected
    assert torch.equal(krum(updates, f=f), updates[expected])


@given(updates_with_twins(least=3), st.data())
def test_unsquared_krum_has_the_least_sum_of_distances(updates, data):
    f = data.draw(st.integers(0, (len(updates) - 3) // 2))
    rows = updates.tolist()
    scores = []
    for row in rows:
        # Its own distance, zero, comes first.
        ordered = sorted(math.sqrt(plain_distance(row, other)) for other in rows)
        scores.append(sum(ordered[1 : len(rows) - f - 1]))
    chosen = krum_unsquared_choice(updates, f=f)
    assert scores[chosen] == pytest.approx(min(scores))
    assert rows.index(rows[chosen]) == chosen  # The first of its twins.
    assert torch.equal(krum_unsquared(updates, f=f), updates[chosen])


@given(updates_with_twins(least=3), st.data())
def test_multi_krum_is_the_mean_of_the_best_scores(updates, data):
    f = data.draw(st.integers(0, (len(updates) - 3) // 2))
    expected = sorted(plain_krum_ranking(updates.tolist(), f)[: len(updates) - f])
    assert multi_krum_choice(updates, f=f) == tuple(expected)
    assert close(multi_krum(updates, f=f), updates[expected].mean(dim=0))


@given(updates_with_twins(least=3), st.data())
def test_bulyan_equals_the_plain_one(updates, data):
    f = data.draw(st.integers(0, (len(updates) - 3) // 4))
    assert bulyan_choice(updates, f=f) == plain_bulyan_choice(updates.tolist(), f)
    assert close(bulyan(updates, f=f), plain_bulyan(updates.tolist(), f))


@pytest.mark.parametrize(("n", "f"), [(15, 3), (20, 4), (23, 5), (31, 5)])
def test_bulyan_equals_the_plain_one_for_larger_f(n, f):
    # Here some of the values that compete for a place stand more than one place apart.
    for seed in range(10):
        generator = torch.Generator().manual_seed(seed)
        updates = torch.randint(-20, 20, (n, 5), generator=generator).float()
        assert bulyan_choice(updates, f=f) == plain_bulyan_choice(updates.tolist(), f)
        assert close(bulyan(updates, f=f), plain_bulyan(updates.tolist(), f))


def exact_distances(updates):
    rows = updates.double().numpy()
    return np.square(rows[:, None] - rows[None]).sum(axis=2)


def random_updates(n, d, seed=0):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("d", [1, 3, 64, 1_000, 40_001])
def test_distances_are_exact(d):
    updates = random_updates(12, d, seed=d)
    assert np.allclose(squared_distances(updates), exact_distances(updates), rtol=1e-9, atol=0)


@pytest.mark.parametrize("n", [1, 2, 7, 8, 9, 17, 70])
@pytest.mark.parametrize("d", [1, 255, 20_000])
def test_inner_products_are_exact_for_any_number_of_rows(n, d):
    updates = random_updates(n, d)
    seen = updates.double().numpy() - updates[-1].double().numpy()
    lengths = np.sqrt(np.square(seen).sum(axis=1))
    scale = np.outer(lengths, lengths)
    assert (
        np.abs(distance.centred_gram(updates, updates[-1]) - seen @ seen.T) <= 1e-12 * scale
    ).all()
    rough = distance.centred_gram(updates, updates[-1], products=np.float32)
    assert (np.abs(rough - seen @ seen.T) <= distance.product_share(n, d) * scale).all()


def test_a_large_common_offset_does_not_drown_the_distances():
    updates = 1e4 + 0.01 * random_updates(10, 2_000)
    assert np.allclose(squared_distances(updates), exact_distances(updates), rtol=1e-9, atol=0)


def test_a_liar_who_passes_for_the_centre_does_not_blur_the_distances():
    updates = random_updates(9, 640)
    # The guess at the centre sees every tenth coordinate, and there all are as one.
    updates[:, ::10] = 0.0
    updates[0, 5] = 1e12
    assert np.allclose(squared_distances(updates), exact_distances(updates), rtol=1e-9, atol=0)


def test_two_near_twins_far_from_the_rest_keep_their_distance():
    updates = random_updates(9, 500)
    updates[3] += 1e7
    updates[7] = updates[3]
    updates[7, 4] += 3.0
    updates[8] = updates[7]
    distances = squared_distances(updates)
    assert distances[3, 7] == distances[3, 8] == 9.0
    assert distances[7, 8] == 0


def test_identical_rows_are_at_distance_zero_and_equally_far_from_the_rest():
    updates = random_updates(30, 10_007)
    updates[[4, 11, 29]] = updates[2].clone()
    distances = squared_distances(updates)
    assert not distances[np.ix_([2, 4, 11, 29], [2, 4, 11, 29])].any()
    assert (distances[[4, 11, 29]] == distances[2]).all()
    assert (distances == distances.T).all()


def test_minus_zero_and_zero_are_the_same_row():
    updates = torch.tensor([[0.0, 1.0], [-0.0, 1.0], [5.0, 1.0]])
    assert squared_distances(updates).tolist() == [[0, 0, 25], [0, 0, 25], [25, 25, 0]]


def test_of_identical_updates_krum_takes_the_first():
    updates = torch.ones(9, 3)
    updates[0] = 7.0
    assert krum_choice(updates, f=2) == 1
    assert multi_krum_choice(updates, f=2) == (1, 2, 3, 4, 5, 6, 7)
    assert bulyan_choice(updates, f=1) == (1, 2, 3, 4, 5, 6, 7)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_row_that_is_not_finite_is_infinitely_far_even_from_its_twin(bad):
    updates = random_updates(5, 300)
    updates[1, 7] = updates[3, 7] = bad
    updates[3] = updates[1]
    distances = squared_distances(updates)
    assert (distances[1] == [math.inf, 0, math.inf, math.inf, math.inf]).all()
    assert np.isfinite(distances[np.ix_([0, 2, 4], [0, 2, 4])]).all()


def test_no_row_is_finite_and_yet_there_is_a_choice():
    updates = torch.full((7, 4), math.nan)
    assert krum_choice(updates, f=1) == 0
    assert multi_krum_choice(updates, f=1) == (0, 1, 2, 3, 4, 5)
    assert bulyan_choice(updates, f=1) == (0, 1, 2, 3, 4)


def test_junk_of_every_kind_is_computed_without_a_warning():
    # So long that several runs of blocks are added up: infinities of both signs meet there.
    updates = torch.randn(30, 100_000, generator=torch.Generator().manual_seed(0))
    largest = torch.finfo(torch.float32).max
    updates[3], updates[4], updates[5, ::2], updates[6, :10] = largest, -largest, largest, largest
    updates[7], updates[8], updates[9, 0], updates[10, -1] = math.nan, math.inf, math.inf, -math.inf
    assert krum_choice(updates, f=9) not in range(3, 11)
    assert not set(multi_krum_choice(updates, f=9)).intersection(range(3, 11))
    assert not set(bulyan_choice(updates, f=6)).intersection(range(3, 11))


def test_distances_that_overflow_float64_count_as_infinite():
    updates = random_updates(5, 8).double()
    updates[2] = 1e300
    assert np.isinf(np.delete(squared_distances(updates)[2], 2)).all()
    assert krum_choice(updates, f=1) != 2


@settings(max_examples=60)
@given(
    n=st.integers(5, 31),
    d=st.integers(1, 3000),
    offset=st.sampled_from([0.0, 1.0, 100.0]),
    copies=st.integers(0, 4),
    size=st.sampled_from([1.0, 1e4, 1e30, float("nan")]),
    seed=st.integers(0, 999),
)
def test_bounds_in_float32_choose_as_float64_does(n, d, offset, copies, size, seed):  # noqa: PLR0917
    generator = torch.Generator().manual_seed(seed)
    updates = torch.randn(n, d, generator=generator) + offset * torch.randn(d, generator=generator)
    updates[: min(copies, n - 1)] = updates[0].clone()
    updates[n // 2] *= size
    f = (n - 3) // 2
    exact = distance.squared_distances(updates)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(distance, "ROUGH_LEAST", 0)
        assert distance.krum_choice(updates, f=f) == distance.krum_index(exact, f=f)
        chosen = distance.multi_krum_choice(updates, f=f)
        assert chosen == distance.multi_krum_indices(exact, f=f)
        rough = distance._rough_scores(updates, neighbours=n - f - 2)
    if rough is not None:
        scores = distance._scores(exact, neighbours=n - f - 2)
        assert (rough[0] <= scores * (1 + 1e-12)).all()
        assert (scores <= rough[1] * (1 + 1e-12)).all()


def test_the_number_of_threads_changes_no_bit():
    updates = torch.randn(9, 100_003, generator=torch.Generator().manual_seed(0))
    before = torch.get_num_threads()
    try:
        found = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append([called(rule)(updates, f=1) for rule in RULES])
    finally:
        torch.set_num_threads(before)
    for others in found[1:]:
        for one, other in zip(found[0], others, strict=True):
            assert torch.equal(one, other)


@pytest.mark.parametrize("differences", [1, 1000])
def test_a_central_row_is_the_same_however_many_are_compared_at_once(differences, monkeypatch):
    updates = torch.randn(40, 300, generator=torch.Generator().manual_seed(0))
    whole = distance.central_row(updates)
    monkeypatch.setattr(distance, "_DIFFERENCES", differences)
    assert torch.equal(distance.central_row(updates), whole)
