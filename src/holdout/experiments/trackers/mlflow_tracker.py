"""MLflow: an MLflow run for each curve, in the MLflow experiment called like ours.

A curve that goes on goes on in the MLflow run it began in.
"""

import hashlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdout.config import Config
from holdout.curve_rows import CurveKey
from holdout.experiments.trackers.numbers import curve_of, flat_config, is_last, points
from holdout.rounds import RoundRecord

if TYPE_CHECKING:
    # Only for their names: the runner is what calls all this.
    from holdout.experiments.runner import Progress, Result

ID_TAG = "holdout.curve_id"
ALWAYS = "seconds"
"""A number that every round has."""
PARAMETER_CHARACTERS_MAX = 500
RETRIES = "MLFLOW_HTTP_REQUEST_MAX_RETRIES"
"""By this MLflow knows how often to ask again; it reads it at each request."""


def make_tracker(config: Config, folder: Path | None) -> "MlflowTracker":
    """The tracker of a run."""
    place = config.track.mlflow
    return MlflowTracker(folder, uri=place if isinstance(place, str) else None)


@contextmanager
def few_attempts() -> Iterator[None]:
    """Wait for a server that does not answer for seconds, not for minutes as MLflow would."""
    if RETRIES in os.environ:  # The user has said how often.
        yield
        return
    os.environ[RETRIES] = "2"
    try:
        yield
    finally:
        del os.environ[RETRIES]


class MlflowTracker:
    """Tells an MLflow server or database."""

    def __init__(self, folder: Path | None, *, uri: str | None) -> None:
        self._config: Config
        self._folder = folder
        self._uri = uri
        self._client: Any = None
        self._experiment = ""
        self._runs: dict[CurveKey, tuple[str, int]] = {}
        """The id of each curve's MLflow run, and the last step that it held before."""

    def start(self, config: Config) -> None:
        """Find or make the MLflow experiment."""
        from mlflow import MlflowClient

        self._config, self._client = config, MlflowClient(tracking_uri=self._uri)
        name = config.experiment.name
        with few_attempts():
            known = self._client.get_experiment_by_name(name)
            found = known.experiment_id if known else self._client.create_experiment(name)
        self._experiment = found

    def round(self, progress: "Progress") -> None:
        """Log the round's numbers."""
        from mlflow.entities import Metric

        record = progress.record
        key = curve_of(record)
        if key not in self._runs:
            self._runs[key] = self._open(key, record)
        run_id, last = self._runs[key]
        now = int(1000 * time.time())
        metrics = [
            Metric(name, value, now, step)
            for step, numbers in points(record)
            if step > last
            for name, value in numbers.items()
        ]
        if metrics:
            self._client.log_batch(run_id, metrics=metrics)
        if is_last(record, self._config):
            self._client.set_terminated(run_id)
            del self._runs[key]

    def finish(self, result: "Result | None") -> None:
        """End what is open."""
        while self._runs:
            _, (run_id, _) = self._runs.popitem()
            self._client.set_terminated(run_id, "FINISHED" if result else "KILLED")

    def _open(self, key: CurveKey, record: RoundRecord) -> tuple[str, int]:
        known = self._find(key) if record.round > 1 else None
        if known is not None:
            self._client.update_run(known, status="RUNNING")
            done = self._client.get_metric_history(known, ALWAYS)
            return known, max((metric.step for metric in done), default=-1)
        return self._begin(key), -1

    def _find(self, key: CurveKey) -> str | None:
        """The newest MLflow run of this curve, of a run in the same folder."""
        found = self._client.search_runs(
            [self._experiment],
            f"tags.`{ID_TAG}` = '{self._id(key)}'",
            order_by=["attributes.start_time DESC"],
            max_results=1,
        )
        return str(found[0].info.run_id) if found else None

    def _begin(self, key: CurveKey) -> str:
        from mlflow.entities import Param

        tags = {"holdout.rule": key.rule, "holdout.attack": key.attack, ID_TAG: self._id(key)}
        run = self._client.create_run(
            self._experiment, run_name=key.file_name(), tags={**tags, "holdout.seed": str(key.seed)}
        )
        parameters = [
            Param(name, value[:PARAMETER_CHARACTERS_MAX])
            for name, value in flat_config(self._config).items()
        ]
        self._client.log_batch(run.info.run_id, params=parameters)
        return str(run.info.run_id)

    def _id(self, key: CurveKey) -> str:
        where = str(self._folder.resolve()) if self._folder else ""
        return hashlib.sha256(f"{where}\n{key.file_name()}".encode()).hexdigest()
