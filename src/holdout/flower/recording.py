"""What a federation did, round by round: into Flower's `Result`, and into a run folder.

A round's line is written once it is complete: the accuracy comes from the evaluation that Flower
runs after the step. `holdout report` draws the folder like any other.
"""

import logging
import platform
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
import torch
from flwr.app import MetricRecord

import holdout
from holdout import results
from holdout.curve_rows import MOVED, summarise
from holdout.flower.metrics import LOSS_ENDING, find_metric
from holdout.results import RunFolder
from holdout.rounds import RoundRecord

LOG = logging.getLogger("flwr")

ACCURACY_ENDINGS = ("accuracy", "acc")
NODES = "nodes.json"
PREFIX = "holdout-"
"""What our numbers start with among the clients' metrics in Flower's `Result`."""


@dataclass(frozen=True, slots=True)
class Seconds:
    """How long each phase of a round took."""

    wait: float
    """Waiting until enough nodes were connected."""
    propose: float
    vote: float
    decide: float
    """Checking, bounding, counting, averaging."""

    @property
    def total(self) -> float:
        """The whole round without evaluation, rounded for the record."""
        return round(self.wait + self.propose + self.vote + self.decide, 6)


@dataclass(frozen=True, slots=True)
class RoundReport:
    """A round's record, and what only a real federation can tell about it."""

    record: RoundRecord
    accepted: int
    """Valid proposals."""
    left_out: int
    """Nodes that were not drawn because they had been silent."""
    seconds: Seconds
    asked_for: int = 0
    """How large the committee should have been; 0: as large as it was."""

    @property
    def ballots(self) -> int:
        """How many ballots were valid."""
        return sum(ballot is not None for ballot in self.record.ballots or ())

    def metrics(self) -> MetricRecord:
        """The numbers for Flower's `Result`."""
        record = self.record
        numbers: dict[str, int | float] = {
            "step": int(record.outcome in MOVED),
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
        numbers["committee"] = len(record.proposers) + len(record.voters)
        numbers["committee-asked-for"] = max(self.asked_for, numbers["committee"])
        numbers |= {f"seconds-{phase}": taken for phase, taken in asdict(self.seconds).items()}
        return MetricRecord({PREFIX + name: number for name, number in numbers.items()})

    def line(self) -> dict[str, Any]:
        """The round's line of `results.jsonl`."""
        seconds = {phase: round(taken, 6) for phase, taken in asdict(self.seconds).items()}
        line = {**self.record.as_dict(), "left_out": self.left_out, "phase_seconds": seconds}
        return {**line, "asked_for": self.asked_for} if self.asked_for else line

    def evaluated(self, metrics: MetricRecord | None) -> "RoundReport":
        """This report with an evaluation's accuracy and loss, if its metrics hold them."""
        if metrics is None:
            return self
        accuracy = find_metric([metrics], None, ACCURACY_ENDINGS)
        loss = find_metric([metrics], None, [LOSS_ENDING])
        return replace(self, record=replace(self.record, accuracy=accuracy, loss=loss))

    def log(self) -> None:
        """Say in Flower's log what became of the round."""
        record = self.record

        def counts(rejected: Mapping[str, int]) -> str:
            return ", ".join(f"{reason} {n}" for reason, n in rejected.items()) or "none"

        LOG.info(
            "aggregate_train: %s; %d proposals accepted, rejected: %s",
            record.outcome,
            self.accepted,
            counts(record.rejected_proposals),
        )
        if record.ballots is not None:
            LOG.info(
                "\t└──> %d of %d ballots valid, rejected: %s; %d proposals in the union-consensus",
                self.ballots,
                len(record.voters),
                counts(record.rejected_ballots),
                len(record.selection or ()),
            )


@dataclass(slots=True)
class Recorder:
    """Keeps the last round's report until its evaluation is over, then writes its line."""

    folder: RunFolder | None = None
    lines: list[Mapping[str, Any]] = field(default_factory=list)
    _last: RoundReport | None = None
    _central: bool = False

    def add(self, report: RoundReport) -> None:
        """Take a decided round's report; it can still be evaluated."""
        self.flush()
        self._last, self._central = report, False

    def evaluated(self, metrics: MetricRecord | None, *, central: bool) -> None:
        """Note an evaluation after the last round; a central one overrides a federated one."""
        if self._last is None or (self._central and not central):
            return
        self._last, self._central = self._last.evaluated(metrics), central

    def flush(self) -> None:
        """Write the last round's line if it is not written yet."""
        if self._last is None:
            return
        line = self._last.line()
        self._last = None
        self.lines.append(results.jsonable(line))
        if self.folder is not None:
            self.folder.append(line)


@contextmanager
def recording(
    path: Path | str | None,
    config: Mapping[str, Any],
    numbers: Mapping[int, int],
    *,
    resumed: bool = False,
) -> Iterator[Recorder]:
    """A recorder for one run, which writes to a run folder if a path is given.

    `numbers` (node id -> number) may still grow; it is written at the end, as `nodes.json`. The
    folder is new, or that of a run that goes on.
    """
    with ExitStack() as stack:
        recorder = Recorder()
        if path is not None and resumed:
            folder, stored = stack.enter_context(
                results.resume(Path(path), config, check=lambda _: None, may_extend=True)
            )
            recorder.folder = folder
            recorder.lines.extend(stored.rows if stored is not None else [])
        elif path is not None:
            advice = (
                "choose another run_folder, or go on with the run that is there: "
                f"HoldOut.resume({str(path)!r})"
            )
            recorder.folder = stack.enter_context(
                results.create(Path(path), tomli_w.dumps(config), advice=advice)
            )
        try:
            yield recorder
        finally:
            recorder.flush()
            if recorder.folder is not None:
                # As text, since a node's id has more digits than many JSON readers keep.
                nodes = {str(number): str(node) for node, number in numbers.items()}
                recorder.folder.write(NODES, results.to_json(nodes, indent=1) + "\n")
        if recorder.folder is not None:
            summary = summarise(recorder.lines, config=config, environment=_environment())
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
