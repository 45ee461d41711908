"""What a federation did, round by round: into Flower's `Result`, and into a run folder.

A round's line is written when all of it is known: the accuracy comes from the evaluation that
Flower runs after the step. `holdout report` draws the folder like any other.
"""

import platform
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
import torch
from flwr.app import MetricRecord, RecordDict

import holdout
from holdout import results
from holdout.flower.client import LOSS_ENDING, find_metric
from holdout.results import RunFolder
from holdout.rounds import RoundRecord

ACCURACY_ENDINGS = ("accuracy", "acc")
NODES = "nodes.json"
PREFIX = "holdout-"


@dataclass(frozen=True, slots=True)
class Seconds:
    """What the phases of a round took."""

    wait: float = 0.0
    """For enough nodes to be connected."""
    propose: float = 0.0
    vote: float = 0.0
    decide: float = 0.0
    """Checking, bounding, counting, averaging."""

    @property
    def all(self) -> float:
        """Of the round but for evaluation."""
        return self.wait + self.propose + self.vote + self.decide


@dataclass(frozen=True, slots=True)
class RoundReport:
    """A round's record, and what only a real federation has to say about it."""

    record: RoundRecord
    accepted: int
    """Valid proposals."""
    ballots: int
    """Valid ballots."""
    left_out: int
    """Nodes that were not drawn because they had been silent."""
    seconds: Seconds

    def metrics(self) -> MetricRecord:
        """For Flower's `Result`: numbers only."""
        record, seconds = self.record, self.seconds
        numbers: dict[str, int | float] = {
            "step": int(record.outcome in results.MOVED),
            "proposals-accepted": self.accepted,
            "proposals-rejected": sum(record.rejected_proposals.values()),
        }
        if record.ballots is not None:
            numbers["ballots-accepted"] = self.ballots
            numbers["ballots-rejected"] = sum(record.rejected_ballots.values())
            numbers["union-consensus"] = len(record.selection or ())
        for what, counts in (
            ("proposals", record.rejected_proposals),
            ("ballots", record.rejected_ballots),
        ):
            numbers |= {f"{what}-rejected-{reason}": count for reason, count in counts.items()}
        numbers["nodes-left-out"] = self.left_out
        numbers |= {
            "seconds-wait": seconds.wait,
            "seconds-propose": seconds.propose,
            "seconds-vote": seconds.vote,
            "seconds-decide": seconds.decide,
        }
        return MetricRecord({PREFIX + name: number for name, number in numbers.items()})

    def line(self) -> dict[str, Any]:
        """For `results.jsonl`."""
        seconds = {
            "wait": round(self.seconds.wait, 6),
            "propose": round(self.seconds.propose, 6),
            "vote": round(self.seconds.vote, 6),
            "decide": round(self.seconds.decide, 6),
        }
        return {**self.record.as_dict(), "left_out": self.left_out, "phase_seconds": seconds}

    def evaluated(self, metrics: MetricRecord | None) -> "RoundReport":
        """With the accuracy and loss that an evaluation gave, where they can be told."""
        if metrics is None:
            return self
        content = RecordDict({"metrics": metrics})
        accuracy = find_metric(content, None, ACCURACY_ENDINGS)
        loss = find_metric(content, None, (LOSS_ENDING,))
        return replace(self, record=replace(self.record, accuracy=accuracy, loss=loss))


@dataclass(slots=True)
class Recorder:
    """Keeps the last round's report until its evaluation is over, then writes its line."""

    folder: RunFolder | None = None
    lines: list[Mapping[str, Any]] = field(default_factory=list)
    _last: RoundReport | None = None
    _central: bool = False

    def add(self, report: RoundReport) -> None:
        """A round was decided."""
        self.flush()
        self._last, self._central = report, False

    def evaluated(self, metrics: MetricRecord | None, *, central: bool) -> None:
        """The model after the last round was evaluated; what the server measured counts more."""
        if self._last is None or (self._central and not central):
            return
        self._last, self._central = self._last.evaluated(metrics), central

    def flush(self) -> None:
        """Write the last round's line, if it is not written yet."""
        if self._last is None:
            return
        line = self._last.line()
        self._last = None
        self.lines.append(results.jsonable(line))
        if self.folder is not None:
            self.folder.append(line)


@contextmanager
def recording(
    path: Path | str | None, config: Mapping[str, Any], numbers: Mapping[int, int]
) -> Iterator[Recorder]:
    """A recorder for one run; with a path, into a new run folder.

    `numbers` (node id -> number) may still grow; it is written at the end, as `nodes.json`.
    """
    with ExitStack() as stack:
        recorder = Recorder()
        if path is not None:
            recorder.folder = stack.enter_context(results.create(Path(path), tomli_w.dumps(config)))
        try:
            yield recorder
        finally:
            recorder.flush()
            if recorder.folder is not None:
                # Text, since a node's id has more digits than many readers of JSON keep.
                nodes = {str(number): str(node) for node, number in numbers.items()}
                recorder.folder.write(NODES, results.to_json(nodes, indent=1) + "\n")
        if recorder.folder is not None:
            summary = results.summarise(recorder.lines, config=config, environment=_environment())
            recorder.folder.write(results.SUMMARY, results.to_json(summary, indent=1) + "\n")


def _environment() -> dict[str, Any]:
    return {
        "holdout": holdout.__version__,
        "flwr": version("flwr"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "threads": torch.get_num_threads(),
        "machine": platform.machine(),
    }
