"""Messages of every kind, decodable, by nobody in particular."""

from hypothesis import strategies as st

from holdout.agreement.messages import (
    BallotMessage,
    Behind,
    Bundle,
    Entry,
    Envelope,
    Evidence,
    Finished,
    GetBlocks,
    GetUpdates,
    HeadAnswer,
    HeadQuery,
    Kind,
    Lead,
    Update,
    Vote,
    VoteSignature,
    VoteStep,
    ballot_part,
    base_step,
    head_part,
    lead_part,
    update_part,
    vote_part,
)

digests = st.binary(min_size=32, max_size=32)
values = digests.filter(any)
"""Digests that name a block."""
signatures = st.binary(min_size=64, max_size=64)
proofs = st.binary(max_size=80)
u32s = st.integers(0, 2**32 - 1)
u64s = st.integers(0, 2**64 - 1)
steps = st.integers(VoteStep.SOFT, 255)


@st.composite
def _signed(draw, message, kind, part, *fields):
    drawn = [draw(field) for field in fields]
    envelope = Envelope(kind, part(*drawn), draw(signatures), draw(proofs))
    return message(*drawn, envelope)


def ascending(items, key):
    return st.lists(items, unique_by=key, max_size=6).map(lambda some: tuple(sorted(some, key=key)))


entries = ascending(st.builds(Entry, u32s, digests), lambda entry: entry.proposer)
marks = ascending(st.builds(VoteSignature, u32s, signatures, proofs), lambda mark: mark.worker)


@st.composite
def leads(draw):
    period = draw(u32s)
    original = draw(st.integers(0, period))
    fixed = [st.just(period), u32s, st.just(original), values]
    return draw(_signed(Lead, Kind.LEAD, lead_part, digests, u64s, *fixed))


@st.composite
def _stepped(draw):
    """A step, and a value that such votes may have."""
    step = draw(steps)
    return step, bytes(32) if base_step(step) is VoteStep.DOWN else draw(values)


@st.composite
def votes(draw):
    step, value = draw(_stepped())
    fields = [digests, u64s, u32s, st.just(step), u32s, st.just(value)]
    return draw(_signed(Vote, Kind.VOTE, vote_part, *fields))


@st.composite
def bundles(draw):
    step, value = draw(_stepped())
    return Bundle(draw(digests), draw(u64s), draw(u32s), step, value, draw(marks))


updates = _signed(Update, Kind.UPDATE, update_part, digests, u64s, u32s, digests, digests, u64s)
ballots = _signed(
    BallotMessage, Kind.BALLOT, ballot_part, digests, u64s, u32s, digests, entries.filter(len)
)
head_answers = _signed(HeadAnswer, Kind.HEAD_ANSWER, head_part, digests, digests, u32s, u64s)
envelopes = st.one_of(updates, ballots, leads(), votes()).map(lambda message: message.envelope)
evidence = (
    st.tuples(envelopes, envelopes)
    .filter(lambda pair: pair[0].signed != pair[1].signed)
    .map(lambda pair: Evidence.of(*pair))
)
by_kind = {
    Kind.UPDATE: updates,
    Kind.BALLOT: ballots,
    Kind.LEAD: leads(),
    Kind.VOTE: votes(),
    Kind.BUNDLE: bundles(),
    Kind.EVIDENCE: evidence,
    Kind.FINISHED: st.builds(Finished, st.binary(max_size=200), bundles()),
    Kind.GET_BLOCKS: st.builds(GetBlocks, digests, u64s, u64s),
    Kind.GET_UPDATES: st.builds(
        GetUpdates, digests, u64s, st.lists(digests, max_size=4).map(tuple)
    ),
    Kind.BEHIND: st.builds(Behind, digests, u64s, u32s),
    Kind.HEAD_QUERY: st.builds(HeadQuery, digests, digests),
    Kind.HEAD_ANSWER: head_answers,
}
messages = st.one_of(*by_kind.values())


@st.composite
def mutated(draw, encodings):
    """Valid bytes after a few changes of the kinds that find mistakes in decoders."""
    data = bytearray(draw(encodings))
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.integers(0, len(data)))
        match draw(st.sampled_from(["flip", "count", "insert", "remove", "cut", "repeat"])):
            case "flip" if place < len(data):
                data[place] ^= 1 << draw(st.integers(0, 7))
            case "count":
                data[place : place + 4] = draw(st.sampled_from([0, 1, 2**31, 2**32 - 1])).to_bytes(
                    4, "big"
                )
            case "insert":
                data[place:place] = draw(st.binary(max_size=8))
            case "remove":
                del data[place : place + draw(st.integers(1, 40))]
            case "cut":
                del data[place:]
            case "repeat":
                data[place:place] = data[place : place + draw(st.integers(1, 80))]
    return bytes(data)
