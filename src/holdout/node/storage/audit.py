"""A node's store from outside, whether the node runs or not: verifying it, exporting a model.

An audit checks that every header follows the one before, every seed is proven, every certificate
holds a quorum of valid signatures, and the newest model is the one that the chain names. A full
audit also executes again every round whose body and gradients are still kept: the tally, the
union-consensus, and the model bit by bit.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from holdout.agreement import aggregate
from holdout.agreement.blocks import inspect, read_block
from holdout.agreement.draws import Draws
from holdout.agreement.ed25519 import Ed25519Verifier
from holdout.agreement.events import BlobKind, MessageFault
from holdout.agreement.headers import Header, Ledger, Tip, link_fault, read_header
from holdout.agreement.keys import Verifier
from holdout.agreement.messages import Finished, VoteStep
from holdout.agreement.params import Genesis
from holdout.agreement.wire import Unverified
from holdout.errors import AuditError, InvalidMessage, StoreError, UserError
from holdout.ids import Digest
from holdout.node.membership.genesis import Network, network_of
from holdout.node.membership.model_files import save_model
from holdout.node.storage.folder_lock import locked_if_free
from holdout.node.storage.retention import KEEP_EVERYTHING, WORDS
from holdout.node.storage.store import DATABASE, FOLDER, Store


@contextmanager
def opened(folder: Path) -> Iterator[tuple[Store, Network]]:
    """The store and the network of a node; if it runs, as they are at this moment."""
    network = network_of(folder)
    if not (folder / FOLDER / DATABASE).exists():
        raise UserError(f"{folder} has no store")
    with ExitStack() as stack:
        free = stack.enter_context(locked_if_free(folder))
        store = stack.enter_context(_open(folder / FOLDER, free=free))
        damage = store.damage()
        if damage is not None:
            raise UserError(f"the store in {folder / FOLDER} is damaged: {damage}")
        if store.chain() != network.genesis.chain:
            raise StoreError(f"the store in {folder / FOLDER} belongs to another network")
        yield store, network


def _open(folder: Path, *, free: bool) -> Store:
    if not free:
        return Store.snapshot(folder)
    try:
        return Store(folder, KEEP_EVERYTHING, 0)
    except sqlite3.Error as error:
        raise UserError(f"{folder / DATABASE} cannot be opened: {error}") from None


# -- verifying ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Audit:
    """What an audit has checked."""

    rounds: int
    steps: int
    model: Digest
    executed: int
    """Rounds that were executed again."""
    tallied: int
    """Rounds whose ballots were counted again, but whose gradients are no longer kept."""
    kept: str
    """Which rounds can be executed again, in words."""


def audit(store: Store, genesis: Genesis, *, full: bool = False, last: int | None = None) -> Audit:
    """Verify the store up to a round; raises AuditError at the first thing that is wrong."""
    verifier = Ed25519Verifier()
    ledger = Ledger(genesis)
    rounds = min(store.height(), last or store.height())
    executed = tallied = 0
    for number in range(1, rounds + 1):
        found = store.finished(number, number)
        if not found:
            raise AuditError(f"round {number} is missing from the store")
        tip = ledger.tip()
        header = _checked(found[0], ledger, genesis, verifier)
        if full:
            done = _execute(store, genesis, verifier, tip, header)
            executed += done is True
            tallied += done is False
        ledger.append(header)
    if last is None or last >= store.height():
        _check_model(store, genesis, ledger.model)
    return Audit(rounds, ledger.steps, ledger.model, executed, tallied, kept_rounds(store))


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
        VoteStep.CERT,
    ):
        raise AuditError(f"round {number}: the certificate is for another block")
    draws = Draws(genesis, verifier, round_number=number, seed=ledger.tip().seed_in)
    verified = draws.verify_bundle(Unverified(certificate))
    if isinstance(verified, MessageFault):
        raise AuditError(f"round {number}: the certificate does not hold ({verified})")
    return header


def _execute(
    store: Store, genesis: Genesis, verifier: Verifier, tip: Tip, header: Header
) -> bool | None:
    """True: executed again; False: only its ballots were counted; None: its body is not kept."""
    number, params = header.round, genesis.params
    body = store.blob(BlobKind.BLOCK, header.digest)
    if body is None:
        return None
    try:
        block = read_block(body)
    except InvalidMessage as error:
        raise AuditError(f"round {number}: the body on disk is damaged: {error}") from None
    if block.header.digest != header.digest:
        raise AuditError(f"round {number}: the body on disk is that of another block")
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
        _, combined = aggregate.combined(job, model, chosen, params)
    rebuilt = draft.block(valid, combined)
    if rebuilt.header.digest != header.digest or rebuilt.selection != block.selection:
        raise AuditError(f"round {number}: executed again, it gives another result")
    return True


def _check_model(store: Store, genesis: Genesis, model: Digest) -> None:
    data = store.blob(BlobKind.MODEL, model)
    if data is None or not aggregate.blob_matches(BlobKind.MODEL, model, data, genesis.params):
        raise AuditError("the newest model is missing or damaged on disk")


# -- exporting ------------------------------------------------------------------------------------


def export(folder: Path, number: int | None, out: Path) -> Digest:
    """Write the model of a round, the newest if none is named, as a safetensors file."""
    with opened(folder) as (store, network):
        wanted = store.height() if number is None else number
        digest, data = _model_of_round(store, network.genesis, wanted)
        metadata = {"network": network.identity, "round": str(wanted), "model": digest.hex()}
        save_model(out, network.file.model, data, metadata)
    return digest


def kept_models(store: Store) -> str:
    """Which models can be exported, in words."""
    oldest = store.usage().oldest.get(WORDS[BlobKind.MODEL])
    return "none is kept" if oldest is None else f"those from round {oldest} on are"


def kept_rounds(store: Store) -> str:
    """Which rounds can be executed again, in words."""
    oldest = store.usage().oldest
    if len(oldest) < len(WORDS):
        return "no round can be executed again: too little of any is kept"
    return f"rounds from {max(oldest.values())} on are kept whole"


def _model_of_round(store: Store, genesis: Genesis, number: int) -> tuple[Digest, bytes]:
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
            f"the model of round {number} is no longer kept: {kept_models(store)} (storage.models,"
            " models_hours and megabytes_max in node.toml say how long)"
        )
    if not aggregate.blob_matches(BlobKind.MODEL, digest, data, genesis.params):
        raise UserError(f"the model of round {number} is damaged on disk")
    return digest, data
