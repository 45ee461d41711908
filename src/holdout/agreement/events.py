"""The two vocabularies of the state machine: what happens to a player, and what it asks for.

A driver calls `player.handle(event, now)` and carries the actions out in order. `Persist` is a
barrier: nothing behind it may leave before it is durable. Learning is an action too: its result
comes back as an event, whenever it is ready. Large things (gradients, block bodies, models) stay
with the driver; the player knows their digests.
"""

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import TypeAlias

from holdout.agreement.messages import Evidence, Finished
from holdout.ids import Digest

# ---------------------------------------------------------------------------------------- timers


class TimerKind(IntEnum):
    """The moments of a round."""

    PROPOSALS_END = 1
    """T_P: the own ballot is about what is in hand now."""
    BALLOTS_END = 2
    """T_B: a leader must include the ballots held now."""
    LEAD = 3
    """T_A: leaders assemble."""
    FILTER = 4
    """The soft vote."""
    DEADLINE = 5
    """Recovery begins."""
    RETRY = 6
    """Recovery again; in mode `self`, a new attempt."""


@dataclass(frozen=True, slots=True)
class Timer:
    """A deadline; ignored when the round or the period has changed."""

    kind: TimerKind
    round: int
    period: int


# -------------------------------------------------------------------------------------- learning


@dataclass(frozen=True, slots=True)
class Propose:
    """Compute a gradient on this model; keep its canonical bytes as a payload."""

    round: int
    model: Digest


@dataclass(frozen=True, slots=True)
class Candidate:
    """An update that a voter may approve."""

    proposer: int
    update_id: Digest
    payload: Digest


@dataclass(frozen=True, slots=True)
class Judge:
    """Try the candidates on the own holdout data and say which are approved."""

    round: int
    model: Digest
    candidates: tuple[Candidate, ...]
    radius: float
    """Updates longer than this are scaled down before they are scored; 0: none is."""
    rate: float
    approve_max: int


@dataclass(frozen=True, slots=True)
class Combine:
    """Compute the next model and radius from the union-consensus (`aggregate.combine`)."""

    model: Digest
    payloads: tuple[Digest, ...]
    """Ascending by proposer."""
    radius: float
    rate: float


Job: TypeAlias = Propose | Judge | Combine


# ----------------------------------------------------------------------------------------- blobs


class BlobKind(IntEnum):
    """How a blob's digest is checked (`aggregate.blob_matches`)."""

    PAYLOAD = 1
    BLOCK = 2
    MODEL = 3


# ---------------------------------------------------------------------------------------- events


@dataclass(frozen=True, slots=True)
class Start:
    """The driver runs; the nonce is fresh and random (only a worker without memory uses it)."""

    nonce: bytes


@dataclass(frozen=True, slots=True)
class Received:
    """Bytes from a peer, whoever that is."""

    peer: int
    data: bytes


@dataclass(frozen=True, slots=True)
class TimerFired:
    """A timer that was set is due."""

    timer: Timer


@dataclass(frozen=True, slots=True)
class Proposed:
    """The own gradient is there, kept under this digest."""

    job: Propose
    payload: Digest


@dataclass(frozen=True, slots=True)
class Judged:
    """The own ballot: places in the job's list of candidates."""

    job: Judge
    approved: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Combined:
    """The next model is computed and kept; `model` is None where it would not be finite."""

    job: Combine
    model: Digest | None
    radius: float


@dataclass(frozen=True, slots=True)
class JobFailed:
    """A gradient or a ballot could not be computed: the worker misses its role, no more."""

    job: Job


@dataclass(frozen=True, slots=True)
class PayloadReady:
    """A payload is in hand, with the right hash; whether it is a valid gradient, too."""

    digest: Digest
    valid: bool


@dataclass(frozen=True, slots=True)
class BlockReady:
    """A block with this header digest is in hand."""

    digest: Digest
    data: bytes


@dataclass(frozen=True, slots=True)
class ModelReady:
    """A model is in hand."""

    digest: Digest


Event: TypeAlias = (
    Start
    | Received
    | TimerFired
    | Proposed
    | Judged
    | Combined
    | JobFailed
    | PayloadReady
    | BlockReady
    | ModelReady
)


# --------------------------------------------------------------------------------------- actions


class Urgency(IntEnum):
    """What goes first when a link is busy."""

    VOTE = 0
    """Votes, bundles, certificates, leads."""
    BALLOT = 1
    UPDATE = 2
    ANSWER = 3
    """Help for others that are behind."""


@dataclass(frozen=True, slots=True)
class Send:
    """Send to one peer."""

    peer: int
    data: bytes
    urgency: Urgency = Urgency.ANSWER


@dataclass(frozen=True, slots=True)
class Broadcast:
    """Send to all other workers."""

    data: bytes
    urgency: Urgency


@dataclass(frozen=True, slots=True)
class Relay:
    """Pass on to some other workers: the first valid copy of a small message, once."""

    data: bytes
    urgency: Urgency
    without: int
    """The peer that it came from."""


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Fire this timer at this time."""

    timer: Timer
    at: int


@dataclass(frozen=True, slots=True)
class Compute:
    """Do this job; answer with Proposed, Judged, Combined or JobFailed."""

    job: Job


@dataclass(frozen=True, slots=True)
class Want:
    """Fetch a blob, from these workers first; check its digest; answer when it is in hand.

    If it is in hand already, answer at once. A driver tries until it is told to `Forget`.
    """

    kind: BlobKind
    digest: Digest
    hints: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Keep:
    """Keep a block of the own making, to give to whoever asks for it."""

    digest: Digest
    data: bytes


@dataclass(frozen=True, slots=True)
class Forget:
    """Nobody needs blobs of rounds before this one any more (beyond what is retained)."""

    before_round: int


@dataclass(frozen=True, slots=True)
class Persist:
    """Make this durable before anything behind it happens."""

    safety: bytes
    """The encoded `Safety`; replaces the one before."""
    blobs: tuple[tuple[BlobKind, Digest], ...] = ()
    """Blobs in hand that must survive a crash from now on."""
    finished: tuple[Finished, ...] = ()
    """Rounds that are decided, in order; appended to those before."""


@dataclass(frozen=True, slots=True)
class Commit:
    """A round is decided, durable, and its model is in hand.

    Told at most once. The write in front of it is what decides: after a crash between the two the
    player goes on with the next round and does not tell again. Which rounds are decided, and the
    newest model, a driver reads from its own store (the `finished` rounds of `Persist`), never from
    the commits that it was told.
    """

    round: int
    value: Digest
    model: Digest
    stepped: bool
    selected: tuple[int, ...] | None
    """The proposers in the union-consensus; None where only the certificate was seen."""


@dataclass(frozen=True, slots=True)
class SendBlocks:
    """Send the finished rounds of this range, from the store, to one peer."""

    peer: int
    first: int
    last: int


class MessageFault(StrEnum):
    """Why something that came from a peer was dropped."""

    MALFORMED = "malformed"
    WRONG_CHAIN = "wrong-chain"
    UNKNOWN_WORKER = "unknown-worker"
    WRONG_SIGNATURE = "wrong-signature"
    NOT_DRAWN = "not-drawn"
    WRONG_MODEL = "wrong-model"
    STALE = "stale"
    """Of a round or period that is over."""
    TOO_EARLY = "too-early"
    """Of a round or period that cannot be judged yet, or too many of them."""
    DUPLICATE = "duplicate"
    SURPLUS = "surplus"
    """More versions in one slot than evidence needs."""
    NO_QUORUM = "no-quorum"
    """A bundle or certificate with too few valid votes."""
    INVALID_BLOCK = "invalid-block"
    NO_EVIDENCE = "no-evidence"
    UNASKED = "unasked"


@dataclass(frozen=True, slots=True)
class Reject:
    """A peer sent something bad: counted, nothing else changes."""

    peer: int
    fault: MessageFault


@dataclass(frozen=True, slots=True)
class ReportEvidence:
    """A worker signed two different things for one slot."""

    worker: int
    round: int
    evidence: Evidence


@dataclass(frozen=True, slots=True)
class Alarm:
    """Something that should not happen: the operator must know."""

    why: str


@dataclass(frozen=True, slots=True)
class Halt:
    """This worker votes no more: more workers lie than the network can stand."""

    why: str


@dataclass(frozen=True, slots=True)
class Entered:
    """A round or a period begins: for whoever watches."""

    round: int
    period: int


Action: TypeAlias = (
    Send
    | Broadcast
    | Relay
    | SetTimer
    | Compute
    | Want
    | Keep
    | Forget
    | Persist
    | Commit
    | SendBlocks
    | Reject
    | ReportEvidence
    | Alarm
    | Halt
    | Entered
)
