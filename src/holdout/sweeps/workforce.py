"""Several processes that run curves side by side, one thread each, the longest curves first.

A curve that fails, or whose process dies, is recorded, and the rest goes on. When the caller is
interrupted every process ends its round and saves where it is.
"""

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from holdout.errors import WriteError
from holdout.sweeps.curve_store import CurveStore
from holdout.sweeps.estimates import CurvePace, duration, spread_over
from holdout.sweeps.planning import WantedCurve

STOP_SECONDS = 120.0
"""How long an interrupted process may take to end its round."""
TELL_SECONDS = 1.0
LINE_BYTES_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class SweepProgress:
    """Where a sweep is.

    Example:
        >>> from holdout import SweepProgress
        >>> print(SweepProgress(3, 10, 0, 95.0, "krum (alie, seed 0)"))
        3 of 10 curves, 2 min left: krum (alie, seed 0)
    """

    done: int
    """Curves that are over, those that failed and those that were there before included."""
    total: int
    """Curves that the sweep needs so far as is known."""
    failed: int
    """Curves that failed."""
    seconds_left: float
    """An estimate."""
    latest: str
    """The curve that was heard of last."""

    def __str__(self) -> str:
        failed = f", {self.failed} failed" if self.failed else ""
        left = duration(self.seconds_left)
        return f"{self.done} of {self.total} curves{failed}, {left} left: {self.latest}"


@dataclass(frozen=True, slots=True)
class FailedCurve:
    """A curve that could not be run to its end."""

    key: str
    curve: str
    """Rule, attack and seed."""
    message: str
    traceback: str | None = None


class _Process:
    """One worker, and what it is doing."""

    def __init__(self) -> None:
        self.reports, there = os.pipe()
        os.set_blocking(self.reports, False)
        environment = {
            **os.environ,
            # The worker must find the custom code that was found here.
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "OMP_NUM_THREADS": "1",
            "OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "PASSIVE"),
            "OPENBLAS_NUM_THREADS": "1",
        }
        try:
            self.process = subprocess.Popen(  # noqa: S603 - this very interpreter.
                [sys.executable, "-P", "-m", "holdout.sweeps.worker", str(there)],
                stdin=subprocess.PIPE,
                pass_fds=(there,),
                env=environment,
            )
        finally:
            os.close(there)
        self.buffer = b""
        self.curve: WantedCurve | None = None
        self.share = 0.0
        self.seconds: float | None = None

    def begin(self, curve: WantedCurve, store: CurveStore) -> None:
        """Hand a curve to the worker."""
        self.curve, self.share, self.seconds = curve, 0.0, None
        command = {"key": curve.key, "store": str(store.path.resolve()), "config": curve.config}
        assert self.process.stdin is not None  # noqa: S101
        with suppress(BrokenPipeError):  # Its death is heard at the other pipe.
            self.process.stdin.write((json.dumps(command) + "\n").encode())
            self.process.stdin.flush()

    def heard(self) -> tuple[list[Mapping[str, Any]], bool]:
        """What it reported since the last time, and whether it still can."""
        try:
            content = os.read(self.reports, LINE_BYTES_MAX)
        except BlockingIOError:
            return [], True
        *lines, self.buffer = (self.buffer + content).split(b"\n")
        return [json.loads(line) for line in lines], bool(content)

    def end(self) -> None:
        """Let it end by itself: there is nothing left to do."""
        assert self.process.stdin is not None  # noqa: S101
        with suppress(OSError):
            self.process.stdin.close()
        self.process.wait()
        os.close(self.reports)


def run_curves(
    curves: Sequence[WantedCurve],
    store: CurveStore,
    *,
    jobs: int,
    pace: CurvePace,
    watch: Callable[[SweepProgress], None],
    before: int = 0,
) -> list[FailedCurve]:
    """Run curves that are not in the store; those that failed.

    Args:
        curves: What to run.
        store: Where they go.
        jobs: How many at a time.
        pace: What is known of how long curves take; it learns from these.
        watch: Told how far it has come.
        before: How many curves of the sweep are done already.
    """
    return _Force(curves, store, jobs=jobs, pace=pace, watch=watch, before=before).run()


class _Force:
    def __init__(
        self,
        curves: Sequence[WantedCurve],
        store: CurveStore,
        *,
        jobs: int,
        pace: CurvePace,
        watch: Callable[[SweepProgress], None],
        before: int,
    ) -> None:
        self.queue = sorted(curves, key=lambda curve: (self._expected(curve, pace), curve.key))
        self.total = before + len(curves)
        self.store, self.pace, self.watch = store, pace, watch
        self.jobs = min(jobs, len(curves))
        self.done = before
        self.failed: list[FailedCurve] = []
        self.processes: list[_Process] = []
        self.selector = selectors.DefaultSelector()
        self.told = 0.0

    @staticmethod
    def _expected(curve: WantedCurve, pace: CurvePace) -> float:
        return pace.seconds(curve.rule, curve.attack, curve.guessed)

    def run(self) -> list[FailedCurve]:
        try:
            while self.queue and len(self.processes) < self.jobs:
                self._start()
            while any(process.curve for process in self.processes):
                for key, _ in self.selector.select(timeout=TELL_SECONDS):
                    self._listen(key.data)
            for process in self.processes:
                process.end()
        except BaseException:
            self._stop()
            raise
        finally:
            self.selector.close()
        return self.failed

    def _start(self) -> None:
        process = _Process()
        self.processes.append(process)
        self.selector.register(process.reports, selectors.EVENT_READ, process)
        self._next(process)

    def _next(self, process: _Process) -> None:
        if self.queue:
            process.begin(self.queue.pop(), self.store)
        else:
            process.curve = None

    def _listen(self, process: _Process) -> None:
        reports, alive = process.heard()
        for report in reports:
            self._take(process, report)
        if not alive:
            self._bury(process)

    def _take(self, process: _Process, report: Mapping[str, Any]) -> None:
        curve = process.curve
        assert curve is not None  # noqa: S101
        if "round" in report:
            process.share = report["round"] / report["rounds"]
        elif "seconds" in report:
            process.seconds = report["seconds"]
            timing = {"rule": curve.rule, "attack": curve.attack, "guessed": curve.guessed}
            timing |= {"seconds": process.seconds}
            self.store.add_timing(timing)
            self.pace.add(timing)
        elif "done" in report:
            self._over(process)
        elif "failed" in report:
            if report.get("fatal"):
                raise WriteError(report["message"])
            self._fail(curve, report["message"], report.get("traceback"))
            self._over(process)
        else:  # It was stopped by somebody else.
            self._fail(curve, "its process was asked to stop", None)
            self._over(process)
        self._tell(curve, always="done" in report or "failed" in report)

    def _fail(self, curve: WantedCurve, message: str, traceback: str | None) -> None:
        self.failed.append(FailedCurve(curve.key, str(curve), message, traceback))

    def _over(self, process: _Process) -> None:
        self.done += 1
        self._next(process)

    def _bury(self, process: _Process) -> None:
        """A process that ended by itself has died; another takes its place."""
        self.selector.unregister(process.reports)
        self.processes.remove(process)
        curve = process.curve
        process.end()
        if curve is None:
            return
        code = process.process.returncode
        how = f"signal {-code} ended it" if code < 0 else f"it ended with code {code}"
        self._fail(curve, f"its process died ({how}), perhaps for want of memory", None)
        self.done += 1
        self._tell(curve, always=True)
        if self.queue:
            self._start()

    def _tell(self, curve: WantedCurve, *, always: bool) -> None:
        now = time.monotonic()
        if not always and now - self.told < TELL_SECONDS:
            return
        self.told = now
        left = [self._expected(waiting, self.pace) for waiting in self.queue]
        left += [
            (1 - process.share) * self._expected(process.curve, self.pace)
            for process in self.processes
            if process.curve is not None
        ]
        seconds = spread_over(left, self.jobs)
        failed = len(self.failed)
        self.watch(SweepProgress(self.done, self.total, failed, seconds, str(curve)))

    def _stop(self) -> None:
        """Have every process end its round and save where it is."""
        for process in self.processes:
            process.process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + STOP_SECONDS
        for process in self.processes:
            # What it still has to say must not keep it from ending.
            os.close(process.reports)
            with suppress(OSError):
                if process.process.stdin is not None:
                    process.process.stdin.close()
            try:
                process.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.process.kill()
                process.process.wait()
