"""The reference pages: complete, made from the source, and loud about what is missing."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import reference_pages
from pydantic import Field
from reference_pages import MissingPart, config_keys, config_page, definition_of, entry

from holdout.attacks import ATTACKS, BALLOT_ATTACKS, MESSAGE_ATTACKS
from holdout.commands import list as list_command
from holdout.commands import run_command
from holdout.config import Config, Section
from holdout.data.datasets import NAMES
from holdout.data.partitions import KINDS
from holdout.experiments.catalogue import CATALOGUE
from holdout.learning.models import MODELS
from holdout.rules import PRE_AGGREGATIONS, RULES
from holdout.voting import VOTES

DOCS = Path(__file__).resolve().parent.parent / "docs"


@pytest.mark.parametrize("name", reference_pages.PAGES)
def test_a_page_is_what_the_source_says(name):
    assert reference_pages.PAGES[name]() == (DOCS / name).read_text("utf-8"), "run `make docs`"


def test_the_page_of_the_config_has_every_key_once():
    page = (DOCS / "config.md").read_text("utf-8")
    found = []
    for part in page.split("\n## ")[1:]:
        section = re.match(r"`\[([\w.]+)\]`", part)[1]
        found += [f"{section}.{key}" for key in re.findall(r"^\| `(\w+)` \|", part, re.MULTILINE)]
    given = Config().model_dump()
    assert found == [f"{section}.{key}" for section, keys in given.items() for key in keys]
    assert found == list(config_keys())


class Inner(Section):
    """A table inside a section."""

    size: Annotated[int, Field(ge=1, lt=9)] = 3
    """How large."""


class Later(Section):
    """A section that comes later."""

    mode: Literal["a", "b"] = "a"
    """Which one."""
    inner: Inner = Inner()
    """More."""


class LaterConfig(Section):
    """Sections of other kinds."""

    later: Later = Later()
    rules: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Parameters of rules, by name."""


def test_any_section_can_be_shown_free_tables_too():
    page = config_page(LaterConfig)
    assert "## `[later]`\n\nA section that comes later." in page
    assert '| `mode` | text | `"a"` | `"a"`, `"b"` | Which one. |' in page
    assert "## `[later.inner]`" in page
    assert "| `size` | whole number | `3` | at least 1, below 9 | How large. |" in page
    assert (
        "## `[rules]`\n\nParameters of rules, by name.\n\nA table of your own keys: table" in page
    )
    assert list(config_keys(LaterConfig)) == ["later.mode", "later.inner.size", "rules"]


class Undocumented(Section):
    """A key without a word."""

    size: int = 3


class UndocumentedConfig(Section):
    """A section with such a key."""

    bad: Undocumented = Undocumented()


def test_a_key_without_a_word_is_an_error():
    with pytest.raises(MissingPart, match="config key size: nothing is written below it"):
        config_page(UndocumentedConfig)


@dataclass(frozen=True)
class Whole:
    """A lie.

        lie = 0

    More on it.

    Source: a book,
    in two lines.

    Needs: nothing.

    Args:
        scale: How long.
    """

    scale: float = 2.0


def test_a_docstring_has_its_parts():
    found = definition_of(Whole)
    assert found.summary == "A lie."
    assert found.paragraphs == ("```text\nlie = 0\n```", "More on it.")
    assert (found.source, found.needs) == ("a book, in two lines.", "nothing.")
    assert found.parameters == {"scale": "How long."}
    assert "- `scale` (`2.0`): How long." in entry("whole", Whole, needs=None)


@pytest.mark.parametrize(
    ("part", "named"),
    [
        ("A lie.", "a formula"),  # Then the formula stands in its place.
        ("    lie = 0", "a formula"),
        ("Source: a book,\nin two lines.", "Source"),
        ("Needs: nothing.", "Needs"),
        ("Args:\n    scale: How long.", "an argument 'scale'"),
    ],
)
def test_an_attack_without_a_part_is_an_error(part, named, monkeypatch):
    whole = "\n".join(line.removeprefix("    ") for line in Whole.__doc__.splitlines())
    assert part in whole
    monkeypatch.setattr(Whole, "__doc__", whole.replace(part, "", 1))
    with pytest.raises(MissingPart, match=rf"^whole: its docstring lacks .*{named}"):
        entry("whole", Whole, needs=None)


def test_the_pages_name_every_rule_and_attack():
    rules, attacks = ((DOCS / name).read_text("utf-8") for name in ("rules.md", "attacks.md"))
    assert re.findall(r"^### `(.+)`$", rules, re.MULTILINE) == [*RULES, *PRE_AGGREGATIONS]
    assert re.findall(r"^- `([\w-]+)`: .+\.$", rules, re.MULTILINE)[: len(VOTES)] == list(VOTES)
    named = re.findall(r"^### `(.+)`$", attacks, re.MULTILINE)
    assert named == [*ATTACKS, *BALLOT_ATTACKS, *MESSAGE_ATTACKS]
    assert attacks.count("**Source:**") == attacks.count("**Needs:**") == len(named)
    assert rules.count("**Feasible:**") == len(RULES) + len(PRE_AGGREGATIONS)


@pytest.mark.parametrize(
    ("what", "names"),
    [
        ("rules", [*VOTES, *RULES, *PRE_AGGREGATIONS]),
        ("attacks", [*ATTACKS, *BALLOT_ATTACKS]),
        ("partitions", list(KINDS)),
        ("models", list(MODELS)),
        ("data", list(NAMES)),
    ],
)
def test_the_command_lists_everything_in_one_line_each(what, names, capsys):
    assert run_command(["list", what]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == names
    assert all(len(line.split()) > 2 for line in lines)
    assert run_command(["list", what, "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [item["name"] for item in listed] == names
    assert all(item["about"] for item in listed)


def test_what_can_be_listed_is_what_the_command_takes():
    assert tuple(CATALOGUE) == list_command.KINDS
