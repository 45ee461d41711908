"""Sending messages and reading replies, so that no node can hold up or break the others.

    exchange      messages -> the replies that come within the time
    PollingGrid   a Flower grid that sends and receives by `exchange`
    collate       replies -> at most one content for each node asked; everything else is a fault

Flower itself asks for all replies at once, every three seconds. Here each message has its own
thread, which asks for that one reply, often at first and then less and less often:

- a reply that cannot be decoded becomes an error reply of its node and leaves the others intact;
- a node that announces a reply and never uploads it blocks its own thread only (the threads are
  daemons, and end at the next answer after the deadline);
- a fast reply is there in a fraction of a second.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from queue import Empty, SimpleQueue
from typing import Any

from flwr.app import Error, Message, Metadata, RecordDict
from flwr.serverapp import Grid

LOG = logging.getLogger("flwr")

FIRST_PAUSE, PAUSE_GROWTH, LONGEST_PAUSE = 0.1, 1.05, 1.0
"""Seconds between two questions for the same reply: about 5 % of the time waited so far."""
PAUSE_PER_MESSAGE = 0.025
"""The more messages are open, the less often each is asked for, to spare the SuperLink."""

LOST_CODE, UNREADABLE_CODE = -1, -2
"""Codes of the error replies that are made here; Flower's codes are not negative."""
_UNAVAILABLE_CODES = (LOST_CODE, 3, 4, 5)
"""Ours, and Flower's codes for a message, a reply or a node that is unavailable."""
_SUPERLINK_NODE = 1
"""The sender of the replies that the SuperLink writes in place of a node that is gone."""
_DETAIL_MAX = 200

Again = Callable[[Message, Message], Message | None]
"""(what was asked, what came) -> what to ask instead, if anything."""


class ReplyFault(StrEnum):
    """Why a reply does not count, besides what the core finds wrong with proposals and ballots."""

    MISSING = "missing"
    """Nothing came within the time."""
    UNAVAILABLE = "unavailable"
    """The SuperLink says that the node, or its reply, is gone."""
    ERROR = "error"
    """The node's app failed."""
    NOT_DRAWN = "not-drawn"
    """It answers nothing that was asked, or comes from another node than the one asked."""
    SECOND = "second"
    """The node has answered already."""
    MALFORMED = "malformed"
    """Its records, or the names of its arrays, are not those of such a reply."""
    MISSHAPEN = "misshapen"
    WRONG_DTYPE = "wrong-dtype"
    NOT_FINITE = "not-finite"
    UNREADABLE = "unreadable"
    """Its bytes are not an array."""


@dataclass(frozen=True, slots=True)
class RejectedReply:
    """A reply that does not count."""

    node: int
    reason: str
    detail: str = ""


@dataclass(slots=True)
class Answers:
    """What came back from the nodes that were asked."""

    contents: dict[int, RecordDict] = field(default_factory=dict)
    """The content of each reply that counts, by node, in the order in which they were asked."""
    faults: list[RejectedReply] = field(default_factory=list)
    silent: list[int] = field(default_factory=list)
    """Nodes that sent nothing, or that the SuperLink knows to be gone."""

    def only(self, nodes: Collection[int]) -> "Answers":
        """The same, as far as it concerns these nodes."""
        return Answers(
            {node: content for node, content in self.contents.items() if node in nodes},
            [fault for fault in self.faults if fault.node in nodes],
            [node for node in self.silent if node in nodes],
        )

    def without(self, nodes: Collection[int]) -> "Answers":
        """The same, except for what concerns these nodes."""
        others = {*self.contents, *self.silent, *(fault.node for fault in self.faults)}
        return self.only(others.difference(nodes))


def exchange(
    grid: Grid, messages: Iterable[Message], *, timeout: float, again: Again | None = None
) -> list[Message]:
    """Send the messages one by one and collect what is answered within the time.

    `messages` may be made on the fly: each is sent before the next is made, so that large ones
    need not be in memory together. The clock starts when the last message has been sent, so that
    a server that sends slowly does not cut short the time of the nodes asked last.
    """
    stop = threading.Event()
    inbox: SimpleQueue[tuple[Message, list[Message]]] = SimpleQueue()
    replies: list[Message] = []
    pending = 0

    def send(message: Message) -> None:
        nonlocal pending
        pending += 1
        identifiers = list(grid.push_messages([message]))
        if not identifiers or not identifiers[0]:
            # The SuperLink does not take messages for nodes that have left.
            inbox.put((message, [_failure(message, LOST_CODE, "the message was not taken")]))
            return
        arguments = (grid, _without_content(message), identifiers[0], inbox, stop)
        pause = min(max(FIRST_PAUSE, PAUSE_PER_MESSAGE * (pending - 1)), LONGEST_PAUSE)
        threading.Thread(
            target=_collect, args=arguments, kwargs={"pause": pause}, daemon=True
        ).start()

    try:
        for message in messages:
            send(message)
        deadline = time.monotonic() + timeout
        while pending:
            try:
                asked, found = inbox.get(timeout=max(0.0, deadline - time.monotonic()))
            except Empty:
                break
            pending -= 1
            instead = again(asked, found[0]) if again is not None else None
            if instead is not None:
                send(instead)
            else:
                replies.extend(found)
    finally:
        stop.set()
    return replies


class PollingGrid(Grid):
    """A grid whose `send_and_receive` is `exchange`, with a time limit for each type of message."""

    def __init__(self, inner: Grid, timeouts: Mapping[str, float]) -> None:
        self._inner = inner
        self._timeouts = timeouts

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send all messages and collect replies until all are there or the time is over."""
        asked = list(messages)
        if not asked:
            return []
        limits = [self._timeouts.get(message.metadata.message_type) for message in asked]
        known = [limit for limit in [timeout, *limits] if limit is not None]
        return exchange(self._inner, asked, timeout=min(known, default=threading.TIMEOUT_MAX))

    def set_run(self, run: Any) -> None:
        """As the inner grid does."""
        self._inner.set_run(run)

    @property
    def run(self) -> Any:
        """As the inner grid has it."""
        return self._inner.run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """As the inner grid does."""
        return self._inner.create_message(content, message_type, dst_node_id, group_id, ttl)

    def get_node_ids(self) -> Iterable[int]:
        """As the inner grid does."""
        return self._inner.get_node_ids()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """As the inner grid does."""
        return self._inner.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """As the inner grid does."""
        return self._inner.pull_messages(message_ids)


def collate(asked: Sequence[Metadata], replies: Iterable[object]) -> Answers:
    """Match replies to what was asked, by the id of the question.

    (Not by their sender: where a node is gone, the SuperLink answers in its place.)
    """
    questions = {question.message_id: question for question in asked}
    found: dict[int, RecordDict | RejectedReply] = {}
    strays: list[RejectedReply] = []
    for reply in replies:
        if not isinstance(reply, Message):
            strays.append(RejectedReply(0, ReplyFault.MALFORMED))
            continue
        sender = reply.metadata.src_node_id
        question = questions.get(reply.metadata.reply_to_message_id)
        if question is None:
            strays.append(RejectedReply(sender, ReplyFault.NOT_DRAWN))
        elif not _may_answer(reply, question):
            detail = f"answers in the place of node {question.dst_node_id}"
            strays.append(RejectedReply(sender, ReplyFault.NOT_DRAWN, detail))
        elif question.dst_node_id in found:
            strays.append(RejectedReply(question.dst_node_id, ReplyFault.SECOND))
        else:
            found[question.dst_node_id] = _read(reply, question)
    answers = Answers(faults=strays)
    for question in asked:
        node = question.dst_node_id
        outcome = found.get(node, RejectedReply(node, ReplyFault.MISSING))
        if isinstance(outcome, RejectedReply):
            answers.faults.append(outcome)
            if outcome.reason in {ReplyFault.MISSING, ReplyFault.UNAVAILABLE}:
                answers.silent.append(node)
        else:
            answers.contents[node] = outcome
    return answers


def error_fault(reply: Message) -> ReplyFault:
    """What an error reply stands for."""
    if reply.error.code in _UNAVAILABLE_CODES:
        return ReplyFault.UNAVAILABLE
    return ReplyFault.UNREADABLE if reply.error.code == UNREADABLE_CODE else ReplyFault.ERROR


def log_faults(what: str, faults: Iterable[RejectedReply]) -> None:
    """Log each rejected reply with its node and the reason."""
    for fault in faults:
        detail = f" ({fault.detail})" if fault.detail else ""
        LOG.warning("%s of node %d rejected: %s%s", what, fault.node, fault.reason, detail)


def _collect(
    grid: Grid,
    asked: Message,
    identifier: str,
    inbox: "SimpleQueue[tuple[Message, list[Message]]]",
    stop: threading.Event,
    *,
    pause: float,
) -> None:
    """Ask for one reply until it is there or nobody waits for it any more."""
    while not stop.is_set():
        try:
            found = list(grid.pull_messages([identifier]))
        except Exception as error:  # noqa: BLE001  (Whatever a liar's bytes make a decoder raise.)
            reason = f"{type(error).__name__}: {error}"
            found = [_failure(asked, UNREADABLE_CODE, reason)]
        if found:
            inbox.put((asked, found))
            return
        stop.wait(pause)
        pause = min(PAUSE_GROWTH * pause, LONGEST_PAUSE)


def _without_content(message: Message) -> Message:
    """The message without its weights; the metadata is shared, so that both get the same id."""
    # `Message` takes metadata, but its overloads do not say so.
    return Message(metadata=message.metadata, content=RecordDict())  # type: ignore[call-overload,no-any-return]


def _failure(asked: Message, code: int, reason: str) -> Message:
    return Message(Error(code, reason), reply_to=asked)


def _may_answer(reply: Message, question: Metadata) -> bool:
    sender = reply.metadata.src_node_id
    return sender == question.dst_node_id or (reply.has_error() and sender == _SUPERLINK_NODE)


def _read(reply: Message, question: Metadata) -> RecordDict | RejectedReply:
    node = question.dst_node_id
    if reply.has_error():
        return RejectedReply(node, error_fault(reply), _brief(reply.error.reason))
    if not reply.has_content() or reply.metadata.message_type != question.message_type:
        return RejectedReply(node, ReplyFault.MALFORMED)
    return reply.content


def _brief(text: object) -> str:
    """What somebody else wrote, made fit for one line of our log."""
    words = " ".join(str(text).split())
    return ascii(words if len(words) <= _DETAIL_MAX else words[:_DETAIL_MAX] + "...")[1:-1]
