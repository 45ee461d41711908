"""What a simulated worker stores, and how it fetches the blobs that it lacks.

`Disk` keeps what was synced: a `Persist` action is first written, then synced, and a crash in
between loses it. A disk can also be lost as a whole; the worker then has no store at all, which is
not the same as the empty one that registration makes.

`BlobMemory` holds the blobs in hand; a crash empties it.

`SimulatedFetcher` asks peers for a blob by its digest: first those that were named as holders, then
anybody. Question and answer travel as messages do, so both can be late or lost. For each blob one
question is outstanding at a time; silence, an empty answer or wrong bytes move on to the next peer.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from holdout.agreement.events import BlobKind, PayloadFailed, Persist, Want
from holdout.agreement.messages import Finished
from holdout.ids import Digest

if TYPE_CHECKING:
    from holdout.simulator.nodes import SimulatedNode

MODELS_KEPT = 3
"""Models that are kept beyond those of the rounds in progress, for workers that catch up."""
QUICK_TRIES = 3
"""After this many questions, a pause before each further one: perhaps nobody has the blob yet."""


@dataclass(slots=True)
class Disk:
    """The synced image, and what was written but is not synced yet."""

    safety: bytes | None
    """The safety store; None if the disk was lost."""
    finished: list[Finished] = field(default_factory=list)
    """The decided rounds, round 1 first."""
    blobs: dict[Digest, tuple[BlobKind, bytes]] = field(default_factory=dict)
    _written: list[tuple[Persist, list[tuple[BlobKind, Digest, bytes]]]] = field(
        default_factory=list
    )
    writes: int = 0
    """How many `Persist` actions were synced."""

    def write(self, persist: Persist, memory: "BlobMemory") -> None:
        """Hand an action to the disk; a crash before `sync` loses it."""
        named = [
            (kind, digest, data)
            for kind, digest in persist.blobs
            if (data := memory.get(digest)) is not None
        ]
        self._written.append((persist, named))

    def sync(self) -> None:
        """Make durable what was written."""
        for persist, named in self._written:
            self.safety = persist.safety
            self.finished.extend(persist.finished)
            for kind, digest, data in named:
                self.blobs[digest] = (kind, data)
        self.writes += len(self._written)
        self._written.clear()

    def crash(self) -> None:
        """Lose what was written but not synced."""
        self._written.clear()

    def lose(self) -> None:
        """Lose everything, for good."""
        self.safety = None
        self.finished.clear()
        self.blobs.clear()
        self._written.clear()

    def drop(self, digests: Sequence[Digest]) -> None:
        """Delete blobs that nobody needs any more."""
        for digest in digests:
            self.blobs.pop(digest, None)


@dataclass(slots=True)
class BlobMemory:
    """The blobs in hand, each with the round in which it came."""

    _blobs: dict[Digest, tuple[BlobKind, bytes, int]] = field(default_factory=dict)
    _models: list[Digest] = field(default_factory=list)
    """Committed models, the newest last."""

    def get(self, digest: Digest) -> bytes | None:
        """The blob's bytes, if they are here."""
        found = self._blobs.get(digest)
        return None if found is None else found[1]

    def put(self, kind: BlobKind, digest: Digest, data: bytes, round_number: int) -> None:
        """Keep a blob; one that was here before counts as having come in this round."""
        self._blobs[digest] = (kind, data, round_number)

    def committed(self, model: Digest) -> None:
        """Keep this model for longer: a round ended with it."""
        if not self._models or self._models[-1] != model:
            self._models.append(model)
            del self._models[:-MODELS_KEPT]

    def forget(self, before_round: int) -> list[Digest]:
        """Drop what came before that round, except the newest models; return what was dropped."""
        gone = [
            digest
            for digest, (_, _, came) in self._blobs.items()
            if came < before_round and digest not in self._models
        ]
        for digest in gone:
            del self._blobs[digest]
        return gone

    def restore(self, disk: Disk, round_number: int) -> None:
        """Go back to what is on the disk, as after a crash."""
        self._blobs = {
            digest: (kind, data, round_number) for digest, (kind, data) in disk.blobs.items()
        }

    def __len__(self) -> int:
        return len(self._blobs)


@dataclass(slots=True)
class _Wanted:
    kind: BlobKind
    round: int
    hints: list[int]
    tries: int = 0


class SimulatedFetcher:
    """Asks other workers for the blobs that one worker wants."""

    __slots__ = ("_node", "_wanted")

    def __init__(self, node: "SimulatedNode") -> None:
        self._node = node
        self._wanted: dict[Digest, _Wanted] = {}

    def want(self, action: Want) -> None:
        """Start asking; for a blob that is already wanted, ask the peers named now first."""
        hints = [peer for peer in action.hints if peer != self._node.index]
        wanted = self._wanted.get(action.digest)
        if wanted is not None:
            wanted.hints = hints + [peer for peer in wanted.hints if peer not in hints]
            return
        self._wanted[action.digest] = _Wanted(action.kind, self._node.player.round, hints)
        self._ask(action.digest)

    def forget(self, before_round: int) -> None:
        """Stop asking for blobs that were wanted before that round."""
        self._wanted = {
            digest: wanted
            for digest, wanted in self._wanted.items()
            if wanted.round >= before_round
        }

    def clear(self) -> None:
        """Stop asking for anything: the worker has crashed."""
        self._wanted.clear()

    def __len__(self) -> int:
        return len(self._wanted)

    def _ask(self, digest: Digest) -> None:
        wanted = self._wanted.get(digest)
        if wanted is None:
            return
        node, cluster = self._node, self._node.cluster
        network = cluster.network
        peer = wanted.hints.pop(0) if wanted.hints else network.draw(network.n)
        wanted.tries += 1
        patience = 2 * cluster.timing.delay + cluster.blob_time
        node.later(patience, self._no_answer, (digest, wanted.tries))
        if peer == node.index:
            return
        network.messages += 1
        arrival = network.arrival(node.index, peer)
        if arrival is not None:
            question = (self, node.life, digest, wanted.tries)
            cluster.agenda.at(arrival, cluster.nodes[peer].fetcher.asked, question)

    def asked(self, question: "tuple[SimulatedFetcher, int, Digest, int]") -> None:
        """Answer a peer that wants a blob, if this worker is up; empty if it does not have it."""
        node = self._node
        if not node.up:
            return
        asker, life, digest, tries = question
        peer = asker._node  # noqa: SLF001  # Another fetcher.
        data = node.serve(peer.index, digest)
        network = node.cluster.network
        size = 0 if data is None else len(data)
        network.messages += 1
        network.bytes += size
        arrival = network.arrival(node.index, peer.index, size=size)
        if arrival is not None:
            answer = (life, asker._answered, (digest, tries, data))  # noqa: SLF001
            node.cluster.agenda.at(arrival, peer.if_alive, answer)

    def _answered(self, answer: tuple[Digest, int, bytes | None]) -> None:
        digest, tries, data = answer
        wanted = self._wanted.get(digest)
        if wanted is None:
            return
        node, cluster = self._node, self._node.cluster
        number = node.player.round
        if data is not None and cluster.blob_matches(wanted.kind, digest, data, number):
            del self._wanted[digest]
            node.memory.put(wanted.kind, digest, data, number)
            node.ready(wanted.kind, digest, data)
        elif tries == wanted.tries:
            self._failed(digest, wanted)
            pause = cluster.timing.delay * min(8, max(0, tries - QUICK_TRIES)) // 4
            wanted.tries += 1  # So that its timeout does nothing.
            node.later(pause, self._ask, digest)

    def _no_answer(self, question: tuple[Digest, int]) -> None:
        digest, tries = question
        wanted = self._wanted.get(digest)
        if wanted is not None and wanted.tries == tries:
            self._failed(digest, wanted)
            self._ask(digest)

    def _failed(self, digest: Digest, wanted: _Wanted) -> None:
        """Tell the player that the first peer to be asked for a gradient does not give it."""
        if wanted.tries == 1 and wanted.kind is BlobKind.PAYLOAD:
            self._node.take(PayloadFailed(digest))
