"""What the coalition knows: everything, its own members' gradients, or the last round's."""

from dataclasses import replace

import pytest
import torch

from holdout.attacks import Lie
from holdout.attacks.updates import Alie
from holdout.data.datasets import Shard
from holdout.federation.round_setup import first_state
from holdout.voting import Committee
from holdout.workers import HonestWorker, propose_together

RULES = ["holdout", "holdout-1", "holdout-paper", "krum", "trimmed-mean"]


class Spy:
    """Keeps what the attack saw and sent, round by round."""

    def __init__(self, inner=None):
        self.inner = inner or Alie(gamma_max=4.0)
        self.views, self.lies = [], []

    def __call__(self, view) -> Lie:
        lie = self.inner(view)
        self.views.append(view)
        self.lies.append(lie)
        return lie


def spied(scene, knowledge, rule="holdout", seed=0, **changed):
    federation, curve = scene(rule, seed=seed, attack={"knowledge": knowledge}, **changed)
    spy = Spy()
    return federation, replace(curve, act=spy), spy


def other_honest_data(federation):
    """The same federation, but honest workers hold other rows with other labels."""

    def other(worker):
        if worker.worker_id in federation.byzantine:
            return worker
        shard = worker.shard
        return replace(worker, shard=Shard(shard.x, shard.y.flip(0), (shard.rows + 7) % 600))

    return replace(federation, workers=[other(worker) for worker in federation.workers])


def updates_of(federation, workers, state, round_number):
    return propose_together(
        [federation.workers[w] for w in workers],
        state.weights,
        round_number=round_number,
        learning_rate=0.1,
    )


def honest_proposers(federation, record):
    return [w for w in record.proposers if w not in federation.byzantine]


@pytest.mark.parametrize("rule", RULES)
def test_the_omniscient_know_this_rounds_honest_proposals(rule, scene, play):
    federation, curve, spy = spied(scene, "omniscient", rule)
    state = first_state(federation)
    for round_number in (1, 2):
        (record,), after = play(federation, curve, 1, state)
        honest = honest_proposers(federation, record)
        expected = updates_of(federation, honest, state, round_number)
        view = spy.views[-1]
        assert torch.equal(view.known, expected)
        assert torch.equal(view.mean, expected.mean(dim=0))
        assert torch.allclose(view.deviation, expected.std(dim=0, correction=0))
        assert view.count == record.byzantine_proposers
        state = after


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("knowledge", ["coalition", "last-round"])
def test_the_members_own_gradients_are_all_that_a_coalition_knows_at_first(
    rule, knowledge, scene, play
):
    federation, curve, spy = spied(scene, knowledge, rule)
    state = first_state(federation)
    play(federation, curve, 1, state)
    expected = updates_of(federation, sorted(federation.byzantine), state, 1)
    assert torch.equal(spy.views[0].known, expected)


@pytest.mark.parametrize("rule", RULES)
def test_a_coalition_knows_its_members_gradients_in_every_round(rule, scene, play):
    federation, curve, spy = spied(scene, "coalition", rule)
    _, state = play(federation, curve, 1)
    play(federation, curve, 1, state)
    expected = updates_of(federation, sorted(federation.byzantine), state, 2)
    assert torch.equal(spy.views[1].known, expected)


@pytest.mark.parametrize("rule", RULES)
def test_last_rounds_honest_proposals_are_known_as_they_were_sent(rule, scene, play):
    federation, curve, spy = spied(scene, "last-round", rule)
    start = first_state(federation)
    (first,), state = play(federation, curve, 1, start)
    play(federation, curve, 1, state)
    expected = updates_of(federation, honest_proposers(federation, first), start, 1)
    # As sent, not as the server's bound scaled them down.
    assert torch.equal(spy.views[1].known, expected)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("seed", range(3))
def test_the_data_of_honest_workers_do_not_change_a_coalitions_lie(rule, seed, scene, play):
    federation, curve, spy = spied(scene, "coalition", rule, seed=seed)
    play(federation, curve)
    play(other_honest_data(federation), curve)
    first, second = spy.lies
    assert first.gamma == second.gamma
    assert torch.equal(first.updates, second.updates)


@pytest.mark.parametrize("rule", RULES)
def test_this_rounds_honest_work_does_not_change_a_lie_made_of_the_last_rounds(rule, scene, play):
    federation, curve, spy = spied(scene, "last-round", rule)
    _, state = play(federation, curve)
    play(federation, curve, 1, state)
    play(other_honest_data(federation), curve, 1, state)
    _, second, third = spy.lies
    assert second.gamma == third.gamma
    assert torch.equal(second.updates, third.updates)


@pytest.mark.parametrize("rule", RULES)
def test_the_data_of_honest_workers_do_change_what_the_omniscient_send(rule, scene, play):
    federation, curve, spy = spied(scene, "omniscient", rule)
    play(federation, curve)
    play(other_honest_data(federation), curve)
    first, second = spy.lies
    assert not torch.allclose(first.updates, second.updates)


def test_only_an_attacker_of_the_last_round_has_its_updates_kept(scene, play):
    for knowledge in ("omniscient", "coalition", "last-round"):
        federation, curve, _ = spied(scene, knowledge)
        (record,), state = play(federation, curve)
        if knowledge == "last-round":
            assert len(state.last_honest) == len(honest_proposers(federation, record))
        else:
            assert state.last_honest is None


def test_what_was_known_stays_known_when_nobody_honest_proposes(scene, play, monkeypatch):
    federation, curve, spy = spied(scene, "last-round")
    _, state = play(federation, curve)
    liars = sorted(federation.byzantine)
    honest = [w for w in range(20) if w not in federation.byzantine]
    with monkeypatch.context() as patch:
        patch.setattr(
            "holdout.federation.round_setup.draw_committee",
            lambda **_: Committee(tuple(liars[:4]), tuple(honest[:7])),
        )
        (record,), after = play(federation, curve, 1, state)
    assert record.byzantine_proposers == len(record.proposers) == 4
    assert torch.equal(after.last_honest, state.last_honest)
    assert torch.equal(spy.views[1].known, state.last_honest)


def test_the_omniscient_fall_back_on_their_own_work_when_nobody_honest_proposes(
    scene, play, monkeypatch
):
    federation, curve, spy = spied(scene, "omniscient")
    liars = sorted(federation.byzantine)
    honest = [w for w in range(20) if w not in federation.byzantine]
    monkeypatch.setattr(
        "holdout.federation.round_setup.draw_committee",
        lambda **_: Committee(tuple(liars[:3]), tuple(honest[:7])),
    )
    play(federation, curve)
    expected = updates_of(federation, liars[:3], first_state(federation), 1)
    assert torch.equal(spy.views[0].known, expected)


@pytest.mark.parametrize("rule", ["holdout", "holdout-1", "mean"])
def test_flipped_labels_are_what_the_liars_really_learn_from(rule, scene, play, blobs):
    federation, curve = scene(rule, attack={"name": "label-flip"})
    state = first_state(federation)
    spy = Spy(curve.act)
    (record,), _ = play(federation, replace(curve, act=spy), 1, state)
    liars = [w for w in record.proposers if w in federation.byzantine]
    poisoned = 3 - blobs.y_train
    straight = [
        replace(federation.workers[w], shard=replace(federation.workers[w].shard, y=poisoned))
        for w in liars
    ]
    expected = propose_together(straight, state.weights, round_number=1, learning_rate=0.1)
    assert torch.equal(spy.lies[0].updates, expected)
    for worker in federation.workers:
        labels = poisoned if worker.worker_id in federation.byzantine else blobs.y_train
        assert torch.equal(worker.shard.y, labels)
    clean, _ = scene(rule, attack={"name": "zero"})
    unpoisoned = updates_of(clean, liars, state, 1)
    assert not torch.allclose(unpoisoned, expected)
    assert all(isinstance(worker, HonestWorker) for worker in federation.workers)


@pytest.mark.parametrize("knowledge", ["omniscient", "coalition", "last-round"])
def test_lying_voters_see_honest_messages_only_if_the_coalition_does(knowledge, scene, play):
    seen = []

    def spy(view):
        seen.append(view.shared.known)
        return view.own()

    changed = {"attack": {"knowledge": knowledge, "name": "zero"}}
    federation, curve = scene("holdout", plugins={"ballots": spy}, **changed)
    play(federation, curve, 1)
    first, other = list(seen), []
    seen = other
    play(other_honest_data(federation), curve, 1)
    assert first
    assert other
    # Other honest data changes what an omniscient liar sees, and nothing for the others.
    changes = [not torch.equal(a, b) for a, b in zip(first, other, strict=True)]
    assert all(changes) if knowledge == "omniscient" else not any(changes)
