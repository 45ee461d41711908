"""The node's side of its learner: questions with a time limit, a new process where one fails."""

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from holdout.errors import LearnerFailed
from holdout.node.runtime import frames
from holdout.node.runtime.logs import Log

START_SECONDS_MAX = 300.0
RESTART_SECONDS = (1.0, 60.0)
"""How long to wait before a learner that failed is started again: from, doubling, up to."""
END_SECONDS_MAX = 5.0
"""How long the end of a killed learner's output is waited for."""
LINE_BYTES_MAX = 4_000


class LearnerClient:
    """A child process that computes gradients and ballots, one question at a time."""

    def __init__(self, folder: Path, log: Log, *, seconds_max: float, threads: int) -> None:
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

    @property
    def pid(self) -> int | None:
        """Of the process, if one runs."""
        return None if self._process is None else self._process.pid

    async def start(self) -> None:
        """Load the member's code now, so that the first round does not have to wait for it."""
        with contextlib.suppress(LearnerFailed):
            async with self._turn:
                await self._started()

    async def propose(self, model: bytes, *, round_number: int, rate: float) -> bytes:
        """The canonical bytes of a gradient."""
        question = {"job": "propose", "round": round_number, "rate": rate}
        _, data = await self._ask(question, model)
        return data

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
        """The places of the approved updates."""
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

    async def close(self) -> None:
        """End the process, whatever it does."""
        await self._end()

    # -- the process ------------------------------------------------------------------------------

    async def _ask(self, question: dict[str, Any], body: bytes) -> tuple[dict[str, Any], bytes]:
        async with self._turn:
            process = await self._started()
            assert process.stdin is not None  # noqa: S101
            try:
                async with asyncio.timeout(self._seconds_max):
                    process.stdin.write(frames.pack(question, body))
                    await process.stdin.drain()
                    answer, data = await _read(process)
            except TimeoutError:
                await self._fail(f"took longer than {self._seconds_max:g} s")
            except (OSError, ValueError, asyncio.IncompleteReadError):
                await self._fail("ended unexpectedly")
            except asyncio.CancelledError:
                # Half an answer may lie in the pipe.
                await self._end()
                raise
        if "failed" in answer:
            self.failures += 1
            self._log.warning("worker-failed", job=question["job"], why=answer["failed"])
            raise LearnerFailed(answer["failed"])
        self._pause = 0.0
        return answer, data

    async def _started(self) -> asyncio.subprocess.Process:
        if self._process is not None:
            return self._process
        loop = asyncio.get_running_loop()
        if loop.time() < self._not_before:
            raise LearnerFailed("the worker failed a moment ago and is not started again yet")
        try:
            process = await self._spawn()
        except OSError as error:  # No memory or no process left: others may end theirs.
            await self._fail(f"cannot be started: {error}")
        self._process = process
        self._printing = asyncio.create_task(self._print(process))
        try:
            async with asyncio.timeout(min(START_SECONDS_MAX, max(60.0, self._seconds_max))):
                answer, _ = await _read(process)
        except (OSError, ValueError, asyncio.IncompleteReadError):  # TimeoutError is an OSError.
            await self._fail("did not start")
        except asyncio.CancelledError:
            await self._end()
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
        """What the member's code prints, line by line, is part of the node's log."""
        assert process.stderr is not None  # noqa: S101
        while piece := await process.stderr.read(LINE_BYTES_MAX):
            for line in piece.decode("utf-8", "replace").splitlines():
                self._log.debug("worker-says", line=line)

    async def _fail(self, why: str) -> None:
        self.failures += 1
        self._log.warning("worker-failed", why=why)
        await self._end()
        first, last = RESTART_SECONDS
        self._pause = min(max(first, 2 * self._pause), last)
        self._not_before = asyncio.get_running_loop().time() + self._pause
        raise LearnerFailed(why)

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        await kill(process)
        if self._printing is not None:
            self._printing.cancel()


async def kill(process: asyncio.subprocess.Process) -> None:
    """End a process that may be in the middle of an answer."""
    assert process.stdout is not None  # noqa: S101
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    # asyncio sees the end of a process only after that of its pipes, and stops reading those that
    # nobody takes from. A process of the member's own may hold them open: that one is not awaited.
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(END_SECONDS_MAX):
            while await process.stdout.read(LINE_BYTES_MAX):
                pass
            await process.wait()


async def _read(process: asyncio.subprocess.Process) -> tuple[dict[str, Any], bytes]:
    assert process.stdout is not None  # noqa: S101
    head, body = frames.lengths(await process.stdout.readexactly(frames.PREFIX_BYTES))
    answer: dict[str, Any] = json.loads(await process.stdout.readexactly(head))
    return answer, await process.stdout.readexactly(body)
