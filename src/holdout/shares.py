"""Shares of the workers, exact: 0.33 is 33/100, never the binary number nearest to it."""

import math
import re
from fractions import Fraction


def read_share(value: object) -> Fraction | int:
    """An exact share of the workers, or (a whole number from 1) a count of them.

    A float means the decimal that was written, not the binary number nearest to it.

    >>> read_share(0.33), read_share("1/3"), read_share("33"), read_share(33)
    (Fraction(33, 100), Fraction(1, 3), 33, 33)
    """
    refusal = ValueError('must be a share such as 0.33 or "1/3", or a whole number of workers')
    if isinstance(value, bool) or not isinstance(value, int | float | str | Fraction):
        raise refusal
    # An exponent of many digits would keep the exact arithmetic busy for hours.
    if isinstance(value, str) and re.search(r"e[-+]?[0-9_]{4}", value.lower()):
        raise refusal
    try:
        share = Fraction(repr(value)) if isinstance(value, float) else Fraction(value)
    except (ValueError, ZeroDivisionError):
        raise refusal from None
    if share < 0:
        raise ValueError("must not be negative")
    if share < 1:
        return share
    whole = value.strip().isdecimal() if isinstance(value, str) else not isinstance(value, float)
    if not whole or share.denominator != 1:
        raise ValueError("must be a share below 1, or a whole number of workers")
    return int(share)


def write_share(share: Fraction | int) -> float | int | str:
    """The shortest way to write a share that reads back exactly."""
    if isinstance(share, int):
        return share
    decimal = float(share)
    return decimal if Fraction(repr(decimal)) == share else str(share)


def byzantine_count(share: Fraction | int, workers: int) -> int:
    """How many of the workers are Byzantine: floor(share * n), or the number itself."""
    return share if isinstance(share, int) else math.floor(share * workers)
