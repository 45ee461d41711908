"""What a sweep says of its hours before anything has been run."""

import pytest

from holdout.config import parse
from holdout.sweeps.estimates import CurvePace, work_of


def seconds(rule, rounds=30, **attack):
    config = parse({"experiment": {"rounds": rounds}, "attack": attack}).config
    return work_of(config, rule, dimension=79_510, test_rows=10_000)


@pytest.mark.parametrize(
    ("rule", "measured", "attack"),
    [
        ("mean", 0.6, {"name": "zero"}),
        ("krum", 0.8, {"name": "zero"}),
        ("nnm+trimmed-mean", 1.0, {"name": "zero"}),
        ("fltrust", 1.0, {"name": "zero"}),
        ("flshield", 2.8, {"name": "zero"}),
        ("holdout", 1.6, {"name": "zero"}),
        ("caf", 6.4, {"name": "opt-ipm", "gamma_max": 3.0}),
        ("holdout-paper", 9.8, {"name": "opt-ipm", "gamma_max": 3.0}),
        ("flshield", 30.0, {"name": "opt-ipm", "gamma_max": 3.0}),
    ],
)
def test_the_guess_is_within_a_factor_of_two_of_what_a_core_took(rule, measured, attack):
    assert measured / 2 < seconds(rule, **attack) < 2 * measured


def test_an_attacker_who_searches_longer_takes_longer():
    fixed, searched = seconds("krum", name="alie", gamma=1.5), seconds("krum", name="alie")
    assert searched > 2 * fixed
    assert seconds("mean", name="alie") == seconds("mean", name="alie", gamma=1.5)
    assert seconds("nnm+mean", name="alie") > seconds("nnm+mean", name="alie", gamma=1.5)
    wide, narrow = (seconds("caf", name="opt-alie", gamma_max=most) for most in (30.0, 3.0))
    assert wide > 1.3 * narrow
    assert seconds("holdout", name="jointly") > 2 * seconds("holdout", name="greedy")


def test_curves_that_were_run_put_the_guess_right():
    pace = CurvePace([{"rule": "krum", "attack": "zero", "guessed": 2.0, "seconds": 1.0}])
    assert pace.seconds("krum", "zero", 4.0) == 2.0
    assert pace.seconds("mean", "bomb", 4.0) == 2.0
