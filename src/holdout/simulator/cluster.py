"""Many players on one simulated network, in one thread and virtual time.

What every worker would compute with the same result is computed once and shared: decoding,
verification, the check of a block's body, the next model. Nothing else is: each worker has its own
player, memory, disk and clock.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache, partial
from typing import TypeVar

from holdout.agreement import aggregate, safety, sizing, wire
from holdout.agreement.blocks import Block, Draft, inspect, read_block
from holdout.agreement.draws import Draws
from holdout.agreement.events import BlobKind, Combine, Commit, Job, Judge, Propose
from holdout.agreement.headers import Tip
from holdout.agreement.keys import Memo, SimulatedKeys, Verifier
from holdout.agreement.messages import Bundle, Message, Vote
from holdout.agreement.params import MILLISECOND, Genesis, Mode, Params, Timing
from holdout.agreement.player import Player
from holdout.agreement.sizing import NetworkSizes
from holdout.agreement.validation import Tools
from holdout.errors import InvalidMessage
from holdout.ids import Digest
from holdout.seeds import stream
from holdout.simulator.network import (
    BYTES_PER_MICROSECOND,
    CALM,
    FOREVER,
    Agenda,
    Label,
    SimulatedNetwork,
    Weather,
)
from holdout.simulator.nodes import SimulatedNode
from holdout.simulator.storage import Disk
from holdout.simulator.toy_learners import DIMENSION, FIRST_MODEL, MakeLearner, ToyLearner
from holdout.simulator.trace import Trace

T = TypeVar("T")

REMEMBERED = 1 << 16
"""How many messages are kept in decoded form."""


class Watcher:
    """Observes what honest workers do, from outside. This one does nothing; others override it."""

    def sent(self, node: SimulatedNode, data: bytes) -> None:
        """A worker hands a message to the network."""

    def handled(self, node: SimulatedNode) -> None:
        """A worker's player was told something, and what it asked for is done."""

    def committed(self, node: SimulatedNode, commit: Commit) -> None:
        """A worker tells its learner that a round is decided."""

    def restarted(self, node: SimulatedNode) -> None:
        """A worker runs again, and has read its disk."""

    def disk_lost(self, node: SimulatedNode) -> None:
        """A worker's disk is gone."""


@dataclass(frozen=True, slots=True)
class Durations:
    """How long jobs take a worker of ordinary speed, in microseconds."""

    propose: int = 100 * MILLISECOND
    judge: int = 100 * MILLISECOND
    combine: int = 20 * MILLISECOND

    def of(self, job: Job) -> int:
        """How long this job takes."""
        match job:
            case Propose():
                return self.propose
            case Judge():
                return self.judge
            case Combine():
                return self.combine


# ----------------------------------------------------------------------------------- the founding


@lru_cache(maxsize=64)
def usual_sizes(
    n: int,
    f: Fraction,
    mode: Mode = Mode.ALL,
    *,
    proposers: int | None = None,
    voters: int | None = None,
) -> NetworkSizes:
    """The sizes of a run with toy learners: those of `sizing`, unless other numbers are given."""
    sizes = sizing.sizes(n=n, f=f, mode=mode)
    if proposers is not None:
        sizes = replace(sizes, proposers=proposers)
    if voters is not None:
        liars = sizing.check_population(n, f)
        sizes = replace(sizes, voters=sizing.voters_for(n, liars, f, voters, sizing.STRICT))
    return sizes


@lru_cache(maxsize=64)
def usual_params(
    n: int,
    f: Fraction,
    mode: Mode = Mode.ALL,
    *,
    proposers: int | None = None,
    voters: int | None = None,
) -> Params:
    """The constants of a run with toy learners: the usual sizes, and a tiny model."""
    sizes = usual_sizes(n, f, mode, proposers=proposers, voters=voters)
    shapes = ((DIMENSION,),)
    first = aggregate.model_digest(shapes, FIRST_MODEL)
    return sizes.params(workers=n, f=f, shapes=shapes, model_first=first, rates=(0.5, 0.25))


def found(params: Params, keys: SimulatedKeys, seed: int) -> Genesis:
    """The genesis of a network of these workers; its nonce and beacon come from the seed."""
    params.check()
    words = stream(seed, "genesis")
    roster = tuple(keys.signer(worker).public for worker in range(params.workers))
    nonce, beacon = (words.below(1 << 64).to_bytes(8, "big") for _ in range(2))
    return Genesis(params, roster, nonce, beacon)


# ------------------------------------------------------------------------------------ the cluster


class Cluster:
    """Workers, their network and their clock.

    Attributes:
        decode: As `wire.decode`, with the result remembered.
        steps: How many events players have handled.
        combined: The models computed so far; every worker gets the same, so once is enough.
    """

    def __init__(
        self,
        genesis: Genesis,
        keys: SimulatedKeys,
        seed: int,
        *,
        learners: MakeLearner | None = None,
        first_model: bytes | None = None,
        timing: Timing | None = None,
        weather: Weather = CALM,
        durations: Durations | None = None,
        watcher: Watcher | None = None,
        trace: Trace | None = None,
    ) -> None:
        self.genesis = genesis
        self.keys = keys
        self.seed = seed
        self.learners = learners or partial(ToyLearner, seed)
        self.first_model = first_model or FIRST_MODEL
        self.timing = timing or Timing()
        self.durations = durations or Durations()
        self.watcher = watcher or Watcher()
        self.trace = trace
        self.agenda = Agenda()
        self.network = SimulatedNetwork(
            self.agenda, genesis.params.workers, seed, weather=weather, label=self.label
        )
        self.blob_time = genesis.params.payload_bytes // BYTES_PER_MICROSECOND
        self.steps = 0
        self.combined: dict[Combine, tuple[bytes | None, Digest | None, float]] = {}
        self.decode: Callable[[bytes], wire.Unverified[Message]] = remembering(
            wire.decode, REMEMBERED
        )
        self._valid: dict[Digest, bool] = {}
        self._archive: dict[Digest, tuple[bytes, int]] = {}
        self._oldest = 0
        self._tools = remembering_tools()
        first = safety.initial(genesis)
        self.nodes = [SimulatedNode(self, index, first) for index in range(genesis.params.workers)]
        self.network.connect(node.receive for node in self.nodes)

    # -- what nodes ask ------------------------------------------------------------------------

    def make_player(self, worker: int, disk: Disk) -> Player:
        """A player that continues from this disk."""
        return Player(
            self.genesis,
            worker,
            self.keys.signer(worker),
            self.keys.verifier(),
            timing=self.timing,
            decode=self.decode,
            safety=disk.safety,
            finished=tuple(disk.finished),
            tools=self._tools,
        )

    def label(self, data: bytes) -> Label:
        """The kind of a message and its step, by which a `Cut` picks messages."""
        try:
            claim = self.decode(data).claim
        except InvalidMessage:
            return (0, 0)
        return (data[0], claim.step if isinstance(claim, Vote | Bundle) else 0)

    def blob_matches(self, kind: BlobKind, digest: Digest, data: bytes, number: int) -> bool:
        """Whether these bytes are that blob; a bytes object that passed is not checked again."""
        known = self._archive.get(digest)
        if known is not None and known[0] is data:
            return True
        if kind is BlobKind.BLOCK:
            # Through the tools, which remember the block for the next reader.
            try:
                matches = self._tools.read_block(data).header.digest == digest
            except InvalidMessage:
                matches = False
        else:
            matches = aggregate.blob_matches(kind, digest, data, self.genesis.params)
        if matches:
            self.archive(digest, data, number)
        return matches

    def archive(self, digest: Digest, data: bytes, number: int) -> None:
        """Remember a blob that some worker had in this round."""
        self._archive[digest] = (data, number)

    def archived(self, digest: Digest) -> bytes | None:
        """A blob that some worker had in one of the last rounds."""
        known = self._archive.get(digest)
        return None if known is None else known[0]

    def forget(self, before_round: int) -> None:
        """Forget blobs of old rounds: some worker needs nothing from before this one."""
        # The slowest worker may be further behind; its blobs are then checked again.
        if before_round <= self._oldest + 4:
            return
        self._oldest = before_round - 2
        self._archive = {d: item for d, item in self._archive.items() if item[1] >= self._oldest}
        self._valid = {d: valid for d, valid in self._valid.items() if d in self._archive}
        self.combined.clear()

    def payload_valid(self, digest: Digest, data: bytes) -> bool:
        """Whether the payload of this digest is a valid gradient."""
        known = self._valid.get(digest)
        if known is None:
            known = aggregate.payload_fault(data, self.genesis.params) is None
            self._valid[digest] = known
        return known

    def note(self, worker: int, text: str) -> None:
        """Add a line to the trace, if there is one; worker -1: about nobody in particular."""
        if self.trace is not None:
            self.trace.note(self.agenda.now, worker, text)

    # -- running -------------------------------------------------------------------------------

    def start(self) -> None:
        """Start all workers."""
        for node in self.nodes:
            node.start()

    def run(
        self,
        *,
        until: int = FOREVER,
        done: Callable[["Cluster"], bool] | None = None,
        steps_max: int = 1 << 62,
    ) -> bool:
        """Let time pass up to `until`, or until `done` says so (asked whenever a player acted).

        Returns:
            Whether `done` said so; False if time, steps or events ran out first.
        """
        agenda, last = self.agenda, -1
        while True:
            if done is not None and self.steps != last:
                last = self.steps
                if done(self):
                    return True
            if self.steps >= steps_max or not agenda.step(until):
                return False

    def honest(self) -> list[SimulatedNode]:
        """The workers without a Byzantine behaviour."""
        return [node for node in self.nodes if node.behaviour is None]

    def all_committed(self, round_number: int, workers: Iterable[int] | None = None) -> bool:
        """Whether these workers (by default all honest ones) have the round durably decided."""
        # Asked after every event, so no list of the honest workers is made.
        if workers is None:
            return not any(n.decided < round_number and n.behaviour is None for n in self.nodes)
        return all(self.nodes[worker].decided >= round_number for worker in workers)


def remembering(read: Callable[[bytes], T], entries_max: int) -> Callable[[bytes], T]:
    """The function with a memory of what it returned, and of the `InvalidMessage` it raised."""
    memo = Memo[bytes, "T | InvalidMessage"](entries_max)

    def remembered(data: bytes) -> T:
        known = memo.get(data)
        if known is None:
            try:
                known = read(data)
            except InvalidMessage as error:
                known = error
            memo.put(data, known)
        if isinstance(known, InvalidMessage):
            raise known.with_traceback(None)
        return known

    return remembered


def remembering_tools() -> Tools:
    """Reading and checking of blocks, with memory: every worker asks the same."""
    drafts = Memo[tuple[Digest, Digest, Digest], "tuple[Block, Draft | str]"](1 << 12)

    def check(
        block: Block, tip: Tip, genesis: Genesis, draws: Draws, verifier: Verifier
    ) -> Draft | str:
        # The header's digest fixes the body by its roots; previous block and model fix the tip.
        key = (block.header.digest, tip.previous, tip.model)
        known = drafts.get(key)
        if known is None or known[0] != block:
            known = (block, inspect(block, tip, genesis, draws, verifier))
            drafts.put(key, known)
        return known[1]

    return Tools(read_block=remembering(read_block, 1 << 12), inspect=check)
