"""Sending and polling: no node can hold up or break the others."""

import threading
import time
from types import SimpleNamespace

import pytest
from flwr.app import Error, Message, RecordDict
from tests.flower.flower_grid import FakeGrid, SilentError, WatchedGrid, arrays, train_reply

from holdout.flower.answers import ReplyFault, error_fault
from holdout.flower.exchange import PollingGrid, exchange


def message(node: int, kind: str = "train") -> Message:
    return Message(RecordDict({"arrays": arrays()}), dst_node_id=node, message_type=kind)


def echo(asked: Message) -> Message:
    return train_reply(asked, arrays())


def is_query(asked: Message) -> bool:
    return asked.metadata.message_type == "query"


def silent(_asked: Message) -> Message:
    raise SilentError


def test_all_replies_are_there_as_soon_as_all_have_answered():
    grid = FakeGrid(dict.fromkeys(range(8), echo))
    began = time.monotonic()
    replies = exchange(grid, [message(node) for node in range(8)], timeout=60)
    assert sorted(reply.metadata.src_node_id for reply in replies) == list(range(8))
    assert time.monotonic() - began < 30


def test_whoever_is_silent_is_waited_for_until_the_time_is_over():
    grid = FakeGrid({0: echo, 1: silent, 2: echo})
    began = time.monotonic()
    replies = exchange(grid, [message(node) for node in range(3)], timeout=0.3)
    assert sorted(reply.metadata.src_node_id for reply in replies) == [0, 2]
    assert 0.3 <= time.monotonic() - began < 30


def test_a_reply_that_cannot_be_decoded_becomes_an_error_of_its_node_alone():
    grid = FakeGrid({0: echo, 1: lambda _: [KeyError("no such class")], 2: echo})
    replies = exchange(grid, [message(node) for node in range(3)], timeout=60)
    bad = [reply for reply in replies if reply.has_error()]
    assert [reply.metadata.src_node_id for reply in bad] == [1]
    assert error_fault(bad[0].error) is ReplyFault.UNREADABLE
    assert len(replies) == 3


class StallingGrid(FakeGrid):
    """Pulling the reply of node 1 does not return, as if its upload never ended."""

    def __init__(self, nodes):
        super().__init__(nodes)
        self.release = threading.Event()

    def pull_messages(self, message_ids):
        if message_ids == ["message-2"]:
            self.release.wait(30)
        return super().pull_messages(message_ids)


def test_an_upload_that_never_ends_holds_up_nobody_else():
    grid = StallingGrid(dict.fromkeys(range(3), echo))
    try:
        replies = exchange(grid, [message(node) for node in range(3)], timeout=0.5)
    finally:
        grid.release.set()
    assert sorted(reply.metadata.src_node_id for reply in replies) == [0, 2]


class FullGrid(FakeGrid):
    """The SuperLink does not take messages for node 1."""

    def push_messages(self, messages):
        if messages[0].metadata.dst_node_id == 1:
            return [None]
        return super().push_messages(messages)


def test_a_message_that_the_superlink_does_not_take_is_answered_for_its_node():
    grid = FullGrid(dict.fromkeys(range(3), echo))
    replies = exchange(grid, [message(node) for node in range(3)], timeout=60)
    (bad,) = [reply for reply in replies if reply.has_error()]
    assert error_fault(bad.error) is ReplyFault.UNAVAILABLE


def test_what_flower_s_error_codes_stand_for():
    kinds = {code: error_fault(Error(code)) for code in (0, 2, 3, 4, 5, 8)}
    assert kinds == {
        0: ReplyFault.ERROR,
        2: ReplyFault.ERROR,
        3: ReplyFault.UNAVAILABLE,
        4: ReplyFault.UNAVAILABLE,
        5: ReplyFault.UNAVAILABLE,
        8: ReplyFault.ERROR,
    }


def test_a_question_can_be_put_differently_after_an_answer():
    grid = FakeGrid({0: lambda asked: echo(asked) if is_query(asked) else 1 / 0})

    def again(asked, reply):
        return message(0, "query") if reply.has_error() else None

    (reply,) = exchange(grid, [message(0)], timeout=60, again=again)
    assert reply.metadata.message_type == "query"
    assert not reply.has_error()


def test_messages_are_made_one_by_one_as_they_are_sent():
    grid = FakeGrid(dict.fromkeys(range(3), echo))
    known = []

    def messages():
        for node in range(3):
            known.append(len(grid.sent))
            yield message(node)

    exchange(grid, messages(), timeout=60)
    assert known == [0, 1, 2]


def test_the_polling_grid_limits_each_type_of_message():
    grid = PollingGrid(FakeGrid({0: silent}), {"train": 0.1, "evaluate": 0.2})
    for kind, least in (("train", 0.1), ("evaluate", 0.2)):
        began = time.monotonic()
        assert list(grid.send_and_receive([message(0, kind)], timeout=50)) == []
        assert least <= time.monotonic() - began < 30
    assert list(grid.send_and_receive([], timeout=50)) == []
    assert list(grid.get_node_ids()) == [0]


def test_the_threads_end_with_the_exchange():
    before = threading.active_count()
    grid = FakeGrid(dict.fromkeys(range(5), silent))
    exchange(grid, [message(node) for node in range(5)], timeout=0.05)
    deadline = time.monotonic() + 30
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() <= before


def test_whoever_is_asked_last_has_as_much_time_as_the_first(monkeypatch):
    grid = FakeGrid(dict.fromkeys(range(6), echo))
    pull = grid.pull_messages
    all_sent = threading.Event()

    def monotonic() -> float:
        # To send a message takes nearly as long as there is for the answer.
        if len(grid.sent) == 6:
            all_sent.set()
        return 50.0 * len(grid.sent)

    def late(identifiers):
        assert all_sent.wait(30)
        return pull(identifiers)

    monkeypatch.setattr(grid, "pull_messages", late)
    monkeypatch.setattr("holdout.flower.exchange.time", SimpleNamespace(monotonic=monotonic))
    replies = exchange(grid, [message(node) for node in range(6)], timeout=60)
    assert sorted(reply.metadata.src_node_id for reply in replies) == list(range(6))


@pytest.mark.parametrize(("at_once", "most"), [(1, 1), (3, 3), (8, 8), (20, 8), (None, 8)])
def test_so_many_nodes_are_asked_at_once_and_all_in_the_end(at_once, most):
    grid = WatchedGrid(dict.fromkeys(range(8), echo), wanted=most)
    replies = exchange(grid, [message(node) for node in range(8)], timeout=60, at_once=at_once)
    assert sorted(reply.metadata.src_node_id for reply in replies) == list(range(8))
    assert grid.most == most


def test_silent_nodes_give_up_their_places_when_the_time_is_over():
    grid = FakeGrid({**dict.fromkeys(range(4), silent), 4: echo, 5: echo})
    replies = exchange(grid, [message(node) for node in range(6)], timeout=0.3, at_once=2)
    assert sorted(reply.metadata.src_node_id for reply in replies) == [4, 5]
    assert [asked.metadata.dst_node_id for asked in grid.sent] == list(range(6))


def test_an_answer_counts_though_its_place_was_given_up():
    grid = FakeGrid(dict.fromkeys(range(3), echo))
    pull = grid.pull_messages

    def late(identifiers):
        return [] if identifiers == ["message-1"] and len(grid.sent) < 3 else pull(identifiers)

    grid.pull_messages = late
    replies = exchange(grid, [message(node) for node in range(3)], timeout=1.5, at_once=1)
    assert sorted(reply.metadata.src_node_id for reply in replies) == [0, 1, 2]


def test_the_grace_time_begins_only_when_all_have_been_asked():
    """Two of three are silent, and one may be late: nobody is left out for want of a place."""
    grid = FakeGrid({0: silent, 1: echo, 2: echo})
    replies = exchange(
        grid, [message(node) for node in range(3)], timeout=0.5, at_once=1, late=2, grace=0.0
    )
    assert 1 in [reply.metadata.src_node_id for reply in replies]
    assert len(grid.sent) == 3


def test_a_question_that_is_put_differently_keeps_its_place():
    grid = WatchedGrid(dict.fromkeys(range(6), echo), wanted=2)

    def again(asked, _reply):
        return None if is_query(asked) else message(asked.metadata.dst_node_id, "query")

    replies = exchange(
        grid, [message(node) for node in range(6)], timeout=60, at_once=2, again=again
    )
    assert [reply.metadata.message_type for reply in replies] == ["query"] * 6
    assert grid.most == 2
