"""What Byzantine proposers send.

Each attack is a frozen dataclass: its fields are parameters of the config's `[attack]` table, and
calling it with a `View` gives the lie.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from holdout import device
from holdout.attacks.search import inflate
from holdout.attacks.view import Lie, View
from holdout.errors import ModelError
from holdout.learning import vector

Gamma = float | Literal["adaptive", "krum", "krum-unsquared"]


@dataclass(frozen=True, slots=True)
class Alie:
    """The mean of the honest updates, shifted by a little of their deviation in every coordinate.

        μ[k], σ[k] = mean and deviation of the known honest updates' coordinate k
        lie = μ + direction · γ σ, the same from every liar

    A number for γ is taken as it is. `adaptive` is the largest γ whose lie the deployed rule still
    selects (Algorithm 4 of the HoldOut SGD paper), `krum` the largest that Krum selects whatever is
    deployed, `krum-unsquared` the same for Krum as the authors' code computes it.

    Source: Baruch, Baruch, Goldberg, 2019, A Little Is Enough: Circumventing Defenses For
    Distributed Learning, arXiv 1902.06156; Azulay, Raz, Globerson, Koren, Afek, 2020, arXiv
    2008.04612.

    Needs: any rule, any model. Where a rule leaves nobody out, `adaptive` is `gamma_max`.

    Args:
        gamma: The strength γ: a number, `adaptive`, `krum` or `krum-unsquared`.
        gamma_max: The largest strength that is tried.
        direction: 1 or -1, the sign of the shift.
    """

    gamma: Gamma = "adaptive"
    gamma_max: float = 30.0
    direction: int = 1

    def __call__(self, view: View) -> Lie:
        """The same vector from every Byzantine proposer."""
        step = self.direction * view.deviation
        gamma = _strength(view, view.mean, step, self.gamma, self.gamma_max)
        return Lie(view.mean + gamma * step, gamma)


@dataclass(frozen=True, slots=True)
class InnerProduct:
    """The mean of the honest updates, reversed, so that the step has a negative product with it.

        lie = -γ μ, the same from every liar; γ is searched as for `alie`

    Source: Xie, Koyejo, Gupta, 2019, Fall of Empires: Breaking Byzantine-tolerant SGD by Inner
    Product Manipulation, arXiv 1903.03936.

    Needs: any rule, any model. Where a rule leaves nobody out, `adaptive` is `gamma_max`.

    Args:
        gamma: The strength γ: a number, `adaptive`, `krum` or `krum-unsquared`.
        gamma_max: The largest strength that is tried.
    """

    gamma: Gamma = "adaptive"
    gamma_max: float = 30.0

    def __call__(self, view: View) -> Lie:
        """The same vector from every Byzantine proposer."""
        base = torch.zeros_like(view.mean)
        gamma = _strength(view, base, -view.mean, self.gamma, self.gamma_max)
        return Lie(-gamma * view.mean, gamma)


@dataclass(frozen=True, slots=True)
class SignFlip:
    """The mean of the honest updates with its sign flipped.

        lie = -scale · μ, the same from every liar

    Source: Li, Xu, Chen, Giannakis, Ling, 2019, RSA: Byzantine-Robust Stochastic Aggregation
    Methods for Distributed Learning from Heterogeneous Datasets, arXiv 1811.03761.

    Needs: any rule, any model.

    Args:
        scale: The length of the lie, in lengths of the mean.
    """

    scale: float = 1.0

    def __call__(self, view: View) -> Lie:
        """The same vector from every Byzantine proposer."""
        return Lie(-self.scale * view.mean)


@dataclass(frozen=True, slots=True)
class Bomb:
    """The mean of the honest updates with its sign flipped, so long that one copy is enough.

        lie = -scale · μ, the same from every liar

    Source: this project; the sign flip at a length that ends any training that averages it.

    Needs: any rule, any model.

    Args:
        scale: The length of the lie, in lengths of the mean.
    """

    scale: float = 1e4

    def __call__(self, view: View) -> Lie:
        """The same vector from every Byzantine proposer."""
        return Lie(-self.scale * view.mean)


@dataclass(frozen=True, slots=True)
class Rescale:
    """An honest step, to weights that compute the same function but average badly.

        W_1, b_1, W_2 = the first two layers of w - η μ
        target = w - η μ with c W_1, c b_1 and W_2 / c in their places
        lie = (w - target) / η, the same from every liar

    ReLU is positively homogeneous: a layer times c and the next one divided by c leave the function
    alone. The candidate's own loss is perfect; the mean with other updates is ruined.

    Source: this project; the symmetry is that of Dinh, Pascanu, Bengio, Bengio, 2017, Sharp Minima
    Can Generalize For Deep Nets, arXiv 1703.04933.

    Needs: an nn.Sequential whose first two layers with weights (Linear, Conv2d) have only ReLU,
    pooling and Flatten between them.

    Args:
        factor: c.
    """

    factor: float = 1000.0

    def check_model(self, model: nn.Module) -> None:
        """Refuse a model without such layers, before anything is run."""
        _hidden_pair(model)

    def __call__(self, view: View) -> Lie:
        """The same vector from every Byzantine proposer."""
        target, hidden, incoming = _honest_step(view)
        for part in hidden:
            part.mul_(self.factor)
        incoming.div_(self.factor)
        return Lie(view.update_towards(target))


@dataclass(frozen=True, slots=True)
class Permute:
    """An honest step, to a network whose hidden units are in another order.

        W_1, b_1, W_2 = the first two layers of w - η μ; π = a random order of the units between
        target = w - η μ with the rows of W_1 and b_1, and the columns of W_2, in the order π
        lie = (w - target) / η, the same from every liar

    The candidate computes the same function; the mean with other updates does not.

    Source: this project.

    Needs: an nn.Sequential whose first two layers with weights (Linear, Conv2d) have only ReLU,
    pooling and Flatten between them.
    """

    def check_model(self, model: nn.Module) -> None:
        """Refuse a model without such layers, before anything is run."""
        _hidden_pair(model)

    def __call__(self, view: View) -> Lie:
        """The same vector from every Byzantine proposer."""
        target, hidden, incoming = _honest_step(view)
        units = len(hidden[0])
        order = device.randperm(units, generator=view.generator())
        for part in hidden:
            part.copy_(part[order])
        # After a flatten, each unit feeds a run of as many inputs as it has pixels.
        runs = incoming.view(len(incoming), units, -1)
        runs.copy_(runs[:, order])
        return Lie(view.update_towards(target))


@dataclass(frozen=True, slots=True)
class Gaussian:
    """Noise, drawn separately for each liar.

        lie_i[k] = scale · z, z standard normal

    Source: Blanchard, El Mhamdi, Guerraoui, Stainer, 2017, Machine Learning with Adversaries:
    Byzantine Tolerant Gradient Descent, arXiv 1703.02757.

    Needs: any rule, any model.

    Args:
        scale: The deviation of each coordinate.
    """

    scale: float = 1.0

    def __call__(self, view: View) -> Lie:
        """Independent normal noise of deviation `scale` per coordinate."""
        noise = device.randn(view.count, len(view.weights), generator=view.generator())
        return Lie(self.scale * noise)


@dataclass(frozen=True, slots=True)
class LabelFlip:
    """Honest work on poisoned data.

        y -> classes - 1 - y for a label
        y -> y_min + y_max - y for a real-valued target, over all training rows
        lie_i = what the liar's own training gives with these

    Source: Fang, Cao, Jia, Gong, 2020, Local Model Poisoning Attacks to Byzantine-Robust Federated
    Learning, arXiv 1911.11815.

    Needs: any rule, any model.
    """

    def poison_labels(self, labels: Tensor, classes: int | None) -> Tensor:
        """The labels that Byzantine workers hold."""
        return flip_labels(labels, classes)

    def __call__(self, view: View) -> Lie:
        """Each Byzantine proposer's own gradient."""
        return Lie(view.own_updates())


@dataclass(frozen=True, slots=True)
class Mimic:
    """All liars repeat one honest worker's update, to give its data undue weight.

        lie = x_t, t = target mod the number of known honest updates

    Source: Karimireddy, He, Jaggi, 2022, Byzantine-Robust Learning on Heterogeneous Datasets via
    Bucketing, arXiv 2006.09365. There the worker is the one along whose data the updates vary most.

    Needs: any rule, any model; it harms where workers hold different data.

    Args:
        target: Which of the known updates, counted from 0 and wrapping around.
    """

    target: int = 0

    def __call__(self, view: View) -> Lie:
        """The same vector from every Byzantine proposer."""
        return Lie(view.known[self.target % len(view.known)].clone())


@dataclass(frozen=True, slots=True)
class Zero:
    """Nothing at all: harmless alone, a drag in numbers.

        lie = 0, the same from every liar

    Source: this project.

    Needs: any rule, any model.
    """

    def __call__(self, view: View) -> Lie:
        """The same vector from every Byzantine proposer."""
        return Lie(torch.zeros_like(view.weights))


@dataclass(frozen=True, slots=True)
class NotANumber:
    """Junk of every kind, in turn, that no server may choke on.

        lie_i = NaN, ∞, -∞, the largest float, its negative, μ with one NaN, d + 1 zeros, silence

    Source: this project.

    Needs: any rule, any model.
    """

    def __call__(self, view: View) -> Lie:
        """One kind of junk after the other."""
        d = len(view.weights)
        largest = torch.finfo(torch.float32).max
        partly = view.mean.clone()
        partly[0] = math.nan
        kinds = [
            device.full((d,), math.nan),
            device.full((d,), math.inf),
            device.full((d,), -math.inf),
            device.full((d,), largest),
            device.full((d,), -largest),
            partly,
            device.zeros(d + 1),
            None,
        ]
        return Lie([kinds[i % len(kinds)] for i in range(view.count)])


def flip_labels(labels: Tensor, classes: int | None) -> Tensor:
    """Each label y as classes - 1 - y; a real-valued target, mirrored in the range of all.

    >>> flip_labels(torch.tensor([0, 3, 9]), 10).tolist()
    [9, 6, 0]
    >>> flip_labels(torch.tensor([[1.0], [2.0], [5.0]]), None).tolist()
    [[5.0], [4.0], [1.0]]
    """
    if classes is None:
        return labels.amin(0) + labels.amax(0) - labels
    return classes - 1 - labels


def _strength(view: View, base: Tensor, direction: Tensor, gamma: Gamma, gamma_max: float) -> float:
    match gamma:
        case "adaptive":
            return inflate(view.deployed, base, direction, maximum=gamma_max)
        case str(rule):
            return inflate(view.baseline(rule), base, direction, maximum=gamma_max)
        case number:
            return number


def _hidden_pair(model: nn.Module) -> tuple[str, str]:
    """The names of the first two layers with weights, with only homogeneous ones in between."""
    between = (nn.ReLU, nn.MaxPool2d, nn.AvgPool2d, nn.Flatten, nn.Identity)
    weighted = (nn.Linear, nn.Conv2d)
    if type(model) is nn.Sequential:
        names = [name for name, layer in model.named_children() if isinstance(layer, weighted)]
        layers = dict(model.named_children())
        if len(names) > 1:
            order = list(layers)
            inside = order[order.index(names[0]) + 1 : order.index(names[1])]
            if all(type(layers[name]) in between for name in inside):
                return names[0], names[1]
    raise ModelError(
        "this attack needs an nn.Sequential whose first two layers with weights (Linear, Conv2d) "
        "have only ReLU, pooling and Flatten between them"
    )


def _honest_step(view: View) -> tuple[Tensor, list[Tensor], Tensor]:
    """The weights after the honest mean step, and views into them.

    The views are the parameters of the first layer that has any, and the weight of the second.
    """
    target = view.weights - view.learning_rate * view.mean
    parts: dict[str, list[Tensor]] = {}
    for name, part in vector.unflatten(view.model, target).items():
        parts.setdefault(name.rpartition(".")[0], []).append(part)
    first, second = _hidden_pair(view.model)
    return target, parts[first], parts[second][0]
