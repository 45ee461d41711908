"""Whom a round's committee is drawn from, and how large it is: smaller where members have left."""

import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction

from holdout.errors import InfeasibleError
from holdout.flower.committee_sizes import shrink
from holdout.flower.open_round import DrawSizes
from holdout.flower.roster import Roster, wait_for_nodes

LOG = logging.getLogger("flwr")

NOBODY = DrawSizes(0, 0)


@dataclass(slots=True)
class NodeDraws:
    """Who can be drawn, from round to round."""

    roster: Roster
    f: Fraction
    nodes_min: int
    """With fewer nodes connected no round begins."""
    sizes: Callable[[int], DrawSizes]
    """How large the strategy wants the committee, by the number of nodes."""
    least: Callable[[DrawSizes], DrawSizes]
    """The smallest committee that it accepts, by the one that it wants."""
    can_work: Callable[[DrawSizes], bool]
    """Whether its rule can work with a smaller one."""
    most_nodes: int = 0
    """The most nodes that have been connected."""
    asked_for: DrawSizes = NOBODY
    """How large the last committee should have been."""

    def pool(
        self, nodes: Callable[[], Iterable[int]], round_number: int, *, timeout: float
    ) -> tuple[list[int], DrawSizes]:
        """The nodes that a committee can be drawn from, and how large it is.

        Args:
            nodes: Tells who is connected.
            round_number: The round.
            timeout: Seconds to wait for enough of them; after that, an InfeasibleError.
        """
        connected = self._gather(nodes, round_number, timeout)
        pool = self.roster.eligible(connected, round_number=round_number, needed=0)
        sizes = self._sizes_among(len(pool))
        if sizes is None:
            # Only with some of those who were silent.
            pool = self.roster.eligible(connected, round_number=round_number, needed=len(connected))
            sizes = self._sizes_among(len(pool))
        if sizes is None:
            raise InfeasibleError(f"round {round_number}: {len(pool)} nodes are too few")
        if sum(sizes) < sum(self.asked_for):
            LOG.warning(
                "round %d: %d proposers and %d voters in place of %d and %d, since only %d nodes "
                "can be drawn",
                round_number,
                *sizes,
                *self.asked_for,
                len(pool),
            )
        return pool, sizes

    def _gather(
        self, nodes: Callable[[], Iterable[int]], round_number: int, timeout: float
    ) -> Sequence[int]:
        """The connected nodes, once there are enough: all at first, later as many as must be."""

        def needed(connected: int) -> int:
            return max(sum(self.sizes(connected)), self.nodes_min)

        def least(connected: int) -> int:
            # Not just one more: it is said to whoever starts the nodes.
            most = max(connected, self.most_nodes)
            counts = range(connected, max(most, sum(self.sizes(most))) + 1)
            enough = (count for count in counts if self._sizes_among(count) is not None)
            return max(next(enough, connected + 1), self.nodes_min)

        what = f"round {round_number}"
        if not self.most_nodes:
            with suppress(InfeasibleError):
                wait_for_nodes(nodes, needed, timeout=timeout, what=what)
                timeout = 0.0
            count = len(list(nodes()))
            if least(count) <= count:
                timeout = 0.0
        connected = wait_for_nodes(nodes, least, timeout=timeout, what=what)
        self.most_nodes = max(self.most_nodes, len(connected))
        return connected

    def _sizes_among(self, nodes: int) -> DrawSizes | None:
        """How many propose and vote if so many nodes can be drawn; None if they are too few."""
        asked = self.sizes(max(nodes, self.most_nodes))
        if sum(asked) <= nodes:
            # As many as the strategy wants of those who are there.
            asked = self.sizes(nodes)
        self.asked_for = asked
        sizes = shrink(
            asked,
            nodes=nodes,
            most=self.most_nodes,
            f=self.f,
            least=self.least(asked),
        )
        if sizes is None or sizes == asked or self.can_work(sizes):
            return sizes
        return None
