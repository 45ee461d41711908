"""What the transport refused: all counted, and logged without letting a stranger fill the log.

Zenoh itself refuses connections (no certificate, a foreign or an expired one) and messages (under
another member's prefix). It has no event for either, only lines in its log, which are read here.
`FILTER` has it write those lines, and none for what it lets pass
(`docs/decisions/0012-what-is-dropped-what-is-held-back.md`).
"""

import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from holdout.node.logs import Log

FILTER = (
    "error,zenoh_link_tls=warn"
    # One line for each refused message; the modules inside would write one for every message.
    ",zenoh::net::routing::interceptor=trace"
    ",zenoh::net::routing::interceptor::access_control=off"
    ",zenoh::net::routing::interceptor::qos_overwrite=off"
    # Adds to that line the connection on which the message came.
    ",zenoh::net::primitives::demux=trace"
)

CONNECTIONS = (
    (re.compile(r"sent no certificates"), "no-certificate"),
    (re.compile(r"invalid peer certificate: .*[Ee]xpired"), "expired-certificate"),
    (
        re.compile(r"invalid peer certificate: .*(NotValidYet|not valid yet)"),
        "certificate-not-valid-yet",
    ),
    (re.compile(r"invalid peer certificate"), "foreign-certificate"),
    (re.compile(r"received corrupt message|received fatal alert|handshake"), "no-tls"),
)
"""Patterns of Zenoh's lines about refused connections, and what we call the reason."""
REASONS = tuple(reason for _, reason in CONNECTIONS)
"""Why connections are refused."""

_MESSAGE = "Msg intercepted!"
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_SOURCE = re.compile(r"src(?:\x1b\[[0-9;]*m)*=(?:\x1b\[[0-9;]*m)*[a-z]+/([0-9a-f]+)")
_MEANT = "Skipping name verification"
"""Expected: members are known by the names in their certificates (`zenoh_config`)."""

SAY_SECONDS = 60.0
"""The same refusal is logged once in this time; each is counted."""
LOOK_SECONDS = 1.0
"""How often to look for new connections while messages are refused."""
SOMEBODY = "somebody"
"""The sender that is named if the connection is gone, or two look alike."""
UNSETTLED_MAX = 1_000
"""How many unknown connections are remembered; messages on others are somebody's at once."""


class Refusals:
    """Counts what the transport's log says was refused.

    Attributes:
        connections: How many connections were refused, by reason.
    """

    def __init__(self, log: Log, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._names: Mapping[str, str] = {}
        self._looked = -LOOK_SECONDS
        self._said: dict[str, float] = {}
        self.links: Callable[[], Mapping[str, str]] = dict
        """The member of each connection, by its id; set to the transport's `links`."""
        self.connections: Counter[str] = Counter()
        self._messages: Counter[str] = Counter()
        self._unsettled: Counter[str] = Counter()
        # Lines are read on a separate thread.
        self._lock = threading.Lock()

    def messages(self) -> Counter[str]:
        """How many messages (also answers and listeners) were refused, by their sender's name."""
        with self._lock:
            if self._unsettled:
                self._look()
            return self._messages + Counter({SOMEBODY: self._unsettled.total()})

    def on_lines(self, lines: Sequence[str]) -> None:
        """Handle lines of the transport's log; a flood may bring many thousands a second."""
        sources: Counter[str] = Counter()
        for line in lines:
            if not line.endswith(_MESSAGE):
                self._on_connection(_COLOURS.sub("", line))
            # Without a source it is one that this node was sending: an answer that came too late.
            elif (found := _SOURCE.search(line)) is not None:
                sources[found[1]] += 1
        for number, count in sources.items():
            with self._lock:
                name = self._charge(number, count)
                total = self._messages[name]
                if name == SOMEBODY:
                    total += self._unsettled.total()
            self._say("refused-message", name, total)

    def _on_connection(self, line: str) -> None:
        """Handle a line that may be about a refused connection."""
        for pattern, kind in CONNECTIONS:
            if pattern.search(line):
                self.connections[kind] += 1
                self._say("refused-connection", kind, self.connections[kind])
                return
        if _MEANT not in line:
            self._log.debug("transport-says", line=line)

    def _charge(self, number: str, count: int) -> str:
        """Count refused messages for the member with this connection, if it is known."""
        if self._name_of(number) is None and self._clock() - self._looked >= LOOK_SECONDS:
            self._look()
        name = self._name_of(number)
        if name is None and (number in self._unsettled or len(self._unsettled) < UNSETTLED_MAX):
            self._unsettled[number] += count
            return SOMEBODY
        self._messages[name or SOMEBODY] += count
        return name or SOMEBODY

    def _look(self) -> None:
        """Look up the connections, and settle the messages that waited for that."""
        self._looked = self._clock()
        self._names = self.links()
        for number in list(self._unsettled):
            if (name := self._name_of(number)) is not None:
                self._messages[name] += self._unsettled.pop(number)

    def _name_of(self, short: str) -> str | None:
        names = [name for number, name in self._names.items() if number.startswith(short)]
        return names[0] if len(names) == 1 else None

    def _say(self, event: str, kind: str, count: int) -> None:
        now = self._clock()
        if now - self._said.get(f"{event} {kind}", -SAY_SECONDS) >= SAY_SECONDS:
            self._said[f"{event} {kind}"] = now
            self._log.warning(event, kind=kind, count=count)
