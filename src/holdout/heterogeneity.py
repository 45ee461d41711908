"""How much honest workers differ, and how many liars were drawn, from the rows of a curve.

Honest updates g_1, ..., g_h with mean g are (G, B)-dissimilar (Allouah et al., 2023, arXiv
2309.13591) if

    (1 / h) sum_i |g_i - g|^2  <=  G^2 + B^2 |g|^2

at all weights. With a share of liars of 1 / (2 + B^2) or more, no rule can promise anything for all
workers that differ so much; below it, no rule can promise an error below the order of f G^2.
Evaluated rounds record the left side and |g|^2; `fit_line` draws a line through those of a curve.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

DISSIMILARITY, MEAN_NORM2 = "dissimilarity", "mean_norm2"
"""The fields of a round that hold (1 / h) sum_i |g_i - g|^2 and |g|^2."""


@dataclass(frozen=True, slots=True)
class DissimilarityFit:
    """G^2 and B^2 of a curve, estimated from what honest proposers sent in evaluated rounds.

    They describe the updates as rules see them, mini-batch noise included: with batches of b rows,
    G^2 is larger by about (1 - 1 / h) s^2 / b, where s^2 is the variance of a single row's
    gradient. Among workers with equal data G^2 is nothing but that noise.

    Example:
        >>> import holdout
        >>> holdout.DissimilarityFit(g2=0.5, b2=2.0, g2_bound=0.7, rounds=20).breakdown
        0.25
    """

    g2: float
    """G^2 of the line of least squares through the rounds, with neither G^2 nor B^2 negative."""
    b2: float
    """B^2 of that line; 0 where all rounds have the same |g|^2."""
    g2_bound: float
    """The smallest G^2 for which, with this B^2, the inequality holds in every round."""
    rounds: int
    """How many rounds were measured."""

    @property
    def breakdown(self) -> float:
        """1 / (2 + B^2): from this share of liars on no rule is robust for all such workers."""
        return 1 / (2 + self.b2)


@dataclass(frozen=True, slots=True)
class LiarsDrawn:
    """How many liars were drawn in the rounds of a curve.

    Example:
        >>> import holdout
        >>> holdout.LiarsDrawn(mean=9.9, largest=15, majority=0.02).largest
        15
    """

    mean: float
    """The mean per round."""
    largest: int
    """The largest number in any round."""
    majority: float
    """The share of rounds in which at least half of those drawn lie."""


@dataclass(frozen=True, slots=True)
class Heterogeneity:
    """What a curve shows about its workers; `holdout.Run.heterogeneity` has one for each curve.

    Example:
        >>> import holdout
        >>> x, y = [[-3.0], [3.0]] * 20, [0, 1] * 20
        >>> setting = {
        ...     "experiment": {"rules": ["mean"], "rounds": 2, "baseline": False, "threads": 1},
        ...     "data": {"samples_per_worker": 10},
        ...     "federation": {"workers": 9, "byzantine": 3, "proposers": 6, "voters": 3},
        ...     "training": {"batch_size": 5}, "vote": {"samples": 10},
        ... }
        >>> run = holdout.read_run(holdout.run(setting, plugins=holdout.Plugins(data=(x, y, x, y))))
        >>> [found] = run.heterogeneity()
        >>> found.proposers.mean, found.voters, found.judges
        (2.0, None, (1.0, 1.0))
    """

    rule: str
    """The rule's name in the config."""
    attack: str
    """The attack's name in the config."""
    seed: int
    """The curve's seed."""
    dissimilarity: DissimilarityFit | None
    """None where nothing was measured: nobody knows who lies, or no round had two honest
    proposals."""
    proposers: LiarsDrawn | None
    """Liars among the proposers; None where nobody knows who lies."""
    voters: LiarsDrawn | None
    """Among the voters; None for rules without any too."""
    judges: Sequence[float] | None
    """For each class the share of the honest workers that can judge it (docs/results-format.md);
    None if it is not known, or targets are real-valued."""


def measured_of(
    lines: Sequence[Mapping[str, Any]],
) -> tuple[DissimilarityFit | None, LiarsDrawn | None, LiarsDrawn | None]:
    """What the rounds of one curve tell: its dissimilarity, liars among proposers, among voters."""
    points = [
        (line[MEAN_NORM2], line[DISSIMILARITY])
        for line in lines
        if line.get(MEAN_NORM2) is not None and line.get(DISSIMILARITY) is not None
    ]
    return fit_line(points), liars_drawn(lines, "proposers"), liars_drawn(lines, "voters")


def as_fields(lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The fields of a curve in `summary.json`; unknown ones are left out."""
    fit, proposers, voters = measured_of(lines)
    fields: dict[str, Any] = {} if fit is None else {DISSIMILARITY: asdict(fit)}
    if proposers is None and voters is None:
        return fields
    liars = {"proposers": proposers, "voters": voters}
    return {**fields, "liars_drawn": {who: drawn and asdict(drawn) for who, drawn in liars.items()}}


def fit_line(points: Iterable[tuple[float, float]]) -> DissimilarityFit | None:
    """The line y = G^2 + B^2 x of least squares, without negative numbers; None without a point.

    Only one of the two can come out negative where no x and y is; it is 0 then, and the other
    the best without it.

    >>> fit_line([(0.0, 2.0), (2.0, 4.0)])
    DissimilarityFit(g2=2.0, b2=1.0, g2_bound=2.0, rounds=2)
    """
    found = [point for point in points if all(map(math.isfinite, point))]
    if not found:
        return None
    # Against overflow: squares of squares of long updates.
    unit_x = max(x for x, _ in found) or 1.0
    unit_y = max(y for _, y in found) or 1.0
    xs, ys = [x / unit_x for x, _ in found], [y / unit_y for _, y in found]
    mean_x, mean_y = math.fsum(xs) / len(xs), math.fsum(ys) / len(ys)
    spread = math.fsum((x - mean_x) ** 2 for x in xs)
    joint = math.fsum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True))
    slope = max(0.0, joint / spread) if spread else 0.0
    start = mean_y - slope * mean_x
    if start < 0:
        start = 0.0
        products = math.fsum(x * y for x, y in zip(xs, ys, strict=True))
        slope = products / math.fsum(x * x for x in xs)
    g2, b2 = start * unit_y, slope * unit_y / unit_x
    return DissimilarityFit(g2, b2, max(0.0, *(y - b2 * x for x, y in found)), len(found))


def liars_drawn(lines: Sequence[Mapping[str, Any]], who: str) -> LiarsDrawn | None:
    """The liars among those drawn as `proposers` or `voters`, over the rounds that drew some.

    >>> rounds = [{"voters": [4, 2, 7], "byzantine_voters": 2}, {"voters": [1, 2, 9]}]
    >>> liars_drawn(rounds, "voters")
    LiarsDrawn(mean=2.0, largest=2, majority=1.0)
    """
    drawn = [
        (lying, len(line[who]))
        for line in lines
        if line.get(who) and (lying := line.get(f"byzantine_{who}")) is not None
    ]
    if not drawn:
        return None
    return LiarsDrawn(
        mean=math.fsum(lying for lying, _ in drawn) / len(drawn),
        largest=max(lying for lying, _ in drawn),
        majority=sum(2 * lying >= count for lying, count in drawn) / len(drawn),
    )
