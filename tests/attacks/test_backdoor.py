"""The backdoor: where its trigger is, on what liars train, how far they go, what is measured."""

import json

import pytest
import torch
from torch.nn import functional as F  # noqa: N812

import holdout
from holdout.attacks import ATTACKS, DeployedRule, Triggering
from holdout.data.datasets import Dataset
from holdout.errors import ConfigError, MisuseError, PluginError
from holdout.learning import vector
from holdout.learning.training import local_update
from holdout.rules import RULES

Backdoor = ATTACKS["backdoor"]


@pytest.mark.parametrize(
    ("place", "pixels"),
    [
        ({"row": 0, "column": 0, "size": 1}, [(0, 0)]),
        ({"row": 1, "column": -2, "size": 2}, [(1, 3), (1, 4), (2, 3), (2, 4)]),
        ({"row": -1, "column": 2, "size": 1}, [(3, 2)]),
    ],
)
@pytest.mark.parametrize("flat", [False, True])
def test_the_trigger_is_where_it_was_put_in_every_channel(place, pixels, flat):
    attack = Backdoor(value=7.0, shape=[2, 4, 5] if flat else (), **place)
    x = torch.rand(3, 40) if flat else torch.rand(3, 2, 4, 5)
    before = x.clone()
    images = attack.put_trigger(x).reshape(3, 2, 4, 5)
    assert torch.equal(x, before)
    for r in range(4):
        for c in range(5):
            old = before.reshape(3, 2, 4, 5)[:, :, r, c]
            new = images[:, :, r, c]
            assert torch.equal(new, torch.full_like(new, 7.0) if (r, c) in pixels else old)


@pytest.mark.parametrize(("share", "count"), [(0.3, 3), (0.01, 1), (1.0, 8)])
def test_the_first_rows_of_other_classes_are_triggered_and_relabelled(share, count):
    attack = Backdoor(target=1, share=share)
    x, y = torch.rand(10, 1, 8, 8), torch.tensor([1, 0, 2, 3, 1, 0, 2, 3, 0, 2])
    poisoned, labels = attack.poison(x, y)
    others = [i for i in range(10) if y[i] != 1]
    for i in range(10):
        if i in others[:count]:
            assert labels[i] == 1
            assert torch.equal(poisoned[i : i + 1], attack.put_trigger(x[i : i + 1]))
        else:
            assert labels[i] == y[i]
            assert torch.equal(poisoned[i], x[i])
    assert y.tolist() == [1, 0, 2, 3, 1, 0, 2, 3, 0, 2]


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("factor", [1.0, 4.0])
def test_each_liar_sends_the_scaled_update_of_its_poisoned_batches(steps, factor, make_view):
    view = make_view("lenet5", count=2, steps=steps)
    lie = Backdoor(target=2, factor=factor)(view)
    assert lie.gamma == factor
    for row, batches in zip(lie.updates, view.own_batches(), strict=True):
        poisoned = [Backdoor(target=2).poison(*batch) for batch in batches]
        wanted = local_update(view.model, view.weights, poisoned, learning_rate=0.1)
        assert torch.allclose(row, factor * wanted, rtol=1e-4, atol=1e-6)


def test_without_batches_it_says_so(make_view):
    with pytest.raises(MisuseError, match="3 liars need their batches; got 0"):
        Backdoor()(make_view("lenet5", own_batches=tuple))


@pytest.mark.parametrize("rule", ["mean", "krum"])
def test_the_searched_factor_is_best_for_trigger_and_task_together(rule, make_view):
    view = make_view("lenet5", known=9)
    deployed = DeployedRule(RULES[rule], view.known, 3, 3)
    view = make_view("lenet5", known=9, deployed=deployed)
    attack = Backdoor(factor="search", factor_max=10.0)
    found = attack(view).gamma
    x, y = view.held()
    plain = Backdoor(factor=1.0)(view).updates

    def objective(factor):
        step = deployed.outcome(list(factor * plain))
        parameters = vector.unflatten(view.model, view.weights - 0.1 * step)
        others = y != 0
        clean = F.cross_entropy(vector.call(view.model, parameters, x), y)
        fooled = vector.call(view.model, parameters, attack.put_trigger(x[others]))
        return float(clean + F.cross_entropy(fooled, torch.zeros_like(y[others])))

    tried = [1.0, 1.5, 2.25, 3.375, 5.0625, 7.59375, 10.0]
    assert found in tried
    assert objective(found) == pytest.approx(min(map(objective, tried)), abs=1e-5)
    if rule == "mean":
        assert found > 1


# ---------------------------------------------------------------------------------- in experiments


def pictures(flat=False):
    """Bright stripes, one row of the image a class: easy to learn, trigger or not."""
    generator = torch.Generator().manual_seed(0)

    def part(count):
        y = torch.arange(count) % 4
        x = 0.3 * torch.randn(count, 1, 8, 8, generator=generator)
        x[torch.arange(count), 0, y] += 1.0
        return x.flatten(1) if flat else x, y

    return Dataset("pictures", *part(400), *part(120), 4)


def setting(rules=("mean",), rounds=12, **attack):
    return {
        "experiment": {"rules": list(rules), "rounds": rounds, "threads": 1, "evaluate_every": 4},
        "data": {"samples_per_worker": 60},
        "training": {"batch_size": 20, "learning_rate": 0.3},
        "federation": {"workers": 15, "byzantine": 5, "proposers": 9, "voters": 6},
        "vote": {"samples": 40},
        "attack": {"name": "backdoor", "target": 1, **attack},
    }


def run(values, flat=False, **settings):
    return holdout.run(values, plugins=holdout.Plugins(data=pictures(flat)), **settings)


@pytest.mark.parametrize("flat", [False, True])
def test_the_mean_keeps_its_accuracy_and_learns_the_trigger(flat, tmp_path):
    shape = {"shape": [1, 8, 8]} if flat else {}
    result = run(setting(["mean", "krum", "holdout"], **shape), flat, out=tmp_path / "run")
    rows = {(row.rule, row.attack): row for row in result.table()}
    assert rows["mean", "none"].attack_success < 0.2
    assert rows["mean", "backdoor"].attack_success > 0.9
    assert rows["mean", "backdoor"].accuracy > 0.9
    assert rows["holdout", "backdoor"].attack_success < rows["mean", "backdoor"].attack_success
    measured = [line for line in result.rounds if "attack_success" in line]
    assert [line["round"] for line in measured] == [4, 8, 12] * 4
    ends = {c["rule"]: c["final_attack_success"] for c in result.summary["curves"][1:]}
    assert ends == {rule: rows[rule, "backdoor"].attack_success for rule in ends}
    page = (tmp_path / "run" / "report.html").read_text()
    assert "<th>attack success</th>" in page.replace(' scope="col"', "")
    assert "<h3>Success of the attack on triggered rows</h3>" in page
    assert 'id="attack-success"' in page
    assert "attack success" in result._repr_html_()
    lines = (tmp_path / "run" / "results.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [
        {**line, "seconds": json.loads(raw)["seconds"]}
        for line, raw in zip(result.rounds, lines, strict=True)
    ]


def test_success_counts_triggered_test_rows_of_other_classes_alone(tmp_path):
    result = run(setting(rounds=4), out=tmp_path / "run")
    data, attack = pictures(), Backdoor(target=1)
    plan = holdout.experiments.plan.make_plan(setting(rounds=4), holdout.Plugins(data=data))
    curve, seed = plan.curves[1]
    federation = plan.federation(curve, seed)
    state = holdout.federation.round_setup.first_state(federation)
    for _ in range(4):
        _, state = holdout.federation.central.run_round(federation, curve, state)
    parameters = vector.unflatten(federation.model, state.weights)
    mean, deviation = data.x_train.mean(), data.x_train.std(correction=0)
    taken = [
        int(vector.call(federation.model, parameters, attack.put_trigger(row[None])).argmax() == 1)
        for row, label in zip(federation.x_test, federation.y_test, strict=True)
        if label != 1
    ]
    assert mean.isfinite()
    assert deviation > 0
    assert result.table()[1].attack_success == pytest.approx(sum(taken) / len(taken))


def test_other_attacks_leave_no_trace_of_success(tmp_path):
    values = setting()
    values["attack"] = {"name": "sign-flip"}
    result = run(values, out=tmp_path / "run")
    for file in ("results.jsonl", "summary.json", "report.html"):
        text = (tmp_path / "run" / file).read_text()
        assert "attack_success" not in text
        assert "Success of the attack" not in text
        assert "success_" not in text
    assert all(row.attack_success is None for row in result.table())


def test_a_schedule_holds_for_the_backdoor_too():
    asleep, awake = run(setting(rounds=8, onset=9)), run(setting(rounds=8, ramp=2))
    late = run(setting(rounds=8, onset=2, every=3, dormant=2))
    assert asleep.table()[1].attack_success < awake.table()[1].attack_success

    def told(result):
        lines = [line for line in result.rounds if line["attack"] != "none"]
        return [line["round"] for line in lines if line["gamma"] is not None]

    assert (told(asleep), told(late), told(awake)) == ([], [2, 5], [*range(1, 9)])


@pytest.mark.parametrize("rule", ["trimmed-mean", "flshield"])
def test_the_searched_backdoor_plays_against_rules_and_reports(rule):
    result = run(setting([rule], rounds=4, factor="search", factor_max=4.0))
    lies = [line for line in result.rounds if line["attack"] != "none"]
    assert all(1.0 <= line["gamma"] <= 4.0 for line in lies if line["byzantine_proposers"])


@pytest.mark.parametrize(
    ("attack", "problem"),
    [
        ({"target": 4}, "attack.target = 4: must be from 0 to 3"),
        ({"share": 0.0}, "attack.share = 0.0: must be above 0 and at most 1"),
        ({"size": 9}, "attack.size = 9: must be from 1 to 8"),
        ({"row": -2}, "attack.row = -2: a square of 3 pixels there does not fit a side of 8"),
        ({"column": 8}, "attack.column = 8: a square of 3 pixels there does not fit a side of 8"),
        ({"factor": 0.0}, 'attack.factor = 0.0: must be above 0 or "search"'),
        ({"factor_max": 0.5}, "attack.factor_max = 0.5: must be at least 1"),
        ({"shape": [1, 4, 4]}, "attack.name = 'backdoor': needs images (channels, height, width)"),
        ({"shape": [8, 8]}, "attack.name = 'backdoor': needs images (channels, height, width)"),
        ({"factor": "serch"}, "attack.factor = 'serch': must be"),
        ({"colour": "red"}, "attack.colour = 'red': unknown key"),
    ],
)
def test_a_trigger_that_does_not_fit_is_one_line(attack, problem):
    with pytest.raises(ConfigError) as caught:
        run(setting(**attack))
    assert len(caught.value.problems) == 1
    assert caught.value.problems[0].startswith(problem)


def test_data_that_holds_no_images_is_refused():
    with pytest.raises(ConfigError) as caught:
        run(setting(), flat=True)
    assert caught.value.problems == (
        "attack.name = 'backdoor': needs images (channels, height, width), or flat rows and "
        "attack.shape; got rows of shape (64,) and attack.shape = []",
    )


class Stripe:
    """A custom attack with a trigger."""

    target = 0

    def __init__(self, put=None):
        self.put = put

    def put_trigger(self, x):
        if self.put is not None:
            return self.put(x)
        x[..., -1] = 3.0
        return x

    def __call__(self, view):
        return view.own_updates()


def test_the_success_of_a_custom_attack_with_a_trigger_is_measured():
    assert isinstance(Stripe(), Triggering)
    assert not isinstance(ATTACKS["mimic"](), Triggering)
    values = {**setting(rounds=4), "attack": {}}
    data = pictures()
    result = holdout.run(values, plugins=holdout.Plugins(data=data, attack=Stripe()))
    assert result.table()[1].attack_success is not None
    wrong = holdout.Plugins(data=data, attack=Stripe(lambda x: x[0]))
    with pytest.raises(PluginError, match="put_trigger must return float32 rows of shape"):
        holdout.run(values, plugins=wrong)
    result = holdout.run(values, plugins=holdout.Plugins(data=data, attack=Stripe(lambda _: 1 / 0)))
    assert result.table()[1].attack_success is None
    counted = [row.get("custom_errors") for row in holdout.read_run(result).rows]
    assert {"evaluate": 1} in counted
