"""The repository, read as text and as modules. (The documents: `test_docs.py`.)"""

import ast
import importlib
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import build_site
import pytest
import soak
from tests import source_walk

import holdout
from holdout.commands.run import demo_values
from holdout.config import parse, read_file
from holdout.data.datasets import load
from holdout.experiments.curves import name_of
from holdout.learning.models import MODELS

ROOT = Path(__file__).resolve().parent.parent
SOURCES = sorted((ROOT / "src").rglob("*.py"))
TEXT = {".py", ".md", ".toml", ".txt", ".html", ".yaml", ".yml", ".cfg", ".json", ""}
LEFT_BEHIND = {
    *(".git", ".venv", ".venv-bench", "__pycache__", "runs", "build", "dist"),
    *(".hypothesis", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".import_linter_cache"),
}
GENERATED = ROOT / "bench" / "results.json"
# Written so that this file does not find itself.
LEFTOVER = re.compile(r"\b(FIX" + r"ME|TO" + r"DO|XX" + r"X|To be fil" + r"led)\b")
MACHINE_PATH = re.compile(
    r"(?<![\w.:/])/(?:wo" + r"rk|ro" + r"ot|ho" + r"me|tm" + r"p|Us" + r"ers)/"
)

LINES_MAX, FUNCTION_LINES_MAX = 450, 80

USED_FROM_OUTSIDE = {
    "holdout.agreement.wire:encode": "the inverse of `decode`, which tests and fuzzers go by",
    "holdout.experiments.runner:Result._repr_html_": "Jupyter",
    "holdout.node.demo:linear": "the model of large networks, in bench/node.py",
    "holdout.runs:Run.to_pandas": "users",
    "holdout.simulator.adversaries_late:JustInTime": "tests measure what liars that are late cost",
    "holdout.simulator.adversaries_late:LaterEachRound": "the same",
    "holdout.simulator.trace:Trace.fingerprint": "tests tell two runs apart by it",
    "holdout.sketch:inner_products": "joint ballots as docs/protocol.md proposes them",
    "holdout.sketch:quantise": "the same",
    "holdout.sketch:size_for": "the same",
    "holdout.sketch:sketch": "the same",
}
"""What nothing in `src` reads, and who does."""

PASSED_FROM_OUTSIDE = {
    "holdout.rules.preaggregation:clipping_mix": "by the name of a parameter",
    "holdout.node.demo:make_worker": "by `worker_options` in a node's settings",
    "holdout.node.demo:make_lying_worker": "by `worker_options` in a node's settings",
}
"""Functions with parameters that no call in the repository passes, and who does."""

MADE_LATER = {"bench/results.json", "bench/growth.png", "worst.md"}
"""Files that documents name and `make bench`, or a sweep, writes."""

PATH = re.compile(r"(?<![\w/.-])(?:docs|tests|tools|bench|examples|src)/[\w/.*-]*[\w*/]")
DECISION = re.compile(r"\bdecision (\d+)")
DOCUMENT = re.compile(r"(?<![\w.*-])\w[\w-]*\.md\b")
SECTION = re.compile(r"\b([A-Z]{4,})(?: \d+ and| \d+ to)? \d+\.\d+\b")


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
        found += [Path(folder, name) for name in names if name not in LEFT_BEHIND]
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


def test_no_module_imports_a_private_name_of_another():
    found = [
        f"{name}: {alias.name}"
        for name, tree in trees("src").items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.name.startswith("_") and not alias.name.startswith("__")
    ]
    assert found == []


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
        ("holdout.experiments.sizes", {"torch", "matplotlib"}),
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


@cache
def trees(*folders):
    return source_walk.read_trees(ROOT, *folders)


def programs():
    return trees("src", "tools", "bench", "examples")


def test_a_module_can_be_read_in_one_sitting():
    lengths = {path: len(path.read_text("utf-8").splitlines()) for path in SOURCES}
    found = [
        f"{path.relative_to(ROOT)} has {length} lines"
        for path, length in lengths.items()
        if length > LINES_MAX
    ]
    assert found == []


def test_a_function_fits_on_a_page():
    found = [
        f"{name}:{node.name} has {node.end_lineno - node.lineno + 1} lines"
        for name, tree in programs().items()
        for node in ast.walk(tree)
        if isinstance(node, source_walk.Function)
        and node.end_lineno - node.lineno >= FUNCTION_LINES_MAX
    ]
    assert found == []


def test_a_class_name_has_one_home():
    homes = source_walk.homes_of_classes(trees("src"))
    found = [f"{name}: {', '.join(where)}" for name, where in homes.items() if len(where) > 1]
    assert found == []


def test_every_public_name_says_what_it_is():
    found = [
        definition.place
        for name, tree in trees("src").items()
        for definition in source_walk.definitions(name, tree)
        if not re.search(r"[:.]_", definition.place)
        and not any(".setter" in ast.unparse(d) for d in definition.node.decorator_list)
        and not ast.get_docstring(definition.node)
    ]
    assert found == []


def test_nothing_in_the_source_is_unused():
    uses = source_walk.Uses()
    for name, tree in trees("src").items():
        uses.add(name, tree)
    found = {
        definition.place
        for name, tree in trees("src").items()
        for definition in source_walk.definitions(name, tree)
        if not source_walk.is_used(definition, uses) and not definition.is_called_from_outside()
    }
    assert sorted(found - set(USED_FROM_OUTSIDE)) == []
    assert set(USED_FROM_OUTSIDE) - found == set()


def test_every_parameter_with_a_default_is_passed_by_somebody():
    uses = source_walk.Uses()
    for name, tree in {**programs(), **trees("tests")}.items():
        uses.add(name, tree)
    inherited = source_walk.subclasses(trees("src"))
    found = {
        parameter
        for name, tree in trees("src").items()
        for definition in source_walk.definitions(name, tree)
        if definition.node.name == "__init__" or not definition.is_called_from_outside()
        for parameter in source_walk.never_passed(definition, uses, inherited)
    }
    excused = {place for place in found if place.partition("(")[0] in PASSED_FROM_OUTSIDE}
    assert sorted(found - excused) == []
    assert {place.partition("(")[0] for place in excused} == set(PASSED_FROM_OUTSIDE)


def test_no_test_edits_the_path_of_modules():
    edit = re.compile(r"sys\.path(?:\.(?:insert|append|extend|remove|pop)\b|\[[^]]*\]\s*=| \+?= )")
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for number, line in enumerate(path.read_text("utf-8").splitlines(), start=1)
        if edit.search(line) and path != Path(__file__)
    ]
    assert found == []


def test_what_is_referred_to_exists():
    files = texts()
    documents = {path.name for path in files} | set(build_site.PAGES.values())
    found = []
    for path in files:
        text = path.read_text("utf-8")
        missing = [p for p in PATH.findall(text) if p not in MADE_LATER and not exists(p)]
        decisions = (f"docs/decisions/{int(n):04}-" for n in DECISION.findall(text))
        missing += [decision for decision in decisions if not exists(decision)]
        missing += [n for n in DOCUMENT.findall(text) if n not in documents | MADE_LATER]
        missing += [name for name in SECTION.findall(text) if f"{name}.md" not in documents]
        found += [f"{path.relative_to(ROOT)}: {name}" for name in missing]
    assert found == []


def exists(name):
    """Whether there is such a path; it may have wildcards, or be the beginning of one."""
    return any(ROOT.glob(f"{name.rstrip('/*')}*"))


def number(text):
    words = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
    return words.index(text) if text in words else int(text.replace(",", ""))


def workers_and_liars(values):
    federation = parse(values).checked().federation
    return federation.workers, federation.byzantine_workers


@pytest.fixture(scope="module")
def prose():
    """What documents and the Makefile say, as one line."""
    documents = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "Makefile"]
    return " ".join(" ".join(path.read_text("utf-8").split()) for path in sorted(documents))


def test_documents_know_how_many_workers_there_are_and_how_many_lie(prose):
    folder = ROOT / "src" / "holdout" / "experiments"
    demos = [demo_values(), read_file(folder / "decentralized.toml")]
    pattern = r"(\d+) workers(?:,? of wh(?:om|ich) (\d+) lie|[^.;:]{0,40}[,;] (\d+) of them )"
    said = {(int(a), int(b or c)) for a, b, c in re.findall(pattern, prose)}
    assert said == {workers_and_liars(values) for values in demos}


@pytest.mark.parametrize(
    ("pattern", "count"),
    [
        (r"([\w,]+) real (?:MNIST )?digits", lambda: len(rows("mnist-5k"))),
        (r"([\w,]+) seeds \(`make readme`\)", lambda: len(seeds_of_the_readme())),
        (r"the demo with ([\w,]+) seeds", lambda: len(seeds_of_the_readme())),
        (r"([\w,]+) seeds of the simulator", lambda: sum(size[2] for size in soak.SIZES)),
        (r"the paper's ([\w,]+) networks", lambda: len(MODELS)),
    ],
)
def test_documents_count_right(pattern, count, prose):
    said = {number(found) for found in re.findall(pattern, prose)}
    assert said == {count()}


def rows(name):
    dataset = load(name)
    return [*dataset.y_train, *dataset.y_test]


def seeds_of_the_readme():
    makefile = (ROOT / "Makefile").read_text("utf-8")
    return re.search(r"experiment\.seeds='\[([\d,]+)\]' --out runs/readme", makefile)[1].split(",")


MADE_IN_ONE_PLACE = frozenset(
    {"arange", "empty", "eye", "from_numpy", "full", "ones", "rand", "randint", "randn", "randperm"}
) | frozenset({"Generator", "as_tensor", "linspace", "tensor", "zeros"})
"""What makes a tensor, or decides where: only `holdout.device` calls these of torch."""


def test_tensors_are_made_in_one_place():
    found = [
        f"{name}:{call.lineno}"
        for name, tree in trees("src").items()
        if name != "holdout.device"
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)
        if call.func.attr in MADE_IN_ONE_PLACE and ast.unparse(call.func.value) == "torch"
    ]
    assert found == []


def test_where_tensors_are_is_asked_in_one_place():
    found = [
        f"{name}:{node.lineno}: {node.attr}"
        for name, tree in trees("src").items()
        if name != "holdout.device"
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr in {"cuda", "cpu", "is_cpu", "is_cuda"}
    ]
    assert found == []
