"""What rules and workers keep between rounds: momentum, custom state, and resuming to the bit."""

import json
import os
from collections import Counter
from dataclasses import replace

import pytest
import torch

from holdout import results
from holdout.errors import PluginError, RunFolderError
from holdout.experiments import runner
from holdout.experiments.plan import make_plan
from holdout.experiments.plugins import Plugins
from holdout.experiments.runner import run
from holdout.federation import decentralized
from holdout.federation.round_setup import MOMENTUM, draw_round, first_state
from holdout.workers import HonestWorker, propose_together

BETA = 0.9
HONEST = {"federation": {"byzantine": 0}, "attack": {"name": "none"}}
SERVERLESS = {
    "mode": "decentralized",
    "workers": 10,
    "byzantine": 3,
    "assumed_byzantine": 3,
    "proposers": 9,
    "voters": 9,
}


def clip_around_last(updates, *, f, context):
    """Centered clipping with one step: the state is the last result."""
    del f
    last = context.state.get("last", torch.zeros(updates.shape[1]))
    away = updates - last
    context.state["last"] = last + (away / away.norm(dim=1, keepdim=True).clamp(min=0.5)).mean(0)
    context.state["rounds"] = context.state.get("rounds", torch.zeros(1)) + 1
    return context.state["last"]


class MomentumWorker:
    """A custom worker that does by itself what `worker_momentum` does."""

    def __init__(self, honest: HonestWorker) -> None:
        self.honest = honest

    def propose(self, weights, *, round_number, learning_rate, state):
        update = (1 - BETA) * self.honest.propose(
            weights, round_number=round_number, learning_rate=learning_rate
        )
        state["m"] = BETA * state["m"] + update if "m" in state else update
        return state["m"]

    def vote(self, weights, proposals, **facts):
        return self.honest.vote(weights, proposals, **facts)


class Silent(MomentumWorker):
    """The same without a state: it knows nothing of momentum."""

    def propose(self, weights, *, round_number, learning_rate):
        return self.honest.propose(weights, round_number=round_number, learning_rate=learning_rate)


def stepped(federation, curve, rounds):
    """Mean with worker momentum, spelled out: an oracle."""
    state, momenta = first_state(federation), {}
    weights = state.weights
    rate = federation.config.training.learning_rate
    for number in range(1, rounds + 1):
        setup = draw_round(federation, curve, state)
        drawn = [federation.workers[w] for w in setup.committee.proposers]
        fresh = propose_together(drawn, weights, round_number=number, learning_rate=rate)
        for worker, update in zip(setup.committee.proposers, fresh, strict=True):
            before = momenta.get(worker, torch.zeros_like(update))
            momenta[worker] = BETA * before + (1 - BETA) * update
        sent = torch.stack([momenta[w] for w in setup.committee.proposers])
        weights = weights - rate * sent.mean(dim=0)
        state = type(state)(round=number, weights=weights)
    return weights, momenta


def test_workers_send_their_momentum_and_keep_it(scene, play):
    federation, curve = scene("mean", training={"worker_momentum": BETA}, **HONEST)
    _, state = play(federation, curve, 4)
    weights, momenta = stepped(federation, curve, 4)
    assert torch.allclose(state.weights, weights, atol=1e-6)
    assert sorted(state.worker_states) == sorted(momenta)
    for worker, kept in state.worker_states.items():
        assert torch.allclose(kept[MOMENTUM], momenta[worker], atol=1e-6)


def test_without_momentum_nobody_keeps_anything(scene, play):
    _, state = play(*scene("holdout-1"), 3)
    assert state.worker_states == {}
    assert state.rule_state == {}


def test_a_joint_vote_keeps_its_direction_and_how_long_messages_may_be(scene, play):
    federation, curve = scene("holdout", **HONEST)
    _, state = play(federation, curve, 3)
    assert state.worker_states == {}
    assert set(state.rule_state) == {"direction", "message_radius", "rounds"}
    assert state.rule_state["direction"].shape == state.weights.shape
    assert state.radius > 0
    # What is kept has a say: with the direction of one worker the others get other weights.
    (kept,), _ = play(federation, curve, 1, state)
    setup = draw_round(federation, curve, state)
    one = setup.propose([federation.workers[setup.committee.proposers[0]]])[0][0]
    turned = {**state.rule_state, "direction": 100 * one}
    (other,), _ = play(federation, curve, 1, replace(state, rule_state=turned))
    assert (kept.voters, kept.ballots) == (other.voters, other.ballots)
    assert kept.weights != pytest.approx(other.weights, rel=0.01)


@pytest.mark.parametrize("rule", ["mean", "krum", "holdout", "holdout-1"])
def test_a_custom_worker_can_do_what_the_setting_does(rule, scene, play):
    _, built_in = play(*scene(rule, training={"worker_momentum": BETA}, **HONEST), 3)
    _, custom = play(*scene(rule, plugins={"worker": MomentumWorker}, **HONEST), 3)
    assert torch.equal(built_in.weights, custom.weights)
    assert all(set(kept) == {"m"} for kept in custom.worker_states.values())


def test_the_setting_works_around_custom_workers_that_know_nothing_of_it(scene, play):
    settings = {"training": {"worker_momentum": BETA}, **HONEST}
    _, plain = play(*scene("mean", **settings), 3)
    _, wrapped = play(*scene("mean", plugins={"worker": Silent}, **settings), 3)
    assert torch.allclose(plain.weights, wrapped.weights, atol=1e-6)


def test_a_custom_worker_does_not_see_the_momentum_that_is_kept_for_it(scene, play):
    seen = []

    class Watching(MomentumWorker):
        def propose(self, weights, *, round_number, learning_rate, state):
            seen.append(sorted(state))
            return super().propose(
                weights, round_number=round_number, learning_rate=learning_rate, state=state
            )

    changed = {"training": {"worker_momentum": 0.5}, **HONEST}
    _, state = play(*scene("mean", plugins={"worker": Watching}, **changed), 3)
    assert ["m"] in seen
    assert all(names in ([], ["m"]) for names in seen)
    assert all(set(kept) == {"m", MOMENTUM} for kept in state.worker_states.values())


@pytest.mark.parametrize("knowledge", ["omniscient", "coalition", "last-round"])
@pytest.mark.parametrize("attack", ["alie", "label-flip"])
def test_liars_keep_up_the_momentum_of_honest_work(attack, knowledge, scene, play):
    federation, curve = scene(
        "holdout",
        training={"worker_momentum": BETA},
        attack={"name": attack, "knowledge": knowledge},
    )
    records, state = play(federation, curve, 3)
    proposed = {worker for record in records for worker in record.proposers}
    assert set(state.worker_states) == proposed
    assert proposed & federation.byzantine


def test_the_rules_state_is_handed_on_and_its_context_tells_the_round(scene, play):
    seen = []

    def watching(updates, *, f, context):
        seen.append((context.round_number, context.learning_rate, dict(context.state)))
        context.weights.zero_()
        context.state["draw"] = torch.randn(3, generator=context.generator())
        return updates.mean(dim=0)

    federation, curve = scene("mine", plugins={"rules": {"mine": watching}}, **HONEST)
    _, state = play(federation, curve, 3)
    assert [number for number, _, _ in seen] == [1, 2, 3]
    assert seen[0][2] == {}
    draws = [kept["draw"] for _, _, kept in seen[1:]] + [state.rule_state["draw"]]
    assert len({tuple(draw.tolist()) for draw in draws}) == 3
    _, mean = play(*scene("mean", **HONEST), 3)
    assert torch.equal(state.weights, mean.weights), "zeroing a copy of the weights did something"
    again = play(federation, curve, 3)[1]
    assert torch.equal(again.rule_state["draw"], state.rule_state["draw"])


def test_changing_what_was_kept_behind_our_back_changes_nothing(scene, play):
    hoard = []

    def hoarding(updates, *, f, context):
        del f
        for tensor in hoard:
            tensor.fill_(99.0)
        context.state["x"] = context.state.get("x", torch.zeros(1)) + 1
        hoard.append(context.state["x"])
        return updates.mean(dim=0)

    _, state = play(*scene("mine", plugins={"rules": {"mine": hoarding}}, **HONEST), 3)
    assert state.rule_state["x"].tolist() == [3.0]


def test_what_a_rule_does_with_its_result_later_leaves_the_server_s_momentum_alone(scene, play):
    buffer = []

    def in_place(updates, *, f):
        del f
        if buffer:
            return buffer[0].copy_(updates.mean(dim=0))
        buffer.append(updates.mean(dim=0))
        return buffer[0]

    changed = {**HONEST, "training": {"batch_size": 10, "momentum": 0.9}}
    _, state = play(*scene("mine", plugins={"rules": {"mine": in_place}}, **changed), 3)
    _, mean = play(*scene("mean", **changed), 3)
    assert torch.allclose(state.weights, mean.weights, atol=1e-6)


@pytest.mark.parametrize(
    ("kept", "message"),
    [
        ({"x": 3.0}, "rule 'mine': its state must hold tensors by name.*'x': float"),
        ({5: torch.ones(1)}, "rule 'mine': its state must hold tensors by name.*5: Tensor"),
        ({"x": torch.ones(2).to_sparse()}, "plain tensors that numpy can save"),
        ({"x": torch.ones(2, dtype=torch.bfloat16)}, "plain tensors that numpy can save"),
        ({"x": torch.ones(2).to(torch.float8_e5m2)}, "plain tensors that numpy can save"),
        ({"x": torch.ones(2, device="meta")}, "plain tensors that numpy can save"),
    ],
)
def test_a_state_that_cannot_be_saved_is_refused(kept, message, scene, play):
    def rule(updates, *, f, context):
        del f
        context.state.update(kept)
        return updates.mean(dim=0)

    with pytest.raises(PluginError, match=message):
        play(*scene("mine", plugins={"rules": {"mine": rule}}, **HONEST))


class CountsItsBallots(Silent):
    """A custom worker that keeps something of voting alone."""

    def vote(self, weights, proposals, *, state, **facts):
        state["ballots"] = state.get("ballots", torch.zeros(1)) + 1
        return self.honest.vote(weights, proposals, **facts)


@pytest.mark.parametrize("serverless", [False, True])
@pytest.mark.parametrize("rule", ["holdout", "holdout-1"])
def test_a_custom_worker_may_keep_a_state_of_its_votes(rule, serverless, scene, play):
    changed = {"federation": {**SERVERLESS, "byzantine": 0}} if serverless else {}
    settings = {**HONEST, **changed, "experiment": {"rounds": 3}}
    federation, curve = scene(rule, plugins={"worker": CountsItsBallots}, **settings)
    run_one = decentralized.run_round if serverless else None
    records, state = [], first_state(federation)
    for _ in range(3):
        if run_one:
            record, state = run_one(federation, curve, state)
        else:
            (record,), state = play(federation, curve, 1, state)
        records.append(record)
    assert all(record.ballots and None not in record.ballots for record in records)
    votes = [voter for record in records for voter in record.voters]
    found = {w: kept["ballots"].item() for w, kept in state.worker_states.items()}
    assert found == {voter: votes.count(voter) for voter in votes}


def test_a_worker_whose_state_cannot_be_saved_is_named(scene, play):
    class Wrong(MomentumWorker):
        def propose(self, weights, *, state, **_facts):
            state["m"] = "much"
            return weights

    with pytest.raises(PluginError, match=r"worker \d+: its state must hold tensors by name"):
        play(*scene("mean", plugins={"worker": Wrong}, **HONEST))


# ------------------------------------------------------------------------------------- whole runs


@pytest.fixture
def _quick(monkeypatch):
    monkeypatch.setattr(runner, "write_report", lambda folder: folder / "report.html")
    monkeypatch.setattr(os, "fsync", lambda _: None)


def lines(result):
    return json.dumps([{**line, "seconds": 0} for line in result.rounds])


CASES = {
    "momentum of workers": ({"training": {"worker_momentum": BETA}}, {}, "holdout-1"),
    "direction of a joint vote": ({"training": {"worker_momentum": BETA}}, {}, "holdout"),
    "state of a custom rule": ({}, {"rules": {"mine": clip_around_last}}, "mine"),
    "state of custom workers": ({}, {"worker": MomentumWorker}, "krum"),
    "all of them": (
        {"training": {"worker_momentum": 0.5, "momentum": 0.3}},
        {"rules": {"mine": clip_around_last}, "worker": MomentumWorker},
        "nnm+mine",
    ),
    "without a server": (
        {
            "training": {"worker_momentum": BETA},
            "federation": SERVERLESS,
            "attack": {"equivocate": True},
        },
        {},
        "holdout",
    ),
    "custom workers without a server": (
        {"federation": SERVERLESS},
        {"worker": MomentumWorker},
        "holdout",
    ),
}


@pytest.mark.usefixtures("_quick")
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("stop", [1, 2, 4])
def test_a_run_that_keeps_state_resumes_to_the_bit(name, stop, blobs, config, tmp_path):
    changed, plugins, rule = CASES[name]
    experiment = {"rules": [rule], "seeds": [0, 1], "rounds": 3, "evaluate_every": 2}
    values = config(**{**changed, "experiment": experiment})
    given = Plugins(data=blobs, **plugins)
    whole = run(values, out=tmp_path / "whole", plugins=given)

    def watch(progress):
        if progress.rounds_done == stop:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(values, out=tmp_path / "parts", plugins=given, watch=watch)
    decentralized.network_of.cache_clear()
    parts = run(values, out=tmp_path / "parts", plugins=given, resume=True)
    assert lines(whole) == lines(parts)


@pytest.mark.usefixtures("_quick")
@pytest.mark.parametrize("stops", [(1, 2, 3), (2, 5, 8, 11), (4, 6, 7)])
def test_state_of_rules_and_workers_survives_many_interruptions(stops, blobs, config, tmp_path):
    experiment = {"rules": ["mine", "nnm+mine"], "seeds": [0, 1], "rounds": 3, "evaluate_every": 2}
    values = config(experiment=experiment)
    given = Plugins(data=blobs, rules={"mine": clip_around_last}, worker=MomentumWorker)
    whole = run(values, out=tmp_path / "whole", plugins=given)
    # What a curve keeps, another neither sees nor needs: each equals itself alone.
    for rule in ("mine", "nnm+mine"):
        for seed in (0, 1):
            only = {**experiment, "rules": [rule], "seeds": [seed]}
            alone = run(config(experiment=only), plugins=given)
            same = [r for r in whole.rounds if (r["rule"], r["seed"]) == (rule, seed)]
            assert lines(alone) == json.dumps([{**line, "seconds": 0} for line in same])

    def stop_after(rounds):
        def watch(progress):
            if progress.rounds_done == rounds:
                raise KeyboardInterrupt

        return watch

    for number, stop in enumerate(stops):
        with pytest.raises(KeyboardInterrupt):
            run(
                values,
                out=tmp_path / "parts",
                plugins=given,
                resume=number > 0,
                watch=stop_after(stop),
            )
    parts = run(values, out=tmp_path / "parts", plugins=given, resume=True)
    assert lines(parts) == lines(whole)
    assert (tmp_path / "parts/summary.json").exists()


@pytest.mark.parametrize(
    "name", ["momentum of workers", "direction of a joint vote", "all of them"]
)
def test_state_never_leaks_between_curves_and_seeds(name, blobs, config):
    changed, plugins, rule = CASES[name]
    given = Plugins(data=blobs, **plugins)

    def alone(seeds, rules):
        experiment = {"rules": rules, "seeds": seeds, "rounds": 2}
        return run(config(**{**changed, "experiment": experiment}), plugins=given).rounds

    def of(rounds, seed):
        wanted = [r for r in rounds if (r["rule"], r["seed"]) == (rule, seed)]
        return json.dumps([{**line, "seconds": 0} for line in wanted])

    others = [rule] if "mine" in rule else ["mean", rule, "krum"]
    together = alone([0, 1], others)
    assert of(together, 0) == of(alone([0], [rule]), 0)
    assert of(together, 1) == of(alone([1], [rule]), 1)


@pytest.mark.usefixtures("_quick")
def test_a_checkpoint_whose_momentum_is_of_another_model_is_refused(blobs, config, tmp_path):
    values = config(training={"worker_momentum": BETA}, experiment={"rules": ["mean"], "rounds": 3})

    def watch(progress):
        if progress.rounds_done == 2:
            raise KeyboardInterrupt

    plugins = Plugins(data=blobs)
    with pytest.raises(KeyboardInterrupt):
        run(values, out=tmp_path / "run", plugins=plugins, watch=watch)
    with results.resume(
        tmp_path / "run", make_plan(values, plugins).config.as_dict(), check=lambda *_: None
    ) as (folder, stored):
        checkpoint = stored.checkpoint
        name = next(key for key in checkpoint.arrays if key.startswith("worker/"))
        arrays = {**checkpoint.arrays, name: checkpoint.arrays[name][:-1]}
        folder.save(results.Checkpoint(checkpoint.meta, arrays), folder.mark())
    with pytest.raises(RunFolderError, match=r"worker \d+: .* the run cannot be resumed"):
        run(values, out=tmp_path / "run", plugins=plugins, resume=True)


@pytest.mark.usefixtures("_quick")
def test_a_folder_from_before_there_was_a_setting_is_resumed_with_its_default(
    blobs, config, tmp_path
):
    values = config(experiment={"rules": ["mean"], "rounds": 3})
    plugins = Plugins(data=blobs)
    whole = run(values, out=tmp_path / "whole", plugins=plugins)

    def watch(progress):
        if progress.rounds_done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(values, out=tmp_path / "parts", plugins=plugins, watch=watch)
    stored = tmp_path / "parts" / results.CONFIG
    older = stored.read_text("utf-8")
    for setting in ("worker_momentum = 0.0", "onset = 1", "ramp = 0", "every = 1", "dormant = 0"):
        assert f"\n{setting}\n" in older
        older = older.replace(f"\n{setting}\n", "\n")
    stored.write_text(older, "utf-8")
    assert lines(run(values, out=tmp_path / "parts", plugins=plugins, resume=True)) == lines(whole)
    changed = config(experiment={"rules": ["mean"], "rounds": 3}, training={"worker_momentum": 0.5})
    with pytest.raises(RunFolderError, match=r"training.worker_momentum was 0.0, is 0.5"):
        run(changed, out=tmp_path / "parts", plugins=plugins, resume=True)


def test_a_worker_that_keeps_something_when_it_votes_keeps_it_beside_momentum(scene, play):
    class Counts:
        def __init__(self, honest):
            self.honest, self.propose = honest, honest.propose

        def vote(self, weights, proposals, *, state, **facts):
            state["votes"] = state.get("votes", torch.zeros(())) + 1
            return self.honest.vote(weights, proposals, **facts)

    settings = {"training": {"worker_momentum": BETA}, **HONEST}
    federation, curve = scene("holdout", plugins={"worker": Counts}, **settings)
    records, state = play(federation, curve, 6)
    votes = Counter(voter for record in records for voter in record.voters)
    assert max(votes.values()) > 1
    for worker, count in votes.items():
        assert int(state.worker_states[worker]["votes"]) == count
