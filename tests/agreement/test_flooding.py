"""What outsiders can make a worker hold: every table has a cap, whatever is sent and for how long.

| table | filled by | cap |
|---|---|---|
| updates, ballots (held, waiting), leads, votes | members, signed | two versions in a slot |
| CERT votes of periods that are over | members, signed | 32 periods |
| evidence | anybody, proven | one a worker and kind |
| messages of the coming round | members, signed | eight a worker |
| certificates that come before their turn | anybody | 50 rounds, each plausible |
| blocks, payloads, jobs, results | leaders | two periods, and what a quorum rests on |
| models | the same | 64 |
| lottery outputs | anybody, proven | 16 a worker |
| answers about the head | members, signed | one a worker |
| pace of questions | peers | 10,000 peers |
| pace of help that nobody asked for | members, signed | one count a worker |
| own votes and the headers behind them | the length of a round | 64 periods, 16 headers |
"""

from dataclasses import replace

import pytest
from tests.agreement.world import World

from holdout.agreement import aggregate, safety
from holdout.agreement import events as ev
from holdout.agreement.blocks import assemble, read_block
from holdout.agreement.chain_sync import BURST, Pace
from holdout.agreement.codec import BOTTOM
from holdout.agreement.draws import OUTPUTS_PER_WORKER
from holdout.agreement.messages import (
    WORKERS_MAX,
    Bundle,
    Envelope,
    Evidence,
    Finished,
    GetBlocks,
    Kind,
    VoteSignature,
    VoteStep,
    lead_part,
    vote_part,
)
from holdout.agreement.params import Limits
from holdout.agreement.player import MODELS_MAX
from holdout.agreement.safety import HELD_KEPT, OWN_PERIODS_KEPT, initial, read_safety
from holdout.agreement.sortition import next_seed
from holdout.agreement.votes import PERIODS_KEPT
from holdout.agreement.wire import decode_envelope

LIARS = (5, 6)
ALL_STEPS = (VoteStep.SOFT, VoteStep.CERT, VoteStep.LATE, VoteStep.REDO)


def learnt(n=7, liars=LIARS):
    world = World(n, liars)
    world.settle()
    world.learn()
    return world


def faults_of(actions):
    return [action.fault for action in actions if isinstance(action, ev.Reject)]


def block_of(world, liar, period, skipped):
    """A valid block that nobody else would make: without the ballots of one voter."""
    player = world.players[0]
    tip, messages = player._round.tip, player._round.learning_messages
    draft = assemble(
        tip,
        world.genesis,
        leader=liar,
        original_period=period,
        seed=next_seed(tip.round, tip.seed_in, liar, None),
        seed_proof=b"",
        updates=messages.updates(),
        ballots={voter: b for voter, b in messages.ballots().items() if voter != skipped},
        evidence=(),
    )
    valid = dict.fromkeys(draft.needs, True)
    job = draft.job(valid)
    payloads = [world.blobs[p] for p in job.payloads]
    model, radius = aggregate.combine(
        world.blobs[job.model], payloads, radius=job.radius, rate=job.rate
    )
    block = draft.block(
        valid, ev.Combined(job, aggregate.model_digest(world.params.shapes, model), radius)
    )
    world.blobs[block.header.digest] = block.encode()
    return block.header.digest


def bundle(world, period, step, value):
    """Everybody's votes, honest or not: what ends a period."""
    for worker in range(world.n):
        world.forge_vote(worker, period, step, value)
    return world.forge_bundle(period, step, value)


def lead_and_vote(world, period):
    """Two liars lead with blocks of their own, and vote for two things in every slot."""
    for place, liar in enumerate(LIARS):
        value = block_of(world, liar, period, skipped=(period + place) % 5)
        world.hand(liar, world.forge_lead(liar, period, value), [0])
        for step in ALL_STEPS:
            for other in (value, bytes([period % 250 + 1, step]) * 16):
                world.hand(liar, world.forge_vote(liar, period, step, other), [0])


def test_a_round_of_many_periods_fills_nothing():
    """A fresh valid block of a liar's in every period, votes for everything, then DOWN again."""
    world = learnt()
    player = world.players[0]
    sizes, checks = [], []
    for period in range(1, 2 * PERIODS_KEPT + 20):
        world.hand(5, bundle(world, period - 1, VoteStep.DOWN, BOTTOM), [0])
        assert player.period == period
        lead_and_vote(world, period)
        world.fire(0, ev.TimerKind.FILTER)
        world.fire(0, ev.TimerKind.DEADLINE)
        sizes.append(player.held())
        checks.append(len(player._round.validation._checks))
    assert max(checks) <= 4 + 4 + HELD_KEPT  # Two periods' leads, and what own votes rest on.
    assert sizes[-1] <= max(sizes[: PERIODS_KEPT + 10])
    assert len(player._models) <= MODELS_MAX
    stored = read_safety(world.disks[0][0], world.genesis.chain)
    periods = {period for kind, period, _ in stored.mine if kind in {Kind.LEAD, Kind.VOTE}}
    assert min(periods) >= player.period - OWN_PERIODS_KEPT
    assert len(stored.held) <= HELD_KEPT


def test_the_store_of_a_very_long_round_can_still_be_read(monkeypatch):
    monkeypatch.setattr(safety, "OWN_MAX", 4 * OWN_PERIODS_KEPT)
    world = learnt(4, liars=())
    for period in range(1, 3 * OWN_PERIODS_KEPT):
        world.hand(3, bundle(world, period - 1, VoteStep.DOWN, BOTTOM), [0])
        world.fire(0, ev.TimerKind.DEADLINE)
        world.log.clear()
        world.flying.clear()
        world.votes.clear()
    last = world.players[0].period
    assert last == 3 * OWN_PERIODS_KEPT - 1
    world.crash(0)
    assert not world.players[0].observer
    assert world.players[0].period == last


def test_a_block_that_was_forgotten_still_decides_if_it_is_certified_after_all():
    world = learnt()
    player = world.players[0]
    world.hand(5, bundle(world, 0, VoteStep.DOWN, BOTTOM), [0])
    value = block_of(world, 5, 1, skipped=0)
    world.hand(5, world.forge_lead(5, 1, value), [0])
    assert player._round.validation.header(value) is not None
    for period in range(1, 5):
        world.hand(5, bundle(world, period, VoteStep.DOWN, BOTTOM), [0])
    assert player._round.validation.header(value) is None
    world.hand(5, bundle(world, 1, VoteStep.CERT, value), [0])
    assert world.commits[1][0] == value


def test_what_a_quorum_rests_on_is_kept_however_long_it_is_carried_on():
    world = learnt()
    player = world.players[0]
    world.hand(5, bundle(world, 0, VoteStep.DOWN, BOTTOM), [0])
    value = block_of(world, 5, 1, skipped=0)
    world.hand(5, world.forge_lead(5, 1, value), [0])
    world.hand(5, bundle(world, 1, VoteStep.SOFT, value), [0])
    world.hand(5, bundle(world, 1, VoteStep.LATE, value), [0])
    world.history[0].clear()
    for period in range(2, 8):
        assert player._round.periods.carried() == value
        assert player._round.validation.header(value) is not None
        world.hand(5, bundle(world, period, VoteStep.REDO, value), [0])
    asked = [action for _, _, actions in world.history[0] for action in actions]
    assert not any(isinstance(action, ev.Want) for action in asked)


def test_repeated_leads_of_anything_are_not_fetched():
    """Only the value that a quorum carried on can be led again: nobody asks for others."""
    world = learnt()
    world.hand(5, bundle(world, 0, VoteStep.DOWN, BOTTOM), [0])
    for liar in LIARS:
        value = bytes([liar]) * 32
        proof = decode_envelope(world.forge_lead(liar, 1, value)).proof
        part = lead_part(world.genesis.chain, 1, 1, liar, 0, value)
        again = Envelope(Kind.LEAD, part, world.keys.signer(liar).sign(part), proof)
        actions = world.players[0].handle(ev.Received(liar, again.encode()), 0)
        assert not any(isinstance(action, ev.Want | ev.Reject) for action in actions)


@pytest.mark.parametrize("good", [True, False])
def test_evidence_about_any_period_fills_no_table(good):
    world = learnt(4, liars=(3,))
    player = world.players[0]
    for period in range(200):
        one, two = (
            decode_envelope(world.forge_lead(3, 100 + period, bytes([k]) * 32)) for k in (1, 2)
        )
        if not good:
            two = replace(two, signature=bytes(64))
        player.handle(ev.Received(3, Evidence.of(one, two).encode()), 0)
    assert player._round.draws.size() <= OUTPUTS_PER_WORKER * 4
    assert len(player._round.learning_messages.evidence) <= 1


def test_of_the_coming_round_eight_messages_of_each_worker_are_kept():
    world = learnt()
    player = world.players[0]
    before = player.held()
    faults = []
    for liar in LIARS:
        for count in range(60):
            step, value = ALL_STEPS[count % 4], bytes([count + 1]) * 32
            part = vote_part(world.genesis.chain, 2, 0, step, liar, value)
            envelope = Envelope(Kind.VOTE, part, world.keys.signer(liar).sign(part))
            faults += faults_of(player.handle(ev.Received(liar, envelope.encode()), 0))
    kept = Limits().early_messages * len(LIARS)
    assert player.held() - before == kept
    assert set(faults) >= {ev.MessageFault.SURPLUS}
    assert player._early_messages.size() == kept


def finished_of(world, number, *, chain=None, workers=range(5)):
    """A certificate for a later round that nobody has signed."""
    chain = chain or world.genesis.chain
    block = read_block(world.blobs[next(iter(world.lead_values.values()))])
    header = replace(block.header, round=number, chain=chain)
    marks = tuple(VoteSignature(worker, bytes(64), b"") for worker in workers)
    certificate = Bundle(chain, number, 0, VoteStep.CERT, header.digest, marks)
    return Finished(header.encode(), certificate).encode()


def test_certificates_before_their_turn_are_kept_for_fifty_rounds_and_only_plausible_ones():
    world = learnt()
    player = world.players[0]
    for number in range(2, 500):
        player.handle(ev.Received(5, finished_of(world, number)), 0)
    assert player._chain_sync.size() <= Limits().blocks_per_answer
    held = player.held()
    for options, fault in (
        ({"chain": b"c" * 32}, ev.MessageFault.WRONG_CHAIN),
        ({"workers": range(3)}, ev.MessageFault.NO_QUORUM),
        ({"workers": range(4, 40)}, ev.MessageFault.UNKNOWN_WORKER),
    ):
        found = faults_of(player.handle(ev.Received(5, finished_of(world, 9, **options)), 0))
        assert found == [fault]
    assert player.held() == held


def test_peers_without_number_are_not_remembered_for_ever():
    pace = Pace(interval=100, burst=1)
    assert sum(pace.allows(peer, now=0) for peer in range(2 * WORKERS_MAX)) == WORKERS_MAX
    assert pace.allows(3 * WORKERS_MAX, now=100)
    assert len(pace._spent) == 1


def decided():
    """The first round is over."""
    world = World(4, (), early=True)
    world.settle()
    world.flow(until_round=2)
    return world


def stuck_vote(world, *, forged):
    """A recovery vote of that round in worker 1's name, brought by worker 3."""
    part = vote_part(world.genesis.chain, 1, 0, VoteStep.DOWN, 1, BOTTOM)
    signature = bytes(64) if forged else world.keys.signer(1).sign(part)
    return ev.Received(3, Envelope(Kind.VOTE, part, signature).encode())


@pytest.mark.parametrize("forged", [True, False])
def test_old_votes_that_a_liar_sends_in_a_member_s_name_do_not_silence_its_questions(forged):
    world = decided()
    player = world.players[0]
    for _ in range(3 * BURST):
        player.handle(stuck_vote(world, forged=forged), world.now)
    question = GetBlocks(world.genesis.chain, 1, 1).encode()
    assert player.handle(ev.Received(1, question), world.now) == [ev.SendBlocks(1, 1, 1)]


def test_forged_votes_do_not_use_up_the_help_for_who_is_stuck():
    world = decided()
    player = world.players[0]
    for _ in range(3 * BURST):
        player.handle(stuck_vote(world, forged=True), world.now)
    actions = player.handle(stuck_vote(world, forged=False), world.now)
    assert ev.SendBlocks(1, 1, 1) in actions


def test_an_old_vote_that_is_repeated_is_answered_a_few_times_only():
    world = decided()
    player = world.players[0]
    vote = stuck_vote(world, forged=False)
    answers = [player.handle(vote, world.now) for _ in range(3 * BURST)]
    assert sum(ev.SendBlocks(1, 1, 1) in actions for actions in answers) == BURST


def test_models_that_blocks_lead_to_are_forgotten_but_never_the_newest_decided_one():
    world = learnt(4, liars=())
    player = world.players[0]
    job = ev.Combine(player.model, (), 0.0, 0.1)
    for count in range(3 * MODELS_MAX):
        player.handle(ev.Combined(job, bytes([count]) * 32, 1.0), 0)
    assert len(player._models) == MODELS_MAX
    assert player.model in player._models


def test_of_the_blocks_behind_own_votes_the_newest_stay():
    headers = {bytes([count]) * 32: b"header" for count in range(3 * HELD_KEPT)}
    state = safety.Safety(round=1, held=dict(headers))
    state.forget_before(100)
    assert list(state.held) == list(headers)[-HELD_KEPT:]


def test_a_worker_s_first_votes_survive_the_end_of_old_ones():
    """Learning messages belong to the round, not to a period."""
    world = learnt(4, liars=())
    for period in range(1, OWN_PERIODS_KEPT + 10):
        world.hand(3, bundle(world, period - 1, VoteStep.DOWN, BOTTOM), [0])
    world.fire(0, ev.TimerKind.DEADLINE)
    stored = read_safety(world.disks[0][0], world.genesis.chain)
    assert {Kind.UPDATE, Kind.BALLOT} <= {kind for kind, _, _ in stored.mine}
    assert read_safety(initial(world.genesis), world.genesis.chain).mine == {}
