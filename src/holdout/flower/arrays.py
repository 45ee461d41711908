"""A model's arrays by name <-> one flat vector of float32, and how arrays from outside are read.

Nodes' arrays are read without Flower's decoder: sizes are known beforehand, so a header that
announces anything else is refused before memory is touched, and nothing is unpickled or evaluated.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, RecordDict
from torch import Tensor

from holdout import device
from holdout.errors import ModelError
from holdout.flower.exchange import ReplyFault

_NUMPY = "numpy.ndarray"
_FLOATS = ("float16", "float32", "float64")
_WIDEST = 8
_HEADER_MAX = 4096
# Exactly what numpy writes; no other header is read.
_HEADER = re.compile(
    r"\{'descr': '([<>|=]?[a-zA-Z]\d{1,2})', 'fortran_order': (True|False), "
    r"'shape': \(([\d, ]{0,400})\), \} *\n"
)


@dataclass(frozen=True, slots=True)
class Layout:
    """Names, shapes and dtypes of a model's arrays, in order.

    Arrays of floats make up the vector that is proposed, scored and averaged, in float32. Other
    arrays (counters such as batch norm's) stay as they are in the current model.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]

    @classmethod
    def of(cls, arrays: ArrayRecord) -> Self:
        """The layout of the server's arrays."""
        layout = cls(
            tuple(arrays),
            tuple(tuple(array.shape) for array in arrays.values()),
            tuple(array.dtype for array in arrays.values()),
        )
        if not layout.dimension:
            raise ModelError(
                f"the model needs at least one array of {', '.join(_FLOATS)}; "
                f"got {dict(zip(layout.names, layout.dtypes, strict=True))}"
            )
        return layout

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The inverse of `to_json`."""
        values = json.loads(text)
        shapes = tuple(tuple(shape) for shape in values["shapes"])
        return cls(tuple(values["names"]), shapes, tuple(values["dtypes"]))

    def to_json(self) -> str:
        """For the vote message: one string, since every object in a message costs time."""
        return json.dumps({"names": self.names, "shapes": self.shapes, "dtypes": self.dtypes})

    @property
    def trained(self) -> list[tuple[str, tuple[int, ...], str]]:
        """Name, shape and dtype of the arrays that are part of the vector."""
        triples = zip(self.names, self.shapes, self.dtypes, strict=True)
        return [(name, shape, dtype) for name, shape, dtype in triples if dtype in _FLOATS]

    @property
    def dimension(self) -> int:
        """The number of weights, d."""
        return sum(math.prod(shape) for _, shape, _ in self.trained)

    def read(self, arrays: ArrayRecord) -> Tensor | ReplyFault:
        """The vector (d,) that arrays from outside hold, or what is wrong with them."""
        if set(arrays) != set(self.names):
            return ReplyFault.MALFORMED
        vector = np.empty(self.dimension, np.float32)
        start = 0
        for name, shape, _ in self.trained:
            part = _read_array(arrays[name], shape)
            if isinstance(part, ReplyFault):
                return part
            # A float64 too large for float32 becomes infinite, and is refused later.
            with np.errstate(over="ignore", invalid="ignore"):
                vector[start : start + part.size] = part.reshape(-1)
            start += part.size
        return device.from_numpy(vector)

    def flatten(self, arrays: ArrayRecord) -> Tensor:
        """The vector (d,) of the server's arrays."""
        vector = self.read(arrays)
        if isinstance(vector, ReplyFault) or not vector.isfinite().all():
            fault = vector if isinstance(vector, ReplyFault) else "not finite"
            raise ModelError(f"the current model's arrays cannot be used: {fault}")
        return vector

    def fill(self, vector: Tensor, others: Mapping[str, Array]) -> ArrayRecord:
        """The arrays that a vector stands for; those that are not part of it come from `others`."""
        numbers = device.to_numpy(vector)
        filled: dict[str, Array] = {}
        start = 0
        for name, shape, dtype in zip(self.names, self.shapes, self.dtypes, strict=True):
            if dtype not in _FLOATS:
                filled[name] = others[name]
                continue
            stop = start + math.prod(shape)
            with np.errstate(over="ignore"):
                filled[name] = Array(numbers[start:stop].reshape(shape).astype(dtype))
            start = stop
        return ArrayRecord(filled)

    def others(self, arrays: ArrayRecord) -> dict[str, Array]:
        """The arrays that are not part of the vector."""
        pairs = zip(self.names, self.dtypes, strict=True)
        return {name: arrays[name] for name, dtype in pairs if dtype not in _FLOATS}


def _read_array(array: Array, shape: tuple[int, ...]) -> npt.NDArray[Any] | ReplyFault:
    """An array of floats of this shape in numpy's file format, or what is wrong with it."""
    if tuple(array.shape) != shape:
        return ReplyFault.MISSHAPEN
    data = array.data
    if array.stype != _NUMPY or not isinstance(data, bytes) or data[:6] != b"\x93NUMPY":
        return ReplyFault.UNREADABLE
    if len(data) > math.prod(shape) * _WIDEST + _HEADER_MAX:
        return ReplyFault.MISSHAPEN
    # Where the header begins depends on the version of the format.
    begin = {b"\x01": 10, b"\x02": 12, b"\x03": 12}.get(data[6:7], 0)
    body = begin + int.from_bytes(data[8:begin], "little")
    header = _HEADER.fullmatch(data[begin:body].decode("latin1")) if begin else None
    if header is None or body > _HEADER_MAX:
        return ReplyFault.UNREADABLE
    try:
        dtype = np.dtype(header[1])
    except TypeError:
        return ReplyFault.UNREADABLE
    if dtype.kind != "f" or dtype.itemsize > _WIDEST or array.dtype != str(dtype):
        return ReplyFault.WRONG_DTYPE
    if tuple(int(side) for side in header[3].replace(",", " ").split()) != shape:
        return ReplyFault.MISSHAPEN
    if len(data) - body != math.prod(shape) * dtype.itemsize:
        return ReplyFault.UNREADABLE
    flat = np.frombuffer(data, dtype, offset=body)
    return flat.reshape(shape, order="F" if header[2] == "True" else "C")


def read_proposal(content: RecordDict, layout: Layout, *, key: str) -> Tensor | ReplyFault:
    """The weights w_j that a train reply returns: one ArrayRecord, under the usual key."""
    if list(content.array_records) != [key]:
        return ReplyFault.MALFORMED
    return layout.read(content.array_records[key])
