"""What a worker must not forget: the state behind everything it signed in the current round.

The state is small on purpose, so that it can be written before each message leaves: of others'
votes it holds only the bundles by which the worker entered its period. After a crash the worker
goes on from it. Without it the worker has lost its memory, and must not vote in any round in which
it may have voted before (`SigningMemory`).
"""

from dataclasses import dataclass, field
from enum import IntEnum

from holdout.agreement import messages as msg
from holdout.agreement.codec import (
    DIGEST_BYTES,
    Reader,
    blob,
    decode,
    digest,
    items,
    text,
    u8,
    u32,
    u64,
)
from holdout.agreement.headers import read_header
from holdout.agreement.params import Genesis
from holdout.agreement.wire import read_bundle
from holdout.errors import InvalidMessage
from holdout.ids import Digest

NEVER = (1 << 64) - 1
"""The value of `votes_from` while it is unknown where this worker may have voted."""

OwnSlot = tuple[msg.Kind, int, int]
"""(kind, period, step) of something this worker signed in the current round."""

BUNDLES_MAX = 16
OWN_MAX = 4_096
OWN_PERIODS_KEPT = 64
"""The worker's votes and leads of older periods are dropped: it never goes back to one."""
HELD_KEPT = 16
"""Headers kept of blocks that back the worker's votes. Should an older block be decided after all,
it can be fetched."""


class Phase(IntEnum):
    """How far a worker is in the current period; written to its store as this number."""

    FILTER = 0
    """Until the filter timer: it waits for leads, and then gives its SOFT vote."""
    DEADLINE = 1
    """Until the deadline: it waits for a certificate. CERT votes are given in this phase and the
    one before."""
    RECOVERY = 2
    """The period has taken too long: it gives LATE, REDO and DOWN votes only."""


@dataclass(slots=True)
class Safety:
    """The persistent state of a player."""

    round: int
    period: int = 0
    phase: Phase = Phase.FILTER
    votes_from: int = 0
    """The first round in which this worker may sign anything."""
    mine: dict[OwnSlot, bytes] = field(default_factory=dict)
    """Everything that this worker has signed in this round, as it was sent."""
    bundles: tuple[msg.Bundle, ...] = ()
    """The quorums by which this period was entered, and its soft quorum."""
    held: dict[Digest, bytes] = field(default_factory=dict)
    """Headers of the valid blocks that back a vote; the blocks and models are blobs on disk."""

    def forget_before(self, period: int) -> None:
        """Drop what was signed in periods long over, so that the state of a long round fits."""
        oldest = period - OWN_PERIODS_KEPT
        learning = (msg.Kind.UPDATE, msg.Kind.BALLOT)
        self.mine = {
            slot: data
            for slot, data in self.mine.items()
            if slot[0] in learning or slot[1] >= oldest
        }
        self.held = dict(list(self.held.items())[-HELD_KEPT:])

    def encode(self, chain: Digest) -> bytes:
        """The bytes to be written; they begin with a checksum."""
        body = b"".join(
            [
                text("safety"),
                blob(chain),
                u64(self.round),
                u32(self.period),
                u8(self.phase),
                u64(self.votes_from),
                items(
                    u8(kind) + u32(period) + u8(step) + blob(data)
                    for (kind, period, step), data in self.mine.items()
                ),
                items(blob(bundle.encode_bare()) for bundle in self.bundles),
                items(blob(header) for header in self.held.values()),
            ]
        )
        return digest("safety-sum", body) + body


def initial(genesis: Genesis) -> bytes:
    """The first state of a worker, written once, when it registers."""
    return Safety(round=1).encode(genesis.chain)


def read_safety(data: bytes, chain: Digest) -> Safety | None:
    """The state that was written last; None if it is damaged or belongs to another network."""
    # The checksum comes first: a damaged file must not be taken for a different state.
    total, body = data[:DIGEST_BYTES], data[DIGEST_BYTES:]
    if digest("safety-sum", body) != total:
        return None
    try:
        return decode(body, lambda reader: _read(reader, chain))
    except InvalidMessage:
        return None


def _read(reader: Reader, chain: Digest) -> Safety:
    if reader.blob(16) != b"safety" or reader.digest() != chain:
        raise InvalidMessage("the store belongs to another network")
    safety = Safety(reader.u64(), reader.u32(), _read_phase(reader), reader.u64())
    for kind, period, step, data in reader.items(
        lambda r: (r.u8(), r.u32(), r.u8(), r.blob(msg.ENVELOPE_BYTES_MAX + 1024)), OWN_MAX
    ):
        safety.mine[msg.Kind(kind), period, step] = data
    safety.bundles = reader.items(
        lambda r: decode(r.blob(msg.BUNDLE_BYTES_MAX), read_bundle), BUNDLES_MAX
    )
    for header in reader.items(lambda r: r.blob(msg.HEADER_BYTES_MAX), OWN_MAX):
        safety.held[read_header(header).digest] = header
    return safety


def _read_phase(reader: Reader) -> Phase:
    code = reader.u8()
    if code not in list(Phase):
        raise InvalidMessage(f"there is no phase {code}")
    return Phase(code)


@dataclass(slots=True)
class SigningMemory:
    """Whether this worker may sign; if it lost its memory, what it must hear before it may again.

    If it ever was in round r, then Q workers had committed round r - 2, and any quorum of answers
    includes an honest one of them. So it was in no round beyond head + 2, where head is the newest
    round that the answering workers can prove.
    """

    votes_from: int
    quorum: int
    recoverable: bool
    """False where committees are drawn: a quorum of answers need not include a signer of the newest
    certificate."""
    nonce: bytes = b""
    answers: dict[int, int] = field(default_factory=dict)
    """The newest finished round that each of the others has claimed."""

    @property
    def lost(self) -> bool:
        """Whether it is unknown where this worker may have voted."""
        return self.votes_from == NEVER

    def settle(self, finished: int) -> bool:
        """Set when votes begin, if the chain up to `finished` proves enough answers; True if so."""
        if not self.lost or not self.recoverable:
            return False
        proven = sum(claimed <= finished for claimed in self.answers.values())
        if proven < self.quorum:
            return False
        self.votes_from = finished + 3
        return True
