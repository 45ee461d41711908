"""Where a run is: its last complete round, saved in a checkpoint and resumed from it.

What is left to do is told from the rounds that are there: a curve goes on after its last one. So a
run can also be extended, by more rounds, rules or seeds than it was started with.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from holdout import device, results
from holdout.checkpoint_files import Arrays, Checkpoint, end_path, read_end
from holdout.config import parse
from holdout.curve_rows import CurveKey, key_of, planned_curves
from holdout.errors import RunFolderError
from holdout.experiments.plan import ExperimentPlan
from holdout.experiments.resolve_names import is_decentralized
from holdout.federation import decentralized
from holdout.federation.chain_record import chain_arrays
from holdout.federation.network_sizes import is_same_network
from holdout.federation.round_setup import MOMENTUM, State
from holdout.ids import WorkerId
from holdout.learning.schedules import rates_of
from holdout.results import Stored

RULE, WORKER = "rule/", "worker/"
"""Prefixes of the names of arrays that the rule keeps, or (as worker/<id>/) a worker."""


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """The last complete round of a run: in which curve, and in what state."""

    curve: CurveKey
    round: int | None
    """None in checkpoints of an earlier version, between two curves."""
    state: State | None
    """None: the curve has ended."""


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """A curve that is not over."""

    number: int
    """Its place among the plan's curves."""
    rounds_done: int
    is_begun: bool
    """Whether the run stopped in the middle of it."""


def end_of(curve: CurveKey, round_number: int, environment: Mapping[str, Any]) -> Checkpoint:
    """The place between the end of a curve and the next one."""
    return Checkpoint({**_meta(curve, round_number, environment), "ended": True}, {})


def _meta(curve: CurveKey, round_number: int, environment: Mapping[str, Any]) -> dict[str, Any]:
    return {"curve": list(curve), "round": round_number, "environment": dict(environment)}


def to_checkpoint(curve: CurveKey, state: State, environment: Mapping[str, Any]) -> Checkpoint:
    """The state as a file can hold it, with the environment that decided the bytes so far."""
    meta = _meta(curve, state.round, environment)
    meta.update(radius=state.radius, diverged=state.diverged)
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
    return Checkpoint(meta, arrays | chain_arrays(state))


def restore(checkpoint: Checkpoint, config: Mapping[str, Any]) -> Place:
    """The place that a checkpoint of a run with this config holds."""
    meta = checkpoint.meta
    try:
        if not isinstance(meta["curve"], list):
            return _restore_by_number(checkpoint, planned_curves(config))
        rule, attack, seed = meta["curve"]
        state = None if meta.get("ended") else _state(checkpoint)
        return Place(CurveKey(rule, attack, seed), int(meta["round"]), state)
    except (KeyError, TypeError, ValueError) as error:
        raise _misfit(str(error)) from error


def _restore_by_number(checkpoint: Checkpoint, curves: Sequence[CurveKey]) -> Place:
    """The place in a checkpoint of an earlier version, which counts the curves of the config."""
    has_ended = "round" not in checkpoint.meta
    number = int(checkpoint.meta["curve"]) - has_ended
    if not 0 <= number < len(curves):
        raise ValueError(f"curve {number} of {len(curves)}")
    state = None if has_ended else _state(checkpoint)
    return Place(curves[number], state.round if state else None, state)


def _state(checkpoint: Checkpoint) -> State:
    meta = checkpoint.meta
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
    return decentralized.resumed(checkpoint.arrays, state)


def remaining(
    plan: ExperimentPlan, rows: Sequence[Mapping[str, Any]], place: Place | None
) -> list[Piece]:
    """The curves that are not over: first the one in which the run stopped, then in plan order."""
    last = {key_of(row): row for row in rows}
    begun = place.curve if place and place.state else None
    pieces = []
    for number, key in enumerate(plan.keys):
        row = last.get(key)
        done = row["round"] if row else 0
        over = done >= plan.config.experiment.rounds or (row and row["outcome"] == "diverged")
        # One that stopped right after its last round has yet to leave its model.
        if not over or key == begun:
            pieces.append(Piece(number, done, key == begun))
    return sorted(pieces, key=lambda piece: not piece.is_begun)


def state_to_go_on(
    plan: ExperimentPlan, piece: Piece, place: Place | None, folder: results.RunFolder | None
) -> State | None:
    """The state from which a curve goes on; None if it has not begun."""
    if piece.is_begun and place:
        return place.state
    if not piece.rounds_done or folder is None:
        return None
    return _read_end(plan, folder.path, piece)


def _read_end(plan: ExperimentPlan, path: Path, piece: Piece) -> State:
    """The state in which a curve ended when fewer rounds were asked for."""
    key, number = plan.keys[piece.number], piece.rounds_done
    checkpoint = read_end(path, key, number)
    place = restore(checkpoint, {})
    if (place.curve, place.round) != (key, number) or place.state is None:
        raise _misfit(f"{end_path(key, number)} is of {place.curve}, round {place.round}")
    return place.state


def check_fit(plan: ExperimentPlan, stored: Stored) -> None:
    """Refuse a folder from which this plan cannot go on."""
    place = restore(stored.checkpoint, stored.config)
    expected = dict(place.curve._asdict())
    if place.round is not None:
        expected["round"] = place.round
    rows = stored.rows
    if not rows or any(rows[-1].get(key) != value for key, value in expected.items()):
        raise _misfit(f"{results.ROUNDS} does not end with {expected}")
    if place.curve not in plan.keys:
        raise _misfit(f"the config has no curve of {place.curve}")
    _check_rounds(plan, stored.config)
    for piece in remaining(plan, rows, place):
        if piece.is_begun:
            assert place.state is not None  # noqa: S101
            _check_state(plan, piece.number, place.state)
        elif piece.rounds_done:
            _check_state(plan, piece.number, _read_end(plan, stored.path, piece))


def _check_rounds(plan: ExperimentPlan, stored: Mapping[str, Any]) -> None:
    """What rounds were run with must be what a longer run would have had from the start."""
    before = parse(stored).config
    rounds, more = before.experiment.rounds, plan.config.experiment.rounds
    rates = rates_of(before.training, rounds=rounds)
    if rounds != more and rates != rates_of(plan.config.training, rounds=more)[: len(rates)]:
        raise RunFolderError(
            f"experiment.rounds was {rounds}, is {more}: training.schedule = "
            f"{before.training.schedule!r} would have given the rounds that are done other rates"
        )
    if not is_same_network(before, plan.config):
        raise RunFolderError(
            f"experiment.rounds was {before.experiment.rounds}, is "
            f"{plan.config.experiment.rounds}: so many rounds need a network founded with other "
            "sizes or rates; a run without a server keeps those it was founded with"
        )


def _check_state(plan: ExperimentPlan, number: int, state: State) -> None:
    curve, seed = plan.curves[number]
    federation = plan.federation(curve, seed)
    _check_shapes(state, like=federation.initial_weights)
    if is_decentralized(plan.config, curve.rule):
        fault = decentralized.misfit(federation, curve.rule, state)
        if fault is not None:
            raise _misfit(fault)


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


def notes_on_environment(stored: Stored | None, now: Mapping[str, Any]) -> list[str]:
    """What to tell the user if a run is resumed in another environment."""
    if stored is None:
        return []
    then = stored.checkpoint.meta.get("environment", {})
    changed = [
        f"{key} was {then.get(key)}, is {now[key]}" for key in now if then.get(key) != now[key]
    ]
    if not changed:
        return []
    return [f"resumed in another environment ({'; '.join(changed)}): bytes may differ"]
