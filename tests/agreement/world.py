"""A handful of real players whose messages a script delivers one by one.

Workers are called a, b, c, ...; those named as liars run no player, but their keys sign whatever
the script wants. Gradients, blocks and models are in everybody's hand at once: scripts are about
who hears which vote. Timers fire only when the script says so.
"""

from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from holdout.agreement import aggregate, safety
from holdout.agreement import events as ev
from holdout.agreement.codec import BOTTOM
from holdout.agreement.keys import SimulatedKeys
from holdout.agreement.messages import (
    BallotMessage,
    Bundle,
    Entry,
    Envelope,
    Evidence,
    Finished,
    Kind,
    Lead,
    Update,
    Vote,
    VoteSignature,
    VoteStep,
    ballot_part,
    base_step,
    lead_part,
    update_part,
    vote_part,
)
from holdout.agreement.params import Genesis, Params, Timing
from holdout.agreement.player import Player
from holdout.agreement.sortition import Role
from holdout.agreement.wire import decode

DIMENSION = 4
SECOND = 1_000_000


def letter(worker: int) -> str:
    return chr(ord("a") + worker)


@dataclass
class World:
    n: int
    liars: tuple[int, ...] = ()
    seed: int = 0
    early: bool = False
    now: int = 0
    log: list[str] = field(default_factory=list)
    flying: list[tuple[int, int, bytes]] = field(default_factory=list)
    """(sender, receiver, bytes) of what is on its way."""
    names: dict[bytes, str] = field(default_factory=dict)
    blobs: dict[bytes, bytes] = field(default_factory=dict)
    disks: dict[int, tuple[bytes | None, list[Finished]]] = field(default_factory=dict)
    votes: dict[tuple[int, int, int, bytes], dict[int, VoteSignature]] = field(default_factory=dict)
    commits: dict[int, dict[int, bytes]] = field(default_factory=dict)
    history: dict[int, list[tuple[ev.Event, int, list[ev.Action]]]] = field(default_factory=dict)
    """All that a player was fed since it started, and what it asked for."""
    lead_values: dict[int, bytes] = field(default_factory=dict)

    def __post_init__(self):
        self.keys = SimulatedKeys(self.seed, self.n)
        first = bytes(4 * DIMENSION)
        shapes = ((DIMENSION,),)
        byzantine = (self.n - 1) // 3
        self.params = Params(
            workers=self.n,
            f=Fraction(byzantine, self.n),
            quorum=2 * self.n // 3 + 1,
            proposers=self.n,
            voters=self.n,
            leaders=self.n,
            ballots_min=self.n - byzantine - len(self.liars),
            byzantine_voters_max=0,
            dimension=DIMENSION,
            model_first=aggregate.model_digest(shapes, first),
            rates=(0.1,),
            shapes=shapes,
        )
        roster = tuple(self.keys.signer(i).public for i in range(self.n))
        self.genesis = Genesis(self.params, roster, b"script", b"beacon")
        self.names[BOTTOM] = "nothing"
        self.blobs[self.params.model_first] = first
        self.players: dict[int, Player] = {}
        for worker in range(self.n):
            if worker not in self.liars:
                self.disks[worker] = (safety.initial(self.genesis), [])
                self.boot(worker)

    def boot(self, worker: int) -> None:
        saved, finished = self.disks[worker]
        self.history[worker] = []
        self.players[worker] = self.player(worker, saved, finished)
        self.feed(worker, ev.Start(bytes([worker]) * 32))

    def player(self, worker: int, saved: bytes | None, finished: list[Finished]) -> Player:
        return Player(
            self.genesis,
            worker,
            self.keys.signer(worker),
            self.keys.verifier(),
            timing=Timing(ends_waits_early=self.early),
            safety=saved,
            finished=tuple(finished),
        )

    # -- what players do ------------------------------------------------------------------------

    def feed(self, worker: int, event: ev.Event) -> None:
        actions = self.players[worker].handle(event, self.now)
        self.history.setdefault(worker, []).append((event, self.now, actions))
        for action in actions:
            self.act(worker, action)

    def act(self, worker: int, action: ev.Action) -> None:  # noqa: C901  # One case an action.
        match action:
            case ev.Broadcast():
                self.say(worker, action.data)
                self.flying += [(worker, j, action.data) for j in range(self.n) if j != worker]
            case ev.Relay() if self.describe(action.data) == "EVIDENCE":
                self.say(worker, action.data)
                others = [j for j in range(self.n) if j not in {worker, action.without}]
                self.flying += [(worker, j, action.data) for j in others]
            case ev.Send():
                self.flying.append((worker, action.peer, action.data))
            case ev.SendBlocks():
                for item in self.disks[worker][1][action.first - 1 : action.last]:
                    self.flying.append((worker, action.peer, item.encode()))
            case ev.Keep():
                self.blobs[action.digest] = action.data
            case ev.Want():
                self.answer(worker, action)
            case ev.Compute():
                self.compute(worker, action.job)
            case ev.Persist():
                finished = [*self.disks[worker][1], *action.finished]
                self.disks[worker] = (action.safety, finished)
            case ev.Entered() if action.period:
                self.log.append(f"{letter(worker)} enters period {action.period}")
            case ev.Commit():
                self.commits.setdefault(action.round, {})[worker] = action.value
                self.log.append(f"{letter(worker)} commits {self.name(action.value)}")
            case ev.ReportEvidence():
                kind = action.evidence.first.kind.name.lower()
                self.log.append(
                    f"{letter(worker)} caught {letter(action.worker)}: two {kind}s in one slot"
                )
            case ev.Alarm() | ev.Halt():
                self.log.append(f"{letter(worker)} {type(action).__name__.lower()}: {action.why}")
            case ev.Reject():
                self.log.append(f"{letter(worker)} rejects {action.fault}")

    def answer(self, worker: int, want: ev.Want) -> None:
        data = self.blobs.get(want.digest)
        if data is None:
            return
        match want.kind:
            case ev.BlobKind.PAYLOAD:
                valid = aggregate.payload_fault(data, self.params) is None
                self.feed_later(worker, ev.PayloadReady(want.digest, valid))
            case ev.BlobKind.BLOCK:
                self.feed_later(worker, ev.BlockReady(want.digest, data))
            case ev.BlobKind.MODEL:
                self.feed_later(worker, ev.ModelReady(want.digest))

    def feed_later(self, worker: int, event: ev.Event) -> None:
        self.pending.append((worker, event))

    pending: list[tuple[int, ev.Event]] = field(default_factory=list)

    def settle(self) -> None:
        """Everything that needs no message: computing, fetching."""
        while self.pending:
            worker, event = self.pending.pop(0)
            self.feed(worker, event)

    def compute(self, worker: int, job: ev.Job) -> None:
        match job:
            case ev.Propose():
                values = np.full(DIMENSION, 1.0 + worker, dtype=np.float32)
                data = aggregate.canonical(values)
                digest = aggregate.payload_digest(data)
                self.blobs[digest] = data
                self.feed_later(worker, ev.Proposed(job, digest))
            case ev.Judge():
                self.feed_later(worker, ev.Judged(job, tuple(range(job.approve_max))))
            case ev.Combine():
                model, radius = aggregate.combine(
                    self.blobs[job.model],
                    [self.blobs[p] for p in job.payloads],
                    radius=job.radius,
                    rate=job.rate,
                )
                digest = None
                if model is not None:
                    digest = aggregate.model_digest(self.params.shapes, model)
                    self.blobs[digest] = model
                self.feed_later(worker, ev.Combined(job, digest, radius))

    # -- what is said ---------------------------------------------------------------------------

    def name(self, value: bytes) -> str:
        return self.names.setdefault(value, f"v{len(self.names)}")

    def describe(self, data: bytes) -> str:
        message = decode(data).claim
        match message:
            case Update():
                return "UPDATE"
            case BallotMessage():
                return "BALLOT"
            case Lead():
                again = "" if message.original_period == message.period else " again"
                return f"LEAD {self.name(message.value)}{again}"
            case Vote():
                return f"{base_step(message.step).name} {self.name(message.value)}"
            case Bundle():
                who = "".join(letter(mark.worker) for mark in message.marks)
                return f"BUNDLE {base_step(message.step).name} {self.name(message.value)} ({who})"
            case Evidence():
                return "EVIDENCE"
            case _:
                return type(message).__name__.upper()

    def say(self, worker: int, data: bytes) -> None:
        message = decode(data).claim
        if isinstance(message, Vote):
            self.record(message)
        if isinstance(message, Lead):
            self.lead_values[worker] = message.value
        if not isinstance(message, Update | BallotMessage):
            self.log.append(f"{letter(worker)} says {self.describe(data)}")

    def record(self, vote: Vote) -> None:
        key = (vote.round, vote.period, vote.step, vote.value)
        mark = VoteSignature(vote.worker, vote.envelope.signature, vote.envelope.proof)
        self.votes.setdefault(key, {})[vote.worker] = mark

    # -- what a script may do -------------------------------------------------------------------

    def deliver(self, what: str, receivers: list[int], *, drop: bool = False) -> None:
        """Everything on its way whose description begins so, in the order it was sent."""
        chosen = [
            item
            for item in self.flying
            if item[1] in receivers and (what == "*" or self.describe(item[2]).startswith(what))
        ]
        for item in chosen:
            self.flying.remove(item)
            sender, receiver, data = item
            if not drop and receiver in self.players:
                self.feed(receiver, ev.Received(sender, data))
                self.settle()

    def learn(self) -> None:
        """The learning half, with everybody hearing everybody."""
        everybody = list(self.players)
        self.settle()
        self.deliver("UPDATE", everybody)
        for kind in (ev.TimerKind.PROPOSALS_END, ev.TimerKind.BALLOTS_END, ev.TimerKind.LEAD):
            for worker in everybody:
                self.fire(worker, kind)
            self.deliver("BALLOT", everybody)

    def flow(self, until_round: int, *, without: tuple[int, ...] = ()) -> None:
        """Deliver everything in order until all players but some have reached a round."""
        reached = [w for w in self.players if w not in without]
        while any(self.players[w].round < until_round for w in reached):
            self.settle()
            assert self.flying, "nothing is on its way and nobody moves"
            sender, receiver, data = self.flying.pop(0)
            if receiver in self.players and receiver not in without:
                self.feed(receiver, ev.Received(sender, data))
        self.settle()

    def fire(self, worker: int, kind: ev.TimerKind) -> None:
        player = self.players[worker]
        self.now += SECOND
        timer = ev.Timer(kind, player.round, player.period)
        self.feed(worker, ev.TimerFired(timer))
        self.settle()

    def forge_vote(self, liar: int, period: int, step: int, value: bytes) -> bytes:
        number = next(iter(self.players.values())).round
        part = vote_part(self.genesis.chain, number, period, step, liar, value)
        envelope = Envelope(Kind.VOTE, part, self.keys.signer(liar).sign(part))
        message = decode(envelope.encode()).claim
        assert isinstance(message, Vote)
        self.record(message)
        return envelope.encode()

    def forge_bundle(self, period: int, step: int, value: bytes) -> bytes:
        """Of all votes ever said, the liars' included."""
        number = min(player.round for player in self.players.values())
        marks = self.votes.get((number, period, step, value), {})
        chosen = tuple(marks[w] for w in sorted(marks))
        return Bundle(self.genesis.chain, number, period, step, value, chosen).encode()

    def forge_ballot(self, liar: int, count: int) -> bytes:
        """A ballot for the first so many proposals that player a knows."""
        player = next(iter(self.players.values()))
        candidates = player._round.learning_messages.candidates()[:count]
        entries = tuple(Entry(c.proposer, c.update_id) for c in candidates)
        part = ballot_part(self.genesis.chain, player.round, liar, player.model, entries)
        return Envelope(Kind.BALLOT, part, self.keys.signer(liar).sign(part)).encode()

    def forge_update(self, liar: int, value: float) -> bytes:
        player = next(iter(self.players.values()))
        data = aggregate.canonical(np.full(DIMENSION, value, dtype=np.float32))
        digest = aggregate.payload_digest(data)
        self.blobs[digest] = data
        part = update_part(
            self.genesis.chain, player.round, liar, player.model, digest, 4 * DIMENSION
        )
        return Envelope(Kind.UPDATE, part, self.keys.signer(liar).sign(part)).encode()

    def forge_lead(self, liar: int, period: int, value: bytes) -> bytes:
        player = next(iter(self.players.values()))
        signer = self.keys.signer(liar)
        proof = player._round.draws.own_proof(signer, Role.LEADER, liar, period)
        part = lead_part(self.genesis.chain, player.round, period, liar, period, value)
        return Envelope(Kind.LEAD, part, signer.sign(part), proof).encode()

    def hand(self, liar: int, data: bytes, receivers: list[int]) -> None:
        for receiver in receivers:
            self.feed(receiver, ev.Received(liar, data))
            self.settle()

    def crash(self, worker: int) -> None:
        self.boot(worker)
        self.settle()

    def value(self, name: str) -> bytes:
        return next(value for value, known in self.names.items() if known == name)

    def best_lead(self, period: int) -> str:
        player = next(iter(self.players.values()))
        return letter(player._round.periods.leads.best(period)[0].worker)


def step_of(name: str) -> int:
    return int(VoteStep[name])
