"""What workers learn with in a round without a server: real gradients and real holdout losses.

Every simulated worker is asked for its gradient and its ballot when its player wants them. Nothing
is computed twice, though: all honest gradients are computed together when the first one is asked
for, and so are all honest voters' losses of the same candidates.

The coalition's lies come from here too. As with a server, the attacker rehearses the vote with all
that it will see; but here ballots are counted as a block's are (short ones completed, a floor under
the approvals), and the radius is the chain's, which no lie of this round can move.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeGuard

import numpy as np
import torch
from torch import Tensor

from holdout import device
from holdout.agreement import aggregate, counting
from holdout.agreement.events import Combine, Judge, Propose
from holdout.agreement.params import Params, TallyRule
from holdout.custom_code import Kept
from holdout.errors import MisuseError
from holdout.federation.central import Proposals, propose
from holdout.federation.coalition import Lies, gather, lie_or_be_silent, tell_lies
from holdout.federation.custom_workers import Heard, ask_to_vote, count_missing
from holdout.federation.electorate import MarksOf, electorate_of, score_voters
from holdout.federation.round_setup import RoundSetup
from holdout.federation.vote_rehearsal import DeployedVote
from holdout.ids import Digest, ProposalId, WorkerId
from holdout.rounds import admit_proposals, bound_update
from holdout.simulator.toy_learners import Learner
from holdout.tracebacks import Failure
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
    honest_missing: int
    """How many honest proposals custom code kept from being sent."""


@dataclass(frozen=True, slots=True)
class BlockTally:
    """The tally of a block, as the attacker runs it."""

    params: Params
    chain_radius: float | None

    def selected(
        self, sent: Sequence[tuple[WorkerId, object]], proposals: tuple[ProposalId, ...]
    ) -> Collection[ProposalId]:
        """What a block with these ballots selects."""
        ballots = [names for _, names in sent if _is_ballot(names, proposals)]
        if len(ballots) < self.params.ballots_min:
            return ()
        counts = counting.tally(ballots, updates=proposals, params=self.params)
        return [ProposalId(count.proposer) for count in counts if count.passes]

    def radius(self, lengths: Sequence[float]) -> float | None:
        """The chain's radius, whatever is sent."""
        del lengths
        return self.chain_radius

    def can_stop_early(self, passing: str) -> bool:
        """Not if every copy counts: completing a short ballot gives a share to every copy.

        A full ballot gives none to the copies that it leaves out, so it may be worse for the lie
        than a short one that names fewer of them.
        """
        return passing != "all" or self.params.tally is not TallyRule.COMPLETION


def _is_ballot(names: object, known: tuple[ProposalId, ...]) -> TypeGuard[Sequence[ProposalId]]:
    """Whether a block would hold it: empty ones are not sent, unknown names are waited for."""
    if not isinstance(names, list | tuple) or not names:
        return False
    plain = all(type(name) is int and name in known for name in names)
    return plain and len(set(names)) == len(names)


class RoundLearning:
    """The learning of one round, for all workers of a cluster.

    Attributes:
        terms: How honest voters judge.
        places: The id of each proposer's proposal: its place among those drawn.
        worker_states: What workers keep of the round, as far as it has gone.
        failures: What custom code raised in it.
    """

    def __init__(self, setup: RoundSetup, params: Params) -> None:
        """Prepare a round whose lots are drawn; liars that act apart sign everything twice."""
        if setup.curve.terms is None:
            raise MisuseError("without a server only a vote can decide")
        self.terms: Terms = setup.curve.terms
        self.places = {w: ProposalId(i) for i, w in enumerate(setup.committee.proposers)}
        self._setup, self._params = setup, params
        self._scores = score_voters(setup)
        self._electorate = electorate_of(setup, self.terms)
        self.worker_states: dict[WorkerId, Kept] = {}
        self.failures: list[Failure] = []
        self._marks: dict[tuple[Digest, ...], MarksOf] = {}
        self._read: dict[Digest, Tensor | None] = {}
        self._lies = frozenset(p for w, p in self.places.items() if w in setup.byzantine)

    def __call__(self, worker: int, life: int) -> Learner:
        """The learning of one worker, the same after a restart."""
        del life
        return _WorkerLearning(self, WorkerId(worker))

    # -- proposing -----------------------------------------------------------------------------

    @cached_property
    def _proposals(self) -> Proposals:
        return propose(self._setup)

    @cached_property
    def honest(self) -> dict[ProposalId, Tensor]:
        """The valid updates of honest proposers, as everybody will read them."""
        received = self._proposals.received
        admitted = admit_proposals(received, dimension=self._params.dimension)
        return {p: from_payload(to_payload(update)) for p, update in admitted.valid.items()}

    @cached_property
    def sent(self) -> Sent:
        """What every proposer announces, the liars included."""
        setup, states = self._setup, self.worker_states
        states |= self._proposals.worker_states
        self.failures.extend(self._proposals.failures)
        received: list[object] = [self.honest.get(place) for place in self.places.values()]
        gamma = None
        if setup.coalition:
            lies = lie_or_be_silent(setup, self._tell_lies)
            gamma = lies.gamma
            states |= lies.worker_states
            self.failures.extend(lies.failures)
            for place, update in zip(sorted(setup.coalition), lies.sent, strict=True):
                received[place] = update
        caught = [worker for worker in self.places if worker in setup.apart]
        updates, kept = setup.propose_each(setup.honest_part(caught), self.failures)
        states |= kept
        for worker, update in zip(caught, updates, strict=True):
            received[self.places[worker]] = update
        admitted = admit_proposals(received, dimension=self._params.dimension)
        faults = [fault.value for fault in admitted.faults.values()]
        # What honest proposers themselves sent: what is no update is not announced.
        honest = admit_proposals(self._proposals.received, dimension=self._params.dimension)
        missing = count_missing(setup, honest.faults)
        payloads = _distinct(received, self._params)
        faults += [OUT_OF_RANGE] * sum(
            data is not None and _is_too_large(data, self._params) for data in payloads
        )
        return Sent(dict(zip(self.places, payloads, strict=True)), faults, gamma, missing)

    def _tell_lies(self) -> Lies:
        """What liars that keep to one version send; the ballots of those caught do not count."""
        setup, electorate = self._setup, self._electorate
        coalition = gather(setup, self.honest, self._scores)
        heard = tuple(voter for voter in electorate.voters if voter not in setup.apart)
        deployed = DeployedVote(
            electorate=replace(electorate, voters=heard),
            scores=coalition.scores,
            honest=coalition.guessed,
            copies=coalition.copies,
            passing=setup.federation.config.attack.passing,
            tally=BlockTally(self._params, setup.state.radius),
        )
        return tell_lies(coalition, deployed)

    # -- judging -------------------------------------------------------------------------------

    def approve(self, voter: WorkerId, job: Judge, payloads: Sequence[bytes]) -> tuple[int, ...]:
        """The places of the candidates that this voter names."""
        places: dict[ProposalId, int] = {}
        for place, (candidate, data) in enumerate(zip(job.candidates, payloads, strict=True)):
            if self._update(candidate.payload, data, job.radius) is not None:
                places[self.places[WorkerId(candidate.proposer)]] = place
        ids = tuple(places)
        marks_of = self._marks_of(ids, [job.candidates[place].payload for place in places.values()])
        names: object
        if voter in self._setup.byzantine:
            lies = self._lies.intersection(ids)
            names = self._electorate.byzantine_ballot(voter, ids, lies, marks_of, self.failures)
        elif is_plain(self._setup.federation.workers[voter]):
            names = self._electorate.honest_names(voter, ids, marks_of, self.failures)
        else:
            updates = {p: self._read[job.candidates[i].payload] for p, i in places.items()}
            valid = {p: update for p, update in updates.items() if update is not None}
            heard = Heard(self.worker_states, self.failures)
            names = ask_to_vote(self._setup, voter, self.terms, valid, heard)
        # A plug-in may name anything; what is not a candidate is ignored.
        given = names if isinstance(names, list | tuple) else ()
        return tuple(sorted({place for name, place in places.items() if name in given}))

    def _update(self, payload: Digest, data: bytes, radius: float) -> Tensor | None:
        """The candidate as it is scored, no longer than the radius; None if it is not valid."""
        if payload not in self._read:
            valid = aggregate.payload_fault(data, self._params) is None
            update = from_payload(data) if valid else None
            self._read[payload] = update if update is None else bound_update(update, radius)
        return self._read[payload]

    def _marks_of(self, ids: tuple[ProposalId, ...], payloads: Sequence[Digest]) -> MarksOf:
        """The losses of these candidates; voters who hold the same ones share the computation."""
        key = tuple(payloads)
        if key not in self._marks:
            updates = [update for p in payloads if (update := self._read[p]) is not None]
            self._marks[key] = self._scores.marks(
                ids, lambda scores: scores.losses(torch.stack(updates))
            )
        return self._marks[key]

    @property
    def number(self) -> int:
        """Which round it is."""
        return self._setup.number


@dataclass(frozen=True, slots=True, eq=False)
class _WorkerLearning:
    """One worker's part in the learning of a round."""

    round: RoundLearning
    worker: WorkerId

    def propose(self, job: Propose, model: bytes) -> bytes | None:
        """The worker's update, or the coalition's lie."""
        del model  # The setup holds its numbers.
        # The first to commit begins the next round, which is played in another cluster.
        sent = self.round.sent.payloads if job.round == self.round.number else {}
        return sent.get(self.worker)

    def judge(self, job: Judge, model: bytes, payloads: Sequence[bytes]) -> tuple[int, ...] | None:
        """The worker's ballot."""
        del model
        if job.round != self.round.number:
            return None
        return self.round.approve(self.worker, job, payloads)

    def combine(
        self, job: Combine, model: bytes, payloads: Sequence[bytes]
    ) -> tuple[bytes | None, float]:
        """The new model and radius, computed as every worker does, bit for bit."""
        return aggregate.combine(model, payloads, radius=job.radius, rate=job.rate)


# ------------------------------------------------------------------------------------- the payload


def to_payload(vector: Tensor) -> bytes:
    """An update or a model as it travels."""
    return aggregate.canonical(device.to_numpy(vector.float().contiguous()))


def from_payload(data: bytes) -> Tensor:
    """The numbers of a payload."""
    return device.from_numpy(np.frombuffer(data, np.dtype("<f4")).astype(np.float32))


def _is_too_large(data: bytes, params: Params) -> bool:
    if len(data) != params.payload_bytes:
        return False
    values = from_payload(data)
    return bool(values.isfinite().all()) and float(values.abs().max()) > params.coordinate_max


def _distinct(received: Sequence[object], params: Params) -> list[bytes | None]:
    """Payloads of what proposers send, no two alike.

    Copies of a gradient count once in a block. A liar who knows that changes one coordinate as
    little as possible, and so does the coalition.
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
    plain = update.layout is torch.strided and device.is_here(update)
    return plain and update.is_floating_point() and update.ndim == 1


def _nudged(data: bytes, coordinate: int) -> bytes:
    values = np.frombuffer(data, np.dtype("<f4")).copy()
    here = coordinate % len(values)
    upwards = np.nextafter(values[here], np.float32(np.inf))
    values[here] = upwards if abs(upwards) >= aggregate.SMALLEST else aggregate.SMALLEST
    return aggregate.canonical(values)
