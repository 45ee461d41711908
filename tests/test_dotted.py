"""Custom code by name."""

import sys
from pathlib import Path

import pytest

from holdout.dotted import resolve
from holdout.errors import DottedNameError


@pytest.fixture
def beside_us(tmp_path, monkeypatch):
    """The working directory is a fresh folder; modules imported from it are forgotten again."""
    monkeypatch.chdir(tmp_path)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_a_file_in_the_working_directory_can_be_named(beside_us):
    (beside_us / "own_code.py").write_text("class A:\n    b = 7\n")
    path = list(sys.path)
    assert resolve("own_code:A.b") == 7
    assert sys.path == path


def test_a_package_can_be_named(beside_us):
    (beside_us / "own_package").mkdir()
    (beside_us / "own_package" / "__init__.py").touch()
    (beside_us / "own_package" / "inner.py").write_text("value = 'found'\n")
    assert resolve("own_package.inner:value") == "found"


@pytest.mark.parametrize(
    "dotted", ["", ":", "math", "math:", ":pi", "a b:c", "math:pi:e", "../x:y", "math..x:y", "1:2"]
)
def test_another_form_is_refused(dotted):
    with pytest.raises(DottedNameError, match=r'"package\.module:name"; got'):
        resolve(dotted)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("import nowhere_to_be_found", "importing own_broken failed: No module named 'nowhere"),
        ("1 / 0", "importing own_broken raised ZeroDivisionError: division by zero"),
        ("def", "importing own_broken raised SyntaxError"),
        ("raise SystemExit(3)", "importing own_broken raised SystemExit: 3"),
        ("other = 1", 'own_broken has no "name"'),
    ],
)
def test_a_module_that_does_not_work_says_how(beside_us, content, message):
    (beside_us / "own_broken.py").write_text(content)
    with pytest.raises(DottedNameError, match=f'^"own_broken:name": {message}'):
        resolve("own_broken:name")


def test_a_missing_module_or_package_is_named(beside_us):
    with pytest.raises(DottedNameError, match=r"there is no module own_missing$"):
        resolve("own_missing.deep:name")
    with pytest.raises(DottedNameError, match=r"there is no module json\.missing$"):
        resolve("json.missing:name")


def test_a_working_directory_that_is_gone_does_not_matter(beside_us):
    gone = beside_us / "gone"
    gone.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(gone)
        gone.rmdir()
        assert resolve("os.path:join") is not None
    assert Path.cwd() == beside_us
