"""What all members of a network have in common: the constants of a run, its roster, its identity.

`Params` decides what is valid, so all of it is hashed into the network's identity: workers that
differ in any of it belong to different networks and ignore each other. `Timing` only decides how
long a worker waits; it may differ from worker to worker and is not hashed.
"""

import math
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from functools import cached_property

from holdout.agreement.codec import blob, digest, f64, items, text, u32, u64
from holdout.agreement.keys import PublicKeys
from holdout.agreement.sortition import LOOKBACK, REFRESH
from holdout.errors import InfeasibleError
from holdout.ids import Digest
from holdout.voting import approve_count

PROTOCOL_VERSION = 1
MILLISECOND = 1_000
"""All times of the core are whole microseconds of a monotonic clock."""

ATTEMPTS_MAX = 4
"""Recovery attempts in a period of mode `self`; its committees are sized for this many."""


def quorum_of_all(n: int) -> int:
    """Q when everybody is in the committee: two quorums share an honest worker."""
    return 2 * n // 3 + 1


class Mode(StrEnum):
    """Who agrees: the committee of role C."""

    ALL = "all"
    """The committee is every worker; the default."""
    SHUFFLE = "shuffle"
    """A public draw of fixed size, new in each period."""
    SELF = "self"
    """Secret self-selection by VRF, new in each step (the paper, Algorand)."""


class RoleDraw(StrEnum):
    """How proposers and voters are drawn."""

    SELF = "self"
    """Secretly, by VRF: nobody knows who until they speak."""
    FIXED = "fixed"
    """Publicly, a fixed number of them."""


class TallyRule(StrEnum):
    """How ballots are counted."""

    COMPLETION = "completion"
    """Short ballots are completed neutrally before the paper's threshold is applied."""
    PAPER = "paper"
    """The paper's rule to the letter, for comparison: short ballots starve honest updates."""


@dataclass(frozen=True, slots=True)
class Params:
    """The constants of a run.

    `sizing` computes good sizes. Smaller ones are allowed; `guarantees` says what they cost.
    """

    workers: int
    """n, the size of the roster."""
    f: Fraction
    """The assumed Byzantine share: ballots and tally go by (1 - f)."""
    quorum: int
    """Q: this many equal votes make a bundle."""
    proposers: int
    """tau_P, expected (or fixed) number of proposers."""
    voters: int
    """tau_V, expected (or fixed) number of voters."""
    leaders: int
    """tau_L, expected number of leaders in a period."""
    ballots_min: int
    """M_min: a block with fewer ballots makes no step."""
    byzantine_voters_max: int
    """b_max: an update needs one approval more than this, hence one honest supporter; 0: off."""
    dimension: int
    """d, the number of weights."""
    model_first: Digest
    """The digest of w_1."""
    rates: tuple[float, ...]
    """eta, the learning rate of the first, second, ... step; the last one holds from there on."""
    mode: Mode = Mode.ALL
    committee: int = 0
    """Size of the consensus committee: N in `shuffle`, expected in `self`; unused in `all`."""
    role_draw: RoleDraw = RoleDraw.SELF
    inclusion_periods: int = 1
    """p_incl: up to this period a leader must include the ballots that others held in time."""
    lookback: int = LOOKBACK
    """L: round r is drawn by the seed of round r - L."""
    refresh: int = REFRESH
    """R: every L R rounds an old block's digest enters the seed."""
    shapes: tuple[tuple[int, ...], ...] = ()
    """The shapes of the model's tensors, in order: part of the model's digest."""
    coordinate_max: float = 1e6
    """G_inf, the largest absolute value of a coordinate in a valid payload."""
    radius_first: float = 0.0
    """r_1, the bound on norms in the first step; 0: none, the first step sets it."""
    tally: TallyRule = TallyRule.COMPLETION

    @property
    def byzantine(self) -> int:
        """B = floor(f n), the number of Byzantine workers that the network tolerates."""
        return int(self.f * self.workers)

    @property
    def payload_bytes(self) -> int:
        """The size of a gradient or a model on the wire."""
        return 4 * self.dimension

    def rate(self, step: int) -> float:
        """The learning rate of the step-th step, counted from 1."""
        return self.rates[min(step, len(self.rates)) - 1]

    def approve_count(self, candidates: int) -> int:
        """The names on a full ballot: k = ceil((1 - f) m), exactly."""
        return approve_count(candidates, self.f)

    def encode(self) -> bytes:
        """The canonical bytes of all constants."""
        return b"".join(
            [
                u32(self.workers),
                u64(self.f.numerator),
                u64(self.f.denominator),
                u32(self.quorum),
                u32(self.proposers),
                u32(self.voters),
                u32(self.leaders),
                u32(self.ballots_min),
                u32(self.byzantine_voters_max),
                u32(self.dimension),
                blob(self.model_first),
                items(f64(rate) for rate in self.rates),
                text(self.mode),
                u32(self.committee),
                text(self.role_draw),
                u32(self.inclusion_periods),
                u32(self.lookback),
                u32(self.refresh),
                items(items(u32(side) for side in shape) for shape in self.shapes),
                f64(self.coordinate_max),
                f64(self.radius_first),
                text(self.tally),
            ]
        )

    def check(self) -> None:
        """Refuse constants with which agreement cannot be safe or cannot make progress.

        How likely a drawn committee is to be a good one is a question for `guarantees`.
        """
        n, b = self.workers, self.byzantine
        if n < 3 * b + 1:
            raise InfeasibleError(
                f"agreement needs n >= 3B + 1 workers, of which B may lie; got n={n}, B={b}"
            )
        of_all = quorum_of_all(n)
        if self.mode is Mode.ALL and self.quorum != of_all:
            raise InfeasibleError(
                f"with everybody in the committee the quorum is floor(2n/3) + 1 = {of_all}; got"
                f" {self.quorum}"
            )
        # Two quorums must overlap, or the committee may decide two blocks although nobody lies.
        committee_max = min(n, 2 * self.quorum - 1)
        if self.mode is not Mode.ALL and not self.quorum <= self.committee <= committee_max:
            raise InfeasibleError(
                "a drawn committee needs quorum <= committee <= n and committee < 2 * quorum; got"
                f" quorum={self.quorum}, committee={self.committee}, n={n}"
            )
        self._check_learning()

    def _check_learning(self) -> None:
        if not self.rates or not all(math.isfinite(rate) and rate > 0 for rate in self.rates):
            raise InfeasibleError(f"learning rates must be finite and above 0; got {self.rates}")
        size = sum(math.prod(shape) for shape in self.shapes)
        if self.dimension < 1 or (self.shapes and size != self.dimension):
            raise InfeasibleError(
                f"the shapes must hold the model's {self.dimension} weights; they hold {size}"
            )
        if not (math.isfinite(self.radius_first) and self.radius_first >= 0):
            raise InfeasibleError(
                f"the first radius must be finite and not negative; got {self.radius_first}"
            )
        if not 0 <= self.f < 1:
            raise InfeasibleError(f"the Byzantine share f must be below 1; got {self.f}")
        if self.lookback not in {1, 2}:
            raise InfeasibleError(f"the seed must look back 1 or 2 rounds; got {self.lookback}")


@dataclass(frozen=True)
class Genesis:
    """A network: its members' keys, its constants, and what sets this run apart from others."""

    params: Params
    roster: tuple[PublicKeys, ...]
    run_nonce: bytes
    """Fresh for each run, so that votes from an earlier run with the same keys do not count."""
    beacon: bytes
    """Randomness drawn after everything else was fixed, so that nobody can choose keys to suit
    it."""

    @cached_property
    def setup(self) -> Digest:
        """The digest of everything that was fixed before the beacon was known."""
        return digest(
            "genesis",
            u32(PROTOCOL_VERSION),
            items(blob(keys.signing) + blob(keys.vrf) for keys in self.roster),
            blob(self.params.encode()),
            blob(self.run_nonce),
        )

    @cached_property
    def chain(self) -> Digest:
        """The network's identity, part of everything that is signed."""
        return digest("run", blob(self.setup), blob(self.beacon))


@dataclass(frozen=True, slots=True)
class Timing:
    """How long a worker waits for others, in microseconds. None of it affects safety."""

    delay: int = 500 * MILLISECOND
    """lambda: the assumed bound on the delay of a small message."""
    propose: int = 2_000 * MILLISECOND
    """T_P: how long updates are collected, at most, before a voter ranks them."""
    vote: int = 2_000 * MILLISECOND
    """T_V: how long ballots are waited for after that, at most."""
    propose_min: int = 0
    """How long updates are waited for at least, while somebody is missing."""
    vote_min: int = 0
    """How long ballots are waited for at least, while somebody is missing."""
    fetch: int = 500 * MILLISECOND
    """The time to fetch a block body."""
    validate: int = 500 * MILLISECOND
    """The time to recompute a block."""
    ends_waits_early: bool = True
    """Whether a wait ends as soon as everybody expected has been heard."""

    def lead_at(self) -> int:
        """T_A, from the start of the round: when leaders assemble."""
        return self.propose + self.vote + 2 * self.delay

    def filter_after(self, period: int) -> int:
        """F(p), from the start of the period: when the soft vote is due."""
        return (2 * self.delay + self.fetch) << min(period, 6)

    def deadline_after(self, period: int) -> int:
        """D(p), from the start of the period: when recovery begins.

        Both F and D grow with the period, so that they exceed the network's true delay in the end,
        whatever it is. If D alone grew, the soft vote could come before the lead in every period.
        """
        base = 2 * self.delay + self.fetch + self.validate + 4 * self.delay
        return base << min(period, 6)

    def retry_after(self, count: int) -> int:
        """The wait before retry number `count`, from 0: two delays, then doubled up to sixteen."""
        return self.delay * min(2 << count, 16)


@dataclass(frozen=True, slots=True)
class Limits:
    """How much a peer may make a worker hold or send."""

    early_messages: int = 8
    """Messages of the next round that are kept, per worker."""
    bodies: int = 3
    """How many of the best leads have their blocks fetched, per period."""
    blocks_per_answer: int = 50
    """Rounds that a peer that is behind gets in one answer."""
