"""Workers: alone or many together, they propose and judge the same, and nothing twice."""

from fractions import Fraction
from types import SimpleNamespace

import pytest
import torch
from torch.func import functional_call
from torch.nn import functional as F  # noqa: N812

from holdout import holdout_scores as scores_module
from holdout.attacks.updates import flip_labels
from holdout.data.datasets import Shard, load
from holdout.holdout_scores import HoldoutScores
from holdout.ids import ProposalId
from holdout.learning import vector
from holdout.learning.models import MODELS, build
from holdout.rounds import admit_proposals, bound_updates
from holdout.voting import Gate, Quorum, Terms
from holdout.workers import HonestWorker, Recipe, judge_together, propose_together

CLASSES = 4
RATE = 0.1
SHAPES = {"mlp": (12,), "lenet5": (1, 16, 16)}
TERMS = {
    "paper": Terms.paper(Fraction(33, 100)),
    "median": Terms(Fraction(33, 100)),
    "zero": Terms(Fraction(33, 100), gate=Gate.ZERO),
    "none": Terms(Fraction(1, 3), gate=Gate.NONE, quorum_kind=Quorum.PAPER),
    "first-order": Terms(Fraction(33, 100), first_order=True),
}


def crew(  # noqa: PLR0917
    name="mlp", count=6, rows=50, batch=10, steps=1, samples=30, seed=0, labels=None
):
    """A pool of 200 blobs, and workers that hold overlapping parts of it."""
    shape = SHAPES[name]
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(0, CLASSES, (200,), generator=generator)
    centres = torch.randn(CLASSES, *shape, generator=generator)
    x = centres[y] + torch.randn(200, *shape, generator=generator)
    model = build(MODELS[name], shape, CLASSES, seed=seed)
    held = [torch.randperm(200, generator=generator)[:rows] for _ in range(count)]
    everybody = [
        HonestWorker(i, model, Shard(x, y, held[i]), Recipe(batch, steps, samples), seed)
        for i in range(count)
    ]
    updates = torch.randn(7, vector.dimension(model), generator=generator)
    return SimpleNamespace(
        model=model, x=x, y=y, workers=everybody, weights=vector.flatten(model), updates=updates
    )


def scores(them, voters=None, round_number=3, **settings):
    return HoldoutScores(
        them.workers if voters is None else voters,
        them.weights,
        round_number=round_number,
        learning_rate=RATE,
        **settings,
    )


def plain_loss(them, worker, weights, round_number=3):
    """One voter, one candidate, the textbook way."""
    rows = worker.holdout_rows(round_number)
    with torch.no_grad():
        logits = functional_call(
            them.model, vector.unflatten(them.model, weights), (worker.shard.x[rows],)
        )
    return F.cross_entropy(logits.double(), worker.shard.y[rows]).item()


def plain_gradient(them, weights, x, y):
    leaf = weights.clone().requires_grad_()
    logits = functional_call(them.model, vector.unflatten(them.model, leaf), (x,))
    (gradient,) = torch.autograd.grad(F.cross_entropy(logits, y), leaf)
    return gradient


@pytest.fixture(params=SHAPES)
def them(request):
    return crew(request.param)


@pytest.fixture
def calls(monkeypatch):
    """(candidates, rows) of every call of `sample_losses`."""
    seen = []
    real = scores_module.sample_losses

    def counted(model, candidates, x, y, *, loss):
        seen.append((len(candidates), len(x)))
        return real(model, candidates, x, y, loss=loss)

    monkeypatch.setattr(scores_module, "sample_losses", counted)
    return seen


def test_a_worker_alone_proposes_what_it_proposes_in_company(them):
    together = propose_together(them.workers, them.weights, round_number=2, learning_rate=RATE)
    for worker, row in zip(them.workers, together, strict=True):
        alone = worker.propose(them.weights, round_number=2, learning_rate=RATE)
        assert torch.allclose(alone, row, rtol=1e-4, atol=1e-6)


def test_a_proposal_is_the_gradient_of_the_batch_of_the_round(them):
    together = propose_together(them.workers, them.weights, round_number=2, learning_rate=RATE)
    for worker, row in zip(them.workers, together, strict=True):
        ((x, y),) = worker.batches(2)
        assert torch.allclose(row, plain_gradient(them, them.weights, x, y), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("steps", [2, 5])
def test_local_steps_give_the_pseudo_gradient_of_plain_sgd(steps):
    them = crew(steps=steps)
    together = propose_together(them.workers, them.weights, round_number=2, learning_rate=RATE)
    for worker, row in zip(them.workers, together, strict=True):
        local, batches = them.weights, worker.batches(2)
        assert len(batches) == steps
        for x, y in batches:
            local = local - RATE * plain_gradient(them, local, x, y)
        assert torch.allclose(row, (them.weights - local) / RATE, rtol=1e-3, atol=1e-5)
        alone = worker.propose(them.weights, round_number=2, learning_rate=RATE)
        assert torch.allclose(row, alone, rtol=1e-3, atol=1e-5)


def test_nobody_proposes_nothing():
    them = crew()
    assert propose_together([], them.weights, round_number=1, learning_rate=RATE).shape == (
        0,
        len(them.weights),
    )


def test_batches_differ_between_rounds_workers_and_steps_and_not_between_calls():
    them = crew(steps=3)
    drawn = {
        tuple(x[:, 0].tolist())
        for worker in them.workers
        for round_number in (1, 2, 3)
        for x, _ in worker.batches(round_number)
    }
    assert len(drawn) == 6 * 3 * 3
    again, here = crew(steps=3).workers[2].batches(1), them.workers[2].batches(1)
    for (x, y), (a, b) in zip(here, again, strict=True):
        assert torch.equal(x, a)
        assert torch.equal(y, b)


def test_another_seed_draws_other_batches_and_holdout_samples():
    them = crew()
    worker = them.workers[0]
    other = HonestWorker(0, them.model, worker.shard, worker.recipe, seed=1)
    assert not torch.equal(worker.batches(1)[0][0], other.batches(1)[0][0])
    assert not torch.equal(worker.holdout_rows(1), other.holdout_rows(1))


def test_holdout_samples_are_drawn_afresh_each_round_without_repetition():
    worker = crew().workers[1]
    held = set(worker.shard.rows.tolist())
    seen = []
    for round_number in range(1, 21):
        rows = worker.holdout_rows(round_number).tolist()
        assert len(rows) == len(set(rows)) == 30
        assert set(rows) <= held
        seen.append(frozenset(rows))
        assert rows == worker.holdout_rows(round_number).tolist()
    assert len(set(seen)) == 20
    assert set().union(*seen) == held


def test_as_many_samples_as_the_shard_has_are_the_whole_shard():
    worker = crew(samples=50).workers[1]
    assert set(worker.holdout_rows(1).tolist()) == set(worker.shard.rows.tolist())
    assert len(worker.holdout_rows(1)) == 50


def test_losses_are_those_of_the_plain_way(them):
    judged = scores(them)
    losses = judged.losses(them.updates)
    assert losses.dtype == torch.float64
    assert losses.shape == (6, 7)
    for voter, worker in enumerate(them.workers):
        assert judged.current[voter] == pytest.approx(
            plain_loss(them, worker, them.weights), rel=1e-5
        )
        for place, update in enumerate(them.updates):
            plain = plain_loss(them, worker, them.weights - RATE * update)
            assert losses[voter, place].item() == pytest.approx(plain, rel=1e-5)


def test_losses_of_combinations_are_those_of_the_updates_they_make(them):
    line = them.updates[:2]
    coefficients = torch.tensor([[1.0, s / 4] for s in range(12)])
    judged = scores(them)
    together = judged.combination_losses(line, coefficients)
    assert torch.allclose(together, judged.losses(coefficients @ line), rtol=1e-5)


def test_what_overflows_is_infinitely_bad(them):
    updates = torch.stack([them.updates[0], torch.full_like(them.updates[0], -3e38)])
    losses = scores(them).losses(updates)
    assert losses[:, 0].isfinite().all()
    assert (losses[:, 1] == torch.inf).all()


@pytest.mark.parametrize("terms", TERMS)
def test_a_voter_alone_votes_as_in_company(them, terms):
    terms = TERMS[terms]
    judged = scores(them, first_order=terms.first_order)
    proposals = dict(zip([9, 4, 7, 0, 2, 8, 5], them.updates, strict=True))
    table = judged.losses(them.updates)
    for voter, worker in enumerate(them.workers):
        alone = worker.vote(
            them.weights, proposals, round_number=3, learning_rate=RATE, terms=terms
        )
        losses = dict(zip(proposals, table[voter].tolist(), strict=True))
        together = terms.cast(losses, current_loss=judged.current[voter])
        if alone != together:
            # Only what is as good as equal may be ranked another way.
            contested = [losses[p] for p in set(alone.approved) ^ set(together.approved)]
            marks = [*losses.values(), judged.current[voter]]
            for loss in contested:
                near = [mark for mark in marks if abs(mark - loss) < 1e-6 * max(1, abs(loss))]
                assert len(near) > 1, (voter, alone, together, losses)


@pytest.mark.parametrize("terms", TERMS)
def test_without_proposals_nobody_is_approved(terms):
    them = crew()
    ballot = them.workers[0].vote(
        them.weights, {}, round_number=1, learning_rate=RATE, terms=TERMS[terms]
    )
    assert ballot.approved == ()


def test_workers_of_different_pools_are_judged_by_their_own():
    them, others = crew(), crew(seed=5)
    strangers = [
        HonestWorker(10 + i, them.model, w.shard, w.recipe, 0) for i, w in enumerate(others.workers)
    ]
    mixed = [them.workers[0], strangers[0], them.workers[1], strangers[1]]
    losses = scores(them, mixed).losses(them.updates)
    for voter, worker in enumerate(mixed):
        plain = plain_loss(them, worker, them.weights - RATE * them.updates[0])
        assert losses[voter, 0].item() == pytest.approx(plain, rel=1e-5)


def test_poisoned_labels_are_a_pool_of_their_own():
    them = crew()
    flipped = flip_labels(them.y, CLASSES)
    liars = [
        HonestWorker(w.worker_id, them.model, Shard(them.x, flipped, w.shard.rows), w.recipe, 0)
        for w in them.workers
    ]
    judged = scores(them, [them.workers[0], liars[0], liars[1], them.workers[1]])
    honest, poisoned = scores(them, them.workers[:2]), scores(them, liars[:2])
    losses = judged.losses(them.updates)
    assert torch.allclose(losses[[0, 3]], honest.losses(them.updates), rtol=1e-6)
    assert torch.allclose(losses[[1, 2]], poisoned.losses(them.updates), rtol=1e-6)
    assert not torch.allclose(losses[0], losses[1], rtol=1e-2)


def test_a_sample_that_several_voters_hold_is_scored_once(calls):
    them = crew(count=12, samples=50)
    judged = scores(them)
    judged.losses(them.updates)
    distinct = len(set(torch.cat([w.shard.rows for w in them.workers]).tolist()))
    assert distinct < 12 * 50
    assert calls == [(7, distinct)]


def test_the_current_model_is_scored_once_and_only_if_somebody_asks(calls):
    them = crew()
    judged = scores(them)
    assert calls == []
    assert judged.current == judged.current
    assert [candidates for candidates, _ in calls] == [1]
    judged.losses(torch.zeros_like(them.updates[:1]))
    assert [candidates for candidates, _ in calls] == [1]


def test_an_update_that_comes_again_is_scored_once(calls):
    them = crew()
    judged = scores(them)
    calls.clear()
    first = judged.losses(them.updates[[0, 1, 0, 0, 2]])
    assert [candidates for candidates, _ in calls] == [3]
    assert torch.equal(first[:, 0], first[:, 2])
    second = judged.losses(them.updates[[2, 3, 1]])
    assert [candidates for candidates, _ in calls] == [3, 1]
    assert torch.equal(second[:, 0], first[:, 4])


def test_many_samples_are_scored_in_blocks(monkeypatch, calls):
    monkeypatch.setattr(scores_module, "SCORING_BLOCK", 64)
    them = crew(count=12, samples=50)
    blockwise = scores(them).losses(them.updates)
    assert max(rows for _, rows in calls) == 64
    monkeypatch.undo()
    assert torch.allclose(blockwise, scores(them).losses(them.updates), rtol=1e-6)


def test_first_order_scores_are_the_slopes_of_the_loss(them):
    judged = scores(them, first_order=True)
    losses = judged.losses(them.updates)
    assert judged.current == [0.0] * 6
    for voter, worker in enumerate(them.workers):
        rows = worker.holdout_rows(3)
        gradient = plain_gradient(them, them.weights, them.x[rows], them.y[rows]).double()
        for place, update in enumerate(them.updates):
            slope = -(update.double() @ gradient).item()
            assert losses[voter, place].item() == pytest.approx(slope, rel=1e-3, abs=1e-4)
    coefficients = torch.tensor([[1.0, 0.5], [0.0, 2.0]])
    combined = judged.combination_losses(them.updates[:2], coefficients)
    assert torch.allclose(combined[:, 0], losses[:, 0] + 0.5 * losses[:, 1], atol=1e-4)


def test_first_order_voting_evaluates_no_candidate(calls):
    them = crew()
    scores(them, first_order=True).losses(them.updates)
    assert calls == []


def test_small_steps_make_first_order_and_exact_scores_agree():
    them = crew()
    small = 1e-3 * them.updates
    exact, linear = scores(them), scores(them, first_order=True)
    gained = exact.losses(small) - torch.tensor(exact.current)[:, None]
    assert torch.allclose(gained / RATE, linear.losses(small), rtol=0.05, atol=1e-4)


def test_first_order_and_exact_ballots_mostly_name_the_same_honest_proposals():
    # By chance, two ballots of 21 out of 30 share 0.70 of their names.
    seed, proposers, terms = 0, 30, Terms(Fraction(33, 100), gate=Gate.NONE)
    digits = load("mnist-5k")
    model = build(MODELS["mlp"], digits.shape, digits.classes, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    everybody = [
        HonestWorker(
            i,
            model,
            Shard(digits.x_train, digits.y_train, torch.randperm(4000, generator=generator)[:500]),
            Recipe(83, 1, 500),
            seed,
        )
        for i in range(proposers + 8)
    ]
    weights = vector.flatten(model)

    def propose(round_number):
        return propose_together(
            everybody[:proposers], weights, round_number=round_number, learning_rate=RATE
        )

    for round_number in range(1, 6):
        weights = weights - RATE * propose(round_number).mean(dim=0)
    admitted = admit_proposals(list(propose(6)), dimension=len(weights))
    updates = bound_updates(admitted, previous_radius=None)[0].stacked()
    shares = []
    ballots = []
    for first_order in (False, True):
        judged = HoldoutScores(
            everybody[proposers:],
            weights,
            round_number=6,
            learning_rate=RATE,
            first_order=first_order,
        )
        table = judged.losses(updates).tolist()
        ballots.append(
            [
                set(terms.cast(dict(enumerate(row)), current_loss=current).approved)
                for row, current in zip(table, judged.current, strict=True)
            ]
        )
    shares = [len(exact & linear) / 21 for exact, linear in zip(*ballots, strict=True)]
    measured = sum(shares) / len(shares)
    print(f"first-order and exact ballots share {measured:.3f} of their names (seed {seed})")  # noqa: T201
    assert measured > 0.78, shares


# --------------------------------------------------------------------------------- joint ballots

JOINT = Terms.joint(Fraction(33, 100))


def joint_ballot(them, worker, proposals, round_number=3):
    return worker.vote(
        them.weights, proposals, round_number=round_number, learning_rate=RATE, terms=JOINT
    ).update


def test_a_joint_ballot_is_the_gradient_on_the_holdout_rows(them):
    for worker in them.workers:
        rows = worker.holdout_rows(3)
        gradient = plain_gradient(them, them.weights, them.x[rows], them.y[rows])
        ballot = joint_ballot(them, worker, {})
        assert torch.allclose(ballot, gradient, rtol=1e-4, atol=1e-6)
        # It does not depend on what was proposed.
        shown = {ProposalId(place): update for place, update in enumerate(them.updates)}
        assert torch.equal(joint_ballot(them, worker, shown), ballot)


@pytest.mark.parametrize("steps", [2, 3, 40])
def test_with_local_steps_a_joint_ballot_walks_through_the_holdout_rows_once(steps):
    them = crew(steps=steps)
    for worker in them.workers:
        weights = them.weights.clone()
        parts = [part for part in worker.holdout_rows(3).tensor_split(steps) if len(part)]
        assert sum(map(len, parts)) == 30
        for rows in parts:
            weights = weights - RATE * plain_gradient(them, weights, them.x[rows], them.y[rows])
        expected = (them.weights - weights) / RATE
        assert torch.allclose(joint_ballot(them, worker, {}), expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("steps", [1, 3])
def test_voters_together_send_what_each_sends_alone(steps):
    them = crew(steps=steps)
    together = judge_together(them.workers, them.weights, round_number=3, learning_rate=RATE)
    for worker, row in zip(them.workers, together, strict=True):
        assert torch.allclose(joint_ballot(them, worker, {}), row, rtol=1e-4, atol=1e-5)
    assert judge_together([], them.weights, round_number=3, learning_rate=RATE).shape[0] == 0
