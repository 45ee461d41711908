"""Ctrl-C, pressed once or many times: the first one stops the command, the others change nothing.

Python raises `KeyboardInterrupt` wherever the program happens to be, also in the middle of what the
first one set off: saving a checkpoint, or waiting for curves to end their round. So the command
acts on the first Ctrl-C only. The code that is running may swallow the exception (a destructor, a
foreign callback) or turn it into another; `was_asked` still says that the user wants to stop.
"""

import signal
import sys
from types import FrameType

_asked = False


def take_over() -> None:
    """From now on only the first Ctrl-C raises; a process that ignores Ctrl-C still does."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)
        sys.unraisablehook = _tell_unless_interrupted


def ignore() -> None:
    """From now on ignore Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def was_asked() -> bool:
    """Whether Ctrl-C was pressed."""
    return _asked


def raise_if_asked() -> None:
    """Stop here if Ctrl-C was pressed, even if the code that it interrupted swallowed it."""
    if _asked:
        raise KeyboardInterrupt


def _interrupt(number: int, frame: FrameType | None) -> None:
    del number, frame
    global _asked  # noqa: PLW0603 - a signal belongs to the process.
    if not _asked:
        _asked = True
        raise KeyboardInterrupt


def _tell_unless_interrupted(unraisable: "sys.UnraisableHookArgs") -> None:
    """Do not report a Ctrl-C that interrupted a destructor: the command stops a little later."""
    if unraisable.exc_type is not KeyboardInterrupt:
        sys.__unraisablehook__(unraisable)
