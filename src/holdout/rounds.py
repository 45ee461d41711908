"""One coordinated round: what the truthful server does with what workers send (Algorithm 2).

    admit_proposals    what proposers sent -> valid updates, counted faults
    bound_updates      scale them down to the radius r_t (rule `holdout` only)
    conclude_vote      what voters sent -> union-consensus -> its mean, v_t
    apply_rule         the other way: a baseline rule over all valid updates

Nothing a worker sends raises. A round that cannot decide makes no step and says why.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from holdout.errors import InfeasibleError
from holdout.ids import ProposalId, WorkerId
from holdout.rules import (
    Rule,
    krum_choice,
    krum_unsquared_choice,
    mean,
    multi_krum_choice,
)
from holdout.voting import Ballot, BallotFault, Selection, Terms, bound_radius, tally


class Outcome(StrEnum):
    """What became of a round."""

    STEP = "step"
    EMPTY_SELECTION = "empty-selection"
    """No proposal reached the quorum."""
    NO_PROPOSALS = "no-proposals"
    """Nothing valid was proposed."""
    INFEASIBLE = "infeasible"
    """The rule cannot work with as few valid proposals as came."""
    DIVERGED = "diverged"
    """The step led to weights or a loss that are not finite; the curve ends here."""


class ProposalFault(StrEnum):
    """Why a proposal is out before anything else."""

    MISSING = "missing"
    MISSHAPEN = "misshapen"
    """Not a vector of d floats."""
    NOT_FINITE = "not-finite"


@dataclass(frozen=True, slots=True, eq=False)
class AdmittedProposals:
    """The valid updates by id, in id order, and what was wrong with the others."""

    valid: Mapping[ProposalId, Tensor]
    faults: Mapping[ProposalId, ProposalFault]

    def stacked(self) -> Tensor:
        """(N_p, d)."""
        return torch.stack(list(self.valid.values()))


@dataclass(frozen=True, slots=True, eq=False)
class Decision:
    """What the server decided, and from what."""

    outcome: Outcome
    update: Tensor | None = None
    """v_t; None where the round makes no step."""
    selection: Selection | None = None
    """The proposals that the update is the mean of; None where the rule names nobody."""
    ballots: Mapping[WorkerId, Ballot] = field(default_factory=dict)
    void_ballots: Sequence[tuple[WorkerId, BallotFault]] = ()
    approve_count: int | None = None
    quorum: int | None = None

    @property
    def ballot_faults(self) -> list[str]:
        """Why ballots are void."""
        return [fault.value for _, fault in self.void_ballots]


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """All that a round did: the row every report is made of, one line of `results.jsonl`."""

    rule: str
    attack: str
    seed: int
    round: int
    accuracy: float | None
    loss: float | None
    worst_class_recall: float | None
    gamma: float | None
    proposers: Sequence[int]
    voters: Sequence[int]
    byzantine_workers: Sequence[int]
    byzantine_proposers: int | None
    byzantine_voters: int | None
    byzantine_selected: int | None
    ballots: Sequence[Sequence[int] | None] | None
    selection: Sequence[int] | None
    approve_count: int | None
    quorum: int | None
    radius: float | None
    outcome: str
    rejected_proposals: Mapping[str, int]
    rejected_ballots: Mapping[str, int]
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        """Plain values in the order above."""
        return asdict(self)


def admit_proposals(received: Sequence[object], *, dimension: int) -> AdmittedProposals:
    """Sort out what is missing, of wrong shape or not finite; place = proposal id."""
    valid: dict[ProposalId, Tensor] = {}
    faults: dict[ProposalId, ProposalFault] = {}
    for place, update in enumerate(received):
        read = _read(update, dimension)
        if isinstance(read, ProposalFault):
            faults[ProposalId(place)] = read
        else:
            valid[ProposalId(place)] = read
    return AdmittedProposals(valid, faults)


def _read(update: object, dimension: int) -> Tensor | ProposalFault:
    if update is None:
        return ProposalFault.MISSING
    # Of a sparse tensor, or one without values (device `meta`), not even the numbers can be read.
    plain = isinstance(update, Tensor) and update.layout is torch.strided and update.is_cpu
    if not isinstance(update, Tensor) or not plain or update.shape != (dimension,):
        return ProposalFault.MISSHAPEN
    if not update.is_floating_point():
        return ProposalFault.MISSHAPEN
    # Only then: what float64 holds may be too large for float32.
    numbers = update.detach().float()
    # The sum is finite only if all are, and quick; finite numbers whose sum is not are rare.
    finite = numbers.sum().isfinite() or numbers.isfinite().all()
    return numbers if finite else ProposalFault.NOT_FINITE


def bound_updates(
    admitted: AdmittedProposals, *, previous_radius: float | None
) -> tuple[AdmittedProposals, float | None]:
    """Every update scaled down to this round's radius, and the radius."""
    norms = {p: norm(update) for p, update in admitted.valid.items()}
    radius = bound_radius(list(norms.values()), previous=previous_radius)
    bounded = {p: shrink(u, norms[p], radius) for p, u in admitted.valid.items()}
    return AdmittedProposals(bounded, admitted.faults), radius


def norm(update: Tensor) -> float:
    """The L2 norm, in float64: a finite float32 vector never overflows it."""
    return float(torch.linalg.vector_norm(update, dtype=torch.float64))


def shrink(update: Tensor, length: float, radius: float | None) -> Tensor:
    """The update scaled down to the radius; as it is if it is short enough."""
    if radius is None or length <= radius:
        return update
    return (update.double() * (radius / length)).float()


def conclude_vote(
    admitted: AdmittedProposals,
    sent: Iterable[tuple[WorkerId, object]],
    *,
    voters: Sequence[WorkerId],
    terms: Terms,
) -> Decision:
    """A_Consensus: count the valid ballots and average the union-consensus."""
    if not admitted.valid:
        return Decision(Outcome.NO_PROPOSALS)
    ballots = terms.admit(sent, voters=voters, proposals=admitted.valid)
    quorum = terms.quorum(drawn=len(voters), valid=len(ballots.valid))
    selection = tally(ballots.valid, quorum=quorum)
    return Decision(
        outcome=Outcome.STEP if selection else Outcome.EMPTY_SELECTION,
        update=mean(torch.stack([admitted.valid[p] for p in selection]), f=0)
        if selection
        else None,
        selection=selection,
        ballots=ballots.valid,
        void_ballots=ballots.void,
        approve_count=terms.approve_count(len(admitted.valid)),
        quorum=quorum,
    )


CHOICES: Mapping[str, Callable[[Tensor, int], Sequence[int]]] = MappingProxyType(
    {
        "mean": lambda updates, _f: range(len(updates)),
        "krum": lambda updates, f: [krum_choice(updates, f=f)],
        "krum-unsquared": lambda updates, f: [krum_unsquared_choice(updates, f=f)],
        "multi-krum": lambda updates, f: multi_krum_choice(updates, f=f),
    }
)
"""The rules that are the mean of the updates they choose; the others blend by coordinate."""


def apply_rule(admitted: AdmittedProposals, rule: Rule, *, name: str, f: int) -> Decision:
    """A baseline: the rule over all valid updates; no step where it is infeasible."""
    if not admitted.valid:
        return Decision(Outcome.NO_PROPOSALS)
    updates = admitted.stacked()
    try:
        if name not in CHOICES:
            return Decision(Outcome.STEP, update=rule(updates, f=f))
        chosen = list(CHOICES[name](updates, f))
    except InfeasibleError:
        return Decision(Outcome.INFEASIBLE)
    ids = list(admitted.valid)
    return Decision(
        Outcome.STEP,
        update=mean(updates if len(chosen) == len(updates) else updates[chosen], f=0),
        selection=tuple(sorted(ids[i] for i in chosen)),
    )


def count(faults: Iterable[str]) -> dict[str, int]:
    """How often each fault occurred, by name."""
    return dict(sorted(Counter(faults).items()))
