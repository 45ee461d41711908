"""Keys on disk and certificates."""

import stat
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509

from holdout.agreement.ed25519 import Ed25519Verifier
from holdout.errors import UserError
from holdout.node.membership.identity import (
    SIGNING,
    TLS,
    Authority,
    certificate_fault,
    commitment,
    create_identity,
    read_identity,
    write_secret,
)


def test_secrets_are_for_their_owner_alone(tmp_path):
    create_identity(tmp_path / "keys", "alice")
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "keys").iterdir()}
    secret = {name: mode for name, mode in modes.items() if name != "tls.csr"}
    assert set(secret.values()) == {0o600}
    assert len(secret) == 4


@pytest.mark.parametrize("file", [SIGNING, TLS])
def test_a_key_that_others_can_read_is_refused(tmp_path, file):
    create_identity(tmp_path, "alice")
    (tmp_path / file).chmod(0o640)
    with pytest.raises(UserError, match=r"0640.*0600"):
        read_identity(tmp_path)


def test_a_key_is_read_back_and_never_overwritten(tmp_path):
    made = create_identity(tmp_path, "alice")
    assert read_identity(tmp_path).signer.public == made.signer.public
    with pytest.raises(UserError, match="never overwritten"):
        write_secret(tmp_path / SIGNING, b"other")
    signature = made.signer.sign(b"message")
    assert Ed25519Verifier().signature(made.signer.public.signing, b"message", signature)


@pytest.mark.parametrize("content", [b"", b"zz" * 32, b"00" * 31, b"\xff" * 40])
def test_a_damaged_key_is_refused_with_its_name(tmp_path, content):
    create_identity(tmp_path, "alice")
    (tmp_path / SIGNING).write_bytes(content)
    with pytest.raises(UserError, match=f"{SIGNING} is damaged"):
        read_identity(tmp_path)


@pytest.mark.parametrize("name", ["", "Alice", "a b", "-a", "a/b", "a" * 40, "*"])
def test_names_are_plain(tmp_path, name):
    with pytest.raises(UserError, match="name"):
        create_identity(tmp_path / "keys", name)


def test_commitments_bind_without_telling():
    assert commitment(b"1" * 32) != commitment(b"2" * 32)
    assert commitment(b"1" * 32) != b"1" * 32


def test_a_certificate_lets_its_owner_in_and_nobody_else(tmp_path):
    authority = Authority.create(tmp_path / "ca", "net")
    request = create_identity(tmp_path / "a", "alice").request
    certificate = authority.issue(request, "alice")
    assert certificate_fault(certificate, authority.certificate, "alice") is None
    assert "not bob's" in (certificate_fault(certificate, authority.certificate, "bob") or "")
    foreign = Authority.create(tmp_path / "ca2", "net").certificate
    assert "authority" in (certificate_fault(certificate, foreign, "alice") or "")
    assert "damaged" in (certificate_fault(b"nonsense", authority.certificate, "alice") or "")
    again = Authority.read(tmp_path / "ca").issue(request, "alice")
    assert certificate_fault(again, authority.certificate, "alice") is None


def test_a_request_in_another_name_is_refused(tmp_path):
    authority = Authority.create(tmp_path / "ca", "net")
    request = create_identity(tmp_path / "a", "alice").request
    with pytest.raises(UserError, match="not signed with its key"):
        authority.issue(request, "bob")
    with pytest.raises(UserError, match="cannot be read"):
        authority.issue(b"nonsense", "bob")


def test_certificates_are_dated_back_a_day_and_end(tmp_path):
    authority = Authority.create(tmp_path / "ca", "net")
    request = create_identity(tmp_path / "a", "alice").request
    found = x509.load_pem_x509_certificate(authority.issue(request, "alice"))
    age = datetime.now(UTC) - found.not_valid_before_utc
    assert timedelta(hours=23) < age < timedelta(hours=25)
    expired = authority.issue(request, "alice", valid_for=timedelta(seconds=-1))
    assert "expired" in (certificate_fault(expired, authority.certificate, "alice") or "")
    early = authority.issue(request, "alice", now=datetime.now(UTC) + timedelta(days=3))
    assert "clock" in (certificate_fault(early, authority.certificate, "alice") or "")
