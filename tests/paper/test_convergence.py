"""Section "Convergence Analysis": the theorem on a problem whose constants are known.

The loss of a sample X is (w - X)' A (w - X) / 2 with A diagonal, X in the box [-1, 1]^d: strongly
convex with the least eigenvalue ALPHA, smooth with the largest, BETA <= 2 ALPHA. A step of rate at
most 1 / (2 ALPHA) mixes w and X coordinate by coordinate, so honest steps never leave the box, in
which no gradient is longer than G. The theorem, with eta_t = 1 / (2 ALPHA t):

    E[L(w_T)] - L* <= G^2 / (2 ALPHA sqrt(m_c)) + BETA G^2 log T / (4 ALPHA^2 (T - 1))

Its proof takes two things for granted that a draw or a liar can deny: that a voted update is no
longer than G, and that a ballot has no more names than there are honest proposals. Runs of the
paper's vote are made so; the hardened vote sees to both itself and gets any honest majority, and so
does the vote with joint ballots, whose voters send A (w - X) for the mean X of their m_c samples.
"""

import math
from fractions import Fraction
from functools import cache

import numpy as np
import pytest
import torch

from holdout.attacks import BALLOT_ATTACKS, BallotView
from holdout.joint_vote import JointMemory
from holdout.rounds import admit_proposals, bound_updates, conclude_joint, conclude_vote
from holdout.rules import mean
from holdout.seeds import stream
from holdout.voting import Terms, draw_byzantine, draw_committee, has_honest_majority

A = np.array([1.0, 1.25, 1.5])
ALPHA, BETA, DIMENSION = A.min(), A.max(), len(A)
G = float(np.linalg.norm(2 * A))
"""Of A (w - X) with w and X in opposite corners of the box."""
WORKERS, BYZANTINE, SHARD = 60, 20, 4000
PROPOSERS = VOTERS = 15
F = Fraction(1, 3)
BATCH = 8
SEEDS = range(3)


def unit(v):
    return v / np.linalg.norm(v)


# What liars send, from the honest updates; none is longer than G, as the theorem has it.
ATTACKS = {
    "sign flip": lambda honest: -honest.mean(axis=0),
    "as far back as allowed": lambda honest: -G * unit(honest.mean(axis=0)),
    "as far aside as allowed": lambda _honest: G * unit(np.ones(DIMENSION)),
    "a little": lambda honest: honest.mean(axis=0) + 0.7 * honest.std(axis=0),
}


@cache
def shards(seed):
    """(workers, samples, d) of the box, centred off 0."""
    generator = np.random.default_rng(seed)
    return generator.beta(2.0, 1.5, (WORKERS, SHARD, DIMENSION)) * 2 - 1


def bound(rounds, m_c):
    """The theorem's, for w_T."""
    return G**2 / (2 * ALPHA * math.sqrt(m_c)) + BETA * G**2 / (4 * ALPHA**2) * math.log(rounds) / (
        rounds - 1
    )


def committees(byzantine, seed, *, most):
    """Committees of honest majorities with at most so many liars in each group."""
    number = 0
    while True:
        number += 1
        drawn = draw_committee(
            workers=WORKERS,
            proposers=PROPOSERS,
            voters=VOTERS,
            disjoint=True,
            seed=seed,
            round_number=number,
        )
        groups = (drawn.proposers, drawn.voters)
        if all(
            has_honest_majority(group, byzantine) and len(byzantine.intersection(group)) <= most
            for group in groups
        ):
            yield drawn


class Descent:
    """T rounds of HoldOut SGD, or of plain averaging where `terms` is None."""

    def __init__(self, terms, attack, *, rounds, m_c, seed, most=PROPOSERS):
        self.terms, self.attack, self.m_c, self.seed = terms, attack, m_c, seed
        self.data = shards(seed)
        self.generator = np.random.default_rng([seed, m_c])
        self.byzantine = draw_byzantine(WORKERS, BYZANTINE, seed)
        self.radius, self.memory = None, JointMemory()
        self.longest = 0.0
        self.lies_selected = 0
        optimum = np.mean(
            [self.data[i].mean(axis=0) for i in range(WORKERS) if i not in self.byzantine], axis=0
        )
        self.w = np.where(optimum > 0, -1.0, 1.0)
        self.errors = []
        draws = committees(self.byzantine, seed, most=most)
        for t in range(1, rounds + 1):
            self.errors.append(float(A @ (self.w - optimum) ** 2 / 2))
            self.w = self.w - self._update(next(draws), 1 / (2 * ALPHA * t), t) / (2 * ALPHA * t)

    def _update(self, committee, eta, t):
        liars = frozenset(
            p for p, worker in enumerate(committee.proposers) if worker in self.byzantine
        )
        sent = np.array([A * (self.w - self._mean(i, BATCH)) for i in committee.proposers])
        honest = [p for p in range(PROPOSERS) if p not in liars]
        self.longest = max(self.longest, np.linalg.norm(sent[honest], axis=1).max())
        if liars:
            sent[list(liars)] = ATTACKS[self.attack](sent[honest])
        admitted = admit_proposals(list(torch.from_numpy(sent)), dimension=DIMENSION)
        if self.terms is None:
            return mean(admitted.stacked(), f=0).double().numpy()
        if self.terms.is_joint:
            return self._jointly(admitted, committee, liars, sent)
        if self.terms.bound:
            admitted, self.radius = bound_updates(admitted, previous_radius=self.radius)
        candidates = self.w - eta * admitted.stacked().double().numpy()
        ballots = [
            (c, self._coalition(c, liars, t) if c in self.byzantine else self._vote(c, candidates))
            for c in committee.voters
        ]
        decision = conclude_vote(admitted, ballots, voters=committee.voters, terms=self.terms)
        self.lies_selected += bool(liars.intersection(decision.selection))
        if decision.update is None:
            return np.zeros(DIMENSION)
        return decision.update.double().numpy()

    def _jointly(self, admitted, committee, liars, sent):
        """Honest voters send their gradient, Byzantine ones the lie, or the way back."""
        lie = sent[min(liars)] if liars else -sent.mean(axis=0)
        messages = [
            (
                c,
                torch.from_numpy(
                    lie if c in self.byzantine else A * (self.w - self._mean(c, self.m_c))
                ),
            )
            for c in committee.voters
        ]
        decision, self.memory = conclude_joint(
            admitted, messages, voters=committee.voters, terms=self.terms, memory=self.memory
        )
        self.lies_selected += bool(liars.intersection(decision.selection))
        if decision.update is None:
            return np.zeros(DIMENSION)
        return decision.update.double().numpy()

    def _mean(self, worker, count):
        return self.data[worker][self.generator.integers(SHARD, size=count)].mean(axis=0)

    def _vote(self, c, candidates):
        # The spread of the voter's samples adds the same to every loss.
        centre = self._mean(c, self.m_c)
        *losses, current = ((np.vstack([candidates, self.w]) - centre) ** 2 @ A / 2).tolist()
        return self.terms.cast(dict(enumerate(losses)), current_loss=current).approved

    def _coalition(self, c, liars, t):
        return BALLOT_ATTACKS["coalition"](
            BallotView(
                voter=c,
                proposals=tuple(range(PROPOSERS)),
                coalition=liars,
                approve_count=self.terms.approve_count(PROPOSERS),
                honest_ballot=list,
                ranking=list,
                source=stream(self.seed, "ballot", t, c),
            )
        )


PAPER = (Terms.paper(F), int(F * PROPOSERS))
"""The paper's vote, in draws that leave room for every honest proposal on a ballot."""
HARDENED = (Terms(F), PROPOSERS)
JOINT = (Terms.joint(F), PROPOSERS)
OVERFLOWING = (Terms.paper(F), PROPOSERS)
AVERAGING = (None, PROPOSERS)
ROUNDS, M_C = 160, 1000

every_attack = pytest.mark.parametrize("attack", ATTACKS)
both_votes = pytest.mark.parametrize("how", [PAPER, HARDENED], ids=["paper", "hardened"])
every_vote = pytest.mark.parametrize(
    "how", [PAPER, HARDENED, JOINT], ids=["paper", "hardened", "joint"]
)


@cache
def descents(how, attack, *, rounds=ROUNDS, m_c=M_C):
    terms, most = how
    return [Descent(terms, attack, rounds=rounds, m_c=m_c, seed=seed, most=most) for seed in SEEDS]


def errors(runs):
    """E[L(w_t)] - L*, by t from 1, as the average over seeds."""
    return np.mean([run.errors for run in runs], axis=0)


def slope(errors):
    """The power of t with which the error falls over the last four doublings."""
    t = np.array([ROUNDS // 16, ROUNDS // 8, ROUNDS // 4, ROUNDS // 2, ROUNDS])
    return np.polyfit(np.log(t), np.log(errors[t - 1]), 1)[0]


def test_the_constants_are_those_of_the_problem():
    generator = np.random.default_rng(0)
    assert BETA <= 2 * ALPHA
    for _ in range(100):
        v, w, x = generator.uniform(-1, 1, (3, DIMENSION))
        gap = A * (v - w)
        assert ALPHA * np.linalg.norm(v - w) <= np.linalg.norm(gap) <= BETA * np.linalg.norm(v - w)
        assert np.linalg.norm(A * (w - x)) <= G
        stepped = w - A * (w - x) / (2 * ALPHA)
        assert (np.minimum(w, x) <= stepped).all()
        assert (stepped <= np.maximum(w, x)).all()


@every_attack
@every_vote
def test_the_error_stays_below_the_theorems_bound(how, attack):
    runs = descents(how, attack)
    assert max(run.longest for run in runs) <= G
    found = errors(runs)
    assert all(found[t - 1] <= bound(t, M_C) for t in range(2, ROUNDS + 1))
    # The bound says something: it ends far below where the descent starts.
    assert bound(ROUNDS, M_C) < found[0] / 4


@every_attack
@both_votes
def test_the_error_falls_like_log_t_over_t(how, attack):
    assert slope(errors(descents(how, attack))) <= -0.7


@every_attack
def test_with_joint_ballots_it_falls_as_far_as_lies_that_weigh_something_allow(attack):
    """What is weighed down is not out: a few lies keep some weight, and a little bias stays."""
    found = errors(descents(JOINT, attack))
    assert slope(found) <= -0.4
    assert found[-1] < bound(ROUNDS, M_C) / 10


@every_vote
def test_some_lies_are_selected_on_the_way(how):
    assert all(run.lies_selected for run in descents(how, "a little"))


@pytest.mark.parametrize("attack", ["as far back as allowed", "as far aside as allowed"])
def test_plain_averaging_under_attack_exceeds_the_bound(attack):
    found = errors(descents(AVERAGING, attack))
    assert found[-1] > 2 * bound(ROUNDS, M_C)
    assert slope(found) > -0.1


@both_votes
def test_more_holdout_samples_bring_the_model_closer(how):
    found = [
        errors(descents(how, "as far aside as allowed", rounds=100, m_c=m_c))[60:].mean()
        for m_c in (2, 16, 128)
    ]
    assert found[0] > 1.5 * found[1] > 1.5**2 * found[2]


def test_an_honest_majority_shorter_than_a_ballot_costs_the_paper_its_rate():
    attack = "as far back as allowed"
    found = errors(descents(OVERFLOWING, attack))
    assert slope(found) > -0.6
    assert found[-1] > 5 * errors(descents(HARDENED, attack))[-1]
