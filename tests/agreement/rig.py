"""A small network with simulated keys, and its members' messages, for the tests of the core."""

import dataclasses
from fractions import Fraction

import numpy as np

from holdout.agreement import aggregate
from holdout.agreement.blocks import Tip, assemble
from holdout.agreement.codec import digest
from holdout.agreement.draws import Draws
from holdout.agreement.ed25519 import Ed25519Signer, Ed25519Verifier
from holdout.agreement.events import Combined
from holdout.agreement.keys import SimulatedKeys
from holdout.agreement.messages import (
    BallotMessage,
    Bundle,
    Entry,
    Envelope,
    HeadAnswer,
    Kind,
    Lead,
    Update,
    Vote,
    VoteSignature,
    ballot_part,
    head_part,
    lead_part,
    update_part,
    vote_part,
)
from holdout.agreement.params import Genesis, Mode, Params, RoleDraw
from holdout.agreement.sortition import Role, alpha, genesis_seeds, next_seed, seed_alpha

SHAPES = ((2, 2), (2,))
DIMENSION = 6
MODEL = np.arange(DIMENSION, dtype="<f4").tobytes()


def some_params(n=7, **changes):
    settings = {
        "workers": n,
        "f": Fraction(1, 5),
        "quorum": 2 * n // 3 + 1,
        "proposers": n,
        "voters": n,
        "leaders": n,
        "ballots_min": 1,
        "byzantine_voters_max": 0,
        "dimension": DIMENSION,
        "model_first": aggregate.model_digest(SHAPES, MODEL),
        "rates": (0.5, 0.25),
        "shapes": SHAPES,
    }
    return Params(**settings | changes)


class RealKeys:
    """Ed25519 and ECVRF keys of fixed seeds, in the shape of `SimulatedKeys`."""

    def __init__(self, n):
        self._signers = [
            Ed25519Signer.from_seeds(bytes([i, 1] * 16), bytes([i, 2] * 16)) for i in range(n)
        ]

    def signer(self, worker):
        return self._signers[worker]

    def verifier(self):
        return Ed25519Verifier()


class Network:
    """Round 1 of a network: whoever is asked signs; nobody has to be honest, or even drawn."""

    def __init__(self, n=7, *, real=False, **changes):
        self.params = some_params(n, **changes)
        # The last one is a stranger.
        self.keys = RealKeys(n + 1) if real else SimulatedKeys(5, n + 1)
        roster = tuple(self.keys.signer(i).public for i in range(n))
        self.genesis = Genesis(self.params, roster, b"nonce", b"beacon")
        self.chain = self.genesis.chain
        self.verifier = self.keys.verifier()
        self.seed_in = genesis_seeds(self.chain)[0]
        self.tip = Tip(1, self.chain, self.params.model_first, 0.0, 0, self.seed_in, None)
        self.payloads = {}

    @property
    def draws(self):
        return Draws(self.genesis, self.verifier, round_number=self.tip.round, seed=self.seed_in)

    def signed(self, kind, part, worker, proof=b""):
        return Envelope(kind, part, self.keys.signer(worker).sign(part), proof)

    def proof(self, worker, role, period=0, step=0):
        """What its VRF says, drawn or not; nothing where the draw is public."""
        params = self.params
        size = {Role.PROPOSER: params.proposers, Role.VOTER: params.voters}.get(role, 0)
        if role is Role.COMMITTEE:
            public = params.mode is not Mode.SELF
        else:
            public = size >= params.workers or (bool(size) and params.role_draw is RoleDraw.FIXED)
        question = alpha(self.chain, self.seed_in, self.tip.round, role, period, step)
        return b"" if public else self.keys.signer(worker).prove(question)[0]

    def payload(self, values):
        data = aggregate.canonical(np.array(values, np.float32))
        name = aggregate.payload_digest(data)
        self.payloads[name] = data
        return name

    def update(self, worker, values=None, *, model=None, size=None, round_number=None):
        if values is None:
            values = [worker + 1.0] * DIMENSION
        payload = values if isinstance(values, bytes) else self.payload(values)
        model = model or self.tip.model
        size = self.params.payload_bytes if size is None else size
        round_number = round_number or self.tip.round
        part = update_part(self.chain, round_number, worker, model, payload, size)
        envelope = self.signed(Kind.UPDATE, part, worker, self.proof(worker, Role.PROPOSER))
        return Update(self.chain, round_number, worker, model, payload, size, envelope)

    def ballot(self, worker, updates, *, model=None):
        model = model or self.tip.model
        named = sorted((update.worker, update.update_id) for update in updates)
        entries = tuple(Entry(*pair) for pair in named)
        part = ballot_part(self.chain, self.tip.round, worker, model, entries)
        envelope = self.signed(Kind.BALLOT, part, worker, self.proof(worker, Role.VOTER))
        return BallotMessage(self.chain, self.tip.round, worker, model, entries, envelope)

    def lead(self, worker, value=b"b" * 32, period=0, original=0):
        part = lead_part(self.chain, self.tip.round, period, worker, original, value)
        proof = self.proof(worker, Role.LEADER, period)
        envelope = self.signed(Kind.LEAD, part, worker, proof)
        return Lead(self.chain, self.tip.round, period, worker, original, value, envelope)

    def vote(self, worker, step, value=b"b" * 32, period=0):
        part = vote_part(self.chain, self.tip.round, period, step, worker, value)
        proof = self.proof(worker, Role.COMMITTEE, period, step)
        envelope = self.signed(Kind.VOTE, part, worker, proof)
        return Vote(self.chain, self.tip.round, period, step, worker, value, envelope)

    def bundle(self, workers, step, value=b"b" * 32, period=0):
        votes = [self.vote(worker, step, value, period) for worker in workers]
        marks = tuple(
            VoteSignature(v.worker, v.envelope.signature, v.envelope.proof) for v in votes
        )
        return Bundle(self.chain, self.tip.round, period, step, value, marks)

    def head_answer(self, worker, nonce=b"n" * 32, round_number=3):
        part = head_part(self.chain, nonce, worker, round_number)
        envelope = self.signed(Kind.HEAD_ANSWER, part, worker)
        return HeadAnswer(self.chain, nonce, worker, round_number, envelope)

    # -- blocks --------------------------------------------------------------------------------

    def seed_by(self, leader, period=0):
        """The next seed and its proof, as this leader must make them."""
        proof, out = b"", None
        if period == 0:
            question = seed_alpha(self.chain, self.tip.round, self.seed_in)
            proof, out = self.keys.signer(leader).prove(question)
        old = self.tip.old_block
        return next_seed(self.tip.round, self.seed_in, leader, out, old), proof

    def draft(self, updates, ballots, evidence=(), leader=0, period=0):
        seed, proof = self.seed_by(leader, period)
        return assemble(
            self.tip,
            self.genesis,
            leader=leader,
            original_period=period,
            seed=seed,
            seed_proof=proof,
            updates={update.worker: update for update in updates},
            ballots={ballot.worker: ballot for ballot in ballots},
            evidence=evidence,
        )

    def valid(self, draft):
        """Which payloads of a draft are valid gradients."""
        return {
            name: aggregate.payload_fault(self.payloads[name], self.params) is None
            for name in draft.needs
        }

    def finish(self, draft):
        """The block of a draft, as a driver computes it."""
        valid = self.valid(draft)
        job = draft.job(valid)
        if job is None:
            return draft.block(valid, None)
        chosen = [self.payloads[name] for name in job.payloads]
        data, radius = aggregate.combine(MODEL, chosen, radius=job.radius, rate=job.rate)
        model = None if data is None else aggregate.model_digest(SHAPES, data)
        return draft.block(valid, Combined(job, model, radius))

    def with_tip(self, **changes):
        self.tip = dataclasses.replace(self.tip, **changes)
        return self


def other(value):
    """Some digest that is not this one."""
    return digest("other", value)
