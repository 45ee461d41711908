"""The lottery: who has which role in a round.

A worker proves one VRF output for each (round, role, period, step), so that no message reveals
what else its sender was drawn for. The output makes the worker's ticket, a number below 2^256; it
is drawn if the ticket lies below `floor(tau * 2^256 / n)`. All of it is integer arithmetic: every
verifier gets the same answer. The public draw of fixed size, `shuffled`, needs no VRF.
"""

import functools
from enum import StrEnum
from hashlib import sha256

from holdout.agreement.codec import BOTTOM, blob, digest, text, u8, u32, u64
from holdout.errors import MisuseError
from holdout.ids import Digest

TICKETS = 1 << 256


class Role(StrEnum):
    """What a worker can be drawn for; the letter is what is encoded."""

    PROPOSER = "P"
    VOTER = "V"
    LEADER = "L"
    COMMITTEE = "C"


def alpha(  # noqa: PLR0917  # The order in which it is encoded.
    chain: Digest, seed: Digest, round_number: int, role: Role, period: int = 0, step: int = 0
) -> bytes:
    """What the VRF is asked: one question for each draw, none shared by two roles."""
    if period and role in (Role.PROPOSER, Role.VOTER):
        raise MisuseError(f"role {role} is drawn once a round; got period {period}")
    if step and role is not Role.COMMITTEE:
        raise MisuseError(f"role {role} is not drawn for each step; got step {step}")
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
    """The tickets below this are drawn: of `population` workers `tau` are expected."""
    if population < 1 or tau < 0:
        raise MisuseError(f"a draw needs tau >= 0 of at least one; got {tau} of {population}")
    return TICKETS if tau >= population else tau * TICKETS // population


def ticket(out: bytes, worker: int) -> int:
    """The worker's number; its index makes one key in two roster slots draw independently."""
    return int.from_bytes(digest("ticket", blob(out), u32(worker)), "big")


def drawn(out: bytes, worker: int, tau: int, n: int) -> bool:
    """Whether this output gives the worker the role."""
    return ticket(out, worker) < threshold(tau, n)


def priority(out: bytes, worker: int) -> bytes:
    """Leaders are ranked by this; the lowest wins. Its tag keeps it independent of the ticket."""
    return digest("prio", blob(out), u32(worker))


@functools.lru_cache(maxsize=64)  # Everybody in a simulated cluster asks for the same draw.
def shuffled(  # noqa: PLR0917  # The order in which it is hashed.
    chain: Digest, seed: Digest, round_number: int, label: int | Role, n: int, size: int
) -> tuple[int, ...]:
    """The public draw of fixed size: the `size` workers with the smallest hashes, in order.

    The label is the period for the consensus committee, a role for proposers and voters.
    """
    if not 0 <= size <= n:
        raise MisuseError(f"a draw takes at most all workers; got {size} of {n}")
    # A role is encoded longer than a period, so no two labels share their bytes.
    name = text(label) if isinstance(label, Role) else u32(label)
    start = sha256(text("shuffle") + blob(chain) + blob(seed) + u64(round_number) + name)

    def place(worker: int) -> bytes:
        rest = start.copy()
        rest.update(u32(worker))
        return rest.digest()

    return tuple(sorted(sorted(range(n), key=place)[:size]))


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
