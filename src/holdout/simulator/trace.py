"""The trace of a run: one line for each event and action, and a fingerprint to compare runs."""

from collections.abc import Sequence
from functools import lru_cache
from hashlib import sha256

from holdout.agreement import events as ev
from holdout.agreement import messages as msg
from holdout.agreement.codec import BOTTOM
from holdout.agreement.wire import decode, open_envelope
from holdout.errors import InvalidMessage
from holdout.ids import Digest

DIGITS = 6
"""How many digits of a digest a trace shows: enough to tell two apart."""
LEGEND = (
    "seconds, worker, what happens to it; below: what it does about it",
    "<- received from, -> sent to; rN pM: round N, period M; six digits name a block or a blob",
)


class Trace:
    """Collects a run: the text of all events and actions, and a hash over them."""

    __slots__ = ("_hash", "lines")

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._hash = sha256()

    def record(self, time: int, worker: int, event: ev.Event, actions: Sequence[ev.Action]) -> None:
        """Add an event that a worker was told, and the actions it asked for."""
        self._hash.update(f"{time} {worker} {event!r} {actions!r}".encode())
        self.lines.append(f"{clock(time)}  {worker:>3}  {event_text(event)}")
        told = [action_text(action) for action in actions]
        self.lines += [f"{'':>18}{text}" for text in told if text]

    def note(self, time: int, worker: int, text: str) -> None:
        """Add what happens to a worker from outside, such as a crash; worker -1: to no one."""
        self._hash.update(f"{time} {worker} {text}".encode())
        who = "   " if worker < 0 else f"{worker:>3}"
        self.lines.append(f"{clock(time)}  {who}  *** {text}")

    @property
    def fingerprint(self) -> str:
        """Equal for two runs if the same things happened in both."""
        return self._hash.hexdigest()


def clock(time: int) -> str:
    """A virtual time in seconds."""
    return f"{time / 1_000_000:10.6f}"


def short(digest: Digest) -> str:
    """The first digits of a digest."""
    return "bottom" if digest == BOTTOM else digest.hex()[:DIGITS]


def event_text(event: ev.Event) -> str:  # noqa: C901  # One case for each kind.
    """An event in a few words."""
    match event:
        case ev.Received(peer, data):
            return f"<- {peer}: {message_text(data)}"
        case ev.TimerFired(timer):
            return f"timer {timer.kind.name.lower()} r{timer.round} p{timer.period}"
        case ev.Proposed(_, payload):
            return f"proposed {short(payload)}"
        case ev.Judged(job, approved):
            names = ",".join(str(job.candidates[place].proposer) for place in approved)
            return f"judged: approves {names or 'nobody'}"
        case ev.Combined(_, model, radius):
            return f"combined {'nothing' if model is None else short(model)} radius {radius:.3g}"
        case ev.PayloadReady(digest, valid):
            return f"has payload {short(digest)}" + ("" if valid else ", which is not valid")
        case ev.PayloadFailed(digest):
            return f"cannot get payload {short(digest)}"
        case ev.BlockReady(digest):
            return f"has block {short(digest)}"
        case ev.ModelReady(digest):
            return f"has model {short(digest)}"
        case ev.JobFailed(job):
            return f"could not compute {type(job).__name__.lower()}"
        case ev.Start():
            return "starts"


def action_text(action: ev.Action) -> str:  # noqa: C901  # One case for each kind.
    """An action in a few words; empty if it would only make the trace longer."""
    match action:
        case ev.Broadcast(data):
            return f"-> all: {message_text(data)}"
        case ev.Send(peer, data):
            return f"-> {peer}: {message_text(data)}"
        case ev.Relay() | ev.SetTimer() | ev.Keep() | ev.Forget():
            return ""
        case ev.Compute(job):
            return f"computes {type(job).__name__.lower()}"
        case ev.Want(kind, digest, hints):
            asked = ",".join(map(str, dict.fromkeys(hints)))
            return f"wants {kind.name.lower()} {short(digest)} of {asked or 'anybody'}"
        case ev.Persist(_, blobs, finished):
            named = [f"{kind.name.lower()} {short(digest)}" for kind, digest in blobs]
            rounds = [f"r{item.certificate.round}" for item in finished]
            return "writes " + ", ".join(["its state", *named, *rounds])
        case ev.Commit(number, value, model, stepped, selected):
            chosen = "?" if selected is None else ",".join(map(str, selected))
            what = f"step {chosen}" if stepped else "no step"
            return f"COMMITS r{number} {short(value)} ({what}, model {short(model)})"
        case ev.SendBlocks(peer, first, last):
            return f"-> {peer}: finished rounds {first} to {last}"
        case ev.Reject(peer, fault):
            return f"rejects {fault} from {peer}"
        case ev.Entered(number, period):
            return f"enters r{number} p{period}"
        case ev.ReportEvidence():
            return f"REPORT {action.worker}"
        case ev.Alarm():
            return f"ALARM {action.why}"
        case ev.Halt():
            return f"HALT {action.why}"


@lru_cache(maxsize=4096)
def message_text(data: bytes) -> str:
    """The message in these bytes, in a few words."""
    try:
        return describe(decode(data).claim)
    except InvalidMessage as error:
        return f"{len(data)} bytes that are no message ({error})"


def describe(message: msg.Message) -> str:  # noqa: C901  # One case for each kind.
    """A message in a few words."""
    match message:
        case msg.Update():
            return f"update of {message.worker} r{message.round} {short(message.update_id)}"
        case msg.BallotMessage():
            names = ",".join(str(entry.proposer) for entry in message.entries)
            return f"ballot of {message.worker} r{message.round} for {names}"
        case msg.Lead():
            again = "" if message.original_period == message.period else " again"
            return (
                f"lead of {message.worker} r{message.round} p{message.period}"
                f" {short(message.value)}{again}"
            )
        case msg.Vote():
            return (
                f"{step_text(message.step)} of {message.worker} r{message.round}"
                f" p{message.period} {short(message.value)}"
            )
        case msg.Bundle():
            who = ",".join(str(mark.worker) for mark in message.marks)
            return (
                f"bundle {step_text(message.step)} r{message.round} p{message.period}"
                f" {short(message.value)} by {who}"
            )
        case msg.Evidence():
            try:
                return f"evidence against {describe(open_envelope(message.first))}"
            except InvalidMessage:
                return "evidence that does not read"
        case msg.Finished():
            certificate = message.certificate
            return f"finished r{certificate.round} {short(certificate.value)}"
        case msg.GetBlocks():
            return f"asks for rounds {message.first} to {message.last}"
        case msg.GetUpdates():
            return f"asks for {len(message.update_ids)} updates of r{message.round}"
        case msg.Behind():
            return f"is in r{message.round} p{message.period}"
        case msg.HeadQuery():
            return "asks how far the chain is"
        case msg.HeadAnswer():
            return f"{message.worker} says: r{message.round} is finished"


def step_text(step: int) -> str:
    """The kind of a step, and the recovery attempt if it is not the first."""
    attempt = max(0, step - 3) // 3
    return msg.base_step(step).name + (f"+{attempt}" if attempt else "")
