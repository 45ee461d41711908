"""Lies that pull the same way in every round."""

import pytest
import torch

from holdout.attacks import ATTACKS


@pytest.mark.parametrize(("count", "proposers"), [(2, 3), (3, 5), (1, 1)])
def test_a_majority_of_liars_shifts_the_model_back_to_its_start(count, proposers, make_view):
    start = 0.3 * torch.ones_like(make_view().weights)
    view = make_view(count=count, proposers=proposers, start=start)
    updates = ATTACKS["shift-back"]()(view).updates
    assert updates.shape == (count, len(start))
    for update in updates:
        assert torch.allclose(view.weights - view.learning_rate * update, start, atol=1e-6)


@pytest.mark.parametrize(("count", "proposers"), [(1, 2), (2, 4), (3, 9)])
def test_without_a_majority_they_work_honestly(count, proposers, make_view):
    view = make_view(count=count, proposers=proposers)
    assert torch.equal(ATTACKS["shift-back"]()(view).updates, view.own_updates())


@pytest.mark.parametrize("scale", [1.0, 0.25, 8.0])
def test_poisoned_is_one_vector_of_signs_as_long_as_usual(scale, make_view):
    view = make_view(known=5)
    lie = ATTACKS["poisoned"](scale=scale)(view).updates
    usual = sorted(float(row.double().norm()) for row in view.known)[2]
    assert float(lie.double().norm()) == pytest.approx(scale * usual, rel=1e-5)
    assert len(lie.abs().unique()) == 1
    assert 0.3 < float((lie > 0).float().mean()) < 0.7


def test_poisoned_keeps_its_signs_over_the_rounds_of_a_run_only(make_view):
    first, later, other = (
        ATTACKS["poisoned"]()(make_view(**setting)).updates.sign()
        for setting in ({}, {"round_number": 9, "known": 3}, {"seed": 1})
    )
    assert torch.equal(first, later)
    assert 0.3 < float((first == other).float().mean()) < 0.7
