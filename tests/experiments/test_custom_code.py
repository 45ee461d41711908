"""Custom code that errs, scribbles or changes never passes for a result in silence."""

import importlib
import json
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from tests import tiny
from torch import nn

from holdout import results
from holdout.commands import run_command
from holdout.data.datasets import Dataset
from holdout.errors import ConfigError, ModelError, PluginError, RunFailed, RunFolderError
from holdout.experiments import runner
from holdout.experiments.curves import final_table, group
from holdout.experiments.plugins import Plugins
from holdout.experiments.run_notes import notes_on_curves, notes_on_data
from holdout.experiments.runner import run
from holdout.learning.models import build
from holdout.rules import krum, mean
from holdout.tracebacks import definition_of, is_custom


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return tiny.write_data(tmp_path_factory.mktemp("data"))


@pytest.fixture
def beside_us(tmp_path, monkeypatch):
    """An empty working directory; what is imported from it is forgotten again."""
    monkeypatch.chdir(tmp_path)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def settings(data, *rules, seeds=(0,), rounds=3, **changes):
    experiment = {"rules": list(rules) or ["mean"], "seeds": list(seeds), "rounds": rounds}
    changes.setdefault("attack", {"name": "sign-flip", "scale": 1.0, "knowledge": "omniscient"})
    values = tiny.values(data, experiment={**experiment, "baseline": False})
    return {**values, **{k: {**values.get(k, {}), **v} for k, v in changes.items()}} | {
        "attack": changes["attack"]
    }


def lines(result):
    return json.dumps([{**line, "seconds": 0} for line in result.rounds])


class Wrapped:
    def __init__(self, honest):
        self.honest = honest

    def propose(self, weights, **facts):
        return self.honest.propose(weights, **facts)

    def vote(self, weights, proposals, **facts):
        return self.honest.vote(weights, proposals, **facts)


class Fails(Wrapped):
    """Fails where the number of the worker says so."""

    at = (1, 4, 7)

    def propose(self, weights, **facts):
        if self.honest.worker_id in self.at:
            raise OSError("the disk is full")
        return super().propose(weights, **facts)


# ------------------------------------------------------------------------------ errors of workers


@pytest.mark.usefixtures("beside_us")
def test_what_workers_raise_is_counted_told_and_kept(data, tmp_path):
    said = []
    values = settings(data, "mean", "holdout")
    result = run(values, plugins=Plugins(worker=Fails), out=tmp_path / "run", say=said.append)
    liars = {worker for line in result.rounds for worker in line["byzantine_workers"]}
    failing = set(Fails.at) - liars
    count = 0
    for line in result.rounds:
        expected = len(failing.intersection(line["proposers"]))
        count += expected
        assert line.get("honest_missing", 0) == expected
        assert line.get("custom_errors", {}) == ({"propose": expected} if expected else {})
        assert line["rejected_proposals"].get("missing", 0) == expected
    assert count
    # The file and the line of the user's code, at once, in the summary and in the report.
    (told,) = said
    place = "test_custom_code.py, line "
    assert place in told
    assert "OSError: the disk is full" in told
    assert 'raise OSError("the disk is full")' in told
    assert "/holdout/" not in told
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["custom_errors"]["count"] == count
    first = summary["custom_errors"]["first"]
    assert place in first["error"]
    assert "in propose" in first["traceback"]
    assert any(f"failed {count} times" in note for note in summary["notes"])
    assert summary["notes"] == result.summary["notes"] == list(result.notes)
    page = (tmp_path / "run" / "report.html").read_text()
    assert "What custom code raised first" in page
    assert place in page
    assert "custom code raised: propose" in page


def test_rounds_in_which_nothing_fails_have_no_field_for_it(data):
    result = run(settings(data, "mean"), plugins=Plugins(worker=Wrapped))
    assert not any({"custom_errors", "honest_missing"} & set(line) for line in result.rounds)


def test_the_table_says_where_more_than_a_tenth_is_missing(data):
    class Mostly(Fails):
        at = (0, 1, 2, 3, 4, 5, 6, 7, 8)

    result = run(settings(data, "mean", rounds=4), plugins=Plugins(worker=Mostly))
    (row,) = final_table(result.rounds)
    honest = sum(len(r["proposers"]) - r["byzantine_proposers"] for r in result.rounds)
    missing = sum(r.get("honest_missing", 0) for r in result.rounds)
    assert row.honest_missing == missing / honest > 0.1
    assert f"({int(100 * missing / honest)} % missing)" in row.measured_text()
    assert any("more than a tenth of the honest proposals" in note for note in result.notes)
    (whole,) = final_table(run(settings(data, "mean")).rounds)
    assert "missing" not in whole.measured_text()


@pytest.mark.parametrize(
    ("answer", "fault"), [(None, "missing"), ("text", "misshapen"), (torch.ones(3), "misshapen")]
)
def test_what_is_no_update_counts_as_missing_though_nothing_was_raised(data, answer, fault):
    class Wrong(Wrapped):
        def propose(self, weights, **facts):
            return answer if self.honest.worker_id % 2 else super().propose(weights, **facts)

    result = run(settings(data, "mean"), plugins=Plugins(worker=Wrong))
    for line in result.rounds:
        assert line.get("honest_missing", 0) == line["rejected_proposals"].get(fault, 0)
    assert any("honest_missing" in line for line in result.rounds)


@pytest.mark.parametrize("rule", ["holdout", "holdout-1"])
def test_a_vote_that_is_no_ballot_is_an_error_too(data, rule):
    class Wrong(Wrapped):
        def vote(self, weights, proposals, **facts):
            del weights, proposals, facts
            return [0, 1]

    said = []
    with pytest.raises(RunFailed, match="no honest vote arrived in any round of HoldOut") as failed:
        run(settings(data, rule), plugins=Plugins(worker=Wrong), say=said.append)
    for line in failed.value.result.rounds:
        honest = len(line["voters"]) - line["byzantine_voters"]
        assert line["custom_errors"] == {"vote": honest}
    kind = "JointBallot" if rule == "holdout" else "Approvals"
    assert f"must return a ballot ({kind}); got list (" in said[0]
    assert "test_custom_code.py, line " in said[0]


def test_without_a_server_errors_are_counted_too(data):
    changes = {
        "federation": {
            "mode": "decentralized",
            "disjoint": False,
            "byzantine": 3,
            "assumed_byzantine": 3,
            "workers": 10,
            "proposers": 9,
            "voters": 9,
        },
        "training": {"momentum": 0.0},
    }
    result = run(settings(data, "holdout", rounds=2, **changes), plugins=Plugins(worker=Fails))
    assert all(
        line.get("custom_errors", {}).get("propose", 0) >= line.get("honest_missing", 0)
        for line in result.rounds
    )
    assert sum(line.get("honest_missing", 0) for line in result.rounds) > 0


CODE = """
import torch


class Dead:
    def __init__(self, honest):
        self.honest, self.vote = honest, honest.vote

    def propose(self, weights, **facts):
        return self.honest.propos(weights, **facts)


def late(updates, *, f, context):
    if context.round_number == 2:
        return updates @ updates
    return updates.mean(dim=0)


def bent(updates, *, f, context):
    update = updates.mean(dim=0)
    return update[1:] if context.round_number == 2 else update


TRIED = []


def never(updates, *, f, context):
    TRIED.append(context.round_number)
    if len(TRIED) > 2:
        return updates @ updates.T.T
    return updates.mean(dim=0)


def sometimes(view):
    return view.nothing if view.round_number == 2 else -view.known.mean(dim=0)


def trim(updates, *, f, keep: int = 3):
    return updates[:keep].mean(dim=0)


def attack(view):
    return view.nothing


def ballots(view):
    return view.nothing


def model(shape, classes):
    return torch.nn.Linear(shape, classes)


def loader():
    return 1 / 0
"""


def line_of(text):
    return 1 + CODE[: CODE.index(text)].count("\n")


@pytest.fixture
def command(beside_us, data, capsys):
    """command(rules, *settings) -> (exit code, stdout, stderr) of `holdout run --out run`."""
    (beside_us / "my_code.py").write_text(CODE)
    (beside_us / "tiny.toml").write_text(
        runner.make_plan(settings(data, "mean", attack={"name": "sign-flip"})).config.as_toml(),
        "utf-8",
    )

    def call(rules, *changes, more=()):
        sets = [f"--set={one}" for one in (f"experiment.rules={json.dumps(rules)}", *changes)]
        code = run_command(["run", "tiny.toml", "--out", "run", *sets, *more])
        return code, *capsys.readouterr()

    return call


def test_a_run_without_honest_proposals_exits_1_and_keeps_what_was_run(command):
    code, out, err = command(["mean"], "federation.worker=my_code:Dead")
    assert code == 1
    assert "(100 % missing)" in out
    assert err.splitlines()[-1].startswith("holdout: no honest proposal arrived in any round of")
    assert f"(my_code.py, line {line_of('return self.honest.propos')})" in err.splitlines()[-1]
    assert len(results.read_run("run").rows) == 3


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        (["model.name=my_code:model"], "return torch.nn.Linear"),
        (["data.name=my_code:loader"], "return 1 / 0"),
    ],
)
def test_an_error_in_custom_code_names_file_and_line(command, changes, place):
    lines_there = [number for number, line in enumerate(CODE.split("\n"), start=1) if place in line]
    code, _, err = command(["mean"], *changes)
    assert code == 2
    message = err[err.rindex("holdout: ") :]
    assert any(f"my_code.py, line {number})" in message for number in lines_there), message
    assert "Traceback" not in message


def test_a_rule_that_raises_late_is_counted_and_leaves_its_traceback(command):
    code, _, err = command(["my_code:late"])
    assert code == 0
    assert f"(my_code.py, line {line_of('return updates @ updates')})" in err
    summary = json.loads(Path("run/summary.json").read_text())
    assert summary["custom_errors"]["count"] == 1
    assert "updates @ updates" in summary["custom_errors"]["first"]["traceback"]
    assert summary["curves"][-1]["outcome"] == "completed"
    assert any("custom code raised while the rule was applied" in note for note in summary["notes"])
    assert "updates @ updates" in Path("run/report.html").read_text()
    attacked = [row for row in results.read_run("run").rows if row["rule"] == "my_code:late"]
    assert [row["outcome"] for row in attacked] == ["step", "raised", "step"]
    assert attacked[1]["custom_errors"] == {"aggregate": 1}


def test_an_attack_that_raises_is_counted_and_its_liars_are_silent(command):
    code, _, err = command(["mean"], "attack.name=my_code:sometimes")
    assert code == 0
    assert f"(my_code.py, line {line_of('return view.nothing if')})" in err
    first, second, third = (r for r in results.read_run("run").rows if r["attack"] != "none")
    assert second["custom_errors"] == {"lie": 1}
    assert second["rejected_proposals"] == {"missing": second["byzantine_proposers"]}
    assert "custom_errors" not in first
    assert "custom_errors" not in third
    notes = json.loads(Path("run/summary.json").read_text())["notes"]
    assert any("the attack raised in some rounds" in note for note in notes)


@pytest.mark.parametrize(
    ("rule", "attack", "says", "place"),
    [
        ("mean", "my_code:attack", "the attack raised", "return view.nothing\n"),
        (
            "my_code:never",
            "sign-flip",
            "custom code raised, while the rule was applied,",
            "return updates @ updates.T.T\n",
        ),
    ],
)
def test_custom_code_that_raises_in_every_round_fails_the_run(command, rule, attack, says, place):
    code, _, err = command([rule], f"attack.name={attack}")
    assert code == 1
    last = err.splitlines()[-1]
    assert last.startswith(f"holdout: {says} in every round of")
    assert f"(my_code.py, line {line_of(place)})" in last
    assert len(results.read_run("run").rows) == 3


def test_a_rule_whose_result_is_bent_late_stops_the_run_until_it_is_repaired(command):
    code, _, err = command(["my_code:bent"])
    assert code == 2
    assert "rule 'my_code:bent'" in err
    summary = json.loads(Path("run/summary.json").read_text())
    assert summary["curves"][-1]["outcome"] == "stopped"
    assert any("the run was stopped: rule 'my_code:bent'" in note for note in summary["notes"])
    # Repaired, it goes on; of what stopped it nothing is left but the note on the change.
    mended = CODE.replace("update[1:] if", "update if")
    Path("my_code.py").write_text(mended)
    del sys.modules["my_code"]
    importlib.invalidate_caches()
    again = ["--resume"]
    code, _, err = command(["my_code:bent"], more=again)
    assert code == 2
    assert "custom code has changed since the run began: rule 'my_code:bent' (my_code.py)" in err
    code, _, err = command(["my_code:bent"], more=[*again, "--changed-code"])
    assert code == 0
    assert "custom code was changed after round 1 of my_code:bent" in err
    summary = json.loads(Path("run/summary.json").read_text())
    assert "custom_errors" not in summary
    assert any("custom code was changed after round 1" in note for note in summary["notes"])
    assert "custom code was changed after round 1" in Path("run/report.html").read_text().lower()


def test_changed_code_alone_is_no_way_to_start(command):
    code, _, err = command(["mean"], more=["--changed-code"])
    assert (code, err) == (
        2,
        "holdout: --changed-code is for --resume: a new run takes the code as it is\n",
    )


# ----------------------------------------------------------------------------- what proves nothing


def test_lies_that_are_refused_prove_nothing(data):
    result = run(settings(data, "mean", "krum", attack={"name": "nan"}))
    assert any(
        note == "every lie was refused before the rule saw it, so nothing was attacked: mean, Krum"
        for note in result.notes
    )
    assert not run(settings(data, "mean")).notes


def test_a_run_in_which_nobody_lies_says_so(data):
    result = run(settings(data, "mean", federation={"byzantine": 0}))
    assert list(result.notes) == ["no liar was drawn in any round, so nothing was attacked: mean"]
    later = {"name": "sign-flip", "onset": 9}
    (note,) = run(settings(data, "mean", attack=later)).notes
    assert note.startswith("no lie was told in any round, since the attack's schedule has none")


def test_gamma_at_its_cap_says_so(data):
    attack = {"name": "alie", "gamma_max": 0.1}
    (note,) = run(settings(data, "mean", "median", attack=attack)).notes
    assert note.startswith("gamma stood at its cap, gamma_max = 0.1, in most rounds")
    assert note.endswith(": median"), "the mean takes any gamma: its cap says nothing"


@pytest.mark.parametrize(
    ("attack", "told"),
    [
        ({"name": "sign-flip"}, True),
        ({"name": "alie", "gamma": 1.0}, True),
        ({"name": "alie", "gamma": "krum"}, True),
        ({"name": "alie"}, False),
        ({"name": "opt-alie"}, False),
        ({"name": "min-max"}, True),
    ],
)
def test_a_custom_rule_that_was_attacked_without_a_search_says_so(data, attack, told):
    def mine(updates, *, f):
        return krum(updates, f=f)

    result = run(
        settings(
            data, "mine", "krum", rounds=1, attack=attack, federation={"assumed_byzantine": 1}
        ),
        plugins=Plugins(rules={"mine": mine}),
    )
    found = [note for note in result.notes if "does not search" in note]
    assert bool(found) is told
    assert all(note.endswith(": mine") for note in found)


@pytest.mark.parametrize(
    ("shape", "told"), [((28, 28, 3), True), ((3, 28, 28), False), ((3, 3, 3), False)]
)
def test_images_with_their_channels_last_are_noted_though_the_model_takes_them(shape, told):
    x, y = torch.zeros(4, *shape), torch.tensor([0, 1, 0, 1])
    notes = notes_on_data(Dataset("photos", x, y, x, y, classes=2))
    remedy = "look like images (height, width, channels): move the channels to the front"
    assert any(f"the samples of photos, of shape {shape}, {remedy}" in n for n in notes) is told


def test_classes_without_rows_are_named():
    x, y = [[-3.0], [3.0]] * 20, [0, 3] * 20
    setting = {
        "experiment": {"rules": ["mean"], "rounds": 1, "threads": 1},
        "data": {"samples_per_worker": 10},
        "federation": {"workers": 9, "proposers": 4, "voters": 4},
        "training": {"batch_size": 5},
        "vote": {"samples": 10},
    }
    result = run(setting, plugins=Plugins(data=(x, y, x, y)))
    assert "plugins.data has no training rows of classes 1, 2: no curve shows them" in result.notes
    assert result.summary["notes"] == list(result.notes)


def test_notes_are_made_from_the_folder_alone(data, tmp_path, beside_us, capsys):
    result = run(settings(data, "mean", attack={"name": "nan"}), out=tmp_path / "run")
    (note,) = result.notes
    for missing in ("", "summary.json"):
        if missing:
            (tmp_path / "run" / missing).unlink()
        assert run_command(["report", str(tmp_path / "run")]) == 0
        assert f"note: {note}" in capsys.readouterr().out
        assert note[1:] in (tmp_path / "run" / "report.html").read_text()


def test_no_round_is_no_reason_for_a_note(data):
    plan = runner.make_plan(settings(data, "mean"))
    assert notes_on_curves(group([]), plan.config.as_dict()) == []
    assert notes_on_data(plan.dataset) == []


# -------------------------------------------------------------------------------------- the search


@pytest.mark.parametrize("knowledge", ["omniscient", "coalition"])
def test_krum_is_attacked_as_hard_as_a_custom_rule_as_by_its_name(data, knowledge):
    def secret(updates, *, f):
        return krum(updates, f=f)

    values = settings(
        data,
        "krum",
        "secret",
        seeds=(0, 1, 2),
        rounds=4,
        federation={"assumed_byzantine": 1, "byzantine": 3, "proposers": 5},
        attack={"name": "alie", "knowledge": knowledge},
    )
    result = run(values, plugins=Plugins(rules={"secret": secret}))
    by = {
        rule: [(r["seed"], r["round"], r["gamma"]) for r in result.rounds if r["rule"] == rule]
        for rule in ("krum", "secret")
    }
    assert by["krum"] == by["secret"]
    assert any(gamma for _, _, gamma in by["krum"])
    assert result.accuracy("krum") == pytest.approx(result.accuracy("secret"), abs=1e-6)


# ------------------------------------------------------------------------ the trial of custom rules


def random_mean(updates, *, f):
    del f
    return updates.mean(dim=0) + torch.rand(1)


memory = []


def remembers(updates, *, f):
    del f
    memory.append(updates.mean(dim=0))
    return memory[0] * len(memory)


def scales_in_place(updates, *, f):
    del f
    updates *= 2
    return updates.mean(dim=0)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (random_mean, "must give the same result for the same updates and an equal context"),
        (remembers, "must give the same result"),
        (scales_in_place, "must leave the updates as they are; it changed them"),
        (lambda updates, *, f: updates.mean(dim=0) / 0, "must return finite numbers"),  # noqa: ARG005
        (lambda updates, *, f: updates.mean(dim=0).int(), "must return floats of shape"),  # noqa: ARG005
        (
            lambda updates: updates.mean(dim=0),
            "raised TypeError: .*unexpected keyword argument 'f'",
        ),
        (lambda updates, *, f, g: updates[0], "missing 1 required keyword-only argument: 'g'"),  # noqa: ARG005
        (lambda updates, *, f: krum(updates.int(), f=f), "krum needs float32 or float64 updates"),
    ],
)
def test_a_custom_rule_is_tried_before_any_curve_starts(data, tmp_path, rule, message):
    watched = []
    with pytest.raises(PluginError, match=message) as caught:
        run(
            settings(data, "mean", "mine"),
            plugins=Plugins(rules={"mine": rule}),
            out=tmp_path / "run",
            watch=watched.append,
        )
    assert watched == []
    assert not (tmp_path / "run").exists()
    text = str(caught.value)
    assert "\n" not in text
    assert "rule 'mine'" in text
    assert "test_custom_code.py, line " in text


@pytest.mark.parametrize(
    ("pre", "message"),
    [
        (lambda updates, *, f: updates[0], r"must return floats of shape \(n, 903\); got \(903,\)"),  # noqa: ARG005
        (lambda updates, *, f: 1 / 0, "pre-aggregation '<lambda>' raised ZeroDivisionError"),  # noqa: ARG005
    ],
)
def test_a_custom_pre_aggregation_is_tried_too(data, pre, message):
    from holdout.rules import compose

    with pytest.raises(PluginError, match=message):
        run(settings(data, "mine"), plugins=Plugins(rules={"mine": compose(pre, "mean")}))


def test_a_custom_rule_may_be_infeasible_in_its_trial(data):
    def never(updates, *, f):
        return krum(updates[:2], f=f)

    result = run(settings(data, "mine"), plugins=Plugins(rules={"mine": never}))
    assert {line["outcome"] for line in result.rounds} == {"infeasible"}
    assert "no step in any round: mine" in result.notes


def test_a_stateful_rule_passes_its_trial_and_starts_with_nothing(data):
    seen = []

    def counting(updates, *, f, context):
        del f
        seen.append(context.state.get("n", torch.zeros(1)).item())
        context.state["n"] = context.state.get("n", torch.zeros(1)) + 1
        return updates.mean(dim=0)

    run(settings(data, "mine", rounds=2), plugins=Plugins(rules={"mine": counting}))
    assert seen == [0, 0, 0, 1]


# -------------------------------------------------------------------------------------- parameters


def scaled(updates, *, f, scale: float = 1.0, note="none"):
    del f, note
    return scale * updates.mean(dim=0)


def test_a_table_of_the_config_sets_parameters_of_rules(data, tmp_path):
    values = settings(
        data, "mine", "clipping+mean", "nnm+clipping+krum", federation={"assumed_byzantine": 1}
    )
    plain = run(values, plugins=Plugins(rules={"mine": scaled}))
    tables = {"rules": {"mine": {"scale": 2}, "clipping": {"radius": 1e-6}}}
    result = run(values | tables, plugins=Plugins(rules={"mine": scaled}), out=tmp_path / "run")
    stored = results.read_config(tmp_path / "run")
    assert stored["rules"] == tables["rules"]
    twice = run(values, plugins=Plugins(rules={"mine": lambda u, *, f: scaled(u, f=f, scale=2)}))

    def of(result, rule):
        return [(r["loss"], r["accuracy"]) for r in result.rounds if r["rule"] == rule]

    assert of(result, "mine") == of(twice, "mine") != of(plain, "mine")
    # A radius of next to nothing: no step worth the name.
    losses = [loss for loss, _ in of(result, "clipping+mean") if loss is not None]
    assert losses[0] == pytest.approx(losses[-1], rel=1e-4)
    assert of(result, "nnm+clipping+krum") != of(plain, "nnm+clipping+krum")
    # Whoever resumes with other parameters is told.
    other = {"rules": {**tables["rules"], "mine": {"scale": 3}}}
    with pytest.raises(RunFolderError, match=r"rules.mine was .*'scale': 2.*, is .*'scale': 3"):
        run(
            values | other,
            plugins=Plugins(rules={"mine": scaled}),
            out=tmp_path / "run",
            resume=True,
        )


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"mine": {"sclae": 2}}, "rules.mine.sclae = 2: unknown key; .*it has scale, note"),
        ({"mine": {"scale": "2"}}, "rules.mine.scale = '2': must be a valid number"),
        ({"mine": {"note": 2}}, "rules.mine.note = 2: must be a valid string"),
        ({"mine": {"f": 2}}, "rules.mine.f = 2: unknown key"),
        ({"krum": {"m": 2}}, "rules.krum.m = 2: unknown key; .*it has none"),
        (
            {"nnm": {"k": 2}},
            "rules.nnm: not a rule or pre-aggregation of experiment.rules; there "
            "are mine, clipping, krum$",
        ),
        ({"holdout": {"k": 2}}, r"rules.holdout: is a vote, whose settings are under \[vote\]"),
        ({"clipping": {"radius": True}}, "rules.clipping.radius = True: must be a valid number"),
        ({"clipping": {"radius": 0}}, "clipping needs radius > 0; got 0"),
        ({"clipping": 3}, "rules.clipping = 3: must be a table of parameters"),
        ({"mine": {"scale": float("inf")}}, "rules.mine = .*: must be text, a finite number"),
    ],
)
def test_a_mistake_in_such_a_table_is_told(data, tables, message):
    values = settings(data, "mine", "clipping+krum", "holdout", federation={"assumed_byzantine": 1})
    with pytest.raises(ConfigError, match=message) as caught:
        run(values | {"rules": tables}, plugins=Plugins(rules={"mine": scaled}))
    assert len(caught.value.problems) == 1


def test_parameters_come_from_the_command_line_too(command):
    code, _, err = command(["my_code:trim"], "rules.my_code:trim.keep=2")
    assert code == 0, err
    assert results.read_config(Path("run"))["rules"] == {"my_code:trim": {"keep": 2}}


# --------------------------------------------------------------------------- the code of a resumed


def interrupted_after(rounds):
    def watch(progress):
        if progress.rounds_done == rounds:
            raise KeyboardInterrupt

    return watch


@dataclass(frozen=True)
class Flip:
    scale: float = 1.0

    def __call__(self, view):
        return -self.scale * view.mean


def test_a_run_is_resumed_by_the_code_it_was_begun_with(data, tmp_path, beside_us):
    def begin(name, **plugins):
        with pytest.raises(KeyboardInterrupt):
            run(
                settings(data, "mean", attack={}),
                plugins=Plugins(**plugins),
                out=tmp_path / name,
                watch=interrupted_after(2),
            )

    def go_on(name, *, changed_code=False, **plugins):
        return run(
            settings(data, "mean", attack={}),
            plugins=Plugins(**plugins),
            out=tmp_path / name,
            resume=True,
            changed_code=changed_code,
        )

    # An object of a frozen dataclass is its code and its fields.
    begin("a", attack=Flip(2.0))
    before = tiny.contents(tmp_path / "a")
    with pytest.raises(
        RunFolderError, match=r"has changed .*attack 'Flip' \(test_custom_code.py\)"
    ):
        go_on("a", attack=Flip(3.0))
    assert tiny.contents(tmp_path / "a") == before, "a refused run was touched"
    assert not any("changed" in note for note in go_on("a", attack=Flip(2.0)).notes)
    # A worker that is there only later is a change, too.
    begin("b", attack=Flip(2.0))
    with pytest.raises(RunFolderError, match="has changed since the run began: worker"):
        go_on("b", attack=Flip(2.0), worker=Wrapped)
    result = go_on("b", attack=Flip(2.0), worker=Wrapped, changed_code=True)
    (note,) = [note for note in result.notes if "changed" in note]
    assert note.startswith("custom code was changed after round 2 of mean (Flip, seed 0): worker")
    # The note stays, also when the run is opened again.
    again = go_on("b", attack=Flip(2.0), worker=Wrapped)
    assert note in again.notes
    assert note in json.loads((tmp_path / "b" / "summary.json").read_text())["notes"]


def test_what_has_no_source_is_not_checked_and_a_note_says_so(data):
    namespace = {"__name__": "__main__"}
    exec("def typed(updates, *, f):\n    return updates.mean(dim=0)\n", namespace)
    result = run(settings(data, "mine"), plugins=Plugins(rules={"mine": namespace["typed"]}))
    assert "no source was found of rule 'mine': whether it changes cannot be told" in result.notes


def test_built_in_code_is_not_custom(data):
    result = run(settings(data, "mine"), plugins=Plugins(rules={"mine": mean}))
    assert "custom_code" not in result.summary
    assert not is_custom(mean)
    assert is_custom(Flip())
    assert definition_of(Flip()).endswith(f"line {Flip.__call__.__code__.co_firstlineno}")


# ---------------------------------------------------------------------------------------- scribbles


def scribble(*tensors):
    for tensor in tensors:
        if tensor is not None and tensor.numel():
            tensor.fill_(77.0 if tensor.is_floating_point() else 0)


def scribbling_attack(view):
    sent = -view.mean.clone()
    lies = [sent] * view.count
    outcome = view.deployed.outcome(lies)
    list(view.deployed.selects(view.mean, view.deviation, [0.1, 1.0]))
    scribble(view.weights, view.known, view.start, view.own_updates(), *view.held())
    scribble(view.messages(), view.own_messages(), outcome, view.baseline("mean").outcome(lies))
    with torch.no_grad():
        scribble(*view.model.parameters())
    view.model.add_module("extra", nn.Linear(1, 1))
    hoard.append(sent)
    return sent


def plain_attack(view):
    return -view.mean


hoard = []


def scribbling_ballots(view):
    scribble(*hoard)
    if hasattr(view, "shared"):
        own = view.own().clone()
        scribble(view.own(), view.shared.known, *view.shared.lies)
        scribble(view.shared.promoting, view.shared.opposing)
        return own
    ballot = view.honest_ballot()
    sent = list(ballot)
    ballot.clear()
    view.ranking().clear()
    return sent


def plain_ballots(view):
    return view.own() if hasattr(view, "shared") else view.honest_ballot()


class Scribbles(Wrapped):
    kept = ()

    def propose(self, weights, **facts):
        scribble(*self.kept)
        update = super().propose(weights.clone(), **facts)
        scribble(weights)
        with torch.no_grad():
            scribble(*self.honest.model.parameters())
        self.kept = (update,)
        hoard.append(update)
        return update

    def vote(self, weights, proposals, **facts):
        own = {p: update.clone() for p, update in proposals.items()}
        ballot = super().vote(weights.clone(), own, **facts)
        scribble(weights, *proposals.values())
        if isinstance(proposals, dict):
            proposals.clear()
        return ballot


def scribbling_rule(updates, *, f, context):
    result = updates.mean(dim=0)
    if context.round_number > 1:
        scribble(updates)
    scribble(context.weights, *context.state.values())
    context.state["x"] = torch.ones(2)
    hoard.append(result)
    return result


def plain_rule(updates, *, f, context):
    context.state["x"] = torch.ones(2)
    return updates.mean(dim=0)


@pytest.mark.parametrize("momentum", [0.0, 0.5])
@pytest.mark.parametrize("knowledge", ["omniscient", "coalition", "last-round"])
def test_custom_code_that_scribbles_over_all_it_is_given_changes_nothing(data, knowledge, momentum):
    values = settings(
        data,
        "mine",
        "krum",
        "holdout",
        "holdout-1",
        federation={"assumed_byzantine": 1, "byzantine": 3},
        training={"worker_momentum": momentum},
        attack={"knowledge": knowledge},
    )
    tidy = Plugins(
        rules={"mine": plain_rule}, attack=plain_attack, ballots=plain_ballots, worker=Wrapped
    )
    scribbling = Plugins(
        rules={"mine": scribbling_rule},
        attack=scribbling_attack,
        ballots=scribbling_ballots,
        worker=Scribbles,
    )
    hoard.clear()
    expected = lines(run(values, plugins=tidy)).replace("plain_attack", "?")
    assert lines(run(values, plugins=scribbling)).replace("scribbling_attack", "?") == expected
    assert hoard


@pytest.mark.parametrize("what", ["x", "y"])
def test_a_worker_that_changes_the_data_that_all_share_is_refused(data, what):
    class Spoils(Wrapped):
        def propose(self, weights, **facts):
            scribble(getattr(self.honest.shard, what))
            return super().propose(weights, **facts)

    with pytest.raises(PluginError, match=r"worker \d+ changed in place the data that all workers"):
        run(settings(data, "mean"), plugins=Plugins(worker=Spoils))

    def spoils(worker):
        scribble(getattr(worker.shard, what))
        return worker

    with pytest.raises(PluginError, match="custom worker changed in place the data"):
        run(settings(data, "mean"), plugins=Plugins(worker=spoils))


def test_a_model_that_changes_its_input_is_refused(data):
    def factory(shape, classes):
        return nn.Sequential(nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(shape[0], classes))

    with pytest.raises(ModelError, match="must leave its input as it is"):
        build(factory, (5,), 3, seed=0)
    with pytest.raises(ConfigError, match=r"model\.name = 'factory': a model must leave its input"):
        run(settings(data, "mean"), plugins=Plugins(model=factory))

    def harmless(shape, classes):
        return nn.Sequential(nn.Linear(shape[0], 8), nn.ReLU(inplace=True), nn.Linear(8, classes))

    build(harmless, (5,), 3, seed=0)


def test_a_model_that_raises_while_it_is_tested_is_told_apart_from_ours(data):
    class Fussy(nn.Module):
        def __init__(self, inputs, classes):
            super().__init__()
            self.layer = nn.Linear(inputs, classes)

        def forward(self, x):
            if len(x) > 50:
                raise RuntimeError("too many")
            return self.layer(x)

    with pytest.raises(RunFailed, match=r"raised RuntimeError: too many \(.*test_custom_code.py"):
        run(
            settings(data, "mean"),
            plugins=Plugins(model=lambda shape, classes: Fussy(shape[0], classes)),
        )


def test_run_failed_is_an_error_that_holds_its_result():
    assert RunFailed("nothing", "the result").result == "the result"
