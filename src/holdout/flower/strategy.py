"""The strategies: `HoldOut`, the vote of HoldOut SGD, and `Robust`, the baseline rules."""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

import torch
from flwr.app import Message, Metadata

from holdout.custom_code import checked_copy, private_copy
from holdout.errors import InfeasibleError
from holdout.flower.arguments import count_problems, timeout_problems
from holdout.flower.base import CheckedStrategy
from holdout.flower.exchange import Answers, RejectedReply
from holdout.flower.open_round import DrawSizes, OpenRound, Verdict
from holdout.flower.vote_messages import PLAIN_VOTE_TYPE, VOTE_TYPE, VoteCall, read_ballot
from holdout.ids import ProposalId
from holdout.rounds import (
    AdmittedProposals,
    Decision,
    Outcome,
    apply_rule,
    bound_updates,
    conclude_vote,
)
from holdout.rules import PRE_AGGREGATIONS, RULES, Rule, RuleContext, find_rule
from holdout.seeds import stream
from holdout.voting import VOTES, Terms, tolerated_count

APP_RAISED = 2
"""Flower's error code of a client whose app raised, as it does for a type it does not know."""
UNKNOWN_TYPE = "function registered with name"
"""What a client's app raises then."""


def _rule_problems(rule: object) -> list[str]:
    """What is wrong with the name of a vote; a voter's messages here are names of proposals."""
    joint: list[str] = []
    offered: list[str] = []
    for name, vote in VOTES.items():
        if not vote.has_server:
            (joint if vote.terms(Fraction(0)).is_joint else offered).append(name)
    if rule in offered:
        return []
    wanted = " or ".join(f'"{name}"' for name in reversed(offered))
    why = "; joint ballots are not offered on Flower yet" if rule in joint else ""
    return [f"rule = {rule!r}: must be {wanted}{why}"]


@dataclass(eq=False, repr=False, kw_only=True)
class HoldOut(CheckedStrategy):
    """HoldOut SGD: some nodes propose, others vote, and what they approve is averaged.

    Takes what `FedAvg` takes, and:

    Args:
        num_proposers: N_p, the nodes that train in a round. Without it `FedAvg`'s `fraction_train`
            (here 0.5 by default) and `min_train_nodes` decide.
        num_voters: N_c, the nodes that vote; none of them trains in the same round. By default as
            many as propose, if there are as many.
        byzantine_fraction: The share f of liars to withstand, below 1/2: 0.33, or exactly "1/3".
        holdout_samples: How many of its samples a voter judges by (m_c); None: all.
        propose_timeout: Seconds after which a proposer counts as silent.
        grace_time: Seconds that the last nodes of a phase have once all but the tolerated share
            have answered. By default as long again as the others took, but at least 10.
        vote_timeout: The same for a voter, and for federated evaluation.
        min_ballots: With fewer valid ballots the model is kept. By default two thirds of the voters
            drawn, rounded up.
        seed: Decides every draw: two runs with one seed draw the same committees. By default a
            secret one, which the run folder records.
        rule: "holdout-1", or "holdout-paper" for the vote exactly as published. "holdout", whose
            voters send updates of their own, is not offered on Flower yet.
        connect_timeout: Seconds to wait for enough nodes to be connected before the run ends.
        max_failed_rounds: The run ends after so many rounds in a row without one usable reply.
        run_folder: Where to write what `holdout report` draws and `resume` goes on from; must be
            new or empty.
        name: What the report calls the run.
        attack: What the report calls the circumstances.

    Example:
        >>> strategy = HoldOut(num_proposers=5, num_voters=5, byzantine_fraction="1/3", seed=0)
        >>> strategy.terms.approve_count(5), strategy.terms.quorum(drawn=5, valid=5)
        (4, 3)
    """

    rule: Literal["holdout-1", "holdout-paper"] = "holdout-1"
    num_voters: int | None = None
    holdout_samples: int | None = None
    vote_timeout: float = 300.0
    min_ballots: int | None = None

    default_fraction_train = 0.5

    @property
    def terms(self) -> Terms:
        """The terms of the vote: f, and what the rule adds."""
        f = self._exact_fraction()
        return VOTES[self.rule].terms(f)

    @property
    def _evaluate_timeout(self) -> float:
        return self.vote_timeout

    def _problems(self) -> list[str]:
        problems = [
            *count_problems("num_voters", self.num_voters),
            *count_problems("holdout_samples", self.holdout_samples),
            *count_problems("min_ballots", self.min_ballots),
            *timeout_problems("vote_timeout", self.vote_timeout),
        ]
        voters, least = self.num_voters, self.min_ballots
        if type(voters) is int and type(least) is int and least > voters:
            problems.append(f"min_ballots = {least}: must be at most num_voters = {voters}")
        if self.num_proposers is None and self.fraction_train >= 1:
            problems.append(
                f"fraction_train = {self.fraction_train}: nobody would be left to vote, since "
                "proposers do not; give num_proposers and num_voters, or a smaller fraction"
            )
        return [*problems, *_rule_problems(self.rule)]

    def _sizes(self, connected: int) -> DrawSizes:
        proposers = self._proposers_among(connected)
        if self.num_voters is not None:
            return DrawSizes(proposers, self.num_voters)
        return DrawSizes(proposers, max(1, min(proposers, connected - proposers)))

    def _least_sizes(self, asked: DrawSizes) -> DrawSizes:
        least = super()._least_sizes(asked)
        return least if self.min_ballots is None else least._replace(voters=self.min_ballots)

    def _expected_ballot(self) -> str:
        return (
            "the approved candidates; a client votes through ClientApp(mods=[vote_mod]) and its "
            'evaluation, or by holdout.flower.vote in @app.evaluate("vote")'
        )

    def _decide(self, open_round: OpenRound, admitted: AdmittedProposals) -> Verdict:
        radius = None
        if self.terms.bound:
            admitted, radius = bound_updates(admitted, previous_radius=open_round.previous_radius)
        if not admitted.valid:
            return Verdict(Decision(Outcome.NO_PROPOSALS), radius=radius)
        began = time.monotonic()
        answers, orders = self._ask_voters(open_round, admitted)
        vote_seconds = time.monotonic() - began
        numbers = self._roster.numbers
        sent = [
            (numbers[node], read_ballot(content, orders[node]))
            for node, content in answers.contents.items()
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
            ballot_faults=self._ballot_faults(open_round, answers, decision),
            radius=radius,
            vote_seconds=vote_seconds,
        )

    def _ask_voters(
        self, open_round: OpenRound, admitted: AdmittedProposals
    ) -> tuple[Answers, dict[int, list[ProposalId]]]:
        """Every voter's answer, and the order in which each voter saw the proposals."""
        ids = list(admitted.valid)
        rows = torch.cat([open_round.weights[None], open_round.weights - admitted.stacked()])
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
                others=open_round.layout.others(open_round.arrays),
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
        return math.ceil(2 * drawn / 3) if self.min_ballots is None else self.min_ballots

    def _voters_in_words(self) -> str:
        return f"; voters: {self.num_voters or 'as many'}"

    def _vote_config(self) -> dict[str, dict[str, Any]]:
        terms = self.terms
        vote: dict[str, Any] = {"bound": terms.bound, "quorum": terms.quorum_kind.value}
        if terms.gate is not None:
            vote["gate"] = terms.gate.value
        if self.holdout_samples is not None:
            vote["samples"] = self.holdout_samples
        voters = {} if self.num_voters is None else {"voters": self.num_voters}
        return {"federation": voters, "vote": vote}


@dataclass(eq=False, repr=False, kw_only=True)
class Robust(CheckedStrategy):
    """A baseline rule in place of the average: Krum, trimmed mean and the others, crash-proof.

    Takes what `FedAvg` takes, and:

    Args:
        rule: One of `holdout.rules.RULES`, such as "krum" or "geometric-median", after any number
            of pre-aggregations: "nnm+krum".
        num_proposers: The nodes that train in a round, in place of `fraction_train` and
            `min_train_nodes`.
        byzantine_fraction: The share f of liars to withstand, below 1/2: 0.33, or exactly "1/3".
        propose_timeout: Seconds after which a node counts as silent.
        grace_time: Seconds that the last nodes of a phase have once all but the tolerated share
            have answered. By default as long again as the others took, but at least 10.
        evaluate_timeout: The same for federated evaluation.
        seed: Decides every draw: two runs with one seed draw the same committees. By default a
            secret one, which the run folder records.
        connect_timeout: Seconds to wait for enough nodes to be connected before the run ends.
        max_failed_rounds: The run ends after so many rounds in a row without one usable reply.
        run_folder: Where to write what `holdout report` draws and `resume` goes on from; must be
            new or empty.
        name: What the report calls the run.
        attack: What the report calls the circumstances.

    Example:
        >>> strategy = Robust(rule="nnm+krum", num_proposers=8, byzantine_fraction="1/4", seed=0)
        >>> Robust(rule="krum", num_proposers=4, byzantine_fraction="1/4")
        Traceback (most recent call last):
        ...
        holdout.errors.ConfigError: 1 mistake in the strategy's arguments:
          num_proposers = 4: krum needs n > 2f + 2 updates; got n=4, f=1
    """

    evaluate_timeout: float = 300.0

    default_fraction_train = 1.0

    @property
    def _evaluate_timeout(self) -> float:
        return self.evaluate_timeout

    def _problems(self) -> list[str]:
        problems = timeout_problems("evaluate_timeout", self.evaluate_timeout)
        try:
            rule = _find_rule(self.rule)
        except ValueError as error:
            return [*problems, f"rule = {self.rule!r}: {error}"]
        if self.num_proposers is None or self._shared_problems():
            return problems
        # Even if every proposer sends a valid update.
        try:
            rule.check_feasible(
                self.rule,
                n=self.num_proposers,
                f=tolerated_count(self.num_proposers, self._exact_fraction()),
            )
        except InfeasibleError as error:
            problems.append(f"num_proposers = {self.num_proposers}: {error}")
        return problems

    def _sizes(self, connected: int) -> DrawSizes:
        return DrawSizes(self._proposers_among(connected), 0)

    def _can_work(self, sizes: DrawSizes) -> bool:
        n = sizes.proposers
        try:
            f = tolerated_count(n, self._exact_fraction())
            _find_rule(self.rule).check_feasible(self.rule, n=n, f=f)
        except InfeasibleError:
            return False
        return True

    def _decide(self, open_round: OpenRound, admitted: AdmittedProposals) -> Verdict:
        context = RuleContext(
            round_number=open_round.number,
            weights=open_round.weights.clone(),
            learning_rate=1.0,
            source=stream(self._seed, "rule", open_round.number),
            state=private_copy(open_round.rule_state),
        )
        f = tolerated_count(len(admitted.valid), self._exact_fraction())
        decision = apply_rule(admitted, _find_rule(self.rule), f=f, context=context)
        return Verdict(decision, rule_state=checked_copy(f"rule {self.rule!r}", context.state))

    def _voters_in_words(self) -> str:
        return ""

    def _vote_config(self) -> dict[str, dict[str, Any]]:
        return {}


def _find_rule(name: str) -> Rule:
    """The rule of this name; a ValueError if there is none."""
    rule = find_rule(name)
    if rule is None:
        front = " or ".join(f'"{pre}+"' for pre in PRE_AGGREGATIONS)
        usable = ", ".join(name for name, known in RULES.items() if known.needs_updates_alone)
        raise ValueError(f"must be one of {usable}, with {front} in front if you like")
    if not rule.needs_updates_alone:
        raise ValueError("asks the server's own rows or voters, which this strategy does not have")
    return rule
