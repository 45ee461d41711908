"""What a running node says about itself, for `status` and for Prometheus."""

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from holdout.agreement.sortition import Role
from holdout.node.membership.genesis import Network
from holdout.node.network.blobs import Blobs, Fetcher
from holdout.node.network.inbox import Inbox
from holdout.node.network.refusals import Refusals
from holdout.node.network.transport import ZenohTransport
from holdout.node.runtime.learner_client import LearnerClient
from holdout.node.runtime.measure import Spent, memory_bytes, prometheus
from holdout.node.runtime.service import Service
from holdout.node.storage.archive import Archive


@dataclass(frozen=True, slots=True, kw_only=True)
class Reporter:
    """Looks at the parts of a node."""

    network: Network
    worker: int
    expires: datetime
    """When the node's certificate ends."""
    service: Service
    archive: Archive
    blobs: Blobs
    inbox: Inbox
    learner: LearnerClient
    transport: ZenohTransport
    fetcher: Fetcher
    refusals: Refusals
    spent: Spent
    began: float = field(default_factory=time.monotonic)

    def report(self) -> dict[str, Any]:
        """How the node is."""
        service, player = self.service, self.service.player
        decided = player.round - 1
        last = self.archive.last
        pid = self.learner.pid
        return {
            "node": self._name(self.worker),
            "worker": self.worker,
            "network": self.network.identity,
            "round": player.round,
            "decided": decided,
            "period": player.period,
            "phase": player.phase,
            "observer": player.observer,
            "halted": service.halted,
            "roles": "".join(
                letter
                for letter, role in (("P", Role.PROPOSER), ("V", Role.VOTER))
                if player.holds(role)
            ),
            "model": player.model.hex(),
            "accuracy": service.accuracy,
            "certificate": None
            if last is None
            else {
                "round": last.certificate.round,
                "period": last.certificate.period,
                "value": last.certificate.value.hex(),
                "signers": [self._name(mark.worker) for mark in last.certificate.marks],
            },
            "peers": [self._name(w) for w in self.transport.peers()],
            "heard": [self._name(w) for w in service.gossip.heard_lately()],
            "left": [self._name(w) for w in sorted(service.gossip.left)],
            "certificate_expires": self.expires.isoformat(),
            "evidence": self._by_name(service.evidence),
            "rejected": dict(sorted(service.counters.rejected.items())),
            "rejected_gossip": self._by_name(service.gossip.rejected),
            "wrong_blobs": self._by_name(self.fetcher.wrong),
            "unanswered": self._by_name(self.fetcher.silent),
            "refused": dict(sorted(self.refusals.connections.items())),
            "refused_messages": dict(sorted(self.refusals.messages().items())),
            "dropped": self._dropped(),
            "held_back": self.inbox.held,
            "steps": service.counters.steps,
            "rounds": service.counters.rounds,
            "periods": service.counters.periods,
            "worker_failures": self.learner.failures,
            "memory": {
                "node": memory_bytes(os.getpid()),
                "learner": 0 if pid is None else memory_bytes(pid),
            },
            "cpu": {"node": time.process_time()},
            "bytes": {
                "sent": dict(self.transport.sent),
                "received": dict(self.transport.received),
            },
            "seconds": {"up": time.monotonic() - self.began, **self.spent.as_dict()},
            "held": {"messages": player.held(), "blobs": self.blobs.size, "inbox": len(self.inbox)},
        }

    def _name(self, worker: int) -> str:
        return self.network.members[worker].name

    def _by_name(self, counts: Mapping[int, int]) -> dict[str, int]:
        return {self._name(worker): count for worker, count in sorted(counts.items())}

    def _dropped(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for (worker, reason), count in sorted(self.transport.dropped.items()):
            found[f"{self._name(worker)}: {reason}"] = count
        return found

    def metrics(self) -> str:
        """The same for Prometheus."""
        report = self.report()
        sent, received = report["bytes"]["sent"], report["bytes"]["received"]
        return prometheus(
            {
                "round": report["round"],
                "period": report["period"],
                "observer": float(report["observer"]),
                "accuracy": report["accuracy"] or 0.0,
                "peers": len(report["peers"]),
                "peers_heard": len(report["heard"]),
                "rounds_total": report["rounds"],
                "steps_total": report["steps"],
                "extra_periods_total": report["periods"],
                "rejected_total": report["rejected"],
                "rejected_gossip_total": report["rejected_gossip"],
                "wrong_blobs_total": report["wrong_blobs"],
                "refused_connections_total": report["refused"],
                "refused_messages_total": report["refused_messages"],
                "held_back_total": report["held_back"],
                "certificate_seconds": self.expires.timestamp() - time.time(),
                "dropped_total": float(sum(report["dropped"].values())),
                "evidence_total": report["evidence"],
                "worker_failures_total": report["worker_failures"],
                "memory_bytes": report["memory"],
                "cpu_seconds_total": report["cpu"]["node"],
                "sent_bytes_total": sent,
                "received_bytes_total": received,
                "seconds_total": report["seconds"],
            },
            report["node"],
        )
