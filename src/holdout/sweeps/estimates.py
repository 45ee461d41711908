"""How long curves take: a rough count of the work, put right by what earlier curves took.

The count decides only which curves are begun first and what people are told.
"""

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from statistics import median
from typing import Any, NamedTuple

from holdout.attacks.searched import both_signs
from holdout.config import Config
from holdout.rules import LEAVES_NOBODY_OUT, RULES, find_rule
from holdout.voting import VOTES

PER_SECOND = 1e11
"""Operations of one thread on MNIST, about: four fifths of a digit is background, and skipped."""
CURVE_SECONDS = 0.15
"""What a curve takes besides its rounds."""
CURVE_BYTES = 600
POINT_BYTES = 330
"""Bytes of a curve in the store, and of each time that it was measured, about."""


class Passes(NamedTuple):
    """Operations on each number of a round's updates."""

    own: float
    """Of the rule itself."""
    tried: float
    """Of an attacker who looks what would come of one lie."""


OVER_UPDATES, VOTE = Passes(200, 400), Passes(2500, 500)
ASKS_ROOT, ASKS_VOTERS = Passes(700, 250), Passes(3000, 2000)
PRE_AGGREGATION = 350
TRIED: Mapping[str, int] = {"greedy": 40, "jointly": 40, "alie": 20, "ipm": 20}
"""How many lies attacks look at in a round that search through the rule; the last two only where
they search their strength."""
TRIED_JOINTLY = 150
"""How many `jointly` looks at where ballots are joint."""
SERVERLESS = 20


def work_of(config: Config, rule: str, *, dimension: int, test_rows: int) -> float:
    """Roughly how many seconds a curve takes."""
    experiment, training, federation = config.experiment, config.training, config.federation
    steps = training.local_steps
    if training.local_epochs:
        batches = -(-config.data.samples_per_worker // training.batch_size)
        steps = training.local_epochs * batches
    train = federation.proposers * training.batch_size * steps * 6 * dimension
    test = test_rows * 2 * dimension / experiment.evaluate_every
    *front, last = rule.split("+")
    passes = _passes(last)
    number = passes.own + PRE_AGGREGATION * len(front) + passes.tried * _tried(config, rule)
    aggregate = federation.proposers * dimension * number
    each = train + test + aggregate * (SERVERLESS if federation.mode == "decentralized" else 1)
    return CURVE_SECONDS + experiment.rounds * each / PER_SECOND


def _passes(rule: str) -> Passes:
    if rule in VOTES:
        return VOTE
    known = RULES.get(rule)
    if known is None or known.needs_updates_alone:
        return OVER_UPDATES
    return ASKS_VOTERS if known.needs_voters else ASKS_ROOT


def _tried(config: Config, rule: str) -> int:
    """How many lies an attacker looks at in a round."""
    attack = config.attack
    if attack.name in ("opt-alie", "opt-ipm"):
        return len(both_signs(attack.gamma_max))
    if attack.name == "jointly" and rule in VOTES and VOTES[rule].terms(Fraction(0)).is_joint:
        return TRIED_JOINTLY
    known = find_rule(rule)
    is_fixed = attack.gamma != "adaptive" or (known and known.rehearse is LEAVES_NOBODY_OUT)
    return 0 if attack.name in ("alie", "ipm") and is_fixed else TRIED.get(attack.name, 0)


def bytes_of(config: Config) -> int:
    """Roughly how many bytes the store keeps of a curve."""
    experiment = config.experiment
    points = 2 + experiment.rounds // experiment.evaluate_every
    return CURVE_BYTES + POINT_BYTES * points


class CurvePace:
    """How the seconds that curves took compare with what was guessed."""

    def __init__(self, timings: Iterable[Mapping[str, Any]]) -> None:
        self._ratios: dict[tuple[str, ...], list[float]] = {}
        for timing in timings:
            self.add(timing)

    def add(self, timing: Mapping[str, Any]) -> None:
        """Take the time of one more curve into account."""
        guessed, took = timing.get("guessed"), timing.get("seconds")
        rule, attack = str(timing.get("rule")), str(timing.get("attack"))
        if isinstance(guessed, int | float) and isinstance(took, int | float) and guessed > 0:
            for kind in ((rule, attack), (rule,), ()):
                self._ratios.setdefault(kind, []).append(took / guessed)

    @property
    def is_measured(self) -> bool:
        """Whether anything was run here before."""
        return bool(self._ratios)

    def seconds(self, rule: str, attack: str, guessed: float) -> float:
        """What a curve is expected to take, by those most like it."""
        for kind in ((rule, attack), (rule,), ()):
            if found := self._ratios.get(kind):
                return guessed * median(found)
        return guessed


def duration(seconds: float) -> str:
    """A time as people say it.

    >>> duration(42), duration(600), duration(8000), duration(200_000)
    ('1 min', '10 min', '2 h 13 min', '56 h')
    """
    minutes = max(1, round(seconds / 60))
    hours, rest = divmod(minutes, 60)
    if not hours:
        return f"{minutes} min"
    return f"{hours} h {rest} min" if hours < 10 and rest else f"{round(minutes / 60)} h"  # noqa: PLR2004


def spread_over(seconds: Sequence[float], jobs: int) -> float:
    """How long pieces of work take side by side, the longest first."""
    ends = [0.0] * max(1, jobs)
    for piece in sorted(seconds, reverse=True):
        ends[ends.index(min(ends))] += piece
    return max(ends)
