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
    """Algorithm 4, "a little is enough" (Baruch et al., 2019): mu + gamma * sigma.

    `adaptive` inflates gamma against the deployed rule, `krum` against Krum whatever is deployed,
    `krum-unsquared` against Krum as the authors' code computes it, which is what that code does.
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
    """Inner-product manipulation (Xie et al., 2019): -gamma * mu, gamma searched like Alie's."""

    gamma: Gamma = "adaptive"
    gamma_max: float = 30.0

    def __call__(self, view: View) -> Lie:
        """The same vector from every Byzantine proposer."""
        base = torch.zeros_like(view.mean)
        gamma = _strength(view, base, -view.mean, self.gamma, self.gamma_max)
        return Lie(-gamma * view.mean, gamma)


@dataclass(frozen=True, slots=True)
class SignFlip:
    """The honest mean with its sign flipped."""

    scale: float = 1.0

    def __call__(self, view: View) -> Lie:
        """The same vector from every Byzantine proposer."""
        return Lie(-self.scale * view.mean)


@dataclass(frozen=True, slots=True)
class Bomb:
    """The honest mean with its sign flipped, so large that one accepted copy is enough."""

    scale: float = 1e4

    def __call__(self, view: View) -> Lie:
        """The same vector from every Byzantine proposer."""
        return Lie(-self.scale * view.mean)


@dataclass(frozen=True, slots=True)
class Rescale:
    """An honest step, to weights that compute the same function but average badly.

    ReLU is positively homogeneous: a layer times `factor` and the next one divided by it leave the
    function alone. The candidate's own loss is perfect; the mean with other updates is ruined.
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
    """An honest step, to a network whose hidden units are in another order."""

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
    """Noise, drawn separately for each Byzantine proposer."""

    scale: float = 1.0

    def __call__(self, view: View) -> Lie:
        """Independent normal noise of deviation `scale` per coordinate."""
        noise = device.randn(view.count, len(view.weights), generator=view.generator())
        return Lie(self.scale * noise)


@dataclass(frozen=True, slots=True)
class LabelFlip:
    """Honest work on poisoned data: each label y becomes classes - 1 - y."""

    def poison_labels(self, labels: Tensor, classes: int) -> Tensor:
        """The labels that Byzantine workers hold."""
        return flip_labels(labels, classes)

    def __call__(self, view: View) -> Lie:
        """Each Byzantine proposer's own gradient."""
        return Lie(view.own_updates())


@dataclass(frozen=True, slots=True)
class Mimic:
    """All repeat one honest worker's update, to give it undue weight (Karimireddy, 2022)."""

    target: int = 0
    """Which of the known updates, counted from 0 and wrapping around."""

    def __call__(self, view: View) -> Lie:
        """The same vector from every Byzantine proposer."""
        return Lie(view.known[self.target % len(view.known)].clone())


@dataclass(frozen=True, slots=True)
class Zero:
    """A zero update: harmless alone, a drag in numbers."""

    def __call__(self, view: View) -> Lie:
        """The same vector from every Byzantine proposer."""
        return Lie(torch.zeros_like(view.weights))


@dataclass(frozen=True, slots=True)
class NotANumber:
    """Junk: NaN, infinities, the largest numbers there are, wrong shapes, silence, in turn."""

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


def flip_labels(labels: Tensor, classes: int) -> Tensor:
    """Each label y as classes - 1 - y.

    >>> flip_labels(torch.tensor([0, 3, 9]), 10).tolist()
    [9, 6, 0]
    """
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
