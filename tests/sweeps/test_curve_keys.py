"""Curves by their hash: equal where nothing that counts differs, and only there."""

import json

import pytest
from tests import tiny
from tests.sweeps import rig

from holdout.experiments.plan import make_plan
from holdout.experiments.runner import run
from holdout.sweeps.curve_keys import heeded_config
from holdout.sweeps.planning import BASELINE, plan_sweep
from holdout.sweeps.sweep_file import read_sweep


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return tiny.write_data(tmp_path_factory.mktemp("data"))


def rounds(result, rule, attack):
    lines = [row for row in result.rounds if (row["rule"], row["attack"]) == (rule, attack)]
    return json.dumps([{**row, "seconds": 0} for row in lines])


@pytest.mark.parametrize(
    ("attack", "rules"),
    [
        ("sign-flip", ["mean", "nnm+trimmed-mean", "fltrust", "holdout-paper", "holdout"]),
        ("sign-flip", ["flshield"]),
        ("jointly", ["trimmed-mean"]),
    ],
)
def test_a_curve_alone_has_the_same_rounds_as_in_the_whole_run(data, attack, rules):
    values = tiny.values(
        data,
        experiment={"rules": rules, "seeds": [3], "rounds": 2},
        data={"root_samples": 20},
        attack={"voters": "inverted"},
        vote={"samples": 12, "memory": 0.5, "gate": "zero"},
        training={"worker_momentum": 0.9},
    )
    values["attack"] = {"name": attack, "voters": "inverted"}
    plan, whole = make_plan(values), run(values)
    for curve, _ in plan.curves:
        alone = run(heeded_config(plan.config, curve))
        assert rounds(alone, curve.rule, curve.attack) == rounds(whole, curve.rule, curve.attack)


def keys(sweep, label, seeds=(0,)):
    return keys_in(plan_sweep(read_sweep(sweep)), label, seeds)


def keys_in(plan, label, seeds=(0,)):
    contender = next(c for c in plan.contenders if c.label == label)
    return {plan.find(contender, point, s).key for point in plan.file.points() for s in seeds}


def test_one_baseline_serves_all_attacks_shares_and_parameters(data):
    grid = {
        "federation.byzantine": [0.1, 0.2],
        "federation.assumed_byzantine": ["1x", "2x"],
        "attack": [{"name": "zero"}, {"name": "sign-flip"}],
        "rules.centered-clipping.radius": [1.0, 2.0],
        "vote.memory": [0.5, 0.9],
    }
    sweep = rig.values(data, grid=grid, rules=["centered-clipping", "holdout", "median"])
    plan = plan_sweep(read_sweep(sweep))
    assert len(keys_in(plan, BASELINE.label)) == 1
    assert len(keys_in(plan, BASELINE.label, seeds=[0, 1])) == 2
    # What a rule does not heed makes no curve of its own: 2 shares, 2 assumed ones, 2 attacks.
    assert len(keys_in(plan, "median")) == 8
    assert len(keys_in(plan, "centered-clipping")) == 16
    assert len(keys_in(plan, "holdout")) == 16


def test_whatever_counts_makes_another_curve(data, tmp_path):
    grid = {"attack.name": ["zero"]}
    before = keys(rig.values(data, grid=grid), "mean")
    changed = [
        rig.values(data, grid=grid, changes={"training": {"learning_rate": 0.2}}),
        rig.values(data, grid=grid, changes={"experiment": {"rounds": 4}}),
        rig.values(tiny.write_data(tmp_path, rows=150), grid=grid),
    ]
    for sweep in changed:
        assert keys(sweep, "mean") != before
    named = rig.values(data, grid=grid, changes={"experiment": {"name": "other", "threads": 3}})
    assert keys(named, "mean") == before


def test_custom_code_counts_by_its_source(data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    module = tmp_path / "sweep_code_rules.py"
    module.write_text("def middle(updates, *, f):\n    return updates.median(dim=0).values\n")
    sweep = rig.values(data, grid={"attack.name": ["zero"]}, rules=["sweep_code_rules:middle"])
    before = keys(sweep, "sweep_code_rules:middle")
    baseline = keys(sweep, BASELINE.label)
    module.write_text(module.read_text() + "# Not the same file.\n")
    assert keys(sweep, "sweep_code_rules:middle") != before
    assert keys(sweep, BASELINE.label) == baseline
