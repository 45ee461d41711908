"""Who opposes whom, over the rounds: what no single round of skewed clients shows.

Clients on Flower keep their names, and those of a small federation meet often. So for each pair of
clients the mean cosine of their updates is remembered, over the rounds in which both answered:

    A_ij = Σ_t γ^(T-t) cos(u_i, u_j) / Σ_t γ^(T-t)

Honest results of local training differ as their data do, but they hardly oppose each other: clients
who share nothing are orthogonal. At worst, where training has come to rest, n updates that sum to
zero have a mean cosine of -1/(n - 1). A client whose updates are reversed opposes, round after
round, every honest client who has some of the same data. So where some pair is below
-(OPPOSED + 1/(n - 1)), somebody lies. Between two clients who oppose each other nobody can tell who
it is, but honest clients are the majority: the few are out without whom least opposition is left.

An n x n matrix is all that is kept, of the clients of the last rounds.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Self

import numpy as np
import torch
from torch import Tensor

from holdout import device
from holdout.cosines import Vectors, cosines
from holdout.ids import WorkerId
from holdout.rules.distance import Matrix

FADE = 0.9
"""What a round weighs, compared with the one after it."""

OPPOSED = 0.2
"""How much two clients oppose each other before one of them is taken for a liar."""

ALIKE = 0.5
"""How near the cosine of the least similar honest pair is to that of the most similar one where
clients are alike: 0.9 and more where all hold equal data, 0.1 where each holds two classes."""

FORGOTTEN = 0.1
"""A client is forgotten once its last round weighs less than this."""

_ROUNDING = 1e-9
"""An exchange that saves no more than this share is none."""

CLIENTS, COSINES, WEIGHTS = "pair_clients", "pair_cosines", "pair_weights"
"""The names under which the memory is kept in the state of its rule."""


def _nothing() -> Matrix:
    return np.zeros((0, 0))


@dataclass(frozen=True, slots=True, eq=False)
class PairMemory:
    """The cosines of the updates of all pairs of clients, summed over the rounds.

    Example:
        >>> memory = PairMemory().after(
        ...     {WorkerId(4): torch.tensor([1.0, 0.0]), WorkerId(7): torch.tensor([-2.0, 0.0])}
        ... )
        >>> memory.mean([WorkerId(4), WorkerId(7)])
        array([[ 1., -1.],
               [-1.,  1.]])
    """

    clients: Sequence[WorkerId] = ()
    cosines: Matrix = field(default_factory=_nothing)
    weights: Matrix = field(default_factory=_nothing)
    """How much of the sums' weight each pair has; 0 where the two never met."""

    @classmethod
    def of(cls, kept: Mapping[str, Tensor]) -> Self:
        """What the state of a rule holds of it."""
        if CLIENTS not in kept:
            return cls()
        return cls(
            tuple(WorkerId(number) for number in kept[CLIENTS].tolist()),
            device.to_numpy(kept[COSINES]),
            device.to_numpy(kept[WEIGHTS]),
        )

    def kept(self) -> dict[str, Tensor]:
        """The inverse of `of`."""
        return {
            CLIENTS: device.tensor(list(self.clients), dtype=torch.int64),
            COSINES: device.from_numpy(self.cosines),
            WEIGHTS: device.from_numpy(self.weights),
        }

    def after(self, updates: Mapping[WorkerId, Tensor]) -> Self:
        """The memory once these clients have answered with these updates."""
        stays = [n for n, w in enumerate(FADE * np.diagonal(self.weights)) if w >= FORGOTTEN]
        clients = [self.clients[place] for place in stays]
        clients += sorted(set(updates).difference(clients))
        shape = len(clients), len(clients)
        sums, weights = np.zeros(shape), np.zeros(shape)
        old, new = slice(0, len(stays)), [clients.index(client) for client in updates]
        sums[old, old] = FADE * self.cosines[np.ix_(stays, stays)]
        weights[old, old] = FADE * self.weights[np.ix_(stays, stays)]
        if updates:
            sums[np.ix_(new, new)] += cosines(Vectors.of(list(updates.values())))
            weights[np.ix_(new, new)] += 1
        return type(self)(tuple(clients), sums, weights)

    def mean(self, clients: Sequence[WorkerId]) -> Matrix:
        """A of these clients; 0 between those who never met."""
        places = [self.clients.index(client) for client in clients]
        weights = self.weights[np.ix_(places, places)]
        sums = self.cosines[np.ix_(places, places)]
        return np.divide(sums, weights, out=np.zeros_like(sums), where=weights > 0)


def are_alike(memory: PairMemory, present: Collection[WorkerId], *, f: Fraction) -> bool:
    """Whether honest clients differ little from each other, so that lies can stand out among them.

    With a share f of liars, (1 - f)² of the pairs are honest and f² are two liars. Where two liars
    agree most, and others with them least, the pairs between the shares 1 - (1 - f)² and 1 - f²,
    from the lowest cosine up, are honest. If the first of them is at least ALIKE times the last,
    clients are alike.

    Example:
        >>> corners = torch.eye(5)
        >>> skewed = {WorkerId(n): corners[n % 3] for n in range(9)}
        >>> similar = {WorkerId(n): 1 + corners[n % 3] for n in range(9)}
        >>> [are_alike(PairMemory().after(x), x, f=Fraction(1, 3)) for x in (skewed, similar)]
        [False, True]
    """
    mean = memory.mean(sorted(present))
    pairs = mean[np.triu_indices(len(mean), 1)]
    if not len(pairs):
        return True
    shares = [1 - (1 - f) ** 2, 1 - f**2]
    low, high = np.quantile(pairs, [float(share) for share in shares])
    return bool(low >= ALIKE * high)


def opposed(memory: PairMemory, present: Collection[WorkerId], *, most: int) -> list[WorkerId]:
    """The clients present, at most so many, without whom least opposition among them is left.

    Example:
        >>> east, west = torch.tensor([1.0, 0.1]), torch.tensor([-1.0, 0.2])
        >>> sent = {WorkerId(n): west if n == 2 else east for n in range(4)}
        >>> opposed(PairMemory().after(sent), sent, most=1)
        [2]
    """
    clients = sorted(present)
    if len(clients) < 2:  # noqa: PLR2004 - A pair.
        return []
    mean = memory.mean(clients)
    limit = -(OPPOSED + 1 / (len(clients) - 1))
    return [clients[place] for place in cover(np.where(mean < limit, -mean, 0.0), most=most)]


def cover(against: Matrix, *, most: int) -> list[int]:
    """The members, at most so many, without whom the others have least against each other.

    First, one by one, goes the member against whom the others have most. Then members who are out
    change places with others as long as that leaves less. Whoever has nothing against those who are
    left comes back.

    Args:
        against: Symmetric, not negative; 0 on the diagonal.
        most: How many may go.

    Example:
        Members 0 and 1 lie; they have something against 2, 3 and 4, and most against 2.

        >>> against = np.zeros((6, 6))
        >>> against[:2, 2:5] = [1.0, 0.3, 0.3]
        >>> cover(against + against.T, most=2)
        [0, 1]
    """
    stays = np.ones(len(against), np.bool_)
    gone = list[int]()
    while len(gone) < most:
        left = np.where(stays, against @ stays, 0.0)
        if not left.any():
            break
        gone.append(int(left.argmax()))
        stays[gone[-1]] = False
    # Each exchange leaves less than before, so there is an end; the bound is for rounding.
    for _ in range(len(against) ** 2):
        left = against @ stays
        saved = left[None, :] + against[gone] - left[gone][:, None]
        saved[:, ~stays] = 0.0
        if not gone or saved.max() <= _ROUNDING * against.max():
            break
        back, away = np.unravel_index(saved.argmax(), saved.shape)
        stays[gone[back]], stays[away] = True, False
        gone[back] = int(away)
    for member in sorted(gone, key=lambda one: float(against[one].sum())):
        if not (against[member] @ stays).any():
            stays[member] = True
    return sorted(member for member in gone if not stays[member])
