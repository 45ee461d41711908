"""Sending messages and reading replies, so that no node can hold up or break the others.

    exchange      messages -> the replies that come within the time
    PollingGrid   a Flower grid that sends and receives by `exchange`
    collate       replies -> at most one content for each node asked; everything else is a fault

Flower itself asks for all replies at once, every three seconds. Here each message has its own
thread, which asks for that one reply, often at first and then less and less often:

- a reply that cannot be decoded becomes an error reply of its node and leaves the others intact;
- a node that announces a reply and never uploads it blocks its own thread only, a daemon;
- a fast reply is there in a fraction of a second.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

from flwr.app import Error, Message, Metadata, RecordDict
from flwr.serverapp import Grid

from holdout.flower.plain_replies import plain_content, plain_error
from holdout.flower.pulling import Gone, ReplyAllowance, TooLarge, guard, pull
from holdout.voting import tolerated_count

LOG = logging.getLogger("flwr")

FIRST_PAUSE, PAUSE_GROWTH, LONGEST_PAUSE = 0.1, 1.05, 1.0
"""Seconds between two questions for the same reply: about 5 % of the time waited so far."""
PAUSE_PER_MESSAGE = 0.025
"""The more messages are open, the less often each is asked for, to spare the SuperLink."""

LOST_CODE, UNREADABLE_CODE, TOO_LARGE_CODE, FORGED_CODE, MALFORMED_CODE = -1, -2, -3, -4, -5
"""Codes of the error replies that are made here; Flower's codes are not negative."""
_UNAVAILABLE_CODES = (LOST_CODE, 3, 4, 5)
"""Ours, and Flower's codes for a message, a reply or a node that is unavailable."""
_SUPERLINK_NODE = 1
"""The sender of the replies that the SuperLink writes in place of a node that is gone."""
_DETAIL_MAX = 200
GRACE_LEAST = 10.0
"""Seconds of grace, at least, for those who are late, unless the user says otherwise."""

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
    TOO_LARGE = "too-large"
    """It would have cost more memory than a reply may."""
    FORGED = "forged"
    """It says of itself that it answers another question, or comes from another node."""


_OUR_FAULTS = {
    UNREADABLE_CODE: ReplyFault.UNREADABLE,
    TOO_LARGE_CODE: ReplyFault.TOO_LARGE,
    FORGED_CODE: ReplyFault.FORGED,
    MALFORMED_CODE: ReplyFault.MALFORMED,
}


@dataclass(frozen=True, slots=True)
class RejectedReply:
    """A reply that does not count."""

    node: int
    """Whose it is; 0 where nobody who was asked sent it."""
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
    grid: Grid,
    messages: Iterable[Message],
    *,
    timeout: float,
    again: Again | None = None,
    late: int = 0,
    grace: float | None = None,
    allowance: ReplyAllowance | None = None,
) -> list[Message]:
    """Send the messages one by one and collect what is answered within the time.

    `messages` may be made on the fly: each is sent before the next is made, so that large ones
    need not be in memory together. The clock starts when the last message has been sent, so that
    a server that sends slowly does not cut short the time of the nodes asked last.

    Args:
        grid: Where to send.
        messages: What to ask.
        timeout: Seconds after which nobody is waited for.
        again: What to ask instead, after an answer.
        late: Once no more than so many are missing, they have only a grace time left.
        grace: Seconds of it; None: as long again as the others took, but at least `GRACE_LEAST`.
        allowance: What a reply may cost in memory, where it has to be decoded.

    Returns:
        The replies. Each is bound to the node and the question that it was pulled for; where what
        it says of itself is different, an error reply of that node is in its place.
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
        asked = _without_content(message)
        fetch = partial(pull, grid, identifiers[0], allowance, stop)
        pause = min(max(FIRST_PAUSE, PAUSE_PER_MESSAGE * (pending - 1)), LONGEST_PAUSE)
        threading.Thread(
            target=_collect, args=(fetch, asked, inbox, stop), kwargs={"pause": pause}, daemon=True
        ).start()

    try:
        began = time.monotonic()
        for message in messages:
            send(message)
        patience = Patience(began, time.monotonic() + timeout, late, grace)
        while pending:
            deadline = patience.deadline(pending, time.monotonic())
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


@dataclass(slots=True)
class Patience:
    """Until when answers are waited for; it shrinks once, when enough of them are there."""

    began: float
    last: float
    """When nobody is waited for any more."""
    late: int
    grace: float | None
    _enough_since: float | None = None

    def deadline(self, pending: int, now: float) -> float:
        """When to stop waiting, if so many answers are missing now."""
        if pending <= self.late and self._enough_since is None:
            self._enough_since = now
        if self._enough_since is None:
            return self.last
        grace = self.grace
        if grace is None:
            grace = max(GRACE_LEAST, self._enough_since - self.began)
        return min(self.last, self._enough_since + grace)


def late_members(asked: int, f: Fraction) -> int:
    """How many of the nodes asked need not be waited for longer than a grace time.

    No more than the liars that may be among them, t; and so few that t liars are fewer than half of
    the others, even if all who are late are honest.

    >>> [late_members(n, Fraction(1, 3)) for n in (1, 3, 4, 9, 30)]
    [0, 0, 1, 2, 9]
    >>> late_members(30, Fraction(2, 5))
    5
    """
    tolerated = tolerated_count(asked, f)
    return max(0, min(tolerated, asked - 2 * tolerated - 1))


class PollingGrid(Grid):
    """A grid whose `send_and_receive` is `exchange`, with a time limit for each type of message."""

    def __init__(
        self,
        inner: Grid,
        timeouts: Mapping[str, float],
        *,
        f: Fraction = Fraction(0),
        grace: float | None = None,
        allowance: ReplyAllowance | None = None,
    ) -> None:
        self._inner = inner
        self._timeouts = timeouts
        self._f = f
        self._grace = grace
        self._allowance = allowance
        guard(inner)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send all messages and collect replies until all are there or the time is over."""
        asked = list(messages)
        limits = [self._timeouts.get(message.metadata.message_type) for message in asked]
        known = [limit for limit in [timeout, *limits] if limit is not None]
        limit = min(known, default=threading.TIMEOUT_MAX)
        return self.exchange(asked, count=len(asked), timeout=limit)

    def exchange(
        self,
        messages: Iterable[Message],
        *,
        count: int,
        timeout: float,
        again: Again | None = None,
    ) -> list[Message]:
        """`exchange` with so many nodes, as patient and as sparing as this grid is."""
        return exchange(
            self._inner,
            messages,
            timeout=timeout,
            again=again,
            late=late_members(count, self._f),
            grace=self._grace,
            allowance=self._allowance,
        )

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

    (Not by their sender: where a node is gone, the SuperLink answers in its place.) A question
    without an id was never sent, but put in other words by the user's `configure_train`: what came
    from its node answers it. Replies of `exchange` are bound to nodes; others say themselves whose
    they are.
    """
    questions = {question.message_id: question for question in asked if question.message_id}
    rebuilt = {question.dst_node_id: question for question in asked if not question.message_id}
    found: dict[int, RecordDict | RejectedReply] = {}
    strays: list[RejectedReply] = []
    for reply in replies:
        try:
            question = _question_of(reply, questions, rebuilt)
        except Exception:  # noqa: BLE001  (A Python object that only looks like a message.)
            strays.append(RejectedReply(0, ReplyFault.MALFORMED))
            continue
        if question is None:
            strays.append(RejectedReply(0, ReplyFault.NOT_DRAWN))
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


def _question_of(
    reply: Any, questions: Mapping[str, Metadata], rebuilt: Mapping[int, Metadata]
) -> Metadata | None:
    """The question that a reply answers, if it was asked and if this node was asked it."""
    said = reply.metadata
    question = questions.get(said.reply_to_message_id)
    if question is None:
        return rebuilt.get(said.src_node_id)
    return question if _may_answer(reply, question) else None


def error_fault(error: Error) -> ReplyFault:
    """What a reply's error stands for."""
    if error.code in _UNAVAILABLE_CODES:
        return ReplyFault.UNAVAILABLE
    return _OUR_FAULTS.get(error.code, ReplyFault.ERROR)


def log_faults(what: str, faults: Iterable[RejectedReply]) -> None:
    """Log each rejected reply with its node and the reason."""
    for fault in faults:
        detail = f" ({fault.detail})" if fault.detail else ""
        whose = f"node {fault.node}" if fault.node else "nobody known"
        LOG.warning("%s of %s rejected: %s%s", what, whose, fault.reason, detail)


def _collect(
    fetch: Callable[[], Sequence[object]],
    asked: Message,
    inbox: "SimpleQueue[tuple[Message, list[Message]]]",
    stop: threading.Event,
    *,
    pause: float,
) -> None:
    """Ask for one reply until it is there or nobody waits for it any more."""
    while not stop.is_set():
        found: Sequence[object]
        try:
            found = fetch()
        except TooLarge as error:
            found = [_failure(asked, TOO_LARGE_CODE, str(error))]
        except Gone as error:
            found = [_failure(asked, LOST_CODE, str(error))]
        except Exception as error:  # noqa: BLE001  (Whatever a liar's bytes make a decoder raise.)
            reason = f"{type(error).__name__}: {error}"
            found = [_failure(asked, UNREADABLE_CODE, reason)]
        if found:
            inbox.put((asked, [_bound(reply, asked) for reply in found]))
            return
        stop.wait(pause)
        pause = min(PAUSE_GROWTH * pause, LONGEST_PAUSE)


def _bound(reply: Any, asked: Message) -> Message:
    """The reply as one to the question that it was pulled for, if that is what its sender says."""
    try:
        said, question = reply.metadata, asked.metadata
        if said.reply_to_message_id != question.message_id or not _may_answer(reply, question):
            return _failure(asked, FORGED_CODE, "it says that it answers another question or node")
        if reply.has_error():
            # The SuperLink's own errors, in the place of a node, become errors of that node.
            return Message(plain_error(reply), reply_to=asked)
        if said.message_type != question.message_type:
            return _failure(asked, MALFORMED_CODE, "it is of another type than the question")
        return Message(plain_content(reply), reply_to=asked)
    except Exception as error:  # noqa: BLE001  (A Python object that only looks like a message.)
        return _failure(asked, MALFORMED_CODE, f"{type(error).__name__}: {error}")


def _without_content(message: Message) -> Message:
    """The message without its weights; the metadata is shared, so that both get the same id."""
    # `Message` takes metadata, but its overloads do not say so.
    return Message(metadata=message.metadata, content=RecordDict())  # type: ignore[call-overload,no-any-return]


def _failure(asked: Message, code: int, reason: str) -> Message:
    return Message(Error(code, reason), reply_to=asked)


def _may_answer(reply: Any, question: Metadata) -> bool:
    sender = reply.metadata.src_node_id
    return sender == question.dst_node_id or bool(reply.has_error() and sender == _SUPERLINK_NODE)


def _read(reply: Any, question: Metadata) -> RecordDict | RejectedReply:
    node = question.dst_node_id
    try:
        if reply.has_error():
            error = plain_error(reply)
            return RejectedReply(node, error_fault(error), _brief(error.reason))
        was_sent = bool(question.message_id)
        if was_sent and reply.metadata.message_type != question.message_type:
            return RejectedReply(node, ReplyFault.MALFORMED, "it is of another type")
        return plain_content(reply)
    except Exception as error:  # noqa: BLE001  (A Python object that only looks like a message.)
        return RejectedReply(node, ReplyFault.MALFORMED, _brief(f"{type(error).__name__}: {error}"))


def _brief(text: object) -> str:
    """What somebody else wrote, made fit for one line of our log."""
    words = " ".join(str(text).split())
    return ascii(words if len(words) <= _DETAIL_MAX else words[:_DETAIL_MAX] + "...")[1:-1]
