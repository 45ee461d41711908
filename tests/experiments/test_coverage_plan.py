"""`holdout plan --coverage`: against brute force."""

import itertools
import json
import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdout.commands import run_command
from holdout.errors import UserError
from holdout.experiments.coverage_plan import COMMITTEE_MAX
from holdout.experiments.sizes import plan_committee

PAPER = {"workers": 100, "byzantine": Fraction(33, 100), "rounds": 100, "delta": 0.05}


@given(st.integers(1, 300), st.fractions(Fraction(1, 1000), 1, max_denominator=1000))
def test_the_largest_number_of_liars_is_the_last_with_an_honest_majority(workers, coverage):
    made = plan_committee(workers=workers, byzantine=0, rounds=1, delta=0.5, coverage=coverage)
    fits = [liars for liars in range(workers + 1) if coverage * (workers - liars) > liars]
    assert made.judges.liars_max == max(fits)


def plain_failure(workers, liars, size, coverage):
    """Every committee, and for each everything its honest members may be able to judge."""
    failed = total = 0.0
    for committee in itertools.combinations(range(workers), size):
        lying = sum(worker < liars for worker in committee)
        honest = size - lying
        for able in itertools.product((False, True), repeat=honest):
            chance = math.prod(coverage if one else 1 - coverage for one in able)
            total += chance
            failed += chance * (sum(able) <= lying)
    return failed / total


@pytest.mark.parametrize("coverage", [Fraction(1, 4), Fraction(3, 5), Fraction(1)])
@pytest.mark.parametrize(("workers", "liars", "size"), [(7, 2, 4), (8, 3, 5), (6, 0, 3), (5, 1, 5)])
def test_the_odds_of_a_committee_are_those_of_all_committees(workers, liars, size, coverage):
    setting = {"workers": workers, "rounds": 3, "delta": 0.4, "coverage": coverage}
    made = plan_committee(**setting, byzantine=Fraction(liars, workers), committee=size).judges
    once = plain_failure(workers, liars, size, float(coverage))
    assert made.committee.failure_round == pytest.approx(once)
    assert made.committee.failure_run == pytest.approx(1 - (1 - once) ** 3)
    fits = [
        number
        for number in range(workers + 1)
        if 1 - (1 - plain_failure(workers, number, size, float(coverage))) ** 3 <= 0.4
    ]
    assert made.committee.liars_max == (max(fits) if fits else None)


def test_the_document_has_the_keys_and_the_text_the_numbers(capsys):
    words = ["plan", "--workers", "100", "--byzantine", "0.33", "--rounds", "100"]
    words += ["--delta", "0.05", "--committee", "30", "--coverage", "0.27"]
    assert run_command([*words, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert list(document)[-7:] == [
        "coverage",
        "judges_share_limit",
        "judges_liars_max",
        "judges_majority",
        "judges_failure_round",
        "judges_failure_run",
        "judges_liars_max_committee",
    ]
    assert document["judges_share_limit"] == pytest.approx(0.27 / 1.27)
    assert (document["judges_liars_max"], document["judges_majority"]) == (21, False)
    assert run_command(words) == 0
    text = capsys.readouterr().out
    assert "below f = 0.2126, that is with at most 21 liars among 100" in text
    assert "33 liars are too many" in text
    assert f"{document['judges_failure_round']:.4g}" in text


@pytest.mark.parametrize("coverage", ["0", "1.5", "-0.1", "nan", "abc", "2", "", "1/0"])
def test_a_coverage_that_is_no_share_is_refused(coverage, capsys):
    words = ["plan", "--workers", "10", "--byzantine", "1", "--rounds", "3", "--delta", "0.1"]
    with pytest.raises(SystemExit, match="2"):
        run_command([*words, f"--coverage={coverage}"])
    assert "must be a share above 0 and at most 1" in capsys.readouterr().err


def test_what_cannot_be_planned_is_refused(capsys):
    with pytest.raises(UserError, match="coverage must be above 0 and at most 1; got 0"):
        plan_committee(**PAPER, coverage=Fraction(0))
    large = PAPER | {"workers": 10_000}
    with pytest.raises(UserError, match=f"at most {COMMITTEE_MAX}; got committee=1001"):
        plan_committee(**large, committee=COMMITTEE_MAX + 1, coverage=Fraction(1, 2))
    words = ["plan", "--workers", "10", "--byzantine", "1", "--rounds", "3", "--decentralized"]
    assert run_command([*words, "--coverage", "0.5"]) == 2
    assert "--coverage cannot be used with --decentralized" in capsys.readouterr().err
