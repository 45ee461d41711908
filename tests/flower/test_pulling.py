"""What a reply may cost the server: counted before it is joined."""

import json
import threading
import tracemalloc
from types import SimpleNamespace

import httpx
import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.app.message.arraychunk import ArrayChunk
from flwr.proto.message_pb2 import PullObjectResponse
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_id
from hypothesis import given
from hypothesis import strategies as st
from tests.flower.flower_grid import FakeGrid, arrays, train_reply, weights

from holdout.flower import pulling
from holdout.flower.exchange import exchange
from holdout.flower.pulling import (
    PIECE_MAX,
    ReplyAllowance,
    TooLarge,
    _refuse_long_pieces,
    guard,
    pull,
)

CHUNK = 5 * 2**20


class Link(FakeGrid):
    """A grid that talks to a SuperLink, which has the replies of its nodes in pieces."""

    def __init__(self, nodes):
        super().__init__(nodes)
        self.pieces: dict[str, bytes] = {}
        self.confirmed: list[str] = []
        self.pulled: list[str] = []
        self.node = None
        self._runtime_client = SimpleNamespace(
            PullMessages=self._pull_messages,
            PullObject=self._pull_object,
            ConfirmMessageReceived=lambda request: self.confirmed.append(request.message_object_id),
            _client=SimpleNamespace(event_hooks={"request": [], "response": []}),
        )

    @property
    def run(self):
        return SimpleNamespace(run_id=1)

    def _pull_messages(self, request):
        found = []
        for reply in super().pull_messages(request.message_ids):
            objects = get_all_nested_objects(reply)
            self.pieces |= {name: piece.deflate() for name, piece in objects.items()}
            found.append(SimpleNamespace(metadata=SimpleNamespace(message_id=reply.object_id)))
        return SimpleNamespace(messages_list=found)

    def _pull_object(self, request):
        self.pulled.append(request.object_id)
        content = self.pieces.get(request.object_id)
        return PullObjectResponse(
            object_found=content is not None, object_available=True, object_content=content or b""
        )


def ask(node, model):
    grid = Link({1: node})
    message = Message(RecordDict({"arrays": model}), dst_node_id=1, message_type="train")
    (reply,) = exchange(grid, [message], timeout=60, allowance=ReplyAllowance.for_model(model))
    return grid, reply


def bomb_reply(message, model, chunks, times):
    """A reply in the model's form, whose first array names these chunks so many times."""
    reply = train_reply(message, model)
    array = next(iter(reply.content["arrays"].values()))
    array.__dict__["_chunks"] = (chunks or array.slice_array()[:1]) * times
    return reply


def test_a_reply_comes_through_as_it_was_sent():
    model = arrays(0.0)
    sent = arrays(0.25, weight=Array(np.arange(12.0).reshape(3, 4)))
    grid, reply = ask(lambda m: train_reply(m, sent, train_loss=0.5), model)
    assert np.array_equal(weights(reply.content["arrays"]), weights(sent))
    assert reply.content["arrays"] == sent
    assert reply.content["metrics"]["train_loss"] == 0.5
    assert len(grid.confirmed) == 1


def test_arrays_of_equal_chunks_are_joined_as_flower_joins_them():
    """Zeros are one chunk, named many times: that alone is no attack."""
    model = ArrayRecord({"w": Array(np.zeros(3 * CHUNK // 4, np.float32))})
    grid, reply = ask(lambda m: train_reply(m, model), model)
    assert reply.content["arrays"]["w"].data == model["w"].data
    assert len(set(grid.pulled)) == len(grid.pulled)


@pytest.mark.parametrize("times", [2, 2000])
def test_a_chunk_named_thousands_of_times_is_refused_before_it_is_joined(times):
    model = ArrayRecord({"w": Array(np.ones(CHUNK // 4, np.float32))})
    size = len(model["w"].data)

    def bomb(message):
        return bomb_reply(message, model, None, times)

    grid = Link({1: bomb})
    message = Message(RecordDict({"arrays": model}), dst_node_id=1, message_type="train")
    (identifier,) = grid.push_messages([message])
    grid._pull_messages(SimpleNamespace(message_ids=[identifier]))  # In pieces before we measure.
    (name,) = [n for n, piece in grid.pieces.items() if piece.startswith(b"Message ")]
    grid._runtime_client.PullMessages = lambda _: SimpleNamespace(
        messages_list=[SimpleNamespace(metadata=SimpleNamespace(message_id=name))]
    )
    tracemalloc.start()
    try:
        if times == 2:
            (reply,) = pull(grid, identifier, ReplyAllowance.for_model(model), threading.Event())
            assert len(reply.content["arrays"]["w"].data) == 2 * CHUNK
        else:
            with pytest.raises(TooLarge, match="more than 2 times the model"):
                pull(grid, identifier, ReplyAllowance.for_model(model), threading.Event())
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # The arrays themselves, and the piece that is on its way: as bytes and as Flower's message.
    assert peak < 2.3 * size + 2 * CHUNK
    assert grid.confirmed == [name]


def test_a_bomb_is_counted_against_its_node_alone():
    model = ArrayRecord({"w": Array(np.ones(CHUNK // 8, np.float32))})

    def bomb(message):
        return bomb_reply(message, model, None, 999)

    _, reply = ask(bomb, model)
    assert reply.has_error()
    assert "more than 2 times the model" in reply.error.reason
    assert reply.metadata.src_node_id == 1


def test_two_chunks_in_turn_are_no_way_around_it():
    model = ArrayRecord({"w": Array(np.ones(1000, np.float32))})

    def bomb(message):
        chunks = [Array(np.full(900, n, np.float32)).slice_array()[0] for n in range(2)]
        return bomb_reply(message, model, chunks, 5000)

    grid, reply = ask(bomb, model)
    assert reply.has_error()
    assert len(grid.pulled) < 20


def test_empty_chunks_and_long_metrics_cost_something_too():
    model = arrays(0.0)

    def empty(message):
        nothing = ArrayChunk(memoryview(b""))
        return bomb_reply(message, arrays(0.0), [(nothing.object_id, nothing)], 100_000)

    def chatter(message):
        reply = train_reply(message, arrays(0.0))
        reply.content["more"] = MetricRecord({"history": [0.5] * 300_000})
        return reply

    for node in (empty, chatter):
        _, reply = ask(node, model)
        assert reply.has_error(), node
        assert "too long" in reply.error.reason or "2 times" in reply.error.reason


def test_a_piece_that_is_announced_as_too_long_is_not_received():
    def response(path, length):
        url = SimpleNamespace(path=path)
        headers = {"content-length": str(length)}
        return SimpleNamespace(request=SimpleNamespace(url=url), headers=headers)

    _refuse_long_pieces(response("/v1/runtime/pull-object", PIECE_MAX))
    _refuse_long_pieces(response("/v1/runtime/get-nodes", PIECE_MAX + 1))
    with pytest.raises(TooLarge, match="at most"):
        _refuse_long_pieces(response("/v1/runtime/pull-object", PIECE_MAX + 1))


def test_the_connection_is_told_once(caplog):
    grid = Link({})
    for _ in range(2):
        guard(grid)
    hooks = grid._runtime_client._client.event_hooks
    assert hooks["response"] == [_refuse_long_pieces]
    grid._runtime_client = SimpleNamespace()
    with caplog.at_level("WARNING", logger="flwr"):
        guard(grid)
    assert "not bounded" in caplog.text


def server_error(request):
    asked = httpx.Request("POST", "https://link.example/v1/runtime/pull-object")
    raise httpx.HTTPStatusError("500", request=asked, response=httpx.Response(500))


def lost_connection(request):
    raise httpx.ReadError("connection reset")


@pytest.mark.parametrize("trouble", [server_error, lost_connection])
@pytest.mark.parametrize("call", ["PullMessages", "PullObject", "ConfirmMessageReceived"])
def test_a_superlink_that_fails_once_costs_nobody_a_reply(monkeypatch, call, trouble):
    monkeypatch.setattr(pulling, "OBJECT_PAUSE", 0.0)
    sent = arrays(0.25)
    grid = Link({1: lambda m: train_reply(m, sent)})
    works, failed = getattr(grid._runtime_client, call), []

    def fails_once(request):
        if len(failed) < 2 and (call != "PullObject" or grid.pulled):
            failed.append(trouble)
            trouble(request)
        return works(request)

    setattr(grid._runtime_client, call, fails_once)
    message = Message(RecordDict({"arrays": arrays()}), dst_node_id=1, message_type="train")
    (reply,) = exchange(grid, [message], timeout=60, allowance=ReplyAllowance.for_model(arrays()))
    assert reply.content["arrays"] == sent
    assert failed


def test_a_part_that_is_missing_makes_the_reply_unavailable():
    grid = Link({1: lambda m: train_reply(m, arrays(0.0))})
    give = grid._pull_object
    grid._runtime_client.PullObject = lambda request: (
        PullObjectResponse() if len(grid.pulled) > 2 else give(request)
    )
    message = Message(RecordDict({"arrays": arrays()}), dst_node_id=1, message_type="train")
    (reply,) = exchange(grid, [message], timeout=60, allowance=ReplyAllowance.for_model(arrays()))
    assert "is missing" in reply.error.reason


def _junk(kind, children, body):
    return f"{kind} {','.join(children)} {len(body)}".encode() + b"\0" + body


junk_body = st.one_of(
    st.binary(max_size=60),
    st.recursive(st.none() | st.integers() | st.text(max_size=9), st.lists, max_leaves=5).map(
        lambda value: json.dumps({"arraychunk_ids": value, "w": value}).encode()
    ),
)
kinds = st.sampled_from(
    ["Message", "RecordDict", "ArrayRecord", "Array", "ArrayChunk", "Metric", ""]
)


@given(st.lists(st.tuples(kinds, st.integers(0, 3), junk_body), min_size=4, max_size=4))
def test_pieces_of_any_kind_make_an_error_of_their_node_and_nothing_else(made):
    pieces: list[bytes] = []
    for kind, children, body in made:
        pieces.append(_junk(kind, [get_object_id(piece) for piece in pieces[-children:]], body))
    grid = Link({1: lambda m: train_reply(m, arrays(0.0))})
    grid._runtime_client.PullMessages = lambda _: SimpleNamespace(
        messages_list=[
            SimpleNamespace(metadata=SimpleNamespace(message_id=get_object_id(pieces[-1])))
        ]
    )
    grid.pieces = {get_object_id(piece): piece for piece in pieces}
    message = Message(RecordDict({"arrays": arrays()}), dst_node_id=1, message_type="train")
    (reply,) = exchange(grid, [message], timeout=60, allowance=ReplyAllowance.for_model(arrays()))
    assert reply.has_error()
