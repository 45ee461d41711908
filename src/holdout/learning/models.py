"""The paper's two networks by name, and the check that every model must pass.

Workers know a model by its vector of weights alone. So a model must be a plain function of
weights and samples: no state beside its parameters, no randomness of its own, no sample that
changes another's result. `build` refuses what is not, before a run has cost anything.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from threading import RLock
from types import MappingProxyType
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from holdout import device
from holdout.errors import ModelError
from holdout.tracebacks import RAISED, is_custom, summary_of, with_place

T = TypeVar("T")
ModelFactory = Callable[[tuple[int, ...], int], nn.Module]
"""factory(shape of one sample, number of classes) -> a model that gives logits."""


def mlp(shape: tuple[int, ...], classes: int) -> nn.Module:
    """One hidden layer of 100 units: the paper's network for MNIST.

    Args:
        shape: The shape of one sample.
        classes: How many logits the model gives.

    >>> mlp((1, 28, 28), 10)(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    """
    return nn.Sequential(
        nn.Flatten(), nn.Linear(math.prod(shape), 100), nn.ReLU(), nn.Linear(100, classes)
    )


def lenet5(shape: tuple[int, ...], classes: int) -> nn.Module:
    """The paper's LeNet-5 for CIFAR-10: two convolutions, three full layers, ReLU, no padding.

    Args:
        shape: The shape of one sample, (channels, height, width).
        classes: How many logits the model gives.

    >>> lenet5((3, 32, 32), 10)(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """
    if len(shape) != 3 or min(_lenet5_side(side) for side in shape[1:]) < 1:  # noqa: PLR2004
        raise ModelError(
            "lenet5 needs images (channels, height, width) of at least 16 x 16; "
            f"got samples of shape {shape}{_hint(shape)}"
        )
    channels, height, width = shape
    return nn.Sequential(
        nn.Conv2d(channels, 6, kernel_size=5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, kernel_size=5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * _lenet5_side(height) * _lenet5_side(width), 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, classes),
    )


_SEEDING = RLock()
"""Held while torch's generator, which all threads share, is seeded and used."""

MODELS: Mapping[str, ModelFactory] = MappingProxyType({"mlp": mlp, "lenet5": lenet5})
"""The models that a config names in `model.name`."""


def build(factory: ModelFactory, shape: tuple[int, ...], classes: int, *, seed: int) -> nn.Module:
    """The factory's model with weights decided by the seed; a ModelError if it cannot be used.

    Args:
        factory: Makes the model.
        shape: The shape of one sample.
        classes: How many classes there are.
        seed: Decides the weights.

    >>> first, again = (build(mlp, (1, 28, 28), 10, seed=0)[1].weight for _ in range(2))
    >>> torch.equal(first, again)
    True
    """
    with _SEEDING, torch.random.fork_rng(devices=[]):
        # Not torch.manual_seed, which also reseeds devices that fork_rng was told to leave out.
        torch.default_generator.manual_seed(seed)
        model = _call(lambda: factory(shape, classes), "the factory failed", shape, classes)
        try:
            model = _checked(model, shape, classes)
        except ModelError as error:
            # An error from the model already names its place.
            if error.__cause__ is not None or not is_custom(factory):
                raise
            raise ModelError(with_place(str(error), error, factory)) from None
    return model


def _lenet5_side(side: int) -> int:
    """What two rounds of "5 x 5 convolution, then halve" leave of an image's side."""
    return ((side - 4) // 2 - 4) // 2


def _hint(shape: tuple[int, ...]) -> str:
    return f"; these {remedy}" if (remedy := channels_remedy(shape)) else ""


def channels_remedy(shape: tuple[int, ...]) -> str:
    """What to do about images whose channels seem to come last; empty for any other samples.

    >>> channels_remedy((3, 32, 32))
    ''
    """
    if len(shape) != 3 or shape[2] not in (1, 3) or shape[0] in (1, 3):  # noqa: PLR2004
        return ""
    return (
        "look like images (height, width, channels): move the channels to the front, "
        "as x.transpose(0, 3, 1, 2) does"
    )


def _call(action: Callable[[], T], failure: str, shape: tuple[int, ...], classes: int) -> T:
    try:
        return action()
    except ModelError:
        raise
    except RAISED as error:
        message = f"a model must fit samples of shape {shape} and {classes} classes; {failure}"
        raise ModelError(
            with_place(f"{message}: {summary_of(error)}{_hint(shape)}", error)
        ) from error


def _checked(model: object, shape: tuple[int, ...], classes: int) -> nn.Module:
    """The model on our device, once it is known to be one that can be used."""
    if not isinstance(model, nn.Module):
        raise ModelError(f"a model factory returns a torch.nn.Module; got {type(model)!r}")
    _check_state(model)
    model = device.place(model)
    _check_function(model, shape, classes)
    return model


def _check_state(model: nn.Module) -> None:
    """All that the model knows is in float32 parameters that training may change."""
    parameters = dict(model.named_parameters())
    if not parameters:
        raise ModelError("a model needs at least one parameter; got none")
    for name, parameter in parameters.items():
        if is_lazy(parameter):
            raise ModelError(f"parameters must have their size from the start; {name} is lazy")
        if parameter.dtype != torch.float32:
            raise ModelError(f"parameters must be float32; {name} is {parameter.dtype}")
        if not parameter.requires_grad:
            raise ModelError(f"all parameters must be trained; {name} has requires_grad=False")
    for name, _ in model.named_parameters(remove_duplicate=False):
        # torch.func.functional_call does not put a module back that is used in two places.
        if name not in parameters:
            raise ModelError(f"no parameter may be used under two names; {name} is tied to another")
    for name, _ in model.named_buffers():
        raise ModelError(
            f"a model must have no buffers, since the flat vector of weights that workers exchange "
            f"does not carry them; got buffer {name} (instead of batch norm, use nn.GroupNorm "
            f"or nn.LayerNorm)"
        )


def _check_function(model: nn.Module, shape: tuple[int, ...], classes: int) -> None:
    """The logits of a sample depend on the weights and that sample, on nothing else."""
    x = device.randn(2, *shape)
    call = partial(_call, shape=shape, classes=classes)
    with torch.no_grad():
        before = torch.get_rng_state()
        model.train()
        given = x.clone()
        logits = call(lambda: model(given), "the forward pass failed")
        if not torch.equal(given, x):
            raise ModelError(
                "a model must leave its input as it is (an operation in place, such as "
                "nn.ReLU(inplace=True), cannot come first); its forward pass changes it"
            )
        _check_logits(logits, shape, classes)
        others = {
            "a second pass": call(lambda: model(x.clone()), "the second pass failed"),
            "a pass in eval mode": call(
                lambda: model.eval()(x.clone()), "the pass in eval mode failed"
            ),
            "a pass of one sample alone": call(
                lambda: torch.cat([model(x[:1].clone()), model(x[1:].clone())]),
                "the pass of one sample failed",
            ),
        }
        model.train()
        with torch.enable_grad():
            graph = call(lambda: model(x.clone()), "a pass with gradients failed")
    if not graph.requires_grad:
        raise ModelError(
            "a model must compute its logits from its weights by torch alone, so that they can be "
            "differentiated; they have no gradient"
        )
    if not torch.equal(before, torch.get_rng_state()):
        raise ModelError("a model must not draw random numbers (dropout); its forward pass does")
    for what, other in others.items():
        if not torch.allclose(other, logits, rtol=1e-3, atol=1e-4):
            raise ModelError(
                f"a sample's logits must depend on the weights and that sample alone "
                f"(no dropout, no batch norm); {what} gave different ones"
            )


def _check_logits(logits: object, shape: tuple[int, ...], classes: int) -> None:
    wanted = f"2 samples of shape {shape} must give float32 logits of shape (2, {classes})"
    if not isinstance(logits, Tensor):
        raise ModelError(f"{wanted}; got {type(logits)!r}")
    if logits.shape != (2, classes) or logits.dtype != torch.float32:
        raise ModelError(
            f"{wanted}; got {logits.dtype} of shape {tuple(logits.shape)}{_hint(shape)}"
        )
    if not logits.isfinite().all():
        raise ModelError(f"{wanted}, all of them finite; some are not")
