"""The vote's hot loop, against the machine's matrix product and against a plain loop."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F  # noqa: N812

from bench.measure import Row, seconds
from holdout.learning import models, vector
from holdout.learning.scoring import Combinations, sample_losses

MLP_FLOPS = 2 * (784 * 100 + 100 * 10)
LENET5_FLOPS = 2 * (
    28 * 28 * 6 * 75 + 10 * 10 * 16 * 150 + 400 * 120 + 120 * 84 + 84 * 10
)  # Per sample: one multiplication and one addition for each use of a weight.
PRODUCT_FLOPS = 2 * 2000 * 784 * 3000


def rows() -> list[Row]:
    """MNIST's and CIFAR-10's votes in the paper's sizes, and a line search."""
    generator = torch.Generator().manual_seed(0)
    mlp, mlp_candidates, x, y = _case("mlp", (1, 28, 28), 30, 2000)
    lenet5, lenet5_candidates, images, labels = _case("lenet5", (3, 32, 32), 12, 1000)
    directions = mlp_candidates[:2] - mlp_candidates[2]
    coefficients = torch.rand(60, 2, generator=generator)
    line = mlp_candidates[2] + coefficients @ directions
    times = seconds(
        {
            "product": product(),
            "mlp": lambda: sample_losses(mlp, mlp_candidates, x, y),
            "mlp loop": lambda: _loop(mlp, mlp_candidates, x, y),
            "lenet5": lambda: sample_losses(lenet5, lenet5_candidates, images, labels),
            "lenet5 loop": lambda: _loop(lenet5, lenet5_candidates, images, labels),
            "line": lambda: Combinations(mlp, mlp_candidates[2], directions, x, y).losses(
                coefficients
            ),
            "line, each": lambda: sample_losses(mlp, line, x, y),
        }
    )
    rate = PRODUCT_FLOPS / times["product"]
    mlp_rate = 30 * 2000 * MLP_FLOPS / times["mlp"]
    lenet5_rate = 12 * 1000 * LENET5_FLOPS / times["lenet5"]
    return [
        Row("vote, 30 MLPs on 2,000 samples / matrix product (FLOP rate)", mlp_rate / rate, 0.7),
        Row("vote, 12 LeNet-5 on 1,000 samples / matrix product", lenet5_rate / rate, 0.6),
        Row("vote, 12 LeNet-5 / loop", times["lenet5 loop"] / times["lenet5"], 2.5),
        Row("vote, 30 MLPs / loop", times["mlp loop"] / times["mlp"], 1.0),
        Row("line search, 60 MLPs / one by one", times["line, each"] / times["line"], 3.0),
    ]


def product() -> Callable[[], Tensor]:
    """The machine's matrix product, on samples and first layers in the sizes of a vote."""
    generator = torch.Generator().manual_seed(0)
    left = torch.randn(2000, 784, generator=generator)
    right = torch.randn(784, 3000, generator=generator)
    return lambda: torch.mm(left, right)


def _case(
    name: str, shape: tuple[int, ...], count: int, samples: int
) -> tuple[nn.Module, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    model = models.build(models.MODELS[name], shape, 10, seed=2)
    weights = vector.flatten(model)
    candidates = weights + 0.01 * torch.randn(count, len(weights), generator=generator)
    x = torch.randn(samples, *shape, generator=generator)
    return model, candidates, x, torch.randint(0, 10, (samples,), generator=generator)


def _loop(model: nn.Module, candidates: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """What one would write first: each candidate called on the whole batch."""
    with torch.no_grad():
        return torch.stack(
            [
                F.cross_entropy(
                    functional_call(model, vector.unflatten(model, candidate), (x,)),
                    y,
                    reduction="none",
                )
                for candidate in candidates
            ]
        )
