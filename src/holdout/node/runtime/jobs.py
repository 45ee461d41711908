"""The three jobs that a player asks for: a gradient, a ballot, the next model.

The member's worker does the first two, in the learner's process. The third is the same for all
members and runs in a thread. Nothing here can stop the node: a job that fails costs this worker its
role in the round.
"""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from holdout.agreement import aggregate
from holdout.agreement import events as ev
from holdout.agreement.params import Params
from holdout.errors import LearnerFailed
from holdout.ids import Digest
from holdout.node.logs import Log
from holdout.node.network.blobs import Blobs
from holdout.node.runtime.learner_client import LearnerClient


class Misbehaviour(Protocol):
    """How a node lies, in a rehearsal: what it does in place of what it should do."""

    def act(self, actions: Sequence[ev.Action]) -> Sequence[ev.Action]:
        """The actions that it takes in place of its player's."""
        ...

    def ballot(self, job: ev.Judge, approved: tuple[int, ...]) -> tuple[int, ...]:
        """The updates that it approves in place of its worker's choice."""
        ...

    def withholds(self, kind: ev.BlobKind) -> bool:
        """Whether it refuses to hand out blobs of this kind."""
        ...


class Jobs:
    """Does what a player asks for.

    Attributes:
        misbehaviour: How this node lies; None: it does not.
        round: The current round; models that are made belong to it.
    """

    def __init__(
        self,
        params: Params,
        *,
        learner: LearnerClient,
        blobs: Blobs,
        log: Log,
    ) -> None:
        self._params = params
        self._learner = learner
        self._blobs = blobs
        self._log = log
        self._thread = ThreadPoolExecutor(1, "combine")
        self.misbehaviour: Misbehaviour | None = None
        self.round = 0

    def close(self) -> None:
        """Start no more work."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def result(self, job: ev.Job, steps: int) -> ev.Event:
        """Do a job; `steps` is how many steps the chain has made."""
        model = self._blobs.get(ev.BlobKind.MODEL, job.model)
        if model is None:
            return ev.JobFailed(job)
        try:
            match job:
                case ev.Propose():
                    return await self._propose(job, model, steps)
                case ev.Judge():
                    return await self._judge(job, model)
                case ev.Combine():
                    return await self._combine(job, model)
        except LearnerFailed:
            return ev.JobFailed(job)

    async def _propose(self, job: ev.Propose, model: bytes, steps: int) -> ev.Event:
        rate = self._params.rate(steps + 1)
        data = await self._learner.propose(model, round_number=job.round, rate=rate)
        fault = aggregate.payload_fault(data, self._params)
        if fault is not None and self.misbehaviour is None:
            self._log.warning("worker-failed", job="propose", why=fault)
            return ev.JobFailed(job)
        digest = aggregate.payload_digest(data)
        self._blobs.put(ev.BlobKind.PAYLOAD, digest, data, job.round)
        return ev.Proposed(job, digest)

    async def _judge(self, job: ev.Judge, model: bytes) -> ev.Event:
        payloads = self._payloads([candidate.payload for candidate in job.candidates])
        if payloads is None:
            return ev.JobFailed(job)
        approved = await self._learner.judge(
            model,
            payloads,
            round_number=job.round,
            rate=job.rate,
            radius=job.radius,
            f=self._params.f,
        )
        if self.misbehaviour is not None:
            approved = self.misbehaviour.ballot(job, approved)
        return ev.Judged(job, approved)

    def _payloads(self, digests: Sequence[Digest]) -> list[bytes] | None:
        """These gradients; None: some are not here."""
        found = [self._blobs.get(ev.BlobKind.PAYLOAD, digest) for digest in digests]
        held = [data for data in found if data is not None]
        return held if len(held) == len(found) else None

    async def _combine(self, job: ev.Combine, model: bytes) -> ev.Event:
        payloads = self._payloads(job.payloads)
        if payloads is None:
            return ev.JobFailed(job)
        data, combined = await asyncio.get_running_loop().run_in_executor(
            self._thread, aggregate.combined, job, model, payloads, self._params
        )
        if data is not None and combined.model is not None:
            self._blobs.put(ev.BlobKind.MODEL, combined.model, data, self.round)
        return combined
