"""The two vocabularies of the state machine: what happens to a player, and what it asks for.

A driver calls `player.handle(event, now)` and carries the actions out in order. `Persist` is a
barrier: no action after it may take effect before it is durable. Learning is an action too; its
result comes back as an event, whenever it is ready. Large things (gradients, block bodies, models)
stay with the driver; the player knows their digests.
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
    """T_P: a voter ranks the updates that it has now."""
    BALLOTS_END = 2
    """T_B: a leader must include the ballots that are held now."""
    LEAD = 3
    """T_A: leaders assemble."""
    FILTER = 4
    """The soft vote is due."""
    DEADLINE = 5
    """Recovery begins."""
    RETRY = 6
    """Recovery is repeated; in mode `self` this is a new attempt."""
    LEADS_END = 7
    """All but B have led a while ago: the soft vote waits for nobody else."""


@dataclass(frozen=True, slots=True)
class Timer:
    """A timer of a period; ignored once the round or the period has changed."""

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
    """Score the candidates on the worker's holdout data and tell which are approved."""

    round: int
    model: Digest
    candidates: tuple[Candidate, ...]
    radius: float
    """Updates longer than this are scaled down before they are scored; 0: no bound yet."""
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
    """The driver has started; the nonce is fresh and random, for a worker that lost its memory."""

    nonce: bytes


@dataclass(frozen=True, slots=True)
class Received:
    """Bytes that came from a peer."""

    peer: int
    data: bytes


@dataclass(frozen=True, slots=True)
class TimerFired:
    """A timer is due."""

    timer: Timer


@dataclass(frozen=True, slots=True)
class Proposed:
    """This worker's gradient is computed, and kept under this digest."""

    job: Propose
    payload: Digest


@dataclass(frozen=True, slots=True)
class Judged:
    """This worker's ballot: the approved places in the job's list of candidates."""

    job: Judge
    approved: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Combined:
    """The next model is computed and kept; `model` is None if it would not be finite."""

    job: Combine
    model: Digest | None
    radius: float


@dataclass(frozen=True, slots=True)
class JobFailed:
    """A gradient or a ballot could not be computed; the worker only misses its role."""

    job: Job


@dataclass(frozen=True, slots=True)
class PayloadReady:
    """A payload with the right hash is in hand; `valid` says whether it is a valid gradient."""

    digest: Digest
    valid: bool


@dataclass(frozen=True, slots=True)
class PayloadFailed:
    """A wanted payload could not be had from the first peer that was asked; others may have it."""

    digest: Digest


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
    | PayloadFailed
    | BlockReady
    | ModelReady
)


# --------------------------------------------------------------------------------------- actions


class Urgency(IntEnum):
    """What is sent first when a link is busy: the lowest number."""

    VOTE = 0
    """Votes, bundles, certificates and leads."""
    BALLOT = 1
    """Ballots and evidence."""
    UPDATE = 2
    """Update headers."""
    ANSWER = 3
    """Questions about the chain, and answers."""


@dataclass(frozen=True, slots=True)
class Send:
    """Send this to one peer."""

    peer: int
    data: bytes
    urgency: Urgency = Urgency.ANSWER


@dataclass(frozen=True, slots=True)
class Broadcast:
    """Send this to all other workers."""

    data: bytes
    urgency: Urgency


@dataclass(frozen=True, slots=True)
class Relay:
    """Pass the first valid copy of a small message on to some other workers."""

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
    """Fetch a blob, asking these workers first; check its digest; report when it is in hand.

    If it is in hand already, report at once. A driver tries until it is told to `Forget`.
    """

    kind: BlobKind
    digest: Digest
    hints: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Keep:
    """Keep a block that this worker made, for whoever asks for it."""

    digest: Digest
    data: bytes


@dataclass(frozen=True, slots=True)
class Forget:
    """Blobs of rounds before this one are not needed any more; a driver may keep some longer."""

    before_round: int


@dataclass(frozen=True, slots=True)
class Persist:
    """Make this durable before any later action takes effect."""

    safety: bytes
    """The encoded `Safety`, which replaces the one before."""
    blobs: tuple[tuple[BlobKind, Digest], ...] = ()
    """Blobs in hand that must survive a crash from now on."""
    finished: tuple[Finished, ...] = ()
    """Newly decided rounds, in order, to be appended to those before."""


@dataclass(frozen=True, slots=True)
class Commit:
    """A notice, given at most once, that a round is decided and durable and its model in hand.

    The `Persist` in front of it is what decides: after a crash between the two the player goes on
    with the next round and does not repeat the notice. So a driver learns which rounds are decided,
    and the newest model, from its store (the `finished` rounds of `Persist`), never from notices.
    """

    round: int
    value: Digest
    model: Digest
    stepped: bool
    selected: tuple[int, ...] | None
    """The proposers in the union-consensus; None if only the certificate was seen."""


@dataclass(frozen=True, slots=True)
class SendBlocks:
    """Send the finished rounds of this range, from the store, to one peer."""

    peer: int
    first: int
    last: int


class MessageFault(StrEnum):
    """Why a message from a peer was dropped."""

    MALFORMED = "malformed"
    WRONG_CHAIN = "wrong-chain"
    UNKNOWN_WORKER = "unknown-worker"
    WRONG_SIGNATURE = "wrong-signature"
    NOT_DRAWN = "not-drawn"
    WRONG_MODEL = "wrong-model"
    STALE = "stale"
    """It belongs to a round or period that is over."""
    TOO_EARLY = "too-early"
    """It belongs to a round or period that cannot be judged yet."""
    DUPLICATE = "duplicate"
    SURPLUS = "surplus"
    """More than is needed: a third version in one slot, or more than a sender's share."""
    NO_QUORUM = "no-quorum"
    """It is a bundle or certificate with too few valid votes."""
    INVALID_BLOCK = "invalid-block"
    NO_EVIDENCE = "no-evidence"
    UNASKED = "unasked"


@dataclass(frozen=True, slots=True)
class Reject:
    """A message from a peer was dropped; the driver counts it, and nothing else changes."""

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
    """Something happened that should not; the operator must know."""

    why: str


@dataclass(frozen=True, slots=True)
class Halt:
    """This worker stops voting: more workers lie than the network tolerates."""

    why: str


@dataclass(frozen=True, slots=True)
class Entered:
    """A notice that a round or a period begins."""

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
