"""The node's log: one JSON object a line, with time, level, node, round, event and its details."""

import fcntl
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, TextIO

LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}
PIPE_BYTES = 1 << 20
"""Room for what libraries print during a pause: a writer that finds none has to wait."""
PAUSE_SECONDS = 0.02
"""The pause between two looks at what they print."""


class Log:
    """Writes one node's events, except those below its level."""

    def __init__(self, node: str, level: str = "info", file: TextIO | None = None) -> None:
        self._node = node
        self._level = LEVELS[level]
        self.file = file or sys.stderr
        self.round = 0
        """The node's current round, which every line shows."""

    def debug(self, event: str, **fields: Any) -> None:
        """Log what helps to find a mistake."""
        self._write("debug", event, fields)

    def info(self, event: str, **fields: Any) -> None:
        """Log what an operator may want to know."""
        self._write("info", event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        """Log what an operator should look at."""
        self._write("warning", event, fields)

    def error(self, event: str, **fields: Any) -> None:
        """Log what an operator must look at."""
        self._write("error", event, fields)

    def _write(self, level: str, event: str, fields: dict[str, Any]) -> None:
        if LEVELS[level] < self._level:
            return
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        head = {"time": now, "level": level, "node": self._node, "round": self.round}
        line = json.dumps({**head, "event": event, **fields}, default=_plain)
        # In one call, since other threads write too.
        try:
            self.file.write(line + "\n")
            self.file.flush()
        except OSError:
            pass  # A full disk or a closed terminal must not stop the node.


def _plain(value: object) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


def divert_output(on_lines: Callable[[list[str]], None]) -> TextIO:
    """Hand all lines that libraries print to `on_lines`; returns the real standard error.

    Only the transport's log tells of refused connections, and it goes to the process's standard
    output, which a running node uses for nothing else. Lines are handed over in batches: a member
    that has a line written for each message of a flood must not have this process woken for each.
    """
    real = os.fdopen(os.dup(2), "w", encoding="utf-8", errors="replace")
    reader, writer = os.pipe()
    if hasattr(fcntl, "F_SETPIPE_SZ"):
        with suppress(OSError):  # Its owner has too many pipes: the usual size will do.
            fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    sys.stdout.flush()
    os.dup2(writer, 1)
    os.dup2(writer, 2)
    os.close(writer)
    # Python's own messages (tracebacks) still go to the real one.
    sys.stderr = real
    threading.Thread(
        target=_hand_over, args=(reader, on_lines), name="engine-log", daemon=True
    ).start()
    return real


def _hand_over(reader: int, on_lines: Callable[[list[str]], None]) -> None:
    """Read lines until there are no more writers."""
    rest = b""
    while chunk := os.read(reader, PIPE_BYTES):
        *whole, rest = (rest + chunk).split(b"\n")
        on_lines([line.decode("utf-8", "replace") for line in whole])
        time.sleep(PAUSE_SECONDS)
    os.close(reader)
