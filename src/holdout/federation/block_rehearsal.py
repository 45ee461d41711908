"""The coalition's side of a round without a server: Algorithm 4 against the tally of a block.

As in the central simulation the attacker rehearses the vote with all that it will see. What differs
is what is rehearsed: ballots are counted as a block's are (short ones completed, a floor under the
approvals), and the radius is the chain's, which no lie of this round can move.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeGuard

from torch import Tensor

from holdout.agreement import counting
from holdout.agreement.params import Params, TallyRule
from holdout.errors import MisuseError
from holdout.federation.coalition import carry_out, plot_lies
from holdout.federation.electorate import Judges
from holdout.federation.round_setup import RoundSetup
from holdout.federation.vote_rehearsal import DeployedVote
from holdout.ids import ProposalId, WorkerId


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

    @property
    def can_stop_early(self) -> bool:
        """Not if every copy counts: a short ballot gives each a share, a full one to some none."""
        return self.passing != "all" or self.params.tally is not TallyRule.COMPLETION

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
    stage: RoundSetup,
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
    terms = stage.terms
    if terms is None:
        raise MisuseError("there are Byzantine workers but no vote")
    plot = plot_lies(stage, honest, judges)
    booth = stage.booth(terms)
    deployed = DeployedBlock(
        booth=replace(booth, voters=tuple(v for v in booth.voters if v not in silenced)),
        judges=plot.knowledge.judges,
        honest=plot.knowledge.guessed,
        copies=plot.copies,
        previous_radius=stage.state.radius,
        passing=stage.federation.config.attack.passing,
        params=params,
    )
    return carry_out(stage, plot, deployed)
