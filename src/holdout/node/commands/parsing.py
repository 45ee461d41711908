"""What all commands of a node share: parsers on a folder, numbers, errors of files."""

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from holdout.errors import UserError

EXIT_FAILURE = 1


def make_parser(commands: Any, name: str, about: str) -> argparse.ArgumentParser:
    """The parser of a command, whose help is one sentence."""
    made: argparse.ArgumentParser = commands.add_parser(
        name, help=about, description=about[0].upper() + about[1:] + ".", allow_abbrev=False
    )
    return made


def folder_command(
    commands: Any, name: str, about: str, run: Callable[[argparse.Namespace], int], folder: str
) -> argparse.ArgumentParser:
    """The parser of a command on a folder."""
    made = make_parser(commands, name, about)
    made.add_argument("folder", type=Path, metavar=folder)
    made.set_defaults(run=run)
    return made


def positive(text: str) -> int:
    """A whole number from 1 on."""
    if not text.strip().isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1 on; got {text!r}")
    return int(text)


@contextlib.contextmanager
def writing() -> Iterator[None]:
    """Turn a file or folder that cannot be read or written into a UserError."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{error.filename or 'a file'}: {error.strerror or error}") from None


def say(text: str) -> None:
    """Print a line, at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
