"""`holdout simulate`: runs of the decentralized protocol under faults, one for each seed."""

import multiprocessing
import os
import shlex
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from functools import partial

from holdout.agreement import sizing
from holdout.agreement.guarantees import notes_on_sizes
from holdout.agreement.params import Mode
from holdout.agreement.sizing import Risk
from holdout.errors import UserError
from holdout.results import to_json
from holdout.shares import write_share
from holdout.simulator.adversaries_agreement import BEHAVIOURS
from holdout.simulator.checkers import Violation
from holdout.simulator.cluster import usual_sizes
from holdout.simulator.faults import ALL_FAULTS, RunType, read_faults
from holdout.simulator.trace import Trace
from holdout.simulator.trial import Trial, TrialOutcome, run_trial

SEED_MAX = 1 << 63
ONE_PROCESS = 16
"""Up to this many runs are not worth starting processes for."""

Watch = Callable[[int, int, int], None]
"""Told (runs done, runs in all, violations so far)."""


@dataclass(frozen=True, slots=True)
class SimulationPlan:
    """The runs that a user asked for."""

    seeds: range
    trial: Trial
    faults: str = "all"
    """The faults as the user wrote them, for the command that replays a run."""

    def replay(self, seed: int) -> str:
        """The command that shows the run of this seed, event by event."""
        trial = self.trial
        words = [
            *("holdout", "simulate", "--seed", str(seed), "--workers", str(trial.workers)),
            *("--byzantine", str(write_share(trial.byzantine))),
            *("--rounds", str(trial.rounds), "--faults", self.faults, "--mode", str(trial.mode)),
            *("--type", str(trial.type_of(seed))),
        ]
        for name, size in (("--proposers", trial.proposers), ("--voters", trial.voters)):
            if size is not None:
                words += [name, str(size)]
        return shlex.join([*words, "--trace"])

    def notes(self) -> list[str]:
        """What a user should know before the runs start: sizes below the tables."""
        trial = self.trial
        n, f, mode = trial.workers, trial.byzantine, trial.mode
        planned = usual_sizes(n, f, mode)
        chosen = usual_sizes(n, f, mode, proposers=trial.proposers, voters=trial.voters)
        return notes_on_sizes(
            chosen,
            (
                ("proposers", chosen.proposers, planned.proposers),
                ("voters", chosen.voters.size, planned.voters.size),
            ),
            n=n,
            f=f,
            risk=Risk(rounds=trial.rounds),
        )


@dataclass(frozen=True, slots=True)
class SimulationReport:
    """What came of all runs together."""

    plan: SimulationPlan
    runs: int
    liveness_runs: int
    rounds: int
    periods: int
    steps: int
    messages: int
    evidence: int
    violations: tuple[tuple[int, Violation], ...]
    """(seed, what broke)."""

    @property
    def is_complete(self) -> bool:
        """Whether all seeds were run."""
        return self.runs == len(self.plan.seeds)

    @property
    def periods_per_round(self) -> float | None:
        """How many periods a decided round took on average; None if none was decided."""
        return self.periods / self.rounds if self.rounds else None

    def as_json(self) -> str:
        """The report as one JSON document."""
        document = {
            "runs": self.runs,
            "rounds": self.rounds,
            "periods_per_round": self.periods_per_round,
            "violations": [
                {"seed": seed, "invariant": violation.invariant, "replay": self.plan.replay(seed)}
                for seed, violation in self.violations
            ],
        }
        return to_json(document, indent=1)

    def as_text(self) -> str:
        """The report for people."""
        trial = self.plan.trial
        average = self.periods_per_round
        lines = [
            f"{self.runs} runs of {trial.workers} workers, up to {trial.params.byzantine} of them "
            f"Byzantine (mode {trial.mode}, faults: {self.plan.faults}): "
            f"{self.runs - self.liveness_runs} for safety, {self.liveness_runs} for liveness",
            f"  rounds decided       {self.rounds}, {self.steps} of them with a step",
            f"  periods per round    {'-' if average is None else f'{average:.2f}'}",
            f"  messages             {self.messages}",
            f"  evidence of lies     {self.evidence}",
            f"  violations           {len(self.violations) or 'none'}",
        ]
        for seed, violation in self.violations:
            lines += [
                f"seed {seed}: {violation.invariant} at {violation.time / 1e6:.3f} s: "
                f"{violation.what}",
                f"  {self.plan.replay(seed)}",
            ]
        return "\n".join(lines)


def make_plan(
    *,
    seeds: range,
    workers: int,
    byzantine: Fraction | int,
    rounds: int = 1,
    faults: str = "all",
    mode: str = "all",
    run_type: str | None = None,
    proposers: int | None = None,
    voters: int | None = None,
) -> SimulationPlan:
    """The plan of these runs.

    Raises:
        UserError: Something cannot work; the error says why.
    """
    if seeds.start >= seeds.stop:
        raise UserError(
            f"a range of seeds A..B needs A < B, as B itself is not included; got "
            f"{seeds.start}..{seeds.stop}"
        )
    if seeds.start < 0 or seeds.stop > SEED_MAX:
        raise UserError(f"seeds lie between 0 and {SEED_MAX}; got {seeds.start}..{seeds.stop}")
    if workers < 2:  # noqa: PLR2004
        raise UserError(f"a network has at least 2 workers; got {workers}")
    sizing.check_population(workers, byzantine)
    for name, size in (("proposers", proposers), ("voters", voters)):
        if size is not None and not 1 <= size <= workers:
            raise UserError(f"{name} must be 1 to {workers}, the number of workers; got {size}")
    kinds, named = read_faults(faults, BEHAVIOURS)
    trial = Trial(
        workers,
        sizing.as_share(byzantine, workers),
        rounds=rounds,
        run_type=None if run_type is None else RunType(run_type),
        faults=kinds,
        behaviours=named or tuple(BEHAVIOURS),
        mode=Mode(mode),
        proposers=proposers,
        voters=voters,
    )
    _ = trial.params  # Refuses a mode that does not fit the number of workers.
    return SimulationPlan(seeds, trial, faults if kinds != ALL_FAULTS else "all")


def simulate(plan: SimulationPlan, *, watch: Watch | None = None) -> SimulationReport:
    """Run all seeds on all cores; what comes of a seed does not depend on the others.

    After Ctrl-C the report covers the runs that are done.
    """
    done: list[TrialOutcome] = []
    broken = 0
    with suppress(KeyboardInterrupt):
        for outcome in _outcomes(plan, os.cpu_count() or 1):
            done.append(outcome)
            broken += len(outcome.violations)
            if watch is not None:
                watch(len(done), len(plan.seeds), broken)
    return summarise(plan, done)


def summarise(plan: SimulationPlan, outcomes: Sequence[TrialOutcome]) -> SimulationReport:
    """The report of these runs."""
    return SimulationReport(
        plan,
        runs=len(outcomes),
        liveness_runs=sum(outcome.run_type is RunType.LIVENESS for outcome in outcomes),
        rounds=sum(outcome.rounds for outcome in outcomes),
        periods=sum(outcome.periods for outcome in outcomes),
        steps=sum(outcome.steps for outcome in outcomes),
        messages=sum(outcome.messages for outcome in outcomes),
        evidence=sum(outcome.evidence for outcome in outcomes),
        violations=tuple(
            (outcome.seed, violation) for outcome in outcomes for violation in outcome.violations
        ),
    )


def show(plan: SimulationPlan, seed: int) -> tuple[SimulationReport, Trace]:
    """Run one seed with a trace."""
    trace = Trace()
    return summarise(plan, [run_trial(plan.trial, seed, trace)]), trace


def _outcomes(plan: SimulationPlan, processes: int) -> Iterator[TrialOutcome]:
    run = partial(run_trial, plan.trial)
    if processes == 1 or len(plan.seeds) <= ONE_PROCESS:
        yield from map(run, plan.seeds)
        return
    # Spawned, not forked: a forked process may inherit a lock that nobody frees.
    context = multiprocessing.get_context("spawn")
    share = max(1, min(32, len(plan.seeds) // (4 * processes)))
    # Ctrl-C reaches the workers too, but it is this process that stops them. What is blocked here
    # stays blocked in those that are started meanwhile, from their first moment on.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        pool = context.Pool(min(processes, len(plan.seeds)))
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    with pool:
        yield from pool.imap(run, plan.seeds, share)
