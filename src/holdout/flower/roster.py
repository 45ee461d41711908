"""Who takes part: nodes by number, how long to wait for them, and who is left out for silence.

A node's number is its place in the order in which nodes were first seen (those seen together, by
id); draws and results use these numbers. A node that was silent twice in a row is left out of the
draws for some rounds, twice as many each time, unless there are too few others.
"""

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from holdout.errors import InfeasibleError
from holdout.ids import WorkerId

LOG = logging.getLogger("flwr")

SILENCES_MAX = 2
"""Silences in a row after which a node is left out."""
FIRST_REST, LONGEST_REST = 2, 32
"""For how many rounds a node is left out, at first and at most."""
ASK_EVERY = 1.0
"""Seconds between two looks at who is connected."""
TELL_EVERY = 10.0
"""Seconds between two log lines while waiting."""


@dataclass(slots=True)
class _Standing:
    """How a node has answered lately."""

    silences: int = 0
    rest: int = FIRST_REST
    returns: int = 0
    """The first round in which it may be drawn again."""


@dataclass(slots=True)
class Roster:
    """What is known about the nodes seen so far."""

    numbers: dict[int, WorkerId] = field(default_factory=dict)
    """Node id -> number."""
    vote_types: dict[int, str] = field(default_factory=dict)
    """Node id -> the type of vote message that it has answered."""
    _standings: dict[int, _Standing] = field(default_factory=dict)

    def eligible(self, connected: Iterable[int], *, round_number: int, needed: int) -> list[int]:
        """Connected nodes that may be drawn, in order; resting ones only to make up `needed`."""
        present = self._welcome(connected)
        resting = [n for n in present if self._standing(n).returns > round_number]
        active = [n for n in present if n not in resting]
        missing = max(0, needed - len(active))
        soonest = sorted(resting, key=lambda n: (self._standing(n).returns, self.numbers[n]))
        return sorted([*active, *soonest[:missing]], key=self.numbers.__getitem__)

    def heard(self, node: int) -> None:
        """Note that the node answered, whatever it said."""
        self._standings[node] = _Standing()

    def silent(self, node: int, *, round_number: int) -> None:
        """Note that the node was asked and did not answer."""
        standing = self._standing(node)
        standing.silences += 1
        if standing.silences < SILENCES_MAX:
            return
        # When it is back, one more silence is enough.
        standing.silences = SILENCES_MAX - 1
        standing.returns = round_number + 1 + standing.rest
        LOG.warning("node %d was silent again: left out for %d rounds", node, standing.rest)
        standing.rest = min(2 * standing.rest, LONGEST_REST)

    def resting(self, round_number: int) -> list[int]:
        """The nodes that are left out of this round's draw, in the order of their numbers."""
        left_out = [n for n, standing in self._standings.items() if standing.returns > round_number]
        return sorted(left_out, key=self.numbers.__getitem__)

    def _standing(self, node: int) -> _Standing:
        return self._standings.setdefault(node, _Standing())

    def _welcome(self, connected: Iterable[int]) -> list[int]:
        present = sorted(set(connected))
        for node in present:
            self.numbers.setdefault(node, WorkerId(len(self.numbers)))
        return present


def wait_for_nodes(
    connected: Callable[[], Iterable[int]],
    needed: Callable[[int], int],
    *,
    timeout: float,
    what: str,
) -> Sequence[int]:
    """The connected nodes, once there are enough of them; an InfeasibleError after the timeout.

    `needed` maps the number of connected nodes to the number that is needed.
    """
    deadline = time.monotonic() + timeout
    told = -TELL_EVERY
    while True:
        nodes = sorted(set(connected()))
        count = needed(len(nodes))
        if len(nodes) >= count:
            return nodes
        now = time.monotonic()
        if now >= deadline:
            raise InfeasibleError(
                f"{what}: {count} nodes are needed; {len(nodes)} were connected after waiting "
                f"{timeout:g} seconds"
            )
        if now - told >= TELL_EVERY:
            told = now
            LOG.info("waiting for nodes: %d of %d connected", len(nodes), count)
        time.sleep(min(ASK_EVERY, max(0.0, deadline - now)))
