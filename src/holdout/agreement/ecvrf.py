"""The lottery's VRF: ECVRF-EDWARDS25519-SHA512-TAI of RFC 9381, on libsodium's group operations.

A proof is Gamma (a point, 32 bytes), c (16 bytes) and s (a scalar, 32 bytes), 80 bytes in all:
Gamma = x H for the secret scalar x and the point H to which the input is hashed, and (c, s) shows
that Gamma and the public key have the same x. The output is a hash of Gamma with its cofactor
cleared, hence one for each key and input.

The verifier is stricter than the RFC on proofs that no honest prover makes: libsodium refuses to
multiply a point with a torsion component. All nodes must accept the same proofs, so all use this
verifier. Secret scalars stay inside libsodium's scalar functions, which run in constant time;
Python's integers hold public values only.

This module loads PyNaCl: import it only where real keys are used.
"""

from dataclasses import dataclass
from hashlib import sha512

from nacl import bindings as sodium
from nacl.exceptions import CryptoError

PROOF_BYTES = 80
POINT_BYTES = 32
CHALLENGE_BYTES = 16

_SUITE = b"\x03"
_ENCODE, _CHALLENGE, _OUTPUT, _BACK = b"\x01", b"\x02", b"\x03", b"\x00"
_FIELD = 2**255 - 19
_ORDER = 2**252 + 27742317777372353535851937790883648493
_IDENTITY = (1).to_bytes(POINT_BYTES, "little")
_ZERO_HALF = bytes(32)


@dataclass(frozen=True, slots=True, repr=False)
class SecretKey:
    """The secret key that a seed of 32 bytes expands to.

    Attributes:
        public: Y = x B, encoded.
        scalar: x, reduced; secret.
        nonce_key: What nonces are derived from; secret.
    """

    public: bytes
    scalar: bytes
    nonce_key: bytes

    @classmethod
    def from_seed(cls, seed: bytes) -> "SecretKey":
        """The key made from this seed, as in Ed25519."""
        hashed = sha512(seed).digest()
        clamped = bytes([hashed[0] & 248]) + hashed[1:31] + bytes([hashed[31] & 127 | 64])
        scalar = sodium.crypto_core_ed25519_scalar_reduce(clamped + _ZERO_HALF)
        return cls(sodium.crypto_scalarmult_ed25519_base_noclamp(scalar), scalar, hashed[32:])


def prove(key: SecretKey, alpha: bytes) -> tuple[bytes, bytes]:
    """The proof for this input, and the output that it proves."""
    point = encode_to_curve(key.public, alpha)
    gamma = sodium.crypto_scalarmult_ed25519_noclamp(key.scalar, point)
    nonce = sodium.crypto_core_ed25519_scalar_reduce(sha512(key.nonce_key + point).digest())
    challenge = _challenge(
        key.public,
        point,
        gamma,
        sodium.crypto_scalarmult_ed25519_base_noclamp(nonce),
        sodium.crypto_scalarmult_ed25519_noclamp(nonce, point),
    )
    product = sodium.crypto_core_ed25519_scalar_mul(_scalar(challenge), key.scalar)
    response = sodium.crypto_core_ed25519_scalar_add(nonce, product)
    return gamma + challenge + response, output(gamma)


def verify(public: bytes, alpha: bytes, proof: bytes) -> bytes | None:
    """The one output of this key for this input, or None if the proof does not hold."""
    if len(public) != POINT_BYTES or len(proof) != PROOF_BYTES:
        return None
    gamma, challenge, response = proof[:32], proof[32:48], proof[48:]
    # Otherwise s + L, L the order of the group, would make a second proof of the same output.
    if int.from_bytes(response, "little") >= _ORDER:
        return None
    scalar = _scalar(challenge)
    try:
        point = encode_to_curve(public, alpha)
        # These refuse a key or Gamma that is not a canonical point of the prime-order subgroup.
        against_key = sodium.crypto_scalarmult_ed25519_noclamp(scalar, public)
        against_gamma = sodium.crypto_scalarmult_ed25519_noclamp(scalar, gamma)
        u = sodium.crypto_core_ed25519_sub(
            sodium.crypto_scalarmult_ed25519_base_noclamp(response), against_key
        )
        v = sodium.crypto_core_ed25519_sub(
            sodium.crypto_scalarmult_ed25519_noclamp(response, point), against_gamma
        )
    except CryptoError:
        return None
    return output(gamma) if _challenge(public, point, gamma, u, v) == challenge else None


def output(gamma: bytes) -> bytes:
    """The output, 64 bytes, that a proof with this Gamma proves."""
    return sha512(_SUITE + _OUTPUT + _times_eight(gamma) + _BACK).digest()


def encode_to_curve(public: bytes, alpha: bytes) -> bytes:
    """The point H for this input: hashes are tried until one is the y coordinate of a point."""
    start = sha512(_SUITE + _ENCODE + public + alpha)
    for counter in range(256):
        attempt = start.copy()
        attempt.update(bytes([counter]) + _BACK)
        candidate = attempt.digest()[:POINT_BYTES]
        # libsodium would reduce a larger y; by the RFC it is not a point.
        if not _is_canonical(candidate):
            continue
        try:
            # `is_valid_point` would not do: most candidates lie outside the prime-order subgroup.
            point = _times_eight(candidate)
        except CryptoError:
            continue
        if point != _IDENTITY:
            return point
    # Each attempt succeeds with probability 1/2, so nobody will ever see an input that gets here.
    raise CryptoError("no attempt to hash the input to the curve succeeded")


def point_fault(point: bytes) -> str | None:
    """Why these bytes must not be a public key, or None."""
    if len(point) != POINT_BYTES:
        return f"must have {POINT_BYTES} bytes; got {len(point)}"
    if not _is_canonical(point):
        return "is not a canonical encoding of a point"
    if not sodium.crypto_core_ed25519_is_valid_point(point):
        return "is not a point of the prime-order subgroup (off the curve, or of small order)"
    return None


def _is_canonical(point: bytes) -> bool:
    return int.from_bytes(point, "little") & ((1 << 255) - 1) < _FIELD


def _times_eight(point: bytes) -> bytes:
    for _ in range(3):
        point = sodium.crypto_core_ed25519_add(point, point)
    return point


def _challenge(*points: bytes) -> bytes:
    hashed = sha512(_SUITE + _CHALLENGE + b"".join(points) + _BACK)
    return hashed.digest()[:CHALLENGE_BYTES]


def _scalar(challenge: bytes) -> bytes:
    return challenge + bytes(POINT_BYTES - CHALLENGE_BYTES)
