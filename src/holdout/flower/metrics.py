"""The metrics that clients report, taken from replies that may hold anything.

Flower averages metrics weighted by the number of examples that each client claims, and stops if two
replies differ in their keys. Here replies that do not look like most of the others are left out,
and the median of the rest is taken: one liar's claim of a billion moves it by one rank at most.
"""

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from statistics import median
from typing import Any

from flwr.app import MetricRecord, RecordDict

LOG = logging.getLogger("flwr")

LOSS_ENDING = "loss"

MetricsFunction = Callable[[list[RecordDict], str], MetricRecord]
Shape = tuple[tuple[str, int | None], ...]
"""A record's keys, each with the length of its list, or None for a number."""


def find_metric(
    records: Iterable[MetricRecord], key: str | None, endings: Sequence[str]
) -> float | None:
    """The metric named `key`, or (None) the only number whose name has one of the endings."""
    found = [
        float(value)
        for record in records
        for name, value in record.items()
        if not isinstance(value, list)
        and (name == key if key is not None else name.lower().endswith(tuple(endings)))
    ]
    return found[0] if len(found) == 1 else None


def median_metrics(contents: list[RecordDict], weighted_by_key: str) -> MetricRecord:
    """The median of each metric over the replies, without the key of the weights."""
    records = [_only(content) for content in contents]
    result = MetricRecord()
    for key, first in records[0].items():
        if key == weighted_by_key:
            continue
        if isinstance(first, list):
            lists = [_floats(record[key]) for record in records]
            result[key] = [float(median(column)) for column in zip(*lists, strict=True)]
        else:
            result[key] = float(median(_floats(record[key])[0] for record in records))
    return result


def aggregate_metrics(
    contents: Sequence[RecordDict], function: MetricsFunction, weighted_by_key: str
) -> MetricRecord | None:
    """What the function makes of the usable replies; None if there are none or it fails."""
    usable = [content for content in contents if _is_usable(content, weighted_by_key)]
    if not usable:
        return None
    shapes = Counter(_shape(_only(content)) for content in usable)
    # Of equally common shapes the one that came first; liars too few for a majority gain little.
    common = shapes.most_common(1)[0][0]
    alike = [content for content in usable if _shape(_only(content)) == common]
    if len(alike) < len(contents):
        LOG.warning(
            "metrics of %d of %d replies left out", len(contents) - len(alike), len(contents)
        )
    try:
        return function(alike, weighted_by_key)
    except Exception as error:  # noqa: BLE001  (The user's function, on what liars sent.)
        LOG.warning("metrics could not be aggregated: %s: %s", type(error).__name__, error)
        return None


def _is_usable(content: RecordDict, weighted_by_key: str) -> bool:
    """Whether it is one record of finite numbers, with a weight as Flower's convention wants it."""
    if len(content.metric_records) != 1:
        return False
    record = _only(content)
    weight = record.get(weighted_by_key)
    if weight is None or isinstance(weight, list) or not 0 <= weight < math.inf:
        return False
    try:
        return all(math.isfinite(number) for value in record.values() for number in _floats(value))
    except OverflowError:  # An integer beyond the range of floats.
        return False


def _only(content: RecordDict) -> MetricRecord:
    return next(iter(content.metric_records.values()))


def _shape(record: MetricRecord) -> Shape:
    return tuple(
        sorted(
            (key, len(value) if isinstance(value, list) else None) for key, value in record.items()
        )
    )


def _floats(value: Any) -> list[float]:
    numbers = value if isinstance(value, list) else [value]
    return [float(number) for number in numbers]
