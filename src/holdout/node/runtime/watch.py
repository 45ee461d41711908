"""What is measured of each round, from the events and actions that pass through the driver.

Durations go into histograms, by the standard client library; the last rounds are kept whole, for
the page that shows them. Nothing here changes what the node does.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from prometheus_client import CollectorRegistry, Histogram

from holdout.agreement import events as ev
from holdout.agreement import wire
from holdout.agreement.blocks import read_block
from holdout.agreement.messages import Kind, Vote
from holdout.errors import InvalidMessage
from holdout.node.network.blobs import Blobs

ROUNDS_KEPT = 500
"""How many rounds the page can show; the chain itself is in the store."""
BALLOTS_SHOWN_MAX = 64
"""In larger networks the page shows no map of a round, so the approvals are not kept."""
ALARMS_KEPT = 50
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
"""The upper ends of the histograms' buckets."""


@dataclass(frozen=True, slots=True)
class RoundSeen:
    """What this node saw of one decided round."""

    round: int
    seconds: float | None
    """From its first to its last moment here; None: its beginning was not seen."""
    periods: int
    """Periods beyond the first."""
    stepped: bool
    selected: tuple[int, ...] | None
    """The proposers in the union-consensus; None: only the certificate was seen."""
    proposers: tuple[int, ...] = ()
    """Those whose updates are in the block."""
    approvals: tuple[tuple[int, tuple[int, ...]], ...] = ()
    """(voter, the proposers that it approves) for each ballot in the block."""
    accuracy: float | None = None


@dataclass(slots=True)
class _Current:
    """The round that is under way; moments are microseconds on the driver's clock."""

    round: int
    began: int
    periods: int = 0
    judging: int | None = None
    """When this node began to make its ballot."""
    voting: int | None = None
    """When the first vote on a block was sent or came."""


class Watch:
    """Measures rounds, jobs and votes.

    Attributes:
        registry: Holds the histograms.
        rounds: The last decided rounds, oldest first.
        alarms: The last things that an operator should look at, as (round, text), oldest first.
    """

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs
        self._current: _Current | None = None
        self._jobs: dict[ev.Job, int] = {}
        self._votes: dict[tuple[int, int], int] = {}
        """When the first vote of a period and step came."""
        self.rounds: deque[RoundSeen] = deque(maxlen=ROUNDS_KEPT)
        self.alarms: deque[tuple[int, str]] = deque(maxlen=ALARMS_KEPT)
        self.registry = CollectorRegistry()
        self._round_seconds = self._histogram(
            "holdout_round_seconds", "How long a decided round took here."
        )
        self._phase_seconds = self._histogram(
            "holdout_phase_seconds",
            "How long the parts of a round took: proposals, ballots, agreement.",
            "phase",
        )
        self._step_seconds = self._histogram(
            "holdout_step_seconds",
            "How long this node's own work took: gradient, ballot, model.",
            "step",
        )
        self._vote_lateness = self._histogram(
            "holdout_vote_lateness_seconds",
            "How long after the first vote of the same step a member's vote came.",
        )

    def _histogram(self, name: str, about: str, *labels: str) -> Histogram:
        return Histogram(name, about, labels, buckets=SECONDS, registry=self.registry)

    def saw(self, event: ev.Event, actions: Sequence[ev.Action], at: int) -> None:
        """An event was handled at this time, and led to these actions."""
        self._on_event(event, actions, at)
        for action in actions:
            self._on_action(action, at)

    def measured(self, round_number: int, accuracy: float | None) -> None:
        """The model of a decided round is this good."""
        for place in range(len(self.rounds) - 1, -1, -1):
            if self.rounds[place].round == round_number:
                self.rounds[place] = replace(self.rounds[place], accuracy=accuracy)
                return

    def _on_event(self, event: ev.Event, actions: Sequence[ev.Action], at: int) -> None:
        match event:
            case ev.Proposed():
                self._job_done(event.job, "gradient", at)
            case ev.Judged():
                self._job_done(event.job, "ballot", at)
            case ev.Combined():
                self._job_done(event.job, "model", at)
            case ev.JobFailed():
                self._jobs.pop(event.job, None)
            case ev.Received() if event.data[:1] == bytes([Kind.VOTE]):
                if not any(isinstance(action, ev.Reject) for action in actions):
                    self._vote_came(event.data, at)
            case _:
                pass

    def _on_action(self, action: ev.Action, at: int) -> None:
        match action:
            case ev.Compute():
                self._jobs[action.job] = at
                if isinstance(action.job, ev.Judge) and self._current is not None:
                    self._current.judging = self._current.judging or at
            case ev.Broadcast() if action.data[:1] == bytes([Kind.VOTE]):
                self._voting(at)
            case ev.Commit():
                self._decided(action, at)
            case ev.Entered():
                self._entered(action, at)
            case ev.Alarm():
                self.alarms.append((self._round, action.why))
            case ev.Halt():
                self.alarms.append((self._round, f"halted: {action.why}"))
            case _:
                pass

    @property
    def _round(self) -> int:
        return 0 if self._current is None else self._current.round

    def _job_done(self, job: ev.Job, step: str, at: int) -> None:
        began = self._jobs.pop(job, None)
        if began is not None:
            self._step_seconds.labels(step).observe((at - began) / 1e6)

    def _vote_came(self, data: bytes, at: int) -> None:
        self._voting(at)
        try:
            vote = wire.decode(data).claim
        except InvalidMessage:
            return
        if isinstance(vote, Vote) and vote.round == self._round:
            first = self._votes.setdefault((vote.period, vote.step), at)
            self._vote_lateness.observe((at - first) / 1e6)

    def _voting(self, at: int) -> None:
        if self._current is not None and self._current.voting is None:
            self._current.voting = at

    def _entered(self, action: ev.Entered, at: int) -> None:
        if self._current is not None and self._current.round == action.round:
            self._current.periods += 1
            return
        self._current = _Current(action.round, at, action.period)
        self._jobs.clear()
        self._votes.clear()

    def _decided(self, commit: ev.Commit, at: int) -> None:
        current = self._current
        if current is None or current.round != commit.round:
            # Learned from others while this node was behind.
            self.rounds.append(self._seen(commit, None, 0))
            return
        seconds = (at - current.began) / 1e6
        self._round_seconds.observe(seconds)
        moments = (current.began, current.judging, current.voting, at)
        for phase, since, until in zip(
            ("proposals", "ballots", "agreement"), moments, moments[1:], strict=False
        ):
            if since is not None and until is not None:
                self._phase_seconds.labels(phase).observe(max(0, until - since) / 1e6)
        self.rounds.append(self._seen(commit, seconds, current.periods))

    def _seen(self, commit: ev.Commit, seconds: float | None, periods: int) -> RoundSeen:
        seen = RoundSeen(commit.round, seconds, periods, commit.stepped, commit.selected)
        body = self._blobs.get(ev.BlobKind.BLOCK, commit.value)
        if body is None:
            return seen
        try:
            block = read_block(body)
        except InvalidMessage:  # A decided round has a valid body.
            return seen
        if len(block.ballots) > BALLOTS_SHOWN_MAX:
            return seen
        return replace(
            seen,
            proposers=tuple(update.worker for update in block.updates),
            approvals=tuple(
                (ballot.worker, tuple(entry.proposer for entry in ballot.entries))
                for ballot in block.ballots
            ),
        )
