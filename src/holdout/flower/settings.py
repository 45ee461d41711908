"""What our strategies take besides `FedAvg`'s arguments; all mistakes are reported at once."""

import math
import secrets
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from holdout.shares import read_share

SEED_BITS = 53
"""Of a seed that nobody chose: unguessable, and exact in any reader of JSON."""


@dataclass(frozen=True, slots=True)
class StrategySettings:
    """As given by the user."""

    num_proposers: int | None
    byzantine_fraction: float | str | Fraction
    propose_timeout: float
    evaluate_timeout: float
    connect_timeout: float
    seed: int | None
    run_folder: Path | str | None
    name: str
    attack: str

    def problems(self) -> list[str]:
        """Every mistake among them."""
        found = [
            *count_problems("num_proposers", self.num_proposers),
            *count_problems("seed", self.seed, least=0),
        ]
        try:
            self.exact_fraction()
        except ValueError as error:
            found.append(f"byzantine_fraction = {self.byzantine_fraction!r}: {error}")
        limits = {
            "propose_timeout": self.propose_timeout,
            "the timeout of votes and evaluations": self.evaluate_timeout,
            "connect_timeout": self.connect_timeout,
        }
        found += [
            f"{what} = {seconds!r}: must be a positive number of seconds"
            for what, seconds in limits.items()
            if not 0 < seconds < math.inf
        ]
        return found

    def exact_fraction(self) -> Fraction:
        """The assumed Byzantine share f; a ValueError if it is none."""
        share = read_share(self.byzantine_fraction)
        if isinstance(share, int) or share >= Fraction(1, 2):
            raise ValueError("must be a share below 1/2")
        return share

    def own_seed(self) -> int:
        """The seed, or a secret one: who can foresee the draws can choose when to lie."""
        return secrets.randbits(SEED_BITS) if self.seed is None else self.seed


def count_problems(what: str, value: int | None, *, least: int = 1) -> list[str]:
    """A complaint about what is no whole number of at least so much."""
    if value is None or (type(value) is int and value >= least):
        return []
    return [f"{what} = {value!r}: must be a whole number, {least} or more"]
