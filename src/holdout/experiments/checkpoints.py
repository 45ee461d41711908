"""Where a run is: its last complete round, saved in a checkpoint and resumed from it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from holdout import device, results
from holdout.errors import RunFolderError
from holdout.experiments.plan import ExperimentPlan
from holdout.experiments.resolve_names import is_decentralized
from holdout.federation import decentralized
from holdout.federation.chain_record import chain_arrays
from holdout.federation.round_setup import MOMENTUM, State
from holdout.ids import WorkerId
from holdout.results import Arrays, Checkpoint

RULE, WORKER = "rule/", "worker/"
"""Prefixes of the names of arrays that the rule keeps, or (as worker/<id>/) a worker."""


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """The last complete round: in which curve, in what state, and how long the results were."""

    curve: int
    state: State | None = None
    """None: before the curve's first round."""
    mark: results.ResultsMark | None = None


def to_checkpoint(place: Place, environment: Mapping[str, Any]) -> Checkpoint:
    """The place as a file can hold it, with the environment that decided the bytes so far."""
    state = place.state
    arrays = {}
    meta: dict[str, Any] = {"curve": place.curve, "environment": dict(environment)}
    if state is not None:
        meta.update(round=state.round, radius=state.radius, diverged=state.diverged)
        tensors = {
            "weights": state.weights,
            "velocity": state.velocity,
            "last_honest": state.last_honest,
            **{f"{RULE}{name}": tensor for name, tensor in state.rule_state.items()},
            **{
                f"{WORKER}{worker}/{name}": tensor
                for worker, kept in state.worker_states.items()
                for name, tensor in kept.items()
            },
        }
        found = {name: tensor for name, tensor in tensors.items() if tensor is not None}
        arrays = {name: device.to_numpy(tensor) for name, tensor in found.items()}
        arrays |= chain_arrays(state)
    return Checkpoint(meta, arrays)


def restore(checkpoint: Checkpoint | None) -> Place:
    """The place that a checkpoint holds; without one, the beginning."""
    if checkpoint is None:
        return Place(0)
    meta = checkpoint.meta
    try:
        if "round" not in meta:
            return Place(int(meta["curve"]))
        tensors = {
            name: device.from_numpy(checkpoint.arrays[name])
            for name in ("weights", "velocity", "last_honest")
            if name in checkpoint.arrays
        }
        state = State(
            round=meta["round"],
            weights=tensors["weights"],
            velocity=tensors.get("velocity"),
            radius=meta["radius"],
            last_honest=tensors.get("last_honest"),
            rule_state=_rule_state(checkpoint.arrays),
            worker_states=_worker_states(checkpoint.arrays),
            diverged=meta["diverged"],
        )
        return Place(int(meta["curve"]), decentralized.resumed(checkpoint.arrays, state))
    except (KeyError, TypeError, ValueError) as error:
        raise _misfit(str(error)) from error


def _rule_state(arrays: Arrays) -> dict[str, torch.Tensor]:
    return {
        name.removeprefix(RULE): device.from_numpy(array)
        for name, array in arrays.items()
        if name.startswith(RULE)
    }


def _worker_states(arrays: Arrays) -> dict[WorkerId, dict[str, torch.Tensor]]:
    states: dict[WorkerId, dict[str, torch.Tensor]] = {}
    for name, array in arrays.items():
        if name.startswith(WORKER):
            worker, _, kept = name.removeprefix(WORKER).partition("/")
            states.setdefault(WorkerId(int(worker)), {})[kept] = device.from_numpy(array)
    return states


def check_fit(plan: ExperimentPlan, place: Place, done: Sequence[Mapping[str, Any]]) -> None:
    """Refuse a place that this plan cannot have reached with these rounds."""
    # Without a state, the place is between two curves: the rounds end with the one before.
    ended = place.curve if place.state else place.curve - 1
    if not 0 <= ended < len(plan.curves):
        raise _misfit(f"curve {place.curve} of {len(plan.curves)}")
    curve, seed = plan.curves[ended]
    expected = {"rule": curve.rule, "attack": curve.attack, "seed": seed}
    if place.state:
        expected["round"] = place.state.round
        federation = plan.federation(curve, seed)
        _check_shapes(place.state, like=federation.initial_weights)
        if is_decentralized(plan.config, curve.rule):
            fault = decentralized.misfit(federation, curve.rule, place.state)
            if fault is not None:
                raise _misfit(fault)
    if not done or any(done[-1].get(key) != value for key, value in expected.items()):
        raise _misfit(f"{results.ROUNDS} does not end with {expected}")


def _check_shapes(state: State, *, like: torch.Tensor) -> None:
    for name in ("weights", "velocity", "last_honest"):
        tensor = getattr(state, name)
        if tensor is None:
            continue
        shape = (*tensor.shape[:1], *like.shape) if name == "last_honest" else like.shape
        if tensor.shape != shape or tensor.dtype != like.dtype:
            raise _misfit(f"{name}: {tensor.dtype} of shape {tuple(tensor.shape)}")
    for worker, kept in state.worker_states.items():
        momentum = kept.get(MOMENTUM, like)
        if momentum.shape != like.shape or momentum.dtype != like.dtype:
            raise _misfit(f"worker {worker}: {momentum.dtype} of shape {tuple(momentum.shape)}")


def _misfit(what: str) -> RunFolderError:
    return RunFolderError(
        f"{results.CHECKPOINT} does not fit the run ({what}); the run cannot be resumed"
    )


def notes_on_environment(checkpoint: Checkpoint | None, now: Mapping[str, Any]) -> list[str]:
    """What to tell the user if a run is resumed in another environment."""
    if checkpoint is None:
        return []
    then = checkpoint.meta.get("environment", {})
    changed = [
        f"{key} was {then.get(key)}, is {now[key]}" for key in now if then.get(key) != now[key]
    ]
    if not changed:
        return []
    return [f"resumed in another environment ({'; '.join(changed)}): bytes may differ"]
