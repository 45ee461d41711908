"""Lies that pull the same way in every round, which a rule that looks at one round cannot see."""

import math
from dataclasses import dataclass

from holdout import device
from holdout.attacks.view import Lie, View


@dataclass(frozen=True, slots=True)
class ShiftBack:
    """Back to the start in rounds that the liars dominate, honest work in all others.

        lie = (w - w_0) / η if the liars are more than half of the proposers
        lie_i = the liar's own honest update otherwise

    Where only some workers are drawn, one round with a majority of liars can undo all that was
    learned.

    Source: after arXiv 2311.14127.

    Needs: any rule, any model; it harms where a draw may hold a majority of liars.
    """

    def __call__(self, view: View) -> Lie:
        """What leads back to the initial weights; or each proposer's own honest update."""
        if 2 * view.count <= view.proposers:
            return Lie(view.own_updates())
        return Lie(view.update_towards(view.start).expand(view.count, -1))


@dataclass(frozen=True, slots=True)
class Poisoned:
    """One random direction, the same in all rounds, as long as an honest update.

        s[k] = 1 or -1, drawn once a run
        lie = scale · (median length of the known updates) / √d · s, the same from every liar

    Lies that agree over rounds add up, while what honest workers do to undo them does not.

    Source: after PoisonedFL, arXiv 2404.15611, where the length is tuned to the outcome of earlier
    rounds.

    Needs: any rule, any model.

    Args:
        scale: The length, in median norms of the known updates.
    """

    scale: float = 1.0

    def __call__(self, view: View) -> Lie:
        """The same vector from every Byzantine proposer."""
        d = len(view.weights)
        generator = device.generator(view.run_source.generator_seed())
        signs = 2.0 * (device.randn(d, generator=generator) >= 0) - 1.0
        return Lie(self.scale * view.usual_norm / math.sqrt(d) * signs)
