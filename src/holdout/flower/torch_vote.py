"""A voter's side for torch models: all candidates in one batched evaluation."""

import math

import torch
from flwr.app import Message
from torch import Tensor, nn

from holdout import device
from holdout.data.datasets import Shard
from holdout.errors import ModelError
from holdout.flower.arrays import Layout
from holdout.flower.vote_messages import VoteCall
from holdout.ids import RoundNumber, WorkerId
from holdout.learning import scoring
from holdout.learning.losses import find_loss
from holdout.workers import HonestWorker, Recipe


def vote(
    message: Message,
    *,
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    seed: int = 0,
    worker_id: int | None = None,
    loss: str = "cross-entropy",
) -> Message:
    """Answer a vote message in one batched evaluation of a torch model.

    Args:
        message: What `@app.evaluate("vote")` got.
        model: Returns logits; its parameters must be all its state (no batch norm).
        x: The client's holdout samples, float32.
        y: Their labels, int64, or real-valued targets, (n, k) of float32.
        seed: With the round and `worker_id`, decides which `holdout_samples` of them are used.
        worker_id: The client's number in that draw; by default the node's id.
        loss: What it judges by, as `training.loss` names it: cross-entropy, mse or custom code.

    Example:
        >>> from flwr.clientapp import ClientApp
        >>> app, model = ClientApp(), nn.Linear(4, 2)
        >>> x, y = torch.randn(20, 4), torch.randint(2, (20,))
        >>> @app.evaluate("vote")
        ... def judge(message, context):
        ...     return vote(message, model=model, x=x, y=y)
    """
    call = VoteCall.read(message)
    order = _columns(call.layout, model)
    # Writable, as torch wants it.
    stacked = device.from_numpy(call.stacked.copy())
    candidates = stacked if order is None else stacked[:, order].contiguous()
    worker = message.metadata.dst_node_id if worker_id is None else worker_id
    recipe = Recipe(1, 1, call.holdout_samples or len(x), loss=find_loss(loss))
    shard = Shard(x, y, device.arange(len(x)))
    # The samples are drawn as every worker draws them.
    rows = HonestWorker(WorkerId(worker), model, shard, recipe, seed).holdout_rows(
        RoundNumber(call.round)
    )
    was_training = model.training
    model.eval()
    try:
        losses = scoring.sample_losses(model, candidates, x[rows], y[rows], loss=recipe.loss)
    finally:
        model.train(was_training)
    means = losses.mean(dim=1, dtype=torch.float64).tolist()
    return Message(call.ballot(means), reply_to=message)


def _columns(layout: Layout, model: nn.Module) -> Tensor | None:
    """Where the model's weights are in the message's vectors; None: in the same order."""
    if next(model.buffers(), None) is not None:
        raise ModelError(
            "vote() needs a model whose parameters are all its state; this one has buffers "
            "(batch norm?). Use vote_mod"
        )
    own = {name: tuple(part.shape) for name, part in model.named_parameters()}
    sent = [(name, shape) for name, shape, _ in layout.trained]
    # Weights that travel as a plain list are named by their place.
    unnamed = [name for name, _ in sent] == [str(place) for place in range(len(sent))]
    if unnamed and [shape for _, shape in sent] == list(own.values()):
        return None
    if dict(sent) != own:
        raise ModelError(
            f"the model's parameters do not fit the candidates; the model has {own}, the "
            f"candidates have {dict(sent)}"
        )
    if [name for name, _ in sent] == list(own):
        return None
    ends = device.tensor([math.prod(shape) for _, shape in sent]).cumsum(0).tolist()
    spans = {
        name: device.arange(end - math.prod(shape), end)
        for (name, shape), end in zip(sent, ends, strict=True)
    }
    return torch.cat([spans[name] for name in own])
