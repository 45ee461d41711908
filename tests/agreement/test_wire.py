from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.agreement import strategies
from tests.agreement.rig import Network
from tests.agreement.strategies import by_kind, mutated

from holdout.agreement import codec, messages, wire
from holdout.agreement.codec import BOTTOM, blob, items, text, u8, u32, u64
from holdout.agreement.messages import (
    ENVELOPE_BYTES_MAX,
    HEADER_BYTES_MAX,
    WORKERS_MAX,
    Entry,
    Envelope,
    Evidence,
    Kind,
    Lead,
    Vote,
    VoteSignature,
    VoteStep,
)
from holdout.errors import InvalidMessage

BLOCK = codec.digest("block")


def refuses(data, match=None):
    with pytest.raises(InvalidMessage, match=match):
        wire.decode(data)


def bytes_decode_or_are_refused(data):
    try:
        message = wire.decode(data).claim
    except InvalidMessage:
        return None
    assert wire.encode(message) == data
    return message


# -------------------------------------------------------------------------------- any bytes at all


@pytest.mark.parametrize("kind", Kind, ids=lambda kind: kind.name.lower())
def test_every_message_is_read_as_it_was_written(kind):
    @given(by_kind[kind])
    @settings(max_examples=50)
    def check(message):
        data = wire.encode(message)
        assert data[0] == kind
        assert wire.decode(data).claim == message

    check()


@given(st.binary(max_size=300))
@example(b"")
def test_any_bytes_hold_one_message_with_this_encoding_or_none(data):
    bytes_decode_or_are_refused(data)


@given(mutated(strategies.messages.map(wire.encode)))
@settings(max_examples=500)
def test_damaged_messages_hold_one_message_with_this_encoding_or_none(data):
    bytes_decode_or_are_refused(data)


@given(strategies.messages, st.data())
def test_a_message_that_is_cut_off_or_goes_on_is_refused(message, data):
    encoded = wire.encode(message)
    refuses(encoded[: data.draw(st.integers(0, len(encoded) - 1))])
    refuses(encoded + data.draw(st.binary(min_size=1, max_size=4)))


@given(strategies.messages, strategies.messages)
def test_different_messages_have_different_bytes(one, other):
    assert (wire.encode(one) == wire.encode(other)) == (one == other)


# --------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize("code", [0, 13, 255])
def test_there_are_no_other_kinds(code):
    refuses(u8(code) + blob(BLOCK), "no message of kind")


@pytest.mark.parametrize("kind", [Kind.UPDATE, Kind.BALLOT, Kind.LEAD, Kind.VOTE])
def test_a_signed_part_is_of_the_kind_that_the_message_says(kind):
    net = Network()
    update = net.update(1)
    signed = {
        Kind.UPDATE: update,
        Kind.BALLOT: net.ballot(1, [update]),
        Kind.LEAD: net.lead(1),
        Kind.VOTE: net.vote(1, VoteStep.SOFT),
    }
    for other, message in signed.items():
        data = replace(message.envelope, kind=kind).encode()
        if other is kind:
            assert wire.decode(data).claim == message
        else:
            refuses(data, "different kind")


def ballot_of(*entries):
    part = messages.ballot_part(BLOCK, 1, 2, BLOCK, tuple(entries))
    return Envelope(Kind.BALLOT, part, bytes(64)).encode()


def test_a_ballot_is_sorted_names_each_proposer_once_and_is_not_empty():
    one, two = Entry(1, BLOCK), Entry(2, BLOCK)
    wire.decode(ballot_of(one, two))
    for entries in ([], [two, one], [one, one], [one, Entry(1, codec.digest("second"))]):
        refuses(ballot_of(*entries), "ascending")


def test_a_bundle_is_sorted_and_names_each_worker_once():
    one, two = VoteSignature(1, bytes(64), b""), VoteSignature(2, bytes(64), b"")
    bundle = messages.Bundle(BLOCK, 1, 0, VoteStep.CERT, BLOCK, (one, two))
    wire.decode(bundle.encode())
    for marks in [(two, one), (one, one)]:
        refuses(replace(bundle, marks=marks).encode(), "ascending")


def vote_of(step, value):
    part = messages.vote_part(BLOCK, 1, 0, step, 2, value)
    return Envelope(Kind.VOTE, part, bytes(64)).encode()


@pytest.mark.parametrize("step", [*VoteStep, 6, 7, 8, 254, 255])
def test_votes_to_go_down_name_no_block_and_all_others_name_one(step):
    down = messages.base_step(step) is VoteStep.DOWN
    good, bad = (BOTTOM, BLOCK) if down else (BLOCK, BOTTOM)
    assert isinstance(wire.decode(vote_of(step, good)).claim, Vote)
    refuses(vote_of(step, bad), "name no block")
    bundle = messages.Bundle(BLOCK, 1, 0, step, bad, ())
    refuses(bundle.encode(), "name no block")


def test_there_is_no_step_before_the_soft_vote():
    refuses(vote_of(0, BLOCK), "no step 0")


def lead_of(period, original, value=BLOCK):
    part = messages.lead_part(BLOCK, 1, period, 2, original, value)
    return Envelope(Kind.LEAD, part, bytes(64)).encode()


def test_a_lead_names_a_block_of_its_own_or_an_earlier_period():
    assert isinstance(wire.decode(lead_of(3, 3)).claim, Lead)
    assert isinstance(wire.decode(lead_of(3, 0)).claim, Lead)
    refuses(lead_of(3, 4), "earlier period")
    refuses(lead_of(3, 3, BOTTOM), "name a block")


def test_evidence_holds_two_different_messages_in_order():
    net = Network()
    one, two = net.update(1).envelope, net.update(1, [0.0] * 6).envelope
    evidence = Evidence.of(one, two)
    assert wire.decode(evidence.encode()).claim == evidence == Evidence.of(two, one)
    refuses(Evidence(evidence.second, evidence.first).encode(), "in ascending order")
    refuses(Evidence(one, one).encode(), "two different")
    again = replace(one, signature=bytes(64))
    refuses(Evidence(one, again).encode(), "two different")


def test_only_what_is_signed_once_a_slot_stands_in_evidence():
    answer = Network().head_answer(1).envelope
    refuses(Evidence(answer, answer).encode(), "cannot be part of another")


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (u8(Kind.UPDATE) + u32(ENVELOPE_BYTES_MAX + 1), "at most"),
        (u8(Kind.VOTE) + blob(text("vote")) + blob(bytes(63)) + blob(b""), "64 bytes"),
        (u8(Kind.VOTE) + blob(text("vote")) + blob(bytes(65)) + blob(b""), "64 bytes"),
        (u8(Kind.VOTE) + blob(text("vote")) + blob(bytes(64)) + blob(bytes(81)), "80 bytes"),
        (u8(Kind.FINISHED) + blob(bytes(HEADER_BYTES_MAX + 1)), "at most"),
        (u8(Kind.FINISHED) + blob(b"") + u32(2**32 - 1), "at most"),
        (u8(Kind.GET_UPDATES) + blob(BLOCK) + u64(1) + u32(WORKERS_MAX + 1), "items"),
        (u8(Kind.HEAD_QUERY) + blob(BLOCK) + blob(bytes(31)), "32 bytes"),
        (u8(Kind.GET_BLOCKS) + blob(bytes(31)) + u64(1) + u64(2), "32 bytes"),
        (
            u8(Kind.BUNDLE) + blob(BLOCK) + u64(1) + u32(0) + u8(1) + blob(BLOCK) + u32(2**31),
            "items",
        ),
    ],
)
def test_every_field_has_a_limit_that_is_seen_before_anything_is_read(data, match):
    refuses(data, match)


def test_a_ballot_with_too_many_names_is_refused_before_they_are_read():
    part = text("ballot") + blob(BLOCK) + u64(1) + u32(2) + blob(BLOCK) + u32(WORKERS_MAX + 1)
    refuses(Envelope(Kind.BALLOT, part, bytes(64)).encode(), "items")


def test_a_certificate_inside_a_finished_round_must_end_where_it_ends():
    bundle = messages.Bundle(BLOCK, 1, 0, VoteStep.CERT, BLOCK, ())
    good = u8(Kind.FINISHED) + blob(b"header") + blob(bundle.encode_bare())
    assert wire.decode(good).claim == messages.Finished(b"header", bundle)
    refuses(u8(Kind.FINISHED) + blob(b"header") + blob(bundle.encode_bare() + b"\0"), "goes on")


def test_a_signed_part_must_end_where_it_ends():
    part = messages.vote_part(BLOCK, 1, 0, VoteStep.SOFT, 2, BLOCK) + b"\0"
    refuses(Envelope(Kind.VOTE, part, bytes(64)).encode(), "goes on")


def test_the_bytes_of_each_kind_do_not_change_by_accident():
    net = Network()
    net.chain = BLOCK  # Whatever the constants of a network are.
    update = net.update(1)
    sent = [
        update,
        net.ballot(2, [update]),
        net.lead(3),
        net.vote(4, VoteStep.CERT),
        net.bundle([1, 2], VoteStep.DOWN, BOTTOM),
        Evidence.of(update.envelope, net.update(1, [0.0] * 6).envelope),
        messages.Finished(b"header", net.bundle([1], VoteStep.CERT)),
        messages.GetBlocks(net.chain, 1, 2),
        messages.GetUpdates(net.chain, 1, (update.update_id,)),
        messages.Behind(net.chain, 1, 2),
        messages.HeadQuery(net.chain, bytes(32)),
        net.head_answer(5),
    ]
    assert [wire.encode(message)[0] for message in sent] == list(Kind)
    found = codec.digest("all", items(map(wire.encode, sent)))
    # Other bytes are another protocol: raise PROTOCOL_VERSION with them.
    assert found.hex() == "3c537fe184309888324d234b074e5f6a706865c7b21cc19ac6dc50bf64f764d0"
