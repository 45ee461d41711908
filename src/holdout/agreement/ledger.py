"""The chain of decided rounds, as far as the next one needs it.

A header links to the one before, carries the seed on and names the new model; a certificate proves
that a quorum stood behind it. Headers and certificates alone are enough to follow the chain: each
certificate contains the vote of an honest worker that recomputed everything.
"""

from holdout.agreement.headers import Header, Tip
from holdout.agreement.params import Genesis
from holdout.agreement.seed import genesis_seeds, needs_old_block
from holdout.ids import Digest


class Ledger:
    """Where the chain stands: the round to be decided and what it builds on."""

    def __init__(self, genesis: Genesis) -> None:
        self._genesis = genesis
        self._params = genesis.params
        before, zero = genesis_seeds(genesis.chain)
        self._seeds: dict[int, Digest] = {-1: before, 0: zero}
        self._digests: dict[int, Digest] = {0: genesis.chain}
        self.round = 1
        """The round to be decided next."""
        self.model = self._params.model_first
        self.radius = self._params.radius_first
        self.steps = 0

    def seed(self, round_number: int) -> Digest | None:
        """S_r, by which the roles of a round are drawn; None if it is not decided yet."""
        return self._seeds.get(round_number - self._params.lookback)

    def tip(self) -> Tip:
        """What the next round builds on."""
        seed_in = self.seed(self.round)
        assert seed_in is not None  # noqa: S101  # Rounds up to this one are decided.
        old = needs_old_block(self.round, self._params.lookback, self._params.refresh)
        return Tip(
            round=self.round,
            previous=self._digests[self.round - 1],
            model=self.model,
            radius=self.radius,
            steps=self.steps,
            seed_in=seed_in,
            old_block=None if old is None else self._digests[old],
        )

    def append(self, header: Header) -> None:
        """Go on to the next round."""
        self._seeds[header.round] = header.seed
        self._digests[header.round] = header.digest
        self.round = header.round + 1
        self.model = header.model
        self.radius = header.radius
        self.steps = header.steps
        # One round more than the seeds look back, and the oldest block that a refresh asks for.
        oldest_seed = self.round - self._params.lookback - 1
        oldest_block = self.round - self._params.lookback * self._params.refresh - 1
        self._seeds.pop(oldest_seed - 1, None)
        self._digests.pop(oldest_block - 1, None)
