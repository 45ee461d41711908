"""The strategies: `HoldOut`, the vote of HoldOut SGD, and `Robust`, the baseline rules."""

import math
import time
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

import torch
from flwr.app import Message, Metadata

from holdout.errors import InfeasibleError
from holdout.flower.base import CheckedStrategy
from holdout.flower.exchange import exchange
from holdout.flower.metrics import MetricsFunction
from holdout.flower.open_round import TOO_FEW_BALLOTS, DrawSizes, OpenRound, Verdict
from holdout.flower.records import (
    PLAIN_VOTE_TYPE,
    VOTE_TYPE,
    ReplyFault,
    VoteCall,
    read_ballot,
)
from holdout.flower.replies import Answers, RejectedReply, collate
from holdout.flower.settings import StrategySettings, count_problems
from holdout.ids import ProposalId
from holdout.rounds import (
    AdmittedProposals,
    Decision,
    Outcome,
    apply_rule,
    bound_updates,
    conclude_vote,
)
from holdout.rules import RULES
from holdout.seeds import stream
from holdout.voting import Terms, approve_count

APP_RAISED = 2
"""Flower's error code of a client whose app raised, as it does for a type it does not know."""
UNKNOWN_ID = ProposalId(-1)


class HoldOut(CheckedStrategy):
    """HoldOut SGD: some nodes propose, others vote, and what they approve is averaged.

    Takes what `FedAvg` takes, and:

    Args:
        num_proposers: N_p, the nodes that train in a round. Without it `FedAvg`'s `fraction_train`
            (here 0.5 by default) and `min_train_nodes` say so.
        num_voters: N_c, the nodes that vote; none of them trains in the same round. By default as
            many as propose, if there are as many.
        byzantine_fraction: The share f of liars to withstand, below 1/2: 0.33, or exactly "1/3".
        holdout_samples: How many of its samples a voter judges by (m_c); None: all.
        propose_timeout: Seconds after which a proposer counts as silent.
        vote_timeout: The same for a voter, and for federated evaluation.
        min_ballots: With fewer valid ballots the model is kept. By default two thirds of the voters
            drawn, rounded up.
        seed: Decides every draw. By default a secret one, which the run folder tells.
        rule: "holdout", or "holdout-paper" for the vote exactly as published.
        connect_timeout: Seconds to wait for enough nodes to be connected before giving up.
        run_folder: Where to write what `holdout report` draws; must be new or empty.
        name: What the report calls the run.
        attack: What the report calls the circumstances.
    """

    def __init__(  # noqa: PLR0917  (In FedAvg's order.)
        self,
        fraction_train: float | None = None,
        fraction_evaluate: float = 1.0,
        min_train_nodes: int | None = None,
        min_evaluate_nodes: int = 2,
        min_available_nodes: int = 2,
        weighted_by_key: str = "num-examples",
        arrayrecord_key: str = "arrays",
        configrecord_key: str = "config",
        train_metrics_aggr_fn: MetricsFunction | None = None,
        evaluate_metrics_aggr_fn: MetricsFunction | None = None,
        *,
        num_proposers: int | None = None,
        num_voters: int | None = None,
        byzantine_fraction: float | str | Fraction = 0.33,
        holdout_samples: int | None = None,
        propose_timeout: float = 600.0,
        vote_timeout: float = 300.0,
        min_ballots: int | None = None,
        seed: int | None = None,
        rule: Literal["holdout", "holdout-paper"] = "holdout",
        connect_timeout: float = 300.0,
        run_folder: Path | str | None = None,
        name: str = "flower",
        attack: str = "unknown attack",
    ) -> None:
        settings = StrategySettings(
            num_proposers=num_proposers,
            byzantine_fraction=byzantine_fraction,
            propose_timeout=propose_timeout,
            evaluate_timeout=vote_timeout,
            connect_timeout=connect_timeout,
            seed=seed,
            run_folder=run_folder,
            name=name,
            attack=attack,
        )
        problems = [
            *count_problems("num_voters", num_voters),
            *count_problems("holdout_samples", holdout_samples),
            *count_problems("min_ballots", min_ballots),
        ]
        if type(num_voters) is int and type(min_ballots) is int and min_ballots > num_voters:
            problems.append(f"min_ballots = {min_ballots}: at most num_voters = {num_voters}")
        if num_proposers is None and fraction_train is not None and fraction_train >= 1:
            problems.append(
                f"fraction_train = {fraction_train}: nobody would be left to vote, since proposers "
                "do not; give num_proposers and num_voters, or a smaller fraction"
            )
        if rule not in {"holdout", "holdout-paper"}:
            problems.append(f'rule = {rule!r}: must be "holdout" or "holdout-paper"')
        super().__init__(
            settings,
            problems,
            fraction_train=fraction_train,
            min_train_nodes=min_train_nodes,
            default_fraction=0.5,
            fraction_evaluate=fraction_evaluate,
            min_evaluate_nodes=min_evaluate_nodes,
            min_available_nodes=min_available_nodes,
            weighted_by_key=weighted_by_key,
            arrayrecord_key=arrayrecord_key,
            configrecord_key=configrecord_key,
            train_metrics_aggr_fn=train_metrics_aggr_fn,
            evaluate_metrics_aggr_fn=evaluate_metrics_aggr_fn,
        )
        self.rule = rule
        self.num_voters = num_voters
        self.holdout_samples = holdout_samples
        self.min_ballots = min_ballots
        f = self.byzantine_fraction
        self.terms = Terms(f) if rule == "holdout" else Terms.paper(f)

    def _begin(self) -> None:
        super()._begin()
        self._radius: float | None = None
        # Which type of vote message a node has answered; where none is known, both are tried.
        self._vote_types: dict[int, str] = {}

    def _sizes(self, connected: int) -> DrawSizes:
        proposers = self._trained_by(connected)
        if self.num_voters is not None:
            return DrawSizes(proposers, self.num_voters)
        return DrawSizes(proposers, max(1, min(proposers, connected - proposers)))

    def _decide(self, stage: OpenRound, admitted: AdmittedProposals) -> Verdict:
        if self.terms.bound:
            admitted, self._radius = bound_updates(admitted, previous_radius=self._radius)
        if not admitted.valid:
            nobody = [None] * len(stage.voters)
            return Verdict(
                Decision(Outcome.NO_PROPOSALS), Outcome.NO_PROPOSALS, nobody, radius=self._radius
            )
        began = time.monotonic()
        answers, orders = self._vote(stage, admitted)
        vote_seconds = time.monotonic() - began
        sent = [
            (self._roster.numbers[node], _renamed(read_ballot(content), orders[node]))
            for node, content in answers.contents.items()
        ]
        voters = [self._roster.numbers[node] for node in stage.voters]
        decision = conclude_vote(admitted, sent, voters=voters, terms=self.terms)
        outcome: str = decision.outcome
        if len(decision.ballots) < self._ballots_needed(len(voters)):
            outcome = TOO_FEW_BALLOTS
            decision = replace(decision, update=None, selection=())
        return Verdict(
            decision,
            outcome,
            ballots=[
                list(decision.ballots[voter].approved) if voter in decision.ballots else None
                for voter in voters
            ],
            ballot_faults=self._ballot_faults(stage, answers, decision),
            radius=self._radius if self.terms.bound else None,
            vote_seconds=vote_seconds,
        )

    def _vote(
        self, stage: OpenRound, admitted: AdmittedProposals
    ) -> tuple[Answers, dict[int, list[ProposalId]]]:
        """Ask every voter; what came back, and in which order each saw the proposals."""
        ids = list(admitted.valid)
        rows = torch.cat([stage.weights[None], stage.weights - admitted.stacked()])
        numbers = self._roster.numbers
        # Each voter has its own order: a place says nothing about a proposer, or to other voters.
        orders = {
            node: stream(self.seed, "order", stage.number, numbers[node]).sample(ids, len(ids))
            for node in stage.voters
        }
        asked: dict[int, Metadata] = {}

        def call(node: int, message_type: str) -> Message:
            places = [0, *(1 + ids.index(proposal) for proposal in orders[node])]
            content = VoteCall(
                layout=stage.layout,
                stacked=rows[places],
                terms=self.terms,
                round=stage.number,
                holdout_samples=self.holdout_samples,
                others=stage.layout.others(stage.arrays),
                config=self._evaluate_config,
                array_key=self.arrayrecord_key,
                config_key=self.configrecord_key,
            ).content()
            message = self._ask(content, node, message_type, stage.number)
            asked[node] = message.metadata
            return message

        def again(question: Message, reply: Message) -> Message | None:
            """A client whose `@app.evaluate()` votes does not know the type made for voting."""
            node = question.metadata.dst_node_id
            known = node in self._vote_types or asked[node].message_type == PLAIN_VOTE_TYPE
            if known or not reply.has_error() or reply.error.code != APP_RAISED:
                return None
            return call(node, PLAIN_VOTE_TYPE)

        def calls() -> Iterator[Message]:
            for node in stage.voters:
                yield call(node, self._vote_types.get(node, VOTE_TYPE))

        replies = exchange(stage.grid, calls(), timeout=self.settings.evaluate_timeout, again=again)
        answers = collate([asked[node] for node in stage.voters], replies)
        for node in answers.contents:
            self._vote_types[node] = asked[node].message_type
        self._remember(stage.voters, answers, stage.number)
        return answers, orders

    def _ballot_faults(
        self,
        stage: OpenRound,
        answers: Answers,
        decision: Decision,
    ) -> list[RejectedReply]:
        """Every ballot that does not count, with its node."""
        nodes = {self._roster.numbers[node]: node for node in stage.voters}
        void = [(nodes[voter], fault.value) for voter, fault in decision.void_ballots]
        # Whose reply never became a ballot was told already, with the reason.
        return [
            *answers.faults,
            *(RejectedReply(node, reason) for node, reason in void if node in answers.contents),
        ]

    def _voters_in_words(self) -> str:
        return f"; voters: {self.num_voters or 'as many'}"

    def _ballots_needed(self, drawn: int) -> int:
        return math.ceil(2 * drawn / 3) if self.min_ballots is None else self.min_ballots

    def _config(self, num_rounds: int) -> dict[str, Any]:
        config = super()._config(num_rounds)
        if self.num_voters is not None:
            config["federation"]["voters"] = self.num_voters
        terms = self.terms
        config["vote"] = {"bound": terms.bound, "quorum": terms.quorum_kind.value}
        if terms.gate is not None:
            config["vote"]["gate"] = terms.gate.value
        if self.holdout_samples is not None:
            config["vote"]["samples"] = self.holdout_samples
        return config


class Robust(CheckedStrategy):
    """A baseline rule in place of the average: Krum, trimmed mean and the others, crash-proof.

    Takes what `FedAvg` takes, and:

    Args:
        rule: One of `holdout.rules.RULES`, such as "krum", "bulyan" or "geometric-median".
        num_proposers: The nodes that train in a round, in place of `fraction_train` and
            `min_train_nodes`.
        byzantine_fraction: The share f of liars to withstand, below 1/2: 0.33, or exactly "1/3".
        propose_timeout: Seconds after which a node counts as silent.
        evaluate_timeout: The same for federated evaluation.
        seed: Decides every draw. By default a secret one, which the run folder tells.
        connect_timeout: Seconds to wait for enough nodes to be connected before giving up.
        run_folder: Where to write what `holdout report` draws; must be new or empty.
        name: What the report calls the run.
        attack: What the report calls the circumstances.
    """

    def __init__(  # noqa: PLR0917  (In FedAvg's order.)
        self,
        fraction_train: float | None = None,
        fraction_evaluate: float = 1.0,
        min_train_nodes: int | None = None,
        min_evaluate_nodes: int = 2,
        min_available_nodes: int = 2,
        weighted_by_key: str = "num-examples",
        arrayrecord_key: str = "arrays",
        configrecord_key: str = "config",
        train_metrics_aggr_fn: MetricsFunction | None = None,
        evaluate_metrics_aggr_fn: MetricsFunction | None = None,
        *,
        rule: str,
        num_proposers: int | None = None,
        byzantine_fraction: float | str | Fraction = 0.33,
        propose_timeout: float = 600.0,
        evaluate_timeout: float = 300.0,
        seed: int | None = None,
        connect_timeout: float = 300.0,
        run_folder: Path | str | None = None,
        name: str = "flower",
        attack: str = "unknown attack",
    ) -> None:
        settings = StrategySettings(
            num_proposers=num_proposers,
            byzantine_fraction=byzantine_fraction,
            propose_timeout=propose_timeout,
            evaluate_timeout=evaluate_timeout,
            connect_timeout=connect_timeout,
            seed=seed,
            run_folder=run_folder,
            name=name,
            attack=attack,
        )
        super().__init__(
            settings,
            _rule_problems(rule, settings),
            fraction_train=fraction_train,
            min_train_nodes=min_train_nodes,
            default_fraction=1.0,
            fraction_evaluate=fraction_evaluate,
            min_evaluate_nodes=min_evaluate_nodes,
            min_available_nodes=min_available_nodes,
            weighted_by_key=weighted_by_key,
            arrayrecord_key=arrayrecord_key,
            configrecord_key=configrecord_key,
            train_metrics_aggr_fn=train_metrics_aggr_fn,
            evaluate_metrics_aggr_fn=evaluate_metrics_aggr_fn,
        )
        self.rule = rule

    def _sizes(self, connected: int) -> DrawSizes:
        return DrawSizes(self._trained_by(connected), 0)

    def _decide(self, _stage: OpenRound, admitted: AdmittedProposals) -> Verdict:
        n = len(admitted.valid)
        f = n - approve_count(n, self.byzantine_fraction)
        decision = apply_rule(admitted, RULES[self.rule], f=f)
        return Verdict(decision, decision.outcome)


def _rule_problems(rule: str, settings: StrategySettings) -> list[str]:
    """A rule that is none, or that could not work if every proposer sent a valid update."""
    if rule not in RULES:
        return [f"rule = {rule!r}: must be one of {', '.join(RULES)}"]
    proposers = settings.num_proposers
    if proposers is None or settings.problems():
        return []
    f = proposers - approve_count(proposers, settings.exact_fraction())
    try:
        RULES[rule](torch.zeros(proposers, 1), f=f)
    except InfeasibleError as error:
        return [f"num_proposers = {proposers}: {error}"]
    return []


def _renamed(ballot: object, order: list[ProposalId]) -> object:
    """A ballot by proposal ids instead of places; what is no ballot stays so."""
    if isinstance(ballot, ReplyFault) or not isinstance(ballot, list):
        return None
    # Longer than any ballot is long enough to be void: nobody has to read on.
    return [_name(place, order) for place in ballot[: len(order) + 1]]


def _name(place: object, order: list[ProposalId]) -> object:
    if type(place) is not int:
        return place
    return order[place] if 0 <= place < len(order) else UNKNOWN_ID
