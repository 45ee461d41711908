"""The strategy `HoldOut`: the vote of HoldOut SGD."""

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, Metadata
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg
from torch import Tensor

from holdout import device
from holdout.errors import MisuseError
from holdout.flower.answers import Answers, RejectedReply, ReplyFault
from holdout.flower.arguments import count_problems, timeout_problems
from holdout.flower.arrays import Layout
from holdout.flower.base import CheckedStrategy
from holdout.flower.inner import INNER, aggregate, inner_problems, prepare, state_of, with_state
from holdout.flower.joint import hold_joint_vote, joint_terms
from holdout.flower.open_round import DrawSizes, OpenRound, Verdict
from holdout.flower.pairs import PairMemory
from holdout.flower.vote_messages import PLAIN_VOTE_TYPE, VOTE_TYPE, VoteCall, read_ballot
from holdout.ids import ProposalId
from holdout.joint_vote import JointMemory
from holdout.learning.vector import ProposalFault
from holdout.rounds import (
    AdmittedProposals,
    Decision,
    Outcome,
    admit_proposals,
    bound_update,
    bound_updates,
    conclude_vote,
)
from holdout.seeds import stream
from holdout.voting import VOTES, Terms

_ABSENT = (ReplyFault.MISSING, ReplyFault.UNAVAILABLE, ReplyFault.ERROR)
"""Why a reply may be missing. That says nothing about who lies."""

APP_RAISED = 2
"""Flower's error code of a client whose app raised, as it does for a type it does not know."""
UNKNOWN_TYPE = "function registered with name"
"""What a client's app raises then."""


OURS = CheckedStrategy.__mro__
"""What a vote is built on."""
JOINT, APPROVALS = "joint", "approvals"
_RULES = {JOINT: ("holdout",), APPROVALS: ("holdout-1", "holdout-paper")}
"""The rules that go with a kind of ballot, the usual one first."""
PUBLISHED = "holdout-paper"
SHORT_STEP = 0.1
"""How far along an update a voter judges it by default, except in the published vote."""


@dataclass(eq=False, repr=False, kw_only=True)
class HoldOut(CheckedStrategy):
    """HoldOut SGD: some nodes propose, others judge, and what stands is averaged.

    Takes what `FedAvg` takes, and:

    Args:
        num_proposers: N_p, the nodes whose updates are averaged in a round. Without it `FedAvg`'s
            `fraction_train` (here 0.5 by default) and `min_train_nodes` decide.
        num_voters: N_c, the nodes that vote; none of them proposes in the same round. By default as
            many as propose, if there are as many.
        byzantine_fraction: The share f of liars to withstand, below 1/2: 0.33, or exactly "1/3".
        ballots: "joint": a voter gets the same `train` message as a proposer, and its update is not
            averaged but judges the others; clients need no change. "approvals": voters get all
            candidates and name those that do well on their data, by `vote_mod` or `flower.vote`.
        rule: "holdout" with joint ballots; with approvals "holdout-1", or "holdout-paper" for the
            vote exactly as published. By default the first that goes with the ballots.
        inner: A strategy of Flower's (FedAdam, FedAvgM, FedProx, ...) through whose aggregation the
            accepted updates go, equally weighted, instead of the vote's own average.
        trained: Names of the arrays that are trained, with `*` for any text: ["*lora*"]. Others
            stay as they are in the initial arrays, and replies may leave them out.
        buffers: Names of arrays that are averaged over the accepted clients but never judged; by
            default what torch and Keras call the statistics of batch norm. Integers and truth
            values are always buffers.
        vote_step: Approvals only: the part of an update by which voters go before they judge. By
            default 0.1, and 1 for "holdout-paper".
        holdout_samples: Approvals only: how many of its samples a voter judges by (m_c); None: all.
        propose_timeout: Seconds after which a proposer counts as silent; with joint ballots also a
            voter.
        grace_time: Seconds that the last nodes of a phase have once all but the tolerated share
            have answered. By default as long again as the others took, but at least 10.
        nodes_at_once: How many nodes are asked at a time, each of the others once one has answered.
            By default all. It bounds what the SuperLink holds, and rounds take longer.
        vote_timeout: Seconds after which a voter who was sent candidates counts as silent; also
            for federated evaluation.
        min_ballots: With fewer valid ballots the model is kept. By default two thirds of the voters
            drawn, rounded up; with joint ballots a third, since earlier rounds judge along.
        seed: Decides every draw: two runs with one seed draw the same committees. By default a
            secret one, which the run folder records.
        connect_timeout: Seconds to wait for enough nodes to be connected before the run ends.
        max_failed_rounds: The run ends after so many rounds in a row without one usable reply.
        run_folder: Where to write what `holdout report` draws and `resume` goes on from; must be
            new or empty.
        name: What the report calls the run.
        attack: What the report calls the circumstances.

    Example:
        >>> strategy = HoldOut(num_proposers=5, num_voters=5, byzantine_fraction="1/3", seed=0)
        >>> strategy.rule, strategy.ballots, strategy.terms.is_joint
        ('holdout', 'joint', True)
        >>> HoldOut(ballots="approvals").rule
        'holdout-1'
    """

    rule: str = ""
    ballots: str = ""
    inner: FedAvg | None = None
    num_voters: int | None = None
    vote_step: float | None = None
    holdout_samples: int | None = None
    vote_timeout: float = 300.0
    min_ballots: int | None = None

    default_fraction_train = 0.5

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Refuse to be mixed with a strategy whose aggregation would never be called."""
        super().__init_subclass__(**kwargs)
        for other in cls.__mro__:
            if other not in OURS and issubclass(other, FedAvg) and not issubclass(other, OURS[0]):
                raise MisuseError(
                    f"{cls.__name__} inherits from HoldOut and {other.__name__}, whose aggregation "
                    f"would never be called; write HoldOut(inner={other.__name__}(...))"
                )

    def __post_init__(self, *arguments: Any) -> None:
        """Settle which rule goes with which ballots, then check every argument."""
        if not self.ballots:
            self.ballots = APPROVALS if self.rule in _RULES[APPROVALS] else JOINT
        if not self.rule and self.ballots in tuple(_RULES):
            self.rule = _RULES[self.ballots][0]
        super().__post_init__(*arguments)

    @property
    def terms(self) -> Terms:
        """The terms of the vote: f, and what the rule adds."""
        f = self._exact_fraction()
        return joint_terms(f) if self._is_joint else VOTES[self.rule].terms(f)

    @property
    def _is_joint(self) -> bool:
        return self.ballots == JOINT

    @property
    def _evaluate_timeout(self) -> float:
        return self.vote_timeout

    def _problems(self) -> list[str]:
        problems = [
            *count_problems("num_voters", self.num_voters),
            *count_problems("holdout_samples", self.holdout_samples),
            *count_problems("min_ballots", self.min_ballots),
            *timeout_problems("vote_timeout", self.vote_timeout),
            *inner_problems(self.inner, array_key=self.arrayrecord_key),
        ]
        voters, least = self.num_voters, self.min_ballots
        if type(voters) is int and type(least) is int and least > voters:
            problems.append(f"min_ballots = {least}: must be at most num_voters = {voters}")
        if self.num_proposers is None and self.fraction_train == 1:
            problems.append(
                f"fraction_train = {self.fraction_train}: nobody would be left to vote, since "
                "proposers do not; give num_proposers and num_voters, or a smaller fraction"
            )
        return [*problems, *self._ballot_problems()]

    def _ballot_problems(self) -> list[str]:
        """Contradictions between ballots, rule and what concerns only one kind of ballot."""
        if self.ballots not in tuple(_RULES):
            return [f'ballots = {self.ballots!r}: must be "{JOINT}" or "{APPROVALS}"']
        usable = _RULES[self.ballots]
        problems = []
        if self.rule not in usable:
            wanted = " or ".join(f'"{name}"' for name in usable)
            problems.append(
                f'rule = {self.rule!r}: with ballots = "{self.ballots}" must be {wanted}'
            )
        step = self.vote_step
        if step is not None and not (type(step) in (int, float) and 0 < step <= 1):
            problems.append(f"vote_step = {step!r}: must be a number above 0 and at most 1")
        problems += [
            f'{argument} has no effect on joint ballots; give ballots="{APPROVALS}" with it'
            for argument in ("vote_step", "holdout_samples")
            if self._is_joint and getattr(self, argument) is not None
        ]
        return problems

    def _sizes(self, connected: int) -> DrawSizes:
        proposers = self._proposers_among(connected)
        if self.num_voters is not None:
            return DrawSizes(proposers, self.num_voters)
        return DrawSizes(proposers, max(1, min(proposers, connected - proposers)))

    def _least_sizes(self, asked: DrawSizes) -> DrawSizes:
        least = super()._least_sizes(asked)
        return least if self.min_ballots is None else least._replace(voters=self.min_ballots)

    def _expected_ballot(self) -> str:
        if self._is_joint:
            return "what a proposer sends: the arrays after training"
        return (
            "the approved candidates; a client votes through ClientApp(mods=[vote_mod]) and its "
            'evaluation, or by holdout.flower.vote in @app.evaluate("vote")'
        )

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Draw the committee and ask it, with the plain `train` message."""
        if self.inner is not None and self.fraction_train != 0.0:
            # Even what only prepares a round may note something for its end.
            self._inner = with_state(self.inner, self._rule_state)
            prepare(self._inner, server_round, self._trained_part(arrays), config)
        return super().configure_train(server_round, arrays, config, grid)

    def _trained_part(self, arrays: ArrayRecord) -> ArrayRecord:
        layout = Layout.of(arrays, trained=self.trained, buffers=self.buffers)
        return ArrayRecord({name: arrays[name] for name, _, _ in layout.trained})

    def _trainers(self, proposers: Sequence[int], voters: Sequence[int]) -> list[int]:
        if not self._is_joint:
            return list(proposers)
        # In the order of their numbers, so that not even a node's turn tells what it was drawn for.
        return sorted([*proposers, *voters], key=self._roster.numbers.__getitem__)

    def _decide(
        self, open_round: OpenRound, admitted: AdmittedProposals, answers: Answers
    ) -> Verdict:
        if self._is_joint:
            return self._decide_jointly(open_round, admitted, answers)
        radius = None
        if self.terms.bound:
            admitted, radius = bound_updates(admitted, previous_radius=open_round.previous_radius)
        if not admitted.valid:
            return Verdict(Decision(Outcome.NO_PROPOSALS), radius=radius)
        began = time.monotonic()
        votes, orders = self._ask_voters(open_round, admitted)
        vote_seconds = time.monotonic() - began
        numbers = self._roster.numbers
        sent = [
            (numbers[node], read_ballot(content, orders[node]))
            for node, content in votes.contents.items()
        ]
        voters = [numbers[node] for node in open_round.voters]
        decision = conclude_vote(
            admitted,
            sent,
            voters=voters,
            terms=self.terms,
            ballots_min=self._ballots_needed(len(voters)),
        )
        return Verdict(
            decision,
            ballot_faults=self._ballot_faults(open_round, votes, decision),
            radius=radius,
            vote_seconds=vote_seconds,
            accepted=self._accepted(admitted, decision, radius),
        )

    def _decide_jointly(
        self, open_round: OpenRound, admitted: AdmittedProposals, answers: Answers
    ) -> Verdict:
        """The voters' answers to the `train` message are their ballots."""
        numbers = self._roster.numbers
        received, faults = open_round.take(
            answers.only(open_round.voters), open_round.voters, key=self.arrayrecord_key
        )
        read = admit_proposals(received, dimension=len(open_round.weights))
        faults += [
            RejectedReply(open_round.voters[place], fault.value)
            for place, fault in read.faults.items()
            if received[place] is not None
        ]
        wrong = sum(fault is not ProposalFault.MISSING for fault in admitted.faults.values())
        wrong += sum(fault.reason not in _ABSENT for fault in faults)
        found = hold_joint_vote(
            admitted,
            {numbers[open_round.voters[place]]: update for place, update in read.valid.items()},
            proposers=[numbers[node] for node in open_round.proposers],
            voters=[numbers[node] for node in open_round.voters],
            f=self._exact_fraction(),
            memory=JointMemory.of(open_round.rule_state, radius=open_round.previous_radius),
            pairs=PairMemory.of(open_round.rule_state),
            invalid=wrong,
            ballots_min=self._ballots_needed(len(open_round.voters)),
        )

        def out_of(nodes: Sequence[int]) -> list[RejectedReply]:
            out = found.out
            return [RejectedReply(n, out[numbers[n]]) for n in nodes if numbers[n] in out]

        return Verdict(
            found.decision,
            ballot_faults=[*faults, *out_of(open_round.voters)],
            proposal_faults=out_of(open_round.proposers),
            radius=found.memory.radius,
            rule_state={**found.memory.kept(), **found.pairs.kept()},
            accepted=self._accepted(admitted, found.decision, found.memory.radius),
        )

    def _accepted(
        self, admitted: AdmittedProposals, decision: Decision, radius: float | None
    ) -> list[Tensor]:
        """The accepted updates one by one, bounded, if an inner strategy wants them."""
        if self.inner is None or decision.outcome is not Outcome.STEP:
            return []
        return [bound_update(admitted.valid[p], radius) for p in decision.selection or ()]

    def _step(
        self, open_round: OpenRound, admitted: AdmittedProposals, verdict: Verdict
    ) -> tuple[ArrayRecord, Verdict]:
        if self.inner is None:
            return super()._step(open_round, admitted, verdict)
        kept = {k: v for k, v in open_round.rule_state.items() if k.startswith(INNER)}
        if verdict.accepted:
            layout = open_round.layout.only_trained()
            models = [layout.fill(open_round.weights - u, {}) for u in verdict.accepted]
            arrays = aggregate(self._inner, open_round.number, models)
            # What is not finite, or nothing at all, is found out by the step.
            found = ReplyFault.MALFORMED if arrays is None else layout.read(arrays)
            update = (
                torch.full_like(open_round.weights, torch.nan)
                if isinstance(found, ReplyFault)
                else open_round.weights - found
            )
            kept = state_of(self._inner)
            verdict = replace(verdict, decision=replace(verdict.decision, update=update))
        verdict = replace(verdict, rule_state={**verdict.rule_state, **kept})
        return super()._step(open_round, admitted, verdict)

    def _ask_voters(
        self, open_round: OpenRound, admitted: AdmittedProposals
    ) -> tuple[Answers, dict[int, list[ProposalId]]]:
        """Every voter's answer, and the order in which each voter saw the proposals."""
        ids = list(admitted.valid)
        step = self.vote_step
        if step is None:
            step = 1.0 if self.rule == PUBLISHED else SHORT_STEP
        candidates = open_round.weights - step * admitted.stacked()
        rows = device.to_numpy(torch.cat([open_round.weights[None], candidates]))
        # Nobody judges buffers: all candidates have the same, as current as can be.
        others = open_round.average_buffers(ids, f=self._exact_fraction())
        numbers, vote_types = self._roster.numbers, self._roster.vote_types
        # Each voter gets another order: a place says nothing about a proposer, to any voter.
        orders = {
            node: stream(self._seed, "order", open_round.number, numbers[node]).sample(
                ids, len(ids)
            )
            for node in open_round.voters
        }
        asked: dict[int, Metadata] = {}

        def call(node: int, message_type: str) -> Message:
            places = [0, *(1 + ids.index(proposal) for proposal in orders[node])]
            content = VoteCall(
                layout=open_round.layout,
                stacked=rows[places],
                terms=self.terms,
                round=open_round.number,
                holdout_samples=self.holdout_samples,
                others=others,
                config=self._evaluate_config,
                array_key=self.arrayrecord_key,
                config_key=self.configrecord_key,
            ).content()
            message = self._ask(content, node, message_type, open_round.number)
            asked[node] = message.metadata
            return message

        def calls() -> Iterator[Message]:
            for node in open_round.voters:
                yield call(node, vote_types.get(node, VOTE_TYPE))

        def again(question: Message, reply: Message) -> Message | None:
            """A client whose `@app.evaluate()` votes does not know the type made for voting."""
            node = question.metadata.dst_node_id
            known = node in vote_types or asked[node].message_type == PLAIN_VOTE_TYPE
            if known or not reply.has_error() or reply.error.code != APP_RAISED:
                return None
            if UNKNOWN_TYPE not in str(reply.error.reason):
                # It knows the type, and says itself what went wrong.
                return None
            return call(node, PLAIN_VOTE_TYPE)

        replies = self._exchange(
            open_round.grid,
            calls(),
            count=len(open_round.voters),
            timeout=self.vote_timeout,
            again=again,
        )
        questions = [asked[node] for node in open_round.voters]
        answers = self._collate(questions, replies, open_round.number)
        for node in answers.contents:
            vote_types[node] = asked[node].message_type
        return answers, orders

    def _ballot_faults(
        self, open_round: OpenRound, answers: Answers, decision: Decision
    ) -> list[RejectedReply]:
        """Every ballot that does not count, with its node."""
        nodes = {self._roster.numbers[node]: node for node in open_round.voters}
        void = [(nodes[voter], fault.value) for voter, fault in decision.void_ballots]
        # A reply that never became a ballot is among the faults already, with the reason.
        return [
            *answers.faults,
            *(RejectedReply(node, reason) for node, reason in void if node in answers.contents),
        ]

    def _ballots_needed(self, drawn: int) -> int:
        if self.min_ballots is not None:
            return self.min_ballots
        return math.ceil(drawn / 3) if self._is_joint else math.ceil(2 * drawn / 3)

    def _voters_in_words(self) -> str:
        return f"; voters: {self.num_voters or 'as many'}"

    def _vote_config(self) -> dict[str, dict[str, Any]]:
        terms = self.terms
        if self._is_joint:
            voters = {} if self.num_voters is None else {"voters": self.num_voters}
            return {"federation": voters}
        vote: dict[str, Any] = {"bound": terms.bound, "quorum": terms.quorum_kind.value}
        if terms.gate is not None:
            vote["gate"] = terms.gate.value
        if self.holdout_samples is not None:
            vote["samples"] = self.holdout_samples
        voters = {} if self.num_voters is None else {"voters": self.num_voters}
        return {"federation": voters, "vote": vote}
