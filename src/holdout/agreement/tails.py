"""The binomial and the hypergeometric law, without a statistics library.

A law is laid out from its mode outwards by the ratio of neighbouring probabilities, all of them
positive, and divided by their sum. Nothing is subtracted and no logarithm is taken, so a tail of
1e-12 has as many good digits (about 13) as one of 1/2. Terms far below any probability that a plan
asks for are left out.

For one hypergeometric tail, `voting.odds.hypergeometric_tail` is more exact, and fast for any
number of workers. A law is for sums over all counts and for quantiles: a search for a committee's
size takes thousands of them, and with a law each is a walk instead of a bisection over tails.
"""

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

NEGLIGIBLE = 1e-40
"""Terms below this share of the mode's probability are left out."""

RAREST = 1e-25
"""A plan must not ask for events rarer than this."""

LAWS_KEPT = 32  # A law for a million workers takes a megabyte.


@dataclass(frozen=True, slots=True)
class Law:
    """The probabilities of a count in a window of whole numbers; outside they are negligible.

    Attributes:
        first: The window's first number.
        mass: P[X = first + k] at place k.
        below: P[X <= first + k] at place k, summed from the lower end.
        above: P[X >= first + k] at place k, summed from the upper end.
    """

    first: int
    mass: Sequence[float]
    below: Sequence[float]
    above: Sequence[float]

    def at_most(self, count: int) -> float:
        """P[X <= count]."""
        place = count - self.first
        if place < 0:
            return 0.0
        return self.below[place] if place < len(self.below) else 1.0

    def at_least(self, count: int) -> float:
        """P[X >= count]."""
        place = count - self.first
        if place <= 0:
            return 1.0
        return self.above[place] if place < len(self.above) else 0.0

    def lower_quantile(self, chance: float) -> int:
        """The largest m with P[X < m] <= chance: at least m, except with that chance."""
        for place, probability in enumerate(self.below):
            if probability > chance:
                return self.first + place
        return self.first + len(self.below) - 1

    def upper_quantile(self, chance: float) -> int:
        """The smallest m with P[X > m] <= chance: at most m, except with that chance."""
        for place in range(len(self.above) - 1, -1, -1):
            if self.above[place] > chance:
                return self.first + place
        return self.first


@functools.lru_cache(maxsize=LAWS_KEPT)
def binomial(trials: int, tau: int, population: int) -> Law:
    """How many of `trials` workers are drawn if each is with probability tau / population."""
    if tau >= population or trials == 0:
        return _certain(trials)
    if tau <= 0:
        return _certain(0)
    odds = tau / (population - tau)
    mode = min(trials, (trials + 1) * tau // population)
    return _spread(mode, 0, trials, lambda x: (trials - x) / (x + 1) * odds)


@functools.lru_cache(maxsize=LAWS_KEPT)
def hypergeometric(population: int, marked: int, drawn: int) -> Law:
    """How many marked workers are among `drawn` of the population, without replacement."""
    lowest, highest = max(0, drawn - (population - marked)), min(drawn, marked)
    mode = min(highest, max(lowest, (drawn + 1) * (marked + 1) // (population + 2)))
    spare = population - marked - drawn + 1
    return _spread(
        mode, lowest, highest, lambda x: (marked - x) * (drawn - x) / ((x + 1) * (spare + x))
    )


def _certain(count: int) -> Law:
    return Law(count, (1.0,), (1.0,), (1.0,))


def _spread(mode: int, lowest: int, highest: int, ratio: Callable[[int], float]) -> Law:
    """The law with P[X = x + 1] / P[X = x] = ratio(x), around its mode."""
    right = [1.0]
    x = mode
    while x < highest and right[-1] > NEGLIGIBLE:
        right.append(right[-1] * ratio(x))
        x += 1
    left = [1.0]
    x = mode
    while x > lowest and left[-1] > NEGLIGIBLE:
        x -= 1
        left.append(left[-1] / ratio(x))
    terms = left[:0:-1] + right
    total = math.fsum(terms)
    mass = [term / total for term in terms]
    below = list(itertools.accumulate(mass))
    above = list(itertools.accumulate(reversed(mass)))[::-1]
    return Law(mode - len(left) + 1, mass, below, above)
