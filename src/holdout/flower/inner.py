"""Other strategies of Flower inside a vote: what was accepted goes through their aggregation.

`HoldOut(inner=FedAdam(...))` hands each accepted client's weights to the inner strategy as one
reply, all of the same weight. The inner strategy sees the arrays that are trained and nothing else:
whom to ask, which replies count and what becomes of buffers is the outer one's business.

What an inner strategy keeps between rounds (moments, momentum) is read from its attributes that
hold numpy arrays, so that it can be saved and put back.
"""

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp import strategy as strategies
from flwr.serverapp.strategy import FedAvg

from holdout import device
from holdout.custom_code import Kept

_REFUSED: Mapping[type, str] = {
    strategies.QFedAvg: "weighs clients by the losses that they claim",
    strategies.MultiKrum: 'chooses among clients itself; give rule="krum" to Robust',
    strategies.Bulyan: 'chooses among clients itself; give rule="bulyan" to Robust',
    strategies.FedXgbBagging: "collects trees, which cannot be judged as updates",
    strategies.FedXgbCyclic: "collects trees, which cannot be judged as updates",
}
_OUTER = (
    "fraction_train",
    "fraction_evaluate",
    "min_train_nodes",
    "min_evaluate_nodes",
    "min_available_nodes",
    "train_metrics_aggr_fn",
    "evaluate_metrics_aggr_fn",
)
"""Arguments of `FedAvg` that belong to whoever asks the nodes."""
_CURRENT = "current_arrays"
"""Where Flower's own strategies note the model that they sent."""
INNER = "inner "
"""How the names of what an inner strategy keeps begin."""
_ONE = "."
"""Stands for the only array of an attribute that is one."""


def inner_problems(inner: object, *, array_key: str) -> list[str]:
    """Why a strategy cannot be an inner one."""
    name = type(inner).__name__
    if inner is None:
        return []
    if isinstance(inner, type):
        return [
            f"inner = {inner.__name__}: must be a strategy of Flower's, not its class; "
            f"give {inner.__name__}()"
        ]
    if not isinstance(inner, FedAvg):
        return [f"inner = {name}: must be a strategy of Flower's that averages, such as FedAdam"]
    if type(inner).__module__.startswith("holdout."):
        return [f"inner = {name}: a vote inside a vote; give FedAvg, FedAdam, FedAvgM or the like"]
    problems = [
        f"inner = {name}: {why}" for kind, why in _REFUSED.items() if isinstance(inner, kind)
    ]
    plain = FedAvg()
    problems += [
        f"inner = {name}: {argument} has no effect there; give it to the outer strategy"
        for argument in _OUTER
        if getattr(inner, argument, None) != getattr(plain, argument)
    ]
    if inner.arrayrecord_key != array_key:
        problems.append(
            f"inner = {name}: its arrayrecord_key = {inner.arrayrecord_key!r} must be that of the "
            f"outer strategy, {array_key!r}"
        )
    return problems


def prepare(inner: FedAvg, server_round: int, arrays: ArrayRecord, config: ConfigRecord) -> None:
    """Tell the inner strategy which model is sent; it may add to the config, as FedProx does."""
    if hasattr(inner, _CURRENT):
        setattr(inner, _CURRENT, None)
    asked = list(inner.configure_train(server_round, arrays, config, _Nodes(inner)))
    for message in asked[:1]:
        for key, value in message.content.config_records.get(
            inner.configrecord_key, ConfigRecord()
        ).items():
            config[key] = value


def aggregate(
    inner: FedAvg, server_round: int, models: Sequence[ArrayRecord]
) -> ArrayRecord | None:
    """What the inner strategy makes of the accepted models, all of the same weight."""
    replies = [
        Message(
            RecordDict(
                {
                    inner.arrayrecord_key: model,
                    "metrics": MetricRecord({inner.weighted_by_key: 1}),
                }
            ),
            dst_node_id=1 + place,
            message_type="train",
        )
        for place, model in enumerate(models)
    ]
    arrays, _ = inner.aggregate_train(server_round, replies)
    return arrays


def state_of(inner: FedAvg) -> Kept:
    """What the inner strategy keeps between rounds, as tensors by name."""
    kept: Kept = {}
    for attribute, value in sorted(vars(inner).items()):
        if attribute == _CURRENT:
            continue
        for key, array in _arrays_in(value):
            kept[f"{INNER}{attribute} {key}"] = device.from_numpy(np.array(array))
    return kept


def with_state(inner: FedAvg, kept: Kept) -> FedAvg:
    """A copy of the inner strategy that remembers this."""
    known = copy.deepcopy(inner)
    found: dict[str, dict[str, Any]] = {}
    for name, value in kept.items():
        if name.startswith(INNER):
            attribute, _, key = name.removeprefix(INNER).partition(" ")
            found.setdefault(attribute, {})[key] = device.to_numpy(value).copy()
    for attribute, arrays in found.items():
        setattr(known, attribute, _joined(arrays))
    return known


def _arrays_in(value: object) -> Iterable[tuple[str, np.ndarray[Any, Any]]]:
    if isinstance(value, np.ndarray):
        return [(_ONE, value)]
    if isinstance(value, dict) and all(isinstance(part, np.ndarray) for part in value.values()):
        return [(f"={key}", part) for key, part in value.items()]
    if isinstance(value, list) and all(isinstance(part, np.ndarray) for part in value):
        return [(str(place), part) for place, part in enumerate(value)]
    return []


def _joined(arrays: Mapping[str, Any]) -> object:
    """The inverse of `_arrays_in`."""
    if _ONE in arrays:
        return arrays[_ONE]
    if all(key.startswith("=") for key in arrays):
        return {key[1:]: array for key, array in arrays.items()}
    return [arrays[str(place)] for place in range(len(arrays))]


class _Nodes(Grid):
    """A grid that has as many nodes as a strategy wants, and sends nothing."""

    def __init__(self, inner: FedAvg) -> None:
        self._count = max(inner.min_available_nodes, inner.min_train_nodes, 1)

    def get_node_ids(self) -> Iterable[int]:
        """As many as are needed."""
        return range(1, 1 + self._count)

    def set_run(self, run: Any) -> None:
        """There is none."""

    @property
    def run(self) -> Any:
        """There is none."""
        raise NotImplementedError

    def create_message(self, *_: Any, **__: Any) -> Message:
        """Nobody sends any."""
        raise NotImplementedError

    push_messages = pull_messages = send_and_receive = create_message  # type: ignore[assignment]
