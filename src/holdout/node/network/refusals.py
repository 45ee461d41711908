"""What the transport refused: counted, and told without letting a stranger fill the log.

Zenoh refuses connections (no certificate, a foreign or an expired one) and messages (under another
member's prefix) by itself, and has no event for either: its own log is all there is. Its lines are
read here; `FILTER` has it write those, and nothing for what it lets pass
(`docs/decisions/0012-what-is-dropped-what-is-held-back.md`).
"""

import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping

from holdout.node.runtime.logs import Log

FILTER = (
    "error,zenoh_link_tls=warn"
    # One line for a refused message. The modules below it would write one for every message.
    ",zenoh::net::routing::interceptor=trace"
    ",zenoh::net::routing::interceptor::access_control=off"
    ",zenoh::net::routing::interceptor::qos_overwrite=off"
    # Says in front of that line on which connection it came.
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
"""How Zenoh tells of connections that it refused."""

_MESSAGE = "Msg intercepted!"
_SOURCE = re.compile(r"src=[a-z]+/([0-9a-f]+)")
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_MEANT = "Skipping name verification"
"""See the transport's settings: members are known by the names in their certificates."""

SAY_SECONDS = 60.0
"""The same refusal is logged so often at most; each is counted."""
LOOK_SECONDS = 1.0
"""For new connections, while messages are refused; whoever asks for the counts sees all of them."""
SOMEBODY = "somebody"
"""Who a refused message is charged to if the connection is gone, or two look alike."""
UNSETTLED_MAX = 1_000
"""Connections that may wait to be found in the list; what comes on more of them is somebody's."""


class Refusals:
    """Counts by what the transport's log says.

    Attributes:
        connections: Refused connections, by reason.
    """

    def __init__(self, log: Log, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._names: Mapping[str, str] = {}
        self._looked = -LOOK_SECONDS
        self._said: dict[str, float] = {}
        self.links: Callable[[], Mapping[str, str]] = dict
        """The members by the number of their connection; the transport gives it."""
        self.connections: Counter[str] = Counter()
        self._messages: Counter[str] = Counter()
        self._unsettled: Counter[str] = Counter()
        # Lines come on a thread of their own.
        self._lock = threading.Lock()

    def messages(self) -> Counter[str]:
        """Refused messages (and listeners, and answers), by the member that sent them."""
        with self._lock:
            if self._unsettled:
                self._look()
            return self._messages + Counter({SOMEBODY: self._unsettled.total()})

    def on_line(self, line: str) -> None:
        """A line of the transport's log."""
        line = _COLOURS.sub("", line)
        if line.endswith(_MESSAGE):
            found = _SOURCE.search(line)
            if found is None:
                # This node's own, on its way out: an answer to a question that has timed out.
                return
            with self._lock:
                name = self._charge(found[1])
                count = self._messages[name]
                if name == SOMEBODY:
                    count += self._unsettled.total()
            self._say("refused-message", name, count)
            return
        for pattern, kind in CONNECTIONS:
            if pattern.search(line):
                self.connections[kind] += 1
                self._say("refused-connection", kind, self.connections[kind])
                return
        if _MEANT not in line:
            self._log.debug("transport-says", line=line)

    def _charge(self, number: str) -> str:
        """Count a refused message to the member with this connection, as far as is known now."""
        if self._name_of(number) is None and self._clock() - self._looked >= LOOK_SECONDS:
            self._look()
        name = self._name_of(number)
        if name is None and (number in self._unsettled or len(self._unsettled) < UNSETTLED_MAX):
            self._unsettled[number] += 1
            return SOMEBODY
        self._messages[name or SOMEBODY] += 1
        return name or SOMEBODY

    def _look(self) -> None:
        """Ask for the connections, and charge what waited for that."""
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
