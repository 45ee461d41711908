"""What a simulated worker learns with: the three jobs that a player asks its driver to do.

`Valley` is a stand-in for real data, for runs that are about agreement: a tiny quadratic bowl whose
bottom all honest workers see through their own noise. It is fast, decided by the seed, and it
answers differently when it is asked again, as drawing another mini-batch would.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from holdout.agreement import aggregate
from holdout.agreement.events import Combine, Judge, Propose
from holdout.ids import ProposalId
from holdout.seeds import Stream, stream
from holdout.voting import Gate, cast_approvals

VALLEY_DIMENSION = 4
_GRAIN = 1 << 16


class Learner(Protocol):
    """The learning of one worker between two restarts."""

    def propose(self, job: Propose, model: bytes) -> bytes | None:
        """The canonical bytes of a gradient on this model; None: this worker has none."""
        ...

    def judge(self, job: Judge, model: bytes, payloads: Sequence[bytes]) -> tuple[int, ...] | None:
        """The places of the approved candidates, ascending (payloads in their order), or None."""
        ...

    def combine(
        self, job: Combine, model: bytes, payloads: Sequence[bytes]
    ) -> tuple[bytes | None, float]:
        """The next model (None if it is not finite) and radius, to the bit as everybody else."""
        ...


class LearnerFactory(Protocol):
    """Makes the learner of a worker; `life` counts its restarts."""

    def __call__(self, worker: int, life: int) -> Learner:
        """For one life of one worker."""
        ...


def valley_start(dimension: int = VALLEY_DIMENSION) -> bytes:
    """w_1 of every synthetic run."""
    return struct.pack(f"<{dimension}f", *[4.0] * dimension)


@dataclass(frozen=True)
class Valley:
    """A worker on a slope: its gradient is the way to the bottom, and some noise."""

    seed: int
    worker: int
    life: int = 0
    dimension: int = VALLEY_DIMENSION
    noise: float = 0.5

    @cached_property
    def _bottom(self) -> list[float]:
        return self._noise(stream(self.seed, "valley", self.worker))

    def propose(self, job: Propose, model: bytes) -> bytes:
        """The noisy gradient, canonical: no coordinate is -0.0 or subnormal."""
        draws = self._noise(stream(self.seed, "gradient", self.worker, job.round, self.life))
        weights = struct.unpack(f"<{self.dimension}f", model)
        gradient = [w + extra for w, extra in zip(weights, draws, strict=True)]
        return struct.pack(
            f"<{self.dimension}f", *[0.0 if abs(g) < aggregate.SMALLEST else g for g in gradient]
        )

    def judge(self, job: Judge, model: bytes, payloads: Sequence[bytes]) -> tuple[int, ...]:
        """The gated ballot of an honest voter, on its own view of the bottom."""
        layout = struct.Struct(f"<{self.dimension}f")
        weights = layout.unpack(model)
        losses: dict[ProposalId, float] = {}
        for place, payload in enumerate(payloads):
            gradient = layout.unpack(payload)
            step = job.rate * self._scale(gradient, job.radius)
            losses[ProposalId(place)] = self._loss(
                [w - step * g for w, g in zip(weights, gradient, strict=True)]
            )
        ballot = cast_approvals(
            losses,
            approve_count=job.approve_max,
            gate=Gate.MEDIAN,
            current_loss=self._loss(weights),
        )
        return tuple(int(place) for place in ballot.approved)

    def combine(
        self, job: Combine, model: bytes, payloads: Sequence[bytes]
    ) -> tuple[bytes | None, float]:
        """As every worker does."""
        return aggregate.combine(model, payloads, radius=job.radius, rate=job.rate)

    def _loss(self, weights: Sequence[float]) -> float:
        return sum((w - b) ** 2 for w, b in zip(weights, self._bottom, strict=True))

    def _scale(self, gradient: Sequence[float], radius: float) -> float:
        if not radius:
            return 1.0
        length = sum(g * g for g in gradient) ** 0.5
        return 1.0 if length <= radius else radius / length

    def _noise(self, words: Stream) -> list[float]:
        return [self.noise * (2 * words.below(_GRAIN) / _GRAIN - 1) for _ in range(self.dimension)]


@dataclass(frozen=True, slots=True)
class Valleys:
    """Makes the synthetic learners of a cluster."""

    seed: int
    noise: float = 0.5

    def __call__(self, worker: int, life: int) -> Learner:
        """The learner of one worker."""
        return Valley(self.seed, worker, life, noise=self.noise)


class BitFlipped:
    """A worker whose machine computes another model than everybody else's: one bit."""

    __slots__ = ("_learner",)

    def __init__(self, learner: Learner) -> None:
        self._learner = learner

    def propose(self, job: Propose, model: bytes) -> bytes | None:
        """As the learner inside."""
        return self._learner.propose(job, model)

    def judge(self, job: Judge, model: bytes, payloads: Sequence[bytes]) -> tuple[int, ...] | None:
        """As the learner inside."""
        return self._learner.judge(job, model, payloads)

    def combine(
        self, job: Combine, model: bytes, payloads: Sequence[bytes]
    ) -> tuple[bytes | None, float]:
        """The lowest bit of the first weight is wrong."""
        combined, radius = self._learner.combine(job, model, payloads)
        return (None if combined is None else bytes([combined[0] ^ 1]) + combined[1:]), radius
