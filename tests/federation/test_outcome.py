"""What the attacker foresees of a step is the step that is made, to the bit or to rounding."""

from dataclasses import replace

import pytest
import torch

from holdout.attacks import BALLOT_ATTACKS, Lie, MixedLie
from holdout.attacks.searched import Menu
from holdout.federation import decentralized, joint_rehearsal
from holdout.federation.round_setup import first_state
from holdout.rules import RULES, compose

VOTES = [
    {"gate": gate, "bound": bound, "scoring": scoring}
    for gate in ("median", "zero", "none")
    for bound, scoring in ((True, "exact"), (True, "first-order"), (False, "exact"))
]


class Foreseen:
    """Sends lies of one kind, and keeps what it foresaw."""

    def __init__(self, make):
        self.make, self.outcomes = make, []

    def __call__(self, view):
        lies = self.make(view)
        # Something else first: what was tried before must not change what is foreseen.
        view.deployed.outcome([-3 * view.mean] * view.count)
        self.outcomes.append(view.deployed.outcome(lies))
        return Lie(lies)


def copies(view):
    return [view.mean - 0.4 * view.deviation] * view.count


def each_its_own(view):
    return list(view.own_updates() - view.mean)


def long(view):
    return [-50 * view.mean] * view.count


def junk(view):
    """The first stays silent, the second sends NaN, the third too many numbers."""
    lies = each_its_own(view)
    wrong = [None, torch.full_like(view.mean, torch.nan), torch.zeros(len(view.mean) + 1)]
    return [*wrong, *lies][: view.count]


JOINT = [{"screen": screen, "memory": memory} for screen in (True, False) for memory in (0.8, 0.0)]
KINDS = {"copies": copies, "own": each_its_own, "long": long, "junk": junk}


def check(federation, curve, kind, play, rounds=3):
    """Every step of these rounds was foreseen."""
    attack = Foreseen(KINDS[kind])
    state = first_state(federation)
    for _ in range(rounds):
        seen = len(attack.outcomes)
        (record,), after = play(federation, replace(curve, act=attack), 1, state)
        if len(attack.outcomes) > seen:
            foreseen = attack.outcomes[-1]
            assert (foreseen is None) == (record.outcome != "step")
            step = torch.zeros_like(state.weights) if foreseen is None else foreseen
            if curve.terms is not None and curve.terms.is_joint:
                # The attacker adds the updates up in another order.
                assert torch.allclose(after.weights, state.weights - 0.1 * step, atol=1e-6)
            else:
                assert torch.equal(after.weights, state.weights - 0.1 * step)
        state = after
    assert attack.outcomes
    return attack.outcomes


@pytest.mark.parametrize("rule", [*RULES, "nnm+krum", "clipping+trimmed-mean"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_outcome_of_a_rule_is_the_step_of_the_round(rule, kind, scene, play):
    check(*scene(rule, federation={"proposers": 12, "assumed_byzantine": 0.2}), kind, play)


@pytest.mark.parametrize("vote", VOTES, ids=lambda vote: "-".join(map(str, vote.values())))
@pytest.mark.parametrize("kind", KINDS)
def test_the_outcome_of_a_vote_is_the_step_of_the_round(vote, kind, scene, play):
    check(*scene("holdout-1", vote=vote, seed=1), kind, play)


@pytest.mark.parametrize("vote", JOINT, ids=lambda vote: "-".join(map(str, vote.values())))
@pytest.mark.parametrize("kind", KINDS)
def test_the_outcome_of_a_joint_vote_is_the_step_of_the_round(vote, kind, scene, play):
    check(*scene("holdout", vote=vote, seed=1), kind, play)


@pytest.mark.parametrize("ballots", BALLOT_ATTACKS)
@pytest.mark.parametrize("kind", ["copies", "own"])
@pytest.mark.parametrize("rule", ["holdout", "holdout-1", "holdout-paper"])
def test_the_outcome_knows_how_byzantine_voters_vote(rule, ballots, kind, scene, play):
    check(*scene(rule, attack={"voters": ballots}, seed=2), kind, play)


@pytest.mark.parametrize("rule", ["holdout", "holdout-1", "mean", "krum"])
def test_worker_momentum_is_foreseen_too(rule, scene, play):
    check(*scene(rule, training={"worker_momentum": 0.9}), "own", play)


def test_a_rule_that_keeps_something_is_rehearsed_with_what_it_kept(scene, play):
    def drag(updates, *, f, context):
        last = context.state.get("last", torch.zeros(updates.shape[1]))
        noise = torch.randn(updates.shape[1], generator=context.generator())
        context.state["last"] = 0.5 * last + updates[f:].mean(dim=0) + 0.01 * noise
        return context.state["last"]

    check(*scene("drag", plugins={"rules": {"drag": drag}}), "own", play)


def test_a_rule_that_is_infeasible_makes_no_step(scene, play):
    setting = {"workers": 9, "byzantine": 4, "proposers": 4, "assumed_byzantine": 1}
    foreseen = []
    for seed in range(4):
        federation, curve = scene("krum", seed=seed, federation={**setting, "voters": 3})
        foreseen += check(federation, curve, "junk", play, rounds=4)
    assert any(step is None for step in foreseen)


@pytest.mark.parametrize("knowledge", ["coalition", "last-round"])
@pytest.mark.parametrize("rule", ["holdout", "holdout-1", "mean"])
def test_who_is_not_omniscient_foresees_something_else(rule, knowledge, scene, play):
    federation, curve = scene(rule, attack={"knowledge": knowledge})
    attack = Foreseen(copies)
    (_,), after = play(federation, replace(curve, act=attack))
    (foreseen,) = attack.outcomes
    assert foreseen is None or foreseen.shape == after.weights.shape
    assert not torch.equal(after.weights, federation.initial_weights - 0.1 * foreseen)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda updates, *, f: updates[:, :-f], "must return floats of shape"),
        (lambda updates, *, f: [f, updates], "must return floats of shape"),
    ],
)
def test_what_is_wrong_with_a_custom_rule_is_said_of_the_rule(made, message, scene, play):
    federation, curve = scene("mine", plugins={"rules": {"mine": made}})
    with pytest.raises(Exception, match=f"rule 'mine' {message}"):
        play(federation, replace(curve, act=Foreseen(copies)))


def test_a_custom_rule_that_raises_when_it_is_tried_is_counted_under_its_name(scene, play):
    def made(updates, *, f):
        return updates.no_such_thing(f)

    federation, curve = scene("mine", plugins={"rules": {"mine": made}})
    (record,), _ = play(federation, replace(curve, act=Foreseen(copies)))
    assert [failure.kind for failure in record.custom_errors] == ["lie", "aggregate"]
    for failure in record.custom_errors:
        assert str(failure).startswith("rule 'mine' raised AttributeError")


def test_a_composed_rule_of_ones_own_is_foreseen_as_well(scene, play):
    federation, curve = scene("mean")
    mine = compose(lambda updates, *, f: updates[f:] * 2, RULES["median"])
    check(federation, replace(curve, method=mine), "own", play)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rule", ["holdout", "holdout-1"])
def test_without_a_server_the_step_is_foreseen_to_rounding(rule, kind, scene):
    size = {"workers": 12, "byzantine": 3, "assumed_byzantine": 3, "proposers": 6, "voters": 6}
    setting = {"federation": {"mode": "decentralized", "disjoint": False, **size}}
    federation, curve = scene(rule, **setting)
    attack = Foreseen(KINDS[kind])
    state = first_state(federation)
    for _ in range(3):
        seen = len(attack.outcomes)
        record, after = decentralized.run_round(federation, replace(curve, act=attack), state)
        if len(attack.outcomes) > seen:
            foreseen = attack.outcomes[-1]
            assert (foreseen is None) == (record.outcome != "step")
            step = torch.zeros_like(state.weights) if foreseen is None else foreseen
            # Copies are told apart by the last bit of a coordinate, and the mean is in float64.
            assert torch.allclose(after.weights, state.weights - 0.1 * step, atol=1e-6)
        state = after
    assert attack.outcomes


class Reaching:
    """Compares how far each trial on the menu reaches with the step that it would make."""

    def __init__(self):
        self.compared = 0

    def __call__(self, view):
        menu = Menu.of(view)
        trials = [
            MixedLie(lies, messages)
            for lies in menu.lies.values()
            for messages in [None, *menu.ways_to_vote(lies)]
        ]
        reaches = view.deployed.reaches(menu.basis, trials, menu.slope)
        assert len(reaches) == len(trials)
        for trial, reach in zip(trials, reaches, strict=True):
            step = view.deployed.outcome(*trial.dense(menu.basis))
            length = 1.0 if step is None else float(step.norm())
            expected = 0.0 if step is None else float(step.double() @ menu.slope.double())
            error = 1e-4 * length * float(menu.slope.norm())
            assert reach == pytest.approx(expected, abs=error)
            self.compared += 1
        return Lie(-view.mean)


@pytest.mark.parametrize("ballots", BALLOT_ATTACKS)
@pytest.mark.parametrize("vote", JOINT, ids=lambda vote: "-".join(map(str, vote.values())))
def test_what_a_trial_reaches_is_what_its_step_would_reach(ballots, vote, scene, play):
    federation, curve = scene("holdout", attack={"voters": ballots}, vote=vote, seed=2)
    reaching = Reaching()
    play(federation, replace(curve, act=reaching), 3)
    assert reaching.compared > 500


@pytest.mark.parametrize("rule", ["mean", "krum", "holdout-1"])
def test_rules_without_messages_reach_what_their_steps_reach(rule, scene, play):
    federation, curve = scene(rule, seed=2)
    reaching = Reaching()
    play(federation, replace(curve, act=reaching), 1)
    assert reaching.compared > 50


@pytest.mark.parametrize("name", ["alie", "greedy", "jointly"])
def test_what_voters_send_in_every_trial_is_read_once(name, scene, play, monkeypatch):
    read, real = [], joint_rehearsal.read_update
    monkeypatch.setattr(
        joint_rehearsal, "read_update", lambda sent, d: (read.append(sent), real(sent, d))[1]
    )
    attack = {"name": name, "voters": "honest", "passing": "all"}
    play(*scene("holdout", attack=attack), 1)
    # They are kept here, so that no two have had the same identity.
    assert len(read) > 10
    assert len({id(sent) for sent in read}) == len(read)


@pytest.mark.parametrize("knowledge", ["omniscient", "coalition", "last-round"])
@pytest.mark.parametrize("name", ["greedy", "jointly"])
@pytest.mark.parametrize("rule", ["holdout", "holdout-1", "mean"])
def test_searching_attackers_send_what_is_admitted(rule, name, knowledge, scene, play):
    federation, curve = scene(rule, attack={"name": name, "knowledge": knowledge})
    records, state = play(federation, curve, 3)
    assert any(record.byzantine_proposers for record in records)
    for record in records:
        assert record.rejected_proposals == {}
        assert set(record.rejected_ballots) <= {"missing"}
    assert state.weights.isfinite().all()


@pytest.mark.parametrize("passing", ["any", "all"])
def test_a_lie_that_no_server_admits_is_never_selected_by_a_joint_vote(passing, scene, play):
    class Tries:
        def __init__(self):
            self.found = []

        def __call__(self, view):
            huge = torch.full_like(view.weights, 3e38)
            self.found.append(list(view.deployed.selects(view.mean, huge, [0.0, 2.0, 30.0])))
            return view.mean

    for seed in range(4):
        attack = Tries()
        setting = {"passing": passing}
        federation, curve = scene("holdout", seed=seed, attack=setting)
        play(federation, replace(curve, act=attack), 2)
        assert attack.found
        assert all(verdicts[1:] == [False, False] for verdicts in attack.found)
