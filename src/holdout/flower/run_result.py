"""What `start` returns: Flower's `Result`, and how far the run came."""

from dataclasses import dataclass

from flwr.serverapp.strategy import Result

HISTORIES = ("train_metrics_clientapp", "evaluate_metrics_clientapp", "evaluate_metrics_serverapp")
"""The attributes of `Result` that hold metrics by round."""


@dataclass
class RunResult(Result):
    """Flower's `Result`, with the number of rounds that were done and why there are no more.

    `arrays` is the model after the last of them; before the first, the one that was given.
    """

    rounds: int = 0
    """The last round that was done."""
    reason: str = ""
    """Why the run ended before its last round; empty if it did not."""

    def __repr__(self) -> str:
        ended = f"Ended after round {self.rounds}: {self.reason}\n\n" if self.reason else ""
        return ended + super().__repr__()
