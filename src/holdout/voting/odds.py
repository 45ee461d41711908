"""How likely a random draw is bad, and how large a committee must be (section "Honest Majority").

A draw of N from n workers of whom b are Byzantine holds X Byzantines, X hypergeometric. Two events
matter: a Byzantine majority, X >= N/2 (the Lemma), and an overflow, X > N - ceil((1-f) N): then
every full ballot must endorse some Byzantine proposal, however bad. The latter is far likelier.
"""

import bisect
import math
from fractions import Fraction

from holdout.voting.committee import approve_count

EXACT_WORKERS_MAX = 20_000  # Integers grow with n; beyond this, logarithms (to about 1e-9) do.
FACTORS_MAX = 20_000  # Of larger draws a sum of all factors takes too long.


def hypergeometric_tail(*, workers: int, byzantine: int, drawn: int, at_least: int) -> float:
    """P[X >= at_least]: exact but for the rounding of floats."""
    lowest = max(0, drawn - (workers - byzantine))
    highest = min(drawn, byzantine)
    if at_least <= lowest:
        return 1.0
    if at_least > highest:
        return 0.0
    x = at_least
    term = _probability(workers, byzantine, drawn, x)
    terms = []
    while x <= highest and term > 0.0:
        terms.append(term)
        honest_left = workers - byzantine - drawn + x + 1
        term *= (byzantine - x) * (drawn - x) / ((x + 1) * honest_left)
        x += 1
    return min(1.0, math.fsum(terms))


def _probability(workers: int, byzantine: int, drawn: int, x: int) -> float:
    """P[X = x]."""
    choices = ((byzantine, x), (workers - byzantine, drawn - x), (workers, drawn))
    if workers <= EXACT_WORKERS_MAX:
        first, second, all_draws = (math.comb(n, k) for n, k in choices)
        # Python divides integers of any size with one rounding at the end.
        return first * second / all_draws
    first_log, second_log, all_log = (_log_choices(n, k) for n, k in choices)
    return math.exp(first_log + second_log - all_log)


def _log_choices(n: int, k: int) -> float:
    """The logarithm of n over k."""
    if k <= FACTORS_MAX:
        # One by one: of numbers as large as these, differences of `lgamma` keep few digits.
        return math.fsum(math.log((n - i) / (i + 1)) for i in range(k))
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


def majority_failure(*, workers: int, byzantine: int, drawn: int) -> float:
    """P[X >= N/2]: the draw has no honest majority."""
    return hypergeometric_tail(
        workers=workers, byzantine=byzantine, drawn=drawn, at_least=(drawn + 1) // 2
    )


def overflow(*, workers: int, byzantine: int, drawn: int, f: Fraction) -> float:
    """P[X > N - ceil((1-f) N)]: a full ballot has no room to leave every Byzantine out."""
    return hypergeometric_tail(
        workers=workers,
        byzantine=byzantine,
        drawn=drawn,
        at_least=drawn - approve_count(drawn, f) + 1,
    )


def any_of(rounds: int, probability: float) -> float:
    """The chance that an event of this probability happens in at least one of `rounds` draws."""
    if probability >= 1.0:
        return 1.0
    return -math.expm1(rounds * math.log1p(-probability))


def chernoff_size(*, f: Fraction, draws: int, delta: float) -> int:
    """The paper's N(T, delta), rounded up: enough whatever n is, and usually far more."""
    factor = 2 * (1 + 2 * f) / (1 - 2 * f) ** 2
    return math.ceil(float(factor) * math.log(draws / delta))


def exact_size(*, workers: int, byzantine: int, draws: int, delta: float) -> int | None:
    """The smallest N <= n with draws * P[X >= N/2] <= delta; None where there is none.

    An even N counts a tie as failure, so P jumps up and down with parity. Among odd N alone, and
    among even N alone, it falls whenever honest workers are the majority: two more draws turn
    failure into success with more weight than the reverse, in the ratio of at least
    (n - b - j - 1) / (b - j - 1) > 1 for N = 2j + 1 (alike for even N). So each half is bisected.
    """
    if 2 * byzantine >= workers:
        return None

    def suffices(size: int) -> bool:
        return draws * majority_failure(workers=workers, byzantine=byzantine, drawn=size) <= delta

    candidates = []
    for parity in (1, 2):
        sizes = range(parity, workers + 1, 2)
        place = bisect.bisect_left(sizes, x=True, key=suffices)
        if place < len(sizes):
            candidates.append(sizes[place])
    return min(candidates, default=None)
