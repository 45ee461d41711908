"""`holdout plan --decentralized`, as a function."""

import json
from fractions import Fraction

import pytest

from holdout.agreement import sizing
from holdout.agreement.params import Mode, RoleDraw
from holdout.errors import UserError
from holdout.experiments.sizes import plan_network as plan

SETTING = {"workers": 1000, "byzantine": Fraction(1, 5), "rounds": 1000}


def test_the_default_is_strict_and_prints_the_design_s_tables():
    document = json.loads(plan(**SETTING).as_json())
    assert list(document) == [
        "workers",
        "byzantine",
        "byzantine_count",
        "rounds",
        "delta_safety",
        "delta_progress",
        "mode",
        "committee",
        "quorum",
        "tau_P",
        "tau_V",
        "tau_L",
        "M_min",
        "b_max",
        "modes",
        "roles",
        "with_seed_bias",
        "not_guaranteed",
    ]
    assert (document["delta_safety"], document["delta_progress"]) == (1e-6, 1e-3)
    assert (document["mode"], document["committee"], document["quorum"]) == ("all", 1000, 667)
    assert document["modes"] == {
        "all": {"committee": 1000, "quorum": 667},
        "shuffle": {"committee": 209, "quorum": 142},
        "self": {"committee": 671, "quorum": 473},
    }
    assert document["roles"] == {
        "self": {"tau_P": 59, "tau_V": 167, "M_min": 86, "b_max": 68},
        "fixed": {"tau_P": 51, "tau_V": 88, "M_min": 52, "b_max": 41},
    }
    assert {key: document[key] for key in document["roles"]["self"]} == document["roles"]["self"]
    assert document["tau_L"] == 20


def test_relaxed_is_one_option_away():
    document = json.loads(plan(**SETTING, delta_safety=1e-3, delta_progress=0.1).as_json())
    assert document["modes"]["shuffle"] == {"committee": 141, "quorum": 96}
    assert document["modes"]["self"] == {"committee": 569, "quorum": 403}


def test_what_a_run_takes_is_told_beside_it():
    document = json.loads(plan(**SETTING).as_json())["with_seed_bias"]
    assert document["factor"] == 4
    for mode in Mode:
        for draw in RoleDraw:
            made = sizing.sizes(n=1000, f=Fraction(1, 5), mode=mode, role_draw=draw)
            assert document["modes"][mode] == {
                "committee": made.committee.size,
                "quorum": made.committee.quorum,
            }
            assert document["roles"][draw] == {
                "tau_P": made.proposers,
                "tau_V": made.voters.size,
                "M_min": made.voters.ballots_min,
                "b_max": made.voters.byzantine_max,
            }


def test_a_count_and_its_share_are_the_same():
    assert plan(**SETTING | {"byzantine": 200}) == plan(**SETTING)


def test_the_text_tells_the_same_numbers():
    made = plan(**SETTING)
    lines = made.as_text().splitlines()
    assert lines[0].startswith("1000 workers, 200 of them Byzantine (f = 0.2), 1000 rounds")
    cells = {line.split("  ")[1]: line.split() for line in lines if line.startswith("  ")}
    assert cells["mode shuffle"][2:4] == ["209", "142"]
    assert cells["drawn secretly"][2:6] == ["59", "167", "86", "68"]
    assert "usual for this many workers" in next(line for line in lines if "mode all" in line)
    assert [f"  - {sentence}" for sentence in made.not_guaranteed] == lines[
        -len(made.not_guaranteed) :
    ]
    assert max(map(len, lines[:12])) <= 105


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"workers": 40}, "Modes shuffle and self are refused below 50 workers"),
        ({"workers": 100, "byzantine": 33}, "No committee of mode self smaller than everybody"),
        ({"workers": 100}, "Mode self saves less than a tenth of the workers"),
        ({"workers": 100, "byzantine": 33}, "one more that is down stops the rounds"),
        ({"workers": 2000}, "The committee is public"),
        ({}, "A period has no honest leader with probability"),
    ],
)
def test_what_is_not_guaranteed_is_said_in_words(change, sentence):
    assert sentence in " ".join(plan(**SETTING | change).not_guaranteed)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"byzantine": 334}, r"n >= 3B \+ 1 workers.*got n=1000, B=334"),
        ({"byzantine": Fraction(2, 5)}, "got n=1000, B=400"),
        ({"workers": 3, "byzantine": 1}, "got n=3, B=1"),
        ({"workers": 10**7}, "1 to 10000 workers"),
        ({"rounds": 10**16}, "rounds; got 1"),
        ({"delta_safety": 0.0}, r"delta \(safety\) must lie between 0 and 1"),
        ({"delta_progress": 1.0}, r"delta \(progress\) must lie between 0 and 1"),
    ],
)
def test_what_cannot_be_planned_is_refused(change, message):
    with pytest.raises(UserError, match=message):
        plan(**SETTING | change)


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
def test_the_smallest_networks_have_a_plan(workers):
    document = json.loads(plan(workers=workers, byzantine=0, rounds=1).as_json())
    assert document["quorum"] == 2 * workers // 3 + 1
    assert document["M_min"] >= 1
