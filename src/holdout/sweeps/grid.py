"""A sweep file: an ordinary config with lists in place of some values, and what to do with them.

[grid]      axes: a key of the config and its values, or a section and tables to lay over it
[variants]  rules with settings of their own, compared like rules
[sweep]     what the adversary chooses from, what the heat map shows, what is selected how
[quick]     what `--quick` lays over all of this
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field

from holdout.config import Section, parse
from holdout.config.sections import Count, FederationSection, Name
from holdout.errors import ConfigError
from holdout.shares import read_share, write_share

GRID, SWEEP, VARIANTS, QUICK = "grid", "sweep", "variants", "quick"
RULE = "rule"
"""Names the rows of the heat map that are rules, and in a variant its rule."""
ATTACK = "attack"
LABEL = "label"
ASSUMED = ("federation", "assumed_byzantine")
TIMES = "x"
"""Ends a multiple of the true share, as in "2x"."""
TITLES = {
    RULE: "rule",
    "attack": "attack",
    "attack.name": "attack",
    "data": "data",
    "data.alpha": "Dirichlet α",
    "federation.byzantine": "share of liars",
    "federation.assumed_byzantine": "share that rules assume",
    "training.worker_momentum": "worker momentum",
    "training.learning_rate": "learning rate",
}
"""What people call an axis; others go by their key."""

Values: TypeAlias = dict[str, Any]
Names: TypeAlias = tuple[str, ...]
"""The names that lead to a value."""
Point: TypeAlias = tuple[int, ...]
"""The place of a value on each axis."""
Measure: TypeAlias = Literal["final", "lowest", "best"]


class SweepSection(Section):
    """What to do with a grid."""

    worst_over: list[Name] | None = None
    """The axes from which the adversary chooses; without it, all axes of the section `attack`."""
    rows: Name = RULE
    """What the rows of the heat map are: `rule`, or an axis."""
    columns: Name | None = None
    """What its columns are; without it, the first axis that is left. The rest are panels."""
    measure: Measure = "final"
    """What the heat map shows and `select` compares: the final accuracy, the lowest of the second
    half of the rounds, or the best."""
    select: Literal["max-min"] | None = None
    """`max-min`: for each rule and cell, take those values of `select_keys` whose worst attack does
    least harm on `select_seeds`, and report them on the seeds of the experiment."""
    select_keys: list[Name] = Field(default_factory=list)
    """The axes whose values are selected, not reported."""
    select_seeds: list[Annotated[int, Field(ge=0)]] = Field(default_factory=list)
    """Seeds for selecting; none of them may be reported."""
    curves_max: Count = 500
    """More curves than this are not begun without `--yes`."""


@dataclass(frozen=True, slots=True)
class Axis:
    """A key, or a section, and the values that it takes."""

    path: Names
    values: tuple[Any, ...]
    labels: tuple[str, ...]

    @property
    def key(self) -> str:
        """How the file calls it."""
        return ".".join(self.path)

    @property
    def title(self) -> str:
        """How people call it."""
        return TITLES.get(self.key, self.key)

    def named(self, place: int) -> str:
        """What people call a value: one that would not be understood alone with its axis."""
        label = self.labels[place]
        return label if len(self.path) == 1 else f"{self.title} {label}"

    @property
    def keys(self) -> set[str]:
        """The keys of the config that it sets."""
        if len(self.path) > 1:
            return {self.key}
        return {f"{self.key}.{name}" for table in self.values for name in table if name != LABEL}

    def put(self, values: Values, place: int) -> None:
        """Set one of its values in a config."""
        value, section = self.values[place], values
        if len(self.path) == 1:
            table = {name: entry for name, entry in value.items() if name != LABEL}
            values[self.key] = {**values.get(self.key, {}), **table}
            return
        for name in self.path[:-1]:
            section = section.setdefault(name, {})
        section[self.path[-1]] = value


@dataclass(frozen=True, slots=True)
class Contender:
    """A rule, perhaps with settings of its own, that is compared with others."""

    label: str
    rule: str
    settings: Values = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SweepFile:
    """A sweep as its file says it."""

    base: Values
    """The config without axes: what stays the same."""
    axes: tuple[Axis, ...]
    contenders: tuple[Contender, ...]
    settings: SweepSection
    worst: tuple[int, ...]
    """The places of the axes from which the adversary chooses."""
    chosen: tuple[int, ...]
    """The places of the axes whose values are selected."""

    @property
    def name(self) -> str:
        """What the sweep is called."""
        return str(parse(self.base).config.experiment.name)

    @property
    def seeds(self) -> list[int]:
        """The reported seeds."""
        return list(parse(self.base).config.experiment.seeds)

    @property
    def has_baseline(self) -> bool:
        """Whether the mean without attack is run, too."""
        return bool(parse(self.base).config.experiment.baseline)

    @property
    def cell_axes(self) -> tuple[int, ...]:
        """The places of the axes that tell one cell from another."""
        taken = {*self.worst, *self.chosen}
        return tuple(place for place in range(len(self.axes)) if place not in taken)

    def points(self) -> Iterator[Point]:
        """Every combination of values, in the order of the file."""
        return itertools.product(*(range(len(axis.values)) for axis in self.axes))

    def over(self, places: Sequence[int]) -> list[Point]:
        """Every combination of the values of some axes."""
        return list(itertools.product(*(range(len(self.axes[i].values)) for i in places)))

    def values_at(self, point: Point, contender: Contender | None = None) -> Values:
        """The config of a point; a ConfigError if what rules assume cannot be assumed."""
        values = copy_of(self.base)
        for axis, place in zip(self.axes, point, strict=True):
            axis.put(values, place)
        if contender is not None:
            values = merged(values, contender.settings)
        return _with_assumed(values)

    def label(self, places: Sequence[int], point: Sequence[int]) -> str:
        """What people call the values of some axes."""
        return ", ".join(self.axes[i].labels[j] for i, j in zip(places, point, strict=True))

    def as_dict(self) -> Values:
        """The sweep as plain values: what its folder keeps."""
        return {
            **copy_of(self.base),
            GRID: {axis.key: list(axis.values) for axis in self.axes},
            SWEEP: self.settings.model_dump(exclude_none=True),
            **({VARIANTS: variants} if (variants := self._variants()) else {}),
        }

    def _variants(self) -> Values:
        plain = set(parse(self.base).config.experiment.rules)
        return {
            contender.label: {RULE: contender.rule, **copy_of(contender.settings)}
            for contender in self.contenders
            if contender.settings or contender.label not in plain
        }


def merged(values: Mapping[str, Any], over: Mapping[str, Any]) -> Values:
    """The first with the second laid over it: tables into tables, all else replaced."""
    result = copy_of(values)
    for key, value in over.items():
        known = result.get(key)
        if isinstance(known, Mapping) and isinstance(value, Mapping):
            result[key] = merged(known, value)
        else:
            result[key] = plain_copy(value)
    return result


def label_of(value: Any) -> str:
    """What people call a value of an axis.

    >>> label_of(0.1), label_of(True), label_of({"name": "alie", "direction": -1})
    ('0.1', 'true', 'alie −')
    >>> label_of({"partition": "dirichlet", "alpha": 0.5}), label_of({"label": "far", "x": 1})
    ('dirichlet, alpha 0.5', 'far')
    """
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, Mapping):
        return str(value)
    if LABEL in value:
        return str(value[LABEL])
    names = [key for key in ("name", "partition") if key in value]
    # The sign of a lie is said by its sign.
    sign = " −" if value.get("direction") == -1 else ""
    rest = [
        f"{key} {label_of(value[key])}"
        for key in value
        if key not in names and (key != "direction" or not sign)
    ]
    return ", ".join([" ".join(str(value[key]) for key in names) + sign, *rest])


def _with_assumed(values: Values) -> Values:
    """What rules assume as a share; without it, and as "1x", that is the truth."""
    federation = values.setdefault("federation", {})
    if not isinstance(federation, dict):
        return values
    assumed = federation.get(ASSUMED[1], f"1{TIMES}")
    if not isinstance(assumed, str) or not assumed.endswith(TIMES):
        return values
    default = FederationSection()
    workers = federation.get("workers", default.workers)
    try:
        times = Fraction(assumed.removesuffix(TIMES).strip())
        truth = read_share(federation.get("byzantine", default.byzantine))
    except (ValueError, ZeroDivisionError):
        return values  # Parsing says which of the two it is.
    share = times * truth
    if isinstance(truth, int) and isinstance(workers, int) and workers:
        share = Fraction(share, workers) if share.denominator > 1 else Fraction(share)
        federation[ASSUMED[1]] = int(share) if share.denominator == 1 else write_share(share)
        share = share / workers if share.denominator == 1 else share
    else:
        federation[ASSUMED[1]] = write_share(share)
    if not 0 <= share < Fraction(1, 2):
        problem = (
            f"federation.assumed_byzantine = {assumed!r} of {write_share(truth)}: the assumed "
            f"share f must be below 1/2; got f = {write_share(share)}"
        )
        raise ConfigError([problem], misfits=[problem])
    return values


def copy_of(values: Mapping[str, Any]) -> Values:
    """The same tables and lists as new ones, so that nobody changes the given ones."""
    return {str(key): plain_copy(value) for key, value in values.items()}


def plain_copy(value: Any) -> Any:
    """A value that shares no table or list with the given one."""
    if isinstance(value, Mapping):
        return copy_of(value)
    return [plain_copy(item) for item in value] if isinstance(value, list) else value
