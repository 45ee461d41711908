"""The page of a node: what `/` of the address that serves metrics shows, live, read-only.

It is one file without anything from elsewhere. The state comes as server-sent events, whole each
time it has changed. Whoever may read the address may read all of it; nothing can be changed.
"""

import asyncio
import base64
import contextlib
import hashlib
import ipaddress
import json
import os
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from importlib.resources import files
from typing import Any, Protocol

from holdout.errors import UserError
from holdout.node.runtime.alarms import alarms_of

EVENT_SECONDS = 0.5
"""How often the state is looked at for a browser."""
QUIET_SECONDS = 10.0
"""After so long without a change a line is sent that tells the browser nothing is lost."""
BROWSERS_MAX = 16
REQUEST_BYTES_MAX = 1 << 14
REQUEST_SECONDS_MAX = 5.0
POINTS_MAX = 400
ROUNDS_SHOWN = 24
"""How many rounds the map shows."""
State = Callable[[], dict[str, Any]]


class PageSource(Protocol):
    """What a page is made of."""

    def page(self) -> dict[str, Any]:
        """The state that the page shows."""
        ...

    def metrics(self) -> bytes:
        """All metrics in Prometheus's text format."""
        ...


def page_state(
    reports: Sequence[dict[str, Any]], rounds: Sequence[dict[str, Any]], name: str
) -> dict[str, Any]:
    """What the page shows.

    Args:
        reports: What each node says of itself; members and alarms are those that the first sees.
        rounds: What was seen of the decided rounds, oldest first.
        name: The network's name.
    """
    if not reports:
        return {"name": name, "nodes": [], "members": [], "rounds": [], "alarms": [], "history": []}
    first = reports[0]
    step = max(1, -(-len(rounds) // POINTS_MAX))
    thinned = [seen for place, seen in enumerate(reversed(rounds)) if place % step == 0][::-1]
    return {
        "name": name,
        "network": first["network"],
        "quorum": first["quorum"],
        "nodes": [_node(report) for report in reports],
        "members": first["members"],
        "rounds": list(rounds[-ROUNDS_SHOWN:]),
        "history": [[seen["round"], seen["accuracy"], seen["seconds"]] for seen in thinned],
        "alarms": _alarms(reports),
        "stored": {"bytes": first["stored"]["bytes"]},
    }


def _alarms(reports: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each alarm once, with the nodes that raise it."""
    found: dict[tuple[str, str], list[str]] = {}
    for report in reports:
        for alarm in alarms_of(report):
            found.setdefault((alarm.level, alarm.text), []).append(report["node"])
    return [
        {"level": level, "text": text, "nodes": nodes}
        for (level, text), nodes in sorted(found.items(), key=lambda item: item[0][0])
    ]


def _node(report: dict[str, Any]) -> dict[str, Any]:
    told = ("node", "round", "decided", "period", "accuracy", "roles", "observer", "halted")
    return {
        **{key: report[key] for key in told},
        "heard": len(report["heard"]),
        "memory": sum(report["memory"].values()),
        "failures": report["worker_failures"],
    }


# -- the page itself ------------------------------------------------------------------------------


def read_page() -> tuple[bytes, str]:
    """The page, and the policy by which a browser runs its own style and script and nothing else.

    Example:
        >>> page, policy = read_page()
        >>> policy.split(";")[0], b"http" in page.replace(b"http://www.w3.org/2000/svg", b"")
        ("default-src 'none'", False)
    """
    text = files("holdout.node.runtime").joinpath("page.html").read_text("utf-8")
    style, script = (
        _hash(re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)[0])
        for tag in ("style", "script")
    )
    policy = (
        f"default-src 'none'; style-src {style}; script-src {script}; connect-src 'self';"
        " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return text.encode(), policy


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


# -- over HTTP ------------------------------------------------------------------------------------


class PageServer:
    """Answers browsers and monitoring systems."""

    def __init__(self, source: PageSource, *, local: bool) -> None:
        """Serve what the source says; if `local`, only to those who ask this machine by name."""
        self._source = source
        self._local = local
        self._page, self._policy = read_page()
        self._browsers = 0

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request, and close."""
        try:
            with contextlib.suppress(OSError, TimeoutError, ValueError, EOFError):
                async with asyncio.timeout(REQUEST_SECONDS_MAX):
                    request = await reader.readuntil(b"\r\n\r\n")
                await self._respond(request.decode("latin-1"), writer)
                await writer.drain()
        except asyncio.CancelledError:
            pass  # The node ends.
        finally:
            writer.close()

    async def _respond(self, request: str, writer: asyncio.StreamWriter) -> None:
        method, path, *_ = (*request.split("\r\n", 1)[0].split(" "), "", "")
        answer = self._answer(request, method, path)
        if answer is not None:
            head, end, body = answer.partition(b"\r\n\r\n")
            writer.write(head + end + (b"" if method == "HEAD" else body))
        elif method == "HEAD":
            writer.write(self._head("200 OK", "text/event-stream", None))
        else:
            await self._stream(writer)

    def _answer(self, request: str, method: str, path: str) -> bytes | None:
        """The answer to a request; None: the stream of events."""
        if self._local and not _is_local(_header(request, "host")):
            # A page from elsewhere whose name was made to point here must not read this one.
            return self._head("403 Forbidden", "text/plain", b"ask for 127.0.0.1\n")
        if method not in {"GET", "HEAD"}:
            return self._head("405 Method Not Allowed", "text/plain", b"read-only\n")
        if path == "/metrics":
            kind = "text/plain; version=0.0.4; charset=utf-8"
            return self._head("200 OK", kind, self._source.metrics())
        if path == "/":
            return self._head("200 OK", "text/html; charset=utf-8", self._page)
        if path != "/events":
            return self._head("404 Not Found", "text/plain", b"there are /, /metrics\n")
        if self._browsers >= BROWSERS_MAX:
            return self._head("503 Service Unavailable", "text/plain", b"too many\n")
        return None

    def _head(self, status: str, kind: str, body: bytes | None) -> bytes:
        lines = [
            f"HTTP/1.1 {status}",
            f"Content-Type: {kind}",
            *([] if body is None else [f"Content-Length: {len(body)}"]),
            "Connection: close",
            "Cache-Control: no-store",
            f"Content-Security-Policy: {self._policy}",
            "X-Content-Type-Options: nosniff",
            "Referrer-Policy: no-referrer",
            "Cross-Origin-Resource-Policy: same-origin",
        ]
        return ("\r\n".join(lines) + "\r\n\r\n").encode() + (body or b"")

    async def _stream(self, writer: asyncio.StreamWriter) -> None:
        """Send the state each time it has changed, until the browser leaves."""
        self._browsers += 1
        try:
            writer.write(self._head("200 OK", "text/event-stream", None))
            sent, quiet = "", 0.0
            while not writer.is_closing():
                state = json.dumps(self._source.page())
                if state != sent:
                    sent, quiet = state, 0.0
                    writer.write(f"data: {state}\n\n".encode())
                elif quiet >= QUIET_SECONDS:
                    quiet = 0.0
                    writer.write(b": nothing new\n\n")
                async with asyncio.timeout(REQUEST_SECONDS_MAX):
                    await writer.drain()
                await asyncio.sleep(EVENT_SECONDS)
                quiet += EVENT_SECONDS
        finally:
            self._browsers -= 1


def _header(request: str, name: str) -> str:
    for line in request.split("\r\n")[1:]:
        key, _, value = line.partition(":")
        if key.strip().lower() == name:
            return value.strip()
    return ""


def _is_local(host: str) -> bool:
    """Whether this is a name of this machine alone, with or without a port.

    Example:
        >>> [_is_local(h) for h in ("localhost:9100", "127.0.0.1", "[::1]:80", "example.org")]
        [True, True, True, False]
    """
    name = re.sub(r":\d+$", "", host).strip("[]")
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


async def serve_page(address: str, source: PageSource) -> asyncio.Server:
    """Serve the page and the metrics on this address, until closed."""
    host, _, port = address.rpartition(":")
    server = PageServer(source, local=_is_local(address))
    try:
        return await asyncio.start_server(
            server.answer, host.strip("[]"), int(port), limit=REQUEST_BYTES_MAX
        )
    except OSError as error:
        why = os.strerror(error.errno or 0)
        raise UserError(f"the page cannot be served on {address}: {why}") from None


@contextlib.contextmanager
def page_thread(address: str, source: PageSource) -> Iterator[None]:
    """Serve a page on a thread of its own, for a command that has no event loop."""
    ready: Future[Callable[[], object]] = Future()

    async def serve() -> None:
        done = asyncio.Event()
        try:
            server = await serve_page(address, source)
        except UserError as error:
            ready.set_exception(error)
            return
        loop = asyncio.get_running_loop()
        ready.set_result(lambda: loop.call_soon_threadsafe(done.set))
        await done.wait()
        server.close()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), name="page", daemon=True)
    thread.start()
    stop = ready.result()
    try:
        yield
    finally:
        stop()
        thread.join(5)
