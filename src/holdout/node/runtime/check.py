"""`holdout node check`: try what a node needs before it runs, and say what is wrong.

Nothing is changed: the worker runs in a process of its own, which is ended, and nothing is sent to
other members but a greeting. Other members may not run yet, so one that does not answer is a note.
"""

import asyncio
import ctypes
import io
import os
import shutil
import socket
import ssl
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from holdout.agreement import aggregate
from holdout.errors import LearnerFailed, StoreError, UserError
from holdout.node.logs import Log
from holdout.node.membership.genesis import NO_NETWORK
from holdout.node.membership.identity import CERTIFICATE, TLS, WARN_BEFORE, read_identity
from holdout.node.membership.members import KEYS
from holdout.node.membership.settings import NodeSettings, read_settings
from holdout.node.runtime.folder import Folder, has_joined, read_folder
from holdout.node.runtime.learner_client import LearnerClient
from holdout.node.storage.audit import opened
from holdout.node.storage.folder_lock import locked_if_free

CONNECT_SECONDS = 3.0
SYNC_SECONDS_MAX = 0.5
"""A disk that takes longer to make a few bytes durable slows every round down."""
CLOCK_NOT_SYNCHRONIZED = 5
"""What Linux answers if nothing keeps its clock (TIME_ERROR)."""


class CheckResult(StrEnum):
    """How one look ended."""

    OK = "ok"
    NOTE = "note"
    """The node can run, but somebody should know."""
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class Finding:
    """What was looked at, how it ended, and what there is to say."""

    what: str
    outcome: CheckResult
    said: str

    @property
    def is_wrong(self) -> bool:
        """Whether this keeps the node from taking part."""
        return self.outcome is CheckResult.WRONG

    def as_dict(self) -> dict[str, str]:
        """The finding as plain values."""
        return {key: str(value) for key, value in asdict(self).items()}


def check_node(path: Path) -> list[Finding]:
    """Look at everything that can be looked at; one finding or more for each thing."""
    try:
        settings = read_settings(path)
    except UserError as error:
        return [Finding("settings", CheckResult.WRONG, str(error))]
    found = [Finding("settings", CheckResult.OK, f"{settings.node.name}, node.toml is valid")]
    found += _look("keys", lambda: _keys(path))
    found += _look("disk", lambda: _disk(path, settings))
    found += _look("clock", lambda: _clock(path))
    with locked_if_free(path) as free:
        found += _look("port", lambda: _port(settings, free=free))
    if not has_joined(path):
        return [*found, Finding("network", CheckResult.WRONG, NO_NETWORK)]
    try:
        folder = read_folder(path)
    except UserError as error:
        return [*found, Finding("network", CheckResult.WRONG, str(error))]
    found += _look("network", lambda: _network(folder))
    found += _look("store", lambda: _store(folder))
    found += _look("certificate", lambda: _certificate(folder))
    found += _look("peers", lambda: _peers(folder))
    found += _look("worker", lambda: iter(asyncio.run(_worker(folder))))
    return found


def _look(what: str, look: Callable[[], Iterator[Finding]]) -> list[Finding]:
    """Everything that a look finds; what stops it is a finding too."""
    found = []
    try:
        for finding in look():
            found.append(finding)  # noqa: PERF402  # What was found before an error counts.
    except (OSError, ValueError, UserError) as error:
        found.append(Finding(what, CheckResult.WRONG, str(error)))
    return found


def _keys(path: Path) -> Iterator[Finding]:
    read_identity(path / KEYS)
    yield Finding("keys", CheckResult.OK, "complete, and readable by nobody else")


def _disk(path: Path, settings: NodeSettings) -> Iterator[Finding]:
    free = shutil.disk_usage(path).free >> 20
    least = settings.storage.free_megabytes_min
    if free < least:
        yield Finding(
            "disk", CheckResult.WRONG, f"{free} MB free; the node stops below {least} MB (storage)"
        )
        return
    with tempfile.NamedTemporaryFile(dir=path, prefix=".check-") as probe:
        began = time.perf_counter()
        probe.write(b"holdout")
        probe.flush()
        os.fsync(probe.fileno())
        seconds = time.perf_counter() - began
    slow = seconds > SYNC_SECONDS_MAX
    said = f"{free} MB free; a write is durable after {1e3 * seconds:.0f} ms"
    if slow:
        said += ": each vote waits for one"
    yield Finding("disk", CheckResult.NOTE if slow else CheckResult.OK, said)


def _clock(path: Path) -> Iterator[Finding]:
    now = time.time()
    newest = max(file.stat().st_mtime for file in (path / KEYS).iterdir())
    shown = datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    if now < newest - 1:
        made = datetime.fromtimestamp(newest, UTC).strftime("%Y-%m-%d %H:%M UTC")
        yield Finding("clock", CheckResult.WRONG, f"{shown}, but files here were made at {made}")
    elif _synchronized() is False:
        yield Finding("clock", CheckResult.NOTE, f"{shown}; nothing keeps it right (no NTP)")
    else:
        yield Finding("clock", CheckResult.OK, shown)


def _synchronized() -> bool | None:
    """Whether the system's clock is kept right by a time service; None: it does not say."""
    try:
        answer = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.create_string_buffer(512))
    except (OSError, AttributeError):
        return None
    return None if answer < 0 else answer != CLOCK_NOT_SYNCHRONIZED


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def _port(settings: NodeSettings, *, free: bool) -> Iterator[Finding]:
    wanted = {"listen": settings.node.listen}
    if settings.node.metrics is not None:
        wanted["metrics"] = settings.node.metrics
    if settings.node.metrics == settings.node.listen:
        said = f"listen and metrics are one address, {settings.node.listen}; each needs its own"
        yield Finding("port", CheckResult.WRONG, said)
        return
    for key, address in wanted.items():
        if not free:
            yield Finding("port", CheckResult.NOTE, f"{address} ({key}) not tried: the node runs")
            continue
        host, port = _split(address)
        try:
            kind, _, _, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            with socket.socket(kind, socket.SOCK_STREAM) as listener:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind(where)
                listener.listen()
        except OSError as error:
            why = error.strerror or str(error)
            yield Finding("port", CheckResult.WRONG, f"cannot listen on {address} ({key}): {why}")
        else:
            yield Finding("port", CheckResult.OK, f"{address} ({key}) is free")


def _network(folder: Folder) -> Iterator[Finding]:
    network, params = folder.network, folder.genesis.params
    yield Finding(
        "network",
        CheckResult.OK,
        f"{network.name}, {params.workers} members, of which {params.byzantine} may lie;"
        f" {network.identity}",
    )
    yield Finding(
        "model",
        CheckResult.OK,
        f"{network.file.model.name}, {params.dimension:,} weights, as agreed",
    )


def _store(folder: Folder) -> Iterator[Finding]:
    """Look into the store as an audit does; without a sound one the node has lost its memory."""
    try:
        with opened(folder.path) as (store, _):
            said = f"sound, up to round {store.height()}"
    except StoreError as error:
        yield Finding("store", CheckResult.WRONG, str(error))
    except UserError as error:
        said = f"{error}: the node starts as one that has lost its memory"
        yield Finding("store", CheckResult.NOTE, said)
    else:
        yield Finding("store", CheckResult.OK, said)


def _certificate(folder: Folder) -> Iterator[Finding]:
    keys = folder.path / KEYS
    certificate = x509.load_pem_x509_certificate((keys / CERTIFICATE).read_bytes())
    key = load_pem_private_key((keys / TLS).read_bytes(), None)
    if certificate.public_key() != key.public_key():
        yield Finding("certificate", CheckResult.WRONG, f"keys/{CERTIFICATE} is not for keys/{TLS}")
        return
    left = folder.expires - datetime.now(UTC)
    said = f"valid until {folder.expires:%Y-%m-%d}"
    if left <= WARN_BEFORE:
        said += f", {left.days} days: have it signed again (`holdout network certify`)"
    yield Finding("certificate", CheckResult.NOTE if left <= WARN_BEFORE else CheckResult.OK, said)


def _peers(folder: Folder) -> Iterator[Finding]:
    moved = folder.settings.peers
    greeting = _greeting(folder)
    for place, member in enumerate(folder.network.members):
        if place != folder.worker:
            address = moved.get(member.name, member.address)
            outcome, said = _reach(address, member.name, greeting)
            yield Finding("peers", outcome, f"{member.name} at {address} {said}")


def _greeting(folder: Folder) -> ssl.SSLContext:
    """TLS as between members: certificates of the network's authority on both sides."""
    authority = folder.network.file.authority.certificate
    context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cadata=authority)
    context.check_hostname = False  # Members are known by the names in their certificates.
    keys = folder.path / KEYS
    context.load_cert_chain(keys / CERTIFICATE, keys / TLS)
    return context


def _reach(address: str, name: str, greeting: ssl.SSLContext) -> tuple[CheckResult, str]:
    host, port = _split(address)
    try:
        socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
        return CheckResult.WRONG, "cannot be found: no such host"
    try:
        with (
            socket.create_connection((host, port), CONNECT_SECONDS) as plain,
            greeting.wrap_socket(plain) as secure,
        ):
            shown: Any = secure.getpeercert() or {}
    except ssl.SSLError as error:
        return CheckResult.WRONG, f"answers, but not as a member of this network ({error.reason})"
    except OSError as error:
        return CheckResult.NOTE, f"does not answer now ({error.strerror or 'no answer in time'})"
    held = {value for kind, value in shown.get("subjectAltName", ()) if kind == "DNS"}
    if name not in held:
        return CheckResult.WRONG, f"answers as {', '.join(sorted(held)) or 'somebody else'}"
    return CheckResult.OK, "answers"


async def _worker(folder: Folder) -> list[Finding]:
    """Have the member's worker propose, vote and measure once, on the network's first model."""
    params, settings = folder.genesis.params, folder.settings.worker
    quiet = Log(folder.settings.node.name, file=io.StringIO())
    learner = LearnerClient(
        folder.path, quiet, seconds_max=settings.seconds_max, threads=settings.threads
    )
    what = "worker"
    try:
        began = time.perf_counter()
        data = await learner.propose(folder.model, round_number=1, rate=params.rate(1))
        proposed = time.perf_counter() - began
        fault = aggregate.payload_fault(data, params)
        if fault is not None:
            return [Finding(what, CheckResult.WRONG, f"its gradient is not valid: {fault}")]
        opposite = aggregate.canonical(-np.frombuffer(data, "<f4"))
        began = time.perf_counter()
        approved = await learner.judge(
            folder.model,
            [data, opposite],
            round_number=1,
            rate=params.rate(1),
            radius=0.0,
            f=params.f,
        )
        voted = time.perf_counter() - began
        accuracy = await learner.accuracy(folder.model)
    except LearnerFailed as error:
        return [Finding(what, CheckResult.WRONG, str(error))]
    finally:
        await learner.close()
    said = f"{settings.make_worker} starts and proposes in {proposed:.1f} s, votes in {voted:.1f} s"
    if accuracy is not None:
        said += f"; the first model's accuracy is {100 * accuracy:.1f} %"
    found = [Finding(what, CheckResult.OK, said)]
    return [*found, _data(data, approved)]


def _data(gradient: bytes, approved: tuple[int, ...]) -> Finding:
    """Whether the data teaches anything: a gradient of nothing but zeros means it does not."""
    if not np.frombuffer(gradient, "<f4").any():
        return Finding("data", CheckResult.NOTE, "the gradient is zero: nothing is learned from it")
    if 0 not in approved:
        said = (
            "the worker does not approve its own gradient: its data may differ from batch to batch"
        )
        return Finding("data", CheckResult.NOTE, said)
    return Finding(
        "data", CheckResult.OK, "the worker learns from it, and approves what it learned"
    )
