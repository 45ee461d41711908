"""The documents keep their word: code runs, configs parse, links and names lead somewhere.

A file's Python blocks run in order, in one namespace and an empty folder. A Python or TOML block
whose first line is `# NAME.py` or `# NAME.toml` is also saved there under that name. Every TOML
block, a whole config or a part of one, must be accepted as a config; one with a grid, as a sweep.
"""

import ast
import re
import shlex
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest

from holdout.commands import make_parser
from holdout.config import parse
from holdout.dotted import resolve
from holdout.sweeps.sweep_file import read_sweep

ROOT = Path(__file__).resolve().parent.parent
DOCS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TITLE = re.compile(r"# (\w+\.(?:py|toml))\n")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
TEST_NAME = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
RESULT = re.compile(r"# (<Result.*>)$", re.MULTILINE)
CODE_NAME = re.compile(r"`([a-z_]+(?:\.[a-z_]+)*:[\w.]+)`")


@dataclass(frozen=True)
class Block:
    language: str
    text: str
    line: int

    @property
    def title(self) -> str | None:
        found = TITLE.match(self.text)
        return found[1] if found else None


def blocks(path: Path, language: str) -> list[Block]:
    text = path.read_text("utf-8")
    found = [Block(m[1], m[2], text.count("\n", 0, m.start(2)) + 1) for m in FENCE.finditer(text)]
    return [block for block in found if block.language == language]


def every_document(*, with_blocks: str = "", slow: tuple[str, ...] = ()):
    names = {str(path.relative_to(ROOT)): path for path in DOCS}
    return [
        pytest.param(path, id=name, marks=[pytest.mark.slow] if name in slow else [])
        for name, path in names.items()
        if not with_blocks or blocks(path, with_blocks)
    ]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty working directory whose modules can be imported, and are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in [path.stem for path in tmp_path.glob("*.py")]:
        sys.modules.pop(name, None)


def save_titled(path: Path, folder: Path) -> None:
    for block in [*blocks(path, "python"), *blocks(path, "toml")]:
        if block.title:
            (folder / block.title).write_text(block.text, "utf-8")


@pytest.mark.parametrize(
    "path", every_document(with_blocks="python", slow=("docs/tutorial.md", "docs/sweep.md"))
)
def test_python_blocks_run_and_print_what_they_say(path, folder, capsys):
    save_titled(path, folder)
    namespace = {"__name__": path.stem}
    for block in blocks(path, "python"):
        # Blank lines in front, so that a traceback shows the line of the document.
        source = "\n" * (block.line - 1) + block.text
        exec(compile(ast.parse(source), str(path), "exec"), namespace)
    said = RESULT.findall("\n".join(block.text for block in blocks(path, "python")))
    printed = capsys.readouterr().out
    assert [
        text for text in said if not any(same(text, line) for line in printed.split("\n"))
    ] == []


def same(one: str, other: str) -> bool:
    """Whether two texts are equal but for a point in each number: processors differ a little."""
    number = re.compile(r"\d+\.\d+")
    pairs = zip(number.findall(one), number.findall(other), strict=False)
    return number.sub("", one) == number.sub("", other) and all(
        abs(float(a) - float(b)) < 1 for a, b in pairs
    )


@pytest.mark.parametrize("path", every_document(with_blocks="toml"))
def test_toml_blocks_are_configs_or_parts_of_one(path):
    for block in blocks(path, "toml"):
        values = tomllib.loads(block.text)
        if "grid" in values:
            read_sweep(values)
            read_sweep(values, quick=True)
        else:
            parse(values).checked()


@pytest.mark.parametrize("path", every_document())
def test_commands_are_understood(path):
    for command in commands(path):
        # Whoever writes such a line means it to work, whatever the files are called.
        make_parser().parse_args(shlex.split(command)[1:])
    targets = re.findall(r"^make (\w+)", text_of(path, "sh"), re.MULTILINE)
    makefile = (ROOT / "Makefile").read_text("utf-8")
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets)


def commands(path: Path) -> list[str]:
    """The `holdout` commands in shell blocks and in running text, not those with [options]."""
    shell = text_of(path, "sh").replace("\\\n", " ")
    written = re.findall(r"^ *(holdout .+)$", shell, re.MULTILINE)
    prose = " ".join(FENCE.sub("", path.read_text("utf-8")).split())
    inline = re.findall(r"`(holdout (?:run|report|plan|sweep) [^`]+)`", prose)
    return [
        command for command in [*written, *inline] if not re.search(r"\[-|\[[A-Z]|\.\.\.", command)
    ]


def text_of(path: Path, language: str) -> str:
    return "\n".join(block.text for block in blocks(path, language))


@pytest.mark.parametrize("path", every_document())
def test_links_inside_the_repository_lead_somewhere(path):
    for target in LINK.findall(path.read_text("utf-8")):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        linked = (path.parent / name).resolve() if name else path
        assert linked.exists(), target
        if anchor:
            assert anchor in anchors(linked), target


def anchors(path: Path) -> set[str]:
    headings = HEADING.findall(path.read_text("utf-8"))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", every_document())
def test_tests_that_are_named_exist(path):
    for file, test in TEST_NAME.findall(path.read_text("utf-8")):
        assert (ROOT / file).exists(), file
        assert f"def {test}(" in (ROOT / file).read_text("utf-8"), f"{file}::{test}"


def test_code_that_paper_md_names_exists():
    names = CODE_NAME.findall((ROOT / "docs" / "paper.md").read_text("utf-8"))
    assert names
    for name in names:
        resolve(f"holdout.{name}")


def test_every_document_is_reached_from_the_readme():
    reached, left = set(), [ROOT / "README.md"]
    while left:
        path = left.pop()
        if path in reached or path.suffix != ".md":
            continue
        reached.add(path)
        targets = LINK.findall(path.read_text("utf-8"))
        left += [
            (path.parent / target.partition("#")[0]).resolve()
            for target in targets
            if not re.match(r"[a-z]+:|#", target)
        ]
    assert reached >= set(DOCS)
