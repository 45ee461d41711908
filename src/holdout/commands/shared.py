"""What several commands share: exit codes, kinds of arguments, and notes to the user."""

import argparse
import contextlib
import shlex
import sys
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import NoReturn, TypeAlias

from holdout.errors import CUSTOM_CODE_ERRORS, WriteError
from holdout.shares import read_share

EXIT_OK, EXIT_FAILURE, EXIT_USER, EXIT_INTERRUPTED = 0, 1, 2, 130

Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"  # noqa: SLF001


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Add `--set`, which may be given several times."""
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        dest="settings",
        metavar="SECTION.KEY=VALUE",
        help="override a value of the config; may be given several times",
    )


def count(text: str) -> int:
    """A whole number from 1 on."""
    value = _whole(text)
    if value < 1:
        _refuse(f"must be at least 1; got {value}")
    return value


def seed(text: str) -> int:
    """A whole number from 0 on."""
    value = _whole(text)
    if value < 0:
        _refuse(f"must not be negative; got {value}")
    return value


def seed_range(text: str) -> range:
    """The seeds `A..B`; B is not included."""
    first, dots, last = text.partition("..")
    if not dots:
        _refuse(f"must be two whole numbers such as 0..100; got {text!r}")
    return range(seed(first), seed(last))


def share(text: str) -> Fraction | int:
    """A share of the workers, or a number of them."""
    try:
        return read_share(text)
    except ValueError as error:
        _refuse(f"{error}; got {text!r}")


def coverage(text: str) -> Fraction:
    """A share above 0; 1 is all."""
    try:
        value = read_share(text if text.strip() not in {"1", "1.0"} else "1")
    except ValueError:
        value = 0
    if not 0 < value <= 1:
        _refuse(f"must be a share above 0 and at most 1 such as 0.5 or 1/3; got {text!r}")
    return Fraction(value)


def probability(text: str) -> float:
    """A number between 0 and 1, both excluded."""
    try:
        value = float(text)
    except ValueError:
        _refuse(f"must be a number; got {text!r}")
    if not 0 < value < 1:
        _refuse(f"must lie between 0 and 1; got {text}")
    return value


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        _refuse(f"must be a whole number; got {text!r}")


def _refuse(message: str) -> NoReturn:
    raise argparse.ArgumentTypeError(message)


def print_note(note: str) -> None:
    """Tell the user something on standard error."""
    print(f"note: {note}", file=sys.stderr)


@contextlib.contextmanager
def explain_resuming(begun: Path, command: Sequence[str]) -> Iterator[None]:
    """If the run is stopped once `begun` is there, print the command that continues it."""
    try:
        yield
    except (KeyboardInterrupt, *CUSTOM_CODE_ERRORS, WriteError):
        if begun.exists():
            print(
                f"\nEverything done so far is kept. Continue with:\n  {shlex.join(command)}",
                file=sys.stderr,
            )
        raise
