"""The driver: one task owns the `Player`, and everything slow happens beside it.

Events reach the player one at a time: timers that are due, then results of this node's work (blobs,
models, ballots), then messages, the most urgent first. The actions it asks for are carried out in
order, after whatever must be durable is written. The learner's process computes gradients and
ballots, one thread computes models and another writes: meanwhile, voting goes on.
"""

import asyncio
import os
import time
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any

from holdout.agreement import aggregate
from holdout.agreement import events as ev
from holdout.agreement.params import Genesis, Timing
from holdout.agreement.player import Player
from holdout.errors import LearnerFailed
from holdout.ids import Digest
from holdout.node.logs import Log
from holdout.node.network.blobs import Blobs, Fetcher
from holdout.node.network.gossip import Gossip
from holdout.node.network.queues import Dropped, Inbox, is_agreement
from holdout.node.network.transport import Transport
from holdout.node.runtime.archive import Archive
from holdout.node.runtime.jobs import Jobs
from holdout.node.runtime.learner_client import LearnerClient
from holdout.node.runtime.measure import Counters, Idle, Spent, stopwatch
from holdout.node.runtime.pacing import Timers, now
from holdout.node.runtime.watch import Watch

MEETING_SECONDS = 3.0
STEPS_IN_A_ROW = 32
"""After this many events and messages the other tasks get their turn."""
NONCE_BYTES = 32
FORGED = frozenset(
    {
        ev.MessageFault.MALFORMED,
        ev.MessageFault.WRONG_CHAIN,
        ev.MessageFault.UNKNOWN_WORKER,
        ev.MessageFault.WRONG_SIGNATURE,
        ev.MessageFault.NOT_DRAWN,
        ev.MessageFault.NO_QUORUM,
        ev.MessageFault.NO_EVIDENCE,
    }
)
"""What no honest member sends, nor passes on."""
FORGED_COST = 16
"""How many messages each of those counts as, in its sender's allowance."""


class Service:
    """Drives one node's player: gives it events, carries out its actions.

    Attributes:
        accuracy: Of the newest model, as far as the member's worker can tell.
        evidence: How often each worker was caught lying.
        halted: Why the node signs nothing any more; None: it does.
        stopping: Whether it has been told to end.
        watch: What is measured of each round, for status and metrics.
    """

    def __init__(
        self,
        genesis: Genesis,
        worker: int,
        *,
        player: Player,
        archive: Archive,
        blobs: Blobs,
        inbox: Inbox,
        learner: LearnerClient,
        timing: Timing,
        log: Log,
        spent: Spent,
        names: Sequence[str],
        until: int | None = None,
    ) -> None:
        """Get ready to run as the member at place `worker`; `attach` adds the network.

        The log calls members by their `names`. With `until`, the node takes part up to that round.
        """
        self._params = genesis.params
        self.worker = worker
        self.player = player
        self._blobs = blobs
        self._inbox = inbox
        self._learner = learner
        self._timing = timing
        self._log = log
        self._names = names
        self.spent = spent
        self._until = until
        self.counters = Counters()
        self.watch = Watch(blobs)
        self.accuracy: float | None = None
        self.evidence: Counter[int] = Counter()
        self.halted: str | None = None
        self._idle = Idle(spent)
        self._archive = archive
        self.jobs = Jobs(self._params, learner=learner, blobs=blobs, log=log)
        self._events: deque[ev.Event] = deque()
        self._timers = Timers()
        self._awake = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._computing = 0
        self.stopping = False
        self._failure: Exception | None = None
        self._steps = self._archive.steps
        self._rejected = False
        self._slow: tuple[int, ...] = ()
        self.charge: Callable[[int, int], None] = lambda _peer, _messages: None
        """Takes messages off a peer's allowance."""
        self.barred: Callable[[], frozenset[int]] = frozenset
        """The peers from which nothing is taken in, since they flood."""
        self.transport: Transport
        self.gossip: Gossip
        self._fetcher: Fetcher

    def attach(self, transport: Transport, gossip: Gossip, fetcher: Fetcher) -> None:
        """Add the network, whose parts need this object to exist."""
        self.transport, self.gossip, self._fetcher = transport, gossip, fetcher

    def take_part_until(self, round_number: int) -> None:
        """Take part up to this round, unless an earlier one was named before."""
        self._until = round_number if self._until is None else min(self._until, round_number)

    def wake(self) -> None:
        """Look for new messages; called on any thread."""
        with suppress(RuntimeError):  # The loop has ended.
            self._loop.call_soon_threadsafe(self._awake.set)

    def stop(self) -> None:
        """Have `run` finish what is being written and end."""
        self.stopping = True
        self._awake.set()

    # -- the loop ---------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run until stopped; raises the error that makes it impossible to go on."""
        delay = self._timing.delay / 1e6
        self._begin(self.gossip.keep_talking(delay, lambda: self.player.period))
        loading = self._begin(self._learner.start())
        await self._meet(loading)
        self._events.append(ev.Start(os.urandom(NONCE_BYTES)))
        try:
            in_a_row = 0
            while not self.stopping and self._failure is None:
                if not await self._step():
                    in_a_row = 0
                    await self._rest()
                    continue
                in_a_row += 1
                if in_a_row >= STEPS_IN_A_ROW:
                    in_a_row = 0
                    await asyncio.sleep(0)
        finally:
            await self._end()
        if self._failure is not None:
            raise self._failure

    async def _meet(self, loading: asyncio.Task[None]) -> None:
        """Give connections a moment: what is sent before there are any is lost.

        In a new network all members load their data at the same time; if nobody waited for that,
        the first round would be empty.
        """
        if self.player.round == 1:
            await self._poll(loading.done, self._timing.propose / 1e6)
        # Later on, some may be down: a quorum is enough to go on.
        enough = (self._params.workers if self.player.round == 1 else self._params.quorum) - 1
        await self._poll(lambda: len(self.transport.peers()) >= enough, MEETING_SECONDS)

    async def _poll(self, condition: Callable[[], bool], seconds_max: float) -> None:
        """Wait until the condition holds, the time is up, or the node is told to end."""
        end = time.monotonic() + seconds_max
        while not (condition() or self.stopping or time.monotonic() > end):  # noqa: ASYNC110  # Zenoh has no event.
            await asyncio.sleep(0.05)

    async def _end(self) -> None:
        # First, so that it travels while the rest is being closed.
        self.gossip.goodbye(self.player.period)
        self._fetcher.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._learner.close()
        self._archive.close()
        self.jobs.close()

    async def _step(self) -> bool:
        """Handle one timer, event or message; False: there is none."""
        self._awake.clear()
        timer = self._timers.due()
        if timer is not None:
            await self._handle(ev.TimerFired(timer))
        elif self._events:
            await self._handle(self._events.popleft())
        elif (item := self._inbox.get()) is not None:
            await self._receive(*item)
        else:
            return False
        return True

    async def _receive(self, sender: int, data: bytes) -> None:
        if not is_agreement(data):
            self._listen(sender, data)
        elif self.gossip.foreign(sender) is not None:
            self.counters.rejected[Dropped.FOREIGN] += 1
        elif self.gossip.is_repeated(data):
            self.counters.rejected[Dropped.REPEATED] += 1
        else:
            await self._handle(ev.Received(sender, data))

    def _listen(self, sender: int, data: bytes) -> None:
        """Handle a message of gossip itself."""
        before = sender in self.gossip.left
        told = self.gossip.spoken.get(sender)
        self.gossip.handle(sender, data)
        why = self.gossip.foreign(sender)
        if why is not None and self.gossip.spoken.get(sender) != told:
            self._log.error("version-refused", member=self._names[sender], why=why)
        if sender in self.gossip.left and not before:
            self._log.info("peer-left", member=self._names[sender])
            self._look_who_is_away()

    async def _rest(self) -> None:
        """Wait for something to do."""
        began = time.perf_counter()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._timers.seconds()):
                await self._awake.wait()
        self._idle.waited(
            time.perf_counter() - began,
            computing=self._computing > 0,
            fetching=self._fetcher.count > 0,
        )

    async def _handle(self, event: ev.Event) -> None:
        at = now()
        crypto = self.spent.crypto
        with stopwatch(self.spent, "protocol"):
            actions: Sequence[ev.Action] = self.player.handle(event, at)
        self.spent.protocol -= self.spent.crypto - crypto
        self.watch.saw(event, actions, at)
        if self.jobs.misbehaviour is not None:
            actions = self.jobs.misbehaviour.act(actions)
        self._rejected = False
        if isinstance(event, ev.TimerFired) and actions:
            self._idle.ended_by_timer()
        await self._execute(actions)
        if isinstance(event, ev.Received):
            self._idle.ended_by_message()
            if not self._rejected:
                self.gossip.remember(event.data)

    # -- actions ----------------------------------------------------------------------------------

    async def _execute(self, actions: Sequence[ev.Action]) -> None:
        """Carry out these actions: first all their writes, as one, then the rest in order."""
        persists = []
        for action in actions:
            if isinstance(action, ev.Keep):
                self._blobs.put(ev.BlobKind.BLOCK, action.digest, action.data, self.player.round)
            elif isinstance(action, ev.Persist):
                persists.append(action)
        if persists:
            await self._archive.persist(persists, self.player.round)
        for action in actions:
            self._do(action)

    def _do(self, action: ev.Action) -> None:  # noqa: C901  # One line for each kind of action.
        match action:
            case ev.Broadcast():
                self.gossip.broadcast(action.data, action.urgency)
            case ev.Relay():
                self.gossip.relay(action.data, action.urgency, action.without)
            case ev.Send():
                self.transport.send(action.peer, action.data, action.urgency)
            case ev.SetTimer():
                self._set_timer(action)
            case ev.Want():
                self._want(action)
            case ev.Compute():
                self._compute(action.job)
            case ev.Reject():
                self._rejected = True
                self._reject(action)
            case ev.SendBlocks():
                self._begin(self._send_blocks(action))
            case ev.Commit():
                self._commit(action)
            case ev.Forget():
                self._blobs.forget(action.before_round - 1)
                self._fetcher.forget(action.before_round)
            case ev.Entered():
                self._entered(action)
            case ev.ReportEvidence():
                self._report(action)
            case ev.Alarm():
                self._log.error("alarm", why=action.why)
            case ev.Halt():
                self.halted = action.why
                self._log.error("halt", why=action.why)
            case ev.Keep() | ev.Persist():
                pass  # Done by `_execute`.

    def _reject(self, action: ev.Reject) -> None:
        self.counters.rejected[action.fault] += 1
        self.counters.rejected_by[action.peer, action.fault] += 1
        if action.fault in FORGED and action.peer != self.worker:
            self.charge(action.peer, FORGED_COST)

    def _set_timer(self, action: ev.SetTimer) -> None:
        if self._until is None or action.timer.round <= self._until:
            self._timers.set(action)

    def _entered(self, action: ev.Entered) -> None:
        self._log.round = action.round
        self._log.debug("entered", period=action.period)
        self.counters.periods += action.period > 0
        if action.round == self.jobs.round:
            return
        self.jobs.round = action.round
        self.gossip.entered(action.round)
        self.gossip.beat(action.period)
        self._look_who_is_away()
        self._name_the_slow()
        self._timers.forget(action.round)

    def _name_the_slow(self) -> None:
        """Log which members the others wait for, when that changes."""
        slow = self.player.waits.slow()
        if slow != self._slow:
            self._slow = slow
            self._log.warning("slow-members", members=[self._names[place] for place in slow])

    def _look_who_is_away(self) -> None:
        """Tell the player whom it need not wait for: they left, flood, or have no connection."""
        reachable = set(self.transport.peers()).difference(self.gossip.left, self.barred())
        reachable.add(self.worker)
        self.player.waits.away = frozenset(range(self._params.workers)).difference(reachable)

    def _report(self, action: ev.ReportEvidence) -> None:
        kind = action.evidence.first.kind
        self.evidence[action.worker] += 1
        self._log.warning("evidence", member=self._names[action.worker], kind=kind.name.lower())
        self._begin(self._archive.add_evidence(action))

    def _commit(self, action: ev.Commit) -> None:
        self.counters.rounds += 1
        self.counters.steps += action.stepped
        self._steps += action.stepped
        self._log.info(
            "commit",
            decided=action.round,
            model=action.model.hex()[:16],
            stepped=action.stepped,
            selected=None if action.selected is None else list(action.selected),
        )
        self._begin(self._archive.finish(action))
        model = self._blobs.get(ev.BlobKind.MODEL, action.model)
        if model is not None:
            self._begin(self._measure(model, action.round))

    async def _send_blocks(self, action: ev.SendBlocks) -> None:
        for item in await self._archive.finished(action.first, action.last):
            self.transport.send(action.peer, item.encode(), ev.Urgency.ANSWER)

    # -- blobs ------------------------------------------------------------------------------------

    def _want(self, action: ev.Want) -> None:
        data = self._blobs.get(action.kind, action.digest)
        if data is not None:
            self._announce(action.kind, action.digest, data)
        else:
            self._fetcher.want(action.kind, action.digest, action.hints, self.player.round)

    def fetched(self, kind: ev.BlobKind, digest: Digest, data: bytes) -> None:
        """Take a blob that was fetched; its digest is right."""
        self._idle.ended_by_message()
        self._blobs.put(kind, digest, data, self.player.round)
        self._announce(kind, digest, data)

    def gave_up(self, payload: Digest) -> None:
        """Note that a gradient was asked for in vain: nobody waits for it any longer."""
        self._tell(ev.PayloadFailed(payload))

    def _announce(self, kind: ev.BlobKind, digest: Digest, data: bytes) -> None:
        match kind:
            case ev.BlobKind.PAYLOAD:
                valid = aggregate.payload_fault(data, self._params) is None
                self._tell(ev.PayloadReady(digest, valid))
            case ev.BlobKind.BLOCK:
                self._tell(ev.BlockReady(digest, data))
            case ev.BlobKind.MODEL:
                self._tell(ev.ModelReady(digest))

    def _tell(self, event: ev.Event) -> None:
        self._events.append(event)
        self._awake.set()

    # -- learning ---------------------------------------------------------------------------------

    def _compute(self, job: ev.Job) -> None:
        if self._until is not None and self.player.round > self._until:
            return
        self._begin(self._computed(job))

    async def _computed(self, job: ev.Job) -> None:
        self._computing += 1
        try:
            event = await self.jobs.result(job, self._steps)
        finally:
            self._computing -= 1
        self._tell(event)

    async def _measure(self, model: bytes, round_number: int) -> None:
        with suppress(LearnerFailed):
            self.accuracy = await self._learner.accuracy(model)
            self.watch.measured(round_number, self.accuracy)

    # -- tasks beside the loop --------------------------------------------------------------------

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            error = task.exception()
            assert isinstance(error, Exception)  # noqa: S101
            self._failure = error
            self._awake.set()
