from dataclasses import replace

import pytest
from hypothesis import given
from tests.agreement import strategies
from tests.agreement.rig import Network, other

from holdout.agreement.codec import digest
from holdout.agreement.messages import (
    ENVELOPE_BYTES_MAX,
    HEADER_BYTES_MAX,
    WORKERS_MAX,
    Entry,
    Evidence,
    VoteStep,
    ballot_part,
    base_step,
    head_part,
    lead_part,
    update_part,
    vote_part,
)


@pytest.mark.parametrize(
    ("step", "kind"),
    [
        (1, VoteStep.SOFT),
        (2, VoteStep.CERT),
        (3, VoteStep.LATE),
        (4, VoteStep.REDO),
        (5, VoteStep.DOWN),
        (6, VoteStep.LATE),
        (7, VoteStep.REDO),
        (8, VoteStep.DOWN),
        (255, VoteStep.LATE),
    ],
)
def test_later_attempts_repeat_the_three_recovery_steps(step, kind):
    assert base_step(step) is kind


def test_an_update_is_named_by_what_was_signed_and_by_nothing_else():
    net = Network()
    update = net.update(1)
    assert net.update(1).update_id == update.update_id
    again = replace(update, envelope=replace(update.envelope, signature=bytes(64), proof=b"p"))
    assert again.update_id == update.update_id
    changes = [
        net.update(2, [2.0] * 6),
        net.update(1, [0.0] * 6),
        net.update(1, model=other(net.tip.model)),
        net.update(1, size=0),
        net.update(1, round_number=2),
    ]
    ids = [update.update_id, *(change.update_id for change in changes)]
    assert len(set(ids)) == len(ids)


@given(strategies.envelopes, strategies.envelopes)
def test_evidence_is_the_same_whichever_message_came_first(one, two):
    if one.signed != two.signed:
        assert Evidence.of(one, two) == Evidence.of(two, one)
        assert Evidence.of(one, two).first.signed < Evidence.of(one, two).second.signed


def test_nothing_that_is_signed_can_be_taken_for_something_else():
    chain, value = digest("chain"), digest("value")
    parts = [
        update_part(chain, 1, 2, value, value, 3),
        ballot_part(chain, 1, 2, value, (Entry(3, value),)),
        lead_part(chain, 1, 0, 2, 0, value),
        vote_part(chain, 1, 0, VoteStep.SOFT, 2, value),
        head_part(chain, value, 2, 1),
    ]
    # The tag stands in front, with its length: no signed part is the beginning of another.
    for one in parts:
        assert [two for two in parts if two.startswith(one[:8])] == [one]


def test_the_limits_hold_the_largest_honest_messages():
    chain = digest("chain")
    entries = tuple(Entry(worker, chain) for worker in range(WORKERS_MAX))
    assert len(ballot_part(chain, 1, 2, chain, entries)) <= ENVELOPE_BYTES_MAX
    net = Network(real=True)
    assert len(net.finish(net.draft([], [])).header.encode()) <= HEADER_BYTES_MAX
