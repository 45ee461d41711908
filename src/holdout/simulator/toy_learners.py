"""What a simulated worker learns with: the interface, and a stand-in for real data.

A `Learner` does the three jobs that a player asks of its driver. `ToyLearner` does them for runs
that are about agreement: the loss is a quadratic bowl in four dimensions, and each honest worker
sees the bottom through its own noise. It is fast and decided by the seed; after a restart it
proposes another gradient, as drawing another mini-batch would.
"""

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Protocol, TypeAlias

from holdout.agreement import aggregate
from holdout.agreement.events import Combine, Judge, Propose
from holdout.ids import ProposalId
from holdout.seeds import Stream, stream
from holdout.voting import Gate, cast_approvals

DIMENSION = 4
"""Weights of the toy model."""
_LAYOUT = struct.Struct(f"<{DIMENSION}f")
FIRST_MODEL = _LAYOUT.pack(*[4.0] * DIMENSION)
"""The model that every run with toy learners starts from (w_1)."""
_GRAIN = 1 << 16


class Learner(Protocol):
    """The learning of one worker between two restarts."""

    def propose(self, job: Propose, model: bytes) -> bytes | None:
        """The canonical bytes of a gradient on this model; None if this worker has none."""
        ...

    def judge(self, job: Judge, model: bytes, payloads: Sequence[bytes]) -> tuple[int, ...] | None:
        """The approved candidates, by their places in `payloads`, ascending; None: no ballot."""
        ...

    def combine(
        self, job: Combine, model: bytes, payloads: Sequence[bytes]
    ) -> tuple[bytes | None, float]:
        """The next model (None if not finite) and radius: the same bits as everybody else's."""
        ...


MakeLearner: TypeAlias = Callable[[int, int], Learner]
"""Makes the learner of (worker, life); a worker's life counts its restarts."""


@dataclass(frozen=True)
class ToyLearner:
    """A worker on the bowl: its gradient leads to the bottom, give or take some noise."""

    seed: int
    worker: int
    life: int
    noise: ClassVar[float] = 0.5

    @cached_property
    def _bottom(self) -> list[float]:
        return self._noise(stream(self.seed, "valley", self.worker))

    def propose(self, job: Propose, model: bytes) -> bytes:
        """The noisy gradient in canonical form: no coordinate is -0.0 or subnormal."""
        draws = self._noise(stream(self.seed, "gradient", self.worker, job.round, self.life))
        weights = _LAYOUT.unpack(model)
        gradient = [w + extra for w, extra in zip(weights, draws, strict=True)]
        return _LAYOUT.pack(*[0.0 if abs(g) < aggregate.SMALLEST else g for g in gradient])

    def judge(self, job: Judge, model: bytes, payloads: Sequence[bytes]) -> tuple[int, ...]:
        """The gated ballot of an honest voter, by its own view of the bottom."""
        weights = _LAYOUT.unpack(model)
        losses: dict[ProposalId, float] = {}
        for place, payload in enumerate(payloads):
            gradient = _LAYOUT.unpack(payload)
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
        """The step that all workers compute."""
        return aggregate.combine(model, payloads, radius=job.radius, rate=job.rate)

    def _loss(self, weights: Sequence[float]) -> float:
        return sum((w - b) ** 2 for w, b in zip(weights, self._bottom, strict=True))

    def _scale(self, gradient: Sequence[float], radius: float) -> float:
        if not radius:
            return 1.0
        length = sum(g * g for g in gradient) ** 0.5
        return 1.0 if length <= radius else radius / length

    def _noise(self, words: Stream) -> list[float]:
        return [self.noise * (2 * words.below(_GRAIN) / _GRAIN - 1) for _ in range(DIMENSION)]
