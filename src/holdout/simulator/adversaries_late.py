"""Byzantine workers that tell no lie and are late on purpose, to make others wait."""

from collections.abc import Sequence

from holdout.agreement import events as ev
from holdout.agreement import messages as msg
from holdout.agreement.params import MILLISECOND
from holdout.simulator.adversaries import OWN_KINDS, Liar
from holdout.simulator.network import SECOND
from holdout.simulator.nodes import SimulatedNode

LATEST = 600 * SECOND
"""By how much a worker that grows slower is late at most."""

_WAITS = {
    ev.TimerKind.PROPOSALS_END: msg.Kind.UPDATE,
    ev.TimerKind.BALLOTS_END: msg.Kind.BALLOT,
    ev.TimerKind.FILTER: msg.Kind.LEAD,
    ev.TimerKind.DEADLINE: msg.Kind.VOTE,
}
"""What each timer ends the wait for."""


class LaterEachRound(Liar):
    """Z24: what it sends comes 1.6 times later each round, as if its machine grew slower.

    It delays its gradients, ballots, leads and votes, or some of them (`kinds`).
    """

    kinds: tuple[msg.Kind, ...] = OWN_KINDS
    first = 50 * MILLISECOND

    def outgoing(self, action: ev.Broadcast, message: msg.Message | None) -> Sequence[ev.Action]:
        """The message, later than in the round before."""
        if not isinstance(message, msg.SignedMessage) or message.envelope.kind not in self.kinds:
            return (action,)
        delay = self.first * 8**message.round // 5**message.round
        self.later(min(delay, LATEST), (action,))
        return ()


class JustInTime(Liar):
    """Z25: what it sends comes just before others would stop waiting for it.

    Its own player waits as all others do, so its timers tell when that is.
    """

    kinds: tuple[msg.Kind, ...] = OWN_KINDS
    margin = 100 * MILLISECOND
    """How long before the end of a wait it sends, so that most others are still waiting."""

    def __init__(self, node: SimulatedNode, liars: Sequence[int]) -> None:
        super().__init__(node, liars)
        self._held: dict[msg.Kind, list[ev.Action]] = {}
        self._ends: dict[msg.Kind, int] = {}

    def outgoing(self, action: ev.Broadcast, message: msg.Message | None) -> Sequence[ev.Action]:
        """Nothing yet: the message is held until the wait for it is almost over."""
        if not isinstance(message, msg.SignedMessage) or message.envelope.kind not in self.kinds:
            return (action,)
        self._held.setdefault(message.envelope.kind, []).append(action)
        return ()

    def other(self, action: ev.Action) -> Sequence[ev.Action]:
        """The action; a timer tells when what is held must leave."""
        if isinstance(action, ev.SetTimer) and action.timer.kind in _WAITS:
            kind = _WAITS[action.timer.kind]
            self._ends[kind] = action.at
            wait = max(0, action.at - self.margin - self.cluster.agenda.now)
            self.node.later(wait, self._let_go, (kind, action.at))
        return (action,)

    def _let_go(self, item: tuple[msg.Kind, int]) -> None:
        kind, end = item
        if self._ends.get(kind) == end:  # It was not brought forward meanwhile.
            self.node.execute(self._held.pop(kind, []))
