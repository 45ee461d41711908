"""Runs of every kind go on for more: regressions, triggers, custom code, rates that change."""

import json
import os
import sys

import numpy as np
import pytest

from holdout.curve_rows import CurveKey, with_round_zero
from holdout.errors import RunFolderError
from holdout.experiments.plugins import Plugins
from holdout.experiments.report import write_report
from holdout.experiments.results_csv import to_csv
from holdout.experiments.runner import run
from holdout.results import read_run
from holdout.saved_models import file_of, read_metadata

POINTS = np.random.default_rng(0).normal(size=(200, 4)).astype(np.float32)
SUMS = POINTS @ np.array([1.0, 2.0, -1.0, 0.5])
REAL = (POINTS[:150], SUMS[:150], POINTS[150:], SUMS[150:])
LABELS = (SUMS > 0).astype(int)
LABELLED = (POINTS[:150], LABELS[:150], POINTS[150:], LABELS[150:])


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: None)


def setting(rounds, *rules, training=None, attack=None):
    return {
        "experiment": {
            "rules": list(rules or ["mean"]),
            "rounds": rounds,
            "threads": 1,
            "evaluate_every": 2,
        },
        "data": {"samples_per_worker": 40},
        "federation": {"workers": 12, "byzantine": 2, "proposers": 5, "voters": 5},
        "training": {"batch_size": 10, **(training or {})},
        "vote": {"samples": 20},
        "attack": attack or {"name": "sign-flip"},
    }


def timeless(rows):
    return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]


def extended(rows, short, long, out):
    plugins = Plugins(data=rows)
    run(short, plugins=plugins, out=out)
    return run(long, plugins=plugins, out=out, resume=True), run(long, plugins=plugins)


def test_a_regression_goes_on_and_round_zero_has_its_r2(tmp_path):
    loss = {"loss": "mse"}
    short, long = setting(2, training=loss), setting(4, "mean", "holdout", training=loss)
    result, at_once = extended(REAL, short, long, tmp_path / "run")
    assert timeless(result.rounds) == timeless(at_once.rounds)
    first = result.rounds[0]
    assert set(first["initial"]) == {"accuracy", "loss", "worst_class_recall", "r2", "mae"}
    assert first["initial"]["accuracy"] is None
    spread = np.var(SUMS[150:])
    assert first["initial"]["r2"] == pytest.approx(1 - first["initial"]["loss"] / spread, abs=1e-4)
    zero = with_round_zero(result.rounds)[0]
    assert (zero["round"], zero["r2"], zero["mae"]) == (
        0,
        first["initial"]["r2"],
        first["initial"]["mae"],
    )
    table = to_csv(read_run(tmp_path / "run")).splitlines()
    assert "r2,mae" in table[0]
    assert "attack_success" not in table[0]
    model = file_of(tmp_path / "run", CurveKey("holdout", "sign-flip", 0))
    assert read_metadata(model)["targets"] == "1"
    weights, others = result.weights["holdout", 0], at_once.weights["holdout", 0]
    assert all(weights[name].equal(others[name]) for name in others)
    pictures = {path.name for path in (tmp_path / "run").glob("*.png")}
    assert pictures == {"accuracy.png", "loss.png", "mae.png"}
    page = (tmp_path / "run" / "report.html").read_text("utf-8")
    assert "<h3>Mean absolute error</h3>" in page
    assert "worst_class_recall" not in page.partition("<main>")[2].partition("<script")[0]


def test_a_regression_is_one_before_its_first_evaluation(tmp_path):
    values, plugins = setting(4, training={"loss": "mse"}), Plugins(data=REAL)

    def stop(_progress):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(values, plugins=plugins, out=tmp_path / "run", watch=stop)
    (row,) = read_run(tmp_path / "run").rows
    assert "r2" not in row
    page = write_report(tmp_path / "run").read_text("utf-8")
    assert "<h2>Final R²</h2>" in page


def test_the_success_of_a_trigger_is_measured_before_the_first_step(tmp_path):
    attack = {"name": "backdoor", "target": 1, "shape": [1, 2, 2], "size": 1, "row": 0, "column": 0}
    short, long = setting(2, attack=attack), setting(4, attack=attack)
    result, at_once = extended(LABELLED, short, long, tmp_path / "run")
    assert timeless(result.rounds) == timeless(at_once.rounds)
    first = [row for row in result.rounds if row["round"] == 1]
    assert all(0 <= row["initial"]["attack_success"] <= 1 for row in first)
    assert "attack_success" in to_csv(read_run(tmp_path / "run")).splitlines()[0]
    assert (tmp_path / "run" / "attack_success.png").exists()


@pytest.fixture
def own_rules(tmp_path, monkeypatch):
    folder = tmp_path / "code"
    folder.mkdir()
    for name in ("early_rule", "late_rule"):
        (folder / f"{name}.py").write_text("def rule(updates, f):\n    return updates.mean(0)\n")
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(str(folder))
    return folder


def test_a_rule_that_is_added_may_bring_code_and_what_was_there_may_not_change(own_rules, tmp_path):
    out, plugins = tmp_path / "run", Plugins(data=LABELLED)
    run(setting(2, "early_rule:rule"), plugins=plugins, out=out)
    both = ("early_rule:rule", "late_rule:rule")
    result = run(setting(2, *both), plugins=plugins, out=out, resume=True)
    assert not any("changed" in note for note in result.notes)
    kept = json.loads((out / "custom_code.json").read_text())
    assert list(kept["parts"]) == [f"rule {name!r}" for name in both]
    for name in ("early_rule", "late_rule"):
        file = own_rules / f"{name}.py"
        before = file.read_text()
        file.write_text(before + "# changed\n")
        with pytest.raises(RunFolderError, match=rf"has changed .*rule '{name}:rule'"):
            run(setting(4, *both), plugins=plugins, out=out, resume=True)
        file.write_text(before)
    file.write_text(before + "# changed\n")
    result = run(setting(4, *both), plugins=plugins, out=out, resume=True, changed_code=True)
    assert any("custom code was changed after round 2" in note for note in result.summary["notes"])
    assert len(result.rounds) == 12


@pytest.mark.parametrize("schedule", ["step", "cosine"])
def test_rates_that_look_at_the_number_of_rounds_do_not_go_on(schedule, tmp_path):
    training = {"schedule": schedule, **({"milestones": [1, 3]} if schedule == "step" else {})}
    short, long = setting(2, training=training), setting(4, training=training)
    if schedule == "cosine":
        with pytest.raises(RunFolderError, match=r"training\.schedule = 'cosine' would have given"):
            extended(LABELLED, short, long, tmp_path / "run")
        return
    result, at_once = extended(LABELLED, short, long, tmp_path / "run")
    assert timeless(result.rounds) == timeless(at_once.rounds)
