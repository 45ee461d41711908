"""The repository, read as text and as modules. (The documents: `test_docs.py`.)"""

import ast
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import holdout
from holdout.commands.run import demo_values
from holdout.experiments.curves import name_of

ROOT = Path(__file__).resolve().parent.parent
SOURCES = sorted((ROOT / "src").rglob("*.py"))
TEXT = {".py", ".md", ".toml", ".txt", ".html", ".yaml", ".yml", ".cfg", ".json", ""}
LEFT_BEHIND = frozenset(
    {
        *(
            ".git",
            ".venv",
            ".venv-bench",
            ".hypothesis",
            ".mypy_cache",
            ".ruff_cache",
            ".pytest_cache",
        ),
        *(".import_linter_cache", "__pycache__", "runs", "build", "dist"),
    }
)
GENERATED = ROOT / "bench" / "results.json"
# Written so that this file does not find itself.
LEFTOVER = re.compile(r"\b(FIX" + r"ME|TO" + r"DO|XX" + r"X|To be fil" + r"led)\b")
MACHINE_PATH = re.compile(
    r"(?<![\w.:/])/(?:wo" + r"rk|ro" + r"ot|ho" + r"me|tm" + r"p|Us" + r"ers)/"
)


def modules():
    names = []
    for path in SOURCES:
        parts = path.relative_to(ROOT / "src").with_suffix("").parts
        names.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return [name for name in names if not name.endswith("__main__")]


def texts():
    """The text files of the repository, without what tools leave behind."""
    found = []
    for folder, folders, names in os.walk(ROOT):
        folders[:] = [name for name in folders if name not in LEFT_BEHIND]
        found += [Path(folder, name) for name in names]
    return sorted(path for path in found if path.suffix in TEXT and path != GENERATED)


@pytest.mark.parametrize("name", modules())
def test_everything_exported_exists_and_is_exported_once(name):
    module = importlib.import_module(name)
    exported = getattr(module, "__all__", [])
    assert sorted(set(exported)) == sorted(exported)
    assert [export for export in exported if not hasattr(module, export)] == []


@pytest.mark.parametrize(
    "path", [p for p in SOURCES if p.name == "__init__.py"], ids=lambda p: p.parent.name
)
def test_a_package_exports_what_it_imports_from_its_own_modules(path):
    tree = ast.parse(path.read_text("utf-8"))
    package = ".".join(path.parent.relative_to(ROOT / "src").parts)
    imported = {
        alias.asname or alias.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"{package}.")
        for alias in node.names
    }
    exported = set(getattr(importlib.import_module(package), "__all__", []))
    assert imported <= exported


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT / "src")))
def test_every_module_says_what_it_is_for(path):
    docstring = ast.get_docstring(ast.parse(path.read_text("utf-8")))
    assert docstring
    assert docstring.partition("\n")[0].endswith((".", ":"))


def test_nothing_is_left_to_do():
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in texts()
        if path.name != "test_tidy.py"
        for number, line in enumerate(path.read_text("utf-8").splitlines(), start=1)
        if LEFTOVER.search(line)
    ]
    assert found == []


def test_no_path_of_one_machine_is_written_down():
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in texts()
        for number, line in enumerate(path.read_text("utf-8").splitlines(), start=1)
        if MACHINE_PATH.search(line)
    ]
    assert found == []


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("holdout", {"torch", "numpy", "pydantic", "rich"}),
        ("holdout.voting", {"torch", "numpy", "pydantic", "rich"}),
        ("holdout.seeds", {"torch", "numpy"}),
        ("holdout.commands", {"torch", "numpy", "pydantic", "rich"}),
        ("holdout.config", {"torch", "numpy"}),
        ("holdout.results", {"torch"}),
        ("holdout.experiments.sizes", {"torch", "matplotlib", "plotly"}),
    ],
)
def test_what_is_light_stays_light(module, heavy):
    code = f"import sys, {module}; print(*sorted({heavy!r} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == []


def test_the_version_is_one():
    assert re.fullmatch(r"\d+\.\d+\.\d+", holdout.__version__)
    assert 'dynamic = ["version"]' in (ROOT / "pyproject.toml").read_text("utf-8")


@pytest.mark.parametrize("path", sorted((ROOT / "tests").rglob("test_*.py")), ids=lambda p: p.stem)
def test_a_test_s_name_is_a_sentence_and_stands_once(path):
    tree = ast.parse(path.read_text("utf-8"))
    names = [
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    ]
    assert len(set(names)) == len(names)
    assert [name for name in names if name.count("_") < 3] == []


def test_the_readme_shows_a_measured_number_for_every_rule_of_the_demo():
    table = (ROOT / "README.md").read_text("utf-8").partition("<!-- demo table -->")[2]
    rows = [row for row in table.partition("<!-- /demo table -->")[0].splitlines() if "%" in row]
    names = [row.split("|")[1].strip() for row in rows]
    rules = demo_values()["experiment"]["rules"]
    assert names == ["mean, no attack", *(name_of(rule) for rule in rules)]
