"""A node's numbers for monitoring systems, by the standard client library.

`METRICS` lists what is read from a report when somebody asks; histograms are filled as things
happen (`watch`). Every sample carries the node's name. `docs/operating.md` lists all of them.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from holdout.node.network.refusals import REASONS

PREFIX = "holdout_"
Report = Mapping[str, Any]
Value = float | Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Reading:
    """One metric that is read from a report; those whose names end in `_total` are counters."""

    name: str
    about: str
    read: Callable[[Report], Value | None]
    """One number, one for each value of the label, or None: not known now."""
    label: str = "kind"

    def family(self, reports: Sequence[Report]) -> Metric:
        """The metric with the samples of all nodes."""
        values = [(str(report["node"]), self.read(report)) for report in reports]
        many = any(isinstance(value, Mapping) for _, value in values)
        kind = CounterMetricFamily if self.name.endswith("_total") else GaugeMetricFamily
        made = kind(
            PREFIX + self.name, self.about, labels=["node", self.label] if many else ["node"]
        )
        for node, value in values:
            if isinstance(value, Mapping):
                for key, amount in sorted(value.items()):
                    made.add_metric([node, key], float(amount))
            elif value is not None:
                made.add_metric([node], float(value))
        return made


def _members(key: str) -> Callable[[Report], Value]:
    """A value of each other member, by its name."""
    return lambda report: {
        member["name"]: float(member[key]) for member in report["members"] if not member["own"]
    }


def _slowest(report: Report) -> Value:
    """How long each member's gradient took, as far as it was heard."""
    return {
        member["name"]: member["seconds"]["gradient"]
        for member in report["members"]
        if member["seconds"]["gradient"] is not None
    }


def _certificate_seconds(report: Report) -> float:
    return datetime.fromisoformat(report["certificate_expires"]).timestamp() - time.time()


# A counter that appears with its first event shows no increase, so alerts would miss that one.


def _caught(report: Report) -> Value:
    return {member["name"]: float(member["caught"]) for member in report["members"]}


def _refused(report: Report) -> Value:
    return {**dict.fromkeys(REASONS, 0.0), **report["refused"]}


def _dropped(report: Report) -> dict[str, float]:
    found: dict[str, float] = {}
    for member in report["members"]:
        for reason, count in member["dropped"].items():
            found[reason] = found.get(reason, 0) + count
    return found


METRICS = (
    Reading("round", "The round that is under way.", lambda r: r["round"]),
    Reading("period", "The period of that round; 0 is the first.", lambda r: r["period"]),
    Reading("observer", "1: the node only watches.", lambda r: float(r["observer"])),
    Reading("halted", "1: the node signs nothing any more.", lambda r: float(bool(r["halted"]))),
    Reading("accuracy", "Of the newest model, if the worker can tell.", lambda r: r["accuracy"]),
    Reading("members", "How many members the network has.", lambda r: len(r["members"])),
    Reading("quorum", "How many members a decision needs.", lambda r: r["quorum"]),
    Reading("peers", "Members to which there is a connection.", lambda r: len(r["peers"])),
    Reading("peers_heard", "Members heard in the last seconds.", lambda r: len(r["heard"])),
    Reading("peers_left", "Members that have said goodbye.", lambda r: len(r["left"])),
    Reading("member_heard", "1: this member is heard.", _members("heard"), "member"),
    Reading("member_slow", "1: this member is named slow.", _members("slow"), "member"),
    Reading(
        "member_gradient_seconds",
        "When a member's gradient is in hand, after the beginning of the round.",
        _slowest,
        "member",
    ),
    Reading(
        "member_missed_total", "Waits that ended without a member.", _members("missed"), "member"
    ),
    Reading("member_floods_total", "Times caught flooding.", _members("floods"), "member"),
    Reading(
        "member_unserved_total",
        "Gradients that a member announced and did not serve.",
        _members("unserved"),
        "member",
    ),
    Reading("evidence_total", "Times caught lying.", _caught, "member"),
    Reading("rounds_total", "Rounds decided since the start.", lambda r: r["rounds"]),
    Reading("steps_total", "Rounds that changed the model.", lambda r: r["steps"]),
    Reading("extra_periods_total", "Periods beyond a round's first.", lambda r: r["periods"]),
    Reading("rejected_total", "Messages rejected.", lambda r: r["rejected"], "reason"),
    Reading(
        "rejected_gossip_total",
        "Bad messages of gossip itself.",
        lambda r: r["rejected_gossip"],
        "member",
    ),
    Reading("wrong_blobs_total", "Wrong blobs served.", lambda r: r["wrong_blobs"], "member"),
    Reading(
        "unanswered_total", "Questions not answered in time.", lambda r: r["unanswered"], "member"
    ),
    Reading("refused_connections_total", "Refused connections.", _refused, "reason"),
    Reading(
        "refused_messages_total",
        "Messages under a foreign name.",
        lambda r: r["refused_messages"],
        "member",
    ),
    Reading("dropped_total", "Messages dropped unread.", _dropped, "reason"),
    Reading("held_back_total", "Times a sender was held back.", lambda r: r["held_back"]),
    Reading("worker_failures_total", "Failures of the worker.", lambda r: r["worker_failures"]),
    Reading(
        "worker_failing",
        "1: the worker has failed and not worked since.",
        lambda r: float(bool(r["worker_failed"])),
    ),
    Reading("certificate_seconds", "Until the certificate ends.", _certificate_seconds),
    Reading("memory_bytes", "Memory, by process.", lambda r: r["memory"], "process"),
    Reading("cpu_seconds_total", "Processor time of the node.", lambda r: r["cpu"]["node"]),
    Reading("up_seconds", "Since the node was started.", lambda r: r["seconds"]["up"]),
    Reading(
        "seconds_total",
        "Where the time went.",
        lambda r: {kind: value for kind, value in r["seconds"].items() if kind != "up"},
    ),
    Reading("sent_bytes_total", "Bytes sent.", lambda r: r["bytes"]["sent"], "message"),
    Reading("received_bytes_total", "Bytes received.", lambda r: r["bytes"]["received"], "message"),
    Reading("held", "What is held in memory.", lambda r: r["held"]),
    Reading("stored_bytes", "What the store takes on disk.", lambda r: r["stored"]["bytes"]),
    Reading("disk_free_bytes", "Free space on the store's disk.", lambda r: r["stored"]["free"]),
)


class NodeCollector(Collector):
    """Everything that nodes have to tell, read anew each time."""

    def __init__(self, reports: Callable[[], Sequence[Report]]) -> None:
        self._reports = reports

    def describe(self) -> Iterable[Metric]:
        """Nothing: the library would otherwise read a report to find the names."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """All metrics that are read from reports."""
        reports = self._reports()
        return [reading.family(reports) for reading in METRICS]


class NamedHistograms(Collector):
    """A node's histograms, with its name in each sample."""

    def __init__(self, node: str, histograms: CollectorRegistry) -> None:
        self._node = node
        self._histograms = histograms

    def collect(self) -> Iterable[Metric]:
        """All histograms."""
        for metric in self._histograms.collect():
            metric.samples = [
                sample._replace(labels={"node": self._node, **sample.labels})
                for sample in metric.samples
            ]
            yield metric


def metrics_text(*collectors: Collector) -> bytes:
    """All metrics of these collectors in Prometheus's text format."""
    registry = CollectorRegistry()
    for collector in collectors:
        registry.register(collector)
    return generate_latest(registry)
