"""Bytes between members: the `Transport` that a node needs, and Zenoh behind it.

Every pair of members has one connection, TLS with certificates on both sides. Keys are
`holdout/NETWORK/SENDER/...`, and a member refuses what does not come under the prefix of its
sender, who is known by the connection's certificate (`zenoh_config`):

    .../3/all            member 3 to everybody
    .../3/to/5           member 3 to member 5
    .../3/blob/5/...     asked by member 5, answered by member 3

Zenoh calls back on its own threads, which do as little as possible here: count, check the size and
the sender's allowance, queue (`queues`), and wake the one task that handles messages.
"""

import asyncio
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from functools import partial
from typing import Protocol

import zenoh

from holdout.agreement.events import Urgency
from holdout.errors import UserError
from holdout.node.network.queues import (
    BLOB,
    Allowance,
    Dropped,
    Flood,
    Inbox,
    Meter,
    PeerWork,
    kind_name,
)
from holdout.node.network.refusals import FILTER
from holdout.node.network.zenoh_config import Endpoint, Peer, zenoh_config

SERVING_THREADS_MAX = 4
WAITING_MAX = 64
"""How many questions of one member may wait: several times what an honest one asks at once."""

_PRIORITIES = {
    Urgency.VOTE: zenoh.Priority.REAL_TIME,
    Urgency.BALLOT: zenoh.Priority.INTERACTIVE_HIGH,
    Urgency.UPDATE: zenoh.Priority.INTERACTIVE_LOW,
    Urgency.ANSWER: zenoh.Priority.DATA_HIGH,
}


class Transport(Protocol):
    """What a node needs from a network."""

    def broadcast(self, data: bytes, urgency: Urgency) -> None:
        """Send to all other members; may be lost."""
        ...

    def send(self, peer: int, data: bytes, urgency: Urgency) -> None:
        """Send to one member; may be lost."""
        ...

    async def request(self, peer: int, question: str, seconds_max: float) -> bytes | None:
        """What the member answers; None if it does not, or not in time."""
        ...

    def peers(self) -> tuple[int, ...]:
        """The members to which there is a connection, ascending."""
        ...


Serve = Callable[[int, str], bytes | None]
"""(asker, question) -> answer; called on any thread."""
Answer = Future[bytes | None]
"""A member's answer, which comes on one of Zenoh's threads; cancelled if nobody waits any more."""


class ZenohTransport:
    """Members as Zenoh peers.

    Attributes:
        dropped: What was dropped unread, by (sender, reason).
        sent: Bytes handed to Zenoh, by `kind_name`: messages, times receivers, and blobs.
        received: Bytes that came in, by `kind_name`; what was dropped unread is "other".
    """

    def __init__(
        self,
        network: str,
        endpoint: Endpoint,
        members: Sequence[Peer],
        *,
        inbox: Inbox,
        allowance: Allowance,
        serve: Serve,
        wake: Callable[[], None],
    ) -> None:
        """Connect; raises UserError if this member's address cannot be used.

        Args:
            network: The network's identity, in hexadecimal.
            endpoint: This member.
            members: All other members.
            inbox: Where messages go.
            allowance: How much each of the others may send.
            serve: Answers questions for blobs.
            wake: Called on one of Zenoh's threads when a message has come.
        """
        self._prefix = f"holdout/{network[:16]}"
        self._me = endpoint.index
        self._names = {member.name: member.index for member in members}
        self._indices = {str(member.index): member.index for member in members}
        self._inbox = inbox
        self._meter = Meter(allowance, time.monotonic)
        # A voter asks for all gradients, some bodies and a model, and again after a failure.
        self._askers = Meter(
            Allowance(1 << 62, 64 * (len(members) + 8), 32.0 * (len(members) + 8), 1 << 62, 0.0),
            time.monotonic,
        )
        self._serve = serve
        self._wake = wake
        self._answering: PeerWork[tuple[zenoh.Query, str]] = PeerWork(
            self._answer, name="serve", threads_max=SERVING_THREADS_MAX, waiting_max=WAITING_MAX
        )
        # Zenoh makes whoever asks a member that does not read wait for many seconds. So asking
        # happens outside the loop, with as many threads as there are members.
        self._asking: PeerWork[Callable[[], None]] = PeerWork(
            lambda _, ask: ask(), name="ask", threads_max=len(members), waiting_max=WAITING_MAX
        )
        self._subscribers: dict[int, list[zenoh.Subscriber[None]]] = {}
        self._muted: set[int] = set()
        self._closed = threading.Event()
        self.dropped: Counter[tuple[int, Dropped]] = Counter()
        self.sent: Counter[str] = Counter()
        self.received: Counter[str] = Counter()
        _begin_log()
        try:
            self._session = zenoh.open(zenoh_config(self._prefix, endpoint, members))
        except zenoh.ZError as error:
            self._answering.close()
            self._asking.close()
            raise UserError(_explain(error, endpoint)) from None
        self._listen()

    def _listen(self) -> None:
        for sender in self._indices.values():
            self._subscribers[sender] = self._subscribe(sender)
        on_query = zenoh.handlers.Callback(self._on_query, indirect=False)
        self._session.declare_queryable(f"{self._prefix}/{self._me}/blob/**", on_query)

    def _subscribe(self, sender: int) -> list[zenoh.Subscriber[None]]:
        """Take in what this member sends."""
        # Directly on Zenoh's thread: otherwise there is an unbounded queue in between.
        on_sample = zenoh.handlers.Callback(partial(self._on_sample, sender), indirect=False)
        keys = (f"{self._prefix}/{sender}/all", f"{self._prefix}/{sender}/to/{self._me}")
        return [self._session.declare_subscriber(key, on_sample) for key in keys]

    # -- a member that floods ---------------------------------------------------------------------

    def charge(self, sender: int, messages: int) -> None:
        """Take messages off a member's allowance."""
        self._meter.charge(sender, messages)

    def floods(self) -> dict[int, Flood]:
        """The members that were caught flooding."""
        return self._meter.floods()

    def barred(self) -> frozenset[int]:
        """The members from which nothing is taken in now, since they flood."""
        return frozenset(w for w, flood in self.floods().items() if flood.seconds_left > 0)

    def _mute(self, sender: int) -> None:
        """Have Zenoh drop what a flooding member sends, until it gets its allowance back.

        That costs a fraction of a call into Python for each message. It runs on its own thread:
        Zenoh's must not wait.
        """
        try:
            for subscriber in self._subscribers.pop(sender):
                subscriber.undeclare()  # type: ignore[no-untyped-call]
            self._closed.wait(self._meter.barred_for(sender))
            if not self._closed.is_set():
                self._subscribers[sender] = self._subscribe(sender)
        except zenoh.ZError:
            pass  # Closed meanwhile.
        finally:
            self._muted.discard(sender)

    # -- sending --------------------------------------------------------------------------------

    def broadcast(self, data: bytes, urgency: Urgency) -> None:
        """Send to all other members; may be lost."""
        self.publish(self._me, "all", data, urgency)
        self.sent[kind_name(data)] += len(data) * len(self._names)

    def send(self, peer: int, data: bytes, urgency: Urgency) -> None:
        """Send to one member; may be lost."""
        self.publish(self._me, f"to/{peer}", data, urgency)
        self.sent[kind_name(data)] += len(data)

    def publish(self, sender: int, where: str, data: bytes, urgency: Urgency) -> None:
        """Send under a member's prefix; the others refuse it unless the member is this one."""
        # Dropped when a connection is stuck: one frozen member must not delay votes to the rest.
        # The core or gossip sends again whatever matters.
        self._session.put(
            f"{self._prefix}/{sender}/{where}",
            data,
            congestion_control=zenoh.CongestionControl.DROP,
            priority=_PRIORITIES[urgency],
            express=urgency is Urgency.VOTE,
            allowed_destination=zenoh.Locality.REMOTE,
        )

    async def request(self, peer: int, question: str, seconds_max: float) -> bytes | None:
        """What the member answers; None if it does not, or not in time."""
        answer = Answer()
        ask = partial(self._ask, peer, question, seconds_max, answer)
        if not self._asking.put(peer, ask):
            return None
        try:
            return await asyncio.wait_for(asyncio.wrap_future(answer), seconds_max + 1)
        except TimeoutError:
            return None

    def _ask(self, peer: int, question: str, seconds_max: float, answer: Answer) -> None:
        """Ask, on a thread of `_asking`; the answer comes on one of Zenoh's."""
        if answer.done():  # Nobody waits for it any more.
            return

        def on_reply(reply: zenoh.Reply) -> None:
            ok = reply.ok
            if ok is not None:
                data = ok.payload.to_bytes()
                self.received[BLOB] += len(data)
                _settle(answer, data)

        try:
            # Not dropped when a connection is stuck: Zenoh treats the answer like the question, and
            # a large answer has to wait for the connection anyway.
            self._session.get(
                f"{self._prefix}/{peer}/blob/{self._me}/{question}",
                zenoh.handlers.Callback(
                    on_reply, drop=lambda: _settle(answer, None), indirect=False
                ),
                timeout=seconds_max,
                target=zenoh.QueryTarget.ALL,
                consolidation=zenoh.ConsolidationMode.NONE,
                congestion_control=zenoh.CongestionControl.BLOCK,
                priority=zenoh.Priority.DATA_LOW,
                allowed_destination=zenoh.Locality.REMOTE,
            )
        except zenoh.ZError:
            _settle(answer, None)  # Closed meanwhile.

    # -- receiving, on Zenoh's threads -----------------------------------------------------------

    def _on_sample(self, sender: int, sample: zenoh.Sample) -> None:
        payload = sample.payload
        size = len(payload)
        fault = self._meter.fault(sender, size)
        data = b"" if fault is not None else payload.to_bytes()
        self.received[kind_name(data)] += size
        if fault is None:
            # A sender that exceeds its allowance fills its own places: nobody is held back for it.
            may_hold = self._meter.keeps_to_its_allowance(sender)
            fault = self._inbox.put(sender, data, may_hold=may_hold)
        if fault is None:
            self._wake()
            return
        self.dropped[sender, fault] += 1
        if fault is Dropped.FLOODING and sender not in self._muted:
            self._muted.add(sender)
            threading.Thread(target=self._mute, args=(sender,), name="mute", daemon=True).start()

    def _on_query(self, query: zenoh.Query) -> None:
        # `.../blob/ASKER/QUESTION`; the rules let `.../blob/ASKER` in as well.
        parts = str(query.key_expr).split("/", 5)
        asked_by, question = (*parts[4:], "", "")[:2]
        asker = self._indices.get(asked_by, self._me)
        fault = self._question_fault(asker, question)
        if fault is None and not self._answering.put(asker, (query, question)):
            fault = Dropped.QUEUE_FULL
        if fault is not None:
            self.dropped[asker, fault] += 1
            query.drop()  # type: ignore[no-untyped-call]

    def _question_fault(self, asker: int, question: str) -> Dropped | None:
        if asker == self._me:  # No member asks itself, and the access rules let no such key in.
            return Dropped.UNKNOWN_SENDER
        if not question:
            return Dropped.MALFORMED
        return self._askers.fault(asker, 0)

    def _answer(self, asker: int, item: tuple[zenoh.Query, str]) -> None:
        query, question = item
        try:
            answer = self._serve(asker, question)
            if answer is not None:
                query.reply(query.key_expr, answer)
                self.sent[BLOB] += len(answer)
        except zenoh.ZError:
            pass  # The asker is gone.
        finally:
            query.drop()  # type: ignore[no-untyped-call]

    # -- state ----------------------------------------------------------------------------------

    def peers(self) -> tuple[int, ...]:
        """The members to which there is a connection, ascending."""
        found = {self._names.get(name) for name in self.links().values()}
        return tuple(sorted(index for index in found if index is not None))

    def links(self) -> dict[str, str]:
        """The name in each connection's certificate, by Zenoh's id of the other end."""
        return {
            str(link.zid): link.auth_identifier
            for link in self._session.info.links()
            if link.auth_identifier is not None
        }

    def close(self) -> None:
        """End all connections."""
        self._closed.set()
        self._inbox.close()
        self._asking.close()
        for query, _ in self._answering.close():
            query.drop()  # type: ignore[no-untyped-call]
        # Zenoh waits for members that do not read, then gives up; the process's end closes them.
        with suppress(zenoh.ZError):
            self._session.close()  # type: ignore[no-untyped-call]


def _settle(answer: Answer, data: bytes | None) -> None:
    """Give the answer, None if there will be none; the first call counts."""
    with suppress(InvalidStateError):
        answer.set_result(data)


def _begin_log() -> None:
    """Have Zenoh log what it refuses, for `Refusals` to count."""
    # A filter in the environment, meant for another program, must not switch that off.
    other = os.environ.pop("RUST_LOG", None)
    zenoh.init_log_from_env_or(FILTER)
    if other is not None:
        os.environ["RUST_LOG"] = other


def _explain(error: Exception, endpoint: Endpoint) -> str:
    text = str(error)
    if "in use" in text:
        return f"the address {endpoint.listen} is in use; does this or another node run already?"
    # Zenoh adds the place in its source, which helps nobody here.
    return f"cannot listen on {endpoint.listen}: {text.split(' at /', maxsplit=1)[0]}"
