"""Parameters that a config gives to rules and pre-aggregations: `[rules."NAME"]`, plain values.

They become keyword arguments of the function, whether it is built in or the user's.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar, get_type_hints

from pydantic import ConfigDict, PydanticUserError, TypeAdapter, ValidationError

from holdout.rules import PreAggregation, Rule

HANDED_OVER = ("updates", "f", "context")
"""What a rule gets from the round, not from the config."""

T = TypeVar("T", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class RuleParameters:
    """The section `[rules]` of a config, and the mistakes found in it."""

    tables: Mapping[str, Mapping[str, object]]
    problems: list[str]

    def bind(self, name: str, part: T) -> Any:
        """The rule, pre-aggregation or function of this name with its parameters set."""
        given = self.tables.get(name)
        if not given:
            return part
        function = part.function if isinstance(part, Rule | PreAggregation) else part
        if found := _problems(name, function, given):
            # A part that several rules share is asked for several times.
            self.problems.extend(problem for problem in found if problem not in self.problems)
            return part
        if isinstance(part, Rule | PreAggregation):
            return part.with_parameters(**given)
        return partial(part, **given)

    def check_names(self, listed: Sequence[str], votes: Sequence[str]) -> None:
        """Refuse a table of a rule that is not run: it would have no effect."""
        used = list(dict.fromkeys(part for rule in listed for part in rule.split("+")))
        takers = [part for part in used if part not in votes]
        for name in self.tables:
            if name in votes:
                self.problems.append(f"rules.{name}: is a vote, whose settings are under [vote]")
            elif name not in used:
                there = f"there are {', '.join(takers)}" if takers else "there is none"
                self.problems.append(
                    f"rules.{name}: not a rule or pre-aggregation of experiment.rules; {there}"
                )


def _problems(name: str, function: Callable[..., Any], given: Mapping[str, object]) -> list[str]:
    parameters, takes_any = _parameters(function)
    has = f"it has {', '.join(parameters)}" if parameters else "it has none"
    found = []
    for key, value in given.items():
        if key in parameters:
            fault = _fault(function, parameters[key], value)
            found.extend([] if fault is None else [f"rules.{name}.{key} = {value!r}: {fault}"])
        elif not takes_any or key in HANDED_OVER:
            found.append(
                f"rules.{name}.{key} = {value!r}: unknown key; not a parameter of {name!r} ({has})"
            )
    return found


def _parameters(function: Callable[..., Any]) -> tuple[dict[str, inspect.Parameter], bool]:
    """The parameters that a config may set, and whether the function takes any others."""
    try:
        every = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # Some built-in functions have no signature.
        return {}, False
    keywords = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    # The first takes the updates, whatever it is called.
    settable = {p.name: p for p in every[1:] if p.kind in keywords and p.name not in HANDED_OVER}
    return settable, any(p.kind is inspect.Parameter.VAR_KEYWORD for p in every)


def _fault(function: Callable[..., Any], parameter: inspect.Parameter, value: object) -> str | None:
    """What is wrong with a value; nothing if the function does not say what it wants."""
    try:
        kind = get_type_hints(function).get(parameter.name)
    except (NameError, TypeError, AttributeError):  # It may be written for a type checker alone.
        kind = None
    default = parameter.default
    if kind is None and isinstance(default, bool | int | float | str):
        kind = type(default)
    if kind is None:
        return None
    try:
        TypeAdapter(kind, config=ConfigDict(strict=True)).validate_python(value)
    except ValidationError as error:
        return str(error.errors()[0]["msg"]).replace("Input should", "must")
    except PydanticUserError:
        return None
    return None
