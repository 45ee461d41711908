"""Whole experiments: repeatable, resumable after any interruption, safe from custom code that errs.

Interruptions come from the watcher, which is called after each round, or from inside the writing of
a file. A KeyboardInterrupt saves a checkpoint on its way out; a RuntimeError stands for a crash.
"""

import json
import os
import shutil
from itertools import pairwise

import numpy as np
import pytest
import torch
from tests import tiny
from torch import nn

from holdout import results
from holdout.config import Config, parse
from holdout.data.datasets import load
from holdout.errors import ConfigError, PluginError, RunFailed, RunFolderError, UserError
from holdout.experiments import runner
from holdout.experiments.plugins import Plugins
from holdout.experiments.runner import run
from holdout.joint_vote import GROWTH
from holdout.results import Checkpoint, ResultsMark, RunFolder
from holdout.workers import HonestWorker


class CrashError(RuntimeError):
    """The process would be gone."""


@pytest.fixture(autouse=True)
def _no_report(monkeypatch):
    """The picture and the page take longer than the run; so does waiting for the disk."""
    monkeypatch.setattr(runner, "write_report", lambda folder: folder / "report.html")
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return tiny.write_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory):
    """A run from beginning to end: two seeds of three curves, one of which diverges."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "write_report", lambda folder: folder / "report.html")
        folder = tmp_path_factory.mktemp("whole") / "run"
        return run(tiny.values(data), out=folder)


def stop_after(count, error):
    """A watcher that raises in the given call."""
    calls = []

    def watch(progress):
        calls.append(progress)
        if len(calls) == count:
            raise error

    return watch


def without_seconds(rounds):
    return [{k: v for k, v in line.items() if k != "seconds"} for line in rounds]


def same_as(whole, result):
    assert tiny.rounds(result.folder) == tiny.rounds(whole.folder)
    assert without_seconds(result.rounds) == without_seconds(whole.rounds)
    assert (result.folder / "config.toml").read_bytes() == (
        whole.folder / "config.toml"
    ).read_bytes()
    summaries = [json.loads((r.folder / "summary.json").read_text()) for r in (whole, result)]
    for summary in summaries:
        for curve in summary["curves"]:
            curve.pop("seconds")
    assert summaries[0] == summaries[1]


def test_the_tiny_run_has_all_that_makes_resuming_hard(whole):
    outcomes = {(c["rule"], c["attack"], c["seed"]): c for c in whole.summary["curves"]}
    assert list(outcomes) == [
        (rule, attack, seed)
        for seed in (0, 10)
        for rule, attack in (("mean", "none"), ("mean", "bomb"), ("holdout", "bomb"))
    ]
    assert {c["outcome"] for (rule, attack, _), c in outcomes.items() if attack == "none"} == {
        "completed"
    }
    assert outcomes["mean", "bomb", 0]["outcome"] == "diverged"
    radii = [line["radius"] for line in whole.rounds if line["rule"] == "holdout"]
    assert any(after == GROWTH * before for before, after in pairwise(radii))
    assert whole.config.training.momentum > 0


def test_the_same_config_gives_the_same_bytes(data, whole, tmp_path):
    same_as(whole, run(tiny.values(data), out=tmp_path / "again"))


def test_another_seed_gives_other_rounds(data, whole, tmp_path):
    other = run(tiny.values(data, experiment={"seeds": [7]}))
    assert without_seconds(other.rounds)[:3] != without_seconds(whole.rounds)[:3]


def test_the_config_in_the_folder_is_complete_and_reproduces_the_run(whole, tmp_path):
    stored = results.read_config(whole.folder)
    # A section for parameters of rules is there only if one has some.
    assert set(stored) == set(Config.model_fields) - {"rules"}
    for section, kind in Config.model_fields.items():
        given = getattr(whole.config, section)
        # TOML has no null: what is not set is left out.
        wanted = {key for key in kind.annotation.model_fields if getattr(given, key) is not None}
        assert wanted <= {*stored.get(section, {})}
        assert len(kind.annotation.model_fields) - len(wanted) <= 2
    same_as(whole, run(stored, out=tmp_path / "again"))


def test_a_config_object_does_as_well_as_a_mapping(data, whole):
    result = run(Config.model_validate(tiny.values(data)))
    assert without_seconds(result.rounds) == without_seconds(whole.rounds)
    assert result.folder is None


def test_order_and_company_of_rules_and_seeds_change_no_curve(data, whole):
    alone = run(tiny.values(data, experiment={"rules": ["holdout"], "seeds": [10]}))
    assert without_seconds(alone.rounds)[3:] == without_seconds(whole.rounds)[-3:]


@pytest.mark.parametrize("error", [KeyboardInterrupt, CrashError])
def test_resuming_after_any_round_equals_the_uninterrupted_run(data, whole, tmp_path, error):
    for count in range(1, len(whole.rounds) + 1):
        folder = tmp_path / f"after-{count}"
        with pytest.raises(error):
            run(tiny.values(data), out=folder, watch=stop_after(count, error))
        kept = (folder / "results.jsonl").read_text().count("\n")
        assert kept == count
        same_as(whole, run(tiny.values(data), out=folder, resume=True))


def test_a_run_interrupted_after_each_single_round_equals_the_whole(data, whole, tmp_path):
    folder = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        run(tiny.values(data), out=folder, watch=stop_after(1, KeyboardInterrupt))
    for done in range(2, len(whole.rounds) + 1):
        with pytest.raises(KeyboardInterrupt):
            run(
                tiny.values(data),
                out=folder,
                resume=True,
                watch=stop_after(1, KeyboardInterrupt),
            )
        assert (folder / "results.jsonl").read_text().count("\n") == done
    same_as(whole, run(tiny.values(data), out=folder, resume=True))


@pytest.mark.parametrize("error", [KeyboardInterrupt, CrashError])
@pytest.mark.parametrize("written", [True, False])
def test_resuming_after_an_interruption_inside_any_write_equals_the_whole(
    data, tmp_path, monkeypatch, error, written
):
    """Of a line or of a file; just before it is done or just after."""
    config = tiny.values(data, experiment={"seeds": [0]})
    whole = run(config, out=tmp_path / "whole")
    real_append, real_write = RunFolder.append, results.write_atomic
    left = [0]

    def interrupt(action, *arguments):
        left[0] -= 1
        if left[0] == 0 and not written:
            raise error
        result = action(*arguments)
        if left[0] == 0:
            raise error
        return result

    monkeypatch.setattr(RunFolder, "append", lambda self, line: interrupt(real_append, self, line))
    monkeypatch.setattr(
        results, "write_atomic", lambda path, content: interrupt(real_write, path, content)
    )
    finished = False
    # The first two writes make the folder: without them there is no run to resume.
    for place in range(3, 100):
        folder, left[0] = tmp_path / f"at-{place}", place
        try:
            run(config, out=folder)
            finished = True
        except error:
            left[0] = 0
            same_as(whole, run(config, out=folder, resume=True))
        if finished:
            break
    assert place > len(whole.rounds)


@pytest.mark.parametrize(
    "garbage", [b"{", b"\xff\x00", b'{"rule": "mean"}\n', b"\n\n", b'{"round": NaN}\n' * 100]
)
def test_what_follows_the_checkpoint_is_cut_off(data, whole, tmp_path, garbage):
    folder = tmp_path / "run"
    with pytest.raises(CrashError):
        run(tiny.values(data), out=folder, watch=stop_after(7, CrashError))
    with (folder / "results.jsonl").open("ab") as file:
        file.write(garbage)
    same_as(whole, run(tiny.values(data), out=folder, resume=True))


def test_a_finished_run_can_be_resumed_and_stays_as_it_is(data, tmp_path):
    run(tiny.values(data), out=tmp_path / "run")
    before = tiny.contents(tmp_path / "run")
    seen = []
    result = run(tiny.values(data), out=tmp_path / "run", resume=True, watch=seen.append)
    assert tiny.contents(tmp_path / "run") == before
    assert (seen, result.notes) == ([], [])


def test_a_deleted_checkpoint_only_costs_time(data, whole, tmp_path):
    folder = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        run(tiny.values(data), out=folder, watch=stop_after(7, KeyboardInterrupt))
    shutil.rmtree((folder / results.CHECKPOINT).parent)
    same_as(whole, run(tiny.values(data), out=folder, resume=True))


def test_resuming_elsewhere_is_noted(data, tmp_path, monkeypatch):
    folder = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        run(tiny.values(data), out=folder, watch=stop_after(2, KeyboardInterrupt))
    monkeypatch.setattr(torch, "__version__", "0.0.1")
    (note,) = run(tiny.values(data), out=folder, resume=True).notes
    assert "is 0.0.1" in note
    assert "bytes may differ" in note


@pytest.fixture
def interrupted(data, tmp_path):
    """A run stopped after its seventh round, in the middle of the third curve, with a tail."""
    folder = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        run(tiny.values(data), out=folder, watch=stop_after(7, KeyboardInterrupt))
    with (folder / "results.jsonl").open("ab") as file:
        file.write(b"a tail that a refusal must not cut off")
    return folder


def refused(folder, values, match):
    before = tiny.contents(folder)
    with pytest.raises(RunFolderError, match=match):
        run(values, out=folder, resume=True)
    assert tiny.contents(folder) == before


def rewrite(folder, *, meta=None, arrays=None, drop=()):
    """Put another checkpoint in place, whole and with the right checksum."""
    old = results._read_checkpoint(folder)
    mark = ResultsMark(old.meta["results_bytes"], old.meta["results_sha256"])
    kept = {k: v for k, v in {**old.meta, **(meta or {})}.items() if k not in drop}
    changed = {k: v for k, v in {**old.arrays, **(arrays or {})}.items() if k not in drop}
    folder = RunFolder(folder)
    folder.save(Checkpoint(kept, changed), mark)
    folder.close()


@pytest.mark.parametrize(
    "change",
    [
        {"meta": {"curve": 0}},
        {"meta": {"curve": 1}},
        {"meta": {"curve": 3}},
        {"meta": {"curve": -1}},
        {"meta": {"curve": 6}},
        {"meta": {"curve": 99}},
        {"meta": {"curve": "x"}},
        {"meta": {"curve": None}},
        {"meta": {"curve": ["holdout", "bomb", 10]}},
        {"meta": {"curve": ["krum", "bomb", 0]}},
        {"meta": {"curve": ["holdout", "bomb"]}},
        {"meta": {"curve": []}},
        {"meta": {"round": 0}},
        {"meta": {"round": 1}},
        {"meta": {"round": 3}},
        {"meta": {"round": -2}},
        {"meta": {"round": 99}},
        {"meta": {"round": "x"}},
        {"drop": ("curve",)},
        {"drop": ("round",)},
        {"drop": ("radius",)},
        {"drop": ("weights",)},
        {"arrays": {"weights": np.zeros(3, np.float32)}},
        {"arrays": {"weights": np.zeros((903, 1), np.float32)}},
        {"arrays": {"weights": np.zeros(903, np.float64)}},
        {"arrays": {"weights": np.zeros(903, np.int32)}},
        {"arrays": {"weights": np.array(["a"] * 903)}},
        {"arrays": {"weights": np.float32(1)}},
        {"arrays": {"velocity": np.zeros(902, np.float32)}},
        {"arrays": {"last_honest": np.zeros(903, np.float32)}},
        {"arrays": {"last_honest": np.zeros((2, 5), np.float32)}},
        {"arrays": {"last_honest": np.float32(1)}},
    ],
    ids=lambda change: next(f"{key}-{next(iter(value))}" for key, value in change.items()),
)
def test_a_checkpoint_that_does_not_fit_the_run_is_refused(data, interrupted, change):
    before = results._read_checkpoint(interrupted)
    assert (before.meta["curve"], before.meta["round"]) == (["holdout", "bomb", 0], 2)
    assert before.arrays["weights"].shape == (903,)
    rewrite(interrupted, **change)
    refused(interrupted, tiny.values(data), match=r"state\.npz does not fit the run \(.+\)")


@pytest.mark.parametrize("curve", [["holdout", "bomb", 0], 2], ids=["name", "number"])
def test_an_honestly_rewritten_checkpoint_is_accepted(data, whole, interrupted, curve):
    """Else the test above would prove nothing; earlier versions counted the curves."""
    rewrite(interrupted, meta={"curve": curve})
    same_as(whole, run(tiny.values(data), out=interrupted, resume=True))


def test_resuming_with_another_config_is_refused_and_says_what_differs(data, interrupted):
    other = tiny.values(data, experiment={"rounds": 4}, training={"momentum": 0.25})
    refused(
        interrupted,
        other,
        match=r"a different config: experiment\.rounds was 3, is 4; "
        r"training\.momentum was 0\.5, is 0",
    )


def test_a_config_mistake_leaves_no_folder(data, tmp_path):
    with pytest.raises(ConfigError):
        run(tiny.values(data, experiment={"rounds": 0}), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_in_memory_nothing_is_written(data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run(tiny.values(data))
    assert list(tmp_path.iterdir()) == []


def test_progress_counts_to_the_total(data):
    seen = []
    run(tiny.values(data, attack={"name": "sign-flip", "scale": 1.0}), watch=seen.append)
    assert [p.rounds_done for p in seen] == list(range(1, 19))
    assert {p.rounds_total for p in seen} == {18}


def test_threads_are_as_before_after_a_run_and_after_a_failure(data):
    torch.set_num_threads(1)
    counts = []

    def watch(progress):
        counts.append(torch.get_num_threads())
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tiny.values(data, experiment={"threads": 2}), watch=watch)
    assert (counts, torch.get_num_threads()) == ([2], 1)


def test_a_result_tells_accuracies(whole):
    assert whole.accuracy("mean", "none") > 0.5
    assert whole.accuracy("holdout") == pytest.approx(
        np.mean([c["final_accuracy"] for c in whole.summary["curves"] if c["rule"] == "holdout"])
    )
    with pytest.raises(KeyError, match="no curve of rule 'krum' under attack 'bomb'"):
        whole.accuracy("krum")


@pytest.mark.parametrize(
    "changes",
    [
        {"attack": {"scale": 1e30}},
        {"attack": {"scale": 1e38}},
        {"attack": {"scale": 1e300}},
        {"training": {"learning_rate": 1e6}},
        {"training": {"learning_rate": 1e300}},
        {"training": {"learning_rate": 1e-320}},
        {"attack": {"name": "nan", "scale": None}},
    ],
    ids=str,
)
def test_divergence_is_recorded_in_valid_json_and_other_curves_go_on(data, tmp_path, changes):
    rules = ["mean", "krum", "holdout-paper", "holdout"]
    config = tiny.values(
        data,
        experiment={"rules": rules, "seeds": [0]},
        federation={"workers": 12, "proposers": 6},
        **changes,
    )
    config["attack"] = {k: v for k, v in config["attack"].items() if v is not None}
    result = run(config, out=tmp_path / "run")

    def refuse(constant):
        raise AssertionError(constant)

    text = (tmp_path / "run" / "results.jsonl").read_text()
    lines = [json.loads(line, parse_constant=refuse) for line in text.splitlines()]
    json.loads((tmp_path / "run" / "summary.json").read_text(), parse_constant=refuse)
    assert [c["rule"] for c in result.summary["curves"]] == ["mean", *rules]
    for curve in result.summary["curves"]:
        own = [x for x in lines if (x["rule"], x["attack"]) == (curve["rule"], curve["attack"])]
        assert curve["rounds"] == len(own)
        assert (curve["rounds"] == 3) or curve["outcome"] == "diverged"
        assert all(x["outcome"] != "diverged" for x in own[:-1])


def test_the_plain_mean_diverges_under_the_bomb_and_holdout_does_not(whole):
    ends = {(c["rule"], c["attack"], c["seed"]): c["outcome"] for c in whole.summary["curves"]}
    assert ends["mean", "bomb", 0] == "diverged"
    assert ends["holdout", "bomb", 0] == "completed"


# --- Custom code, as objects ---


def first_row(updates, *, f):
    return updates[0]


def opposite(view):
    return -5 * view.mean


def name_all(view):
    return view.own


def linear(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(shape[0], classes))


class Shaky:
    """An honest worker whose machine fails now and then."""

    def __init__(self, inner, proposes=True, votes=True):
        self.inner, self.proposes, self.votes = inner, proposes, votes

    def propose(self, weights, **task):
        if not self.proposes:
            raise OSError("the disk is full")
        return self.inner.propose(weights, **task)

    def vote(self, weights, proposals, **task):
        if not self.votes:
            raise ZeroDivisionError
        return self.inner.vote(weights, proposals, **task)


def test_everything_own_can_be_passed_as_objects(data, tmp_path):
    plugins = Plugins(
        rules={"first": first_row},
        attack=opposite,
        ballots=name_all,
        model=linear,
        data=load("npz", path=data),
        worker=Shaky,
    )
    config = {
        "experiment": {"rules": ["first", "holdout"], "rounds": 2, "threads": 1},
        "data": {"samples_per_worker": 30},
        "training": {"batch_size": 8},
        "federation": {"workers": 10, "proposers": 5, "voters": 5, "byzantine": 3},
        "vote": {"samples": 10},
    }
    result = run(config, plugins=plugins, out=tmp_path / "run")
    assert [(c["rule"], c["attack"]) for c in result.summary["curves"]] == [
        ("mean", "none"),
        ("first", "opposite"),
        ("holdout", "opposite"),
    ]
    stored = results.read_config(tmp_path / "run")
    assert (stored["attack"]["name"], stored["attack"]["voters"]) == ("opposite", "name_all")
    assert (stored["model"]["name"], stored["data"]["name"]) == ("linear", "npz")
    assert all(line["rejected_proposals"] == {} for line in result.rounds)


def test_a_wrapped_worker_that_changes_nothing_changes_no_model(data):
    config = tiny.values(data, attack={"name": "sign-flip", "scale": 1.0})
    plain, wrapped = run(config), run(config, plugins=Plugins(worker=Shaky))
    for a, b in zip(plain.rounds, wrapped.rounds, strict=True):
        assert a["outcome"] == b["outcome"]
        assert a["rejected_proposals"] == b["rejected_proposals"]
        assert a["rejected_ballots"] == b["rejected_ballots"]
        if a["accuracy"] is not None:
            assert a["loss"] == pytest.approx(b["loss"], rel=1e-3)


def test_a_worker_that_raises_is_missing_in_that_round_and_the_run_goes_on(data):
    def worker(inner):
        return Shaky(inner, proposes=inner.worker_id != 4, votes=inner.worker_id != 5)

    config = tiny.values(data, attack={"name": "none"}, federation={"byzantine": 0})
    config["attack"] = {"name": "none"}
    result = run(config, plugins=Plugins(worker=worker))
    assert len(result.rounds) == 12
    for line in result.rounds:
        assert line["rejected_proposals"] == ({"missing": 1} if 4 in line["proposers"] else {})
        assert line["rejected_ballots"] == ({"missing": 1} if 5 in line["voters"] else {})
        if 5 in line["voters"]:
            assert line["ballots"][line["voters"].index(5)] is None
    assert any(line["rejected_proposals"] for line in result.rounds)
    assert any(line["rejected_ballots"] for line in result.rounds)


def test_if_nobody_proposes_rounds_make_no_step(data):
    with pytest.raises(
        RunFailed, match="no honest proposal arrived in any round of mean"
    ) as caught:
        run(
            tiny.values(data, federation={"byzantine": 0}),
            plugins=Plugins(worker=lambda inner: Shaky(inner, proposes=False)),
        )
    result = caught.value.result
    assert {line["outcome"] for line in result.rounds} == {"no-proposals"}


@pytest.mark.parametrize(
    ("plugins", "message"),
    [
        (Plugins(rules={"mine": lambda *_, **__: 1 / 0}), "rule 'mine' raised ZeroDivisionError"),
        (Plugins(rules={"mine": lambda updates: updates}), "rule 'mine' raised TypeError"),
        (
            Plugins(rules={"mine": lambda updates, **_: updates}),
            r"rule 'mine' must return floats of shape \(903,\); got .* of shape \(5, 903\)",
        ),
        (Plugins(rules={"mine": lambda *_, **__: 3}), "rule 'mine' must return floats"),
        (Plugins(attack=lambda _: 5), "attack '<lambda>' must return"),
        (Plugins(worker=lambda _: 1 / 0), "custom worker raised ZeroDivisionError"),
        (
            Plugins(worker=lambda _: None),
            "custom worker must have propose and vote; got .*None",
        ),
    ],
)
def test_own_code_that_fails_is_told_apart_from_ours(data, plugins, message):
    config = tiny.values(data, experiment={"rules": ["mine"] if plugins.rules else ["mean"]})
    with pytest.raises(PluginError, match=message):
        run(config | {"attack": {}}, plugins=plugins)


def test_own_ballots_that_raise_are_told_apart_from_ours(data):
    def ballots(view):
        raise LookupError("lost")

    with pytest.raises(RunFailed, match=r"the attack on ballots raised LookupError: lost"):
        run(tiny.values(data), plugins=Plugins(ballots=ballots))


@pytest.mark.parametrize(
    ("poison", "message"),
    [
        (
            lambda labels, _: labels[:3],
            r"must return int64 labels of shape \(120,\); got torch.int64 of shape \(3,\)",
        ),
        (lambda *_: 1 / 0, "poison_labels raised ZeroDivisionError"),
    ],
)
def test_own_poisoned_labels_are_checked(data, poison, message):
    def poisoner(view):
        return view.own_updates()

    poisoner.poison_labels = poison
    with pytest.raises(PluginError, match=message):
        run(tiny.values(data) | {"attack": {}}, plugins=Plugins(attack=poisoner))


def test_a_config_may_be_a_file_a_mapping_or_a_config(data, tmp_path):
    values = tiny.values(data, experiment={"seeds": [0], "rounds": 1})
    config = parse(values).checked()
    path = tmp_path / "tiny.toml"
    path.write_text(config.as_toml())
    results_of = [run(given).table() for given in (values, config, path, str(path))]
    assert all(found == results_of[0] for found in results_of)


def test_a_file_that_is_none_is_refused_as_on_the_command_line(tmp_path):
    with pytest.raises(ConfigError, match=r"missing\.toml: cannot be read"):
        run(tmp_path / "missing.toml")
    (tmp_path / "broken.toml").write_text("rounds = ")
    with pytest.raises(ConfigError, match=r"broken\.toml: not TOML"):
        run(str(tmp_path / "broken.toml"))


def test_a_result_shows_itself_in_one_line_and_in_a_notebook_as_a_table(whole):
    assert "\n" not in repr(whole)
    assert repr(whole).startswith("<Result: mean, no attack ")
    assert f"HoldOut {100 * whole.accuracy('holdout'):.1f} %" in repr(whole)
    page = whole._repr_html_()
    assert page.count("<tr>") == 1 + len(whole.table())
    assert '<th scope="row">HoldOut</th>' in page


def test_a_name_in_a_notebook_s_table_is_text(data):
    values = tiny.values(data, experiment={"rules": ["<b>"], "rounds": 1, "seeds": [0]})
    page = run(values, plugins=Plugins(rules={"<b>": first_row}))._repr_html_()
    assert "&lt;b&gt;" in page
    assert "<b>" not in page


def test_a_result_reads_like_its_folder(whole):
    in_memory, on_disk = results.read_run(whole), results.read_run(whole.folder)
    assert in_memory.rows == on_disk.rows == list(in_memory)
    assert in_memory.config == on_disk.config
    assert len(in_memory) == len(whole.rounds)


@pytest.mark.parametrize("name", ["mean", "holdout", "krum"])
def test_an_own_rule_may_not_take_a_built_in_name(data, name):
    with pytest.raises(ConfigError, match=f"custom rule '{name}': the name is taken"):
        run(tiny.values(data), plugins=Plugins(rules={name: first_row}))


def test_an_own_attack_may_not_be_called_none(data):
    def none(view):
        return view.mean

    with pytest.raises(ConfigError, match="custom attack 'none'"):
        run(tiny.values(data), plugins=Plugins(attack=none))


def test_an_own_kind_of_honest_worker_is_asked_itself(data):
    def fail(*_task, **_settings):
        raise RuntimeError("out of order")

    class Broken(HonestWorker):
        propose = vote = fail

    def replace(worker):
        return Broken(worker.worker_id, worker.model, worker.shard, worker.recipe, worker.seed)

    values = tiny.values(data, experiment={"rules": ["holdout"], "baseline": False})
    with pytest.raises(RunFailed, match="out of order") as caught:
        run({**values, "attack": {"name": "none"}}, plugins=Plugins(worker=replace))
    result = caught.value.result
    assert {line["outcome"] for line in result.rounds} == {"no-proposals"}
    assert all(line["rejected_proposals"]["missing"] == 5 for line in result.rounds)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((3,), "run takes the path of a TOML file, a mapping or a Config; got int"),
        ((None,), "got NoneType"),
        (({}, {"rules": {}}), "plugins must be holdout.Plugins"),
    ],
)
def test_what_run_cannot_take_is_told(arguments, message):
    config, plugins = (*arguments, None)[:2]
    with pytest.raises(UserError, match=message):
        run(config, plugins=plugins)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("krum+nnm", r"'nnm' is a pre-aggregation, and a rule must stand behind it, as in 'nnm"),
        ("nnm", r"'nnm' is a pre-aggregation"),
        ("nmn+krum", r"'nmn' is not a pre-aggregation; there are nnm, clipping, bucketing, arc or"),
        ("nnm+holdout", r"'holdout' is a vote"),
        ("nnm+", r"unknown; there are mean"),
    ],
)
def test_a_slip_in_a_composed_name_is_one_mistake(rule, message, data):
    values = tiny.values(data, experiment={"rules": [rule]})
    with pytest.raises(ConfigError, match=message) as caught:
        run(values)
    assert len(caught.value.problems) == 1


def test_what_only_a_resumed_run_can_take_is_refused_in_any_other(data, tmp_path):
    with pytest.raises(UserError, match="resume=True needs out"):
        run(tiny.values(data), resume=True)
    with pytest.raises(UserError, match="changed_code is for resume=True"):
        run(tiny.values(data), out=tmp_path / "run", changed_code=True)
    assert not (tmp_path / "run").exists()
