"""`holdout plan`: how large committees must be, with a server and without one.

With a server (`plan_committee`): the paper's bound and the exact size. Without one
(`plan_network`): the sizes of every lottery, and what they do not guarantee.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from holdout.agreement import sizing
from holdout.agreement.guarantees import caveats
from holdout.agreement.params import Mode, RoleDraw
from holdout.agreement.sizing import CommitteeSize, Risk, Voters
from holdout.errors import UserError
from holdout.experiments.coverage_plan import CoveragePlan, plan_coverage
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
    judges: CoveragePlan | None = None

    def as_json(self) -> str:
        """One JSON document."""
        document: dict[str, object] = {
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
        if self.judges:
            document |= self.judges.as_document()
        return to_json(document, indent=1)

    def as_text(self) -> str:
        """A table for people."""
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
                f"  The bound asks for more than the {self.workers} workers there are: it does "
                "not depend on their number; the exact size does."
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
                "  (overflow: more liars drawn than a full ballot can leave out, so each full "
                "ballot",
                "  must endorse one; the rule `holdout` does not force full ballots)",
            ]
        if self.judges:
            lines += self.judges.as_lines()
        return "\n".join(lines)


def plan_committee(
    *,
    workers: int,
    byzantine: Fraction | int,
    rounds: int,
    delta: float,
    committee: int | None = None,
    coverage: Fraction | None = None,
) -> CommitteePlan:
    """The sizes of a server's committees; refused where none could have an honest majority."""
    if max(workers, rounds) > LARGEST:
        raise UserError(f"workers and rounds must be at most {LARGEST}; got {workers} and {rounds}")
    liars = byzantine_count(byzantine, workers)
    f = sizing.as_share(byzantine, workers)
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
                f"the bound cannot be computed for numbers this extreme; got f = {float(f)}, "
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
        judges=None
        if coverage is None
        else plan_coverage(
            workers=workers,
            liars=liars,
            rounds=rounds,
            delta=delta,
            coverage=coverage,
            committee=committee,
        ),
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


@dataclass(frozen=True, slots=True)
class SizesBySeed:
    """All sizes of a network, for one assumption about the bias of its seed."""

    modes: Mapping[Mode, CommitteeSize]
    proposers: Mapping[RoleDraw, int]
    voters: Mapping[RoleDraw, Voters]

    def as_document(self) -> dict[str, object]:
        """The sizes as JSON states them."""
        return {
            "modes": {
                str(mode): {"committee": made.size, "quorum": made.quorum}
                for mode, made in self.modes.items()
            },
            "roles": {
                str(draw): {
                    "tau_P": self.proposers[draw],
                    "tau_V": made.size,
                    "M_min": made.ballots_min,
                    "b_max": made.byzantine_max,
                }
                for draw, made in self.voters.items()
            },
        }


@dataclass(frozen=True, slots=True)
class NetworkPlan:
    """Sizes that keep agreement safe and rounds going, except with the accepted probabilities."""

    workers: int
    byzantine: Fraction
    rounds: int
    delta_safety: float
    delta_progress: float
    mode: Mode
    leaders: int
    unbiased: SizesBySeed
    biased: SizesBySeed
    not_guaranteed: tuple[str, ...]

    def as_json(self) -> str:
        """One JSON document; its sizes are those for an unbiased seed unless it says otherwise."""
        committee = self.unbiased.modes[self.mode]
        voters = self.unbiased.voters[RoleDraw.SELF]
        return to_json(
            {
                "workers": self.workers,
                "byzantine": float(self.byzantine),
                "byzantine_count": byzantine_count(self.byzantine, self.workers),
                "rounds": self.rounds,
                "delta_safety": self.delta_safety,
                "delta_progress": self.delta_progress,
                "mode": str(self.mode),
                "committee": committee.size,
                "quorum": committee.quorum,
                "tau_P": self.unbiased.proposers[RoleDraw.SELF],
                "tau_V": voters.size,
                "tau_L": self.leaders,
                "M_min": voters.ballots_min,
                "b_max": voters.byzantine_max,
                **self.unbiased.as_document(),
                "with_seed_bias": {"factor": sizing.SEED_BIAS, **self.biased.as_document()},
                "not_guaranteed": list(self.not_guaranteed),
            },
            indent=1,
        )

    def as_text(self) -> str:
        """A table for people."""
        liars = byzantine_count(self.byzantine, self.workers)
        lines = [
            f"{self.workers} workers, {liars} of them Byzantine (f = "
            f"{write_share(self.byzantine)}), {self.rounds} rounds; accepted: two blocks for one "
            f"round {self.delta_safety:g},",
            f"a round without its first quorum or an honest majority {self.delta_progress:g}",
            "",
            "                         if the seed is unbiased     allowing for seed bias (a run's)",
            "Consensus committee         size  quorum                size  quorum",
        ]
        for mode, made in self.unbiased.modes.items():
            run = self.biased.modes[mode]
            lines.append(
                f"  mode {mode:<17} {made.size:>7} {made.quorum:>7}             {run.size:>7} "
                f"{run.quorum:>7}" + "   usual for this many workers" * (mode is self.mode)
            )
        lines.append(
            "Learning roles             tau_P  tau_V  M_min  b_max  tau_P  tau_V  M_min  b_max"
        )
        names = {RoleDraw.SELF: "drawn secretly", RoleDraw.FIXED: "drawn publicly"}
        for draw, name in names.items():
            cells = [
                cell
                for column in (self.unbiased, self.biased)
                for cell in (
                    column.proposers[draw],
                    column.voters[draw].size,
                    column.voters[draw].ballots_min,
                    column.voters[draw].byzantine_max,
                )
            ]
            lines.append(f"  {name:<23}" + "".join(f"{cell:>7}" for cell in cells))
        lines += [
            f"Leaders                  tau_L = {self.leaders}",
            "",
            "Not guaranteed:",
            *(f"  - {sentence}" for sentence in self.not_guaranteed),
        ]
        return "\n".join(lines)


def plan_network(
    *,
    workers: int,
    byzantine: Fraction | int,
    rounds: int,
    delta_safety: float | None = None,
    delta_progress: float | None = None,
) -> NetworkPlan:
    """The sizes of a network without a server; refused where agreement is impossible."""
    strict = sizing.STRICT
    risk = Risk(
        rounds=rounds,
        safety=strict.safety if delta_safety is None else delta_safety,
        progress=strict.progress if delta_progress is None else delta_progress,
    )
    unbiased = Risk(risk.rounds, risk.safety, risk.progress, seed_bias=1)
    chosen = sizing.sizes(n=workers, f=byzantine, risk=risk)
    biased = _network_sizes(workers, byzantine, risk)
    return NetworkPlan(
        workers=workers,
        byzantine=sizing.as_share(byzantine, workers),
        rounds=rounds,
        delta_safety=risk.safety,
        delta_progress=risk.progress,
        mode=chosen.mode,
        leaders=chosen.leaders,
        unbiased=_network_sizes(workers, byzantine, unbiased),
        biased=biased,
        not_guaranteed=(
            *caveats(chosen, n=workers, f=byzantine, risk=risk),
            *_warnings(workers, biased),
        ),
    )


def _network_sizes(workers: int, byzantine: Fraction | int, risk: Risk) -> SizesBySeed:
    liars = sizing.check_population(workers, byzantine)
    share = sizing.as_share(byzantine, workers)
    return SizesBySeed(
        modes={mode: sizing.committee(workers, liars, risk, mode) for mode in Mode},
        proposers={draw: sizing.majority_size(workers, liars, risk, draw) for draw in RoleDraw},
        voters={
            draw: sizing.majority_voters(workers, liars, share, risk, draw) for draw in RoleDraw
        },
    )


def _warnings(workers: int, column: SizesBySeed) -> list[str]:
    """What the sizes of the modes mean for choosing among them."""
    if workers < sizing.SAMPLED_WORKERS_MIN:
        return [
            f"Modes shuffle and self are refused below {sizing.SAMPLED_WORKERS_MIN} workers: "
            "their sizes are for comparison."
        ]
    said = []
    for mode in (Mode.SHUFFLE, Mode.SELF):
        size = column.modes[mode].size
        if size == workers:
            said.append(f"No committee of mode {mode} smaller than everybody is safe enough.")
        elif 10 * size > 9 * workers:
            said.append(
                f"Mode {mode} saves less than a tenth of the workers ({size} of {workers})."
            )
    return said
