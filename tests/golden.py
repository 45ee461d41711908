"""Golden scripts: a command, its input lines, `----`, the expected text, an empty line.

Lines that start with `#` before a command are comments. `pytest --rewrite` puts what the code says
now into the files; commit the difference only when it is understood.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Case:
    comments: list[str]
    command: str
    options: dict[str, str]
    lines: list[str]
    expected: str


def read(path: Path) -> list[Case]:
    cases = []
    for block in path.read_text().strip().split("\n\n"):
        rows = block.splitlines()
        comments = [row for row in rows if row.startswith("#")]
        head, *body = [row for row in rows if not row.startswith("#")]
        command, *words = head.split()
        cut = body.index("----")
        options = dict(word.split("=", 1) for word in words)
        cases.append(Case(comments, command, options, body[:cut], "\n".join(body[cut + 1 :])))
    return cases


def check(path: Path, run: Callable[[Case], str], *, rewrite: bool) -> None:
    cases = read(path)
    found = [run(case) for case in cases]
    if rewrite:
        blocks = []
        for case, text in zip(cases, found, strict=True):
            head = " ".join([case.command, *(f"{k}={v}" for k, v in case.options.items())])
            blocks.append("\n".join([*case.comments, head, *case.lines, "----", text]))
        path.write_text("\n\n".join(blocks) + "\n")
        return
    for case, text in zip(cases, found, strict=True):
        assert text == case.expected, f"{path.name}: {case.command} {case.lines}"
