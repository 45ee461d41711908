"""Reading a sweep file: every mistake is found before any is reported.

How values go together is not checked here.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from holdout.config import apply_settings, parse
from holdout.config.parsing import RULES, path_of, read_value
from holdout.errors import ConfigError
from holdout.sweeps.grid import (
    ASSUMED,
    ATTACK,
    GRID,
    QUICK,
    RULE,
    SWEEP,
    VARIANTS,
    Axis,
    Contender,
    Names,
    Point,
    SweepFile,
    SweepSection,
    Values,
    copy_of,
    label_of,
    merged,
    plain_copy,
)

PARTS = (GRID, SWEEP, VARIANTS, QUICK)
NO_AXES = frozenset(
    f"experiment.{key}" for key in ("name", "rules", "seeds", "baseline", "threads", "save_every")
)
QUICK_ROUNDS = 10
"""By how much `--quick` divides the rounds where a file does not say what is quick."""


def read_sweep(
    values: Mapping[str, Any], *, quick: bool = False, settings: Sequence[str] = ()
) -> SweepFile:
    """A sweep from nested plain values, as TOML gives them; a ConfigError has all mistakes.

    Args:
        values: The sweep file.
        quick: Whether to lay its `[quick]` over it.
        settings: What `--set` puts over both.

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
    values = copy_of(values)
    laid_over = values.pop(QUICK, None)
    if quick:
        values = _with_quick(values, laid_over)
    return _Reader(apply_sweep_settings(values, settings)).read()


def apply_sweep_settings(values: Mapping[str, Any], settings: Sequence[str]) -> Values:
    """The values of a sweep file with settings put over them, as `--set` does.

    Example:
        >>> apply_sweep_settings({"grid": {"data.alpha": [1.0]}},
        ...                      ["grid.data.alpha=[0.1, 0.5]", "experiment.rounds=3"])
        {'experiment': {'rounds': 3}, 'grid': {'data.alpha': [0.1, 0.5]}}
    """
    _refuse_parts(settings)
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


def _refuse_parts(settings: Sequence[str]) -> None:
    """Refuse settings of parts that none can reach, instead of leaving them unheeded."""
    problems = [
        f"--set {setting}: [{part}] is changed in the file alone"
        for setting in settings
        for part in (VARIANTS, QUICK)
        if setting.partition("=")[0].strip().partition(".")[0] == part
    ]
    if problems:
        raise ConfigError(problems, where="the sweep")


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
            section[parts[-1]] = plain_copy(value)
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
        """A rule or a seed is there once; a key stands in the config or on one axis."""
        for name in ("rules", "seeds"):
            listed = getattr(parse(self.base).config.experiment, name)
            if len(set(listed)) < len(listed):
                each = name.removesuffix("s")
                self.problems.append(f"experiment.{name} = {listed}: must name each {each} once")
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
                if parsed is None:  # What is wrong, or does not fit, cannot be compared.
                    continue
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
        mistakes = [problem for problem in problems if problem not in misfits]
        self.problems.extend(mistakes)
        return None if mistakes else known


def _flat_axes(grid: Mapping[str, Any], problems: list[str]) -> dict[Names, Any]:
    """The axes by the path of their key, whether the file quotes their dots or not."""
    found: dict[Names, Any] = {}

    def add(path: Names, value: Any) -> None:
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


def _keys_of(settings: Mapping[str, Any]) -> set[str]:
    found = set()
    for section, table in settings.items():
        if isinstance(table, Mapping):
            found |= {f"{section}.{key}" for key in table}
        else:
            found.add(section)
    return found


def _find(values: Mapping[str, Any], path: Names) -> Any:
    found: Any = values
    for name in path:
        found = found.get(name) if isinstance(found, Mapping) else None
    return found
