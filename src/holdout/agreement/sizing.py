"""How large committees must be, from exact tails.

Of n workers B are Byzantine and H = n - B honest. A consensus committee with h honest and b
Byzantine members is good if any two quorums of Q share an honest member (safety, 2Q > h + 2b) and
the honest members alone form a quorum (progress, h >= Q). A good draw of proposers has an honest
majority. A good draw of voters has at least `M_min` honest and at most `b_max` Byzantine ones, with
`ceil((1-f) M_min) > b_max`: honest ballots carry an update over the floor `b_max + 1`.

Public draws have a fixed size, so b is hypergeometric. Secret self-selection makes h and b binomial
and independent: honest members may be few just when Byzantine ones are many, and that is its price.

As the size grows, rounding makes the conditions hold, fail and hold again. For public draws the
smallest good size is found. For self-selection the size is found by bisection, as in the design's
tables, which gives at most a few members more (`docs/decisions/0006-sizes-by-bisection.md`).
"""

import bisect
import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from holdout.agreement.messages import WORKERS_MAX
from holdout.agreement.params import ATTEMPTS_MAX, Mode, Params, RoleDraw, TallyRule, quorum_of_all
from holdout.agreement.tails import RAREST, binomial, hypergeometric
from holdout.errors import InfeasibleError, UserError
from holdout.ids import Digest
from holdout.shares import byzantine_count, write_share
from holdout.voting import approve_count
from holdout.voting.odds import exact_size

DENOMINATOR_MAX = 10**18
"""The largest denominator of a Byzantine share, which the genesis holds in 64 bits."""

ROUNDS_MAX = 10**15
LEADERS = 20
"""tau_L: with it a period lacks an honest leader with probability below 1e-6 at f = 0.3."""

SAMPLED_WORKERS_MIN = 50
"""Below this, everybody is in the consensus committee."""

ALL_WORKERS_MAX = 1000
"""Above this, sending every gradient to everybody costs more than a drawn committee does."""

SEED_BIAS = 4
"""A coalition can bias the seed by withholding blocks; bad draws are at most this much likelier."""


@dataclass(frozen=True, slots=True)
class Risk:
    """What may go wrong over a whole run, and how likely; the default is strict."""

    rounds: int = 1000
    safety: float = 1e-6
    """The accepted probability that some committee could certify two blocks."""
    progress: float = 1e-3
    """The accepted probability that some round misses its first quorum or an honest majority."""
    seed_bias: int = SEED_BIAS
    """Both probabilities are divided by this; 1 if nobody can bias the seed."""

    def __post_init__(self) -> None:
        if not 1 <= self.rounds <= ROUNDS_MAX:
            raise UserError(f"a run has 1 to {ROUNDS_MAX} rounds; got {self.rounds}")
        for name, chance in (("safety", self.safety), ("progress", self.progress)):
            if not 0 < chance < 1:
                raise UserError(f"delta ({name}) must lie between 0 and 1; got {chance}")
            if chance / self.rounds / self.seed_bias / 2 < RAREST:
                raise UserError(
                    f"delta ({name}) must allow at least {RAREST:g} for each draw; got {chance:g} "
                    f"over {self.rounds} rounds"
                )

    @property
    def unsafe(self) -> float:
        """eps_s: the accepted probability that one committee could certify two blocks."""
        return self.safety / self.rounds / self.seed_bias

    @property
    def stuck(self) -> float:
        """eps_l: the accepted probability that one committee lacks a quorum of honest members."""
        return self.progress / self.rounds / self.seed_bias


STRICT = Risk()


@dataclass(frozen=True, slots=True)
class CommitteeSize:
    """A consensus committee: its size (in mode `self` the expected one) and quorum."""

    size: int
    quorum: int


@dataclass(frozen=True, slots=True)
class Voters:
    """How many workers vote (expected or fixed), and what a good draw of them holds."""

    size: int
    ballots_min: int
    """M_min: at least this many of them are honest."""
    byzantine_max: int
    """b_max: at most this many of them are Byzantine."""


@dataclass(frozen=True, slots=True)
class NetworkSizes:
    """All sizes of a run."""

    mode: Mode
    role_draw: RoleDraw
    committee: CommitteeSize
    proposers: int
    """tau_P."""
    voters: Voters
    """tau_V, M_min and b_max."""
    leaders: int
    """tau_L."""

    def params(
        self,
        *,
        workers: int,
        f: Fraction,
        shapes: Sequence[Sequence[int]],
        model_first: Digest,
        rates: tuple[float, ...],
        radius_first: float = 0.0,
        tally: TallyRule = TallyRule.COMPLETION,
    ) -> Params:
        """The constants of a run with these sizes."""
        return Params(
            workers=workers,
            f=f,
            quorum=self.committee.quorum,
            proposers=self.proposers,
            voters=self.voters.size,
            leaders=self.leaders,
            ballots_min=self.voters.ballots_min,
            byzantine_voters_max=self.voters.byzantine_max,
            dimension=sum(math.prod(shape) for shape in shapes),
            model_first=model_first,
            rates=rates,
            mode=self.mode,
            committee=0 if self.mode is Mode.ALL else self.committee.size,
            role_draw=self.role_draw,
            shapes=tuple(tuple(shape) for shape in shapes),
            radius_first=radius_first,
            tally=tally,
        )


def sizes(
    *,
    n: int,
    f: Fraction | int,
    risk: Risk = STRICT,
    mode: Mode | None = None,
    role_draw: RoleDraw = RoleDraw.SELF,
) -> NetworkSizes:
    """The sizes for a run of n workers of which a share f, or a count, is Byzantine."""
    liars = check_population(n, f)
    share = as_share(f, n)
    chosen = usual_mode(n) if mode is None else mode
    if chosen is not Mode.ALL and n < SAMPLED_WORKERS_MIN:
        raise InfeasibleError(
            f"mode {chosen} needs at least {SAMPLED_WORKERS_MIN} workers; got n={n}"
        )
    return NetworkSizes(
        mode=chosen,
        role_draw=role_draw,
        committee=committee(n, liars, risk, chosen),
        proposers=majority_size(n, liars, risk, role_draw),
        voters=majority_voters(n, liars, share, risk, role_draw),
        leaders=min(n, LEADERS),
    )


def check_population(n: int, f: Fraction | int) -> int:
    """B, the number of Byzantine workers; raises where agreement is impossible."""
    liars = byzantine_count(f, n)
    if not 1 <= n <= WORKERS_MAX:
        raise InfeasibleError(f"a network has 1 to {WORKERS_MAX} workers; got n={n}")
    if n < 3 * liars + 1:
        raise InfeasibleError(
            f"agreement needs n >= 3B + 1 workers, of which B may lie; got n={n}, B={liars}"
        )
    if as_share(f, n).denominator > DENOMINATOR_MAX:
        raise InfeasibleError(f"a share of a network's workers has at most 18 digits; got {f}")
    if as_share(f, n) >= Fraction(1, 2):
        # So few workers that B is 0; but (1-f) of the ballots would not be a majority.
        raise InfeasibleError(
            "an honest majority needs a Byzantine share f below 1/2; got f = "
            f"{write_share(as_share(f, n))}"
        )
    return liars


def as_share(f: Fraction | int, n: int) -> Fraction:
    """The Byzantine share f, given as a share or a count."""
    return Fraction(f, n) if isinstance(f, int) else f


def usual_mode(n: int) -> Mode:
    """The mode for this many workers, unless the committee must be secret."""
    return Mode.ALL if n <= ALL_WORKERS_MAX else Mode.SHUFFLE


# --- The consensus committee ---


def committee(n: int, byzantine: int, risk: Risk, mode: Mode) -> CommitteeSize:
    """The committee of this mode; everybody if no smaller one is good."""
    match mode:
        case Mode.ALL:
            return CommitteeSize(n, quorum_of_all(n))
        case Mode.SHUFFLE:
            return shuffled_committee(n, byzantine, risk)
        case Mode.SELF:
            return self_selected_committee(n, byzantine, risk)


def shuffled_committee(n: int, byzantine: int, risk: Risk) -> CommitteeSize:
    """The smallest good committee drawn publicly, with a fixed size."""

    def safe_quorum(size: int) -> int:
        return (size + hypergeometric(n, byzantine, size).upper_quantile(risk.unsafe)) // 2 + 1

    def honest_members(size: int) -> int:
        return size - hypergeometric(n, byzantine, size).upper_quantile(risk.stuck)

    size = _smallest(1, n - 1, lambda low, high: honest_members(high) >= safe_quorum(low))
    if size is None:
        return committee(n, byzantine, risk, Mode.ALL)
    return CommitteeSize(size, safe_quorum(size))


def self_selected_committee(
    n: int, byzantine: int, risk: Risk, *, each_step: bool = True
) -> CommitteeSize:
    """A secretly self-selected committee, drawn for each step (or, to compare, once per period)."""

    def is_safe(tau: int, quorum: int) -> bool:
        return self_selection_is_safe(
            n, byzantine, CommitteeSize(tau, quorum), risk, each_step=each_step
        )

    def honest_members(tau: int) -> int:
        return binomial(n - byzantine, tau, n).lower_quantile(risk.stuck)

    size = _bisected(n, lambda tau: is_safe(tau, honest_members(tau)))
    if size >= n:
        return committee(n, byzantine, risk, Mode.ALL)
    # The fewer votes are needed the better, as far as it is safe: a larger quorum is safer.
    quorums = range(1, honest_members(size) + 1)
    place = bisect.bisect_left(quorums, x=True, key=functools.partial(is_safe, size))
    return CommitteeSize(size, quorums[place])


def self_selection_is_safe(
    n: int, byzantine: int, chosen: CommitteeSize, risk: Risk, *, each_step: bool = True
) -> bool:
    """Whether a self-selected committee certifies two blocks as rarely as the risk demands."""
    left = risk.unsafe - two_quorums(n, byzantine, chosen.size, chosen.quorum)
    if left < 0 or not each_step:
        return left >= 0
    return _steps_agree(n, byzantine, chosen, left)


def two_quorums(n: int, byzantine: int, tau: int, quorum: int) -> float:
    """P[h + 2b >= 2Q], that one self-selected committee could form quorums for two values."""
    honest, liars = binomial(n - byzantine, tau, n), binomial(byzantine, tau, n)
    return math.fsum(
        chance * honest.at_least(2 * (quorum - b))
        for b, chance in enumerate(liars.mass, start=liars.first)
    )


def _steps_agree(n: int, byzantine: int, chosen: CommitteeSize, left: float) -> bool:
    """Whether committees of different steps contradict each other with at most probability `left`.

    If x honest workers are ready to certify a value, those x refuse to vote it down. So take any
    split point s. If x <= s, the certificate comes from at most s ready workers and all liars. If
    x > s, a recovery quorum against the value (two in each attempt are possible) comes from the
    other honest workers and all liars. The sum of both probabilities is a bound.
    """

    def within(low: int, high: int) -> bool:
        # The first grows with the split, the second falls.
        return certified(n, byzantine, chosen, low) + voted_down(n, chosen, high) <= left

    return _smallest(0, n - byzantine, within) is not None


def certified(n: int, byzantine: int, chosen: CommitteeSize, split: int) -> float:
    """The probability that `split` ready honest workers and all liars draw a quorum."""
    return binomial(split + byzantine, chosen.size, n).at_least(chosen.quorum)


def voted_down(n: int, chosen: CommitteeSize, split: int) -> float:
    """A bound on the probability that all others draw a quorum in some recovery step."""
    return 2 * ATTEMPTS_MAX * binomial(n - split, chosen.size, n).at_least(chosen.quorum)


# --- The learning roles ---


def majority_size(n: int, byzantine: int, risk: Risk, draw: RoleDraw) -> int:
    """The size of a draw with an honest majority, for either learning role in every round."""
    chance = risk.stuck / 2
    if draw is RoleDraw.FIXED:
        size = exact_size(workers=n, byzantine=byzantine, draws=1, delta=chance)
        return n if size is None else size
    return _bisected(n, lambda tau: no_majority(n, byzantine, tau) <= chance)


def no_majority(n: int, byzantine: int, tau: int) -> float:
    """P[h <= b], that a self-selected draw has no honest majority."""
    honest, liars = binomial(n - byzantine, tau, n), binomial(byzantine, tau, n)
    return math.fsum(
        chance * honest.at_most(b) for b, chance in enumerate(liars.mass, start=liars.first)
    )


def voters(n: int, byzantine: int, f: Fraction, risk: Risk, draw: RoleDraw) -> Voters:
    """The draw of voters whose honest ballots suffice, whichever ballots a leader picks."""

    def judged(size: int) -> Voters:
        return judge_voters(n, byzantine, size, risk, draw)

    def suffices(low: int, high: int) -> bool:
        return ballots_suffice(f, judged(high).ballots_min, judged(low).byzantine_max)

    if draw is RoleDraw.FIXED:
        found = _smallest(1, n, suffices)
        size = n if found is None else found
    else:
        size = _bisected(n, lambda tau: suffices(tau, tau))
    return judged(size)


def majority_voters(n: int, byzantine: int, f: Fraction, risk: Risk, draw: RoleDraw) -> Voters:
    """The draw of `voters` with an honest majority too; that takes more only if liars are few."""
    found = voters(n, byzantine, f, risk, draw)
    at_least = majority_size(n, byzantine, risk, draw)
    while found.size < at_least or not ballots_suffice(f, found.ballots_min, found.byzantine_max):
        found = judge_voters(n, byzantine, max(found.size + 1, at_least), risk, draw)
    return found


def judge_voters(n: int, byzantine: int, size: int, risk: Risk, draw: RoleDraw) -> Voters:
    """What a draw of voters of this size is good for."""
    if draw is RoleDraw.FIXED:
        liars = hypergeometric(n, byzantine, size)
        return Voters(
            size, size - liars.upper_quantile(risk.stuck), liars.upper_quantile(risk.unsafe)
        )
    return Voters(
        size,
        binomial(n - byzantine, size, n).lower_quantile(risk.stuck),
        binomial(byzantine, size, n).upper_quantile(risk.unsafe),
    )


def voters_for(n: int, byzantine: int, f: Fraction, voters: int, risk: Risk) -> Voters:
    """M_min and b_max for this many voters.

    If the voters are enough, these are as in the tables. With too few voters, the tables' floor
    would never let anything be selected; then they are the pair that the draw violates least often
    among those with which honest ballots still carry an update over the floor.
    """
    planned = judge_voters(n, byzantine, voters, risk, RoleDraw.SELF)
    if ballots_suffice(f, planned.ballots_min, planned.byzantine_max):
        return planned
    honest = binomial(n - byzantine, voters, n)
    liars = binomial(byzantine, voters, n)

    def broken(floor: int) -> float:
        return honest.at_most(_ballots_for(floor, f) - 1) + liars.at_least(floor + 1)

    floor = min(range(min(byzantine, voters) + 1), key=broken)
    return Voters(voters, _ballots_for(floor, f), floor)


def _ballots_for(floor: int, f: Fraction) -> int:
    """The smallest M_min with ceil((1 - f) M_min) > floor."""
    return math.floor(floor / (1 - f)) + 1


def ballots_suffice(f: Fraction, ballots_min: int, byzantine_max: int) -> bool:
    """Whether honest ballots alone carry an update over the floor: ceil((1-f) M_min) > b_max."""
    return approve_count(ballots_min, f) > byzantine_max


def no_honest_leader(n: int, byzantine: int, tau: int) -> float:
    """The probability that a period has no honest leader, which costs one period."""
    return binomial(n - byzantine, tau, n).at_most(0)


# --- Searching ---


def _smallest(low: int, high: int, may_do: Callable[[int, int], bool]) -> int | None:
    """The smallest good size from `low` to `high`, or None.

    What is needed and what is there both grow with the size. So if what is there at the upper end
    is less than what is needed at the lower end, no size in between is good. `may_do(low, high)`
    says whether it is not less; `may_do(size, size)` therefore says whether one size is good.
    """
    if low > high or not may_do(low, high):
        return None
    if low == high:
        return low
    middle = (low + high) // 2
    found = _smallest(low, middle, may_do)
    return _smallest(middle + 1, high, may_do) if found is None else found


def _bisected(n: int, is_good: Callable[[int], bool]) -> int:
    """A good size below n whose predecessor is not good, found by bisection; n if there is none."""
    return 1 + bisect.bisect_left(range(1, n), x=True, key=is_good)
