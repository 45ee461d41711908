"""Invariants, watched from outside: what must hold whatever happens.

    I1  agreement           honest workers commit the same block in each round
    I2  one certificate     in a round, at most one value can have a certificate
    I3  one soft value      in a period, at most one value can have a soft quorum
    I4  validity            what is committed is valid by a second, slow check (`checkers_blocks`)
    I5  no equivocation     no honest worker signs two things for one slot, across restarts
    I6  durability          nothing signed leaves before it is durable, nothing committed is lost
    I7  lock                after a certificate no quorum can lead away from its value
    I8  chain               blocks link, seeds recompute
    I9  bounded             memory stays within its limits
    I10 one next value      from a period, at most one value can be carried on
    L1  progress            after GST all healthy workers commit, and stay together
    L2  usefulness          without network faults and with honest majorities, each round is a step

L1 is checked by `trial`, L2 by tests. Votes are counted here as sets of workers, from what honest
workers hand to the network. Liars are taken to have signed everything: a quorum "can be built" as
soon as the honest votes and all liars together reach it, whether or not anybody builds it. That is
stricter than waiting for it to happen.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from holdout.agreement.blocks import read_block
from holdout.agreement.events import Commit
from holdout.agreement.headers import read_header
from holdout.agreement.messages import Bundle, Message, SignedMessage, Vote
from holdout.agreement.params import Genesis, Mode, Params
from holdout.agreement.wire import Unverified
from holdout.errors import InvalidMessage
from holdout.ids import Digest
from holdout.simulator.checkers_blocks import Chain
from holdout.simulator.cluster import Cluster, Watcher
from holdout.simulator.nodes import SimulatedNode

SOFT, CERT, LATE, REDO, DOWN = 1, 2, 3, 4, 5


@dataclass(frozen=True, slots=True)
class Violation:
    """An invariant that did not hold."""

    invariant: str
    what: str
    time: int


@dataclass(slots=True)
class _Tally:
    """The values that can have a quorum in one period, by kind of step."""

    soft: dict[Digest, None]
    cert: dict[Digest, None]
    carried: dict[Digest, None]
    down: bool = False


class Checker(Watcher):
    """Watches the honest workers of a cluster."""

    def __init__(self, genesis: Genesis) -> None:
        self.violations: list[Violation] = []
        self.periods: dict[int, int] = {}
        """The period in which each round was decided."""
        self.stepped: dict[int, bool] = {}
        """Whether each decided round moved the model."""
        self._genesis = genesis
        self._cluster: Cluster
        self._chain: Chain
        self._liars: tuple[int, ...] = ()
        self._decode: Callable[[bytes], Unverified[Message]]
        self._signed: dict[tuple[object, ...], bytes] = {}
        self._known: set[bytes] = set()
        self._votes: dict[tuple[int, int, int, Digest], set[int]] = {}
        self._tallies: dict[tuple[int, int], _Tally] = {}
        self._decided: dict[int, Commit] = {}
        self._forgetful: set[int] = set()
        self._events = 0

    def attach(self, cluster: Cluster, liars: Sequence[int]) -> None:
        """Watch this cluster, in which these workers lie."""
        self._cluster = cluster
        self._chain = Chain(self._genesis, cluster.keys.verifier())
        self._liars = tuple(liars)
        self._decode = cluster.decode
        cluster.watcher = self

    def _broken(self, invariant: str, what: str) -> None:
        self.violations.append(Violation(invariant, what, self._cluster.agenda.now))
        self._cluster.note(-1, f"VIOLATION of {invariant}: {what}")

    # -- what honest workers send ----------------------------------------------------------------

    def sent(self, node: SimulatedNode, data: bytes) -> None:
        """Check a message that an honest worker sends for the first time."""
        if data in self._known:
            return
        self._known.add(data)
        try:
            message = self._decode(data).claim
        except InvalidMessage as error:
            self._broken("I5", f"{node.index} sends bytes that are no message: {error}")
            return
        if not isinstance(message, SignedMessage) or message.worker != node.index:
            return
        signed = message.envelope.signed
        period, step = getattr(message, "period", 0), getattr(message, "step", 0)
        slot = (message.worker, type(message), message.round, period, step)
        if self._signed.setdefault(slot, signed) != signed:
            self._broken("I5", f"{node.index} signs twice: {_words(message)}")
        if node.disk.safety is None or signed not in node.disk.safety:
            self._broken("I6", f"{node.index} sends what is not durable: {_words(message)}")
        if isinstance(message, Vote):
            self._count(message)

    def _count(self, vote: Vote) -> None:
        number, period, step = vote.round, vote.period, vote.step
        if not self._chain.drawn(number, "C", vote.worker, period, step):
            self._broken("I5", f"{vote.worker} votes without being drawn: {_words(vote)}")
            return
        voters = self._votes.setdefault((number, period, step, vote.value), set())
        voters.add(vote.worker)
        helpers = sum(self._chain.drawn(number, "C", w, period, step) for w in self._liars)
        if len(voters) + helpers >= self._genesis.params.quorum:
            self._reached(number, period, step, vote.value)

    def _reached(self, number: int, period: int, step: int, value: Digest) -> None:
        """Note that a quorum for this value can be built, and check what follows from it."""
        tally = self._tallies.setdefault((number, period), _Tally({}, {}, {}))
        kind = step if step <= DOWN else LATE + (step - LATE) % 3
        where = f"round {number}, period {period}"
        if kind == SOFT:
            tally.soft[value] = None
            if len(tally.soft) > 1:
                self._broken("I3", f"two soft quorums can be built in {where}")
        elif kind == CERT:
            tally.cert[value] = None
            certified = {v for (r, _), t in self._tallies.items() if r == number for v in t.cert}
            if len(certified) > 1:
                self._broken("I2", f"two blocks can be certified in round {number}")
        elif kind == DOWN:
            tally.down = True
        else:
            tally.carried[value] = None
            if len(tally.carried) > 1:
                self._broken("I10", f"two values can be carried on from {where}")
        self._check_lock(number)

    def _check_lock(self, number: int) -> None:
        periods = {p: t for (r, p), t in self._tallies.items() if r == number}
        for first, tally in periods.items():
            for value in tally.cert:
                for period, other in periods.items():
                    if period < first:
                        continue
                    if other.down:
                        self._broken("I7", f"period {period} can be voted down after a certificate")
                    if any(carried != value for carried in other.carried):
                        self._broken("I7", f"period {period} can end with another value")

    # -- what honest workers commit ----------------------------------------------------------------

    def committed(self, node: SimulatedNode, commit: Commit) -> None:
        """Check a round that an honest worker has decided."""
        number = commit.round
        known = self._decided.get(number)
        if known is not None:
            if (known.value, known.model) != (commit.value, commit.model):
                self._broken("I1", f"{node.index} commits another block in round {number}")
            return
        self._decided[number] = commit
        if len(node.disk.finished) < number:
            self._broken("I6", f"{node.index} commits round {number} before it is durable")
            return
        finished = node.disk.finished[number - 1]
        header = read_header(finished.header)
        self.periods[number] = finished.certificate.period
        self.stepped[number] = commit.stepped
        for fault in self._certificate_faults(number, commit.value, finished.certificate):
            self._broken("I2", f"the certificate of round {number}: {fault}")
        for fault in self._chain.header_faults(header):
            self._broken("I8", f"block {number}: {fault}")
        self._check_body(commit)
        self._chain.headers[number] = header

    def _certificate_faults(self, number: int, value: Digest, certificate: Bundle) -> list[str]:
        honest = [m.worker for m in certificate.marks if m.worker not in self._liars]
        votes = self._votes.get((number, certificate.period, CERT, value), set())
        faults = []
        if (certificate.round, certificate.value, certificate.step) != (number, value, CERT):
            faults.append("it is for another round, value or step")
        if len({mark.worker for mark in certificate.marks}) < self._genesis.params.quorum:
            faults.append("it has too few votes")
        if not votes.issuperset(honest):
            faults.append("it holds votes that were never cast")
        return faults

    def _check_body(self, commit: Commit) -> None:
        data = self._blob(commit.value)
        if data is None:
            self._broken("I4", f"no honest worker holds the block of round {commit.round}")
            return
        try:
            block = read_block(data)
        except InvalidMessage as error:
            self._broken("I4", f"block {commit.round} cannot be read: {error}")
            return
        if self._blob(commit.model) is None:
            self._broken("I4", f"no honest worker holds the model of round {commit.round}")
        for fault in self._chain.body_faults(block, self._seen_blob, self._liars):
            self._broken("I4", f"block {commit.round}: {fault}")

    def _seen_blob(self, digest: Digest) -> bytes | None:
        """A blob that anybody ever had: after crashes the payloads of a model may be gone."""
        found = self._blob(digest)
        return self._cluster.archived(digest) if found is None else found

    def _blob(self, digest: Digest) -> bytes | None:
        """A blob that some honest worker holds now, in memory or on its disk."""
        for node in self._cluster.nodes:
            if node.index not in self._liars:
                found = node.memory.get(digest) if node.up else None
                if found is None and digest in node.disk.blobs:
                    found = node.disk.blobs[digest][1]
                if found is not None:
                    return found
        return None

    # -- what they hold ----------------------------------------------------------------------------

    def handled(self, node: SimulatedNode) -> None:
        """Check the memory of a worker after every n-th event of the cluster.

        Counting what a player holds takes longer the more it holds, so it is done less often in a
        large network. Weighing all that can be reached from it takes far longer, and is rarer.
        """
        self._events += 1
        n = self._genesis.params.workers
        if self._events % n == 0 and node.up:
            self._check_memory(node, thoroughly=self._events % (WEIGHED_EVERY * n) == 0)

    # -- crashes ----------------------------------------------------------------------------------

    def disk_lost(self, node: SimulatedNode) -> None:
        """Demand no memory of this worker from now on."""
        self._forgetful.add(node.index)

    def restarted(self, node: SimulatedNode) -> None:
        """Check that a restarted worker still has what it signed and committed before."""
        if node.behaviour is not None or node.index in self._forgetful:
            return
        decided = len(node.disk.finished)
        if node.commits and max(node.commits) > decided:
            self._broken("I6", f"{node.index} has forgotten round {max(node.commits)}")
        for (worker, _, number, *_), signed in self._signed.items():
            asked = worker == node.index and isinstance(number, int) and number > decided
            if asked and (node.disk.safety is None or signed not in node.disk.safety):
                self._broken("I6", f"{node.index} has forgotten what it signed")

    # -- at the end -------------------------------------------------------------------------------

    def finish(self) -> None:
        """Check what can be judged only at the end of a run."""
        for node in self._cluster.nodes:
            if node.index in self._liars:
                continue
            for why in node.alarms:
                self._broken("I4", f"{node.index} raises an alarm: {why}")
            if node.halted is not None:
                self._broken(
                    "I4", f"{node.index} halts although at most B workers lie: {node.halted}"
                )
            if node.up:
                self._check_memory(node, thoroughly=True)

    def _check_memory(self, node: SimulatedNode, *, thoroughly: bool) -> None:
        params = self._genesis.params
        held, limit = node.player.held(), held_limit(params)
        if held > limit:
            self._broken(
                "I9", f"{node.index} holds {held} things from others; the limit is {limit}"
            )
        if thoroughly and (held := weigh(node.player)) > (limit := memory_limit(params)):
            self._broken("I9", f"{node.index} holds {held} things; the limit is {limit}")
        blobs = len(node.memory) + len(node.fetcher)
        if blobs > blob_limit(self._genesis.params.workers):
            self._broken("I9", f"{node.index} holds or wants {blobs} blobs")


# ------------------------------------------------------------------------------------------ memory

WEIGHED_EVERY = 64
"""One check of a player's memory in this many is thorough."""
BLOCKS_MAX = 40
"""How many blocks a player may hold in a round: two periods in which all drawn leaders lead."""
SHARED = ("Genesis", "MemoVerifier", "_SimulatedSigner", "Timing", "Limits", "Tools", "function")
"""Classes of things that workers share; no player is charged for them."""


def memory_limit(params: Params) -> int:
    """How many things (entries of containers) a player may hold, whatever others send it."""
    # Of each worker, two versions of its message in each slot of three open periods, once as a vote
    # and once in a bundle, and the CERT votes of past periods: at most about 120 in runs with
    # floods. Then blocks, whose ballots name most proposers; draws vary around their means.
    p, v = params.proposers, params.voters
    return 500 + 150 * params.workers + BLOCKS_MAX * (3 * p * v // 2 + 8 * (p + v))


def held_limit(params: Params) -> int:
    """How many messages and other things from peers a player may count as held (`Player.held`)."""
    # Of each worker: updates, ballots and evidence (8), payloads in hand and wanted (4), leads of
    # two periods (5), messages of the coming round (8, and again 8 between rounds), lottery outputs
    # (16), an answer (1); and two versions of each vote, alone and in bundles, in the slots of
    # three open periods and for CERT in 32 past ones.
    slots = 3 * (14 if params.mode is Mode.SELF else 5) + 32
    # Then blocks with their jobs and results, models, and certificates that came out of order.
    return (50 + 4 * slots) * params.workers + 3 * BLOCKS_MAX + 64 + 50


def blob_limit(n: int) -> int:
    """How many blobs a worker may hold or want: two rounds of payloads, blocks and models."""
    return 40 + 12 * n


def weigh(thing: object) -> int:
    """How many entries all containers reachable from this object have together."""
    seen: set[int] = set()
    total = 0
    stack = [thing]
    while stack:
        item = stack.pop()
        if isinstance(item, str | bytes | int | float | type(None)) or id(item) in seen:
            continue
        if type(item).__name__ in SHARED or callable(item):
            continue
        seen.add(id(item))
        if isinstance(item, dict):
            total += len(item)
            stack += [*item.keys(), *item.values()]
        elif isinstance(item, tuple | list | set | frozenset | deque):
            total += len(item)
            stack += item
        else:
            stack += [getattr(item, name) for name in _fields(item) if hasattr(item, name)]
    return total


def _fields(item: object) -> list[str]:
    names = list(getattr(item, "__dict__", ()))
    for kind in type(item).__mro__:
        slots = getattr(kind, "__slots__", ())
        names += [slots] if isinstance(slots, str) else list(slots)
    return names


def _words(message: SignedMessage) -> str:
    kind = message.envelope.kind.name.lower()
    period = getattr(message, "period", None)
    where = "" if period is None else f" p{period} step {getattr(message, 'step', 0)}"
    return f"{kind} r{message.round}{where}"
