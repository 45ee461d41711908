"""The node's log: one JSON object a line, with time, level, node, round, event and its details."""

import json
import os
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TextIO

LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}


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


def divert_output(on_line: Callable[[str], None]) -> TextIO:
    """Hand every line that libraries print to `on_line`; returns the real standard error.

    Only the transport's log tells of refused connections, and it goes to the process's standard
    output, which a running node uses for nothing else.
    """
    real = os.fdopen(os.dup(2), "w", encoding="utf-8", errors="replace")
    reader, writer = os.pipe()
    sys.stdout.flush()
    os.dup2(writer, 1)
    os.dup2(writer, 2)
    os.close(writer)
    # Python's own messages (tracebacks) still go to the real one.
    sys.stderr = real

    def read() -> None:
        with os.fdopen(reader, "r", encoding="utf-8", errors="replace") as lines:
            for line in lines:
                on_line(line.rstrip("\n"))

    threading.Thread(target=read, name="engine-log", daemon=True).start()
    return real
