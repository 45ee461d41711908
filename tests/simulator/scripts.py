"""Schedules, written out step by step, that would break agreement if a rule were missing.

`docs/simulation.md` says what S1, S2 and S3 show; the others do the same for the remaining rules.
"""

from dataclasses import replace

from tests.simulator.scripted import (
    A,
    B,
    C,
    Stage,
    Z,
    certificates,
    everything,
    leads,
    votes,
)

from holdout.agreement.blocks import read_block
from holdout.agreement.codec import BOTTOM
from holdout.agreement.events import BlobKind
from holdout.agreement.messages import BallotMessage, VoteStep
from holdout.agreement.sortition import genesis_seeds, next_seed
from holdout.simulator.network import Cut, mask

SOFT, CERT, LATE, REDO, DOWN = VoteStep
RECOVERY = (LATE, REDO, DOWN)


def certified_at_c_only(seed=0):
    """All soft-vote and cert-vote one block; only c learns of the certificate."""
    stage = Stage(seed)
    stage.forbid(votes(CERT, target=(A, B)))
    stage.forbid(certificates((A, B)))
    stage.until(lambda: all(stage.voted(w, CERT) for w in (A, B, C)) and stage.decided(C))
    stage.forbid(everything((C,), (A, B)))
    return stage, stage.sent[C, 0, CERT]


def recovered(stage, period):
    return all(any(stage.voted(w, step, period) for step in RECOVERY) for w in (A, B))


def s1(seed=0):
    """Workers that restart in a period still know why they entered it."""
    stage, value = certified_at_c_only(seed)
    stage.until(lambda: stage.voted(A, LATE) and stage.voted(B, LATE))
    for worker in (A, B):
        stage.hand(worker, LATE, value)
    stage.until(lambda: stage.period(A) == stage.period(B) == 1)
    stage.until(lambda: stage.voted(A, SOFT, 1) and stage.voted(B, SOFT, 1))
    stage.crash(A, B)
    stage.until(lambda: recovered(stage, 1))
    for worker in (A, B):
        stage.hand(worker, DOWN, BOTTOM, period=1)
    return stage, value


def s2(seed=0, *, wait=True):
    """Two workers vote DOWN, and only then learn of the soft quorum."""
    stage = Stage(seed)
    late = stage.forbid(votes(SOFT, target=(A, C)))
    stage.until(lambda: stage.voted(B, CERT))
    hidden = stage.forbid(votes(CERT, target=(A, C)))
    stage.until(lambda: stage.voted(A, DOWN) and stage.voted(C, DOWN))
    apart = stage.forbid(votes(DOWN, LATE))
    stage.allow(late)
    value = stage.sent[B, 0, CERT]
    stage.hand_bundle(A, SOFT, value, (A, B))
    stage.hand_bundle(C, SOFT, value, (B, C))
    if wait:
        stage.until(lambda: stage.voted(A, LATE) and stage.voted(C, LATE))
    return stage, value, (hidden, apart)


def s3(seed=2, *, entry_lost=False, both=False):
    """One worker knows that the period was voted down, the others only a value.

    Its seeds are such that c's own block is not the best one.
    """
    stage = Stage(seed)
    late_leads = stage.forbid(leads((C,)))
    to_a = stage.forbid(votes(SOFT, LATE, source=(B, C), target=(A,)))
    stage.until(lambda: stage.voted(A, SOFT) and stage.voted(B, SOFT))
    value = stage.sent[B, 0, SOFT]
    stage.hand_bundle(B, SOFT, value, (A, B))
    stage.until(lambda: stage.voted(B, CERT))
    to_c = stage.forbid(votes(SOFT, target=(C,)))
    stage.until(lambda: stage.voted(A, DOWN) and stage.voted(C, DOWN) and stage.voted(B, LATE))
    stage.allow(late_leads, to_c)
    stage.until(lambda: stage.voted(C, LATE))
    assert not stage.voted(B, DOWN)
    if both:
        return stage, value
    lost = stage.forbid(everything((A,), (B, C)))
    if not entry_lost:
        stage.allow(lost)
    stage.hand_bundle(A, DOWN, BOTTOM, (A, C))
    stage.allow(to_a)
    if entry_lost:
        stage.until(lambda: stage.period(A) == 1)
        stage.allow(lost)
        return stage, value
    for worker in (B, C):
        stage.hand_bundle(worker, LATE, value, (B, C))
    return stage, value


def s1_without_crash(seed=0):
    """A period that was entered with a value ends without a soft quorum."""
    stage, value = certified_at_c_only(seed)
    stage.until(lambda: stage.voted(A, LATE) and stage.voted(B, LATE))
    for worker in (A, B):
        stage.hand(worker, LATE, value)
    stage.until(lambda: recovered(stage, 1))
    return stage


def deadline_after_certificate(seed=0):
    """The deadline passes for two workers that voted for a certificate and never learn of it."""
    stage, _ = certified_at_c_only(seed)
    stage.until(lambda: recovered(stage, 0))
    return stage


def crash_after_cert(seed=0, *, block_gone=False):
    """Two workers crash after their CERT votes; nobody repeats to them what they knew."""
    stage, _ = certified_at_c_only(seed)
    stage.forbid(votes(SOFT, target=(A, B)))
    if block_gone:
        # Nobody who has the block can be asked for it.
        stage.cluster.network.add_cut(Cut(mask((C, Z)), mask((A, B))))
    stage.crash(A, B)
    stage.until(lambda: recovered(stage, 0), seconds=20)
    return stage


def crash_after_down(seed=0):
    """Two workers vote DOWN, crash, and then learn of the soft quorum."""
    stage = Stage(seed)
    stage.forbid(votes(SOFT, target=(A, C)))
    stage.until(lambda: stage.voted(B, CERT))
    stage.forbid(votes(CERT, target=(A, C)))
    stage.until(lambda: stage.voted(A, DOWN) and stage.voted(C, DOWN))
    stage.forbid(votes(DOWN, LATE))
    stage.crash(A, C)
    value = stage.sent[B, 0, CERT]
    stage.hand_bundle(A, SOFT, value, (A, B))
    stage.hand_bundle(C, SOFT, value, (B, C))
    stage.until(lambda: any(stage.voted(A, s) and stage.voted(C, s) for s in (LATE, CERT)))
    return stage


def late_after_down(seed=0):
    """Two early DOWN votes, then everybody learns of the soft quorum and the network is good."""
    stage, _, rules = s2(seed, wait=False)
    stage.allow(*rules)
    stage.until(lambda: stage.decided(A, B, C))
    return stage


def fresh_lead_against_a_value(seed):
    """A period was entered with a value; the liar leads it with a fresh block."""
    stage, value = certified_at_c_only(seed)
    stage.until(lambda: stage.voted(A, LATE) and stage.voted(B, LATE))
    forged = as_of_period_one(stage, value)
    for worker in (A, B):
        stage.hand(worker, LATE, value)
    for worker in (A, B):
        stage.give_lead(worker, forged, period=1, original=1)
    stage.until(lambda: stage.voted(A, SOFT, 1) and stage.voted(B, SOFT, 1))
    for worker in (A, B):
        stage.hand(worker, SOFT, forged, period=1)
    stage.until(lambda: recovered(stage, 1))
    return stage


def as_of_period_one(stage, value):
    """The liar's block of period 1, with the body of another."""
    node = stage.cluster.nodes[C]
    data = node.memory.get(value) or node.disk.blobs[value][1]
    block = read_block(data)
    seed_in = genesis_seeds(stage.chain)[0]
    header = replace(
        block.header,
        leader=Z,
        original_period=1,
        seed=next_seed(1, seed_in, Z, None),
        seed_proof=b"",
    )
    forged = replace(block, header=header)
    liar = stage.cluster.nodes[Z]
    liar.behaviour.serves = True
    liar.memory.put(BlobKind.BLOCK, header.digest, forged.encode(), 1)
    return header.digest


def repeated_without_quorum(seed):
    """Period 0 is voted down; the liar leads period 1 with a value that nobody carried on."""
    stage = Stage(seed)
    stage.forbid(leads((A, B, C)))
    stage.forbid(votes(SOFT, period=0))
    for worker in (A, B, C):
        stage.cluster.nodes[worker].slowness = 1
    stage.until(lambda: all(stage.voted(w, DOWN) for w in (A, B, C)))
    stage.until(lambda: min(map(stage.period, (A, B, C))) == 1)
    stage.allow()
    for worker in (A, B, C):
        stage.give_lead(worker, b"\x33" * 32, period=1, original=0)
    stage.until(lambda: stage.decided(A, B, C))
    return stage


def only_one_hears_of_the_end(seed=0):
    """One worker enters period 1; what it says then is lost."""
    stage, _ = s3(seed, entry_lost=True)
    stage.until(lambda: stage.decided(A, B, C), seconds=300)
    return stage


def ballots_nobody_else_has(seed=0):
    """Nobody ever gets another's ballot."""
    stage = Stage(seed)
    stage.forbid(lambda _source, _target, message: isinstance(message, BallotMessage))
    stage.until(lambda: stage.decided(A, B, C), seconds=120)
    return stage


def value_learnt_after_bottom(seed=0):
    """A worker that knows bottom, and voted for a fresh block, learns of a carried value."""
    stage, value = s3(seed, both=True)
    kept = stage.forbid(votes(DOWN, LATE, period=0))
    stage.forbid(leads((A, B), period=1, source=(C,)))
    stage.forbid(votes(SOFT, REDO, DOWN, LATE, period=1))
    stage.hand_bundle(A, DOWN, BOTTOM, (A, C))
    stage.hand_bundle(B, DOWN, BOTTOM, (A, C))
    stage.hand_bundle(C, LATE, value, (B, C))
    stage.until(lambda: stage.voted(A, SOFT, 1) and stage.voted(B, SOFT, 1))
    stage.hand_bundle(B, LATE, value, (B, C))
    stage.until(lambda: recovered(stage, 1) and stage.voted(C, REDO, 1))
    fresh = stage.sent[A, 1, SOFT]
    assert fresh == stage.sent[B, 1, SOFT] != value, stage.story()
    for worker in (A, B):
        stage.hand_bundle(worker, SOFT, fresh, (A, B), period=1)
    stage.until(lambda: stage.voted(A, LATE, 1) and stage.voted(B, LATE, 1))
    assert kept in stage.rules
    return stage
