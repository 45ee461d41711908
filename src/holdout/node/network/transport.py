"""Bytes between members: a small `Transport`, and Zenoh behind it.

Every pair of members has one connection, TLS with certificates on both sides. Keys are
`holdout/NETWORK/SENDER/...`, and each member refuses what comes under a prefix that is not its
sender's, by the name in the certificate of the connection:

    .../3/all            member 3 to everybody
    .../3/to/5           member 3 to member 5
    .../3/blob/5/...     asked by member 5, answered by member 3

Zenoh calls back on its own threads. They do as little as possible here: count, check the size and
the sender's allowance, queue (`inbox`), and wake the one task that handles messages.
"""

import asyncio
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import zenoh

from holdout.agreement.events import Urgency
from holdout.errors import UserError
from holdout.node.network.inbox import Allowance, Dropped, Inbox, Meter
from holdout.node.network.peer_work import PeerWork
from holdout.node.network.refusals import FILTER

CHUNK_BYTES = 1 << 20
"""A blob travels in pieces of this size: a lost connection loses one, and nobody allocates more."""

SERVING_THREADS_MAX = 4
WAITING_MAX = 64
"""Questions of one member that may wait for an answer: several times what it asks at once."""
RETRY_MILLISECONDS = (100, 1_000)

_PRIORITIES = {
    Urgency.VOTE: zenoh.Priority.REAL_TIME,
    Urgency.BALLOT: zenoh.Priority.INTERACTIVE_HIGH,
    Urgency.UPDATE: zenoh.Priority.INTERACTIVE_LOW,
    Urgency.ANSWER: zenoh.Priority.DATA_HIGH,
}


@dataclass(frozen=True, slots=True)
class Peer:
    """Another member, as far as connections go."""

    index: int
    name: str
    """In its certificate."""
    address: str
    """HOST:PORT."""


class Transport(Protocol):
    """What the node needs of a network."""

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
        """The members that a connection exists to, ascending."""
        ...

    def close(self) -> None:
        """End all connections."""
        ...


Serve = Callable[[int, str], bytes | None]
"""(asker, question) -> answer; called on any thread."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """This member's own end."""

    index: int
    name: str
    listen: str
    """HOST:PORT."""
    certificate: Path
    key: Path
    authority: Path


class ZenohTransport:
    """Members as Zenoh peers.

    Attributes:
        dropped: What was dropped unread, by (sender, reason).
        sent: Bytes handed to Zenoh: messages, times receivers, and blobs.
        received: Bytes that came in.
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
        """Connect; raises UserError if the own address cannot be used.

        Args:
            network: The network's identity, in hexadecimal.
            endpoint: This member.
            members: All others.
            inbox: Where messages go.
            allowance: What each of them may send.
            serve: Answers questions for blobs.
            wake: Called on a foreign thread when something has come.
        """
        self._prefix = f"holdout/{network[:16]}"
        self._me = endpoint.index
        self._names = {member.name: member.index for member in members}
        self._indices = {str(member.index): member.index for member in members}
        self._inbox = inbox
        self._meter = Meter(allowance, time.monotonic)
        # A voter asks for every gradient, for some bodies and a model, and again after a failure.
        self._askers = Meter(
            Allowance(1 << 62, 64 * (len(members) + 8), 32.0 * (len(members) + 8), 1 << 62, 0.0),
            time.monotonic,
        )
        self._serve = serve
        self._wake = wake
        self._answering: PeerWork[tuple[zenoh.Query, str]] = PeerWork(
            self._answer, name="serve", threads_max=SERVING_THREADS_MAX, waiting_max=WAITING_MAX
        )
        # Zenoh makes whoever asks wait, for many seconds, if the other end does not read. So it is
        # done beside the loop, by as many threads as there may be such members.
        self._asking: PeerWork[Callable[[], None]] = PeerWork(
            lambda _, ask: ask(), name="ask", threads_max=len(members), waiting_max=WAITING_MAX
        )
        self.dropped: Counter[tuple[int, Dropped]] = Counter()
        self.sent: Counter[str] = Counter()
        self.received: Counter[str] = Counter()
        _begin_log()
        try:
            self._session = zenoh.open(_config(self._prefix, endpoint, members))
        except zenoh.ZError as error:
            self._answering.close()
            self._asking.close()
            raise UserError(_explain(error, endpoint)) from None
        self._listen()

    def _listen(self) -> None:
        # Directly on Zenoh's thread: the other way there is a queue without bound in between.
        on_sample = zenoh.handlers.Callback(self._on_sample, indirect=False)
        on_query = zenoh.handlers.Callback(self._on_query, indirect=False)
        self._session.declare_subscriber(f"{self._prefix}/*/all", on_sample)
        self._session.declare_subscriber(f"{self._prefix}/*/to/{self._me}", on_sample)
        self._session.declare_queryable(f"{self._prefix}/{self._me}/blob/**", on_query)

    # -- sending --------------------------------------------------------------------------------

    def broadcast(self, data: bytes, urgency: Urgency) -> None:
        """Send to all other members; may be lost."""
        self.publish(self._me, "all", data, urgency)
        self.sent["message"] += len(data) * len(self._names)

    def send(self, peer: int, data: bytes, urgency: Urgency) -> None:
        """Send to one member; may be lost."""
        self.publish(self._me, f"to/{peer}", data, urgency)
        self.sent["message"] += len(data)

    def publish(self, sender: int, where: str, data: bytes, urgency: Urgency) -> None:
        """Send under a member's prefix; others let nothing in but what stands under one's own."""
        # Dropped when a connection is stuck: one frozen member must not delay votes to the rest.
        # Whatever matters is sent again, by the core or by gossip.
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
        answer = _Answer()
        ask = partial(self._ask, peer, question, seconds_max, answer)
        if not self._asking.put(peer, ask):
            return None
        return await answer.wait(seconds_max + 1)

    def _ask(self, peer: int, question: str, seconds_max: float, answer: "_Answer") -> None:
        """Ask, on a thread; the answer is told on another."""
        if answer.is_over:  # Nobody waits for it any more.
            return

        def on_reply(reply: zenoh.Reply) -> None:
            ok = reply.ok
            if ok is not None:
                data = ok.payload.to_bytes()
                self.received["blob"] += len(data)
                answer.tell(data)

        try:
            # Not dropped when a connection is stuck, or the answer would be too: Zenoh treats it
            # as it treats the question, and a large one has to wait for the connection anyway.
            self._session.get(
                f"{self._prefix}/{peer}/blob/{self._me}/{question}",
                zenoh.handlers.Callback(on_reply, drop=lambda: answer.tell(None), indirect=False),
                timeout=seconds_max,
                target=zenoh.QueryTarget.ALL,
                consolidation=zenoh.ConsolidationMode.NONE,
                congestion_control=zenoh.CongestionControl.BLOCK,
                priority=zenoh.Priority.DATA_LOW,
                allowed_destination=zenoh.Locality.REMOTE,
            )
        except zenoh.ZError:
            answer.tell(None)  # Closed meanwhile.

    # -- receiving, on Zenoh's threads -----------------------------------------------------------

    def _on_sample(self, sample: zenoh.Sample) -> None:
        sender = int(str(sample.key_expr).split("/", 3)[2])
        payload = sample.payload
        size = len(payload)
        self.received["message"] += size
        fault = self._meter.fault(sender, size)
        if fault is None:
            fault = self._inbox.put(sender, payload.to_bytes())
        if fault is None:
            self._wake()
        else:
            self.dropped[sender, fault] += 1

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
        if asker == self._me:  # Nobody asks itself; the rules let no such key in.
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
                self.sent["blob"] += len(answer)
        except zenoh.ZError:
            pass  # The asker is gone.
        finally:
            query.drop()  # type: ignore[no-untyped-call]

    # -- state ----------------------------------------------------------------------------------

    def peers(self) -> tuple[int, ...]:
        """The members that a connection exists to, ascending."""
        found = {self._names.get(name) for name in self.links().values()}
        return tuple(sorted(index for index in found if index is not None))

    def links(self) -> dict[str, str]:
        """The names in the certificates of all connections, by Zenoh's number of the other end."""
        return {
            str(link.zid): link.auth_identifier
            for link in self._session.info.links()
            if link.auth_identifier is not None
        }

    def close(self) -> None:
        """End all connections."""
        self._inbox.close()
        self._asking.close()
        for query, _ in self._answering.close():
            query.drop()  # type: ignore[no-untyped-call]
        # It waits for members that do not read, then gives up: they end with this process as well.
        with suppress(zenoh.ZError):
            self._session.close()  # type: ignore[no-untyped-call]


class _Answer:
    """What comes on one of Zenoh's threads, for the task that waits for it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._found: asyncio.Future[bytes | None] = self._loop.create_future()

    @property
    def is_over(self) -> bool:
        """Whether it has come, or is not waited for any more."""
        return self._found.done()

    def tell(self, data: bytes | None) -> None:
        """It has come, or will not come; the first to be told counts. Called on any thread."""
        with suppress(RuntimeError):  # The loop has ended meanwhile.
            self._loop.call_soon_threadsafe(self._settle, data)

    def _settle(self, data: bytes | None) -> None:
        if not self._found.done():
            self._found.set_result(data)

    async def wait(self, seconds_max: float) -> bytes | None:
        """What has come; None: nothing, or not in time."""
        try:
            return await asyncio.wait_for(self._found, seconds_max)
        except TimeoutError:
            return None


def _begin_log() -> None:
    """Have Zenoh tell what it refuses: the node reads and counts it."""
    # A filter in the environment, meant for something else, must not switch that off.
    other = os.environ.pop("RUST_LOG", None)
    zenoh.init_log_from_env_or(FILTER)
    if other is not None:
        os.environ["RUST_LOG"] = other


def _explain(error: Exception, endpoint: Endpoint) -> str:
    text = str(error)
    if "in use" in text:
        return f"the address {endpoint.listen} is in use; does this node, or another, run already?"
    # Zenoh adds where in its source the error arose, which helps nobody here.
    return f"cannot listen on {endpoint.listen}: {text.split(' at /', maxsplit=1)[0]}"


def _config(prefix: str, endpoint: Endpoint, members: Sequence[Peer]) -> zenoh.Config:
    # One connection a pair: the one with the higher number opens it, and keeps trying.
    connect = [m.address for m in members if m.index < endpoint.index]
    tls = {
        "root_ca_certificate": str(endpoint.authority),
        "enable_mtls": True,
        "listen_private_key": str(endpoint.key),
        "listen_certificate": str(endpoint.certificate),
        "connect_private_key": str(endpoint.key),
        "connect_certificate": str(endpoint.certificate),
        # Whoever answers is known by the name in its certificate, wherever it lives.
        "verify_name_on_connect": False,
        "close_link_on_expiration": True,
    }
    first, last = RETRY_MILLISECONDS
    settings: dict[str, Any] = {
        "mode": "peer",
        "listen": {
            "endpoints": [f"tls/{endpoint.listen}"],
            "timeout_ms": 0,
            "exit_on_failure": True,
        },
        "connect": {
            "endpoints": [f"tls/{address}" for address in connect],
            "timeout_ms": -1,
            "exit_on_failure": False,
            "retry": {
                "period_init_ms": first,
                "period_max_ms": last,
                "period_increase_factor": 1.5,
            },
        },
        # Members are known: nobody is looked for, nobody introduces anybody.
        "scouting": {"multicast": {"enabled": False}, "gossip": {"enabled": False}, "delay": 0},
        "transport": {
            "unicast": {"max_sessions": 2 * len(members) + 8, "max_links": 1},
            "link": {
                "protocols": ["tls"],
                "tls": tls,
                "rx": {"max_message_size": 2 * CHUNK_BYTES},
            },
            "shared_memory": {"enabled": False},
        },
        "adminspace": {"enabled": False},
        "qos": {"network": [_as_blobs(prefix)]},
        "access_control": _access(prefix, members),
    }
    return zenoh.Config.from_json5(json.dumps(settings))


def _as_blobs(prefix: str) -> dict[str, Any]:
    """Treat every question as one for a blob, whatever its asker says.

    Zenoh sends an answer as urgently as the question was, and whoever sends with that urgency waits
    for it: one that asks among the votes and does not read would stop this node's own votes.
    """
    return {
        "messages": ["query"],
        "key_exprs": [f"{prefix}/**"],
        "flows": ["ingress"],
        "overwrite": {"priority": "data_low", "congestion_control": "block", "express": False},
    }


def _access(prefix: str, members: Sequence[Peer]) -> dict[str, Any]:
    """Whatever comes in must stand under its sender's own prefix; nothing else is let in."""
    rules: list[dict[str, Any]] = [
        {
            "id": "out",
            "permission": "allow",
            "flows": ["egress"],
            "messages": ["put", "query", "reply", "declare_subscriber", "declare_queryable"],
            "key_exprs": [f"{prefix}/**"],
        }
    ]
    policies: list[dict[str, Any]] = [{"rules": ["out"], "subjects": ["anybody"]}]
    for member in members:
        own = f"{prefix}/{member.index}"
        allowed = {
            "put": [f"{own}/all", f"{own}/to/*"],
            "reply": [f"{own}/blob/**"],
            "declare_queryable": [f"{own}/blob/**"],
            "declare_subscriber": [f"{prefix}/*/all", f"{prefix}/*/to/{member.index}"],
            "query": [f"{prefix}/*/blob/{member.index}/**"],
        }
        rules += [
            {
                "id": f"{message} {member.index}",
                "permission": "allow",
                "flows": ["ingress"],
                "messages": [message],
                "key_exprs": keys,
            }
            for message, keys in allowed.items()
        ]
        policies.append(
            {
                "rules": [f"{message} {member.index}" for message in allowed],
                "subjects": [str(member.index)],
            }
        )
    subjects: list[dict[str, Any]] = [
        {"id": str(member.index), "cert_common_names": [member.name]} for member in members
    ]
    return {
        "enabled": True,
        "default_permission": "deny",
        "rules": rules,
        "subjects": [*subjects, {"id": "anybody"}],
        "policies": policies,
    }
