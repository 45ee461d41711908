"""The node's side of its learner: a child process that is asked questions, with a time limit.

A learner that fails is ended and started again. Questions and answers are frames on its standard
input and output: a JSON header and raw bytes, behind the lengths of both.
"""

import asyncio
import contextlib
import json
import os
import signal
import struct
import sys
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, BinaryIO

from holdout.errors import LearnerFailed
from holdout.node.logs import Log

START_SECONDS_MAX = 300.0
RESTART_SECONDS = (1.0, 60.0)
"""How long to wait before a failed learner is started again: at first, then doubled, at most."""
END_SECONDS_MAX = 5.0
"""How long to wait for the end of a killed learner's output."""
LINE_BYTES_MAX = 4_000

_LENGTHS = struct.Struct("<IQ")
PREFIX_BYTES = _LENGTHS.size
HEADER_BYTES_MAX = 1 << 24
BODY_BYTES_MAX = 1 << 36


class LearnerClient:
    """A child process that computes gradients and ballots, one question at a time."""

    def __init__(
        self, folder: Path, log: Log, *, seconds_max: float, threads: int, interval: float = 0.0
    ) -> None:
        """Get ready to start the process of this folder's worker.

        Args:
            folder: The node's folder.
            log: Where failures are told.
            seconds_max: How long one answer may take.
            threads: How many threads torch uses there.
            interval: The least time between the beginnings of two gradients, in seconds.
        """
        self._interval = interval
        self._proposing = float("-inf")
        self._folder = folder
        self._log = log
        self._seconds_max = seconds_max
        self._threads = threads
        self._process: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()
        self._printing: asyncio.Task[None] | None = None
        self._pause = 0.0
        self._not_before = 0.0
        self.failures = 0
        self.last_failure: str | None = None
        """Why the worker failed last; None: it works."""

    @property
    def pid(self) -> int | None:
        """The number of the learner's process; None: none runs."""
        return None if self._process is None else self._process.pid

    async def start(self) -> None:
        """Start the process now, so that the first round does not have to wait for it."""
        with contextlib.suppress(LearnerFailed):
            async with self._turn:
                await self._started()

    async def propose(self, model: bytes, *, round_number: int, rate: float) -> bytes:
        """A gradient on this model, as canonical bytes."""
        await self._rest()
        question = {"job": "propose", "round": round_number, "rate": rate}
        _, data = await self._ask(question, model)
        return data

    async def _rest(self) -> None:
        """Wait until the last gradient began long enough ago."""
        clock = asyncio.get_running_loop().time
        await asyncio.sleep(max(0.0, self._proposing + self._interval - clock()))
        self._proposing = clock()

    async def judge(
        self,
        model: bytes,
        payloads: Sequence[bytes],
        *,
        round_number: int,
        rate: float,
        radius: float,
        f: Fraction,
    ) -> tuple[int, ...]:
        """The positions of the approved updates."""
        question = {
            "job": "judge",
            "round": round_number,
            "rate": rate,
            "radius": radius,
            "f": [f.numerator, f.denominator],
        }
        answer, _ = await self._ask(question, b"".join([model, *payloads]))
        return tuple(answer["approved"])

    async def accuracy(self, model: bytes) -> float | None:
        """How good the model is, if the member's worker can tell."""
        answer, _ = await self._ask({"job": "measure"}, model)
        found = answer["accuracy"]
        return None if found is None else float(found)

    # -- the process ------------------------------------------------------------------------------

    async def _ask(self, question: dict[str, Any], body: bytes) -> tuple[dict[str, Any], bytes]:
        async with self._turn:
            process = await self._started()
            assert process.stdin is not None  # noqa: S101
            try:
                async with asyncio.timeout(self._seconds_max):
                    process.stdin.write(pack_frame(question, body))
                    await process.stdin.drain()
                    answer, data = await _read(process)
            except TimeoutError:
                await self._fail(f"took longer than {self._seconds_max:g} s")
            except (OSError, ValueError, asyncio.IncompleteReadError):
                await self._fail(f"ended unexpectedly{await _how_it_ended(process)}")
            except asyncio.CancelledError:
                # Half an answer may be left in the pipe.
                await self.close()
                raise
        if "failed" in answer:
            self.failures += 1
            self.last_failure = str(answer["failed"])
            self._log.warning("worker-failed", job=question["job"], why=answer["failed"])
            raise LearnerFailed(answer["failed"])
        self._pause = 0.0
        self.last_failure = None
        return answer, data

    async def _started(self) -> asyncio.subprocess.Process:
        if self._process is not None:
            return self._process
        loop = asyncio.get_running_loop()
        if loop.time() < self._not_before:
            raise LearnerFailed("the worker failed a moment ago and has not been started again yet")
        try:
            process = await self._spawn()
        except OSError as error:  # No memory or no process left: there may be some later.
            await self._fail(f"cannot be started: {error}")
        self._process = process
        self._printing = asyncio.create_task(self._print(process))
        try:
            async with asyncio.timeout(min(START_SECONDS_MAX, max(60.0, self._seconds_max))):
                answer, _ = await _read(process)
        except (OSError, ValueError, asyncio.IncompleteReadError):  # TimeoutError is an OSError.
            await self._fail(f"did not start{await _how_it_ended(process)}")
        except asyncio.CancelledError:
            await self.close()
            raise
        if "failed" in answer:
            await self._fail(str(answer["failed"]))
        return process

    async def _spawn(self) -> asyncio.subprocess.Process:
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": str(self._threads),
            "OMP_WAIT_POLICY": "PASSIVE",
        }
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "holdout.node.runtime.learner_process",
            str(self._folder.resolve()),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=environment,
        )

    async def _print(self, process: asyncio.subprocess.Process) -> None:
        """Log what the member's worker prints, line by line."""
        assert process.stderr is not None  # noqa: S101
        while piece := await process.stderr.read(LINE_BYTES_MAX):
            for line in piece.decode("utf-8", "replace").splitlines():
                self._log.debug("worker-says", line=line)

    async def _fail(self, why: str) -> None:
        self.failures += 1
        self.last_failure = why
        self._log.warning("worker-failed", why=why)
        await self.close()
        first, last = RESTART_SECONDS
        self._pause = min(max(first, 2 * self._pause), last)
        self._not_before = asyncio.get_running_loop().time() + self._pause
        raise LearnerFailed(why)

    async def close(self) -> None:
        """End the process, whatever it is doing."""
        process, self._process = self._process, None
        if process is None:
            return
        await kill(process)
        if self._printing is not None:
            self._printing.cancel()


async def _how_it_ended(process: asyncio.subprocess.Process) -> str:
    """With what exit code or signal a process ended, if it has ended."""
    end = asyncio.get_running_loop().time() + END_SECONDS_MAX
    # Not `wait`, which also waits until nobody holds the process's pipes any more.
    while process.returncode is None and process.stdout is not None and process.stdout.at_eof():
        if asyncio.get_running_loop().time() > end:
            break
        await asyncio.sleep(0.01)
    code = process.returncode
    if code is None:
        return ""
    return f": exit code {code}" if code >= 0 else f": ended by {signal.Signals(-code).name}"


async def kill(process: asyncio.subprocess.Process) -> None:
    """End a process that may be in the middle of an answer."""
    assert process.stdout is not None  # noqa: S101
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    # asyncio sees the end of a process only after the end of its pipes, and stops reading a pipe
    # that nobody takes from. A process started by the worker may keep them open: hence the limit.
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(END_SECONDS_MAX):
            while await process.stdout.read(LINE_BYTES_MAX):
                pass
            await process.wait()


async def _read(process: asyncio.subprocess.Process) -> tuple[dict[str, Any], bytes]:
    assert process.stdout is not None  # noqa: S101
    head, body = frame_lengths(await process.stdout.readexactly(PREFIX_BYTES))
    answer: dict[str, Any] = json.loads(await process.stdout.readexactly(head))
    return answer, await process.stdout.readexactly(body)


# -- frames, on both sides ------------------------------------------------------------------------


def pack_frame(header: dict[str, Any], body: bytes) -> bytes:
    """A header and a body as one frame."""
    head = json.dumps(header).encode()
    return _LENGTHS.pack(len(head), len(body)) + head + body


def frame_lengths(prefix: bytes) -> tuple[int, int]:
    """The lengths of header and body; raises ValueError if this is not a frame's beginning."""
    head, body = _LENGTHS.unpack(prefix)
    if head > HEADER_BYTES_MAX or body > BODY_BYTES_MAX:
        raise ValueError("not a frame")
    return head, body


def read_frame(file: BinaryIO) -> tuple[dict[str, Any], bytes] | None:
    """The next header and body of a file; None at its end."""
    prefix = file.read(PREFIX_BYTES)
    if len(prefix) < PREFIX_BYTES:
        return None
    head, body = frame_lengths(prefix)
    header: dict[str, Any] = json.loads(file.read(head))
    return header, file.read(body)
