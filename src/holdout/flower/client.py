"""A voter's side where ballots are approvals: "which of these candidates do well on your data?".

`vote_mod` calls the client's `@app.evaluate()` once for the current model and once for each
candidate, whatever the framework; `torch_vote` is faster for a torch model. Either way the client
itself casts the ballot, by the terms that the message states; losses never leave it.

Nothing here needs torch. With joint ballots a client needs nothing of this package.
"""

from collections.abc import Callable
from dataclasses import dataclass

from flwr.app import Context, Message, RecordDict

from holdout.errors import UserError
from holdout.flower.arrays import Numbers
from holdout.flower.metrics import LOSS_ENDING, find_metric
from holdout.flower.vote_messages import VoteCall, is_vote

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


def _evaluation(message: Message, call: VoteCall, row: Numbers) -> Message:
    """The ordinary evaluation message for one candidate."""
    content = RecordDict(
        {
            call.array_key: call.layout.fill_numbers(row, call.others),
            call.config_key: call.config.copy(),
        }
    )
    # `Message` takes metadata, but its overloads do not say so.
    return Message(metadata=message.metadata, content=content)  # type: ignore[call-overload,no-any-return]
