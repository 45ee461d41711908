import math
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.agreement.rig import DIMENSION, Network, other
from tests.agreement.strategies import mutated

from holdout.agreement import blocks, headers
from holdout.agreement.blocks import (
    Block,
    BlockKind,
    Draft,
    block_bytes_max,
    inspect,
    read_block,
    read_header,
)
from holdout.agreement.codec import blob, f64
from holdout.agreement.events import Combine, Combined
from holdout.agreement.messages import HEADER_BYTES_MAX, Entry, Evidence, VoteStep
from holdout.agreement.params import PROTOCOL_VERSION
from holdout.errors import InvalidMessage, MisuseError


def verdict(net, block):
    return inspect(block, net.tip, net.genesis, net.draws, net.verifier)


def reason(net, block):
    found = verdict(net, block)
    return found if isinstance(found, str) else None


def recommitted(block, **changes):
    """The block with another body, whose header commits to it: a leader can lie that far."""
    block = replace(block, **changes)
    body = headers.body_roots(block.updates, block.ballots, block.evidence)
    names = ("updates_root", "ballots_root", "evidence_root")
    said = dict(zip(names, body, strict=True))
    chosen = headers.selection_root(block.selection)
    header = replace(block.header, selection_root=chosen, **said)
    return replace(block, header=header)


def with_header(block, **changes):
    return replace(block, header=replace(block.header, **changes))


def double(net, worker):
    """Evidence that a worker sent two updates."""
    return Evidence.of(net.update(worker).envelope, net.update(worker, [9.0] * 6).envelope)


def double_ballot(net, worker):
    one, two = net.ballot(worker, [net.update(0)]), net.ballot(worker, [net.update(1)])
    return Evidence.of(one.envelope, two.envelope)


@pytest.fixture
def net():
    return Network(7)


def usual(net, **changes):
    """Updates of 0 to 3, and ballots of 0 to 4 for all of them."""
    updates = [net.update(worker) for worker in range(4)]
    return net.draft(updates, [net.ballot(worker, updates) for worker in range(5)], **changes)


# ----------------------------------------------------------------------------------- bytes and back


def test_a_block_is_read_as_it_was_written(net):
    block = net.finish(usual(net, evidence=[double(net, 6)]))
    assert read_block(block.encode()) == block
    assert read_header(block.header.encode()) == block.header
    assert read_block(block.encode()).header.digest == block.header.digest


def test_a_body_is_hashed_once_when_it_is_read_and_once_when_it_is_checked(net, monkeypatch):
    data = net.finish(usual(net)).encode()
    hashed = []
    monkeypatch.setattr(
        blocks, "body_roots", lambda *body: hashed.append(1) or headers.body_roots(*body)
    )
    block = read_block(data)
    draft = verdict(net, block)
    assert net.finish(draft) == block
    assert net.finish(draft) == block
    assert len(hashed) == 2


@given(st.data())
def test_damaged_blocks_hold_one_block_with_this_encoding_or_none(data):
    net = Network(7)
    block = net.finish(usual(net, evidence=[double(net, 6)]))
    damaged = data.draw(mutated(st.sampled_from([block.encode(), block.header.encode()])))
    for read in (read_block, read_header):
        try:
            found = read(damaged)
        except InvalidMessage:
            continue
        assert found.encode() == damaged


def test_no_two_headers_share_a_digest(net):
    header = net.finish(usual(net)).header
    changes = {
        "version": 2,
        "chain": other(header.chain),
        "round": 2,
        "previous": other(header.previous),
        "kind": BlockKind.NOOP,
        "leader": 1,
        "original_period": 1,
        "seed": other(header.seed),
        "seed_proof": b"p",
        "updates_root": other(header.updates_root),
        "ballots_root": other(header.ballots_root),
        "selection_root": other(header.selection_root),
        "evidence_root": other(header.evidence_root),
        "steps": 9,
        "model_previous": other(header.model_previous),
        "model": other(header.model),
        "radius": 0.125,
    }
    found = [header.digest, *(replace(header, **{k: v}).digest for k, v in changes.items())]
    assert len(set(found)) == len(found) == 18


@pytest.mark.parametrize("radius", [math.nan, math.inf, -math.inf, -1.0, -0.0])
def test_a_radius_that_is_no_length_is_refused(net, radius):
    header = replace(net.finish(usual(net)).header, radius=radius)
    with pytest.raises(InvalidMessage, match="radius"):
        read_header(header.encode())


@pytest.mark.parametrize("kind", [0, 3, 255])
def test_there_are_two_kinds_of_block(net, kind):
    header = replace(net.finish(usual(net)).header, kind=kind)
    with pytest.raises(InvalidMessage, match="no block of kind"):
        read_header(header.encode())


def test_a_header_has_a_largest_size():
    with pytest.raises(InvalidMessage, match="at most"):
        read_header(bytes(HEADER_BYTES_MAX + 1))


def test_updates_and_ballots_stand_in_their_own_lists(net):
    block = net.finish(usual(net))
    swapped = replace(block, updates=block.ballots, ballots=block.updates)
    with pytest.raises(InvalidMessage, match="updates, then ballots"):
        read_block(swapped.encode())


def test_every_signature_is_committed_to(net):
    # Otherwise a good header could be served with a body that everybody finds invalid for good.
    block = net.finish(usual(net))
    ballot, update = (
        replace(last, envelope=replace(last.envelope, signature=bytes(64)))
        for last in (block.ballots[-1], block.updates[-1])
    )
    for changed in (
        replace(block, ballots=(*block.ballots[:-1], ballot)),
        replace(block, updates=(*block.updates[:-1], update)),
        replace(block, updates=block.updates[:-1]),
        replace(block, selection=block.selection[:-1]),
        replace(block, evidence=(double(net, 6),)),
    ):
        with pytest.raises(InvalidMessage, match="roots"):
            read_block(changed.encode())
        assert "roots" in reason(net, changed)


@pytest.mark.parametrize("field", ["updates", "ballots", "selection", "evidence"])
def test_lists_stand_in_order_with_nobody_twice(net, field):
    evidence = [double(net, 5), double(net, 6), double_ballot(net, 5)]
    block = net.finish(usual(net, evidence=evidence))
    listed = getattr(block, field)
    for wrong in (listed[::-1], (listed[0], *listed)):
        changed = recommitted(block, **{field: wrong})
        with pytest.raises(InvalidMessage, match="ascending"):
            read_block(changed.encode())
        assert "ascending" in reason(net, changed)


def test_no_valid_block_is_larger_than_what_is_fetched():
    net = Network(7, real=True, proposers=6, voters=6)
    updates = tuple(net.update(worker) for worker in range(7))
    ballots = tuple(net.ballot(worker, updates) for worker in range(7))
    evidence = (
        *(double(net, worker) for worker in range(7)),
        *(Evidence(b.envelope, b.envelope) for b in ballots),
    )
    header = replace(net.finish(net.draft([], [])).header, seed_proof=bytes(80))
    block = Block(header, updates, ballots, tuple((i, 7) for i in range(7)), evidence)
    assert len(block.encode()) <= block_bytes_max(net.params)


# ---------------------------------------------------------------------------------------- assembly


def test_a_leaders_block_is_the_one_that_everybody_recomputes(net):
    draft = usual(net, leader=2, evidence=[double(net, 6)])
    block = net.finish(draft)
    assert block.header.kind is BlockKind.STEP
    assert block.selection == tuple((worker, 5) for worker in range(4))
    found = verdict(net, read_block(block.encode()))
    assert found == draft
    assert net.finish(found) == block


@given(st.randoms(use_true_random=False))
@settings(max_examples=20)
def test_the_order_of_arrival_changes_nothing(random):
    net = Network(7)
    updates = [net.update(worker) for worker in range(6)]
    ballots = [net.ballot(voter, updates[voter % 3 :]) for voter in range(7)]
    evidence = [double(net, 5), double(net, 6), double_ballot(net, 6)]
    expected = net.finish(net.draft(updates, ballots, evidence))
    for arrived in (updates, ballots, evidence):
        random.shuffle(arrived)
    assert net.finish(net.draft(updates, ballots, evidence)) == expected


def test_only_updates_that_a_ballot_names_are_in_a_block(net):
    updates = [net.update(worker) for worker in range(4)]
    block = net.finish(net.draft(updates, [net.ballot(5, updates[1:3])]))
    assert [update.worker for update in block.updates] == [1, 2]


def test_a_ballot_that_names_what_is_not_in_hand_stays_out(net):
    updates = [net.update(worker) for worker in range(3)]
    ballots = [net.ballot(4, updates[:2]), net.ballot(5, updates)]
    block = net.finish(net.draft(updates[:2], ballots))
    assert [ballot.worker for ballot in block.ballots] == [4]
    second = net.update(1, [9.0] * 6)
    block = net.finish(net.draft([updates[0], second], [net.ballot(4, updates[:2])]))
    assert block.ballots == ()
    assert reason(net, block) is None


def test_what_the_convicted_sent_does_not_count(net):
    updates = [net.update(worker) for worker in range(4)]
    ballots = [net.ballot(voter, updates) for voter in (0, 1, 4)]
    ballots += [net.ballot(5, [updates[1]]), net.ballot(6, updates[1:3])]
    # Worker 1 sent two updates, worker 6 two ballots.
    draft = net.draft(updates, ballots, [double(net, 1), double_ballot(net, 6)])
    block = net.finish(draft)
    assert [update.worker for update in block.updates] == [0, 2, 3]
    # The ballot of 1 is void; that of 5 names only 1: it counts, and is completed.
    assert [ballot.worker for ballot in block.ballots] == [0, 4, 5]
    assert [(c.proposer, c.approvals, c.score) for c in draft.counts] == [
        (0, 2, Fraction(3)),
        (2, 2, Fraction(3)),
        (3, 2, Fraction(3)),
    ]
    assert reason(net, block) is None
    # A leader may list the void ballot all the same: the outcome does not change.
    listed = recommitted(block, ballots=(*block.ballots, ballots[4]))
    found = verdict(net, listed)
    assert isinstance(found, Draft)
    assert found.counts == draft.counts
    assert net.finish(found) == listed


def test_evidence_is_taken_once_for_each_kind_and_worker_and_learning_comes_first():
    net = Network(4)
    others = [
        Evidence.of(
            net.vote(worker, step, b"v" * 32).envelope, net.vote(worker, step, b"w" * 32).envelope
        )
        for worker in range(4)
        for step in (VoteStep.SOFT, VoteStep.CERT)
    ]
    leads = [Evidence.of(net.lead(w).envelope, net.lead(w, b"c" * 32).envelope) for w in range(4)]
    learning = [double(net, worker) for worker in range(4)]
    learning += [double_ballot(net, worker) for worker in range(3)]
    block = net.finish(net.draft([], [], [*others, *leads, *learning]))
    assert block.evidence == (*learning, leads[0])
    assert reason(net, block) is None
    block = net.finish(net.draft([], [], others))
    assert block.evidence == tuple(others[::2])


# ----------------------------------------------------------------------------- payloads and outcome


def test_only_payloads_that_can_enter_are_needed_each_once(net):
    updates = [net.update(0), net.update(1), net.update(2, [1.0] * 6), net.update(3, size=23)]
    assert updates[0].payload == updates[2].payload
    ballots = [net.ballot(voter, updates) for voter in range(4)]
    ballots.append(net.ballot(4, [updates[0], updates[2], updates[3], net.update(4)]))
    draft = net.draft([*updates, net.update(4)], ballots)
    assert [c.passes for c in draft.counts] == [True, True, True, True, False]
    assert draft.needs == (updates[0].payload, updates[1].payload)
    block = net.finish(draft)
    assert block.selection == ((0, 5), (1, 4))
    assert reason(net, block) is None


@pytest.mark.parametrize(
    "values",
    [[math.nan] * 6, [1e7] * 6, [1.0] * 5],
    ids=["not finite", "too large", "too short"],
)
def test_an_invalid_payload_is_left_out_however_many_approve(net, values):
    updates = [net.update(0, values), net.update(1), net.update(2)]
    draft = net.draft(updates, [net.ballot(voter, updates) for voter in range(7)])
    assert draft.needs == tuple(update.payload for update in updates)
    assert net.finish(draft).selection == ((1, 7), (2, 7))


def test_a_round_without_anything_to_select_changes_nothing(net):
    bad = net.update(0, [math.inf] * 6)
    for updates, ballots in (
        ([], []),
        ([bad], [net.ballot(1, [bad])]),
        ([net.update(0)], []),
    ):
        draft = net.draft(updates, ballots)
        block = net.finish(draft)
        assert draft.job(net.valid(draft)) is None
        assert (block.header.kind, block.selection) == (BlockKind.NOOP, ())
        assert (block.header.model, block.header.radius) == (net.tip.model, net.tip.radius)
        assert block.header.steps == net.tip.steps
        assert block.header.seed != net.tip.seed_in
        assert net.finish(verdict(net, block)) == block


def test_too_few_ballots_make_no_step_and_need_no_payload():
    net = Network(7, ballots_min=3)
    updates = [net.update(0)]
    few = net.draft(updates, [net.ballot(voter, updates) for voter in range(2)])
    assert few.needs == ()
    assert net.finish(few).header.kind is BlockKind.NOOP
    enough = net.draft(updates, [net.ballot(voter, updates) for voter in range(3)])
    assert net.finish(enough).header.kind is BlockKind.STEP
    # A ballot of a convicted voter does not make up the number.
    void = [net.ballot(voter, updates) for voter in range(3)]
    block = net.finish(net.draft(updates, void[:2], [double_ballot(net, 2)]))
    padded = verdict(net, recommitted(block, ballots=tuple(void)))
    assert padded.ballot_count == 2
    assert net.finish(padded).header.kind is BlockKind.NOOP


def test_an_update_without_enough_real_approvals_does_not_enter():
    net = Network(7, byzantine_voters_max=2)
    updates = [net.update(0), net.update(1)]
    ballots = [net.ballot(voter, updates[:1]) for voter in range(3)]
    ballots += [net.ballot(voter, updates[1:]) for voter in range(3, 5)]
    assert net.finish(net.draft(updates, ballots)).selection == ((0, 3),)


def test_a_model_that_does_not_fit_makes_no_step(net):
    draft = usual(net)
    valid = net.valid(draft)
    job = draft.job(valid)
    block = draft.block(valid, Combined(job, None, 3.0))
    assert (block.header.kind, block.selection) == (BlockKind.NOOP, ())
    assert (block.header.steps, block.header.radius) == (0, 0.0)
    assert isinstance(verdict(net, block), Draft)


def test_a_step_goes_by_the_number_of_steps_so_far_and_by_the_radius(net):
    for steps, rate in ((0, 0.5), (1, 0.25), (7, 0.25)):
        net.with_tip(steps=steps, radius=2.0, round=9)
        draft = usual(net)
        job = draft.job(net.valid(draft))
        payloads = tuple(update.payload for update in draft.updates)
        assert job == Combine(net.tip.model, payloads, 2.0, rate)
        block = net.finish(draft)
        assert (block.header.steps, block.header.round) == (steps + 1, 9)
        assert block.header.radius == 3.0  # The norms are larger: as far as it may move.
        assert reason(net, block) is None


def test_a_block_is_made_of_its_own_job_only(net):
    draft = usual(net)
    valid = net.valid(draft)
    job = draft.job(valid)
    for combined in (None, Combined(replace(job, rate=1.0), net.tip.model, 1.0)):
        with pytest.raises(MisuseError, match="its own job"):
            draft.block(valid, combined)
    with pytest.raises(MisuseError, match="its own job"):
        net.draft([], []).block({}, Combined(job, net.tip.model, 1.0))


# -------------------------------------------------------------------------------------- inspection


def test_a_leader_that_calls_a_valid_payload_invalid_is_found_out(net):
    draft = usual(net)
    lie = net.valid(draft) | {draft.updates[0].payload: False}
    job = draft.job(lie)
    block = draft.block(lie, Combined(job, other(net.tip.model), 1.0))
    found = verdict(net, block)
    # Nothing is wrong with it on its face: its payloads show the lie.
    assert found.needs[0] == draft.updates[0].payload
    assert net.finish(found) != block


HEADER_LIES = {
    "version": (PROTOCOL_VERSION + 1, "another network or protocol version"),
    "chain": (b"c" * 32, "another network or protocol version"),
    "round": (2, "does not follow"),
    "previous": (b"p" * 32, "does not follow"),
    "model_previous": (b"m" * 32, "different model"),
    "leader": (7, "not a worker"),
    "original_period": (1, "does not follow from"),
    "seed": (b"s" * 32, "does not follow from"),
    "seed_proof": (b"p", "proof does not hold"),
    "steps": (2, "wrong count of steps"),
}


@pytest.mark.parametrize("field", HEADER_LIES)
def test_a_header_that_does_not_follow_is_invalid(net, field):
    block = net.finish(usual(net, leader=3))
    value, why = HEADER_LIES[field]
    assert why in reason(net, with_header(block, **{field: value}))


def test_a_noop_that_changes_something_is_invalid(net):
    block = net.finish(net.draft([], []))
    for change in ({"model": other(net.tip.model)}, {"radius": 1.0}):
        assert "must not change" in reason(net, with_header(block, **change))
    assert "wrong count of steps" in reason(net, with_header(block, steps=1))


def test_a_header_and_its_selection_agree_on_whether_there_is_a_step(net):
    step, noop = net.finish(usual(net)), net.finish(net.draft([], []))
    bare = recommitted(step, selection=())
    assert "selects an update" in reason(net, bare)
    quiet = with_header(
        step, kind=BlockKind.NOOP, steps=0, model=net.tip.model, radius=net.tip.radius
    )
    assert "selects an update" in reason(net, quiet)
    # Dropping everything is no lie on its face, but not what its own body leads to.
    dropped = recommitted(quiet, selection=())
    assert net.finish(verdict(net, dropped)) == step
    assert "selects an update" in reason(net, with_header(noop, kind=BlockKind.STEP, steps=1))


def test_a_selection_that_the_ballots_do_not_give_is_invalid(net):
    block = net.finish(usual(net))
    for selection in (
        ((0, 5), (1, 5), (2, 5), (3, 4)),
        ((0, 5), (1, 5), (2, 5), (3, 5), (4, 5)),
        ((6, 1),),
    ):
        assert "does not follow from the ballots" in reason(
            net, recommitted(block, selection=selection)
        )


def test_the_seed_of_a_later_period_has_no_proof(net):
    block = net.finish(usual(net, leader=3, period=2))
    assert reason(net, block) is None
    assert block.header.seed_proof == b""
    assert "must not carry a seed proof" in reason(net, with_header(block, seed_proof=b"p"))
    assert "proof" in reason(net, with_header(block, original_period=0, seed_proof=b"p"))


def test_the_seed_is_refreshed_by_the_old_block_that_the_tip_names(net):
    plain = net.finish(usual(net))
    net.with_tip(old_block=b"o" * 32)
    assert "seed" in reason(net, plain)
    refreshed = net.finish(usual(net))
    assert reason(net, refreshed) is None
    assert refreshed.header.seed != plain.header.seed


def test_with_real_keys_the_seed_is_the_leaders_one_output():
    net = Network(7, real=True)
    block = net.finish(usual(net, leader=3))
    assert reason(net, block) is None
    assert len(block.header.seed_proof) == 80
    assert "proof" in reason(net, with_header(block, leader=4))
    lead_proof = net.lead(3).envelope.proof
    assert "proof" in reason(net, with_header(block, seed_proof=lead_proof))


def test_what_is_not_signed_by_a_worker_that_was_drawn_is_invalid(net):
    block = net.finish(usual(net))
    update, ballot = block.updates[-1], block.ballots[-1]
    for change in ({"signature": bytes(64)}, {"proof": b"p"}):
        spoilt = replace(update, envelope=replace(update.envelope, **change))
        changed = recommitted(block, updates=(*block.updates[:-1], spoilt))
        assert "update of worker 3" in reason(net, changed)
        spoilt = replace(ballot, envelope=replace(ballot.envelope, **change))
        changed = recommitted(block, ballots=(*block.ballots[:-1], spoilt))
        assert "ballot of worker 4" in reason(net, changed)


def test_a_stranger_has_no_say(net):
    updates = [net.update(worker) for worker in (0, 7)]
    block = net.finish(net.draft(updates, [net.ballot(1, updates)]))
    assert "unknown-worker" in reason(net, block)
    block = net.finish(net.draft(updates[:1], [net.ballot(7, updates[:1])]))
    assert "unknown-worker" in reason(net, block)


def test_updates_and_ballots_for_another_model_are_invalid(net):
    stale = net.update(0, model=other(net.tip.model))
    block = net.finish(net.draft([stale], [net.ballot(1, [stale])]))
    assert "different model" in reason(net, block)
    update = net.update(0)
    ballot = net.ballot(1, [update], model=other(net.tip.model))
    assert "different model" in reason(net, net.finish(net.draft([update], [ballot])))


def test_updates_and_ballots_of_another_round_are_invalid(net):
    net.with_tip(round=2)
    update = net.update(0)
    ballot = net.ballot(1, [update])
    net.with_tip(round=1)
    assert "stale" in reason(net, net.finish(net.draft([update], [ballot])))


def test_every_name_on_a_ballot_must_be_in_the_block_and_nothing_else(net):
    block = net.finish(usual(net))
    fewer = recommitted(block, updates=block.updates[:-1], selection=block.selection[:-1])
    assert "not in the block" in reason(net, fewer)
    more = recommitted(block, updates=(*block.updates, net.update(5)))
    assert "no ballot names" in reason(net, more)
    second = net.update(3, [9.0] * 6)
    switched = recommitted(block, updates=(*block.updates[:-1], second))
    assert "not in the block" in reason(net, switched)


def test_an_update_of_a_convicted_proposer_must_not_be_in_the_block(net):
    block = net.finish(usual(net))
    convicted = recommitted(block, evidence=(double(net, 3),))
    assert "convicted" in reason(net, convicted)


def test_evidence_that_proves_nothing_is_invalid(net):
    block = net.finish(net.draft([], []))
    forged = replace(net.update(2, [9.0] * 6).envelope, signature=bytes(64))
    junk = replace(forged, signed=b"\xff" * 900)
    early = replace(forged, signed=b"\0")
    one = net.update(2).envelope
    for evidence in (
        Evidence.of(one, forged),
        Evidence.of(one, net.update(3).envelope),
        Evidence.of(one, net.ballot(2, [net.update(1)]).envelope),
        Evidence.of(one, junk),
    ):
        assert "proves nothing" in reason(net, recommitted(block, evidence=(evidence,)))
    unreadable = recommitted(block, evidence=(Evidence(early, one),))
    assert "cannot be read" in reason(net, unreadable)
    with pytest.raises(InvalidMessage, match="cannot be read"):
        read_block(unreadable.encode())
    answer = net.head_answer(2).envelope
    assert "cannot be read" in reason(net, recommitted(block, evidence=(Evidence(answer, one),)))


def test_evidence_of_another_round_is_invalid(net):
    block = net.finish(net.draft([], []))
    net.with_tip(round=2)
    old = double(net, 3)
    net.with_tip(round=1)
    assert "stale" in reason(net, recommitted(block, evidence=(old,)))


def test_there_is_at_most_so_much_evidence():
    net = Network(4)
    block = net.finish(net.draft([], []))
    evidence = [double(net, worker) for worker in range(4)]
    evidence += [double_ballot(net, worker) for worker in range(4)]
    assert reason(net, recommitted(block, evidence=tuple(evidence))) is None
    lead = Evidence.of(net.lead(0).envelope, net.lead(0, b"c" * 32).envelope)
    assert "more than two pieces of evidence" in reason(
        net, recommitted(block, evidence=(*evidence, lead))
    )


# ------------------------------------------------------------------------------ whatever is decoded


@st.composite
def any_blocks(draw, net):
    """Blocks in order and with right roots, but of parts that do not fit together."""
    strange = [
        net.update(1, [9.0] * 6),
        net.update(2, model=other(b"model")),
        net.update(2, size=2**64 - 1),
        net.update(3, round_number=2),
        net.update(7),
    ]
    updates = draw(st.lists(st.sampled_from([*map(net.update, range(4)), *strange])))
    named = draw(st.lists(st.sampled_from([*map(net.update, range(4)), *strange]), min_size=1))
    unique = {update.worker: update for update in named}
    voters = draw(st.lists(st.integers(0, 7)))
    ballots = [net.ballot(voter, unique.values()) for voter in voters]
    lists = {
        "updates": sorted({u.worker: u for u in updates}.values(), key=lambda u: u.worker),
        "ballots": sorted({b.worker: b for b in ballots}.values(), key=lambda b: b.worker),
        "selection": draw(
            st.dictionaries(st.integers(0, 2**32 - 1) | st.integers(0, 7), st.integers(0, 9)).map(
                lambda some: sorted(some.items())
            )
        ),
        "evidence": [double(net, w) for w in sorted(draw(st.sets(st.integers(0, 7), max_size=3)))],
    }
    block = net.finish(net.draft([], [], leader=draw(st.integers(0, 6))))
    block = recommitted(block, **{name: tuple(listed) for name, listed in lists.items()})
    changes = {
        "kind": st.sampled_from(BlockKind),
        "steps": st.integers(0, 2),
        "leader": st.integers(0, 8),
        "original_period": st.integers(0, 2**32 - 1),
        "radius": st.floats(0, 1e300),
    }
    chosen = draw(st.sets(st.sampled_from(list(changes)), max_size=2))
    return with_header(block, **{name: draw(changes[name]) for name in sorted(chosen)})


def test_inspection_answers_whatever_was_decoded():
    net = Network(7)

    @given(any_blocks(net))
    @settings(max_examples=200)
    def check(block):
        decoded = read_block(block.encode())
        assert decoded == block
        found = verdict(net, decoded)
        if isinstance(found, str):
            assert found
            return
        rebuilt = net.finish(found)
        # What follows from a body that holds is itself without fault.
        assert net.finish(verdict(net, rebuilt)) == rebuilt

    check()


@given(st.data())
@settings(max_examples=60)
def test_whatever_a_leader_holds_it_makes_a_valid_block(data):
    net = Network(5, byzantine_voters_max=data.draw(st.integers(0, 2)), ballots_min=2)
    values = st.sampled_from([None, [1.0] * DIMENSION, [math.nan] * DIMENSION, [2.0]])
    updates = [net.update(worker, data.draw(values)) for worker in range(5)]
    held = data.draw(st.lists(st.sampled_from(updates), unique_by=id))
    some = st.lists(st.sampled_from(updates), min_size=1, unique_by=id)
    ballots = [net.ballot(voter, data.draw(some)) for voter in range(data.draw(st.integers(0, 5)))]
    guilty = data.draw(st.sets(st.integers(0, 4), max_size=2))
    evidence = [data.draw(st.sampled_from([double, double_ballot]))(net, w) for w in sorted(guilty)]
    period = data.draw(st.integers(0, 2))
    block = net.finish(net.draft(held, ballots, evidence, leader=1, period=period))
    found = verdict(net, read_block(block.encode()))
    assert isinstance(found, Draft)
    assert net.finish(found) == block


def test_a_ballot_entry_of_an_unknown_proposer_resolves_to_nothing(net):
    block = net.finish(usual(net))
    last = block.ballots[-1]
    entries = (*last.entries, Entry(2**32 - 1, other(b"id")))
    changed = recommitted(block, ballots=(*block.ballots[:-1], replace(last, entries=entries)))
    assert "not in the block" in reason(net, changed)


def test_a_second_encoding_of_the_radius_is_refused(net):
    data = net.finish(net.draft([], [])).header.encode()
    assert data.endswith(f64(0.0))
    with pytest.raises(InvalidMessage, match="radius"):
        read_header(data[:-8] + f64(-0.0))
    with pytest.raises(InvalidMessage):
        read_block(blob(data[:-8] + f64(-0.0)))
