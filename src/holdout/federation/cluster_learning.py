"""What workers learn with in a round without a server: real gradients and real holdout losses.

Every simulated worker is asked for its own gradient and its own ballot when its player wants them.
Nothing is computed twice, though: all honest gradients are computed together when the first one is
asked for, and so are all honest voters' losses of the same candidates. The coalition's lies come
from here too: an omniscient one sees the honest gradients before it sends its own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import torch
from torch import Tensor

from holdout.agreement import aggregate
from holdout.agreement.events import Combine, Judge, Propose
from holdout.agreement.params import Params
from holdout.errors import MisuseError
from holdout.federation.block_rehearsal import tell_lies
from holdout.federation.central import honest_proposals
from holdout.federation.electorate import Sheet
from holdout.federation.plugin_calls import attempt
from holdout.federation.round_setup import RoundSetup
from holdout.ids import Digest, ProposalId, WorkerId
from holdout.rounds import admit_proposals, norm, shrink
from holdout.simulator.toy_learners import Learner
from holdout.voting import Terms
from holdout.workers import is_plain

OUT_OF_RANGE = "out-of-range"
"""A proposal with a coordinate beyond G_inf: a fault that only the network knows."""


@dataclass(frozen=True, slots=True, eq=False)
class Sent:
    """What the proposers of a round announce."""

    payloads: Mapping[WorkerId, bytes | None]
    """None: the worker stays silent."""
    faults: Sequence[str]
    """What is wrong with those that are not valid gradients."""
    gamma: float | None
    """The strength of the lies, if they have one."""


class RoundLearning:
    """The learning of one round, for all workers of a cluster.

    Attributes:
        terms: How honest voters judge.
        places: The id of each proposer's proposal: its place among those drawn.
    """

    def __init__(self, stage: RoundSetup, params: Params, double: frozenset[WorkerId]) -> None:
        """Of a stage with the draw of this round, in which some liars sign everything twice."""
        if stage.terms is None:
            raise MisuseError("without a server only a vote can decide")
        self.terms: Terms = stage.terms
        self.places = {w: ProposalId(i) for i, w in enumerate(stage.committee.proposers)}
        self._stage, self._params, self._double = stage, params, double
        self._judges = stage.judges()
        self._booth = stage.booth(self.terms)
        self._sheets: dict[tuple[Digest, ...], Sheet] = {}
        self._read: dict[Digest, Tensor | None] = {}
        self._coalition = frozenset(p for w, p in self.places.items() if w in stage.byzantine)

    def __call__(self, worker: int, life: int) -> Learner:
        """The learning of one worker, the same after a restart."""
        del life
        return _WorkerLearning(self, WorkerId(worker))

    # -- proposing -----------------------------------------------------------------------------

    @cached_property
    def honest(self) -> dict[ProposalId, Tensor]:
        """The valid updates of honest proposers, as everybody will read them."""
        received = honest_proposals(self._stage)
        admitted = admit_proposals(received, dimension=self._params.dimension)
        return {p: from_payload(to_payload(update)) for p, update in admitted.valid.items()}

    @cached_property
    def sent(self) -> Sent:
        """What every proposer announces, the liars included."""
        stage = self._stage
        received: list[object] = [self.honest.get(place) for place in self.places.values()]
        gamma = None
        if stage.coalition:
            lies, gamma = tell_lies(
                stage, self._params, self.honest, self._judges, silenced=self._double
            )
            for place, update in zip(sorted(stage.coalition), lies, strict=True):
                received[place] = update
        caught = [w for w in self.places if w in self._double]
        for worker, update in zip(caught, stage.propose(stage.as_honest(caught)), strict=True):
            received[self.places[worker]] = update
        faults = [
            fault.value
            for place, fault in admit_proposals(
                received, dimension=self._params.dimension
            ).faults.items()
        ]
        payloads = _distinct(received, self._params)
        faults += [OUT_OF_RANGE] * sum(
            data is not None and _is_too_large(data, self._params) for data in payloads
        )
        return Sent(dict(zip(self.places, payloads, strict=True)), faults, gamma)

    # -- judging -------------------------------------------------------------------------------

    def approve(self, voter: WorkerId, job: Judge, payloads: Sequence[bytes]) -> tuple[int, ...]:
        """The places of the candidates that this voter names."""
        places: dict[ProposalId, int] = {}
        for place, (candidate, data) in enumerate(zip(job.candidates, payloads, strict=True)):
            if self._update(candidate.payload, data, job.radius) is not None:
                places[self.places[WorkerId(candidate.proposer)]] = place
        ids = tuple(places)
        sheet = self._sheet(ids, [job.candidates[place].payload for place in places.values()])
        names: object
        if voter in self._stage.byzantine:
            coalition = self._coalition.intersection(ids)
            names = self._booth.byzantine_ballot(voter, ids, coalition, sheet)
        elif is_plain(worker := self._stage.federation.workers[voter]):
            names = self._booth.honest_ballot(voter, ids, sheet).approved
        else:
            updates = {p: self._read[job.candidates[i].payload] for p, i in places.items()}
            ask = partial(
                worker.vote,
                self._stage.state.weights.clone(),
                {p: update.clone() for p, update in updates.items() if update is not None},
                round_number=self._stage.number,
                learning_rate=self._stage.learning_rate,
                terms=self.terms,
            )
            names = attempt(lambda: list(ask().approved))
        # A plug-in may name anything; what is no candidate says nothing.
        given = names if isinstance(names, list | tuple) else ()
        return tuple(sorted({place for name, place in places.items() if name in given}))

    def _update(self, payload: Digest, data: bytes, radius: float) -> Tensor | None:
        """The candidate as it is scored: at most as long as the radius; None if it is none."""
        if payload not in self._read:
            valid = aggregate.payload_fault(data, self._params) is None
            update = from_payload(data) if valid else None
            self._read[payload] = update if update is None else _bounded(update, radius)
        return self._read[payload]

    def _sheet(self, ids: tuple[ProposalId, ...], payloads: Sequence[Digest]) -> Sheet:
        """The losses of these candidates; voters who hold the same ones share the computation."""
        key = tuple(payloads)
        if key not in self._sheets:
            updates = [update for p in payloads if (update := self._read[p]) is not None]
            self._sheets[key] = self._judges.sheet(
                ids, lambda scores: scores.losses(torch.stack(updates))
            )
        return self._sheets[key]

    @property
    def number(self) -> int:
        """Which round it is."""
        return self._stage.number


@dataclass(frozen=True, slots=True, eq=False)
class _WorkerLearning:
    """The part of one worker."""

    round: RoundLearning
    worker: WorkerId

    def propose(self, job: Propose, model: bytes) -> bytes | None:
        """Its update, or the coalition's."""
        del model  # The stage holds its numbers.
        # Who is first to commit begins the next round, which is played elsewhere.
        sent = self.round.sent.payloads if job.round == self.round.number else {}
        return sent.get(self.worker)

    def judge(self, job: Judge, model: bytes, payloads: Sequence[bytes]) -> tuple[int, ...] | None:
        """Its ballot."""
        del model
        if job.round != self.round.number:
            return None
        return self.round.approve(self.worker, job, payloads)

    def combine(
        self, job: Combine, model: bytes, payloads: Sequence[bytes]
    ) -> tuple[bytes | None, float]:
        """As every worker does, bit for bit."""
        return aggregate.combine(model, payloads, radius=job.radius, rate=job.rate)


# ------------------------------------------------------------------------------------- the payload


def to_payload(vector: Tensor) -> bytes:
    """An update or a model as it travels."""
    return aggregate.canonical(vector.detach().float().contiguous().numpy())


def from_payload(data: bytes) -> Tensor:
    """The numbers of a payload."""
    return torch.from_numpy(np.frombuffer(data, np.dtype("<f4")).astype(np.float32))


def _bounded(update: Tensor, radius: float) -> Tensor:
    return shrink(update, norm(update), radius or None)


def _is_too_large(data: bytes, params: Params) -> bool:
    if len(data) != params.payload_bytes:
        return False
    values = from_payload(data)
    return bool(values.isfinite().all()) and float(values.abs().max()) > params.coordinate_max


def _distinct(received: Sequence[object], params: Params) -> list[bytes | None]:
    """Payloads of what proposers send, no two alike.

    Copies of a gradient count once in a block. A liar who knows that changes one coordinate by as
    little as can be, so the coalition does.
    """
    payloads: list[bytes | None] = []
    known: dict[bytes, None] = {}
    for update in received:
        data = None
        if isinstance(update, Tensor) and _is_vector(update):
            data = to_payload(update)
            coordinate = 0
            while data in known and len(update) == params.dimension:
                data = _nudged(data, coordinate)
                coordinate += 1
            known[data] = None
        payloads.append(data)
    return payloads


def _is_vector(update: Tensor) -> bool:
    plain = update.layout is torch.strided and update.is_cpu
    return plain and update.is_floating_point() and update.ndim == 1


def _nudged(data: bytes, coordinate: int) -> bytes:
    values = np.frombuffer(data, np.dtype("<f4")).copy()
    here = coordinate % len(values)
    upwards = np.nextafter(values[here], np.float32(np.inf))
    values[here] = upwards if abs(upwards) >= aggregate.SMALLEST else aggregate.SMALLEST
    return aggregate.canonical(values)
