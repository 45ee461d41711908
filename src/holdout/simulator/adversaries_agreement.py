"""What Byzantine leaders and committee members do, and an attacker who sees all votes.

`BEHAVIOURS` lists all behaviours, those of `adversaries` too, by their names in the table of
`docs/simulation.md`; `corrupt` gives them to workers.
"""
# ruff: noqa: ARG002  # All behaviours take the same arguments, whatever they look at.

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

from holdout.agreement import aggregate
from holdout.agreement import events as ev
from holdout.agreement import messages as msg
from holdout.agreement.blocks import Block, Draft, assemble, read_block
from holdout.agreement.codec import BOTTOM
from holdout.agreement.headers import BlockKind, Tip, read_header
from holdout.errors import InvalidMessage
from holdout.ids import Digest
from holdout.seeds import stream
from holdout.simulator import adversaries
from holdout.simulator.adversaries import Liar
from holdout.simulator.cluster import Cluster
from holdout.simulator.nodes import SimulatedNode


class DoubleVoter(Liar):
    """Z4: votes for every value that it hears of, at chosen victims."""

    def __init__(self, node: SimulatedNode, liars: Sequence[int]) -> None:
        super().__init__(node, liars)
        self._values: dict[tuple[int, int], list[Digest]] = {}

    def outgoing(self, action: ev.Broadcast, message: msg.Message | None) -> Sequence[ev.Action]:
        """Its vote to half of the others, a vote for another value to the rest."""
        if not isinstance(message, msg.Vote) or message.value == BOTTOM:
            return (action,)
        others = [v for v in self._known(message) if v != message.value]
        if not others:
            return (action,)
        other = others[self.words.below(len(others))]
        second = self.vote(message.round, message.period, message.step, other)
        return self.split(action.data, second, action.urgency)

    def hear(self, peer: int, data: bytes) -> Sequence[ev.Action]:
        """Vote as others do, also in further steps, and show it to one or two of them."""
        if not data or data[0] not in (msg.Kind.VOTE, msg.Kind.LEAD):
            return ()
        message = self.read(data)
        if not isinstance(message, msg.Vote | msg.Lead) or message.worker in self.liars:
            return ()
        if message.round < self.node.player.round:
            return ()
        if message.value != BOTTOM:
            self._known(message).append(message.value)
        if isinstance(message, msg.Lead) or not self.lucky(3):
            return ()
        steps = [message.step]
        if message.value != BOTTOM and self.lucky(2):
            steps = [msg.VoteStep.SOFT, msg.VoteStep.CERT, msg.VoteStep.LATE, msg.VoteStep.REDO]
        victims = self.others()[: 1 + self.words.below(2)]
        made = [self.vote(message.round, message.period, step, message.value) for step in steps]
        if self.lucky(4):
            made.append(self.vote(message.round, message.period, msg.VoteStep.DOWN, BOTTOM))
        return [ev.Send(victim, data, ev.Urgency.VOTE) for victim in victims for data in made]

    def _known(self, message: msg.Vote | msg.Lead) -> list[Digest]:
        known = self._values.setdefault((message.round, message.period), [])
        del known[:-8]
        return known


class HiddenBlock(Liar):
    """Z11: leads with a block that nobody gets, or half of the others get; or does not lead."""

    def __init__(self, node: SimulatedNode, liars: Sequence[int]) -> None:
        super().__init__(node, liars)
        self._kind = self.words.below(3)
        self._victims = self.others()[::2]

    def outgoing(self, action: ev.Broadcast, message: msg.Message | None) -> Sequence[ev.Action]:
        """Its lead, unless it is a worker that does not lead."""
        return () if isinstance(message, msg.Lead) and self._kind == 0 else (action,)

    def serve(self, peer: int, digest: Digest, data: bytes | None) -> bytes | None:
        """Everything but the block, which its victims do not get."""
        if data is None or self._kind == 0:
            return data
        try:
            read_block(data)
        except InvalidMessage:
            return data
        return None if self._kind == 1 or peer in self._victims else data


class BlockForger(Liar):
    """The common part of those that lead with another block than the honest one."""

    def __init__(self, node: SimulatedNode, liars: Sequence[int]) -> None:
        super().__init__(node, liars)
        self._made: dict[Digest, Digest] = {}

    def forge(self, block: Block) -> Block | None:
        """Another block in the place of this one; None: this one will do."""
        raise NotImplementedError

    def other(self, action: ev.Action) -> Sequence[ev.Action]:
        """When the honest player keeps its block, make and keep another too."""
        if isinstance(action, ev.Keep):
            block = self.forge(read_block(action.data))
            if block is not None:
                digest = block.header.digest
                self._made[action.digest] = digest
                number = block.header.round
                self.node.memory.put(ev.BlobKind.BLOCK, digest, block.encode(), number)
        return (action,)

    def forged(self, message: msg.Message | None) -> bytes | None:
        """The lead of the forged block, in the place of this lead; None if there is none."""
        if not isinstance(message, msg.Lead) or message.original_period != message.period:
            return None
        value = self._made.get(message.value)
        if value is None:
            return None
        part = msg.lead_part(
            message.chain, message.round, message.period, self.index, message.period, value
        )
        return self.sign(msg.Kind.LEAD, part, message.envelope.proof)

    def with_ballots(self, block: Block, ballots: Sequence[msg.BallotMessage]) -> Block | None:
        """The valid block with these ballots; None if it lacks the gradients to compute it."""
        draft = self.draft(block, ballots)
        payloads = {digest: self.node.memory.get(digest) for digest in draft.needs}
        known = {digest: data for digest, data in payloads.items() if data is not None}
        if len(known) < len(payloads):
            return None
        valid = {d: self.cluster.payload_valid(d, data) for d, data in known.items()}
        job = draft.job(valid)
        if job is None:
            return draft.block(valid, None)
        model = self.node.memory.get(job.model)
        if model is None:
            return None
        chosen = [known[payload] for payload in job.payloads]
        data, combined = aggregate.combined(job, model, chosen, self.genesis.params)
        if data is not None and combined.model is not None:
            self.node.memory.put(ev.BlobKind.MODEL, combined.model, data, block.header.round)
        return draft.block(valid, combined)

    def draft(self, block: Block, ballots: Sequence[msg.BallotMessage]) -> Draft:
        """The draft of a block with these ballots."""
        header = block.header
        params = self.genesis.params
        before = self.node.disk.finished[-1:]
        radius = read_header(before[0].header).radius if before else params.radius_first
        tip = Tip(
            header.round,
            header.previous,
            header.model_previous,
            radius,
            header.steps - (header.kind is BlockKind.STEP),
            BOTTOM,
            None,
        )
        return assemble(
            tip,
            self.genesis,
            leader=self.index,
            original_period=header.original_period,
            seed=header.seed,
            seed_proof=header.seed_proof,
            updates={update.worker: update for update in block.updates},
            ballots={ballot.worker: ballot for ballot in ballots},
            evidence=block.evidence,
        )


class BadBlock(BlockForger):
    """Z12: ballots left out, a step denied, a wrong tally, model, seed or previous block."""

    kinds = (
        "fewer ballots",
        "no ballots",
        "wrong tally",
        "wrong model",
        "wrong seed",
        "wrong previous",
        "twice the same voter",
        "forged ballot",
        "wrong radius",
        "wrong count of steps",
    )
    kind: str | None = None
    """The one of `kinds` to make; None: a random one each time."""

    def outgoing(self, action: ev.Broadcast, message: msg.Message | None) -> Sequence[ev.Action]:
        """The lead of a forged block instead of its lead."""
        forged = self.forged(message)
        return (action,) if forged is None else (ev.Broadcast(forged, action.urgency),)

    def forge(self, block: Block) -> Block | None:
        """The block with one of the faults in `kinds`."""
        header, junk = block.header, Digest(b"\x0d" * 32)
        match self.kind or self.kinds[self.words.below(len(self.kinds))]:
            case "fewer ballots":
                return self.with_ballots(block, self._fewest(block))
            case "no ballots":
                return self.with_ballots(block, ())
            case "wrong tally":
                # The body is honest; the outcome lacks one selected update and has all the others.
                extra = [
                    (update.worker, 1)
                    for update in block.updates
                    if update.worker not in dict(block.selection)
                ]
                return self._resealed(block, selection=(*extra, *block.selection[1:]))
            case "wrong model":
                return replace(block, header=replace(header, model=junk))
            case "wrong seed":
                return replace(block, header=replace(header, seed=junk))
            case "wrong previous":
                return replace(block, header=replace(header, previous=junk))
            case "twice the same voter":
                return self._resealed(block, ballots=(*block.ballots[:1], *block.ballots))
            case "forged ballot":
                return self._resealed(block, ballots=self._with_forged(block))
            case "wrong radius":
                return replace(block, header=replace(header, radius=header.radius * 2 + 1))
            case _:
                return replace(block, header=replace(header, steps=header.steps + 1))

    def _fewest(self, block: Block) -> list[msg.BallotMessage]:
        """The liars' ballots, and only as many honest ones as a step still needs."""
        own = [b for b in block.ballots if b.worker in self.liars]
        honest = [b for b in block.ballots if b.worker not in self.liars]
        count = max(0, self.genesis.params.ballots_min - len(own))
        return own + honest[:count]

    def _with_forged(self, block: Block) -> tuple[msg.BallotMessage, ...]:
        """The ballots, with the first honest one forged."""
        victim = next((b for b in block.ballots if b.worker not in self.liars), None)
        if victim is None:
            return block.ballots
        entries = victim.entries[:1]
        part = msg.ballot_part(victim.chain, victim.round, victim.worker, victim.model, entries)
        envelope = msg.Envelope(
            msg.Kind.BALLOT, part, self.signer.sign(part), victim.envelope.proof
        )
        forged = replace(victim, entries=entries, envelope=envelope)
        return tuple(forged if ballot is victim else ballot for ballot in block.ballots)

    def _resealed(
        self,
        block: Block,
        *,
        ballots: tuple[msg.BallotMessage, ...] | None = None,
        selection: tuple[tuple[int, int], ...] | None = None,
    ) -> Block:
        """The block with other ballots or another selection, and a header with matching roots."""
        changed = replace(
            block,
            ballots=block.ballots if ballots is None else ballots,
            selection=block.selection if selection is None else tuple(sorted(selection)),
        )
        draft = replace(
            self.draft(block, block.ballots), ballots=changed.ballots, updates=changed.updates
        )
        sealed = draft._block(  # noqa: SLF001  # As an honest leader seals it.
            block.header.kind, changed.selection, block.header.model, block.header.radius
        )
        return replace(changed, header=sealed.header)


class TwoBlocks(BlockForger):
    """Z13: leads with one block for half of the others, with another for the rest."""

    def forge(self, block: Block) -> Block | None:
        """A second valid block, with one ballot fewer."""
        second = self.with_ballots(block, block.ballots[1:])
        return None if second is None or second.header.digest == block.header.digest else second

    def outgoing(self, action: ev.Broadcast, message: msg.Message | None) -> Sequence[ev.Action]:
        """Two leads for one period."""
        forged = self.forged(message)
        return (action,) if forged is None else self.split(action.data, forged, action.urgency)


# ----------------------------------------------------------------- an attacker who sees all votes


class Completion:
    """Completes quorums that lack only the liars' votes, and shows them to one or two victims.

    With the votes of B liars, a quorum exists as soon as Q - B honest workers agree, and anybody
    can build a bundle of their votes. The attacker decides who learns of it, and when: a victim at
    once or a little later, the others not from the attacker.
    """

    def __init__(self, cluster: Cluster, liars: Sequence[int]) -> None:
        self._cluster = cluster
        self._liars = tuple(liars)
        self._words = stream(cluster.seed, "completion")
        self._votes: dict[tuple[int, int, int, Digest], dict[int, msg.VoteSignature]] = {}
        self._done: set[tuple[int, int, int, Digest]] = set()
        self._seen: set[bytes] = set()

    def __call__(self, source: int, target: int, data: bytes) -> int:
        """Look at what is sent, and delay nothing."""
        if data and data[0] == msg.Kind.VOTE and data not in self._seen:
            self._seen.add(data)
            try:
                message = self._cluster.decode(data).claim
            except InvalidMessage:
                return 0
            if isinstance(message, msg.Vote) and message.worker not in self._liars:
                self._count(message)
        return 0

    def _count(self, vote: msg.Vote) -> None:
        slot = (vote.round, vote.period, vote.step, vote.value)
        marks = self._votes.setdefault(slot, {})
        marks[vote.worker] = msg.VoteSignature(
            vote.worker, vote.envelope.signature, vote.envelope.proof
        )
        params = self._cluster.genesis.params
        if slot in self._done or len(marks) + len(self._liars) < params.quorum:
            return
        self._done.add(slot)
        if self._words.below(4):
            self._complete(slot, dict(marks))

    def _complete(
        self, slot: tuple[int, int, int, Digest], marks: dict[int, msg.VoteSignature]
    ) -> None:
        cluster = self._cluster
        number, period, step, value = slot
        for liar in self._liars:
            part = msg.vote_part(cluster.genesis.chain, number, period, step, liar, value)
            marks[liar] = msg.VoteSignature(liar, cluster.keys.signer(liar).sign(part), b"")
        quorum = cluster.genesis.params.quorum
        chosen = tuple(marks[worker] for worker in sorted(marks)[:quorum])
        bundle = msg.Bundle(cluster.genesis.chain, number, period, step, value, chosen).encode()
        honest = [w for w in range(len(cluster.nodes)) if w not in self._liars]
        for victim in self._words.sample(honest, 1 + self._words.below(2) % len(honest)):
            delay = self._words.below(2) * self._words.below(1 + 4 * cluster.timing.delay)
            cluster.agenda.after(1 + delay, cluster.nodes[victim].receive, (self._liars[0], bundle))


# ------------------------------------------------------------------------------ giving behaviours


class Several:
    """Several behaviours at once: each changes what the one before it returns."""

    def __init__(self, parts: Sequence[Liar]) -> None:
        self._parts = tuple(parts)

    def act(self, event: ev.Event, actions: Sequence[ev.Action]) -> Sequence[ev.Action]:
        """What the actions are after all behaviours."""
        for part in self._parts:
            actions = part.act(event, actions)
        return actions

    def serve(self, peer: int, digest: Digest, data: bytes | None) -> bytes | None:
        """What the answer is after all behaviours."""
        for part in self._parts:
            data = part.serve(peer, digest, data)
        return data


MakeLiar: TypeAlias = Callable[[SimulatedNode, Sequence[int]], Liar]
"""Makes the behaviour of a worker, who knows all liars."""

# Plans are drawn from this table, so its order decides what the liars of a seed do.
BEHAVIOURS: dict[str, MakeLiar] = {
    "Z2": adversaries.TwoUpdates,
    "Z3": adversaries.TwoBallots,
    "Z8": adversaries.BadPayload,
    "Z9": adversaries.Withholder,
    "Z10": adversaries.Latecomer,
    "Z21": adversaries.Copycat,
    "Z22": adversaries.ShortBallots,
    "poison": adversaries.Poisoner,
    "Z1": adversaries.Silent,
    "Z5": adversaries.WrongCredentials,
    "Z7": adversaries.Replayer,
    "Z20": adversaries.Flooder,
    "Z4": DoubleVoter,
    "Z11": HiddenBlock,
    "Z12": BadBlock,
    "Z13": TwoBlocks,
}


def corrupt(cluster: Cluster, liars: Sequence[tuple[int, Sequence[str]]]) -> None:
    """Give workers the behaviours of these names, before they start."""
    everyone = [worker for worker, _ in liars]
    for worker, names in liars:
        node = cluster.nodes[worker]
        parts = [BEHAVIOURS[name](node, everyone) for name in names]
        node.behaviour = parts[0] if len(parts) == 1 else Several(parts)
