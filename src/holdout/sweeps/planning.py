"""Every curve that a sweep needs, and which combinations of values do not fit.

A value that is wrong by itself, such as the name of no attack, is a mistake of the file: nothing is
begun. A combination that cannot be, such as a rule that does not work with so many liars, is said
at its cell, and the rest is run.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from holdout.config import Config, parse
from holdout.data.datasets import Dataset
from holdout.errors import ConfigError
from holdout.experiments.plan import ExperimentPlan, make_plan, read_data
from holdout.experiments.plugins import Plugins
from holdout.experiments.resolve_names import PLUS
from holdout.learning import vector
from holdout.sweeps.curve_keys import code_of, content_of, curve_key, heeded_config, versions_of
from holdout.sweeps.estimates import bytes_of, work_of
from holdout.sweeps.grid import Contender, Point, SweepFile, Values, merged

BASELINE = Contender("mean, no attack", "mean")
"""The mean without attack: what a rule is compared with."""
MISTAKES_MAX = 20


@dataclass(frozen=True, slots=True, eq=False)
class WantedCurve:
    """A curve that a sweep needs."""

    key: str
    """Its name in the store."""
    config: Mapping[str, Any]
    """A complete config that has this curve alone."""
    rule: str
    attack: str
    seed: int
    guessed: float
    """Roughly how many seconds it takes."""
    size: int
    """Roughly how many bytes the store keeps of it."""

    def __str__(self) -> str:
        return f"{self.rule} ({self.attack}, seed {self.seed})"


@dataclass(frozen=True, slots=True, eq=False)
class _Unit:
    """A contender at a point, for any seed."""

    config: Mapping[str, Any]
    attack: str
    rule: str
    data: str
    code: Mapping[str, Any]
    versions: Mapping[str, Any]
    guessed: float
    size: int

    def curve(self, seed: int) -> WantedCurve:
        config = {**self.config, "experiment": {**self.config["experiment"], "seeds": [seed]}}
        key = curve_key(config, data=self.data, code=self.code, versions=self.versions)
        return WantedCurve(
            key, config, self.rule, self.attack, seed, guessed=self.guessed, size=self.size
        )


Curves: TypeAlias = dict[str, WantedCurve]
"""Curves by their names in the store."""


@dataclass(frozen=True, slots=True, eq=False)
class SweepPlan:
    """What a sweep runs, contender by contender and point by point."""

    file: SweepFile
    units: Mapping[tuple[str, Point, int | None], _Unit | str]
    """By contender, point and (only where sizes differ by seed) seed; or why it cannot be."""

    @property
    def contenders(self) -> list[Contender]:
        """What is run, the mean without attack first."""
        return [*([BASELINE] if self.file.has_baseline else []), *self.file.contenders]

    def find(self, contender: Contender, point: Point, seed: int) -> WantedCurve | str:
        """A curve, or why it cannot be."""
        unit = self.units.get((contender.label, point, seed))
        if unit is None:
            unit = self.units[contender.label, point, None]
        return unit if isinstance(unit, str) else unit.curve(seed)

    def curves(self, points: Sequence[tuple[Contender, Point]], seeds: Sequence[int]) -> Curves:
        """The curves of some contenders at some points, each once."""
        found: dict[str, WantedCurve] = {}
        for contender, point in points:
            for seed in seeds:
                curve = self.find(contender, point, seed)
                if isinstance(curve, WantedCurve):
                    found.setdefault(curve.key, curve)
        return found

    def everything(self) -> list[tuple[Contender, Point]]:
        """All contenders at all points."""
        return [(c, point) for c in self.contenders for point in self.file.points()]

    def misfits(self) -> dict[tuple[str, Point], str]:
        """The combinations that cannot be, with the reason of each."""
        return {key[:2]: unit for key, unit in self.units.items() if isinstance(unit, str)}


def plan_sweep(file: SweepFile) -> SweepPlan:
    """Look everything up, load the data, and name every curve; all mistakes are one ConfigError."""
    return _Planner(file).plan()


class _Planner:
    def __init__(self, file: SweepFile) -> None:
        self.file = file
        self.datasets: dict[str, tuple[Dataset, str]] = {}
        self.mistakes: list[str] = []
        self.rules = [contender.rule for contender in file.contenders]
        self.baselines: dict[str, _Unit | str] = {}

    def plan(self) -> SweepPlan:
        units: dict[tuple[str, Point, int | None], _Unit | str] = {}
        plain = [c for c in self.file.contenders if not c.settings]
        groups = [plain, *([c] for c in self.file.contenders if c.settings)]
        for point in self.file.points():
            for group in filter(None, groups):
                for seed in self._fitted_seeds(point, group[0]):
                    found = self._units(point, group, seed)
                    units.update({(label, point, seed): unit for label, unit in found.items()})
            if self.file.has_baseline:
                for seed in self._fitted_seeds(point, BASELINE):
                    units[BASELINE.label, point, seed] = self._baseline(point, seed)
            if len(self.mistakes) > MISTAKES_MAX:
                break
        if self.mistakes:
            found_mistakes = list(dict.fromkeys(self.mistakes))[:MISTAKES_MAX]
            raise ConfigError(found_mistakes, where="the sweep")
        self._refuse_nothing(units)
        return SweepPlan(self.file, units)

    def _refuse_nothing(self, units: Mapping[tuple[str, Point, int | None], _Unit | str]) -> None:
        attacked = {key: unit for key, unit in units.items() if key[0] != BASELINE.label}
        if all(isinstance(unit, str) for unit in attacked.values()):
            reasons = list(dict.fromkeys(str(unit) for unit in attacked.values()))
            told = "; ".join(reasons[:MISTAKES_MAX])
            raise ConfigError([f"no combination can be run: {told}"], where="the sweep")

    def _fitted_seeds(self, point: Point, contender: Contender) -> Sequence[int | None]:
        """None, or every seed where the sizes of shards, and what fits them, differ by seed."""
        try:
            partition = parse(self.file.values_at(point, contender)).config.data.partition
        except ConfigError:
            return [None]
        if partition != "quantity" and ":" not in partition:
            return [None]
        return [*self.file.seeds, *self.file.settings.select_seeds]

    def _units(
        self, point: Point, group: Sequence[Contender], seed: int | None
    ) -> dict[str, _Unit | str]:
        try:
            values = self.file.values_at(point, group[0])
        except ConfigError as error:
            return {contender.label: "; ".join(error.problems) for contender in group}
        rules = [contender.rule for contender in group]
        before = len(self.mistakes)
        found = self._try(values, rules, seed)
        # A mistake is one for each of them; what does not fit may fit some.
        if isinstance(found, str) and len(group) > 1 and len(self.mistakes) == before:
            alone = {c.label: self._try(values, [c.rule], seed) for c in group}
            return {label: one if isinstance(one, str) else one[0] for label, one in alone.items()}
        if isinstance(found, str):
            return {contender.label: found for contender in group}
        return {contender.label: unit for contender, unit in zip(group, found, strict=True)}

    def _baseline(self, point: Point, seed: int | None) -> _Unit | str:
        """The mean without attack, which heeds no attack, no share of liars and no vote."""
        file = self.file
        kept = [
            file.axes[i].path[0] not in ("attack", "rules")
            and file.axes[i].key not in ("federation.byzantine", "federation.assumed_byzantine")
            for i in range(len(file.axes))
        ]
        name = str(([j for j, keep in zip(point, kept, strict=True) if keep], seed))
        if name not in self.baselines:
            values = merged(file.base, {})
            for axis, place, keep in zip(file.axes, point, kept, strict=True):
                if keep:
                    axis.put(values, place)
            values["attack"] = {"name": "none"}
            values.pop("rules", None)
            values = merged(values, {"federation": {"byzantine": 0, "assumed_byzantine": 0}})
            found = self._try(values, ["mean"], seed)
            self.baselines[name] = found if isinstance(found, str) else found[0]
        return self.baselines[name]

    def _try(self, values: Values, rules: Sequence[str], seed: int | None) -> list[_Unit] | str:
        """A unit of each rule; or, if it does not fit, why."""
        first = self.file.seeds[0] if seed is None else seed
        changes = {"experiment": {"rules": list(rules), "seeds": [first], "baseline": False}}
        values = merged(values, changes)
        values.pop("track", None)
        self._drop_tables(values, rules)
        try:
            plan = make_plan(values, load_data=self._load)
        except ConfigError as error:
            mistakes = [problem for problem in error.problems if problem not in error.misfits]
            self.mistakes.extend(mistakes)
            return "; ".join(error.problems)
        return list(self._units_of(plan))

    def _drop_tables(self, values: Values, rules: Sequence[str]) -> None:
        """Leave out the parameters of rules that are in the sweep, but not among these."""
        tables = values.get("rules")
        if isinstance(tables, Mapping):
            known, here = _parts_of(self.rules), _parts_of(rules)
            values["rules"] = {k: v for k, v in tables.items() if k in here or k not in known}

    def _load(self, config: Config, plugins: Plugins) -> Dataset:
        name = _data_name(config)
        if name not in self.datasets:
            dataset = read_data(config, plugins)
            self.datasets[name] = dataset, content_of(dataset)
        return self.datasets[name][0]

    def _units_of(self, plan: ExperimentPlan) -> Iterator[_Unit]:
        content = self.datasets[_data_name(plan.config)][1]
        dimension = vector.dimension(plan.model(0))
        for curve, _ in plan.curves:
            # The code of other rules does not decide what this one does.
            alone = replace(plan, curves=[(curve, 0)])
            yield _Unit(
                config=heeded_config(plan.config, curve),
                attack=curve.attack,
                rule=curve.rule,
                data=content,
                code=code_of(alone),
                versions=versions_of(plan.config),
                guessed=work_of(
                    plan.config,
                    curve.rule,
                    dimension=dimension,
                    test_rows=len(plan.dataset.y_test),
                ),
                size=bytes_of(plan.config),
            )


def _parts_of(rules: Sequence[str]) -> set[str]:
    return {part for rule in rules for part in (rule, *rule.split(PLUS))}


def _data_name(config: Config) -> str:
    """What decides which rows are loaded."""
    data = config.data
    return str((data.name, data.path, data.normalise, config.training.loss))
