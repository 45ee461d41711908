"""How likely a random draw is bad, and how large a committee must be (section "Honest Majority").

A draw of N from n workers of whom b are Byzantine holds X Byzantines, X hypergeometric. Two events
matter: a Byzantine majority, X >= N/2 (the Lemma), and an overflow, X > N - ceil((1-f) N): then
every full ballot must endorse some Byzantine proposal, however bad. The latter is far likelier.
"""

import bisect
import math
from collections.abc import Iterator
from fractions import Fraction

from holdout.voting.committee import approve_count

EXACT_WORKERS_MAX = 20_000  # Binomial coefficients grow with n; beyond this, Stirling's series.
NEGLIGIBLE = (
    1e-25  # Of a tail's first and largest term: what is smaller no longer shows in the sum.
)
SERIES_FROM = 16  # The next term of Stirling's series, 691 / (360360 n^11), is below rounding.


def hypergeometric_tail(*, workers: int, byzantine: int, drawn: int, at_least: int) -> float:
    """P[X >= at_least]: exact but for the rounding of floats.

    `agreement.tails` has a second way to the same law. It lays out the whole law once, which suits
    quantiles of at most 10,000 workers. This one takes a single tail of up to 10^15 workers, in
    which a law has too many terms, and keeps tails below 1e-40, which a law leaves out.
    """
    lowest = max(0, drawn - (workers - byzantine))
    highest = min(drawn, byzantine)
    if at_least <= lowest:
        return 1.0
    if at_least > highest:
        return 0.0
    if at_least * workers <= drawn * byzantine:
        # From below the mean the first terms may be too small for a float. The other tail, of
        # more than drawn - at_least honest workers, is at most about 1/2: subtract it instead.
        return 1.0 - hypergeometric_tail(
            workers=workers,
            byzantine=workers - byzantine,
            drawn=drawn,
            at_least=drawn - at_least + 1,
        )
    return min(1.0, math.fsum(_falling_terms(workers, byzantine, drawn, at_least)))


def _falling_terms(workers: int, byzantine: int, drawn: int, first: int) -> Iterator[float]:
    """P[X = x] for x = first, first + 1, ..., where `first` lies above the mean."""
    term = _probability(workers, byzantine, drawn, first)
    smallest = NEGLIGIBLE * term
    for x in range(first, min(drawn, byzantine) + 1):
        if term <= smallest:
            return
        yield term
        honest_left = workers - byzantine - drawn + x + 1
        term *= (byzantine - x) * (drawn - x) / ((x + 1) * honest_left)


def _probability(workers: int, byzantine: int, drawn: int, x: int) -> float:
    """P[X = x]."""
    if workers <= EXACT_WORKERS_MAX:
        choices = ((byzantine, x), (workers - byzantine, drawn - x), (workers, drawn))
        first, second, all_draws = (math.comb(n, k) for n, k in choices)
        # Python divides integers of any size with one rounding at the end.
        return first * second / all_draws
    # A 2x2 table, Byzantine or honest by drawn or not, after Loader (2000): Stirling's formula for
    # the nine factorials, with its large terms gathered into each cell's deviance from the count
    # expected there. The logarithm of a factorial may be 10^16, with no digit left after the point.
    margins = (byzantine, workers - byzantine, drawn, workers - drawn)
    cells = (
        (x, byzantine * drawn),
        (byzantine - x, byzantine * (workers - drawn)),
        (drawn - x, (workers - byzantine) * drawn),
        (workers - byzantine - drawn + x, (workers - byzantine) * (workers - drawn)),
    )
    return math.exp(
        math.fsum(
            [
                *map(_stirling_rest, margins),
                -_stirling_rest(workers),
                *(-_stirling_rest(count) for count, _ in cells),
                *(-_deviance(count, product, workers) for count, product in cells),
            ]
        )
    )


def _stirling_rest(n: int) -> float:
    """The part of log n! that n log n - n leaves out."""
    if n < SERIES_FROM:
        return math.log(math.factorial(n)) - (n * math.log(n) - n if n else 0)
    inverse = 1 / (n * n)
    series = 1 / 12 - inverse * (
        1 / 360 - inverse * (1 / 1260 - inverse * (1 / 1680 - inverse / 1188))
    )
    return math.log(2 * math.pi * n) / 2 + series / n


def _deviance(count: int, product: int, workers: int) -> float:
    """How far a count c is from the expected e = product / workers: c log(c / e) - c + e."""
    expected = product / workers
    if count == 0:
        return expected
    excess = (count * workers - product) / workers
    share = excess / (count + expected)
    if abs(share) > 0.1:  # noqa: PLR2004
        return count * math.log(count / expected) - excess
    # The two would cancel here; log(c / e) = 2 artanh(share), and the excess cancels exactly
    # against the series' first term.
    total, power, degree = excess * share, 2 * count * share, 1
    while True:
        power *= share * share
        degree += 2
        more = total + power / degree
        if more == total:
            return total
        total = more


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


def judges_failure(*, workers: int, byzantine: int, drawn: int, coverage: float) -> float:
    """P[H <= X]: of those who judge a class, honest voters are no majority.

    An honest voter can judge a class if it holds enough of its samples, with probability c, the
    coverage; Byzantine voters claim all classes. So of N voters, X lie and H, binomial among the
    other N - X, judge honestly. With f = b / n, H is about c (1 - f) N and X about f N: in large
    committees honest judges are the majority if c (1 - f) > f, and lose if c (1 - f) < f.

    Example:
        >>> draw = {"workers": 100, "byzantine": 33, "drawn": 30}
        >>> [round(judges_failure(**draw, coverage=c), 2) for c in (1.0, 0.51, 0.27)]
        [0.02, 0.52, 0.93]
    """
    lowest, highest = max(0, drawn - (workers - byzantine)), min(drawn, byzantine)
    return math.fsum(
        _probability(workers, byzantine, drawn, x) * _at_most(x, drawn - x, coverage)
        for x in range(lowest, highest + 1)
    )


def _at_most(count: int, trials: int, probability: float) -> float:
    """P[at most `count` of this many independent trials succeed]."""
    if count >= trials or probability <= 0.0:
        return 1.0
    if probability >= 1.0:
        return 0.0
    # In logarithms: binomial coefficients of large committees are no floats.
    yes, no, ways = math.log(probability), math.log1p(-probability), math.lgamma(trials + 1)
    logs = (
        ways - math.lgamma(k + 1) - math.lgamma(trials - k + 1) + k * yes + (trials - k) * no
        for k in range(count + 1)
    )
    return min(1.0, math.fsum(map(math.exp, logs)))


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
