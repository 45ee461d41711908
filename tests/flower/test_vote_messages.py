"""The vote on the wire: calls and ballots arrive as they were sent; nothing else is a ballot."""

import math
from fractions import Fraction

import numpy as np
import pytest
from flwr.app import Array, ConfigRecord, Message, MetricRecord, RecordDict
from tests.flower.flower_grid import arrays

from holdout.flower.arrays import Layout
from holdout.flower.vote_messages import VoteCall, read_ballot
from holdout.voting import Gate, Terms

LAYOUT = Layout.of(arrays())


def vote_call(**changes) -> VoteCall:
    call = {
        "layout": LAYOUT,
        "stacked": np.arange(45, dtype=np.float32).reshape(3, 15),
        "terms": Terms.paper(Fraction(1, 3)),
        "round": 4,
        "holdout_samples": None,
        "others": {},
        "config": ConfigRecord({"mine": "yes"}),
        "array_key": "arrays",
        "config_key": "config",
    }
    return VoteCall(**{**call, **changes})


def sent(call: VoteCall) -> Message:
    return Message(call.content(), dst_node_id=5, message_type="evaluate.vote")


def test_a_vote_call_arrives_as_it_was_sent():
    call = vote_call(
        terms=Terms(Fraction(33, 100)),
        holdout_samples=50,
        others={"steps": Array(np.array(7))},
    )
    read = VoteCall.read(sent(call))
    assert np.array_equal(read.stacked, call.stacked)
    assert read.layout == call.layout
    assert (read.terms.f, read.terms.gate) == (call.terms.f, Gate.MEDIAN)
    assert (read.round, read.holdout_samples) == (4, 50)
    assert read.others["steps"].numpy() == 7
    assert read.config["mine"] == "yes"


def test_a_vote_call_is_one_array_whatever_the_number_of_candidates():
    content = vote_call().content()
    assert [list(record) for record in content.array_records.values()] == [["stacked"]]


def test_the_paper_s_vote_has_no_gate():
    read = VoteCall.read(sent(vote_call()))
    assert read.terms.gate is None
    assert read.ballot([0.0, 9.0, 8.0])["ballot"]["approved"] == [0, 1]


def test_a_ballot_is_read_as_it_was_sent():
    call = vote_call(terms=Terms(Fraction(1, 3)))
    for approved in ((), (0, 3, 7)):
        losses = [0.1 if place in approved else math.inf for place in range(8)]
        assert read_ballot(call.ballot([1.0, *losses]), range(8)) == list(approved)


def test_a_ballot_is_read_in_the_order_in_which_its_voter_saw_the_proposals():
    content = RecordDict({"ballot": MetricRecord({"approved": [2, 0, 3, -1]})})
    assert read_ballot(content, [7, 4, 5]) == [5, 7, -1, -1]


@pytest.mark.parametrize(
    "content",
    [
        RecordDict(),
        RecordDict({"ballot": arrays()}),
        RecordDict({"ballot": ConfigRecord({"approved": [1]})}),
        RecordDict({"ballot": MetricRecord({"selected": [1]})}),
        RecordDict({"votes": MetricRecord({"approved": [1]})}),
    ],
    ids=["nothing", "arrays", "a config", "another key", "another name"],
)
def test_what_is_no_vote_reply_is_malformed(content):
    assert read_ballot(content, range(8)) is None
