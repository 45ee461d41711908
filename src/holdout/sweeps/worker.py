"""A process that runs curves, one after the other, for the sweep that started it.

Commands come as lines of JSON on standard input, reports go as lines to a descriptor of their own;
whatever custom code prints goes to standard error. It ends when its input does, and no later than
one round after whoever started it is gone.
"""

import json
import os
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from holdout import device
from holdout.config import Config
from holdout.data.datasets import Dataset
from holdout.errors import PluginError, RunFolderError, UserError, WriteError
from holdout.experiments.judges import judges_fields
from holdout.experiments.parallel import run_apart
from holdout.experiments.plan import ExperimentPlan, make_plan, read_data
from holdout.experiments.plugins import Plugins
from holdout.experiments.rule_trial import try_rules
from holdout.experiments.runner import Progress
from holdout.heterogeneity import as_fields
from holdout.results import read_run
from holdout.sweeps.curve_keys import THREADS, code_of, content_of, curve_key, versions_of
from holdout.sweeps.curve_store import CurveStore

TELL_SECONDS = 0.5


class CurveWorker:
    """Runs curves and reports."""

    def __init__(self, reports: int) -> None:
        self._reports = reports
        self._parent = os.getppid()
        self._asked = False
        self._busy = False
        self._told = 0.0
        self._data: tuple[str, Dataset, str] | None = None

    def stop(self, number: int, frame: FrameType | None) -> None:
        """End after this round; at once if there is none."""
        del number, frame
        self._asked = True
        if not self._busy:
            sys.exit(0)

    def report(self, **values: Any) -> None:
        """Tell whoever started this process."""
        content = (json.dumps(values) + "\n").encode()
        try:
            while content:
                content = content[os.write(self._reports, content) :]
        except BrokenPipeError:
            self._asked = True

    def run(self, command: Mapping[str, Any]) -> None:
        """Run a curve to its end, to the next round if asked to stop, or until it fails."""
        key = str(command["key"])
        self._busy = True
        try:
            store = CurveStore(Path(command["store"]))
            with store.lock(key, self._check):
                # Another sweep may have run it meanwhile.
                if store.read(key) is None:
                    self._run_curve(store, key, command["config"])
            self.report(done=key)
        except KeyboardInterrupt:
            self.report(stopped=key)
        except WriteError as error:
            self.report(failed=key, message=str(error), fatal=True)
        except UserError as error:
            told = getattr(error, "traceback", None)
            self.report(failed=key, message=str(error), traceback=told)
        except Exception as error:  # noqa: BLE001 - a bug must not end the other curves.
            message = f"{type(error).__name__}: {error}"
            self.report(failed=key, message=message, traceback=traceback.format_exc())
        finally:
            self._busy = False

    def _run_curve(self, store: CurveStore, key: str, config: Mapping[str, Any]) -> None:
        plan = make_plan(config, load_data=self._load)
        self._refuse_changes(plan, key, config)
        path = store.work_of(key)
        with device.using(plan.config.experiment.device):
            try_rules(plan)
            try:
                run_apart(plan, 0, path, self._watch)
            except WriteError:
                raise
            except RunFolderError:
                # What an earlier process left there cannot be gone on with.
                shutil.rmtree(path, ignore_errors=True)
                run_apart(plan, 0, path, self._watch)
        rows = read_run(path).rows
        about = {
            "config": plan.config.as_dict(),
            **as_fields(rows),
            **judges_fields(plan.config, plan.dataset),
        }
        curve = store.write(key, rows, about)
        store.drop_work(key)
        self.report(seconds=curve.seconds)

    def _refuse_changes(self, plan: ExperimentPlan, key: str, config: Mapping[str, Any]) -> None:
        assert self._data is not None  # noqa: S101
        now = curve_key(
            config,
            data=self._data[2],
            code=code_of(plan),
            versions=versions_of(plan.config),
        )
        if now != key:
            raise UserError(
                "custom code or data has changed since the sweep was planned; resume it to run "
                "what is there now"
            )

    def _load(self, config: Config, plugins: Plugins) -> Dataset:
        data = config.data
        name = str((data.name, data.path, data.normalise, config.training.loss))
        if self._data is None or self._data[0] != name:
            self._data = None  # Before the next one is loaded, since both may not fit.
            dataset = read_data(config, plugins)
            self._data = name, dataset, content_of(dataset)
        return self._data[1]

    def _watch(self, progress: Progress) -> None:
        for failure in progress.record.custom_errors:
            # A cell of a table has no room for doubts: a curve with errors in it is none.
            raise PluginError(str(failure), failure.traceback)
        now = time.monotonic()
        if now - self._told > TELL_SECONDS:
            self._told = now
            self.report(round=progress.rounds_done, rounds=progress.rounds_total)
        self._check()

    def _check(self) -> None:
        if self._asked or os.getppid() != self._parent:
            raise KeyboardInterrupt


def main() -> None:
    """Run what standard input asks for, until it ends."""
    commands = os.fdopen(os.dup(0), "r", encoding="utf-8")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    worker = CurveWorker(int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, worker.stop)
    torch.set_num_threads(THREADS)
    for line in commands:
        worker.run(json.loads(line))


if __name__ == "__main__":
    main()
