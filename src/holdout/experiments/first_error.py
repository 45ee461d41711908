"""What custom code raised first: kept in the run folder, and told at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from holdout.curve_rows import count_errors
from holdout.errors import PluginError, UserError
from holdout.experiments.report import ERROR, error_text, read_error
from holdout.results import RunFolder, to_json
from holdout.tracebacks import failure_of, place_of

if TYPE_CHECKING:
    # Only for their names: the runner is what calls all this.
    from holdout.experiments.runner import Progress, Watch


class FirstError:
    """A watch that keeps what custom code raised first, and tells it at once."""

    def __init__(
        self,
        folder: RunFolder | None,
        say: Callable[[str], None] | None,
        watch: Watch,
        done: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        self.folder, self._say, self._watch = folder, say, watch
        self.found: Mapping[str, Any] | None = None
        # What stopped a run, or was raised in rounds that are done again, is no longer true.
        if folder is not None and count_errors(done):
            self.found = read_error(folder.path)
        elif folder is not None:
            (folder.path / ERROR).unlink(missing_ok=True)

    def __call__(self, progress: Progress) -> None:
        """Look at what custom code raised in the round, and hand the progress on."""
        record = progress.record
        if self.found is None and record.custom_errors:
            failure = record.custom_errors[0]
            where = {key: getattr(record, key) for key in ("rule", "attack", "seed", "round")}
            self._keep({**where, "error": str(failure), "traceback": failure.traceback or None})
            if self._say is not None:
                self._say(f"{self.text}\n{failure.traceback}".rstrip())
        self._watch(progress)

    def stopped_by(self, error: UserError) -> None:
        """Keep what custom code raised that ends the run."""
        told = error.traceback if isinstance(error, PluginError) else None
        cause = error.__cause__
        if told is None and cause is not None and place_of(cause) is not None:
            told = failure_of("run", "", cause).traceback
        if self.found is None or told is not None:
            self._keep({"error": str(error), "traceback": told})

    @property
    def text(self) -> str:
        """What was raised, and in which round, in one line."""
        return error_text(self.found) if self.found else ""

    def _keep(self, found: Mapping[str, Any]) -> None:
        self.found = found
        if self.folder is not None:
            self.folder.write(ERROR, to_json(found, indent=1) + "\n")
