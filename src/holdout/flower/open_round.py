"""One round of a federation, as values: whom it asked, what they sent, what was decided."""

import ctypes
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import NamedTuple

import torch
from flwr.app import Array, ArrayRecord, Metadata, RecordDict
from flwr.serverapp import Grid
from torch import Tensor

from holdout.custom_code import Kept
from holdout.flower.answers import Answers, RejectedReply, ReplyFault
from holdout.flower.arrays import Layout, Numbers, array_records, read_proposal
from holdout.ids import ProposalId, RoundNumber, WorkerId
from holdout.rounds import (
    AdmittedProposals,
    Decision,
    Outcome,
    RoundRecord,
    admit_proposals,
    record_round,
)
from holdout.voting import Committee, tolerated_count


class DrawSizes(NamedTuple):
    """How many nodes propose and how many vote."""

    proposers: int
    voters: int


@dataclass(frozen=True, slots=True, eq=False)
class Verdict:
    """What a strategy decided."""

    decision: Decision
    ballot_faults: Sequence[RejectedReply] = ()
    proposal_faults: Sequence[RejectedReply] = ()
    """Valid updates that do not count all the same."""
    accepted: Sequence[Tensor] = ()
    """The accepted updates, bounded; only where they are needed one by one."""
    radius: float | None = None
    """The bound on this round's updates, if there is one."""
    rule_state: Kept = field(default_factory=dict)
    """What the rule keeps for the next round."""
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
    """The metadata of the messages to the proposers."""
    previous_radius: float | None
    """The bound on the last round's updates, if there was one."""
    rule_state: Kept
    """What the rule kept of the last round."""
    wait_seconds: float
    asked_at: float
    buffers: dict[int, Mapping[str, Numbers]] = field(default_factory=dict)
    """Node id -> the buffers of its reply, as far as replies have been read."""

    def take(
        self, answers: Answers, nodes: Sequence[int], *, key: str
    ) -> tuple[list[Tensor | None], list[RejectedReply]]:
        """The updates g_j = w - w_j of these nodes, and every reply that holds none.

        An array is no longer held by the reply once it has been read.
        """
        faults = list(answers.faults)
        updates: list[Tensor | None] = []
        for node in nodes:
            update = None
            if node in answers.contents:
                content = answers.contents[node]
                found = read_proposal(content, self.layout, key=key)
                for name in array_records(content):
                    del content[name]
                _give_back_memory(self.weights.nbytes)
                if isinstance(found, ReplyFault):
                    faults.append(RejectedReply(node, found.value))
                else:
                    self.buffers[node] = found.buffers
                    update = torch.sub(self.weights, found.weights, out=found.weights)
            updates.append(update)
        return updates, faults

    def admit(self, answers: Answers, *, key: str) -> tuple[AdmittedProposals, list[RejectedReply]]:
        """The valid updates of the proposers, and every reply that holds none."""
        received, faults = self.take(answers, self.proposers, key=key)
        admitted = admit_proposals(received, dimension=len(self.weights))
        # What is missing for the core is among the faults already, with the reason.
        faults += [
            RejectedReply(self.proposers[place], fault.value)
            for place, fault in admitted.faults.items()
            if received[place] is not None
        ]
        return admitted, faults

    def average_buffers(self, proposals: Iterable[ProposalId], *, f: Fraction) -> dict[str, Array]:
        """The mean of these proposers' buffers; what is not averaged is as in the current model."""
        held = [self.buffers[self.proposers[proposal]] for proposal in proposals]
        averaged = self.layout.average_buffers(held, cut=tolerated_count(len(held), f))
        return {**self.layout.others(self.arrays), **averaged}

    def step(
        self, decision: Decision, *, f: Fraction, valid: Iterable[ProposalId]
    ) -> tuple[ArrayRecord, Outcome]:
        """The next model w - v (the learning rate is part of v), and the round's outcome.

        Buffers are averaged over the selection or, where the rule names nobody, over all that is
        `valid`.
        """
        update = decision.update
        if decision.outcome is not Outcome.STEP or update is None:
            return self.arrays, decision.outcome
        chosen = valid if decision.selection is None else decision.selection
        others = self.average_buffers(chosen, f=f)
        arrays = self.layout.fill(self.weights - update, others)
        # The model's dtype may be narrower than the vector's.
        landed = self.layout.read(arrays)
        if isinstance(landed, ReplyFault) or not landed.isfinite().all():
            return self.arrays, Outcome.OVERFLOW
        return arrays, decision.outcome


_MUCH = 2**20  # Bytes; less is not worth the call.


def _give_back_memory(size: int) -> None:
    """Have the C library return to the system what was freed, if that is so many bytes.

    Replies come on many threads, in pieces that the library puts into each thread's own store. It
    would keep all of that for these threads, beside the updates made of it.
    """
    if size < _MUCH or sys.platform != "linux":
        return
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)


def use_only_arrays(contents: Iterable[RecordDict], key: str) -> None:
    """Give an ArrayRecord of another name the usual one, where it is the only one of a reply."""
    for content in contents:
        records = array_records(content)
        if len(records) == 1 and key not in content:
            ((name, record),) = records.items()
            content[key] = record
            del content[name]


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
    proposers, voters = (
        tuple(numbers[node] for node in nodes)
        for nodes in (open_round.proposers, open_round.voters)
    )
    record = record_round(
        rule=rule,
        attack=attack,
        seed=seed,
        round_number=open_round.number,
        committee=Committee(proposers, voters),
        byzantine=None,
        decision=verdict.decision,
        proposal_faults=[fault.reason for fault in faults],
        ballot_faults=[fault.reason for fault in verdict.ballot_faults],
        # A rule that is not a vote draws no voters.
        is_vote=bool(voters),
        radius=verdict.radius,
    )
    return replace(record, seconds=seconds)
