"""The state machine from outside: what it never does, whatever it is fed."""

import pickle
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.agreement.world import World

from holdout.agreement import events as ev
from holdout.agreement.codec import BOTTOM
from holdout.agreement.draws import slot
from holdout.agreement.messages import (
    BallotMessage,
    GetBlocks,
    GetUpdates,
    Lead,
    Update,
    Vote,
    VoteStep,
)
from holdout.agreement.safety import NEVER, initial, read_safety
from holdout.agreement.waits import PATIENCE
from holdout.agreement.wire import decode
from holdout.seeds import stream


def started(n=4, liars=()):
    world = World(n, liars, early=True)
    world.settle()
    return world


def test_healthy_workers_agree_round_after_round_without_any_timer():
    world = started()
    world.flow(until_round=6)
    for number in range(1, 6):
        assert len(set(world.commits[number].values())) == 1


def test_the_same_events_give_the_same_actions():
    world = started()
    world.flow(until_round=3)
    again = world.player(0, initial(world.genesis), [])
    for event, now, actions in world.history[0]:
        assert again.handle(event, now) == actions


def test_a_player_goes_on_the_same_after_a_pickle_round_trip():
    world = started()
    world.flow(until_round=3)
    history = world.history[0]
    half = len(history) // 2
    player = world.player(0, initial(world.genesis), [])
    for event, now, _ in history[:half]:
        player.handle(event, now)
    copy = pickle.loads(pickle.dumps(player))
    for event, now, actions in history[half:]:
        assert copy.handle(event, now) == actions


@given(data=st.binary(max_size=300))
@settings(max_examples=300)
def test_any_bytes_are_a_counted_rejection(data):
    actions = TALKED.players[0].handle(ev.Received(1, data), TALKED.now)
    assert [type(action) for action in actions] == [ev.Reject]


def _talked() -> World:
    world = World(4, (), early=True)
    world.settle()
    world.flow(until_round=2)
    return world


TALKED = _talked()
FRESH = pickle.dumps(TALKED.players[0])
SAID = [
    event.data
    for history in TALKED.history.values()
    for event, _, _ in history
    if isinstance(event, ev.Received)
]


@given(st.data())
@settings(max_examples=300)
def test_a_damaged_message_never_raises_and_is_never_counted(draw):
    data = bytearray(draw.draw(st.sampled_from(SAID)))
    place = draw.draw(st.integers(0, len(data) - 1))
    data[place] ^= 1 << draw.draw(st.integers(0, 7))
    player = pickle.loads(FRESH)
    before = player.held()
    for action in player.handle(ev.Received(1, bytes(data)), TALKED.now):
        # A question with another number in it is still a question, and gets an answer at most.
        assert isinstance(action, ev.Reject | ev.Send | ev.SendBlocks), action
    assert player.held() == before


@given(st.lists(st.integers(0, 10_000), min_size=1, max_size=60), st.integers(0, 3))
@settings(max_examples=150)
def test_whatever_the_schedule_nobody_contradicts_itself(choices, seed):
    """Random deliveries, losses, deadlines, crashes and lies; local invariants after each."""
    world = World(4, (3,), seed=seed)
    world.settle()
    world.learn()
    signed: dict[tuple[object, ...], bytes] = {}
    progress = dict.fromkeys(world.players, (0, 0, 0))
    for choice in choices:
        action, rest = choice % 8, choice // 8
        worker = rest % 3
        match action:
            case 0 | 1 | 2 if world.flying:
                item = world.flying.pop(rest % len(world.flying))
                if item[1] in world.players:
                    world.feed(item[1], ev.Received(item[0], item[2]))
            case 3 if world.flying:
                world.flying.pop(rest % len(world.flying))
            case 4:
                kinds = (ev.TimerKind.FILTER, ev.TimerKind.DEADLINE, ev.TimerKind.RETRY)
                world.fire(worker, kinds[rest % 3])
            case 5:
                world.crash(worker)
                progress[worker] = (0, 0, 0)
            case _:
                _lie(world, rest, worker)
        world.settle()
        for who, player in world.players.items():
            now = (player.round, player.period, player.phase)
            assert now >= progress[who]
            progress[who] = now
            _check_own(world, who, signed)
    for values in world.commits.values():
        assert len(set(values.values())) == 1


def _lie(world: World, number: int, victim: int) -> None:
    values = [value for value in world.names if value != BOTTOM]
    step = (VoteStep.SOFT, VoteStep.CERT, VoteStep.LATE, VoteStep.REDO, VoteStep.DOWN)[number % 5]
    value = BOTTOM if step is VoteStep.DOWN else values[number % len(values)]
    if world.players[victim].round == 1:
        data = world.forge_vote(3, world.players[victim].period, step, value)
        world.hand(3, data, [victim])


def _check_own(world: World, who: int, signed: dict[tuple[object, ...], bytes]) -> None:
    """Durable before sent, and one content per slot, across restarts."""
    for _, _, actions in world.history[who]:
        durable = b""
        for action in actions:
            if isinstance(action, ev.Persist):
                durable = action.safety
            elif isinstance(action, ev.Broadcast):
                message = decode(action.data).claim
                if (
                    isinstance(message, Update | BallotMessage | Lead | Vote)
                    and message.worker == who
                ):
                    key = slot(message)
                    assert signed.setdefault(key, message.envelope.signed) == (
                        message.envelope.signed
                    )
                    stored = read_safety(durable or world.disks[who][0], world.genesis.chain)
                    if durable:
                        assert action.data in stored.mine.values()
    world.history[who].clear()


def test_flooding_does_not_fill_the_memory():
    world = started(n=7, liars=(5, 6))
    world.settle()
    player, random = world.players[0], stream(0, "flood")
    faults: Counter[str] = Counter()
    for count in range(4_000):
        liar, value = 5 + count % 2, random.generator_seed().to_bytes(8, "big") * 4
        kind = count % 4
        if kind == 0:
            data = world.forge_vote(liar, random.below(1_000), 3 * random.below(60) + 3, value)
        elif kind == 1:
            data = world.forge_vote(liar, 0, VoteStep.SOFT, value)
        elif kind == 2:
            data = world.forge_update(liar, float(count))
        else:
            data = world.forge_lead(liar, random.below(3), value)
        for action in player.handle(ev.Received(liar, data), 0):
            if isinstance(action, ev.Reject):
                faults[action.fault] += 1
    limits = (
        2 * 2 * (3 + 5 + 5)
    )  # Two liars, two versions: updates and leads, votes of two periods.
    assert player.held() < limits + 20
    assert {"too-early", "surplus"} <= set(faults)


def test_a_question_is_answered_once_however_often_it_names_something():
    world = started()
    player = world.players[0]
    updates = [u.update_id for u in player._round.learning_messages.updates().values()]
    assert updates
    question = GetUpdates(world.genesis.chain, 1, tuple(updates[:1] * 500))
    answers = player.handle(ev.Received(1, question.encode()), world.now)
    assert [type(action) for action in answers] == [ev.Send]


@pytest.mark.parametrize(("first", "last"), [(0, 3), (5, 4), (2**64 - 1, 0)])
def test_a_range_of_rounds_that_is_none_is_a_counted_rejection(first, last):
    world = started()
    question = GetBlocks(world.genesis.chain, first, last)
    actions = world.players[0].handle(ev.Received(1, question.encode()), world.now)
    assert actions == [ev.Reject(1, ev.MessageFault.MALFORMED)]


@pytest.mark.parametrize("voted", [True, False])
def test_a_block_is_on_disk_before_its_round_is_told_whether_it_was_voted_for_or_not(voted):
    world = World(4)
    world.settle()
    world.learn()
    world.deliver("LEAD", [0, 1, 2, 3])
    for worker in range(4):
        world.fire(worker, ev.TimerKind.FILTER)
    if voted:
        world.deliver("SOFT", [0])
    world.deliver("SOFT", [1, 2, 3])
    world.history[0].clear()
    world.deliver("CERT", [0])
    actions = [action for _, _, actions in world.history[0] for action in actions]
    (commit,) = (action for action in actions if isinstance(action, ev.Commit))
    before = actions[: actions.index(commit)]
    written = [b for action in before if isinstance(action, ev.Persist) for b in action.blobs]
    assert (ev.BlobKind.MODEL, commit.model) in written
    # Behind its own CERT vote it was written before.
    assert ((ev.BlobKind.BLOCK, commit.value) in written) != voted


def test_the_gradients_that_a_ballot_approves_are_on_disk_before_it_leaves():
    world = World(4)
    world.settle()
    world.learn()
    for worker in range(4):
        updates = world.players[worker]._round.learning_messages.updates().values()
        payload_of = {update.update_id: update.payload for update in updates}
        written, sent = set(), []
        for action in (action for _, _, actions in world.history[worker] for action in actions):
            if isinstance(action, ev.Persist):
                written.update(digest for kind, digest in action.blobs if kind.name == "PAYLOAD")
            elif isinstance(action, ev.Broadcast):
                message = decode(action.data).claim
                if isinstance(message, BallotMessage) and message.worker == worker:
                    sent.append(message)
                    assert {payload_of[e.update_id] for e in message.entries} <= written
        assert sent


def test_a_certificate_whose_block_is_missing_is_repeated_for_those_who_may_have_it():
    world = World(4)
    world.settle()
    world.learn()
    value = b"v" * 32
    for worker in (1, 2, 3):
        world.forge_vote(worker, 0, VoteStep.CERT, value)
    world.hand(1, world.forge_bundle(0, VoteStep.CERT, value), [0])
    assert world.players[0].round == 1
    world.flying.clear()
    world.fire(0, ev.TimerKind.DEADLINE)
    said = {world.describe(data).split()[1] for _, _, data in world.flying if data[0] == 5}
    assert "CERT" in said


def test_too_many_equivocators_stop_the_vote_rather_than_fork_it():
    world = World(4, (2, 3))
    world.settle()
    world.learn()
    values = [value for value in world.names if value != BOTTOM]
    for liar in (2, 3):
        for value in values[:2]:
            world.hand(liar, world.forge_vote(liar, 0, VoteStep.SOFT, value), [0])
    assert world.players[0].halted
    world.log.clear()
    world.fire(0, ev.TimerKind.FILTER)
    world.fire(0, ev.TimerKind.DEADLINE)
    assert not [line for line in world.log if " says SOFT" in line or " says DOWN" in line]


TIMERS = tuple(ev.TimerKind)


def beat(world, workers):
    """Every timer once, with everything delivered in between: a round in a good network."""
    for kind in TIMERS:
        for worker in workers:
            world.fire(worker, kind)
        for _ in range(3):
            world.deliver("*", workers)


def test_a_worker_that_was_cut_off_catches_up_by_certificates_alone():
    world = started()
    world.flow(until_round=2)
    for _ in range(3):
        world.deliver("*", [3], drop=True)
        beat(world, [0, 1, 2])
    ahead = world.players[0].round
    assert ahead >= 4
    assert world.players[3].round == 2
    world.deliver("*", [3], drop=True)
    beat(world, [3])
    for _ in range(3):
        beat(world, [0, 1, 2, 3])
    assert world.players[3].round == world.players[0].round
    for number in range(1, ahead):
        assert len(set(world.commits[number].values())) == 1
        assert len(world.commits[number]) == 4


def test_certificates_that_come_in_any_order_are_all_used():
    world = started()
    world.flow(until_round=8)
    finished = world.disks[0][1][:7]
    late = World(4, (), early=True)
    player = late.player(3, initial(late.genesis), [])
    player.handle(ev.Start(bytes(32)), 0)
    commits = []
    for item in reversed(finished):
        for action in player.handle(ev.Received(0, item.encode()), 0):
            if isinstance(action, ev.Want):
                commits += player.handle(ev.ModelReady(action.digest), 0)
    assert [action.round for action in commits if isinstance(action, ev.Commit)] == [*range(1, 8)]


def test_a_worker_without_memory_only_watches_until_it_knows_where_it_may_vote():
    world = started()
    world.flow(until_round=3)
    world.disks[3] = (None, [])
    world.crash(3)
    head = world.players[0].round - 1
    world.log.clear()
    while world.players[3].observer:
        spoken = [line for line in world.log if line.startswith("d says")]
        assert not [line for line in spoken if "BUNDLE" not in line and "HEADQUERY" not in line]
        beat(world, [0, 1, 2, 3])
    assert world.players[3].round >= head + 3
    stored = read_safety(world.disks[3][0], world.genesis.chain)
    assert stored.votes_from not in {0, NEVER}


def test_a_lost_question_about_the_head_is_asked_again_in_every_round():
    world = started()
    world.flow(until_round=3)
    world.disks[3] = (None, [])
    world.crash(3)
    world.deliver("HEADQUERY", [0, 1, 2], drop=True)
    while world.players[3].observer:
        assert world.players[3].round < 20, "nobody was asked again"
        beat(world, [0, 1, 2, 3])


@pytest.mark.parametrize("mode", ["damaged", "of another network"])
def test_a_store_that_cannot_be_read_is_a_lost_memory(mode):
    world = started()
    saved = world.disks[0][0]
    bad = saved[:-1] + bytes([saved[-1] ^ 1])
    if mode == "of another network":
        other = World(5)
        bad = other.disks[0][0]
    assert world.player(0, bad, []).observer
    assert not world.player(0, saved, []).observer


def test_a_silent_member_costs_a_full_wait_for_a_few_rounds_only():
    world = World(4, (3,), early=True)
    world.settle()
    silent_since = world.players[0].round
    while world.players[0].round < silent_since + PATIENCE + 1:
        before = world.players[0].round
        for _ in range(5):
            world.deliver("*", [0, 1, 2])
        assert world.players[0].round == before, "nobody waited for the silent one"
        beat(world, [0, 1, 2])
    reached = world.players[0].round
    # From here on no timer is needed: those who speak are all that are waited for.
    world.flow(until_round=reached + 3)
    assert len(set(world.commits[reached + 2].values())) == 1
