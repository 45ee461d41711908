"""A node from its folder: everything read and checked, put together, run until told to stop.

node.toml                    what the member decides for itself
keys/                        its secrets and certificates
genesis.toml, model.safetensors   the network
store/                       what must outlive a crash
status.sock                  while it runs
"""

import asyncio
import os
import re
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdout.agreement import aggregate
from holdout.agreement.ed25519 import Ed25519Verifier
from holdout.agreement.events import BlobKind
from holdout.agreement.keys import MemoVerifier
from holdout.agreement.params import Genesis
from holdout.agreement.player import Player
from holdout.agreement.sortition import Role
from holdout.errors import UserError
from holdout.ids import Digest
from holdout.node.archive import Archive
from holdout.node.blobs import Blobs, Fetcher
from holdout.node.genesis import GENESIS, Network
from holdout.node.gossip import Gossip
from holdout.node.identity import (
    AUTHORITY,
    CERTIFICATE,
    TLS,
    Identity,
    certificate_fault,
    read_identity,
)
from holdout.node.inbox import Allowance, Inbox
from holdout.node.jobs import Behaviour
from holdout.node.learning import Learner
from holdout.node.logs import Log, divert_output
from holdout.node.measure import Spent, TimedVerifier, memory_bytes, prometheus
from holdout.node.pacing import Pacing
from holdout.node.service import Service
from holdout.node.settings import Settings, read_settings
from holdout.node.status import serve_metrics, serve_status
from holdout.node.store import FOLDER, Opened, Retention, checked_blob, locked, open_store
from holdout.node.transport import Endpoint, Member, ZenohTransport
from holdout.node.weights import MODEL, load_model
from holdout.results import write_atomic
from holdout.seeds import stream

KEYS = "keys"
MEMO_ENTRIES = 1 << 14
END_WITH_PARENT = "HOLDOUT_END_WITH_PARENT"
"""Set by a command that starts nodes: the process that they must not outlive."""
REFUSALS = (
    (re.compile(r"sent no certificates"), "no-certificate"),
    (re.compile(r"invalid peer certificate: .*[Ee]xpired"), "expired-certificate"),
    (
        re.compile(r"invalid peer certificate: .*(NotValidYet|not valid yet)"),
        "certificate-not-valid-yet",
    ),
    (re.compile(r"invalid peer certificate"), "foreign-certificate"),
    (re.compile(r"received corrupt message|received fatal alert|handshake"), "no-tls"),
)
"""How the transport's own log tells of connections that it refused."""

MakeBehaviour = Callable[[Service, Identity, Network], Behaviour]


@dataclass(frozen=True, slots=True)
class Folder:
    """A node's folder, read and checked."""

    path: Path
    settings: Settings
    identity: Identity
    network: Network
    worker: int
    model: bytes

    @property
    def genesis(self) -> Genesis:
        """What the agreement core goes by."""
        return self.network.genesis


def read_folder(path: Path) -> Folder:
    """Everything but the store; a UserError says what is missing or does not fit."""
    settings = read_settings(path)
    identity = read_identity(path / KEYS)
    if not (path / GENESIS).exists():
        raise UserError(f"{path} belongs to no network yet; `holdout node join` makes it a member")
    network = Network.read(path / GENESIS)
    worker = network.index(settings.node.name)
    if network.members[worker].keys != identity.signer.public:
        raise UserError(f"the genesis file knows {settings.node.name} by other keys than these")
    strangers = sorted(set(settings.peers) - {member.name for member in network.members})
    if strangers:
        raise UserError(f"node.toml, [peers]: {', '.join(strangers)} are no members of the network")
    authority = network.file.authority.certificate.encode("ascii")
    try:
        certificate = (path / KEYS / CERTIFICATE).read_bytes()
    except OSError:
        raise UserError(f"{path / KEYS / CERTIFICATE} is missing or cannot be read") from None
    fault = certificate_fault(certificate, authority, settings.node.name)
    if fault is not None:
        raise UserError(f"{path / KEYS / CERTIFICATE}: {fault}")
    model = load_model(path / MODEL, network.file.model)
    return Folder(path, settings, identity, network, worker, model)


def run_node(
    path: Path,
    *,
    until: int | None = None,
    make_behaviour: MakeBehaviour | None = None,
) -> None:
    """Run the node of this folder until it is told to stop (SIGTERM, Ctrl-C) or cannot go on."""
    fault = aggregate.known_answer_fault()
    if fault is not None:
        raise UserError(f"{fault}; this node must not vote")
    folder = read_folder(path)
    with locked(path):
        asyncio.run(_run(folder, until, make_behaviour))


async def _run(folder: Folder, until: int | None, make_behaviour: MakeBehaviour | None) -> None:
    node = _Node(folder, until, make_behaviour)
    await node.run()


class _Node:
    """All parts of a running node."""

    def __init__(
        self, folder: Folder, until: int | None, make_behaviour: MakeBehaviour | None
    ) -> None:
        self.folder = folder
        self.began = time.monotonic()
        settings, genesis = folder.settings, folder.genesis
        self.log = Log(settings.node.name, settings.node.log_level)
        storage = settings.storage
        self.opened: Opened = open_store(
            folder.path / FOLDER,
            genesis,
            folder.model,
            Retention(storage.bodies, storage.gradients, storage.models),
            storage.free_megabytes_min << 20,
        )
        self.opened.store.check_room()
        self.spent = Spent()
        verifier = MemoVerifier(TimedVerifier(Ed25519Verifier(), self.spent), MEMO_ENTRIES)
        lowest, highest = settings.timing.bounds()
        store = self.opened.store
        # As far as seeds look back, and more.
        back = 2 * genesis.params.lookback * genesis.params.refresh
        height = store.height()
        player = Player(
            genesis,
            folder.worker,
            folder.identity.signer,
            verifier,
            timing=highest,
            safety=self.opened.safety,
            finished=store.finished(max(1, height - back), height),
        )
        self.blobs = Blobs(self._on_disk)
        others = [w for w in range(genesis.params.workers) if w != folder.worker]
        self.inbox = Inbox(others)
        self.learner = Learner(
            folder.path,
            self.log,
            seconds_max=settings.worker.seconds_max,
            threads=settings.worker.threads,
        )
        self.archive = Archive(store, self.blobs, self.spent)
        self.service = Service(
            genesis,
            folder.worker,
            player=player,
            archive=self.archive,
            blobs=self.blobs,
            inbox=self.inbox,
            learner=self.learner,
            pacing=Pacing(lowest, highest),
            log=self.log,
            spent=self.spent,
            until=until,
        )
        for worker, _, _ in store.evidence():
            self.service.evidence[worker] = self.service.evidence.get(worker, 0) + 1
        if make_behaviour is not None:
            self.service.behaviour = make_behaviour(self.service, folder.identity, folder.network)
        self.verifier = verifier
        self.others = others

    def _on_disk(self, kind: BlobKind, digest: Digest) -> bytes | None:
        return checked_blob(
            self.opened.store,
            self.folder.genesis,
            kind,
            digest,
            lambda why: self.log.warning("damaged-blob", why=why),
        )

    async def run(self) -> None:
        """Until told to stop."""
        service, loop = self.service, asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, service.stop)
        for note in self.opened.notes:
            self.log.error("amnesia", why=note)
        watching = asyncio.create_task(self._end_with_parent())
        # The one of the genesis file, whatever lies there.
        authority = self.folder.path / KEYS / AUTHORITY
        expected = self.folder.network.file.authority.certificate.encode("ascii")
        if not authority.exists() or authority.read_bytes() != expected:
            write_atomic(authority, expected)
        transport = self._connect()
        servers = [await serve_status(self.folder.path, self.report)]
        try:
            if self.folder.settings.node.metrics is not None:
                servers.append(await serve_metrics(self.folder.settings.node.metrics, self.metrics))
            self.log.info(
                "started",
                network=self.folder.network.identity[:16],
                worker=self.folder.worker,
                decided=service.player.round - 1,
            )
            await service.run()
        finally:
            watching.cancel()
            for server in servers:
                server.close()
            transport.close()
            self.opened.store.close()
            (self.folder.path / "status.sock").unlink(missing_ok=True)
            self.log.info("stopped", decided=service.player.round - 1)

    async def _end_with_parent(self) -> None:
        """A node that a command has started ends with it, however that ended."""
        parent = os.environ.get(END_WITH_PARENT)
        while parent is not None and os.getppid() == int(parent):  # noqa: ASYNC110  # No event.
            await asyncio.sleep(1)
        if parent is not None:
            self.log.error("orphaned")
            self.service.stop()

    def _connect(self) -> ZenohTransport:
        folder, service = self.folder, self.service
        self.log.file = divert_output(self._on_engine_line)
        peers = folder.settings.peers
        members = [
            Member(w, m.name, peers.get(m.name, m.address))
            for w, m in enumerate(folder.network.members)
            if w != folder.worker
        ]
        keys = folder.path / KEYS
        endpoint = Endpoint(
            folder.worker,
            folder.settings.node.name,
            folder.settings.node.listen,
            certificate=keys / CERTIFICATE,
            key=keys / TLS,
            authority=keys / AUTHORITY,
        )
        transport = ZenohTransport(
            folder.network.identity,
            endpoint,
            members,
            inbox=self.inbox,
            allowance=Allowance.of(folder.genesis.params),
            serve=self._serve,
            wake=service.wake,
        )
        # Which peer hears what first is nobody's secret, but differs from node to node.
        words = stream(time.monotonic_ns(), "gossip", folder.worker)
        gossip = Gossip(
            folder.genesis,
            folder.worker,
            signer=folder.identity.signer,
            verifier=self.verifier,
            transport=transport,
            words=words,
        )
        fetcher = Fetcher(
            transport,
            folder.genesis.params,
            self.others,
            delay=folder.settings.timing.delay / 1e3,
            words=words,
            ready=service.fetched,
        )
        service.attach(transport, gossip, fetcher)
        self.transport, self.fetcher = transport, fetcher
        return transport

    def _serve(self, asker: int, question: str) -> bytes | None:
        del asker
        behaviour = self.service.behaviour
        if behaviour is not None:
            kind, _, rest = question.partition("/")
            digest = Digest(bytes.fromhex(rest.partition("/")[0]))
            if behaviour.withholds(BlobKind(int(kind)), digest):
                return None
        return self.blobs.serve(question)

    def _on_engine_line(self, line: str) -> None:
        for pattern, kind in REFUSALS:
            if pattern.search(line):
                self.service.counters.refused[kind] += 1
                self.log.warning("refused-connection", kind=kind)
                return
        if "Skipping name verification" not in line:  # Meant: see the transport's settings.
            self.log.debug("transport-says", line=line)

    # -- what others may know ---------------------------------------------------------------------

    def report(self) -> dict[str, Any]:
        """How the node is."""
        service, player = self.service, self.service.player
        decided = player.round - 1
        last = self.archive.last
        pid = self.learner.pid
        return {
            "node": self.folder.settings.node.name,
            "worker": self.folder.worker,
            "network": self.folder.network.identity,
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
            "evidence": {self._name(w): count for w, count in sorted(service.evidence.items())},
            "rejected": dict(sorted(service.counters.rejected.items())),
            "refused": dict(sorted(service.counters.refused.items())),
            "dropped": self._dropped(),
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
        return self.folder.network.members[worker].name

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
                "refused_connections_total": report["refused"],
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
