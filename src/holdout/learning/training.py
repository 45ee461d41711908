"""Gradients of workers' batches, the update after several local steps, and the test of a model.

Many workers' gradients at the same weights are one call, `gradients`: a layered model then shares
the passes between batches; any other model is differentiated batch by batch. The outcome is the
same to rounding.
"""

from collections.abc import Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from queue import SimpleQueue

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from holdout import device, parallel
from holdout.errors import MisuseError
from holdout.learning import layers, vector
from holdout.learning.layers import Affine, Step
from holdout.learning.losses import CROSS_ENTROPY, Loss

Batch = tuple[Tensor, Tensor]

# Samples per pass, which bounds memory. A convolution's gradient is slower below about 128.
EVALUATION_BLOCK = 500
IMAGE_BLOCK = 256

GROUP = 15
"""Batches that share passes: half of the paper's proposers. Fewer would share less, more would keep
other threads waiting. It does not depend on the number of threads, so neither does the outcome."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """How a model does on samples with known targets.

    >>> Evaluation(accuracy=0.5, loss=1.2, class_recall=(1.0, 0.0)).accuracy
    0.5
    """

    accuracy: float | None
    """The share of the samples that is recognised; None where targets are real-valued."""
    loss: float
    """The mean loss."""
    class_recall: tuple[float, ...]
    """The share of each class that is recognised; empty where targets are real-valued."""
    r2: float | None = None
    """For real-valued targets: the share of their variance that the model explains, 1 at best; the
    mean over targets, where one that does not vary is left out."""
    mae: float | None = None
    """For real-valued targets: the mean absolute error."""


def gradients(
    model: nn.Module, weights: Tensor, batches: Sequence[Batch], *, loss: Loss = CROSS_ENTROPY
) -> Tensor:
    """The gradient of each batch's mean loss at the same weights, (n, d)."""
    d = vector.dimension(model)
    if weights.shape != (d,):
        raise MisuseError(f"weights are (d,) with d={d}; got shape {tuple(weights.shape)}")
    if any(len(y) == 0 or len(x) != len(y) for x, y in batches):
        raise MisuseError("a batch needs at least one sample, and a label for each of them")
    weights = weights.detach()
    rows = device.empty(len(batches), d)
    if not batches:
        return rows
    steps = layers.steps(model, tuple(batches[0][0].shape[1:]))
    if steps is None:
        _call_gradients(model, weights, batches, rows, loss)
    elif any(isinstance(step.module, nn.Conv2d) for step in steps):
        _image_gradients(steps, weights, batches, rows, loss)
    else:
        _flat_gradients(steps, weights, batches, rows, loss)
    return rows


def local_update(
    model: nn.Module,
    weights: Tensor,
    batches: Sequence[Batch],
    *,
    learning_rate: float,
    loss: Loss = CROSS_ENTROPY,
    weight_decay: float = 0.0,
) -> Tensor:
    """The pseudo-gradient (w - w_local) / learning_rate of SGD over the batches in order."""
    if not batches:
        raise MisuseError("a local update needs at least one batch; got none")

    def slope(local: Tensor, batch: Batch) -> Tensor:
        return decayed(gradients(model, local, [batch], loss=loss)[0], local, weight_decay)

    if len(batches) == 1:
        return slope(weights, batches[0])
    local = weights
    for batch in batches:
        local = local - learning_rate * slope(local, batch)
    return (weights - local) / learning_rate


def decayed(gradients: Tensor, weights: Tensor, weight_decay: float) -> Tensor:
    """The gradients of the loss + weight_decay / 2 * |w|^2, from those of the loss.

    >>> decayed(torch.tensor([1.0, 1.0]), torch.tensor([10.0, -10.0]), 0.1)
    tensor([2., 0.])
    """
    return gradients + weight_decay * weights if weight_decay else gradients


def evaluate(
    model: nn.Module, weights: Tensor, x: Tensor, y: Tensor, *, loss: Loss = CROSS_ENTROPY
) -> Evaluation:
    """The mean loss with, for labels, accuracy and recall; for real-valued targets, R2 and MAE.

    Args:
        model: Says how weights are used.
        weights: The weights to judge, (d,).
        x: Samples.
        y: Their labels, (n,) of int64, or their targets, (n, k) of float32.
        loss: What training lowers.

    >>> model, x, y = nn.Linear(1, 2), torch.tensor([[-1.0], [1.0]]), torch.tensor([0, 1])
    >>> evaluate(model, torch.tensor([-1.0, 1.0, 0.0, 0.0]), x, y).accuracy
    1.0
    """
    if len(x) == 0:
        raise MisuseError("an evaluation needs at least one sample; got none")
    with torch.no_grad():
        logits = _logits(model, weights, x)
        mean = loss(logits, y).item()
        if y.is_floating_point():
            return _regression(logits.double(), y.double(), mean)
        right = (logits.argmax(1) == y) & logits.isfinite().all(1)
    classes = logits.shape[1]
    recognised = torch.bincount(y[right], minlength=classes).double()
    present = torch.bincount(y, minlength=classes).double()
    return Evaluation(
        accuracy=right.double().mean().item(),
        loss=mean,
        class_recall=tuple((recognised / present).tolist()),
    )


def _regression(outputs: Tensor, y: Tensor, loss: float) -> Evaluation:
    missed = (outputs - y).square().sum(0)
    spread = (y - y.mean(0)).square().sum(0)
    varies = spread > 0
    explained = (1 - missed / spread)[varies]
    return Evaluation(
        accuracy=None,
        loss=loss,
        class_recall=(),
        r2=explained.mean().item() if bool(varies.any()) else None,
        mae=(outputs - y).abs().mean().item(),
    )


def share_taken_for(model: nn.Module, weights: Tensor, x: Tensor, label: int) -> float:
    """The share of the samples that the model takes for this class.

    >>> model, x = nn.Linear(1, 2), torch.tensor([[-1.0], [1.0], [2.0]])
    >>> round(share_taken_for(model, torch.tensor([-1.0, 1.0, 0.0, 0.0]), x, 1), 3)
    0.667
    """
    with torch.no_grad():
        logits = _logits(model, weights, x)
    taken = (logits.argmax(1) == label) & logits.isfinite().all(1)
    return taken.double().mean().item()


def _logits(model: nn.Module, weights: Tensor, x: Tensor) -> Tensor:
    parameters = vector.unflatten(model, weights)
    return torch.cat(
        [vector.call(model, parameters, block) for block in torch.split(x, EVALUATION_BLOCK)]
    )


def _call_gradients(
    model: nn.Module, weights: Tensor, batches: Sequence[Batch], rows: Tensor, loss: Loss
) -> None:
    """The gradients of a model that can only be called as a whole, each on one thread."""
    idle = _copies(model, min(torch.get_num_threads(), len(batches)))

    def fill(place: int) -> None:
        (x, y), row, own = batches[place], rows[place], idle.get()
        try:
            leaf = weights.clone().requires_grad_()
            with torch.enable_grad():
                logits = vector.call(own, vector.unflatten(own, leaf), x)
                (row[:],) = torch.autograd.grad(loss(logits, y), leaf)
        finally:
            idle.put(own)

    parallel.run_all(fill, range(len(batches)))


def _copies(model: nn.Module, count: int) -> SimpleQueue[nn.Module]:
    """A model for each thread, since a call puts its weights into the model for as long as it runs.

    They share the weights that they were made with, which no call uses. A model that cannot be
    copied is used by one thread at a time.
    """
    copies: SimpleQueue[nn.Module] = SimpleQueue()
    copies.put(model)
    for _ in range(count - 1):
        with suppress(Exception):
            copies.put(deepcopy(model, {id(own): own for own in model.parameters()}))
    return copies


def _flat_gradients(
    steps: Sequence[Step], weights: Tensor, batches: Sequence[Batch], rows: Tensor, loss: Loss
) -> None:
    """Group by group, each on one thread: torch's own threads speed up no such small product."""
    groups = [slice(start, start + GROUP) for start in range(0, len(batches), GROUP)]
    parallel.run_all(
        lambda group: _joint_gradients(steps, weights, batches[group], rows[group], loss), groups
    )


def _joint_gradients(
    steps: Sequence[Step], weights: Tensor, batches: Sequence[Batch], rows: Tensor, loss: Loss
) -> None:
    """All batches forward and back together; then a product for each batch and linear layer.

    Autograd gives the loss's gradient at each layer's output; a batch's rows of it, times its rows
    of the layer's input, is the gradient of that batch's weights.
    """
    sizes = [len(y) for _, y in batches]
    labels = torch.cat([y for _, y in batches])
    share = torch.cat([device.full((size,), 1 / size) for size in sizes])
    inputs: list[tuple[Affine, Sequence[Tensor]]] = []
    outputs: list[Tensor] = []
    # Until the first weights the batches stay apart: joining them would copy all samples.
    hs: Sequence[Tensor] = [x for x, _ in batches]
    with torch.enable_grad():
        for step in steps:
            if isinstance(step, Affine):
                inputs.append((step, [h.detach() for h in hs]))
                (weight,), bias = step.weight(weights[None]), step.bias(weights[None])
                h = torch.cat([F.linear(h, weight, None if bias is None else bias[0]) for h in hs])
                outputs.append(h if h.requires_grad else h.requires_grad_())
                hs = [h]
            else:
                hs = [layers.apply(step.module, h) for h in hs]
        losses = loss(hs[0], labels, "none")
        slopes = torch.autograd.grad(losses @ share, outputs)
    for (step, pieces), slope in zip(inputs, slopes, strict=True):
        apart = pieces if len(pieces) == len(sizes) else torch.split(pieces[0], sizes)
        for row, h, g in zip(rows, apart, torch.split(slope, sizes), strict=True):
            torch.mm(g.t(), h, out=row[step.start : step.middle].view(step.module.weight.shape))
            if step.module.bias is not None:
                torch.sum(g, 0, out=row[step.middle : step.stop])


def _image_gradients(
    steps: Sequence[Step], weights: Tensor, batches: Sequence[Batch], rows: Tensor, loss: Loss
) -> None:
    """Batch by batch: at these sizes a convolution gains nothing from more images at once.

    A thread takes whole batches, so that the outcome does not depend on how many threads there are.
    """
    spans = [span for step in steps if isinstance(step, Affine) for span in step.spans()]
    rows.zero_()

    def fill(place: int) -> None:
        (x, y), row = batches[place], rows[place]
        leaves = [weights[span].view(shape).requires_grad_() for span, shape in spans]
        for images, labels in zip(
            torch.split(x, IMAGE_BLOCK), torch.split(y, IMAGE_BLOCK), strict=True
        ):
            with torch.enable_grad():
                logits = layers.forward(steps, leaves, images)
                share = loss(logits, labels, "sum") / len(y)
                slopes = torch.autograd.grad(share, leaves)
            for (span, shape), slope in zip(spans, slopes, strict=True):
                row[span].view(shape).add_(slope)

    parallel.run_all(fill, range(len(batches)))
