"""Running a node: put its parts together, run until told to stop, end them in order."""

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from holdout.agreement import aggregate
from holdout.agreement.ed25519 import Ed25519Verifier
from holdout.agreement.events import BlobKind
from holdout.agreement.keys import MemoVerifier
from holdout.agreement.params import Timing
from holdout.agreement.player import Player
from holdout.errors import UserError
from holdout.ids import Digest
from holdout.node.logs import Log, divert_output
from holdout.node.membership.genesis import Network
from holdout.node.membership.identity import AUTHORITY, CERTIFICATE, TLS, WARN_BEFORE, Identity
from holdout.node.membership.members import KEYS
from holdout.node.membership.network_creation import notes_on
from holdout.node.network.blobs import Blobs, Fetcher
from holdout.node.network.gossip import Gossip
from holdout.node.network.queues import Allowance, Inbox
from holdout.node.network.refusals import Refusals
from holdout.node.network.transport import ZenohTransport
from holdout.node.network.zenoh_config import Endpoint, Peer
from holdout.node.runtime.archive import Archive
from holdout.node.runtime.folder import Folder, read_folder
from holdout.node.runtime.jobs import Misbehaviour
from holdout.node.runtime.learner_client import LearnerClient
from holdout.node.runtime.measure import Spent, TimedVerifier
from holdout.node.runtime.page import serve_page
from holdout.node.runtime.service import Service
from holdout.node.runtime.status import SOCKET, Reporter, serve_status
from holdout.node.runtime.training_end import stop_when_done
from holdout.node.storage.folder_lock import locked
from holdout.node.storage.retention import Retention
from holdout.node.storage.store import FOLDER
from holdout.node.storage.store_recovery import Opened, checked_blob, open_store
from holdout.results import write_atomic
from holdout.seeds import stream

ORPHAN_SECONDS_MAX = 10.0
"""How long a node whose parent has vanished may take to end in good order."""
MEMO_ENTRIES = 1 << 14
WATCH_SECONDS = 3_600.0
"""How often a node looks at the date of its certificate."""
END_WITH_PARENT = "HOLDOUT_END_WITH_PARENT"
"""The environment variable that names the process a node must not outlive."""
MakeMisbehaviour = Callable[[Service, Identity, Network], Misbehaviour]


def run_node(
    path: Path, *, until: int | None = None, make_misbehaviour: MakeMisbehaviour | None = None
) -> None:
    """Run the node of this folder until it is told to stop or cannot go on.

    Raises:
        KeyboardInterrupt: Ctrl-C ended it, in good order.
    """
    fault = aggregate.known_answer_fault()
    if fault is not None:
        raise UserError(f"{fault}; this node must not vote")
    folder = read_folder(path)
    with locked(path):
        number = asyncio.run(_run(folder, until, make_misbehaviour))
    if number == signal.SIGINT:
        raise KeyboardInterrupt


async def _run(
    folder: Folder, until: int | None, make_misbehaviour: MakeMisbehaviour | None
) -> signal.Signals | None:
    """Run the node; the signal that ended it, if one did."""
    node = _Node(folder, until, make_misbehaviour)
    await node.run()
    return node.ended_by


class _Node:
    """All parts of a node. Those that need the network are made by `_connect`, when it runs."""

    def __init__(
        self, folder: Folder, until: int | None, make_misbehaviour: MakeMisbehaviour | None
    ) -> None:
        self.folder = folder
        self.ended_by: signal.Signals | None = None
        settings, genesis = folder.settings, folder.genesis
        self.log = Log(settings.node.name, settings.node.log_level)
        self.refusals = Refusals(self.log)
        storage = settings.storage
        self.opened: Opened = open_store(
            folder.path / FOLDER,
            genesis,
            folder.model,
            Retention(
                storage.bodies,
                storage.gradients,
                storage.models,
                storage.bodies_hours,
                storage.gradients_hours,
                storage.models_hours,
                storage.megabytes_max << 20,
            ),
            storage.free_megabytes_min << 20,
        )
        store = self.opened.store
        store.check_room()
        self.spent = Spent()
        self.verifier = MemoVerifier(TimedVerifier(Ed25519Verifier(), self.spent), MEMO_ENTRIES)
        self.blobs = Blobs(self._on_disk)
        self.others = [w for w in range(genesis.params.workers) if w != folder.worker]
        self.inbox = Inbox(self.others)
        self.learner = LearnerClient(
            folder.path,
            self.log,
            seconds_max=settings.worker.seconds_max,
            threads=settings.worker.threads,
            interval=settings.training.rounds_min_interval,
        )
        self.archive = Archive(store, self.blobs, self.spent)
        lowest, highest = settings.timing.bounds()
        timing = replace(highest, propose_min=lowest.propose, vote_min=lowest.vote)
        self.service = Service(
            genesis,
            folder.worker,
            player=self._make_player(timing),
            archive=self.archive,
            blobs=self.blobs,
            inbox=self.inbox,
            learner=self.learner,
            timing=timing,
            log=self.log,
            spent=self.spent,
            names=[member.name for member in folder.network.members],
            until=until,
        )
        self.service.evidence.update(worker for worker, _, _ in store.evidence())
        if make_misbehaviour is not None:
            self.service.jobs.misbehaviour = make_misbehaviour(
                self.service, folder.identity, folder.network
            )

    def _make_player(self, timing: Timing) -> Player:
        folder, store = self.folder, self.opened.store
        params, height = folder.genesis.params, store.height()
        # Twice as far back as seeds look.
        back = 2 * params.lookback * params.refresh
        return Player(
            folder.genesis,
            folder.worker,
            folder.identity.signer,
            self.verifier,
            timing=timing,
            safety=self.opened.safety,
            finished=store.finished(max(1, height - back), height),
        )

    def _on_disk(self, kind: BlobKind, digest: Digest) -> bytes | None:
        return checked_blob(
            self.opened.store,
            self.folder.genesis,
            kind,
            digest,
            lambda why: self.log.warning("damaged-blob", why=why),
        )

    async def run(self) -> None:
        """Run until told to stop."""
        service, loop = self.service, asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)
        for note in self.opened.notes:
            self.log.error("amnesia", why=note)
        for note in notes_on(self.folder.genesis.params):
            self.log.warning("not-guaranteed", what=note)
        watching = [
            asyncio.create_task(self._end_with_parent()),
            asyncio.create_task(self._watch_certificate()),
            asyncio.create_task(stop_when_done(self.folder.settings.training, service, self.log)),
        ]
        self._restore_authority()
        transport = self._connect()
        servers = [await serve_status(self.folder.path, self.reporter.report)]
        try:
            if self.folder.settings.node.metrics is not None:
                servers.append(await serve_page(self.folder.settings.node.metrics, self.reporter))
            self.log.info(
                "started",
                network=self.folder.network.identity[:16],
                worker=self.folder.worker,
                decided=service.player.round - 1,
            )
            await service.run()
        finally:
            for task in watching:
                task.cancel()
            for server in servers:
                server.close()
            transport.close()
            self.opened.store.close()
            (self.folder.path / SOCKET).unlink(missing_ok=True)
            self.log.info("stopped", decided=service.player.round - 1)

    def _restore_authority(self) -> None:
        """Have the authority's certificate be the one of the genesis file, whatever lies there."""
        path = self.folder.path / KEYS / AUTHORITY
        expected = self.folder.network.file.authority.certificate.encode("ascii")
        if not path.exists() or path.read_bytes() != expected:
            write_atomic(path, expected)

    def _on_signal(self, number: signal.Signals) -> None:
        self.ended_by = number
        self.service.stop()

    async def _end_with_parent(self) -> None:
        """End with the command that started this node, however that ended."""
        parent = os.environ.get(END_WITH_PARENT)
        while parent is not None and os.getppid() == int(parent):  # noqa: ASYNC110  # No event.
            await asyncio.sleep(1)
        if parent is not None:
            self.log.error("orphaned")
            # Nobody is there to kill a node that hangs. Nothing durable is lost by a hard exit.
            last_resort = threading.Timer(ORPHAN_SECONDS_MAX, os._exit, (1,))
            last_resort.daemon = True
            last_resort.start()
            self.service.stop()

    async def _watch_certificate(self) -> None:
        """Log in time that the certificate is about to end, and that it has ended."""
        while True:
            left = self.folder.expires - datetime.now(UTC)
            if left <= timedelta():
                self.log.error("certificate-expired", expires=self.folder.expires.isoformat())
                return
            if left <= WARN_BEFORE:
                self.log.warning(
                    "certificate-expires", expires=self.folder.expires.isoformat(), days=left.days
                )
            await asyncio.sleep(min(WATCH_SECONDS, left.total_seconds() + 0.1))

    def _connect(self) -> ZenohTransport:
        folder, service = self.folder, self.service
        self.log.file = divert_output(self.refusals.on_lines)
        peers = folder.settings.peers
        members = [
            Peer(w, m.name, peers.get(m.name, m.address))
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
        self.refusals.links = transport.links
        # Which peer hears what first need not be secret, but should differ from node to node.
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
            gave_up=service.gave_up,
        )
        service.attach(transport, gossip, fetcher)
        service.charge, service.barred = transport.charge, transport.barred
        self.reporter = Reporter(
            network=folder.network,
            expires=folder.expires,
            service=service,
            archive=self.archive,
            blobs=self.blobs,
            inbox=self.inbox,
            learner=self.learner,
            transport=transport,
            fetcher=fetcher,
            refusals=self.refusals,
        )
        return transport

    def _serve(self, asker: int, question: str) -> bytes | None:
        del asker
        misbehaviour = self.service.jobs.misbehaviour
        kind = question.partition("/")[0]
        if misbehaviour is not None and misbehaviour.withholds(BlobKind(int(kind))):
            return None
        return self.blobs.serve(question)
