"""A federation on disk, to go on from: in another process, on another day.

The checkpoint of the run folder holds, after each round, all that the next one depends on: the
model, the bound, what the rule keeps, who is who, who was silent, the seed, and the arguments of
the strategy. It is written whole or not at all, and holds plain arrays and JSON, nothing that could
be executed.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, MetricRecord

from holdout import checkpoint_files, device
from holdout.checkpoint_files import Checkpoint
from holdout.custom_code import Kept
from holdout.errors import RunFolderError
from holdout.results import CHECKPOINT
from holdout.shares import write_share

MODEL, RULE = "model/", "rule/"
KIND = "flower"

Metrics = dict[int, MetricRecord]


@dataclass(frozen=True, slots=True, eq=False)
class SavedRun:
    """What a run has reached, and what its next round depends on."""

    strategy: str
    """The name of its class."""
    arguments: Mapping[str, Any]
    """The strategy's arguments that are plain values."""
    objects: tuple[str, ...]
    """The names of those that are not, and must be given again."""
    round: int
    num_rounds: int
    arrays: ArrayRecord
    radius: float | None
    rule_state: Kept
    roster: Mapping[str, Any]
    most_nodes: int
    failed_rounds: Mapping[str, int]
    metrics: Mapping[str, Metrics] = field(default_factory=dict)
    """The three histories of Flower's `Result`, by attribute."""


def to_checkpoint(run: SavedRun) -> Checkpoint:
    """The run as plain arrays and values."""
    arrays = {
        f"{MODEL}{place}": np.frombuffer(array.data, np.uint8)
        for place, array in enumerate(run.arrays.values())
    }
    arrays |= {RULE + name: device.to_numpy(tensor) for name, tensor in run.rule_state.items()}
    meta = {
        "kind": KIND,
        "strategy": run.strategy,
        "arguments": run.arguments,
        "objects": run.objects,
        "round": run.round,
        "num_rounds": run.num_rounds,
        "model": [[name, a.dtype, list(a.shape), a.stype] for name, a in run.arrays.items()],
        "radius": run.radius,
        "roster": run.roster,
        "most_nodes": run.most_nodes,
        "failed_rounds": run.failed_rounds,
        "metrics": {
            name: {str(number): dict(record) for number, record in history.items()}
            for name, history in run.metrics.items()
        },
    }
    return Checkpoint(meta, arrays)


def load(path: Path) -> SavedRun:
    """What a run folder has reached."""
    file = path / CHECKPOINT
    try:
        checkpoint = checkpoint_files.decode(file.read_bytes())
    except FileNotFoundError:
        raise RunFolderError(
            f"{path} has no checkpoint: no round of a federation was finished there"
        ) from None
    except (OSError, ValueError, KeyError, TypeError, EOFError) as error:
        raise RunFolderError(f"{file} is damaged ({error}); the run cannot go on") from error
    if checkpoint.meta.get("kind") != KIND:
        raise RunFolderError(f"{path} holds no run of a Flower strategy; `holdout run` resumes it")
    try:
        return _from_checkpoint(checkpoint)
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise RunFolderError(f"{file} is damaged ({error}); the run cannot go on") from error


def plain_arguments(values: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The arguments that can be written down, and the names of those that cannot.

    >>> from fractions import Fraction
    >>> plain_arguments({"byzantine_fraction": Fraction(1, 3), "seed": 4, "function": print})
    ({'byzantine_fraction': '1/3', 'seed': 4}, ('function',))
    """
    plain: dict[str, Any] = {}
    objects: list[str] = []
    for name, value in values.items():
        if isinstance(value, Fraction):
            plain[name] = write_share(value)
        elif _is_plain(value):
            plain[name] = value
        else:
            objects.append(name)
    return plain, tuple(objects)


def _is_plain(value: object) -> bool:
    if isinstance(value, list | tuple):
        return all(_is_plain(item) for item in value)
    return value is None or isinstance(value, str | int | float | bool)


def _from_checkpoint(checkpoint: Checkpoint) -> SavedRun:
    meta, arrays = checkpoint.meta, checkpoint.arrays
    model = {
        name: Array(dtype, tuple(shape), stype, arrays[f"{MODEL}{place}"].tobytes())
        for place, (name, dtype, shape, stype) in enumerate(meta["model"])
    }
    rule_state = {
        name.removeprefix(RULE): device.from_numpy(array)
        for name, array in arrays.items()
        if name.startswith(RULE)
    }
    radius = meta["radius"]
    return SavedRun(
        strategy=str(meta["strategy"]),
        arguments=dict(meta["arguments"]),
        objects=tuple(meta["objects"]),
        round=int(meta["round"]),
        num_rounds=int(meta["num_rounds"]),
        arrays=ArrayRecord(model),
        radius=None if radius is None else float(radius),
        rule_state=rule_state,
        roster=meta["roster"],
        most_nodes=int(meta["most_nodes"]),
        failed_rounds={str(what): int(n) for what, n in meta["failed_rounds"].items()},
        metrics={
            name: {int(n): MetricRecord(_numbers(record)) for n, record in history.items()}
            for name, history in meta["metrics"].items()
        },
    )


def _numbers(record: Mapping[str, Any]) -> dict[str, Any]:
    """Metrics as they were: JSON has no number that is not finite, and they became null."""

    def number(value: Any) -> Any:
        return math.nan if value is None else value

    return {
        name: [number(v) for v in value] if isinstance(value, list) else number(value)
        for name, value in record.items()
    }
