"""How the seed of the lottery goes on from block to block."""

from hashlib import sha256

import pytest

from holdout.agreement.codec import BOTTOM, blob, digest, u8, u32, u64
from holdout.agreement.sortition import (
    LOOKBACK,
    REFRESH,
    genesis_seeds,
    needs_old_block,
    next_seed,
    seed_alpha,
)

CHAIN = digest("chain")
SEED = digest("some seed")
OUT = bytes(range(64))


def test_the_first_two_seeds_come_from_the_chain():
    before, first = genesis_seeds(CHAIN)
    assert before == digest("seed-genesis", blob(CHAIN), u8(1))
    assert first == digest("seed-genesis", blob(CHAIN), u8(0))
    assert genesis_seeds(digest("another chain"))[0] != before


def test_a_first_period_moves_the_seed_by_the_leader_s_output():
    moved = digest("seed-vrf", blob(OUT), u32(7))
    assert next_seed(9, SEED, 7, OUT) == digest("seed-next", blob(moved), blob(BOTTOM))


def test_a_later_period_moves_it_by_a_hash_that_no_leader_influences():
    moved = digest("seed-hash", u64(9), blob(SEED))
    expected = digest("seed-next", blob(moved), blob(BOTTOM))
    assert {next_seed(9, SEED, leader, None) for leader in range(5)} == {expected}


def test_the_same_by_hand():
    tagged = lambda tag, body: sha256(len(tag).to_bytes(4, "big") + tag + body).digest()  # noqa: E731  # As short as the definition.
    moved = tagged(b"seed-vrf", (64).to_bytes(4, "big") + OUT + (7).to_bytes(4, "big"))
    length = (32).to_bytes(4, "big")
    assert next_seed(9, SEED, 7, OUT, CHAIN) == tagged(
        b"seed-next", length + moved + length + CHAIN
    )


def test_each_input_counts():
    other = digest("other")
    seeds = [
        next_seed(9, SEED, 7, OUT),
        next_seed(9, SEED, 8, OUT),
        next_seed(9, SEED, 7, OUT[::-1]),
        next_seed(9, SEED, 7, None),
        next_seed(10, SEED, 7, None),
        next_seed(9, other, 7, None),
        next_seed(9, SEED, 7, OUT, other),
        next_seed(9, SEED, 7, None, other),
    ]
    assert len(set(seeds)) == len(seeds)


def test_what_the_leader_proves_names_chain_round_and_seed():
    asked = seed_alpha(CHAIN, 3, SEED)
    assert asked == b"\0\0\0\x04seed" + blob(CHAIN) + u64(3) + blob(SEED)
    assert asked not in {seed_alpha(CHAIN, 4, SEED), seed_alpha(SEED, 3, CHAIN)}


@pytest.mark.parametrize(
    ("round_number", "old"),
    [
        (1, None),
        (99, None),
        (100, None),
        (101, 1),
        (102, None),
        (199, None),
        (200, 100),
        (201, 101),
    ],
)
def test_an_old_block_comes_in_once_for_each_interleaved_chain(round_number, old):
    assert needs_old_block(round_number, LOOKBACK, REFRESH) == old


@pytest.mark.parametrize(("lookback", "refresh"), [(1, 1), (2, 3), (3, 2)])
def test_refreshed_rounds_follow_the_formula(lookback, refresh):
    interval = lookback * refresh
    for r in range(1, 50):
        refreshes = r % interval < lookback and r > interval
        assert needs_old_block(r, lookback, refresh) == (r - interval if refreshes else None)
