"""Samples that are mostly background, such as scanned digits, stored as what stands out from it.

Four fifths of an MNIST image is one value. With b for that value, a linear layer gives
W x = W (x - b) + b W 1, where x - b is mostly zero and b W 1 is the same for every sample. So only
what stands out is multiplied: each sample is a weighted sum of few rows of a table, the transposed
weights, which is what torch's `embedding_bag` computes. On MNIST that takes a quarter of the time
of the full product, and the result is the same to rounding.
"""

from collections.abc import MutableMapping
from dataclasses import dataclass
from threading import Lock

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812
from torch.utils.weak import WeakTensorKeyDictionary

from holdout import device

SHARE_MAX = 0.5
"""With more than this share of a sample standing out, the full product is about as fast."""

TABLE_COLUMNS = 128
"""Columns of a table used at once: this many, with 784 rows, stay in a core's own cache."""

_ROWS = 4096  # Looked at together, which bounds memory.
_PROBE = 64  # Samples from which the background is guessed.


@dataclass(frozen=True, slots=True, eq=False)
class Sparse:
    """Samples as the numbers that differ from the background, sample after sample.

    Each sample also has a number 1 in one more column, after the last: there the table holds what
    all samples share, so that adding it takes no extra pass.
    """

    shape: torch.Size
    """(n, ...), of the samples in full."""
    background: float
    starts: Tensor
    """(n + 1,) int64: where each sample's numbers begin, and where the last one's end."""
    columns: Tensor
    """int32: the place of each number in the flattened sample."""
    values: Tensor
    """float32: by how much each number differs from the background."""

    def __len__(self) -> int:
        return self.shape[0]

    def block(self, rows: slice) -> "Sparse":
        """Consecutive samples."""
        start, stop, _ = rows.indices(len(self))
        starts = self.starts[start : stop + 1]
        inside = slice(int(starts[0]), int(starts[-1]))
        shape = torch.Size((stop - start, *self.shape[1:]))
        return Sparse(
            shape, self.background, starts - starts[0], self.columns[inside], self.values[inside]
        )

    def take(self, rows: Tensor) -> "Sparse":
        """The samples in those rows, in that order."""
        begins, ends = self.starts[rows], self.starts[rows + 1]
        starts = device.zeros(len(rows) + 1, dtype=torch.int64)
        torch.cumsum(ends - begins, 0, out=starts[1:])
        shape = torch.Size((len(rows), *self.shape[1:]))
        if len(rows) == 0:
            return Sparse(shape, self.background, starts, self.columns[:0], self.values[:0])
        # Samples that follow each other here too are copied as one run: up to four times as fast as
        # gathering number by number.
        is_cut = begins[1:] != ends[:-1]
        firsts = torch.cat([begins[:1], begins[1:][is_cut]])
        lasts = torch.cat([ends[:-1][is_cut], ends[-1:]])
        runs = list(map(slice, firsts.tolist(), lasts.tolist()))
        columns, values = (
            device.from_numpy(np.concatenate([numbers[run] for run in runs]))
            for numbers in (device.to_numpy(self.columns), device.to_numpy(self.values))
        )
        return Sparse(shape, self.background, starts, columns, values)

    def dense(self) -> Tensor:
        """The samples in full."""
        width = self.shape[1:].numel()
        full = device.zeros(len(self), width + 1)
        rows = torch.repeat_interleave(device.arange(len(self)), self.starts.diff())
        full[rows, self.columns.long()] = self.values
        return full[:, :width].add_(self.background).view(self.shape)


class Table:
    """Linear layers, (m, outputs, inputs) and (m, outputs), made ready for sparse samples."""

    def __init__(self, weight: Tensor, bias: Tensor | None, background: float) -> None:
        count, outputs, inputs = weight.shape
        table = weight.new_empty(inputs + 1, count, outputs)
        table[:inputs] = weight.permute(2, 0, 1)
        shared = background * weight.sum(dim=2, dtype=torch.float64)
        table[inputs] = shared if bias is None else shared + bias
        self._shape = (count, outputs)
        self._parts = [
            part.contiguous() for part in torch.split(table.flatten(1), TABLE_COLUMNS, dim=1)
        ]

    def __call__(self, samples: Sparse) -> Tensor:
        """What each layer gives for each sample, (m, outputs, n): a view, the samples first."""
        z = device.empty(len(samples), *self._shape)
        starts = samples.starts[:-1].int()
        columns = torch.split(z.flatten(1), TABLE_COLUMNS, dim=1)
        for target, part in zip(columns, self._parts, strict=True):
            target.copy_(
                F.embedding_bag(
                    samples.columns, part, starts, mode="sum", per_sample_weights=samples.values
                )
            )
        return z.permute(1, 2, 0)


def of(x: Tensor) -> Sparse | None:
    """The samples (n, ...) as sparse ones, or None where that would not pay.

    The work is done once for a tensor and remembered as long as that lives.
    """
    # The version counts changes in place: what was found before one no longer holds.
    version = x._version  # noqa: SLF001 - torch has no other name for it.
    with _KNOWING:
        known = _KNOWN.get(x)
        if known is None or known[0] != version:
            known = _KNOWN[x] = (version, _compress(x))
        return known[1]


def take(samples: Sparse, rows: Tensor) -> Sparse:
    """`samples.take(rows)`, remembered as long as the tensor of rows lives."""
    version = rows._version  # noqa: SLF001
    with _KNOWING:
        known = _TAKEN.get(rows)
    if known is None or known[0] is not samples or known[1] != version:
        known = (samples, version, samples.take(rows))
        with _KNOWING:
            _TAKEN[rows] = known
    return known[2]


_KNOWING = Lock()
_KNOWN: MutableMapping[Tensor, tuple[int, Sparse | None]] = WeakTensorKeyDictionary()
_TAKEN: MutableMapping[Tensor, tuple[Sparse, int, Sparse]] = WeakTensorKeyDictionary()


def _compress(x: Tensor) -> Sparse | None:
    flat = x.flatten(1)
    if flat.numel() == 0 or flat.dtype != torch.float32:
        return None
    stride = max(len(flat) // _PROBE, 1)
    background = float(flat[::stride].flatten().mode().values)
    parts: list[tuple[Tensor, Tensor, Tensor]] = []
    room = SHARE_MAX * flat.numel()
    for block in torch.split(flat, _ROWS):
        apart = block != background
        counts = apart.sum(dim=1)
        room -= int(counts.sum())
        if room < 0:
            return None
        # The column of ones comes first in each sample, whatever its number.
        marked = torch.cat([device.ones(len(block), 1, dtype=torch.bool), apart], dim=1)
        columns = device.arange(-1, flat.shape[1], dtype=torch.int32).expand(marked.shape)[marked]
        columns[columns < 0] = flat.shape[1]
        differences = torch.cat([device.ones(len(block), 1), block - background], dim=1)[marked]
        if not differences.isfinite().all():
            return None
        parts.append((counts + 1, columns, differences))
    counts, columns, values = (torch.cat(part) for part in zip(*parts, strict=True))
    starts = torch.cat([device.zeros(1, dtype=torch.int64), counts.cumsum(0)])
    return Sparse(x.shape, background, starts, columns, values)
