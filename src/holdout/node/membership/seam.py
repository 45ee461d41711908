"""Where one network ends and its successor begins, checked by whoever holds both genesis files.

The new genesis file names the old network by its identity, and holds the block and the certificate
with which it ended. The block names the model: the first one of the new network.
"""

from pathlib import Path

from holdout.agreement.codec import decode
from holdout.agreement.draws import Draws
from holdout.agreement.ed25519 import Ed25519Verifier
from holdout.agreement.events import MessageFault
from holdout.agreement.headers import Header, read_header
from holdout.agreement.messages import Bundle, VoteStep
from holdout.agreement.wire import Unverified, read_bundle
from holdout.errors import AuditError, InvalidMessage
from holdout.ids import Digest
from holdout.node.membership.genesis import Network, PredecessorSection

PREDECESSOR = "predecessor.toml"
"""The old network's genesis file, beside the new one's."""


def check_seam(network: Network, old: Network) -> Bundle:
    """The certificate by which the old network ended where the new one begins.

    Raises:
        AuditError: It did not, or nothing proves it.
    """
    end = network.file.predecessor
    if end is None:
        raise AuditError(f"the network {network.name} names no network before it")
    if end.network != old.identity:
        raise AuditError(f"the network {network.name} succeeds another network than {old.name}")
    header, certificate = read_end(end)
    if header.chain != old.genesis.chain or header.round != end.round:
        raise AuditError(f"the last block is not of round {end.round} of {old.name}")
    if header.model.hex() != network.file.model.digest:
        raise AuditError(f"{network.name} begins with another model than {old.name} ended with")
    if (certificate.round, certificate.value, certificate.step) != (
        header.round,
        header.digest,
        VoteStep.CERT,
    ):
        raise AuditError("the certificate is for another block")
    draws = Draws(
        old.genesis,
        Ed25519Verifier(),
        round_number=header.round,
        seed=Digest(bytes.fromhex(end.seed)),
    )
    verified = draws.verify_bundle(Unverified(certificate))
    if isinstance(verified, MessageFault):
        raise AuditError(f"the certificate does not hold ({verified})")
    return certificate


def read_end(end: PredecessorSection) -> tuple[Header, Bundle]:
    """The last block and its certificate, not checked."""
    try:
        header = read_header(bytes.fromhex(end.header))
        certificate = decode(bytes.fromhex(end.certificate), read_bundle)
    except InvalidMessage as error:
        raise AuditError(f"the end of the old network cannot be read: {error}") from None
    return header, certificate


def read_predecessor(folder: Path, network: Network) -> Network | None:
    """The genesis file of the network before, from a network's or a node's folder; None: none.

    Raises:
        AuditError: It is missing, or is that of another network.
    """
    if network.file.predecessor is None:
        return None
    if not (folder / PREDECESSOR).exists():
        raise AuditError(f"{folder / PREDECESSOR}, the old network's genesis file, is missing")
    return Network.read(folder / PREDECESSOR)
