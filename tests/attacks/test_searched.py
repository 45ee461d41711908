"""Lies chosen by what comes of them, against a plain search over the same list."""

import pytest
import torch
from torch.func import functional_call
from torch.nn import functional as F  # noqa: N812

from holdout import stream
from holdout.attacks import ATTACKS, DeployedRule
from holdout.attacks.searched import Menu
from holdout.attacks.view import dense
from holdout.learning import vector
from holdout.rules import RULES, RuleContext, find_rule

DEPLOYED = ["mean", "median", "krum", "trimmed-mean"]


def against(rule, make_view, **setting):
    """A view of three liars among eight, with this rule deployed."""
    known = make_view(**setting).known
    return make_view(deployed=DeployedRule(RULES[rule], known, 3, 2), **setting)


def lies_of(view):
    """Every lie on the menu by name, a row for each liar."""
    menu = Menu.of(view)
    return {name: torch.stack(dense(lies, menu.basis)) for name, lies in menu.lies.items()}


def held_loss(view, lies, messages=None):
    """The loss of the held samples after the step, computed with nothing of ours."""
    step = view.deployed.outcome(list(lies), messages)
    weights = view.weights if step is None else view.weights - view.learning_rate * step
    x, y = view.held()
    with torch.no_grad():
        logits = functional_call(view.model, vector.unflatten(view.model, weights), (x,))
        return F.cross_entropy(logits.double(), y).item()


def distance(view, lies):
    step = view.deployed.outcome(list(lies))
    step = torch.zeros_like(view.weights) if step is None else step
    return float((step.double() - view.known.double().mean(dim=0)).norm())


@pytest.mark.parametrize("model", ["mlp", "lenet5"])
@pytest.mark.parametrize("rule", DEPLOYED)
@pytest.mark.parametrize("seed", range(2))
def test_greedy_sends_what_harms_most_of_all_it_tries(model, rule, seed, make_view):
    view = against(rule, make_view, model=model, seed=seed)
    sent = ATTACKS["greedy"](exact=1000)(view).updates
    fresh = against(rule, make_view, model=model, seed=seed)
    losses = {name: held_loss(fresh, lies) for name, lies in lies_of(fresh).items()}
    assert held_loss(view, sent) == pytest.approx(max(losses.values()), rel=1e-4)
    assert max(losses.values()) >= losses["honest work"]


@pytest.mark.parametrize("rule", DEPLOYED)
def test_more_exact_trials_never_find_less_harm(rule, make_view):
    harm = {
        exact: held_loss(view, ATTACKS["greedy"](exact=exact)(view).updates)
        for exact in (1, 8, 1000)
        for view in [against(rule, make_view)]
    }
    honest = held_loss(view := against(rule, make_view), view.own_updates())
    assert honest <= harm[1] <= harm[8] <= harm[1000]


@pytest.mark.parametrize("rule", DEPLOYED)
def test_where_nobody_sends_joint_ballots_jointly_is_greedy(rule, make_view):
    greedy, jointly = (ATTACKS[name]()(against(rule, make_view)) for name in ("greedy", "jointly"))
    assert jointly.messages is None
    assert torch.equal(torch.stack(list(jointly.updates)), torch.stack(list(greedy.updates)))


def with_voters(make_view, *, heard=4, liars=2, **setting):
    """A view of a rule that averages what proposers and voters send."""
    view = make_view(**setting)
    generator = torch.Generator().manual_seed(9)
    rows = 0.2 * torch.randn(heard + liars, len(view.weights), generator=generator)
    talk = {"messages": lambda: rows[:heard], "own_messages": lambda: rows[heard:]}
    return make_view(**setting, **talk)


@pytest.mark.parametrize("heard", [0, 4])
@pytest.mark.parametrize("seed", range(2))
def test_jointly_sends_the_pair_of_lie_and_votes_that_harms_most(heard, seed, make_view):
    view = with_voters(make_view, heard=heard, seed=seed)
    lie = ATTACKS["jointly"](exact=1000)(view)
    menu = Menu.of(view)
    pairs = [
        (dense(lies, menu.basis), dense(messages, menu.basis))
        for lies in menu.lies.values()
        for messages in menu.ways_to_vote(lies)
    ]
    assert len(pairs) == 7 * len(menu.lies)
    assert [len(messages) for _, messages in pairs[:7]] == [2, 2, 2, 2, 0, 2, 2]
    worst = max(held_loss(view, *pair) for pair in pairs)
    assert held_loss(view, lie.updates, lie.messages) == pytest.approx(worst, rel=1e-4)


def test_the_ways_to_vote_are_the_stated_ones(make_view):
    view = with_voters(make_view)
    menu = Menu.of(view)
    own, known = view.own_messages(), view.messages()
    mean, deviation = known.mean(dim=0), known.std(dim=0, correction=0)
    usual = float(known.norm(dim=1).median())
    lies = lies_of(view)["own reversed"]
    promoting = usual * lies.mean(dim=0) / lies.mean(dim=0).norm()
    plain = [
        own,
        -own,
        (-usual * mean / mean.norm()).expand(2, -1),
        (mean - 1.5 * deviation).expand(2, -1),
        own[:0],
        promoting.expand(2, -1),
        own + 0.5 * promoting,
    ]
    ways = menu.ways_to_vote(menu.lies["own reversed"])
    for found, expected in zip(ways, plain, strict=True):
        vectors = dense(found, menu.basis)
        assert len(vectors) == len(expected)
        for vector_, row in zip(vectors, expected, strict=True):
            assert torch.allclose(vector_, row, atol=1e-5)


def test_the_list_is_the_stated_one(make_view):
    view = make_view(count=2)
    lies = lies_of(view)
    own, mean, deviation = view.own_updates(), view.mean, view.deviation
    usual = float(view.known.norm(dim=1).median())
    assert all(lie.shape == own.shape for lie in lies.values())
    plain = {
        "honest work": own,
        "mean times -3": (-3 * mean).expand(2, -1),
        "mean - 0.75 deviations": (mean - 0.75 * deviation).expand(2, -1),
        "own reversed": -own,
        "own - 4 means": own - 4 * mean,
        "own - half a step": own - 0.5 * usual * mean / mean.norm(),
        "own + 0.3 deviations": own + 0.3 * deviation,
        "back to the start": (usual * view.weights / view.weights.norm()).expand(2, -1),
    }
    for name, expected in plain.items():
        assert torch.allclose(lies[name], expected, atol=1e-5), name
    # 1 + 5 + 10 + 1 + 3 + 1 + 2 + 1, a permutation, three classes twice, and all of them.
    assert len(lies) == 24 + 1 + 6 + 1


def test_what_makes_it_forget_is_against_the_gradient_and_of_usual_length(make_view):
    view = make_view()
    x, y = view.held()
    lies = lies_of(view)
    losses = {}
    for label in range(4):
        weights = view.weights.clone().requires_grad_()
        logits = functional_call(view.model, vector.unflatten(view.model, weights), (x,))
        loss = F.cross_entropy(logits[y == label], y[y == label])
        (slope,) = torch.autograd.grad(loss, weights)
        losses[label] = loss.item()
        if f"class {label} forgotten" in lies:
            lie = lies[f"class {label} forgotten"][0]
            assert float(lie.norm()) == pytest.approx(view.usual_norm, rel=1e-4)
            assert float(F.cosine_similarity(lie, slope, dim=0)) == pytest.approx(-1, abs=1e-4)
            half = lies[f"own + half of class {label} forgotten"]
            assert torch.allclose(half, view.own_updates() + 0.5 * lie, atol=1e-6)
    best_known = min(losses, key=losses.__getitem__)
    assert f"class {best_known} forgotten" not in lies


def test_a_model_without_units_to_permute_is_attacked_with_the_others(make_view):
    network = torch.nn.Linear(12, 4)
    weights = vector.flatten(network)
    known = torch.randn(5, len(weights), generator=torch.Generator().manual_seed(0))
    view = make_view(
        model="mlp",
        deployed=DeployedRule(RULES["mean"], known, 3, 2),
    )
    view.__dict__.update(model=network, weights=weights, start=weights, known=known)
    view.__dict__.update(own_updates=lambda: known[:3])
    assert "units in another order" not in lies_of(view)
    assert torch.stack(list(ATTACKS["greedy"]()(view).updates)).shape == (3, len(weights))


@pytest.mark.parametrize("name", ["opt-alie", "opt-ipm"])
@pytest.mark.parametrize(("by", "harm"), [("distance", distance), ("loss", held_loss)])
@pytest.mark.parametrize("rule", DEPLOYED)
def test_no_other_strength_on_a_fine_grid_is_much_worse(name, by, harm, rule, make_view):
    view = against(rule, make_view)
    lie = ATTACKS[name](gamma_max=9.0, by=by)(view)
    zero = torch.zeros_like(view.mean)
    ways = {"opt-alie": (view.mean, view.deviation), "opt-ipm": (zero, -view.mean)}
    base, step = ways[name]
    assert torch.allclose(lie.updates, base + lie.gamma * step, atol=1e-6)
    assert abs(lie.gamma) <= 9.0

    def at(gamma):
        return harm(view, (base + gamma * step).expand(3, -1))

    grid = [at(0.25 * place) for place in range(-36, 37)]
    assert at(lie.gamma) >= max(grid) - 0.35 * (max(grid) - min(grid))
    assert at(lie.gamma) >= max(at(9.0), at(-9.0), at(0.0)) - 1e-6


def test_both_signs_are_tried(make_view):
    signs = {
        ATTACKS["opt-alie"](by="loss")(against("mean", make_view, seed=seed)).gamma > 0
        for seed in range(12)
    }
    assert signs == {True, False}


def test_a_maximum_of_zero_leaves_the_base(make_view):
    view = against("mean", make_view)
    assert ATTACKS["opt-alie"](gamma_max=0.0)(view).gamma == 0.0
    assert torch.equal(ATTACKS["opt-alie"](gamma_max=0.0)(view).updates, view.mean)


def test_a_step_that_no_model_survives_is_the_worst(make_view):
    class Fragile:
        leaves_nobody_out = True

        def outcome(self, lies, _messages=None):
            return lies[0] * torch.inf if lies[0].norm() > 100 else lies[0]

    view = make_view(deployed=Fragile())
    for by in ("distance", "loss"):
        assert ATTACKS["opt-ipm"](by=by, gamma_max=1e6)(view).updates.norm() > 100


MIXING = ("nnm+trimmed-mean", "geometric-median", "clipping+nnm+geometric-median", "arc+median")
CHOOSING = ("krum", "fltrust", "zeno")


class Asked:
    """The server's own rows and two voters: they like what goes one way."""

    def __init__(self, like):
        way = torch.Generator().manual_seed(8)
        self.own = 0.1 * torch.randn(like.shape, generator=way)

    def update(self):
        return self.own

    def losses(self, updates):
        return 2.0 - updates.double() @ self.own.double()

    def impacts(self, updates):
        parts = (updates.double() * self.own).split(len(self.own) // 3 + 1, dim=1)
        report = torch.stack([part.sum(dim=1) for part in parts], dim=1)
        return [report, report + 0.01]


@pytest.mark.parametrize("name", ["opt-ipm", "opt-alie", "greedy"])
@pytest.mark.parametrize("rule", [*MIXING, *CHOOSING])
@pytest.mark.parametrize("seed", range(3))
def test_estimates_spare_trials_and_change_no_lie(name, rule, seed, make_view, monkeypatch):
    view = make_view(seed=seed)
    asked, run = Asked(view.weights), []

    class Counted(DeployedRule):
        def outcome(self, lies, messages=None):
            run[-1] += 1
            return super().outcome(lies, messages)

    sent = []
    for hides in (False, True):
        run.append(0)
        deployed = Counted(
            find_rule(rule),
            view.known,
            3,
            2 if rule in MIXING else 1,
            context=lambda: RuleContext(1, view.weights.clone(), 0.1, stream(0), root=asked),
        )
        if hides:
            monkeypatch.setattr(DeployedRule, "outlook", lambda *_: None)
        updates = ATTACKS[name]()(make_view(seed=seed, deployed=deployed)).updates
        sent.append(updates if isinstance(updates, torch.Tensor) else torch.stack(list(updates)))
    assert torch.equal(*sent)
    assert run[0] < run[1]


@pytest.mark.parametrize("name", ["opt-ipm", "opt-alie"])
def test_a_bound_spares_trials_and_changes_no_lie(name, make_view, monkeypatch):
    view, run, sent = make_view(known=7), [], []
    asked = Asked(view.weights)

    class Counted(DeployedRule):
        def outcome(self, lies, messages=None):
            run[-1] += 1
            return super().outcome(lies, messages)

    for hides in (False, True):
        run.append(0)
        deployed = Counted(
            find_rule("flshield"),
            view.known,
            5,
            5,
            context=lambda: RuleContext(1, view.weights.clone(), 0.1, stream(0)),
            voters=lambda _lies: asked,
        )
        if hides:
            monkeypatch.setattr(DeployedRule, "outlook", lambda *_: None)
        sent.append(ATTACKS[name]()(make_view(known=7, count=5, deployed=deployed)).updates)
    assert torch.equal(*sent)
    assert run[0] < run[1]
