"""HoldOut SGD on Flower: a strategy in place of `FedAvg`, and the voter's side of it.

    HoldOut         the vote, as a strategy                                  (strategy)
    Robust          a baseline rule with the same checks of every reply      (strategy)
    vote_mod        lets an ordinary `@app.evaluate()` vote                  (client)
    vote            the fast path: all candidates in one batched evaluation  (client)

Below them: `records` (what travels, and how it is checked), `exchange` (sending and polling),
`roster` (who is connected, who is silent), `rounds` (what one round knows), `recording` (the run
folder). Flower is imported nowhere else in `holdout`.
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
