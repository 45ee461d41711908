"""Calling custom code: what it may take, what it raises, and what it keeps between rounds.

A rule or a worker that must remember something gets a dict of tensors of its own and writes into
it. In the next round it gets back what the dict then held. In between, this is part of the round's
state: it is saved in checkpoints, and no two curves or seeds share it.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor

from holdout import device
from holdout.errors import HoldoutError, PluginError, UserError
from holdout.tracebacks import (
    RAISED,
    Failure,
    definition_of,
    failure_of,
    place_of,
    summary_of,
    with_place,
)

T = TypeVar("T")
U = TypeVar("U")
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


def checked_copy(owner: str, kept: object, code: object = None) -> Kept:
    """A copy of the state that came back, which must hold tensors by name that can be saved."""
    if not isinstance(kept, dict):
        raise refused(f"{owner}: its state must stay a dict; got {type(kept).__name__}", code)
    copy: Kept = {}
    for name, tensor in kept.items():
        if not isinstance(name, str) or not isinstance(tensor, Tensor):
            raise refused(
                f"{owner}: its state must hold tensors by name, so that it can be saved; got "
                f"{name!r}: {type(tensor).__name__}",
                code,
            )
        try:
            device.to_numpy(tensor)
        except (TypeError, RuntimeError) as error:
            raise refused(
                f"{owner}: its state must hold plain tensors that numpy can save; "
                f"got {name!r}: {tensor.dtype}, {tensor.layout}, {tensor.device}",
                code,
            ) from error
        copy[name] = tensor.detach().clone()
    return copy


def attempt(
    action: Callable[[], Any],
    *,
    kind: str,
    owner: str,
    failures: list[Failure],
    code: object = None,
) -> Any:
    """What a worker answers; None if it raises: a worker that crashes does not end the round.

    Args:
        action: Asks the worker.
        kind: What is asked of it.
        owner: Whose code it is.
        failures: What it raises goes here.
        code: The worker's function, whose place is told if no line of it was reached.
    """
    try:
        return action()
    except RAISED as error:
        failures.append(failure_of(kind, owner, error, code))
        return None


def guard(what: str, action: Callable[[], Any], code: object = None) -> Any:
    """Run a plug-in; if it raises, the error names it, its file and its line.

    Args: what: Names the plug-in. action: Runs it. code: The plug-in itself; the error names its
    place if none of its lines was reached.
    """
    try:
        return action()
    except UserError:
        raise
    except RAISED as error:
        if isinstance(error, HoldoutError) and place_of(error) is None:
            raise
        message = with_place(f"{what} raised {summary_of(error)}", error, code)
        raise PluginError(message, failure_of("run", what, error).traceback) from error


def refused(message: str, code: object) -> PluginError:
    """The error for custom code that did not raise but did something wrong, with its place."""
    place = definition_of(code)
    return PluginError(f"{message} ({place})" if place else message)


def counted(kind: str, error: PluginError, who: str = "") -> Failure:
    """The failure to count in a round's record; raises the error if no custom code raised it.

    Args:
        kind: What was asked.
        error: What `guard` made of it.
        who: Who was asked, if that is not the custom code itself.
    """
    cause = error.__cause__
    if cause is None or place_of(cause) is None:
        raise error
    return failure_of(kind, who + str(error).partition(" raised ")[0], cause)


def spare(
    action: Callable[[], T], *, kind: str, failures: list[Failure], who: str = ""
) -> T | None:
    """The result of a guarded action; None, and one more failure, if custom code raises in it."""
    try:
        return action()
    except PluginError as error:
        failures.append(counted(kind, error, who))
        return None


def ask_each(
    ask: Callable[[Sequence[T]], Iterable[U]],
    members: Sequence[T],
    *,
    kind: str,
    who: Callable[[T], str],
    failures: list[Failure],
) -> list[U | None]:
    """The answers of all members asked together or, if custom code then raises, each alone.

    None for a member for whom it raises again. If it raises for no member alone, no answer is
    missing, and the failure is counted once.
    """
    try:
        return list(ask(members))
    except PluginError as error:
        together = counted(kind, error)
    before = len(failures)

    def alone(member: T) -> U | None:
        def answer() -> U:
            (found,) = ask([member])
            return found

        return spare(answer, kind=kind, failures=failures, who=who(member))

    answers = [alone(member) for member in members]
    if len(failures) == before:
        failures.append(together)
    return answers


def _version(tensor: Tensor) -> int:
    """How often torch has written on the tensor's numbers."""
    return tensor._version  # noqa: SLF001


@contextmanager
def untouched(
    owner: str,
    tensors: Sequence[Tensor],
    code: object,
    what: str = "the data that all workers share",
) -> Iterator[None]:
    """Refuse custom code that changes, in place, shared tensors that are too large to copy."""
    before = list(map(_version, tensors))
    yield
    if before != list(map(_version, tensors)):
        raise refused(f"{owner} changed in place {what}; it must work on a copy", code)


class Lent:
    """A tensor lent to custom code: always a copy, and a fresh one if the last was changed.

    Example:
        >>> import torch
        >>> lent = Lent(torch.zeros(2))
        >>> lent().fill_(9.0), lent()
        (tensor([9., 9.]), tensor([0., 0.]))
    """

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor
        self._copy: Tensor | None = None
        self._written = 0

    def __call__(self) -> Tensor:
        """The copy."""
        if self._copy is None or _version(self._copy) != self._written:
            self._copy = self._tensor.clone()
            self._written = _version(self._copy)
        return self._copy


def own_copies(sent: object) -> object:
    """What custom code returned, copied so that it cannot change it later; one tensor stays one."""
    if isinstance(sent, Tensor):
        return sent.detach().clone()
    if not isinstance(sent, list | tuple):
        return sent
    copies: dict[int, object] = {id(one): own_copies(one) for one in sent}
    return [copies[id(one)] for one in sent]


def describe(value: object) -> str:
    """A value in a message: a tensor by its shape, anything else by its type.

    >>> describe(torch.zeros(2).to_sparse()), describe("text")
    ('torch.float32 of shape (2,), sparse_coo', 'str')
    """
    if isinstance(value, Tensor):
        odd = [str(value.layout).removeprefix("torch.")] * (value.layout is not torch.strided)
        odd += [f"on {value.device}"] * (not device.is_here(value))
        return ", ".join([f"{value.dtype} of shape {tuple(value.shape)}", *odd])
    return type(value).__name__
