"""One run under faults, from its seed: found a network, let it run, say what broke."""

import traceback
from dataclasses import dataclass, replace
from fractions import Fraction

from holdout.agreement.keys import SimulatedKeys
from holdout.agreement.params import MILLISECOND, Mode, Params, Timing
from holdout.simulator.adversaries_agreement import BEHAVIOURS, Completion, corrupt
from holdout.simulator.checkers import Checker, Violation
from holdout.simulator.cluster import Cluster, found, usual_params
from holdout.simulator.faults import (
    ALL_FAULTS,
    FaultKind,
    FaultPlan,
    RunType,
    draw_plan,
)
from holdout.simulator.network import CALM, SECOND
from holdout.simulator.trace import LEGEND, Trace

TIMING = Timing(
    delay=100 * MILLISECOND,
    propose=400 * MILLISECOND,
    vote=400 * MILLISECOND,
    fetch=100 * MILLISECOND,
    validate=100 * MILLISECOND,
)
SAFETY_TIME = 30 * SECOND
"""Virtual; by then a run that will not finish has seen what it will see."""
LIVENESS_TIME = 400 * SECOND
"""After GST; the longest period takes 51 s, and clocks may be a tenth slow."""
STEPS_MAX = 40_000
"""Per worker; a run that goes on for longer is stuck in a loop of its own."""


@dataclass(frozen=True, slots=True)
class Trial:
    """What all runs of a batch have in common."""

    workers: int
    byzantine: Fraction
    """The share f that the network is built for."""
    rounds: int = 1
    run_type: RunType | None = None
    """None: every third run is for liveness."""
    faults: tuple[FaultKind, ...] = ALL_FAULTS
    behaviours: tuple[str, ...] = tuple(BEHAVIOURS)
    mode: Mode = Mode.ALL
    proposers: int | None = None
    """None: as many as the tables say; the same for voters."""
    voters: int | None = None

    @property
    def params(self) -> Params:
        """The constants of its networks."""
        return usual_params(
            self.workers, self.byzantine, self.mode, proposers=self.proposers, voters=self.voters
        )

    def type_of(self, seed: int) -> RunType:
        """Whether this seed's run is for safety or for liveness."""
        if self.run_type is not None:
            return self.run_type
        return RunType.LIVENESS if seed % 3 == 2 else RunType.SAFETY  # noqa: PLR2004


@dataclass(frozen=True, slots=True)
class TrialOutcome:
    """What came of one run."""

    seed: int
    run_type: RunType
    rounds: int
    """Rounds that some honest worker has decided."""
    periods: int
    """Periods that these rounds took, together; one for each round that went well."""
    steps: int
    """Rounds of those that moved the model."""
    violations: tuple[Violation, ...]
    virtual_time: int
    messages: int
    bytes: int
    evidence: int
    """Workers that were caught, by round and kind of message."""
    fingerprint: str = ""


def run_trial(trial: Trial, seed: int, trace: Trace | None = None) -> TrialOutcome:
    """The run of this seed; the same seed gives the same run."""
    params = trial.params
    run_type = trial.type_of(seed)
    plan = draw_plan(
        seed,
        n=trial.workers,
        byzantine=params.byzantine,
        run_type=run_type,
        faults=trial.faults,
        behaviours=trial.behaviours,
    )
    keys = SimulatedKeys(seed, trial.workers)
    genesis = found(params, keys, seed)
    cluster = Cluster(genesis, keys, seed, timing=TIMING, weather=plan.weather, trace=trace)
    checker = Checker(genesis)
    checker.attach(cluster, [worker for worker, _ in plan.liars])
    prepare(cluster, plan)
    for line in (*LEGEND, *plan.describe()):
        cluster.note(-1, line)
    return run_prepared(cluster, checker, plan, trial.rounds)


def prepare(cluster: Cluster, plan: FaultPlan) -> None:
    """Put the plan's faults into a cluster that has not started."""
    for cut in (*plan.cuts, *plan.lasting):
        cluster.network.add_cut(cut)
    corrupt(cluster, plan.liars)
    for worker, rate in enumerate(plan.rates):
        cluster.nodes[worker].rate = rate
    for worker, slowness in enumerate(plan.slowness):
        cluster.nodes[worker].slowness = slowness
    for crash in plan.crashes:
        cluster.nodes[crash.worker].plan_crash(crash)
    if plan.completion:
        cluster.network.tap = Completion(cluster, [worker for worker, _ in plan.liars])


def run_prepared(cluster: Cluster, checker: Checker, plan: FaultPlan, rounds: int) -> TrialOutcome:
    """Start, let it run as the type of the plan wants, and judge."""
    violations: list[Violation] = []
    try:
        cluster.start()
        if plan.run_type is RunType.SAFETY:
            _run_for_safety(cluster, plan, rounds)
        else:
            violations += _run_for_liveness(cluster, plan, rounds)
        checker.finish()
    except Exception:  # noqa: BLE001  # Nothing may leave the core: whatever does is a finding.
        text = traceback.format_exc(limit=-3).strip()
        violations.append(Violation("raised", text, cluster.agenda.now))
    honest = cluster.honest()
    caught = {
        (report.worker, report.round, report.evidence.first.kind)
        for node in honest
        for report in node.reports
    }
    return TrialOutcome(
        seed=cluster.seed,
        run_type=plan.run_type,
        rounds=len(checker.periods),
        periods=sum(period + 1 for period in checker.periods.values()),
        steps=sum(checker.stepped.values()),
        violations=(*_distinct(checker.violations), *violations),
        virtual_time=cluster.agenda.now,
        messages=cluster.network.messages,
        bytes=cluster.network.bytes,
        evidence=len(caught),
        fingerprint="" if cluster.trace is None else cluster.trace.fingerprint,
    )


def _run_for_safety(cluster: Cluster, plan: FaultPlan, rounds: int) -> None:
    healthy = _healthy(cluster, plan)
    cluster.run(
        until=SAFETY_TIME * rounds,
        done=lambda c: c.all_committed(rounds, healthy),
        steps_max=STEPS_MAX * len(cluster.nodes),
    )


def _run_for_liveness(cluster: Cluster, plan: FaultPlan, rounds: int) -> list[Violation]:
    healthy = _healthy(cluster, plan)
    cluster.run(until=plan.gst, steps_max=STEPS_MAX * len(cluster.nodes))
    heal(cluster, plan)
    reached = max([cluster.nodes[worker].decided for worker in healthy], default=0)
    goal = reached + rounds
    done = cluster.run(
        until=cluster.agenda.now + LIVENESS_TIME * rounds,
        done=lambda c: c.all_committed(goal, healthy),
        steps_max=cluster.steps + STEPS_MAX * len(cluster.nodes),
    )
    now = cluster.agenda.now
    last = [cluster.nodes[worker].decided for worker in healthy]
    if not done:
        players = {worker: cluster.nodes[worker].player for worker in healthy}
        where = [f"{worker}: r{p.round} p{p.period}" for worker, p in players.items()]
        return [
            Violation("L1", f"round {goal} is not decided everywhere ({', '.join(where)})", now)
        ]
    if max(last) - min(last) > 1:
        return [Violation("L1", f"the rounds are {max(last) - min(last)} apart at the end", now)]
    return []


def heal(cluster: Cluster, plan: FaultPlan) -> None:
    """GST: the network is good from now on, and whoever is healthy runs."""
    cluster.note(-1, "the network heals")
    cluster.network.heal(keep=plan.lasting)
    cluster.network.change_weather(replace(CALM))
    for worker in range(len(cluster.nodes)):
        if not any(crash.worker == worker and crash.for_good for crash in plan.crashes):
            cluster.nodes[worker].heal()


def _healthy(cluster: Cluster, plan: FaultPlan) -> list[int]:
    return [w for w in range(len(cluster.nodes)) if w not in plan.faulty]


def _distinct(violations: list[Violation]) -> list[Violation]:
    """The first of each kind: one mistake makes many."""
    first: dict[str, Violation] = {}
    for violation in violations:
        first.setdefault(violation.invariant, violation)
    return list(first.values())
