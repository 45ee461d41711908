"""Many workers, one truthful server: who is drawn, what is recorded, what moves nothing else."""

import json
import math
from dataclasses import replace
from fractions import Fraction

import pytest
import torch

from holdout.attacks import Lie
from holdout.errors import InfeasibleError, PluginError
from holdout.experiments.plan import make_plan
from holdout.experiments.plugins import Plugins
from holdout.experiments.runner import run
from holdout.federation.round_setup import first_state
from holdout.learning.training import evaluate
from holdout.results import to_json
from holdout.rules import RULES
from holdout.voting import draw_byzantine
from holdout.workers import propose_together

VOTES = ("holdout-paper", "holdout-1", "holdout")


@pytest.fixture
def experiment(blobs, config):
    """experiment(plugins={...}, section={...}) -> the lines of the results."""

    def lines(plugins=None, **changed):
        return run(config(**changed), plugins=Plugins(**{"data": blobs, **(plugins or {})})).rounds

    return lines


def curves(lines):
    """The lines of each curve, without what the clock says."""
    result = {}
    for line in lines:
        key = (line["rule"], line["attack"], line["seed"])
        result.setdefault(key, []).append({k: v for k, v in line.items() if k != "seconds"})
    return result


def same(left, right):
    """Bit for bit: the text of every number alike."""
    return to_json(left) == to_json(right)


def test_nobody_scores_its_own_proposal(experiment):
    for line in experiment(experiment={"rules": ["holdout"], "rounds": 12, "seeds": [0, 1]}):
        assert len(set(line["proposers"])) == 8
        assert len(set(line["voters"])) == 7
        assert not set(line["proposers"]) & set(line["voters"])


def test_draws_overlap_where_the_config_says_so(experiment):
    lines = experiment(
        experiment={"rules": ["holdout"], "rounds": 12},
        federation={"disjoint": False, "proposers": 12, "voters": 12},
    )
    assert any(set(line["proposers"]) & set(line["voters"]) for line in lines)
    assert all(len(set(line["proposers"])) == len(set(line["voters"])) == 12 for line in lines)


def test_redrawing_gives_an_honest_majority_in_every_round(experiment):
    changed = {
        "experiment": {"rules": ["holdout"], "rounds": 20},
        "federation": {"byzantine": 0.45, "redraw_until_honest_majority": True},
        "attack": {"name": "zero"},
    }
    redrawn = experiment(**changed)
    assert all(2 * line["byzantine_proposers"] < 8 for line in redrawn)
    assert all(2 * line["byzantine_voters"] < 7 for line in redrawn)
    changed["federation"] = {"byzantine": 0.45}
    assert any(
        2 * line["byzantine_proposers"] >= 8 or 2 * line["byzantine_voters"] >= 7
        for line in experiment(**changed)
    )


def test_redrawing_gives_up_where_there_is_no_honest_majority(scene, play):
    federation, curve = scene(federation={"redraw_until_honest_majority": True})
    nearly_all = replace(federation, byzantine=frozenset(range(19)))
    with pytest.raises(InfeasibleError, match="no draw with an honest majority"):
        play(nearly_all, curve)


@pytest.mark.parametrize(
    ("share", "count"),
    [(0, 0), (0.33, 6), (0.35, 7), ("1/3", 6), (5, 5), (0.049, 0), (0.05, 1), (0.95, 19)],
)
def test_as_many_lie_as_the_share_says_rounded_down(share, count, scene):
    federation, _ = scene(federation={"byzantine": share})
    assert (
        len(federation.byzantine)
        == count
        == math.floor(share if isinstance(share, int) else Fraction(str(share)) * 20)
    )


def test_the_same_workers_lie_under_every_rule_of_a_seed(scene):
    for seed in range(4):
        liars = {scene(rule, seed=seed)[0].byzantine for rule in ("mean", "krum", *VOTES)}
        assert liars == {draw_byzantine(20, 6, seed)}
    assert len({scene(seed=seed)[0].byzantine for seed in range(8)}) > 1


def test_without_an_attack_nobody_lies(experiment):
    for line in experiment(
        experiment={"rules": ["mean", *VOTES]}, attack={"name": "none"}, training={}
    ):
        assert line["attack"] == "none"
        assert line["gamma"] is None
        assert line["byzantine_workers"] == []
        assert line["byzantine_proposers"] == line["byzantine_voters"] == 0
        assert line["byzantine_selected"] == 0


@pytest.mark.parametrize("attack", ["alie", "gaussian"])
def test_a_rules_curve_does_not_depend_on_its_place_or_its_company(attack, experiment):
    rules = ["mean", "krum", "trimmed-mean", *VOTES]

    def played(chosen, *, baseline):
        settings = {"rules": chosen, "baseline": baseline}
        return curves(experiment(experiment=settings, attack={"name": attack}))

    together, backwards = (played(chosen, baseline=True) for chosen in (rules, rules[::-1]))
    assert set(together) == set(backwards)
    assert all(same(together[key], backwards[key]) for key in together)
    for rule in rules:
        ((key, alone),) = played([rule], baseline=False).items()
        assert same(alone, together[key]), rule


def test_a_seeds_curves_do_not_depend_on_other_seeds(experiment):
    several = curves(experiment(experiment={"rules": [*VOTES], "seeds": [4, 0, 7]}))
    for seed in (0, 4, 7):
        alone = curves(experiment(experiment={"rules": [*VOTES], "seeds": [seed]}))
        assert all(same(alone[key], several[key]) for key in alone)
    assert not same(several["holdout", "alie", 0], several["holdout", "alie", 4])


def test_committees_are_the_same_for_every_rule(experiment):
    drawn = [
        [line["proposers"] for line in lines]
        for lines in curves(experiment(experiment={"rules": ["mean", *VOTES]})).values()
    ]
    assert len(drawn) == 1 + len(VOTES)
    assert all(committees == drawn[0] for committees in drawn)


@pytest.mark.parametrize(("rounds", "every"), [(7, 3), (6, 3), (2, 5), (3, 1)])
def test_accuracy_is_measured_as_often_as_asked_and_at_the_end(rounds, every, experiment):
    lines = experiment(experiment={"rules": ["holdout"], "rounds": rounds, "evaluate_every": every})
    measured = [line["round"] for line in lines if line["accuracy"] is not None]
    assert measured == [t for t in range(1, rounds + 1) if t % every == 0 or t == rounds]
    for line in lines:
        assert (line["loss"] is None) == (line["accuracy"] is None)
        assert (line["worst_class_recall"] is None) == (line["accuracy"] is None)


def test_measuring_changes_nothing(experiment):
    often, seldom = (
        experiment(experiment={"rules": ["holdout"], "rounds": 6, "evaluate_every": every})
        for every in (1, 6)
    )
    assert same(
        *({k: v for k, v in lines[-1].items() if k != "seconds"} for lines in (often, seldom))
    )


def by_hand(federation, records, rates, momentum):
    """Plain averaging with the server's momentum, written out."""
    weights, velocity = federation.initial_weights, 0.0
    for record, rate in zip(records, rates, strict=True):
        update = propose_together(
            [federation.workers[w] for w in record.proposers],
            weights,
            round_number=record.round,
            learning_rate=rate,
        ).mean(dim=0)
        velocity = momentum * velocity + update
        weights = weights - rate * velocity
    return weights


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("schedule", ["constant", "inverse"])
@pytest.mark.parametrize("local_steps", [1, 3])
def test_steps_follow_momentum_and_schedule(momentum, schedule, local_steps, scene, play):
    federation, curve = scene(
        "mean",
        attack={"name": "none"},
        training={
            "batch_size": 10,
            "momentum": momentum,
            "schedule": schedule,
            "local_steps": local_steps,
        },
    )
    records, state = play(federation, curve, 4)
    rates = [0.1 / t if schedule == "inverse" else 0.1 for t in range(1, 5)]
    expected = by_hand(federation, records, rates, momentum)
    assert torch.allclose(state.weights, expected, rtol=1e-5, atol=1e-6)


def test_a_round_without_a_step_leaves_weights_and_velocity(scene, play):
    federation, curve = scene(
        "holdout-1",
        attack={"name": "zero"},
        training={"batch_size": 10, "momentum": 0.9},
        plugins={"ballots": lambda _view: []},
        federation={"byzantine": 19, "proposers": 8, "voters": 7},
    )
    honest, innocent = replace(federation, byzantine=frozenset()), replace(curve, act=None)
    _, before = play(honest, innocent, 2)
    (record,), after = play(federation, curve, 1, before)
    assert record.outcome == "empty-selection"
    assert record.selection == ()
    assert torch.equal(after.weights, before.weights)
    assert torch.equal(after.velocity, before.velocity)
    assert after.round == before.round + 1


@pytest.mark.parametrize("rule", VOTES)
def test_the_vote_judges_single_steps_whatever_the_momentum(rule, scene, play):
    # Candidates stay w - eta * g: a velocity does not change a ballot.
    plain, curve = scene(rule, attack={"name": "none"})
    heavy, heavy_curve = scene(
        rule, attack={"name": "none"}, training={"batch_size": 10, "momentum": 0.9}
    )
    _, state = play(plain, curve, 2)
    moving = replace(state, velocity=torch.ones_like(state.weights))
    (first,), _ = play(plain, curve, 1, state)
    (second,), _ = play(heavy, heavy_curve, 1, moving)
    assert first.ballots == second.ballots


@pytest.mark.parametrize("attack", ["alie", "nan", "bomb", "gaussian"])
def test_what_is_counted_can_be_recounted(attack, experiment):
    lines = experiment(
        experiment={"rules": ["mean", "krum", "median", *VOTES], "rounds": 4, "seeds": [0, 3]},
        attack={"name": attack},
    )
    assert lines
    for line in lines:
        liars = draw_byzantine(20, 6, line["seed"])
        lying = {i for i, worker in enumerate(line["proposers"]) if worker in liars}
        assert line["byzantine_proposers"] == len(lying)
        assert line["byzantine_voters"] == len(liars.intersection(line["voters"]))
        drawn = {*line["proposers"], *line["voters"]}
        assert line["byzantine_workers"] == sorted(liars & drawn)
        if line["selection"] is None:
            assert line["byzantine_selected"] is None
        else:
            assert line["byzantine_selected"] == len(lying.intersection(line["selection"]))
            assert line["selection"] == sorted(line["selection"])
        if line["rule"] == "holdout":
            recount_joint(line)
        elif line["rule"] in VOTES:
            recount(line)
        else:
            assert line["voters"] == []
            assert line["ballots"] is line["approve_count"] is line["quorum"] is None
            assert line["rejected_ballots"] == {}
            assert line["radius"] is None
        if line["rule"] != "holdout":
            assert line["weights"] is line["voter_weights"] is None


def recount_joint(line):
    """Whose weights are what, in the record of a joint vote."""
    valid = 8 - sum(line["rejected_proposals"].values())
    assert line["approve_count"] == math.ceil(Fraction(67, 100) * valid)
    assert line["quorum"] is None
    assert line["radius"] > 0
    assert len(line["weights"]) == len(line["selection"])
    assert min(line["weights"]) > 0
    assert sum(line["weights"]) == pytest.approx(1)
    assert len(line["ballots"]) == len(line["voter_weights"]) == 7
    ballots = [ballot for ballot in line["ballots"] if ballot is not None]
    assert 7 - len(ballots) == sum(line["rejected_ballots"].values())
    assert all(len(ballot) <= line["approve_count"] for ballot in ballots)
    heard = [weight for weight in line["voter_weights"] if weight is not None]
    assert len(heard) == len(ballots)
    assert min(heard) >= 0
    assert sum(heard) == pytest.approx(1)


def recount(line):
    """The union-consensus again, from the ballots in the record."""
    valid = 8 - sum(line["rejected_proposals"].values())
    assert line["approve_count"] == math.ceil(Fraction(67, 100) * valid)
    ballots = [ballot for ballot in line["ballots"] if ballot is not None]
    assert len(line["ballots"]) == 7
    assert 7 - len(ballots) == sum(line["rejected_ballots"].values())
    paper = math.ceil(Fraction(67, 100) * len(ballots))
    assert line["quorum"] == (paper if line["rule"] == "holdout-paper" else 4)
    approvals = {p: sum(p in ballot for ballot in ballots) for p in range(8)}
    assert line["selection"] == [p for p in range(8) if approvals[p] >= line["quorum"]]
    assert (line["radius"] is None) == (line["rule"] == "holdout-paper")


def test_every_line_is_json_that_any_reader_accepts(experiment):
    lines = experiment(experiment={"rules": ["mean", *VOTES], "rounds": 3}, attack={"name": "nan"})
    for line in lines:
        text = json.dumps(line, allow_nan=False)
        assert json.loads(text) == json.loads(to_json(line))
    # One junk vector of the largest numbers in a plain mean ends its curve.
    ended = [line for line in lines if line["outcome"] == "diverged"]
    assert all(line["loss"] is None for line in ended)


def test_junk_is_counted_and_never_loses_a_round_of_the_hardened_vote(experiment):
    lines = experiment(
        experiment={"rules": ["holdout-1", "holdout"], "rounds": 8, "seeds": [0, 1]},
        attack={"name": "nan"},
    )
    assert len(lines) == 32
    assert all(line["outcome"] == "step" for line in lines)
    seen = {fault for line in lines for fault in line["rejected_proposals"]}
    assert "not-finite" in seen


def test_rules_are_told_an_f_of_what_is_left(scene, play, monkeypatch):
    told = []

    def rule(updates, f):
        told.append((len(updates), f))
        return updates.mean(dim=0)

    federation, curve = scene("mine", plugins={"rules": {"mine": rule}})
    for silent in range(9):
        lie = replace(curve, act=lambda view: [None] * view.count)
        workers = list(federation.workers)
        (record,), _ = play(replace(federation, byzantine=frozenset()), replace(curve, act=None))
        liars = frozenset(record.proposers[:silent])
        told.clear()
        (record,), _ = play(replace(federation, byzantine=liars, workers=workers), lie)
        if silent == 8:
            assert (record.outcome, told) == ("no-proposals", [])
            continue
        valid = 8 - silent
        assert told == [(valid, valid - math.ceil(Fraction(67, 100) * valid))]
        assert record.rejected_proposals == ({"missing": silent} if silent else {})


def test_a_rule_that_cannot_work_with_what_is_left_makes_no_step(scene, play):
    federation, curve = scene(
        "krum",
        federation={"proposers": 8, "assumed_byzantine": 2, "byzantine": 6},
        plugins={"attack": lambda view: [None] * view.count},
    )
    # Of eight proposers only two are heard, and Krum needs n > 2f + 2.
    record = play(replace(federation, byzantine=frozenset()), replace(curve, act=None))[0][0]
    silent = replace(federation, byzantine=frozenset(record.proposers[:6]))
    before = first_state(federation)
    (record,), after = play(silent, curve, 1, before)
    assert record.outcome == "infeasible"
    assert record.rejected_proposals == {"missing": 6}
    assert torch.equal(after.weights, before.weights)


@pytest.mark.parametrize("rule", [*RULES, *VOTES])
@pytest.mark.parametrize("attack", ["alie", "ipm"])
def test_every_rule_plays_against_the_adaptive_attacks(rule, attack, experiment):
    lines = experiment(
        experiment={"rules": [rule], "rounds": 2},
        federation={"proposers": 12, "voters": 8, "assumed_byzantine": 2, "byzantine": 0.2},
        attack={"name": attack},
    )
    assert [line["outcome"] for line in lines] == ["step", "step"]
    for line in lines:
        assert (line["gamma"] is None) == (line["byzantine_proposers"] == 0)
        if rule in {"mean", "geometric-median"} and line["byzantine_proposers"]:
            assert line["gamma"] == 4.0
        if rule in {"krum", "multi-krum", *VOTES} and line["gamma"]:
            assert line["byzantine_selected"] > 0


def test_the_recorded_loss_is_that_of_the_model_after_the_round(scene, play):
    federation, curve = scene()
    (record,), state = play(federation, curve)
    result = evaluate(federation.model, state.weights, federation.x_test, federation.y_test)
    assert (record.accuracy, record.loss) == (result.accuracy, result.loss)
    assert record.worst_class_recall == min(result.class_recall)


def test_a_round_changes_nothing_but_its_result(scene, play):
    federation, curve = scene()
    before = first_state(federation)
    weights = before.weights.clone()
    first, _ = play(federation, curve, 2, before)
    assert torch.equal(before.weights, weights)
    second, _ = play(federation, curve, 2, before)
    assert [replace(r, seconds=0) for r in first] == [replace(r, seconds=0) for r in second]


class Crashing:
    """A worker that does nothing but raise."""

    def __init__(self, worker):
        self.worker = worker

    def propose(self, *_task, **_settings):
        raise RuntimeError("out of memory")

    def vote(self, *_task, **_settings):
        raise RuntimeError("out of memory")


def test_a_worker_that_crashes_loses_its_voice_not_the_round(scene, play):
    federation, curve = scene(attack={"name": "none"})
    (whole,), _ = play(federation, curve)
    down = {whole.proposers[2], whole.voters[1], whole.voters[4]}
    workers = [Crashing(w) if w.worker_id in down else w for w in federation.workers]
    (record,), _ = play(replace(federation, workers=workers), curve)
    assert record.outcome == "step"
    assert record.rejected_proposals == {"missing": 1}
    assert record.rejected_ballots == {"missing": 2}
    assert [i for i, ballot in enumerate(record.ballots) if ballot is None] == [1, 4]


class InPlace:
    """A worker that computes in what it is given."""

    def __init__(self, worker):
        self.worker = worker

    def propose(self, weights, **settings):
        update = self.worker.propose(weights, **settings)
        weights.sub_(update)
        return update

    def vote(self, weights, proposals, **settings):
        ballot = self.worker.vote(weights, proposals, **settings)
        for update in proposals.values():
            update.zero_()
        weights.zero_()
        return ballot


@pytest.mark.parametrize("rule", ["mean", *VOTES])
def test_a_worker_that_computes_in_place_changes_nobody_elses_numbers(rule, scene, play):
    federation, curve = scene(rule, attack={"name": "none"}, federation={"byzantine": 0})
    _, expected = play(federation, curve, 2)
    workers = [InPlace(worker) for worker in federation.workers]
    _, state = play(replace(federation, workers=workers), curve, 2)
    torch.testing.assert_close(state.weights, expected.weights)


class Choosy(torch.nn.Module):
    """A model that fails on some batches."""

    def __init__(self, features, classes, refused):
        super().__init__()
        self.linear, self.refused = torch.nn.Linear(features, classes), refused

    def forward(self, x):
        if self.refused(len(x)):
            raise ValueError("boom")
        return self.linear(x.flatten(1))


@pytest.mark.parametrize("refused", ["batches", "holdout samples"])
def test_a_model_that_fails_while_it_runs_is_said_to_have_failed(refused, scene, play):
    federation, _ = scene()
    batch = federation.workers[0].recipe.batch_size
    # The plan tries a model with few samples; a vote scores those of all voters together.
    fails = {"batches": lambda n: n == batch, "holdout samples": lambda n: n > 2 * batch}

    def model(shape, classes):
        return Choosy(math.prod(shape), classes, fails[refused])

    federation, curve = scene(plugins={"model": model})
    records, _ = play(federation, curve)
    told = [str(failure) for record in records for failure in record.custom_errors]
    assert told
    assert all("the model raised ValueError: boom (" in one for one in told)


def raising(*_args, **_settings):
    raise ValueError("boom")


@pytest.mark.parametrize(
    ("rule", "plugins", "message"),
    [
        ("holdout", {"attack": lambda _view: None}, "must return a tensor, or one tensor or None"),
        ("holdout", {"attack": lambda view: [view.mean] * (view.count + 1)}, "for each of the"),
        ("holdout", {"attack": lambda view: view.known[:1]}, "silence; got 1"),
        (
            "holdout",
            {"attack": lambda view: Lie(view.mean, messages=[view.mean] * 9)},
            "one for each of the [0-9]+ voters, or .*; got 9",
        ),
        (
            "mine",
            {"rules": {"mine": lambda updates, **_: updates}},
            r"rule 'mine' must return floats of shape \(1704,\); got torch.float32 of shape",
        ),
        ("mine", {"rules": {"mine": lambda *_, f: f}}, "must return floats of shape"),
        ("mine", {"rules": {"mine": lambda *_, **__: None}}, "got NoneType"),
        ("mine", {"rules": {"mine": lambda updates, **_: updates[0].cfloat()}}, "got .*complex64"),
        ("holdout", {"attack": lambda view: Lie(view.mean, gamma="much")}, "the gamma of attack"),
    ],
)
def test_what_own_code_does_wrong_is_said_to_be_its_own(rule, plugins, message, scene, play):
    federation, curve = scene(rule, plugins=plugins)
    with pytest.raises(PluginError, match=message):
        play(federation, curve)


@pytest.mark.parametrize("rule", ["holdout", "holdout-1"])
def test_each_liar_whose_attack_on_ballots_raises_is_counted(rule, scene, play):
    federation, curve = scene(rule, plugins={"ballots": raising})
    records, _ = play(federation, curve)
    for record in records:
        told = [str(one) for one in record.custom_errors if one.kind == "ballot"]
        assert len(told) == record.byzantine_voters
        assert all(one.startswith("the attack on ballots raised ValueError: boom") for one in told)
    assert any(record.byzantine_voters for record in records)


@pytest.mark.parametrize(
    ("rule", "plugins", "kind", "says"),
    [
        ("holdout", {"attack": raising}, "lie", "attack 'raising' raised ValueError: boom"),
        ("mine", {"rules": {"mine": raising}}, "aggregate", "rule 'mine' raised ValueError: boom"),
    ],
)
def test_attacks_and_rules_that_raise_are_counted(rule, plugins, kind, says, scene, play):  # noqa: PLR0917
    federation, curve = scene(rule, plugins=plugins)
    records, state = play(federation, curve)
    for record in records:
        (failure,) = (one for one in record.custom_errors if one.kind == kind)
        assert str(failure).startswith(says)
        assert (record.outcome == "raised") == (kind == "aggregate")
    assert (state.weights == federation.initial_weights).all() == (kind == "aggregate")


@pytest.mark.parametrize(
    ("sent", "fault"),
    [
        (lambda view: torch.full((len(view.weights),), 1e300, dtype=torch.float64), "not-finite"),
        (lambda view: torch.zeros(view.count, len(view.weights)).to_sparse(), "misshapen"),
        (lambda view: [torch.zeros(3)] * view.count, "misshapen"),
        (lambda _view: torch.zeros(()), "misshapen"),
        (lambda view: ["x"] * view.count, "misshapen"),
        (lambda _view: [], "missing"),
    ],
)
@pytest.mark.parametrize("rule", ["mean", *VOTES])
def test_whatever_an_own_attack_sends_is_rejected_and_counted(rule, sent, fault, scene, play):
    federation, curve = scene(rule, plugins={"attack": sent})
    (record,), state = play(federation, curve)
    assert record.byzantine_proposers > 0
    assert record.rejected_proposals == {fault: record.byzantine_proposers}
    assert record.outcome == "step"
    assert state.weights.isfinite().all()


def test_an_own_rule_may_compute_in_float64(scene, play):
    federation, curve = scene(
        "mine", plugins={"rules": {"mine": lambda updates, **_: updates.double().mean(dim=0)}}
    )
    records, state = play(federation, curve, 3)
    assert [record.outcome for record in records] == ["step"] * 3
    assert state.weights.dtype == torch.float32


def test_the_plan_runs_the_unattacked_mean_first(blobs, config):
    plan = make_plan(
        config(experiment={"rules": ["mean", "holdout"], "baseline": True, "seeds": [1, 0]}),
        Plugins(data=blobs),
    )
    assert [(curve.rule, curve.attack, seed) for curve, seed in plan.curves] == [
        ("mean", "none", 1),
        ("mean", "alie", 1),
        ("holdout", "alie", 1),
        ("mean", "none", 0),
        ("mean", "alie", 0),
        ("holdout", "alie", 0),
    ]
    assert plan.federation(*plan.curves[0]).byzantine == frozenset()
