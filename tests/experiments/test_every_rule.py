"""Whole experiments with every rule, alone and behind pre-aggregations that change much."""

import json
import os

import pytest
from tests import tiny

from holdout.experiments import runner
from holdout.experiments.runner import run
from holdout.rules import RULES

SIZES = {"workers": 18, "proposers": 14, "voters": 4, "byzantine": 2, "assumed_byzantine": "1/10"}
"""One liar in a round is expected. Of 14 proposals bucketing leaves 7: as many as Bulyan needs."""
REMEMBER_OR_DRAW = ["centered-clipping", "dnc", "signguard", "bucketing+centered-clipping"]


@pytest.fixture(autouse=True)
def _no_report(monkeypatch):
    """The picture and the page take longer than the run; so does waiting for the disk."""
    monkeypatch.setattr(runner, "write_report", lambda folder: folder / "report.html")
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return tiny.write_data(tmp_path_factory.mktemp("data"))


def settings(data, rules, **changes):
    experiment = {"rules": rules, "seeds": [1], "rounds": 2, "baseline": False}
    root = {"root_samples": 20}
    values = tiny.values(data, experiment=experiment | changes, federation=SIZES, data=root)
    return values | {"attack": {"name": "alie", "knowledge": "omniscient"}}


@pytest.mark.parametrize("front", ["", "nnm+", "bucketing+", "arc+"])
def test_every_rule_makes_a_step_in_every_round_of_an_experiment(front, data, tmp_path):
    rules = [front + rule for rule in RULES]
    result = run(settings(data, rules), out=tmp_path / "run")
    lines = [json.loads(line) for line in tiny.rounds(tmp_path / "run").splitlines()]
    assert {(line["rule"], line["round"]) for line in lines} == {
        (rule, number) for rule in rules for number in (1, 2)
    }
    assert {line["outcome"] for line in lines} == {"step"}
    assert all(line["gamma"] is not None for line in lines if line["byzantine_proposers"])
    assert all(0 <= result.accuracy(rule) <= 1 for rule in rules)


def test_rules_that_remember_or_draw_are_repeated_and_resumed_to_the_bit(data, tmp_path):
    setting = settings(data, REMEMBER_OR_DRAW, rounds=4, evaluate_every=1)
    run(setting, out=tmp_path / "once")
    run(setting, out=tmp_path / "twice")
    calls = []

    def stop(progress):
        calls.append(progress)
        if len(calls) == 10:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(setting, out=tmp_path / "resumed", watch=stop)
    run(setting, out=tmp_path / "resumed", resume=True)
    assert tiny.rounds(tmp_path / "twice") == tiny.rounds(tmp_path / "once")
    assert tiny.rounds(tmp_path / "resumed") == tiny.rounds(tmp_path / "once")
