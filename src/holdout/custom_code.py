"""Calling custom code: what it may take, what it raises, and what it keeps between rounds.

A rule or a worker that must remember something is handed a dict of tensors, its own alone, and
writes into it; what the dict holds afterwards is handed to it again in the next round. In between
it is part of the round's state: it is saved in checkpoints, and no two curves or seeds share it.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from holdout import device
from holdout.errors import HoldoutError, PluginError

Kept = dict[str, Tensor]
"""Tensors by name."""


def takes(function: Callable[..., object], parameter: str) -> bool:
    """Whether a function has a parameter of this name."""
    try:
        return parameter in inspect.signature(function).parameters
    except (TypeError, ValueError):  # Some built-in functions have no signature.
        return False


def private_copy(kept: Mapping[str, Tensor]) -> Kept:
    """A copy to hand out: changing it, or its tensors, changes nothing else."""
    return {name: tensor.clone() for name, tensor in kept.items()}


def checked_copy(owner: str, kept: object) -> Kept:
    """A copy of what came back, once it is known to hold tensors by name that can be saved."""
    if not isinstance(kept, dict):
        raise PluginError(f"{owner}: its state must stay a dict; got {type(kept).__name__}")
    copy: Kept = {}
    for name, tensor in kept.items():
        if not isinstance(name, str) or not isinstance(tensor, Tensor):
            raise PluginError(
                f"{owner}: its state must hold tensors by name, so that it can be saved; got "
                f"{name!r}: {type(tensor).__name__}"
            )
        try:
            device.to_numpy(tensor)
        except (TypeError, RuntimeError) as error:
            raise PluginError(
                f"{owner}: its state must hold plain tensors that numpy can save; "
                f"got {name!r}: {tensor.dtype}, {tensor.layout}, {tensor.device}"
            ) from error
        copy[name] = tensor.detach().clone()
    return copy


def attempt(action: Callable[[], Any]) -> Any:
    """What a worker answers; None if it raises: a worker that crashes does not end the round."""
    try:
        return action()
    except Exception:  # noqa: BLE001
        return None


def guard(what: str, action: Callable[[], Any]) -> Any:
    """Run a plug-in; what it raises becomes an error that names it."""
    try:
        return action()
    except HoldoutError:
        raise
    except Exception as error:
        raise PluginError(f"{what} raised {type(error).__name__}: {error}") from error


def describe(value: object) -> str:
    """A value in a message: a tensor by its shape, anything else by its type."""
    if isinstance(value, Tensor):
        return f"{value.dtype} of shape {tuple(value.shape)}"
    return type(value).__name__
