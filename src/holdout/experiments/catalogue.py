"""What a config may name, with a line on each: rules, attacks, partitions, models and data sets.

The lines are the first ones of docstrings, or what the tables themselves say.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from holdout.attacks import ATTACKS, BALLOT_ATTACKS
from holdout.data.datasets import DATA_SETS
from holdout.data.partitions import PARTITIONS
from holdout.learning.models import MODELS
from holdout.rules import PRE_AGGREGATIONS, RULES
from holdout.voting import VOTES


@dataclass(frozen=True, slots=True)
class Listed:
    """Something that a config may name."""

    name: str
    kind: str
    """Where the name stands, such as `experiment.rules`."""
    needs: str
    """How many updates n it needs with f liars, if it says."""
    about: str


def _rules() -> Iterator[Listed]:
    for name, vote in VOTES.items():
        yield Listed(name, "vote", "", vote.about)
    for name, rule in RULES.items():
        yield Listed(name, "rule", rule.needs.bound, _first_line(rule.function))
    for name, pre in PRE_AGGREGATIONS.items():
        yield Listed(
            name, "before a rule, as name+rule", pre.needs.bound, _first_line(pre.function)
        )


def _attacks() -> Iterator[Listed]:
    for name, attack in ATTACKS.items():
        yield Listed(name, "attack.name", "", _first_line(attack))
    for name, ballots in BALLOT_ATTACKS.items():
        yield Listed(name, "attack.voters", "", _first_line(ballots))


def _described(kind: str, texts: Mapping[str, str]) -> Iterator[Listed]:
    return (Listed(name, kind, "", text) for name, text in texts.items())


def _models() -> Iterator[Listed]:
    return (Listed(name, "model.name", "", _first_line(make)) for name, make in MODELS.items())


CATALOGUE: Mapping[str, Callable[[], Iterator[Listed]]] = MappingProxyType(
    {
        "rules": _rules,
        "attacks": _attacks,
        "partitions": lambda: _described("data.partition", PARTITIONS),
        "models": _models,
        "data": lambda: _described("data.name", DATA_SETS),
    }
)
"""What can be listed, and what is in it."""


def as_table(entries: list[Listed]) -> str:
    """The entries as aligned columns, one line each.

    >>> krum, vote = Listed("krum", "rule", "n > 2f + 2", "One."), Listed("x", "vote", "", "Many.")
    >>> print(as_table([krum, vote]))
    krum  rule  n > 2f + 2  One.
    x     vote              Many.
    """
    rows = [(entry.name, entry.kind, entry.needs, entry.about) for entry in entries]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    # A column that says nothing, or the same of all, is left out.
    shown = [0, *(c for c in (1, 2) if len({row[c] for row in rows}) > 1)]
    lines = ("  ".join([*(row[c].ljust(widths[c]) for c in shown), row[3]]) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def _first_line(documented: object) -> str:
    # A rule with other parameters is a partial of its function.
    return (inspect.getdoc(getattr(documented, "func", documented)) or "").partition("\n")[0]
