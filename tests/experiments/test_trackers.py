"""Who is told of a run: watchers of the caller, and the real packages, read by their readers."""

import itertools
import json
import math
import os
import struct
import time
from types import SimpleNamespace

import pytest
from tests import tiny

from holdout import results
from holdout.errors import ConfigError, UserError
from holdout.experiments import runner, trackers
from holdout.experiments.parallel import Job, run_together
from holdout.experiments.plan import make_plan
from holdout.experiments.runner import run
from holdout.experiments.trackers.mlflow_tracker import few_attempts
from holdout.experiments.trackers.numbers import NUMBERS
from holdout.experiments.watchers import FAILURES_MAX, GuardedTracker


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(runner, "write_report", lambda folder: folder / "report.html")
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return tiny.write_data(tmp_path_factory.mktemp("data"))


def config(data, rounds=4, **track):
    values = tiny.values(
        data, experiment={"rounds": rounds, "seeds": [0]}, attack={"name": "bomb", "scale": 2.0}
    )
    return {**values, "track": track}


def expected(result):
    """{curve: {number: [(step, value)]}}: what a reader must find, from the rows alone."""
    found = {}
    for row in result.rounds:
        curve = found.setdefault(f"{row['rule']}-{row['attack']}-seed-{row['seed']}", {})
        for name, value in row.get("initial", {}).items():
            curve.setdefault(name, []).append((0, value))
        for name in NUMBERS:
            if row.get(name) is not None and math.isfinite(row[name]):
                curve.setdefault(name, []).append((row["round"], row[name]))
    return found


def same(found, result):
    wanted = expected(result)
    assert found.keys() == wanted.keys()
    for curve, numbers in wanted.items():
        assert found[curve].keys() == numbers.keys()
        for name, values in numbers.items():
            steps, read = zip(*found[curve][name], strict=True)
            assert steps == tuple(step for step, _ in values), (curve, name)
            assert read == pytest.approx([value for _, value in values], rel=1e-6)


def stop_after(count, error=KeyboardInterrupt):
    calls = []

    def watch(progress):
        calls.append(progress)
        if len(calls) == count:
            raise error

    return watch


# --- Watchers of the caller ---


class Diary:
    def __init__(self):
        self.told = []

    def start(self, config):
        self.told.append(config.experiment.rounds)

    def round(self, progress):
        self.told.append(progress.record.round)

    def finish(self, result):
        self.told.append(result)


def test_an_object_is_told_of_the_start_each_round_and_the_result(data):
    diary = Diary()
    result = run(config(data, rounds=2), watch=diary)
    assert diary.told == [2, *[1, 2] * 3, result]


def test_an_object_needs_only_some_of_the_methods(data):
    ends = []
    run(config(data, rounds=1), watch=SimpleNamespace(finish=ends.append))
    assert [end.config.experiment.rounds for end in ends] == [1]


def test_who_is_told_of_a_run_that_stops_early_is_told_so(data, tmp_path):
    diary = Diary()
    diary.round = stop_after(2)
    with pytest.raises(KeyboardInterrupt):
        run(config(data), watch=diary, out=tmp_path / "run")
    assert diary.told == [4, None]
    run(config(data), out=tmp_path / "run", resume=True, watch=diary)


def test_what_cannot_watch_is_refused_before_any_work(tmp_path):
    with pytest.raises(UserError, match="watch must be a function of a Progress, or have some"):
        run({"data": {"name": "no such"}}, watch=3, out=tmp_path / "run")


# --- Trackers that fail ---


def progress_of(number):
    return SimpleNamespace(record=SimpleNamespace(round=number, rule="mean", seed=0))


def test_a_tracker_that_fails_now_and_then_is_reported_once_and_its_losses_counted():
    def fail(progress):
        if progress.record.round % 2:
            raise OSError("no route\nto host")

    told = []
    guarded = GuardedTracker("x", SimpleNamespace(round=fail, finish=lambda _: None), told.append)
    for number in range(1, 8):
        guarded.round(progress_of(number))
    assert told == [
        "track.x failed in round 1 of mean, seed 0; the run goes on: OSError: no route to host"
    ]
    guarded.finish(None)
    assert told[1:] == [
        "track.x missed 4 rounds; first failure: round 1 of mean, seed 0, OSError: no route to host"
    ]


def test_a_tracker_that_always_fails_is_soon_left_alone():
    asked = []

    def fail(progress):
        asked.append(progress)
        raise OSError

    told = []
    guarded = GuardedTracker("x", SimpleNamespace(round=fail, finish=fail), told.append)
    for number in range(1, 100):
        guarded.round(progress_of(number))
    assert len(asked) == FAILURES_MAX
    guarded.finish(None)
    assert "missed 99 rounds" in told[-1]
    assert len(told) == 2


def test_an_interruption_inside_a_tracker_is_no_failure():
    guarded = GuardedTracker("x", SimpleNamespace(round=stop_after(1)), pytest.fail)
    with pytest.raises(KeyboardInterrupt):
        guarded.round(progress_of(1))


def test_a_missing_package_is_told_before_the_data_is_looked_for(tmp_path, monkeypatch):
    monkeypatch.setattr(trackers.importlib.util, "find_spec", lambda _: None)
    values = config(tmp_path / "no such data", tensorboard=True, mlflow="x", wandb="offline")
    with pytest.raises(ConfigError) as caught:
        run(values, out=tmp_path / "run")
    assert caught.value.problems == (
        'track.tensorboard = True: needs a package that is not installed: pip install "holdout-sgd['
        'tensorboard]"',
        "track.mlflow = 'x': needs a package that is not installed: pip install "
        '"holdout-sgd[mlflow]"',
        "track.wandb = 'offline': needs a package that is not installed: pip install "
        '"holdout-sgd[wandb]"',
    )
    assert not (tmp_path / "run").exists()


# --- TensorBoard ---


def read_events(folder):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    found = {}
    for curve in sorted(folder.iterdir()):
        events = accumulator.EventAccumulator(str(curve), size_guidance={"scalars": 0})
        events.Reload()
        found[curve.name] = {
            tag: [(event.step, event.value) for event in events.Scalars(tag)]
            for tag in events.Tags()["scalars"]
        }
    return found


@pytest.fixture
def tensorboard(monkeypatch):
    """TensorBoard, which reads files in the order of the second in which they were begun.

    Within one second it takes the tenth for older than the ninth, so here each begins in its own.
    """
    files = pytest.importorskip("tensorboard.summary.writer.event_file_writer")
    seconds = itertools.count(int(time.time()))
    monkeypatch.setattr(files, "time", SimpleNamespace(time=lambda: next(seconds)))


@pytest.mark.usefixtures("tensorboard")
def test_tensorboard_reads_every_number_of_every_curve(data, tmp_path):
    result = run(config(data, tensorboard=True), out=tmp_path / "run")
    same(read_events(tmp_path / "run" / "tensorboard"), result)
    plain = run(config(data), out=tmp_path / "plain")
    assert tiny.rounds(tmp_path / "run") == tiny.rounds(tmp_path / "plain")
    assert (result.notes, plain.notes) == ([], [])
    # In memory there is no run folder, so the files need a place of their own.
    with pytest.raises(UserError, match="puts its files into the run folder, and there is none"):
        run(config(data, tensorboard=True))
    in_memory = run(config(data, tensorboard=str(tmp_path / "own")))
    same(read_events(tmp_path / "own"), in_memory)


@pytest.mark.usefixtures("tensorboard")
@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_rounds_done_again_after_a_crash_are_read_once(data, tmp_path, error):
    values = config(data, tensorboard=True)
    with pytest.raises(error):
        run(values, out=tmp_path / "run", watch=stop_after(7, error))
    result = run(values, out=tmp_path / "run", resume=True)
    same(read_events(tmp_path / "run" / "tensorboard"), result)
    longer = run(config(data, rounds=5, tensorboard=True), out=tmp_path / "run", resume=True)
    same(read_events(tmp_path / "run" / "tensorboard"), longer)


@pytest.mark.usefixtures("tensorboard")
def test_curves_that_run_at_once_are_tracked_too(data, tmp_path):
    plan = make_plan(config(data, tensorboard=True))
    (result,) = run_together([Job(plan, tmp_path / "run")])
    same(read_events(tmp_path / "run" / "tensorboard"), result)


@pytest.mark.usefixtures("tensorboard")
def test_a_tracker_that_cannot_write_loses_no_round_of_the_run(data, tmp_path):
    taken = tmp_path / "taken"
    taken.write_text("not a folder")
    said = []
    values = config(data, tensorboard=str(taken))
    result = run(values, out=tmp_path / "run", say=said.append)
    run(config(data), out=tmp_path / "plain")
    assert tiny.rounds(tmp_path / "run") == tiny.rounds(tmp_path / "plain")
    first, last = said
    assert result.notes == said
    assert first.startswith("track.tensorboard failed in round 1 of mean, seed 0; the run goes on:")
    assert last.startswith("track.tensorboard missed 12 rounds; first failure: round 1 of mean")


@pytest.mark.usefixtures("tensorboard")
def test_where_a_run_is_tracked_may_change_when_it_goes_on(data, tmp_path):
    folder = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        run(config(data), out=folder, watch=stop_after(6))
    run(config(data, tensorboard=True), out=folder, resume=True)
    assert results.read_config(folder)["track"]["tensorboard"] is True
    found = read_events(folder / "tensorboard")
    assert [step for step, _ in found["mean-bomb-seed-0"]["seconds"]] == [3, 4]
    assert "mean-none-seed-0" not in found
    whole = run(config(data), out=tmp_path / "whole")
    assert tiny.rounds(folder) == tiny.rounds(whole.folder)
    models = [sorted((f / "model").iterdir()) for f in (folder, whole.folder)]
    assert [p.read_bytes() for p in models[0]] == [p.read_bytes() for p in models[1]]


# --- MLflow ---


@pytest.fixture(scope="module")
def mlflow_uri(tmp_path_factory):
    pytest.importorskip("mlflow")
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow') / 'mlflow.db'}"


def read_mlflow(uri, name):
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    found = client.get_experiment_by_name(name)
    runs = client.search_runs([found.experiment_id])
    numbers = {
        run.info.run_name: {
            name: sorted(
                (m.step, m.value) for m in client.get_metric_history(run.info.run_id, name)
            )
            for name in run.data.metrics
        }
        for run in runs
    }
    return runs, numbers


# MLflow's database layer uses what SQLAlchemy is about to drop.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_mlflow_reads_every_number_and_a_curve_goes_on_in_its_run(data, tmp_path, mlflow_uri):
    values = config(data, mlflow=mlflow_uri)
    values["experiment"]["name"] = "goes-on"
    with pytest.raises(RuntimeError):
        run(values, out=tmp_path / "run", watch=stop_after(7, RuntimeError))
    runs, _ = read_mlflow(mlflow_uri, "goes-on")
    assert sorted(r.info.status for r in runs) == ["FINISHED", "KILLED"]
    result = run(values, out=tmp_path / "run", resume=True)
    assert result.notes == []
    runs, numbers = read_mlflow(mlflow_uri, "goes-on")
    assert {r.info.status for r in runs} == {"FINISHED"}
    assert len(runs) == 3
    # How long a round took that was done again is as it was told first.
    for found in numbers.values():
        assert [step for step, _ in found.pop("seconds")] == [1, 2, 3, 4]
    for row in result.rounds:
        row["seconds"] = None
    same(numbers, result)
    parameters = runs[0].data.params
    assert (parameters["federation.workers"], parameters["attack.name"]) == ("10", "bomb")
    assert {r.data.tags["holdout.rule"] for r in runs} == {"mean", "holdout"}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_run_begun_anew_in_the_same_folder_is_another_mlflow_run(data, tmp_path, mlflow_uri):
    values = config(data, rounds=1, mlflow=mlflow_uri)
    values["experiment"].update(name="anew", rules=["mean"], baseline=False)
    for place in ("moved", "again"):
        run(values, out=tmp_path / "run")
        (tmp_path / "run").rename(tmp_path / place)
    runs, _ = read_mlflow(mlflow_uri, "anew")
    assert len(runs) == 2


def test_a_server_that_does_not_answer_at_the_start_is_not_asked_for_minutes(monkeypatch):
    variables = pytest.importorskip("mlflow.environment_variables")
    setting = variables.MLFLOW_HTTP_REQUEST_MAX_RETRIES
    monkeypatch.delenv(setting.name, raising=False)
    usual = setting.get()
    with few_attempts():
        assert setting.get() == 2 < usual
    assert setting.get() == usual
    monkeypatch.setenv(setting.name, "5")
    with few_attempts():
        assert setting.get() == 5


def test_a_tracker_that_cannot_start_ends_the_run_before_it_begins(data, tmp_path):
    pytest.importorskip("mlflow")
    with pytest.raises(UserError, match=r"track\.mlflow cannot start: .*nonsense"):
        run(config(data, mlflow="nonsense://x"), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


# --- Weights & Biases ---

BLOCK, HEADER, MAGIC = 32768, 7, 7


def read_wandb_file(path):
    """The records of a .wandb file: a log in LevelDB's format, after seven bytes of its own."""
    from wandb.proto import wandb_internal_pb2

    content, place, parts = path.read_bytes(), MAGIC, b""
    while place + HEADER <= len(content):
        if BLOCK - place % BLOCK < HEADER:
            place += BLOCK - place % BLOCK
            continue
        _, size, kind = struct.unpack_from("<IHB", content, place)
        parts += content[place + HEADER : place + HEADER + size]
        place += HEADER + size
        if kind in (1, 4):  # Whole, or the last part.
            record = wandb_internal_pb2.Record()
            record.ParseFromString(parts)
            yield record
            parts = b""


def read_wandb(folder):
    found, heads = {}, []
    for path in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
        records = list(read_wandb_file(path))
        (head,) = [r.run for r in records if r.WhichOneof("record_type") == "run"]
        heads.append(head)
        numbers = found.setdefault(head.display_name, {})
        for record in records:
            if record.WhichOneof("record_type") == "history":
                items = {
                    item.key or "/".join(item.nested_key): json.loads(item.value_json)
                    for item in record.history.item
                }
                for name in items.keys() & set(NUMBERS):
                    numbers.setdefault(name, []).append((items["_step"], items[name]))
    return found, heads


def test_wandb_holds_every_number_offline(data, tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    values = config(data, wandb="offline")
    values["experiment"]["rules"] = ["holdout"]
    result = run(values, out=tmp_path / "run")
    assert result.notes == []
    found, heads = read_wandb(tmp_path / "run")
    same(found, result)
    assert {(head.project, head.run_group) for head in heads} == {("holdout", "tiny")}
    config_keys = {item.key for item in heads[0].config.update}
    assert {"federation", "attack", "curve"} <= config_keys
