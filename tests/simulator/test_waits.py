"""What liars that are late on purpose can cost: the waits of a node at its defaults."""

from dataclasses import replace
from fractions import Fraction
from functools import lru_cache

import pytest
from tests.simulator.scripted import corrupt_with

from holdout.agreement.keys import SimulatedKeys
from holdout.agreement.messages import Kind
from holdout.agreement.params import MILLISECOND, Timing
from holdout.simulator.adversaries import Silent, Withholder
from holdout.simulator.adversaries_late import JustInTime, LaterEachRound
from holdout.simulator.checkers import Checker
from holdout.simulator.cluster import Cluster, found, usual_params
from holdout.simulator.faults import Crash
from holdout.simulator.network import SECOND

ROUNDS = 50
NODE = Timing(
    propose=60 * SECOND, vote=60 * SECOND, propose_min=100 * MILLISECOND, vote_min=100 * MILLISECOND
)
"""What a node waits at its defaults."""
KINDS = (Kind.UPDATE, Kind.BALLOT, Kind.LEAD, Kind.VOTE)
COST_MAX = 3.0


class Run:
    """This many rounds of n workers at a node's defaults, B of them being such liars."""

    def __init__(self, n, make=None, *, rounds=ROUNDS, crashes=(), secret=False):
        byzantine = (n - 1) // 3
        keys = SimulatedKeys(0, n)
        params = usual_params(n, Fraction(byzantine, n))
        if secret:
            params = replace(params, proposers=n - 1, voters=n - 1)
        genesis = found(params, keys, 0)
        self.cluster = Cluster(genesis, keys, 0, timing=NODE)
        self.liars = tuple(range(n - byzantine, n)) if make else ()
        self.checker = Checker(genesis)
        self.checker.attach(self.cluster, self.liars)
        if make is not None:
            corrupt_with(self.cluster, self.liars, make)
        for crash in crashes:
            self.cluster.nodes[crash.worker].plan_crash(crash)
        self.cluster.start()
        watched = [w for w in range(n) if w not in {*self.liars, *(c.worker for c in crashes)}]
        assert self.cluster.run(
            until=rounds * 150 * SECOND, done=lambda c: c.all_committed(rounds, watched)
        )
        self.checker.finish()
        assert not self.checker.violations
        self.seconds = self.cluster.agenda.now / SECOND

    def slow(self, worker=0):
        """Whom an honest worker names slow."""
        return self.cluster.nodes[worker].player.waits.slow()


@lru_cache
def honest(n, rounds=ROUNDS, *, secret=False):
    return Run(n, rounds=rounds, secret=secret).seconds


def late(base, *kinds, margin=None):
    """This behaviour, for these kinds of messages."""
    made = {"kinds": kinds or KINDS, **({} if margin is None else {"margin": margin})}
    return type(base.__name__, (base,), made)


@pytest.mark.parametrize("base", [LaterEachRound, JustInTime])
@pytest.mark.parametrize(
    "kinds", [KINDS[:1], KINDS[1:2], KINDS[3:], KINDS], ids=lambda kinds: kinds[0].name.lower()
)
def test_one_of_four_that_is_late_costs_at_most_three_times_the_honest_time(base, kinds):
    assert Run(4, late(base, *kinds)).seconds <= COST_MAX * honest(4)


def test_two_of_seven_that_are_always_just_in_time_cost_at_most_three_times_and_are_named():
    run = Run(7, late(JustInTime), rounds=25)
    assert run.seconds <= COST_MAX * honest(7, 25)
    assert run.slow() == run.liars


def test_ballots_that_come_between_the_ends_of_two_waits_cost_at_most_three_times():
    run = Run(4, late(JustInTime, Kind.BALLOT, margin=-60 * MILLISECOND), rounds=25)
    assert run.seconds <= COST_MAX * honest(4, 25)
    assert set(run.checker.periods.values()) == {0}


@pytest.mark.parametrize("make", [Silent, Withholder])
def test_silent_liars_are_waited_for_a_few_times_and_named(make):
    run = Run(4, make, rounds=25)
    assert run.seconds <= 2 * honest(4, 25)


def test_a_secret_draw_gives_liars_no_hold_on_the_waits_either():
    kinds = (Kind.UPDATE, Kind.BALLOT)
    spent = Run(7, late(LaterEachRound, *kinds), rounds=25, secret=True).seconds
    assert spent <= COST_MAX * honest(7, 25, secret=True)


def test_rounds_go_on_while_one_of_four_is_restarted_every_six_seconds():
    crashes = [Crash(3, SECOND, at=6 * SECOND * k) for k in range(1, 10)]
    assert Run(4, rounds=25, crashes=crashes).seconds <= 2 * honest(4, 25)


def test_a_network_with_a_dead_member_from_its_start_waits_for_it_once():
    assert Run(4, rounds=10, crashes=[Crash(3, 0, at=0, for_good=True)]).seconds <= 2 * honest(
        4, 10
    )


def test_an_honest_network_names_nobody_slow():
    run = Run(7, rounds=10)
    assert [run.slow(worker) for worker in range(7)] == [()] * 7
    assert all(
        waits.missed == 0 and None not in (waits.gradient, waits.ballot, waits.vote)
        for waits in run.cluster.nodes[0].player.waits.members().values()
    )
