"""Settings of training and data in whole runs, with a server and without."""

import json
import tomllib
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests import tiny

from holdout.config import Config
from holdout.errors import ConfigError, DataError, PluginError, RunFailed, UserError
from holdout.experiments.holders import SHARDS
from holdout.experiments.plan import make_plan
from holdout.experiments.plugins import Plugins
from holdout.experiments.report import write_report
from holdout.experiments.runner import run
from holdout.federation.round_setup import draw_round, first_state
from holdout.learning.training import gradients

POINTS = np.random.default_rng(0).normal(size=(300, 5)).astype(np.float32)
SUMS = POINTS @ np.array([1.0, 2.0, -1.0, 0.5, 0.0])
LABELLED = (POINTS[:200], (SUMS[:200] > 0).astype(int), POINTS[200:], (SUMS[200:] > 0).astype(int))
MEASURED = (POINTS[:200], SUMS[:200], POINTS[200:], SUMS[200:])

MODES = {
    "central": {
        "experiment": {"rules": ["krum", "holdout-paper", "holdout-1", "holdout"]},
        "federation": {"mode": "central"},
    },
    "decentralized": {
        "experiment": {"rules": ["holdout"]},
        "federation": {"mode": "decentralized"},
    },
}
both_modes = pytest.mark.parametrize("mode", MODES)


def values(mode="central", **changes):
    sections = {
        "experiment": {"rounds": 3, "threads": 1, "evaluate_every": 3},
        "federation": {
            "workers": 12,
            "proposers": 5,
            "voters": 5,
            "byzantine": 2,
            "assumed_byzantine": 0.2,
        },
        "attack": {"name": "sign-flip"},
    }
    for part in (MODES[mode], changes):
        for section, keys in part.items():
            sections[section] = {**sections.get(section, {}), **keys}
    return sections


def play(mode="central", rows=LABELLED, out=None, **changes):
    return run(values(mode, **changes), plugins=Plugins(data=rows), out=out)


def last_losses(result, rule):
    """The test losses of a rule, where they were measured."""
    found = [row["loss"] for row in result.rounds if row["rule"] == rule]
    return [loss for loss in found if loss is not None]


def scores(result):
    return [row.measured for row in result.table()]


@pytest.fixture
def own_code(tmp_path, monkeypatch):
    (tmp_path / "own_settings.py").write_text(
        "import torch\n"
        "def shrinking(t, rounds, eta):\n"
        "    return eta / 2**t\n"
        "def late_nan(t, rounds, eta):\n"
        "    return eta if t < rounds else float('nan')\n"
        "def huber(outputs, targets):\n"
        "    return torch.nn.functional.huber_loss(outputs, targets, reduction='none').mean(1)\n"
        "seen = []\n"
        "def noisy(x, y, generator):\n"
        "    noise = torch.randn(x.shape, generator=generator)\n"
        "    seen.append(float(noise.sum()))\n"
        "    return x.add_(noise), y\n"
        "def wide(x, y, generator):\n"
        "    return x[:, :2], y\n"
        "def fails(x, y, generator):\n"
        "    return 1 / 0\n"
        "def stairs(labels, workers, rng):\n"
        "    order = rng.permutation(len(labels))\n"
        "    return [order[: 3 + 7 * worker] for worker in range(workers)]\n"
        "number = 3\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    return "own_settings"


@both_modes
@pytest.mark.usefixtures("own_code")
@pytest.mark.parametrize(
    "training",
    [
        {"weight_decay": 0.1},
        {"local_epochs": 1},
        {"schedule": "step", "milestones": [1]},
        {"schedule": "cosine"},
        {"schedule": "own_settings:shrinking"},
    ],
    ids=str,
)
def test_a_setting_of_training_changes_what_is_learned_and_is_repeatable(mode, training):
    with_it = play(mode, training=training)
    assert last_losses(with_it, "holdout") != last_losses(play(mode), "holdout")
    again = play(mode, training=training)
    assert scores(with_it) == scores(again)
    assert all(score > 0.5 for score in scores(with_it))


@both_modes
@pytest.mark.parametrize(
    "data",
    [
        {"partition": "gamma", "gamma": 0.7},
        {"partition": "extreme"},
        {"partition": "quantity", "alpha": 0.2},
        {"partition": "own_settings:stairs"},
        {"augment": "own_settings:noisy"},
    ],
    ids=lambda data: "-".join(map(str, data.values())),
)
def test_every_way_to_hold_rows_runs_at_the_first_try(mode, data, own_code):
    result = play(mode, data=data, training={"local_epochs": 2})
    assert len(result.rounds) == 3 * len(result.table())
    assert {row["outcome"] for row in result.rounds} <= {"step", "empty-selection", "disagreement"}


@both_modes
@pytest.mark.parametrize("loss", ["mse", "own_settings:huber"])
def test_a_regression_is_measured_by_r2_and_mae(mode, loss, own_code, tmp_path):
    result = play(
        mode,
        MEASURED,
        tmp_path / "run",
        experiment={"rounds": 12},
        training={"loss": loss},
        attack={"name": "label-flip"},
    )
    last = result.rounds[-1]
    assert (last["accuracy"], last["worst_class_recall"]) == (None, None)
    assert 0.3 < last["r2"] < 1
    assert last["mae"] > 0
    if loss == "mse":
        assert last["r2"] == pytest.approx(1 - last["loss"] / np.var(SUMS[200:]), abs=1e-4)
    else:
        assert last["loss"] < last["mae"]
    assert "r2" not in result.rounds[0]
    assert result.measured("holdout") == last["r2"]
    with pytest.raises(KeyError, match="a regression has no accuracy"):
        result.accuracy("holdout")
    assert repr(result).startswith("<Result, R²: mean, no attack 0.")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["curves"][-1]["final_r2"] == last["r2"]
    assert "final_accuracy" not in summary["curves"][-1]
    page = (tmp_path / "run" / "report.html").read_text("utf-8")
    assert "<h2>Final R²</h2>" in page
    assert '<th scope="col">mean absolute error</th>' in page
    assert "HoldOut ends at R²\N{NO-BREAK SPACE}0." in page
    assert "accuracy" not in page.partition("<main>")[0].partition("<body>")[2]


def test_labels_and_real_targets_are_not_confused():
    def problem(rows, loss):
        with pytest.raises(UserError) as caught:
            play(rows=rows, training={"loss": loss})
        return str(caught.value)

    assert "y_train needs whole numbers; got type float" in problem(MEASURED, "cross-entropy")
    dataset = make_plan(values(), Plugins(data=LABELLED)).dataset
    assert "training.loss = 'mse': needs real-valued targets; the data has labels" in problem(
        dataset, "mse"
    )
    digits = values(data={"name": "mnist-5k"}, training={"loss": "mse"})
    with pytest.raises(DataError, match="its labels are classes"):
        run(digits)
    digits["federation"]["proposers"] = 99
    with pytest.raises(ConfigError) as caught:
        run(digits)
    assert [problem.partition(" = ")[0] for problem in caught.value.problems] == [
        "federation.proposers + federation.voters",
        "data.name",
    ]


def test_an_epoch_is_a_pass_over_all_rows_in_another_order_each_time():
    plan = make_plan(
        values(data={"partition": "quantity"}, training={"local_epochs": 2, "batch_size": 7}),
        Plugins(data=LABELLED),
    )
    curve, seed = plan.curves[0]
    workers = plan.federation(curve, seed).workers
    assert len({len(worker.shard.rows) for worker in workers}) > 3
    for worker in workers:
        held = len(worker.shard.rows)
        batches = worker.batches(3)
        assert len(batches) == 2 * -(-held // 7)
        first, second = (torch.cat([x for x, _ in part]) for part in halves(batches))
        own = worker.shard.x[worker.shard.rows]
        for one in (first, second):
            assert torch.equal(one.sort(0).values, own.sort(0).values)
        assert held < 5 or not torch.equal(first, second)
        assert sum(len(y) for _, y in worker.holdout_batches(3)) == min(
            held, worker.recipe.holdout_samples
        )


def halves(batches):
    middle = len(batches) // 2
    return batches[:middle], batches[middle:]


def test_weight_decay_is_in_proposals_and_not_in_ballots():
    def worker(decay):
        plan = make_plan(values(training={"weight_decay": decay}), Plugins(data=LABELLED))
        federation = plan.federation(*plan.curves[0])
        return federation.workers[0], federation.initial_weights

    (plain, weights), (decaying, _) = worker(0.0), worker(0.5)
    asked = {"round_number": 1, "learning_rate": 0.1}
    update = decaying.propose(weights, **asked)
    assert torch.allclose(update, plain.propose(weights, **asked) + 0.5 * weights)
    terms = make_plan(values(), Plugins(data=LABELLED)).curves[-1][0].terms
    ballots = [w.vote(weights, {}, **asked, terms=terms).message for w in (plain, decaying)]
    assert terms.is_joint
    assert torch.equal(*(torch.as_tensor(ballot) for ballot in ballots))


def test_only_training_batches_are_augmented_and_the_seed_decides_how(own_code):
    def drawn(seed):
        plan = make_plan(values(data={"augment": f"{own_code}:noisy"}), Plugins(data=LABELLED))
        federation = plan.federation(plan.curves[0][0], seed)
        return federation.workers[0], federation

    (worker, federation), (other, _) = drawn(0), drawn(1)
    plain = replace(worker, recipe=replace(worker.recipe, augment=None))
    for (x, y), (own, label) in zip(worker.batches(2), plain.batches(2), strict=True):
        assert (x - own).abs().min() > 0
        assert torch.equal(y, label)
    assert torch.equal(worker.batches(2)[0][0], worker.batches(2)[0][0])
    shifts = [
        one.batches(number)[0][0].sum() - own.batches(number)[0][0].sum()
        for one, own, number in ((worker, plain, 2), (worker, plain, 3))
    ]
    assert shifts[0] != shifts[1]
    assert not torch.equal(other.batches(2)[0][0], worker.batches(2)[0][0])
    for (x, _), (own, _) in zip(worker.holdout_batches(2), plain.holdout_batches(2), strict=True):
        assert torch.equal(x, own)
    assert torch.equal(
        federation.x_test, make_plan(values(), Plugins(data=LABELLED)).dataset.x_test
    )


@pytest.mark.parametrize(
    ("name", "kind", "problem"),
    [
        (
            "wide",
            PluginError,
            "data.augment must return finite samples and targets like those that it got",
        ),
        # What raises is counted; the run ends first.
        ("fails", RunFailed, "data.augment raised ZeroDivisionError"),
    ],
)
def test_an_augmentation_that_breaks_batches_is_named(own_code, name, kind, problem):
    with pytest.raises(kind, match=problem):
        play(data={"augment": f"{own_code}:{name}"})


def test_the_rates_of_the_schedule_are_used(own_code):
    for schedule, rates in {
        f"{own_code}:shrinking": [0.05, 0.025, 0.0125],
        "step": [0.1, 0.1 * 0.1, 0.1 * 0.1],
    }.items():
        plan = make_plan(
            values(training={"schedule": schedule, "milestones": [1]}), Plugins(data=LABELLED)
        )
        curve, seed = plan.curves[0]
        federation = plan.federation(curve, seed)
        states = [replace(first_state(federation), round=number) for number in range(3)]
        found = [draw_round(federation, curve, state).learning_rate for state in states]
        assert found == rates


def test_custom_settings_that_cannot_be_used_are_found_at_once(own_code):
    changed = {
        "training": {"schedule": f"{own_code}:late_nan", "loss": f"{own_code}:nowhere"},
        "data": {"augment": f"{own_code}:number", "partition": "nowhere:at_all"},
        "federation": {"proposers": 50},
    }
    with pytest.raises(ConfigError) as caught:
        play(**changed)
    assert sorted(problem.partition(":")[0] for problem in caught.value.problems) == [
        f"data.augment = '{own_code}",
        "data.partition = 'nowhere",
        "federation.proposers + federation.voters = 50 + 5",
        f"training.loss = '{own_code}",
        f"training.schedule = '{own_code}",
    ]
    (late,) = [p for p in caught.value.problems if p.startswith("training.schedule")]
    assert "got nan in round 3" in late


# ---------------------------------------------------------------------- sizes that fit the data


@pytest.mark.parametrize(
    ("rows", "partition", "sizes"),
    [
        (200, "iid", (100, 83, 100)),
        (40, "iid", (20, 20, 20)),
        (2, "dirichlet", (1, 1, 1)),
        (2001, "balanced", (2000, 83, 2000)),
        (4000, "iid", (2000, 83, 2000)),
        (200, "shards", (100, 83, 100)),
        (200, "extreme", (16, 16, 16)),
        (200, "gamma", (16, 16, 16)),
        (12, "extreme", (1, 1, 1)),
        (60_000, "extreme", (2000, 83, 2000)),
    ],
)
def test_sizes_that_are_not_given_fit_the_data(rows, partition, sizes):
    x, y = np.zeros((rows, 1), np.float32), np.arange(rows) % 2
    x[:, 0] = y
    plan = make_plan(values(data={"partition": partition}), Plugins(data=(x, y, x[:2], y[:2])))
    config = plan.config
    found = (config.data.samples_per_worker, config.training.batch_size, config.vote.samples)
    assert found == sizes


def test_what_was_chosen_is_written_down_and_repeats_the_run(tmp_path):
    first = play(rows=LABELLED, out=tmp_path / "first", data={"partition": "quantity"})
    stored = tomllib.loads((tmp_path / "first" / "config.toml").read_text())
    largest = max(map(sum, json.loads((tmp_path / "first" / SHARDS).read_text())["counts"]))
    assert stored["training"]["batch_size"] == min(83, largest)
    assert stored["vote"]["samples"] == largest
    again = run(stored, plugins=Plugins(data=LABELLED), out=tmp_path / "again")
    assert tiny.rounds(tmp_path / "first") == tiny.rounds(tmp_path / "again")
    assert again.config == first.config
    assert run(first.config, plugins=Plugins(data=LABELLED)).config == first.config


def test_a_config_object_leaves_open_what_it_does_not_give():
    config = Config.model_validate(values(data={"samples_per_worker": 50}))
    plan = make_plan(config, Plugins(data=LABELLED))
    assert plan.config.vote.samples == 50
    assert plan.config.training.batch_size == 50


def test_numbers_that_are_given_are_kept_or_refused_all_at_once():
    given = {"training": {"batch_size": 30}, "vote": {"samples": 40}}
    config = make_plan(values(**given), Plugins(data=LABELLED)).config
    assert (config.training.batch_size, config.vote.samples) == (30, 40)
    with pytest.raises(ConfigError) as caught:
        play(
            training={"batch_size": 101},
            vote={"samples": 102},
            federation={"proposers": 40},
            model={"name": "lenet5"},
        )
    assert [problem.partition(": ")[0] for problem in caught.value.problems] == [
        "federation.proposers + federation.voters = 40 + 5",
        "training.batch_size = 101",
        "vote.samples = 102",
    ]
    with pytest.raises(ConfigError) as caught:
        play(training={"batch_size": 101}, vote={"samples": 102}, model={"name": "lenet5"})
    assert [problem.partition(": ")[0] for problem in caught.value.problems] == [
        "training.batch_size = 101",
        "vote.samples = 102",
        "model.name = 'lenet5'",
    ]
    assert "must be at most the 100 rows of the largest shard" in str(caught.value)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (
            {"partition": "extreme", "samples_per_worker": 17},
            "data.partition = 'extreme': needs 17 rows for each of federation.workers = 12, no two "
            "the same; plugins.data has 200 training rows",
        ),
        ({"samples_per_worker": 201}, "data.samples_per_worker = 201: must be at most the 200"),
        (
            {"partition": "shards", "labels_per_worker": 3},
            "data.labels_per_worker = 3: must be at most the 2 classes of plugins.data",
        ),
        (
            {"partition": "file", "partition_file": "nowhere.json"},
            "data.partition = 'file': nowhere.json: cannot be read: No such file or directory",
        ),
        (
            {"partition": "file", "partition_file": "/dev/zero"},
            "data.partition = 'file': /dev/zero: must be an ordinary file; it is a pipe or a dev",
        ),
    ],
)
def test_data_that_does_not_fit_the_federation_is_named(data, problem):
    with pytest.raises(ConfigError) as caught:
        play(data=data)
    (found,) = caught.value.problems
    assert found.startswith(problem)


def test_a_file_decides_who_holds_what_in_a_run(tmp_path):
    held = [list(range(worker, 200, 12))[: worker + 1] for worker in range(12)]
    path = tmp_path / "split.json"
    path.write_text(json.dumps(held))
    given = {"partition": "file", "partition_file": str(path)}
    plan = make_plan(values(data=given), Plugins(data=LABELLED))
    federation = plan.federation(*plan.curves[0])
    assert [worker.shard.rows.tolist() for worker in federation.workers] == held
    assert plan.config.vote.samples == 12
    play(data=given, training={"local_epochs": 1})
    play("decentralized", data=given)


def test_unequal_workers_use_what_they_have():
    plan = make_plan(values(data={"partition": "quantity", "alpha": 0.2}), Plugins(data=LABELLED))
    federation = plan.federation(*plan.curves[0])
    weights = federation.initial_weights
    for worker in federation.workers:
        held = len(worker.shard.rows)
        ((x, y),) = worker.batches(1)
        assert len(x) == min(held, plan.config.training.batch_size)
        assert len(worker.holdout_rows(1)) == min(held, plan.config.vote.samples)
        update = worker.propose(weights, round_number=1, learning_rate=0.1)
        assert torch.allclose(update, gradients(worker.model, weights, [(x, y)])[0], atol=1e-6)


def test_the_report_shows_who_holds_which_labels(tmp_path):
    play(out=tmp_path / "run", data={"partition": "quantity", "alpha": 0.3})
    shards = json.loads((tmp_path / "run" / SHARDS).read_text())
    sizes = [sum(counts) for counts in shards["counts"]]
    assert (shards["seed"], len(sizes), sum(sizes)) == (0, 12, 12 * 16)
    page = (tmp_path / "run" / "report.html").read_text("utf-8")
    assert f"12 workers hold {min(sizes)} to {max(sizes)} rows each" in page
    assert page.count("<g><title>worker ") == 12
    (tmp_path / "run" / SHARDS).write_text('{"counts": [[1, "a"]]}')
    assert "<g><title>worker " not in write_report(tmp_path / "run").read_text("utf-8")
