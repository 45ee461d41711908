"""Write docs/config.md, docs/rules.md and docs/attacks.md from the source.

Usage: python tools/reference_pages.py

The config's page comes from the fields of `Config`: what is written below each, its type, range and
default. A rule's or an attack's entry comes from its docstring: the first line, paragraphs and
formulas that define it, a paragraph `Source: ...`, of attacks also `Needs: ...`, and `Args:`.
A part that is missing is an error, which names it.
"""

import inspect
import json
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from fractions import Fraction
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import annotated_types as limits
import api_page
from pydantic import BaseModel, StringConstraints
from pydantic.fields import FieldInfo

from holdout.attacks import ATTACKS, BALLOT_ATTACKS, MESSAGE_ATTACKS
from holdout.config import Config
from holdout.rules import PRE_AGGREGATIONS, RULES
from holdout.voting import VOTES

DOCS = Path(__file__).resolve().parent.parent / "docs"

NOT_PARAMETERS = frozenset({"updates", "f", "context", "view"})
"""What every rule or attack is called with."""

CUSTOM = "package.module:name"


class MissingPart(Exception):  # noqa: N818  # It names what to write.
    """A docstring lacks a part that its entry needs."""


# -- the config -----------------------------------------------------------------------------------

CONFIG_HEAD = f"""\
# The config

Every key of a config, section by section. A TOML file names only what differs from the defaults,
`--set section.key=value` on the command line overrides it, and `config.toml` in a run folder holds
all keys. Unknown keys, values of the wrong type, and values that do not fit each other are all
reported together, before anything is run. Where a text may be `"{CUSTOM}"`, the function
of that name is imported and called; its module may be in the folder in which the command is
started. The names that a config may use are in [rules](rules.md) and [attacks](attacks.md);
`holdout list` prints them.

This page is made from the source by `make docs`.
"""


def config_page(config: type[BaseModel] = Config) -> str:
    """The page of the config, or of any model made of sections."""
    return "\n".join([CONFIG_HEAD, *_sections("", config)]).rstrip() + "\n"


def config_keys(config: type[BaseModel] = Config, before: str = "") -> Iterator[str]:
    """Every key as section.key, those of tables inside sections too."""
    for name, field in config.model_fields.items():
        inner = _model_of(field.annotation)
        if inner is None:
            yield before + name
        else:
            yield from config_keys(inner, f"{before}{name}.")


def _sections(before: str, config: type[BaseModel]) -> Iterator[str]:
    """A heading and a table for each section, and for each table inside one."""
    hints = get_type_hints(config, include_extras=True)
    about = api_page.written_below(config)
    for name, field in config.model_fields.items():
        place, section = f"{before}{name}", _model_of(field.annotation)
        if section is not None:
            yield f"## `[{place}]`\n\n{_summary_of(section)}\n"
            yield from _table(f"{place}.", section)
        elif not before:
            # A free-form table: any keys, values of one type.
            kind, allowed = _described(hints[name])
            said = " ".join(filter(None, [about.get(name, ""), allowed]))
            yield f"## `[{place}]`\n\n{said}\n\nA table of your own keys: {kind}.\n"


def _table(before: str, section: type[BaseModel]) -> Iterator[str]:
    hints = get_type_hints(section, include_extras=True)
    about = api_page.written_below(section)
    rows = [
        _row(key, field, hints[key], about.get(key, ""))
        for key, field in section.model_fields.items()
        if _model_of(field.annotation) is None
    ]
    if rows:
        head = ["| key | type | default | range | meaning |", "|---|---|---|---|---|"]
        yield "\n".join([*head, *rows]) + "\n"
    if section.model_config.get("extra") == "allow":
        yield "Further keys are taken too: parameters of what the section names.\n"
    yield from _sections(before, section)


def _row(key: str, field: FieldInfo, hint: Any, about: str) -> str:
    if not about:
        raise MissingPart(f"config key {key}: nothing is written below it")
    kind, allowed = _described(hint)
    cells = [f"`{key}`", kind, _default(field), allowed, about]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True)
    if value is None:
        return "none"
    if isinstance(value, Fraction):
        value = float(value)
    return f"`{json.dumps(value, ensure_ascii=False)}`"


def _summary_of(model: type[BaseModel]) -> str:
    return api_page.parse(inspect.getdoc(model) or "").summary


def _model_of(annotation: Any) -> type[BaseModel] | None:
    is_model = isinstance(annotation, type) and issubclass(annotation, BaseModel)
    return annotation if is_model else None


def _described(hint: Any) -> tuple[str, str]:
    """The type and the range of an annotation, in words.

    >>> from pydantic import Field
    >>> _described(Annotated[int, Field(ge=1)]), _described(Literal["a", "b"] | None)
    (('whole number', 'at least 1'), ('text', '`"a"`, `"b"`'))
    >>> _described(dict[str, list[float]])
    ('table of list of numbers', '')
    """
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        kind, allowed = _described(arguments[0])
        if Fraction in get_args(arguments[0]):
            return "share", '`0.33`, `"1/3"` or a whole number of workers'
        own = [text for extra in arguments[1:] for text in _limits(extra)]
        return kind, ", ".join(filter(None, [allowed, *own]))
    if origin in {Union, UnionType}:
        parts = [_described(part) for part in arguments if part is not NoneType]
        kinds, ranges = (
            list(dict.fromkeys(filter(None, column))) for column in zip(*parts, strict=True)
        )
        return " or ".join(kinds), ", or ".join(ranges)
    if origin is Literal:
        kinds = list(dict.fromkeys(_plain(type(choice)) for choice in arguments))
        return " or ".join(kinds), ", ".join(f"`{json.dumps(choice)}`" for choice in arguments)
    if origin is list:
        kind, allowed = _described(arguments[0])
        plural = f"{kind}s" if kind.endswith("number") else kind
        return f"list of {plural}", f"each {allowed}" if allowed else ""
    if origin in {dict, Mapping}:
        kind, allowed = _described(arguments[1])
        return f"table of {kind}", allowed
    model = _model_of(hint)
    return ("table" if model else _plain(hint)), ""


def _plain(kind: Any) -> str:
    names = {int: "whole number", float: "number", bool: "true or false", str: "text"}
    return names.get(kind, "any value")


def _limits(extra: Any) -> Iterator[str]:
    """What a constraint allows, in words."""
    if isinstance(extra, FieldInfo):
        for part in extra.metadata:
            yield from _limits(part)
    words: Sequence[tuple[type, str, str]] = (
        (limits.Ge, "ge", "at least"),
        (limits.Gt, "gt", "above"),
        (limits.Le, "le", "at most"),
        (limits.Lt, "lt", "below"),
    )
    for kind, name, word in words:
        if isinstance(extra, kind):
            yield f"{word} {getattr(extra, name)}"
    if isinstance(extra, limits.MinLen) and extra.min_length:
        yield "not empty"
    if isinstance(extra, StringConstraints) and extra.pattern:
        match = re.fullmatch(str(extra.pattern), CUSTOM)
        yield f'`"{CUSTOM}"`' if match else f"`{extra.pattern}`"


# -- rules and attacks ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Definition:
    """What an entry is made of."""

    summary: str
    paragraphs: tuple[str, ...]
    source: str
    needs: str
    parameters: Mapping[str, str]


def definition_of(documented: Any) -> Definition:
    """The parts of a rule's or an attack's docstring."""
    text = inspect.getdoc(getattr(documented, "func", documented)) or ""
    found = api_page.parse(text)
    named = {"Source": "", "Needs": ""}
    paragraphs = []
    for paragraph in found.body.split("\n\n"):
        label, colon, rest = paragraph.partition(": ")
        if colon and label in named:
            named[label] = " ".join(rest.split())
        elif paragraph.strip():
            paragraphs.append(_formulas(paragraph))
    own = {name: about for name, about in found.arguments.items() if name not in NOT_PARAMETERS}
    return Definition(found.summary, tuple(paragraphs), named["Source"], named["Needs"], own)


def _formulas(paragraph: str) -> str:
    """Indented lines are formulas: a block of their own."""
    if all(line.startswith("    ") for line in paragraph.splitlines()):
        return f"```text\n{textwrap.dedent(paragraph)}\n```"
    return " ".join(paragraph.split())


def entry(name: str, documented: Any, *, needs: str | None) -> str:
    """What the page says about one rule or attack; nothing may be missing."""
    definition = definition_of(documented)
    defaults = _defaults(documented)
    wanted = {
        "a first line": definition.summary,
        "a formula": any(part.startswith("```") for part in definition.paragraphs),
        "a paragraph `Source: ...`": definition.source,
        "a paragraph `Needs: ...`": needs or definition.needs,
        **{f"an argument {key!r} in `Args:`": key in definition.parameters for key in defaults},
    }
    missing = [part for part, there in wanted.items() if not there]
    if missing:
        raise MissingPart(f"{name}: its docstring lacks {', '.join(missing)}")
    parts = [f"### `{name}`", definition.summary, *definition.paragraphs]
    if definition.parameters:
        parts.append(
            "\n".join(
                f"- `{key}`{f' (`{defaults[key]!r}`)' if key in defaults else ''}: {about}"
                for key, about in definition.parameters.items()
            )
        )
    parts.append(f"**Feasible:** {needs}." if needs else f"**Needs:** {definition.needs}")
    if definition.source:
        parts.append(f"**Source:** {definition.source}")
    return "\n\n".join(part for part in parts if part.strip("* :").strip()) + "\n"


def _defaults(documented: Any) -> dict[str, Any]:
    """The parameters that are not what every rule or attack gets, with their defaults."""
    function = getattr(documented, "func", documented)
    if is_dataclass(function):
        return {field.name: field.default for field in fields(function)}
    return {
        name: parameter.default
        for name, parameter in inspect.signature(function).parameters.items()
        if name not in NOT_PARAMETERS and parameter.default is not inspect.Parameter.empty
    }


RULES_HEAD = """\
# Rules

The values of `experiment.rules`, with definitions. n updates x_1 ... x_n in R^d arrive, at most f
of them lies; |x| is the Euclidean norm. If a rule is infeasible with the updates left in a round,
that round makes no step; a config that can never be feasible is refused. A pre-aggregation stands
before a rule, as in `nnm+krum`; custom code is named `"package.module:name"`.

This page is made from the docstrings by `make docs`.
"""

ATTACKS_HEAD = """\
# Attacks

The values of `attack.name` and `attack.voters`, with definitions. x_1 ... x_h are the honest
updates that the liars know by `attack.knowledge`, μ and σ their mean and deviation in each
coordinate, w the weights, η the learning rate, k the number of names on a full ballot. Parameters
are keys of `[attack]`; custom code is named `"package.module:name"`. When and how often the liars
lie is set by `onset`, `ramp`, `every` and `dormant` in [the config](config.md#attack).

This page is made from the docstrings by `make docs`.
"""


def rules_page() -> str:
    """The page of rules."""
    parts = [RULES_HEAD, "## Votes\n"]
    parts.append(
        "Voters judge what is proposed: [step by step](architecture.md#one-round), [as in the "
        "paper](paper.md), and key by key in [the config](config.md#vote).\n"
    )
    parts.append("\n".join(f"- `{name}`: {vote.about}" for name, vote in VOTES.items()) + "\n")
    parts.append("## Rules over updates\n")
    parts += [entry(name, rule.function, needs=rule.needs.bound) for name, rule in RULES.items()]
    parts.append("## Pre-aggregations\n")
    parts += [
        entry(name, pre.function, needs=pre.needs.bound) for name, pre in PRE_AGGREGATIONS.items()
    ]
    return "\n".join(parts).rstrip() + "\n"


def attacks_page() -> str:
    """The page of attacks; nothing may be missing."""
    sections: Sequence[tuple[str, Mapping[str, Any]]] = (
        ("What Byzantine proposers send", ATTACKS),
        ("How Byzantine voters vote: by names", BALLOT_ATTACKS),
        ("How Byzantine voters vote: joint ballots", MESSAGE_ATTACKS),
    )
    parts = [ATTACKS_HEAD]
    for title, table in sections:
        parts.append(f"## {title}\n")
        parts += [entry(name, act, needs=None) for name, act in table.items()]
    return "\n".join(parts).rstrip() + "\n"


PAGES: Mapping[str, Callable[[], str]] = {
    "config.md": config_page,
    "rules.md": rules_page,
    "attacks.md": attacks_page,
}
"""Each page and what makes it."""


def main() -> None:
    """Write the pages."""
    for name, make in PAGES.items():
        (DOCS / name).write_text(make(), encoding="utf-8")


if __name__ == "__main__":
    main()
