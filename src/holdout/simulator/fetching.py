"""How a simulated worker gets blobs: asked for by digest, from those named first, then anybody.

A question and its answer travel as messages do, so both can be late or lost. One question is
outstanding at a time for each blob; silence, an empty answer or wrong bytes move on to the next
peer.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdout.agreement.events import BlobKind, Want
from holdout.ids import Digest

if TYPE_CHECKING:
    from holdout.simulator.nodes import SimulatedNode

QUICK_TRIES = 3
"""After so many questions, a pause before the next: nobody may have it yet."""


@dataclass(slots=True)
class _Wanted:
    kind: BlobKind
    round: int
    hints: list[int]
    tries: int = 0


class SimulatedFetcher:
    """The blobs that one worker asks others for."""

    __slots__ = ("_node", "_wanted")

    def __init__(self, node: "SimulatedNode") -> None:
        self._node = node
        self._wanted: dict[Digest, _Wanted] = {}

    def want(self, action: Want) -> None:
        """Start asking; or, if it is asked for already, whoever is named now comes next."""
        hints = [peer for peer in action.hints if peer != self._node.index]
        wanted = self._wanted.get(action.digest)
        if wanted is not None:
            wanted.hints = hints + [peer for peer in wanted.hints if peer not in hints]
            return
        self._wanted[action.digest] = _Wanted(action.kind, self._node.player.round, hints)
        self._ask(action.digest)

    def forget(self, before_round: int) -> None:
        """Stop asking for what was wanted in earlier rounds."""
        self._wanted = {
            digest: wanted
            for digest, wanted in self._wanted.items()
            if wanted.round >= before_round
        }

    def clear(self) -> None:
        """Forget everything: the worker has crashed."""
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
        """A peer wants a blob: answer, if this worker runs; with nothing if it has nothing."""
        node = self._node
        if not node.up:
            return
        asker, life, digest, tries = question
        peer = asker._node  # noqa: SLF001  # Of the same class.
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
            pause = cluster.timing.delay * min(8, max(0, tries - QUICK_TRIES)) // 4
            wanted.tries += 1  # Its time-out is void.
            node.later(pause, self._ask, digest)

    def _no_answer(self, question: tuple[Digest, int]) -> None:
        digest, tries = question
        wanted = self._wanted.get(digest)
        if wanted is not None and wanted.tries == tries:
            self._ask(digest)
