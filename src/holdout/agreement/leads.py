"""Who leads a period: announcements of blocks, the lowest priority first."""

from collections.abc import Iterable
from dataclasses import dataclass

from holdout.agreement.events import MessageFault
from holdout.agreement.messages import Evidence, Lead


@dataclass(frozen=True, slots=True)
class Ranked:
    """A lead and the lottery number that decides its place."""

    priority: bytes
    lead: Lead


class Leads:
    """The leads of a round, by period."""

    def __init__(self) -> None:
        self._periods: dict[int, dict[int, list[Ranked]]] = {}
        self.evidence: dict[int, Evidence] = {}
        """Two leads for one period, of each worker that was caught."""

    def add(self, lead: Lead, priority: bytes) -> MessageFault | None:
        """Take a verified lead; a leader's second one makes it worthless in this period."""
        versions = self._periods.setdefault(lead.period, {}).setdefault(lead.worker, [])
        if any(ranked.lead.envelope.signed == lead.envelope.signed for ranked in versions):
            return MessageFault.DUPLICATE
        if len(versions) > 1:
            return MessageFault.SURPLUS
        versions.append(Ranked(priority, lead))
        if len(versions) > 1 and lead.worker not in self.evidence:
            first, second = versions
            self.evidence[lead.worker] = Evidence.of(first.lead.envelope, second.lead.envelope)
        return None

    def best(self, period: int) -> list[Lead]:
        """Those of a period by ascending priority, without leaders that said two things."""
        single = [v[0] for v in self._periods.get(period, {}).values() if len(v) == 1]
        return [ranked.lead for ranked in sorted(single, key=lambda ranked: ranked.priority)]

    def heard(self, period: int, leaders: Iterable[int]) -> bool:
        """Whether all of these leaders have spoken."""
        spoken = self._periods.get(period, {})
        return all(leader in spoken for leader in leaders)

    def forget_before(self, period: int) -> None:
        """Drop what is over."""
        for over in [p for p in self._periods if p < period]:
            del self._periods[over]

    def size(self) -> int:
        """How many leads are held, and pieces of evidence."""
        leads = sum(len(v) for leaders in self._periods.values() for v in leaders.values())
        return leads + len(self.evidence)
