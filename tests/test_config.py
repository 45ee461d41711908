"""The config: every mistake found, each with its key, its value and the rule; exact round trips."""

import math
import tomllib
from fractions import Fraction
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdout.config import Config, apply_settings, parse, read_file
from holdout.data.partitions import KINDS
from holdout.errors import ConfigError
from holdout.voting import Gate, Quorum

DEFAULTS = """
[experiment]
name = "mnist-alie"
rules = ["mean", "trimmed-mean", "krum", "holdout-paper", "holdout"]
rounds = 100
seeds = [0]
evaluate_every = 5
save_every = 0
baseline = true
threads = 0
device = "cpu"
[data]
name = "mnist"
normalise = true
partition = "iid"
alpha = 0.5
labels_per_worker = 2
gamma = 0.5
samples_per_worker = 2000
root_samples = 0
[model]
name = "mlp"
[training]
batch_size = 83
learning_rate = 0.1
schedule = "constant"
milestones = []
factor = 0.1
learning_rate_min = 0.0
loss = "cross-entropy"
weight_decay = 0.0
local_steps = 1
local_epochs = 0
momentum = 0.0
worker_momentum = 0.0
[federation]
mode = "central"
workers = 100
byzantine = 0.33
assumed_byzantine = 0.33
proposers = 30
voters = 30
disjoint = true
redraw_until_honest_majority = false
[vote]
samples = 2000
screen = true
memory = 0.9
gate = "median"
quorum = "majority"
bound = true
scoring = "exact"
[attack]
name = "alie"
gamma = "adaptive"
gamma_max = 30.0
passing = "any"
direction = 1
knowledge = "omniscient"
voters = "coalition"
equivocate = false
onset = 1
ramp = 0
every = 1
dormant = 0
[track]
tensorboard = false
mlflow = false
wandb = "off"
"""


def test_the_defaults_are_the_documented_ones():
    assert Config().as_dict() == tomllib.loads(DEFAULTS)
    assert parse({}).checked() == Config()


def test_a_share_is_exact():
    assert parse({"federation": {"byzantine": 0.33}}).checked().federation.byzantine == Fraction(
        33, 100
    )
    assert parse({"federation": {"byzantine": "1/3"}}).checked().federation.byzantine == Fraction(
        1, 3
    )
    assert parse({"federation": {"assumed_byzantine": 33}}).checked().federation.f == Fraction(
        33, 100
    )


floats = st.floats(allow_nan=False, allow_infinity=False, min_value=1e-300, max_value=1e300)


@given(
    learning_rate=floats,
    byzantine=st.one_of(st.fractions(0, Fraction(99, 100)), st.integers(1, 100)),
    seeds=st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=3, unique=True),
    scale=st.one_of(floats, st.text(), st.booleans(), st.lists(st.integers(0, 9))),
    rule=st.text(min_size=1, max_size=9),
)
def test_toml_and_back_changes_nothing(learning_rate, byzantine, seeds, scale, rule):
    values = {
        "experiment": {"seeds": seeds, "rules": [rule]},
        "training": {"learning_rate": learning_rate},
        "federation": {"byzantine": byzantine, "assumed_byzantine": "1/3"},
        "attack": {"gamma": 0.5, "scale": scale},
    }
    config = parse(values).checked()
    again = parse(tomllib.loads(config.as_toml())).checked()
    assert again == config
    assert again.as_toml() == config.as_toml()
    assert tomllib.loads(config.as_toml()) == config.as_dict()


# What is wrong: section, key, value, and what the message says after `section.key = value: `.
MISTAKES = [
    ("experiment", "rounds", 0, "must be greater than or equal to 1"),
    ("attack", "onset", 0, "must be greater than or equal to 1"),
    ("attack", "every", 0, "must be greater than or equal to 1"),
    ("attack", "ramp", -1, "must be greater than or equal to 0"),
    ("attack", "dormant", 0.5, "must be a valid integer"),
    ("vote", "memory", 1.0, "must be less than 1"),
    ("vote", "memory", -0.1, "must be greater than or equal to 0"),
    ("vote", "screen", 1, "must be a valid boolean"),
    ("experiment", "rounds", -3, "must be greater than or equal to 1"),
    ("experiment", "rounds", True, "must be a valid integer"),
    ("experiment", "rounds", 2.0, "must be a valid integer"),
    ("experiment", "rounds", "3", "must be a valid integer"),
    ("experiment", "rounds", math.nan, "must be a valid integer"),
    ("experiment", "seeds", [], "must not be empty"),
    ("experiment", "seeds", [-1], "must be greater than or equal to 0"),
    ("experiment", "seeds", [0, True], "must be a valid integer"),
    ("experiment", "seeds", 3, "must be a valid list"),
    ("experiment", "seeds", [1, 2, 1], "each seed once"),
    ("experiment", "rules", [], "must not be empty"),
    ("experiment", "rules", [""], "must not be empty"),
    ("experiment", "rules", "mean", "must be a valid list"),
    ("experiment", "rules", ["mean", 3], "must be a valid string"),
    ("experiment", "rules", ["krum", "krum"], "each rule once"),
    ("experiment", "name", "../up", "must consist of letters, digits"),
    ("experiment", "name", "a/b", "must consist of letters, digits"),
    ("experiment", "name", "..", "must consist of letters, digits"),
    ("experiment", "name", "a\n", "must consist of letters, digits"),
    ("experiment", "name", "x" * 101, "must consist of letters, digits"),
    ("experiment", "baseline", 1, "must be a valid boolean"),
    ("experiment", "threads", -1, "must be greater than or equal to 0"),
    ("experiment", "threads", 10**9, "must be less than or equal to 1024"),
    ("data", "name", "", "must not be empty"),
    ("data", "path", "", "must not be empty"),
    ("data", "path", 3, "must be a valid string"),
    ("data", "partition", "random", "must be 'iid', 'balanced', 'dirichlet', 'shards', 'gamma', "),
    ("data", "gamma", 1.1, "must be less than or equal to 1"),
    ("data", "augment", "flip", 'must be custom code as "package.module:name"'),
    ("experiment", "device", "gpu", "must be 'cpu', 'cuda', 'cuda:1' or another number, or 'mps'"),
    ("experiment", "device", "cuda:", "must be 'cpu', 'cuda', 'cuda:1' or another number"),
    ("training", "loss", "hinge", "must be 'cross-entropy', 'mse' or custom code"),
    ("training", "weight_decay", -0.1, "must be greater than or equal to 0"),
    ("training", "factor", 0.0, "must be greater than 0"),
    ("training", "milestones", [0], "must be greater than or equal to 1"),
    ("data", "alpha", 0, "must be greater than 0"),
    ("data", "alpha", math.inf, "must be a finite number"),
    ("data", "samples_per_worker", 0, "must be greater than or equal to 1"),
    ("training", "learning_rate", 0.0, "must be greater than 0"),
    ("training", "learning_rate", -0.1, "must be greater than 0"),
    ("training", "learning_rate", math.nan, "must be a finite number"),
    ("training", "learning_rate", math.inf, "must be a finite number"),
    ("training", "learning_rate", "0.1", "must be a valid number"),
    ("training", "learning_rate", True, "must be a valid number"),
    ("training", "momentum", 1, "must be less than 1"),
    ("training", "momentum", -0.1, "must be greater than or equal to 0"),
    ("training", "schedule", "linear", "must be 'constant', 'inverse', 'step', 'cosine' or custom"),
    ("federation", "mode", "anarchic", "must be 'central' or 'decentralized'"),
    ("federation", "byzantine", math.nan, "must be a share"),
    ("federation", "byzantine", math.inf, "must be a share"),
    ("federation", "byzantine", True, "must be a share"),
    ("federation", "byzantine", "a third", "must be a share"),
    ("federation", "byzantine", -0.1, "must not be negative"),
    ("federation", "byzantine", 1.5, "must be a share below 1"),
    ("federation", "byzantine", 101, "at most the 100 workers"),
    ("federation", "assumed_byzantine", 0.5, "f must be below 1/2; got f = 0.5"),
    ("federation", "assumed_byzantine", "1/2", "f must be below 1/2; got f = 0.5"),
    ("federation", "assumed_byzantine", 50, "f must be below 1/2; got f = 0.5"),
    ("federation", "disjoint", "yes", "must be a valid boolean"),
    ("vote", "gate", "mean", "must be 'median', 'zero' or 'none'"),
    ("vote", "samples", 0, "must be greater than or equal to 1"),
    (
        "attack",
        "gamma",
        -1,
        'must be a non-negative number, "adaptive", "krum" or "krum-unsquared"',
    ),
    ("attack", "gamma", math.nan, "must be a non-negative number"),
    ("experiment", "save_every", -1, "must be greater than or equal to 0"),
    ("track", "tensorboard", 1, "must be true, false or text"),
    ("track", "mlflow", "", "must be true, false or text"),
    ("track", "wandb", True, "must be 'off', 'offline' or 'online'"),
    ("track", "wandb", "on", "must be 'off', 'offline' or 'online'"),
    ("attack", "gamma", True, "must be a non-negative number"),
    ("attack", "gamma", "strong", "must be a non-negative number"),
    ("attack", "gamma_max", math.inf, "must be a finite number"),
    ("attack", "direction", 2, "must be 1 or -1"),
    ("attack", "direction", True, "must be a whole number"),
    ("attack", "direction", 1.0, "must be a whole number"),
    ("attack", "knowledge", "nothing", "must be 'omniscient', 'coalition' or 'last-round'"),
    ("attack", "equivocate", 1, "must be a valid boolean"),
    ("attack", "own_parameter", math.nan, "must be text, a finite number"),
    ("attack", "own_parameter", [1, math.inf], "must be text, a finite number"),
    ("attack", "own_parameter", {"a": math.nan}, "must be text, a finite number"),
]


@pytest.mark.parametrize(("section", "key", "value", "rule"), MISTAKES)
def test_a_mistake_names_the_key_the_value_and_the_rule(section, key, value, rule):
    (problem,) = parse({section: {key: value}}).problems
    shown = 0.5 if value == "1/2" else value
    assert problem.startswith(f"{section}.{key} = {shown!r}: ")
    assert rule in problem


RELATIONS = [
    (
        {"federation": {"proposers": 60, "voters": 41}},
        "federation.proposers + federation.voters = 60 + 41: must be at most "
        "federation.workers = 100 when federation.disjoint = true",
    ),
    (
        {"federation": {"proposers": 101, "voters": 5, "disjoint": False}},
        "federation.proposers, federation.voters = 101, 5: must each be at most "
        "federation.workers = 100",
    ),
    (
        {"training": {"batch_size": 2001}},
        "training.batch_size = 2001: must be at most data.samples_per_worker = 2000",
    ),
    (
        {"vote": {"samples": 2001}},
        "vote.samples = 2001: must be at most data.samples_per_worker = 2000",
    ),
    (
        {"data": {"partition": "file"}},
        "data.partition = 'file': data.partition_file must name the file",
    ),
    (
        {"training": {"local_steps": 2, "local_epochs": 3}},
        "training.local_epochs = 3: must be 0 where training.local_steps = 2 says how far a "
        "proposer goes",
    ),
    (
        {"training": {"schedule": "step"}},
        "training.schedule = 'step': training.milestones must name at least one round",
    ),
    (
        {"training": {"milestones": [5, 5]}},
        "training.milestones = [5, 5]: must grow from one to the next",
    ),
    (
        {"training": {"schedule": "cosine", "learning_rate_min": 0.2}},
        "training.learning_rate_min = 0.2: must be at most training.learning_rate = 0.1",
    ),
    (
        {"vote": {"scoring": "first-order", "bound": False}},
        "vote.scoring = 'first-order': needs vote.bound = true, since a linear score rewards "
        "ever longer updates",
    ),
    (
        {"federation": {"redraw_until_honest_majority": True, "byzantine": 0.69}},
        "federation.redraw_until_honest_majority = true: an honest majority of proposers and of "
        "voters needs 32 honest workers; got federation.workers = 100, federation.byzantine = 0.69",
    ),
    (
        {"attack": {"equivocate": True}},
        "attack.equivocate = true: needs federation.mode = 'decentralized', since a server "
        "accepts only one version",
    ),
    (
        {"federation": {"mode": "decentralized", "disjoint": True}},
        "federation.disjoint = true: must be false in mode 'decentralized', since every worker "
        "draws its own lots",
    ),
    (
        {"federation": {"mode": "decentralized", "redraw_until_honest_majority": True}},
        "federation.redraw_until_honest_majority = true: must be false in mode 'decentralized', "
        "since nobody can draw again",
    ),
    (
        {"federation": {"mode": "decentralized"}, "training": {"momentum": 0.9}},
        "training.momentum = 0.9: must be 0 in mode 'decentralized', since there is no server to "
        "keep it",
    ),
    (
        {"federation": {"mode": "decentralized"}, "vote": {"bound": False}},
        "vote.bound = false: must be true in mode 'decentralized', where the bound is part of the "
        "chain",
    ),
    (
        {"federation": {"mode": "decentralized", "byzantine": 34}},
        "federation.byzantine = 34: agreement needs n >= 3B + 1 workers, of which B may lie; got "
        "n=100, B=34",
    ),
    (
        {"federation": {"mode": "decentralized", "workers": 99, "assumed_byzantine": "1/3"}},
        "federation.assumed_byzantine = 1/3: agreement needs n >= 3B + 1 workers, of which B may "
        "lie; got n=99, B=33",
    ),
    (
        {
            "federation": {"mode": "decentralized", "assumed_byzantine": 0.2},
            "attack": {"equivocate": True},
        },
        "attack.equivocate = true: at most floor(assumed_byzantine * n) = 20 of the workers may "
        "lie, or the network halts when it has caught more; got 33",
    ),
]


@pytest.mark.parametrize(("values", "problem"), RELATIONS)
def test_numbers_must_fit_each_other(values, problem):
    assert parse(values).problems == (problem,)


@pytest.mark.parametrize(
    "values",
    [
        {"federation": {"proposers": 60, "voters": 40}},
        {"federation": {"proposers": 100, "voters": 100, "disjoint": False}},
        {"training": {"batch_size": 2000}},
        {"vote": {"scoring": "first-order"}},
        {"federation": {"redraw_until_honest_majority": True, "byzantine": 0.68}},
        {"federation": {"assumed_byzantine": 49}},
        {"federation": {"byzantine": 100}},
        {"experiment": {"seeds": [2**64]}},
        {"federation": {"mode": "decentralized"}},
        {"federation": {"mode": "decentralized"}, "attack": {"equivocate": True}},
        {"federation": {"mode": "decentralized", "proposers": 100, "voters": 100}},
        {"federation": {"mode": "decentralized", "assumed_byzantine": 0.2}},
    ],
)
def test_what_just_fits_is_accepted(values):
    assert parse(values).problems == ()


def test_without_a_server_draws_are_independent_and_the_rule_is_holdout_unless_said():
    config = parse({"federation": {"mode": "decentralized"}}).checked()
    assert not config.federation.disjoint
    assert config.experiment.rules == ["holdout"]
    said = {"experiment": {"rules": ["holdout-paper"]}, "federation": {"mode": "decentralized"}}
    assert parse(said).checked().experiment.rules == ["holdout-paper"]
    assert parse({"federation": {"mode": "central"}}).checked() == Config()


@pytest.mark.parametrize("experiment", [3, None, "x", []])
def test_a_wrong_section_stays_wrong_without_a_server(experiment):
    values = {"federation": {"mode": "decentralized"}, "experiment": experiment}
    assert [p.split(" ")[0] for p in parse(values).problems] == ["experiment"]


def test_all_mistakes_are_reported_at_once():
    values = {
        "experiment": {"roundz": 3, "rounds": 0, "seeds": []},
        "training": {"batch_size": 3000, "momentum": 2},
        "federation": {"byzantine": -1, "proposers": 99},
        "vote": {"samples": "all"},
        "atack": {"name": "bomb"},
    }
    with pytest.raises(ConfigError) as caught:
        parse(values).checked()
    assert sorted(p.split(":")[0] for p in caught.value.problems) == [
        "atack",
        "experiment.rounds = 0",
        "experiment.roundz = 3",
        "experiment.seeds = []",
        "federation.byzantine = -1",
        "federation.proposers + federation.voters = 99 + 30",
        "training.batch_size = 3000",
        "training.momentum = 2",
        "vote.samples = 'all'",
    ]
    assert str(caught.value).startswith("9 mistakes in the config:\n  ")


def test_a_wrong_number_is_not_held_against_others():
    problems = parse({"data": {"samples_per_worker": "x"}, "vote": {"samples": 9999}}).problems
    assert len(problems) == 1


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"experiment": {"round": 3}}, "experiment.round = 3: unknown key; did you mean 'rounds'?"),
        ({"rounds": 3}, "rounds: unknown key; the sections are experiment, data, model, training,"),
        ({"votes": {}}, "votes: unknown key; did you mean 'vote'?"),
        ({"a.b": 1}, "a.b: unknown key; the sections are experiment,"),
        ({"vote": {"a.b": 1}}, "vote.a.b = 1: unknown key; the keys are samples, screen,"),
        ({"vote": {"": 1}}, "vote. = 1: unknown key; the keys are samples, screen,"),
        ({1: 2}, "1: unknown key; the sections are experiment,"),
        ({"vote": 3}, "vote = 3: must be a section"),
        ({"vote": [{}]}, "vote = [{}]: must be a section"),
    ],
)
def test_an_unknown_key_or_section_is_named_and_a_near_one_offered(values, problem):
    (found,) = parse(values).problems
    assert found.startswith(problem)


json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)
KEYS = [
    (section, key)
    for section, field in Config.model_fields.items()
    for key in field.annotation.model_fields
]


@given(st.dictionaries(st.sampled_from(KEYS), json_like, max_size=4), json_like)
def test_nothing_but_mistakes_comes_out_of_nonsense(changes, section):
    values = {"model": section}
    for (name, key), value in changes.items():
        if isinstance(values.setdefault(name, {}), dict):
            values[name][key] = value
    parsed = parse(values)
    assert all(isinstance(problem, str) for problem in parsed.problems)
    if not parsed.problems:
        assert parse(tomllib.loads(parsed.config.as_toml())).checked() == parsed.config


def test_a_config_cannot_be_changed_and_shares_nothing_with_the_next():
    with pytest.raises(ValueError, match="frozen"):
        Config().experiment.rounds = 5
    Config().experiment.rules.append("x")
    assert "x" not in Config().experiment.rules


def test_settings_are_put_over_the_values():
    values = {"experiment": {"rounds": 5}, "attack": {"name": "bomb"}}
    changed = apply_settings(
        values,
        [
            "experiment.rounds=7",
            "federation.byzantine=1/3",
            'experiment.rules=["mean", "krum"]',
            "attack.name = none",
            "experiment.baseline=false",
            "data.path=a=b",
        ],
    )
    assert changed == {
        "experiment": {"rounds": 7, "rules": ["mean", "krum"], "baseline": False},
        "federation": {"byzantine": "1/3"},
        "attack": {"name": "none"},
        "data": {"path": "a=b"},
    }
    assert values == {"experiment": {"rounds": 5}, "attack": {"name": "bomb"}}


def test_a_setting_holds_one_value_only():
    (text,) = apply_settings({}, ["data.name=1\nother = 2"])["data"].values()
    assert text == "1\nother = 2"


def test_all_settings_that_are_none_are_named():
    with pytest.raises(ConfigError) as caught:
        apply_settings({"vote": 3}, ["rounds=3", "a.b.c=3", "experiment.rounds", ".=1", "vote.x=1"])
    assert [p.split(":")[0] for p in caught.value.problems if p.startswith("--set")] == [
        "--set rounds=3",
        "--set a.b.c=3",
        "--set experiment.rounds",
        "--set .=1",
        "--set vote.x=1",
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read"),
        (b"rounds = ", "not TOML"),
        (b"\xff", "not TOML"),
        (b"rounds = " + b"9" * 5000, "not TOML"),
        (b"rounds = " + b"[" * 5000, "not TOML"),
    ],
)
def test_a_file_that_is_no_toml_is_named(tmp_path, content, message):
    path = tmp_path / "config.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=f"config.toml: {message}"):
        read_file(path)


def test_a_folder_is_no_config(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        read_file(Path(tmp_path))


@pytest.mark.parametrize("name", ["alie", "nan", "zero"])
def test_an_attacks_name_needs_no_quotes_on_the_command_line(name):
    config = parse(apply_settings({}, [f"attack.name={name}"])).checked()
    assert config.attack.name == name


def test_a_setting_that_is_none_is_reported_with_the_configs_other_mistakes():
    with pytest.raises(ConfigError) as caught:
        apply_settings({"experiment": {"rounds": 0}}, ["rounds", "vote.samples=-1"])
    said = "\n".join(caught.value.problems)
    assert len(caught.value.problems) == 3
    assert "--set rounds" in said
    assert "experiment.rounds = 0" in said
    assert "vote.samples = -1" in said


@pytest.mark.parametrize(
    ("section", "key", "names"),
    [("vote", "gate", Gate), ("vote", "quorum", Quorum), ("data", "partition", KINDS)],
)
def test_a_config_may_name_all_that_there_is(section, key, names):
    inside = Config.model_fields[section].annotation
    alternatives = get_args(inside.model_fields[key].annotation)
    # Beside its names, a partition may be custom code.
    named = get_args(alternatives[0]) if key == "partition" else alternatives
    assert named == tuple(names)


def test_a_mark_of_the_encoding_before_the_config_is_no_part_of_it(tmp_path):
    path = tmp_path / "config.toml"
    text = '[experiment]\r\nname = "größer"\r\nrounds = 7\r\n'
    for encoding in ("utf-8", "utf-8-sig"):
        path.write_bytes(text.encode(encoding))
        assert read_file(path) == {"experiment": {"name": "größer", "rounds": 7}}
    path.write_bytes(text.encode("utf-16"))
    with pytest.raises(ConfigError, match=r"config\.toml: not TOML"):
        read_file(path)


def test_a_file_without_an_end_is_no_config():
    with pytest.raises(ConfigError, match="/dev/zero: no config: it holds more than"):
        read_file(Path("/dev/zero"))
