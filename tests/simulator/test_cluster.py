"""Whole clusters: good days, crashes at every point, lost disks, slow and drifting machines."""

import struct
from fractions import Fraction

import pytest
from tests.simulator.mutants import mutated

from holdout.agreement.events import BlobKind, Persist, Want
from holdout.agreement.headers import read_header
from holdout.agreement.keys import SimulatedKeys
from holdout.agreement.messages import Finished, Lead, Vote, VoteStep
from holdout.agreement.params import Mode
from holdout.agreement.sortition import Role
from holdout.ids import Digest
from holdout.simulator.checkers import Checker
from holdout.simulator.cluster import Cluster, found, usual_params
from holdout.simulator.faults import (
    SECOND,
    Crash,
    FaultKind,
    Point,
    RunType,
    draw_plan,
    read_faults,
)
from holdout.simulator.network import FOREVER, Cut, mask
from holdout.simulator.storage import BlobMemory, Disk, SimulatedFetcher
from holdout.simulator.toy_learners import ToyLearner
from holdout.simulator.trace import Trace
from holdout.simulator.trial import TIMING, Trial, run_trial


def make(n=4, byzantine=1, seed=0, **options):
    keys = SimulatedKeys(seed, n)
    genesis = found(usual_params(n, Fraction(byzantine, n)), keys, seed)
    cluster = Cluster(genesis, keys, seed, timing=TIMING, **options)
    checker = Checker(genesis)
    checker.attach(cluster, [])
    return cluster, checker


def play(cluster, rounds, seconds=200):
    cluster.start()
    return cluster.run(until=seconds * SECOND, done=lambda c: c.all_committed(rounds))


# -- good days -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "byzantine"), [(2, 0), (4, 1), (7, 2), (13, 4)])
def test_on_a_good_day_each_round_is_a_step_in_the_first_period_and_models_are_equal(n, byzantine):
    cluster, checker = make(n, byzantine)
    assert play(cluster, 3)
    checker.finish()
    assert checker.violations == []
    assert checker.periods == dict.fromkeys((1, 2, 3), 0)
    assert checker.stepped == dict.fromkeys((1, 2, 3), True)
    for number in (1, 2, 3):
        models = {node.memory.get(node.commits[number].model) for node in cluster.nodes}
        assert len(models) == 1
        assert None not in models


def test_learning_gets_somewhere():
    cluster, _ = make()
    assert play(cluster, 6)
    node = cluster.nodes[0]
    first, last = (
        sum(x * x for x in struct.unpack("<4f", node.memory.get(digest) or cluster.first_model))
        for digest in (cluster.genesis.params.model_first, node.commits[6].model)
    )
    assert last < first / 10


# -- determinism ---------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 2, 7])
def test_the_same_seed_gives_the_same_run_to_the_last_event(seed):
    trial = Trial(4, Fraction(1, 4), rounds=2)
    first, second, other = Trace(), Trace(), Trace()
    assert run_trial(trial, seed, first) == run_trial(trial, seed, second)
    assert first.fingerprint == second.fingerprint
    run_trial(trial, seed + 1, other)
    assert other.fingerprint != first.fingerprint


def test_a_trace_tells_what_happened():
    trace = Trace()
    run_trial(Trial(4, Fraction(1, 4), faults=()), 0, trace)
    text = "\n".join(trace.lines)
    for part in ("enters r1 p0", "SOFT of", "CERT of", "COMMITS r1", "ballot of", "writes its"):
        assert part in text
    assert "a safety run" in trace.lines[2]


def test_a_trace_begins_with_what_will_go_wrong():
    plan = draw_plan(5, n=4, byzantine=1, run_type=RunType.LIVENESS, behaviours=("Z8", "Z20"))
    text = "\n".join(plan.describe())
    for part in (
        "a liveness run: the network heals after 6.696 s",
        "worker 0 is Byzantine: ",
        "an attacker completes quorums",
        "40.8% lost",
        "everything from 1,2 to 0,3 is held back, 2.214 s to 11.382 s",
        "vote SOFT, bundle SOFT from 0,1,2,3 to 1 is held back",
        "worker 1 crashes at its write 10, before the write, for 1.601 s",
        "worker 3 crashes after 0.305 s, starts again at once",
    ):
        assert part in text


def test_a_trace_tells_of_a_violation_where_it_happened():
    trace = Trace()
    with mutated("mine not persisted"):
        outcome = run_trial(Trial(4, Fraction(1, 4), faults=(FaultKind.LOSS,)), 0, trace)
    assert outcome.violations[0].invariant == "I6"
    places = [place for place, line in enumerate(trace.lines) if "VIOLATION of I6" in line]
    assert 0 < places[0] < len(trace.lines) - 20


def test_tracing_changes_nothing():
    trial = Trial(4, Fraction(1, 4), rounds=2)
    trace = Trace()
    traced, plain = run_trial(trial, 5, trace), run_trial(trial, 5)
    assert trace.fingerprint
    assert trace.lines
    assert traced == plain


# -- crashes -------------------------------------------------------------------------------------


@pytest.mark.parametrize("point", Point)
@pytest.mark.parametrize("write", range(7))
def test_z17_a_crash_at_any_write_costs_nothing_that_was_said_or_decided(write, point):
    cluster, checker = make(seed=write)
    for worker in (0, 1):
        cluster.nodes[worker].plan_crash(Crash(worker, 200_000, write=write, point=point))
    assert play(cluster, 2)
    checker.finish()
    assert checker.violations == []
    assert [node.life for node in cluster.nodes] == [1, 1, 0, 0]


def test_z17_repeated_crashes_of_everybody_are_survived():
    cluster, checker = make()
    for worker in range(4):
        for write in range(worker, 14, 3):
            point = list(Point)[write % 4]
            cluster.nodes[worker].plan_crash(Crash(worker, 50_000, write=write, point=point))
    assert play(cluster, 3, seconds=400)
    assert checker.violations == []


@pytest.mark.parametrize("point", Point)
def test_z17_a_crash_at_the_very_write_that_decides_a_round_loses_or_repeats_nothing(point):
    """A commit is told at most once; what is decided stands in the store, told or not."""
    rehearsal, _ = make()
    deciding = []
    write = Disk.write

    class Recording(Disk):
        __slots__ = ()

        def write(self, persist, memory):
            if persist.finished:
                deciding.append(self.writes)
            write(self, persist, memory)

    rehearsal.nodes[0].disk = Recording(rehearsal.nodes[0].disk.safety)
    assert play(rehearsal, 1)

    cluster, checker = make()
    node = cluster.nodes[0]
    node.plan_crash(Crash(0, 100_000, write=deciding[0], point=point))
    cluster.start()
    assert cluster.run(until=60 * SECOND, done=lambda _: node.life == 1)
    durable = point in {Point.WRITTEN, Point.SENT}
    assert node.decided == durable
    assert (1 in node.commits) == (point is Point.SENT)
    assert cluster.run(until=120 * SECOND, done=lambda c: c.all_committed(3))
    header = read_header(node.disk.finished[0].header)
    assert header.digest == cluster.nodes[1].commits[1].value
    # Told once it is decided, except where the crash came between the two.
    assert (1 in node.commits) == (point is not Point.WRITTEN)
    assert {2, 3} <= set(node.commits)
    assert node.memory.get(node.player.model) is not None
    checker.finish()
    assert checker.violations == []


def test_a_worker_that_was_away_for_rounds_catches_up():
    cluster, checker = make()
    cluster.nodes[2].plan_crash(Crash(2, 20 * SECOND, at=1))
    cluster.start()
    cluster.run(until=20 * SECOND)
    others = min(cluster.nodes[worker].decided for worker in (0, 1, 3))
    assert cluster.nodes[2].decided == 0
    assert others > 20
    assert cluster.run(until=30 * SECOND, done=lambda c: c.all_committed(others + 2))
    assert checker.violations == []


def test_a_crash_loses_what_was_not_synced():
    disk, memory = Disk(b"before"), BlobMemory()
    memory.put(BlobKind.PAYLOAD, Digest(b"k"), b"payload", 1)
    persist = Persist(b"after", ((BlobKind.PAYLOAD, Digest(b"k")),))
    disk.write(persist, memory)
    disk.crash()
    disk.sync()
    assert (disk.safety, disk.blobs, disk.writes) == (b"before", {}, 0)
    disk.write(persist, memory)
    disk.sync()
    disk.crash()
    assert (disk.safety, disk.writes) == (b"after", 1)
    memory.restore(disk, 1)
    assert memory.get(Digest(b"k")) == b"payload"
    disk.lose()
    assert (disk.safety, disk.blobs, disk.finished) == (None, {}, [])


def test_memory_keeps_the_newest_models_and_drops_what_is_old():
    memory = BlobMemory()
    for number in range(1, 7):
        memory.put(BlobKind.MODEL, Digest(b"m%d" % number), b"", number)
        memory.put(BlobKind.PAYLOAD, Digest(b"p%d" % number), b"", number)
        memory.committed(Digest(b"m%d" % number))
    gone = memory.forget(6)
    assert sorted(gone) == sorted([b"p1", b"p2", b"p3", b"p4", b"p5", b"m1", b"m2", b"m3"])
    assert len(memory) == 4


class SignedBy:
    """Rounds of everything that one worker signs."""

    def __init__(self, checker, worker):
        self.rounds = []
        self._checker, self._worker = checker, worker

    def __getattr__(self, name):
        return getattr(self._checker, name)

    def sent(self, node, data):
        self._checker.sent(node, data)
        claim = node.cluster.decode(data).claim
        if node.index == self._worker and not isinstance(claim, Finished):
            number = getattr(claim, "round", None)
            own = getattr(claim, "worker", None) == self._worker and hasattr(claim, "envelope")
            if own and number is not None and not hasattr(claim, "nonce"):
                self.rounds.append((node.life, number, isinstance(claim, Vote)))


def test_z18_a_worker_that_lost_its_disk_watches_and_votes_again_three_rounds_later():
    cluster, checker = make(7, 2)
    cluster.watcher = watched = SignedBy(checker, 3)
    cluster.nodes[3].plan_crash(Crash(3, 100_000, at=4 * SECOND, disk_lost=True))
    cluster.start()
    cluster.run(until=4 * SECOND + 1)
    head = max(node.decided for node in cluster.nodes)
    assert head >= 2
    assert cluster.run(until=120 * SECOND, done=lambda c: c.all_committed(head + 8))
    before = [number for life, number, _ in watched.rounds if life == 0]
    after = [number for life, number, _ in watched.rounds if life == 1]
    assert after
    assert min(after) > max(before)
    assert min(after) >= head + 3
    assert checker.violations == []


# -- slow and odd machines -------------------------------------------------------------------------


def test_clocks_of_different_speed_do_not_matter():
    cluster, checker = make(7, 2)
    for node in cluster.nodes:
        node.rate = (node.index - 3) * 30_000
    assert play(cluster, 4)
    assert checker.violations == []


def test_a_slow_worker_misses_its_roles_and_nothing_else():
    cluster, checker = make()
    cluster.nodes[1].slowness = 50
    assert play(cluster, 3)
    assert checker.violations == []
    assert all(checker.stepped.values())


class BitFlipped(ToyLearner):
    """A worker whose machine gets the lowest bit of the first weight wrong."""

    def combine(self, job, model, payloads):
        combined, radius = super().combine(job, model, payloads)
        return (None if combined is None else bytes([combined[0] ^ 1]) + combined[1:]), radius


class Forgetful(dict):
    """Has workers compute each model themselves, instead of sharing what the first one got."""

    def __setitem__(self, job, model):
        pass


def test_z19_a_worker_that_computes_another_model_certifies_nothing_and_raises_an_alarm():
    def learner(worker, life):
        return (BitFlipped if worker == 4 else ToyLearner)(0, worker, life)

    cluster, checker = make(7, 2, learners=learner)
    cluster.combined = Forgetful()
    certified = []
    checker.sent, sent = (
        lambda node, data: (certified.append(_cert(node, data)), sent(node, data)),
        checker.sent,
    )
    assert play(cluster, 3)
    assert 4 not in certified
    assert {0, 1, 2} <= set(certified)
    assert cluster.nodes[4].alarms
    assert not any(node.alarms for node in cluster.nodes if node.index != 4)
    assert checker.violations == []
    checker.finish()
    seen = {(violation.invariant, violation.what.split(":")[0]) for violation in checker.violations}
    assert seen == {("I4", "4 raises an alarm")}


def _cert(node, data):
    claim = node.cluster.decode(data).claim
    return node.index if isinstance(claim, Vote) and claim.step == 2 else None


# -- blobs ---------------------------------------------------------------------------------------


def test_a_blob_is_fetched_from_the_next_holder_if_the_first_has_nothing_or_lies():
    cluster, _ = make()
    play(cluster, 1)
    value = cluster.nodes[0].commits[1].value
    seeker = cluster.nodes[3]
    data = cluster.nodes[0].memory.get(value)
    del seeker.memory._blobs[value]
    del cluster.nodes[1].memory._blobs[value]
    cluster.nodes[2].memory._blobs[value] = (BlobKind.BLOCK, b"something else", 2)
    seeker.fetcher.want(Want(BlobKind.BLOCK, value, (1, 2, 0)))
    cluster.run(until=cluster.agenda.now + SECOND)
    assert seeker.memory.get(value) == data


def test_a_blob_that_nobody_answers_for_is_asked_for_again():
    cluster, _ = make()
    play(cluster, 1)
    value = cluster.nodes[0].commits[1].value
    seeker = cluster.nodes[3]
    del seeker.memory._blobs[value]
    now = cluster.agenda.now
    cluster.network.add_cut(Cut(mask([3]), mask([0, 1, 2]), end=now + SECOND // 2))
    seeker.fetcher.want(Want(BlobKind.BLOCK, value, (0,)))
    cluster.run(until=now + SECOND // 2)
    assert len(seeker.fetcher) >= 1
    cluster.run(until=now + 3 * SECOND, done=lambda _: seeker.memory.get(value) is not None)
    assert seeker.memory.get(value) is not None


# -- plans ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(30))
def test_a_plan_never_has_more_faulty_workers_than_the_network_stands(seed):
    for n, byzantine in ((4, 1), (7, 2), (31, 10)):
        plan = draw_plan(
            seed, n=n, byzantine=byzantine, run_type=RunType.LIVENESS, behaviours=("Z1", "Z4")
        )
        assert len(plan.faulty) <= byzantine
        assert all(crash.worker in plan.dead for crash in plan.crashes if crash.for_good)
        assert all(crash.worker in plan.dead for crash in plan.crashes if crash.disk_lost)


def test_plans_have_all_kinds_of_faults():
    plans = [
        draw_plan(seed, n=7, byzantine=2, run_type=RunType.SAFETY, behaviours=("Z1",))
        for seed in range(60)
    ]
    assert any(plan.weather.loss for plan in plans)
    assert any(plan.weather.copies for plan in plans)
    assert any(plan.weather.spikes for plan in plans)
    assert any(plan.completion for plan in plans)
    assert any(cut.only for plan in plans for cut in plan.cuts)
    assert {crash.point for plan in plans for crash in plan.crashes} == set(Point)
    assert any(crash.disk_lost for plan in plans for crash in plan.crashes)
    assert any(rate for plan in plans for rate in plan.rates)


def test_faults_are_read_by_name():
    assert read_faults("none", ["Z4"]) == ((), ())
    assert read_faults("loss, Z4", ["Z4"]) == ((FaultKind.LOSS, FaultKind.LIARS), ("Z4",))
    assert set(read_faults("all", [])[0]) == set(FaultKind)


# -- partitions and loss -----------------------------------------------------------------------


@pytest.mark.parametrize("group", [(0, 1), (0,), (0, 1, 2)])
def test_z15_a_side_without_a_quorum_stops_and_after_the_heal_all_go_on_together(group):
    cluster, checker = make(6, 1)
    for cut in (
        Cut(mask(group), mask(set(range(6)) - set(group))),
        Cut(mask(set(range(6)) - set(group)), mask(group)),
    ):
        cluster.network.add_cut(cut)
    cluster.start()
    cluster.run(until=20 * SECOND)
    decided = [cluster.nodes[worker].decided for worker in range(6)]
    quorum = cluster.genesis.params.quorum
    for side in (set(group), set(range(6)) - set(group)):
        if len(side) < quorum:
            assert {decided[worker] for worker in side} == {0}
        else:
            assert min(decided[worker] for worker in side) > 0
    cluster.network.heal()
    goal = max(decided) + 2
    assert cluster.run(
        until=cluster.agenda.now + 150 * SECOND, done=lambda c: c.all_committed(goal)
    )
    assert checker.violations == []


@pytest.mark.parametrize("run_type", RunType)
@pytest.mark.parametrize("seed", range(6))
def test_random_runs_break_nothing(seed, run_type):
    outcome = run_trial(Trial(4, Fraction(1, 4), rounds=2, run_type=run_type), seed)
    assert outcome.violations == ()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n", "byzantine", "mode", "seeds"),
    [
        (4, 1, Mode.ALL, 200),
        (7, 2, Mode.ALL, 60),
        (30, 6, Mode.ALL, 3),
        (52, 5, Mode.SHUFFLE, 3),
        (52, 5, Mode.SELF, 3),
    ],
)
def test_many_random_runs_break_nothing(n, byzantine, mode, seeds):
    trial = Trial(n, Fraction(byzantine, n), mode=mode)
    outcomes = [run_trial(trial, 1_000_000 + seed) for seed in range(seeds)]
    broken = {(o.seed, v.invariant, v.what) for o in outcomes for v in o.violations}
    assert broken == set()
    assert sum(outcome.rounds for outcome in outcomes) >= seeds


# -- a drawn committee -----------------------------------------------------------------------------


def shuffled(seed=0, n=60):
    keys = SimulatedKeys(seed, n)
    params = usual_params(n, Fraction(1, 10), Mode.SHUFFLE, proposers=20, voters=20)
    genesis = found(params, keys, seed)
    cluster = Cluster(genesis, keys, seed, timing=TIMING)
    checker = Checker(genesis)
    checker.attach(cluster, [])
    return cluster, checker


def committee_of(cluster, period):
    return set(cluster.nodes[0].player._round.draws.expected(Role.COMMITTEE, period))


def test_in_mode_shuffle_only_those_who_judge_check_or_lead_fetch_gradients(monkeypatch):
    cluster, checker = shuffled()
    asked, fetch = {}, SimulatedFetcher.want

    def want(fetcher, action):
        if fetcher._node.decided == 0:
            asked.setdefault(action.kind, set()).add(fetcher._node.index)
        fetch(fetcher, action)

    monkeypatch.setattr(SimulatedFetcher, "want", want)
    cluster.start()
    cluster.run(until=SECOND // 10)
    needing = {
        node.index
        for node in cluster.nodes
        if node.index in committee_of(cluster, 0)
        or node.player.holds(Role.VOTER)
        or node.player._round.periods.leads_now()
    }
    assert cluster.run(until=60 * SECOND, done=lambda c: c.all_committed(1))
    assert 20 < len(needing) < 55
    assert asked[BlobKind.PAYLOAD] <= needing
    assert asked[BlobKind.MODEL] >= set(range(60)) - needing
    assert checker.violations == []


def test_in_mode_shuffle_a_new_committee_checks_the_block_that_the_old_one_carried_on():
    """Nobody hears a CERT vote of the first period: the next committee must certify its block."""
    cluster, checker = shuffled()

    def tap(_source, _target, data):
        claim = cluster.decode(data).claim
        first = isinstance(claim, Vote) and (claim.round, claim.period) == (1, 0)
        return FOREVER if first and claim.step == VoteStep.CERT else 0

    cluster.network.tap = tap
    assert play(cluster, 1)
    assert checker.periods == {1: 1}
    assert read_header(cluster.nodes[0].disk.finished[0].header).original_period == 0
    assert committee_of(cluster, 1) - committee_of(cluster, 0)
    assert checker.violations == []


def test_in_mode_shuffle_a_new_committee_fetches_what_it_has_to_check():
    """Nobody hears a lead of the first period: those drawn for the second decide."""
    cluster, checker = shuffled()

    def tap(_source, _target, data):
        claim = cluster.decode(data).claim
        stopped = isinstance(claim, Lead) and claim.round == 1 and claim.period == 0
        return FOREVER if stopped else 0

    cluster.network.tap = tap
    assert play(cluster, 2)
    new = committee_of(cluster, 1) - committee_of(cluster, 0)
    assert new
    assert checker.periods == {1: 1, 2: 0}
    assert checker.stepped == {1: True, 2: True}
    assert checker.violations == []
