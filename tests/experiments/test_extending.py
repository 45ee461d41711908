"""A run that is there goes on: more rounds, rules or seeds, nothing of what is there changed.

The oracle is always the run that was asked for all of it at once.
"""

import json
import os
import shutil

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests import tiny

import holdout
from holdout import results
from holdout.checkpoint_files import ENDS, end_path, read_end
from holdout.commands import run_command
from holdout.curve_rows import CurveKey
from holdout.errors import RunFolderError
from holdout.experiments import runner
from holdout.experiments.plugins import Plugins
from holdout.experiments.runner import run

SHORT = {"rules": ["mean"], "seeds": [0], "rounds": 2}
FULL = {"rules": ["mean", "holdout"], "seeds": [0, 10], "rounds": 4, "save_every": 2}


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(runner, "write_report", lambda folder: folder / "report.html")
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return tiny.write_data(tmp_path_factory.mktemp("data"))


def config(data, **experiment):
    """Every state that can be lost: velocity, last honest updates, a vote's memory, momenta."""
    return tiny.values(
        data,
        experiment={**FULL, **experiment},
        training={"worker_momentum": 0.5},
        attack={"scale": 2.0},
    )


@pytest.fixture(scope="module")
def full(data, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "write_report", lambda folder: folder / "report.html")
        return run(config(data), out=tmp_path_factory.mktemp("full") / "run")


def lines(folder):
    return [line for line in tiny.rounds(folder).splitlines() if line]


def left(folder):
    """All files but the lines, without times; the end states by what they hold."""
    files = {
        name: content
        for name, content in tiny.contents(folder).items()
        if content is not None and name not in ("results.jsonl", ".lock")
    }
    summary = json.loads(files.pop("summary.json"))
    for curve in summary["curves"]:
        del curve["seconds"]
    # The last place differs with the order of work.
    del files[str(results.CHECKPOINT)]
    return (
        {name: content for name, content in files.items() if "ends" not in name},
        summary,
        {
            name: sorted(read_end(folder, *key_and_round(name)).arrays)
            for name in files
            if "ends" in name
        },
    )


def key_and_round(name):
    stem = name.rpartition("/")[2].removesuffix(".npz")
    rest, _, number = stem.rpartition("-round-")
    rest, _, seed = rest.rpartition("-seed-")
    rule, _, attack = rest.partition("-")
    return CurveKey(rule, attack, int(seed)), int(number)


def assert_equals_full(folder, full):
    assert sorted(lines(folder)) == sorted(lines(full.folder))
    assert left(folder) == left(full.folder)
    rows = [
        [{**row, "seconds": 0} for row in holdout.read_run(path).rows]
        for path in (folder, full.folder)
    ]
    assert rows[0] == rows[1]


def test_the_full_run_has_all_that_makes_extending_hard(full):
    arrays = read_end(full.folder, CurveKey("holdout", "bomb", 0), 4).arrays
    assert {"weights", "velocity", "last_honest", "rule/direction"} <= set(arrays)
    assert any(name.startswith("worker/") for name in arrays)
    assert {curve["outcome"] for curve in full.summary["curves"]} == {"completed"}


@settings(
    max_examples=6,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    derandomize=True,
)
@given(
    rounds=st.lists(st.sampled_from([2, 4]), min_size=1, max_size=2).map(sorted),
    rules=st.permutations(["mean", "holdout"]),
    seeds=st.permutations([0, 10]),
    stop=st.integers(0, 9),
)
def test_any_way_to_the_full_run_ends_in_the_full_run(  # noqa: PLR0917
    data, full, tmp_path, rounds, rules, seeds, stop
):
    """Some of it first, perhaps interrupted; then more; then all."""
    folder = tmp_path / "run"
    shutil.rmtree(folder, ignore_errors=True)
    steps = [{"rules": rules[:1], "seeds": seeds[:1], "rounds": rounds[0]}]
    steps += [{"rules": rules, "seeds": seeds[:1], "rounds": rounds[-1]}]
    told = []

    def watch(progress):
        told.append(progress)
        if len(told) == stop:
            raise KeyboardInterrupt

    before = b""
    for number, step in enumerate([*steps, {}]):
        try:
            result = run(config(data, **step), out=folder, resume=folder.exists(), watch=watch)
            assert result.rounds == list(holdout.read_run(folder).rows)
        except KeyboardInterrupt:
            pass
        content = (folder / "results.jsonl").read_bytes()
        assert content.startswith(before), number
        before = content
    run(config(data), out=folder, resume=True)
    assert_equals_full(folder, full)


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_extension_can_be_interrupted_after_any_round(data, full, tmp_path, error):
    run(config(data, **SHORT), out=tmp_path / "short")
    run(config(data), out=shutil.copytree(tmp_path / "short", tmp_path / "whole"), resume=True)
    for count in (1, 2, 3, 5, 9, 20):
        folder = shutil.copytree(tmp_path / "short", tmp_path / f"after-{count}")
        seen = []

        def watch(progress, seen=seen, count=count):
            seen.append(progress.rounds_done)
            if len(seen) == count:
                raise error

        with pytest.raises(error):
            run(config(data), out=folder, resume=True, watch=watch)
        assert seen == [*range(5, 5 + count)]
        run(config(data), out=folder, resume=True)
        assert_equals_full(folder, full)
        # Also the order of the lines is that of the extension that was not interrupted.
        assert lines(folder) == lines(tmp_path / "whole")


@pytest.mark.parametrize("written", [True, False])
def test_a_crash_inside_any_write_of_an_extension_loses_nothing(
    data, tmp_path, monkeypatch, written
):
    """Just before a file is there, or just after."""
    run(config(data, rules=["mean"], seeds=[0], rounds=2), out=tmp_path / "short")
    more = config(data, rules=["mean"], seeds=[0])
    run(more, out=shutil.copytree(tmp_path / "short", tmp_path / "whole"), resume=True)
    real, writes_left = results.write_atomic, [0]

    def write(path, content):
        writes_left[0] -= 1
        if written or writes_left[0]:
            real(path, content)
        if writes_left[0] == 0:
            raise RuntimeError

    monkeypatch.setattr(results, "write_atomic", write)
    for place in range(1, 60):
        folder = shutil.copytree(tmp_path / "short", tmp_path / f"at-{place}")
        writes_left[0] = place
        try:
            run(more, out=folder, resume=True)
            break
        except RuntimeError:
            run(more, out=folder, resume=True)
        assert lines(folder) == lines(tmp_path / "whole")
        assert left(folder) == left(tmp_path / "whole")
    assert place > 10


def test_what_is_there_keeps_its_bytes_and_new_lines_follow_in_the_configs_order(data, tmp_path):
    folder = tmp_path / "run"
    run(config(data, **SHORT), out=folder)
    before = (folder / "results.jsonl").read_bytes()
    run(config(data), out=folder, resume=True)
    after = (folder / "results.jsonl").read_bytes()
    assert after.startswith(before)
    added = [json.loads(line) for line in after[len(before) :].splitlines()]
    assert [(r["rule"], r["attack"], r["seed"], r["round"]) for r in added] == [
        *[("mean", "none", 0, n) for n in (3, 4)],
        *[("mean", "bomb", 0, n) for n in (3, 4)],
        *[("holdout", "bomb", 0, n) for n in (1, 2, 3, 4)],
        *[("mean", "none", 10, n) for n in (1, 2, 3, 4)],
        *[("mean", "bomb", 10, n) for n in (1, 2, 3, 4)],
        *[("holdout", "bomb", 10, n) for n in (1, 2, 3, 4)],
    ]
    keys = [(row["seed"], row["rule"], row["attack"]) for row in holdout.read_run(folder).rows]
    assert keys == sorted(keys, key=keys.index)
    assert len(set(keys)) == 6


def test_a_round_evaluated_because_it_was_the_last_stays_evaluated(data, tmp_path):
    settings = config(data, rules=["mean"], seeds=[0], rounds=3)
    run(settings, out=tmp_path / "run")
    longer = config(data, rules=["mean"], seeds=[0], rounds=4)
    rows = run(longer, out=tmp_path / "run", resume=True).rounds
    at_once = run(longer).rounds
    for row, other in zip(rows, at_once, strict=True):
        changed = {key for key in row if row[key] != other.get(key)} - {"seconds"}
        measured = {"accuracy", "loss", "worst_class_recall", "dissimilarity", "mean_norm2"}
        assert changed == (measured if row["round"] == 3 else set())
        assert (other["accuracy"] is None) == (row["round"] in (1, 3))


def test_a_diverged_curve_stays_as_it_is(data, tmp_path):
    settings = tiny.values(data, experiment={"rules": ["mean"], "seeds": [0]})
    first = run(settings, out=tmp_path / "run")
    assert first.summary["curves"][1]["outcome"] == "diverged"
    settings["experiment"]["rounds"] = 5
    longer = run(settings, out=tmp_path / "run", resume=True)
    assert [c["rounds"] for c in longer.summary["curves"]] == [
        5,
        first.summary["curves"][1]["rounds"],
    ]


def refused(folder, values, match):
    before = tiny.contents(folder)
    with pytest.raises(RunFolderError, match=match):
        run(values, out=folder, resume=True)
    assert tiny.contents(folder) == before


@pytest.fixture
def short(data, tmp_path):
    run(config(data, **SHORT), out=tmp_path / "run")
    return tmp_path / "run"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"rounds": 1}, r"experiment\.rounds was 2, is 1; a run is resumed"),
        ({"seeds": [1]}, r"experiment\.seeds was \[0\], is \[1\];"),
        ({"rules": ["krum"]}, r"experiment\.rules was \['mean'\], is \['krum'\];"),
        ({"evaluate_every": 1}, r"experiment\.evaluate_every was 2, is 1;"),
        (
            {"save_every": 1, "rounds": 9, "baseline": False},
            r"experiment\.baseline was True, is False; experiment\.rounds was 2, is 9; "
            r"experiment\.save_every was 2, is 1; .* only rounds, rules and seeds can be added",
        ),
    ],
)
def test_whatever_else_changes_is_refused_with_all_differences(data, short, changes, said):
    refused(short, config(data, **{**SHORT, **changes}), said)


def test_without_the_state_at_its_end_a_curve_has_no_more_rounds(data, short):
    path = short / end_path(CurveKey("mean", "bomb", 0), 2)
    good = path.read_bytes()
    path.unlink()
    refused(short, config(data), r"bomb-seed-0-round-000002\.npz is missing, and with it the state")
    for place in range(0, len(good), 997):
        path.write_bytes(good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :])
        refused(short, config(data), "is damaged")
    other = short / end_path(CurveKey("mean", "none", 0), 2)
    path.write_bytes(other.read_bytes())
    refused(short, config(data), r"is of mean \(none, seed 0\), round 2")
    path.unlink()
    # Rules and seeds need no state of other curves.
    added = run(config(data, **{**SHORT, "seeds": [0, 10]}), out=short, resume=True)
    assert len(added.rounds) == 8


def test_without_a_checkpoint_nothing_can_be_added(data, short):
    (short / results.CHECKPOINT).unlink()
    refused(short, config(data), "can be resumed as it is, which begins anew, but not extended")


def test_a_run_of_an_earlier_version_takes_more_seeds(data, short, full):
    """Its checkpoint counts curves; it has neither models nor the states of ended curves."""
    shutil.rmtree(short / "model")
    shutil.rmtree(short / ENDS)
    old = results._read_checkpoint(short)
    mark = results.ResultsMark(old.meta["results_bytes"], old.meta["results_sha256"])
    folder = results.RunFolder(short)
    folder.save(results.Checkpoint({"curve": 2, "environment": old.meta["environment"]}, {}), mark)
    folder.close()
    refused(short, config(data), "is missing, and with it the state of mean")
    result = run(config(data, **{**SHORT, "seeds": [10, 0]}), out=short, resume=True)
    assert [c["seed"] for c in result.summary["curves"]] == [10, 10, 0, 0]
    assert list(result.weights) == [("mean", 10, "none"), ("mean", 10, "bomb")]


def test_custom_code_extends_too(data, tmp_path):
    def first(updates, *, f):
        return updates[0]

    plugins = Plugins(rules={"first": first})
    settings = config(data, rules=["mean"], seeds=[0])
    run(settings, out=tmp_path / "run")
    settings["experiment"]["rules"] = ["first", "mean"]
    extended = run(settings, out=tmp_path / "run", resume=True, plugins=plugins)
    at_once = run(settings, plugins=plugins)
    assert [c["rule"] for c in extended.summary["curves"]] == ["mean", "first", "mean"]
    assert [{**r, "seconds": 0} for r in extended.rounds] == [
        {**r, "seconds": 0} for r in at_once.rounds
    ]


def test_the_command_extends_a_folder_from_its_own_config(data, short, capsys):
    asked = ["run", "--out", str(short), "--resume", "--set", "experiment.rounds=3"]
    assert run_command(asked) == 0
    assert json.loads((short / "summary.json").read_text())["curves"][0]["rounds"] == 3
    assert results.read_config(short)["experiment"]["rounds"] == 3
    assert run_command([*asked[:-1], "experiment.rounds=1"]) == 2
    assert "experiment.rounds was 3, is 1" in capsys.readouterr().err
