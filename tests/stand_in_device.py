"""A device that this machine does not have, played by the CPU: strict about who meets whom.

Tensors "on" it are of a type of their own, which every result of theirs inherits. As on a real
device, an operation on tensors from both sides raises, and so does numpy on one of its tensors.
Without float64 it plays Apple's. What a kernel computes is the CPU's: this finds tensors that are
in the wrong place, not wrong numbers.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


class There(Tensor):
    """A tensor on the stand-in."""

    @property
    def device(self) -> torch.device:
        return StandIn.current


class StandIn(TorchFunctionMode):
    current = torch.device("cpu")

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = torch.device(name)
        self.made = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        tensors = [value for value in _flat([args, kwargs]) if isinstance(value, Tensor)]
        name = getattr(func, "__name__", "")
        if name in {"numpy", "__array__"} and isinstance(args[0], There):
            raise TypeError(f"can't convert {self.name} device type tensor to numpy")
        if name == "cpu":
            return args[0].as_subclass(Tensor)
        if name == "to" and any(isinstance(value, torch.device | str) for value in args[1:]):
            return self._moved(*args)
        wanted = kwargs.get("device")
        if wanted is not None:
            kwargs["device"] = "cpu"
            made = func(*args, **kwargs)
            there = torch.device(wanted).type == self.name.type
            return self._tag(made) if there else made
        if name not in {"copy_", "__get__", "__set__", "_has_compatible_shallow_copy_type"}:
            self._refuse_mixture(name, tensors)
        result = func(*args, **kwargs)
        if self.name.type == "mps":
            for value in _flat([result]):
                if isinstance(value, There) and value.dtype == torch.float64:
                    raise TypeError(f"{name}: MPS has no float64")
        return result

    def _moved(self, tensor, target, dtype=None, *_how):
        moved = tensor if dtype is None else tensor.to(dtype)
        if torch.device(target).type == "cpu":
            return moved.as_subclass(Tensor)
        return moved if isinstance(moved, There) else self._tag(moved)

    def _tag(self, tensor):
        if self.name.type == "mps" and tensor.dtype == torch.float64:
            raise TypeError("MPS has no float64")
        self.made += 1
        return tensor.as_subclass(There)

    def _refuse_mixture(self, name, tensors):
        sides = {isinstance(t, There) for t in tensors if Tensor.dim(t) > 0}
        if len(sides) > 1:
            raise RuntimeError(f"{name}: expected all tensors on one device; found cpu as well")


def _flat(values) -> Iterator[object]:
    for value in values:
        if isinstance(value, list | tuple):
            yield from _flat(value)
        elif isinstance(value, dict):
            yield from _flat(value.values())
        else:
            yield value


@contextmanager
def stand_in(name: str) -> Iterator[StandIn]:
    """Play a device of this name meanwhile."""
    before = torch.__future__.get_overwrite_module_params_on_conversion()
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    StandIn.current = torch.device(name if name == "mps" else "cuda:0")
    try:
        with StandIn(name) as mode:
            yield mode
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(before)
