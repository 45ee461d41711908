"""Who takes part: nodes by number, how long to wait for them, and who is left out for silence.

A node's number is its place in the order in which nodes were first seen (those seen together, by
id); draws and results use these numbers. A node that was silent twice in a row when asked for the
same kind of work is left out of the draws for some rounds, twice as many each time, unless too few
others are left. Answers to other questions do not help it: whoever votes must also train.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from typing import Any, Self

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
    _standings: dict[tuple[int, str], _Standing] = field(default_factory=dict)
    """By node and kind of work."""

    def eligible(self, connected: Iterable[int], *, round_number: int, needed: int) -> list[int]:
        """Connected nodes that may be drawn, in order; resting ones only to make up `needed`."""
        present = self._welcome(connected)
        returns = self._returns()
        resting = [n for n in present if returns.get(n, 0) > round_number]
        active = [n for n in present if n not in resting]
        missing = max(0, needed - len(active))
        soonest = sorted(resting, key=lambda n: (returns[n], self.numbers[n]))
        return sorted([*active, *soonest[:missing]], key=self.numbers.__getitem__)

    def heard(self, node: int, kind: str) -> None:
        """Note that the node answered when asked for this kind of work, whatever it said."""
        self._standings.pop((node, kind), None)

    def silent(self, node: int, kind: str, *, round_number: int) -> None:
        """Note that the node was asked for this kind of work and did not answer."""
        standing = self._standings.setdefault((node, kind), _Standing())
        standing.silences += 1
        if standing.silences < SILENCES_MAX:
            return
        # When it is back, one more silence is enough.
        standing.silences = SILENCES_MAX - 1
        standing.returns = round_number + 1 + standing.rest
        LOG.warning(
            "node %d was silent again (%s): left out for %d rounds",
            node,
            kind,
            standing.rest,
        )
        standing.rest = min(2 * standing.rest, LONGEST_REST)

    def resting(self, round_number: int) -> list[int]:
        """The nodes that are left out of this round's draw, in the order of their numbers."""
        left_out = [n for n, returns in self._returns().items() if returns > round_number]
        return sorted(left_out, key=self.numbers.__getitem__)

    def as_dict(self) -> dict[str, Any]:
        """All of it as plain values, for a checkpoint."""
        standings = [
            [str(node), kind, *astuple(standing)]
            for (node, kind), standing in self._standings.items()
        ]
        return {
            # As text, since a node's id has more digits than many JSON readers keep.
            "nodes": [str(node) for node in self.numbers],
            "vote_types": {str(node): kind for node, kind in self.vote_types.items()},
            "standings": standings,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The inverse of `as_dict`."""
        numbers = {int(node): WorkerId(n) for n, node in enumerate(values["nodes"])}
        return cls(
            numbers,
            {int(node): str(kind) for node, kind in values["vote_types"].items()},
            {
                (int(node), str(kind)): _Standing(*(int(n) for n in rest))
                for node, kind, *rest in values["standings"]
            },
        )

    def _returns(self) -> dict[int, int]:
        """In which round a node may be drawn again, for those who have been silent."""
        returns: dict[int, int] = {}
        for (node, _), standing in self._standings.items():
            returns[node] = max(returns.get(node, 0), standing.returns)
        return returns

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
