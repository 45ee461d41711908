"""Flower's simulation passes Python objects: what no wire would carry is refused and counted."""

import pickle

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from tests.flower.flower_grid import FakeGrid, arrays, as_node, client_app, train_reply, weights

from holdout.flower import HoldOut, Robust, vote_mod


def with_array(**fields):
    def change(reply):
        reply.content["arrays"]["bias"].__dict__.update(fields)

    return change


def with_metric(name, value):
    def change(reply):
        reply.content["metrics"].__dict__["_data"][name] = value

    return change


def with_record(name, value):
    def change(reply):
        reply.content.__dict__["_data"][name] = value

    return change


def with_metadata(name, value):
    def change(reply):
        reply.metadata.__dict__[name] = value

    return change


def with_message(**fields):
    return lambda reply: reply.__dict__.update(fields)


OBJECTS = {
    "a shape that is None": with_array(shape=None),
    "a shape of texts": with_array(shape=("3",)),
    "a dtype that is None": with_array(dtype=None),
    "a dtype that is a type": with_array(dtype=np.float32),
    "a storage type that is None": with_array(stype=None),
    "data that is None": with_array(data=None),
    "data that is an array": with_array(data=np.zeros(3, np.float32)),
    "a text in place of an array": lambda reply: (
        reply.content["arrays"].__dict__["_data"].update(bias="zeros")
    ),
    "a metric that is a text": with_metric("train_loss", "low"),
    "a metric that is None": with_metric("train_loss", None),
    "a metric of mixed things": with_metric("train_loss", [1.0, "two", {}]),
    "a metric whose name is a number": with_metric(7, 1.0),
    "a record that is a dict": with_record("more", {"a": 1}),
    "a record whose name is None": with_record(None, MetricRecord()),
    "content that is a dict": with_message(_content={"arrays": arrays(0.5)}),
    "no content and no error": with_message(_content=None),
    "an error whose code is a list": with_message(_content=None, _error=Error([1], "no")),
    "an error that is a text": with_message(_content=None, _error="it failed"),
    "no metadata": with_message(_metadata=None),
    "a sender that is a list": with_metadata("_src_node_id", [1]),
    "a question that is a list": with_metadata("_reply_to_message_id", ["message-1"]),
    "a type that is None": with_metadata("_message_type", None),
}


def federation(change):
    def node(message):
        reply = train_reply(message, arrays(0.5)) if is_train(message) else honest(message)
        change(reply)
        return pickle.loads(pickle.dumps(reply))  # As Ray does.

    def is_train(message):
        return message.metadata.message_type == "train"

    honest = as_node(client_app(1.0, mods=[vote_mod]))
    return FakeGrid({n: node if n in (3, 7) else honest for n in range(1, 13)}), node


@pytest.mark.parametrize("kind", OBJECTS)
def test_an_object_that_no_wire_would_carry_is_refused_and_counted(kind):
    grid, _ = federation(OBJECTS[kind])
    strategy = Robust(rule="mean", seed=1, fraction_evaluate=0.5)
    result = strategy.start(grid, arrays(0.0), num_rounds=1)
    metrics = result.train_metrics_clientapp[1]
    assert metrics["holdout-proposals-rejected"] == 2
    assert metrics["holdout-proposals-accepted"] == 10
    assert np.allclose(weights(result.arrays), 0.5)


@pytest.mark.parametrize("kind", OBJECTS)
def test_the_same_in_place_of_a_ballot(kind):
    def change(reply):
        if "ballot" in reply.content:
            reply.content["arrays"], reply.content["metrics"] = arrays(0.0), MetricRecord()
            OBJECTS[kind](reply)

    grid, _ = federation(change)
    settings = {"ballots": "approvals", "min_ballots": 1, "vote_timeout": 20}
    strategy = HoldOut(num_proposers=6, num_voters=6, seed=1, **settings)
    result = strategy.start(grid, arrays(0.0), num_rounds=2)
    assert result.rounds == 2
    assert all(m["holdout-step"] == 1 for m in result.train_metrics_clientapp.values())
    assert sum(m["holdout-ballots-rejected"] for m in result.train_metrics_clientapp.values()) >= 1


def test_something_that_is_no_message_at_all():
    grid, _ = federation(lambda _reply: None)
    grid.nodes[3] = lambda _: ["a text"]
    result = Robust(rule="mean", seed=1, fraction_evaluate=0.0).start(
        grid, arrays(0.0), num_rounds=1
    )
    assert result.train_metrics_clientapp[1]["holdout-proposals-rejected-malformed"] == 1


def test_numbers_of_numpy_are_numbers():
    """An honest client in a simulation often returns them; over the wire they are converted."""

    def change(reply):
        numbers = reply.content["metrics"].__dict__["_data"]
        numbers |= {"train_loss": np.float64(1.0), "num-examples": 10}

    grid, _ = federation(lambda reply: change(reply) if "metrics" in reply.content else None)
    result = Robust(rule="mean", seed=1).start(grid, arrays(0.0), num_rounds=1)
    metrics = result.train_metrics_clientapp[1]
    assert metrics["holdout-proposals-accepted"] == 12
    assert type(metrics["train_loss"]) is float


def test_plain_records_come_through_unchanged():
    sent = RecordDict(
        {
            "arrays": ArrayRecord({"w": Array(np.arange(6.0).reshape(2, 3))}),
            "metrics": MetricRecord({"a": 1, "b": [0.5, 1.5], "c": []}),
            "config": ConfigRecord({"text": "x", "flag": True, "bytes": b"1"}),
        }
    )
    from holdout.flower.plain_replies import plain_content

    message = Message(sent, dst_node_id=1, message_type="train")
    assert plain_content(message) == sent
