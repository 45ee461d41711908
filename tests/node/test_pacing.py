"""Waits that follow what was measured, within bounds."""

from holdout.agreement.params import MILLISECOND, Timing
from holdout.node.runtime.pacing import Pacing

LOW = Timing(propose=100 * MILLISECOND, vote=100 * MILLISECOND)
HIGH = Timing(propose=9_000 * MILLISECOND, vote=9_000 * MILLISECOND)


def play(pacing, start, proposals, ballots):
    """One round: when each worker's gradient and ballot came, in milliseconds."""
    pacing.began(start)
    for worker, at in proposals.items():
        pacing.proposed(worker, start + at * MILLISECOND)
    judged = max(proposals.values(), default=0)
    pacing.judging(start + judged * MILLISECOND)
    for worker, at in ballots.items():
        pacing.voted(worker, start + (judged + at) * MILLISECOND)


def test_without_experience_the_longest_wait():
    assert Pacing(LOW, HIGH).timing() == HIGH


def test_twice_the_slowest_that_speaks():
    pacing = Pacing(LOW, HIGH)
    for number in range(5):
        play(pacing, number * 10**7, {0: 100, 1: 400}, {0: 50, 1: 300})
    assert pacing.timing().propose == 800 * MILLISECOND
    assert pacing.timing().vote == 600 * MILLISECOND


def test_a_wait_stays_within_its_bounds():
    pacing = Pacing(LOW, HIGH)
    play(pacing, 0, {0: 1}, {0: 1})
    assert pacing.timing().propose == LOW.propose
    play(pacing, 10**8, {0: 60_000}, {0: 60_000})
    assert pacing.timing().propose == HIGH.propose
    assert pacing.timing().delay == HIGH.delay


def test_one_slow_round_of_many_is_remembered_and_then_forgotten():
    pacing = Pacing(LOW, HIGH)
    play(pacing, 0, {0: 100, 1: 2_000}, {0: 10})
    for number in range(1, 5):
        play(pacing, number * 10**7, {0: 100, 1: 100}, {0: 10})
    assert pacing.timing().propose == 4_000 * MILLISECOND
    for number in range(5, 15):
        play(pacing, number * 10**7, {0: 100, 1: 100}, {0: 10})
    assert pacing.timing().propose == 200 * MILLISECOND


def test_who_speaks_seldom_is_not_waited_for():
    pacing = Pacing(LOW, HIGH)
    play(pacing, 0, {0: 100, 1: 3_000}, {0: 10})
    for number in range(1, 4):
        play(pacing, number * 10**7, {0: 100}, {0: 10})
    assert pacing.timing().propose == 200 * MILLISECOND


def test_who_has_left_is_not_waited_for():
    pacing = Pacing(LOW, HIGH)
    for number in range(5):
        play(pacing, number * 10**7, {0: 100, 1: 400}, {0: 150, 1: 300})
    pacing.left(1)
    assert pacing.timing().propose == 200 * MILLISECOND
    assert pacing.timing().vote == 300 * MILLISECOND
