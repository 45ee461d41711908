"""Heterogeneity, each number against a plain slow version of itself."""

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.optimize import nnls
from tests import tiny

import holdout
from holdout.config import Config
from holdout.data.datasets import dataset_from
from holdout.experiments.heterogeneity_report import (
    coverage_needed,
    heterogeneity_lines,
    judges_html,
    judges_text,
)
from holdout.experiments.judges import judges_fields, rows_needed
from holdout.experiments.plan import make_plan
from holdout.experiments.report import write_report
from holdout.experiments.sizes_fit import shards_of
from holdout.federation import central
from holdout.federation.round_setup import first_state
from holdout.heterogeneity import fit_line, liars_drawn
from holdout.runs import Run
from holdout.voting import draw_byzantine

CALM = {"name": "sign-flip", "knowledge": "omniscient"}
"""An attack that no rule diverges under."""
SIZES = st.floats(0, 1e6, allow_subnormal=False).map(lambda x: x if x > 1e-6 else 0.0)


@given(st.lists(st.tuples(SIZES, SIZES), min_size=1, max_size=12))
def test_the_fit_is_the_line_of_least_squares_without_negative_numbers(points):
    found = fit_line(points)
    x, y = np.array(points).T
    scale = max(1.0, x.max())
    best, rest = nnls(np.column_stack([np.ones(len(x)), x / scale]), y)
    del best  # Not unique where all x are the same; what is left is.
    ours = math.dist(y, found.g2 + found.b2 * x)
    assert found.g2 >= 0
    assert found.b2 >= 0
    assert ours == pytest.approx(rest, rel=1e-6, abs=1e-6 * max(1.0, y.max()))
    # The bound holds in every round, and in one of them with nothing to spare, unless it is 0.
    spare = found.g2_bound + found.b2 * x - y
    assert spare.min() >= -1e-9 * max(1.0, y.max())
    assert found.g2_bound == 0 or spare.min() == pytest.approx(0, abs=1e-9 * max(1.0, y.max()))


def test_a_line_needs_a_point_that_is_finite():
    assert fit_line([]) is None
    assert fit_line([(math.inf, 1.0), (1.0, math.nan)]) is None
    assert fit_line([(4.0, 2.0)]).b2 == 0
    assert fit_line([(1e300, 1e300), (2e300, 3e300)]).b2 == pytest.approx(1.4)


def plain_dissimilarity(updates):
    """Number by number, in Python's floats."""
    rows = [[float(value) for value in update] for update in updates]
    mean = [sum(column) / len(rows) for column in zip(*rows, strict=True)]
    apart = sum((a - m) ** 2 for row in rows for a, m in zip(row, mean, strict=True)) / len(rows)
    return apart, sum(m * m for m in mean)


@pytest.mark.parametrize("rule", ["mean", "krum", "holdout-paper", "holdout"])
def test_an_evaluated_round_records_how_much_the_honest_proposals_differ(tmp_path, rule):
    values = tiny.values(tiny.write_data(tmp_path), experiment={"rules": [rule]})
    values["attack"] = CALM
    plan = make_plan(values)
    curve, seed = next(pair for pair in plan.curves if pair[0].act is not None)
    federation = plan.federation(curve, seed)
    state, seen = first_state(federation), 0
    while state.round < 3:
        setup = central.draw_round(federation, curve, state)
        record, state = central.run_round(federation, curve, state)
        if not record.is_evaluated:
            assert record.dissimilarity is record.mean_norm2 is None
            assert "dissimilarity" not in record.as_dict()
            continue
        honest = [w for w in setup.committee.proposers if w not in federation.byzantine]
        updates = [
            federation.workers[w].propose(
                setup.state.weights, round_number=setup.number, learning_rate=setup.learning_rate
            )
            for w in honest
        ]
        found = record.dissimilarity, record.mean_norm2
        assert found == pytest.approx(plain_dissimilarity(updates), rel=1e-4)
        seen += 1
    assert seen == 2


def test_without_a_server_it_is_measured_too(tmp_path):
    values = tiny.values(
        tiny.write_data(tmp_path),
        experiment={"rules": ["holdout"], "rounds": 1, "seeds": [0], "baseline": False},
        federation={
            "mode": "decentralized",
            "workers": 7,
            "byzantine": 1,
            "assumed_byzantine": 1,
            "proposers": 7,
            "voters": 7,
            "disjoint": False,
        },
        training={"batch_size": 8, "momentum": 0.0},
    )
    values["attack"] = CALM
    (found,) = holdout.read_run(holdout.run(values)).heterogeneity()
    assert found.dissimilarity.rounds == 1
    assert found.dissimilarity.g2 > 0


def test_one_honest_proposal_differs_from_nobody(tmp_path):
    values = tiny.values(
        tiny.write_data(tmp_path),
        experiment={"rules": ["mean"], "baseline": False, "seeds": [0]},
        federation={"workers": 10, "proposers": 1, "byzantine": 0},
    )
    (found,) = holdout.read_run(holdout.run(values)).heterogeneity()
    assert found.dissimilarity is None


def test_liars_are_counted_as_the_rounds_hold_them(tmp_path):
    values = tiny.values(tiny.write_data(tmp_path), experiment={"rounds": 8, "seeds": [10]})
    run = holdout.read_run(holdout.run(values))
    liars = draw_byzantine(10, 4, 10)
    for found in run.heterogeneity():
        lines = [row for row in run if (row["rule"], row["attack"]) == (found.rule, found.attack)]
        lie = liars if found.attack != "none" else set()
        for who, drawn in (("proposers", found.proposers), ("voters", found.voters)):
            counts = [sum(worker in lie for worker in line[who]) for line in lines]
            if not lines[0][who]:
                assert drawn is None
                continue
            lost = [2 * c >= len(line[who]) for c, line in zip(counts, lines, strict=True)]
            assert drawn.mean == pytest.approx(sum(counts) / len(counts))
            assert drawn.largest == max(counts)
            assert drawn.majority == pytest.approx(sum(lost) / len(lost))
    assert any(found.voters and found.voters.majority for found in run.heterogeneity())


def test_where_nobody_knows_who_lies_nothing_is_said_about_liars():
    lines = [{"voters": [1, 2], "byzantine_voters": None, "proposers": [3]}]
    assert liars_drawn(lines, "voters") is None
    assert liars_drawn(lines, "proposers") is None


def plain_judges(config, dataset, seed):
    """By going through all sets of rows that a voter may draw."""
    samples, needed = config.vote.samples, rows_needed(config.vote.samples)
    liars = draw_byzantine(config.federation.workers, config.federation.byzantine_workers, seed)
    labels = dataset.y_train.tolist()
    chances = []
    for worker, rows in enumerate(shards_of(config, dataset, seed)):
        if worker in liars:
            continue
        held = [labels[row] for row in rows]
        draws = list(itertools.combinations(held, min(samples, len(held))))
        chances.append(
            [
                sum(draw.count(label) >= needed for draw in draws) / len(draws)
                for label in range(dataset.classes)
            ]
        )
    return np.mean(chances, axis=0)


@pytest.mark.parametrize("samples", [3, 8, 25])
def test_who_can_judge_is_what_every_draw_of_rows_says(samples):
    y = torch.arange(60) % 3
    dataset = dataset_from("points", (torch.randn(60, 2), y, torch.randn(6, 2), y[:6]))
    config = Config(
        experiment={"seeds": [0, 4]},
        data={"partition": "dirichlet", "alpha": 0.3, "samples_per_worker": 9},
        federation={"workers": 6, "byzantine": 2, "proposers": 3, "voters": 3},
        vote={"samples": samples},
    )
    found = judges_fields(config, dataset)["judges"]
    assert found["rows_needed"] == rows_needed(samples)
    for seed in (0, 4):
        assert found["shares"][str(seed)] == pytest.approx(plain_judges(config, dataset, seed))


@given(st.integers(1, 5000))
def test_enough_rows_are_ten_or_a_twentieth(samples):
    assert rows_needed(samples) == (10 if samples >= 200 else math.ceil(samples / 20))


def test_the_share_is_that_of_the_hypergeometric_law():
    y = torch.arange(4000) % 10
    dataset = dataset_from("points", (torch.randn(4000, 2), y, torch.randn(10, 2), y[:10]))
    config = Config(
        data={"partition": "dirichlet", "alpha": 0.5, "samples_per_worker": 400},
        federation={"workers": 20, "proposers": 5, "voters": 5},
        vote={"samples": 150},
        attack={"name": "none"},
    )
    shards = shards_of(config, dataset, 0)
    counts = np.array([np.bincount(y.numpy()[rows], minlength=10) for rows in shards])
    expected = stats.hypergeom.sf(7, 400, counts, 150).mean(axis=0)
    assert judges_fields(config, dataset)["judges"]["shares"]["0"] == pytest.approx(expected)


def test_a_run_tells_it_in_its_summary_its_page_and_when_it_is_read(tmp_path):
    values = tiny.values(tiny.write_data(tmp_path), vote={"samples": 20})
    values["attack"] = CALM
    result = holdout.run(values, out=tmp_path / "run")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    run = holdout.read_run(tmp_path / "run")
    assert run.heterogeneity() == holdout.read_run(result).heterogeneity()
    for curve, found in zip(summary["curves"], run.heterogeneity(), strict=True):
        assert curve["dissimilarity"]["g2"] == found.dissimilarity.g2
        assert curve["liars_drawn"]["proposers"]["mean"] == found.proposers.mean
        assert summary["judges"]["shares"][str(curve["seed"])] == list(found.judges)
    page = write_report(tmp_path / "run").read_text("utf-8")
    assert "<h2>Heterogeneity</h2>" in page
    assert "can judge a class" in page
    # 4 liars of 10: c (1 - 0.4) > 0.4.
    assert "needs more than 67 %" in page
    assert "honest updates differ (mean, no attack): G²" in heterogeneity_lines(run)[0]
    assert "liars drawn:" in heterogeneity_lines(run)[1]


def test_where_half_lie_no_share_of_judges_is_enough(tmp_path):
    values = tiny.values(tiny.write_data(tmp_path), experiment={"seeds": [0]})
    values["federation"] |= {"byzantine": 5, "assumed_byzantine": 0.4}
    result = holdout.run(values, out=tmp_path / "run")
    text = judges_text(holdout.read_run(result))
    assert text.endswith("; with so many liars honest judges are never the majority")


def test_a_run_of_an_earlier_version_has_what_its_rows_tell(tmp_path):
    values = tiny.values(tiny.write_data(tmp_path), experiment={"seeds": [0]})
    holdout.run(values, out=tmp_path / "run")
    path: Path = tmp_path / "run" / "results.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        for key in ("dissimilarity", "mean_norm2"):
            line.pop(key, None)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "run" / "summary.json").write_text('{"judges": {"shares": {"0": [2, "a"]}}}')
    for found in holdout.read_run(tmp_path / "run").heterogeneity():
        assert found.dissimilarity is None
        assert found.proposers is not None
        assert found.judges is None
    assert "Heterogeneity" in write_report(tmp_path / "run").read_text("utf-8")


def test_a_regression_has_no_classes_to_judge():
    y = torch.randn(40)
    dataset = dataset_from(
        "points", (torch.randn(40, 2), y, torch.randn(6, 2), y[:6]), real_targets=True
    )
    assert judges_fields(Config(), dataset) == {}


@pytest.mark.parametrize(
    "config",
    [{}, {"federation": 3}, {"federation": {"workers": 9}}, {"federation": {"workers": "x"}}],
)
def test_a_config_of_another_shape_needs_no_coverage(config):
    assert coverage_needed(config) is None
    assert judges_html(Run(None, config, [], judges={0: (0.5, 1.0)})).count("<rect") == 2
