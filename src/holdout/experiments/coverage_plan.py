"""`holdout plan --coverage C`: how many liars votes by class withstand.

If a share c of the honest voters can judge a class and liars claim to judge all, honest judges are
the majority as long as c (1 - f) > f: for shares of liars f below c / (1 + c). A committee is a
draw, so it can do worse; the odds of that are exact (`holdout.voting.odds.judges_failure`).
"""

import bisect
from dataclasses import dataclass, replace
from fractions import Fraction

from holdout.errors import UserError
from holdout.shares import write_share
from holdout.voting import odds

COMMITTEE_MAX = 1_000
"""The exact odds of a class take the square of this many steps."""


@dataclass(frozen=True, slots=True)
class CommitteeOdds:
    """How likely honest judges of a class are no majority of a committee's."""

    size: int
    failure_round: float
    failure_run: float
    liars_max: int | None
    """The most liars among all workers with which `failure_run` is at most delta; None: not even
    without liars, since it may be that nobody at all can judge."""


@dataclass(frozen=True, slots=True)
class CoveragePlan:
    """What a coverage of c allows, among so many workers."""

    workers: int
    liars: int
    rounds: int
    delta: float
    coverage: Fraction
    committee: CommitteeOdds | None

    @property
    def share_limit(self) -> Fraction:
        """The share of liars must stay below this: c / (1 + c)."""
        return self.coverage / (1 + self.coverage)

    @property
    def liars_max(self) -> int:
        """The most liars b for which c (n - b) > b."""
        limit = self.share_limit * self.workers
        return limit.numerator // limit.denominator - (limit.denominator == 1)

    @property
    def holds(self) -> bool:
        """Whether honest judges are the majority of all workers that claim to judge."""
        return self.liars <= self.liars_max

    def as_document(self) -> dict[str, object]:
        """The keys of the JSON document."""
        found: dict[str, object] = {
            "coverage": float(self.coverage),
            "judges_share_limit": float(self.share_limit),
            "judges_liars_max": self.liars_max,
            "judges_majority": self.holds,
        }
        if self.committee:
            found |= {
                "judges_failure_round": self.committee.failure_round,
                "judges_failure_run": self.committee.failure_run,
                "judges_liars_max_committee": self.committee.liars_max,
            }
        return found

    def as_lines(self) -> list[str]:
        """Lines for people."""
        lines = [
            "",
            f"Votes by class, if an honest voter can judge a class with probability c = "
            f"{write_share(self.coverage)}:",
            f"  honest judges are the majority below f = {float(self.share_limit):.4g}, that is "
            f"with at most {self.liars_max} liars among {self.workers}:",
            f"  {self.liars} liars are {'few enough' if self.holds else 'too many'}",
        ]
        if self.committee:
            made, name = self.committee, f"in a committee of {self.committee.size}"
            most = "no number" if made.liars_max is None else f"at most {made.liars_max}"
            lines += [
                f"  {name}, no honest majority of judges:",
                f"    in a round                         {made.failure_round:.4g}",
                f"    in at least one of {self.rounds} rounds".ljust(39)
                + f"{made.failure_run:.4g}",
                f"  {name}, liars that keep the latter to delta = {self.delta:g}: {most}",
            ]
        return lines


def plan_coverage(
    *,
    workers: int,
    liars: int,
    rounds: int,
    delta: float,
    coverage: Fraction,
    committee: int | None,
) -> CoveragePlan:
    """What a coverage allows; refused outside of 0 to 1, and for committees that are too large."""
    if not 0 < coverage <= 1:
        raise UserError(f"coverage must be above 0 and at most 1; got {write_share(coverage)}")
    if committee is not None and committee > COMMITTEE_MAX:
        raise UserError(
            f"the exact odds of judges are for committees of at most {COMMITTEE_MAX}; "
            f"got committee={committee}"
        )
    made = CoveragePlan(workers, liars, rounds, delta, coverage, None)
    return made if committee is None else replace(made, committee=_odds(made, committee))


def _odds(made: CoveragePlan, size: int) -> CommitteeOdds:
    def failure(byzantine: int) -> float:
        return odds.judges_failure(
            workers=made.workers, byzantine=byzantine, drawn=size, coverage=float(made.coverage)
        )

    def is_too_many(byzantine: int) -> bool:
        return odds.any_of(made.rounds, failure(byzantine)) > made.delta

    # One more liar in place of an honest worker can only take judges away.
    most = bisect.bisect_left(range(made.workers + 1), x=True, key=is_too_many) - 1
    now = failure(made.liars)
    return CommitteeOdds(size, now, odds.any_of(made.rounds, now), None if most < 0 else most)
