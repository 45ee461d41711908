"""A sweep file: an ordinary config with lists in place of some values, and what to do with them.

    [grid]      axes: a key of the config and its values, or a section and tables to lay over it
    [variants]  rules with settings of their own, compared like rules
    [sweep]     what the adversary chooses from, what the heat map shows, what is selected how
    [quick]     what `--quick` lays over all of this

Every mistake is found before any is reported. How values go together is not checked here.
"""

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field, ValidationError

from holdout.config import Section, apply_settings, parse
from holdout.config.parsing import RULES, path_of, read_value
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
NO_AXES = frozenset(
    f"experiment.{key}" for key in ("name", "rules", "seeds", "baseline", "threads", "save_every")
)
QUICK_ROUNDS = 10
"""By how much `--quick` divides the rounds where a file does not say what is quick."""
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
Path: TypeAlias = tuple[str, ...]
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

    path: Path
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
        values = _copy(self.base)
        for axis, place in zip(self.axes, point, strict=True):
            axis.put(values, place)
        if contender is not None:
            values = merged(values, contender.settings)
        return _with_assumed(values)

    def label(self, places: Sequence[int], point: Sequence[int], *, sep: str = ", ") -> str:
        """What people call the values of some axes."""
        return sep.join(self.axes[i].labels[j] for i, j in zip(places, point, strict=True))

    def as_dict(self) -> Values:
        """The sweep as plain values: what its folder keeps."""
        return {
            **_copy(self.base),
            GRID: {axis.key: list(axis.values) for axis in self.axes},
            SWEEP: self.settings.model_dump(exclude_none=True),
            **({VARIANTS: variants} if (variants := self._variants()) else {}),
        }

    def _variants(self) -> Values:
        plain = set(parse(self.base).config.experiment.rules)
        return {
            contender.label: {RULE: contender.rule, **_copy(contender.settings)}
            for contender in self.contenders
            if contender.settings or contender.label not in plain
        }


def read_sweep(values: Mapping[str, Any], *, quick: bool = False) -> SweepFile:
    """A sweep from nested plain values, as TOML gives them; a ConfigError has all mistakes.

    Args:
        values: The sweep file.
        quick: Whether to lay its `[quick]` over it.

    Example:
        >>> file = read_sweep({
        ...     "experiment": {"rules": ["mean", "krum"], "rounds": 5},
        ...     "grid": {"federation.byzantine": [0.1, 0.2], "attack": [{"name": "alie"}]},
        ... })
        >>> [axis.key for axis in file.axes], len(list(file.points()))
        (['federation.byzantine', 'attack'], 2)
        >>> file.values_at((1, 0))["federation"]
        {'byzantine': 0.2, 'assumed_byzantine': 0.2}
    """
    values = _copy(values)
    laid_over = values.pop(QUICK, None)
    if quick:
        values = _with_quick(values, laid_over)
    return _Reader(values).read()


def apply_sweep_settings(values: Mapping[str, Any], settings: Sequence[str]) -> Values:
    """The values of a sweep file with settings put over them, as `--set` does.

    Example:
        >>> apply_sweep_settings({"grid": {"data.alpha": [1.0]}},
        ...                      ["grid.data.alpha=[0.1, 0.5]", "experiment.rounds=3"])
        {'experiment': {'rounds': 3}, 'grid': {'data.alpha': [0.1, 0.5]}}
    """
    others = {key: value for key, value in values.items() if key in (GRID, VARIANTS, QUICK)}
    plain = {key: value for key, value in values.items() if key not in others}
    of_grid = [setting for setting in settings if setting.startswith(f"{GRID}.")]
    result = apply_settings(plain, [s for s in settings if s not in of_grid])
    if of_grid:
        found: dict[str, Any] = {
            ".".join(path): value for path, value in _flat_axes(others.get(GRID, {}), []).items()
        }
        for setting in of_grid:
            key, _, text = setting.removeprefix(f"{GRID}.").partition("=")
            found[key.strip()] = read_value(text.strip())
        others[GRID] = found
    return {**result, **others}


def merged(values: Mapping[str, Any], over: Mapping[str, Any]) -> Values:
    """The first with the second laid over it: tables into tables, all else replaced."""
    result = _copy(values)
    for key, value in over.items():
        known = result.get(key)
        if isinstance(known, Mapping) and isinstance(value, Mapping):
            result[key] = merged(known, value)
        else:
            result[key] = _plain_copy(value)
    return result


def _with_quick(values: Values, laid_over: Any) -> Values:
    if laid_over is None:
        experiment = parse({"experiment": values.get("experiment", {})}).config.experiment
        rounds = max(1, experiment.rounds // QUICK_ROUNDS)
        return merged(values, {"experiment": {"rounds": rounds, "seeds": experiment.seeds[:1]}})
    if not isinstance(laid_over, Mapping):
        raise ConfigError([f"{QUICK} = {laid_over!r}: must be a section"], where="the sweep")
    laid_over = nested(laid_over)
    for part in (values, laid_over):
        if isinstance(part.get(GRID), Mapping):
            part[GRID] = {".".join(p): v for p, v in _flat_axes(part[GRID], []).items()}
    return merged(values, laid_over)


def nested(table: Mapping[str, Any]) -> Values:
    """A table whose keys may be dotted, as TOML would give it without the quotes."""
    result: Values = {}
    for key, value in table.items():
        parts = path_of(key) if "." in key else [key]
        section = result
        for name in parts[:-1]:
            section = section.setdefault(name, {})
        known = section.get(parts[-1]) if parts else None
        if isinstance(known, dict) and isinstance(value, Mapping):
            section[parts[-1]] = merged(known, value)
        elif parts:
            section[parts[-1]] = _plain_copy(value)
        else:
            result[key] = value  # Parsing refuses it by its name.
    return result


class _Reader:
    """Reads the parts of a file and collects what is wrong with them."""

    def __init__(self, values: Values) -> None:
        self.problems: list[str] = []
        self.grid = self._table(values, GRID)
        self.variants = self._table(values, VARIANTS)
        self.settings = self._settings(self._table(values, SWEEP))
        self.base = {key: value for key, value in values.items() if key not in PARTS}

    def read(self) -> SweepFile:
        """The sweep; a ConfigError with all mistakes."""
        self.axes = self._axes()
        self._check_base()
        file = SweepFile(
            self.base,
            self.axes,
            self._contenders(),
            self.settings,
            self._places("worst_over", self.settings.worst_over or self._attack_axes()),
            self._places("select_keys", self.settings.select_keys),
        )
        self._check_layout(file)
        self._check_selection(file)
        if not self.problems:
            self._check_values(file)
        if self.problems:
            raise ConfigError(list(dict.fromkeys(self.problems)), where="the sweep")
        return file

    def _table(self, values: Values, name: str) -> Values:
        table = values.get(name, {})
        if isinstance(table, Mapping):
            return dict(table)
        self.problems.append(f"{name} = {table!r}: must be a section")
        return {}

    def _settings(self, table: Values) -> SweepSection:
        for _ in range(len(table) + 1):
            try:
                return SweepSection.model_validate(table)
            except ValidationError as error:
                for detail in error.errors():
                    key = str(detail["loc"][0])
                    if key not in table:
                        continue
                    unknown = detail["type"] == "extra_forbidden"
                    known = ", ".join(SweepSection.model_fields)
                    why = f"unknown key; the keys are {known}" if unknown else detail["msg"]
                    why = why.replace("Input should", "must")
                    self.problems.append(f"{SWEEP}.{key} = {table.pop(key)!r}: {why}")
        return SweepSection()

    def _axes(self) -> tuple[Axis, ...]:
        axes = []
        for path, listed in _flat_axes(self.grid, self.problems).items():
            key = ".".join(path)
            if not isinstance(listed, list):
                self.problems.append(f"{GRID}.{key} = {listed!r}: must be a list of values")
            elif not listed:
                self.problems.append(f"{GRID}.{key} = []: must not be empty")
            elif key in NO_AXES or path[0] in ("track", "experiment.rules"):
                self.problems.append(f"{GRID}.{key}: {_why_no_axis(key)}")
            elif len(path) == 1 and not all(isinstance(value, Mapping) for value in listed):
                self.problems.append(
                    f"{GRID}.{key}: must list tables, which are laid over the section {key}, or "
                    f"name a key of it, as in {key}.KEY"
                )
            else:
                axes.append(Axis(path, tuple(listed), tuple(map(label_of, listed))))
        self.problems.extend(_repeated(axes))
        return tuple(axes)

    def _attack_axes(self) -> list[str]:
        return [axis.key for axis in self.axes if axis.path[0] == ATTACK]

    def _check_base(self) -> None:
        """A key has one place: in the config or in the grid, and there on one axis."""
        taken: dict[str, str] = {}
        for axis in self.axes:
            for key in sorted(axis.keys):
                if key in taken:
                    self.problems.append(
                        f"{GRID}.{axis.key}: sets {key}, as does {GRID}.{taken[key]}"
                    )
                taken[key] = axis.key
            if len(axis.path) > 1 and _find(self.base, axis.path) is not None:
                self.problems.append(
                    f"{axis.key} = {_find(self.base, axis.path)!r}: is an axis of [{GRID}], too; "
                    "give it once"
                )

    def _contenders(self) -> tuple[Contender, ...]:
        rules = parse({"experiment": self.base.get("experiment", {})}).config.experiment.rules
        found = [Contender(rule, rule) for rule in rules]
        touched = {key for axis in self.axes for key in axis.keys}
        for label, table in self.variants.items():
            name = f'{VARIANTS}."{label}"'
            if not isinstance(table, Mapping) or not isinstance(table.get(RULE), str):
                self.problems.append(f"{name}: must be a table that names its {RULE}")
                continue
            settings = nested({key: value for key, value in table.items() if key != RULE})
            if label in rules:
                self.problems.append(f"{name}: experiment.rules lists a rule of that name")
            for key in sorted(_keys_of(settings)):
                if key in touched or key in NO_AXES:
                    why = "is an axis" if key in touched else "cannot differ between rules"
                    self.problems.append(f"{name}: {key} {why}")
            found.append(Contender(label, table[RULE], settings))
        return tuple(found)

    def _places(self, setting: str, keys: Iterable[str]) -> tuple[int, ...]:
        known = [axis.key for axis in self.axes]
        places = []
        for key in keys:
            if key not in known:
                self._no_axis(setting, key)
            elif known.index(key) not in places:
                places.append(known.index(key))
        return tuple(places)

    def _no_axis(self, setting: str, key: str) -> None:
        known = ", ".join(axis.key for axis in self.axes) or "none"
        self.problems.append(f"{SWEEP}.{setting}: {key!r} is no axis; the axes are {known}")

    def _check_layout(self, file: SweepFile) -> None:
        shown = [file.axes[place].key for place in file.cell_axes]
        for setting in ("rows", "columns"):
            key = getattr(self.settings, setting)
            if key is None or key in (RULE, *shown):
                continue
            if key in [axis.key for axis in file.axes]:
                self.problems.append(
                    f"{SWEEP}.{setting}: {key!r} is not shown, since worst_over or select_keys "
                    "names it"
                )
            else:
                self._no_axis(setting, key)
        if self.settings.rows == self.settings.columns:
            self.problems.append(f"{SWEEP}.columns: must differ from {SWEEP}.rows")

    def _check_selection(self, file: SweepFile) -> None:
        settings = self.settings
        both = sorted(set(file.worst) & set(file.chosen))
        self.problems.extend(
            f"{SWEEP}.select_keys: {file.axes[place].key!r} is the adversary's choice"
            for place in both
        )
        if settings.select is None:
            if settings.select_keys or settings.select_seeds:
                self.problems.append(
                    f"{SWEEP}.select_keys, {SWEEP}.select_seeds: need {SWEEP}.select = 'max-min'"
                )
            return
        if not settings.select_keys:
            self.problems.append(f"{SWEEP}.select: {SWEEP}.select_keys must name an axis")
        if not settings.select_seeds:
            self.problems.append(f"{SWEEP}.select: {SWEEP}.select_seeds must name a seed")
        if len(set(settings.select_seeds)) < len(settings.select_seeds):
            self.problems.append(f"{SWEEP}.select_seeds: must name each seed once")
        experiment = parse({"experiment": self.base.get("experiment", {})}).config.experiment
        shared = sorted(set(settings.select_seeds) & set(experiment.seeds))
        if shared:
            self.problems.append(
                f"{SWEEP}.select_seeds: {', '.join(map(str, shared))} would be reported, too; what "
                "is selected on a seed looks better on it than it is"
            )

    def _check_values(self, file: SweepFile) -> None:
        """Each value by itself, the other axes at their first ones."""
        first = tuple(0 for _ in file.axes)
        for contender in file.contenders:
            self._problems_at(file, first, contender)
        for i, axis in enumerate(file.axes):
            seen: dict[str, int] = {}
            for j in range(len(axis.values)):
                point = (*first[:i], j, *first[i + 1 :])
                parsed = self._problems_at(file, point, None)
                # A multiple of the true share may mean the same here, and not elsewhere.
                same = parsed if axis.path != ASSUMED else axis.values[j]
                text = json.dumps(same, sort_keys=True, default=str)
                if seen.setdefault(text, j) != j:
                    self.problems.append(
                        f"{GRID}.{axis.key}: {axis.labels[j]} means the same as "
                        f"{axis.labels[seen[text]]}; each value must be there once"
                    )

    def _problems_at(self, file: SweepFile, point: Point, contender: Contender | None) -> Any:
        try:
            parsed = parse(file.values_at(point, contender))
        except ConfigError as error:
            misfits, problems, known = error.misfits, error.problems, None
        else:
            misfits, problems = parsed.misfits, parsed.problems
            known = parsed.config.as_dict()
        self.problems.extend(problem for problem in problems if problem not in misfits)
        return known


PARTS = (GRID, SWEEP, VARIANTS, QUICK)


def _flat_axes(grid: Mapping[str, Any], problems: list[str]) -> dict[Path, Any]:
    """The axes by the path of their key, whether the file quotes their dots or not."""
    found: dict[Path, Any] = {}

    def add(path: Path, value: Any) -> None:
        deepest = 3 if path[0] == RULES else 2
        if isinstance(value, Mapping) and len(path) < deepest:
            for name, inner in value.items():
                add((*path, str(name)), inner)
        elif path in found:
            problems.append(f"{GRID}.{'.'.join(path)}: is there twice")
        else:
            found[path] = value

    for key, value in grid.items():
        path = tuple(path_of(key)) if "." in key else (key,)
        if path:
            add(path, value)
        else:
            problems.append(f"{GRID}.{key}: no key of the config has that many parts")
    return found


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


def _repeated(axes: Sequence[Axis]) -> list[str]:
    """Values of an axis that people could not tell apart."""
    problems = []
    for axis in axes:
        seen: set[str] = set()
        for label in axis.labels:
            if label in seen:
                problems.append(f"{GRID}.{axis.key}: {label} is there twice")
            seen.add(label)
    return problems


def _why_no_axis(key: str) -> str:
    if key == "experiment.rules":
        return "no axis; experiment.rules lists what is compared"
    if key == "experiment.seeds":
        return "no axis; experiment.seeds lists the seeds"
    return "no axis: it changes no result"


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


def _keys_of(settings: Mapping[str, Any]) -> set[str]:
    found = set()
    for section, table in settings.items():
        if isinstance(table, Mapping):
            found |= {f"{section}.{key}" for key in table}
        else:
            found.add(section)
    return found


def _find(values: Mapping[str, Any], path: Path) -> Any:
    found: Any = values
    for name in path:
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def _copy(values: Mapping[str, Any]) -> Values:
    return {str(key): _plain_copy(value) for key, value in values.items()}


def _plain_copy(value: Any) -> Any:
    if isinstance(value, Mapping):
        return _copy(value)
    return [_plain_copy(item) for item in value] if isinstance(value, list) else value
