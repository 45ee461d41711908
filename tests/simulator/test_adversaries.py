"""What each behaviour of liars may and may not achieve (the table in `docs/simulation.md`)."""

from collections import Counter
from dataclasses import replace
from fractions import Fraction
from functools import partial

import pytest
from tests.simulator.scripted import corrupt_with, forger

from holdout.agreement.blocks import read_block
from holdout.agreement.events import MessageFault as Dropped
from holdout.agreement.keys import SimulatedKeys
from holdout.agreement.messages import Kind
from holdout.agreement.params import TallyRule
from holdout.agreement.sortition import (
    Role,
    alpha,
    drawn,
    genesis_seeds,
    next_seed,
    priority,
    seed_alpha,
)
from holdout.simulator.adversaries import Flooder
from holdout.simulator.adversaries_agreement import (
    BEHAVIOURS,
    BadBlock,
    Completion,
    HiddenBlock,
    corrupt,
)
from holdout.simulator.checkers import Checker, weigh
from holdout.simulator.cluster import Cluster, found, usual_params
from holdout.simulator.faults import SECOND
from holdout.simulator.toy_learners import ToyLearner
from holdout.simulator.trial import TIMING

LIARS = (1, 4)


class Scene:
    """Seven workers, two of them liars, on a good network."""

    def __init__(
        self,
        *names,
        make=None,
        seed=0,
        n=7,
        liars=LIARS,
        rounds=4,
        tally=TallyRule.COMPLETION,
        learner=ToyLearner,
    ):
        keys = SimulatedKeys(seed, n)
        params = replace(usual_params(n, Fraction(len(liars), n)), tally=tally)
        genesis = found(params, keys, seed)
        learners = partial(learner, seed)
        self.cluster = Cluster(genesis, keys, seed, timing=TIMING, learners=learners)
        self.checker = Checker(genesis)
        self.checker.attach(self.cluster, liars)
        self.blocks = {}
        committed = self.checker.committed

        def keep(node, commit):
            committed(node, commit)
            data = self.checker._blob(commit.value)
            if data is not None:
                self.blocks.setdefault(commit.round, read_block(data))

        self.checker.committed = keep
        if make is None:
            corrupt(self.cluster, [(liar, names) for liar in liars])
        else:
            corrupt_with(self.cluster, liars, make)
        self.liars = liars
        self.rounds = rounds

    def play(self, seconds=200):
        self.cluster.start()
        done = self.cluster.run(until=seconds * SECOND, done=lambda c: c.all_committed(self.rounds))
        self.checker.finish()
        assert self.checker.violations == []
        assert done
        return self

    def rejected(self):
        total = Counter()
        for node in self.cluster.honest():
            total.update(node.rejected)
        return total

    def caught(self):
        return {
            (report.evidence.first.kind, report.worker)
            for node in self.cluster.honest()
            for report in node.reports
        }

    def selected(self):
        return {proposer for block in self.blocks.values() for proposer, _ in block.selection}


@pytest.mark.parametrize("name", BEHAVIOURS)
def test_no_behaviour_breaks_an_invariant_or_stops_the_rounds(name):
    scene = Scene(name).play()
    periods = scene.checker.periods.values()
    assert sum(periods) / len(periods) <= 1.5


@pytest.mark.parametrize("name", [name for name in BEHAVIOURS if name != "Z12"])
def test_l2_with_honest_majorities_and_a_good_network_each_round_is_a_step(name):
    assert all(Scene(name).play().checker.stepped.values())


def test_z1_silence_costs_no_period():
    assert set(Scene("Z1").play().checker.periods.values()) == {0}


def test_z2_two_versions_of_an_update_are_found_out_and_never_selected_together():
    scene = Scene("Z2").play()
    assert {(Kind.UPDATE, liar) for liar in LIARS} <= scene.caught()
    assert not set(LIARS) & scene.selected()


def test_z3_two_ballots_of_one_voter_are_found_out_and_at_most_one_counts():
    scene = Scene("Z3").play()
    assert {(Kind.BALLOT, liar) for liar in LIARS} <= scene.caught()
    for block in scene.blocks.values():
        voters = [ballot.worker for ballot in block.ballots]
        assert len(voters) == len(set(voters))


def test_z4_double_votes_are_found_out():
    assert any(kind is Kind.VOTE for kind, _ in Scene("Z4").play().caught())


def test_z5_wrong_credentials_are_dropped_with_a_reason():
    rejected = Scene("Z5").play().rejected()
    for fault in (Dropped.WRONG_SIGNATURE, Dropped.NOT_DRAWN, Dropped.UNKNOWN_WORKER):
        assert rejected[fault] > 0


def test_z7_replays_and_far_claims_are_dropped_and_stop_nobody():
    scene = Scene("Z7", rounds=6).play()
    rejected = scene.rejected()
    assert rejected[Dropped.WRONG_CHAIN] > 0
    assert rejected[Dropped.STALE] > 0
    assert not any(node.halted for node in scene.cluster.nodes)
    # No storm: about as many messages as without replays.
    plain = Scene("poison", rounds=6).play()
    assert scene.cluster.network.messages < 4 * plain.cluster.network.messages


def test_z8_payloads_that_are_no_gradients_are_never_selected():
    for seed in range(3):
        scene = Scene("Z8", seed=seed).play()
        for block in scene.blocks.values():
            for update in block.updates:
                if update.worker in dict(block.selection):
                    payload = scene.cluster.archived(update.payload)
                    assert payload is None or scene.cluster.payload_valid(update.payload, payload)


def test_z9_withheld_payloads_stop_nobody():
    for seed in range(3):
        assert set(Scene("Z9", seed=seed).play().checker.periods.values()) == {0}


def test_z10_late_messages_never_block_an_honest_leader():
    for seed in range(3):
        assert set(Scene("Z10", seed=seed).play().checker.periods.values()) == {0}


def test_z11_a_hidden_block_costs_at_most_its_period_and_the_seed_falls_back():
    for kind in range(3):

        def make(node, liars, kind=kind):
            liar = HiddenBlock(node, liars)
            liar._kind = kind
            return liar

        scene = Scene(make=make, rounds=6).play()
        for number, block in scene.blocks.items():
            # (Whether the seed is the right one is invariant I8.)
            assert bool(block.header.original_period) <= bool(scene.checker.periods[number])


@pytest.mark.parametrize("kind", BadBlock.kinds)
def test_z12_a_liars_block_is_never_certified_in_the_first_periods(kind):
    scene = Scene(make=forger(kind), rounds=8).play()
    everybody = {ballot.worker for b in scene.blocks.values() for ballot in b.ballots}
    assert len(everybody) == 7
    for number, block in scene.blocks.items():
        assert scene.checker.periods[number] == 0
        if block.header.leader in LIARS:
            # Then it was what an honest leader would have made.
            assert len(block.ballots) == 7


def test_z13_a_leader_with_two_blocks_is_found_out():
    scene = Scene("Z13", rounds=6).play()
    assert any(kind is Kind.LEAD for kind, _ in scene.caught())


def test_z20_a_flood_is_dropped_and_memory_stays_within_its_caps():
    def make(node, liars):
        liar = Flooder(node, liars)
        liar.budget = 20_000
        return liar

    flooded, quiet = Scene(make=make, rounds=3).play(), Scene("Z1", rounds=3).play()
    assert flooded.rejected().total() > 1_000
    for node, other in zip(flooded.cluster.honest(), quiet.cluster.honest(), strict=True):
        assert weigh(node.player) < 5 * weigh(other.player) + 500
        assert len(node.fetcher) <= 20


def test_z21_a_copied_gradient_counts_once():
    scene = Scene("Z21", rounds=6).play()
    copies = 0
    for block in scene.blocks.values():
        payloads = {update.worker: update.payload for update in block.updates}
        copies += len(payloads) - len(set(payloads.values()))
        chosen = [payloads[proposer] for proposer, _ in block.selection]
        assert len(chosen) == len(set(chosen))
    assert copies > 0


class Disagreeing(ToyLearner):
    """Sees the bottom of the bowl through so much noise that voters hardly agree."""

    noise = 30.0


def test_z22_short_ballots_do_not_stop_steps_and_with_the_literal_tally_they_do():
    """Where honest voters disagree, ballots that name little starve every update."""

    def steps(tally):
        liars = (0, 3, 6, 9)
        scene = Scene("Z22", n=13, liars=liars, rounds=6, tally=tally, learner=Disagreeing)
        return sum(scene.play(600).checker.stepped.values())

    assert steps(TallyRule.COMPLETION) == 6
    assert steps(TallyRule.PAPER) < 6


def test_completing_quorums_at_one_victim_breaks_nothing():
    for seed in range(4):
        scene = Scene("Z1", n=4, liars=(2,), seed=seed, rounds=3)
        scene.cluster.network.tap = Completion(scene.cluster, (2,))
        scene.play()


def test_z14_grinding_the_seed_gains_no_more_than_the_bound():
    """The coalition withholds the winning block whenever the next leader's seed suits it better.

    It looks two rounds ahead (that is what a seed decides) at how many of its members are drawn as
    proposers, with every choice that it has. The bound is f / (1 - 2f).
    """
    n, liars, tau, rounds = 20, 5, 6, 1500
    keys = SimulatedKeys(7, n)
    chain = found(usual_params(n, Fraction(1, 4)), keys, 7).chain
    before, zero = genesis_seeds(chain)
    seeds = {-1: before, 0: zero}

    def outputs(seed, number, role):
        question = alpha(chain, seed, number, role)
        return [keys.signer(worker).prove(question)[1] for worker in range(n)]

    def members(seed, number):
        outs = outputs(seed, number, Role.PROPOSER)
        return [worker for worker in range(n) if drawn(outs[worker], worker, tau, n)]

    share, chosen = Counter(), Counter()
    for number in range(1, rounds + 1):
        seed_in = seeds[number - 2]
        for worker in members(seed_in, number):
            share[worker < liars] += 1
        leads = outputs(seed_in, number, Role.LEADER)
        order = sorted(range(n), key=lambda worker: priority(leads[worker], worker))
        choices = []
        for leader in order:
            out = keys.signer(leader).prove(seed_alpha(chain, number, seed_in))[1]
            choices.append(next_seed(number, seed_in, leader, out))
            if leader >= liars:
                break

        def gain(seed, number=number):
            drawn_next = members(seed, number + 2)
            return sum(worker < liars for worker in drawn_next) - len(drawn_next) * liars / n

        best = max(range(len(choices)), key=lambda place: gain(choices[place]))
        chosen[best > 0] += 1
        seeds[number] = choices[best]
    f = liars / n
    measured = share[True] / sum(share.values())
    assert chosen[True] > rounds * 0.05  # The attack was really tried.
    assert f < measured < f / (1 - 2 * f)
