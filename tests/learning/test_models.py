import pytest
import torch
from torch import nn

from holdout.errors import ModelError
from holdout.learning.layers import steps
from holdout.learning.models import MODELS, build
from holdout.learning.vector import dimension, flatten


def linear(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(torch.Size(shape).numel(), classes))


def then(*layers):
    """A factory: flatten, 8 hidden units, these layers, logits."""

    def factory(shape, classes):
        inputs = torch.Size(shape).numel()
        return nn.Sequential(nn.Flatten(), nn.Linear(inputs, 8), *layers, nn.Linear(8, classes))

    return factory


def test_the_networks_are_the_papers():
    mlp = build(MODELS["mlp"], (1, 28, 28), 10, seed=0)
    assert dimension(mlp) == 784 * 100 + 100 + 100 * 10 + 10
    lenet5 = build(MODELS["lenet5"], (3, 32, 32), 10, seed=0)
    assert dimension(lenet5) == 456 + 2416 + 48_120 + 10_164 + 850
    kinds = [type(layer).__name__ for layer in lenet5]
    assert kinds == ["Conv2d", "ReLU", "MaxPool2d"] * 2 + ["Flatten"] + ["Linear", "ReLU"] * 2 + [
        "Linear"
    ]


@pytest.mark.parametrize("shape", [(1, 16, 16), (3, 17, 40), (2, 28, 28)])
def test_lenet5_takes_any_image_that_is_large_enough(shape):
    model = build(MODELS["lenet5"], shape, 7, seed=0)
    assert model(torch.zeros(3, *shape)).shape == (3, 7)


@pytest.mark.parametrize("shape", [(784,), (1, 15, 28), (28, 28), (1, 3, 32, 32)])
def test_lenet5_refuses_other_shapes(shape):
    with pytest.raises(ModelError, match="at least 16 x 16; got samples of shape"):
        build(MODELS["lenet5"], shape, 10, seed=0)


@pytest.mark.parametrize("shape", [(5,), (2, 3), (1, 28, 28)])
def test_the_mlp_takes_samples_of_any_shape(shape):
    assert build(MODELS["mlp"], shape, 4, seed=0)(torch.zeros(2, *shape)).shape == (2, 4)


@pytest.mark.parametrize("name", MODELS)
def test_the_seed_decides_the_weights(name):
    def weights(seed):
        return flatten(build(MODELS[name], (3, 32, 32), 10, seed=seed))

    torch.rand(1)
    first = weights(5)
    assert torch.equal(first, weights(5))
    assert not torch.equal(first, weights(6))
    assert torch.equal(weights((1 << 63) - 1), weights((1 << 63) - 1))


def test_building_leaves_the_global_generator_alone():
    before = torch.get_rng_state()
    build(MODELS["mlp"], (4,), 3, seed=1)
    with pytest.raises(ModelError):
        build(then(nn.Dropout(0.5)), (4,), 3, seed=1)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(
    ("factory", "reason"),
    [
        (then(nn.BatchNorm1d(8)), "no buffers.*GroupNorm"),
        (then(nn.BatchNorm1d(8, track_running_stats=False)), "pass of one sample"),
        (then(nn.Dropout(0.5)), "random numbers"),
        (then(nn.Dropout(1e-6)), "random numbers"),
        (then(nn.RReLU()), "random numbers"),
        (lambda shape, classes: linear(shape, classes + 1), r"\(2, 3\); got .*\(2, 4\)"),
        (lambda _, classes: linear((9,), classes), r"shape \(4,\) and 3 classes; the forward pass"),
        (lambda _shape, _classes: nn.Flatten(), "at least one parameter"),
        (lambda _shape, _classes: "no module", r"returns a torch.nn.Module; got .*str"),
        (lambda _shape, _classes: {}["width"], r"the factory failed: KeyError: 'width'"),
        (lambda shape, classes: linear(shape, classes).double(), "float32; 1.weight is .*64"),
        (lambda shape, classes: linear(shape, classes).requires_grad_(False), "requires_grad"),
        (lambda _, classes: nn.LazyLinear(classes), "weight is lazy"),
    ],
)
def test_a_model_that_is_no_plain_function_of_its_weights_is_refused(factory, reason):
    with pytest.raises(ModelError, match=reason):
        build(factory, (4,), 3, seed=0)


def test_integer_parameters_are_refused():
    def factory(shape, classes):
        model = linear(shape, classes)
        model.register_parameter("count", nn.Parameter(torch.zeros(2).int(), requires_grad=False))
        return model

    with pytest.raises(ModelError, match=r"float32; count is torch.int32"):
        build(factory, (4,), 3, seed=0)


def test_a_layer_used_twice_is_refused_and_not_read_layer_by_layer():
    shared = nn.Linear(4, 4)
    model = nn.Sequential(shared, nn.ReLU(), shared)
    with pytest.raises(ModelError, match=r"2\.weight is tied"):
        build(lambda _shape, _classes: model, (4,), 4, seed=0)
    assert steps(model, (4,)) is None


@pytest.mark.parametrize("persistent", [True, False])
def test_buffers_are_refused_saved_or_not(persistent):
    def factory(shape, classes):
        model = linear(shape, classes)
        model.register_buffer("scale", torch.ones(1), persistent=persistent)
        return model

    with pytest.raises(ModelError, match="got buffer scale"):
        build(factory, (4,), 3, seed=0)


def test_a_model_that_differs_between_train_and_eval_is_refused():
    class Moody(nn.Linear):
        def forward(self, x):
            return super().forward(x) + (1 if self.training else 0)

    with pytest.raises(ModelError, match="a pass in eval mode gave different ones"):
        build(lambda shape, classes: Moody(shape[0], classes), (4,), 3, seed=0)


def test_infinite_logits_are_refused():
    class Infinite(nn.Linear):
        def forward(self, x):
            return super().forward(x) / 0

    with pytest.raises(ModelError, match="all of them finite"):
        build(lambda shape, classes: Infinite(shape[0], classes), (4,), 3, seed=0)


def test_what_is_no_tensor_is_refused():
    class Pair(nn.Linear):
        def forward(self, x):
            return super().forward(x), x

    with pytest.raises(ModelError, match=r"got .*tuple"):
        build(lambda shape, classes: Pair(shape[0], classes), (4,), 3, seed=0)


@pytest.mark.parametrize("channels", [1, 3])
def test_images_with_their_channels_last_get_a_hint(channels):
    shape = (32, 32, channels)
    for factory in (MODELS["lenet5"], lambda _shape, _classes: nn.Conv2d(7, 2, 5)):
        with pytest.raises(ModelError, match=r"move the channels to the front, as x\.transpose"):
            build(factory, shape, 10, seed=0)
    with pytest.raises(ModelError) as caught:
        build(MODELS["lenet5"], (3, 8, 8), 10, seed=0)
    assert "front" not in str(caught.value)
