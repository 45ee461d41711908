"""The process in which a member's worker runs: `python -m holdout.node.runtime.learner_process`.

It calls the member's `make_worker`, then answers three questions on its standard input: a gradient
on this model, a ballot on these updates, how good this model is. It is a separate process because
custom code may hang, leak or crash, and none of that may touch the node's votes: the node stops
waiting, ends this process and starts another.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor, nn

from holdout import device
from holdout.agreement import aggregate
from holdout.custom_code import Kept, takes
from holdout.dotted import resolve
from holdout.errors import HoldoutError, PluginError, UserError
from holdout.ids import ProposalId, RoundNumber
from holdout.learning.models import MODELS, build
from holdout.node.membership.genesis import GENESIS, Network
from holdout.node.membership.settings import NodeSettings, read_settings
from holdout.node.runtime.learner_client import pack_frame, read_frame
from holdout.rounds import bound_update
from holdout.voting import Approvals, Terms
from holdout.workers import Worker

ORPHAN_CHECK_SECONDS = 1.0


def main(folder: Path) -> None:
    """Answer questions until standard input ends."""
    # Ctrl-C is for the node, which ends this process when it has finished.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers = _take_output()
    _end_with_parent()
    os.chdir(folder)  # Where the member's module and data lie.
    try:
        settings = read_settings(folder)
        torch.set_num_threads(settings.worker.threads)
        worker, dimension = load_worker(Network.read(folder / GENESIS), settings)
    except HoldoutError as error:
        _write(answers, {"failed": str(error)})
        return
    kept: Kept = {}
    _write(answers, {"ready": True})
    while (question := read_frame(sys.stdin.buffer)) is not None:
        header, body = question
        try:
            reply, data = _answer(worker, dimension, header, body, kept)
        except Exception as error:  # noqa: BLE001  # Custom code may raise anything.
            reply, data = {"failed": f"{type(error).__name__}: {error}"}, b""
        _write(answers, reply, data)


def _take_output() -> BinaryIO:
    """Keep standard output for answers: what custom code prints goes to standard error."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return answers


def _write(file: BinaryIO, header: dict[str, Any], body: bytes = b"") -> None:
    file.write(pack_frame(header, body))
    file.flush()


def _end_with_parent() -> None:
    """End with the node, even if that was killed and even while the worker hangs."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(ORPHAN_CHECK_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def load_worker(network: Network, settings: NodeSettings) -> tuple[Worker, int]:
    """The member's worker, made by its `make_worker`, and the number of weights."""
    member = network.index(settings.node.name)
    model = build_model(network)
    make = resolve(settings.worker.make_worker)
    data = network.file.data
    if not callable(make):
        raise PluginError(f"{settings.worker.make_worker} must be callable")
    try:
        worker = make(
            model=model,
            shape=tuple(data.shape),
            classes=data.classes,
            member=member,
            members=len(network.members),
            **settings.worker_options,
        )
    except UserError:
        raise
    except Exception as error:
        raise PluginError(
            f"{settings.worker.make_worker} raised {type(error).__name__}: {error}"
        ) from error
    if not all(callable(getattr(worker, name, None)) for name in ("propose", "vote")):
        raise PluginError(
            f"{settings.worker.make_worker} must return a Worker, with propose and vote"
        )
    return worker, network.params.dimension


def build_model(network: Network) -> nn.Module:
    """The model that the genesis file names; its tensors must have the shapes given there."""
    section, data = network.file.model, network.file.data
    factory: Any = MODELS.get(section.name)
    if factory is None:
        factory = resolve(section.name)
    model = build(factory, tuple(data.shape), data.classes, seed=0)
    shapes = tuple(tuple(parameter.shape) for parameter in model.parameters())
    if shapes != section.shapes:
        raise UserError(f"the model {section.name} has other tensors here than in the genesis file")
    return model


def _answer(
    worker: Worker, dimension: int, header: dict[str, Any], body: bytes, kept: Kept
) -> tuple[dict[str, Any], bytes]:
    vectors = device.from_numpy(np.frombuffer(body, "<f4").copy()).view(-1, dimension)
    weights = vectors[0]
    match header["job"]:
        case "propose":
            return _propose(worker, weights, header, kept)
        case "judge":
            return _judge(worker, weights, vectors[1:], header, kept)
        case _:
            measure = getattr(worker, "accuracy", None)
            accuracy = None if measure is None else float(measure(weights))
            return {"accuracy": accuracy}, b""


def _propose(
    worker: Worker, weights: Tensor, header: dict[str, Any], kept: Kept
) -> tuple[dict[str, Any], bytes]:
    update = worker.propose(
        weights,
        round_number=RoundNumber(header["round"]),
        learning_rate=header["rate"],
        **_state_for(worker.propose, kept),
    )
    if not isinstance(update, Tensor) or update.shape != weights.shape:
        raise PluginError(f"propose must return a vector of {len(weights)} numbers")
    values = device.to_numpy(update.float())
    if not np.isfinite(values).all():
        raise PluginError("propose returned numbers that are not finite")
    return {}, aggregate.canonical(values)


def _state_for(asked: Callable[..., object], kept: Kept) -> dict[str, Any]:
    """The state of a worker that takes one; it is lost when this process ends."""
    return {"state": kept} if takes(asked, "state") else {}


def _judge(
    worker: Worker, weights: Tensor, updates: Tensor, header: dict[str, Any], kept: Kept
) -> tuple[dict[str, Any], bytes]:
    proposals = {
        ProposalId(place): bound_update(update, header["radius"])
        for place, update in enumerate(updates)
    }
    # One gradient judges all updates (Proposition 1); their exact losses would take one model each.
    terms = Terms(Fraction(*header["f"]), first_order=True)
    ballot = worker.vote(
        weights,
        proposals,
        round_number=RoundNumber(header["round"]),
        learning_rate=header["rate"],
        terms=terms,
        **_state_for(worker.vote, kept),
    )
    if not isinstance(ballot, Approvals):
        raise PluginError("vote must return holdout.voting.Approvals")
    approved = sorted({int(place) for place in ballot.approved})
    if any(not 0 <= place < len(updates) for place in approved):
        raise PluginError("vote approved an update that does not exist")
    most = terms.approve_count(len(updates))
    if len(approved) > most:
        raise PluginError(
            f"vote may approve {most} of {len(updates)} updates; it approved {len(approved)}"
        )
    return {"approved": approved}, b""


if __name__ == "__main__":
    main(Path(sys.argv[1]))
