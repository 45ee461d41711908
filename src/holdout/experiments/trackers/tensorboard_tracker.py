"""TensorBoard: an event file for each curve, in a folder that is called like the curve.

The writer is torch's own; the package `tensorboard`, which it needs, is also what shows the files:
`tensorboard --logdir runs/demo/tensorboard`.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdout.config import Config
from holdout.curve_rows import CurveKey
from holdout.experiments.trackers.numbers import curve_of, is_last, points
from holdout.rounds import RoundRecord

if TYPE_CHECKING:
    # Only for their names: the runner is what calls all this.
    from holdout.experiments.runner import Progress, Result

FOLDER = "tensorboard"


def make_tracker(config: Config, folder: Path | None) -> "TensorBoardTracker":
    """The tracker of a run."""
    place = config.track.tensorboard
    return TensorBoardTracker(Path(place) if isinstance(place, str) else _below(folder))


def _below(folder: Path | None) -> Path:
    return (folder or Path()) / FOLDER


class TensorBoardTracker:
    """Writes event files below a folder."""

    def __init__(self, folder: Path) -> None:
        self._config: Config
        self._folder = folder
        self._make_writer: Callable[..., Any]
        self._writers: dict[CurveKey, Any] = {}

    def start(self, config: Config) -> None:
        """See that the writer is there."""
        from torch.utils.tensorboard import SummaryWriter

        self._config, self._make_writer = config, SummaryWriter

    def round(self, progress: "Progress") -> None:
        """Add the round's numbers to its curve's file."""
        record = progress.record
        key = curve_of(record)
        if key not in self._writers:
            self._writers[key] = self._open(key, record)
        writer = self._writers[key]
        for step, numbers in points(record):
            for name, value in numbers.items():
                writer.add_scalar(name, value, step)
        if record.is_evaluated:
            writer.flush()
        if is_last(record, self._config):
            self._writers.pop(key).close()

    def finish(self, result: "Result | None") -> None:  # noqa: ARG002
        """Close what is open."""
        while self._writers:
            _, writer = self._writers.popitem()
            writer.close()

    def _open(self, key: CurveKey, record: RoundRecord) -> Any:
        # A resumed curve may do rounds again: what an earlier file says of them is out of date.
        first = points(record)[0][0]
        writer = self._make_writer(str(self._folder / key.file_name()), purge_step=first)
        writer.add_text("config", f"```toml\n{self._config.as_toml()}```", first)
        return writer
