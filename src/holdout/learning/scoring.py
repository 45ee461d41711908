"""Holdout losses of many candidates on one voter's samples: the hot loop of the vote.

All candidates see the same samples, so their first layers are one matrix product (or convolution)
of the shared input with the candidates' stacked weights. Later inputs differ; there, linear layers
run as one batched product, convolutions as one with a group for each candidate. Samples are taken
in blocks whose activations stay in the cache.

Where candidates are combinations of a few directions (a line search), the first layer is applied
once to each direction, and the outputs are combined instead: by a matrix product or, of images, a
convolution of single pixels. Samples that are mostly background may come as `Sparse` ones, of which
the first product of a linear layer is much cheaper.

Activations of m candidates on n samples are (m, width, n) after a linear layer and
(n, m * channels, height, width), channels last in memory, after a convolution.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from holdout import device, parallel
from holdout.errors import MisuseError
from holdout.learning import layers, vector
from holdout.learning.layers import Affine, Step
from holdout.learning.losses import CROSS_ENTROPY, Loss
from holdout.learning.sparse import Sparse, Table

# Floats in a block's widest activations: 8 MB measured best with caches of 1 MB (L2), 32 MB (L3).
BLOCK_FLOATS = 1 << 21
# Blocks are multiples of this many samples: fewer make thin products, others ill-aligned rows.
BLOCK_SAMPLES_UNIT = 16
BLOCK_SAMPLES_GENERAL = 250
# Floats of candidates handled at once, 12 MB: memory stays bounded however many there are, and
# their stacked weights, which every block of samples reads again, stay in the cache.
CHUNK_FLOATS = 3 << 20
# Floats of the first layer's outputs kept for a line search on some samples: 64 MB.
KEPT_FLOATS = 1 << 24

Samples = Tensor | Sparse
Head = Callable[[slice], Tensor]
"""From a block of the samples to all candidates' outputs of the first layer that has weights."""


@dataclass(frozen=True, slots=True)
class _Plan:
    """A layered model, split at the first layer that has weights."""

    before: tuple[Step, ...]
    first: Affine
    after: tuple[Step, ...]

    @property
    def widest(self) -> int:
        return max(step.width for step in (self.first, *self.after) if isinstance(step, Affine))

    @property
    def takes_sparse(self) -> bool:
        """Whether the samples come to a matrix product as they are."""
        unchanged = all(isinstance(step.module, nn.Flatten | nn.Identity) for step in self.before)
        return unchanged and isinstance(self.first.module, nn.Linear)


def takes_sparse(model: nn.Module, shape: tuple[int, ...]) -> bool:
    """Whether scoring the model gains from samples of this shape coming as `Sparse` ones."""
    plan = _plan(model, shape)
    return plan is not None and plan.takes_sparse


def sample_losses(
    model: nn.Module, candidates: Tensor, x: Samples, y: Tensor, *, loss: Loss = CROSS_ENTROPY
) -> Tensor:
    """The loss of each candidate on each sample, (m, s); NaN counts as +inf."""
    _check(model, candidates, x, y)
    losses = device.empty(len(candidates), len(x))
    plan = _plan(model, tuple(x.shape[1:]))
    if isinstance(x, Sparse) and not (plan and plan.takes_sparse):
        x = x.dense()
    with torch.no_grad():
        if plan is None:
            _call(
                model, candidates, x.dense() if isinstance(x, Sparse) else x, y, losses, loss=loss
            )
        else:
            for rows in _chunks(len(candidates), vector.dimension(model), plan.widest):
                chunk = candidates[rows]
                # Torch's own threads share a large matrix product better than ours do.
                apart = isinstance(x, Sparse) or isinstance(plan.first.module, nn.Conv2d)
                later = chunk[:, plan.first.stop :]
                head = _head(plan, chunk, x)
                _run(plan, head, later, y, losses[rows], loss=loss, apart=apart)
    return losses.nan_to_num_(nan=torch.inf, posinf=torch.inf)


class Combinations:
    """The candidates weights + coefficients @ directions, tried on the same samples repeatedly.

    What the first layer gives for each direction is kept, as long as that is not too much.
    """

    def __init__(
        self,
        model: nn.Module,
        weights: Tensor,
        directions: Tensor,
        x: Samples,
        y: Tensor,
        *,
        loss: Loss = CROSS_ENTROPY,
    ) -> None:
        self._loss = loss
        self._base = torch.cat([weights.unsqueeze(0), directions])
        _check(model, self._base, x, y)
        self._model, self._y = model, y
        self._plan = _plan(model, tuple(x.shape[1:]))
        if isinstance(x, Sparse) and not (self._plan and self._plan.takes_sparse):
            x = x.dense()
        self._x: Samples = x
        self._outputs: Tensor | None = None

    def losses(self, coefficients: Tensor) -> Tensor:
        """`sample_losses` of the candidates, (m, s)."""
        weights, directions = self._base[0], self._base[1:]
        if coefficients.shape[1:] != (len(directions),):
            raise MisuseError(
                f"each candidate needs a coefficient for each of {len(directions)} directions; "
                f"got coefficients of shape {tuple(coefficients.shape)}"
            )
        losses = device.empty(len(coefficients), len(self._y))
        plan = self._plan
        with torch.no_grad():
            if plan is not None and self._pays(plan.first, len(coefficients)):
                try:
                    self._combine(plan, coefficients, losses)
                except _OverflowError:
                    pass
                else:
                    return losses.nan_to_num_(nan=torch.inf, posinf=torch.inf)
            for rows in _chunks(len(coefficients), len(weights), 0):
                candidates = torch.addmm(weights, coefficients[rows], directions)
                losses[rows] = sample_losses(
                    self._model, candidates, self._x, self._y, loss=self._loss
                )
        return losses

    def _pays(self, first: Affine, candidates: int) -> bool:
        """Whether combining outputs is less work than computing each candidate's own."""
        fan_in = first.module.weight[0].numel()
        if isinstance(first.module, nn.Conv2d):
            # A combination multiplies every output channel of every direction.
            fan_in //= 2 * first.module.out_channels
        # One direction more than candidates is fine: next time, all outputs are there already.
        kept, few = self._outputs is not None, len(self._base) <= candidates + 1
        return len(self._base) <= fan_in and (kept or few)

    def _combine(self, plan: _Plan, coefficients: Tensor, losses: Tensor) -> None:
        mix = torch.cat([device.ones(len(coefficients), 1), coefficients], dim=1)
        later = self._base[:, plan.first.stop :]
        apply = self._first_layer(plan)
        for rows in _chunks(len(mix), later.shape[1], plan.widest):
            combine = _mixer(plan.first, mix[rows])

            def head(block: slice, combine: Callable[[Tensor], Tensor] = combine) -> Tensor:
                return combine(apply(block))

            _run(plan, head, mix[rows] @ later, self._y, losses[rows], loss=self._loss)

    def _first_layer(self, plan: _Plan) -> Head:
        """The first layer of each direction: (directions, block, outputs), or images of all."""
        images = isinstance(plan.first.module, nn.Conv2d)
        if self._outputs is not None:
            outputs = self._outputs
            return lambda block: outputs[block] if images else outputs[:, block]
        first, count = _head(plan, self._base, self._x), len(self._base)

        def apply(block: slice) -> Tensor:
            z = first(block)
            # Times a coefficient of zero, infinity would be NaN where the candidate is fine.
            # (A sum of finite numbers may overflow too: then the long way was not needed.)
            if not z.sum().isfinite():
                raise _OverflowError
            return z if images else z.transpose(1, 2)

        samples, width = len(self._y), plan.first.width
        if not 0 < count * samples * width <= KEPT_FLOATS:
            return apply
        kept = device.empty(count, samples, width)
        if images:
            shape = (samples, *first(slice(0, 1)).shape[1:])
            kept = device.empty(shape, memory_format=torch.channels_last)

        def fill(block: slice) -> None:
            with torch.no_grad():
                (kept[block] if images else kept[:, block]).copy_(apply(block))

        parallel.run_all(fill, _blocks(samples, count * width))
        self._outputs = kept
        return self._first_layer(plan)


def _mixer(first: Affine, shares: Tensor) -> Callable[[Tensor], Tensor]:
    """From what the first layer gives for each direction to what it gives for each candidate."""
    if isinstance(first.module, nn.Conv2d):
        kernels = torch.kron(shares, device.eye(first.module.out_channels))[:, :, None, None]
        kernels = kernels.contiguous(memory_format=torch.channels_last)
        return lambda z: F.conv2d(z, kernels)
    return lambda z: (shares @ z.flatten(1)).view(len(shares), *z.shape[1:]).transpose(1, 2)


class _OverflowError(Exception):
    """A direction alone leaves the floats' range, though its combinations may not."""


def _head(plan: _Plan, vectors: Tensor, x: Samples) -> Head:
    """The first layer of all vectors, on blocks of the samples."""
    if isinstance(x, Sparse):
        sparse = x
        table = Table(plan.first.weight(vectors), plan.first.bias(vectors), x.background)
        return lambda block: table(sparse.block(block))
    dense, first = x, _direct(plan.first, vectors)

    def head(block: slice) -> Tensor:
        h = dense[block]
        for step in plan.before:
            h = layers.apply(step.module, h)
        return first(h)

    return head


def _direct(first: Affine, vectors: Tensor) -> Callable[[Tensor], Tensor]:
    """The first layers of all vectors as one layer, which has the outputs of all."""
    weight = first.weight(vectors).flatten(0, 1)
    bias = first.bias(vectors)
    bias = device.zeros(len(weight)) if bias is None else bias.flatten()
    if isinstance(first.module, nn.Conv2d):
        kernels = weight.contiguous(memory_format=torch.channels_last)
        return lambda h: first.convolve(
            h.contiguous(memory_format=torch.channels_last), kernels, bias
        )
    # Numbers of one sample side by side: rows as long as a block would often be ill-aligned.
    shape = (-1, len(vectors), first.module.out_features)
    return lambda h: torch.addmm(bias, h, weight.t()).view(shape).permute(1, 2, 0)


def _run(
    plan: _Plan,
    head: Head,
    later: Tensor,
    y: Tensor,
    losses: Tensor,
    *,
    loss: Loss,
    apart: bool = True,
) -> None:
    """Fill in the losses of the candidates whose weights after the first layer are `later`."""
    tail = [_stacked(step, later, plan.first.stop) for step in plan.after]

    def fill(block: slice) -> None:
        with torch.no_grad():  # Each thread has a setting of its own.
            h = head(block)
            for layer in tail:
                h = layer(h)
            losses[:, block] = loss.stacked(h, y[block])

    blocks = _blocks(len(y), len(later) * plan.widest)
    if apart:
        parallel.run_all(fill, blocks)
    else:
        for block in blocks:
            fill(block)


def _blocks(samples: int, floats: int) -> list[slice]:
    """The samples in parts whose activations fit the cache: an even number of parts, alike."""
    if samples == 0:
        return []
    size = max(BLOCK_FLOATS // floats, BLOCK_SAMPLES_UNIT)
    pairs = -(-samples // (2 * size))
    unit = 2 * pairs * BLOCK_SAMPLES_UNIT
    size = -(-samples // unit) * BLOCK_SAMPLES_UNIT
    return [slice(start, start + size) for start in range(0, samples, size)]


def _stacked(step: Step, later: Tensor, offset: int) -> Callable[[Tensor], Tensor]:
    """A later layer for all candidates at once; it may overwrite its input."""
    count = len(later)
    if not isinstance(step, Affine):
        if isinstance(step.module, nn.Flatten):
            return lambda h: _columns(h, count) if h.dim() == layers.IMAGE else h
        return lambda h: layers.apply(step.module, h, in_place=True)
    own = replace(step, start=step.start - offset)
    weight, bias = own.weight(later), own.bias(later)
    if isinstance(step.module, nn.Conv2d):
        kernels = weight.flatten(0, 1).contiguous(memory_format=torch.channels_last)
        flat = None if bias is None else bias.flatten()
        return lambda h: step.convolve(h, kernels, flat, groups=count)
    if bias is None:
        return lambda h: torch.bmm(weight, h)
    column = bias.unsqueeze(2)
    return lambda h: torch.baddbmm(column, weight, h)


def _columns(h: Tensor, count: int) -> Tensor:
    """Images of all candidates as (candidates, numbers, samples)."""
    return h.reshape(len(h), count, -1).permute(1, 2, 0)


def _call(
    model: nn.Module, candidates: Tensor, x: Tensor, y: Tensor, losses: Tensor, *, loss: Loss
) -> None:
    """The losses of a model that can only be called as a whole."""
    for candidate, row in zip(candidates, losses, strict=True):
        parameters = vector.unflatten(model, candidate)
        for start in range(0, len(x), BLOCK_SAMPLES_GENERAL):
            block = slice(start, start + BLOCK_SAMPLES_GENERAL)
            logits = vector.call(model, parameters, x[block])
            row[block] = loss.stacked(logits.t().clone().unsqueeze(0), y[block])[0]


def _plan(model: nn.Module, shape: tuple[int, ...]) -> _Plan | None:
    steps = layers.steps(model, shape)
    if steps is None:
        return None
    for i, step in enumerate(steps):
        if isinstance(step, Affine):
            return _Plan(steps[:i], step, steps[i + 1 :])
    return None


def _chunks(count: int, weights: int, widest: int) -> Iterator[slice]:
    """Runs of candidates that fit in memory together."""
    size = max(CHUNK_FLOATS // (weights + widest * BLOCK_SAMPLES_UNIT), 1)
    return (slice(start, start + size) for start in range(0, count, size))


def _check(model: nn.Module, candidates: Tensor, x: Samples, y: Tensor) -> None:
    d = vector.dimension(model)
    if candidates.dim() != 2 or candidates.shape[1] != d:  # noqa: PLR2004
        raise MisuseError(f"candidates are (m, d) with d={d}; got shape {tuple(candidates.shape)}")
    kind = x.values.dtype if isinstance(x, Sparse) else x.dtype
    fits = y.dtype == torch.int64 or (y.dtype == torch.float32 and y.dim() == 2)  # noqa: PLR2004
    if candidates.dtype != torch.float32 or kind != torch.float32 or not fits:
        raise MisuseError(
            f"weights and samples are float32, labels int64; "
            f"got {candidates.dtype}, {kind}, {y.dtype}"
        )
    if len(y) != len(x) or (y.dtype == torch.int64 and y.dim() != 1):
        raise MisuseError(
            f"each of {len(x)} samples needs one label; got labels of shape {tuple(y.shape)}"
        )
