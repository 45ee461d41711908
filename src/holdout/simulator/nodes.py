"""One simulated worker: a `Player` and all that a real process would put around it.

This is the driver's half of the contract in `agreement.events`: actions are carried out in order,
`Persist` is a barrier, learning and fetching answer later. A node can crash at every point where it
matters: before a write, between the write and the actions that follow it, and after those.
"""

from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from holdout.agreement import aggregate
from holdout.agreement import events as ev
from holdout.agreement.messages import REMEMBERED
from holdout.agreement.player import Player
from holdout.ids import Digest
from holdout.seeds import stream
from holdout.simulator.faults import Crash, Point
from holdout.simulator.storage import BlobMemory, Disk, SimulatedFetcher
from holdout.simulator.toy_learners import Learner

if TYPE_CHECKING:
    from holdout.simulator.cluster import Cluster

MILLION = 1_000_000


class Behaviour(Protocol):
    """What makes a worker Byzantine: all that it sends and serves passes through here."""

    def act(self, event: ev.Event, actions: Sequence[ev.Action]) -> Sequence[ev.Action]:
        """What the worker does about an event, given what an honest one would do."""
        ...

    def serve(self, peer: int, digest: Digest, data: bytes | None) -> bytes | None:
        """What it answers a peer that wants a blob it holds as `data`; None: nothing."""
        ...


class SimulatedNode:
    """A worker of the cluster.

    Attributes:
        up: Whether it runs.
        life: How often it was restarted.
        rate: How much too fast its clock runs, in millionths (negative: too slow).
        slowness: How many times longer than usual its jobs take.
        commits: The decided rounds that it told its learner of.
        rejected: How many messages it dropped, by reason.
    """

    __slots__ = (
        "_asleep",
        "_crashes",
        "_inbox",
        "_learner",
        "_reject_seen",
        "_seen",
        "alarms",
        "behaviour",
        "cluster",
        "commits",
        "disk",
        "fetcher",
        "halted",
        "index",
        "life",
        "memory",
        "player",
        "rate",
        "rejected",
        "reports",
        "slowness",
        "up",
    )

    def __init__(self, cluster: "Cluster", index: int, safety: bytes) -> None:
        self.cluster = cluster
        self.index = index
        self.disk = Disk(safety)
        self.memory = BlobMemory()
        self._hold_first_model()
        self.up = False
        self.life = -1
        self.rate = 0
        self.slowness = 1
        self.behaviour: Behaviour | None = None
        self.commits: dict[int, ev.Commit] = {}
        self.rejected: Counter[ev.MessageFault] = Counter()
        self.reports: list[ev.ReportEvidence] = []
        self.alarms: list[str] = []
        self.halted: str | None = None
        self._crashes: dict[int, Crash] = {}
        self._inbox: deque[ev.Event] = deque()
        self._seen: set[bytes] = set()
        self.fetcher = SimulatedFetcher(self)
        self._asleep = True
        self._reject_seen = False
        self.player: Player
        self._learner: Learner

    def _hold_first_model(self) -> None:
        # w_1 is public: a worker has it whatever else it loses.
        first = self.cluster.genesis.params.model_first
        self.memory.put(ev.BlobKind.MODEL, first, self.cluster.first_model, 0)
        self.memory.committed(first)

    # -- life and death ------------------------------------------------------------------------

    def start(self, _: Any = None) -> None:
        """Run, for the first time or again, from what is on the disk."""
        if self.up:
            return
        cluster = self.cluster
        self.life += 1
        self.up = True
        self.memory.restore(self.disk, len(self.disk.finished) + 1)
        self._hold_first_model()
        self._learner = cluster.learners(self.index, self.life)
        self.player = cluster.make_player(self.index, self.disk)
        if self.life:
            cluster.note(self.index, "starts again")
            cluster.watcher.restarted(self)
        words = stream(cluster.seed, "nonce", self.index, self.life)
        self.take(ev.Start(b"".join(words.below(1 << 64).to_bytes(8, "big") for _ in range(4))))

    def crash(self, crash: Crash) -> None:
        """Stop at once; what is not on the disk is gone."""
        if not self.up:
            return
        self.cluster.note(self.index, "crashes" + " and loses its disk" * crash.disk_lost)
        self.up = False
        self._inbox.clear()
        self._seen.clear()
        self.fetcher.clear()
        self.disk.crash()
        if crash.disk_lost:
            self.disk.lose()
            self.cluster.watcher.disk_lost(self)
        if not crash.for_good:
            self.cluster.agenda.after(crash.down, self.start, None)

    @property
    def decided(self) -> int:
        """How many rounds are on its disk; a crash may have kept it from telling its learner."""
        return len(self.disk.finished)

    def heal(self) -> None:
        """Run at full speed, without further planned crashes."""
        self._crashes.clear()
        self.slowness = 1
        self.start()

    def plan_crash(self, crash: Crash) -> None:
        """Let the crash happen at its time or at its write."""
        if crash.at is not None:
            self.cluster.agenda.at(crash.at, self.crash, crash)
        elif crash.write is not None:
            self._crashes[crash.write] = crash

    # -- time ----------------------------------------------------------------------------------

    def _local(self) -> int:
        return self.cluster.agenda.now * (MILLION + self.rate) // MILLION

    def _global(self, local: int) -> int:
        return -(-local * MILLION // (MILLION + self.rate))

    def later(self, delay: int, do: Callable[[Any], None], what: Any) -> None:
        """As `agenda.after`, unless the worker has crashed by then."""
        life = self.life
        self.cluster.agenda.after(delay, self.if_alive, (life, do, what))

    def if_alive(self, item: tuple[int, Callable[[Any], None], Any]) -> None:
        """Call `do(what)`, if the worker still lives the life for which it was planned."""
        life, do, what = item
        if self.up and life == self.life:
            do(what)

    # -- events --------------------------------------------------------------------------------

    def receive(self, item: tuple[int, bytes]) -> None:
        """Take a message that arrives, unless a copy of it was accepted before."""
        if self.up and item[1] not in self._seen:
            self.take(ev.Received(*item))

    def take(self, event: ev.Event) -> None:
        """Tell the player of an event, and do what it asks for."""
        self._inbox.append(event)
        if not self._asleep:
            return
        self._asleep = False
        try:
            while self._inbox and self.up:
                self._handle(self._inbox.popleft())
        finally:
            self._asleep = True

    def _handle(self, event: ev.Event) -> None:
        cluster = self.cluster
        actions: Sequence[ev.Action] = self.player.handle(event, self._local())
        cluster.steps += 1
        if self.behaviour is not None:
            actions = self.behaviour.act(event, actions)
        if cluster.trace is not None:
            cluster.trace.record(cluster.agenda.now, self.index, event, actions)
        self._reject_seen = False
        self.execute(actions)
        if type(event) is ev.Received and not self._reject_seen and event.data[0] in REMEMBERED:
            # As in a real driver, a second copy of an accepted message is dropped unread. What was
            # rejected may only have come too early, so it is not remembered.
            self._seen.add(event.data)
        if self.behaviour is None:
            cluster.watcher.handled(self)

    def execute(self, actions: Sequence[ev.Action]) -> None:
        """Carry out actions in order; a planned crash may come between them."""
        dying: Crash | None = None
        for action in actions:
            if type(action) is ev.Persist:
                if dying is not None:
                    break
                dying = self._persist(action)
                if not self.up:
                    return
            else:
                self._do(action)
        if dying is not None:
            self.crash(dying)

    def _persist(self, action: ev.Persist) -> Crash | None:
        """Write and sync; a crash planned for after the actions that follow is returned."""
        crash = self._crashes.pop(self.disk.writes, None)
        if crash is not None and crash.point is Point.BEFORE:
            self.crash(crash)
            return None
        self.disk.write(action, self.memory)
        if crash is not None and crash.point is Point.UNSYNCED:
            self.crash(crash)
            return None
        self.disk.sync()
        if crash is not None and crash.point is Point.WRITTEN:
            self.crash(crash)
            return None
        return crash

    # -- actions -------------------------------------------------------------------------------

    def _do(self, action: ev.Action) -> None:  # noqa: C901  # One case for each kind of action.
        network = self.cluster.network
        match action:
            case ev.Broadcast():
                self._tell_watcher(action.data)
                self._seen.add(action.data)  # So that copies relayed by others are dropped.
                network.broadcast(self.index, action.data)
            case ev.Relay():
                network.relay(self.index, action.data, action.without)
            case ev.Reject():
                self._reject_seen = True
                self.rejected[action.fault] += 1
            case ev.Send():
                self._tell_watcher(action.data)
                if action.peer != self.index:
                    network.send(self.index, action.peer, action.data)
            case ev.SendBlocks():
                finished = self.disk.finished[max(0, action.first - 1) : action.last]
                batch = [item.encode() for item in finished]
                network.send_in_order(self.index, action.peer, batch)
            case ev.SetTimer():
                delay = self._global(action.at) - self.cluster.agenda.now
                self.later(max(0, delay), self.take, ev.TimerFired(action.timer))
            case ev.Want():
                self._want(action)
            case ev.Compute():
                duration = self.cluster.durations.of(action.job) * self.slowness
                self.later(duration, self._compute, action.job)
            case ev.Keep():
                self.memory.put(ev.BlobKind.BLOCK, action.digest, action.data, self.player.round)
            case ev.Forget():
                self.disk.drop(self.memory.forget(action.before_round - 1))
                self.cluster.forget(action.before_round - 1)
                self.fetcher.forget(action.before_round)
            case ev.Commit():
                self.memory.committed(action.model)
                self.commits[action.round] = action
                if self.behaviour is None:
                    self.cluster.watcher.committed(self, action)
            case ev.Entered():
                self._seen.clear()
            case ev.ReportEvidence():
                self.reports.append(action)
            case ev.Alarm():
                self.alarms.append(action.why)
            case ev.Halt():
                self.halted = action.why
            case ev.Persist():
                pass  # Done by `execute`, which a crash may interrupt there.

    def _tell_watcher(self, data: bytes) -> None:
        if self.behaviour is None:
            self.cluster.watcher.sent(self, data)

    # -- learning ------------------------------------------------------------------------------

    def _compute(self, job: ev.Job) -> None:
        self.take(self._result(job))

    def _result(self, job: ev.Job) -> ev.Event:
        model = self.memory.get(job.model)
        if model is None:
            return ev.JobFailed(job)
        match job:
            case ev.Propose():
                payload = self._learner.propose(job, model)
                if payload is None:
                    return ev.JobFailed(job)
                digest = aggregate.payload_digest(payload)
                self.memory.put(ev.BlobKind.PAYLOAD, digest, payload, job.round)
                self.cluster.archive(digest, payload, job.round)
                return ev.Proposed(job, digest)
            case ev.Judge():
                payloads = self._payloads(candidate.payload for candidate in job.candidates)
                if payloads is None:
                    return ev.JobFailed(job)
                approved = self._learner.judge(job, model, payloads)
                return ev.JobFailed(job) if approved is None else ev.Judged(job, approved)
            case ev.Combine():
                return self._combined(job, model)

    def _combined(self, job: ev.Combine, model: bytes) -> ev.Event:
        payloads = self._payloads(job.payloads)
        if payloads is None:
            return ev.JobFailed(job)
        memo = self.cluster.combined
        found = memo.get(job)
        if found is None:
            data, radius = self._learner.combine(job, model, payloads)
            shapes = self.cluster.genesis.params.shapes
            digest = None if data is None else aggregate.model_digest(shapes, data)
            found = memo[job] = (data, digest, radius)
        data, digest, radius = found
        if data is not None and digest is not None:
            self.memory.put(ev.BlobKind.MODEL, digest, data, self.player.round)
        return ev.Combined(job, digest, radius)

    def _payloads(self, digests: Any) -> list[bytes] | None:
        found = [self.memory.get(digest) for digest in digests]
        return None if None in found else [data for data in found if data is not None]

    # -- blobs ---------------------------------------------------------------------------------

    def _want(self, action: ev.Want) -> None:
        data = self.memory.get(action.digest)
        if data is None:
            self.fetcher.want(action)
        else:
            self.ready(action.kind, action.digest, data)

    def ready(self, kind: ev.BlobKind, digest: Digest, data: bytes) -> None:
        """Tell the player that a blob it wants is in hand."""
        match kind:
            case ev.BlobKind.PAYLOAD:
                self.take(ev.PayloadReady(digest, self.cluster.payload_valid(digest, data)))
            case ev.BlobKind.BLOCK:
                self.take(ev.BlockReady(digest, data))
            case ev.BlobKind.MODEL:
                self.take(ev.ModelReady(digest))

    def serve(self, peer: int, digest: Digest) -> bytes | None:
        """What this worker answers a peer that wants a blob; None: nothing."""
        data = self.memory.get(digest)
        if self.behaviour is not None:
            return self.behaviour.serve(peer, digest, data)
        return data
