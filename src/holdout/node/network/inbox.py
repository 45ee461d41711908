"""What waits to be handled: bounded, fair between senders, the urgent first; and how much may come.

Everything here happens before any signature is looked at. A sender that talks too much loses its
own messages, nobody else's: each has its own allowance and its own places in the queue.

What is within a sender's allowance and finds its places taken means that this node is slow (a disk
that takes its time). Then the thread that reads is held back for a moment, and with it the sender,
by way of its connection. Never more than one thread at a time, since others read everybody else's
votes; and not for what its sender repeats anyway.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from holdout.agreement.events import Urgency
from holdout.agreement.messages import Kind
from holdout.agreement.params import Params

QUEUE_MAX = 512
"""Messages of one sender and urgency that may wait."""
HELD_SECONDS_MAX = 0.2
"""A reader is held back so long for one message at most."""

URGENCIES = {
    Kind.VOTE: Urgency.VOTE,
    Kind.BUNDLE: Urgency.VOTE,
    Kind.LEAD: Urgency.VOTE,
    Kind.FINISHED: Urgency.VOTE,
    Kind.BALLOT: Urgency.BALLOT,
    Kind.EVIDENCE: Urgency.BALLOT,
    Kind.UPDATE: Urgency.UPDATE,
}


class Dropped(StrEnum):
    """Why something was dropped before it was looked at."""

    OVERSIZE = "oversize"
    TOO_MANY = "too-many"
    """Above the sender's allowance of messages or bytes."""
    QUEUE_FULL = "queue-full"
    REPEATED = "repeated"
    """An exact copy of what was accepted before."""
    UNKNOWN_SENDER = "unknown-sender"
    MALFORMED = "malformed"
    """A question for a blob that names none."""


def urgency_of(data: bytes) -> Urgency:
    """By the kind that the message claims; a lie only changes its own place."""
    return URGENCIES.get(Kind(data[0]), Urgency.ANSWER) if is_agreement(data) else Urgency.ANSWER


def is_agreement(data: bytes) -> bool:
    """Whether this is a message for the agreement core, not one of the gossip's own."""
    return bool(data) and data[0] in _KINDS


_KINDS = frozenset(int(kind) for kind in Kind)


@dataclass(frozen=True, slots=True)
class Allowance:
    """What one sender may send: so much at once, so much a second."""

    message_bytes_max: int
    messages_burst: int
    messages_rate: float
    bytes_burst: int
    bytes_rate: float

    @classmethod
    def of(cls, params: Params) -> "Allowance":
        """Several times what an honest worker ever sends, even while it helps others to catch up.

        In a round it sends about a dozen messages of its own and passes on a few of each other
        worker's; a worker that is behind is sent fifty certificates at once.
        """
        n = params.workers
        # The largest: evidence, which holds two ballots; a certificate with n signatures is less.
        message = 4_096 + 512 * n
        burst = 1_000 + 40 * n
        return cls(
            message, burst, burst / 2, 64 * message + 512 * burst, 32 * message + 256 * burst
        )


@dataclass(slots=True)
class _Account:
    messages: float
    size: float
    updated: float


class Meter:
    """Counts what each sender sends against its allowance."""

    def __init__(self, allowance: Allowance, clock: Callable[[], float]) -> None:
        self._allowance = allowance
        self._clock = clock
        self._accounts: dict[int, _Account] = {}

    def fault(self, sender: int, size: int) -> Dropped | None:
        """Why this message must be dropped, or None: it is counted and may pass."""
        rule = self._allowance
        if size > rule.message_bytes_max:
            return Dropped.OVERSIZE
        now = self._clock()
        account = self._accounts.get(sender)
        if account is None:
            account = self._accounts[sender] = _Account(rule.messages_burst, rule.bytes_burst, now)
        passed = now - account.updated
        account.updated = now
        account.messages = min(rule.messages_burst, account.messages + passed * rule.messages_rate)
        account.size = min(rule.bytes_burst, account.size + passed * rule.bytes_rate)
        if account.messages < 1 or account.size < size:
            return Dropped.TOO_MANY
        account.messages -= 1
        account.size -= size
        return None


@dataclass(slots=True)
class _Lane:
    """The messages of one urgency: a queue for each sender, served in turn."""

    queues: dict[int, deque[bytes]] = field(default_factory=dict)
    turns: deque[int] = field(default_factory=deque)


class Inbox:
    """A bounded queue between the transport's threads and the one task that handles messages."""

    def __init__(
        self,
        senders: Sequence[int],
        queue_max: int = QUEUE_MAX,
        held_seconds_max: float = HELD_SECONDS_MAX,
    ) -> None:
        self._queue_max = queue_max
        self._held_seconds_max = held_seconds_max
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._holding = False
        self.held = 0
        """How often a reader was held back."""
        self._lanes = tuple(_Lane({sender: deque() for sender in senders}) for _ in sorted(Urgency))
        self._count = 0

    def put(self, sender: int, data: bytes) -> Dropped | None:
        """Queue a message; why not, if it was dropped. May hold the caller back for a moment."""
        urgency = urgency_of(data)
        lane = self._lanes[urgency]
        queue = lane.queues.get(sender)
        if queue is None:
            return Dropped.UNKNOWN_SENDER
        with self._lock:
            if len(queue) >= self._queue_max and not self._hold(queue, urgency):
                return Dropped.QUEUE_FULL
            if not queue:
                lane.turns.append(sender)
            queue.append(data)
            self._count += 1
        return None

    def _hold(self, queue: deque[bytes], urgency: Urgency) -> bool:
        """Wait for a place; False: there is none, or waiting is not right here."""
        # Questions, lists and heartbeats come again by themselves.
        if urgency is Urgency.ANSWER or self._holding or not self._held_seconds_max:
            return False
        self._holding = True
        self.held += 1
        try:
            self._room.wait_for(
                lambda: len(queue) < self._queue_max or not self._held_seconds_max,
                self._held_seconds_max,
            )
        finally:
            self._holding = False
        return len(queue) < self._queue_max

    def close(self) -> None:
        """Hold nobody back any more: nothing will be taken out."""
        with self._lock:
            self._held_seconds_max = 0.0
            self._room.notify_all()

    def get(self) -> tuple[int, bytes] | None:
        """The next message: the most urgent, of the sender that has waited longest."""
        with self._lock:
            for lane in self._lanes:
                if not lane.turns:
                    continue
                sender = lane.turns.popleft()
                queue = lane.queues[sender]
                data = queue.popleft()
                if queue:
                    lane.turns.append(sender)
                self._count -= 1
                if self._holding:
                    self._room.notify()
                return sender, data
        return None

    def __len__(self) -> int:
        return self._count
