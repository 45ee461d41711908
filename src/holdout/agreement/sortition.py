"""The lottery: who has which role in a round.

A worker proves one VRF output for each (round, role, period, step), so that no message reveals
what else its sender was drawn for. The output makes the worker's ticket, a number below 2^256; it
is drawn if the ticket lies below `floor(tau * 2^256 / n)`. All of it is integer arithmetic: every
verifier gets the same answer. The public draw of fixed size, `shuffled`, needs no VRF.
"""

import functools
from enum import StrEnum
from hashlib import sha256

from holdout.agreement.codec import blob, digest, text, u8, u32, u64
from holdout.errors import MisuseError
from holdout.ids import Digest

TICKETS = 1 << 256
WEIGHT_MAX = 1000
"""A weight costs as many hashes, for everybody who checks it."""


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


def weight(out: bytes, worker: int, tau: int, total_weight: int, worker_weight: int) -> int:
    """How many of the worker's sub-workers are drawn."""
    return len(_drawn_parts(out, worker, tau, total_weight, worker_weight))


def priority(out: bytes, worker: int) -> bytes:
    """Leaders are ranked by this; the lowest wins. Its tag keeps it independent of the ticket."""
    return digest("prio", blob(out), u32(worker))


def weighted_priority(
    out: bytes, worker: int, tau: int, total_weight: int, worker_weight: int
) -> bytes | None:
    """The lowest priority among the drawn sub-workers; None if none of them is drawn."""
    parts = _drawn_parts(out, worker, tau, total_weight, worker_weight)
    return min((digest("prio", blob(out), u32(worker), u32(part)) for part in parts), default=None)


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


def _drawn_parts(
    out: bytes, worker: int, tau: int, total_weight: int, worker_weight: int
) -> list[int]:
    if not 0 <= worker_weight <= min(WEIGHT_MAX, total_weight):
        raise MisuseError(
            f"a weight lies between 0 and {WEIGHT_MAX} and is part of the total; "
            f"got {worker_weight} of {total_weight}"
        )
    limit = threshold(tau, total_weight)
    return [
        part
        for part in range(worker_weight)
        if int.from_bytes(digest("ticket", blob(out), u32(worker), u32(part)), "big") < limit
    ]
