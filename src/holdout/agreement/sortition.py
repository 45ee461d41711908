"""The lottery: who has which role in a round.

A worker proves one VRF output for each (round, role, period, step), so that no message reveals
what else its sender was drawn for. The output makes the worker's ticket, a number below 2^256; it
is drawn if the ticket lies below `floor(tau * 2^256 / n)`. All of it is integer arithmetic: every
verifier gets the same answer. The public draw of fixed size, `shuffled`, needs no VRF.

The seed of the lottery is carried on from block to block: Q[r] is the seed in the block of round r,
and round r draws with Q[r - L]. With the look-back L = 2 the seed of the next round is already
certified while this one runs. A block of period 0 moves the seed by its leader's VRF, which has one
possible value; later periods move it by a hash, so that nobody gains by making a period fail. Once
in L * R rounds (R is the refresh interval) the digest of an old block is mixed in as well, which
ends any stretch of seeds that a long asynchrony has made predictable.
"""

import functools
from enum import StrEnum
from hashlib import sha256

from holdout.agreement.codec import BOTTOM, blob, digest, text, u8, u32, u64
from holdout.errors import MisuseError
from holdout.ids import Digest

TICKETS = 1 << 256
LOOKBACK = 2
"""The usual L."""
REFRESH = 50
"""The usual R."""


class Role(StrEnum):
    """What a worker can be drawn for; the letter is part of the VRF's input."""

    PROPOSER = "P"
    VOTER = "V"
    LEADER = "L"
    COMMITTEE = "C"


def alpha(  # noqa: PLR0917  # The order in which it is encoded.
    chain: Digest, seed: Digest, round_number: int, role: Role, period: int = 0, step: int = 0
) -> bytes:
    """The input of the VRF for a draw: each draw has its own."""
    if period and role in (Role.PROPOSER, Role.VOTER):
        raise MisuseError(f"role {role} is drawn once per round; got period {period}")
    if step and role is not Role.COMMITTEE:
        raise MisuseError(f"role {role} is not drawn anew for each step; got step {step}")
    return b"".join(
        (
            text("sortition"),
            blob(chain),
            blob(seed),
            u64(round_number),
            text(role),
            u32(period),
            u8(step),
        )
    )


def threshold(tau: int, population: int) -> int:
    """Tickets below this are drawn: `tau` of `population` workers, on average."""
    if population < 1 or tau < 0:
        raise MisuseError(
            f"a draw needs tau >= 0 and at least one worker; got {tau} of {population}"
        )
    return TICKETS if tau >= population else tau * TICKETS // population


def ticket(out: bytes, worker: int) -> int:
    """The worker's ticket; its index is hashed too, so that a key listed twice draws twice."""
    return int.from_bytes(digest("ticket", blob(out), u32(worker)), "big")


def drawn(out: bytes, worker: int, tau: int, n: int) -> bool:
    """Whether this VRF output gives the worker the role."""
    return ticket(out, worker) < threshold(tau, n)


def priority(out: bytes, worker: int) -> bytes:
    """What leaders are ranked by, lowest first; its tag makes it independent of the ticket."""
    return digest("prio", blob(out), u32(worker))


@functools.lru_cache(maxsize=64)  # Everybody in a simulated cluster asks for the same draw.
def shuffled(  # noqa: PLR0917  # The order in which it is hashed.
    chain: Digest, seed: Digest, round_number: int, label: int | Role, n: int, size: int
) -> tuple[int, ...]:
    """The public draw of fixed size: the `size` workers with the smallest hashes, in order.

    The label tells draws of a round apart: for the consensus committee it is the period, for
    proposers and voters the role.
    """
    if not 0 <= size <= n:
        raise MisuseError(f"a draw takes from none to all of the workers; got {size} of {n}")
    # A role is encoded longer than a period, so no two labels share their bytes.
    name = text(label) if isinstance(label, Role) else u32(label)
    start = sha256(text("shuffle") + blob(chain) + blob(seed) + u64(round_number) + name)

    def place(worker: int) -> bytes:
        rest = start.copy()
        rest.update(u32(worker))
        return rest.digest()

    return tuple(sorted(sorted(range(n), key=place)[:size]))


def genesis_seeds(chain: Digest) -> tuple[Digest, Digest]:
    """Q[-1] and Q[0], the seeds of rounds 1 and 2."""
    return (
        digest("seed-genesis", blob(chain), u8(1)),
        digest("seed-genesis", blob(chain), u8(0)),
    )


def seed_alpha(chain: Digest, round_number: int, seed_in: Digest) -> bytes:
    """The input of a leader's VRF for the next seed; `seed_in` is Q[r - L]."""
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
        vrf_out: The leader's VRF output for `seed_alpha` if that period was 0, otherwise None.
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
