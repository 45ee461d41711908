"""`holdout plan`: how large committees must be, by the paper's bound and exactly."""

import math
from dataclasses import dataclass
from fractions import Fraction

from holdout.errors import UserError
from holdout.results import to_json
from holdout.shares import byzantine_count, write_share
from holdout.voting import odds

LARGEST = 10**15  # Beyond this, floats no longer tell one whole number from the next.


@dataclass(frozen=True, slots=True)
class Judgement:
    """How likely draws of one committee size are bad."""

    size: int
    majority_failure_round: float
    majority_failure_run: float
    overflow_round: float


@dataclass(frozen=True, slots=True)
class CommitteePlan:
    """Sizes that keep an honest majority in every round, except with probability delta."""

    workers: int
    byzantine: Fraction
    rounds: int
    delta: float
    chernoff_size: int
    exact_size: int | None
    chernoff_size_both: int
    exact_size_both: int | None
    committee: Judgement | None

    def as_json(self) -> str:
        """One JSON document."""
        document = {
            "workers": self.workers,
            "byzantine": float(self.byzantine),
            "rounds": self.rounds,
            "delta": self.delta,
            "chernoff_size": self.chernoff_size,
            "exact_size": self.exact_size,
            "chernoff_size_both": self.chernoff_size_both,
            "exact_size_both": self.exact_size_both,
        }
        if self.committee:
            document |= {
                "committee": self.committee.size,
                "majority_failure_round": self.committee.majority_failure_round,
                "majority_failure_run": self.committee.majority_failure_run,
                "overflow_round": self.committee.overflow_round,
            }
        return to_json(document, indent=1)

    def as_text(self) -> str:
        """The same for people."""
        liars = byzantine_count(self.byzantine, self.workers)
        lines = [
            f"{self.workers} workers, {liars} of them Byzantine (f = "
            f"{write_share(self.byzantine)}), {self.rounds} rounds, delta = {self.delta:g}",
            "",
            "Smallest committee with an honest majority in every round, except with probability "
            "delta:",
            f"                                       {'bound':>8} {'exact':>8}",
            f"  one draw a round, N(T, delta)        {self.chernoff_size:>8} "
            f"{_size(self.exact_size):>8}",
            f"  proposers and voters, N(2T, delta)   {self.chernoff_size_both:>8} "
            f"{_size(self.exact_size_both):>8}",
        ]
        if self.chernoff_size_both > self.workers:
            lines.append(
                f"  The bound asks for more than the {self.workers} workers there are; "
                "it does not know how many there are, the exact size does."
            )
        if self.committee:
            judged = self.committee
            lines += [
                "",
                f"A committee of {judged.size}:",
                f"  Byzantine majority in a round        {judged.majority_failure_round:.4g}",
                f"  ... in at least one of {self.rounds} rounds     ".ljust(39)
                + f"{judged.majority_failure_run:.4g}",
                f"  overflow in a round                  {judged.overflow_round:.4g}",
                "  (overflow: more liars drawn than a full ballot leaves out, so that each full "
                "ballot",
                "  must endorse one; the rule `holdout` does not force full ballots)",
            ]
        return "\n".join(lines)


def plan(
    *,
    workers: int,
    byzantine: Fraction | int,
    rounds: int,
    delta: float,
    committee: int | None = None,
) -> CommitteePlan:
    """Compute all of it; refused where no committee could have an honest majority."""
    if max(workers, rounds) > LARGEST:
        raise UserError(f"workers and rounds must be at most {LARGEST}; got {workers} and {rounds}")
    liars = byzantine_count(byzantine, workers)
    f = Fraction(byzantine, workers) if isinstance(byzantine, int) else byzantine
    if f >= Fraction(1, 2):
        # From 1 on it may be too large for a float.
        got = write_share(f) if f < 1 else f
        raise UserError(f"an honest majority needs a Byzantine share f below 1/2; got f = {got}")
    if not (0 < delta < 1 and math.isfinite(delta)):
        raise UserError(f"delta must lie between 0 and 1; got {delta}")
    if committee is not None and committee > workers:
        raise UserError(
            f"a committee has at most as many members as there are workers; "
            f"got committee={committee}, workers={workers}"
        )

    def exact(draws: int) -> int | None:
        return odds.exact_size(workers=workers, byzantine=liars, draws=draws, delta=delta)

    def bound(draws: int) -> int:
        try:
            return odds.chernoff_size(f=f, draws=draws, delta=delta)
        except OverflowError:
            raise UserError(
                f"the bound cannot be computed with numbers so extreme; got f = {float(f)}, "
                f"delta = {delta}"
            ) from None

    return CommitteePlan(
        workers=workers,
        byzantine=f,
        rounds=rounds,
        delta=delta,
        chernoff_size=bound(rounds),
        exact_size=exact(rounds),
        chernoff_size_both=bound(2 * rounds),
        exact_size_both=exact(2 * rounds),
        committee=None if committee is None else _judge(workers, liars, f, rounds, committee),
    )


def _judge(workers: int, liars: int, f: Fraction, rounds: int, size: int) -> Judgement:
    failure = odds.majority_failure(workers=workers, byzantine=liars, drawn=size)
    return Judgement(
        size=size,
        majority_failure_round=failure,
        majority_failure_run=odds.any_of(rounds, failure),
        overflow_round=odds.overflow(workers=workers, byzantine=liars, drawn=size, f=f),
    )


def _size(size: int | None) -> str:
    return "none" if size is None else str(size)
