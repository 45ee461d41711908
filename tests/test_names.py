"""Names with an underscore in front stay in their module."""

import ast
from pathlib import Path

import holdout

SOURCE = Path(holdout.__file__).parent


def test_no_module_imports_a_private_name_of_another():
    found = [
        f"{path.relative_to(SOURCE)}: {alias.name}"
        for folder in ("agreement", "federation", "simulator", "attacks")
        for path in sorted((SOURCE / folder).glob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.name.startswith("_")
    ]
    assert found == []
