"""Flower's other strategies inside a vote: what was accepted goes through their aggregation."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord
from flwr.serverapp import strategy as strategies
from flwr.serverapp.strategy import (
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedMedian,
    FedProx,
    FedTrimmedAvg,
    FedYogi,
)
from tests.flower.flower_grid import FakeGrid, arrays, as_node, client_app, train_reply, weights

from holdout.errors import ConfigError, MisuseError
from holdout.flower import HoldOut, Robust, vote_mod

NODES = list(range(1, 11))


def grid() -> FakeGrid:
    return FakeGrid({n: as_node(client_app(1.0, mods=[vote_mod])) for n in NODES})


def holdout(**changes) -> HoldOut:
    given = {"num_proposers": 5, "num_voters": 5, "seed": 1, "fraction_evaluate": 0.0}
    return HoldOut(**{**given, **changes})


def alone(inner: FedAvg, rounds: int) -> np.ndarray:
    """What the strategy does by itself with five clients that are all honest."""
    current = arrays(0.0)
    nodes = FakeGrid({n: as_node(client_app(1.0)) for n in NODES[:5]})
    for number in range(1, rounds + 1):
        asked = inner.configure_train(number, current, ConfigRecord(), nodes)
        current, _ = inner.aggregate_train(number, nodes.send_and_receive(asked))
    return weights(current)


INNERS = {
    "FedAvg": FedAvg,
    "FedAvgM": lambda: FedAvgM(server_momentum=0.9, server_learning_rate=0.7),
    "FedAdam": lambda: FedAdam(eta=0.1, beta_1=0.9, beta_2=0.99, tau=1e-3),
    "FedYogi": lambda: FedYogi(eta=0.1),
    "FedAdagrad": lambda: FedAdagrad(eta=0.1),
    "FedProx": lambda: FedProx(proximal_mu=0.5),
    "FedMedian": FedMedian,
    "FedTrimmedAvg": FedTrimmedAvg,
}


@pytest.mark.parametrize("name", INNERS)
@pytest.mark.parametrize("rule", ["holdout", "holdout-paper"])
def test_with_honest_clients_the_inner_strategy_does_what_it_does_alone(name, rule):
    # One round of the vote that bounds lengths: later ones may be shortened.
    rounds = 1 if rule == "holdout" else 3
    result = holdout(inner=INNERS[name](), rule=rule).start(grid(), arrays(0.0), rounds)
    assert np.allclose(weights(result.arrays), alone(INNERS[name](), rounds), atol=1e-5)


def test_a_lie_does_not_reach_the_inner_strategy():
    nodes = grid()
    strategy = holdout(inner=FedAvgM(server_momentum=0.9))
    asked = strategy.configure_train(1, arrays(0.0), ConfigRecord(), nodes)
    nodes.nodes[strategy._open.proposers[0]] = lambda m: train_reply(m, arrays(-9.0))
    current, metrics = strategy.aggregate_train(1, nodes.send_and_receive(asked))
    assert metrics["holdout-union-consensus"] == 4
    assert np.allclose(weights(current), 0.5, atol=1e-5)


def test_fedprox_still_tells_the_clients_its_proximal_term():
    nodes = grid()
    holdout(inner=FedProx(proximal_mu=0.25)).start(nodes, arrays(0.0), 1)
    sent = [m for m in nodes.sent if m.metadata.message_type == "train"]
    assert len(sent) == 10
    assert all(m.content["config"]["proximal-mu"] == 0.25 for m in sent)


@pytest.mark.parametrize("name", ["FedAdam", "FedAvgM"])
def test_moments_are_in_the_strategy_s_state_and_can_be_put_back(name):
    whole = holdout(inner=INNERS[name](), rule="holdout-paper")
    expected = weights(whole.start(grid(), arrays(0.0), 3).arrays)
    first = holdout(inner=INNERS[name](), rule="holdout-paper")
    middle = first.start(grid(), arrays(0.0), 2).arrays
    assert any(key.startswith("inner ") for key in first._rule_state)
    second = holdout(inner=INNERS[name](), rule="holdout-paper")
    second._rule_state = first._rule_state
    nodes = grid()
    second._roster.eligible(nodes.get_node_ids(), round_number=3, needed=10)
    asked = second.configure_train(3, middle, ConfigRecord(), nodes)
    current, _ = second.aggregate_train(3, nodes.send_and_receive(asked))
    assert np.allclose(weights(current), expected, atol=1e-6)
    assert first.inner.__dict__.get("m_t") is None


def test_a_strategy_with_an_inner_one_can_be_started_again():
    strategy = holdout(inner=FedAdam())
    runs = [weights(strategy.start(grid(), arrays(0.0), 2).arrays) for _ in range(2)]
    assert np.array_equal(*runs)


def test_buffers_do_not_go_through_the_inner_strategy():
    def node(message):
        record = message.content["arrays"]
        return train_reply(
            message,
            ArrayRecord(
                {"w": Array(record["w"].numpy() + 0.5), "bn.running_var": Array(np.full(2, 4.0))}
            ),
        )

    model = ArrayRecord({"w": Array(np.zeros(3)), "bn.running_var": Array(np.ones(2))})
    result = holdout(inner=FedAdam()).start(FakeGrid(dict.fromkeys(NODES, node)), model, 1)
    assert result.arrays["bn.running_var"].numpy().tolist() == [4.0, 4.0]
    assert not np.allclose(result.arrays["w"].numpy(), 0.5)


@pytest.mark.parametrize(
    ("inner", "message"),
    [
        (lambda: FedAdam(fraction_train=0.3), "fraction_train has no effect there; give it to the"),
        (lambda: FedAvg(min_available_nodes=5), "min_available_nodes has no effect there"),
        (lambda: FedAvg(arrayrecord_key="model"), "its arrayrecord_key = 'model' must be"),
        (lambda: strategies.QFedAvg(client_learning_rate=0.1), "losses that they claim"),
        (lambda: strategies.Krum(num_malicious_nodes=1), 'rule="krum" to Robust'),
        (lambda: strategies.Bulyan(num_malicious_nodes=1), 'rule="bulyan" to Robust'),
        (strategies.FedXgbBagging, "collects trees"),
        (lambda: Robust(rule="mean"), "a vote inside a vote"),
        (lambda: "FedAdam", "must be a strategy of Flower's that averages"),
        (lambda: FedAdam, r"must be a strategy of Flower's, not its class; give FedAdam\(\)"),
    ],
)
def test_what_cannot_be_composed_is_refused_with_a_message(inner, message):
    with pytest.raises(ConfigError, match=message):
        holdout(inner=inner())


def test_inheriting_from_two_strategies_is_refused():
    with pytest.raises(MisuseError, match=r"write HoldOut\(inner=FedAvgM\(\.\.\.\)\)"):
        type("Mixed", (HoldOut, FedAvgM), {})
    assert issubclass(type("Mine", (HoldOut,), {}), FedAvg)
