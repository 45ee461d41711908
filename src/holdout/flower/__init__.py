"""HoldOut SGD on Flower: a strategy in place of `FedAvg`, and the voter's side of it.

    HoldOut         the vote, as a strategy                                  (strategy)
    Robust          a baseline rule with the same checks of every reply      (strategy)
    vote_mod        lets an ordinary `@app.evaluate()` vote                  (client)
    vote            the fast path: all candidates in one batched evaluation  (client)

Below them:

    base            what both strategies share: a round, and its checks
    long_run        from the first round to the last: what was reached is kept
    drawing         of whom a committee is drawn, and how large it is
    saved_runs      a run on disk, to go on from
    open_round      one round: whom it asked, what they sent, the step
    vote_messages   the vote message and the ballot that answers it
    arrays          a model's arrays <-> one flat vector
    exchange        sending, polling, and matching replies to questions
    pulling         fetching a reply, at a price that is known beforehand
    plain_replies   replies as plain values, whatever was handed over
    complaints      saying so when nothing that comes back can be used
    roster          who is connected, who is silent
    metrics         the metrics that clients report
    recording       Flower's `Result` and the run folder

Flower is imported nowhere else in `holdout`.
"""

try:
    import flwr as _flwr  # noqa: F401  (Only to explain its absence.)
except ModuleNotFoundError as error:  # pragma: no cover
    raise ModuleNotFoundError(
        'holdout.flower needs Flower: pip install "holdout-sgd[flower]"', name=error.name
    ) from error

from holdout.flower.client import VoteMod, vote, vote_mod
from holdout.flower.strategy import HoldOut, Robust

__all__ = ["HoldOut", "Robust", "VoteMod", "vote", "vote_mod"]
