"""Approvals: no ballot of a voter can poison, crash or stop a round."""

import numpy as np
import pytest
from flwr.app import ConfigRecord, Error, Message, MetricRecord, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.flower.flower_grid import (
    FakeGrid,
    SilentError,
    arrays,
    as_node,
    ballot_reply,
    client_app,
    weights,
)

from holdout.flower import HoldOut, vote_mod

NODES = list(range(101, 111))


def silent(_message):
    raise SilentError


def gone(message):
    return Message(Error(5, "Node Unavailable"), reply_to=message)


def sends(approved):
    return lambda message: ballot_reply(message, approved)


# Five proposals, f = 0.33: a ballot names at most four.
LIES = {
    "nothing": (silent, "missing"),
    "gone": (gone, "unavailable"),
    "crash": (lambda _: 1 / 0, "error"),
    "no ballot": (lambda m: Message(RecordDict(), reply_to=m), "malformed"),
    "a number": (sends(3), "malformed"),
    "floats": (sends([1.0, 2.0]), "malformed"),
    "out of range": (sends([0, 5]), "unknown-id"),
    "negative": (sends([-1]), "unknown-id"),
    "the server's own mark of the unknown": (sends([-1, 0]), "unknown-id"),
    "repeated": (sends([2, 2]), "repeated-id"),
    "too long": (sends([0, 1, 2, 3, 4]), "too-long"),
    "endless": (sends(list(range(100_000))), "too-long"),
    "text": (
        lambda m: Message(RecordDict({"ballot": ConfigRecord({"approved": "all"})}), reply_to=m),
        "malformed",
    ),
    "undecodable": (lambda _: [ValueError("bad header")], "unreadable"),
    "of another type": (
        lambda m: Message(
            RecordDict({"ballot": MetricRecord({"approved": [0]})}), reply_to=other(m)
        ),
        "malformed",
    ),
}


def other(message):
    made = Message(RecordDict(), dst_node_id=message.metadata.dst_node_id, message_type="train")
    made.metadata.__dict__["_message_id"] = message.metadata.message_id
    return made


def play(lies, **changes):
    """One round in which the first voters drawn lie so."""
    settings_ = {"num_proposers": 5, "num_voters": 5, "seed": 4, "vote_timeout": 0.3}
    strategy = HoldOut(ballots="approvals", **{**settings_, **changes})
    grid = FakeGrid({node: as_node(client_app(1.0, mods=[vote_mod])) for node in NODES})
    asked = strategy.configure_train(1, arrays(0.0), ConfigRecord(), grid)
    replies = grid.send_and_receive(asked)
    for node, lie in zip(strategy._open.voters, lies, strict=False):
        grid.nodes[node] = lie
    current, metrics = strategy.aggregate_train(1, replies)
    return current, metrics, grid


@pytest.mark.parametrize("case", LIES)
def test_a_void_ballot_is_counted_and_the_round_goes_on(case):
    lie, reason = LIES[case]
    current, metrics, _ = play([lie])
    assert np.allclose(weights(current), 0.5)
    assert metrics["holdout-step"] == 1
    assert metrics["holdout-ballots-accepted"] == 4
    assert metrics["holdout-ballots-rejected"] == 1
    assert metrics[f"holdout-ballots-rejected-{reason}"] == 1


def test_a_short_ballot_is_valid_for_holdout_and_void_for_the_paper_s_rule():
    _, metrics, _ = play([sends([0])])
    assert metrics["holdout-ballots-accepted"] == 5
    _, metrics, _ = play([sends([0])], rule="holdout-paper")
    assert metrics["holdout-ballots-rejected-too-short"] == 1


def test_an_empty_ballot_is_a_ballot():
    _, metrics, _ = play([sends([])])
    assert metrics["holdout-ballots-accepted"] == 5


def test_fewer_valid_ballots_than_two_thirds_keep_the_model():
    current, metrics, _ = play([silent, silent])
    assert np.allclose(weights(current), 0.0)
    assert metrics["holdout-step"] == 0
    assert metrics["holdout-ballots-accepted"] == 3
    current, metrics, _ = play([silent, silent], min_ballots=3)
    assert np.allclose(weights(current), 0.5)


def test_no_winner_keeps_the_model_and_says_so():
    current, metrics, _ = play([sends([])] * 3)
    assert np.allclose(weights(current), 0.0)
    assert metrics["holdout-step"] == 0
    assert metrics["holdout-union-consensus"] == 0
    assert metrics["holdout-ballots-accepted"] == 5


def test_every_voter_sees_the_proposals_in_an_order_of_its_own_and_no_names():
    _, _, grid = play([])
    votes = [m for m in grid.sent if m.metadata.message_type == "evaluate"]
    stacks = [m.content["candidates"]["stacked"].numpy() for m in votes]
    assert len(stacks) == 5
    text = str([list(m.content["vote"].items()) for m in votes])
    assert not any(str(node) in text for node in NODES)


def test_the_order_differs_between_voters_and_names_are_put_right():
    """Each node trains towards another goal; only the best three of five are approved."""
    settings_ = {"num_proposers": 5, "num_voters": 5, "seed": 4, "byzantine_fraction": 0.49}
    strategy = HoldOut(ballots="approvals", **settings_)
    goals = {node: 1.0 + 0.1 * place for place, node in enumerate(NODES)}
    grid = FakeGrid({n: as_node(client_app(goal, mods=[vote_mod])) for n, goal in goals.items()})
    asked = strategy.configure_train(1, arrays(0.0), ConfigRecord(), grid)
    voters, proposers = strategy._open.voters, strategy._open.proposers
    strategy.aggregate_train(1, grid.send_and_receive(asked))
    strategy._recorder.flush()
    (line,) = strategy._recorder.lines
    stacks = {
        m.metadata.dst_node_id: m.content["candidates"]["stacked"].numpy()[1:, 0]
        for m in grid.sent
        if m.metadata.message_type == "evaluate"
    }
    orders = {tuple(stacks[voter].round(3)) for voter in voters}
    assert len(orders) > 1
    assert len({tuple(sorted(order)) for order in orders}) == 1
    # The loss is the distance to 1 and all nodes go half of the way: the furthest goals do best.
    best = sorted(range(5), key=lambda place: -goals[proposers[place]])[:3]
    assert line["selection"] == sorted(best)
    assert all(ballot == sorted(best) for ballot in line["ballots"])


@settings(max_examples=25)
@given(
    st.lists(
        st.one_of(
            st.integers(),
            st.floats(),
            st.lists(st.integers(-3, 9), max_size=8),
            st.lists(st.floats(), max_size=4),
        ),
        min_size=2,
        max_size=2,
    )
)
def test_random_ballots_of_two_voters_never_stop_a_round(approved):
    current, metrics, _ = play([sends(names) for names in approved], min_ballots=3)
    assert np.allclose(weights(current), 0.5)
    assert metrics["holdout-ballots-accepted"] + metrics["holdout-ballots-rejected"] == 5
