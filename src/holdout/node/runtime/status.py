"""What a running node says about itself: JSON on a local socket."""

import asyncio
import contextlib
import json
import os
import resource
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from holdout.agreement.sortition import Role
from holdout.errors import UserError
from holdout.node.membership.genesis import Network
from holdout.node.network.blobs import Blobs, Fetcher
from holdout.node.network.queues import Inbox
from holdout.node.network.refusals import Refusals
from holdout.node.network.transport import ZenohTransport
from holdout.node.runtime import member_report
from holdout.node.runtime.archive import Archive
from holdout.node.runtime.learner_client import LearnerClient
from holdout.node.runtime.metrics import NamedHistograms, NodeCollector, metrics_text
from holdout.node.runtime.page import page_state
from holdout.node.runtime.service import Service

SOCKET = "status.sock"
ANSWER_BYTES_MAX = 1 << 24
ROUNDS_TOLD = 30
"""How many of the last rounds a report holds."""
PATH_BYTES_MAX = 100
"""A socket's path of this length works on every system."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reporter:
    """Gathers what the parts of a node have to tell."""

    network: Network
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
    began: float = field(default_factory=time.monotonic)

    def report(self) -> dict[str, Any]:
        """The answer to `holdout node status`."""
        service, player = self.service, self.service.player
        decided = player.round - 1
        last = self.archive.last
        pid = self.learner.pid
        return {
            "node": self._name(service.worker),
            "worker": service.worker,
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
            "slow": [self._name(w) for w in member_report.slow(service)],
            "members": member_report.members(
                self.network, service, transport=self.transport, fetcher=self.fetcher
            ),
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
            "quorum": self.network.params.quorum,
            "stored": self.archive.usage.as_dict(),
            "periods": service.counters.periods,
            "worker_failures": self.learner.failures,
            "worker_failed": getattr(self.learner, "last_failure", None),
            "alarms": [
                {"round": number, "why": why} for number, why in list(service.watch.alarms)[-10:]
            ],
            "last_rounds": [asdict(seen) for seen in list(service.watch.rounds)[-ROUNDS_TOLD:]],
            "memory": {
                "node": memory_bytes(os.getpid()),
                "learner": 0 if pid is None else memory_bytes(pid),
            },
            "cpu": {"node": time.process_time()},
            "bytes": {"sent": dict(self.transport.sent), "received": dict(self.transport.received)},
            "seconds": {"up": time.monotonic() - self.began, **service.spent.as_dict()},
            "held": {"messages": player.held(), "blobs": self.blobs.size, "inbox": len(self.inbox)},
        }

    def page(self) -> dict[str, Any]:
        """What the node's page shows."""
        rounds = [asdict(seen) for seen in self.service.watch.rounds]
        return page_state([self.report()], rounds, self.network.name)

    def metrics(self) -> bytes:
        """The report's numbers, and histograms, in Prometheus's text format."""
        histograms = NamedHistograms(self._name(self.service.worker), self.service.watch.registry)
        return metrics_text(NodeCollector(lambda: [self.report()]), histograms)

    def _name(self, worker: int) -> str:
        return self.network.members[worker].name

    def _by_name(self, counts: Mapping[int, int]) -> dict[str, int]:
        return {self._name(worker): count for worker, count in sorted(counts.items())}

    def _dropped(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for (worker, reason), count in sorted(self.transport.dropped.items()):
            found[f"{self._name(worker)}: {reason}"] = count
        return found


def memory_bytes(pid: int) -> int:
    """Memory of a process; what it shares with others is divided among them, where known."""
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text("ascii").splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    if pid == os.getpid():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return 0


# -- over the socket and over HTTP -----------------------------------------------------------------


@contextlib.contextmanager
def _reachable(path: Path) -> Iterator[str]:
    """A name of the socket that is short enough: its path may be longer than systems allow."""
    if len(os.fsencode(path)) <= PATH_BYTES_MAX:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


async def serve_status(folder: Path, report: Callable[[], dict[str, Any]]) -> asyncio.Server:
    """Serve the report to everybody who may enter the folder, until closed."""

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            writer.write(json.dumps(report()).encode())
            await writer.drain()
        writer.close()

    path = folder / SOCKET
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    with _reachable(path) as name:
        before = os.umask(0o077)
        try:
            listener.bind(name)
        finally:
            os.umask(before)
    return await asyncio.start_unix_server(answer, sock=listener)


def ask_status(folder: Path, seconds_max: float = 5.0) -> dict[str, Any]:
    """The report of the node that runs in this folder; raises UserError if none does."""
    pieces = []
    try:
        with socket.socket(socket.AF_UNIX) as connection, _reachable(folder / SOCKET) as name:
            connection.settimeout(seconds_max)
            connection.connect(name)
            while piece := connection.recv(1 << 16):
                pieces.append(piece)
                if sum(map(len, pieces)) > ANSWER_BYTES_MAX:
                    break
        answer: dict[str, Any] = json.loads(b"".join(pieces))
    except (OSError, ValueError):
        raise UserError(f"no node runs in {folder}, or it does not answer") from None
    return answer
