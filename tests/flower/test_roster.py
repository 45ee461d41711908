"""Who is drawn, who is waited for, and who is left out for silence."""

import json

import pytest

from holdout.errors import InfeasibleError
from holdout.flower.roster import FIRST_REST, LONGEST_REST, Roster, wait_for_nodes


def test_numbers_follow_the_ids_of_nodes_seen_together_and_never_change():
    roster = Roster()
    assert roster.eligible([30, 10, 20], round_number=1, needed=0) == [10, 20, 30]
    assert roster.eligible([5, 30, 10, 20], round_number=2, needed=0) == [10, 20, 30, 5]
    assert roster.numbers == {10: 0, 20: 1, 30: 2, 5: 3}


def test_a_node_silent_twice_in_a_row_rests_and_comes_back():
    roster = Roster()
    nodes = [1, 2, 3]
    roster.eligible(nodes, round_number=1, needed=0)
    roster.silent(2, "train", round_number=1)
    assert roster.eligible(nodes, round_number=2, needed=0) == nodes
    roster.silent(2, "train", round_number=2)
    for number in range(3, 3 + FIRST_REST):
        assert roster.eligible(nodes, round_number=number, needed=0) == [1, 3]
        assert roster.resting(number) == [2]
    assert roster.eligible(nodes, round_number=3 + FIRST_REST, needed=0) == nodes


def test_an_answer_in_between_forgives():
    roster = Roster()
    roster.eligible([1, 2], round_number=1, needed=0)
    for number in range(1, 9):
        roster.silent(2, "train", round_number=number)
        roster.heard(2, "train")
    assert roster.eligible([1, 2], round_number=9, needed=0) == [1, 2]


def test_who_votes_but_never_trains_rests_too():
    roster = Roster()
    roster.eligible([1, 2], round_number=1, needed=0)
    for number in (1, 2):
        roster.silent(2, "train", round_number=number)
        roster.heard(2, "evaluate.vote")
    assert roster.resting(3) == [2]
    roster.heard(2, "train")
    assert roster.resting(3) == []


def test_a_roster_is_the_same_after_it_was_written_down():
    roster = Roster()
    roster.eligible([2**63 + 5, 7], round_number=1, needed=0)
    roster.vote_types[7] = "evaluate"
    for number in (1, 2):
        roster.silent(7, "train", round_number=number)
    again = Roster.from_dict(json.loads(json.dumps(roster.as_dict())))
    assert again == roster
    assert again.resting(3) == [7]


def test_whoever_stays_silent_rests_twice_as_long_each_time_up_to_a_limit():
    roster = Roster()
    roster.eligible([1], round_number=1, needed=0)
    roster.silent(1, "train", round_number=1)
    number, rests = 2, []
    for _ in range(6):
        roster.silent(1, "train", round_number=number)
        back = number + 1
        while roster.resting(back):
            back += 1
        rests.append(back - number - 1)
        number = back
    assert rests == [2, 4, 8, 16, LONGEST_REST, LONGEST_REST]


def test_resting_nodes_make_up_the_number_if_there_are_too_few_others():
    roster = Roster()
    nodes = [1, 2, 3, 4]
    roster.eligible(nodes, round_number=1, needed=0)
    for number in (1, 2):
        roster.silent(4, "train", round_number=number)
    for number in (2, 3):
        roster.silent(3, "train", round_number=number)
    assert roster.eligible(nodes, round_number=4, needed=2) == [1, 2]
    # Whose rest is over sooner comes first.
    assert roster.eligible(nodes, round_number=4, needed=3) == [1, 2, 4]
    assert roster.eligible(nodes, round_number=4, needed=4) == nodes


def test_waiting_ends_when_enough_nodes_are_there():
    seen = iter([[1], [1, 2], [1, 2, 3]])
    found = wait_for_nodes(lambda: next(seen), lambda _: 3, timeout=10, what="round 1")
    assert found == [1, 2, 3]


def test_waiting_ends_with_a_clear_error_after_the_time():
    with pytest.raises(
        InfeasibleError,
        match=r"round 1: 3 nodes are needed; 2 were connected after waiting 0\.05 seconds",
    ):
        wait_for_nodes(lambda: [1, 2], lambda _: 3, timeout=0.05, what="round 1")
