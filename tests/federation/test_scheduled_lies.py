"""Attacks on a schedule: honest in rounds without a lie, and on the way to it while it grows."""

from dataclasses import replace

import pytest
import torch

from holdout.attacks import Lie
from holdout.attacks.updates import NotANumber
from holdout.federation import decentralized
from holdout.federation.coalition import lie_to_server
from holdout.federation.electorate import score_voters
from holdout.federation.joint_ballots import joint_voters
from holdout.federation.round_setup import draw_round, first_state
from holdout.ids import ProposalId
from holdout.workers import judge_together, propose_together

RULES = ["holdout", "holdout-1", "holdout-paper", "krum", "mean"]


class Counting:
    """Sends a multiple of the mean, and notes the rounds in which it is asked."""

    def __init__(self):
        self.rounds, self.views = [], []

    def __call__(self, view):
        self.rounds.append(view.round_number)
        self.views.append(view)
        return Lie(-5 * view.mean, gamma=5.0)


def honest_twin(federation, curve):
    """The same federation and curve without a liar."""
    return replace(federation, byzantine=frozenset()), replace(curve, act=None)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", ["sign-flip", "label-flip", "greedy"])
def test_a_round_without_a_lie_is_a_round_of_honest_workers(rule, name, scene, play):
    setting = {"name": name, "onset": 4, "voters": "inverted"}
    federation, curve = scene(rule, attack=setting, training={"worker_momentum": 0.5})
    clean, _ = scene(rule, attack={"name": "zero"}, training={"worker_momentum": 0.5})
    records, state = play(federation, curve, 3)
    same, expected = play(*honest_twin(clean, curve), 3)
    assert torch.equal(state.weights, expected.weights)
    assert state.worker_states.keys() == expected.worker_states.keys()
    for record, honest in zip(records, same, strict=True):
        assert record.ballots == honest.ballots
        assert record.selection == honest.selection
        assert record.gamma is None
        # Who is Byzantine is said in any case.
        assert len(record.byzantine_workers) > 0
    _, lied = play(federation, curve, 1, state)
    _, better = play(*honest_twin(clean, curve), 1, expected)
    # Krum may choose the same honest update in spite of the lie.
    assert rule == "krum" or not torch.equal(lied.weights, better.weights)


@pytest.mark.parametrize(
    ("schedule", "rounds"),
    [
        ({}, [1, 2, 3, 4, 5, 6, 7]),
        ({"onset": 3}, [3, 4, 5, 6, 7]),
        ({"every": 3}, [1, 4, 7]),
        ({"onset": 2, "every": 2, "dormant": 2}, [2, 4]),
        ({"dormant": 1}, [1]),
        ({"ramp": 4}, [1, 2, 3, 4, 5, 6, 7]),
        ({"onset": 100}, []),
    ],
)
@pytest.mark.parametrize("rule", ["holdout", "holdout-1", "mean"])
def test_the_attack_is_asked_only_in_rounds_with_a_lie(schedule, rounds, rule, scene, play):
    federation, curve = scene(rule, attack=schedule, federation={"byzantine": 0.49})
    attack = Counting()
    records, _ = play(federation, replace(curve, act=attack), 7)
    drawn = [record.round for record in records if record.byzantine_proposers]
    assert attack.rounds == [number for number in rounds if number in drawn]
    told = [record.round for record in records if record.gamma is not None]
    assert told == attack.rounds


@pytest.mark.parametrize("name", ["sign-flip", "label-flip"])
def test_while_it_grows_a_lie_is_part_honest_work(name, scene, play):
    federation, curve = scene("mean", attack={"name": name, "ramp": 3})
    truthful, _ = scene("mean", attack={"name": "zero"})
    state = first_state(federation)
    for number in range(1, 6):
        (record,), after = play(federation, curve, 1, state)
        workers = {"round_number": number, "learning_rate": 0.1}

        def of(source, ids, state=state, workers=workers):
            return propose_together([source.workers[w] for w in ids], state.weights, **workers)

        liars = [w for w in record.proposers if w in federation.byzantine]
        others = [w for w in record.proposers if w not in federation.byzantine]
        honest = of(truthful, others)
        own = of(truthful, liars)
        lie = of(federation, liars) if name == "label-flip" else -honest.mean(dim=0)
        share = min(1.0, number / 4)
        sent = torch.cat([honest, own + share * (lie - own)])
        step = sent.mean(dim=0)
        assert torch.allclose(after.weights, state.weights - 0.1 * step, atol=1e-6), number
        state = after


@pytest.mark.parametrize("name", ["zero", "label-flip"])
def test_while_it_grows_what_lying_voters_send_with_it_is_part_honest_work(name, scene):
    """By an attack that decides what voters send, such as `jointly`."""
    federation, curve = scene("holdout", attack={"name": name, "ramp": 3})
    truthful, _ = scene("holdout", attack={"name": "zero"})
    seen = 0
    for number in range(1, 6):
        state = replace(first_state(federation), round=number - 1)
        setup = draw_round(federation, curve, state)
        voters = joint_voters(setup, {})
        if not (voters.liars and setup.coalition):
            continue
        seen += 1
        junk = torch.full_like(state.weights, torch.nan)
        far = torch.full_like(state.weights, 3.0)
        messages = [far, junk, None][: len(voters.liars)] + [far] * (len(voters.liars) - 3)
        act = lambda view, messages=messages: Lie(view.mean, messages=messages)  # noqa: E731
        setup = replace(setup, curve=replace(curve, act=act))
        honest = {ProposalId(0): torch.ones_like(state.weights)}
        lies = lie_to_server(setup, honest, score_voters(setup), replace(voters, setup=setup))
        own = judge_together(
            [truthful.workers[voter] for voter in voters.liars],
            state.weights,
            round_number=number,
            learning_rate=0.1,
        )
        share = min(1.0, number / 4)
        for honest_one, said, sent in zip(own, messages, lies.messages, strict=True):
            if said is far:
                assert torch.allclose(sent, honest_one + share * (far - honest_one), atol=1e-6)
            elif said is None:
                assert sent is None
            else:
                assert torch.equal(sent.isnan(), said.isnan())
    assert seen > 2


def test_junk_does_not_grow(scene, play):
    federation, curve = scene("mean", attack={"ramp": 9}, federation={"byzantine": 0.49})
    records, _ = play(federation, replace(curve, act=NotANumber()), 3)
    whole, _ = play(*scene("mean", attack={"name": "nan"}, federation={"byzantine": 0.49}), 1)
    assert records[0].rejected_proposals == whole[0].rejected_proposals
    assert sum(records[0].rejected_proposals.values()) > 0


@pytest.mark.parametrize("rule", ["holdout", "holdout-1", "mean"])
def test_liars_hold_true_labels_of_their_own_and_know_the_start(rule, scene, play, blobs):
    federation, curve = scene(rule, attack={"name": "label-flip"})
    attack = Counting()
    play(federation, replace(curve, act=attack), 3)
    first, *later = attack.views
    x, y = first.held()
    rows = {row for w in federation.byzantine for row in federation.workers[w].shard.rows.tolist()}
    assert len(x) == len(y) == min(600, len(rows))
    pool = {tuple(sample.tolist()): row for row, sample in enumerate(federation.workers[0].shard.x)}
    drawn = [pool[tuple(sample.tolist())] for sample in x]
    assert len(set(drawn)) == len(drawn)
    assert set(drawn) <= rows
    assert torch.equal(y, blobs.y_train[torch.tensor(drawn)])
    for view in later:
        assert torch.equal(view.held()[0], x)
        assert torch.equal(view.start, federation.initial_weights)
        assert not torch.equal(view.start, view.weights)
    views = attack.views
    assert len({view.run_source.generator_seed() for view in views}) == 1
    assert len({view.source.generator_seed() for view in views}) == len(views) > 1


def test_a_coalition_of_many_holds_no_more_than_600_samples(scene, play):
    federation, curve = scene(
        "mean", data={"name": "mnist-5k", "samples_per_worker": 100}, attack={"name": "zero"}
    )
    attack = Counting()
    play(federation, replace(curve, act=attack))
    rows = torch.cat([federation.workers[w].shard.rows for w in federation.byzantine])
    held = len(attack.views[0].held()[1])
    assert held == min(600, len(rows.unique()))


def test_without_a_server_the_same_schedule_holds(scene):
    setting = {
        "federation": {
            "mode": "decentralized",
            "workers": 12,
            "byzantine": 3,
            "assumed_byzantine": 3,
            "proposers": 6,
            "voters": 6,
            "disjoint": False,
        }
    }
    schedule = {"onset": 2, "dormant": 1}
    lying = {"name": "sign-flip", "equivocate": True, "voters": "inverted"}
    federation, curve = scene("holdout", attack={**lying, **schedule}, **setting)
    attack = Counting()
    curve = replace(curve, act=attack)
    states, records = [first_state(federation)], []
    for _ in range(3):
        record, state = decentralized.run_round(federation, curve, states[-1])
        records.append(record)
        states.append(state)
    assert attack.rounds in ([2], [])
    assert not records[0].rejected_ballots.get("convicted")
    assert not records[2].rejected_ballots.get("convicted")
    # Liars that say what they would have said if they were honest.
    decent, curve = scene("holdout", attack={"voters": "honest"}, **setting)
    curve = replace(curve, act=lambda view: Lie(view.own_updates()))
    honest, expected = decentralized.run_round(decent, curve, states[0])
    assert records[0].selection == honest.selection
    assert records[0].ballots == honest.ballots
    assert torch.equal(states[1].weights, expected.weights)
