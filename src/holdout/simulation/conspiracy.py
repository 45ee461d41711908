"""The coalition's side of a round without a server: Algorithm 4 against the tally of a block.

As in the central simulation the attacker rehearses the vote with all that it will see. What differs
is what is rehearsed: ballots are counted as a block's are (short ones completed, a floor under the
approvals), and the radius is the chain's, which no lie of this round can move.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TypeGuard

import torch
from torch import Tensor

from holdout.agreement import counting
from holdout.agreement.params import Params
from holdout.attacks import DeployedRule, Lie, View
from holdout.errors import MisuseError
from holdout.ids import ProposalId, WorkerId
from holdout.seeds import stream
from holdout.simulation.booth import Judges
from holdout.simulation.coalition import _each, _Knowledge, _limited
from holdout.simulation.guard import guard
from holdout.simulation.rehearsal import DeployedVote
from holdout.simulation.stage import Stage
from holdout.voting import approve_count


@dataclass(frozen=True, eq=False)
class DeployedBlock(DeployedVote):
    """The tally of a block as the attacker runs it: would the lie be in the union-consensus?"""

    params: Params

    def passes(self, sent: Sequence[tuple[WorkerId, object]]) -> bool:
        """Whether a block with these ballots selects the lie."""
        ballots = [names for _, names in sent if _is_ballot(names, self.ids)]
        if len(ballots) < self.params.ballots_min:
            return False
        counts = counting.tally(ballots, updates=self.ids, params=self.params)
        selected = {count.proposer for count in counts if count.passes}.intersection(self.copies)
        return len(selected) == len(self.copies) if self.passing == "all" else bool(selected)

    def _radius(self, length: float) -> float | None:
        """The chain's, whatever is sent."""
        del length
        return self.previous_radius


def _is_ballot(names: object, known: tuple[ProposalId, ...]) -> TypeGuard[Sequence[ProposalId]]:
    """Whether it will be in a block: empty ones are not sent, unknown names are waited for."""
    if not isinstance(names, list | tuple) or not names:
        return False
    plain = all(type(name) is int and name in known for name in names)
    return plain and len(set(names)) == len(names)


def tell_lies(
    stage: Stage,
    params: Params,
    honest: Mapping[ProposalId, Tensor],
    judges: Judges,
    *,
    silenced: frozenset[WorkerId],
) -> tuple[list[object], float | None]:
    """What the coalition's proposers send, in id order, and the strength of it if it has one.

    Args:
        stage: The round; its coalition are the liars that keep to one version.
        params: By which blocks are judged.
        honest: The honest updates.
        judges: The voters' losses.
        silenced: Liars who will be caught at signing two versions; their ballots do not count.
    """
    act, terms = stage.curve.act, stage.terms
    if act is None or terms is None:
        raise MisuseError("there are Byzantine workers but no attack, or no vote")
    copies = tuple(sorted(stage.coalition))

    @cache
    def own_updates() -> Tensor:
        return stage.propose(stage.as_honest([stage.committee.proposers[p] for p in copies]))

    settings = stage.federation.config.attack
    if settings.knowledge == "omniscient":
        known = torch.stack(list(honest.values())) if honest else own_updates()
        knowledge = _Knowledge(known, honest, judges)
    else:
        knowledge = _limited(stage, honest)
    n = len(knowledge.guessed) + len(copies)
    f = n - approve_count(n, params.f)
    guessed = list(knowledge.guessed.values())
    standing = torch.stack(guessed) if guessed else knowledge.known[:0]
    booth = stage.booth(terms)
    view = View(
        round_number=stage.number,
        weights=stage.state.weights,
        learning_rate=stage.learning_rate,
        model=stage.federation.model,
        count=len(copies),
        known=knowledge.known,
        own_updates=own_updates,
        deployed=DeployedBlock(
            booth=replace(booth, voters=tuple(v for v in booth.voters if v not in silenced)),
            judges=knowledge.judges,
            honest=knowledge.guessed,
            copies=copies,
            previous_radius=stage.state.radius,
            passing=settings.passing,
            params=params,
        ),
        krum=DeployedRule("krum", standing, len(copies), f),
        source=stream(stage.federation.seed, "attack", stage.number),
    )
    name = f"attack {stage.curve.attack!r}"
    made = guard(name, lambda: act(view))
    lie = made if isinstance(made, Lie) else Lie(made)
    strength = lie.gamma
    if strength is not None:
        strength = guard(f"the gamma of {name}", partial(float, strength))
    return _each(name, lie, len(copies)), strength
