"""Signatures and the lottery's VRF, behind two small protocols.

The core knows a `Signer` (one worker's secret keys) and a `Verifier` (everybody's public ones),
never a library. There are two back-ends: `ed25519`, the real one, which is loaded only where it is
used, and `SimulatedKeys` here, for clusters in one process. A VRF must be *unique*: one key and one
`alpha` have one output, even if the owner cheats; otherwise it would draw again until it wins. A
signature must not be forgeable, but one message may have many.
"""

import hmac
from collections.abc import Hashable
from dataclasses import dataclass
from hashlib import sha256
from typing import Generic, Protocol, TypeVar

from holdout.seeds import Stream, stream

SIGNATURE_BYTES = 64
MEMO_ENTRIES_MAX = 1 << 17
"""Enough for all messages of a round in a cluster of 300 workers; about 50 MB when full."""

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class PublicKeys:
    """A worker's line in the roster: two keys, because one key must not serve two schemes."""

    signing: bytes
    vrf: bytes


class Signer(Protocol):
    """The secret keys of one worker."""

    @property
    def public(self) -> PublicKeys:
        """The public keys of this worker."""
        ...

    def sign(self, message: bytes) -> bytes:
        """A signature of the message, 64 bytes."""
        ...

    def prove(self, alpha: bytes) -> tuple[bytes, bytes]:
        """The VRF's proof for `alpha`, and the output of 64 bytes that it proves."""
        ...


class Verifier(Protocol):
    """Checks what any worker signed or proved; never raises, whatever the bytes."""

    def signature(self, public: bytes, message: bytes, signature: bytes) -> bool:
        """Whether the owner of this key signed the message."""
        ...

    def vrf(self, public: bytes, alpha: bytes, proof: bytes) -> bytes | None:
        """The one output of this key for `alpha`, or None if the proof does not hold."""
        ...

    def key_fault(self, keys: PublicKeys) -> str | None:
        """Why these keys must not enter a roster, or None."""
        ...


class Memo(Generic[K, V]):
    """A dictionary of at most `entries_max` answers; the longest unused are forgotten first."""

    # Two generations, instead of an order by last use: a hit costs one look-up, forgetting nothing.
    __slots__ = ("_half", "_older", "_recent")

    def __init__(self, entries_max: int) -> None:
        self._half = max(1, entries_max // 2)
        self._recent: dict[K, V] = {}
        self._older: dict[K, V] = {}

    def get(self, key: K) -> V | None:
        """The answer, if it is remembered."""
        found = self._recent.get(key)
        if found is None:
            found = self._older.get(key)
            if found is not None:
                self.put(key, found)
        return found

    def put(self, key: K, value: V) -> None:
        """Remember an answer."""
        if len(self._recent) >= self._half:
            self._older, self._recent = self._recent, {}
        self._recent[key] = value

    def __len__(self) -> int:
        return len(self._recent) + len(self._older)


class MemoVerifier:
    """A verifier that remembers another one's answers, so that a cluster checks a message once.

    Attributes:
        signature_checks: How many signatures the other verifier was asked about.
        vrf_checks: How many proofs it was asked about.
    """

    def __init__(self, verifier: Verifier, entries_max: int = MEMO_ENTRIES_MAX) -> None:
        self.signature_checks = 0
        self.vrf_checks = 0
        self._verifier = verifier
        self._signatures = Memo[tuple[bytes, bytes, bytes], bool](entries_max // 2)
        # An empty output, which no VRF has, stands for a proof that does not hold.
        self._outputs = Memo[tuple[bytes, bytes, bytes], bytes](entries_max - entries_max // 2)

    def signature(self, public: bytes, message: bytes, signature: bytes) -> bool:
        """Whether the owner of this key signed the message."""
        key = (public, signature, message)
        known = self._signatures.get(key)
        if known is None:
            self.signature_checks += 1
            known = self._verifier.signature(public, message, signature)
            self._signatures.put(key, known)
        return known

    def vrf(self, public: bytes, alpha: bytes, proof: bytes) -> bytes | None:
        """The one output of this key for `alpha`, or None if the proof does not hold."""
        key = (public, proof, alpha)
        known = self._outputs.get(key)
        if known is None:
            self.vrf_checks += 1
            known = self._verifier.vrf(public, alpha, proof) or b""
            self._outputs.put(key, known)
        return known or None

    def key_fault(self, keys: PublicKeys) -> str | None:
        """Why these keys must not enter a roster, or None."""
        return self._verifier.key_fault(keys)

    def __len__(self) -> int:
        return len(self._signatures) + len(self._outputs)


class SimulatedKeys:
    """The keys of a whole simulated cluster, decided by a seed; no cryptography that costs time.

    Signatures and VRF outputs are HMACs with secrets that only this registry holds, so only it can
    check them; in a simulation that is enough.
    """

    def __init__(self, seed: int, n: int) -> None:
        self._signers = tuple(
            _SimulatedSigner(
                _secret(stream(seed, "signing key", i)), _secret(stream(seed, "VRF key", i))
            )
            for i in range(n)
        )
        self._verifier = MemoVerifier(
            _RegistryVerifier(
                {signer.public.signing: signer.signing_secret for signer in self._signers},
                {signer.public.vrf: signer.vrf_secret for signer in self._signers},
            )
        )

    def signer(self, worker: int) -> Signer:
        """The secret keys of one worker."""
        return self._signers[worker]

    def verifier(self) -> MemoVerifier:
        """The one verifier, with one memo, that all workers of the cluster share."""
        return self._verifier


class _SimulatedSigner:
    def __init__(self, signing: bytes, vrf: bytes) -> None:
        self.signing_secret = signing
        self.vrf_secret = vrf
        self.public = PublicKeys(sha256(signing).digest(), sha256(vrf).digest())

    def sign(self, message: bytes) -> bytes:
        return hmac.digest(self.signing_secret, message, "sha512")

    def prove(self, alpha: bytes) -> tuple[bytes, bytes]:
        return b"", hmac.digest(self.vrf_secret, alpha, "sha512")


@dataclass(frozen=True, slots=True)
class _RegistryVerifier:
    signing: dict[bytes, bytes]
    vrf_secrets: dict[bytes, bytes]

    def signature(self, public: bytes, message: bytes, signature: bytes) -> bool:
        secret = self.signing.get(public)
        return secret is not None and hmac.digest(secret, message, "sha512") == signature

    def vrf(self, public: bytes, alpha: bytes, proof: bytes) -> bytes | None:
        secret = self.vrf_secrets.get(public)
        if secret is None or proof:
            return None
        return hmac.digest(secret, alpha, "sha512")

    def key_fault(self, keys: PublicKeys) -> str | None:
        if keys.signing not in self.signing:
            return "the signing key does not belong to this simulation"
        if keys.vrf not in self.vrf_secrets:
            return "the VRF key does not belong to this simulation"
        return None


def _secret(words: Stream) -> bytes:
    return b"".join(words.below(1 << 64).to_bytes(8, "big") for _ in range(4))
