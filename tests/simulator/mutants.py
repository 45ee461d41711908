"""Deliberate mistakes: while a test runs, one rule of the core is taken away or turned around.

Each mutant is a list of (where, name, what to put there). The suite is good if for each some
scenario passes with the real core and fails with the mutant (`test_mutants`).
"""

from contextlib import ExitStack, contextmanager
from dataclasses import replace
from unittest.mock import patch

import numpy as np

from holdout.agreement import aggregate, blocks, counting, headers
from holdout.agreement.codec import BOTTOM
from holdout.agreement.context import PlayerContext
from holdout.agreement.events import MessageFault
from holdout.agreement.messages import Kind, VoteSignature, VoteStep
from holdout.agreement.params import Timing
from holdout.agreement.periods import Periods
from holdout.agreement.safety import Phase, Safety
from holdout.agreement.sortition import next_seed, seed_alpha
from holdout.agreement.votes import Tracker
from holdout.simulator import nodes


@contextmanager
def mutated(name):
    """While this lasts, the core has this mistake."""
    with ExitStack() as stack:
        for where, attribute, replacement in MUTANTS[name]:
            stack.enter_context(patch.object(where, attribute, replacement))
        yield


# -- safety ------------------------------------------------------------------------------------


def _cert_in_any_phase(self):
    value = self.committable()
    if value is not None:
        self._vote(VoteStep.CERT, value)


_tracker_init = Tracker.__init__


def _smaller_quorum(self, quorum):
    _tracker_init(self, quorum - 1)


_tracker_add = Tracker.add


def _count_twice(self, vote):
    fault = _tracker_add(self, vote)
    if fault is MessageFault.DUPLICATE:
        marks = self._at(vote.period, vote.step, vote.value)
        # Under another key, so that the same worker counts once more.
        marks[vote.worker + 1000 * len(marks)] = VoteSignature(
            vote.worker, vote.envelope.signature, vote.envelope.proof
        )
        return None
    return fault


_sign = PlayerContext.sign


def _sign_ballots_alone(self, slot, part, proof, blobs=()):
    _sign(self, slot, part, proof, () if slot[0] is Kind.BALLOT else blobs)


_encode = Safety.encode


def _without(**lost):
    def encode(self, chain):
        return _encode(replace(self, **lost), chain)

    return encode


def _recover_unguarded(self):
    """Without the rule that a CERT vote is contradicted by nothing."""
    said = tuple(self.context.safety.mine)
    shift = 3 * self._attempt()
    value, bound = self.committable(), self.bound_to()
    if value is not None:
        self._vote(VoteStep.LATE + shift, value)
    elif bound is not None:
        self._vote(VoteStep.REDO + shift, bound)
    else:
        self._vote(VoteStep.DOWN + shift, BOTTOM)
    self.resync(said)


def _remember_reasons_only(self):
    self.context.safety.bundles = tuple(map(self.bundle, self._reasons()))


def _remember_soft_only(self):
    soft = self.tracker.quorums(self.period, (VoteStep.SOFT,))
    self.context.safety.bundles = tuple(map(self.bundle, soft))


_resume = Periods.resume


def _resume_before_the_filter(self):
    _resume(self)
    self.context.safety.phase = Phase.FILTER
    self._set_timers()


def _back_nothing(self, step, value):
    return ()


def _down_first(self):
    said = tuple(self.context.safety.mine)
    if self.bound_to() is not None:
        self._vote(VoteStep.REDO, self.bound_to())
    else:
        self._vote(VoteStep.DOWN, BOTTOM)
    if self.committable() is not None:
        self._vote(VoteStep.LATE, self.committable())
    self.resync(said)


def _down_instead_of_redo(self):
    said = tuple(self.context.safety.mine)
    if self.committable() is not None:
        self._vote(VoteStep.LATE, self.committable())
    else:
        self._vote(VoteStep.DOWN, BOTTOM)
    self.resync(said)


def _filter_unbound(self):
    """As if every period were entered with bottom."""
    self.context.safety.phase = Phase.DEADLINE
    for lead in self.leads.best(self.period):
        fresh = lead.original_period == self.period
        if self.acceptable(lead) if fresh else lead.value == self.carried():
            self._vote(VoteStep.SOFT, lead.value)
            return


_tally = counting.tally


def _tally_without_floor(ballots, *, updates, params):
    return _tally(ballots, updates=updates, params=replace(params, byzantine_voters_max=-1))


def _includes_anything(self, value):
    return True


_assemble = blocks.assemble


def _draft_with_proven_seed(self):
    """The leader's own VRF moves the seed in every period."""
    draft = _real_assemble(self)
    tip = self.validation.tip
    proof, out = self.context.signer.prove(seed_alpha(self.context.chain, tip.round, tip.seed_in))
    seed = next_seed(tip.round, tip.seed_in, self.context.worker, out, tip.old_block)
    return replace(draft, seed=seed, seed_proof=proof)


_real_assemble = Periods._assemble


def _no_seed_fault(*_):
    return None


def _float32_mean(model, payloads, *, radius, rate):
    """The library's mean, in the precision of the payloads."""
    stacked = np.stack([np.frombuffer(payload, "<f4") for payload in payloads])
    step = np.float32(rate) * stacked.mean(axis=0)
    _, moved = _combine(model, payloads, radius=radius, rate=rate)
    return aggregate.canonical(np.frombuffer(model, "<f4") - step), moved


_combine = aggregate.combine


# -- liveness ----------------------------------------------------------------------------------


def _no_late_after_down(self):
    said = tuple(self.context.safety.mine)
    down = (Kind.VOTE, self.period, VoteStep.DOWN) in self.context.safety.mine
    if self.committable() is not None and not down:
        self._vote(VoteStep.LATE, self.committable())
    elif self.bound_to() is not None:
        self._vote(VoteStep.REDO, self.bound_to())
    else:
        self._vote(VoteStep.DOWN, BOTTOM)
    self.resync(said)


_enter = Periods.enter
_on_quorum = Periods.on_quorum


def _enter_quietly(self, period, *, with_lead):
    said = Periods._broadcast
    Periods._broadcast = lambda _self, _reached: None
    try:
        _enter(self, period, with_lead=with_lead)
    finally:
        Periods._broadcast = said


def _quorum_quietly(self, reached):
    said = Periods._broadcast
    Periods._broadcast = lambda _self, _reached: None
    try:
        _on_quorum(self, reached)
    finally:
        Periods._broadcast = said


def _filter_after_unscaled(self, period):
    return 2 * self.delay + self.fetch


def _acceptable_unseen(self, lead):
    return True


def _filter_any_repetition(self):
    self.context.safety.phase = Phase.DEADLINE
    if self.bound_to() is not None:
        self._vote(VoteStep.SOFT, self.bound_to())
        return
    for lead in self.leads.best(self.period):
        if lead.original_period < self.period or self.acceptable(lead):
            self._vote(VoteStep.SOFT, lead.value)
            return


_resync = Periods.resync


def _resync_votes_only(self, said):
    spoken = Periods._reasons
    Periods._reasons = lambda _self: []
    try:
        _resync(self, said)
    finally:
        Periods._reasons = spoken


def _include_always(self, lead):
    header = self.validation.header(lead.value)
    return (
        header is not None
        and self.validation.verdict(lead.value).value == "valid"
        and self._includes(lead.value)
    )


def _value_over_bottom(self):
    return self.carried()


UNGUARDED = (Periods, "recover", _recover_unguarded)

MUTANTS = {
    "CERT allowed in phase 2": [(Periods, "try_cert", _cert_in_any_phase)],
    "Q one too small": [(Tracker, "__init__", _smaller_quorum)],
    # The driver drops second copies; here they must get through to be miscounted.
    "duplicate voter counted twice": [
        (Tracker, "add", _count_twice),
        (nodes, "REMEMBERED", frozenset()),
    ],
    "mine not persisted": [(Safety, "encode", _without(mine={}))],
    "nextq not persisted": [(Periods, "_remember", _remember_soft_only)],
    "phase not persisted": [(Periods, "resume", _resume_before_the_filter)],
    "staged not persisted": [(Periods, "_remember", _remember_reasons_only), UNGUARDED],
    "block behind CERT not persisted": [(Periods, "_back", _back_nothing), UNGUARDED],
    "gradients behind a ballot not persisted": [(PlayerContext, "sign", _sign_ballots_alone)],
    "DOWN preferred over LATE": [(Periods, "recover", _down_first)],
    "no REDO": [(Periods, "recover", _down_instead_of_redo)],
    "fresh lead accepted against a value": [(Periods, "filter", _filter_unbound)],
    "no floor in the tally": [(blocks, "tally", _tally_without_floor)],
    "inclusion rule off": [(Periods, "_includes", _includes_anything)],
    "seed without fallback": [
        (Periods, "_assemble", _draft_with_proven_seed),
        (headers, "_seed_fault", _no_seed_fault),
    ],
    "sum by np.mean": [(aggregate, "combine", _float32_mean)],
    "LATE after DOWN forbidden": [(Periods, "recover", _no_late_after_down)],
    "no relay of bundles on entry": [
        (Periods, "enter", _enter_quietly),
        (Periods, "on_quorum", _quorum_quietly),
    ],
    "F(p) not scaled": [(Timing, "filter_after", _filter_after_unscaled)],
    "soft vote without a valid block": [(Periods, "acceptable", _acceptable_unseen)],
    "re-proposal without quorum accepted": [(Periods, "filter", _filter_any_repetition)],
    "no resync of nextq": [(Periods, "resync", _resync_votes_only)],
    "inclusion rule never off": [(Periods, "acceptable", _include_always)],
    "value preferred over bottom": [(Periods, "bound_to", _value_over_bottom)],
}
"""`tally = paper` is a setting, not a mistake: `test_adversaries` shows what it costs."""
