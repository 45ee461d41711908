"""The steps of a round that a truthful server takes (Algorithm 2), and what is recorded of it.

    admit_proposals    what proposers sent -> valid updates, counted faults
    bound_updates      scale them down to the radius r_t (a vote by names that has a bound)
    conclude_vote      what voters sent -> union-consensus -> its mean, v_t
    conclude_joint     the same for joint ballots: voters sent updates of their own
    apply_rule         the other way: a baseline rule over all valid updates
    record_round       the round as a line of `results.jsonl`

Nothing a worker sends raises. A round that cannot decide makes no step and says why. A simulated
federation, Flower's strategy and a network without a server all take these steps.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from functools import partial
from typing import Any

import torch
from torch import Tensor

from holdout.errors import InfeasibleError
from holdout.heterogeneity import DISSIMILARITY, MEAN_NORM2
from holdout.ids import ProposalId, WorkerId
from holdout.joint_vote import JointMemory, decide_jointly
from holdout.learning.vector import ProposalFault, norm, read_update, shrink
from holdout.rules import Rule, RuleContext, mean
from holdout.tracebacks import Failure
from holdout.voting import (
    Approvals,
    BallotFault,
    Committee,
    Gate,
    JointBallot,
    Selection,
    Terms,
    admit_ballots,
    bound_radius,
    cast_approvals,
)


class Outcome(StrEnum):
    """What became of a round."""

    STEP = "step"
    EMPTY_SELECTION = "empty-selection"
    """No proposal reached the quorum."""
    NO_PROPOSALS = "no-proposals"
    """Nothing valid was proposed."""
    TOO_FEW_BALLOTS = "too-few-ballots"
    """Too few ballots are valid for their result to count."""
    INFEASIBLE = "infeasible"
    """The rule cannot work with so few valid proposals."""
    RAISED = "raised"
    """The custom rule raised an error, which is counted; there is no step."""
    DIVERGED = "diverged"
    """The step led to weights or a loss that are not finite; the curve ends here."""
    OVERFLOW = "overflow"
    """The step would have led to weights that the arrays of a Flower model cannot hold."""


@dataclass(frozen=True, slots=True, eq=False)
class AdmittedProposals:
    """The valid updates by id, in id order, and what was wrong with the others."""

    valid: Mapping[ProposalId, Tensor]
    faults: Mapping[ProposalId, ProposalFault]

    def stacked(self) -> Tensor:
        """The valid updates in one tensor, (N_p, d)."""
        return torch.stack(list(self.valid.values()))


@dataclass(frozen=True, slots=True, eq=False)
class Decision:
    """What the server decided, and from what."""

    outcome: Outcome
    update: Tensor | None = None
    """v_t; None where the round makes no step."""
    selection: Selection | None = None
    """The proposals that the update is the mean of; None where the rule names nobody."""
    ballots: Mapping[WorkerId, Approvals] = field(default_factory=dict)
    """Whom each voter approves. A joint ballot speaks for the at most k proposals with which it
    agrees most, of those with which it agrees at all."""
    void_ballots: Sequence[tuple[WorkerId, BallotFault]] = ()
    approve_count: int | None = None
    quorum: int | None = None
    weights: Mapping[ProposalId, float] | None = None
    """The weight of each selected proposal, where they differ (joint ballots)."""
    voter_weights: Mapping[WorkerId, float] | None = None
    """The weight of each voter in the holdout direction (joint ballots)."""

    @property
    def ballot_faults(self) -> list[str]:
        """Why ballots are void."""
        return [fault.value for _, fault in self.void_ballots]


def admit_proposals(received: Sequence[object], *, dimension: int) -> AdmittedProposals:
    """Sort out what is missing, of wrong shape or not finite; place = proposal id."""
    valid: dict[ProposalId, Tensor] = {}
    faults: dict[ProposalId, ProposalFault] = {}
    for place, update in enumerate(received):
        read = read_update(update, dimension)
        if isinstance(read, ProposalFault):
            faults[ProposalId(place)] = read
        else:
            valid[ProposalId(place)] = read
    return AdmittedProposals(valid, faults)


def bound_updates(
    admitted: AdmittedProposals, *, previous_radius: float | None
) -> tuple[AdmittedProposals, float | None]:
    """Every update scaled down to this round's radius, and the radius."""
    norms = {p: norm(update) for p, update in admitted.valid.items()}
    radius = bound_radius(list(norms.values()), previous=previous_radius)
    bounded = {p: shrink(u, norms[p], radius) for p, u in admitted.valid.items()}
    return AdmittedProposals(bounded, admitted.faults), radius


def bound_update(update: Tensor, radius: float | None) -> Tensor:
    """One update scaled down to a radius that is already agreed on; None or 0: no bound."""
    return shrink(update, norm(update), radius or None)


def conclude_vote(
    admitted: AdmittedProposals,
    sent: Iterable[tuple[WorkerId, object]],
    *,
    voters: Sequence[WorkerId],
    terms: Terms,
    ballots_min: int = 0,
) -> Decision:
    """A_Consensus: count the valid ballots and average the union-consensus.

    With fewer than `ballots_min` valid ballots nothing is selected.
    """
    if not admitted.valid:
        return Decision(Outcome.NO_PROPOSALS)
    ballots = terms.admit(sent, voters=voters, proposals=admitted.valid)
    enough = len(ballots.valid) >= ballots_min
    selection = terms.select(ballots.valid, drawn=len(voters)) if enough else ()
    update = mean(torch.stack([admitted.valid[p] for p in selection]), f=0) if selection else None
    outcome = Outcome.STEP if selection else Outcome.EMPTY_SELECTION
    return Decision(
        outcome=outcome if enough else Outcome.TOO_FEW_BALLOTS,
        update=update,
        selection=selection,
        ballots=ballots.valid,
        void_ballots=ballots.void,
        approve_count=terms.approve_count(len(admitted.valid)),
        quorum=terms.quorum(drawn=len(voters), valid=len(ballots.valid)),
    )


def conclude_joint(
    admitted: AdmittedProposals,
    sent: Iterable[tuple[WorkerId, object]],
    *,
    voters: Sequence[WorkerId],
    terms: Terms,
    memory: JointMemory,
) -> tuple[Decision, JointMemory]:
    """A_Consensus of joint ballots: one direction of all voters judges the proposals.

    Returns:
        What is decided, and what the next round's vote must know.
    """
    if not admitted.valid:
        return Decision(Outcome.NO_PROPOSALS), memory
    ids, updates = tuple(admitted.valid), list(admitted.valid.values())
    read = partial(_read_message, dimension=len(updates[0]))
    ballots = admit_ballots(sent, voters=voters, read=read)
    messages = [ballot.update for ballot in ballots.valid.values()]
    found = decide_jointly(updates, messages, terms=terms, memory=memory)
    weights = {p: weight for p, weight in zip(ids, found.weights, strict=True) if weight > 0}
    count = terms.approve_count(len(ids))
    decision = Decision(
        outcome=Outcome.STEP,
        update=found.update,
        selection=tuple(weights),
        ballots={
            voter: _supported(dict(zip(ids, row, strict=True)), count)
            for voter, row in zip(ballots.valid, found.support.tolist(), strict=True)
        },
        void_ballots=ballots.void,
        approve_count=count,
        weights=weights,
        voter_weights=dict(zip(ballots.valid, found.judges, strict=True)),
    )
    return decision, found.memory


def _read_message(message: object, *, dimension: int) -> JointBallot | BallotFault:
    found = read_update(message, dimension)
    return JointBallot(found) if isinstance(found, Tensor) else _FAULTS[found]


_FAULTS = {
    ProposalFault.MISSING: BallotFault.MISSING,
    ProposalFault.MISSHAPEN: BallotFault.MALFORMED,
    ProposalFault.NOT_FINITE: BallotFault.NOT_FINITE,
}


def _supported(cosines: Mapping[ProposalId, float], count: int) -> Approvals:
    """The proposals that a voter's update speaks for: to first order, they lower its loss."""
    changes = {p: -cosine for p, cosine in cosines.items()}
    return cast_approvals(changes, approve_count=count, gate=Gate.ZERO, current_loss=0.0)


def apply_rule(
    admitted: AdmittedProposals, rule: Rule, *, f: int, context: RuleContext | None = None
) -> Decision:
    """A baseline: the rule over all valid updates; no step where it is infeasible."""
    if not admitted.valid:
        return Decision(Outcome.NO_PROPOSALS)
    try:
        updates = rule.prepare(admitted.stacked(), f=f, context=context)
        if rule.choose is None:
            return Decision(Outcome.STEP, rule.finish(updates, f=f, context=context))
        chosen = list(rule.choice(updates, f=f, context=context))
    except InfeasibleError:
        return Decision(Outcome.INFEASIBLE)
    ids = list(admitted.valid)
    return Decision(
        Outcome.STEP,
        update=mean(updates if len(chosen) == len(updates) else updates[chosen], f=0),
        selection=tuple(sorted(ids[i] for i in chosen)) if rule.names_proposals else None,
    )


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
    attack_success: float | None
    """Of triggered test rows, the share that is misread as the attack wants it; in the lines of
    `results.jsonl` only where it was measured."""
    initial: Mapping[str, float | None] | None
    """In round 1: what an evaluation of the initial weights measures."""
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
    weights: Sequence[float] | None
    voter_weights: Sequence[float | None] | None
    outcome: str
    rejected_proposals: Mapping[str, int]
    rejected_ballots: Mapping[str, int]
    custom_errors: Sequence[Failure]
    """What custom code raised; a line of `results.jsonl` counts it."""
    honest_missing: int
    """How many honest proposals were rejected, of those that custom workers were to send."""
    dissimilarity: float | None = field(default=None, kw_only=True)
    """In evaluated rounds (1 / h) sum_i |g_i - g|^2 of the h honest proposals, g their mean."""
    mean_norm2: float | None = field(default=None, kw_only=True)
    """|g|^2."""
    seconds: float
    r2: float | None = field(default=None, kw_only=True)
    mae: float | None = field(default=None, kw_only=True)
    """Measured in place of accuracy and recall, where targets are real-valued."""

    @property
    def is_evaluated(self) -> bool:
        """Whether the model was measured after this round."""
        return self.accuracy is not None or self.mae is not None

    def as_dict(self) -> dict[str, Any]:
        """Plain values, in the order of the fields; optional fields only where they are set."""
        values = asdict(self)
        values["custom_errors"] = count(failure.kind for failure in self.custom_errors)
        left_out = {key for key in ("custom_errors", "honest_missing") if not values[key]}
        optional = ("attack_success", "initial", DISSIMILARITY, MEAN_NORM2)
        left_out |= {key for key in optional if values[key] is None}
        if self.mae is None:
            left_out |= {"r2", "mae"}
        return {key: value for key, value in values.items() if key not in left_out}


def record_round(
    *,
    rule: str,
    attack: str,
    seed: int,
    round_number: int,
    committee: Committee,
    byzantine: frozenset[WorkerId] | None,
    decision: Decision,
    proposal_faults: Iterable[str],
    ballot_faults: Iterable[str],
    is_vote: bool,
    asks_voters: bool = False,
    gamma: float | None = None,
    radius: float | None = None,
    custom_errors: Sequence[Failure] = (),
    honest_missing: int = 0,
) -> RoundRecord:
    """The record of a round; what an evaluation measures, and the seconds, come later.

    Args:
        rule: The rule's name.
        attack: The attack's name.
        seed: The seed that decided the draws.
        round_number: The round, counted from 1.
        committee: Who was drawn.
        byzantine: Who lies; None where nobody can know.
        decision: What was decided, and from which ballots.
        proposal_faults: Why proposals were rejected.
        ballot_faults: Why ballots are void.
        is_vote: Whether the rule is a vote.
        asks_voters: Whether it is a rule that asks voters; others have none.
        gamma: The strength of the lies, if they have one.
        radius: The radius of the bound, if there is one.
        custom_errors: What custom code raised.
        honest_missing: How many proposals of honest custom workers were rejected.
    """
    proposers, voters = committee.proposers, committee.voters if is_vote or asks_voters else ()
    ballots = [list(decision.ballots[v].message) if v in decision.ballots else None for v in voters]
    shares = decision.voter_weights
    return RoundRecord(
        rule=rule,
        attack=attack,
        seed=seed,
        round=round_number,
        accuracy=None,
        loss=None,
        worst_class_recall=None,
        attack_success=None,
        initial=None,
        gamma=gamma,
        proposers=proposers,
        voters=voters,
        **_liars(byzantine, proposers, voters, decision.selection),
        ballots=ballots if is_vote else None,
        selection=decision.selection,
        approve_count=decision.approve_count,
        quorum=decision.quorum,
        radius=radius,
        weights=None if decision.weights is None else list(decision.weights.values()),
        voter_weights=None if shares is None else [shares.get(voter) for voter in voters],
        outcome=decision.outcome,
        rejected_proposals=count(proposal_faults),
        rejected_ballots=count(ballot_faults),
        custom_errors=custom_errors,
        honest_missing=honest_missing,
        seconds=0.0,
    )


def _liars(
    byzantine: frozenset[WorkerId] | None,
    proposers: Sequence[WorkerId],
    voters: Sequence[WorkerId],
    selection: Sequence[ProposalId] | None,
) -> dict[str, Any]:
    """The fields of a record that say who of those drawn lies, as far as anybody can know."""
    if byzantine is None:
        names = ("byzantine_proposers", "byzantine_voters", "byzantine_selected")
        return {"byzantine_workers": (), **dict.fromkeys(names)}
    lies = {ProposalId(p) for p, worker in enumerate(proposers) if worker in byzantine}
    return {
        "byzantine_workers": sorted(byzantine.intersection({*proposers, *voters})),
        "byzantine_proposers": len(lies),
        "byzantine_voters": len(byzantine.intersection(voters)),
        "byzantine_selected": None if selection is None else len(lies.intersection(selection)),
    }


def with_dissimilarity(record: RoundRecord, honest: Sequence[Tensor]) -> RoundRecord:
    """The record with how much the honest updates differ, if it is evaluated and there are two.

    Six digits, since updates hold seven: the last bits depend on the number of threads.
    """
    if not record.is_evaluated or len(honest) < 2:  # noqa: PLR2004
        return record
    mean_update = mean(torch.stack(list(honest)), f=0)
    apart = sum(norm(update - mean_update) ** 2 for update in honest) / len(honest)
    length = norm(mean_update) ** 2
    return replace(record, dissimilarity=float(f"{apart:.6g}"), mean_norm2=float(f"{length:.6g}"))


def count(faults: Iterable[str]) -> dict[str, int]:
    """How often each fault occurred, by name."""
    return dict(sorted(Counter(faults).items()))
