"""The sizes of a network that a config asks for, and what is said about them."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdout.agreement import sizing
from holdout.agreement.params import RoleDraw, TallyRule
from holdout.agreement.sizing import STRICT, ballots_suffice, voters_for
from holdout.config import parse
from holdout.federation.network_sizes import notes_on, params_of, sizes_of
from holdout.ids import Digest


def config(**sections):
    sections["federation"] = {"mode": "decentralized", **sections.get("federation", {})}
    return parse(sections).checked()


@given(st.data())
def test_honest_ballots_carry_an_update_over_the_floor_whatever_the_size(data):
    n = data.draw(st.integers(4, 60))
    liars = data.draw(st.integers(0, (n - 1) // 3))
    voters = data.draw(st.integers(1, n))
    f = Fraction(liars, n)
    found = voters_for(n, liars, f, voters, STRICT)
    assert found.size == voters
    assert ballots_suffice(f, found.ballots_min, found.byzantine_max)
    assert 0 <= found.byzantine_max <= liars
    if found.byzantine_max and not _planned(n, liars, f, voters):
        # The smallest that will do: one ballot less would not be enough.
        assert not ballots_suffice(f, found.ballots_min - 1, found.byzantine_max)


def _planned(n, liars, f, voters):
    judged = sizing.judge_voters(n, liars, voters, STRICT, RoleDraw.SELF)
    return ballots_suffice(f, judged.ballots_min, judged.byzantine_max)


def test_as_many_voters_as_the_tables_say_have_the_tables_floor():
    planned = sizing.sizes(n=100, f=Fraction(1, 5)).voters
    assert voters_for(100, 20, Fraction(1, 5), planned.size, STRICT) == planned


def test_a_small_committee_has_a_floor_that_it_can_reach():
    # The tables' floor for it would be 12 of 12: every round would be empty.
    found = voters_for(100, 33, Fraction(33, 100), 12, STRICT)
    assert (found.ballots_min, found.byzantine_max) == (6, 4)


def test_everything_but_proposers_and_voters_follows_from_n_and_f():
    chosen = config(federation={"workers": 40, "byzantine": 0.3, "assumed_byzantine": 0.3})
    sizes = sizes_of(chosen)
    assert (sizes.committee.size, sizes.committee.quorum, sizes.leaders) == (40, 27, 20)
    assert (sizes.proposers, sizes.voters.size) == (30, 30)


def test_sizes_of_the_tables_need_no_note():
    planned = sizing.sizes(n=40, f=Fraction(3, 10), risk=sizing.Risk(rounds=60))
    federation = {"workers": 40, "byzantine": 0.3, "assumed_byzantine": 0.3}
    drawn = {"proposers": planned.proposers, "voters": planned.voters.size}
    assert notes_on(config(experiment={"rounds": 60}, federation={**federation, **drawn})) == []
    drawn["voters"] -= 1
    notes = notes_on(config(experiment={"rounds": 60}, federation={**federation, **drawn}))
    assert notes[0] == (
        f"sizes below the tables: federation.voters = {drawn['voters']} "
        f"(the tables ask for {planned.voters.size})"
    )
    assert len(notes) > 1
    assert all(note.startswith("not guaranteed: ") for note in notes[1:])


def test_more_liars_than_assumed_are_pointed_out_unless_nobody_lies():
    federation = {"workers": 40, "byzantine": 12, "assumed_byzantine": 8, "voters": 40}
    federation["proposers"] = 40
    assert notes_on(config(federation=federation)) == [
        "12 of 40 workers lie, more than the B = 8 that the network is built for"
    ]
    assert notes_on(config(federation=federation, attack={"name": "none"})) == []


def test_a_server_needs_no_notes():
    assert notes_on(parse({}).checked()) == []


@pytest.mark.parametrize(
    ("schedule", "rates"), [("constant", (0.1,)), ("inverse", (0.1, 0.05, 0.1 / 3))]
)
def test_the_learning_rate_goes_by_steps(schedule, rates):
    chosen = config(experiment={"rounds": 3}, training={"schedule": schedule})
    params = params_of(
        chosen, "holdout", shapes=[(2, 3), (3,)], model_first=Digest(bytes(32)), radius_first=2.0
    )
    params.check()
    assert params.rates == rates
    assert (params.dimension, params.shapes) == (9, ((2, 3), (3,)))
    assert (params.radius_first, params.tally) == (2.0, TallyRule.COMPLETION)


def test_the_paper_rule_counts_to_the_letter():
    params = params_of(
        config(), "holdout-paper", shapes=[(1,)], model_first=Digest(bytes(32)), radius_first=0.0
    )
    assert params.tally is TallyRule.PAPER
