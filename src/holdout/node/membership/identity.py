"""A member's secret keys on disk, its certificate, and the small authority that signs it.

There are three secrets, each for one purpose: the Ed25519 seed signs messages, the VRF seed draws
roles, the TLS key opens connections. A fourth, the beacon share, is secret only until it is
revealed. Secret files have mode 0600, and one that others can read is refused as if it were stolen.

Certificates are dated back a day, so that a member whose clock is off by hours is not shut out.
"""

import os
import re
import secrets
import stat
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from holdout.agreement.ed25519 import SEED_BYTES, Ed25519Signer
from holdout.errors import UserError
from holdout.results import write_atomic

NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?")
"""What a member's name looks like; certificates hold it."""

DATED_BACK = timedelta(days=1)
VALID_FOR = timedelta(days=825)
WARN_BEFORE = timedelta(days=30)
"""How long before the end of its certificate a node begins to warn."""

SIGNING, VRF, TLS, SHARE = "signing.seed", "vrf.seed", "tls.key", "beacon.share"
REQUEST, CERTIFICATE, AUTHORITY = "tls.csr", "tls.crt", "authority.crt"
AUTHORITY_KEY = "authority.key"


@dataclass(frozen=True, slots=True)
class Identity:
    """A member's secrets, read from its folder."""

    signer: Ed25519Signer
    share: bytes
    """Its share of the beacon."""
    request: bytes
    """The certificate request, PEM."""


def commitment(share: bytes) -> bytes:
    """The hash of a beacon share, published before the roster is closed."""
    return sha256(b"holdout beacon share" + share).digest()


# ------------------------------------------------------------------------------------------ files


def write_secret(path: Path, content: bytes) -> None:
    """Write a new file that has mode 0600 from the start; never overwrites one."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise UserError(f"{path} exists; a key is never overwritten") from None
    with os.fdopen(handle, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def read_secret(path: Path) -> bytes:
    """The content of a secret file; a UserError if anybody else can read it."""
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if mode & 0o077:
                raise UserError(
                    f"{path} has mode {mode:04o}, so others may have read the key; it must be 0600"
                    " (chmod 600), and if others use this machine, the key must be replaced"
                )
            return file.read()
    except FileNotFoundError:
        raise UserError(f"{path} is missing; `holdout node init` makes it") from None


def _read_seed(path: Path) -> bytes:
    text = read_secret(path)
    try:
        seed = bytes.fromhex(text.decode("ascii").strip())
    except ValueError:
        raise UserError(f"{path} is damaged: not hexadecimal") from None
    if len(seed) != SEED_BYTES:
        raise UserError(f"{path} is damaged: {len(seed)} bytes instead of {SEED_BYTES}")
    return seed


def _create_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """A new key for TLS, written to a secret file."""
    key = ec.generate_private_key(ec.SECP256R1())
    write_secret(
        path,
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
    )
    return key


# ------------------------------------------------------------------------------------------- keys


def create_identity(folder: Path, name: str) -> Identity:
    """Make new keys and a certificate request in an empty or new folder."""
    if not NAME.fullmatch(name):
        raise UserError(
            "a member's name is up to 32 lower-case letters, digits and inner hyphens;"
            f" got {name!r}"
        )
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for file in (SIGNING, VRF, SHARE):
        write_secret(folder / file, secrets.token_bytes(SEED_BYTES).hex().encode() + b"\n")
    key = _create_key(folder / TLS)
    request = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(_common_name(name))
        .sign(key, hashes.SHA256())
    )
    write_atomic(folder / REQUEST, request.public_bytes(serialization.Encoding.PEM))
    return read_identity(folder)


def read_identity(folder: Path) -> Identity:
    """The keys of a member's folder, checked."""
    signer = Ed25519Signer.from_seeds(_read_seed(folder / SIGNING), _read_seed(folder / VRF))
    read_secret(folder / TLS)  # The transport reads it by its path; here only its mode is checked.
    return Identity(signer, _read_seed(folder / SHARE), (folder / REQUEST).read_bytes())


# ------------------------------------------------------------------------------------ certificates


def _common_name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


class Authority:
    """The small certificate authority of one network."""

    def __init__(self, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> None:
        self._key = key
        self._certificate = certificate

    @classmethod
    def create(cls, folder: Path, network: str) -> "Authority":
        """Make a new authority, whose key stays in this folder."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        key = _create_key(folder / AUTHORITY_KEY)
        start = datetime.now(UTC) - DATED_BACK
        name = _common_name(f"authority of {network}")
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(start)
            .not_valid_after(start + 4 * VALID_FOR)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(signs_certificates=True), critical=True)
            .sign(key, hashes.SHA256())
        )
        write_atomic(folder / AUTHORITY, certificate.public_bytes(serialization.Encoding.PEM))
        return cls(key, certificate)

    @classmethod
    def read(cls, folder: Path) -> "Authority":
        """Read the authority of this folder."""
        key = serialization.load_pem_private_key(read_secret(folder / AUTHORITY_KEY), None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise UserError(f"{folder / AUTHORITY_KEY} is not an authority's key")
        return cls(key, x509.load_pem_x509_certificate((folder / AUTHORITY).read_bytes()))

    @property
    def certificate(self) -> bytes:
        """The authority's own certificate, by which members check each other's; PEM."""
        return self._certificate.public_bytes(serialization.Encoding.PEM)

    def issue(
        self,
        request: bytes,
        name: str,
        *,
        now: datetime | None = None,
        valid_for: timedelta = VALID_FOR,
    ) -> bytes:
        """A certificate for the member of this name, PEM; the request must be for that name."""
        asked = read_request(request, name)
        start = (now or datetime.now(UTC)) - DATED_BACK
        certificate = (
            x509.CertificateBuilder()
            .subject_name(_common_name(name))
            .issuer_name(self._certificate.subject)
            .public_key(asked.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(start)
            .not_valid_after(start + DATED_BACK + valid_for)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(signs_certificates=False), critical=True)
            .add_extension(
                x509.ExtendedKeyUsage(
                    [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
                ),
                critical=False,
            )
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        return certificate.public_bytes(serialization.Encoding.PEM)


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def read_request(request: bytes, name: str) -> x509.CertificateSigningRequest:
    """A certificate request, checked: it is for this name and signed with its own key."""
    try:
        asked = x509.load_pem_x509_csr(request)
        valid = asked.is_signature_valid
    except (ValueError, InvalidSignature) as error:
        raise UserError(f"the certificate request of {name} cannot be read: {error}") from None
    if not valid or asked.subject != _common_name(name):
        raise UserError(
            f"the certificate request of {name} is not signed with its key, or not for this name"
        )
    return asked


def certificate_end(*certificates: bytes) -> datetime:
    """When the first of these certificates expires."""
    return min(x509.load_pem_x509_certificate(pem).not_valid_after_utc for pem in certificates)


def certificate_fault(certificate: bytes, authority: bytes, name: str) -> str | None:
    """Why this certificate will not let the member in; None: it will."""
    try:
        own = x509.load_pem_x509_certificate(certificate)
        issuer = x509.load_pem_x509_certificate(authority)
        own.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature):
        return "the certificate is damaged, or not signed by the network's authority"
    if own.subject != _common_name(name):
        return f"the certificate is not {name}'s"
    now = datetime.now(UTC)
    if now > own.not_valid_after_utc:
        return f"the certificate expired on {own.not_valid_after_utc:%Y-%m-%d}"
    if now < own.not_valid_before_utc:
        return (
            f"the certificate is valid from {own.not_valid_before_utc:%Y-%m-%d %H:%M} UTC on;"
            " is the clock right?"
        )
    return None
