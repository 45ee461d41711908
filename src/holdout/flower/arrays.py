"""A model's arrays by name <-> one flat vector of float32, and how arrays from outside are read.

Every array of a model has a role:

    TRAINED   part of the vector that is proposed, judged and averaged
    BUFFER    averaged over the accepted clients, never judged: batch norm's statistics, counters
    KEPT      stays as it is in the initial arrays; a reply may leave it out

Nodes' arrays are read without Flower's decoder: sizes are known beforehand, so a header that
announces anything else is refused before memory is touched, and nothing is unpickled or evaluated.

Clients import this module too: torch is loaded only where tensors are asked for.
"""

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, RecordDict

from holdout.errors import ModelError
from holdout.flower.answers import ReplyFault

if TYPE_CHECKING:
    from torch import Tensor

Numbers = npt.NDArray[Any]

BUFFERS = ("*running_mean", "*running_var", "*num_batches_tracked", "*moving_mean", "*moving_var*")
"""What the statistics of batch norm are called in torch and in Keras."""

_NUMPY = "numpy.ndarray"
_FLOATS = ("float16", "float32", "float64")
_COUNTED = "iub"
"""The kinds of dtypes, besides floats, whose arrays can be averaged: integers and truth values."""
_WIDEST = 8
_HEADER_MAX = 4096
# Exactly what numpy writes; no other header is read.
_HEADER = re.compile(
    r"\{'descr': '([<>|=]?[a-zA-Z]\d{1,2})', 'fortran_order': (True|False), "
    r"'shape': \(([\d, ]{0,400})\), \} *\n"
)


class ArrayRole(StrEnum):
    """What becomes of an array."""

    TRAINED = "trained"
    BUFFER = "buffer"
    KEPT = "kept"


@dataclass(frozen=True, slots=True)
class Layout:
    """Names, shapes, dtypes and roles of a model's arrays, in order."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    roles: tuple[ArrayRole, ...]

    @classmethod
    def of(
        cls,
        arrays: ArrayRecord,
        *,
        trained: Sequence[str] = ("*",),
        buffers: Sequence[str] = BUFFERS,
    ) -> Self:
        """The layout of the server's arrays.

        Args:
            arrays: The model.
            trained: Patterns of the names of arrays that are trained, such as "*lora*".
            buffers: Patterns of the names of arrays that are averaged but never judged.
        """
        pairs = [(name, array.dtype) for name, array in arrays.items()]
        layout = cls(
            tuple(arrays),
            tuple(tuple(array.shape) for array in arrays.values()),
            tuple(dtype for _, dtype in pairs),
            tuple(_role(name, dtype, trained, buffers) for name, dtype in pairs),
        )
        if not layout.dimension:
            raise ModelError(
                f"the model needs at least one array of {', '.join(_FLOATS)} that is trained; "
                f"got {dict(pairs)}, with trained = {list(trained)} and buffers = {list(buffers)}"
            )
        return layout

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The inverse of `to_json`."""
        values = json.loads(text)
        shapes = tuple(tuple(shape) for shape in values["shapes"])
        roles = tuple(ArrayRole(role) for role in values["roles"])
        return cls(tuple(values["names"]), shapes, tuple(values["dtypes"]), roles)

    def to_json(self) -> str:
        """For the vote message: one string, since every object in a message costs time."""
        fields = ("names", "shapes", "dtypes", "roles")
        return json.dumps({field: getattr(self, field) for field in fields})

    @property
    def trained(self) -> list[tuple[str, tuple[int, ...], str]]:
        """Name, shape and dtype of the arrays that are part of the vector."""
        return self._in(ArrayRole.TRAINED)

    @property
    def dimension(self) -> int:
        """The number of weights, d."""
        return sum(math.prod(shape) for _, shape, _ in self.trained)

    def read_numbers(self, arrays: ArrayRecord) -> Numbers | ReplyFault:
        """The vector (d,) of float32 that arrays from outside hold, or what is wrong with them."""
        needed = {
            name
            for name, role in zip(self.names, self.roles, strict=True)
            if role != ArrayRole.KEPT
        }
        if not needed <= set(arrays) <= set(self.names):
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
        return vector

    def read_buffers(self, arrays: ArrayRecord) -> dict[str, Numbers] | ReplyFault:
        """The buffers that arrays from outside hold, or what is wrong with them."""
        found: dict[str, Numbers] = {}
        for name, shape, dtype in self._in(ArrayRole.BUFFER):
            part = _read_array(arrays[name], shape, kind=np.dtype(dtype).kind)
            if isinstance(part, ReplyFault):
                return part
            if not np.isfinite(part).all():
                return ReplyFault.NOT_FINITE
            found[name] = part
        return found

    def average_buffers(
        self, held: Sequence[Mapping[str, Numbers]], *, cut: int
    ) -> dict[str, Array]:
        """The mean of each buffer, without the `cut` largest and smallest of each number.

        Nobody judges buffers, so no single client may decide one: what would leave fewer than two
        is the median.
        """
        cut = min(cut, (len(held) - 1) // 2)
        averaged: dict[str, Array] = {}
        for name, _, dtype in self._in(ArrayRole.BUFFER):
            if not held:
                break
            stacked = np.stack([one[name] for one in held]).astype(np.float64)
            mean = np.sort(stacked, axis=0)[cut : len(held) - cut].mean(axis=0)
            averaged[name] = Array(np.asarray(_narrowed(mean, np.dtype(dtype))))
        return averaged

    def read(self, arrays: ArrayRecord) -> "Tensor | ReplyFault":
        """`read_numbers` as a tensor."""
        from holdout import device

        found = self.read_numbers(arrays)
        return found if isinstance(found, ReplyFault) else device.from_numpy(found)

    def flatten(self, arrays: ArrayRecord) -> "Tensor":
        """The vector (d,) of the server's arrays."""
        vector = self.read(arrays)
        if isinstance(vector, ReplyFault) or not vector.isfinite().all():
            fault = vector if isinstance(vector, ReplyFault) else "not finite"
            raise ModelError(f"the current model's arrays cannot be used: {fault}")
        return vector

    def fill(self, vector: "Tensor", others: Mapping[str, Array]) -> ArrayRecord:
        """`fill_numbers` from a tensor."""
        from holdout import device

        return self.fill_numbers(device.to_numpy(vector), others)

    def fill_numbers(self, numbers: Numbers, others: Mapping[str, Array]) -> ArrayRecord:
        """The arrays that a vector stands for; those that are not part of it come from `others`."""
        filled: dict[str, Array] = {}
        start = 0
        rows = zip(self.names, self.shapes, self.dtypes, self.roles, strict=True)
        for name, shape, dtype, role in rows:
            if role != ArrayRole.TRAINED:
                filled[name] = others[name]
                continue
            stop = start + math.prod(shape)
            with np.errstate(over="ignore"):
                filled[name] = Array(numbers[start:stop].reshape(shape).astype(dtype))
            start = stop
        return ArrayRecord(filled)

    def only_trained(self) -> "Layout":
        """The layout of the arrays that are part of the vector."""
        names, shapes, dtypes = zip(*self.trained, strict=True)
        return Layout(names, shapes, dtypes, (ArrayRole.TRAINED,) * len(names))

    def others(self, arrays: ArrayRecord) -> dict[str, Array]:
        """The arrays that are not part of the vector."""
        pairs = zip(self.names, self.roles, strict=True)
        return {name: arrays[name] for name, role in pairs if role != ArrayRole.TRAINED}

    def _in(self, role: ArrayRole) -> list[tuple[str, tuple[int, ...], str]]:
        rows = zip(self.names, self.shapes, self.dtypes, self.roles, strict=True)
        return [(name, shape, dtype) for name, shape, dtype, own in rows if own == role]


def _role(name: str, dtype: str, trained: Iterable[str], buffers: Iterable[str]) -> ArrayRole:
    is_float = dtype in _FLOATS
    try:
        can_average = is_float or np.dtype(dtype).kind in _COUNTED
    except TypeError:  # Nothing that numpy knows.
        can_average = False
    if not can_average:
        return ArrayRole.KEPT
    if any(fnmatchcase(name, pattern) for pattern in buffers):
        return ArrayRole.BUFFER
    if not any(fnmatchcase(name, pattern) for pattern in trained):
        return ArrayRole.KEPT
    return ArrayRole.TRAINED if is_float else ArrayRole.BUFFER


def _narrowed(mean: Numbers, dtype: np.dtype[Any]) -> Numbers:
    """The mean in the buffer's own dtype: integers are rounded, truth follows the majority."""
    if dtype.kind == "f":
        largest = np.finfo(dtype).max
        return np.clip(mean, -largest, largest).astype(dtype)
    if dtype.kind == "b":
        return mean > 0.5  # noqa: PLR2004 - More than half.
    # Of 64 bits, float64 cannot hold the largest: the next smaller one that it can.
    limits = np.iinfo(dtype)
    top = limits.max if limits.bits < 64 else np.nextafter(float(limits.max), 0.0)  # noqa: PLR2004
    return np.clip(np.rint(mean), limits.min, top).astype(dtype)


def _read_array(array: Array, shape: tuple[int, ...], *, kind: str = "f") -> Numbers | ReplyFault:
    """An array of this shape and kind in numpy's file format, or what is wrong with it."""
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
    if dtype.kind != kind or dtype.itemsize > _WIDEST or array.dtype != str(dtype):
        return ReplyFault.WRONG_DTYPE
    if tuple(int(side) for side in header[3].replace(",", " ").split()) != shape:
        return ReplyFault.MISSHAPEN
    if len(data) - body != math.prod(shape) * dtype.itemsize:
        return ReplyFault.UNREADABLE
    flat = np.frombuffer(data, dtype, offset=body)
    return flat.reshape(shape, order="F" if header[2] == "True" else "C")


@dataclass(frozen=True, slots=True, eq=False)
class ReadArrays:
    """What a train reply holds."""

    weights: "Tensor"
    """w_j, (d,)."""
    buffers: Mapping[str, Numbers]


def array_records(content: RecordDict) -> dict[str, ArrayRecord]:
    """The records of arrays; Flower's own view of them outlives its use, and the arrays with it."""
    return {name: record for name, record in content.items() if isinstance(record, ArrayRecord)}


def read_proposal(content: RecordDict, layout: Layout, *, key: str) -> ReadArrays | ReplyFault:
    """The weights w_j that a train reply returns: one ArrayRecord, under the usual key."""
    records = array_records(content)
    if list(records) != [key]:
        return ReplyFault.MALFORMED
    record = records[key]
    weights = layout.read(record)
    if isinstance(weights, ReplyFault):
        return weights
    buffers = layout.read_buffers(record)
    return buffers if isinstance(buffers, ReplyFault) else ReadArrays(weights, buffers)
