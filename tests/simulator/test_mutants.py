"""The suite can fail: for each mistake in `mutants` there is a scenario that does not survive it.

Each scenario returns what it found wrong: broken invariants, or "stuck" where something that must
happen does not happen. With the real core it finds nothing.
"""

from fractions import Fraction

import pytest
from tests.simulator import scripts
from tests.simulator.mutants import MUTANTS, mutated
from tests.simulator.scripted import corrupt_with, forger

from holdout.agreement.events import BlobKind
from holdout.agreement.keys import SimulatedKeys
from holdout.agreement.params import MILLISECOND
from holdout.simulator.checkers import Checker
from holdout.simulator.cluster import Cluster, found, usual_params
from holdout.simulator.faults import SECOND, Crash, FaultKind, Point, RunType
from holdout.simulator.network import Weather
from holdout.simulator.toy_learners import ToyLearner
from holdout.simulator.trial import TIMING, Trial, run_trial


def staged(script, *arguments, **options):
    """A scenario that is a script; it is stuck if the script cannot go on."""

    def scenario():
        try:
            stage = script(*arguments, **options)
        except AssertionError:
            return ["stuck"]
        stage = stage[0] if isinstance(stage, tuple) else stage
        return stage.violations()

    return scenario


def decided_in(script, *arguments, period):
    """A scenario that must decide, and in that period."""

    def scenario():
        try:
            stage = script(*arguments)
            stage = stage[0] if isinstance(stage, tuple) else stage
            stage.until(lambda: stage.decided(scripts.A, scripts.B, scripts.C))
        except AssertionError:
            return ["stuck"]
        late = max(stage.checker.periods.values()) > period
        return stage.violations() + ["late"] * late

    return scenario


def random_runs(*faults, seeds=range(12), rounds=1, run_type=RunType.SAFETY):
    """A scenario of runs under these faults."""

    def scenario():
        trial = Trial(4, Fraction(1, 4), rounds=rounds, run_type=run_type, faults=faults)
        return [v.invariant for seed in seeds for v in run_trial(trial, seed).violations]

    return scenario


def small_cluster(seed=0, **options):
    keys = SimulatedKeys(seed, 4)
    genesis = found(usual_params(4, Fraction(1, 4)), keys, seed)
    cluster = Cluster(genesis, keys, seed, timing=TIMING, **options)
    return cluster, Checker(genesis)


class OnlyItself(ToyLearner):
    """Approves no update but its own."""

    def judge(self, job, model, payloads):  # noqa: ARG002  # As every learner.
        return tuple(place for place, c in enumerate(job.candidates) if c.proposer == self.worker)


def one_name_on_each_ballot():
    """Completion alone would carry everything over the threshold; the floor stops it."""
    cluster, checker = small_cluster(learners=lambda worker, life: OnlyItself(0, worker, life))
    checker.attach(cluster, [])
    cluster.start()
    cluster.run(until=20 * SECOND, done=lambda c: c.all_committed(1))
    return [violation.invariant for violation in checker.violations]


def with_a_forging_leader(kind, seed):
    """Eight rounds; in some of them a liar has the best place, and leads with such a block."""
    cluster, checker = small_cluster(seed)
    checker.attach(cluster, [3])
    corrupt_with(cluster, [3], forger(kind))
    cluster.start()
    assert cluster.run(until=300 * SECOND, done=lambda c: c.all_committed(8))
    assert checker.violations == []
    return checker


def leader_leaves_ballots_out():
    """A liar leads with a valid block without any ballot: a round without a step."""
    steps = with_a_forging_leader("no ballots", 0).stepped
    return ["no step" for stepped in steps.values() if not stepped]


def leader_leads_with_nonsense():
    """A liar's block is invalid: the next leader's is taken in the same period."""
    periods = with_a_forging_leader("wrong model", 0).periods
    return ["late" for period in periods.values() if period]


def network_slower_than_assumed():
    """Every message takes four times as long as the workers think."""
    slow = 4 * TIMING.delay
    weather = Weather(delay_min=slow, delay_max=slow, jitter=MILLISECOND)
    cluster, checker = small_cluster(weather=weather)
    checker.attach(cluster, [])
    cluster.start()
    done = cluster.run(until=300 * SECOND, done=lambda c: c.all_committed(1))
    return [] if done else ["stuck"]


def crash_after_the_ballot():
    """All crash as soon as they have voted: the gradients that they voted for must survive it."""
    cluster, checker = small_cluster()
    checker.attach(cluster, [])
    ballot = 1  # The number of the write: the first one holds the update.
    for worker in range(4):
        crash = Crash(worker, 0, write=ballot, point=Point.SENT, for_good=True)
        cluster.nodes[worker].plan_crash(crash)
    cluster.start()
    cluster.run(until=10 * SECOND)
    held = [
        sum(kind is BlobKind.PAYLOAD for kind, _ in node.disk.blobs.values())
        for node in cluster.nodes
    ]
    approved = cluster.genesis.params.approve_count(4)
    return [v.invariant for v in checker.violations] + ["lost" for n in held if n < approved]


def later_period_decides():
    """Rounds whose first period fails."""
    return random_runs(FaultKind.HOLDS, FaultKind.LOSS, seeds=range(20))()


SCENARIOS = {
    "CERT allowed in phase 2": staged(scripts.s2),
    "Q one too small": random_runs(FaultKind.LOSS, FaultKind.LIARS, seeds=range(4)),
    "duplicate voter counted twice": random_runs(
        FaultKind.DUPLICATION, FaultKind.LOSS, seeds=range(20)
    ),
    "mine not persisted": random_runs(FaultKind.LOSS, seeds=range(2)),
    "nextq not persisted": staged(scripts.s1),
    "phase not persisted": staged(scripts.crash_after_down),
    "staged not persisted": staged(scripts.crash_after_cert),
    "block behind CERT not persisted": staged(scripts.crash_after_cert, block_gone=True),
    "gradients behind a ballot not persisted": crash_after_the_ballot,
    "DOWN preferred over LATE": staged(scripts.deadline_after_certificate),
    "no REDO": staged(scripts.s1_without_crash),
    "fresh lead accepted against a value": staged(scripts.fresh_lead_against_a_value, 2),
    "no floor in the tally": one_name_on_each_ballot,
    "inclusion rule off": leader_leaves_ballots_out,
    "seed without fallback": later_period_decides,
    "sum by np.mean": random_runs(FaultKind.DELAY, seeds=range(6)),
    "LATE after DOWN forbidden": staged(scripts.late_after_down),
    "no relay of bundles on entry": decided_in(scripts.s3, 2, period=1),
    "F(p) not scaled": network_slower_than_assumed,
    "soft vote without a valid block": leader_leads_with_nonsense,
    "re-proposal without quorum accepted": decided_in(scripts.repeated_without_quorum, 2, period=1),
    "no resync of nextq": staged(scripts.only_one_hears_of_the_end, 2),
    "inclusion rule never off": staged(scripts.ballots_nobody_else_has),
    "value preferred over bottom": staged(scripts.value_learnt_after_bottom, 2),
}
EXPECTED = {
    "value preferred over bottom": {"I10"},
    "gradients behind a ballot not persisted": {"lost"},
    "mine not persisted": {"I6"},
    "no floor in the tally": {"I4"},
    "sum by np.mean": {"I4"},
    "seed without fallback": {"I8"},
    "nextq not persisted": {"I7"},
    "CERT allowed in phase 2": {"I7"},
}


def test_every_mutant_has_a_scenario():
    assert list(SCENARIOS) == list(MUTANTS)


@pytest.mark.parametrize("name", MUTANTS)
def test_the_core_passes_what_the_mutant_does_not(name):
    scenario = SCENARIOS[name]
    assert scenario() == []
    with mutated(name):
        wrong = scenario()
    assert wrong
    assert EXPECTED.get(name, set()) <= set(wrong)
