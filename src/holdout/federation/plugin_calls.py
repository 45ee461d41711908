"""Calls of custom code: a worker may crash, a rule or an attack may do anything."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from holdout.errors import HoldoutError, PluginError


def attempt(action: Callable[[], Any]) -> Any:
    """What a worker answers; None if it raises, since a worker's crash is not the round's."""
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
