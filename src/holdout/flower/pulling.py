"""Fetching one reply, at a price that is known before it is paid.

Flower's own decoder joins whatever a reply names: a reply of 5 MB that names one chunk of an array
two thousand times becomes 10 GB. So replies from a SuperLink are fetched here piece by piece, each
against a `ReplyAllowance`:

- words: names, metrics, errors, and how arrays are put together;
- numbers: the bytes of arrays, counted as joined, before they are.

No piece is received whose announced length is too large. A reply that would cost more is refused
with `TooLarge`, and the SuperLink is told that it may forget it. Where the SuperLink itself fails,
as when its database is busy, it is asked again: that is no fault of a node.

Where replies are handed over as Python objects, as in Flower's simulation, there is nothing to
decode; they are taken as they are, and checked like any other.
"""

import io
import json
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, PullObjectRequest
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.serverapp import Grid
from httpx import HTTPError, HTTPStatusError

LOG = logging.getLogger("flwr")

TIMES_THE_MODEL = 2
"""How much larger than the model the arrays of a reply may be: float64 for a model of float32."""
WORDS, WORDS_PER_ARRAY = 2**20, 2**10
"""Bytes for all else that a reply says: as such, and for each array of the model."""
PIECE_MAX = 2**24
"""The longest piece that is received; Flower cuts arrays into chunks of 5 MB."""
PIECE_COST = 256
"""Bytes that a piece costs besides its own: its name, and what it is wrapped in."""
OBJECT_PAUSE = 0.5
"""Seconds between two questions for a piece that was not there, or to a SuperLink that failed."""

_PIECE_PATHS = ("/pull-object", "/pull-messages")
_DIVIDER = b"\0"

Records = Mapping[str, Any]


class TooLarge(Exception):  # noqa: N818  (A verdict on a reply; nobody outside meets it.)
    """A reply would cost more memory than it may."""


class Gone(Exception):  # noqa: N818  (As above.)
    """A part of the reply is not there, and will not come."""


@dataclass(slots=True)
class ReplyAllowance:
    """What one reply may still cost, in bytes."""

    words: int
    numbers: int

    @classmethod
    def for_model(cls, arrays: ArrayRecord) -> Self:
        """What a reply may cost where this is the model."""
        size = sum(len(array.data) for array in arrays.values())
        return cls(WORDS + WORDS_PER_ARRAY * len(arrays), TIMES_THE_MODEL * size)

    def copy(self) -> Self:
        """The same, for another reply."""
        return type(self)(self.words, self.numbers)

    def spend_words(self, size: int) -> None:
        """Take off what a piece costs that is no part of an array."""
        self.words -= size + PIECE_COST
        if self.words < 0:
            raise TooLarge("its names and metrics are too long")

    def spend_numbers(self, size: int) -> None:
        """Take off what a part of an array costs."""
        self.words -= PIECE_COST
        self.numbers -= size
        if self.numbers < 0 or self.words < 0:
            raise TooLarge(f"its arrays are more than {TIMES_THE_MODEL} times the model")


def pull(
    grid: Grid, identifier: str, allowance: ReplyAllowance | None, stop: threading.Event
) -> list[Message]:
    """The replies to one question that are there; none, if there is none yet."""
    client = _client_of(grid)
    if client is None or allowance is None:
        return list(grid.pull_messages([identifier]))
    question = PullAppMessagesRequest(message_ids=[identifier])
    answer = _patiently(client.PullMessages, question, stop)
    return [
        _fetch(grid, client, found.metadata.message_id, allowance.copy(), stop)
        for found in answer.messages_list
    ]


def _fetch(
    grid: Any, client: Any, message_id: str, allowance: ReplyAllowance, stop: threading.Event
) -> Message:
    run_id = grid.run.run_id

    def fetch(object_id: str) -> bytes:
        request = PullObjectRequest(node=grid.node, run_id=run_id, object_id=object_id)
        while True:
            response = _patiently(client.PullObject, request, stop)
            if not response.object_found:
                raise Gone(f"its part {object_id[:12]} is missing")
            if response.object_available:
                return bytes(response.object_content)
            if stop.wait(OBJECT_PAUSE):
                raise Gone("it was not uploaded in time")

    try:
        message = _message(message_id, fetch, allowance)
    finally:
        # Whatever became of it: what is confirmed need not be kept by the SuperLink any longer.
        confirmed = ConfirmMessageReceivedRequest(
            node=grid.node, run_id=run_id, message_object_id=message_id
        )
        with suppress(HTTPError):
            client.ConfirmMessageReceived(confirmed)
    message.metadata.__dict__["_message_id"] = message_id
    return message


def _patiently(call: Callable[[Any], Any], request: object, stop: threading.Event) -> Any:
    """Call the SuperLink again while it fails, until nobody waits any more."""
    while True:
        try:
            return call(request)
        except HTTPError as error:
            if isinstance(error, HTTPStatusError) and not error.response.is_server_error:
                raise
            LOG.debug("the SuperLink failed and is asked again: %s", error)
            if stop.wait(OBJECT_PAUSE):
                raise Gone(f"the SuperLink failed: {error}") from error


Fetch = Callable[[str], bytes]


def _message(object_id: str, fetch: Fetch, allowance: ReplyAllowance) -> Message:
    content, kind, children = _open(object_id, fetch, allowance)
    _expect(kind, [Message])
    inner: dict[str, Any] = {child: _records(child, fetch, allowance) for child in children[:1]}
    return Message.inflate(content, inner)


def _records(object_id: str, fetch: Fetch, allowance: ReplyAllowance) -> RecordDict:
    content, kind, children = _open(object_id, fetch, allowance)
    _expect(kind, [RecordDict])
    return RecordDict.inflate(
        content, {child: _record(child, fetch, allowance) for child in dict.fromkeys(children)}
    )


def _record(
    object_id: str, fetch: Fetch, allowance: ReplyAllowance
) -> ArrayRecord | MetricRecord | ConfigRecord:
    content, kind, children = _open(object_id, fetch, allowance)
    _expect(kind, [ArrayRecord, MetricRecord, ConfigRecord])
    if kind == MetricRecord.__qualname__:
        return MetricRecord.inflate(content)
    if kind == ConfigRecord.__qualname__:
        return ConfigRecord.inflate(content)
    return ArrayRecord.inflate(
        content, {child: _array(child, fetch, allowance) for child in dict.fromkeys(children)}
    )


def _array(object_id: str, fetch: Fetch, allowance: ReplyAllowance) -> Array:
    """An array whose chunks are joined as they come, so that they are never there twice."""
    content, kind, children = _open(object_id, fetch, allowance)
    _expect(kind, [Array])
    about = json.loads(_body(content))
    joined = io.BytesIO()
    last, piece = None, memoryview(b"")
    for place in about["arraychunk_ids"]:
        chunk = children[place]
        if chunk != last:
            # The one before is let go before the next comes.
            last, piece = chunk, memoryview(b"")
            piece = _chunk(fetch(chunk))
        allowance.spend_numbers(len(piece))
        joined.write(piece)
    return Array(
        dtype=about["dtype"],
        shape=tuple(about["shape"]),
        stype=about["stype"],
        data=joined.getvalue(),
    )


def _chunk(content: bytes) -> memoryview:
    kind, children = _head(content)
    if kind != "ArrayChunk" or children:
        raise ValueError(f"expected a chunk of an array; got {kind!r}")
    return memoryview(content)[content.index(_DIVIDER) + 1 :]


def _open(
    object_id: str, fetch: Fetch, allowance: ReplyAllowance
) -> tuple[bytes, str, Sequence[str]]:
    """The bytes of a piece that is no chunk, what it is, and of what it is made."""
    content = fetch(object_id)
    allowance.spend_words(len(content))
    return (content, *_head(content))


def _head(content: bytes) -> tuple[str, Sequence[str]]:
    kind, children, _ = content[: content.index(_DIVIDER)].decode().split(" ")
    return kind, children.split(",") if children else []


def _body(content: bytes) -> bytes:
    return content[content.index(_DIVIDER) + 1 :]


def _expect(kind: str, classes: Sequence[type]) -> None:
    names = [cls.__qualname__ for cls in classes]
    if kind not in names:
        raise ValueError(f"expected {' or '.join(names)}; got {kind[:40]!r}")


def guard(grid: Grid) -> None:
    """Have a SuperLink's connection drop each piece that is announced as too long, unreceived."""
    client = _client_of(grid)
    if client is None:
        if hasattr(grid, "_runtime_client"):
            LOG.warning(
                "this version of Flower keeps its connection where it is not looked for: what a "
                "reply costs in memory is not bounded"
            )
        return
    hooks = client._client.event_hooks  # noqa: SLF001  (Flower has no public place for it.)
    if _refuse_long_pieces not in hooks["response"]:
        hooks = {**hooks, "response": [*hooks["response"], _refuse_long_pieces]}
        client._client.event_hooks = hooks  # noqa: SLF001


def _client_of(grid: Grid) -> Any | None:
    """What a grid talks to a SuperLink through; None where replies need no decoding."""
    client = getattr(grid, "_runtime_client", None)
    connection = getattr(client, "_client", None)
    return client if hasattr(connection, "event_hooks") else None


def _refuse_long_pieces(response: Any) -> None:
    length = response.headers.get("content-length", "0")
    if response.request.url.path.endswith(_PIECE_PATHS) and int(length) > PIECE_MAX:
        raise TooLarge(f"a piece of {length} bytes; at most {PIECE_MAX} are received at once")
