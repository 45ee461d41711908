"""Checking a node's store offline: the whole chain of certificates, and on request everything.

Without `full`: every header follows the one before, every seed is proven, every certificate holds a
quorum of valid signatures, and the newest model is the one that the chain names. With it, every
round whose body and gradients are still kept is executed again: the tally, the union-consensus, and
the model bit by bit.
"""

from collections.abc import Callable
from dataclasses import dataclass

from holdout.agreement import aggregate
from holdout.agreement.blocks import inspect, read_block, read_header
from holdout.agreement.draws import Draws
from holdout.agreement.ed25519 import Ed25519Verifier
from holdout.agreement.events import BlobKind, Combined, MessageFault
from holdout.agreement.headers import Header, Ledger, Tip, link_fault
from holdout.agreement.keys import Verifier
from holdout.agreement.messages import Finished, Step
from holdout.agreement.params import Genesis
from holdout.agreement.wire import Unverified
from holdout.errors import AuditError, InvalidMessage, UserError
from holdout.ids import Digest
from holdout.node.storage.store import Store


@dataclass(frozen=True, slots=True)
class Audit:
    """What was checked."""

    rounds: int
    steps: int
    model: Digest
    executed: int
    """Rounds that were executed again."""
    tallied: int
    """Rounds whose ballots alone were counted again: their gradients are no longer kept."""


def audit(
    store: Store,
    genesis: Genesis,
    *,
    full: bool = False,
    last: int | None = None,
    watch: Callable[[int], None] | None = None,
) -> Audit:
    """Re-verify the store up to a round; raises AuditError at the first thing that is wrong."""
    verifier = Ed25519Verifier()
    ledger = Ledger(genesis)
    rounds = min(store.height(), last or store.height())
    executed = tallied = 0
    for number in range(1, rounds + 1):
        found = store.finished(number, number)
        if not found:
            raise AuditError(f"round {number} is missing in the store")
        tip = ledger.tip()
        header = _checked(found[0], ledger, genesis, verifier)
        if full:
            done = _execute(store, genesis, verifier, tip, header)
            executed += done is True
            tallied += done is False
        ledger.append(header)
        if watch is not None:
            watch(number)
    if last is None or last >= store.height():
        _check_model(store, genesis, ledger.model)
    return Audit(rounds, ledger.steps, ledger.model, executed, tallied)


def _checked(item: Finished, ledger: Ledger, genesis: Genesis, verifier: Verifier) -> Header:
    number = ledger.round
    try:
        header = read_header(item.header)
    except InvalidMessage as error:
        raise AuditError(f"round {number}: the header cannot be read: {error}") from None
    fault = link_fault(header, ledger.tip(), genesis, verifier)
    if fault is not None:
        raise AuditError(f"round {number}: {fault}")
    certificate = item.certificate
    if (certificate.round, certificate.value, certificate.step) != (
        number,
        header.digest,
        Step.CERT,
    ):
        raise AuditError(f"round {number}: the certificate is of another block")
    draws = Draws(genesis, verifier, round_number=number, seed=ledger.tip().seed_in)
    verified = draws.verify_bundle(Unverified(certificate))
    if isinstance(verified, MessageFault):
        raise AuditError(f"round {number}: the certificate does not hold ({verified})")
    return header


def _execute(
    store: Store, genesis: Genesis, verifier: Verifier, tip: Tip, header: Header
) -> bool | None:
    """True: executed again; False: only its ballots were counted; None: no body is kept."""
    number, params = header.round, genesis.params
    body = store.blob(BlobKind.BLOCK, header.digest)
    if body is None:
        return None
    try:
        block = read_block(body)
    except InvalidMessage as error:
        raise AuditError(f"round {number}: the body on disk is damaged: {error}") from None
    if block.header.digest != header.digest:
        raise AuditError(f"round {number}: the body on disk is another one")
    draws = Draws(genesis, verifier, round_number=number, seed=tip.seed_in)
    draft = inspect(block, tip, genesis, draws, verifier)
    if isinstance(draft, str):
        raise AuditError(f"round {number}: {draft}")
    payloads = {need: store.blob(BlobKind.PAYLOAD, need) for need in draft.needs}
    model = store.blob(BlobKind.MODEL, tip.model)
    held = {need: data for need, data in payloads.items() if data is not None}
    for need, data in held.items():
        if aggregate.payload_digest(data) != need:
            raise AuditError(f"round {number}: a gradient on disk is damaged")
    if len(held) < len(payloads) or model is None:
        return False
    valid = {need: aggregate.payload_fault(data, params) is None for need, data in held.items()}
    job, combined = draft.job(valid), None
    if job is not None:
        chosen = [held[payload] for payload in job.payloads]
        made, radius = aggregate.combine(model, chosen, radius=job.radius, rate=job.rate)
        digest = None if made is None else aggregate.model_digest(params.shapes, made)
        combined = Combined(job, digest, radius)
    rebuilt = draft.block(valid, combined)
    if rebuilt.header.digest != header.digest or rebuilt.selection != block.selection:
        raise AuditError(f"round {number}: executed again, it gives another result")
    return True


def _check_model(store: Store, genesis: Genesis, model: Digest) -> None:
    data = store.blob(BlobKind.MODEL, model)
    if data is None or not aggregate.blob_matches(BlobKind.MODEL, model, data, genesis.params):
        raise AuditError("the newest model is missing or damaged on disk")


def model_of_round(store: Store, genesis: Genesis, number: int) -> tuple[Digest, bytes]:
    """The model that a round ended with, if it is still kept."""
    height = store.height()
    if not 0 <= number <= height:
        raise UserError(f"rounds 0 to {height} are decided; got {number}")
    digest = genesis.params.model_first
    if number:
        digest = read_header(store.finished(number, number)[0].header).model
    data = store.blob(BlobKind.MODEL, digest)
    if data is None:
        raise UserError(
            f"the model of round {number} is no longer kept (storage.models in node.toml)"
        )
    if not aggregate.blob_matches(BlobKind.MODEL, digest, data, genesis.params):
        raise UserError(f"the model of round {number} is damaged on disk")
    return digest, data
