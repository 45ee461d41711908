"""`holdout plan --decentralized`: the sizes of a network without a server, and their limits."""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from holdout.agreement import sizing
from holdout.agreement.guarantees import caveats
from holdout.agreement.params import Mode, RoleDraw
from holdout.agreement.sizing import CommitteeSize, Risk, Voters
from holdout.results import to_json
from holdout.shares import byzantine_count, write_share


@dataclass(frozen=True, slots=True)
class Column:
    """All sizes for one assumption about the seed."""

    modes: Mapping[Mode, CommitteeSize]
    proposers: Mapping[RoleDraw, int]
    voters: Mapping[RoleDraw, Voters]

    def as_document(self) -> dict[str, object]:
        """What JSON says about it."""
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
class LotteryPlan:
    """Sizes that keep agreement safe and rounds going, except with the accepted probabilities."""

    workers: int
    byzantine: Fraction
    rounds: int
    delta_safety: float
    delta_progress: float
    mode: Mode
    leaders: int
    unbiased: Column
    biased: Column
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
        """The same for people."""
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
                f"{run.quorum:>7}" + "   usual for so many workers" * (mode is self.mode)
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


def plan(
    *,
    workers: int,
    byzantine: Fraction | int,
    rounds: int,
    delta_safety: float | None = None,
    delta_progress: float | None = None,
) -> LotteryPlan:
    """Compute all of it; refused where agreement is impossible."""
    strict = sizing.STRICT
    risk = Risk(
        rounds=rounds,
        safety=strict.safety if delta_safety is None else delta_safety,
        progress=strict.progress if delta_progress is None else delta_progress,
    )
    unbiased = Risk(risk.rounds, risk.safety, risk.progress, seed_bias=1)
    chosen = sizing.sizes(n=workers, f=byzantine, risk=risk)
    biased = _column(workers, byzantine, risk)
    return LotteryPlan(
        workers=workers,
        byzantine=sizing.as_share(byzantine, workers),
        rounds=rounds,
        delta_safety=risk.safety,
        delta_progress=risk.progress,
        mode=chosen.mode,
        leaders=chosen.leaders,
        unbiased=_column(workers, byzantine, unbiased),
        biased=biased,
        not_guaranteed=(
            *caveats(chosen, n=workers, f=byzantine, risk=risk),
            *_warnings(workers, biased),
        ),
    )


def _column(workers: int, byzantine: Fraction | int, risk: Risk) -> Column:
    liars = sizing.check_population(workers, byzantine)
    share = sizing.as_share(byzantine, workers)
    return Column(
        modes={mode: sizing.committee(workers, liars, risk, mode) for mode in Mode},
        proposers={draw: sizing.majority_size(workers, liars, risk, draw) for draw in RoleDraw},
        voters={
            draw: sizing.majority_voters(workers, liars, share, risk, draw) for draw in RoleDraw
        },
    )


def _warnings(workers: int, column: Column) -> list[str]:
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
