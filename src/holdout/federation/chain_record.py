"""What is recorded of a round without a server, and the chain in a checkpoint."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from holdout.agreement import wire
from holdout.agreement.blocks import Block
from holdout.agreement.headers import BlockKind, read_header
from holdout.agreement.messages import BallotMessage, Finished, Kind
from holdout.agreement.params import Mode, Params
from holdout.errors import InvalidMessage
from holdout.federation.cluster_learning import RoundLearning
from holdout.federation.round_setup import RoundSetup, State
from holdout.ids import Digest, WorkerId
from holdout.rounds import Decision, Outcome, RoundRecord, count, record_round
from holdout.simulator.cluster import Cluster
from holdout.simulator.nodes import SimulatedNode
from holdout.voting import Approvals

CONVICTED = "convicted"
"""A ballot that does not count because its voter, by the block's evidence, sent two."""

MISSING = "missing"
"""A voter was drawn, but its ballot is not in the block."""

KINDS: Mapping[Kind, str] = {
    Kind.UPDATE: "update",
    Kind.BALLOT: "ballot",
    Kind.LEAD: "lead",
    Kind.VOTE: "vote",
}


@dataclass(frozen=True, slots=True, eq=False)
class ChainState(State):
    """A state, and the chain that proves it."""

    chain: tuple[Finished, ...] = ()
    """The decided rounds that the next one may need, the newest last."""


@dataclass(frozen=True, slots=True)
class Agreed:
    """How a round was agreed on."""

    mode: str
    committee: int
    """Members of the consensus committee; in mode `self` the expected number."""
    quorum: int
    leader: int
    """Whose block it is."""
    periods: int
    """How many it took; 1 unless something went wrong."""
    ballots: int
    """Ballots in the block."""
    messages: int
    """Messages that all workers together handed to the network, blobs included."""
    bytes: int
    virtual_seconds: float
    """From the start of the round until the last honest worker had committed it."""
    evidence: Mapping[str, int]
    """Workers found to have signed two versions, by what they signed."""
    rejected: Mapping[str, int]
    """Messages that honest workers dropped, by reason."""
    block: str
    """The digest of the block's header."""
    model: str
    """The digest of the new model, the same at every honest worker."""


@dataclass(frozen=True, slots=True)
class AgreedRecord(RoundRecord):
    """The record of a round without a server."""

    agreement: Agreed


@dataclass(frozen=True, slots=True, eq=False)
class Played:
    """What a cluster decided, checked to be the same at every honest worker."""

    cluster: Cluster
    honest: Sequence[SimulatedNode]
    finished: Finished
    block: Block
    model: bytes


def record_of(
    setup: RoundSetup, learning: RoundLearning, played: Played, params: Params
) -> AgreedRecord:
    """The round as every report reads it; seconds and accuracy come later."""
    block, voters, places = played.block, setup.committee.voters, learning.places
    ballots = _counted(block)
    twice = [e.worker for e in _convictions(block) if e.kind is Kind.BALLOT]
    absent = [MISSING for v in voters if v not in ballots and v not in twice]
    named = {
        voter: Approvals(tuple(sorted(places[WorkerId(e.proposer)] for e in ballot.entries)))
        for voter, ballot in ballots.items()
    }
    decision = Decision(
        outcome=_outcome(block, params),
        selection=tuple(sorted(places[WorkerId(worker)] for worker, _ in block.selection)),
        ballots=named,
        approve_count=params.approve_count(len(block.updates)),
        # Completed ballots are counted in exact shares; this is the whole number above the quorum.
        quorum=params.approve_count(len(ballots)),
    )
    record = record_round(
        rule=setup.curve.rule,
        attack=setup.curve.attack,
        seed=setup.federation.seed,
        round_number=setup.number,
        committee=setup.committee,
        byzantine=setup.byzantine,
        decision=decision,
        proposal_faults=learning.sent.faults,
        ballot_faults=[*absent, *[CONVICTED] * len(twice)],
        is_vote=True,
        gamma=learning.sent.gamma,
        custom_errors=learning.failures,
        honest_missing=learning.sent.honest_missing,
        radius=setup.state.radius,
    )
    fields = {name: getattr(record, name) for name in RoundRecord.__dataclass_fields__}
    return AgreedRecord(**fields, agreement=_agreed(played, params))


def _counted(block: Block) -> dict[WorkerId, BallotMessage]:
    """The ballots that count, by voter."""
    out = {e.worker for e in _convictions(block) if e.kind is Kind.BALLOT}
    return {WorkerId(b.worker): b for b in block.ballots if b.worker not in out}


@dataclass(frozen=True, slots=True)
class _Conviction:
    kind: Kind
    worker: int


def _convictions(block: Block) -> list[_Conviction]:
    found = []
    for evidence in block.evidence:
        message = wire.open_envelope(evidence.first)
        found.append(_Conviction(evidence.first.kind, message.worker))
    return found


def _outcome(block: Block, params: Params) -> Outcome:
    if block.header.kind is BlockKind.STEP:
        return Outcome.STEP
    if not block.updates:
        return Outcome.NO_PROPOSALS
    few = len(_counted(block)) < params.ballots_min
    return Outcome.TOO_FEW_BALLOTS if few else Outcome.EMPTY_SELECTION


def _agreed(played: Played, params: Params) -> Agreed:
    cluster, header = played.cluster, played.block.header
    caught = {
        (report.evidence.first.kind, report.worker)
        for node in played.honest
        for report in node.reports
        if report.round == header.round
    }
    rejected = Counter[str]()
    for node in played.honest:
        rejected.update({fault.value: times for fault, times in node.rejected.items()})
    return Agreed(
        mode=params.mode.value,
        committee=params.workers if params.mode is Mode.ALL else params.committee,
        quorum=params.quorum,
        leader=header.leader,
        periods=played.finished.certificate.period + 1,
        ballots=len(played.block.ballots),
        messages=cluster.network.messages,
        bytes=cluster.network.bytes,
        virtual_seconds=cluster.agenda.now / 1e6,
        evidence=count(KINDS[kind] for kind, _ in caught),
        rejected=dict(sorted(rejected.items())),
        block=header.digest.hex(),
        model=header.model.hex(),
    )


# ------------------------------------------------------------------------------- the chain on disk

CHAIN, LENGTHS = "chain", "chain_lengths"


def chain_arrays(state: State) -> dict[str, npt.NDArray[Any]]:
    """The chain as arrays for a checkpoint; nothing for a state without one."""
    if not isinstance(state, ChainState):
        return {}
    items = [item.encode() for item in state.chain]
    return {
        CHAIN: np.frombuffer(b"".join(items), np.uint8),
        LENGTHS: np.array([len(item) for item in items], np.int64),
    }


def read_chain(arrays: Mapping[str, npt.NDArray[Any]]) -> tuple[Finished, ...]:
    """The chain that a checkpoint holds; raises ValueError if it is not one."""
    data, place, chain = arrays[CHAIN].tobytes(), 0, []
    for length in arrays[LENGTHS].tolist():
        try:
            item = wire.decode(data[place : place + length]).claim
        except InvalidMessage as error:
            raise ValueError(str(error)) from error
        if not isinstance(item, Finished):
            raise ValueError("not a decided round")  # noqa: TRY004  # The bytes are wrong.
        chain.append(item)
        place += length
    return tuple(chain)


def chain_fault(state: ChainState, *, chain: Digest, model: Digest) -> str | None:
    """Why this chain does not belong to the network and to the model; None if it does."""
    try:
        headers = [read_header(item.header) for item in state.chain]
    except InvalidMessage as error:
        return str(error)
    if not headers or any(header.chain != chain for header in headers):
        return "the chain belongs to another network"
    if (headers[-1].round, headers[-1].model) != (state.round, model):
        return "the chain does not lead to the weights"
    return None
