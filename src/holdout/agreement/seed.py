"""The seed of each round's lottery, carried on from block to block.

Round r draws with `Q[r - L]`, look-back L = 2, so the seed of the next round is already certified
while this one runs. A block of period 0 moves the seed by its leader's VRF, of which there is one
possible value; later periods move it by a hash, so that nobody gains by making a period fail. Once
in L * R rounds (R the refresh interval) the digest of an old block comes in as well, which ends a
stretch that long asynchrony has made predictable.
"""

from holdout.agreement.codec import BOTTOM, blob, digest, text, u8, u32, u64
from holdout.ids import Digest

LOOKBACK = 2
"""L, unless a network chooses another."""
REFRESH = 50
"""R, likewise."""


def genesis_seeds(chain: Digest) -> tuple[Digest, Digest]:
    """Q[-1] and Q[0], the seeds of rounds 1 and 2."""
    return (
        digest("seed-genesis", blob(chain), u8(1)),
        digest("seed-genesis", blob(chain), u8(0)),
    )


def seed_alpha(chain: Digest, round_number: int, seed_in: Digest) -> bytes:
    """What the leader's VRF is asked; `seed_in` is Q[r - L], the seed that round r draws with."""
    return text("seed") + blob(chain) + u64(round_number) + blob(seed_in)


def next_seed(
    round_number: int,
    seed_in: Digest,
    leader: int,
    vrf_out: bytes | None,
    old_block: Digest | None = None,
) -> Digest:
    """Q[r], for the block of round r.

    Args:
        round_number: The round r.
        seed_in: Q[r - L].
        leader: The leader of the block's original period.
        vrf_out: Its VRF output for `seed_alpha` if that period was 0, otherwise None.
        old_block: The digest of the block that `needs_old_block` names, if it names one.
    """
    moved = (
        digest("seed-hash", u64(round_number), blob(seed_in))
        if vrf_out is None
        else digest("seed-vrf", blob(vrf_out), u32(leader))
    )
    return digest("seed-next", blob(moved), blob(BOTTOM if old_block is None else old_block))


def needs_old_block(round_number: int, lookback: int, refresh: int) -> int | None:
    """The round of the old block that refreshes Q[r], or None in most rounds."""
    interval = lookback * refresh
    refreshes = round_number % interval < lookback and round_number > interval
    return round_number - interval if refreshes else None
