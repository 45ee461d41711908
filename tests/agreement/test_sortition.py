"""The lottery: exact thresholds, independent draws, and why its tickets must be unique."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nacl import bindings as sodium

from holdout.agreement import ecvrf, sortition
from holdout.agreement.codec import blob, digest, text, u8, u32, u64
from holdout.agreement.ed25519 import Ed25519Signer, Ed25519Verifier
from holdout.agreement.keys import SimulatedKeys
from holdout.agreement.sortition import (
    TICKETS,
    Role,
    alpha,
    drawn,
    priority,
    shuffled,
    threshold,
    ticket,
)
from holdout.errors import MisuseError

CHAIN = digest("chain")
SEED = digest("seed")
OUTPUTS = st.binary(min_size=64, max_size=64)


# --- Questions ---


def test_the_question_is_encoded_as_designed():
    assert alpha(CHAIN, SEED, 7, Role.COMMITTEE, 2, 3) == (
        text("sortition") + blob(CHAIN) + blob(SEED) + u64(7) + text("C") + u32(2) + u8(3)
    )
    assert [str(role) for role in Role] == ["P", "V", "L", "C"]


def test_no_two_draws_ask_the_same():
    other = digest("other")
    asked = [
        alpha(CHAIN, SEED, 7, Role.PROPOSER),
        alpha(CHAIN, SEED, 7, Role.VOTER),
        alpha(CHAIN, SEED, 8, Role.VOTER),
        alpha(CHAIN, other, 7, Role.VOTER),
        alpha(other, SEED, 7, Role.VOTER),
        *(alpha(CHAIN, SEED, 7, Role.LEADER, period) for period in range(3)),
        *(alpha(CHAIN, SEED, 7, Role.COMMITTEE, p, s) for p in range(3) for s in range(5)),
    ]
    assert len(set(asked)) == len(asked)


@pytest.mark.parametrize(
    ("role", "period", "step"),
    [(Role.PROPOSER, 1, 0), (Role.VOTER, 0, 1), (Role.LEADER, 0, 1), (Role.LEADER, 1, 1)],
)
def test_a_draw_that_does_not_exist_is_our_bug(role, period, step):
    with pytest.raises(MisuseError, match=f"role {role} is"):
        alpha(CHAIN, SEED, 1, role, period, step)


# --- Thresholds ---


@pytest.mark.parametrize(
    ("tau", "n", "expected"),
    [
        (0, 1, 0),
        (0, 100, 0),
        (1, 1, TICKETS),
        (100, 100, TICKETS),
        (101, 100, TICKETS),
        (1, 2, 1 << 255),
        (1, 3, (TICKETS - 1) // 3),
        (99, 100, TICKETS * 99 // 100),
    ],
)
def test_thresholds_are_exact(tau, n, expected):
    assert threshold(tau, n) == expected


@given(st.integers(1, 10**6), st.integers(0, 10**6))
def test_thresholds_are_the_floor_and_grow_with_tau(n, tau):
    t = threshold(tau, n)
    if tau < n:
        assert t * n <= tau * TICKETS < (t + 1) * n
    assert t <= threshold(tau + 1, n) <= TICKETS


@pytest.mark.parametrize(("tau", "n"), [(-1, 10), (1, 0), (1, -1)])
def test_a_draw_of_nobody_is_our_bug(tau, n):
    with pytest.raises(MisuseError, match="a draw needs"):
        threshold(tau, n)


@given(OUTPUTS, st.integers(0, 2**32 - 1), st.integers(1, 1000))
def test_nobody_is_drawn_at_zero_and_everybody_from_n_on(out, worker, n):
    assert not drawn(out, worker, 0, n)
    assert drawn(out, worker, n, n)
    assert drawn(out, worker, n + 1, n)


@given(OUTPUTS, st.integers(0, 99), st.integers(0, 99))
def test_who_is_drawn_stays_drawn_when_more_are(out, worker, tau):
    assert drawn(out, worker, tau, 100) <= drawn(out, worker, tau + 1, 100)
    assert drawn(out, worker, tau, 100) == (ticket(out, worker) < threshold(tau, 100))


@pytest.mark.parametrize(("short_by", "expected"), [(1, True), (0, False), (-1, False)])
def test_the_threshold_itself_is_not_drawn(monkeypatch, short_by, expected):
    at = threshold(3, 10) - short_by
    monkeypatch.setattr(sortition, "ticket", lambda *_: at)
    assert drawn(bytes(64), 0, 3, 10) is expected


def test_tickets_and_priorities_are_pinned():
    out = bytes(range(64))
    assert ticket(out, 3) == int.from_bytes(digest("ticket", blob(out), u32(3)), "big")
    assert priority(out, 3) == digest("prio", blob(out), u32(3))
    assert len({ticket(out, worker) for worker in range(50)}) == 50


def test_draws_come_as_often_as_tau_over_n_and_do_not_depend_on_each_other():
    n, rounds, tau = 40, 200, 10
    keys = SimulatedKeys(5, n)
    both = {True: 0, False: 0}
    count = 0
    for r in range(rounds):
        for i in range(n):
            is_drawn = [
                drawn(keys.signer(i).prove(alpha(CHAIN, SEED, r, role))[1], i, tau, n)
                for role in (Role.PROPOSER, Role.VOTER)
            ]
            count += is_drawn[0]
            both[is_drawn[0]] += is_drawn[1]
    # 8000 draws with q = 1/4: the standard deviation is 39, of the conditional counts 19 and 34.
    assert abs(count - 2000) < 160
    assert abs(both[True] - count / 4) < 80
    assert abs(both[False] - (n * rounds - count) / 4) < 140


# --- The public draw ---


@given(st.integers(1, 60), st.data())
def test_the_public_draw_takes_the_smallest_hashes(n, data):
    size = data.draw(st.integers(0, n))
    period = data.draw(st.integers(0, 5))
    hashes = {
        i: digest("shuffle", blob(CHAIN), blob(SEED), u64(9), u32(period), u32(i)) for i in range(n)
    }
    expected = sorted(sorted(hashes, key=hashes.__getitem__)[:size])
    assert shuffled(CHAIN, SEED, 9, period, n, size) == tuple(expected)


def test_each_period_and_role_has_its_own_public_draw():
    labels = [0, 1, 2, Role.PROPOSER, Role.VOTER]
    made = {shuffled(CHAIN, SEED, 9, label, 100, 50) for label in labels}
    assert len(made) == 5
    by_hand = sorted(
        range(100),
        key=lambda i: digest("shuffle", blob(CHAIN), blob(SEED), u64(9), text("V"), u32(i)),
    )
    assert shuffled(CHAIN, SEED, 9, Role.VOTER, 100, 50) == tuple(sorted(by_hand[:50]))


@pytest.mark.parametrize("size", [-1, 11])
def test_a_public_draw_of_more_than_all_is_our_bug(size):
    with pytest.raises(MisuseError, match="from none to all of the workers"):
        shuffled(CHAIN, SEED, 1, 0, 10, size)


# --- Z6: why a signature must not be the lottery ---

ROUNDS, TRIES, TAU, POPULATION = 40, 60, 10, 100


def other_signature(seed, message, attempt):
    """A valid Ed25519 signature with a nonce of the signer's choice."""
    key = ecvrf.SecretKey.from_seed(seed)  # The same expansion as Ed25519's.
    nonce = sodium.crypto_core_ed25519_scalar_reduce(digest(f"nonce {attempt}") + digest("more"))
    point = sodium.crypto_scalarmult_ed25519_base_noclamp(nonce)
    hashed = ecvrf.sha512(point + key.public + message).digest()
    product = sodium.crypto_core_ed25519_scalar_mul(
        sodium.crypto_core_ed25519_scalar_reduce(hashed), key.scalar
    )
    return point + sodium.crypto_core_ed25519_scalar_add(nonce, product)


def other_proof(seed, asked, attempt):
    """A valid VRF proof with a nonce of the prover's choice."""
    key = ecvrf.SecretKey.from_seed(seed)
    point = ecvrf.encode_to_curve(key.public, asked)
    gamma = sodium.crypto_scalarmult_ed25519_noclamp(key.scalar, point)
    nonce = sodium.crypto_core_ed25519_scalar_reduce(digest(f"nonce {attempt}") + digest("more"))
    challenge = ecvrf._challenge(
        key.public,
        point,
        gamma,
        sodium.crypto_scalarmult_ed25519_base_noclamp(nonce),
        sodium.crypto_scalarmult_ed25519_noclamp(nonce, point),
    )
    product = sodium.crypto_core_ed25519_scalar_mul(challenge + bytes(16), key.scalar)
    return gamma + challenge + sodium.crypto_core_ed25519_scalar_add(nonce, product)


def test_grinding_wins_every_draw_if_signatures_are_tickets_and_none_with_the_vrf():
    signing_seed, vrf_seed = b"s" * 32, b"v" * 32
    public = Ed25519Signer.from_seeds(signing_seed, vrf_seed).public
    verifier = Ed25519Verifier()
    honest = ground = vrf_wins = vrf_ground = 0
    for r in range(ROUNDS):
        asked = alpha(CHAIN, SEED, r, Role.VOTER)
        tickets = []
        for attempt in range(TRIES):
            signature = other_signature(signing_seed, asked, attempt)
            assert verifier.signature(public.signing, asked, signature)
            tickets.append(drawn(signature, 0, TAU, POPULATION))
        honest += tickets[0]
        ground += any(tickets)
        outputs = [
            verifier.vrf(public.vrf, asked, other_proof(vrf_seed, asked, attempt))
            for attempt in range(3)
        ]
        assert len(set(outputs)) == 1
        assert None not in outputs
        vrf_wins += drawn(outputs[0], 0, TAU, POPULATION)
        vrf_ground += any(drawn(out, 0, TAU, POPULATION) for out in outputs)
    # q = 1/10: four of forty are expected. Sixty tries miss once in 560 rounds.
    assert ground >= ROUNDS - 1
    assert honest <= 10
    assert vrf_ground == vrf_wins <= 10
