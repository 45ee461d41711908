"""Work for peers: each has its own places, and none blocks the others."""

import threading
import time

import pytest

from holdout.node.network.queues import PeerWork


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

    work = PeerWork(answer, name="test", threads_max=1, waiting_max=3)
    work.put(1, 0)
    until(lambda: work.put(1, 1))
    taken = 2 + sum(work.put(1, number) for number in range(2, 20))
    assert taken <= 4  # One may be in hand already.
    assert work.put(2, 0)
    gate.set()
    until(lambda: len(answered) == taken + 1)
    # The one that asked little did not wait for all the rest.
    assert answered.index((2, 0)) <= 2
    assert [question for asker, question in answered if asker == 1] == list(range(taken))
    work.close()


def test_an_asker_that_takes_no_answers_keeps_one_thread_waiting(gate):
    answered, taken = [], []

    def answer(asker, question):
        taken.append((asker, question))
        if asker == 1:
            gate.wait(5)
        answered.append((asker, question))

    work = PeerWork(answer, name="test", threads_max=2, waiting_max=10)
    work.put(1, 0)
    until(lambda: taken)
    for number in range(1, 10):
        work.put(1, number)
    for number in range(5):
        work.put(2, number)
    until(lambda: len(answered) == 5)
    assert {asker for asker, _ in answered} == {2}
    gate.set()
    until(lambda: len(answered) == 15)
    work.close()


def test_a_failing_answer_harms_nobody_else():
    answered = []

    def answer(asker, question):
        if question == "bad":
            raise ValueError(question)
        answered.append(asker)

    work = PeerWork(answer, name="test", threads_max=1, waiting_max=10)
    for asker, question in [(1, "bad"), (2, "good"), (1, "good")]:
        work.put(asker, question)
    until(lambda: sorted(answered) == [1, 2])
    assert work.failed == 1
    work.close()


def test_what_is_closed_hands_back_what_waits(gate):
    work = PeerWork(lambda *_: gate.wait(5), name="test", threads_max=1, waiting_max=10)
    work.put(1, "a")
    until(lambda: work.put(1, "b"))
    assert "b" in work.close()
    assert not work.put(1, "c")


def test_threads_are_started_when_all_others_are_busy(gate):
    taken = []

    def answer(asker, _question):
        taken.append(asker)
        gate.wait(5)

    def count():
        return sum(thread.name.startswith("counted-") for thread in threading.enumerate())

    work = PeerWork(answer, name="counted", threads_max=3, waiting_max=10)
    assert count() == 1
    for asker in range(4):
        for number in range(2):
            assert work.put(asker, number)
    until(lambda: len(taken) == 3)
    # One thread for each of three; the fourth asker waits for its turn.
    assert sorted(taken) == [0, 1, 2]
    assert count() == 3
    gate.set()
    until(lambda: len(taken) == 8)
    work.close()
