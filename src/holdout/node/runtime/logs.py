"""One line an event: a JSON object with time, level, node, round, event, and what belongs to it."""

import json
import os
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TextIO

LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}


class Log:
    """Writes events of one node, those below its level left out."""

    def __init__(self, node: str, level: str = "info", file: TextIO | None = None) -> None:
        self._node = node
        self._level = LEVELS[level]
        self.file = file or sys.stderr
        self.round = 0
        """The round that the node is in: part of every line."""

    def debug(self, event: str, **fields: Any) -> None:
        """For whoever looks for a mistake."""
        self._write("debug", event, fields)

    def info(self, event: str, **fields: Any) -> None:
        """What an operator may want to know."""
        self._write("info", event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        """What an operator should look at."""
        self._write("warning", event, fields)

    def error(self, event: str, **fields: Any) -> None:
        """What the node cannot go on with."""
        self._write("error", event, fields)

    def _write(self, level: str, event: str, fields: dict[str, Any]) -> None:
        if LEVELS[level] < self._level:
            return
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        head = {"time": now, "level": level, "node": self._node, "round": self.round}
        line = json.dumps({**head, "event": event, **fields}, default=_plain)
        # In one piece, since other threads write too.
        try:
            self.file.write(line + "\n")
            self.file.flush()
        except OSError:
            pass  # A full disk or a closed terminal must not decide about the node.


def _plain(value: object) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


def divert_output(on_line: Callable[[str], None]) -> TextIO:
    """Have what libraries print handed to `on_line`; the way to the real standard error.

    The transport tells of refused connections in its own log alone, which goes to the process's
    standard output; so does nothing else that a node prints while it runs.
    """
    real = os.fdopen(os.dup(2), "w", encoding="utf-8", errors="replace")
    reader, writer = os.pipe()
    sys.stdout.flush()
    os.dup2(writer, 1)
    os.dup2(writer, 2)
    os.close(writer)
    # Python's own messages (tracebacks) go on to the real one.
    sys.stderr = real

    def read() -> None:
        with os.fdopen(reader, "r", encoding="utf-8", errors="replace") as lines:
            for line in lines:
                on_line(line.rstrip("\n"))

    threading.Thread(target=read, name="engine-log", daemon=True).start()
    return real
