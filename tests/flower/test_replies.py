"""No reply of a client can poison, crash or stop a round: each lie by name, and random ones."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.flower.flower_grid import (
    FakeGrid,
    SilentError,
    arrays,
    as_node,
    client_app,
    train_reply,
    weights,
)

from holdout.flower import HoldOut, Robust, vote_mod
from holdout.flower.exchange import PollingGrid

NODES = [11, 5, 7, 3, 19, 23, 2, 31, 13, 17]


def other_sender(message: Message) -> Message:
    reply = train_reply(message, arrays(9.0))
    reply.metadata.__dict__["_src_node_id"] = 999
    return reply


def other_question(message: Message) -> Message:
    reply = train_reply(message, arrays(9.0))
    reply.metadata.__dict__["_reply_to_message_id"] = "never-asked"
    return reply


def other_type(message: Message) -> Message:
    reply = train_reply(message, arrays(9.0))
    reply.metadata.__dict__["_message_type"] = "query"
    return reply


def dead_node(message: Message) -> Message:
    reply = Message(Error(5, "Node Unavailable"), reply_to=message)
    reply.metadata.__dict__["_src_node_id"] = 1  # So the SuperLink answers in its place.
    return reply


def twice(message: Message) -> list[Message]:
    return [train_reply(message, arrays(0.5)), train_reply(message, arrays(9.0))]


def raising(_message: Message) -> Message:
    raise ValueError("no " * 10_000)


def silent(_message: Message) -> Message:
    raise SilentError


def content(make):
    return lambda message: Message(make(), reply_to=message)


def with_arrays(make):
    return lambda message: train_reply(message, make())


JUNK = Array(dtype="float32", shape=(3, 4), stype="numpy.ndarray", data=b"junk")

LIES = {
    "nothing at all": (silent, "missing"),
    "the node is dead": (dead_node, "unavailable"),
    "the app crashes": (raising, "error"),
    "bytes that no decoder reads": (lambda _: [ValueError("bad header")], "unreadable"),
    "from another node": (other_sender, "forged"),
    "to another question": (other_question, "forged"),
    "of another type": (other_type, "malformed"),
    "no record": (content(RecordDict), "malformed"),
    "metrics alone": (
        content(lambda: RecordDict({"metrics": MetricRecord({"a": 1})})),
        "malformed",
    ),
    "a config in place of arrays": (
        content(lambda: RecordDict({"arrays": ConfigRecord({"a": 1})})),
        "malformed",
    ),
    "two records": (
        content(lambda: RecordDict({"arrays": arrays(9.0), "again": arrays(9.0)})),
        "malformed",
    ),
    "an empty record": (with_arrays(ArrayRecord), "malformed"),
    "an array missing": (
        with_arrays(lambda: ArrayRecord({"bias": Array(np.zeros(3, np.float32))})),
        "malformed",
    ),
    "an array too many": (
        with_arrays(lambda: arrays(9.0, more=Array(np.zeros(3, np.float32)))),
        "malformed",
    ),
    "another shape": (
        with_arrays(lambda: arrays(9.0, bias=Array(np.zeros((3, 1), np.float32)))),
        "misshapen",
    ),
    "integers": (
        with_arrays(lambda: arrays(9.0, bias=Array(np.zeros(3, np.int64)))),
        "wrong-dtype",
    ),
    "junk": (with_arrays(lambda: arrays(9.0, weight=JUNK)), "unreadable"),
    "not a number": (with_arrays(lambda: arrays(np.nan)), "not-finite"),
    "infinite": (with_arrays(lambda: arrays(-np.inf)), "not-finite"),
    "infinite as float32": (
        with_arrays(lambda: arrays(0.0, bias=Array(np.full(3, 1e300)))),
        "not-finite",
    ),
}


def play(strategy, lie=None, *, rounds=1):
    """A federation in which the first proposer drawn lies; the arrays and metrics at the end."""
    grid = FakeGrid({node: as_node(client_app(1.0, mods=[vote_mod])) for node in NODES})
    polling = PollingGrid(grid, {"train": 0.2})
    current, metrics = arrays(0.0), None
    for number in range(1, rounds + 1):
        asked = strategy.configure_train(number, current, ConfigRecord(), polling)
        honest = dict(grid.nodes)
        if lie is not None:
            grid.nodes[asked[0].metadata.dst_node_id] = lie
        replies = polling.send_and_receive(asked)
        grid.nodes = honest
        current, metrics = strategy.aggregate_train(number, replies)
    return current, metrics


def strategies():
    return {
        "holdout": HoldOut(num_proposers=5, num_voters=4, seed=1),
        "holdout-1": HoldOut(
            rule="holdout-1", num_proposers=5, num_voters=4, seed=1, vote_timeout=5
        ),
        "holdout-paper": HoldOut(
            num_proposers=5, num_voters=4, seed=1, rule="holdout-paper", vote_timeout=5
        ),
        "mean": Robust(num_proposers=7, rule="mean", seed=1),
        "krum": Robust(num_proposers=7, rule="krum", seed=1, byzantine_fraction=0.2),
        "bulyan": Robust(num_proposers=8, rule="bulyan", seed=1, byzantine_fraction=0.1),
        "trimmed-mean": Robust(num_proposers=7, rule="trimmed-mean", seed=1),
        "geometric-median": Robust(num_proposers=7, rule="geometric-median", seed=1),
    }


ANY_RULE = ["the app crashes", "another shape", "junk", "not a number"]
CASES = [
    (name, case)
    for name in strategies()
    for case in LIES
    if name in {"holdout-1", "mean"} or case in ANY_RULE
]


@pytest.mark.parametrize(("name", "case"), CASES)
def test_a_malformed_reply_is_counted_and_the_round_goes_on(name, case):
    lie, reason = LIES[case]
    current, metrics = play(strategies()[name], lie)
    assert np.allclose(weights(current), 0.5)
    assert metrics["holdout-step"] == 1
    assert metrics[f"holdout-proposals-rejected-{reason}"] >= 1
    assert metrics["holdout-proposals-rejected"] == 1


def test_of_two_replies_the_first_counts():
    current, metrics = play(strategies()["mean"], twice)
    assert np.allclose(weights(current), 0.5)
    assert metrics["holdout-proposals-rejected-second"] == 1
    assert metrics["holdout-proposals-accepted"] == 7


def test_a_rejected_reply_is_logged_with_node_and_reason(caplog):
    with caplog.at_level("WARNING", logger="flwr"):
        play(strategies()["holdout-1"], raising)
    logged = [record.getMessage() for record in caplog.records if "rejected" in record.msg]
    assert len(logged) == 1
    assert any(f"of node {node} rejected: error" in logged[0] for node in NODES)
    assert len(logged[0]) < 400


def test_what_a_liar_says_is_printed_on_one_line_in_plain_characters(caplog):
    def lie(_message):
        raise ValueError("line\nbreak \x1b[31m red \u202e")

    with caplog.at_level("WARNING", logger="flwr"):
        play(strategies()["holdout-1"], lie)
    (logged,) = [r.getMessage() for r in caplog.records if "rejected" in r.msg]
    assert logged.isascii()
    assert logged.isprintable()


def test_if_every_reply_is_bad_the_model_is_kept():
    for name, strategy in strategies().items():
        grid = FakeGrid(dict.fromkeys(NODES, LIES["not a number"][0]))
        asked = strategy.configure_train(1, arrays(0.25), ConfigRecord(), grid)
        current, metrics = strategy.aggregate_train(1, grid.send_and_receive(asked))
        assert np.allclose(weights(current), 0.25), name
        assert metrics["holdout-step"] == 0
        assert metrics["holdout-proposals-accepted"] == 0


def test_a_step_that_the_model_s_dtype_cannot_hold_leaves_it_as_it_is():
    """Float32 holds 1e5 and so does the vote; a model in float16 does not."""
    strategy = Robust(num_proposers=7, rule="mean", seed=1)
    current = ArrayRecord({"w": Array(np.ones(5, np.float16))})
    far = with_arrays(lambda: ArrayRecord({"w": Array(np.full(5, 1e5, np.float32))}))
    grid = FakeGrid(dict.fromkeys(NODES, far))
    asked = strategy.configure_train(1, current, ConfigRecord(), grid)
    kept, metrics = strategy.aggregate_train(1, grid.send_and_receive(asked))
    assert np.array_equal(weights(kept), np.ones(5))
    assert metrics["holdout-step"] == 0
    assert metrics["holdout-proposals-accepted"] == 7


def test_the_number_of_examples_that_a_client_claims_is_no_weight():
    def boast(message):
        return train_reply(message, arrays(0.5), **{"num-examples": 10**12})

    current, _ = play(Robust(num_proposers=7, rule="mean", seed=1), boast)
    assert np.allclose(weights(current), 0.5)


finite = st.floats(allow_nan=True, allow_infinity=True, width=32)
junk_array = st.builds(
    lambda dtype, shape, stype, data: Array(
        dtype=dtype, shape=tuple(shape), stype=stype, data=data
    ),
    st.sampled_from(["float32", "float64", "int64", "object", "", "\ud800"]),
    st.lists(st.integers(-3, 12), max_size=3),
    st.sampled_from(["numpy.ndarray", "pickle", ""]),
    st.binary(max_size=200),
)
some_array = st.one_of(
    junk_array,
    st.builds(
        lambda shape, value, dtype: Array(np.full(tuple(shape), value, dtype)),
        st.lists(st.integers(0, 4), max_size=3),
        st.integers(0, 5),
        st.sampled_from([np.float32, np.float64, np.int32, np.complex64]),
    ),
    st.sampled_from([(3, 4), (3,)]).flatmap(
        lambda shape: st.builds(lambda value: Array(np.full(shape, value, np.float32)), finite)
    ),
)
names = st.sampled_from(["weight", "bias", "arrays", "", "ballot", "metrics"])
number = st.one_of(st.integers(-(2**63), 2**64 - 1), st.floats())
metric = st.one_of(number, st.lists(st.integers(-5, 5)), st.lists(st.floats()))
any_record = st.one_of(
    st.builds(ArrayRecord, st.dictionaries(names, some_array, max_size=3)),
    st.builds(
        MetricRecord,
        st.dictionaries(st.sampled_from(["num-examples", "approved", "train_loss"]), metric),
    ),
    st.builds(ConfigRecord, st.dictionaries(names, st.text(max_size=5), max_size=3)),
)
any_content = st.builds(
    RecordDict,
    st.dictionaries(st.sampled_from(["arrays", "metrics", "ballot", "vote", "x"]), any_record),
)


@settings(max_examples=25)
@given(st.lists(any_content, min_size=3, max_size=3))
def test_random_records_in_proposals_and_ballots_never_stop_a_round(garbage):
    """Three of ten nodes answer everything with garbage; the model stays finite throughout."""
    honest = as_node(client_app(1.0, mods=[vote_mod]))
    grid = FakeGrid(dict.fromkeys(NODES, honest))
    for node, records in zip(NODES, garbage, strict=False):
        grid.nodes[node] = content(lambda records=records: records)
    strategy = HoldOut(num_proposers=5, num_voters=5, seed=2, min_ballots=1, vote_timeout=5)
    result = strategy.start(grid, arrays(0.0), num_rounds=2)
    assert np.isfinite(weights(result.arrays)).all()
    assert sorted(result.train_metrics_clientapp) == [1, 2]
