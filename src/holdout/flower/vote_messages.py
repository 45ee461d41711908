"""The vote on the wire: the message that asks for a ballot, and the reply that holds one.

    VoteCall          the server's question: all candidates as ONE array, and the terms of the vote
    VoteCall.ballot   the voter's answer, from its holdout losses
    read_ballot       the answer as the server counts it

Only this module knows how approvals travel; joint ballots are ordinary train replies (`joint`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Self

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from holdout.flower.arrays import Layout, Numbers
from holdout.ids import ProposalId
from holdout.voting import Gate, Terms

# The vote message's type where the client registered `@app.evaluate("vote")`, and where it has
# only `@app.evaluate()` with `vote_mod` around it.
VOTE_TYPE, PLAIN_VOTE_TYPE = "evaluate.vote", "evaluate"

# Names of the records in a vote message and its reply, and of their entries.
_CANDIDATES, _VOTE, _BALLOT, _OTHERS = "candidates", "vote", "ballot", "others"
_STACKED, _APPROVED = "stacked", "approved"

_UNKNOWN_ID = ProposalId(-1)


@dataclass(frozen=True, slots=True, eq=False)
class VoteCall:
    """What one voter is asked: candidates in an order of its own, without the proposers' names."""

    layout: Layout
    stacked: Numbers
    """(1 + N_p, d): the current model first, then the candidates."""
    terms: Terms
    round: int
    holdout_samples: int | None
    """The paper's m_c; None: all that the voter has."""
    others: Mapping[str, Array]
    """The current model's arrays that are not part of the vectors."""
    config: ConfigRecord
    """The user's evaluation config."""
    array_key: str
    config_key: str

    def content(self) -> RecordDict:
        """The records of the message."""
        settings = ConfigRecord(
            {
                "layout": self.layout.to_json(),
                "byzantine-fraction": str(self.terms.f),
                "gate": self.terms.gate.value if self.terms.gate else "",
                "server-round": self.round,
                "holdout-samples": self.holdout_samples or 0,
                "array-key": self.array_key,
                "config-key": self.config_key,
            }
        )
        records: dict[str, ArrayRecord | ConfigRecord | MetricRecord] = {
            _CANDIDATES: ArrayRecord({_STACKED: Array(self.stacked)}),
            _VOTE: settings,
            self.config_key: self.config,
        }
        if self.others:
            records[_OTHERS] = ArrayRecord(dict(self.others))
        return RecordDict(records)

    @classmethod
    def read(cls, message: Message) -> Self:
        """The call as the voter gets it. The server is trusted: a malformed call simply raises."""
        content = message.content
        settings = content.config_records[_VOTE]
        gate = str(settings["gate"])
        samples = settings["holdout-samples"]
        others = content.array_records.get(_OTHERS)
        config_key = str(settings["config-key"])
        return cls(
            layout=Layout.from_json(str(settings["layout"])),
            stacked=np.asarray(content.array_records[_CANDIDATES][_STACKED].numpy()),
            terms=Terms(
                Fraction(str(settings["byzantine-fraction"])), gate=Gate(gate) if gate else None
            ),
            round=int(str(settings["server-round"])),
            holdout_samples=int(str(samples)) or None,
            others={} if others is None else dict(others.items()),
            config=content.config_records[config_key],
            array_key=str(settings["array-key"]),
            config_key=config_key,
        )

    def ballot(self, losses: Sequence[float]) -> RecordDict:
        """The records of the voter's reply: the candidates it approves, by place in the message.

        `losses` are the voter's holdout losses of the current model and of each candidate.
        """
        by_place = {ProposalId(place): loss for place, loss in enumerate(losses[1:])}
        approved = self.terms.cast(by_place, current_loss=losses[0]).approved
        return RecordDict({_BALLOT: MetricRecord({_APPROVED: [int(place) for place in approved]})})


def read_ballot(content: RecordDict, order: Sequence[ProposalId]) -> list[object] | None:
    """The proposals that a voter claims to approve, still to be checked; None: not a vote reply.

    `order` is the order in which this voter saw the proposals.
    """
    record = content.metric_records.get(_BALLOT)
    places = None if record is None else record.get(_APPROVED)
    if not isinstance(places, list):
        return None
    # A ballot that names more than all proposals is void: the rest need not be read.
    return [_proposal(place, order) for place in places[: len(order) + 1]]


def _proposal(place: object, order: Sequence[ProposalId]) -> object:
    if type(place) is not int:
        return place
    return order[place] if 0 <= place < len(order) else _UNKNOWN_ID


def is_vote(message: Message) -> bool:
    """Whether a message asks for a vote."""
    return message.has_content() and _VOTE in message.content.config_records
