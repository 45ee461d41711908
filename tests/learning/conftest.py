import pytest
import torch
from torch import nn


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Own(nn.Module):
    """No Sequential: two branches, joined."""

    def __init__(self, shape, classes):
        super().__init__()
        inputs = torch.Size(shape).numel()
        self.left = nn.Linear(inputs, 7)
        self.right = nn.Linear(inputs, 7)
        self.norm = nn.LayerNorm(7)
        self.out = nn.Linear(7, classes)

    def forward(self, x):
        x = x.flatten(1)
        return self.out(self.norm(self.left(x).tanh() + self.right(x).relu()))


class Doubling(nn.Sequential):
    """Looks like a row of layers, and computes something else."""

    def forward(self, x):
        return 2 * super().forward(x)


def various(shape, classes):
    """Known layers in unusual settings, nested, with and without bias."""
    return nn.Sequential(
        nn.Tanh(),
        nn.Conv2d(shape[0], 5, (3, 2), stride=(1, 2), padding=(1, 0), bias=False),
        nn.Sequential(nn.ReLU(inplace=True), nn.MaxPool2d(3, stride=2, padding=1)),
        nn.Conv2d(5, 4, 3, padding="same"),
        nn.Sigmoid(),
        nn.AvgPool2d(2),
        nn.Conv2d(4, 3, 1),
        nn.Identity(),
        nn.Flatten(),
        nn.LazyLinear(9, bias=False),
        nn.ReLU(inplace=True),
        nn.Linear(9, classes),
    )


def padded(shape, classes):
    """A narrow convolution with padding, then pooling: the paired rows of `layers.forward`."""
    return nn.Sequential(
        nn.Conv2d(shape[0], 3, 3, padding=1),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(3, 17, 3, bias=False),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.LazyLinear(classes),
    )


def hooked(shape, classes):
    model = nn.Sequential(nn.Flatten(), nn.Linear(torch.Size(shape).numel(), classes))
    model[1].register_forward_hook(lambda _module, _inputs, output: output * 3)
    return model


def rows_apart(shape, classes):
    """A linear layer on each row of the image, which the fast path does not know."""
    return nn.Sequential(
        nn.Linear(shape[-1], 4), nn.ReLU(), nn.Flatten(), nn.LazyLinear(classes, bias=False)
    )


def doubling(shape, classes):
    return Doubling(nn.Flatten(), nn.Linear(torch.Size(shape).numel(), classes))


def ready(factory):
    """The factory with lazy layers made real, as `build` demands."""

    def make(shape, classes):
        model = factory(shape, classes)
        model(torch.zeros(2, *shape))
        return model

    return make


# Name: (factory or name in MODELS, shape of a sample, whether it is read layer by layer).
CASES = {
    "mlp": ("mlp", (1, 9, 9), True),
    "lenet5": ("lenet5", (3, 32, 32), True),
    "lenet5-odd": ("lenet5", (1, 19, 22), True),
    "various": (ready(various), (2, 11, 14), True),
    "padded": (ready(padded), (2, 10, 12), True),
    "own": (Own, (1, 5, 5), False),
    "doubling": (doubling, (1, 5, 5), False),
    "hooked": (hooked, (1, 5, 5), False),
    "rows-apart": (ready(rows_apart), (1, 5, 6), False),
}


@pytest.fixture(params=CASES)
def case(request):
    """(model, shape of a sample, whether it is read layer by layer)."""
    from holdout.learning.models import MODELS, build

    factory, shape, layered = CASES[request.param]
    factory = MODELS[factory] if isinstance(factory, str) else factory
    return build(factory, shape, 10, seed=3), shape, layered


@pytest.fixture
def draw():
    """draw(shape, count, seed) -> labelled samples."""

    def samples(shape, count, seed=0):
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(count, *shape, generator=generator)
        return x, torch.randint(0, 10, (count,), generator=generator)

    return samples


@pytest.fixture
def around():
    """around(weights, count) -> candidates near the weights."""

    def candidates(weights, count, seed=1):
        generator = torch.Generator().manual_seed(seed)
        return weights + 0.1 * torch.randn(count, len(weights), generator=generator)

    return candidates
