"""What `make run-decentralized` shows: without a server the vote is as good as with one."""

import tomllib
from importlib.resources import files

import pytest

from holdout.config import parse
from holdout.experiments.runner import run

POINTS_MAX = 1.5


def demo(**experiment):
    file = files("holdout.experiments").joinpath("decentralized.toml")
    values = tomllib.loads(file.read_text("utf-8"))
    values["experiment"] |= {"threads": 1, **experiment}
    return values


def test_the_demo_is_what_it_says():
    config = parse(demo()).checked()
    assert (config.federation.workers, config.federation.byzantine_workers) == (40, 12)
    assert (config.attack.name, config.attack.voters) == ("alie", "coalition")
    assert config.attack.equivocate
    assert not config.federation.disjoint


@pytest.mark.slow
def test_forty_workers_learn_without_a_server_under_attack():
    result = run(demo(rules=["holdout"], rounds=5, baseline=False))
    assert {line["outcome"] for line in result.rounds} == {"step"}
    assert result.accuracy("holdout") > 0.55
    for line in result.rounds:
        agreement = line["agreement"]
        assert agreement["periods"] <= 2
        assert agreement["evidence"]["vote"] == 6
        assert agreement["evidence"]["update"] > 0
        # The lies that were not convicted were tried for real: some passed, most did not.
        assert line["byzantine_selected"] < len(line["selection"]) / 3


@pytest.mark.soak
def test_without_a_server_it_ends_within_a_point_and_a_half_of_the_servers():
    result = run(demo(seeds=[0, 1, 2], evaluate_every=60))
    central, found = (result.accuracy(rule) for rule in ("holdout-central", "holdout"))
    assert abs(central - found) <= POINTS_MAX / 100, f"{found:.4f} against {central:.4f}"
