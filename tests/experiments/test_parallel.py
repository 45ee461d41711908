"""Curves of several experiments at once: the same folders as one curve after the other."""

import json
import os
import signal
import sys
import threading

import pytest
from tests import tiny

from holdout import interrupts, results
from holdout.errors import PluginError, RunFolderError
from holdout.experiments import runner
from holdout.experiments.parallel import Job, run_together
from holdout.experiments.plan import make_plan
from holdout.experiments.plugins import Plugins
from holdout.experiments.runner import run

NAMES = ("one", "other")


@pytest.fixture(autouse=True)
def _no_report(monkeypatch):
    """The picture and the page take longer than the run; so does waiting for the disk."""
    monkeypatch.setattr(runner, "write_report", lambda folder: folder / "report.html")
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return tiny.write_data(tmp_path_factory.mktemp("data"))


def settings(data, name, threads):
    rules = {"one": ["mean", "holdout"], "other": ["trimmed-mean", "holdout-paper"]}[name]
    return tiny.values(data, experiment={"name": name, "rules": rules, "threads": threads})


def jobs(data, out, *, threads=3, resume=False, watch=lambda: None, plugins=None):
    return [
        Job(
            make_plan(settings(data, name, threads), plugins),
            out / name,
            resume=resume,
            watch=watch,
        )
        for name in NAMES
    ]


def stop_after(count, error):
    """Watches of all curves, of which the one that is called then raises."""
    calls = []

    def watch(progress):
        calls.append(progress)
        if len(calls) == count:
            raise error

    return lambda: watch


def assert_same(out, whole):
    for name in NAMES:
        assert tiny.rounds(out / name) == tiny.rounds(whole / name)
        # No trace of how many curves there were at once, or of interruptions.
        found, expected = (sorted(tiny.contents(folder / name)) for folder in (out, whole))
        assert found == expected
        summaries = [json.loads((f / name / "summary.json").read_text()) for f in (out, whole)]
        for summary in summaries:
            assert summary["environment"]["threads"] == 1
            del summary["config"]["experiment"]["threads"]
            for curve in summary["curves"]:
                del curve["seconds"]
        assert summaries[0] == summaries[1]


@pytest.fixture
def whole(data, tmp_path):
    """One curve after the other."""
    for name in NAMES:
        run(settings(data, name, 1), out=tmp_path / "whole" / name)
    return tmp_path / "whole"


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_folders_are_those_of_one_curve_after_the_other(threads, data, whole, tmp_path):
    found = run_together(jobs(data, tmp_path / "out", threads=threads))
    assert_same(tmp_path / "out", whole)
    assert [result.folder for result in found] == [tmp_path / "out" / name for name in NAMES]
    assert [len(result.rounds) for result in found] == [
        len((whole / name / "results.jsonl").read_text().splitlines()) for name in NAMES
    ]


@pytest.mark.parametrize("count", [1, 2, 5, 9, 14, 20])
def test_after_an_interruption_it_goes_on_to_the_same_folders(count, data, whole, tmp_path):
    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        run_together(jobs(data, out, watch=stop_after(count, KeyboardInterrupt)))
    told = []
    run_together(jobs(data, out, resume=True, watch=lambda: told.append))
    assert_same(out, whole)
    # What was done before the interruption is not done again.
    total = sum(len((whole / n / "results.jsonl").read_text().splitlines()) for n in NAMES)
    assert len(told) <= total - count


@pytest.fixture
def _as_in_the_command(monkeypatch):
    """Ctrl-C as the command takes it: the first one stops, the others change nothing."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    monkeypatch.setattr(interrupts, "_asked", False)
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    interrupts.take_over()
    yield
    signal.signal(signal.SIGINT, before)


def storm_after(count):
    """Watches of all curves, after so many calls of which many a Ctrl-C follows; when it ended."""
    calls, ended = [], threading.Event()

    def storm():
        for _ in range(100):
            os.kill(os.getpid(), signal.SIGINT)
            threading.Event().wait(0.0005)  # Or several are taken for one.
        ended.set()

    def watch(progress):
        calls.append(progress)
        if len(calls) == count:
            threading.Thread(target=storm).start()

    return lambda: watch, ended


@pytest.mark.usefixtures("_as_in_the_command")
@pytest.mark.parametrize("count", [1, 6])
def test_many_a_ctrl_c_while_curves_run_at_once_loses_nothing(count, data, whole, tmp_path):
    out = tmp_path / "out"
    watch, ended = storm_after(count)
    with pytest.raises(KeyboardInterrupt):
        run_together(jobs(data, out, watch=watch))
    assert ended.wait(60)
    assert interrupts.was_asked()
    with pytest.raises(KeyboardInterrupt):
        interrupts.raise_if_asked()
    run_together(jobs(data, out, resume=True))
    assert_same(out, whole)


def test_a_crash_costs_no_more_than_what_no_checkpoint_holds(data, whole, tmp_path):
    out = tmp_path / "out"
    with pytest.raises(ZeroDivisionError):
        run_together(jobs(data, out, watch=stop_after(7, ZeroDivisionError)))
    # Another crash, in the middle of a curve's first steps.
    begun = out / NAMES[1] / "checkpoint" / "curve-0"
    if begun.exists():
        (begun / "config.toml").unlink()
    run_together(jobs(data, out, resume=True))
    assert_same(out, whole)


def test_what_one_curve_after_the_other_began_goes_on_together(data, whole, tmp_path):
    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        run(settings(data, "one", 3), out=out / "one", watch=stop_after(5, KeyboardInterrupt)())
    plans = {name: make_plan(settings(data, name, 3)) for name in NAMES}
    run_together([Job(plans[n], out / n, resume=(out / n).exists()) for n in NAMES])
    assert_same(out, whole)


def test_progress_counts_the_rounds_of_all(data, tmp_path):
    told = []
    run_together(jobs(data, tmp_path / "out", watch=lambda: told.append))
    done = [progress.rounds_done for progress in told]
    assert done == sorted(done)
    assert {progress.rounds_total for progress in told} == {3 * (6 + 6)}


def test_curves_really_run_at_once(data, tmp_path):
    both = threading.Barrier(2, timeout=60)

    class Meeting:
        """A worker who waits, once, for one of another curve."""

        def __init__(self, worker):
            self._worker, self.vote = worker, worker.vote

        def propose(self, weights, *, round_number, learning_rate):
            if round_number == 1 and not met.is_set():
                both.wait()
                met.set()
            return self._worker.propose(
                weights, round_number=round_number, learning_rate=learning_rate
            )

    met = threading.Event()
    values = tiny.values(data, experiment={"rules": ["holdout"], "threads": 2, "baseline": False})
    run_together([Job(make_plan(values, Plugins(worker=Meeting)), tmp_path / "out")])
    assert met.is_set()
    assert not both.broken


def test_a_mistake_of_own_code_is_told_and_not_the_interruption_of_the_others(data, tmp_path):
    def rule(updates, *, f):
        raise ValueError("no such thing")

    values = tiny.values(
        data, experiment={"rules": ["mean", "mine", "holdout"], "rounds": 50, "threads": 3}
    )
    plan = make_plan(values, Plugins(rules={"mine": rule}))
    with pytest.raises(PluginError, match="no such thing"):
        run_together([Job(plan, tmp_path / "out")])


def test_a_curves_folder_that_holds_another_curve_is_refused(data, tmp_path):
    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        run_together(jobs(data, out, threads=1, watch=stop_after(8, KeyboardInterrupt)))
    folders = sorted(out.glob("*/checkpoint/curve-*"))
    done = [f for f in folders if (f / results.CHECKPOINT).exists()]
    assert done
    done[0].rename(done[0].with_name("curve-0" if done[0].name != "curve-0" else "curve-1"))
    with pytest.raises(RunFolderError, match="curve"):
        run_together(jobs(data, out, resume=True))


def test_a_folder_in_use_is_left_alone(data, tmp_path):
    out = tmp_path / "out"
    run_together(jobs(data, out))
    before = tiny.contents(out)
    with pytest.raises(RunFolderError, match="not empty"):
        run_together(jobs(data, out))
    assert tiny.contents(out) == before
