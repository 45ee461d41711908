"""What a coalition sees, made up."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
import torch

from holdout.attacks import View
from holdout.attacks.search import reaches_one_by_one
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
    honest: torch.Tensor | None = None

    def selects(self, base, direction, strengths: Sequence[float]):  # noqa: ARG002
        for strength in strengths:
            self.asked.append(strength)
            yield strength < self.limit

    def outcome(self, lies, messages=None):
        """The mean of all that is sent, by voters too."""
        return torch.stack([*self.honest, *lies, *(messages or [])]).mean(dim=0)

    def reaches(self, basis, trials, along):
        return reaches_one_by_one(self, basis, trials, along)


@pytest.fixture
def scripted():
    return Scripted


@pytest.fixture
def make_view():
    """make_view(model="mlp", count=3, known=5, seed=0, round_number=1, ...) -> View."""

    def make(model="mlp", *, count=3, known=5, seed=0, round_number=1, steps=1, **changed):
        shape = SHAPES[model]
        network = build(MODELS[model], shape, 4, seed=seed)
        weights = vector.flatten(network)
        generator = torch.Generator().manual_seed(seed)
        own = torch.randn(count, len(weights), generator=generator)
        honest = 0.1 * torch.randn(known, len(weights), generator=generator)
        held = torch.randn(40, *shape, generator=generator), torch.arange(40) % 4
        drawn = torch.Generator().manual_seed(seed + 1)
        batches = [
            [(torch.randn(8, *shape, generator=drawn), torch.arange(8) % 4) for _ in range(steps)]
            for _ in range(count)
        ]
        values = {
            "round_number": round_number,
            "weights": weights,
            "learning_rate": 0.1,
            "model": network,
            "count": count,
            "proposers": count + known,
            "known": honest,
            "own_updates": lambda: own,
            "held": lambda: held,
            "start": torch.zeros_like(weights),
            "deployed": Scripted(2.0, honest=honest),
            "baseline": {"krum": Scripted(1.0), "krum-unsquared": Scripted(1.5)}.__getitem__,
            "source": stream(seed, "attack", round_number),
            "run_source": stream(seed, "attack"),
            "own_batches": lambda: batches,
        }
        return View(**{**values, **changed})

    return make
