"""When liars lie: from which round, how much at first, how often, and for how long.

Any attack can follow a schedule. In rounds without a lie, Byzantine proposers send honest work and
Byzantine voters vote honestly.
"""

from dataclasses import dataclass

from holdout.ids import RoundNumber


@dataclass(frozen=True, slots=True)
class Schedule:
    """The keys `onset`, `ramp`, `every` and `dormant` of the config's `[attack]`.

    >>> [Schedule(onset=2, every=2, dormant=2).share(t) for t in range(1, 8)]
    [0.0, 1.0, 0.0, 1.0, 0.0, 0.0, 0.0]
    >>> [Schedule(ramp=3).share(t) for t in range(1, 6)]
    [0.25, 0.5, 0.75, 1.0, 1.0]
    """

    onset: int = 1
    """The first round in which they lie."""
    ramp: int = 0
    """Over this many rounds the lie grows, in equal steps, to its full strength."""
    every: int = 1
    """From the onset on they lie only in every k-th round."""
    dormant: int = 0
    """After this many rounds with a lie they work honestly for good; 0: never."""

    def share(self, round_number: RoundNumber | int) -> float:
        """How much of the lie is told in this round: 0 is honest work, 1 the whole lie."""
        since = round_number - self.onset
        if since < 0 or since % self.every:
            return 0.0
        if self.dormant and since // self.every >= self.dormant:
            return 0.0
        return min(1.0, (since + 1) / (self.ramp + 1))
