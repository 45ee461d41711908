"""The same round on Flower and in our simulation: same draws, ballots and selection."""

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord
from tests import tiny
from tests.flower.flower_grid import FakeGrid, train_reply

from holdout.experiments.plan import make_plan
from holdout.federation.central import run_round
from holdout.federation.round_setup import first_state
from holdout.flower import HoldOut, vote
from holdout.flower.arrays import Layout
from holdout.ids import RoundNumber
from holdout.learning import vector


def simulated(rule, folder, seed):
    config = tiny.values(
        tiny.write_data(folder),
        experiment={"rules": [rule], "baseline": False, "rounds": 1, "seeds": [seed]},
        data={"normalise": True},
        training={"momentum": 0.0, "learning_rate": 0.3},
        federation={"workers": 12, "proposers": 6, "voters": 6, "byzantine": 0},
        attack={"name": "none"},
    )
    for extra in ("scale", "knowledge"):
        config["attack"].pop(extra, None)
    plan = make_plan(config)
    curve, seed = plan.curves[0]
    return plan.federation(curve, seed), curve


@pytest.mark.parametrize("rule", ["holdout-1", "holdout-paper"])
@pytest.mark.parametrize("seed", range(4))
def test_a_round_on_flower_selects_what_the_simulator_selects(rule, seed, tmp_path):
    federation, curve = simulated(rule, tmp_path, seed)
    state = first_state(federation)
    record, after = run_round(federation, curve, state)
    model, rate = federation.model, federation.config.training.learning_rate
    current = ArrayRecord(vector.unflatten(model, state.weights))

    def node(worker):
        """The simulated worker behind Flower's messages."""

        def answer(message):
            if message.metadata.message_type == "train":
                received = Layout.of(message.content["arrays"]).flatten(message.content["arrays"])
                update = worker.propose(received, round_number=RoundNumber(1), learning_rate=rate)
                local = vector.unflatten(model, received - rate * update)
                return train_reply(message, ArrayRecord(local))
            x, y = worker.shard.x[worker.shard.rows], worker.shard.y[worker.shard.rows]
            return vote(
                message, model=model, x=x, y=y, seed=worker.seed, worker_id=worker.worker_id
            )

        return answer

    # Ids in the order of the workers' numbers, but nothing like them.
    grid = FakeGrid({1000 + 7 * w.worker_id: node(w) for w in federation.workers})
    settings = federation.config.federation
    strategy = HoldOut(
        rule=rule,
        vote_step=1.0,
        num_proposers=settings.proposers,
        num_voters=settings.voters,
        byzantine_fraction=settings.f,
        holdout_samples=federation.config.vote.samples,
        seed=seed,
    )
    asked = strategy.configure_train(1, current, ConfigRecord(), grid)
    arrays, _ = strategy.aggregate_train(1, grid.send_and_receive(asked))
    strategy._recorder.flush()
    (line,) = strategy._recorder.lines
    expected = record.as_dict()
    for key in ("rule", "seed", "round", "outcome", "approve_count", "quorum"):
        assert line[key] == expected[key]
    for key in ("proposers", "voters", "selection"):
        assert line[key] == list(expected[key])
    assert line["ballots"] == [list(ballot) for ballot in expected["ballots"]]
    if expected["radius"] is not None:
        # An update on Flower is a step: the learning rate is in it.
        assert line["radius"] == pytest.approx(rate * expected["radius"], rel=1e-3)
    stepped = Layout.of(arrays).flatten(arrays)
    assert torch.allclose(stepped, after.weights, atol=1e-5)
    assert not np.allclose(stepped, state.weights, atol=1e-5)
