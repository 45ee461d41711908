"""One run under faults, from its seed: found a network, put faults in, let it run, judge it."""

import traceback
from dataclasses import dataclass
from fractions import Fraction

from holdout.agreement.keys import SimulatedKeys
from holdout.agreement.params import MILLISECOND, Mode, Params, Timing
from holdout.simulator.adversaries_agreement import BEHAVIOURS, Completion, corrupt
from holdout.simulator.checkers import Checker, Violation
from holdout.simulator.cluster import Cluster, found, usual_params
from holdout.simulator.faults import ALL_FAULTS, FaultKind, FaultPlan, RunType, draw_plan
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
"""Virtual time per round; a run that is not done by then will hardly show anything new."""
LIVENESS_TIME = 400 * SECOND
"""Virtual time per round after GST; the longest period takes 51 s, clocks may be a tenth slow."""
STEPS_MAX = 40_000
"""Events per worker; a run with more of them is caught in a loop."""


@dataclass(frozen=True, slots=True)
class Trial:
    """What all runs of a batch have in common; a seed makes one run of it."""

    workers: int
    byzantine: Fraction
    """The share f of Byzantine workers that the network is built for."""
    rounds: int = 1
    run_type: RunType | None = None
    """None: every third seed is a liveness run, the others are safety runs."""
    faults: tuple[FaultKind, ...] = ALL_FAULTS
    behaviours: tuple[str, ...] = tuple(BEHAVIOURS)
    mode: Mode = Mode.ALL
    proposers: int | None = None
    """None: as many as `agreement.sizing` says; the same for voters."""
    voters: int | None = None

    @property
    def params(self) -> Params:
        """The constants of the network, the same for all seeds."""
        return usual_params(
            self.workers, self.byzantine, self.mode, proposers=self.proposers, voters=self.voters
        )

    def type_of(self, seed: int) -> RunType:
        """Whether the run of this seed is for safety or for liveness."""
        if self.run_type is not None:
            return self.run_type
        return RunType.LIVENESS if seed % 3 == 2 else RunType.SAFETY  # noqa: PLR2004


@dataclass(frozen=True, slots=True)
class TrialOutcome:
    """The outcome of one run, as far as reports and tests need it."""

    seed: int
    run_type: RunType
    rounds: int
    """How many rounds some honest worker has decided."""
    periods: int
    """How many periods these rounds took in total; one each if all went well."""
    steps: int
    """How many of these rounds moved the model."""
    violations: tuple[Violation, ...]
    messages: int
    evidence: int
    """How often a worker was caught equivocating; once per round and kind of message."""


def run_trial(trial: Trial, seed: int, trace: Trace | None = None) -> TrialOutcome:
    """Run this seed; the same seed gives the same run."""
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
    """Put the faults of a plan into a cluster that has not started."""
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
    """Start the cluster, let it run as the plan's type says, and judge it."""
    violations: list[Violation] = []
    try:
        cluster.start()
        if plan.run_type is RunType.SAFETY:
            _run_for_safety(cluster, plan, rounds)
        else:
            violations += _run_for_liveness(cluster, plan, rounds)
        checker.finish()
    except Exception:  # noqa: BLE001  # No exception may leave the core: any is a finding.
        text = traceback.format_exc(limit=-3).strip()
        violations.append(Violation("raised", text, cluster.agenda.now))
    caught = {
        (report.worker, report.round, report.evidence.first.kind)
        for node in cluster.honest()
        for report in node.reports
    }
    return TrialOutcome(
        seed=cluster.seed,
        run_type=plan.run_type,
        rounds=len(checker.periods),
        periods=sum(period + 1 for period in checker.periods.values()),
        steps=sum(checker.stepped.values()),
        violations=(*_distinct(checker.violations), *violations),
        messages=cluster.network.messages,
        evidence=len(caught),
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
            Violation(
                "L1",
                f"round {goal} is not decided by all healthy workers ({', '.join(where)})",
                now,
            )
        ]
    if max(last) - min(last) > 1:
        return [Violation("L1", f"healthy workers end {max(last) - min(last)} rounds apart", now)]
    return []


def heal(cluster: Cluster, plan: FaultPlan) -> None:
    """Let GST come: the network is good from now on, and all healthy workers run."""
    cluster.note(-1, "the network heals")
    cluster.network.heal(keep=plan.lasting)
    cluster.network.change_weather(CALM)
    for worker in range(len(cluster.nodes)):
        if not any(crash.worker == worker and crash.for_good for crash in plan.crashes):
            cluster.nodes[worker].heal()


def _healthy(cluster: Cluster, plan: FaultPlan) -> list[int]:
    return [w for w in range(len(cluster.nodes)) if w not in plan.faulty]


def _distinct(violations: list[Violation]) -> list[Violation]:
    """The first violation of each invariant: one mistake causes many."""
    first: dict[str, Violation] = {}
    for violation in violations:
        first.setdefault(violation.invariant, violation)
    return list(first.values())
