"""Lies within the spread of the honest updates: on the bound, and no nearer."""

import pytest
import torch

from holdout.attacks import ATTACKS

STEPS = {
    "deviation": lambda known: known.std(dim=0, correction=0),
    "unit": lambda known: known.mean(dim=0) / known.mean(dim=0).norm(),
    "sign": lambda known: known.mean(dim=0).sign(),
}


def squares(one, others):
    """The squared distances, pair by pair."""
    return [float((one - other).square().sum()) for other in others]


def furthest(lie, known):
    return max(squares(lie, known)), max(max(squares(row, known)) for row in known)


def sums(lie, known):
    return sum(squares(lie, known)), max(sum(squares(row, known)) for row in known)


BOUNDS = {"min-max": furthest, "min-sum": sums}


@pytest.mark.parametrize("name", BOUNDS)
@pytest.mark.parametrize("along", STEPS)
@pytest.mark.parametrize("seed", range(3))
def test_the_lie_is_on_the_bound_and_a_little_more_is_beyond_it(name, along, seed, make_view):
    view = make_view(seed=seed, known=7)
    lie = ATTACKS[name](along=along)(view)
    known = view.known.double()
    mean, step = known.mean(dim=0), STEPS[along](known)
    assert lie.gamma > 0
    assert torch.allclose(lie.updates.double(), mean - lie.gamma * step, atol=1e-5)
    there, limit = BOUNDS[name](mean - lie.gamma * step, known)
    assert there == pytest.approx(limit, rel=1e-4)
    less, _ = BOUNDS[name](mean - 0.99 * lie.gamma * step, known)
    more, _ = BOUNDS[name](mean - 1.01 * lie.gamma * step, known)
    assert less < limit < more


@pytest.mark.parametrize("name", BOUNDS)
@pytest.mark.parametrize("along", STEPS)
def test_honest_updates_that_are_all_alike_leave_no_room(name, along, make_view):
    alike = make_view(known=1)
    view = make_view(known=4)
    view.__dict__.update(known=alike.known.expand(4, -1))
    lie = ATTACKS[name](along=along)(view)
    assert lie.gamma == pytest.approx(0.0, abs=1e-5)
    assert torch.allclose(lie.updates, alike.mean, atol=1e-6)


@pytest.mark.parametrize("name", BOUNDS)
@pytest.mark.parametrize("along", STEPS)
def test_updates_of_zero_are_answered_by_zero(name, along, make_view):
    view = make_view(known=4)
    view.__dict__.update(known=torch.zeros_like(view.known))
    lie = ATTACKS[name](along=along)(view)
    assert lie.gamma == 0.0
    assert not lie.updates.any()


def test_the_sum_allows_less_than_the_largest_distance(make_view):
    view = make_view(known=9)
    assert ATTACKS["min-sum"]()(view).gamma < ATTACKS["min-max"]()(view).gamma
