"""MDA, SMEA and MoNNA against brute force over all subsets."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from holdout.errors import InfeasibleError, UserError
from holdout.rules import RULES, mda, monna, smea, subsets
from holdout.rules.distance import squared_distances
from holdout.rules.subsets import (
    STEPS_MAX,
    WORK_MAX,
    mda_choice,
    mda_indices,
    monna_choice,
    smea_choice,
)

sizes = given(
    st.integers(1, 9), st.integers(1, 6), st.integers(0, 4), st.integers(0, 10_000), st.booleans()
)


def random_updates(n=15, d=40, seed=0, *, coarse=False, dtype=torch.float32):
    """With `coarse`, small integers, whose distances are often equal."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(n, d, generator=generator, dtype=torch.float64)
    return (rows.mul(1.5).round() if coarse else rows).to(dtype)


def all_subsets(n, f):
    return itertools.combinations(range(n), n - f)


def diameter(distances, chosen):
    return max((distances[i, j] for i, j in itertools.combinations(chosen, 2)), default=0.0)


def plain_mda(distances, f):
    """The subset whose distances, from the largest on, are least: by looking at all of them."""

    def key(chosen):
        return sorted((distances[i, j] for i, j in itertools.combinations(chosen, 2)), reverse=True)

    return min(all_subsets(len(distances), f), key=key)


@settings(max_examples=150)
@sizes
def test_mda_is_what_brute_force_finds(n, d, f, seed, coarse):
    f = min(f, (n - 1) // 2)
    distances = squared_distances(random_updates(n, d, seed, coarse=coarse))
    found, expected = mda_indices(distances, f=f), plain_mda(distances, f)
    assert len(found) == n - f
    assert diameter(distances, found) == diameter(distances, expected)
    if not coarse:
        assert found == expected


@pytest.mark.parametrize("f", [4, 5, 6])
def test_mda_has_the_least_diameter_of_thirteen_updates(f):
    for seed in range(3):
        updates = random_updates(13, 3, seed)
        distances = squared_distances(updates)
        least = min(diameter(distances, chosen) for chosen in all_subsets(13, f))
        assert diameter(distances, mda_choice(updates, f=f)) == least


@pytest.mark.parametrize("f", [9, 14])
def test_mda_finds_a_crowd_of_liars_among_thirty_in_few_steps(f):
    updates = random_updates(30, 500)
    updates[:f] += 0.5 * random_updates(1, 500, seed=9)
    search = subsets._Search(30, f)
    first, second = np.triu_indices(30, 1)
    order = np.argsort(-squared_distances(updates)[first, second], kind="stable")
    search.widest_cover(list(zip(first[order].tolist(), second[order].tolist(), strict=True)))
    assert search.steps < 1000 < math.comb(30, f)


def test_a_search_that_takes_too_long_ends_with_an_error(monkeypatch):
    monkeypatch.setattr(subsets, "STEPS_MAX", 10)
    updates = random_updates(30, 500)
    with pytest.raises(InfeasibleError) as caught:
        mda(updates, f=9)
    assert str(caught.value) == (
        "mda needs a search of at most 10 steps; these n=30 updates with f=9 take more"
    )
    assert STEPS_MAX == 50_000


def test_mda_of_two_ends_keeps_the_one_that_is_nearer_to_the_rest():
    # Without either end the diameter is 4; without the second one the next distance is less.
    updates = torch.tensor([[0.0], [3.0], [4.0], [8.0], [5.0]])
    assert mda_choice(updates, f=2) == (1, 2, 4)
    left, right = torch.tensor([[0.0], [3.0], [6.5]]), torch.tensor([[0.0], [3.5], [6.5]])
    assert mda_choice(left, f=1) == (0, 1)
    assert mda_choice(right, f=1) == (1, 2)


def plain_top_variance(rows):
    """The largest eigenvalue of the d x d covariance."""
    away = rows - rows.mean(axis=0)
    return float(np.linalg.eigvalsh(away.T @ away / len(rows))[-1])


@settings(max_examples=80)
@sizes
def test_smea_is_what_brute_force_over_covariances_finds(n, d, f, seed, coarse):
    f = min(f, (n - 1) // 2)
    updates = random_updates(n, d, seed, coarse=coarse)
    rows = updates.double().numpy()
    found = smea_choice(updates, f=f)
    least = min(plain_top_variance(rows[list(chosen)]) for chosen in all_subsets(n, f))
    assert len(found) == n - f
    assert plain_top_variance(rows[list(found)]) == pytest.approx(least, rel=1e-9, abs=1e-9)
    assert torch.allclose(
        smea(updates, f=f), torch.from_numpy(rows[list(found)].mean(axis=0)).float(), atol=1e-6
    )


def test_smea_has_a_common_offset_in_no_covariance():
    updates = random_updates(10, 6, dtype=torch.float64)
    assert smea_choice(updates + 1e6, f=3) == smea_choice(updates, f=3)


@pytest.mark.parametrize(
    ("n", "f"), [(22, 10), (26, 6), (29, 5), (36, 4), (49, 3), (84, 2), (212, 1)]
)
def test_smea_says_in_numbers_how_many_updates_it_takes(n, f):
    assert f"{f} up to {n}" in smea.__doc__ or n == 22
    assert math.comb(n, f) * (n - f) ** 3 <= WORK_MAX < math.comb(n + 1, f) * (n + 1 - f) ** 3
    assert RULES["smea"].is_feasible(n=n, f=f)
    assert not RULES["smea"].is_feasible(n=n + 1, f=f)
    assert all(RULES["smea"].is_feasible(n=m, f=g) for m in range(1, 23) for g in range(-(-m // 2)))


def test_smea_of_nobody_who_lies_is_the_mean_of_any_number():
    assert RULES["smea"].is_feasible(n=10**9, f=0)
    updates = random_updates(2000, 3)
    assert torch.allclose(smea(updates, f=0), updates.mean(dim=0), atol=1e-6)


@pytest.mark.parametrize(("n", "f"), [(23, 11), (30, 5), (30, 9), (70, 3), (400, 2), (50_001, 1)])
def test_smea_refuses_more_work_than_it_can_do(n, f):
    assert not RULES["smea"].is_feasible(n=n, f=f)
    with pytest.raises(InfeasibleError) as caught:
        smea(torch.ones(n, 1), f=f)
    assert str(caught.value) == (
        f"smea needs n > 2f and C(n, f) (n - f)³ <= 2,000,000,000 updates; got n={n}, f={f}"
    )


@pytest.mark.parametrize("rule", [mda, smea, monna])
def test_more_bad_rows_than_f_raise_nothing(rule):
    updates = random_updates(9)
    updates[2:7] = math.nan
    assert rule(updates, f=2).shape == (40,)
    assert rule(torch.full((5, 2), math.inf), f=2).shape == (2,)


def plain_monna(updates, f, pivot=None):
    """The definition: sort by distance from the pivot."""
    rows = updates.double()
    away = [[float((a - b).norm()) for b in rows] for a in rows]
    count = len(rows) - f
    if pivot is None:
        pivot = min(range(len(rows)), key=lambda i: sorted(away[i])[:count][::-1])
    nearest = sorted(range(len(rows)), key=lambda j: (j != pivot, away[pivot][j], j))[:count]
    return tuple(sorted(nearest))


@settings(max_examples=150)
@sizes
def test_monna_equals_its_definition(n, d, f, seed, coarse):
    f = min(f, (n - 1) // 2)
    updates = random_updates(n, d, seed, coarse=coarse)
    assert monna_choice(updates, f=f, pivot=seed % n) == plain_monna(updates, f, seed % n)
    if not coarse:
        assert monna_choice(updates, f=f) == plain_monna(updates, f)


@settings(max_examples=150, deadline=None)
@given(
    n=st.integers(2, 31),
    d=st.integers(1, 2000),
    kind=st.sampled_from(["noise", "ties", "near ties", "twins", "huge", "subnormal", "bad"]),
    pivot=st.integers(0, 30),
    seed=st.integers(0, 999),
)
def test_bounds_in_float32_choose_monnas_rows_as_float64_does(n, d, kind, pivot, seed):
    updates, pivot = random_updates(n, d, seed), pivot % n
    few = updates[1::3]
    if kind in {"ties", "near ties"}:
        # All are equally far from the pivot, or nearly.
        updates[:] = updates[pivot] + 1 + torch.zeros(n, d)
        updates[pivot] -= 1
        if kind == "near ties":
            updates[1::2, 0] *= 1 + 1e-6
    elif kind == "twins":
        few[:] = updates[0]
    elif kind == "huge":
        few *= 1e30
    elif kind == "subnormal":
        updates *= 1e-41
    elif kind == "bad":
        few[:, 0], updates[::4, -1] = math.nan, math.inf
    away = subsets.squared_norms(updates, updates[pivot])
    away = np.where(np.isfinite(away), away, np.inf)
    away[pivot] = -1.0
    low, high = subsets.distance_bounds(updates, updates[pivot])
    assert ((low <= np.maximum(away, 0)) & (np.maximum(away, 0) <= high)).all()
    for f in range((n + 1) // 2):
        expected = tuple(sorted(np.argsort(away, kind="stable")[: n - f].tolist()))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(subsets, "ROUGH_LEAST", 0)
            assert monna_choice(updates, f=f, pivot=pivot) == expected


def test_monna_looks_closely_at_few_rows_only(monkeypatch):
    looked_at = []
    exact = subsets.squared_norms

    def noted(rows, centre):
        looked_at.append(len(rows))
        return exact(rows, centre)

    monkeypatch.setattr(subsets, "squared_norms", noted)
    monna(random_updates(30, 79_510), f=9, pivot=0)
    assert looked_at[0] <= 3


def test_monna_with_a_pivot_is_the_same_rule_with_another_parameter():
    updates = random_updates(9)
    rule = RULES["monna"].with_parameters(pivot=4)
    assert tuple(rule.choice(updates, f=3)) == plain_monna(updates, 3, 4)
    assert torch.equal(rule(updates, f=3), monna(updates, f=3, pivot=4))


def test_a_pivot_that_is_not_there_is_refused():
    with pytest.raises(UserError, match="monna needs pivot >= 0; got -1"):
        monna(random_updates(5), f=1, pivot=-1)
    with pytest.raises(InfeasibleError, match="monna needs n > pivot updates; got n=5, pivot=5"):
        monna(random_updates(5), f=1, pivot=5)


@settings(max_examples=200)
@given(st.integers(1, 10), st.floats(0.1, 0.7), st.integers(0, 10_000))
def test_a_cover_is_found_exactly_if_there_is_one(n, density, seed):
    rng = np.random.default_rng(seed)
    pairs = [pair for pair in itertools.combinations(range(n), 2) if rng.random() < density]
    least = next(
        size
        for size in range(n + 1)
        if any(
            all(i in chosen or j in chosen for i, j in pairs)
            for chosen in itertools.combinations(range(n), size)
        )
    )
    graph = subsets._graph(n, pairs)
    for budget in range(n + 1):
        cover = subsets._Search(n, budget)._cover(graph, (1 << n) - 1, budget)
        assert (cover is not None) == (budget >= least)
        if cover is not None:
            assert cover.bit_count() <= budget
            assert all(cover >> i & 1 or cover >> j & 1 for i, j in pairs)


def test_a_vertex_of_many_edges_need_not_be_in_the_cover():
    # A cube: the four of one colour cover it, and any vertex may be among the other four.
    pairs = [(i, j) for i, j in itertools.combinations(range(8), 2) if (i ^ j).bit_count() == 1]
    cover = subsets._Search(8, 4)._cover(subsets._graph(8, pairs), 255, 4)
    assert cover in {0b10010110, 0b01101001}
    # Two hubs that share three neighbours, each with one more: the neighbours are the cover.
    star = [(0, 2), (0, 3), (0, 4), (1, 2), (1, 3), (1, 4), (2, 5), (3, 6), (4, 7), (5, 6), (6, 7)]
    assert subsets._Search(8, 4)._cover(subsets._graph(8, star), 255, 4) is not None
