"""What a coalition sees, made up."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
import torch

from holdout.attacks import View
from holdout.learning import vector
from holdout.learning.models import MODELS, build
from holdout.seeds import stream

SHAPES = {"mlp": (12,), "lenet5": (1, 16, 16)}


@dataclass
class Scripted:
    """A deployed rule that selects as long as the strength is below a limit."""

    limit: float = 2.0
    leaves_nobody_out: bool = False
    asked: list[float] = field(default_factory=list)

    def selects(self, base, direction, strengths: Sequence[float]):  # noqa: ARG002
        for strength in strengths:
            self.asked.append(strength)
            yield strength < self.limit


@pytest.fixture
def scripted():
    return Scripted


@pytest.fixture
def make_view():
    """make_view(model="mlp", count=3, known=5, seed=0, round_number=1, ...) -> View."""

    def make(model="mlp", *, count=3, known=5, seed=0, round_number=1, **changed):
        shape = SHAPES[model]
        network = build(MODELS[model], shape, 4, seed=seed)
        weights = vector.flatten(network)
        generator = torch.Generator().manual_seed(seed)
        own = torch.randn(count, len(weights), generator=generator)
        values = {
            "round_number": round_number,
            "weights": weights,
            "learning_rate": 0.1,
            "model": network,
            "count": count,
            "known": 0.1 * torch.randn(known, len(weights), generator=generator),
            "own_updates": lambda: own,
            "deployed": Scripted(2.0),
            "baseline": {"krum": Scripted(1.0), "krum-unsquared": Scripted(1.5)}.__getitem__,
            "source": stream(seed, "attack", round_number),
        }
        return View(**{**values, **changed})

    return make
