"""Asking a running node how it is: JSON on a local socket; metrics over HTTP, if asked for."""

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from holdout.errors import UserError

SOCKET = "status.sock"
ANSWER_BYTES_MAX = 1 << 24
PATH_BYTES_MAX = 100
"""What every system takes for the path of a socket."""

Report = Callable[[], dict[str, Any]]


@contextlib.contextmanager
def _reachable(path: Path) -> Iterator[str]:
    """A short name of the socket: its full path may be longer than systems allow."""
    if len(os.fsencode(path)) <= PATH_BYTES_MAX:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


async def serve_status(folder: Path, report: Report) -> asyncio.Server:
    """Answer everybody who may enter the folder, until closed."""

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            writer.write(json.dumps(report()).encode())
            await writer.drain()
        writer.close()

    path = folder / SOCKET
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    with _reachable(path) as name:
        before = os.umask(0o077)
        try:
            listener.bind(name)
        finally:
            os.umask(before)
    return await asyncio.start_unix_server(answer, sock=listener)


def ask_status(folder: Path, seconds_max: float = 5.0) -> dict[str, Any]:
    """What the running node says; raises UserError if none runs."""
    pieces = []
    try:
        with socket.socket(socket.AF_UNIX) as connection, _reachable(folder / SOCKET) as name:
            connection.settimeout(seconds_max)
            connection.connect(name)
            while piece := connection.recv(1 << 16):
                pieces.append(piece)
                if sum(map(len, pieces)) > ANSWER_BYTES_MAX:
                    break
        answer: dict[str, Any] = json.loads(b"".join(pieces))
    except (OSError, ValueError):
        raise UserError(f"no node runs in {folder}, or it does not answer") from None
    return answer


async def serve_metrics(address: str, text: Callable[[], str]) -> asyncio.Server:
    """Serve metrics to whoever asks on this address."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, TimeoutError, ValueError, asyncio.IncompleteReadError):
            async with asyncio.timeout(5):
                await reader.readuntil(b"\r\n\r\n")
            body = text().encode()
            head = (
                "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\n"
                f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
            )
            writer.write(head.encode() + body)
            await writer.drain()
        writer.close()

    host, _, port = address.rpartition(":")
    try:
        return await asyncio.start_server(answer, host.strip("[]"), int(port), limit=1 << 14)
    except OSError as error:
        raise UserError(f"metrics cannot be served on {address}: {error.strerror}") from None
