"""Where custom code failed is told by the user's own line, whatever stands between."""

import sysconfig

import pytest

from holdout.tracebacks import place_of


def of_file(file, name, source):
    """The names that this source defines, as if it stood in a file."""
    names = {"__name__": name}
    exec(compile(source, file, "exec"), names)
    return names


def installed(name, source):
    return of_file(f"{sysconfig.get_path('purelib')}/{name}.py", name, source)


def test_the_line_is_the_user_s_even_where_an_installed_package_raised():
    hook = installed("hooks", "def leave():\n    raise KeyError")["leave"]
    mine = of_file("/somewhere/mine.py", "mine", "def rule(hook):\n    return hook()")["rule"]
    with pytest.raises(KeyError) as caught:
        mine(hook)
    assert place_of(caught.value) == "/somewhere/mine.py, line 2"


def test_custom_code_that_is_installed_is_told_where_nobody_else_called_it():
    names = installed("theirs", "def rule():\n    raise KeyError\n\ndef call():\n    rule()")
    with pytest.raises(KeyError) as caught:
        names["call"]()
    error = caught.value
    error.__traceback__ = error.__traceback__.tb_next  # Without this test's own frame.
    assert place_of(error).endswith("theirs.py, line 2")
