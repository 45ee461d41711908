"""Sending messages and collecting replies, so that no node can hold up or break the others.

Flower's own loop asks for all replies at once, every three seconds. Here each message has a thread
of its own that asks for its reply alone, often at first and then ever less so:

- a reply that cannot be decoded spoils nothing but itself: it becomes an error reply;
- a node that announces a reply and never uploads it occupies its own thread and nobody else's (the
  threads are daemons, and end at the next answer after the deadline);
- a fast reply is there in a fraction of a second.
"""

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from queue import Empty, SimpleQueue
from typing import Any

from flwr.app import Error, Message, RecordDict
from flwr.serverapp import Grid

from holdout.flower.records import ReplyFault

FIRST_PAUSE, PAUSE_GROWTH, LONGEST_PAUSE = 0.1, 1.05, 1.0
"""Seconds between two questions for the same reply: about 5 % of the time waited so far."""
PAUSE_PER_MESSAGE = 0.025
"""Of many open messages each is asked for less often, or the SuperLink does little else."""

LOST_CODE, UNREADABLE_CODE = -1, -2
"""Codes of the error replies that are made here; Flower's own are not negative."""
_UNAVAILABLE_CODES = (LOST_CODE, 3, 4, 5)
"""Also Flower's own: the message, the reply or the node is unavailable."""

Again = Callable[[Message, Message], Message | None]
"""(what was asked, what came) -> what to ask instead, if anything."""


def exchange(
    grid: Grid, messages: Iterable[Message], *, timeout: float, again: Again | None = None
) -> list[Message]:
    """Send the messages one by one and collect what is answered within the time.

    `messages` may be made on the fly: each is sent before the next is made, so that large ones
    need not be in memory together. The time begins when the last has been sent: it is the server
    that sends slowly, not who is asked last.
    """
    stop = threading.Event()
    inbox: SimpleQueue[tuple[Message, list[Message]]] = SimpleQueue()
    replies: list[Message] = []
    pending = 0

    def send(message: Message) -> int:
        identifiers = list(grid.push_messages([message]))
        if not identifiers or not identifiers[0]:
            # The SuperLink does not take messages for nodes that have left.
            inbox.put((message, [_failure(message, LOST_CODE, "the message was not taken")]))
            return 1
        asked = shell(message)
        pause = min(max(FIRST_PAUSE, PAUSE_PER_MESSAGE * pending), LONGEST_PAUSE)
        arguments = (grid, asked, identifiers[0], inbox, stop)
        threading.Thread(
            target=_collect, args=arguments, kwargs={"pause": pause}, daemon=True
        ).start()
        return 1

    try:
        for message in messages:
            pending += send(message)
        deadline = time.monotonic() + timeout
        while pending:
            try:
                asked, found = inbox.get(timeout=max(0.0, deadline - time.monotonic()))
            except Empty:
                break
            pending -= 1
            instead = again(asked, found[0]) if again is not None else None
            if instead is not None:
                pending += send(instead)
            else:
                replies.extend(found)
    finally:
        stop.set()
    return replies


def error_fault(reply: Message) -> ReplyFault:
    """What an error reply stands for."""
    if reply.error.code in _UNAVAILABLE_CODES:
        return ReplyFault.UNAVAILABLE
    return ReplyFault.UNREADABLE if reply.error.code == UNREADABLE_CODE else ReplyFault.ERROR


class PollingGrid(Grid):
    """A grid whose `send_and_receive` is `exchange`, with a time limit for each type of message."""

    def __init__(self, inner: Grid, timeouts: Mapping[str, float]) -> None:
        self._inner = inner
        self._timeouts = timeouts

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send all and collect replies until all are there or the time is over."""
        asked = list(messages)
        if not asked:
            return []
        limits = [self._timeouts.get(message.metadata.message_type) for message in asked]
        known = [limit for limit in [timeout, *limits] if limit is not None]
        return exchange(self._inner, asked, timeout=min(known, default=threading.TIMEOUT_MAX))

    def set_run(self, run: Any) -> None:
        """Handed on."""
        self._inner.set_run(run)

    @property
    def run(self) -> Any:
        """Handed on."""
        return self._inner.run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Handed on."""
        return self._inner.create_message(content, message_type, dst_node_id, group_id, ttl)

    def get_node_ids(self) -> Iterable[int]:
        """Handed on."""
        return self._inner.get_node_ids()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Handed on."""
        return self._inner.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Handed on."""
        return self._inner.pull_messages(message_ids)


def _collect(
    grid: Grid,
    asked: Message,
    identifier: str,
    inbox: "SimpleQueue[tuple[Message, list[Message]]]",
    stop: threading.Event,
    *,
    pause: float,
) -> None:
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


def shell(message: Message) -> Message:
    """The same message without its weights: metadata that is shared, so that it gets its id."""
    # The way with metadata is there, but not among the overloads.
    return Message(metadata=message.metadata, content=RecordDict())  # type: ignore[call-overload,no-any-return]


def _failure(asked: Message, code: int, reason: str) -> Message:
    return Message(Error(code, reason), reply_to=asked)
