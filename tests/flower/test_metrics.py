"""Clients' metrics: useful where most clients are honest, whatever the others send."""

import math

import pytest
from flwr.app import MetricRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st

from holdout.flower.metrics import aggregate_metrics, median_metrics


def content(**metrics) -> RecordDict:
    return RecordDict({"metrics": MetricRecord({"num-examples": 10, **metrics})})


def total(contents, _key):
    return MetricRecord({"sum": sum(c["metrics"]["loss"] for c in contents)})


HONEST = [content(loss=1.0, acc=[0.5, 0.6]), content(loss=2.0, acc=[0.7, 0.8])] * 2


def aggregate(contents, function=median_metrics):
    return aggregate_metrics(contents, function, "num-examples")


def test_each_metric_is_the_median_and_the_weight_is_left_out():
    result = aggregate([*HONEST, content(loss=1.5, acc=[0.6, 0.6])])
    assert dict(result) == {"loss": 1.5, "acc": [pytest.approx(0.6), pytest.approx(0.6)]}


@pytest.mark.parametrize(
    "lie",
    [
        RecordDict(),
        RecordDict({"a": MetricRecord({"num-examples": 1}), "b": MetricRecord({"loss": 1.0})}),
        RecordDict({"metrics": MetricRecord({"loss": 1.0, "acc": [0.5, 0.6]})}),
        content(loss=math.nan, acc=[0.5, 0.6]),
        content(loss=1.0, acc=[0.5, math.inf]),
        content(loss=1.0, acc=[0.5]),
        content(loss=[1.0], acc=[0.5, 0.6]),
        content(loss=1.0, acc=[0.5, 0.6], more=3),
        content(loss=10**400, acc=[0.5, 0.6]),
        content(loss=1.0, acc=[0.5, 0.6], **{"num-examples": -1}),
        content(loss=1.0, acc=[0.5, 0.6], **{"num-examples": [1]}),
        content(loss=1.0, acc=[0.5, 0.6], **{"num-examples": math.nan}),
    ],
)
def test_replies_unlike_most_others_are_left_out(lie):
    assert aggregate([lie, *HONEST], total)["sum"] == 6.0


def test_one_liar_s_billion_moves_the_median_by_a_rank_at_most():
    result = aggregate([content(loss=1e9, acc=[1e9, 1e9]), *HONEST])
    assert result["loss"] == 2.0


def test_nothing_usable_gives_nothing():
    assert aggregate([]) is None
    assert aggregate([RecordDict()]) is None


def test_a_function_that_fails_costs_the_metrics_and_not_the_run(caplog):
    with caplog.at_level("WARNING", logger="flwr"):
        assert aggregate(HONEST, lambda *_: 1 / 0) is None
    assert "metrics could not be aggregated: ZeroDivisionError" in caplog.text


numbers = st.one_of(st.integers(), st.floats())


@given(
    st.lists(
        st.dictionaries(
            st.sampled_from(["num-examples", "loss", "acc"]),
            st.one_of(numbers, st.lists(st.integers(), max_size=3), st.lists(st.floats())),
        ),
        max_size=6,
    )
)
def test_random_metrics_never_raise(records):
    contents = [RecordDict({"metrics": MetricRecord(record)}) for record in records]
    result = aggregate(contents)
    assert result is None or "num-examples" not in result
