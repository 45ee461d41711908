"""Weights & Biases: a W&B run for each curve, in a group called like the experiment.

Offline, W&B writes files into `wandb/` of the run folder; `wandb sync` sends them later. It cannot
add to such files, so a curve that goes on is a new W&B run, of the rounds from there.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdout.config import Config
from holdout.curve_rows import CurveKey
from holdout.experiments.trackers.numbers import curve_of, is_last, points

if TYPE_CHECKING:
    # Only for their names: the runner is what calls all this.
    from holdout.experiments.runner import Progress, Result

PROJECT = "holdout"


def make_tracker(_config: Config, folder: Path | None) -> "WandbTracker":
    """The tracker of a run."""
    return WandbTracker(folder)


class WandbTracker:
    """Tells Weights & Biases, or writes what it can be told later."""

    def __init__(self, folder: Path | None) -> None:
        self._config: Config
        self._folder = folder
        self._wandb: Any
        self._runs: dict[CurveKey, Any] = {}

    def start(self, config: Config) -> None:
        """Load the package."""
        import wandb

        self._config, self._wandb = config, wandb

    def round(self, progress: "Progress") -> None:
        """Log the round's numbers."""
        record = progress.record
        key = curve_of(record)
        if key not in self._runs:
            self._runs[key] = self._begin(key)
        for step, numbers in points(record):
            self._runs[key].log(numbers, step=step)
        if is_last(record, self._config):
            self._runs.pop(key).finish()

    def finish(self, result: "Result | None") -> None:
        """End what is open; W&B marks what stopped early as failed."""
        while self._runs:
            _, run = self._runs.popitem()
            run.finish(exit_code=0 if result else 1)

    def _begin(self, key: CurveKey) -> Any:
        return self._wandb.init(
            project=PROJECT,
            group=self._config.experiment.name,
            name=key.file_name(),
            config={**self._config.as_dict(), "curve": key._asdict()},
            dir=None if self._folder is None else str(self._folder),
            mode=self._config.track.wandb,
            # Several curves may be open at once.
            reinit="create_new",
            settings=self._wandb.Settings(silent=True, console="off"),
        )
