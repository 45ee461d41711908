"""Roughly what comes of a rule, from inner products: a searching attacker's first look.

Such an attacker runs the deployed rule on dozens of lies in every round, and all but a few of them
are far from the worst. What it tries are mixtures of few vectors, and many rules mix in turn: they
weigh whole updates, by inner products alone. So the inner products are computed once a round, and
what comes of a lie follows from matrices of n x n numbers. A rule that goes by single coordinates
is run, but on rows that its pre-aggregations have mixed in this way.

Of a rule that asks the server's rows about each update, the same honest ones are asked about once a
round, and each lie once. Of one that asks voters only a bound is known: how far it can go at all.

An estimate comes with a bound on its error. Who needs the exact worst runs the rule on those lies
that the bounds leave in doubt, and comes to the same result as if it had run it on all.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from holdout import device
from holdout.custom_code import guard
from holdout.parallel import keep_blas_to_one_thread
from holdout.rules.context import RuleContext
from holdout.rules.coordinatewise import Array
from holdout.rules.distance import Matrix, centred_gram
from holdout.rules.rule import Farthest, Rule, Told

_SHARE, _OF_LONGEST = 1e-4, 1e-6
"""By how much an estimate may be wrong: these shares of itself and of the longest row. Updates and
results are float32, good to 1e-7."""

_DIGITS = 10
"""Mixtures whose shares agree in so many decimals are taken for the same."""

_FAR = 1e30
"""Where a vector is longer than this, nothing is estimated."""


class Estimate(NamedTuple):
    """A number that is known roughly.

    >>> Estimate(1.0, 0.5).low, Estimate(1.0, 0.5).high
    (0.5, 1.5)
    """

    value: float
    error: float

    @property
    def low(self) -> float:
        """The least that it may be."""
        return self.value - self.error

    @property
    def high(self) -> float:
        """The most that it may be."""
        return self.value + self.error


UNKNOWN = Estimate(0.0, float("inf"))


@dataclass(frozen=True, slots=True, eq=False)
class Outlook:
    """What a rule would roughly make of updates that are mixtures of few vectors.

    Example:
        >>> from holdout.rules import find_rule
        >>> outlook = Outlook.of(find_rule("mean"), torch.eye(2), torch.zeros(2), f=0)
        >>> round(outlook.distance(np.array([[1.0, 0.0], [0.0, 1.0]])).value, 3)
        0.707
    """

    rule: Rule
    f: int
    vectors: Tensor
    """(k + a + 1, d) what updates are mixtures of, what the rule compares them with, and last a
    vector to compare results with."""
    gram: Matrix
    """Their inner products."""
    beside: int = 0
    """How many vectors the rule compares updates with, a."""
    context: RuleContext | None = None
    """Whom the rule asks."""
    _told: dict[bytes, float] = field(default_factory=dict, init=False)
    """What it was told of a mixture."""
    _known: dict[tuple[str, bytes], float] = field(default_factory=dict, init=False)
    _rows: dict[int, Array] = field(default_factory=dict, init=False)
    """Room for the rows that are run: fresh memory would take as long as the products."""

    @classmethod
    def of(
        cls,
        rule: Rule,
        vectors: Tensor,
        compared: Tensor,
        *,
        f: int,
        context: RuleContext | None = None,
    ) -> Self | None:
        """The outlook; None for rules of which nothing can be estimated.

        Args:
            rule: The rule.
            vectors: What updates are mixtures of, (k, d).
            compared: What results are compared with, (d,).
            f: How many lies the rule is told to expect.
            context: Whom it may ask.
        """
        is_mixed = all(pre.mix is not None for pre in rule.pre)
        # Run on every lie anyway, a rule without pre-aggregations would gain nothing.
        is_run = rule.is_steady and rule.pre
        if not is_mixed or not (rule.weigh or rule.farthest or is_run):
            return None
        beside = vectors[:0]
        if rule.beside is not None:
            if context is None or context.root is None:
                return None
            root, find = context.root, rule.beside
            beside = guard(f"rule {rule.label!r}", lambda: find(root), rule.function)
        rows = torch.cat([vectors, beside.to(vectors), compared[None]]).float()
        gram = centred_gram(rows, torch.zeros_like(compared))
        lengths = np.sqrt(gram.diagonal())
        if not (np.isfinite(gram).all() and lengths.max() < _FAR):
            return None
        return cls(rule, f, rows, gram, len(beside), context)

    def distance(self, updates: Matrix) -> Estimate:
        """How far the result is from the vector to compare with.

        Args:
            updates: A row for each update: its share of every vector, (n, k).
        """
        if self.rule.weigh is None and self.rule.farthest is not None:
            return self._bounded(updates, self.rule.farthest)
        return self._estimate(updates, self._distance, scale=1.0)

    def reach(self, updates: Matrix) -> Estimate:
        """The inner product of the result and the vector to compare with."""
        if self.rule.weigh is None and self.rule.farthest is not None:
            return UNKNOWN
        return self._estimate(updates, self._reach, scale=math.sqrt(self.gram[-1, -1]))

    def _estimate(
        self, updates: Matrix, measure: Callable[[Matrix], float], *, scale: float
    ) -> Estimate:
        rows = self._prepared(updates)
        if rows is None:
            return UNKNOWN
        longest = math.sqrt(max(self._gram_of(rows).diagonal().max(), 0.0))
        # Lies that are clipped are often the same.
        key = measure.__name__, rows.round(_DIGITS).tobytes()
        if key not in self._known:
            self._known[key] = measure(rows)
        value = self._known[key]
        if not math.isfinite(value):
            return UNKNOWN
        return Estimate(value, _SHARE * abs(value) + _OF_LONGEST * longest * scale)

    def _bounded(self, updates: Matrix, farthest: Farthest) -> Estimate:
        rows = self._prepared(updates)
        if rows is None:
            return UNKNOWN
        gram = self._gram_of(np.vstack([rows, self._last]))
        # A rule that finds nobody to ask makes no step.
        most = max(farthest(gram), math.sqrt(max(gram[-1, -1], 0.0)))
        most = (1 + _SHARE) * most + _OF_LONGEST * math.sqrt(gram.diagonal().max())
        return Estimate(most / 2, most / 2) if math.isfinite(most) else UNKNOWN

    @property
    def _last(self) -> Matrix:
        """The vector to compare with, as a mixture."""
        return np.eye(1, len(self.gram), len(self.gram) - 1)

    def _distance(self, rows: Matrix) -> float:
        if self.rule.weigh is None:
            return float(np.linalg.norm(self._run(rows) - device.to_numpy(self.vectors[-1])))
        shares = self._weighed(rows) - self._last[0]
        return math.sqrt(max(float(shares @ self.gram @ shares), 0.0))

    def _reach(self, rows: Matrix) -> float:
        if self.rule.weigh is None:
            return float(np.dot(self._run(rows), device.to_numpy(self.vectors[-1])))
        return float(self._weighed(rows) @ self.gram[:, -1])

    def _prepared(self, updates: Matrix) -> Matrix | None:
        """The rows that the pre-aggregations make, as mixtures; None where a tie decides."""
        rows = np.pad(updates, ((0, 0), (0, self.beside + 1)))
        for pre in self.rule.pre:
            assert pre.mix is not None  # noqa: S101
            factors = pre.mix(self._gram_of(rows), f=self.f)
            if factors is None:
                return None
            rows = factors @ rows
        return rows

    def _gram_of(self, rows: Matrix) -> Matrix:
        gram: Matrix = rows @ self.gram @ rows.T
        return gram

    def _weighed(self, rows: Matrix) -> Matrix:
        """The result as a mixture, where the rule weighs rows; NaN where a tie decides."""
        assert self.rule.weigh is not None  # noqa: S101
        size = len(self.gram)
        seen = np.vstack([rows, np.eye(self.beside, size, size - 1 - self.beside)])
        told = {} if self.rule.told is None else {"told": self._opinions(seen, self.rule.told)}
        weights = self.rule.weigh(self._gram_of(seen), f=self.f, **told)
        if weights is None:
            return np.full(size, np.nan)
        shares: Matrix = weights @ seen
        return shares

    def _opinions(self, rows: Matrix, told: Told) -> Matrix:
        """What the rule is told of each mixture; of each once."""
        keys = [row.tobytes() for row in rows.round(_DIGITS)]
        new = {key: place for place, key in enumerate(keys) if key not in self._told}
        if new:
            values = device.to_numpy(self.vectors)
            with keep_blas_to_one_thread():
                made = device.from_numpy(rows[[*new.values()]].astype(values.dtype) @ values)
            assert self.context is not None  # noqa: S101
            root = self.context.root
            assert root is not None  # noqa: S101
            found = guard(f"rule {self.rule.label!r}", lambda: told(root, made), self.rule.function)
            self._told.update(zip(new, found.tolist(), strict=True))
        return np.array([self._told[key] for key in keys])

    def _run(self, rows: Matrix) -> Array:
        """The rule's result on these rows."""
        values = device.to_numpy(self.vectors)
        if len(rows) not in self._rows:
            self._rows[len(rows)] = np.empty((len(rows), values.shape[1]), values.dtype)
        made = self._rows[len(rows)]
        with keep_blas_to_one_thread():
            np.matmul(rows.astype(values.dtype), values, out=made)
        return device.to_numpy(self.rule.finish(device.from_numpy(made), f=self.f))


def may_be_first(estimates: Sequence[Estimate], count: int) -> list[int]:
    """The places of those that may be among the `count` largest.

    >>> may_be_first([Estimate(1.0, 0.1), Estimate(3.0, 0.1), Estimate(2.9, 0.1), UNKNOWN], 1)
    [1, 2, 3]
    """
    lowest = sorted((e.low for e in estimates), reverse=True)[: max(count, 1)]
    return [place for place, e in enumerate(estimates) if e.high >= lowest[-1]]
