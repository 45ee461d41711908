"""The real keys: Ed25519 for signatures, the VRF of `ecvrf` for the lottery; both on libsodium.

Ed25519 signatures must not serve as the lottery: they are deterministic for honest signers only. A
liar that picks other nonces gets as many valid signatures of one message as it likes.

This module loads PyNaCl: import it only where real keys are used.
"""

from nacl import bindings as sodium
from nacl.exceptions import CryptoError

from holdout.agreement import ecvrf
from holdout.agreement.keys import SIGNATURE_BYTES, PublicKeys
from holdout.errors import UserError

SEED_BYTES = 32

_BASE = bytes.fromhex("58" + "66" * 31)
_ORDER_TWO = bytes.fromhex("ec" + "ff" * 30 + "7f")  # (0, -1)


class Ed25519Signer:
    """The secret keys of one worker, and `public`, the public ones."""

    def __init__(self, signing: bytes, public: PublicKeys, vrf: ecvrf.SecretKey) -> None:
        self._signing = signing
        self.public = public
        self._vrf = vrf

    @classmethod
    def from_seeds(cls, signing_seed: bytes, vrf_seed: bytes) -> "Ed25519Signer":
        """The keys made from two seeds of 32 random bytes, which must differ."""
        for name, seed in (("signing", signing_seed), ("VRF", vrf_seed)):
            if len(seed) != SEED_BYTES:
                raise UserError(f"the {name} seed must have {SEED_BYTES} bytes; got {len(seed)}")
        if signing_seed == vrf_seed:
            # There is no proof that two schemes with the same scalar are safe.
            raise UserError("the seeds of the signing key and of the VRF key must differ")
        public, secret = sodium.crypto_sign_seed_keypair(signing_seed)
        vrf = ecvrf.SecretKey.from_seed(vrf_seed)
        return cls(secret, PublicKeys(public, vrf.public), vrf)

    def sign(self, message: bytes) -> bytes:
        """An Ed25519 signature."""
        return sodium.crypto_sign(message, self._signing)[:SIGNATURE_BYTES]

    def prove(self, alpha: bytes) -> tuple[bytes, bytes]:
        """The VRF's proof of 80 bytes, and its output."""
        return ecvrf.prove(self._vrf, alpha)


class Ed25519Verifier:
    """Checks what any worker signed or proved."""

    def __init__(self) -> None:
        # Older versions of libsodium accept some points with torsion (CVE-2025-69277). A node with
        # such a version would accept proofs that the others reject.
        if sodium.crypto_core_ed25519_is_valid_point(
            sodium.crypto_core_ed25519_add(_BASE, _ORDER_TWO)
        ):
            raise UserError("this PyNaCl accepts points outside the group; install 1.6.2 or later")

    def signature(self, public: bytes, message: bytes, signature: bytes) -> bool:
        """Whether the owner of this key signed the message."""
        if len(public) != ecvrf.POINT_BYTES or len(signature) != SIGNATURE_BYTES:
            return False
        try:
            sodium.crypto_sign_open(signature + message, public)
        except CryptoError:
            return False
        return True

    def vrf(self, public: bytes, alpha: bytes, proof: bytes) -> bytes | None:
        """The one output of this key for `alpha`, or None if the proof does not hold."""
        return ecvrf.verify(public, alpha, proof)

    def key_fault(self, keys: PublicKeys) -> str | None:
        """Why these keys must not enter a roster, or None."""
        for name, point in (("signing", keys.signing), ("VRF", keys.vrf)):
            fault = ecvrf.point_fault(point)
            if fault is not None:
                return f"the {name} key {fault}"
        if keys.signing == keys.vrf:
            return "the signing key and the VRF key must differ"
        return None
