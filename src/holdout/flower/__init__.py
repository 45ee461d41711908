"""HoldOut SGD on Flower: a strategy in place of `FedAvg`, and the voter's side of it.

    HoldOut         the vote, as a strategy                                  (strategy)
    Robust          a baseline rule with the same checks of every reply      (robust)
    vote_mod        lets an ordinary `@app.evaluate()` vote                  (client)
    vote            the fast path: all candidates in one batched evaluation  (torch_vote)

Below them:

    base            what both strategies share: a round, and its checks
    long_run        from the first round to the last: what was reached is kept
    drawing         whom a committee is drawn from; committee_sizes: how large it is
    saved_runs      a run on disk, to go on from
    joint           voters' own updates as ballots
    pairs           who opposes whom, over the rounds
    inner           other strategies of Flower inside a vote
    open_round      one round: whom it asked, what they sent, the step
    vote_messages   the vote message and the ballot of approvals that answers it
    arrays          a model's arrays <-> one flat vector
    exchange        sending, polling, and matching replies to questions
    answers         one answer of each node at most, and why the others do not count
    pulling         fetching a reply, at a price that is known beforehand
    plain_replies   replies as plain values, whatever was handed over
    complaints      saying so when nothing that comes back can be used
    roster          who is connected, who is silent
    metrics         the metrics that clients report
    recording       Flower's `Result` (run_result) and the run folder
    arguments       what is wrong with what a user gave

Flower is imported nowhere else in `holdout`. Names are loaded at first use: a client that votes by
`vote_mod` runs without torch.
"""

from typing import TYPE_CHECKING

from holdout import lazy

try:
    import flwr as _flwr  # noqa: F401  (Only to explain its absence.)
except ModuleNotFoundError as error:  # pragma: no cover
    raise ModuleNotFoundError(
        'holdout.flower needs Flower: pip install "holdout-sgd[flower]"', name=error.name
    ) from error

if TYPE_CHECKING:
    from holdout.flower.client import VoteMod, vote_mod
    from holdout.flower.robust import Robust
    from holdout.flower.strategy import HoldOut
    from holdout.flower.torch_vote import vote
else:
    __getattr__, __dir__ = lazy.attributes(
        __name__,
        {
            "holdout.flower.client": ("VoteMod", "vote_mod"),
            "holdout.flower.robust": ("Robust",),
            "holdout.flower.strategy": ("HoldOut",),
            "holdout.flower.torch_vote": ("vote",),
        },
    )

__all__ = ["HoldOut", "Robust", "VoteMod", "vote", "vote_mod"]
