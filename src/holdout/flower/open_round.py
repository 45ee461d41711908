"""One round of a federation, as values: whom it asked, what they sent, what was decided."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from flwr.app import ArrayRecord, Metadata
from flwr.serverapp import Grid
from torch import Tensor

from holdout.flower.arrays import Layout, read_proposal
from holdout.flower.exchange import Answers, RejectedReply, ReplyFault
from holdout.ids import RoundNumber, WorkerId
from holdout.rounds import AdmittedProposals, Decision, Outcome, RoundRecord, admit_proposals, count

TOO_FEW_BALLOTS, OVERFLOW = "too-few-ballots", "overflow"
"""Outcomes of a round that keeps the model, besides those of the core."""


class DrawSizes(NamedTuple):
    """How many nodes propose and how many vote."""

    proposers: int
    voters: int


@dataclass(frozen=True, slots=True, eq=False)
class Verdict:
    """What a strategy decided."""

    decision: Decision
    outcome: str
    ballot_faults: Sequence[RejectedReply] = ()
    radius: float | None = None
    vote_seconds: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class OpenRound:
    """A round whose proposers have been asked."""

    number: RoundNumber
    grid: Grid
    arrays: ArrayRecord
    """The current model, also as `weights` (w_t) by its `layout`."""
    layout: Layout
    weights: Tensor
    proposers: list[int]
    """Node ids; a proposer's place is the id of its proposal."""
    voters: list[int]
    """Node ids."""
    asked: list[Metadata]
    """Of the messages to the proposers."""
    previous_radius: float | None
    """The bound on the last round's updates, if there was one."""
    wait_seconds: float
    asked_at: float

    def admit(self, answers: Answers, *, key: str) -> tuple[AdmittedProposals, list[RejectedReply]]:
        """The valid updates g_j = w - w_j, and every reply that holds none."""
        faults = list(answers.faults)
        received: list[Tensor | None] = []
        for node in self.proposers:
            update = None
            if node in answers.contents:
                found = read_proposal(answers.contents[node], self.layout, key=key)
                if isinstance(found, ReplyFault):
                    faults.append(RejectedReply(node, found.value))
                else:
                    update = self.weights - found
            received.append(update)
        admitted = admit_proposals(received, dimension=len(self.weights))
        # What is missing for the core is among the faults already, with the reason.
        faults += [
            RejectedReply(self.proposers[place], fault.value)
            for place, fault in admitted.faults.items()
            if received[place] is not None
        ]
        return admitted, faults

    def step(self, verdict: Verdict) -> tuple[ArrayRecord, str]:
        """The next model w - v (the learning rate is part of v), and the round's outcome."""
        update = verdict.decision.update
        if verdict.outcome != Outcome.STEP or update is None:
            return self.arrays, verdict.outcome
        arrays = self.layout.fill(self.weights - update, self.layout.others(self.arrays))
        # The model's dtype may be narrower than the vector's.
        landed = self.layout.read(arrays)
        if isinstance(landed, ReplyFault) or not landed.isfinite().all():
            return self.arrays, OVERFLOW
        return arrays, verdict.outcome


def make_record(
    open_round: OpenRound,
    verdict: Verdict,
    faults: Sequence[RejectedReply],
    *,
    numbers: Mapping[int, WorkerId],
    rule: str,
    attack: str,
    seed: int,
    seconds: float,
) -> RoundRecord:
    """The round's record; `faults` are those of the proposals."""
    decision = verdict.decision
    voters = [numbers[node] for node in open_round.voters]
    ballots = [
        list(decision.ballots[voter].approved) if voter in decision.ballots else None
        for voter in voters
    ]
    return RoundRecord(
        rule=rule,
        attack=attack,
        seed=seed,
        round=open_round.number,
        accuracy=None,
        loss=None,
        worst_class_recall=None,
        gamma=None,
        proposers=[numbers[node] for node in open_round.proposers],
        voters=voters,
        # Nobody here knows who lies.
        byzantine_workers=(),
        byzantine_proposers=None,
        byzantine_voters=None,
        byzantine_selected=None,
        # A rule that is not a vote draws no voters.
        ballots=ballots if voters else None,
        selection=decision.selection,
        approve_count=decision.approve_count,
        quorum=decision.quorum,
        radius=verdict.radius,
        outcome=verdict.outcome,
        rejected_proposals=count(fault.reason for fault in faults),
        rejected_ballots=count(fault.reason for fault in verdict.ballot_faults),
        seconds=seconds,
    )
