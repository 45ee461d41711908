"""Sections "Distributed Learning with SGD" and "The Algorithm": when they are centralized SGD."""

import itertools
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch.func import functional_call
from torch.nn import functional as F  # noqa: N812

from holdout.experiments.plan import make_plan
from holdout.experiments.plugins import Plugins
from holdout.federation.central import run_round
from holdout.federation.round_setup import first_state
from holdout.learning import vector
from holdout.rules import mean
from holdout.seeds import stream
from holdout.voting import Approvals, draw_committee, tally
from holdout.workers import propose_together

N, B, ROUNDS, ETA = 6, 9, 8, 0.5


def plan_of(blobs, schedule="constant"):
    return make_plan(
        {
            "experiment": {"rules": ["mean"], "rounds": ROUNDS, "baseline": False, "seeds": [3]},
            "data": {"samples_per_worker": 40},
            "training": {"batch_size": B, "learning_rate": ETA, "schedule": schedule},
            "federation": {"workers": 20, "byzantine": 0, "proposers": N, "voters": 4},
            "vote": {"samples": 20},
            "attack": {"name": "none"},
        },
        Plugins(data=blobs),
    )


def federation_of(plan):
    (pair,) = plan.curves
    curve, seed = pair
    return curve, plan.federation(curve, seed)


def union(workers, t):
    """The mini-batches of all these workers as one of N B samples."""
    batches = [worker.batches(t)[0] for worker in workers]
    assert all(len(y) == B for _, y in batches)
    return torch.cat([x for x, _ in batches]), torch.cat([y for _, y in batches])


def gradient(model, weights, x, y):
    """Of the mean cross-entropy of one large batch, by autograd alone."""
    leaf = weights.clone().requires_grad_()
    logits = functional_call(model, vector.unflatten(model, leaf), (x,))
    return torch.autograd.grad(F.cross_entropy(logits, y), leaf)[0]


# Algorithm 1 with an average is centralized SGD with mini-batches of N B.


def test_the_mean_of_the_updates_is_the_gradient_of_the_union_of_the_batches(blobs):
    _, federation = federation_of(plan_of(blobs))
    workers, weights = federation.workers[:N], federation.initial_weights
    updates = propose_together(workers, weights, round_number=1, learning_rate=ETA)
    expected = gradient(federation.model, weights, *union(workers, 1))
    assert torch.allclose(mean(updates, f=0), expected, rtol=0, atol=1e-6)
    assert not torch.allclose(updates[0], expected, rtol=0, atol=1e-3)


@pytest.mark.parametrize("schedule", ["constant", "inverse"])
def test_a_run_of_the_mean_is_centralized_sgd(blobs, schedule):
    curve, federation = federation_of(plan_of(blobs, schedule))
    state = first_state(federation)
    central = federation.initial_weights
    for t in range(1, ROUNDS + 1):
        drawn = draw_committee(
            workers=20, proposers=N, voters=4, disjoint=True, seed=3, round_number=t
        )
        x, y = union([federation.workers[i] for i in drawn.proposers], t)
        assert len(y) == N * B
        eta = ETA / t if schedule == "inverse" else ETA
        central = central - eta * gradient(federation.model, central, x, y)
        _, state = run_round(federation, curve, state)
        assert torch.allclose(state.weights, central, rtol=0, atol=1e-5), t
    assert (central - federation.initial_weights).abs().max() > 0.1


def test_the_inverse_schedule_takes_the_theorems_steps(blobs):
    paths = {}
    for schedule in ("constant", "inverse"):
        curve, federation = federation_of(plan_of(blobs, schedule))
        _, first = run_round(federation, curve, first_state(federation))
        _, second = run_round(federation, curve, first)
        paths[schedule] = (first.weights, second.weights - first.weights)
    # The first step is the same, so the second starts alike and is half as long.
    assert torch.equal(paths["constant"][0], paths["inverse"][0])
    assert torch.allclose(paths["constant"][1], 2 * paths["inverse"][1], rtol=1e-3, atol=1e-6)


# Algorithm 2 with random votes is SGD too: its expected step is the mean of the proposals.


def step(ballots, updates):
    """The mean of all updates that got any vote."""
    selected = tally({c: Approvals((p,)) for c, p in enumerate(ballots)}, quorum=1)
    return sum((updates[p] for p in selected), Fraction(0)) / len(selected), len(selected)


@pytest.mark.parametrize(("proposers", "voters"), [(1, 3), (2, 2), (3, 4), (5, 3), (4, 5)])
def test_random_votes_average_to_the_mean_of_the_proposals(proposers, voters):
    updates = [Fraction(7 * i**3 - 3, i + 2) for i in range(proposers)]
    polls = list(itertools.product(range(proposers), repeat=voters))
    steps = [step(ballots, updates) for ballots in polls]
    assert sum(update for update, _ in steps) / len(polls) == sum(updates) / proposers
    # Voters may name the same proposer, so the mini-batch is at most, and not always, N_c B.
    sizes = [size for _, size in steps]
    assert max(sizes) == min(voters, proposers)
    expected = proposers * (1 - (1 - Fraction(1, proposers)) ** voters)
    assert Fraction(sum(sizes), len(polls)) == expected


def test_votes_that_prefer_one_proposer_do_not():
    updates = [Fraction(0), Fraction(0), Fraction(1)]
    polls = list(itertools.product([0, 1, 2, 2], repeat=2))
    average = sum(step(ballots, updates)[0] for ballots in polls) / len(polls)
    assert average > Fraction(1, 3)


def test_seeded_random_votes_average_to_the_mean_of_the_proposals():
    generator = np.random.default_rng(0)
    updates, draws = generator.normal(size=10), 4000
    steps = []
    for t in range(draws):
        source = stream(1, "random vote", t)
        ballots = {c: Approvals((source.below(10),)) for c in range(7)}
        steps.append(updates[list(tally(ballots, quorum=1))].mean())
    error = np.std(steps) / np.sqrt(draws)
    assert abs(np.mean(steps) - updates.mean()) < 4 * error
