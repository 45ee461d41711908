"""Questions of peers: each asker has its own places, and none blocks the others."""

import threading
import time

import pytest

from holdout.node.serving import Desk


def until(condition, seconds=5.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "not in time"
        time.sleep(0.002)


@pytest.fixture
def gate():
    """Answers wait for it to be opened."""
    event = threading.Event()
    yield event
    event.set()


def test_an_asker_that_asks_too_much_loses_its_own_questions_only(gate):
    answered = []

    def answer(asker, question):
        gate.wait(5)
        answered.append((asker, question))

    desk = Desk(answer, threads=1, waiting_max=3)
    desk.put(1, 0)
    until(lambda: desk.put(1, 1))
    taken = 2 + sum(desk.put(1, number) for number in range(2, 20))
    assert taken <= 4  # One may be in hand already.
    assert desk.put(2, 0)
    gate.set()
    until(lambda: len(answered) == taken + 1)
    # The one that asked little did not wait for all the rest.
    assert answered.index((2, 0)) <= 2
    assert [question for asker, question in answered if asker == 1] == list(range(taken))
    desk.close()


def test_an_asker_that_takes_no_answers_keeps_one_thread_waiting(gate):
    answered, taken = [], []

    def answer(asker, question):
        taken.append((asker, question))
        if asker == 1:
            gate.wait(5)
        answered.append((asker, question))

    desk = Desk(answer, threads=2, waiting_max=10)
    desk.put(1, 0)
    until(lambda: taken)
    for number in range(1, 10):
        desk.put(1, number)
    for number in range(5):
        desk.put(2, number)
    until(lambda: len(answered) == 5)
    assert {asker for asker, _ in answered} == {2}
    gate.set()
    until(lambda: len(answered) == 15)
    desk.close()


def test_a_failing_answer_harms_nobody_else():
    answered = []

    def answer(asker, question):
        if question == "bad":
            raise ValueError(question)
        answered.append(asker)

    desk = Desk(answer, threads=1, waiting_max=10)
    for asker, question in [(1, "bad"), (2, "good"), (1, "good")]:
        desk.put(asker, question)
    until(lambda: sorted(answered) == [1, 2])
    assert desk.failed == 1
    desk.close()


def test_a_closed_desk_hands_back_what_waits(gate):
    desk = Desk(lambda *_: gate.wait(5), threads=1, waiting_max=10)
    desk.put(1, "a")
    until(lambda: desk.put(1, "b"))
    assert "b" in desk.close()
    assert not desk.put(1, "c")
