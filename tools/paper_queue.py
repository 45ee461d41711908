"""Run the experiments behind docs/results, curve by curve; stop and continue at any time.

Usage: python tools/paper_queue.py --data DIR --runs DIR [NAME...]
           [--rules RULE...] [--seeds 0 1 2] [--until ROUND]

The folder of `--data` holds `mnist` and `cifar10`. Without names the whole queue runs, with its own
seeds. What is done is skipped, what was interrupted continues from its checkpoint. Several queues
may run at once on the same folder: each takes a curve that no other has.
"""

import argparse
import json
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from paper_experiments import EXPERIMENTS, Step, queue, steps

from holdout.config import parse
from holdout.data.datasets import load
from holdout.errors import RunFolderError
from holdout.experiments.plugins import Plugins
from holdout.experiments.runner import Progress, environment, run
from holdout.results import CONFIG, ROUNDS


class _Paused(Exception):  # noqa: N818 - Not an error: the step is done.
    """A curve has reached the round that its step asks for."""


def main() -> int:
    """Run the steps that are left; return 1 if a curve could not be run, 130 if stopped."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", choices=[[], *EXPERIMENTS], metavar="NAME")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--rules", nargs="+")
    parser.add_argument("--seeds", type=int, nargs="+")
    parser.add_argument("--until", type=int)
    given = parser.parse_args()
    if not given.names and (given.seeds or given.until):
        parser.error("--seeds and --until need names of experiments")
    chosen: Iterable[Step] = queue()
    if given.names:
        chosen = steps(given.names, seeds=given.seeds or [0, 1, 2], until=given.until)
    if given.rules:
        chosen = (step for step in chosen if step.rule in given.rules)
    try:
        return 1 if work(chosen, data=given.data, runs=given.runs) else 0
    except KeyboardInterrupt:
        _say("stopped; the same command continues from here")
        return 130


def work(chosen: Iterable[Step], *, data: Path, runs: Path) -> list[str]:
    """Run each curve as far as its step says; return what could not be run, and why."""
    sets: dict[str, Plugins] = {}
    failures = []
    for step in chosen:
        folder = step.folder(runs)
        if _is_done(step, folder):
            continue
        values = step.experiment.values(rule=step.rule, seed=step.seed, data=data)
        name = values["data"]["name"]
        if name not in sets:
            sets[name] = Plugins(data=load(name, path=data / name, normalise=False))
        try:
            accuracy = _go_on(step, folder, values, sets[name])
        except RunFolderError as error:
            if "in use" not in str(error):
                failures.append(f"{folder}: {error}")
                _say(failures[-1])
            continue
        _say(f"{step.experiment.name} {step.rule} seed {step.seed}: {accuracy}")
    return failures


def _go_on(step: Step, folder: Path, values: dict[str, Any], own: Plugins) -> str:
    """Run a curve from where it is; return its last accuracy."""
    last = "no accuracy"

    def watch(progress: Progress) -> None:
        nonlocal last
        record = progress.record
        if record.accuracy is not None:
            last = f"{record.accuracy:.4f} after round {record.round}"
            # Only in an evaluated round, so that the checkpoint holds it.
            if step.until is not None and step.until <= record.round < progress.rounds_total:
                raise _Paused

    begun = (folder / CONFIG).exists()
    _note_environment(folder, values)
    with suppress(_Paused):
        run(values, out=folder, resume=begun, plugins=own, watch=watch)
    return last


def environment_file(folder: Path) -> Path:
    """The file beside a run folder with the versions it was run with, one environment a line."""
    return folder.parent / f"{folder.name}.environment.jsonl"


def _note_environment(folder: Path, values: dict[str, Any]) -> None:
    file = environment_file(folder)
    file.parent.mkdir(parents=True, exist_ok=True)
    line = json.dumps(environment(parse(values).checked())) + "\n"
    known = file.read_text("utf-8") if file.exists() else ""
    if line not in known:
        file.write_text(known + line, encoding="utf-8")


def _is_done(step: Step, folder: Path) -> bool:
    lines = read_lines(folder)
    if not lines:
        return False
    last = json.loads(lines[-1])
    planned = step.experiment.rounds
    wanted = planned if step.until is None else min(step.until, planned)
    return bool(last["round"] >= wanted or last["outcome"] == "diverged")


def read_lines(folder: Path) -> list[str]:
    """The complete lines of a curve's results; empty if it has not begun."""
    try:
        text = (folder / ROUNDS).read_text("utf-8")
    except FileNotFoundError:
        return []
    return text[: text.rfind("\n") + 1].splitlines()


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
