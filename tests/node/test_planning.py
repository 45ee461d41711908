"""The parameters of a new network: from the tables, by hand, and said where they are too small."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdout.agreement import sizing
from holdout.errors import ConfigError, UserError
from holdout.node.membership.genesis import Parameters
from holdout.node.membership.network_creation import (
    plan_parameters,
    read_byzantine,
    read_parameters,
    usual_parameters,
)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 7, 10, 20])
def test_in_small_networks_everybody_takes_part(n):
    assert plan_parameters(n, {}) == usual_parameters(n, (n - 1) // 3, 0.1)


def test_large_networks_draw_as_many_as_the_tables_say():
    made = plan_parameters(100, {"byzantine": 20})
    planned = sizing.sizes(n=100, f=20)
    assert (made.proposers, made.voters) == (planned.proposers, planned.voters.size)
    assert made.ballots_min == planned.voters.ballots_min
    assert made.byzantine_voters_max == planned.voters.byzantine_max
    assert made.leaders == 20
    assert (made.mode, made.quorum) == ("all", None)
    huge = plan_parameters(2000, {"byzantine": "1/10"})
    assert huge.mode == "shuffle"
    assert 0 < huge.quorum < huge.committee < 2000


def test_what_is_given_is_taken():
    made = plan_parameters(
        60,
        {"byzantine": 0.1, "mode": "self", "role_draw": "fixed", "leaders": 5, "tally": "paper"},
    )
    assert made.byzantine == Fraction(1, 10)
    assert (made.mode, made.role_draw, made.leaders, made.tally) == ("self", "fixed", 5, "paper")
    assert 0 < made.quorum <= made.committee <= 60


def test_too_few_voters_need_numbers_by_hand():
    with pytest.raises(UserError, match="ballots_min and byzantine_voters_max by hand"):
        plan_parameters(100, {"byzantine": 33, "voters": 30})
    made = plan_parameters(
        100, {"byzantine": 33, "voters": 30, "ballots_min": 10, "byzantine_voters_max": 0}
    )
    assert (made.voters, made.ballots_min, made.byzantine_voters_max) == (30, 10, 0)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"byzantine": 3}, "3B \\+ 1"),
        ({"byzantine": "many"}, "byzantine"),
        ({"proposers": 0}, "parameters.proposers = 0: must be greater than or equal to 1"),
        ({"proposers": 8}, "7 members cannot have 8 proposers"),
        ({"voters": 99}, "7 members cannot have 99 voters"),
        ({"voters": "all"}, "parameters.voters"),
        ({"mode": "shuffle"}, "at least 50"),
        ({"nonsense": 1}, "parameters.nonsense = 1: unknown key"),
        ({"learning_rates": []}, "parameters.learning_rates"),
    ],
)
def test_mistakes_are_named(wrong, said):
    with pytest.raises(UserError, match=said):
        plan_parameters(7, wrong)


def test_all_mistakes_are_told_at_once():
    with pytest.raises(ConfigError) as caught:
        plan_parameters(7, {"proposers": 0, "leaders": -1})
    assert len(caught.value.problems) == 2


@given(st.integers(1, 200), st.integers(0, 66))
def test_what_is_planned_needs_no_excuse(n, liars):
    if 3 * liars >= n:
        return
    made = plan_parameters(n, {"byzantine": liars})
    assert isinstance(made, Parameters)
    assert sizing.ballots_suffice(Fraction(liars, n), made.ballots_min, made.byzantine_voters_max)
    assert 1 <= made.proposers <= n


def test_a_file_of_parameters_holds_them_and_nothing_else(tmp_path):
    path = tmp_path / "p.toml"
    path.write_text('[parameters]\nbyzantine = "1/5"\nlearning_rates = [0.2, 0.1]\n')
    assert read_parameters(path) == {"byzantine": "1/5", "learning_rates": [0.2, 0.1]}
    for text in ("", "voters = 3\n", "[parameters]\n[model]\n", "parameters = 3\n"):
        path.write_text(text)
        with pytest.raises(UserError, match="must hold a table"):
            read_parameters(path)


def test_liars_are_a_share_or_a_number():
    assert [read_byzantine(text, 7) for text in ("2", "0.3", "1/3", "0")] == [2, 2, 2, 0]
    with pytest.raises(UserError, match="--byzantine"):
        read_byzantine("some", 7)
