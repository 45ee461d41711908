"""The front door: what is public is documented, shown by example, and loaded only when used."""

import ast
import doctest
import importlib.util
import inspect
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import InitVar, dataclass
from pathlib import Path
from typing import ClassVar

import pytest

import holdout

ROOT = Path(__file__).resolve().parent.parent


def load_tool(name):
    """A module of tools/."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


api_page = load_tool("api_page")
PAGE = (ROOT / "docs" / "api.md").read_text("utf-8")
NAMES = api_page.public_names()
PUBLIC = {"holdout", *api_page.subpackages(), *map(str, NAMES), "holdout.__version__"}
EXAMPLES = re.findall(r"^### `([\w.]+)`$|^```pycon\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
PYTHON = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def examples():
    """The examples on the page with their names."""
    name = ""
    for heading, example in EXAMPLES:
        name = heading or name
        if example:
            yield pytest.param(example, id=name)


def test_the_page_is_what_the_docstrings_say():
    assert api_page.page() == PAGE, "run `make docs`"


def test_the_tool_s_example_holds():
    assert doctest.testmod(api_page).failed == 0


def test_every_public_name_is_on_the_page():
    missing = [str(name) for name in NAMES if f"\n### `{name}`\n" not in PAGE]
    assert missing == []
    assert "`holdout.__version__`" in PAGE
    listed = {f"holdout.{name}" for name in holdout.__all__} - {"holdout.__version__"}
    assert listed == {*api_page.subpackages(), *(str(n) for n in NAMES if n.package == "holdout")}


def test_every_public_name_has_a_docstring():
    assert [str(name) for name in NAMES if not name.docstring.summary] == []


def test_every_public_function_and_class_has_an_example():
    assert [str(n) for n in NAMES if n.needs_example and not n.docstring.example] == []


def test_every_field_and_method_is_described():
    assert re.findall(r"^- `[^`]+`$", PAGE, re.MULTILINE) == []


def test_every_argument_described_is_one():
    """A description outlives its argument otherwise."""
    for name in NAMES:
        shown = api_page.entry(name).partition("```\n")[0]
        for argument in name.docstring.arguments:
            assert re.search(rf"\b{argument.lstrip('*')}\b", shown), f"{name}: {argument}"


def test_every_key_of_a_config_is_described():
    table = api_page.entry(next(name for name in NAMES if str(name) == "holdout.Config"))
    rows = re.findall(r"^\| `(\w+)` \| `.*` \| (.*) \|$", table, re.MULTILINE)
    assert len(rows) == sum(len(keys) for keys in holdout.Config().model_dump().values())
    assert [key for key, meaning in rows if not meaning or meaning.startswith("One of")] == []


@pytest.mark.parametrize("example", list(examples()))
def test_an_example_runs_by_itself(example):
    parsed = doctest.DocTestParser().get_doctest(example, {}, "example", "docs/api.md", 0)
    assert parsed.examples
    assert doctest.DocTestRunner().run(parsed).failed == 0


@pytest.mark.parametrize("document", ["README.md", "docs/operating.md", "docs/tutorial.md"])
def test_documents_use_public_names_alone(document):
    used = set()
    for block in PYTHON.findall((ROOT / document).read_text("utf-8")):
        used |= names_used(ast.parse(block))
    assert used
    assert sorted(used - PUBLIC) == []


@pytest.mark.parametrize("example", list(examples()))
def test_an_example_uses_public_names_alone(example):
    source = doctest.script_from_examples(example)
    assert sorted(names_used(ast.parse(source)) - PUBLIC) == []


def names_used(tree):
    """What code takes from `holdout`: by importing it, or as an attribute of a package."""
    packages = {"holdout", *api_page.subpackages()}
    found = set()
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=aliases):
                found |= {alias.name for alias in aliases}
            case ast.ImportFrom(module=module, names=aliases):
                found |= {f"{module}.{alias.name}" for alias in aliases}
            case ast.Attribute(value=value) if ast.unparse(value) in packages:
                found.add(ast.unparse(node))
    return {name for name in found if name.partition(".")[0] == "holdout"}


def test_private_names_in_a_document_would_be_found():
    code = "from holdout.experiments.runner import run\nimport holdout.ids, os\n"
    code += "holdout.seeds.stream(0)\nholdout.run(x).table()\nholdout.rules.median(y).sum()"
    assert names_used(ast.parse(code)) == {
        "holdout.experiments.runner.run",
        "holdout.ids",
        "holdout.seeds",
        "holdout.run",
        "holdout.rules",
        "holdout.rules.median",
    }


HEAVY = {"torch", "numpy", "pydantic", "rich", "matplotlib", "flwr", "pandas"}


@pytest.mark.parametrize("code", ["holdout.__version__", "dir(holdout)", "holdout.UserError"])
def test_the_front_door_opens_without_anything_heavy(code):
    source = f"import sys, holdout; {code}; print(*sorted({HEAVY!r} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == []


def test_dir_lists_what_is_public_and_nothing_private():
    shown = {name for name in dir(holdout) if not name.startswith("__")}
    assert shown == set(holdout.__all__) - {"__version__"}
    assert {name for name in dir(holdout.data) if name[0] != "_"} == set(holdout.data.__all__)


def test_what_is_not_there_is_an_attribute_error(monkeypatch):
    assert not hasattr(holdout, "nothing")
    with pytest.raises(ImportError, match="cannot import name 'nothing'"):
        exec("from holdout import nothing", {})
    # Without Flower there is no holdout.flower, and it says why.
    monkeypatch.delattr(holdout, "flower", raising=False)
    for name in [name for name in sys.modules if name.startswith("holdout.flower")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "flwr", None)
    with pytest.raises(AttributeError, match=r"holdout.flower needs Flower: pip install"):
        _ = holdout.flower


@dataclass(frozen=True)
class Held:
    """An object that is called like a function."""

    function: Callable[..., int]
    label: str

    def __call__(self, *given: int) -> int:
        return self.function(*given)


@dataclass(frozen=True, kw_only=True)
class Inheriting(Held):
    """A class whose constructor takes more than it says itself."""

    more: InitVar[int | None] = None
    kinds: ClassVar[int] = 3


def doubled(number: int) -> int:
    """Twice the number."""
    return 2 * number


def test_an_object_that_holds_a_function_is_described_by_it():
    name = api_page.Name("holdout", "twice", Held(doubled, "Twice"))
    assert name.needs_example
    assert "twice(number: int) -> int\n" in api_page.entry(name)
    assert "Twice the number." in api_page.entry(name)


def test_a_constructor_is_shown_with_what_it_inherits(monkeypatch):
    source = {kind.__name__: inspect.getsource(kind) for kind in (Held, Inheriting)}
    monkeypatch.setattr(inspect, "getsource", lambda kind: source[kind.__name__])
    for kind in (Held, Inheriting):
        monkeypatch.setattr(kind, "__module__", "holdout.held")
    shown = api_page.entry(api_page.Name("holdout", "Inheriting", Inheriting))
    taken = "(function: Callable[..., int], label: str, *, more: int | None = None)"
    assert f"class Inheriting{taken}\n" in shown
