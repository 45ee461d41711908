"""What travels between server and nodes, and how what comes back is checked.

    Layout          a model's arrays by name <-> one flat vector of float32
    read_proposal   a train reply -> the returned weights w_j, or a fault
    read_ballot     a vote reply -> what the voter claims to approve, or a fault
    VoteCall        the vote message: all candidates as ONE array, and the terms of the vote

A reply is read without Flower's own decoder: sizes are known beforehand, so a header that announces
anything else is refused before memory is touched, and nothing is unpickled or evaluated.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from torch import Tensor

from holdout.errors import ModelError
from holdout.ids import ProposalId
from holdout.voting import Ballot, Gate, Terms

# The vote message's type where the client registered `@app.evaluate("vote")`, and where it has
# only `@app.evaluate()` with `vote_mod` around it.
VOTE_TYPE, PLAIN_VOTE_TYPE = "evaluate.vote", "evaluate"
# Names of the records in a vote message and its reply.
CANDIDATES, VOTE, BALLOT, OTHERS = "candidates", "vote", "ballot", "others"
STACKED, APPROVED = "stacked", "approved"

_NUMPY = "numpy.ndarray"
_FLOATS = ("float16", "float32", "float64")
_WIDEST = 8
_HEADER_MAX = 4096
# What numpy writes, to the letter; anything else is not read.
_HEADER = re.compile(
    r"\{'descr': '([<>|=]?[a-zA-Z]\d{1,2})', 'fortran_order': (True|False), "
    r"'shape': \(([\d, ]{0,400})\), \} *\n"
)


class ReplyFault(StrEnum):
    """Why a reply does not count, besides what the core finds wrong with proposals and ballots."""

    MISSING = "missing"
    """Nothing came within the time."""
    UNAVAILABLE = "unavailable"
    """The SuperLink says that the node, or its reply, is gone."""
    ERROR = "error"
    """The node's app failed."""
    NOT_DRAWN = "not-drawn"
    """It answers nothing that was asked, or comes from another node than the one asked."""
    SECOND = "second"
    MALFORMED = "malformed"
    """Not the records, or not the arrays by name, that such a reply consists of."""
    MISSHAPEN = "misshapen"
    WRONG_DTYPE = "wrong-dtype"
    UNREADABLE = "unreadable"
    """Bytes that are no array."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Names, shapes and dtypes of a model's arrays, in order.

    Arrays of floats make up the vector that is proposed, scored and averaged, in float32. Others
    (counters such as batch norm's) are handed on as they are in the current model.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]

    @classmethod
    def of(cls, arrays: ArrayRecord) -> Self:
        """The layout of the server's own arrays."""
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
        """For the vote message: one string, since what costs there is the number of objects."""
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
            # What float64 holds may be too large for float32: it becomes infinite, and is refused.
            with np.errstate(over="ignore", invalid="ignore"):
                vector[start : start + part.size] = part.reshape(-1)
            start += part.size
        return torch.from_numpy(vector)

    def flatten(self, arrays: ArrayRecord) -> Tensor:
        """The vector (d,) of the server's own arrays."""
        vector = self.read(arrays)
        if isinstance(vector, ReplyFault) or not vector.isfinite().all():
            fault = vector if isinstance(vector, ReplyFault) else "not finite"
            raise ModelError(f"the current model's arrays cannot be used: {fault}")
        return vector

    def fill(self, vector: Tensor, others: Mapping[str, Array]) -> ArrayRecord:
        """Named arrays again; what is no part of the vector is taken from `others`."""
        numbers = vector.numpy()
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
        """The arrays that are no part of the vector."""
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


def read_ballot(content: RecordDict) -> object:
    """What a vote reply names, whatever it is; a fault where it is no vote reply."""
    record = content.metric_records.get(BALLOT)
    if record is None or APPROVED not in record:
        return ReplyFault.MALFORMED
    return record[APPROVED]


@dataclass(frozen=True, slots=True, eq=False)
class VoteCall:
    """A voter's view of the vote: candidates without their proposers' names, in its own order."""

    layout: Layout
    stacked: Tensor
    """(1 + N_p, d): the current model first, then the candidates."""
    terms: Terms
    round: int
    holdout_samples: int | None
    """The paper's m_c; None: all that the voter has."""
    others: Mapping[str, Array]
    config: ConfigRecord
    """The user's evaluation config."""
    array_key: str
    config_key: str

    def content(self) -> RecordDict:
        """The records of the message."""
        settings = ConfigRecord(
            {
                "layout": self.layout.to_json(),
                "byzantine-fraction": str(self.terms.f),
                "gate": self.terms.gate.value if self.terms.gate else "",
                "server-round": self.round,
                "holdout-samples": self.holdout_samples or 0,
                "array-key": self.array_key,
                "config-key": self.config_key,
            }
        )
        records: dict[str, ArrayRecord | ConfigRecord | MetricRecord] = {
            CANDIDATES: ArrayRecord({STACKED: Array(self.stacked.numpy())}),
            VOTE: settings,
            self.config_key: self.config,
        }
        if self.others:
            records[OTHERS] = ArrayRecord(dict(self.others))
        return RecordDict(records)

    @classmethod
    def read(cls, message: Message) -> Self:
        """On the voter's side. The server is trusted: what does not fit simply raises."""
        content = message.content
        settings = content.config_records[VOTE]
        gate = str(settings["gate"])
        samples = settings["holdout-samples"]
        others = content.array_records.get(OTHERS)
        config_key = str(settings["config-key"])
        return cls(
            layout=Layout.from_json(str(settings["layout"])),
            stacked=torch.from_numpy(content.array_records[CANDIDATES][STACKED].numpy()),
            terms=Terms(
                Fraction(str(settings["byzantine-fraction"])), gate=Gate(gate) if gate else None
            ),
            round=int(str(settings["server-round"])),
            holdout_samples=int(str(samples)) or None,
            others={} if others is None else dict(others.items()),
            config=content.config_records[config_key],
            array_key=str(settings["array-key"]),
            config_key=config_key,
        )

    def cast(self, losses: Sequence[float]) -> Ballot:
        """The voter's ballot, from its holdout losses of the current model and each candidate."""
        named = {ProposalId(place): loss for place, loss in enumerate(losses[1:])}
        return self.terms.cast(named, current_loss=losses[0])


def is_vote(message: Message) -> bool:
    """Whether a message asks for a vote."""
    return message.has_content() and VOTE in message.content.config_records


def ballot_content(ballot: Ballot) -> RecordDict:
    """The records of a vote reply: the approved candidates, by their place in the message."""
    return RecordDict({BALLOT: MetricRecord({APPROVED: [int(p) for p in ballot.approved]})})
