"""Joint ballots: a voter is asked to train like anybody else, and its update only judges."""

import gc
import math
import weakref
from fractions import Fraction

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord
from flwr.clientapp import ClientApp
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.flower.flower_grid import (
    FakeGrid,
    SilentError,
    arrays,
    as_node,
    client_app,
    context,
    train_reply,
    weights,
)

from holdout.flower import HoldOut, vote_mod
from holdout.flower import joint as joint_module
from holdout.flower import strategy as strategy_module
from holdout.flower.base import CLOCK_ERROR_MAX
from holdout.flower.joint import FAR, OPPOSED_OTHERS, TOO_FAR, hold_joint_vote
from holdout.flower.pairs import PairMemory, cover
from holdout.ids import ProposalId, WorkerId
from holdout.joint_vote import JointMemory
from holdout.rounds import AdmittedProposals, Outcome

NODES = list(range(101, 113))
F = Fraction(1, 3)


def silent(_message):
    raise SilentError


def trains_only(goal: float):
    """A client that knows of nothing but training."""
    app = ClientApp()

    @app.train()
    def train(message, _context):
        record = {
            name: Array(np.float32(0.5 * array.numpy() + 0.5 * goal))
            for name, array in message.content["arrays"].items()
        }
        return train_reply(message, ArrayRecord(record))

    return lambda message: app(message, context())


def sends(value: float):
    """Returns weights that are all alike."""
    return lambda message: train_reply(message, arrays(value))


def joint(**changes) -> HoldOut:
    given_ = {"num_proposers": 6, "num_voters": 6, "seed": 3, "fraction_evaluate": 0.0}
    return HoldOut(byzantine_fraction="1/3", **{**given_, "propose_timeout": 0.3, **changes})


def play(lies=(), *, to="voters", strategy=None, current=None):
    """One round in which the first nodes drawn for a role lie."""
    strategy = strategy or joint()
    grid = FakeGrid({node: trains_only(1.0) for node in NODES})
    asked = strategy.configure_train(1, current or arrays(0.0), ConfigRecord(), grid)
    for node, lie in zip(getattr(strategy._open, to), lies, strict=False):
        grid.nodes[node] = lie
    replies = grid.send_and_receive(asked)
    after, metrics = strategy.aggregate_train(1, replies)
    return after, metrics, grid


def test_a_client_that_only_trains_is_all_it_takes():
    result = joint().start(FakeGrid({n: trains_only(1.0) for n in NODES}), arrays(0.0), 3)
    assert all(m["holdout-step"] == 1 for m in result.train_metrics_clientapp.values())
    assert all(m["holdout-ballots-accepted"] == 6 for m in result.train_metrics_clientapp.values())
    assert weights(result.arrays).min() > 0.7


def test_no_client_can_tell_what_it_was_drawn_for():
    strategy = joint()
    grid = FakeGrid({node: trains_only(1.0) for node in NODES})
    asked = strategy.configure_train(1, arrays(0.0), ConfigRecord(), grid)
    kinds = {(m.metadata.message_type, m.metadata.group_id, tuple(m.content)) for m in asked}
    assert len(kinds) == 1
    # The lifetimes are random, and are so for all alike.
    least = strategy.propose_timeout + CLOCK_ERROR_MAX
    assert all(least <= m.metadata.ttl < least + 1 for m in asked)
    assert [m.metadata.dst_node_id for m in asked] == NODES
    assert {*strategy._open.proposers, *strategy._open.voters} == set(NODES)
    assert all(m.content is asked[0].content for m in asked)


def test_replies_that_have_been_read_hold_no_arrays_though_the_caller_keeps_them(monkeypatch):
    strategy, alive = joint(), []
    grid = FakeGrid({node: trains_only(1.0) for node in NODES})
    asked = strategy.configure_train(1, arrays(0.0), ConfigRecord(), grid)
    replies = list(grid.send_and_receive(asked))
    sent = [weakref.ref(array) for r in replies for array in r.content["arrays"].values()]

    def count_and_vote(*args, **options):
        alive.append(sum(array() is not None for array in sent))
        return hold_joint_vote(*args, **options)

    monkeypatch.setattr(strategy_module, "hold_joint_vote", count_and_vote)
    gc.disable()  # What only the collector could free would stay for long.
    try:
        strategy.aggregate_train(1, replies)
    finally:
        gc.enable()
    assert len(replies) == len(NODES)
    assert alive == [0]


def test_a_voter_s_update_is_never_averaged():
    # A little further in the same direction: nothing is wrong with it, and it does not count.
    after, metrics, _ = play([sends(0.7)] * 6)
    assert np.allclose(weights(after), 0.5)
    assert metrics["holdout-ballots-accepted"] == 6


def test_proposals_against_the_voters_direction_are_out():
    after, metrics, _ = play([sends(-0.5)] * 2, to="proposers")
    assert np.allclose(weights(after), 0.5)
    assert metrics["holdout-union-consensus"] == 4


def test_an_update_of_many_median_lengths_is_rejected_with_its_reason():
    after, metrics, _ = play([sends(30.0)] * 2, to="proposers")
    assert np.allclose(weights(after), 0.5)
    assert metrics["holdout-proposals-rejected-too-far"] == 2
    assert metrics["holdout-proposals-accepted"] == 4
    _, metrics, _ = play([sends(-30.0)], to="voters")
    assert metrics["holdout-ballots-rejected-too-far"] == 1


@pytest.mark.parametrize(
    ("lie", "reason"),
    [
        (silent, "missing"),
        (lambda _: 1 / 0, "error"),
        (sends(np.nan), "not-finite"),
        (lambda m: train_reply(m, ArrayRecord([np.zeros(3)])), "malformed"),
        (lambda m: train_reply(m, arrays(weight=Array(np.zeros((4, 3))))), "misshapen"),
        (lambda m: train_reply(m, arrays(weight=Array(np.zeros((3, 4), int)))), "wrong-dtype"),
    ],
    ids=["silent", "crash", "nan", "names", "shape", "integers"],
)
def test_a_void_joint_ballot_is_counted_and_the_round_goes_on(lie, reason):
    after, metrics, _ = play([lie])
    assert np.allclose(weights(after), 0.5)
    assert metrics[f"holdout-ballots-rejected-{reason}"] == 1
    assert metrics["holdout-ballots-accepted"] == 5
    assert metrics["holdout-proposals-rejected"] == 0


def test_a_third_of_the_ballots_is_enough_and_fewer_keep_the_model():
    _, metrics, _ = play([silent] * 4)
    assert metrics["holdout-step"] == 1
    after, metrics, _ = play([silent] * 5)
    assert metrics["holdout-step"] == 0
    assert np.allclose(weights(after), 0.0)
    _, metrics, _ = play([silent] * 5, strategy=joint(min_ballots=1))
    assert metrics["holdout-step"] == 1


def test_what_the_vote_remembers_is_in_the_strategy_s_state():
    strategy = joint()
    strategy.start(FakeGrid({n: trains_only(1.0) for n in NODES}), arrays(0.0), 2)
    kept = strategy._rule_state
    pairs = {"pair_clients", "pair_cosines", "pair_weights"}
    assert set(kept) == {"direction", "message_radius", "rounds"} | pairs
    assert kept["pair_clients"].tolist() == list(range(12))
    assert int(kept["rounds"]) == 2
    assert kept["direction"].shape == (15,)
    assert strategy._radius is not None
    again = JointMemory.of(kept, radius=strategy._radius)
    whole = again.kept() | PairMemory.of(kept).kept()
    assert {k: v.tolist() for k, v in whole.items()} == {k: v.tolist() for k, v in kept.items()}


def test_the_same_seed_gives_the_same_bytes():
    def run():
        result = joint().start(
            FakeGrid({n: trains_only(1.0 + n % 3) for n in NODES}), arrays(0.0), 3
        )
        return weights(result.arrays).tobytes()

    assert run() == run()


def vectors(rows) -> list[torch.Tensor]:
    return [torch.tensor(row, dtype=torch.float32) for row in rows]


def vote(own, said, *, f=F, memory=None, pairs=None):
    """A vote in which workers 0, 1, ... propose and workers 100, 101, ... vote."""
    proposals = {ProposalId(place): row for place, row in enumerate(vectors(own))}
    messages = {WorkerId(100 + place): row for place, row in enumerate(vectors(said))}
    return hold_joint_vote(
        AdmittedProposals(proposals, {}),
        messages,
        proposers=[WorkerId(place) for place in proposals],
        voters=list(messages),
        f=f,
        memory=memory or JointMemory(),
        pairs=pairs or PairMemory(),
    )


@settings(max_examples=50)
@given(
    st.lists(st.lists(st.floats(-1e6, 1e6, width=32), min_size=3, max_size=3), max_size=8),
    st.lists(st.lists(st.floats(-1e6, 1e6, width=32), min_size=3, max_size=3), max_size=8),
)
def test_whatever_is_sent_the_tolerated_share_at_most_is_out_and_the_step_is_bounded(own, said):
    found = vote(own, said)
    assert len(found.out) <= math.ceil(F * (len(own) + len(said)))
    if all(place in found.out for place in range(len(own))):
        assert found.decision.outcome is Outcome.NO_PROPOSALS
        return
    longest = max(float(row.norm()) for row in [*vectors(own), *vectors(said)])
    assert float(found.decision.update.norm()) <= longest * (1 + 1e-4)
    assert not set(found.out) & set(found.decision.selection)


HONEST = [[1.0, 0.2], [1.0, -0.2], [0.9, 0.4], [1.1, 0.0], [1.0, 0.3], [1.0, -0.4]]


def test_a_known_liar_is_no_longer_expected_among_the_others():
    """Three of nine proposals are far: the honest six all stand, though they differ."""
    found = vote([*HONEST, *[[-90.0, 0.0]] * 3], HONEST)
    assert found.out == dict.fromkeys([6, 7, 8], TOO_FAR)
    assert found.decision.selection == (0, 1, 2, 3, 4, 5)
    assert FAR < 90


def test_all_who_are_far_are_out_though_most_of_them_were_drawn_for_one_role():
    """Five of six liars propose: more than the tolerated share of the proposers, not of all."""
    found = vote([*HONEST[:4], *[[-90.0, 0.0]] * 5], [*HONEST, *HONEST, [-90.0, 0.0]])
    assert found.out == dict.fromkeys([4, 5, 6, 7, 8, 112], TOO_FAR)
    assert found.decision.selection == (0, 1, 2, 3)


def test_who_opposes_most_others_is_out_in_both_roles():
    """Of one length, and more than half of the voters."""
    found = vote([*HONEST[:4], [-1.0, 0.1]], [*HONEST[:1], [-1.0, 0.0], [-1.0, 0.2]])
    assert found.out == dict.fromkeys([4, 101, 102], OPPOSED_OTHERS)
    assert found.decision.selection == (0, 1, 2, 3)
    assert list(found.decision.ballots) == [100]


def test_opposition_is_remembered_and_a_single_round_of_it_is_not_enough():
    """A client that agreed for five rounds and opposes once may go on; after five more, not."""
    pairs, out = PairMemory(), []
    for number in range(12):
        last = [-1.0, 0.0] if number >= 5 else [1.0, 0.0]
        found = vote([*HONEST[:4], last], HONEST, pairs=pairs)
        pairs = found.pairs
        out.append(4 in found.out)
    assert not any(out[:6])
    assert all(out[10:])


def test_who_only_differs_is_not_out():
    """Skewed clients are orthogonal to each other, or sum to nothing: neither is opposition."""
    corners = torch.eye(6)
    assert not vote(corners[:3].tolist(), corners[3:].tolist()).out
    at_rest = corners - corners.mean(dim=0)
    assert not vote(at_rest[:3].tolist(), at_rest[3:].tolist()).out


def pair(first, second) -> PairMemory:
    return PairMemory().after({WorkerId(1): first, WorkerId(2): second})


def test_who_has_been_away_for_long_is_forgotten():
    """What is kept does not grow with the nodes that there have ever been."""
    memory = pair(torch.ones(2), -torch.ones(2))
    for _ in range(21):
        memory = memory.after({WorkerId(2): torch.ones(2), WorkerId(3): torch.ones(2)})
    assert memory.clients == (1, 2, 3)
    assert memory.mean([WorkerId(1), WorkerId(2)])[0, 1] == pytest.approx(-1)
    memory = memory.after({WorkerId(3): torch.ones(2)})
    assert memory.clients == (2, 3)


def test_the_rounds_in_which_only_one_of_two_took_part_say_nothing_of_the_pair():
    memory = pair(torch.ones(2), torch.tensor([1.0, -1.0]))
    memory = memory.after({WorkerId(1): torch.ones(2)}).after({WorkerId(2): torch.ones(2)})
    memory = memory.after({WorkerId(1): torch.ones(2), WorkerId(2): -torch.ones(2)})
    assert memory.mean([WorkerId(1), WorkerId(2)])[0, 1] == pytest.approx(-1 / (1 + 0.9**3))


@settings(max_examples=100)
@given(st.data())
def test_a_cover_leaves_no_more_than_greed_and_nobody_is_out_for_nothing(data):
    n = data.draw(st.integers(2, 8))
    values = st.lists(st.sampled_from([0.0, 0.0, 0.3, 0.5, 1.0]), min_size=n * n, max_size=n * n)
    upper = np.triu(np.array(data.draw(values)).reshape(n, n), 1)
    against = upper + upper.T
    most = data.draw(st.integers(0, n))
    gone = cover(against, most=most)
    assert len(gone) <= most
    stays = [member for member in range(n) if member not in gone]
    assert all(against[member, stays].any() for member in gone)
    greedy = list(range(n))
    for _ in range(most):
        greedy.remove(max(greedy, key=lambda member: against[member, greedy].sum()))
    assert against[np.ix_(stays, stays)].sum() <= against[np.ix_(greedy, greedy)].sum() + 1e-9


def test_the_screen_is_on_where_clients_are_alike_and_off_where_they_are_not(monkeypatch):
    seen = []
    before = joint_module.conclude_joint
    monkeypatch.setattr(
        joint_module,
        "conclude_joint",
        lambda *a, terms, **k: (seen.append(terms.screen), before(*a, terms=terms, **k))[1],
    )
    vote(HONEST, HONEST)
    corners = [*torch.eye(3).tolist()] * 2
    vote(corners, corners)
    assert seen == [True, False]


def test_approvals_judge_at_a_short_step_and_the_paper_s_vote_at_the_whole():
    seen = {}
    for rule in ("holdout-1", "holdout-paper"):
        grid = FakeGrid({n: as_node(client_app(1.0, mods=[vote_mod])) for n in NODES})
        strategy = joint(rule=rule, vote_timeout=0.3)
        strategy.start(grid, arrays(0.0), 1)
        votes = [m for m in grid.sent if "candidates" in m.content]
        seen[rule] = votes[0].content["candidates"]["stacked"].numpy()[1:]
    assert np.allclose(seen["holdout-1"], 0.05)
    assert np.allclose(seen["holdout-paper"], 0.5)
