"""Metrics: the standard client library's format, and every name in the documentation."""

import re
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families as parse
from tests.node.test_page import member, report

from holdout.node.network.blobs import Blobs
from holdout.node.network.queues import KIND_NAMES, kind_name
from holdout.node.network.refusals import REASONS
from holdout.node.runtime.metrics import METRICS, NamedHistograms, NodeCollector, metrics_text
from holdout.node.runtime.watch import Watch

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "operating.md"
MORE = {
    "peers": ["bob"],
    "left": [],
    "rounds": 7,
    "steps": 6,
    "periods": 1,
    "rejected": {"stale": 2},
    "rejected_gossip": {},
    "wrong_blobs": {},
    "unanswered": {"bob": 1},
    "refused": {"no-tls": 3},
    "refused_messages": {},
    "held_back": 0,
    "cpu": {"node": 1.5},
    "seconds": {"up": 60.0, "disk": 1.0},
    "bytes": {"sent": {"vote": 10}, "received": {"blob": 20}},
    "held": {"messages": 1, "blobs": 2, "inbox": 0},
}


def told():
    watch = Watch(Blobs(lambda *_: None))
    members = [member(0), member(1, dropped={"oversize": 4}, slow=True)]
    given = report(**MORE, members=members, worker_failures=5)
    histograms = NamedHistograms("alice", watch.registry)
    text = metrics_text(NodeCollector(lambda: [given]), histograms).decode()
    return {family.name: family for family in parse(text)}


def test_every_metric_is_documented_and_nothing_else_is():
    names = {f"holdout_{reading.name}" for reading in METRICS}
    watch = Watch(Blobs(lambda *_: None))
    names |= {metric.name for metric in watch.registry.collect()}
    documented = set(
        re.findall(r"^\| `(holdout_\w+)` \|", DOCUMENT.read_text("utf-8"), re.MULTILINE)
    )
    assert documented == names
    assert len(METRICS) == len({reading.name for reading in METRICS})


def test_counters_gauges_and_histograms_are_what_they_are_called():
    families = told()
    for name, family in families.items():
        assert family.documentation, name
        assert all(sample.labels["node"] == "alice" for sample in family.samples), name
        if family.type == "counter":
            assert family.samples == [] or family.samples[0].name.endswith("_total"), name
    assert {family.type for family in families.values()} == {"counter", "gauge", "histogram"}
    value = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in families.values()
        for sample in family.samples
    }
    node = ("node", "alice")
    assert value["holdout_rounds_total", node] == 7
    assert value["holdout_worker_failures_total", node] == 5
    assert value["holdout_rejected_total", node, ("reason", "stale")] == 2
    assert value["holdout_dropped_total", node, ("reason", "oversize")] == 4
    assert value["holdout_member_slow", ("member", "bob"), node] == 1
    assert value["holdout_sent_bytes_total", ("message", "vote"), node] == 10
    assert value["holdout_seconds_total", ("kind", "disk"), node] == 1
    assert families["holdout_round_seconds"].type == "histogram"


def test_what_alerts_wait_for_is_counted_from_nothing_on():
    # A counter that appears with its first event shows no increase.
    given = report(**{**MORE, "refused": {}}, members=[member(0), member(1), member(2, caught=1)])
    families = {f.name: f for f in parse(metrics_text(NodeCollector(lambda: [given])).decode())}
    caught = {s.labels["member"]: s.value for s in families["holdout_evidence"].samples}
    assert caught == {"alice": 0, "bob": 0, "<b>carol</b>": 1}
    refused = {s.labels["reason"]: s.value for s in families["holdout_refused_connections"].samples}
    assert refused == dict.fromkeys(REASONS, 0)


def test_what_is_not_known_is_left_out():
    given = report(**MORE, accuracy=None)
    families = {f.name: f for f in parse(metrics_text(NodeCollector(lambda: [given])).decode())}
    assert families["holdout_accuracy"].samples == []


def test_every_kind_of_message_has_a_name_of_its_own():
    found = {kind_name(bytes([first, 0])) for first in range(256)}
    assert found | {"blob"} == set(KIND_NAMES)
    assert kind_name(b"") == "other"
