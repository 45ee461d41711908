"""Where custom code failed: the file and line of the user's own code in a traceback."""

import inspect
import os
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import CodeType, TracebackType

OTHERS = frozenset({"holdout", "torch", "numpy"}) | sys.stdlib_module_names
"""Packages that custom code calls, or is called by: a line of theirs helps nobody."""

INSTALLED = tuple({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})
"""Where packages are installed: the user's own line is seldom there."""

LENGTH_MAX = 8_000
"""How many characters of a traceback are kept."""

RAISED = (Exception, SystemExit)
"""What is caught from custom code; a `sys.exit` in it must not end the run silently."""


@dataclass(frozen=True, slots=True)
class Failure:
    """What custom code raised, or sent that cannot be used, and where.

    Example:
        >>> try:
        ...     1 / 0
        ... except ZeroDivisionError as error:
        ...     failure = failure_of("vote", "worker 3", error)
        >>> failure.error
        'ZeroDivisionError: division by zero'
    """

    kind: str
    """What was asked of it, under which the round's record counts it."""
    owner: str
    """Whose code it is."""
    error: str
    """The exception's type and message; if nothing was raised, what is wrong."""
    where: str | None
    """File and line of the innermost frame that is the user's, or of the code itself."""
    traceback: str = ""
    """The traceback from the first frame on that is the user's; empty if nothing was raised."""

    def __str__(self) -> str:
        verb = "raised " if self.traceback else ""
        return f"{self.owner} {verb}{self.error}{_in_brackets(self.where)}"


def failure_of(kind: str, owner: str, error: BaseException, code: object = None) -> Failure:
    """The failure that an exception describes; it is placed at `code` if no line was the user's."""
    first = next(_users(error.__traceback__), error.__traceback__)
    try:
        text = "".join(traceback.format_exception(type(error), error, first))
    except Exception:  # noqa: BLE001 - the exception itself is custom code too.
        text = "".join([*traceback.format_tb(first), summary_of(error)])
    if len(text) > LENGTH_MAX:
        text = f"{text[: LENGTH_MAX // 2]}\n...\n{text[-LENGTH_MAX // 2 :]}"
    where = place_of(error) or definition_of(code)
    return Failure(kind, owner, summary_of(error), where, text)


def summary_of(error: BaseException) -> str:
    """The exception in one line.

    >>> summary_of(SyntaxError("invalid syntax", ("my_rule.py", 3, 1, "def f(:")))
    'SyntaxError: invalid syntax'
    """
    try:
        # Python adds the file, without its folder, and the line; `place_of` tells both.
        told = error.msg if isinstance(error, SyntaxError) and error.filename else str(error)
    except Exception as another:  # noqa: BLE001 - the exception itself is custom code too.
        told = f"(its text cannot be told: that raised {type(another).__name__})"
    return " ".join(f"{type(error).__name__}: {told}".split())


def place_of(error: BaseException) -> str | None:
    """File and line of the innermost frame of an exception that is the user's, if there is one.

    A frame of an installed package counts only where there is no other: custom code may be
    installed, and other packages stand between (wandb wraps `sys.exit`).
    """
    if isinstance(error, SyntaxError) and error.filename:
        return _place(error.filename, error.lineno or 1)
    frames = [(f.tb_frame.f_code.co_filename, f.tb_lineno) for f in _users(error.__traceback__)]
    own = [(file, line) for file, line in frames if not file.startswith(INSTALLED)]
    return _place(*(own or frames)[-1]) if frames else None


def with_place(message: str, error: BaseException, code: object = None) -> str:
    """The message with the place in brackets; without one in the user's code, where `code` is."""
    return message + _in_brackets(place_of(error) or definition_of(code))


def definition_of(code: object) -> str | None:
    """File and line where a function, or the class of an object, is defined; None: unknown.

    Example:
        >>> definition_of(len) is None
        True
    """
    found = unwrapped(code)
    compiled = getattr(found, "__code__", None)
    if isinstance(compiled, CodeType):
        return _place(compiled.co_filename, compiled.co_firstlineno)
    kind = found if isinstance(found, type) else type(found)
    if _package(kind.__module__) in OTHERS:
        return None
    called = inspect.getattr_static(kind, "__call__", None)
    compiled = getattr(called, "__code__", None)
    if isinstance(compiled, CodeType) and _package(module_of(called)) not in OTHERS:
        return _place(compiled.co_filename, compiled.co_firstlineno)
    # The first of its methods: where a class itself begins is kept nowhere.
    methods = [code for it in vars(kind).values() if (code := getattr(it, "__code__", None))]
    first = min(methods, key=lambda code: code.co_firstlineno, default=None)
    return _place(first.co_filename, first.co_firstlineno) if first else None


def unwrapped(code: object) -> object:
    """What a `partial` or a bound method stands for."""
    while True:
        if isinstance(code, partial):
            code = code.func
        elif (bound := getattr(code, "__func__", None)) is not None:
            code = bound
        else:
            return code


def is_custom(code: object) -> bool:
    """Whether a function, or the class of an object, comes from outside this package.

    Example:
        >>> is_custom(is_custom), is_custom(print)
        (False, True)
    """
    return _package(module_of(code)) != "holdout"


def module_of(code: object) -> str:
    """The name of the module that a function, or the class of an object, comes from."""
    found = unwrapped(code)
    is_named = isinstance(found, type | Callable) and hasattr(found, "__qualname__")
    owner = found if is_named else type(found)
    return str(getattr(owner, "__module__", None) or "")


def _users(trace: TracebackType | None) -> Iterator[TracebackType]:
    while trace is not None:
        if _package(str(trace.tb_frame.f_globals.get("__name__", ""))) not in OTHERS:
            yield trace
        trace = trace.tb_next


def _package(module: str) -> str:
    return module.partition(".")[0]


def _place(file: str, line: int) -> str:
    """A file as the user knows it: seen from the folder in which the command is started."""
    try:
        here = f"{Path.cwd()}{os.sep}"
    except FileNotFoundError:
        here = os.sep * 2
    return f"{file.removeprefix(here)}, line {line}"


def _in_brackets(place: str | None) -> str:
    return f" ({place})" if place else ""
