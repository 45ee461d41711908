"""Custom parts that end the program, answer with the wrong thing or write on what they are given.

Each is told with file and line; none ends a run without a word, none changes a result in silence.
"""

import json
from pathlib import Path

import pytest
from tests import tiny

from holdout.commands import run_command
from holdout.errors import ConfigError, DataError, PluginError, RunFailed
from holdout.experiments.runner import run
from holdout.tracebacks import failure_of, summary_of

CODE = """
import sys
from itertools import count

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy


class Wrapped:
    def __init__(self, inner):
        self.inner = inner

    def propose(self, weights, **facts):
        return self.inner.propose(weights, **facts)

    def vote(self, weights, proposals, **facts):
        return self.inner.vote(weights, proposals, **facts)


class Leaves(Wrapped):
    def propose(self, weights, **facts):
        sys.exit("I leave")


class Short(Wrapped):
    def propose(self, weights, **facts):
        return torch.zeros(3)


class Forgets(Wrapped):
    def propose(self, weights, **facts):
        self.inner.propose(weights, **facts)


class Endless(Wrapped):
    def propose(self, weights, **facts):
        return weights / 0


class Spoils(Wrapped):
    def propose(self, weights, **facts):
        self.inner.shard.x.mul_(2)
        return self.inner.propose(weights, **facts)


def leaving_rule(updates, *, f, context):
    if context.round_number > 1:
        sys.exit(0)
    return updates.mean(dim=0)


def sparse_rule(updates, *, f):
    return updates.mean(dim=0).to_sparse()


def elsewhere_rule(updates, *, f):
    return updates.mean(dim=0).to("meta")


class Mute(Exception):
    def __str__(self):
        raise ValueError("no text")


def mute_rule(updates, *, f):
    raise Mute


def leaving_attack(view):
    sys.exit(0)


def text_attack(view):
    return "lies"


def many_attack(view):
    return [view.mean] * 99


def word_ballots(view):
    return "abc"


def silent_ballots(view):
    return None


def writing_loss(outputs, targets):
    losses = cross_entropy(outputs, targets, reduction="none")
    targets.zero_()
    return losses


def writing_loss_in_tests(outputs, targets):
    losses = cross_entropy(outputs, targets, reduction="none")
    if not outputs.requires_grad:
        targets.zero_()
    return losses


def short_loss(outputs, targets):
    return cross_entropy(outputs, targets)


def negative_schedule(t, rounds, eta):
    return -eta


def leaving_schedule(t, rounds, eta):
    sys.exit(0)


def augment(x, y, generator):
    return x[:, :1], y


class Scribbler(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.layer = nn.Linear(shape[0], classes)

    def forward(self, x):
        return self.layer(x.mul_(2))


def leaving_factory(shape, classes):
    sys.exit(0)


def no_loader():
    return None


def leaving_loader():
    sys.exit(0)


class Poison:
    def __call__(self, view):
        return -view.mean

    def poison_labels(self, labels, classes):
        return labels.float()


class NoWorker:
    def __init__(self, inner):
        pass


class Narrow(Wrapped):
    def propose(self, weights):
        return weights


def bent_rule(updates, *, f, context):
    return updates[:, : 2 if context.round_number > 1 else None].mean(dim=0)


def detached_loss(outputs, targets):
    return cross_entropy(outputs.detach(), targets, reduction="none")


class Detached(nn.Linear):
    def forward(self, x):
        return super().forward(x).detach()


def detached_factory(shape, classes):
    return Detached(shape[0], classes)


NUMBERS = count()


def random_factory(shape, classes):
    model = nn.Linear(shape[0], classes)
    nn.init.constant_(model.bias, next(NUMBERS))
    return model


def few_shards(labels, workers, rng):
    return [[0]]


def random_shards(labels, workers, rng):
    return [np.random.permutation(len(labels))[:30] for _ in range(workers)]
"""


def place_of(text):
    return f"(parts.py, line {1 + CODE[: CODE.index(text)].count(chr(10))})"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return tiny.write_data(tmp_path_factory.mktemp("data"))


@pytest.fixture
def values(data, tmp_path, monkeypatch):
    """A function from rules and settings to a config, in a folder that holds the code."""
    monkeypatch.chdir(tmp_path)
    with tiny.beside_code("parts", CODE, data) as make:
        yield make


# ---------------------------------------------------------------------------- what ends the program


@pytest.mark.parametrize(
    ("rule", "change", "kind", "place"),
    [
        ("mean", "federation.worker=parts:Leaves", "propose", 'sys.exit("I leave")'),
        ("parts:leaving_rule", "attack.name=sign-flip", "aggregate", "sys.exit(0)\n    return"),
        ("mean", "attack.name=parts:leaving_attack", "lie", "sys.exit(0)\n\n\ndef text_attack"),
    ],
)
def test_code_that_exits_in_a_round_is_counted_and_told(values, rule, change, kind, place):
    said = []
    try:
        result = run(values([rule], change), say=said.append)
    except RunFailed as failed:
        result = failed.result
    assert len(result.rounds) == 3
    assert sum(line.get("custom_errors", {}).get(kind, 0) for line in result.rounds) > 0
    assert "raised SystemExit" in said[0]
    assert place_of(place) in said[0]


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ("model.name=parts:leaving_factory", "sys.exit(0)\n\n\ndef no_loader"),
        ("data.name=parts:leaving_loader", "sys.exit(0)\n\n\nclass Poison"),
        ("training.schedule=parts:leaving_schedule", "sys.exit(0)\n\n\ndef augment"),
    ],
)
def test_code_that_exits_before_there_is_a_round_is_an_error(values, capsys, change, place):
    Path("odd.json").write_text(json.dumps(values(["mean"], change)))
    config = json.loads(Path("odd.json").read_text())
    sets = [f"--set={s}.{k}={json.dumps(v)}" for s, keys in config.items() for k, v in keys.items()]
    Path("odd.toml").write_text("")
    assert run_command(["run", "odd.toml", "--out", "run", *sets]) == 2
    err = capsys.readouterr().err
    assert "SystemExit" in err
    assert place_of(place) in err


# ---------------------------------------------------------------------------------- the wrong thing


@pytest.mark.parametrize(
    ("worker", "got"),
    [
        ("Short", "got torch.float32 of shape (3,)"),
        ("Forgets", "got NoneType"),
        ("Endless", "got some that are not finite"),
    ],
)
def test_a_worker_that_sends_no_update_is_told_with_its_place(values, worker, got):
    said = []
    with pytest.raises(RunFailed, match="the first error: worker") as failed:
        run(values(["mean"], f"federation.worker=parts:{worker}"), say=said.append)
    place = place_of(f"def propose(self, weights, **facts):\n        {BODIES[worker]}")
    for text in (str(failed.value), said[0]):
        assert f"must return 903 finite floats, one for each weight; {got} {place}" in text
    for line in failed.value.result.rounds:
        assert line["custom_errors"] == {"propose": line["honest_missing"]}
    assert failed.value.result.summary["custom_errors"]["first"]["traceback"] is None


def test_a_worker_that_cannot_be_asked_is_told_with_its_place(values):
    with pytest.raises(RunFailed, match="unexpected keyword argument 'round_number'") as failed:
        run(values(["mean"], "federation.worker=parts:Narrow"))
    assert place_of("def propose(self, weights):") in str(failed.value)


BODIES = {
    "Short": "return torch.zeros(3)",
    "Forgets": "self.inner.propose(weights, **facts)\n\n\nclass Endless",
    "Endless": "return weights / 0",
}


@pytest.mark.parametrize(
    ("rule", "changes", "message", "place"),
    [
        ("parts:sparse_rule", [], "got torch.float32 of shape (903,), sparse_coo", "def sparse_r"),
        ("parts:elsewhere_rule", [], "got torch.float32 of shape (903,), on meta", "def elsewh"),
        ("parts:mute_rule", [], "raised Mute: (its text cannot be told", "raise Mute"),
        ("mean", ["attack.name=parts:text_attack"], "got str", "def text_attack"),
        ("mean", ["attack.name=parts:many_attack"], "got 99", "def many_attack"),
        ("mean", ["federation.worker=parts:Spoils"], "changed in place the data", "SPOILS"),
        ("mean", ["federation.worker=parts:NoWorker"], "must have propose and vote", "NOWORKER"),
        ("mean", ["training.loss=parts:writing_loss"], "the targets", "def writing_loss("),
        ("mean", ["training.loss=parts:short_loss"], "one float32 for each", "def short_loss"),
        ("mean", ["training.schedule=parts:negative_schedule"], "above 0", "def negative_s"),
        ("mean", ["data.augment=parts:augment"], "data.augment must return", "def augment"),
        ("mean", ["data.augment=parts:augment"], "like those that it got, torch.fl", "def augment"),
        ("parts:bent_rule", [], "floats of shape (903,); got torch.float32 of", "def bent_rule"),
        (
            "parts:bent_rule",
            ["attack.name=alie", "attack.gamma=adaptive"],
            "floats of shape (903,); got torch.float32 of",
            "def bent_rule",
        ),
        (
            "parts:bent_rule",
            ["attack.name=greedy"],
            "floats of shape (903,); got torch.float32 of",
            "def bent_rule",
        ),
        ("mean", ["training.loss=parts:detached_loss"], "has no gradient", "def detached_loss"),
        ("mean", ["model.name=parts:detached_factory"], "have no gradient", "def detached_fac"),
        ("mean", ["model.name=parts:random_factory"], "same weights whenever", "def random_fac"),
        ("mean", ["data.partition=parts:few_shards"], "for each of 10 workers", "def few_shards"),
        ("mean", ["data.partition=parts:random_shards"], "the same rows for", "def random_sh"),
        ("mean", ["attack.name=parts:Poison"], "poison_labels must return", "def poison_l"),
        ("mean", ["model.name=parts:Scribbler"], "must leave its input as it is", "SCRIBBLER"),
        ("mean", ["data.name=parts:no_loader"], "must be a Dataset or", "def no_loader"),
    ],
)
def test_what_answers_wrongly_is_told_with_file_and_line(values, rule, changes, message, place):
    within = {"SPOILS": "class Spoils", "NOWORKER": "class NoWorker", "SCRIBBLER": "class Scribb"}
    start = CODE.index(within.get(place, place))
    line = 1 + CODE[: CODE.index("def ", start) if place in within else start].count("\n")
    with pytest.raises((PluginError, ConfigError, DataError)) as caught:
        run(values([rule], *changes))
    assert message in str(caught.value)
    assert f"(parts.py, line {line})" in str(caught.value)


def test_a_loss_that_writes_on_its_targets_leaves_the_data_as_they_are(values):
    with pytest.raises(PluginError, match="changed in place the targets; it must work on a copy"):
        run(values(["mean"], "training.loss=parts:writing_loss_in_tests"))


def test_an_exception_without_a_text_has_a_summary_and_a_traceback():
    class Mute(Exception):  # noqa: N818
        def __str__(self):
            raise ValueError("no text")

    with pytest.raises(Mute) as caught:
        raise Mute
    assert summary_of(caught.value) == "Mute: (its text cannot be told: that raised ValueError)"
    assert "in test_an_exception" in failure_of("run", "code", caught.value).traceback


# ------------------------------------------------------------------------------------ void ballots


@pytest.mark.parametrize("rule", ["holdout", "holdout-1", "holdout-paper", "flshield"])
def test_liars_whose_ballots_are_all_void_prove_little(values, rule):
    def told(ballots):
        notes = run(values([rule], f"attack.voters={ballots}")).notes
        return [note for note in notes if note.startswith("every ballot that liars sent was void")]

    (note,) = told("parts:word_ballots")
    assert note.startswith("every ballot that liars sent was void, so none of their votes counted:")
    assert not told("parts:silent_ballots"), "who says nothing sends nothing"
    assert not told("coalition")
