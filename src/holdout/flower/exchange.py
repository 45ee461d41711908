"""Sending messages and fetching replies, so that no node can hold up or break the others.

    exchange      messages -> the replies that come within the time
    PollingGrid   a Flower grid that sends and receives by `exchange`

Flower itself asks for all replies at once, every three seconds. Here each message has its own
thread, which asks for that one reply, often at first and then less and less often:

- a reply that cannot be decoded becomes an error reply of its node and leaves the others intact;
- a node that announces a reply and never uploads it blocks its own thread only, a daemon;
- a fast reply is there in a fraction of a second.
"""

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

from flwr.app import Error, Message, RecordDict
from flwr.serverapp import Grid

from holdout.flower.answers import (
    FORGED_CODE,
    LOST_CODE,
    MALFORMED_CODE,
    TOO_LARGE_CODE,
    UNREADABLE_CODE,
    may_answer,
)
from holdout.flower.plain_replies import plain_content, plain_error
from holdout.flower.pulling import Gone, ReplyAllowance, TooLarge, guard, pull
from holdout.voting import tolerated_count

FIRST_PAUSE, PAUSE_GROWTH, LONGEST_PAUSE = 0.1, 1.05, 1.0
"""Seconds between two questions for the same reply: about 5 % of the time waited so far."""
PAUSE_PER_MESSAGE = 0.025
"""The more messages are open, the less often each is asked for, to spare the SuperLink."""

GRACE_LEAST = 10.0
"""Seconds of grace, at least, for those who are late, unless the user says otherwise."""

Again = Callable[[Message, Message], Message | None]
"""(what was asked, what came) -> what to ask instead, if anything."""


def exchange(
    grid: Grid,
    messages: Iterable[Message],
    *,
    timeout: float,
    at_once: int | None = None,
    again: Again | None = None,
    late: int = 0,
    grace: float | None = None,
    allowance: ReplyAllowance | None = None,
) -> list[Message]:
    """Send the messages one by one and collect what is answered within the time.

    `messages` may be made on the fly: each is sent before the next is made, so that large ones
    need not be in memory together. The clock starts when the last message has been sent, so that
    a server that sends slowly does not cut short the time of the nodes asked last. Where only some
    are asked at once, it starts anew with each message; when it has run down, all who are silent
    give up their places to others who have not been asked.

    Args:
        grid: Where to send.
        messages: What to ask.
        timeout: Seconds after which nobody is waited for.
        at_once: How many are asked at a time, each of the others in the place of one who has
            answered; None: all.
        again: What to ask instead, after an answer.
        late: Once no more than so many are missing, they have only a grace time left.
        grace: Seconds of it; None: as long again as the others took, but at least `GRACE_LEAST`.
        allowance: What a reply may cost in memory, where it has to be decoded.

    Returns:
        The replies. Each is bound to the node and the question that it was pulled for; where what
        it says of itself is different, an error reply of that node is in its place.
    """
    replies: list[Message] = []
    unsent = iter(messages)
    began = time.monotonic()
    last, patience = began + timeout, None
    questions = _Questions(grid, allowance)
    try:
        while True:
            while patience is None and (at_once is None or len(questions.places) < at_once):
                message = next(unsent, None)
                if message is None:
                    patience = Patience(began, last, late, grace)
                else:
                    questions.send(message)
                    last = time.monotonic() + timeout
            if not questions.pending:
                break
            deadline = patience.deadline(questions.pending, time.monotonic()) if patience else last
            try:
                asked, found = questions.next_answer(deadline)
            except Empty:
                if patience is not None:
                    break
                questions.places.clear()
                continue
            instead = again(asked, found[0]) if again is not None else None
            if instead is not None:
                questions.send(instead)
            else:
                replies.extend(found)
    finally:
        questions.stop.set()
    return replies


class _Questions:
    """The questions of one exchange that have been sent and not been answered yet."""

    def __init__(self, grid: Grid, allowance: ReplyAllowance | None) -> None:
        self._grid = grid
        self._allowance = allowance
        self._inbox: SimpleQueue[tuple[Message, list[Message]]] = SimpleQueue()
        self.stop = threading.Event()
        self.pending = 0
        self.places = set[str]()
        """Their ids, apart from those of nodes that were silent for too long."""

    def send(self, message: Message) -> None:
        """Send one, and have a thread ask for its answer."""
        self.pending += 1
        identifiers = list(self._grid.push_messages([message]))
        if not identifiers or not identifiers[0]:
            # The SuperLink does not take messages for nodes that have left.
            lost = _failure(message, LOST_CODE, "the message was not taken")
            self._inbox.put((message, [lost]))
            return
        self.places.add(identifiers[0])
        asked = _without_content(message)
        fetch = partial(pull, self._grid, identifiers[0], self._allowance, self.stop)
        pause = min(max(FIRST_PAUSE, PAUSE_PER_MESSAGE * (self.pending - 1)), LONGEST_PAUSE)
        arguments = fetch, asked, self._inbox, self.stop
        threading.Thread(
            target=_collect, args=arguments, kwargs={"pause": pause}, daemon=True
        ).start()

    def next_answer(self, deadline: float) -> tuple[Message, list[Message]]:
        """A question and what answers it; `Empty` if there is none by then."""
        asked, found = self._inbox.get(timeout=max(0.0, deadline - time.monotonic()))
        self.pending -= 1
        self.places.discard(asked.metadata.message_id)
        return asked, found


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
        at_once: int | None = None,
        allowance: ReplyAllowance | None = None,
    ) -> None:
        self._inner = inner
        self._timeouts = timeouts
        self._f = f
        self._grace = grace
        self._at_once = at_once
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
            at_once=self._at_once,
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
        if said.reply_to_message_id != question.message_id or not may_answer(reply, question):
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
