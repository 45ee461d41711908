"""The coalition's side of a round: what Byzantine proposers know, and what they send."""

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from holdout import device
from holdout.attacks import Deployed, DeployedRule, Lie, MixedLie, View
from holdout.custom_code import (
    Kept,
    counted,
    describe,
    guard,
    own_copies,
    refused,
    untouched,
)
from holdout.data.datasets import Shard
from holdout.errors import MisuseError, PluginError
from holdout.federation.electorate import VoterScores, electorate_of, score_voters
from holdout.federation.joint_ballots import JointVoters, memory_of
from holdout.federation.joint_rehearsal import DeployedJointVote
from holdout.federation.reports import Reporters
from holdout.federation.round_setup import LIE, RoundSetup, rule_context
from holdout.federation.vote_rehearsal import DeployedVote, ServerTally
from holdout.ids import ProposalId, WorkerId
from holdout.rounds import admit_proposals
from holdout.rules import RULES
from holdout.seeds import stream
from holdout.tracebacks import Failure, is_custom
from holdout.voting import Terms, tolerated_count
from holdout.workers import HonestWorker

HELD = 600
"""How many samples of its own the coalition judges by."""


@dataclass(frozen=True, slots=True, eq=False)
class Lies:
    """What the coalition's proposers send, in id order."""

    sent: Sequence[object]
    gamma: float | None
    """Their strength, if the attack has one."""
    worker_states: Mapping[WorkerId, Kept] = field(default_factory=dict)
    """What the liars keep of the honest work that they do in secret."""
    messages: Sequence[object] | None = None
    """What lying voters send as joint ballots, if the attack says; else `attack.voters` does."""
    failures: Sequence[Failure] = ()
    """What custom code raised; if it was the attack, its liars are silent."""


@dataclass(frozen=True, slots=True, eq=False)
class Coalition:
    """All that the coalition has in hand when it chooses its lie."""

    setup: RoundSetup
    copies: tuple[ProposalId, ...]
    """The ids under which it sends its lie."""
    known: Tensor
    """Honest updates that it has seen, one per row."""
    guessed: Mapping[ProposalId, Tensor]
    """What it takes for this round's honest proposals: the truth, if it is omniscient."""
    scores: VoterScores
    """What it takes for the voters' opinions: the truth, or those of its members."""
    voters: JointVoters | None
    """What it takes for the voters where ballots are joint: the truth, or its members' data."""
    own_updates: Callable[[], tuple[Tensor, Mapping[WorkerId, Kept]]]
    """What its proposers would send and keep if they were honest, with the labels they hold."""

    @property
    def honest_work(self) -> Tensor:
        """What its proposers would send if nobody had poisoned their labels either."""
        setup = self.setup
        held = setup.honest_part([setup.committee.proposers[place] for place in self.copies])
        true = setup.with_true_labels(held)
        same = all(a is b for a, b in zip(held, true, strict=True))
        return self.own_updates()[0] if same else setup.propose(true)[0]

    def held(self) -> tuple[Tensor, Tensor]:
        """Samples of its members and their true labels: `HELD` at most, drawn once a run."""
        shard = self._held
        return shard.x[shard.rows], shard.y[shard.rows]

    @property
    def root(self) -> Shard | None:
        """What it takes for the server's own rows: as many of those that its members hold."""
        root = self.setup.federation.root
        return root and replace(self._held, rows=self._held.rows[: len(root.rows)])

    @property
    def _held(self) -> Shard:
        federation = self.setup.federation
        members = self.setup.honest_part(sorted(self.setup.byzantine))
        rows = torch.unique(torch.cat([member.shard.rows for member in members]))
        seed = stream(federation.seed, "held").generator_seed()
        drawn = rows[device.randperm(len(rows), generator=device.generator(seed))[:HELD]]
        return Shard(members[0].shard.x, federation.labels, drawn)

    def own_batches(self) -> list[list[tuple[Tensor, Tensor]]]:
        """The mini-batches behind its proposers' honest updates."""
        setup = self.setup
        liars = setup.honest_part([setup.committee.proposers[place] for place in self.copies])
        return [liar.batches(setup.number) for liar in liars]

    @property
    def shown_messages(self) -> dict[str, Callable[[], Tensor]]:
        """What a `View` shows of joint ballots; nothing where there are none."""
        voters = self.voters
        if voters is None:
            return {}
        none = self.known[:0]
        return {
            "messages": lambda: voters.known,
            "own_messages": lambda: torch.stack(list(voters.own.values())) if voters.own else none,
        }

    @property
    def standing(self) -> Tensor:
        """The guessed honest proposals, one per row."""
        guessed = list(self.guessed.values())
        return torch.stack(guessed) if guessed else self.known[:0]

    @property
    def f(self) -> int:
        """How many lies a rule is told to withstand."""
        n = len(self.guessed) + len(self.copies)
        return tolerated_count(n, self.setup.federation.config.federation.f)


def gather(
    setup: RoundSetup,
    honest: Mapping[ProposalId, Tensor],
    scores: VoterScores,
    voters: JointVoters | None = None,
) -> Coalition:
    """Gather what the coalition knows in this round, given the honest updates and scores."""
    copies = tuple(sorted(setup.coalition))

    @cache
    def own_updates() -> tuple[Tensor, Mapping[WorkerId, Kept]]:
        liars = [setup.committee.proposers[place] for place in copies]
        return setup.propose(setup.honest_part(liars))

    guessed = honest
    if setup.federation.config.attack.knowledge == "omniscient":
        known = torch.stack(list(honest.values())) if honest else own_updates()[0]
    else:
        known, guessed = _guess(setup, honest)
        scores = score_voters(setup, _stand_ins(setup))
        voters = voters and as_liars_see(voters)
    return Coalition(setup, copies, known, guessed, scores, voters, own_updates)


def _guess(
    setup: RoundSetup, honest: Mapping[ProposalId, Tensor]
) -> tuple[Tensor, Mapping[ProposalId, Tensor]]:
    """What a coalition that is not omniscient takes for known updates and proposals."""
    members = setup.honest_part(sorted(setup.byzantine))
    known = setup.state.last_honest
    # In round 1 there is no last round yet.
    if setup.federation.config.attack.knowledge != "last-round" or known is None:
        known, _ = setup.propose(members)
    return known, {p: known[i % len(known)] for i, p in enumerate(honest)}


def _stand_ins(setup: RoundSetup) -> Mapping[WorkerId, HonestWorker]:
    """Members whose data a coalition that is not omniscient takes for the voters'."""
    members = setup.honest_part(sorted(setup.byzantine))
    return {v: members[i % len(members)] for i, v in enumerate(setup.committee.voters)}


def as_liars_see(voters: JointVoters) -> JointVoters:
    """The voters of a joint vote as far as `attack.knowledge` shows them to the liars."""
    setup = voters.setup
    if setup.federation.config.attack.knowledge == "omniscient" or not setup.byzantine:
        return voters
    return replace(voters, stand_ins=_stand_ins(setup))


def lie_or_be_silent(setup: RoundSetup, lie: Callable[[], Lies]) -> Lies:
    """The lies; if custom code raises while they are made, liars are silent, and it is counted."""
    try:
        return lie()
    except PluginError as error:
        return Lies([None] * len(setup.coalition), None, failures=[counted(LIE, error)])


def lie_to_server(
    setup: RoundSetup,
    honest: Mapping[ProposalId, Tensor],
    scores: VoterScores,
    voters: JointVoters | None,
) -> Lies:
    """Algorithm 4, or another attack, against the rule that a server runs."""
    coalition = gather(setup, honest, scores, voters)
    method = setup.curve.method
    if not isinstance(method, Terms):
        ids = sorted([*coalition.guessed, *coalition.copies])
        root, reporters = None, Reporters(setup)
        if setup.federation.config.attack.knowledge != "omniscient":
            root, reporters = coalition.root, replace(reporters, stand_ins=_stand_ins(setup))
        deployed = DeployedRule(
            method,
            coalition.standing,
            len(coalition.copies),
            coalition.f,
            context=partial(rule_context, setup, root),
            places=[ids.index(copy) for copy in coalition.copies],
            tolerated=partial(tolerated_count, f=setup.federation.config.federation.f),
            voters=reporters.about,
        )
        return tell_lies(coalition, deployed)
    if coalition.voters is not None:
        joint = DeployedJointVote(
            voters=coalition.voters,
            honest=coalition.guessed,
            copies=coalition.copies,
            passing=setup.federation.config.attack.passing,
            terms=method,
            memory=memory_of(setup.state),
        )
        return tell_lies(coalition, joint)
    electorate = electorate_of(setup, method)
    vote = DeployedVote(
        electorate=electorate,
        scores=coalition.scores,
        honest=coalition.guessed,
        copies=coalition.copies,
        passing=setup.federation.config.attack.passing,
        tally=ServerTally(method, electorate.voters, setup.state.radius),
    )
    return tell_lies(coalition, vote)


def tell_lies(coalition: Coalition, deployed: Deployed) -> Lies:
    """Run the attack against what is deployed, as far as its schedule says."""
    setup, count = coalition.setup, len(coalition.copies)
    if not setup.lie_share:
        liars = [setup.committee.proposers[place] for place in coalition.copies]
        failures: list[Failure] = []
        honest, kept = setup.propose_each(setup.honest_part(liars), failures)
        return Lies(honest, None, kept, failures=failures)
    act = setup.curve.act
    if act is None:
        raise MisuseError("there are Byzantine workers but no attack")
    view = View(
        round_number=setup.number,
        weights=setup.state.weights,
        learning_rate=setup.learning_rate,
        model=setup.federation.model,
        loss=setup.federation.loss,
        count=count,
        proposers=len(setup.committee.proposers),
        known=coalition.known,
        own_updates=lambda: coalition.own_updates()[0],
        held=cache(coalition.held),
        start=setup.federation.initial_weights,
        deployed=deployed,
        baseline=lambda rule: DeployedRule(RULES[rule], coalition.standing, count, coalition.f),
        source=stream(setup.federation.seed, "attack", setup.number),
        run_source=stream(setup.federation.seed, "attack"),
        own_batches=cache(coalition.own_batches),
        **coalition.shown_messages,
    )
    name = f"attack {setup.curve.attack!r}"
    custom = is_custom(act)
    shown = lent_view(view) if custom else view
    with untouched(name, setup.federation.pool, act):
        made = guard(name, lambda: act(shown), act)
    lie = made if isinstance(made, Lie) else Lie(made)
    if custom:
        copies: Any = own_copies(lie.updates), own_copies(lie.messages)
        lie = Lie(copies[0], lie.gamma, copies[1])
    strength = lie.gamma
    if strength is not None:
        strength = guard(f"the gamma of {name}", partial(float, strength))
    sent = _each(name, act, "proposers", lie.updates, count)
    messages = _messages(name, act, lie, coalition.voters)
    if setup.lie_share < 1:
        sent = _partly(sent, coalition.honest_work, setup.lie_share)
        if messages and coalition.voters is not None:
            messages = _partly(messages, coalition.voters.honest_work, setup.lie_share)
    states: Mapping[WorkerId, Kept] = {}
    if setup.federation.config.training.worker_momentum:
        # Whatever they send, they keep up what honest workers in their places would have kept.
        _, states = coalition.own_updates()
    return Lies(sent, strength, states, messages)


def lent_view(view: View) -> View:
    """The view as custom code gets it: whatever it does to what it sees changes nothing."""
    return replace(
        view,
        weights=view.weights.clone(),
        model=copy.deepcopy(view.model),
        known=view.known.clone(),
        own_updates=lambda: view.own_updates().clone(),
        held=lambda: (view.held()[0].clone(), view.held()[1].clone()),
        start=view.start.clone(),
        deployed=LentDeployed(view.deployed),
        baseline=lambda rule: LentDeployed(view.baseline(rule)),
        messages=lambda: view.messages().clone(),
        own_messages=lambda: view.own_messages().clone(),
    )


class LentDeployed:
    """A deployed rule as custom code gets it: it can be asked, and nothing of it can be changed."""

    __slots__ = ("__asked",)

    def __init__(self, deployed: Deployed) -> None:
        self.__asked = deployed

    @property
    def leaves_nobody_out(self) -> bool:
        """Whether every update counts."""
        return self.__asked.leaves_nobody_out

    def selects(
        self, base: Tensor, direction: Tensor, strengths: Sequence[float]
    ) -> Iterable[bool]:
        """For each strength, whether the lie is selected."""
        return self.__asked.selects(base.clone(), direction.clone(), strengths)

    def outcome(
        self, lies: Sequence[Tensor | None], messages: Sequence[Tensor | None] | None = None
    ) -> Tensor | None:
        """The update that would be made."""
        update = self.__asked.outcome(lies, messages)
        return None if update is None else update.clone()

    def reaches(self, basis: Tensor, trials: Sequence[MixedLie], along: Tensor) -> Sequence[float]:
        """How far the outcome of each trial goes along a direction."""
        return self.__asked.reaches(basis, trials, along)


def _partly(sent: Sequence[object], honest: Tensor, share: float) -> list[object]:
    """Honest work on the way to the lie; what no server would admit stays as it is."""
    admitted = admit_proposals(sent, dimension=honest.shape[1]).valid
    return [
        torch.lerp(own, admitted[place], share) if place in admitted else lie
        for place, own, lie in zip(map(ProposalId, range(len(sent))), honest, sent, strict=True)
    ]


def _messages(
    attack: str, code: object, lie: Lie, voters: JointVoters | None
) -> list[object] | None:
    """What each lying voter sends, if the attack decides it."""
    if lie.messages is None or voters is None:
        return None
    return _each(attack, code, "voters", lie.messages, len(voters.liars))


def _each(attack: str, code: object, who: str, sent: object, count: int) -> list[object]:
    """What each Byzantine proposer or voter sends: its own row, or the vector that all send."""
    if not isinstance(sent, Tensor | Sequence) or isinstance(sent, str | bytes):
        raise refused(
            f"{attack} must return a tensor, or one tensor or None for each of the {count} "
            f"{who}; got {describe(sent)}",
            code,
        )
    if isinstance(sent, Tensor) and sent.ndim < 2:  # noqa: PLR2004
        return [sent] * count
    # A wrong number must not silently pass for a measurement.
    if len(sent) not in (0, count):
        raise refused(
            f"{attack} must return one update for all, one for each of the {count} {who}, or "
            f"an empty list for silence; got {len(sent)}",
            code,
        )
    return list(sent) or [None] * count
