"""A network that goes on where another ended: other members, keys or parameters.

The old network's last certified model is the first one of the new network, whose genesis file holds
the old one's identity, last block and certificate. All members make new folders, with new keys, so
a lost key or certificate is worth nothing in the new network.
"""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdout.agreement.events import BlobKind
from holdout.agreement.headers import Header, Ledger, read_header
from holdout.agreement.params import Genesis
from holdout.errors import AuditError, UserError
from holdout.ids import Digest
from holdout.node.membership import network_creation
from holdout.node.membership.genesis import GENESIS, Network, PredecessorSection
from holdout.node.membership.seam import PREDECESSOR, check_seam, read_predecessor
from holdout.node.storage.audit import Audit, audit, opened
from holdout.node.storage.store import Store


def succeed(
    old: Path,
    out: Path,
    *,
    members: Sequence[Path],
    name: str | None = None,
    parameters: Mapping[str, Any],
    beacon: str | None = None,
    few: bool = False,
) -> tuple[Network, list[str]]:
    """Make the network that succeeds the one of this node's folder; what to warn of.

    Args:
        old: A node's folder of the old network; its whole chain is verified first.
        out: The new network's folder.
        members: Files or folders of all members of the new network.
        name: Its name; None: the old one's.
        parameters: Values for some of the `Parameters`; the rest follows from the members' number.
        beacon: Public random bytes in hexadecimal, or "draw"; None: it is made of shares later.
        few: Allow fewer than four members.
    """
    public = None if beacon is None else network_creation.read_beacon(beacon)
    gathered = network_creation.gather(members)
    network_creation.check_count(len(gathered), few=few)
    with opened(old) as (store, before):
        try:
            audit(store, before.genesis)
        except AuditError as error:
            raise UserError(f"the old network's chain does not hold: {error}") from None
        end, header = _end(store, before)
        data = store.blob(BlobKind.MODEL, header.model)
    if data is None:
        raise UserError(f"{old} no longer holds the model of round {header.round}")
    rates = before.file.parameters.learning_rates
    goes_on = {
        "learning_rates": rates[min(header.steps, len(rates) - 1) :],
        "radius_first": header.radius,
    }
    network = network_creation.draft_network(
        out,
        gathered,
        name=name or before.name,
        parameters=network_creation.plan_parameters(len(gathered), {**goes_on, **parameters}),
        model=(before.file.model.model_copy(update={"digest": header.model.hex()}), data),
        data=before.file.data,
        predecessor=end,
    )
    shutil.copyfile(old / GENESIS, out / PREDECESSOR)
    check_seam(network, before)
    if public is not None:
        network = network_creation.finish_network(out, beacon=public)
    return network, [f"not guaranteed: {n}" for n in network_creation.notes_on(network.params)]


def _end(store: Store, network: Network) -> tuple[PredecessorSection, Header]:
    height = store.height()
    if not height:
        raise UserError(f"the network {network.name} has not decided a round yet")
    (last,) = store.finished(height, height)
    section = PredecessorSection(
        network=network.identity,
        round=height,
        seed=_seed(store, network.genesis, height).hex(),
        header=last.header.hex(),
        certificate=last.certificate.encode_bare().hex(),
    )
    return section, read_header(last.header)


def _seed(store: Store, genesis: Genesis, number: int) -> Digest:
    """The seed by which a round was drawn."""
    ledger = Ledger(genesis)
    for item in store.finished(1, number - 1):
        ledger.append(read_header(item.header))
    return ledger.tip().seed_in


@dataclass(frozen=True, slots=True)
class Seam:
    """A seam that was verified."""

    old: Network
    round: int
    signers: int
    chain: Audit | None
    """The audit of the old chain up to there; None: nobody gave a folder with it."""


def audit_seams(folder: Path, older: Sequence[Path]) -> list[Seam]:
    """Verify the seams behind a node's network, newest first.

    Args:
        folder: The node's folder.
        older: Folders of nodes of the networks before, newest first; their chains are verified.

    Raises:
        AuditError: Something does not hold.
    """
    network, found = Network.read(folder / GENESIS), []
    for place in range(len(older) + 1):
        old = read_predecessor(folder, network)
        if old is None:
            break
        certificate = check_seam(network, old)
        end = network.file.predecessor
        assert end is not None  # noqa: S101
        chain = None
        if place < len(older):
            chain = _audit_up_to(older[place], old, end)
            folder = older[place]
        found.append(Seam(old, end.round, len(certificate.marks), chain))
        network = old
    if len(older) > len(found):
        raise AuditError(f"{older[len(found)]} is not before the first network")
    return found


def _audit_up_to(folder: Path, old: Network, end: PredecessorSection) -> Audit:
    with opened(folder) as (store, network):
        if network.identity != old.identity:
            raise AuditError(f"{folder} belongs to another network than the one before")
        result = audit(store, network.genesis, last=end.round)
        last = store.finished(end.round, end.round)
        if not last or last[0].header.hex() != end.header:
            raise AuditError(f"{folder} does not hold the block with which {old.name} ended")
    return result
