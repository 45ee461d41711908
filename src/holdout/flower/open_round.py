"""One round of a federation, as values: whom it asked, what they sent, what was decided."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from flwr.app import ArrayRecord, Message
from flwr.serverapp import Grid
from torch import Tensor

from holdout.flower.records import Layout, ReplyFault, read_proposal
from holdout.flower.replies import Answers, RejectedReply
from holdout.ids import RoundNumber, WorkerId
from holdout.rounds import AdmittedProposals, Decision, Outcome, RoundRecord, admit_proposals, count

TOO_FEW_BALLOTS, OVERFLOW = "too-few-ballots", "overflow"
"""Outcomes of a round that keeps the model, besides the core's."""


class DrawSizes(NamedTuple):
    """How many propose and how many vote."""

    proposers: int
    voters: int


@dataclass(frozen=True, slots=True, eq=False)
class OpenRound:
    """A round whose proposers have been asked."""

    number: RoundNumber
    grid: Grid
    arrays: ArrayRecord
    layout: Layout
    weights: Tensor
    proposers: list[int]
    """Node ids; a proposer's place is the id of its proposal."""
    voters: list[int]
    asked: list[Message]
    wait_seconds: float
    asked_at: float


@dataclass(frozen=True, slots=True, eq=False)
class Verdict:
    """What a strategy decided."""

    decision: Decision
    outcome: str
    ballots: Sequence[Sequence[int] | None] | None = None
    """For each voter; None where the rule is no vote."""
    ballot_faults: Sequence[RejectedReply] = ()
    radius: float | None = None
    vote_seconds: float = 0.0


def admit(
    stage: OpenRound, answers: Answers, *, key: str
) -> tuple[AdmittedProposals, list[RejectedReply]]:
    """The valid updates, and every reply that holds none."""
    faults = list(answers.faults)
    received: list[Tensor | None] = []
    for node in stage.proposers:
        update = None
        if node in answers.contents:
            found = read_proposal(answers.contents[node], stage.layout, key=key)
            if isinstance(found, ReplyFault):
                faults.append(RejectedReply(node, found.value))
            else:
                update = stage.weights - found
        received.append(update)
    admitted = admit_proposals(received, dimension=len(stage.weights))
    # What the core calls missing was told already, with the reason.
    faults += [
        RejectedReply(stage.proposers[place], fault.value)
        for place, fault in admitted.faults.items()
        if received[place] is not None
    ]
    return admitted, faults


def step(stage: OpenRound, verdict: Verdict) -> tuple[ArrayRecord, str]:
    """w_{t+1} = w_t - v_t (the learning rate is in v_t): the arrays, and what became of it."""
    update = verdict.decision.update
    if verdict.outcome != Outcome.STEP or update is None:
        return stage.arrays, verdict.outcome
    others = stage.layout.others(stage.arrays)
    arrays = stage.layout.fill(stage.weights - update, others)
    landed = stage.layout.read(arrays)
    if isinstance(landed, ReplyFault) or not landed.isfinite().all():
        return stage.arrays, OVERFLOW
    return arrays, verdict.outcome


def make_record(
    stage: OpenRound,
    verdict: Verdict,
    faults: Sequence[RejectedReply],
    *,
    numbers: Mapping[int, WorkerId],
    names: tuple[str, str],
    seed: int,
) -> RoundRecord:
    """The round's line; `names` are the rule's and the attack's."""
    decision = verdict.decision
    return RoundRecord(
        rule=names[0],
        attack=names[1],
        seed=seed,
        round=stage.number,
        accuracy=None,
        loss=None,
        worst_class_recall=None,
        gamma=None,
        proposers=[numbers[node] for node in stage.proposers],
        voters=[numbers[node] for node in stage.voters],
        # Who lies is known to nobody here.
        byzantine_workers=(),
        byzantine_proposers=None,
        byzantine_voters=None,
        byzantine_selected=None,
        ballots=verdict.ballots,
        selection=decision.selection,
        approve_count=decision.approve_count,
        quorum=decision.quorum,
        radius=verdict.radius,
        outcome=verdict.outcome,
        rejected_proposals=count(fault.reason for fault in faults),
        rejected_ballots=count(fault.reason for fault in verdict.ballot_faults),
        seconds=0.0,
    )
