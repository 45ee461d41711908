"""The coalition's side of a round: what Byzantine proposers know, and what they send."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial

import torch
from torch import Tensor

from holdout.attacks import Deployed, DeployedRule, Lie, View
from holdout.errors import MisuseError, PluginError
from holdout.federation.electorate import Judges
from holdout.federation.plugin_calls import describe, guard
from holdout.federation.round_setup import RoundSetup
from holdout.federation.vote_rehearsal import DeployedVote
from holdout.ids import ProposalId
from holdout.seeds import stream
from holdout.voting import approve_count


@dataclass(frozen=True, slots=True, eq=False)
class Knowledge:
    """What the coalition goes by: for an omniscient one the truth, else its best guess."""

    known: Tensor
    """Honest updates that it has seen."""
    guessed: Mapping[ProposalId, Tensor]
    """What it takes for this round's honest proposals."""
    judges: Judges
    """Whose data it tries proposals on."""


@dataclass(frozen=True, slots=True, eq=False)
class Plot:
    """All that the coalition has in hand when it chooses its lie."""

    copies: tuple[ProposalId, ...]
    """The places of its proposers."""
    knowledge: Knowledge
    own_updates: Callable[[], Tensor]
    """What its proposers would send if they were honest."""
    standing: Tensor
    """The guessed honest proposals, one in a row."""
    f: int
    """How many proposals a rule is to stand."""


def plot_lies(stage: RoundSetup, honest: Mapping[ProposalId, Tensor], judges: Judges) -> Plot:
    """Gather what the coalition knows in this round."""
    copies = tuple(sorted(stage.coalition))

    @cache
    def own_updates() -> Tensor:
        return stage.propose(stage.as_honest([stage.committee.proposers[p] for p in copies]))

    if stage.federation.config.attack.knowledge == "omniscient":
        known = torch.stack(list(honest.values())) if honest else own_updates()
        knowledge = Knowledge(known, honest, judges)
    else:
        knowledge = _limited(stage, honest)
    n = len(knowledge.guessed) + len(copies)
    guessed = list(knowledge.guessed.values())
    standing = torch.stack(guessed) if guessed else knowledge.known[:0]
    f = n - approve_count(n, stage.federation.config.federation.f)
    return Plot(copies, knowledge, own_updates, standing, f)


def send_lies(
    stage: RoundSetup, honest: Mapping[ProposalId, Tensor], judges: Judges
) -> tuple[list[object], float | None]:
    """What the coalition's proposers send, in id order, and the strength of it if it has one."""
    plot = plot_lies(stage, honest, judges)
    copies = plot.copies
    deployed: Deployed = DeployedRule(stage.curve.rule, plot.standing, len(copies), plot.f)
    if stage.terms is not None:
        deployed = DeployedVote(
            booth=stage.booth(stage.terms),
            judges=plot.knowledge.judges,
            honest=plot.knowledge.guessed,
            copies=copies,
            previous_radius=stage.state.radius,
            passing=stage.federation.config.attack.passing,
        )
    return carry_out(stage, plot, deployed)


def carry_out(
    stage: RoundSetup, plot: Plot, deployed: Deployed
) -> tuple[list[object], float | None]:
    """Run the attack against what is deployed: what each proposer sends, and its strength."""
    act, count = stage.curve.act, len(plot.copies)
    if act is None:
        raise MisuseError("there are Byzantine workers but no attack")
    view = View(
        round_number=stage.number,
        weights=stage.state.weights,
        learning_rate=stage.learning_rate,
        model=stage.federation.model,
        count=count,
        known=plot.knowledge.known,
        own_updates=plot.own_updates,
        deployed=deployed,
        baseline=lambda rule: DeployedRule(rule, plot.standing, count, plot.f),
        source=stream(stage.federation.seed, "attack", stage.number),
    )
    name = f"attack {stage.curve.attack!r}"
    made = guard(name, lambda: act(view))
    lie = made if isinstance(made, Lie) else Lie(made)
    strength = lie.gamma
    if strength is not None:
        strength = guard(f"the gamma of {name}", partial(float, strength))
    return _each(name, lie, count), strength


def _limited(stage: RoundSetup, honest: Mapping[ProposalId, Tensor]) -> Knowledge:
    """Its own members' gradients, or last round's, and its own members' data to try them on."""
    members = stage.as_honest(sorted(stage.byzantine))
    known = stage.state.last_honest
    # In round 1 there is no last round yet.
    if stage.federation.config.attack.knowledge != "last-round" or known is None:
        known = stage.propose(members)
    voters = enumerate(stage.committee.voters)
    return Knowledge(
        known,
        {p: known[i % len(known)] for i, p in enumerate(honest)},
        stage.judges({voter: members[i % len(members)] for i, voter in voters}),
    )


def _each(attack: str, lie: Lie, count: int) -> list[object]:
    """What each Byzantine proposer sends: its own row, or the vector that all send."""
    if not isinstance(lie.updates, Tensor | Sequence):
        raise PluginError(
            f"{attack} must return a tensor, or one tensor or None for each of the {count} "
            f"proposers; got {describe(lie.updates)}"
        )
    if isinstance(lie.updates, Tensor) and lie.updates.ndim < 2:  # noqa: PLR2004
        return [lie.updates] * count
    # Too few would be cut short in silence, and look like a measurement.
    if len(lie.updates) not in (0, count):
        raise PluginError(
            f"{attack} must return one update for all, one for each of the {count} proposers, or "
            f"an empty list for silence; got {len(lie.updates)}"
        )
    return list(lie.updates) or [None] * count
