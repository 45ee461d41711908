"""Training without a server: one chain, one model, the same attacks, and liars found out."""

import json
import os
from dataclasses import replace
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tests.federation.ballots import looks_at_its_losses

from holdout import results
from holdout.agreement import aggregate
from holdout.agreement.blocks import read_header
from holdout.agreement.draws import Draws
from holdout.agreement.headers import Ledger, link_fault
from holdout.agreement.wire import Unverified
from holdout.attacks import ATTACKS, BALLOT_ATTACKS
from holdout.attacks.search import strengths
from holdout.errors import ConfigError, MisuseError, RunFolderError
from holdout.experiments import runner
from holdout.experiments.plan import make_plan
from holdout.experiments.plugins import Plugins
from holdout.experiments.runner import run
from holdout.federation import decentralized
from holdout.federation.chain_record import chain_arrays
from holdout.federation.round_setup import first_state
from holdout.learning.vector import norm, shrink
from holdout.results import to_json
from holdout.workers import HonestWorker, propose_together

LADDER = strengths(4.0)
FEDERATION = {
    "mode": "decentralized",
    "workers": 10,
    "byzantine": 3,
    "assumed_byzantine": 3,
    "proposers": 9,
    "voters": 9,
}


@pytest.fixture
def values(config):
    """values(section={...}) -> the config of ten workers, three of them liars."""

    def changed(**sections):
        sections["federation"] = {**FEDERATION, **sections.get("federation", {})}
        sections["experiment"] = {"rules": ["holdout"], **sections.get("experiment", {})}
        return config(**sections)

    return changed


@pytest.fixture
def network(blobs, values):
    """network(section={...}) -> (federation, curve)."""

    def make(plugins=None, **sections):
        plan = make_plan(values(**sections), Plugins(**{"data": blobs, **(plugins or {})}))
        ((curve, seed),) = plan.curves
        return plan.federation(curve, seed), curve

    return make


def play(federation, curve, count, state=None):
    state = state or first_state(federation)
    records = []
    for _ in range(count):
        record, state = decentralized.run_round(federation, curve, state)
        records.append(record)
    return records, state


def lines(records):
    """The records as text, without what the clock says."""
    return [to_json({**record.as_dict(), "seconds": 0}) for record in records]


# ------------------------------------------------------------------------------------- agreement


def test_the_chain_proves_every_model(network):
    federation, curve = network(attack={"equivocate": True})
    records, state = play(federation, curve, 3)
    net = decentralized.network_of(federation, curve.rule)
    ledger, verifier = Ledger(net.genesis), net.keys().verifier()
    assert len(state.chain) == 3
    for record, item in zip(records, state.chain, strict=True):
        header = read_header(item.header)
        tip = ledger.tip()
        assert link_fault(header, tip, net.genesis, verifier) is None
        draws = Draws(net.genesis, verifier, round_number=tip.round, seed=tip.seed_in)
        assert draws.verify_bundle(Unverified(item.certificate)) == item.certificate
        assert item.certificate.value == header.digest
        assert (record.agreement.block, record.agreement.model) == (
            header.digest.hex(),
            header.model.hex(),
        )
        ledger.append(header)
    weights = aggregate.canonical(state.weights.numpy())
    assert aggregate.model_digest(net.params.shapes, weights) == ledger.model
    assert state.radius == ledger.radius


def test_the_step_is_the_mean_of_the_bounded_selection(network):
    federation, curve = network(federation={"byzantine": 0}, attack={"name": "none"})
    (record,), state = play(federation, curve, 1)
    chosen = [federation.workers[record.proposers[p]] for p in record.selection]
    assert chosen
    updates = propose_together(
        chosen, federation.initial_weights, round_number=1, learning_rate=0.1
    )
    bounded = torch.stack([shrink(u, norm(u), record.radius).double() for u in updates])
    expected = federation.initial_weights.double() - 0.1 * bounded.mean(dim=0)
    assert torch.allclose(state.weights.double(), expected, rtol=0, atol=1e-7)


def test_everybody_selects_everybody_where_nobody_is_to_be_feared(network):
    federation, curve = network(
        federation={"byzantine": 0, "assumed_byzantine": 0, "proposers": 10, "voters": 10},
        vote={"gate": "none"},
        attack={"name": "none"},
    )
    records, _ = play(federation, curve, 2)
    for record in records:
        assert list(record.proposers) == list(record.voters) == list(range(10))
        assert list(record.selection) == list(range(10))
        assert record.quorum == record.approve_count == 10


def test_the_same_seed_gives_the_same_rounds_and_another_others(network):
    changed = {"attack": {"equivocate": True}}
    first, second = (play(*network(**changed), 2)[0] for _ in range(2))
    assert lines(first) == lines(second)
    federation, curve = network(**changed)
    other, _ = play(replace(federation, seed=7), curve, 2)
    assert lines(other) != lines(first)


def test_a_round_depends_on_nothing_but_the_state_before(network):
    federation, curve = network()
    records, _ = play(federation, curve, 3)
    _, state = play(federation, curve, 2)
    decentralized.network_of.cache_clear()
    (third,), _ = play(*network(), 1, state)
    assert lines([third]) == lines(records[2:])


def test_two_models_in_one_round_are_not_passed_over(network, monkeypatch):
    federation, curve = network()
    outcome = decentralized._outcome

    def tampered(cluster, honest, number):
        node = honest[-1]
        other = replace(node.commits[number], model=b"\x01" * 32)
        return outcome(cluster, [*honest[:-1], _as_if(node, {number: other})], number)

    monkeypatch.setattr(decentralized, "_outcome", tampered)
    with pytest.raises(MisuseError, match="round 1 with different models"):
        play(federation, curve, 1)


def test_a_model_of_other_bytes_is_not_passed_over(network, monkeypatch):
    federation, curve = network()
    outcome = decentralized._outcome

    def tampered(cluster, honest, number):
        flipped = [_as_if(node, node.commits, flip=True) for node in honest]
        return outcome(cluster, flipped, number)

    monkeypatch.setattr(decentralized, "_outcome", tampered)
    with pytest.raises(MisuseError, match="round 1 is not the one agreed on"):
        play(federation, curve, 1)


def _as_if(node, commits, *, flip=False):
    def get(digest):
        data = node.memory.get(digest)
        return bytes([data[0] ^ 1]) + data[1:] if flip and data else data

    return SimpleNamespace(
        commits=commits, memory=SimpleNamespace(get=get), disk=node.disk, reports=[], rejected={}
    )


# ---------------------------------------------------------------------------------------- attacks


@pytest.mark.parametrize("attack", [*ATTACKS])
def test_no_attack_stops_the_rounds(network, attack):
    flat = {"shape": [1, 3, 4], "size": 2, "row": 0, "column": 0} if attack == "backdoor" else {}
    federation, curve = network(attack={"name": attack, **flat})
    records, state = play(federation, curve, 2)
    assert state.weights.isfinite().all()
    assert [record.round for record in records] == [1, 2]
    assert {record.outcome for record in records} <= {"step", "empty-selection", "too-few-ballots"}
    assert any(record.outcome == "step" for record in records)


@pytest.mark.parametrize("voters", [*BALLOT_ATTACKS])
@pytest.mark.parametrize("rule", ["holdout", "holdout-1", "holdout-paper"])
def test_no_ballot_stops_the_rounds(network, rule, voters):
    federation, curve = network(
        experiment={"rules": [rule]}, attack={"voters": voters, "gamma": 0.3}
    )
    records, _ = play(federation, curve, 1)
    assert records[0].agreement.periods >= 1


def test_who_signs_two_versions_is_found_out_and_out_of_the_round(network):
    federation, curve = network(
        federation={"workers": 13, "byzantine": 4, "assumed_byzantine": 4, "voters": 12},
        attack={"equivocate": True},
    )
    seen = set()
    records, _ = play(federation, curve, 3)
    for record in records:
        double = decentralized._equivocating(federation, record.round)
        assert len(double) == 2
        assert double <= federation.byzantine
        seen |= double
        caught = record.agreement.evidence
        assert caught["update"] == len(double.intersection(record.proposers))
        assert caught.get("ballot", 0) == len(double.intersection(record.voters))
        # A ballot that waits for an update which nobody sent is missing instead.
        assert record.rejected_ballots["convicted"] > 0
        assert not double.intersection(record.proposers[p] for p in record.selection)
        for voter, ballot in zip(record.voters, record.ballots, strict=True):
            assert (ballot is None) == (voter in double)
    assert len(seen) > 2


def test_the_attacker_counts_only_on_those_who_will_not_be_caught(network):
    counted = []

    def counting(view):
        counted.append(view.count)
        return view.mean

    federation, curve = network(
        plugins={"attack": counting},
        federation={"workers": 13, "byzantine": 4, "assumed_byzantine": 4, "proposers": 13},
        attack={"name": "counting", "equivocate": True},
    )
    play(federation, curve, 2)
    assert counted == [2, 2]


def test_nobody_is_found_out_where_nobody_signs_twice(network):
    records, _ = play(*network(), 2)
    assert all(record.agreement.evidence == {} for record in records)


def test_what_the_attacker_foresees_is_what_happens(network):
    federation, curve = network(federation={"workers": 13, "byzantine": 4, "assumed_byzantine": 4})
    records, _ = play(federation, curve, 5)
    bold = [record for record in records if record.gamma]
    assert len(bold) > 2
    assert all(record.byzantine_selected for record in bold)


@pytest.mark.parametrize("gate", ["median", "zero", "none"])
@pytest.mark.parametrize("passing", ["any", "all"])
def test_asking_some_voters_says_what_asking_all_says(gate, passing, network):
    verdicts = []

    def noting(view):
        verdicts.append(list(view.deployed.selects(view.mean, view.deviation, LADDER)))
        return view.mean

    for ballots in (None, looks_at_its_losses):
        federation, curve = network(
            plugins={"attack": noting, **({"ballots": ballots} if ballots else {})},
            federation={"workers": 13, "byzantine": 4, "assumed_byzantine": 4},
            training={"learning_rate": 0.5},
            vote={"gate": gate},
            attack={"passing": passing, "name": "noting"},
        )
        play(federation, curve, 4)
    assert len(verdicts) == 8
    assert verdicts[:4] == verdicts[4:]


def test_an_empty_vector_is_rejected_and_counted(network):
    federation, curve = network(
        plugins={"attack": lambda view: [torch.zeros(0)] * view.count}, attack={"name": "empty"}
    )
    (record,), _ = play(federation, curve, 1)
    assert record.byzantine_proposers
    assert record.rejected_proposals == {"misshapen": record.byzantine_proposers}


def test_copies_of_a_lie_are_made_to_differ_since_equal_ones_count_once(network):
    federation, curve = network(
        federation={"workers": 13, "byzantine": 4, "assumed_byzantine": 4, "proposers": 13},
        attack={"name": "alie", "gamma": 0.0},
    )
    records, _ = play(federation, curve, 3)
    assert any(record.byzantine_selected > 1 for record in records)


def test_a_rescaled_network_ruins_nothing_even_in_the_first_round(network, monkeypatch):
    # Exact losses cannot tell it from an honest update; its direction, to first order, is another.
    federation, curve = network(attack={"name": "rescale"}, experiment={"rules": ["holdout-1"]})
    _, bounded = play(federation, curve, 1)
    assert (bounded.weights - federation.initial_weights).norm() < 1
    decentralized.network_of.cache_clear()
    monkeypatch.setattr(decentralized, "_first_radius", lambda *_: 0.0)
    _, ruined = play(federation, curve, 1)
    decentralized.network_of.cache_clear()
    assert (ruined.weights - federation.initial_weights).norm() > 10


def test_a_long_update_is_judged_at_the_length_at_which_it_is_averaged(network):
    def stretch(view):
        return 1000 * view.mean

    federation, curve = network(plugins={"attack": stretch}, attack={"name": "stretch"})
    (record,), state = play(federation, curve, 1)
    assert record.byzantine_proposers
    assert record.byzantine_selected == record.byzantine_proposers
    assert (state.weights - federation.initial_weights).norm() <= 0.1 * record.radius * 1.001


@pytest.mark.parametrize("knowledge", ["coalition", "last-round"])
def test_a_coalition_that_knows_less_lies_all_the_same(network, knowledge):
    federation, curve = network(attack={"knowledge": knowledge})
    records, state = play(federation, curve, 2)
    assert any(record.gamma is not None for record in records)
    assert (state.last_honest is not None) == (knowledge == "last-round")


def test_junk_is_counted_by_what_is_wrong_with_it(network):
    federation, curve = network(
        federation={"workers": 25, "byzantine": 8, "assumed_byzantine": 8, "proposers": 25},
        attack={"name": "nan"},
    )
    (record,), _ = play(federation, curve, 1)
    assert record.byzantine_proposers == 8
    assert record.rejected_proposals == {
        "misshapen": 1,
        "missing": 1,
        "not-finite": 4,
        "out-of-range": 2,
    }
    assert record.byzantine_selected == 0


# ------------------------------------------------------------------------------- custom workers


class Silent:
    """Raises whatever it is asked."""

    def propose(self, _weights, **_given):
        raise RuntimeError

    def vote(self, _weights, _proposals, **_given):
        raise RuntimeError


class Wrapped:
    """Does as the worker inside."""

    def __init__(self, inside):
        self.inside = inside

    def propose(self, weights, **given):
        return self.inside.propose(weights, **given)

    def vote(self, weights, proposals, **given):
        return self.inside.vote(weights, proposals, **given)


def test_an_own_worker_that_crashes_misses_its_role_and_no_more(network):
    def custom(worker: HonestWorker):
        return Silent() if worker.worker_id == 4 else worker

    federation, curve = network(
        plugins={"worker": custom},
        federation={"byzantine": 0, "proposers": 10, "voters": 10},
        attack={"name": "none"},
    )
    (record,), _ = play(federation, curve, 1)
    assert record.outcome == "step"
    assert 4 not in record.selection
    assert record.ballots[4] is None
    assert record.rejected_ballots == {"missing": 1}
    assert record.rejected_proposals == {"missing": 1}


def test_an_own_worker_is_asked_as_in_the_central_simulation(network):
    plain, _ = play(*network(), 2)
    wrapped, _ = play(*network(plugins={"worker": Wrapped}), 2)
    for one, other in zip(plain, wrapped, strict=True):
        assert one.proposers == other.proposers
    # A rehearsal cannot hear custom workers, so what is sent differs; who is drawn does not.
    honest = {"federation": {"byzantine": 0}, "attack": {"name": "none"}}
    plain, _ = play(*network(**honest), 2)
    wrapped, _ = play(*network(plugins={"worker": Wrapped}, **honest), 2)
    assert [r.selection for r in plain] == [r.selection for r in wrapped]
    assert [r.agreement.model for r in plain[:1]] == [r.agreement.model for r in wrapped[:1]]


class Remembering(Wrapped):
    """Cannot be asked without a state."""

    def propose(self, weights, *, state, **given):
        state["seen"] = weights
        return self.inside.propose(weights, **given)


def test_own_workers_that_keep_a_state_report_their_norms_too(network):
    plain, curve = network()
    remembering, _ = network(plugins={"worker": Remembering})
    first, other = (
        decentralized.network_of(federation, curve.rule).params.radius_first
        for federation in (plain, remembering)
    )
    assert first == other > 0


# -------------------------------------------------------------------------- experiments, resuming


@pytest.fixture
def _quick(monkeypatch):
    monkeypatch.setattr(runner, "write_report", lambda folder: folder / "report.html")
    monkeypatch.setattr(os, "fsync", lambda _: None)


def test_a_run_compares_with_the_server_and_the_unattacked_mean(blobs, values):
    result = run(
        values(
            experiment={"rules": ["holdout", "holdout-central"], "baseline": True, "rounds": 2},
        ),
        plugins=Plugins(data=blobs),
    )
    rules = [(line["rule"], line["attack"], "agreement" in line) for line in result.rounds]
    assert rules == [
        *[("mean", "none", False)] * 2,
        *[("holdout", "alie", True)] * 2,
        *[("holdout-central", "alie", False)] * 2,
    ]
    agreement = result.rounds[2]["agreement"]
    assert agreement["mode"] == "all"
    assert (agreement["committee"], agreement["quorum"]) == (10, 7)
    assert agreement["messages"] > 100
    assert agreement["bytes"] > 10_000


@pytest.mark.usefixtures("_quick")
@pytest.mark.parametrize("stop", [1, 2, 3])
def test_a_resumed_run_equals_an_uninterrupted_one(blobs, values, tmp_path, stop):
    changed = values(
        experiment={"rounds": 3, "evaluate_every": 2},
        attack={"equivocate": True, "knowledge": "last-round"},
    )
    whole = run(changed, out=tmp_path / "whole", plugins=Plugins(data=blobs))

    def watch(progress):
        if progress.rounds_done == stop:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(changed, out=tmp_path / "parts", plugins=Plugins(data=blobs), watch=watch)
    decentralized.network_of.cache_clear()
    parts = run(changed, out=tmp_path / "parts", plugins=Plugins(data=blobs), resume=True)
    left, right = ([{**line, "seconds": 0} for line in r.rounds] for r in (whole, parts))
    assert json.dumps(left) == json.dumps(right)


@pytest.mark.usefixtures("_quick")
def test_a_checkpoint_is_checked_with_the_threads_of_the_run(blobs, values, tmp_path, monkeypatch):
    changed, plugins = values(experiment={"rounds": 3, "threads": 1}), Plugins(data=blobs)
    threads, real = [], decentralized._first_radius

    def watch(progress):
        if progress.rounds_done == 2:
            raise KeyboardInterrupt

    def watched(*given):
        threads.append(torch.get_num_threads())
        return real(*given)

    with pytest.raises(KeyboardInterrupt):
        run(changed, out=tmp_path / "run", plugins=plugins, watch=watch)
    decentralized.network_of.cache_clear()
    monkeypatch.setattr(decentralized, "_first_radius", watched)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        run(changed, out=tmp_path / "run", plugins=plugins, resume=True)
    finally:
        torch.set_num_threads(before)
    assert set(threads) == {1}


@pytest.mark.usefixtures("_quick")
@pytest.mark.parametrize("what", ["missing", "cut", "of another network", "of other weights"])
def test_a_checkpoint_whose_chain_does_not_fit_is_refused(
    blobs, values, tmp_path, monkeypatch, what
):
    changed, plugins = values(experiment={"rounds": 3}), Plugins(data=blobs)

    def watch(progress):
        if progress.rounds_done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(changed, out=tmp_path / "run", plugins=plugins, watch=watch)
    read = results._read_checkpoint

    def spoilt(path):
        checkpoint = read(path)
        arrays = dict(checkpoint.arrays)
        if what == "missing":
            del arrays["chain"]
        if what == "cut":
            arrays["chain"] = arrays["chain"][:-1]
        if what == "of another network":
            federation, curve = _other(blobs, changed)
            _, state = play(federation, curve, 2)
            arrays |= chain_arrays(state)
            arrays["weights"] = state.weights.numpy()
        if what == "of other weights":
            arrays["weights"] = arrays["weights"] + np.float32(1)
        return results.Checkpoint(checkpoint.meta, arrays)

    monkeypatch.setattr(results, "_read_checkpoint", spoilt)
    with pytest.raises(RunFolderError, match="cannot be resumed"):
        run(changed, out=tmp_path / "run", plugins=plugins, resume=True)


def _other(blobs, values):
    plan = make_plan(
        {**values, "experiment": {**values["experiment"], "seeds": [9]}}, Plugins(data=blobs)
    )
    ((curve, seed),) = plan.curves
    return plan.federation(curve, seed), curve


def test_only_votes_can_do_without_a_server(blobs, values):
    with pytest.raises(ConfigError) as caught:
        make_plan(values(experiment={"rules": ["krum", "mean", "holdout"]}), Plugins(data=blobs))
    assert [problem.split(":")[0] for problem in caught.value.problems] == [
        "experiment.rules = 'krum'",
        "experiment.rules = 'mean'",
    ]
    assert "there are holdout-paper, holdout-1, holdout and, with a server for comparison" in str(
        caught.value
    )


def test_the_servers_run_is_for_comparison_only(config, blobs):
    with pytest.raises(ConfigError, match=r"experiment\.rules = 'holdout-central': unknown"):
        make_plan(config(experiment={"rules": ["holdout-central"]}), Plugins(data=blobs))


def test_sizes_below_the_tables_are_said_at_the_start(blobs, values):
    said = []
    small = values(
        experiment={"rounds": 1}, federation={"proposers": 5, "voters": 5}, vote={"samples": 10}
    )
    result = run(
        small,
        plugins=Plugins(data=blobs),
        say=said.append,
        watch=lambda _: said.append("first round"),
    )
    assert said[0].startswith("sizes below the tables: federation.proposers = 5 (the tables ask")
    assert said[-1] == "first round"
    assert said[:-1] == list(result.notes)
    assert any("lack an honest majority with probability" in note for note in said)


def test_the_paper_rule_keeps_the_bound_of_the_chain(network):
    _, curve = network(experiment={"rules": ["holdout-paper"]})
    assert curve.method.bound
    assert curve.method.gate is None
    assert curve.method.f == Fraction(3, 10)
