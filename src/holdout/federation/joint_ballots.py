"""Joint ballots in one process: what honest voters send, and what the liars among them do."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from holdout import device
from holdout.attacks import CoalitionView, MessageView
from holdout.cosines import norms_of
from holdout.custom_code import Lent, ask_each, guard, own_copies, spare
from holdout.errors import PluginError
from holdout.federation.custom_workers import Heard, ask_to_vote
from holdout.federation.round_setup import BALLOT, VOTE, RoundSetup, State
from holdout.ids import WorkerId
from holdout.joint_vote import JointMemory
from holdout.rounds import admit_proposals
from holdout.seeds import stream
from holdout.tracebacks import Failure, is_custom
from holdout.voting import Terms
from holdout.workers import HonestWorker, is_plain, judge_together


@dataclass(frozen=True, eq=False)
class JointVoters:
    """The voters of a round; nobody computes anything before it is asked for."""

    setup: RoundSetup
    terms: Terms
    heard: Heard
    """What custom workers keep and raise when they vote goes here."""
    stand_ins: Mapping[WorkerId, HonestWorker] = field(default_factory=dict)
    """Whose data is taken for a voter's; others speak for themselves."""

    @cached_property
    def honest(self) -> Mapping[WorkerId, object]:
        """What honest voters send, in the order of the draw; None: nothing."""
        setup = self.setup
        drawn = [v for v in setup.committee.voters if v not in setup.byzantine]
        held = {v: self.stand_ins.get(v, setup.federation.workers[v]) for v in drawn}
        together = {v: worker for v, worker in held.items() if is_plain(worker)}
        sent: dict[WorkerId, object] = dict(self._ask_each(together))
        for voter in drawn:
            if voter not in together:
                sent[voter] = ask_to_vote(setup, voter, self.terms, {}, self.heard)
        return {voter: sent[voter] for voter in drawn}

    @property
    def liars(self) -> list[WorkerId]:
        """The Byzantine voters, in the order of the draw."""
        setup = self.setup
        return [voter for voter in setup.committee.voters if voter in setup.byzantine]

    @cached_property
    def own(self) -> Mapping[WorkerId, Tensor]:
        """What the Byzantine voters would send if they were honest."""
        held = self.setup.honest_part(self.liars)
        return self._ask(dict(zip(self.liars, held, strict=True)))

    @property
    def honest_work(self) -> Tensor:
        """What the Byzantine voters would send if nobody had poisoned their labels either."""
        held = self.setup.honest_part(self.liars)
        true = self.setup.with_true_labels(held)
        same = all(a is b for a, b in zip(held, true, strict=True))
        sent = self.own if same else self._ask(dict(zip(self.liars, true, strict=True)))
        return torch.stack(list(sent.values()))

    @cached_property
    def known(self) -> Tensor:
        """The honest voters' messages as the server reads them, one per row."""
        weights = self.setup.state.weights
        valid = admit_proposals(list(self.honest.values()), dimension=len(weights)).valid
        rows = list(valid.values())
        return torch.stack(rows) if rows else weights.new_empty(0, len(weights))

    @cached_property
    def _usual_norm(self) -> float:
        # Row by row: torch takes several times as long for all rows at once.
        norms = device.tensor(norms_of(list(self.known)), dtype=torch.float64)
        return float(norms.median()) if len(norms) else 0.0

    def lies(
        self, proposed: Sequence[Tensor], failures: list[Failure] | None = None
    ) -> list[object]:
        """What the Byzantine voters send, given the lies that are proposed.

        Those with whom the attack on ballots raises are silent; `failures` tells of it.
        """
        if not self.liars:
            return []
        failures = [] if failures is None else failures
        setup, attack = self.setup, self.setup.message_attack
        custom = is_custom(attack)
        shared = None if custom else CoalitionView(proposed, self.known, self._usual_norm)
        lent = [Lent(lie) for lie in proposed] if custom else []

        def lie(voter: WorkerId) -> object:
            view = MessageView(
                voter,
                shared
                or CoalitionView([copy() for copy in lent], self._lent_known(), self._usual_norm),
                own=lambda: self._own_of(voter).clone() if custom else self._own_of(voter),
                source=stream(setup.federation.seed, "ballot", setup.number, voter),
            )
            sent: object = spare(
                lambda: guard("the attack on ballots", lambda: attack(view), attack),
                kind=BALLOT,
                failures=failures,
            )
            return own_copies(sent) if custom else sent

        return [lie(voter) for voter in self.liars]

    @cached_property
    def _lent_known(self) -> Lent:
        return Lent(self.known)

    def _own_of(self, voter: WorkerId) -> Tensor:
        """The same for one of them, whom what custom code raises with another does not concern."""
        try:
            return self.own[voter]
        except PluginError:
            (held,) = self.setup.honest_part([voter])
            return self._ask({voter: held})[voter]

    def _ask_each(self, workers: Mapping[WorkerId, HonestWorker]) -> dict[WorkerId, Tensor | None]:
        """What they send; None for those of whom custom code raises."""
        if self.stand_ins:
            # No voter is asked, the coalition guesses: without its data it has nothing to go by.
            return dict(self._ask(workers))
        sent = ask_each(
            lambda some: self._ask({voter: workers[voter] for voter in some}).values(),
            list(workers),
            kind=VOTE,
            who=lambda voter: f"worker {voter}, asked to {VOTE}: ",
            failures=self.heard.failures,
        )
        return dict(zip(workers, sent, strict=True))

    def _ask(self, workers: Mapping[WorkerId, HonestWorker]) -> dict[WorkerId, Tensor]:
        setup = self.setup
        rows: Tensor = guard(
            "a worker's model or data",
            lambda: judge_together(
                list(workers.values()),
                setup.state.weights,
                round_number=setup.number,
                learning_rate=setup.learning_rate,
            ),
        )
        return dict(zip(workers, rows, strict=True))


def joint_voters(setup: RoundSetup, heard: Heard) -> JointVoters | None:
    """This round's voters, if the rule is a vote with joint ballots."""
    terms = setup.curve.terms
    if terms is None or not terms.is_joint:
        return None
    return JointVoters(setup, terms, heard)


def memory_of(state: State) -> JointMemory:
    """What the vote of the last round handed on."""
    return JointMemory.of(state.rule_state, radius=state.radius)
