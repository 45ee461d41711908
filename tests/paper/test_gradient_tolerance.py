"""Section "Byzantine Gradient Tolerance": Proposition 1 on a problem whose constants are known.

The problem is logistic regression on samples of length at most 1 with an l2 term of weight ALPHA:
strongly convex with ALPHA, smooth with BETA = ALPHA + 1/4. Gradient steps of rate at most
1 / (2 ALPHA) from 0 stay where |w| <= 1 / ALPHA; there no gradient is longer than G = 2.

For a voted update j and an honest proposal i that the voter ranks no better, convexity bounds
L_c(w - eta g_j) from below and smoothness L_c(w - eta g_i) from above; the proposition follows with
no assumption on g_j. Since a ballot holds the k best, the same is true of its average and that of
all honest proposals, whose expectation is the true gradient's square.

That there is such an i needs at least k honest proposals, not merely a majority of them: the paper
passes over this, and the last tests are about it.
"""

from fractions import Fraction

import numpy as np
import pytest
import torch

from holdout.attacks import BALLOT_ATTACKS, BallotView
from holdout.joint_vote import JointMemory
from holdout.rounds import admit_proposals, bound_updates, conclude_joint, conclude_vote
from holdout.seeds import stream
from holdout.voting import Terms

ALPHA, DIMENSION, SAMPLES = 0.1, 6, 4000
BETA, G = ALPHA + 0.25, 2.0
F = Fraction(1, 3)
PROPOSERS, VOTERS = 15, 12
BATCH, HOLDOUT = 20, 60

ATTACKS = {
    "sign flip": lambda honest: -honest.mean(axis=0),
    "bomb": lambda honest: -1e4 * honest.mean(axis=0),
    "a little": lambda honest: honest.mean(axis=0) + 0.5 * honest.std(axis=0),
    "a little backwards": lambda honest: honest.mean(axis=0) - 1.5 * honest.std(axis=0),
    "far ahead": lambda honest: 20 * honest.mean(axis=0),
    "nothing": lambda honest: 0 * honest.mean(axis=0),
}
PLACES = (0.0, 1.0, 8.0)
"""How far from 0 the models lie at which the proposition is checked; all within 1 / ALPHA."""


@pytest.fixture(scope="module")
def samples():
    """Signed samples y * x: all that the logistic loss looks at."""
    generator = np.random.default_rng(3)
    x = generator.normal(size=(SAMPLES, DIMENSION)) + 0.4
    x /= np.maximum(1, np.linalg.norm(x, axis=1, keepdims=True))
    flipped = generator.random(SAMPLES) < 0.15
    return np.where(flipped[:, None], -x, x)


def loss(samples, w):
    return np.logaddexp(0, -samples @ w).mean() + ALPHA / 2 * w @ w


def gradient(samples, w):
    return -(samples / (1 + np.exp(samples @ w))[:, None]).mean(axis=0) + ALPHA * w


class Poll:
    """One vote at a model w under attack, through the server's own code."""

    def __init__(self, samples, attack, *, terms, liars, distance, eta, seed):
        generator = np.random.default_rng(seed)
        direction = generator.normal(size=DIMENSION)
        self.w = distance * direction / np.linalg.norm(direction)
        self.eta, self.terms = eta, terms
        self.liars = frozenset(generator.permutation(PROPOSERS)[:liars].tolist())
        batches = generator.choice(SAMPLES, (PROPOSERS, BATCH))
        sent = np.array([gradient(samples[rows], self.w) for rows in batches])
        honest = [i for i in range(PROPOSERS) if i not in self.liars]
        assert np.linalg.norm(sent[honest], axis=1).max() <= G
        sent[list(self.liars)] = ATTACKS[attack](sent[honest])
        admitted = admit_proposals(list(torch.from_numpy(sent)), dimension=DIMENSION)
        if terms.bound:
            admitted, self.radius = bound_updates(admitted, previous_radius=None)
        self.updates = {p: update.double().numpy() for p, update in admitted.valid.items()}
        # Byzantine voters are the first ones, as many as the assumed share allows.
        self.honest_voters = range(int(F * VOTERS), VOTERS)
        self.held = {
            c: samples[generator.choice(SAMPLES, HOLDOUT, replace=False)]
            for c in self.honest_voters
        }
        self.slopes = {c: gradient(held, self.w) for c, held in self.held.items()}
        self.losses = {
            c: {p: loss(held, self.w - eta * update) for p, update in self.updates.items()}
            for c, held in self.held.items()
        }
        ballots = [(c, self._coalition(c, seed)) for c in range(int(F * VOTERS))]
        ballots += [(c, self._ballot(c)) for c in self.honest_voters]
        self.decision = conclude_vote(admitted, ballots, voters=range(VOTERS), terms=terms)
        assert len(self.decision.ballots) == VOTERS

    def inner(self, c, p):
        """<g_p, gradient of L_c>."""
        return float(self.updates[p] @ self.slopes[c])

    def votes(self):
        """Each honest voter with each proposal that it voted for."""
        return [(c, j) for c in self.honest_voters for j in self.decision.ballots[c].approved]

    def least(self, c, i):
        """What the proof says <g_j, gradient of L_c> is at least, if i is ranked no better than j.

        With the honest update's own length in the place of G: far tighter.
        """
        return self.inner(c, i) - BETA * self.eta / 2 * float(self.updates[i] @ self.updates[i])

    def honest(self):
        return [p for p in self.updates if p not in self.liars]

    def _ballot(self, c):
        current = loss(self.held[c], self.w)
        return self.terms.cast(self.losses[c], current_loss=current).approved

    def _coalition(self, c, seed):
        return BALLOT_ATTACKS["coalition"](
            BallotView(
                voter=c,
                proposals=tuple(self.updates),
                coalition=self.liars,
                approve_count=self.terms.approve_count(len(self.updates)),
                honest_ballot=list,
                ranking=list,
                source=stream(seed, "ballot", c),
            )
        )


def polls(samples, attack, *, terms, liars):
    return [
        Poll(samples, attack, terms=terms, liars=liars, distance=distance, eta=eta, seed=seed)
        for distance in PLACES
        for eta in (0.05, 0.5, 1 / (2 * ALPHA))
        for seed in range(3)
    ]


ROUNDING = 1e-12
every_attack = pytest.mark.parametrize("attack", ATTACKS)


def test_the_constants_are_those_of_the_problem(samples):
    generator = np.random.default_rng(0)
    for _ in range(200):
        sample = samples[generator.integers(SAMPLES)][None]
        v, w = generator.normal(size=(2, DIMENSION))
        v, w = v / ALPHA / max(1, np.linalg.norm(v)), w / max(1, np.linalg.norm(w))
        gap = gradient(sample, w) - gradient(sample, v)
        assert np.linalg.norm(gap) <= BETA * np.linalg.norm(w - v) + ROUNDING
        assert gap @ (w - v) >= ALPHA * (w - v) @ (w - v) - ROUNDING
        assert np.linalg.norm(gradient(sample, v)) <= G
        step = 1e-6 * w
        slope = (loss(sample, v + step) - loss(sample, v - step)) / 2e-6
        assert slope == pytest.approx(gradient(sample, v) @ w, abs=1e-6)


@every_attack
def test_a_voted_update_points_along_the_voters_gradient_like_an_honest_one(samples, attack):
    lies_voted_for = 0
    for poll in polls(samples, attack, terms=Terms.paper(F), liars=int(F * PROPOSERS)):
        assert len(poll.votes()) == 10 * len(poll.honest_voters)
        for c, j in poll.votes():
            worst = min(poll.inner(c, i) for i in poll.honest())
            assert poll.inner(c, j) >= worst - BETA * G**2 * poll.eta / 2 - ROUNDING
            no_better = [i for i in poll.honest() if poll.losses[c][i] >= poll.losses[c][j]]
            assert no_better
            assert all(poll.inner(c, j) >= poll.least(c, i) - ROUNDING for i in no_better)
            lies_voted_for += j in poll.liars
    # Attacks that honest voters can be fooled by do put the claim to the test.
    assert lies_voted_for > 0 or attack in {"sign flip", "bomb"}


@every_attack
def test_an_average_vote_points_along_the_voters_gradient_like_an_average_honest_update(
    samples, attack
):
    for poll in polls(samples, attack, terms=Terms.paper(F), liars=int(F * PROPOSERS)):
        for c in poll.honest_voters:
            voted = [poll.inner(c, j) for j in poll.decision.ballots[c].approved]
            assert np.mean(voted) >= np.mean([poll.least(c, i) for i in poll.honest()]) - ROUNDING


@every_attack
@pytest.mark.parametrize("distance", PLACES)
def test_in_expectation_votes_follow_the_true_gradient(samples, attack, distance):
    eta, surplus = 0.1, []
    for seed in range(30):
        poll = Poll(
            samples,
            attack,
            terms=Terms.paper(F),
            liars=int(F * PROPOSERS),
            distance=distance,
            eta=eta,
            seed=seed,
        )
        true = gradient(samples, poll.w)
        # The longest honest gradient of the round is a G that holds here.
        longest = max(float(poll.updates[i] @ poll.updates[i]) for i in poll.honest())
        promised = true @ true - BETA * longest * eta / 2
        surplus.append(np.mean([poll.inner(c, j) for c, j in poll.votes()]) - promised)
    assert np.mean(surplus) >= -3 * np.std(surplus) / np.sqrt(len(surplus))


@pytest.mark.parametrize("attack", ["sign flip", "bomb"])
def test_averaging_everything_does_not_follow_it(samples, attack):
    poll = Poll(samples, attack, terms=Terms.paper(F), liars=5, distance=8.0, eta=0.05, seed=0)
    everything = np.mean(list(poll.updates.values()), axis=0)
    true = gradient(samples, poll.w)
    averaged, voted = everything @ true, poll.decision.update.double().numpy() @ true
    promised = true @ true - BETA * G**2 * poll.eta / 2
    assert averaged < promised < voted


# An honest majority of proposers that is smaller than a ballot.


def overflowing(samples, terms):
    """8 honest proposers of 15, where a full ballot names 10."""
    return [
        Poll(samples, "bomb", terms=terms, liars=7, distance=8.0, eta=0.05, seed=seed)
        for seed in range(5)
    ]


def test_a_full_ballot_longer_than_the_honest_proposals_breaks_the_proposition(samples):
    for poll in overflowing(samples, Terms.paper(F)):
        lies = [(c, j) for c, j in poll.votes() if j in poll.liars]
        assert len(lies) == 2 * len(poll.honest_voters)
        for c, j in lies:
            worst = min(poll.inner(c, i) for i in poll.honest())
            assert poll.inner(c, j) < worst - BETA * G**2 * poll.eta / 2
        assert poll.liars.intersection(poll.decision.selection)


def test_the_gate_keeps_the_proposition_with_any_honest_majority(samples):
    for attack in ATTACKS:
        for poll in polls(samples, attack, terms=Terms(F), liars=7):
            for c, j in poll.votes():
                # A proposal may also pass by not hurting the voter: then it does not point back.
                least = min(0, *(poll.least(c, i) for i in poll.honest()))
                assert poll.inner(c, j) >= least - ROUNDING
    for poll in overflowing(samples, Terms(F)):
        assert not any(j in poll.liars for _, j in poll.votes())
        assert not poll.liars.intersection(poll.decision.selection)


@every_attack
def test_the_bound_makes_every_update_as_short_as_the_theorem_assumes(samples, attack):
    for poll in polls(samples, attack, terms=Terms(F), liars=7):
        longest = max(float(np.linalg.norm(update)) for update in poll.updates.values())
        assert longest <= poll.radius * (1 + 1e-6)
        assert poll.radius <= G


# Joint ballots: the same claim to first order, hence without the term in eta.


def joint_poll(samples, attack, *, liars, distance, seed, message=None):
    """A vote with joint ballots at a model w, as the server decides it; the true gradient there."""
    generator = np.random.default_rng(seed)
    direction = generator.normal(size=DIMENSION)
    w = distance * direction / np.linalg.norm(direction)
    batches = generator.choice(SAMPLES, (PROPOSERS, BATCH))
    sent = np.array([gradient(samples[rows], w) for rows in batches])
    sent[:liars] = ATTACKS[attack](sent[liars:])
    held = [samples[generator.choice(SAMPLES, HOLDOUT, replace=False)] for _ in range(VOTERS)]
    messages = np.array([gradient(rows, w) for rows in held])
    lying = int(F * VOTERS)
    messages[:lying] = sent[0] if message is None else message(messages[lying:])
    admitted = admit_proposals(list(torch.from_numpy(sent)), dimension=DIMENSION)
    ballots = list(enumerate(torch.from_numpy(messages)))
    decision, memory = conclude_joint(
        admitted, ballots, voters=range(VOTERS), terms=Terms.joint(F), memory=JointMemory()
    )
    return decision, memory, sent, gradient(samples, w)


@every_attack
@pytest.mark.parametrize("distance", PLACES)
def test_in_expectation_a_joint_vote_follows_the_true_gradient(samples, attack, distance):
    """With no more liars than f among proposers and voters; what is bounded cannot be longer than
    the median, so the promise is made to the part of the true gradient that this leaves."""
    surplus = []
    for seed in range(30):
        decision, memory, sent, true = joint_poll(
            samples, attack, liars=int(F * PROPOSERS), distance=distance, seed=seed
        )
        update = (
            np.zeros(DIMENSION) if decision.update is None else decision.update.double().numpy()
        )
        honest = sent[int(F * PROPOSERS) :]
        kept = np.minimum(1, memory.radius / np.linalg.norm(honest, axis=1)).min()
        longest = (honest**2).sum(axis=1).max()
        surplus.append(update @ true - kept * true @ true + BETA * longest * 0.1 / 2)
    assert np.mean(surplus) >= -3 * np.std(surplus) / np.sqrt(len(surplus))


@every_attack
def test_a_proposal_that_joint_ballots_judge_negative_is_out_if_there_is_room(samples, attack):
    for seed in range(20):
        decision, memory, sent, _ = joint_poll(
            samples, attack, liars=int(F * PROPOSERS), distance=8.0, seed=seed
        )
        scores = sent @ memory.direction.double().numpy()
        negative = sorted((score, p) for p, score in enumerate(scores) if score < -ROUNDING)
        room = PROPOSERS - Terms.joint(F).approve_count(PROPOSERS)
        assert not {p for _, p in negative[:room]}.intersection(decision.selection)
        assert len(decision.selection) >= PROPOSERS - room
