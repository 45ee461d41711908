"""The run folder: whole files, refusals that change nothing, damage that is noticed."""

import json
import math
import multiprocessing
import os
import resource
import sys
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from tests import tiny

from holdout import checkpoint_files, results
from holdout.curve_rows import summarise
from holdout.errors import RunFolderError, WriteError
from holdout.results import Checkpoint, jsonable, read_run, to_json, write_atomic

CONFIG = {"experiment": {"name": "x", "rounds": 3}}
TOML = '[experiment]\nname = "x"\nrounds = 3\n'


@pytest.fixture(autouse=True)
def _no_waiting_for_the_disk(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: None)


ROWS = [
    {"rule": "mean", "round": 1, "accuracy": 0.5},
    {"rule": "krum", "round": 1, "accuracy": None},
]


def test_a_run_is_a_sequence_of_rows_and_prints_as_one_line():
    run = results.Run(Path("runs/x"), CONFIG, ROWS)
    assert (list(run), len(run), run[1], run[:1]) == (ROWS, 2, ROWS[1], ROWS[:1])
    assert repr(run) == "<Run 'runs/x': 2 rounds of mean, krum>"
    assert repr(results.Run(None, CONFIG, [])) == "<Run: 0 rounds>"


def test_a_run_becomes_a_data_frame_of_its_rows():
    pandas = pytest.importorskip("pandas")
    frame = results.Run(None, CONFIG, ROWS).to_pandas()
    assert isinstance(frame, pandas.DataFrame)
    assert frame["rule"].tolist() == ["mean", "krum"]
    assert list(frame.columns) == ["rule", "round", "accuracy"]


def test_any_module_called_pandas_gets_the_rows(monkeypatch):
    stand_in = SimpleNamespace(DataFrame=lambda rows: ("frame", rows))
    monkeypatch.setitem(sys.modules, "pandas", stand_in)
    assert results.Run(None, CONFIG, ROWS).to_pandas() == ("frame", ROWS)


def test_without_pandas_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ModuleNotFoundError, match="needs pandas: pip install pandas"):
        results.Run(None, CONFIG, ROWS).to_pandas()


@pytest.mark.parametrize("parts", [1, 2, 3, 4])
def test_what_a_start_cut_short_has_left_is_no_obstacle(parts, tmp_path):
    in_order = [
        (tmp_path / ".lock").touch,
        (tmp_path / "checkpoint").mkdir,
        (tmp_path / results.ROUNDS).touch,
        lambda: (tmp_path / ".config.toml.partial").write_text(TOML[:9]),
    ]
    for make in in_order[:parts]:
        make()
    with results.create(tmp_path, TOML) as run:
        run.append({"round": 1})
    assert read_run(tmp_path).config == CONFIG
    assert not (tmp_path / ".config.toml.partial").exists()


@pytest.mark.parametrize("name", ["results.jsonl", ".lock", "checkpoint/state.npz", "notes.txt"])
def test_what_holds_anything_is_refused_and_stays_as_it_is(name, tmp_path):
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / name).write_text("something")
    with pytest.raises(RunFolderError, match="not empty"), results.create(tmp_path, TOML):
        pass
    assert (tmp_path / name).read_text() == "something"
    assert not (tmp_path / results.CONFIG).exists()


@pytest.fixture
def folder(tmp_path):
    """Three lines, a checkpoint after the second."""
    path = tmp_path / "run"
    with results.create(path, TOML) as run:
        run.append({"round": 1})
        mark = run.append({"round": 2})
        run.save(Checkpoint({"round": 2}, {"weights": np.arange(5, dtype=np.float32)}), mark)
        run.append({"round": 3})
    return path


def accept(stored):
    """A check that finds nothing wrong."""


def refused(path, match, config=CONFIG, check=accept):
    before = tiny.contents(path)
    with pytest.raises(RunFolderError, match=match), results.resume(path, config, check=check):
        pytest.fail("opened")
    assert tiny.contents(path) == before


def test_a_new_folder_holds_config_results_and_a_place_for_checkpoints(tmp_path):
    with results.create(tmp_path / "a" / "b", TOML):
        pass
    assert tiny.contents(tmp_path / "a" / "b") == {
        ".lock": b"",
        "checkpoint": None,
        "config.toml": TOML.encode(),
        "results.jsonl": b"",
    }


def test_an_empty_folder_may_be_used(tmp_path):
    with results.create(tmp_path, TOML):
        pass
    assert results.read_config(tmp_path) == CONFIG


def test_lines_are_there_as_soon_as_they_are_written(tmp_path):
    with results.create(tmp_path, TOML) as run:
        mark = run.append({"loss": math.inf, "name": "ü"})
        content = (tmp_path / "results.jsonl").read_bytes()
        assert content == '{"loss": null, "name": "ü"}\n'.encode()
        assert mark.length == len(content)


def test_resuming_cuts_off_what_the_checkpoint_does_not_vouch_for(folder):
    seen = []
    with results.resume(folder, CONFIG, check=seen.append) as (run, stored):
        state = stored.checkpoint
        assert state.meta["round"] == 2
        assert state.arrays["weights"].tolist() == [0, 1, 2, 3, 4]
        assert [r["round"] for r in read_run(folder).rows] == [1, 2]
        run.append({"round": 3})
    assert seen == [stored]
    assert (stored.config, stored.rows) == (CONFIG, [{"round": 1}, {"round": 2}])
    assert [r["round"] for r in read_run(folder).rows] == [1, 2, 3]


def test_marks_go_on_after_resuming_as_if_never_stopped(folder, tmp_path):
    with results.create(tmp_path / "whole", TOML) as whole:
        marks = [whole.append({"round": number}) for number in (1, 2, 3)]
    with results.resume(folder, CONFIG, check=accept) as (run, _):
        assert run.mark() == marks[1]
        assert run.append({"round": 3}) == marks[2]


def test_without_a_checkpoint_all_is_done_again(folder):
    (folder / results.CHECKPOINT).unlink()
    with results.resume(folder, CONFIG, check=accept) as (_, stored):
        assert stored is None
        assert read_run(folder).rows == []


@pytest.mark.parametrize("name", [".hidden", "results.jsonl", "anything"])
def test_a_folder_with_anything_in_it_is_refused(tmp_path, name):
    (tmp_path / name).write_text("mine")
    before = tiny.contents(tmp_path)
    with (
        pytest.raises(RunFolderError, match=r"exists and is not empty; .* --resume"),
        results.create(tmp_path, TOML),
    ):
        pytest.fail("opened")
    assert tiny.contents(tmp_path) == before


@pytest.mark.parametrize("path", ["file", "file/below", "file/far/below"])
def test_a_path_at_or_below_a_file_is_refused(tmp_path, path):
    (tmp_path / "file").write_text("mine")
    with (
        pytest.raises(RunFolderError, match="not a folder"),
        results.create(tmp_path / path, TOML),
    ):
        pytest.fail("opened")
    assert tiny.contents(tmp_path) == {"file": b"mine"}


def test_a_dangling_link_is_refused(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(RunFolderError, match="not a folder"), results.create(tmp_path / "link", ""):
        pytest.fail("opened")


def test_a_name_that_is_too_long_is_refused(tmp_path):
    path = tmp_path / ("x" * 300)
    with pytest.raises(RunFolderError, match=r"cannot be used \(.*too long"):  # noqa: SIM117
        with results.create(path, TOML):
            pytest.fail("opened")


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="no /proc, which nobody may write")
def test_a_file_system_that_takes_no_folders_is_refused():
    with (
        pytest.raises(RunFolderError, match=r"cannot be used|not a folder"),
        results.create(Path("/proc/holdout-run"), TOML),
    ):
        pytest.fail("opened")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission_is_refused(tmp_path):
    tmp_path.chmod(0o500)
    with (
        pytest.raises(RunFolderError, match="Permission denied"),
        results.create(tmp_path / "run", TOML),
    ):
        pytest.fail("opened")


def test_an_error_inside_a_run_is_not_taken_for_one_of_the_folder(tmp_path):
    with pytest.raises(FileExistsError), results.create(tmp_path / "run", TOML):
        raise FileExistsError


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    refused(tmp_path, "is not a run folder: config.toml is missing")
    (tmp_path / "other").write_text("mine")
    refused(tmp_path, "is not a run folder")
    with pytest.raises(RunFolderError, match="not a run folder"):
        results.read_config(tmp_path / "missing")
    with pytest.raises(RunFolderError, match="cannot be read"):
        results.read_config(tmp_path / "other")


def test_another_config_is_refused_and_every_difference_named(folder):
    other = {"experiment": {"name": "x", "rounds": 4}, "vote": {"samples": 1}}
    refused(
        folder,
        r"different config: experiment\.rounds was 3, is 4; vote\.samples was 2000, is 1;",
        config=other,
    )


@pytest.mark.parametrize("content", ["experiment = 5", "", "a.b.c = 1"])
def test_a_damaged_config_is_another_config(folder, content):
    (folder / "config.toml").write_text(content)
    refused(folder, "different config")


@pytest.mark.parametrize("content", [b"\xff", b"[experiment", b"a = "])
def test_a_config_that_is_no_toml_is_refused(folder, content):
    (folder / "config.toml").write_bytes(content)
    refused(folder, r"config\.toml cannot be read")


def test_any_flipped_bit_in_the_checkpoint_is_noticed(folder):
    path = folder / results.CHECKPOINT
    good = path.read_bytes()
    for place in range(len(good)):
        bad = bytearray(good)
        bad[place] ^= 1 << place % 8
        path.write_bytes(bad)
        with pytest.raises(RunFolderError, match="is damaged"):
            results._read_checkpoint(folder)
    refused(folder, r"state\.npz is damaged \(.*\); the run cannot be resumed")
    path.write_bytes(good)
    with results.resume(folder, CONFIG, check=accept):
        pass


def test_a_checkpoint_of_any_other_length_is_noticed(folder):
    path = folder / results.CHECKPOINT
    good = path.read_bytes()
    for length in range(len(good)):
        path.write_bytes(good[:length])
        with pytest.raises(RunFolderError, match="is damaged"):
            results._read_checkpoint(folder)
    for more in (b"\0", b"more", good):
        path.write_bytes(good + more)
        refused(folder, "is damaged")


def test_a_checkpoint_is_never_unpickled(folder):
    run = results.RunFolder(folder)
    with pytest.raises(ValueError, match="allow_pickle=False"):
        run.save(Checkpoint({}, {"weights": np.array([object()])}), run.mark())
    run.close()


def test_a_checkpoint_of_another_schema_is_refused(folder, monkeypatch):
    monkeypatch.setattr(checkpoint_files, "SCHEMA", 2)
    refused(folder, "its schema is unknown")


@pytest.mark.parametrize("kept", [0, 5, 13, 25])
def test_results_shorter_than_the_checkpoint_says_are_refused(folder, kept):
    path = folder / "results.jsonl"
    path.write_bytes(path.read_bytes()[:kept])
    refused(folder, r"results\.jsonl does not match .*; the run cannot be resumed")


def test_results_that_were_changed_are_refused(folder):
    path = folder / "results.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"round": 1', b'"round": 7'))
    refused(folder, r"results\.jsonl does not match .*; the run cannot be resumed")


def test_missing_results_are_refused(folder):
    (folder / "results.jsonl").unlink()
    refused(folder, "is damaged")
    (folder / results.CHECKPOINT).unlink()
    refused(folder, r"results\.jsonl: cannot be used \(No such file")


def test_a_check_that_refuses_leaves_all_as_it_was(folder):
    def check(stored):
        raise RunFolderError("not mine")

    refused(folder, "not mine", check=check)


def hold(path, held, leave):
    with results.resume(path, CONFIG, check=accept):
        held.set()
        leave.wait(30)


def test_a_second_process_is_kept_out_until_the_first_is_gone(folder):
    context = multiprocessing.get_context("fork")
    held, leave = context.Event(), context.Event()
    process = context.Process(target=hold, args=(folder, held, leave))
    process.start()
    try:
        assert held.wait(30)
        refused(folder, "is in use by another process")
        with pytest.raises(RunFolderError, match="not empty"), results.create(folder, TOML):
            pytest.fail("opened")
        leave.set()
        process.join(30)
        assert process.exitcode == 0
    finally:
        process.kill()
        process.join()
    with results.resume(folder, CONFIG, check=accept):
        pass


def test_a_file_appears_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "summary.json"
    write_atomic(path, b"old")

    def fail(descriptor):
        raise OSError("the disk is full")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="full"):
        write_atomic(path, b"new and longer")
    assert path.read_bytes() == b"old"


@contextmanager
def no_file_longer_than(size):
    """As on a full disk, the kernel takes what fits and refuses the rest."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


LONG = "x" * 5000
WRITES = {
    "results.jsonl": lambda folder, _: folder.append({"round": 2, "note": LONG}),
    "checkpoint/state.npz": lambda folder, mark: folder.save(
        Checkpoint({"curve": 1}, {"weights": np.zeros(2000)}), mark
    ),
    "summary.json": lambda folder, _: folder.write("summary.json", LONG),
}


@pytest.mark.parametrize("name", WRITES)
def test_a_write_that_is_cut_short_names_the_file_and_loses_nothing(tmp_path, name):
    path = tmp_path / "run"
    with results.create(path, TOML) as folder:
        mark = folder.append({"round": 1})
        folder.save(Checkpoint({"curve": 0}, {}), mark)
        before = tiny.contents(path)
        told = f"^{path / name}: cannot be written .File too large.; .* resuming goes on from there"
        with no_file_longer_than(2000), pytest.raises(WriteError, match=told):
            WRITES[name](folder, mark)
        after = tiny.contents(path)
        assert after.pop("results.jsonl").startswith(before["results.jsonl"])
        assert after == {k: v for k, v in before.items() if k != "results.jsonl"}
    with results.resume(path, CONFIG, check=lambda *_: None) as (_, stored):
        assert stored.checkpoint.meta["results_bytes"] == mark.length
    assert tiny.contents(path) == before


def test_a_last_line_that_was_cut_off_is_left_out(folder):
    with (folder / "results.jsonl").open("ab") as file:
        file.write(b'{"round": 4')
    assert [r["round"] for r in read_run(folder).rows] == [1, 2, 3]


@pytest.mark.parametrize("line", [b"nonsense\n", b"[1]\n", b"\n", b"\xff\n", b"3\n"])
def test_a_line_that_is_no_object_is_named(folder, line):
    with (folder / "results.jsonl").open("ab") as file:
        file.write(line)
    with pytest.raises(RunFolderError, match=r"results\.jsonl, line 4: not a JSON object"):
        read_run(folder)


def test_what_is_not_finite_is_null_however_deep():
    value = {"a": [math.nan, (math.inf, 1.5)], "b": {"c": -math.inf}, "d": None, 3: True}
    assert jsonable(value) == {"a": [None, [None, 1.5]], "b": {"c": None}, "d": None, "3": True}
    assert json.loads(to_json(value)) == jsonable(value)


def line(rule, seed, number, accuracy, outcome="step"):
    return {
        "rule": rule,
        "attack": "alie",
        "seed": seed,
        "round": number,
        "accuracy": accuracy,
        "outcome": outcome,
        "seconds": 0.25,
    }


def test_the_summary_has_one_entry_a_curve():
    rounds = [
        line("a", 0, 1, 0.5),
        line("a", 0, 2, None, "empty-selection"),
        line("a", 0, 3, 0.25),
        line("b", 0, 1, None, "diverged"),
        line("a", 1, 1, 0.0),
    ]
    summary = summarise(rounds, config=CONFIG, environment={"torch": "2"})
    assert (summary["schema"], summary["config"]) == (1, CONFIG)
    assert summary["curves"] == [
        {
            "rule": "a",
            "attack": "alie",
            "seed": 0,
            "rounds": 3,
            "final_accuracy": 0.25,
            "best_accuracy": 0.5,
            "outcome": "completed",
            "empty_rounds": 1,
            "seconds": 0.75,
        },
        {
            "rule": "b",
            "attack": "alie",
            "seed": 0,
            "rounds": 1,
            "final_accuracy": None,
            "best_accuracy": None,
            "outcome": "diverged",
            "empty_rounds": 0,
            "seconds": 0.25,
        },
        {
            "rule": "a",
            "attack": "alie",
            "seed": 1,
            "rounds": 1,
            "final_accuracy": 0.0,
            "best_accuracy": 0.0,
            "outcome": "completed",
            "empty_rounds": 0,
            "seconds": 0.25,
        },
    ]
