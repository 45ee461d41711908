"""From a config to what will be run: every name and number checked, all mistakes at once."""

import sys
from dataclasses import replace
from fractions import Fraction
from types import SimpleNamespace

import pytest
import torch
from tests import tiny

from holdout import Config
from holdout.data.datasets import Dataset, load
from holdout.errors import ConfigError, DataError
from holdout.experiments.plan import make_plan
from holdout.experiments.plugins import Plugins
from holdout.experiments.resolve_names import notes_on_vote, terms_of
from holdout.voting import Gate, Quorum, Terms

OWN_CODE = """
import torch

text = "not callable"

def rule(updates, *, f):
    return updates.mean(dim=0)

def pre(updates, *, f, context):
    context.state["last"] = updates[0]
    return updates

def attack(view, strength=2.0, gamma="adaptive"):
    return -strength * view.mean

class Attack:
    def __init__(self, scale):
        self.scale = scale
    def __call__(self, view):
        return self.scale * view.mean

class Failing:
    def __init__(self):
        raise LookupError("lost")

class Useless:
    pass

def ballots(view):
    return view.own

class Ballots:
    def __call__(self, view):
        return view.own

def model(shape, classes):
    return torch.nn.Linear(shape[0], classes)

def wrong_model(shape, classes):
    return torch.nn.Linear(shape[0] + 1, classes)

def loader():
    x = torch.eye(6).repeat(20, 1)
    y = torch.arange(120) % 6
    return x, y, x, y
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return tiny.write_data(tmp_path_factory.mktemp("data"))


@pytest.fixture
def own_code(tmp_path, monkeypatch):
    """A file `own_plan_code.py` in the working directory, forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_plan_code.py").write_text(OWN_CODE)
    yield
    sys.modules.pop("own_plan_code", None)


def problems(values, plugins=None):
    with pytest.raises(ConfigError) as caught:
        make_plan(values, plugins)
    return list(caught.value.problems)


def named(name, **parameters):
    return {"name": f"own_plan_code:{name}", **parameters}


def test_each_seed_runs_the_baseline_and_each_rule_in_the_order_given(data):
    plan = make_plan(tiny.values(data, experiment={"rules": ["holdout", "mean"], "seeds": [3, 1]}))
    assert [(curve.rule, curve.attack, seed) for curve, seed in plan.curves] == [
        ("mean", "none", 3),
        ("holdout", "bomb", 3),
        ("mean", "bomb", 3),
        ("mean", "none", 1),
        ("holdout", "bomb", 1),
        ("mean", "bomb", 1),
    ]


@pytest.mark.parametrize(
    ("rules", "attack", "baseline", "expected"),
    [
        (["krum"], "none", True, [("mean", "none"), ("krum", "none")]),
        (["krum", "mean"], "none", True, [("krum", "none"), ("mean", "none")]),
        (["mean"], "none", False, [("mean", "none")]),
        (["mean"], "alie", False, [("mean", "alie")]),
        (["mean"], "alie", True, [("mean", "none"), ("mean", "alie")]),
    ],
)
def test_the_baseline_is_there_once_if_it_is_wanted(data, rules, attack, baseline, expected):
    values = tiny.values(
        data,
        experiment={"rules": rules, "seeds": [0], "baseline": baseline},
        federation={"assumed_byzantine": 0},
    )
    plan = make_plan(values | {"attack": {"name": attack}})
    assert [(curve.rule, curve.attack) for curve, _ in plan.curves] == expected


def test_every_rule_of_a_seed_meets_the_same_liars_shards_and_weights(data):
    plan = make_plan(tiny.values(data))
    federations = [plan.federation(curve, seed) for curve, seed in plan.curves]
    baseline, mean, holdout, *other_seed = federations
    assert (len(baseline.byzantine), len(mean.byzantine)) == (0, 4)
    assert mean.byzantine == holdout.byzantine
    assert torch.equal(mean.initial_weights, holdout.initial_weights)
    assert torch.equal(baseline.initial_weights, mean.initial_weights)
    for a, b in zip(mean.workers, holdout.workers, strict=True):
        assert torch.equal(a.shard.rows, b.shard.rows)
    assert not torch.equal(mean.initial_weights, other_seed[1].initial_weights)


def test_own_workers_take_the_place_of_honest_ones_only(data):
    wrapped = []

    def worker(inner):
        wrapped.append(inner.worker_id)
        return inner

    plan = make_plan(tiny.values(data), Plugins(worker=worker))
    curve, seed = plan.curves[1]
    wrapped.clear()
    federation = plan.federation(curve, seed)
    assert set(wrapped) == set(range(10)) - federation.byzantine


def test_only_liars_hold_poisoned_labels(data):
    plan = make_plan(tiny.values(data) | {"attack": {"name": "label-flip"}})
    curve, seed = plan.curves[1]
    federation = plan.federation(curve, seed)
    for number, worker in enumerate(federation.workers):
        honest = torch.equal(worker.shard.y, plan.dataset.y_train)
        assert honest == (number not in federation.byzantine)


def test_the_paper_s_terms_do_not_depend_on_the_hardening(data):
    plan = make_plan(tiny.values(data, vote={"gate": "zero", "quorum": "paper", "bound": False}))
    f = Fraction(33, 100)
    assert terms_of(plan.config, "holdout-paper") == Terms.paper(f)
    assert terms_of(plan.config, "holdout-1") == Terms(
        f, gate=Gate.ZERO, quorum_kind=Quorum.PAPER, bound=False
    )
    assert terms_of(plan.config, "holdout") == Terms.joint(f)


def test_the_terms_of_joint_ballots_are_those_of_the_config(data):
    changed = {"screen": False, "memory": 0.25, "scoring": "first-order"}
    plan = make_plan(tiny.values(data, vote=changed))
    f = Fraction(33, 100)
    assert terms_of(plan.config, "holdout") == replace(Terms.joint(f), screen=False, memory=0.25)
    assert terms_of(plan.config, "holdout-1") == Terms(f, first_order=True)


@pytest.mark.parametrize("scoring", ["exact", "first-order"])
def test_without_a_server_holdout_is_approvals_judged_to_first_order(scoring, data):
    plan = make_plan(
        tiny.values(
            data,
            experiment={"rules": ["holdout", "holdout-1", "holdout-central"]},
            vote={"gate": "zero", "scoring": scoring},
            federation={"mode": "decentralized", "byzantine": 3},
            training={"momentum": 0.0},
        )
    )
    approvals = Terms(plan.config.federation.f, gate=Gate.ZERO)
    to_first_order = replace(approvals, first_order=True)
    assert terms_of(plan.config, "holdout") == to_first_order
    assert terms_of(plan.config, "holdout-central") == to_first_order
    expected = to_first_order if scoring == "first-order" else approvals
    assert terms_of(plan.config, "holdout-1") == expected


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"experiment": {"rules": ["kum"]}}, "experiment.rules = 'kum': unknown; there are mean,"),
        ({"attack": {"name": "x"}}, "attack.name = 'x': unknown; there are alie,"),
        ({"attack": {"voters": "x"}}, "attack.voters = 'x': unknown; there are honest,"),
        ({"model": {"name": "x"}}, "model.name = 'x': unknown; there are mlp, lenet5"),
        ({"data": {"name": "x"}}, "data.name = 'x': unknown; there are mnist, cifar10,"),
        ({"attack": {"scal": 3}}, "attack.scal = 3: unknown key; not a parameter of 'bomb' (it"),
        ({"attack": {"scale": "1e4"}}, "attack.scale = '1e4': must be a valid number"),
        ({"attack": {"scale": True}}, "attack.scale = True: must be a valid number"),
        ({"attack": {"scale": [1.0]}}, "attack.scale = [1.0]: must be a valid number"),
        (
            {"federation": {"workers": 100, "proposers": 30}, "experiment": {"rules": ["bulyan"]}},
            "experiment.rules = 'bulyan': infeasible with federation.proposers = 30 and "
            "federation.assumed_byzantine = 0.33: bulyan needs n >= 4f + 3 updates; got n=30, f=9",
        ),
        (
            {"federation": {"proposers": 4}, "experiment": {"rules": ["krum"]}},
            "experiment.rules = 'krum': infeasible with federation.proposers = 4 and",
        ),
        (
            {"data": {"samples_per_worker": 121}},
            "data.samples_per_worker = 121: must be at most the 120 training rows of npz",
        ),
        (
            {"data": {"partition": "shards", "labels_per_worker": 4}},
            "data.labels_per_worker = 4: must be at most the 3 classes of npz",
        ),
        (
            {"data": {"name": "mnist", "samples_per_worker": 60_001}},
            "data.samples_per_worker = 60001: must be at most the 60000 training rows of mnist",
        ),
        ({"model": {"name": "lenet5"}}, "model.name = 'lenet5': lenet5 needs images"),
    ],
)
def test_an_unknown_name_or_impossible_number_is_named(data, changes, problem):
    (found,) = problems(tiny.values(data, **changes))
    assert found.startswith(problem)


def test_a_name_that_is_nearly_right_is_suggested(data):
    (found,) = problems(tiny.values(data, experiment={"rules": ["kum"]}))
    assert found.endswith("or \"package.module:name\"; did you mean 'krum'?")


def test_parameters_of_attacks_are_strict(data):
    values = tiny.values(data)
    assert problems(values | {"attack": {"name": "mimic", "target": True}}) == [
        "attack.target = True: must be a valid integer"
    ]
    assert problems(values | {"attack": {"name": "none", "scale": 1.0}}) == [
        "attack.scale = 1.0: unknown key; not a parameter of 'none' (it has none)"
    ]
    plan = make_plan(values | {"attack": {"name": "bomb", "scale": 3}})
    assert plan.curves[1][0].act.scale == 3


def test_mistakes_of_all_kinds_are_reported_together(data):
    values = tiny.values(
        data,
        experiment={"rules": ["kum", "nowhere_at_all:rule"], "rounds": -1},
        model={"name": "x"},
        data={"name": "y"},
        vote={"samples": 31},
    )
    values["attack"] = {"name": "z", "voters": "v"}
    assert sorted(p.split(":")[0] for p in problems(values)) == [
        "attack.name = 'z'",
        "attack.voters = 'v'",
        "data.name = 'y'",
        "experiment.rounds = -1",
        "experiment.rules = 'kum'",
        "experiment.rules = 'nowhere_at_all",
        "model.name = 'x'",
        "vote.samples = 31",
    ]


@pytest.mark.parametrize(
    "federation",
    [{"assumed_byzantine": 0.6}, {"assumed_byzantine": "x"}, {"workers": "x"}, {"proposers": 0}],
)
def test_rules_are_not_blamed_for_other_mistakes(data, federation):
    rules = ["bulyan", "krum", "trimmed-mean", "median"]
    found = problems(tiny.values(data, experiment={"rules": rules}, federation=federation))
    assert len(found) == 1
    assert "infeasible" not in found[0]


@pytest.mark.parametrize("name", ["idx", "npz"])
def test_own_files_need_a_path(data, name):
    values = tiny.values(data)
    values["data"] = {"name": name, "samples_per_worker": 30}
    assert problems(values) == [f"data.name = {name!r}: data.path must say where the data is"]


@pytest.mark.parametrize("name", ["npz", "mnist", "cifar10", "idx"])
def test_a_missing_data_path_is_named(data, tmp_path, name):
    missing = tmp_path / "nowhere"
    with pytest.raises(DataError, match=str(missing)):
        make_plan(tiny.values(data, data={"name": name, "path": str(missing)}))


def test_own_code_may_be_named(data, own_code):
    values = tiny.values(
        data,
        experiment={"rules": ["own_plan_code:rule", "holdout"], "seeds": [0]},
        model={"name": "own_plan_code:model"},
    )
    values["data"] = {"name": "own_plan_code:loader", "samples_per_worker": 30}
    values["attack"] = named("attack", strength=3.0, voters="own_plan_code:ballots")
    plan = make_plan(values)
    assert [(c.rule, c.attack) for c, _ in plan.curves] == [
        ("mean", "none"),
        ("own_plan_code:rule", "own_plan_code:attack"),
        ("holdout", "own_plan_code:attack"),
    ]
    act = plan.curves[1][0].act
    assert act.keywords == {"strength": 3.0, "gamma": "adaptive"}
    assert plan.curves[1][0].ballot_attack.__name__ == "ballots"
    assert (plan.dataset.classes, plan.dataset.shape) == (6, (6,))


def test_the_view_is_no_parameter_of_an_attack(data, own_code):
    (found,) = problems(tiny.values(data) | {"attack": named("attack", power=1)})
    assert found.endswith("(it has strength, gamma)")
    (found,) = problems(tiny.values(data) | {"attack": named("attack", view=1)})
    assert found.startswith("attack.view = 1: unknown key")


def test_an_own_attack_may_be_a_class_with_parameters(data, own_code):
    plan = make_plan(tiny.values(data) | {"attack": named("Attack", scale=4)})
    assert plan.curves[1][0].act.scale == 4


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"attack": named("attack", power=1)}, "attack.power = 1: unknown key; not a parameter of"),
        ({"attack": named("Attack")}, "attack.name = 'own_plan_code:Attack': TypeError: "),
        ({"attack": named("Failing")}, "attack.name = 'own_plan_code:Failing': LookupError: lost"),
        ({"attack": named("Useless")}, "attack.name = 'own_plan_code:Useless': an attack must be"),
        (
            {"attack": named("text")},
            "attack.name = 'own_plan_code:text': must be callable; got str",
        ),
        ({"attack": named("nope")}, "attack.name = 'own_plan_code:nope': \"own_plan_code:nope\": "),
        ({"attack": {"name": "builtins:dict"}}, "attack.name = 'builtins:dict': an attack must be"),
        ({"attack": {"name": "a:b:c"}}, "attack.name = 'a:b:c': custom code is named"),
        ({"attack": {"name": ":"}}, "attack.name = ':': custom code is named"),
        ({"model": named("text")}, "model.name = 'own_plan_code:text': must be callable; got str"),
        ({"model": named("wrong_model")}, "model.name = 'own_plan_code:wrong_model': a model must"),
        ({"model": {"name": "nowhere:x"}}, "model.name = 'nowhere:x': \"nowhere:x\": there is no"),
        ({"data": named("nope")}, "data.name = 'own_plan_code:nope': "),
        ({"data": named("text")}, "data.name = 'own_plan_code:text': must be callable; got str"),
        (
            {"experiment": {"rules": ["own_plan_code:text"]}},
            "experiment.rules = 'own_plan_code:text': must be callable; got str",
        ),
    ],
)
def test_own_code_that_cannot_be_used_is_named(data, own_code, changes, problem):
    values = tiny.values(data)
    for section, keys in changes.items():
        values[section] = {**(values[section] if section == "experiment" else {}), **keys}
    if "data" in changes:
        values["data"]["samples_per_worker"] = 30
    (found,) = problems(values)
    assert found.startswith(problem)


def test_own_data_as_an_object_needs_no_name_and_is_checked_for_size(data):
    dataset = load("npz", path=data)
    values = tiny.values(data)
    values["data"] = {"samples_per_worker": 30, "normalise": False}
    assert make_plan(values, Plugins(data=dataset)).dataset is dataset
    values["data"] = {"samples_per_worker": 121}
    assert problems(values, Plugins(data=dataset)) == [
        "data.samples_per_worker = 121: must be at most the 120 training rows of npz"
    ]


def test_own_data_is_normalised_as_the_config_says(data):
    values = tiny.values(data, data={"normalise": True})
    raw = load("npz", path=data, normalise=False)
    named, passed = make_plan(values), make_plan(values, Plugins(data=raw))
    assert torch.equal(named.dataset.x_train, passed.dataset.x_train)
    assert not torch.equal(raw.x_train, passed.dataset.x_train)


def test_own_data_that_looks_like_mnist_is_not_taken_for_it(data):
    x, y = torch.zeros(70_000, 1), torch.arange(70_000) % 2
    values = tiny.values(data)
    values["data"] = {"samples_per_worker": 65_000}
    make_plan(values, Plugins(data=Dataset("mnist", x, y, x[:2], y[:2], 2)))


def test_the_config_given_is_left_as_it_was(data):
    def attack(view):
        return view.mean

    values = tiny.values(data) | {"attack": {}}
    before = {section: dict(keys) for section, keys in values.items()}
    make_plan(values, Plugins(attack=attack))
    assert values == before


def test_an_own_rule_that_the_config_does_not_list_is_a_mistake(data):
    plugins = Plugins(rules={"mine": lambda updates, *, f: updates[f]})
    (problem,) = problems(tiny.values(data), plugins)
    assert problem.startswith("custom rule 'mine': experiment.rules must list it")


@pytest.mark.parametrize("normalise", [True, False])
def test_own_arrays_become_a_data_set_normalised_as_the_config_says(data, normalise):
    x = torch.arange(240.0).reshape(120, 2)
    arrays = (x, torch.arange(120) % 3, x[:9].numpy(), torch.arange(9) % 3)
    values = tiny.values(data)
    values["data"] = {**values["data"], "normalise": normalise}
    plan = make_plan(values, Plugins(data=arrays))
    assert plan.dataset.classes == 3
    assert plan.config.data.name == "own"
    expected = (x - x.mean(0)) / x.std(0, correction=0) if normalise else x
    assert torch.allclose(plan.dataset.x_train, expected, atol=1e-5)


def test_own_data_that_is_no_data_set_is_refused(data):
    with pytest.raises(DataError, match="must be a Dataset or"):
        make_plan(tiny.values(data), Plugins(data=(1, 2, 3)))


@pytest.mark.parametrize("attack", ["rescale", "permute"])
def test_an_attack_that_the_model_does_not_suit_is_found_before_anything_runs(data, attack):
    plugins = Plugins(
        model=lambda shape, classes: torch.nn.Sequential(torch.nn.Linear(*shape, classes))
    )
    values = {**tiny.values(data), "attack": {"name": attack}}
    (problem,) = problems(values, plugins)
    assert "this attack needs an nn.Sequential whose first two layers" in problem


@pytest.mark.usefixtures("own_code")
@pytest.mark.parametrize("name", ["ballots", "Ballots"])
def test_own_ballots_are_a_function_or_a_class(data, name):
    values = tiny.values(data, attack={"voters": f"own_plan_code:{name}"})
    curve, _ = make_plan(values).curves[-1]
    assert curve.ballot_attack(SimpleNamespace(own=[3, 5])) == [3, 5]


@pytest.mark.usefixtures("own_code")
def test_own_ballots_that_cannot_be_called_are_a_mistake(data):
    (problem,) = problems(tiny.values(data, attack={"voters": "own_plan_code:Useless"}))
    assert problem == (
        "attack.voters = 'own_plan_code:Useless': an attack must be callable with a View"
    )


@pytest.mark.usefixtures("own_code")
def test_an_own_pre_aggregation_is_not_run_to_find_out_whether_the_rule_is_feasible(data):
    values = tiny.values(data, experiment={"rules": ["own_plan_code:pre+nnm+median"]})
    curve = make_plan(values).curves[1][0]
    assert [pre.label for pre in curve.method.pre] == ["pre", "NNM"]
    few = {"workers": 10, "proposers": 2, "assumed_byzantine": 0.4}
    values = tiny.values(data, experiment={"rules": ["own_plan_code:pre+krum"]}, federation=few)
    (found,) = problems(values)
    assert found.startswith("experiment.rules = 'own_plan_code:pre+krum': infeasible with")


def test_a_vote_behind_a_pre_aggregation_is_told_what_may_stand_there(data):
    (found,) = problems(tiny.values(data, experiment={"rules": ["nnm+holdout"]}))
    assert found == (
        "experiment.rules = 'nnm+holdout': 'holdout' is a vote, and only a rule can stand behind a "
        "pre-aggregation"
    )
    (found,) = problems(tiny.values(data, experiment={"rules": ["nnm+kum"]}))
    assert "holdout" not in found


@pytest.mark.parametrize(
    ("rules", "mode", "vote", "notes"),
    [
        (["holdout"], "central", {"bound": False}, ["vote.bound = false does nothing here"]),
        (["krum"], "central", {"bound": False, "memory": 0.5}, ["vote.memory", "vote.bound"]),
        (["holdout-paper"], "central", {"gate": "zero"}, ["vote.gate = 'zero' does nothing here"]),
        (
            ["holdout-1"],
            "central",
            {"memory": 0.5, "screen": False},
            ["vote.screen", "vote.memory"],
        ),
        (["holdout", "holdout-1"], "central", {"bound": False, "memory": 0.5}, []),
        (["holdout"], "central", {"samples": 7, "bound": True, "gate": "median"}, []),
        (["holdout"], "decentralized", {"memory": 0.5}, ["vote.memory = 0.5 does nothing here"]),
        (["holdout"], "decentralized", {"gate": "zero"}, []),
    ],
)
def test_a_changed_key_of_a_vote_that_does_nothing_is_told(rules, mode, vote, notes):
    config = Config(
        experiment={"rules": rules}, federation={"mode": mode, "disjoint": False}, vote=vote
    )
    told = notes_on_vote(config)
    assert len(told) == len(notes)
    for said, expected in zip(told, notes, strict=True):
        assert said.startswith(expected)


def test_every_key_of_the_vote_is_heeded_by_some_rule():
    changed = {"screen": False, "memory": 0.5, "gate": "zero", "quorum": "paper"}
    changed |= {"bound": False}
    assert notes_on_vote(Config(experiment={"rules": ["holdout", "holdout-1"]}, vote=changed)) == []
    told = notes_on_vote(Config(experiment={"rules": ["mean"]}, vote=changed))
    assert [note.split(" ")[0] for note in told] == [f"vote.{key}" for key in changed]
    assert {note.rpartition("it is for ")[2] for note in told} == {"holdout", "holdout-1"}
