"""Reading ByzFL's JSON: every value is checked, and all mistakes and notes are collected."""

import itertools
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from typing_extensions import TypeIs

from holdout.errors import ConfigError
from holdout.sweeps.byzfl_names import Parameter, Part

SECTIONS = {
    "benchmark_config": (
        "training_algorithm",
        "nb_steps",
        "device",
        "training_seed",
        "nb_training_seeds",
        "nb_honest_clients",
        "f",
        "tolerated_f",
        "set_honest_clients_as_clients",
        "size_train_set",
        "data_distribution_seed",
        "nb_data_distribution_seeds",
        "data_distribution",
    ),
    "model": (
        "name",
        "dataset_name",
        "nb_labels",
        "loss",
        "optimizer_name",
        "learning_rate",
        "learning_rate_decay",
        "milestones",
    ),
    "aggregator": (),
    "pre_aggregators": (),
    "honest_clients": ("momentum", "weight_decay", "batch_size"),
    "attack": (),
    "evaluation_and_results": (
        "evaluation_delta",
        "batch_size_evaluation",
        "evaluate_on_test",
        "store_per_client_metrics",
        "store_models",
        "data_folder",
        "results_directory",
    ),
}
LISTED = ("aggregator", "pre_aggregators", "attack")
"""Sections that are parts, or lists of them, not tables of keys."""


@dataclass(frozen=True, slots=True)
class NamedPart:
    """A part by its name here, with its parameters."""

    name: str
    settings: Mapping[str, Any]


class ByzflFile:
    """The sections of a file of ByzFL's; collects what is wrong with them, and notes."""

    def __init__(self, values: object) -> None:
        self.problems: list[str] = []
        self.notes: list[str] = []
        self.sections = self._checked_sections(values)

    def parts(
        self, where: str, found: object, known: Mapping[str, Part], flat: Sequence[str] = ()
    ) -> list[NamedPart]:
        """The parts that a table or a list of tables names, one for each combination of lists."""
        tables = found if isinstance(found, list) else [found]
        named: list[NamedPart] = []
        if not tables:
            self.problems.append(f"{where}: must not be empty")
        for table in tables:
            if not isinstance(table, Mapping) or not isinstance(table.get("name"), str):
                self.wrong(where, table, 'must be a table such as {"name": "..."}, or a list')
                continue
            name = table["name"]
            self.unknown(where, table, ("name", *(flat or ("parameters",))))
            if name not in known:
                near = get_close_matches(name, known, 1)
                hint = f"did you mean {near[0]!r}?" if near else f"known: {names(known)}"
                self.wrong(f"{where}.name", name, f"unknown; {hint}")
                continue
            self.say_difference(where, name, known[name])
            parameters = {key: table[key] for key in flat if key in table}
            parameters = parameters if flat else table.get("parameters", {})
            named += self._with_parameters(f"{where} {name}", known[name], parameters, bool(flat))
        return named

    def _with_parameters(
        self, where: str, part: Part, parameters: object, is_flat: bool
    ) -> Iterable[NamedPart]:
        if not isinstance(parameters, Mapping):
            self.wrong(f"{where}.parameters", parameters, "must be a table")
            return []
        given = dict(parameters)
        if not is_flat and given.pop("f", None) is not None:
            self.note(f"{where}: f is overwritten by tolerated_f, as in ByzFL")
        for key in given if not is_flat or part.parameters else ():
            if key not in part.parameters:
                self.wrong(f"{where}.{key}", given[key], "unknown parameter")
        choices: list[list[tuple[str, Any]]] = []
        for key, parameter in part.parameters.items():
            values = self._values_of(f"{where}.{key}", given.get(key, parameter.default), parameter)
            if parameter.ours is not None:
                choices.append([(parameter.ours, value) for value in values])
            elif key in given and values != [parameter.default]:
                self.note(f"{where}.{key}: has no counterpart, nothing follows from it")
        return [
            NamedPart(part.ours, {**part.fixed, **dict(one)}) for one in itertools.product(*choices)
        ]

    def _values_of(self, where: str, value: object, parameter: Parameter) -> list[Any]:
        values: list[Any] = value if isinstance(value, list) else [value]
        kind = "a whole number" if parameter.whole else "a number"
        low = "" if parameter.lowest is None else f" from {parameter.lowest:g} on"
        for one in values:
            fits = is_whole(one) if parameter.whole else is_number(one)
            if not fits or (parameter.lowest is not None and one < parameter.lowest):
                self.wrong(where, one, f"must be {kind}{low}")
                return []
        if not values:
            self.wrong(where, value, "must not be empty")
        return values if parameter.whole else [float(one) for one in values]

    def say_difference(self, where: str, name: str, part: Part) -> None:
        """Note how the counterpart of a part departs from it."""
        if part.differs:
            self.note(f"{where} {name}: {part.ours}; {part.differs}")

    def _checked_sections(self, values: object) -> Mapping[str, Any]:
        if not isinstance(values, Mapping):
            raise ConfigError(["must be a table of sections"], where="ByzFL's config")
        self.unknown("", values, tuple(SECTIONS))
        self.problems += [
            f"{name}: missing; it names what is compared"
            for name in ("aggregator", "attack")
            if name not in values
        ]
        for name, keys in SECTIONS.items():
            if name in LISTED or name not in values:
                continue
            if isinstance(values[name], Mapping):
                self.unknown(name, values[name], keys)
            else:
                self.wrong(name, values[name], "must be a table")
        return {
            name: value
            for name, value in values.items()
            if name in LISTED or isinstance(value, Mapping)
        }

    def get(self, section: str, key: str, default: object) -> Any:
        """A value of a section, as it stands in the file."""
        return self.sections.get(section, {}).get(key, default)

    def several(
        self,
        section: str,
        key: str,
        fits: Callable[[object], bool],
        default: Any,
        *,
        lists: bool = True,
    ) -> list[Any]:
        """A value, or a list of them; what does not fit is a problem, and the default instead."""
        value = self.get(section, key, default)
        values = value if isinstance(value, list) and lists else [value]
        wrong = [one for one in values if one is not default and not fits(one)]
        if wrong or not values:
            self.wrong(f"{section}.{key}", value, f"must be {KINDS[fits]}")
            return [default]
        return list(dict.fromkeys(values))

    def one(self, key: str, fits: Callable[[object], bool], default: Any) -> Any:
        """A value of `benchmark_config` that must not be a list."""
        return self.several("benchmark_config", key, fits, default, lists=False)[0]

    def flag(self, section: str, key: str, *, default: bool) -> bool:
        """A value that is true or false."""
        value = self.get(section, key, default)
        if not isinstance(value, bool):
            self.wrong(f"{section}.{key}", value, "must be true or false")
            return default
        return value

    def unknown(self, where: str, table: Mapping[str, Any], known: Sequence[str]) -> None:
        """Refuse the keys of a table that ByzFL does not know."""
        for key in table:
            if key not in known:
                near = get_close_matches(str(key), known, 1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                self.problems.append(f"{where}{'.' * bool(where)}{key}: unknown key{hint}")

    def wrong(self, where: str, value: object, why: str) -> None:
        """Add a mistake: where it is, the value, and why."""
        self.problems.append(f"{where} = {json.dumps(value, default=str)[:60]}: {why}")

    def note(self, note: str) -> None:
        """Add a note."""
        self.notes.append(note)


def names(known: Iterable[str]) -> str:
    """Names, for a message."""
    return ", ".join(known)


def is_whole(value: object) -> TypeIs[int]:
    """Whether it is a whole number; Python takes True for one."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> TypeIs[int | float]:
    """Whether it is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def count(value: object) -> bool:
    """Whether it is a whole number from 1 on."""
    return is_whole(value) and value >= 1


def whole_from_0(value: object) -> bool:
    """Whether it is a whole number from 0 on."""
    return is_whole(value) and value >= 0


def share_above_0(value: object) -> bool:
    """Whether it is a share above 0."""
    return is_number(value) and 0 < value <= 1


def above_0(value: object) -> bool:
    """Whether it is a number above 0."""
    return is_number(value) and value > 0


def from_0(value: object) -> bool:
    """Whether it is a number from 0 on."""
    return is_number(value) and value >= 0


def below_1(value: object) -> bool:
    """Whether it is a number from 0 on and below 1."""
    return is_number(value) and 0 <= value < 1


KINDS: Mapping[Callable[[object], bool], str] = {
    count: "a whole number from 1 on",
    whole_from_0: "a whole number from 0 on",
    share_above_0: "a number above 0 and at most 1",
    above_0: "a number above 0",
    from_0: "a number from 0 on",
    below_1: "a number from 0 on and below 1",
}
