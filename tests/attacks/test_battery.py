"""Every attack through the same laws: a new attack is a new row of the table."""

import math
from dataclasses import dataclass, replace

import pytest
import torch
from torch.func import functional_call

from holdout.attacks import ATTACKS, Lie
from holdout.attacks.updates import flip_labels
from holdout.errors import ModelError
from holdout.learning import vector
from holdout.rounds import ProposalFault, admit_proposals


@dataclass(frozen=True)
class Case:
    """What the laws must know of an attack."""

    honest_shape: bool = True
    """It sends vectors of the right size, as many as it has proposers, all finite."""
    each_its_own: bool = False
    random: bool = False
    """It depends on the seed and the round besides what it knows."""
    gamma: bool = False


CASES = {
    "alie": Case(gamma=True),
    "sign-flip": Case(),
    "ipm": Case(gamma=True),
    "bomb": Case(),
    "rescale": Case(),
    "permute": Case(random=True),
    "gaussian": Case(each_its_own=True, random=True),
    "label-flip": Case(each_its_own=True),
    "mimic": Case(),
    "zero": Case(),
    "nan": Case(honest_shape=False, each_its_own=True),
    "greedy": Case(each_its_own=True),
    "jointly": Case(each_its_own=True),
    "opt-alie": Case(gamma=True),
    "opt-ipm": Case(gamma=True),
    "min-max": Case(gamma=True),
    "min-sum": Case(gamma=True),
    "shift-back": Case(each_its_own=True),
    "poisoned": Case(),
    "backdoor": Case(each_its_own=True, gamma=True),
}
FLAT = {"backdoor": {"shape": (1, 3, 4), "size": 2, "row": 0, "column": 0}}
"""What an attack must be told where samples are rows of twelve numbers."""
every_attack = pytest.mark.parametrize("name", ATTACKS)
both_models = pytest.mark.parametrize("model", ["mlp", "lenet5"])


def attack_of(name, model="mlp"):
    return ATTACKS[name](**(FLAT.get(name, {}) if model == "mlp" else {}))


def sent(lie, count):
    """What each proposer sends."""
    assert isinstance(lie, Lie)
    if isinstance(lie.updates, torch.Tensor) and lie.updates.ndim == 1:
        return [lie.updates] * count
    return list(lie.updates)


def same(left, right):
    if left is None or right is None:
        return left is right
    return torch.equal(left.nan_to_num(nan=7.5), right.nan_to_num(nan=7.5))


def test_the_table_lists_every_attack():
    assert list(CASES) == list(ATTACKS)


@every_attack
@both_models
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("known", [1, 5])
def test_it_sends_one_vector_for_all_or_one_each(name, model, count, known, make_view):
    view = make_view(model, count=count, known=known)
    lie = attack_of(name, model)(view)
    updates = sent(lie, count)
    assert len(updates) == count
    assert (lie.gamma is not None) == CASES[name].gamma
    alone = isinstance(lie.updates, torch.Tensor) and lie.updates.ndim == 1
    assert alone != CASES[name].each_its_own
    if CASES[name].honest_shape:
        admitted = admit_proposals(updates, dimension=len(view.weights))
        assert list(admitted.valid) == list(range(count))
        assert all(update.dtype == torch.float32 for update in updates)


@every_attack
@both_models
def test_the_same_seed_and_round_give_the_same_lie(name, model, make_view):
    first, second = (sent(attack_of(name, model)(make_view(model, count=9)), 9) for _ in range(2))
    assert all(same(a, b) for a, b in zip(first, second, strict=True))


@every_attack
@pytest.mark.parametrize("changed", [{"round_number": 2}, {"seed": 1}])
def test_only_random_ones_depend_on_seed_and_round_besides_what_they_know(name, changed, make_view):
    here = make_view(count=9)
    there = make_view(**changed)
    moved = make_view(count=9, round_number=there.round_number, source=there.source)
    first, second = (sent(attack_of(name)(view), 9) for view in (here, moved))
    equal = all(same(a, b) for a, b in zip(first, second, strict=True))
    assert equal != CASES[name].random


@every_attack
@both_models
def test_what_it_knows_is_left_as_it_was(name, model, make_view):
    view = make_view(model, count=9)
    before = [t.clone() for t in (view.weights, view.known, view.own_updates())]
    parameters = [p.detach().clone() for p in view.model.parameters()]
    attack_of(name, model)(view)
    after = [view.weights, view.known, view.own_updates()]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(parameters, view.model.parameters(), strict=True))


def logits(view, update):
    x = torch.randn(50, *view_shape(view), generator=torch.Generator().manual_seed(5))
    candidate = view.weights - view.learning_rate * update
    with torch.no_grad():
        return functional_call(view.model, vector.unflatten(view.model, candidate), (x,))


def view_shape(view):
    first = view.model[0]
    return (1, 16, 16) if isinstance(first, torch.nn.Conv2d) else (12,)


@both_models
@pytest.mark.parametrize("name", ["rescale", "permute"])
@pytest.mark.parametrize("seed", range(3))
def test_another_network_that_computes_the_same_function(name, model, seed, make_view):
    view = make_view(model, seed=seed)
    lie = ATTACKS[name]()(view).updates
    honest = logits(view, view.mean)
    assert torch.allclose(logits(view, lie), honest, rtol=1e-3, atol=1e-3 * honest.abs().max())
    moved = view.learning_rate * (lie - view.mean)
    assert moved.norm() > 0.2 * view.weights.norm()
    # Half way between the two is no such network: that is the point.
    between = logits(view, (lie + view.mean) / 2)
    assert (between - honest).abs().max() > 0.05 * honest.abs().max()


@pytest.mark.parametrize("factor", [0.01, 2.0, 1000.0])
def test_rescale_multiplies_the_first_layer_and_divides_the_second(factor, make_view):
    view = make_view()
    honest = vector.unflatten(view.model, view.weights - 0.1 * view.mean)
    lie = ATTACKS["rescale"](factor=factor)(view).updates
    there = vector.unflatten(view.model, view.weights - 0.1 * lie)
    close = {"rtol": 1e-3, "atol": 1e-6}
    assert torch.allclose(there["1.weight"], honest["1.weight"] * factor, **close)
    assert torch.allclose(there["1.bias"], honest["1.bias"] * factor, **close)
    assert torch.allclose(there["3.weight"], honest["3.weight"] / factor, **close)
    assert torch.allclose(there["3.bias"], honest["3.bias"], **close)


@pytest.mark.parametrize("name", ["rescale", "permute"])
@pytest.mark.parametrize(
    "network",
    [
        torch.nn.Linear(12, 4),
        torch.nn.Sequential(torch.nn.Linear(12, 4)),
        torch.nn.Sequential(torch.nn.Linear(12, 8), torch.nn.Tanh(), torch.nn.Linear(8, 4)),
    ],
    ids=["no sequence", "one layer", "not homogeneous"],
)
def test_symmetries_need_a_network_that_has_them(name, network, make_view):
    weights = vector.flatten(network)
    view = replace(make_view(), model=network, weights=weights, known=torch.zeros(2, len(weights)))
    with pytest.raises(ModelError, match=r"needs an nn\.Sequential"):
        ATTACKS[name]()(view)


@pytest.mark.parametrize("scale", [1.0, 0.5, 7.0])
def test_sign_flip_turns_the_honest_mean_round(scale, make_view):
    view = make_view()
    lie = ATTACKS["sign-flip"](scale=scale)(view).updates
    assert torch.allclose(lie, -scale * view.known.mean(dim=0))


def test_bomb_is_ten_thousand_times_as_long(make_view):
    view = make_view()
    assert torch.allclose(ATTACKS["bomb"]()(view).updates, -1e4 * view.known.mean(dim=0))


def test_zero_is_nothing(make_view):
    view = make_view()
    assert torch.equal(ATTACKS["zero"]()(view).updates, torch.zeros(len(view.weights)))


@pytest.mark.parametrize(("target", "row"), [(0, 0), (3, 3), (4, 4), (5, 0), (13, 3)])
def test_mimic_sends_a_known_update_again(target, row, make_view):
    view = make_view()
    lie = ATTACKS["mimic"](target=target)(view).updates
    assert torch.equal(lie, view.known[row])
    assert lie.data_ptr() != view.known[row].data_ptr()


@pytest.mark.parametrize("scale", [0.1, 1.0, 20.0])
def test_gaussian_noise_has_the_scale_and_differs_between_proposers(scale, make_view):
    lie = ATTACKS["gaussian"](scale=scale)(make_view(count=4)).updates
    assert lie.std().item() == pytest.approx(scale, rel=0.05)
    assert lie.mean().abs().item() < 0.05 * scale
    assert torch.corrcoef(lie).fill_diagonal_(0).abs().max() < 0.15


def test_nan_sends_junk_of_every_kind_in_turn(make_view):
    view = make_view(count=16)
    updates = sent(ATTACKS["nan"]()(view), 16)
    admitted = admit_proposals(updates, dimension=len(view.weights))
    # The largest numbers there are, of either sign, are numbers: those the rules must stand.
    assert list(admitted.valid) == [3, 4, 11, 12]
    assert all(u.abs().min() == torch.finfo(torch.float32).max for u in admitted.valid.values())
    kinds = [admitted.faults[p] for p in (0, 1, 2, 5, 6, 7)]
    assert kinds == [*[ProposalFault.NOT_FINITE] * 4, "misshapen", "missing"]
    assert [admitted.faults[p] for p in (8, 9, 10, 13, 14, 15)] == kinds
    assert math.isnan(updates[5][0])
    assert updates[5][1:].isfinite().all()


def test_label_flip_sends_what_its_proposers_learn_from_poisoned_labels(make_view):
    view, attack = make_view(), ATTACKS["label-flip"]()
    assert torch.equal(attack(view).updates, view.own_updates())
    labels = torch.tensor([0, 1, 8, 9])
    assert attack.poison_labels(labels, 10).tolist() == [9, 8, 1, 0]
    assert torch.equal(flip_labels(flip_labels(labels, 10), 10), labels)
    assert labels.tolist() == [0, 1, 8, 9]


@pytest.mark.parametrize("direction", [1, -1])
@pytest.mark.parametrize("gamma", [0.0, 0.7, 12.0])
def test_alie_sends_mean_plus_gamma_deviations(gamma, direction, make_view):
    view = make_view()
    lie = ATTACKS["alie"](gamma=gamma, direction=direction)(view)
    mean = view.known.double().mean(dim=0)
    deviation = (view.known.double() - mean).square().mean(dim=0).sqrt()
    assert lie.gamma == gamma
    assert torch.allclose(lie.updates.double(), mean + direction * gamma * deviation, atol=1e-5)


@pytest.mark.parametrize("gamma", [0.0, 0.7, 12.0])
def test_ipm_sends_minus_gamma_times_the_mean(gamma, make_view):
    view = make_view()
    lie = ATTACKS["ipm"](gamma=gamma)(view)
    assert lie.gamma == gamma
    assert torch.allclose(lie.updates, -gamma * view.known.mean(dim=0))


@pytest.mark.parametrize("name", ["alie", "ipm"])
def test_gamma_is_searched_against_the_deployed_rule_or_krum(name, make_view):
    view = make_view()
    adaptive = ATTACKS[name](gamma="adaptive")(view)
    assert adaptive.gamma == pytest.approx(1.9)
    assert view.baseline("krum").asked == []
    tuned = ATTACKS[name](gamma="krum")(view)
    assert tuned.gamma == pytest.approx(0.9)
    as_authors = ATTACKS[name](gamma="krum-unsquared")(view)
    assert as_authors.gamma == pytest.approx(1.4)
    bounded = ATTACKS[name](gamma="adaptive", gamma_max=0.55)(view)
    assert bounded.gamma == 0.55
    for lie in (adaptive, tuned, as_authors, bounded):
        fixed = ATTACKS[name](gamma=lie.gamma)(view)
        assert torch.equal(lie.updates, fixed.updates)


@pytest.mark.parametrize("name", ["alie", "ipm"])
def test_against_a_rule_that_leaves_nobody_out_gamma_is_the_maximum(name, make_view, scripted):
    view = make_view(deployed=scripted(leaves_nobody_out=True))
    assert ATTACKS[name](gamma_max=17.0)(view).gamma == 17.0


@pytest.mark.parametrize("direction", [1, -1])
def test_the_search_is_asked_about_the_vectors_that_will_be_sent(direction, make_view, scripted):
    seen = []

    class Recording(scripted):
        def selects(self, base, direction, strengths):
            seen.append((base, direction))
            return super().selects(base, direction, strengths)

    view = make_view(deployed=Recording(1.0))
    lie = ATTACKS["alie"](direction=direction)(view)
    base, step = seen[0]
    assert torch.equal(lie.updates, base + lie.gamma * step)
