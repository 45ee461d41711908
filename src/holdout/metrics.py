"""What an evaluation measures, and how tables, figures and messages write it: in one place.

A classification is measured by its accuracy, a regression by R2. The rounds say which: those of a
regression hold `r2` and `mae`, where those of a classification hold `accuracy`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Metric:
    """The number by which curves are compared; higher is better.

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
    """What stands behind it in a text, and in brackets at an axis."""
    points: str
    """The unit of a difference."""
    shown_min: float = 0.0
    """The least value that a figure shows: what is worse may be so by any amount."""

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
        return f"test {self.name} ({self.unit})" if self.unit else f"test {self.name}"


ACCURACY = Metric("accuracy", "accuracy", scale=100.0, digits=1, unit="%", points="points")
R2 = Metric("r2", "R²", scale=1.0, digits=3, unit="", points="", shown_min=-1.0)
ATTACK_SUCCESS = Metric(
    "attack_success", "attack success", scale=100.0, digits=1, unit="%", points="points"
)
MAE_KEY = "mae"
"""The field of a round that holds the mean absolute error of a regression."""


def metric_of(rounds: Iterable[Mapping[str, Any]]) -> Metric:
    """What these rounds are measured by.

    >>> metric_of([{"accuracy": None}, {"accuracy": 0.5}]).key, metric_of([{"r2": 0.1}]).key
    ('accuracy', 'r2')
    """
    return R2 if any(R2.key in record for record in rounds) else ACCURACY
