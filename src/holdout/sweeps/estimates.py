"""How long curves take: a rough count of the work, put right by what earlier curves took.

The count decides only which curves are begun first and what people are told.
"""

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from holdout.config import Config
from holdout.rules import RULES
from holdout.voting import VOTES

PER_SECOND = 2e10
"""Operations of one thread, about."""
CURVE_SECONDS = 0.5
"""What a curve takes besides its rounds."""
CURVE_BYTES = 600
POINT_BYTES = 330
"""Bytes of a curve in the store, and of each time that it was measured, about."""
PASSES, PASSES_VOTE, PASSES_ROOT, PASSES_VOTERS = 200, 200, 2000, 10_000
"""Operations on each number of a round's updates, an adaptive attacker's rehearsals included: of
rules over the updates alone, of votes, of rules that ask the server's rows, and the voters."""
PRE_AGGREGATION = 600
SEARCHED: Mapping[str, float] = {"greedy": 4, "jointly": 15, "opt-alie": 4, "opt-ipm": 4}
"""By how much attacks that search through the rule make a round longer."""
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
    passes = _passes(last) + PRE_AGGREGATION * len(front)
    passes *= SEARCHED.get(config.attack.name, 1.0)
    aggregate = federation.proposers * dimension * passes
    each = train + test + aggregate * (SERVERLESS if federation.mode == "decentralized" else 1)
    return CURVE_SECONDS + experiment.rounds * each / PER_SECOND


def _passes(rule: str) -> float:
    if rule in VOTES:
        return PASSES_VOTE
    known = RULES.get(rule)
    if known is None or known.needs_updates_alone:
        return PASSES
    return PASSES_VOTERS if known.needs_voters else PASSES_ROOT


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
