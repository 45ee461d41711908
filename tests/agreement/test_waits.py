"""Whom to wait for, and how long: what B members cannot move."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdout.agreement.messages import Kind
from holdout.agreement.params import MILLISECOND, Timing
from holdout.agreement.waits import (
    EXCUSED_ROUNDS_MAX,
    PATIENCE,
    Waits,
    ballots_end,
    leads_end,
    proposals_end,
)

SECOND = 1_000 * MILLISECOND
TIMING = Timing(propose=60 * SECOND, vote=60 * SECOND, propose_min=100_000, vote_min=100_000)
EVERYBODY = tuple(range(7))


def make(first_round=1):
    return Waits(7, 2, TIMING, first_round)


def play(waits, number, times, kind=Kind.UPDATE):
    """One round, and when each worker was heard in it, in milliseconds."""
    start = number * 100 * SECOND
    waits.begin(number, start)
    waits.begin_period(number, start)
    for worker, at in times.items():
        waits.note(kind, worker, number, start + at * MILLISECOND)


def miss(waits, number, *missing, kind=Kind.UPDATE):
    waits.ended(kind, waits.present(kind, EVERYBODY, number), missing, number)


def test_the_grace_is_as_long_as_all_but_b_took():
    assert proposals_end(SECOND, 3 * SECOND, TIMING) == 5 * SECOND
    assert proposals_end(SECOND, SECOND, TIMING) == SECOND + TIMING.propose_min
    assert ballots_end(SECOND, 2 * SECOND, 3 * SECOND, TIMING) == (3.5 * SECOND, 4.5 * SECOND)
    assert leads_end(SECOND, 3 * SECOND, TIMING) == 5 * SECOND
    assert leads_end(SECOND, SECOND, TIMING) == SECOND + TIMING.delay // 2
    assert ballots_end(0, 0, 0, TIMING) == (TIMING.vote_min, TIMING.vote_min)


def test_whoever_misses_a_wait_is_excused_for_twice_as_many_rounds_each_time():
    waits = make()
    excused, number = [], 1
    for _ in range(8):
        play(waits, number, dict.fromkeys(EVERYBODY, 100))
        miss(waits, number, 6)
        last = number
        number += 1
        while 6 not in waits.present(Kind.UPDATE, EVERYBODY, number):
            play(waits, number, dict.fromkeys(EVERYBODY, 100))
            miss(waits, number)
            number += 1
        excused.append(number - last - 1)
    assert excused == [2, 4, 8, 16, 32, 64, 64, 64]
    assert EXCUSED_ROUNDS_MAX == 64


def test_whoever_is_in_time_again_for_long_is_forgiven():
    waits = make()
    play(waits, 1, {})
    miss(waits, 1, 6)
    for number in range(2, 12):
        play(waits, number, dict.fromkeys(EVERYBODY, 100))
        miss(waits, number)
    miss(waits, 12, 6)
    assert waits.members()[6].excused_until == 12 + 1 + 2


@pytest.mark.parametrize("kind", [Kind.BALLOT, Kind.LEAD])
def test_ballots_and_leads_are_waited_for_whatever_was_missed(kind):
    waits = make()
    play(waits, 1, dict.fromkeys(EVERYBODY, 1), kind)
    miss(waits, 1, 5, 6, kind=kind)
    waits.away = frozenset({4})
    assert waits.present(kind, EVERYBODY, 2) == list(EVERYBODY)
    assert waits.members()[5].missed == 1


@given(st.sets(st.integers(0, 6)), st.sets(st.integers(0, 6)))
def test_never_more_than_b_are_excused(missing, away):
    waits = make()
    play(waits, 1, dict.fromkeys(EVERYBODY, 100))
    miss(waits, 1, *sorted(missing))
    waits.away = frozenset(away)
    present = waits.present(Kind.UPDATE, EVERYBODY, 2)
    assert len(present) == 7 - min(2, len(missing | away))
    assert set(EVERYBODY) - set(present) <= missing | away


def test_whoever_was_silent_for_long_is_not_waited_for_however_many_they_are():
    waits = make()
    for number in range(1, PATIENCE + 2):
        play(waits, number, {0: 10, 1: 10})
    assert waits.present(Kind.UPDATE, EVERYBODY, PATIENCE + 1) == [0, 1]


@given(st.lists(st.integers(0, 10**6), min_size=2, max_size=2))
def test_the_times_of_two_of_seven_do_not_change_who_else_is_named_slow(lies):
    waits = make()
    honest = {worker: 400 + 10 * worker for worker in range(5)}
    for number in range(1, 6):
        play(waits, number, {**honest, 5: lies[0], 6: lies[1]})
    assert not set(waits.slow()) & set(range(5))
    assert {5 + place for place, lie in enumerate(lies) if lie > 700} <= set(waits.slow())


def test_a_slow_member_is_named_with_its_times():
    waits = make()
    for number in range(1, 6):
        play(waits, number, {**dict.fromkeys(range(6), 400), 6: 900})
    assert waits.slow() == (6,)
    assert waits.members()[6].gradient == 900 * MILLISECOND
    assert waits.members()[6].ballot is None


def test_a_secret_draw_starts_low_learns_and_grows_slowly():
    waits = make()
    waits.begin(1, 0)
    first = waits.guess(Kind.UPDATE)
    assert first == 8 * TIMING.delay
    play(waits, 2, {})
    assert waits.guess(Kind.UPDATE) == 2 * first
    waits = make()
    for number in range(1, 9):
        play(waits, number, {**dict.fromkeys(range(5), 30 * 1_000), 5: 1, 6: 59_000})
        assert waits.guess(Kind.UPDATE) <= min(first << (number - 1), 60 * SECOND)
    assert waits.guess(Kind.UPDATE) == 60 * SECOND
    for number in range(9, 20):
        play(waits, number, {**dict.fromkeys(range(5), 300), 5: 59_000, 6: 59_000})
    assert waits.guess(Kind.UPDATE) == 600 * MILLISECOND
