"""The voter's side: how a client answers "which of these candidates do well on your data?".

Two ways. `vote_mod` calls the client's own `@app.evaluate()` once for the current model and once
for each candidate, whatever the framework. `vote` scores them all in one batched evaluation with
cross-entropy, for a torch classifier. Either way the client casts its ballot itself, by the terms
that the message states; losses never leave it.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from flwr.app import Context, Message, MetricRecord, RecordDict
from torch import Tensor, nn

from holdout.data.datasets import Shard
from holdout.errors import ModelError, UserError
from holdout.flower.records import Layout, VoteCall, ballot_content, is_vote
from holdout.ids import RoundNumber, WorkerId
from holdout.learning import scoring
from holdout.workers import HonestWorker, Recipe

ClientFunction = Callable[[Message, Context], Message]

LOSS_ENDING = "loss"


@dataclass(frozen=True, slots=True)
class VoteMod:
    """A Flower mod that turns the client's evaluation into a vote; other messages pass through.

    The evaluation gets the candidate as any model is sent to it. If it can limit the samples it
    uses, it should do so by `holdout-samples` in its config (0: no limit).
    """

    loss_key: str | None = None
    """The metric to go by; None: the only one whose name ends with "loss"."""

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
        return Message(ballot_content(call.cast(losses)), reply_to=message)

    def _loss(self, reply: Message) -> float:
        if reply.has_error():
            raise UserError(f"the evaluation of a candidate failed: {reply.error.reason}")
        value = find_metric(reply.content, self.loss_key, (LOSS_ENDING,))
        if value is None:
            wanted = repr(self.loss_key) if self.loss_key else 'one whose name ends with "loss"'
            raise UserError(
                f"vote_mod needs a single metric to judge candidates by, {wanted}; got "
                f"{[list(record) for record in reply.content.metric_records.values()]}"
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
) -> Message:
    """Answer a vote message in one batched evaluation of a torch classifier.

    Args:
        message: What `@app.evaluate("vote")` got.
        model: Gives logits; it must know nothing beside its parameters (no batch norm).
        x: The client's holdout samples, float32.
        y: Their labels, int64.
        seed: With the round, decides which `holdout_samples` of them judge.
        worker_id: The same for the client; None: the node's id.
    """
    call = VoteCall.read(message)
    order = _columns(call.layout, model)
    candidates = call.stacked if order is None else call.stacked[:, order].contiguous()
    worker = message.metadata.dst_node_id if worker_id is None else worker_id
    recipe = Recipe(1, 1, call.holdout_samples or len(x))
    shard = Shard(x, y, torch.arange(len(x)))
    # Drawn as every worker draws them.
    rows = HonestWorker(WorkerId(worker), model, shard, recipe, seed).holdout_rows(
        RoundNumber(call.round)
    )
    was_training = model.training
    model.eval()
    try:
        losses = scoring.sample_losses(model, candidates, x[rows], y[rows])
    finally:
        model.train(was_training)
    means = losses.mean(dim=1, dtype=torch.float64).tolist()
    return Message(ballot_content(call.cast(means)), reply_to=message)


def find_metric(content: RecordDict, key: str | None, endings: Sequence[str]) -> float | None:
    """The metric of this name, or the only number whose name ends so; None if there is none."""
    found = [
        value
        for record in content.metric_records.values()
        for name, value in _numbers(record).items()
        if (name == key if key is not None else name.lower().endswith(tuple(endings)))
    ]
    return found[0] if len(found) == 1 else None


def _numbers(record: MetricRecord) -> dict[str, float]:
    return {name: float(value) for name, value in record.items() if not isinstance(value, list)}


def _evaluation(message: Message, call: VoteCall, row: Tensor) -> Message:
    """What an ordinary evaluation message with this candidate would look like."""
    content = RecordDict(
        {call.array_key: call.layout.fill(row, call.others), call.config_key: call.config.copy()}
    )
    # The way with metadata is there, but not among the overloads.
    return Message(metadata=message.metadata, content=content)  # type: ignore[call-overload,no-any-return]


def _columns(layout: Layout, model: nn.Module) -> Tensor | None:
    """The order of the model's weights in the message's vectors; None: they are the same."""
    if next(model.buffers(), None) is not None:
        raise ModelError(
            "vote() needs a model that knows nothing beside its parameters; this one has buffers "
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
    ends = torch.tensor([math.prod(shape) for _, shape in sent]).cumsum(0).tolist()
    spans = {
        name: torch.arange(end - math.prod(shape), end)
        for (name, shape), end in zip(sent, ends, strict=True)
    }
    return torch.cat([spans[name] for name in own])
