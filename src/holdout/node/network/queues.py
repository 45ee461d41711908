"""Bounded queues that are fair between peers: messages that came in, and work to do for peers.

Messages wait in the `Inbox`, the most urgent first, before any signature is checked. Each sender
has its own allowance and its own places in the queue, so one that talks too much loses its own
messages and nobody else's.

A sender that is within its allowance and still finds its places taken shows that this node is slow,
perhaps because of its disk. Then the reading thread is held back for a moment, and with it, through
its connection, the sender. Never more than one thread at a time, since the others read everybody
else's votes; and never for messages that are repeated anyway.

Work for peers is done by a few threads (`PeerWork`). Answering a peer, or asking it, may have to
wait for its connection. No two threads work for the same peer at once, so one that does not read
blocks a single thread, until the transport gives up the connection. An honest peer asks for a few
blobs at a time; one that asks for more loses its own questions.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Generic, TypeVar

from holdout.agreement.events import Urgency
from holdout.agreement.messages import Kind
from holdout.agreement.params import Params

T = TypeVar("T")

QUEUE_MAX = 512
"""How many messages of one sender and urgency may wait."""
HELD_SECONDS_MAX = 0.2
"""How long a reading thread is held back for one message, at most."""

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
    """Why a message or a question was dropped unread."""

    OVERSIZE = "oversize"
    TOO_MANY = "too-many"
    """Above the sender's allowance of messages or bytes."""
    FLOODING = "flooding"
    """From a sender that has lost its allowance for a while, since it was caught flooding."""
    QUEUE_FULL = "queue-full"
    REPEATED = "repeated"
    """An exact copy of a message that was accepted before."""
    UNKNOWN_SENDER = "unknown-sender"
    FOREIGN = "foreign-version"
    """From a member whose version of the wire format is too far away."""
    MALFORMED = "malformed"
    """A question that names no blob."""


def urgency_of(data: bytes) -> Urgency:
    """A message's urgency, by the kind it claims: a lie only moves the message itself."""
    return URGENCIES.get(Kind(data[0]), Urgency.ANSWER) if is_agreement(data) else Urgency.ANSWER


def is_agreement(data: bytes) -> bool:
    """Whether this message is for the agreement core, not for gossip."""
    return bool(data) and data[0] in _KINDS


_KINDS = frozenset(int(kind) for kind in Kind)
_GOSSIP = {0x80: "have", 0x81: "pull", 0x82: "heartbeat", 0x83: "goodbye", 0x84: "version"}
BLOB, OTHER = "blob", "other"
KIND_NAMES = (
    *(kind.name.lower().replace("_", "-") for kind in Kind),
    *_GOSSIP.values(),
    BLOB,
    OTHER,
)
"""What traffic is counted by: the kinds of messages, blobs, and what is none of these."""


def kind_name(data: bytes) -> str:
    """What a message claims to be, as traffic is counted.

    Example:
        >>> kind_name(bytes([4])), kind_name(b""), kind_name(bytes([0x82]))
        ('vote', 'other', 'heartbeat')
    """
    if is_agreement(data):
        return KIND_NAMES[data[0] - 1]
    return _GOSSIP.get(data[0], OTHER) if data else OTHER


@dataclass(frozen=True, slots=True)
class Allowance:
    """How much one sender may send, at once and per second."""

    message_bytes_max: int
    messages_burst: int
    messages_rate: float
    bytes_burst: int
    bytes_rate: float

    @classmethod
    def of(cls, params: Params) -> "Allowance":
        """Several times what an honest worker ever sends, even while it helps others to catch up.

        In a round it sends about a dozen messages of its own and passes on a few of every other
        worker; to one that is behind it sends fifty certificates at once.
        """
        n = params.workers
        # The largest is evidence, with two ballots; a certificate with n signatures is smaller.
        message = 4_096 + 512 * n
        burst = 1_000 + 40 * n
        return cls(
            message, burst, burst / 2, 64 * message + 512 * burst, 32 * message + 256 * burst
        )


FLOOD_SECONDS = (4.0, 120.0)
"""How long a flooding sender loses its allowance: at first, then doubled each time, at most."""
HALVED_MAX = 5
"""How often the surplus that counts as a flood is halved, for one that was caught before."""
FORGIVEN_SECONDS = 600.0
"""After this long without a flood, a sender counts as one that was never caught."""


@dataclass(frozen=True, slots=True)
class Flood:
    """A sender that was caught flooding."""

    times: int
    seconds_left: float
    """How long until it gets its allowance back; 0: it has it."""


@dataclass(slots=True)
class _Account:
    messages: float
    size: float
    updated: float
    surplus: int = 0
    """What was dropped since the sender last kept to its allowance."""
    caught: int = 0
    barred_until: float = 0.0


class Meter:
    """Charges what each sender sends to its allowance.

    A sender whose surplus is as large as its whole allowance is flooding. It loses the allowance
    for a while, for longer each time; until then everything that it sends is dropped, and nothing
    is earned. Afterwards it is caught again the sooner: each time, half the surplus is enough.
    """

    def __init__(self, allowance: Allowance, clock: Callable[[], float]) -> None:
        self._allowance = allowance
        self._clock = clock
        self._accounts: dict[int, _Account] = {}

    def fault(self, sender: int, size: int) -> Dropped | None:
        """Why this message must be dropped; None: it may pass, and is charged to its sender."""
        rule = self._allowance
        account = self._account(sender)
        if account.updated < account.barred_until:
            return Dropped.FLOODING
        if size > rule.message_bytes_max:
            self._dropped(account)
            return Dropped.OVERSIZE
        if account.messages < 1 or account.size < size:
            self._dropped(account)
            return Dropped.TOO_MANY
        account.messages -= 1
        account.size -= size
        return None

    def charge(self, sender: int, messages: int) -> None:
        """Take messages off a sender's allowance, for one that cost more than its size tells."""
        account = self._account(sender)
        account.messages -= min(messages, self._allowance.messages_burst)

    def keeps_to_its_allowance(self, sender: int) -> bool:
        """Whether nothing of this sender was dropped lately."""
        return not self._account(sender).surplus

    def barred_for(self, sender: int) -> float:
        """For how many seconds everything from this sender will be dropped; 0: it is not."""
        account = self._account(sender)
        return max(0.0, account.barred_until - account.updated)

    def floods(self) -> dict[int, Flood]:
        """The senders that were caught flooding."""
        return {
            sender: Flood(account.caught, self.barred_for(sender))
            for sender, account in sorted(self._accounts.items())
            if account.caught
        }

    def _account(self, sender: int) -> _Account:
        """The sender's account, with what it has earned until now."""
        rule, now = self._allowance, self._clock()
        account = self._accounts.get(sender)
        if account is None:
            account = self._accounts[sender] = _Account(rule.messages_burst, rule.bytes_burst, now)
        passed = max(0.0, now - max(account.updated, account.barred_until))
        account.updated = now
        account.messages = min(rule.messages_burst, account.messages + passed * rule.messages_rate)
        account.size = min(rule.bytes_burst, account.size + passed * rule.bytes_rate)
        if account.messages == rule.messages_burst:
            account.surplus = 0
        return account

    def _dropped(self, account: _Account) -> None:
        account.surplus += 1
        if account.updated - account.barred_until > FORGIVEN_SECONDS:
            account.caught = 0
        if account.surplus < self._allowance.messages_burst >> min(account.caught, HALVED_MAX):
            return
        first, last = FLOOD_SECONDS
        account.barred_until = account.updated + min(first * 2.0**account.caught, last)
        account.caught += 1
        account.surplus = 0
        account.messages = account.size = 0.0


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
        """How often a reading thread was held back."""
        self._lanes = tuple(_Lane({sender: deque() for sender in senders}) for _ in sorted(Urgency))
        self._count = 0

    def put(self, sender: int, data: bytes, *, may_hold: bool = True) -> Dropped | None:
        """Queue a message; why it was dropped, if it was. With `may_hold`, the caller may wait."""
        urgency = urgency_of(data)
        lane = self._lanes[urgency]
        queue = lane.queues.get(sender)
        if queue is None:
            return Dropped.UNKNOWN_SENDER
        with self._lock:
            full = len(queue) >= self._queue_max
            if full and not (may_hold and self._hold(queue, urgency)):
                return Dropped.QUEUE_FULL
            if not queue:
                lane.turns.append(sender)
            queue.append(data)
            self._count += 1
        return None

    def _hold(self, queue: deque[bytes], urgency: Urgency) -> bool:
        """Wait for a place in this queue; False: there is none, or nobody may wait for it."""
        # Questions, lists and heartbeats are repeated anyway.
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
        """Hold no thread any more: nothing will be taken out."""
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


class PeerWork(Generic[T]):
    """Does the work for each peer, one after another."""

    def __init__(
        self, do: Callable[[int, T], None], *, name: str, threads_max: int, waiting_max: int
    ) -> None:
        """Start with one thread and no work.

        Args:
            do: Called with a peer and a piece of work, on any of the threads.
            name: The prefix of the threads' names.
            threads_max: How many threads there may be; a new one starts when all are busy.
            waiting_max: How many pieces of work may wait for one peer.
        """
        self._do = do
        self._name = name
        self._threads_max = threads_max
        self._waiting_max = waiting_max
        self._waiting: dict[int, deque[T]] = {}
        self._turns: deque[int] = deque()
        self._busy: set[int] = set()
        self._threads = 0
        self._idle = 0
        self._closed = False
        self.failed = 0
        """How often work raised: a mistake in this code, not the peer's."""
        self._changed = threading.Condition()
        self._begin_thread()

    def put(self, peer: int, work: T) -> bool:
        """Queue a piece of work; False: too much waits for this peer already."""
        with self._changed:
            waiting = self._waiting.setdefault(peer, deque())
            if self._closed or len(waiting) >= self._waiting_max:
                return False
            waiting.append(work)
            if len(waiting) == 1 and peer not in self._busy:
                self._turns.append(peer)
                if len(self._turns) > self._idle and self._threads < self._threads_max:
                    with suppress(RuntimeError):  # No new thread: the others will come to it.
                        self._begin_thread()
                self._changed.notify()
        return True

    def close(self) -> list[T]:
        """Take no more work, and give back what was waiting."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            left = [work for waiting in self._waiting.values() for work in waiting]
            self._waiting.clear()
            self._turns.clear()
        return left

    def _begin_thread(self) -> None:
        name = f"{self._name}-{self._threads}"
        threading.Thread(target=self._work, name=name, daemon=True).start()
        self._threads += 1

    def _work(self) -> None:
        while (taken := self._take()) is not None:
            peer, work = taken
            try:
                self._do(peer, work)
            except Exception:  # noqa: BLE001  # Whatever a peer asks, this thread stays.
                self.failed += 1
            finally:
                self._done(peer)

    def _take(self) -> tuple[int, T] | None:
        with self._changed:
            self._idle += 1
            self._changed.wait_for(lambda: self._closed or self._turns)
            self._idle -= 1
            if self._closed:
                return None
            peer = self._turns.popleft()
            self._busy.add(peer)
            return peer, self._waiting[peer].popleft()

    def _done(self, peer: int) -> None:
        with self._changed:
            self._busy.discard(peer)
            if self._waiting.get(peer):
                self._turns.append(peer)
                self._changed.notify()
