"""`holdout plan`, as a function."""

import json
from fractions import Fraction

import pytest

from holdout.errors import UserError
from holdout.experiments.sizes import LARGEST
from holdout.experiments.sizes import plan_committee as plan

PAPER = {"workers": 100, "byzantine": Fraction(33, 100), "rounds": 100, "delta": 0.05}


def test_the_paper_s_setting_has_the_known_odds():
    document = json.loads(plan(**PAPER, committee=30).as_json())
    assert document["majority_failure_round"] == pytest.approx(0.01736, abs=5e-6)
    assert document["overflow_round"] == pytest.approx(0.5694, abs=5e-5)
    assert document["majority_failure_run"] == pytest.approx(1 - (1 - 0.0173582) ** 100, rel=1e-4)
    assert list(document) == [
        "workers",
        "byzantine",
        "rounds",
        "delta",
        "chernoff_size",
        "exact_size",
        "chernoff_size_both",
        "exact_size_both",
        "committee",
        "majority_failure_round",
        "majority_failure_run",
        "overflow_round",
    ]


def test_without_a_committee_there_is_no_judgement():
    document = json.loads(plan(**PAPER).as_json())
    assert len(document) == 8
    assert document["exact_size"] <= document["exact_size_both"] <= document["chernoff_size_both"]


def test_a_count_and_its_share_are_the_same():
    assert plan(**PAPER | {"byzantine": 33}) == plan(**PAPER)


def test_the_text_tells_the_same_numbers():
    made = plan(**PAPER, committee=30)
    text = made.as_text()
    for number in (made.chernoff_size, made.exact_size, made.exact_size_both, "0.01736", "0.5694"):
        assert str(number) in text
    assert "100 workers, 33 of them Byzantine (f = 0.33)" in text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"byzantine": Fraction(1, 2)}, r"f below 1/2; got f = 0\.5"),
        ({"byzantine": 50}, r"f below 1/2; got f = 0\.5"),
        ({"byzantine": 400}, r"f below 1/2; got f = 4"),
        ({"delta": 0.0}, "delta must lie between 0 and 1; got 0"),
        ({"delta": 1.0}, "delta must lie between 0 and 1; got 1"),
        ({"delta": float("nan")}, "delta must lie between 0 and 1; got nan"),
        ({"committee": 101}, "got committee=101, workers=100"),
        ({"rounds": 10**400}, "must be at most 10"),
        ({"workers": LARGEST + 1}, "must be at most 10"),
        ({"byzantine": Fraction(1, 2) - Fraction(1, 10**200)}, "numbers this extreme"),
    ],
)
def test_what_cannot_be_planned_is_refused(change, message):
    with pytest.raises(UserError, match=message):
        plan(**PAPER | change)


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_nobody_to_fear_needs_one_member(workers):
    made = plan(workers=workers, byzantine=Fraction(0), rounds=1, delta=0.5, committee=1)
    assert (made.exact_size, made.committee.majority_failure_round) == (1, 0.0)


def test_all_json_is_finite_even_at_the_edge():
    made = plan(workers=LARGEST, byzantine=Fraction(0), rounds=LARGEST, delta=1e-290)
    assert json.loads(made.as_json())["chernoff_size"] > 0
