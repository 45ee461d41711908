"""The server's own rows and the voters' reports: what they say, who lies, who knows what."""

import math
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F  # noqa: N812

import holdout
from holdout.attacks import BALLOT_ATTACKS, REPORT_ATTACKS, ReportView
from holdout.errors import ConfigError
from holdout.federation.reports import LOSS_MAX, ROWS_OF_A_CLASS, Reporters, admitted_report
from holdout.federation.round_setup import draw_round, first_state, rule_context
from holdout.learning import vector
from holdout.rules import LEAVES_NOBODY_OUT, NAMES_NOBODY, Needs, Rule
from holdout.seeds import stream

ASKING = ["fltrust", "zeno", "flshield"]
every_asking_rule = pytest.mark.parametrize("rule", ASKING)


def plain_loss(federation, weights, x, y):
    logits = vector.call(federation.model, vector.unflatten(federation.model, weights), x)
    return F.cross_entropy(logits, y)


@pytest.fixture
def experiment(blobs, config):
    def lines(**changed):
        return holdout.run(config(**changed), plugins=holdout.Plugins(data=blobs)).rounds

    return lines


@pytest.fixture
def setup(scene):
    def make(rule="zeno", **changed):
        federation, curve = scene(rule, **changed)
        return draw_round(federation, curve, first_state(federation))

    return make


# --------------------------------------------------------------------------------- the root's rows


def test_the_root_s_update_is_the_gradient_of_all_its_rows(setup):
    round_setup = setup()
    federation, root = round_setup.federation, round_setup.federation.root
    assert len(root.rows) == len(set(root.rows.tolist())) == 30
    leaf = round_setup.state.weights.clone().requires_grad_()
    loss = plain_loss(federation, leaf, root.x[root.rows], root.y[root.rows])
    (wanted,) = torch.autograd.grad(loss, leaf)
    found = rule_context(round_setup).root
    assert torch.allclose(found.update(), wanted, atol=1e-6)
    moves = torch.stack([torch.zeros_like(wanted), wanted, torch.full_like(wanted, math.inf)])
    losses = found.losses(moves)
    assert losses[0].item() == pytest.approx(loss.item(), abs=1e-5)
    after = round_setup.state.weights - 0.1 * wanted
    there = plain_loss(federation, after, root.x[root.rows], root.y[root.rows])
    assert losses[1].item() == pytest.approx(there.item(), abs=1e-5)
    assert losses[2].item() == math.inf


def test_with_local_steps_the_root_takes_as_many(setup):
    round_setup = setup(training={"local_steps": 3})
    root = round_setup.federation.root
    weights = start = round_setup.state.weights
    for rows in root.rows.tensor_split(3):
        leaf = weights.clone().requires_grad_()
        loss = plain_loss(round_setup.federation, leaf, root.x[rows], root.y[rows])
        weights = weights - 0.1 * torch.autograd.grad(loss, leaf)[0]
    found = rule_context(round_setup).root.update()
    assert torch.allclose(found, (start - weights) / 0.1, atol=1e-5)


def test_with_local_epochs_and_weight_decay_the_root_trains_as_workers_do(setup):
    training = {"local_epochs": 2, "weight_decay": 0.5}
    round_setup = setup(training=training)
    root, size = round_setup.federation.root, round_setup.federation.config.training.batch_size
    assert 0 < size < len(root.rows)
    weights = start = round_setup.state.weights
    for rows in [*root.rows.split(size), *root.rows.split(size)]:
        leaf = weights.clone().requires_grad_()
        loss = plain_loss(round_setup.federation, leaf, root.x[rows], root.y[rows])
        slope = torch.autograd.grad(loss + 0.25 * leaf.square().sum(), leaf)[0]
        weights = weights - 0.1 * slope
    found = rule_context(round_setup).root.update()
    assert torch.allclose(found, (start - weights) / 0.1, atol=1e-4)


def test_the_root_moves_no_other_draw_and_each_seed_has_its_own(scene, play):
    plain, curve = scene("krum", data={"samples_per_worker": 60, "root_samples": 0})
    rooted, _ = scene("krum")
    assert plain.root is None
    first, second = play(plain, curve, 2)[0], play(rooted, curve, 2)[0]
    assert [replace(r, seconds=0) for r in first] == [replace(r, seconds=0) for r in second]
    other, _ = scene("krum", seed=1)
    assert not torch.equal(rooted.root.rows, other.root.rows)


@pytest.mark.parametrize("rule", ["fltrust", "zeno", "nnm+zeno"])
def test_without_root_rows_such_a_rule_is_refused_before_any_work(rule, scene):
    with pytest.raises(ConfigError) as caught:
        scene(rule, data={"samples_per_worker": 60, "root_samples": 0})
    assert caught.value.problems == (
        f"experiment.rules = {rule!r}: asks the server's own rows; data.root_samples must say how "
        "many it has, such as 100",
    )


def test_more_root_rows_than_there_are_is_a_mistake(scene):
    with pytest.raises(
        ConfigError, match=r"data.root_samples = 601: must be at most the 600 train"
    ):
        scene("zeno", data={"samples_per_worker": 60, "root_samples": 601})


def test_a_custom_rule_can_ask_the_root_and_the_voters(scene, play):
    asked = []

    def own(updates, *, f, context):
        asked.append((f, context.root.losses(updates), context.voters.impacts(updates)))
        return context.root.update()

    federation, curve = scene("own", plugins={"rules": {"own": own}}, attack={"name": "sign-flip"})
    (record,), _ = play(federation, curve, 1)
    ((_, losses, reports),) = asked
    assert losses.shape == (8,)
    assert len(reports) == len(record.proposers) - 1 == 7
    declared = Rule(own, "own", NAMES_NOBODY, LEAVES_NOBODY_OUT, Needs("n >= 1", int, root=True))
    with pytest.raises(ConfigError, match=r"'own': asks the server's own rows"):
        scene(
            "own",
            plugins={"rules": {"own": declared}},
            data={"samples_per_worker": 60, "root_samples": 0},
        )


# ------------------------------------------------------------------------------------- the reports


def test_a_report_is_the_fall_of_each_class_s_loss_on_the_voter_s_rows(setup):
    round_setup = setup("flshield", federation={"byzantine": 0})
    federation, weights = round_setup.federation, round_setup.state.weights
    generator = torch.Generator().manual_seed(0)
    updates = torch.randn(3, len(weights), generator=generator)
    reports = Reporters(round_setup).about([]).impacts(updates)
    for voter, report in zip(round_setup.committee.voters, reports, strict=True):
        worker = federation.workers[voter]
        rows = worker.holdout_rows(round_setup.number)
        for c in range(4):
            mine = [r for r in rows.tolist() if worker.shard.y[r] == c][:ROWS_OF_A_CLASS]
            x, y = worker.shard.x[mine], worker.shard.y[mine]
            for i, update in enumerate(updates):
                here = plain_loss(federation, weights, x, y)
                there = plain_loss(federation, weights - 0.1 * update, x, y)
                assert report[i, c].item() == pytest.approx((here - there).item(), abs=1e-4)


def test_a_class_that_a_voter_does_not_hold_is_nan_and_a_ruined_loss_is_bounded(setup):
    round_setup = setup(
        "flshield",
        federation={"byzantine": 0},
        data={"partition": "shards", "labels_per_worker": 2, "samples_per_worker": 60},
    )
    d = len(round_setup.state.weights)
    huge = 1e30 * torch.randn(d, generator=torch.Generator().manual_seed(0))
    reports = Reporters(round_setup).about([]).impacts(torch.stack([huge, torch.zeros_like(huge)]))
    for report in reports:
        assert report.isnan().any(dim=0).sum() == 2
        known = report[:, ~report.isnan().any(dim=0)]
        assert ((known[0] < -0.9 * LOSS_MAX) & (known[0] > -LOSS_MAX)).all()
        assert not known[1].any()


NAN = math.nan
OWN = torch.tensor([[0.3, NAN, 0.1], [-0.2, NAN, 0.2], [0.1, NAN, -0.5]], dtype=torch.float64)
BEST, WORST = [0.3, None, 0.2], [-0.2, None, -0.5]
TOLD = {
    "honest": [[0.3, None, 0.1], [-0.2, None, 0.2], [0.1, None, -0.5]],
    "coalition": [WORST, BEST, WORST],
    "starve": [WORST, [-0.2, None, 0.2], WORST],
    "short": [[0.3, None, 0.1], BEST, [0.1, None, -0.5]],
    "blank": None,
    "inverted": [[-0.3, None, -0.1], [0.2, None, -0.2], [-0.1, None, 0.5]],
}


@pytest.mark.parametrize("name", REPORT_ATTACKS)
def test_each_way_to_lie_in_a_report(name):
    assert list(REPORT_ATTACKS) == list(BALLOT_ATTACKS)
    own = OWN.clone()
    view = ReportView(voter=7, lies=[1], own=lambda: own, source=stream(3))
    told = REPORT_ATTACKS[name](view)
    assert torch.equal(own.nan_to_num(9.0), OWN.nan_to_num(9.0))
    if name == "random":
        assert sorted(told.nan_to_num(9.0).tolist()) == sorted(OWN.nan_to_num(9.0).tolist())
    elif told is None:
        assert TOLD[name] is None
    else:
        shown = [[None if math.isnan(x) else round(x, 9) for x in row] for row in told.tolist()]
        assert shown == TOLD[name]


@pytest.mark.parametrize(
    ("junk", "fault"),
    [
        (None, "missing"),
        ("a report", "malformed"),
        (torch.zeros(2, 3), "malformed"),
        (torch.zeros(3, 3, dtype=torch.int64), "malformed"),
        (torch.full((3, 3), math.inf), "not-finite"),
        (torch.full((3, 3), -1.1e6), "not-finite"),
        (torch.zeros(3, 3).to_sparse(), "malformed"),
        (torch.zeros(3, 3, device="meta"), "malformed"),
    ],
    ids=["silence", "text", "shape", "whole", "infinite", "beyond", "sparse", "meta"],
)
def test_a_report_that_is_none_is_void(junk, fault):
    assert admitted_report(junk, like=OWN) == fault
    read = admitted_report(OWN.float(), like=OWN)
    assert read.dtype == torch.float64


def test_what_a_custom_ballot_attack_reports_is_checked_or_named(scene, play):
    def junk(_view):
        return "no report"

    def crash(view):
        return view.nothing

    federation, curve = scene("flshield", plugins={"ballots": junk}, attack={"name": "sign-flip"})
    for record in play(federation, curve, 3)[0]:
        liars = [voter for voter in record.voters if voter in record.byzantine_workers]
        assert record.outcome == "step"
        assert len(liars) == record.byzantine_voters
        assert record.rejected_ballots == ({"malformed": len(liars)} if liars else {})
        assert record.ballots is None
    federation, curve = scene("flshield", plugins={"ballots": crash}, attack={"name": "sign-flip"})
    failed = [r for r in play(federation, curve, 3)[0] if r.custom_errors]
    assert failed
    for record in failed:
        assert record.outcome == "step"
        assert len(record.custom_errors) == record.byzantine_voters
        assert record.rejected_ballots == {"missing": record.byzantine_voters}
        for failure in record.custom_errors:
            assert "the attack on ballots raised AttributeError" in str(failure)


def test_liars_know_their_updates_by_place(setup):
    round_setup = setup("flshield", federation={"voters": 12}, attack={"voters": "coalition"})
    updates = torch.randn(8, len(round_setup.state.weights))
    lies = [1, 6]
    reports = Reporters(round_setup).about(lies).impacts(updates)
    liars = [v in round_setup.byzantine for v in round_setup.committee.voters]
    assert any(liars)
    assert not all(liars)
    for report, lying in zip(reports, liars, strict=True):
        worst = report.amin(dim=0)
        praised = (report[lies] == report.amax(dim=0)).all() and (
            report[[0, 2, 3, 4, 5, 7]] == worst
        ).all()
        assert bool(praised) is lying


def test_liars_know_their_updates_in_a_rehearsal_as_in_the_round(scene, play):
    seen, coalitions = [], []

    def note(view):
        seen.append(list(view.lies))
        return view.own()

    def rehearse(view):
        before = len(seen)
        view.deployed.outcome([None, *[view.mean] * (view.count - 1)])
        coalitions.append((before, len(seen), view.count))
        return view.mean

    federation, curve = scene("flshield", plugins={"ballots": note, "attack": rehearse}, seed=1)
    (record,), _ = play(federation, curve, 1)
    ((before, after, count),) = coalitions
    places = [p for p, worker in enumerate(record.proposers) if worker in federation.byzantine]
    assert count == len(places) > 1
    # The first liar stays silent in what is rehearsed: those behind it move up.
    silent = [place - 1 for place in places[1:]]
    assert seen[before:after] == [silent] * record.byzantine_voters
    assert seen[after:] == [places] * record.byzantine_voters
    assert record.byzantine_voters > 0


def test_custom_workers_report_nothing(scene, play):
    class Own:
        def __init__(self, worker):
            self.worker = worker

        def propose(self, *task, **settings):
            return self.worker.propose(*task, **settings)

        def vote(self, *task, **settings):
            return self.worker.vote(*task, **settings)

    federation, curve = scene(
        "flshield", plugins={"worker": Own}, attack={"name": "none"}, federation={"byzantine": 0}
    )
    records, _ = play(federation, curve, 1)
    assert records[0].outcome == "infeasible"
    assert records[0].rejected_ballots == {"missing": 7}


# ------------------------------------------------------------------------------------- whole rounds


@every_asking_rule
def test_with_a_third_of_sign_flips_it_learns_where_the_mean_does_not(rule, experiment):
    setting = {
        "federation": {"workers": 21, "byzantine": 7, "proposers": 12, "voters": 9},
        "attack": {"name": "sign-flip", "scale": 3.0},
        "training": {"batch_size": 20},
    }
    lines = experiment(experiment={"rules": ["mean", rule], "rounds": 25}, **setting)
    ends = {line["rule"]: line["accuracy"] for line in lines if line["round"] == 25}
    assert ends[rule] > 0.75
    assert ends["mean"] < 0.5


@pytest.mark.parametrize("voters", BALLOT_ATTACKS)
def test_flshield_withstands_lying_voters(voters, experiment):
    lines = experiment(
        experiment={"rules": ["flshield"], "rounds": 15},
        federation={"workers": 21, "byzantine": 6, "proposers": 12, "voters": 9},
        attack={"name": "sign-flip", "scale": 3.0, "voters": voters},
        training={"batch_size": 20},
    )
    assert lines[-1]["accuracy"] > 0.7


@every_asking_rule
@pytest.mark.parametrize("knowledge", ["coalition", "last-round"])
def test_who_is_not_omniscient_does_not_know_the_server_s_rows(rule, knowledge, scene, play):
    seen = []

    def spy(view):
        seen.append(view.deployed.outcome([view.mean] * view.count))
        return view.mean

    federation, curve = scene(rule, attack={"knowledge": knowledge}, plugins={"attack": spy})
    play(federation, curve, 2)
    shown = list(seen)
    # Other rows for the server, and for honest voters: nothing that such liars foresee changes.
    root = replace(federation.root, y=(federation.root.y + 1) % 4)
    seen.clear()
    play(replace(federation, root=root), curve, 1)
    assert torch.equal(seen[0], shown[0])


@every_asking_rule
def test_a_resumed_run_equals_an_uninterrupted_one(rule, tmp_path, blobs, config):
    setting = config(
        experiment={"rules": [rule], "rounds": 4, "seeds": [0], "evaluate_every": 2},
        attack={"name": "alie", "gamma": 1.0},
    )
    plugins = holdout.Plugins(data=blobs)
    whole = holdout.run(setting, plugins=plugins)

    class StopError(Exception):
        pass

    def stop(progress):
        if progress.rounds_done == 3:
            raise StopError

    with pytest.raises(StopError):
        holdout.run(setting, plugins=plugins, out=tmp_path / "run", watch=stop)
    again = holdout.run(setting, plugins=plugins, out=tmp_path / "run", resume=True)
    drop = [{**line, "seconds": 0} for line in again.rounds]
    assert drop == [{**line, "seconds": 0} for line in whole.rounds]
