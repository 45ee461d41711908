"""What an evaluation measures, and how tables, figures and messages write it: in one place.

A classification is measured by its accuracy, a regression by R2. The rounds say which: those of a
regression hold `r2` and `mae`, where those of a classification hold `accuracy`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Metric:
    """Something that is measured over the rounds.

    >>> ACCURACY.text(0.8837), R2.text(0.8837)
    ('88.4 %', '0.884')
    >>> ACCURACY.difference(64.04), R2.difference(0.64)
    ('64.0 points', '0.640')
    """

    key: str
    """The field of a round that holds it."""
    name: str
    """What people call it."""
    scale: float
    """What a figure multiplies it by."""
    digits: int
    """Digits behind the point, after scaling."""
    unit: str
    """What follows it in a text, and is in brackets on an axis."""
    points: str
    """The unit of a difference."""
    shown_min: float = 0.0
    """The smallest value that a figure shows; worse values may be arbitrarily bad."""
    highest: float | None = 1.0
    """The end of the scale; None: there is none, and values may differ by powers of ten."""
    best_is_high: bool = True
    title: str = ""
    """What an axis calls it, if not "test" and its name."""

    def text(self, value: float, *, space: str = " ") -> str:
        """A value as people read it."""
        return f"{self.number(value)}{space}{self.unit}" if self.unit else self.number(value)

    def number(self, value: float) -> str:
        """A value without its unit."""
        return f"{self.scale * value:.{self.digits}f}"

    def difference(self, scaled: float) -> str:
        """A difference, scaled already, as people read it."""
        return f"{scaled:.{self.digits}f}{f' {self.points}' if self.points else ''}"

    @property
    def axis(self) -> str:
        """The title of an axis."""
        title = self.title or f"test {self.name}"
        return f"{title} ({self.unit})" if self.unit else title


ACCURACY = Metric("accuracy", "accuracy", scale=100.0, digits=1, unit="%", points="points")
R2 = Metric("r2", "R²", scale=1.0, digits=3, unit="", points="", shown_min=-1.0)
LOSS = Metric(
    "loss", "loss", scale=1.0, digits=3, unit="", points="", highest=None, best_is_high=False
)
WORST_CLASS_RECALL = Metric(
    "worst_class_recall",
    "recall of the worst class",
    scale=100.0,
    digits=1,
    unit="%",
    points="points",
    title="recall of the worst class",
)
MAE = Metric(
    "mae",
    "mean absolute error",
    scale=1.0,
    digits=3,
    unit="",
    points="",
    highest=None,
    best_is_high=False,
)
ATTACK_SUCCESS = Metric(
    "attack_success",
    "attack success",
    scale=100.0,
    digits=1,
    unit="%",
    points="points",
    best_is_high=False,
    title="attack success",
)
MEASURED = tuple(m.key for m in (ACCURACY, LOSS, WORST_CLASS_RECALL, R2, MAE, ATTACK_SUCCESS))
"""The fields of a round that an evaluation may fill."""
INITIAL = "initial"
"""The field of a curve's first round that holds what was measured before its first step."""


def metric_of(rounds: Iterable[Mapping[str, Any]]) -> Metric:
    """What curves of these rounds are compared by; higher is better.

    >>> metric_of([{"accuracy": None}, {"accuracy": 0.5}]).key, metric_of([{"r2": 0.1}]).key
    ('accuracy', 'r2')
    """
    return R2 if any(R2.key in record or _begins_with_r2(record) for record in rounds) else ACCURACY


def _begins_with_r2(record: Mapping[str, Any]) -> bool:
    initial = record.get(INITIAL)
    return isinstance(initial, Mapping) and R2.key in initial
