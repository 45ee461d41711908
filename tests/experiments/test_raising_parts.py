"""A model, a loss, an augmentation or an attack on ballots that raises is counted, round by round.

What cannot be counted, since there is no round yet, ends the run with one line that names the file.
"""

import json
from pathlib import Path

import pytest
from tests import tiny

from holdout import results
from holdout.commands import run_command
from holdout.errors import RunFailed
from holdout.experiments.curves import final_table
from holdout.experiments.runner import run

CODE = """
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy


class Odd(torch.nn.Module):
    def __init__(self, shape, classes, is_odd):
        super().__init__()
        self.layer, self.is_odd = torch.nn.Linear(shape[0], classes), is_odd

    def forward(self, x):
        if self.is_odd(x):
            raise ValueError("an odd row")
        return self.layer(x)


def batches(shape, classes):
    return Odd(shape, classes, lambda x: len(x) == 8 and float(x[0, 0]) > 0)


def votes(shape, classes):
    return Odd(shape, classes, lambda x: len(x) not in (8, 60) and float(x.max()) > 2.2)


def tests(shape, classes):
    return Odd(shape, classes, lambda x: len(x) == 60)


def together(shape, classes):
    calls = []
    return Odd(shape, classes, lambda x: len(x) == 8 and calls.append(1) is None and len(calls) < 2)


def factory(shape, classes):
    if Path("run/model").exists() and not Path("mended").exists():
        raise KeyError("later")
    return torch.nn.Linear(shape[0], classes)


def loss(outputs, targets):
    if outputs.requires_grad and (targets == 1).sum() > 3:
        raise ValueError("no loss")
    return cross_entropy(outputs, targets, reduction="none")


def augment(x, y, generator):
    if torch.rand(1, generator=generator) < 0.3:
        raise ValueError("no image")
    return x, y


def schedule(t, rounds, eta):
    return eta / (t - 1)


def partition(labels, workers, rng):
    if rng.integers(1000) == 82:  # That of seed 1.
        raise ValueError("no rows")
    return [range(30)] * workers


def ballots(view):
    if view.voter % 2:
        raise ValueError("no idea")
    return None


def dead(view):
    return view.nothing


class Picture:
    target = 0

    def __call__(self, view):
        return -view.mean

    def put_trigger(self, x):
        raise ValueError("no picture")


class Poison:
    def __call__(self, view):
        return -view.mean

    def poison_labels(self, labels, classes):
        raise ValueError("no label")
"""


def place_of(text):
    return f"(odd_code.py, line {1 + CODE[: CODE.index(text)].count(chr(10))})"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return tiny.write_data(tmp_path_factory.mktemp("data"))


@pytest.fixture
def values(data, tmp_path, monkeypatch):
    """A function from rules and settings to a config, in a folder that holds the code."""
    monkeypatch.chdir(tmp_path)
    with tiny.beside_code("odd_code", CODE, data) as make:
        yield make


@pytest.fixture
def command(values, capsys):
    """A function: (exit code, output, errors) of `holdout run` with rules and settings."""

    def call(rules, *changes, more=()):
        config = values(rules, *changes)
        Path("odd.json").write_text(json.dumps(config))
        sets = [
            f"--set={section}.{key}={json.dumps(value)}"
            for section, keys in config.items()
            for key, value in keys.items()
        ]
        Path("odd.toml").write_text("")
        code = run_command(["run", "odd.toml", "--out", "run", *sets, *more])
        return code, *capsys.readouterr()

    return call


# ---------------------------------------------------------------------------- counted in rounds


@pytest.mark.parametrize(
    ("setting", "raised"),
    [
        ("model.name=odd_code:batches", "the model raised ValueError: an odd row"),
        ("training.loss=odd_code:loss", "the loss odd_code:loss raised ValueError: no loss"),
        ("data.augment=odd_code:augment", "data.augment raised ValueError: no image"),
    ],
)
def test_what_keeps_honest_workers_from_proposing_makes_proposals_missing(values, setting, raised):
    said = []
    result = run(values(["mean"], setting), say=said.append)
    missing = [line.get("honest_missing", 0) for line in result.rounds]
    assert [line.get("custom_errors", {}).get("propose", 0) for line in result.rounds] == missing
    assert [line["rejected_proposals"].get("missing", 0) for line in result.rounds] == missing
    honest = sum(len(line["proposers"]) - line["byzantine_proposers"] for line in result.rounds)
    assert 0 < sum(missing) < honest
    place = place_of(f'raise ValueError("{raised.partition("Error: ")[2]}")')
    assert f"asked to propose: {raised} {place} in round " in said[0]
    (row,) = final_table(result.rounds)
    assert row.honest_missing == sum(missing) / honest > 0.1
    assert "% missing)" in row.measured_text()


@pytest.mark.parametrize("rule", ["holdout-1", "holdout", "flshield"])
def test_a_model_that_raises_when_voters_judge_makes_votes_missing(values, rule):
    said, settings = [], values([rule], "model.name=odd_code:votes")
    if rule == "flshield":  # Whose voters look at a few rows of each class, ten here by chance.
        with pytest.raises(RunFailed, match="no honest vote arrived in any round of FLShield"):
            run(settings, say=said.append)
        assert "asked to report: the model raised ValueError: an odd row" in said[0]
        return
    result = run(settings, say=said.append)
    raised = sum(line.get("custom_errors", {}).get("vote", 0) for line in result.rounds)
    assert "the model raised ValueError: an odd row" in said[0]
    silent = sum(
        ballot is None and voter not in line["byzantine_workers"]
        for line in result.rounds
        for voter, ballot in zip(line["voters"], line["ballots"], strict=True)
    )
    assert 0 < raised == silent
    assert any("more than a tenth of the honest votes are missing" in n for n in result.notes)


def test_an_attacker_foresees_who_is_silent(values):
    settings = ["model.name=odd_code:votes", "attack.name=ipm", "attack.gamma=adaptive"]
    settings.append("experiment.rules=['holdout-1']")
    config = values([], *settings)
    result = run(config)
    assert any(line.get("custom_errors", {}).get("vote") for line in result.rounds)
    assert not any("lie" in line.get("custom_errors", {}) for line in result.rounds)
    assert any(line["gamma"] for line in result.rounds)


def test_what_raises_with_all_together_alone_is_counted_and_nothing_is_missing(values):
    result = run(values(["mean"], "model.name=odd_code:together"))
    assert [line.get("custom_errors", {}) for line in result.rounds] == [{"propose": 1}, {}, {}]
    assert not any("honest_missing" in line for line in result.rounds)


def test_a_model_that_raises_when_it_is_tested_measures_nothing(command):
    code, out, err = command(["mean"], "model.name=odd_code:tests")
    assert code == 1
    assert "holdout: custom code raised in every evaluation of mean; the first error" in err
    assert place_of('raise ValueError("an odd') in err.splitlines()[-1]
    assert "custom code raised when the model was evaluated" in out
    rows = results.read_run("run").rows
    # Before round 1, after round 2 and at the end; training goes on.
    assert [row.get("custom_errors") for row in rows] == [{"evaluate": 1}] * 3
    assert [row["outcome"] for row in rows] == ["step"] * 3


def test_a_trigger_that_raises_leaves_the_accuracy(values):
    config = values(["mean"], "attack.name=odd_code:Picture")
    result = run(config)
    assert result.accuracy("mean") > 0
    assert result.rounds[-1]["custom_errors"] == {"evaluate": 1}
    assert "attack_success" not in result.rounds[-1]


@pytest.mark.parametrize("rule", ["holdout-1", "holdout", "flshield"])
def test_liars_whose_attack_on_ballots_raises_are_silent(values, rule):
    said, asked = [], []
    result = run(values([rule], "attack.voters=odd_code:ballots"), say=said.append)
    for line in result.rounds:
        liars = [voter for voter in line["voters"] if voter in line["byzantine_workers"]]
        raised = line.get("custom_errors", {}).get("ballot", 0)
        assert raised == sum(voter % 2 for voter in liars)
        asked.extend(liars)
    assert 0 < sum(voter % 2 for voter in asked) < len(asked)
    place = place_of('raise ValueError("no idea")')
    assert f"the attack on ballots raised ValueError: no idea {place} in round" in said[0]
    assert any("the attack on ballots raised in some rounds" in note for note in result.notes)


def test_an_attack_on_ballots_that_raises_in_every_round_fails_the_run(command):
    code, _, err = command(["holdout-1"], "attack.voters=odd_code:dead")
    assert code == 1
    last = err.splitlines()[-1]
    assert last.startswith("holdout: the attack on ballots raised in every round of")
    assert place_of("return view.nothing") in last
    assert len(results.read_run("run").rows) == 3


def test_without_a_server_a_model_that_raises_is_counted_too(values):
    settings = {
        "federation.mode": '"decentralized"',
        "federation.byzantine": 3,
        "federation.assumed_byzantine": 3,
        "federation.proposers": 9,
        "federation.voters": 9,
        "federation.disjoint": "false",
        "training.momentum": 0.0,
        "experiment.rounds": 1,
    }
    changes = [f"{key}={value}" for key, value in settings.items()]
    result = run(values(["holdout"], "model.name=odd_code:batches", *changes), say=lambda _: None)
    (line,) = result.rounds
    assert 0 < line["honest_missing"] <= line["custom_errors"]["propose"]


# ------------------------------------------------------------------------- before there is a round


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        (["training.schedule=odd_code:schedule"], "return eta / (t - 1)"),
        (
            ["data.partition=odd_code:partition", "experiment.seeds=[0, 1]"],
            'raise ValueError("no rows',
        ),
        (["attack.name=odd_code:Poison", "experiment.baseline=true"], 'raise ValueError("no label'),
    ],
)
def test_what_fails_before_the_first_round_is_one_line_with_file_and_line(command, changes, place):
    code, _, err = command(["mean"], *changes)
    assert code == 2
    assert place_of(place) in err
    assert "Traceback" not in err
    assert not Path("run").exists()


def test_a_factory_that_fails_between_curves_keeps_what_is_done(command):
    rules, name = ["mean", "median"], "model.name=odd_code:factory"
    code, _, err = command(rules, name)
    assert code == 2
    assert f"the factory failed: KeyError: 'later' {place_of('raise KeyError')}" in err
    assert "Everything done so far is kept" in err
    summary = json.loads(Path("run/summary.json").read_text())
    assert "raise KeyError" in summary["custom_errors"]["first"]["traceback"]
    assert [curve["rule"] for curve in summary["curves"]] == ["mean"]
    Path("mended").touch()
    code, _, _ = command(rules, name, more=["--resume"])
    assert code == 0
    summary = json.loads(Path("run/summary.json").read_text())
    assert [curve["rule"] for curve in summary["curves"]] == rules
    assert "custom_errors" not in summary
