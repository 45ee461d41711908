"""The strategy `Robust`: baseline rules in place of the average."""

from dataclasses import dataclass
from typing import Any

from holdout.custom_code import checked_copy, private_copy
from holdout.errors import InfeasibleError
from holdout.flower.answers import Answers
from holdout.flower.arguments import timeout_problems
from holdout.flower.base import CheckedStrategy
from holdout.flower.open_round import DrawSizes, OpenRound, Verdict
from holdout.rounds import AdmittedProposals, apply_rule
from holdout.rules import PRE_AGGREGATIONS, RULES, Rule, RuleContext, find_rule
from holdout.seeds import stream
from holdout.voting import tolerated_count


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
        nodes_at_once: How many nodes are asked at a time, each of the others once one has answered.
            By default all. It bounds what the SuperLink holds, and rounds take longer.
        evaluate_timeout: Seconds after which a node counts as silent in federated evaluation.
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

    def _decide(
        self,
        open_round: OpenRound,
        admitted: AdmittedProposals,
        answers: Answers,  # noqa: ARG002
    ) -> Verdict:
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


def _find_rule(name: object) -> Rule:
    """The rule of this name; a ValueError if there is none."""
    rule = find_rule(name) if isinstance(name, str) else None
    if rule is None:
        front = " or ".join(f'"{pre}+"' for pre in PRE_AGGREGATIONS)
        usable = ", ".join(name for name, known in RULES.items() if known.needs_updates_alone)
        raise ValueError(f"must be one of {usable}, with {front} in front if you like")
    if not rule.needs_updates_alone:
        raise ValueError("asks the server's own rows or voters, which this strategy does not have")
    return rule
