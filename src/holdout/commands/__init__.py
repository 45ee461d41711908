"""The command line: parsing arguments and printing, nothing else.

A command is a module with a function `add_command`, listed in `COMMANDS`. Exit codes: 0 success, 2
a mistake of the user (one readable message), 130 after Ctrl-C, 1 anything else. Slow imports (torch
above all) are left to the command that needs them, so that `--help` and `--version` answer at once.
"""

import argparse
import os
import sys
from collections.abc import Callable, Sequence

from holdout import __version__, interrupts
from holdout.commands import export, plan, report, reproduce, run, shared, simulate, sweep
from holdout.commands import list as list_command
from holdout.errors import UserError
from holdout.node.commands import add_commands as add_node_commands

COMMANDS: Sequence[Callable[[shared.Subparsers], None]] = (
    run.add_command,
    sweep.add_command,
    reproduce.add_command,
    report.add_command,
    export.add_command,
    plan.add_command,
    list_command.add_command,
    simulate.add_command,
    add_node_commands,
)
"""What adds each command, in the order of `--help`; it sets `run` to what does the work."""


def run_command(arguments: Sequence[str]) -> int:
    """Run one command; the exit code."""
    try:
        return _run(arguments)
    except KeyboardInterrupt:
        pass
    except Exception:
        # Code that Ctrl-C met may have made another error of it.
        if not interrupts.was_asked():
            raise
    print("holdout: stopped", file=sys.stderr)
    return shared.EXIT_INTERRUPTED


def _run(arguments: Sequence[str]) -> int:
    try:
        options = make_parser().parse_args(arguments)
        code = int(options.run(options) or shared.EXIT_OK)
        sys.stdout.flush()
    except UserError as error:
        print(f"holdout: {error}", file=sys.stderr)
        return shared.EXIT_INTERRUPTED if interrupts.was_asked() else shared.EXIT_USER
    except BrokenPipeError:
        # The reader of our output went away; there is nobody left to tell.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return shared.EXIT_FAILURE
    except OSError as error:
        named = error.filename is not None and error.strerror
        told = f"{error.filename}: {error.strerror}" if named else str(error)
        print(f"holdout: {told}", file=sys.stderr)
        return shared.EXIT_FAILURE
    return code


def make_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line."""
    parser = argparse.ArgumentParser(
        prog="holdout",
        description="HoldOut SGD: federated learning in which voters keep poisoned updates out.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"holdout {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for add_command in COMMANDS:
        add_command(commands)
    return parser
