"""The voter's side: how a client answers "which of these candidates do well on your data?".

There are two ways. `vote_mod` calls the client's `@app.evaluate()` once for the current model and
once for each candidate, whatever the framework. `vote` scores all of them in one batched evaluation
for a torch model. Either way the client itself casts the ballot, by the
terms that the message states; losses never leave it.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from flwr.app import Context, Message, RecordDict
from torch import Tensor, nn

from holdout import device
from holdout.data.datasets import Shard
from holdout.errors import ModelError, UserError
from holdout.flower.arrays import Layout
from holdout.flower.metrics import LOSS_ENDING, find_metric
from holdout.flower.vote_messages import VoteCall, is_vote
from holdout.ids import RoundNumber, WorkerId
from holdout.learning import scoring
from holdout.learning.losses import find_loss
from holdout.workers import HonestWorker, Recipe

ClientFunction = Callable[[Message, Context], Message]


@dataclass(frozen=True, slots=True)
class VoteMod:
    """A Flower mod that turns the client's evaluation into a vote; other messages pass through.

    The evaluation gets each candidate as it gets any model. If it can limit the samples it uses, it
    should do so by `holdout-samples` in its config (0: no limit).

    Example:
        >>> from flwr.clientapp import ClientApp
        >>> app = ClientApp(mods=[VoteMod(loss_key="eval_loss")])
    """

    loss_key: str | None = None
    """The metric to judge by; None: the only one whose name ends with "loss"."""

    def __call__(self, message: Message, context: Context, call_next: ClientFunction) -> Message:
        """Vote if the message asks for it."""
        if not is_vote(message):
            return call_next(message, context)
        call = VoteCall.read(message)
        call.config["server-round"] = call.round
        call.config["holdout-samples"] = call.holdout_samples or 0
        losses = [
            self._loss(call_next(_evaluation(message, call, row), context)) for row in call.stacked
        ]
        return Message(call.ballot(losses), reply_to=message)

    def _loss(self, reply: Message) -> float:
        if reply.has_error():
            raise UserError(f"the evaluation of a candidate failed: {reply.error.reason}")
        records = reply.content.metric_records.values()
        value = find_metric(records, self.loss_key, [LOSS_ENDING])
        if value is None:
            wanted = repr(self.loss_key) if self.loss_key else 'one whose name ends with "loss"'
            raise UserError(
                f"vote_mod needs a single metric to judge candidates by, {wanted}; "
                f"the evaluation returned {[list(record) for record in records]}"
            )
        return value


vote_mod = VoteMod()
"""`ClientApp(mods=[vote_mod])` is all that a client with an ordinary `@app.evaluate()` needs."""


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
    candidates = call.stacked if order is None else call.stacked[:, order].contiguous()
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


def _evaluation(message: Message, call: VoteCall, row: Tensor) -> Message:
    """The ordinary evaluation message for one candidate."""
    content = RecordDict(
        {call.array_key: call.layout.fill(row, call.others), call.config_key: call.config.copy()}
    )
    # `Message` takes metadata, but its overloads do not say so.
    return Message(metadata=message.metadata, content=content)  # type: ignore[call-overload,no-any-return]


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
