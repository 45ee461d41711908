"""A cluster of four under a script: honest workers 0, 1, 2 and a liar, 3.

Learning runs as usual. Which agreement messages reach whom is decided by rules that a script adds
and removes; the liar says only what the script puts into its mouth.
"""

from dataclasses import dataclass, field
from fractions import Fraction

from holdout.agreement import messages
from holdout.agreement.keys import SimulatedKeys
from holdout.agreement.messages import (
    Bundle,
    Envelope,
    Finished,
    Kind,
    Lead,
    Vote,
    VoteSignature,
    VoteStep,
)
from holdout.errors import InvalidMessage
from holdout.simulator.adversaries import Silent
from holdout.simulator.adversaries_agreement import BadBlock
from holdout.simulator.checkers import Checker
from holdout.simulator.cluster import Cluster, found, usual_params
from holdout.simulator.faults import Crash
from holdout.simulator.network import FOREVER
from holdout.simulator.trace import Trace
from holdout.simulator.trial import TIMING

A, B, C, Z = range(4)


def corrupt_with(cluster, liars, make):
    """Give these workers a behaviour that `make` makes."""
    for worker in liars:
        cluster.nodes[worker].behaviour = make(cluster.nodes[worker], liars)


def forger(kind):
    """Makes a behaviour that leads with bad blocks, all of one kind."""

    def make(node, liars):
        liar = BadBlock(node, liars)
        liar.kind = kind
        return liar

    return make


class Puppet(Silent):
    """Sends nothing by itself; serves blobs if the script wants it to."""

    serves = False

    def serve(self, peer, digest, data):  # noqa: ARG002  # As every behaviour.
        return data if self.serves else None


@dataclass
class Stage:
    """Four workers under a script."""

    seed: int = 0
    rules: list = field(default_factory=list)
    """Each takes (source, target, message) and says whether it must not pass."""

    def __post_init__(self):
        keys = SimulatedKeys(self.seed, 4)
        genesis = found(usual_params(4, Fraction(1, 4)), keys, self.seed)
        self.trace = Trace()
        self.cluster = Cluster(genesis, keys, self.seed, timing=TIMING, trace=self.trace)
        self.checker = Checker(genesis)
        self.checker.attach(self.cluster, [Z])
        corrupt_with(self.cluster, [Z], Puppet)
        self.cluster.network.tap = self._pass
        self.chain = genesis.chain
        self.sent: dict[tuple[int, int, int], bytes] = {}
        """(worker, period, step) -> value, of round 1."""
        self.marks: dict[tuple[int, int, int], VoteSignature] = {}
        self.cluster.start()

    def _pass(self, source, target, data):
        try:
            message = self.cluster.decode(data).claim
        except InvalidMessage:
            return 0
        if isinstance(message, Vote) and message.round == 1:
            key = (message.worker, message.period, message.step)
            self.sent[key] = message.value
            self.marks[key] = VoteSignature(message.worker, message.envelope.signature, b"")
        return FOREVER if any(rule(source, target, message) for rule in self.rules) else 0

    # -- rules ---------------------------------------------------------------------------------

    def forbid(self, rule):
        self.rules.append(rule)
        return rule

    def allow(self, *rules):
        for rule in rules or list(self.rules):
            self.rules.remove(rule)

    # -- time ----------------------------------------------------------------------------------

    def until(self, condition, seconds=60):
        """Let time pass until this holds."""
        end = self.cluster.agenda.now + seconds * 1_000_000
        assert self.cluster.run(until=end, done=lambda _: condition()), self.story()

    def voted(self, worker, step, period=0):
        return (worker, period, step) in self.sent

    def decided(self, *workers):
        return all(1 in self.cluster.nodes[worker].commits for worker in workers)

    def period(self, worker):
        return self.cluster.nodes[worker].player.period

    def crash(self, *workers, down=0):
        for worker in workers:
            self.cluster.nodes[worker].crash(Crash(worker, down))
        self.cluster.run(until=self.cluster.agenda.now + down + 1)

    # -- the liar ------------------------------------------------------------------------------

    def sign(self, step, value, period=0):
        """A vote of the liar's."""
        part = messages.vote_part(self.chain, 1, period, step, Z, value)
        signature = self.cluster.keys.signer(Z).sign(part)
        return Envelope(Kind.VOTE, part, signature)

    def hand(self, target, step, value, *, period=0):
        """Give one worker the liar's vote."""
        self._give(target, self.sign(step, value, period).encode())

    def hand_bundle(self, target, step, value, workers, *, period=0):
        """Give one worker a bundle of these workers' votes and the liar's."""
        marks = [self.marks[worker, period, step] for worker in workers]
        envelope = self.sign(step, value, period)
        marks.append(VoteSignature(Z, envelope.signature, b""))
        ordered = tuple(sorted(marks, key=lambda mark: mark.worker))
        self._give(target, Bundle(self.chain, 1, period, step, value, ordered).encode())

    def give_lead(self, target, value, *, period, original):
        """Give one worker a lead of the liar's."""
        part = messages.lead_part(self.chain, 1, period, Z, original, value)
        signature = self.cluster.keys.signer(Z).sign(part)
        self._give(target, Envelope(Kind.LEAD, part, signature).encode())

    def _give(self, target, data):
        self.cluster.nodes[target].receive((Z, data))

    # -- what came of it -----------------------------------------------------------------------

    def story(self):
        return "\n".join(self.trace.lines[-80:])

    def violations(self):
        return [violation.invariant for violation in self.checker.violations]


def votes(*steps, period=None, source=None, target=None):
    """A rule for votes and bundles of these steps."""

    def rule(sender, receiver, message):
        return (
            isinstance(message, Vote | Bundle)
            and message.step in steps
            and (period is None or message.period == period)
            and (source is None or sender in source)
            and (target is None or receiver in target)
        )

    return rule


def leads(target, period=0, source=range(4)):
    """A rule for leads."""
    return lambda sender, receiver, message: (
        isinstance(message, Lead)
        and message.period == period
        and receiver in target
        and sender in source
    )


def everything(source, target):
    """A rule for all messages."""
    return lambda sender, receiver, _: sender in source and receiver in target


def certificates(target):
    """A rule for whatever tells that the round is over."""

    def rule(_, receiver, message):
        over = isinstance(message, Finished) or (
            isinstance(message, Bundle) and message.step == VoteStep.CERT
        )
        return over and receiver in target

    return rule
