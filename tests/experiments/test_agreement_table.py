"""What a report says about agreement without a server."""

import json

import pytest
import tomli_w

from holdout.errors import RunFolderError
from holdout.experiments import figures
from holdout.experiments.agreement_table import agreement_table, network_notes
from holdout.experiments.curves import group
from holdout.experiments.report import write_report

CONFIG = {
    "experiment": {"name": "small", "rules": ["holdout", "holdout-central"], "rounds": 2},
    "federation": {"mode": "decentralized", "workers": 7, "byzantine": 2, "assumed_byzantine": 2}
    | {"proposers": 5, "voters": 5},
}


@pytest.fixture(autouse=True)
def _small_page(monkeypatch):
    monkeypatch.setattr(figures, "DPI", 30)


def line(number=1, rule="holdout", **agreement):
    told = {
        "mode": "all",
        "committee": 7,
        "quorum": 5,
        "periods": 1,
        "messages": 1000,
        "bytes": 2_500_000,
        "virtual_seconds": 6.5,
        "evidence": {"update": 1},
        **agreement,
    }
    return {
        "rule": rule,
        "attack": "alie",
        "seed": 0,
        "round": number,
        "accuracy": 0.5,
        "outcome": "step",
        "proposers": [0, 1, 2, 3][: number + 2],
        "voters": [1, 4],
        **({"agreement": told} if rule == "holdout" else {}),
    }


def write_run(folder, lines):
    (folder / "config.toml").write_text(tomli_w.dumps(CONFIG))
    (folder / "results.jsonl").write_text("".join(json.dumps(item) + "\n" for item in lines))
    return folder


def test_the_table_tells_sizes_periods_traffic_and_who_was_found_out():
    lines = [
        line(1),
        line(2, periods=2, messages=3000, evidence={"update": 2, "vote": 1}),
        line(1, "holdout-central"),
    ]
    head, body = agreement_table(group(lines))
    assert dict(zip(head, body[0], strict=True)) == {
        "rule": "HoldOut",
        "rounds": "2",
        "proposers drawn": "3.5 (3–4)",
        "voters drawn": "2.0",
        "committee (quorum)": "7 (5)",
        "periods a round": "1.50 (1–2)",
        "messages a round": "2,000 (1,000–3,000)",
        "MB a round": "2.5",
        "seconds a round": "6.5",
        "found out a round: two updates": "1.5 (1–2)",
        "found out a round: two votes": "0.5 (0–1)",
    }
    assert len(body) == 1


def test_without_such_rounds_there_is_no_table():
    assert agreement_table(group([line(1, "holdout-central")])) is None


def test_the_page_shows_it_and_what_is_not_guaranteed(tmp_path):
    page = write_report(write_run(tmp_path, [line(1), line(2)])).read_text("utf-8")
    assert "<section >\n  <h2>Agreement without a server</h2>" in page
    assert "<td>7 (5)</td>" in page
    assert "no server" in page
    assert "Sizes below the tables: federation.proposers = 5" in page


def test_a_page_with_a_server_hides_it(tmp_path):
    page = write_report(write_run(tmp_path, [line(1, "holdout-central")])).read_text("utf-8")
    assert "<section hidden>\n  <h2>Agreement without a server</h2>" in page


@pytest.mark.parametrize(
    "spoilt",
    [
        {"periods": "one"},
        {"committee": None},
        {"messages": True},
        {"bytes": 1.5},
        {"virtual_seconds": "long"},
        {"evidence": 3},
        {"evidence": {"update": "x"}},
    ],
)
def test_what_is_of_the_wrong_kind_is_named(tmp_path, spoilt):
    with pytest.raises(RunFolderError, match="line 2: agreement has the wrong kind of value"):
        write_report(write_run(tmp_path, [line(1), line(2, **spoilt)]))


def test_agreement_that_is_no_table_is_named(tmp_path):
    with pytest.raises(RunFolderError, match="line 1: agreement has the wrong kind of value"):
        write_report(write_run(tmp_path, [{**line(1), "agreement": [1]}]))


@pytest.mark.parametrize("config", [{}, {"federation": 3}, {"federation": {"mode": "anarchic"}}])
def test_a_config_of_another_shape_has_no_notes(config):
    assert network_notes(config) == []
