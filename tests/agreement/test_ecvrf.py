"""The real cryptography, against the vectors of RFC 9381 (appendix B.3) and RFC 8032 (7.1)."""

from hashlib import sha512

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nacl import bindings as sodium

from holdout.agreement import ecvrf
from holdout.agreement.ed25519 import Ed25519Signer, Ed25519Verifier
from holdout.agreement.keys import MemoVerifier, PublicKeys
from holdout.errors import UserError

ORDER = 2**252 + 27742317777372353535851937790883648493
FIELD = 2**255 - 19
IDENTITY = (1).to_bytes(32, "little")
ORDER_2 = (FIELD - 1).to_bytes(32, "little")
ORDER_4 = bytes(32)
ORDER_8 = bytes.fromhex("c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a")
TORSION = [ORDER_2, ORDER_4, ORDER_8]

# Seed, public key, input, the point H, proof, output.
RFC_9381 = [
    (
        "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        "",
        "91bbed02a99461df1ad4c6564a5f5d829d0b90cfc7903e7a5797bd658abf3318",
        "8657106690b5526245a92b003bb079ccd1a92130477671f6fc01ad16f26f723f26f8a57ccaed74ee"
        "1b190bed1f479d9727d2d0f9b005a6e456a35d4fb0daab1268a1b0db10836d9826a528ca76567805",
        "90cf1df3b703cce59e2a35b925d411164068269d7b2d29f3301c03dd757876ff"
        "66b71dda49d2de59d03450451af026798e8f81cd2e333de5cdf4f3e140fdd8ae",
    ),
    (
        "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
        "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
        "72",
        "5b659fc3d4e9263fd9a4ed1d022d75eaacc20df5e09f9ea937502396598dc551",
        "f3141cd382dc42909d19ec5110469e4feae18300e94f304590abdced48aed5933bf0864a62558b3e"
        "d7f2fea45c92a465301b3bbf5e3e54ddf2d935be3b67926da3ef39226bbc355bdc9850112c8f4b02",
        "eb4440665d3891d668e7e0fcaf587f1b4bd7fbfe99d0eb2211ccec90496310eb"
        "5e33821bc613efb94db5e5b54c70a848a0bef4553a41befc57663b56373a5031",
    ),
    (
        "c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7",
        "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
        "af82",
        "bf4339376f5542811de615e3313d2b36f6f53c0acfebb482159711201192576a",
        "9bc0f79119cc5604bf02d23b4caede71393cedfbb191434dd016d30177ccbf8096bb474e53895c36"
        "2d8628ee9f9ea3c0e52c7a5c691b6c18c9979866568add7a2d41b00b05081ed0f58ee5e31b3a970e",
        "645427e5d00c62a23fb703732fa5d892940935942101e456ecca7bb217c61c45"
        "2118fec1219202a0edcf038bb6373241578be7217ba85a2687f7a0310b2df19f",
    ),
]

# Seed, public key, message, signature.
RFC_8032 = [
    (
        RFC_9381[0][0],
        RFC_9381[0][1],
        "",
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e06522490155"
        "5fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b",
    ),
    (
        RFC_9381[1][0],
        RFC_9381[1][1],
        "72",
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
        "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00",
    ),
    (
        RFC_9381[2][0],
        RFC_9381[2][1],
        "af82",
        "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac"
        "18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a",
    ),
    (
        "833fe62409237b9d62ec77587520911e9a759cec1d19755b7da901b96dca3d42",
        "ec172b93ad5e563bf4932c70e1245034c35467ef2efd4d64ebf819683467e2bf",
        sha512(b"abc").hexdigest(),
        "dc2a4459e7369633a52b1bf277839a00201009a3efbf3ecb69bea2186c26b589"
        "09351fc9ac90b3ecfdfbc7c66431e0303dca179c138ac17ad9bef1177331a704",
    ),
]

KEY = ecvrf.SecretKey.from_seed(bytes(range(32)))
ALPHA = b"round 1"
PROOF, OUT = ecvrf.prove(KEY, ALPHA)
SIGNER = Ed25519Signer.from_seeds(b"s" * 32, b"v" * 32)
VERIFIER = Ed25519Verifier()


@pytest.mark.parametrize("vector", RFC_9381, ids=["16", "17", "18"])
def test_the_vrf_matches_the_examples_of_the_rfc(vector):
    seed, public, alpha, point, proof, out = (bytes.fromhex(part) for part in vector)
    key = ecvrf.SecretKey.from_seed(seed)
    assert key.public == public
    assert ecvrf.encode_to_curve(public, alpha) == point
    assert ecvrf.prove(key, alpha) == (proof, out)
    assert ecvrf.verify(public, alpha, proof) == out
    assert ecvrf.point_fault(public) is None


@pytest.mark.parametrize("vector", RFC_8032)
def test_signatures_match_the_examples_of_the_rfc(vector):
    seed, public, message, signature = (bytes.fromhex(part) for part in vector)
    signer = Ed25519Signer.from_seeds(seed, b"v" * 32)
    assert signer.public.signing == public
    assert signer.sign(message) == signature
    assert VERIFIER.signature(public, message, signature)


@settings(max_examples=20)
@given(st.binary(min_size=32, max_size=32), st.binary(max_size=200))
def test_whatever_is_proved_is_verified(seed, alpha):
    key = ecvrf.SecretKey.from_seed(seed)
    proof, out = ecvrf.prove(key, alpha)
    assert (len(proof), len(out)) == (80, 64)
    assert ecvrf.verify(key.public, alpha, proof) == out
    assert ecvrf.verify(key.public, alpha + b"\0", proof) is None
    assert ecvrf.verify(KEY.public, alpha, proof) is None


@settings(max_examples=50)
@given(st.binary(max_size=90), st.binary(max_size=40), st.binary(max_size=90))
def test_no_bytes_raise(public, alpha, proof):
    assert ecvrf.verify(public, alpha, proof) is None
    assert ecvrf.verify(KEY.public, alpha, proof) is None
    assert ecvrf.verify(public.ljust(32, b"\0")[:32], alpha, proof.ljust(80, b"\0")[:80]) is None
    assert not VERIFIER.signature(public, alpha, proof)
    assert not VERIFIER.signature(public.ljust(32, b"\0")[:32], alpha, proof.ljust(64, b"\0")[:64])


def flips(data):
    """The data with one bit flipped, for each of its bits."""
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        yield bytes(flipped)


def test_no_bit_of_a_proof_may_flip():
    accepted = [p for p in flips(PROOF) if ecvrf.verify(KEY.public, ALPHA, p) is not None]
    assert accepted == []


def test_no_bit_of_a_key_may_flip():
    accepted = [k for k in flips(KEY.public) if ecvrf.verify(k, ALPHA, PROOF) is not None]
    assert accepted == []


def test_no_bit_of_a_signature_may_flip():
    public, signed = SIGNER.public.signing, SIGNER.sign(ALPHA)
    assert VERIFIER.signature(public, ALPHA, signed)
    assert [s for s in flips(signed) if VERIFIER.signature(public, ALPHA, s)] == []


def test_the_response_has_one_representation():
    response = int.from_bytes(PROOF[48:], "little")
    again = PROOF[:48] + (response + ORDER).to_bytes(32, "little")
    assert ecvrf.verify(KEY.public, ALPHA, again) is None


@pytest.mark.parametrize("proof", [PROOF[:-1], PROOF + b"\0", PROOF + PROOF, b""])
def test_a_proof_has_one_length(proof):
    assert ecvrf.verify(KEY.public, ALPHA, proof) is None


def forged(gamma, *, nonce=b"n" * 64):
    """A proof for this Gamma by the owner of the key, as good as it can be made."""
    k = sodium.crypto_core_ed25519_scalar_reduce(nonce)
    point = ecvrf.encode_to_curve(KEY.public, ALPHA)
    challenge = ecvrf._challenge(
        KEY.public,
        point,
        gamma,
        sodium.crypto_scalarmult_ed25519_base_noclamp(k),
        sodium.crypto_scalarmult_ed25519_noclamp(k, point),
    )
    product = sodium.crypto_core_ed25519_scalar_mul(challenge + bytes(16), KEY.scalar)
    return gamma + challenge + sodium.crypto_core_ed25519_scalar_add(k, product)


def test_another_nonce_gives_another_proof_of_the_same_output():
    others = {forged(PROOF[:32], nonce=bytes([i]) * 64) for i in range(1, 21)}
    assert len(others) == 20
    assert {ecvrf.verify(KEY.public, ALPHA, proof) for proof in others} == {OUT}


@pytest.mark.parametrize("torsion", TORSION, ids=["2", "4", "8"])
def test_a_gamma_with_torsion_is_refused(torsion):
    # The RFC's own check would pass about one in eight of these: those whose c undoes the torsion.
    twisted = sodium.crypto_core_ed25519_add(PROOF[:32], torsion)
    assert ecvrf.output(twisted) == OUT
    for i in range(1, 41):
        proof = forged(twisted, nonce=bytes([i]) * 64)
        assert ecvrf.verify(KEY.public, ALPHA, proof) is None


@pytest.mark.parametrize("point", [IDENTITY, *TORSION], ids=["1", "2", "4", "8"])
def test_points_of_small_order_are_no_keys_and_no_gamma(point):
    # With such a key everybody could prove everything: c Y and Gamma vanish.
    assert "prime-order" in ecvrf.point_fault(point)
    assert ecvrf.verify(point, ALPHA, PROOF) is None
    for i in range(1, 21):
        assert ecvrf.verify(KEY.public, ALPHA, forged(point, nonce=bytes([i]) * 64)) is None


@pytest.mark.parametrize("torsion", TORSION, ids=["2", "4", "8"])
def test_a_key_with_torsion_is_refused(torsion):
    twisted = sodium.crypto_core_ed25519_add(KEY.public, torsion)
    assert "prime-order" in ecvrf.point_fault(twisted)
    assert ecvrf.verify(twisted, ALPHA, PROOF) is None


@pytest.mark.parametrize(
    ("point", "fault"),
    [
        (b"", "must have 32 bytes; got 0"),
        (bytes(33), "must have 32 bytes; got 33"),
        (FIELD.to_bytes(32, "little"), "canonical"),
        ((FIELD + 1).to_bytes(32, "little"), "canonical"),
        (b"\xff" * 32, "canonical"),
        ((2).to_bytes(32, "little"), "off the curve"),
    ],
)
def test_what_is_no_key_says_why(point, fault):
    assert fault in ecvrf.point_fault(point)
    good = SIGNER.public
    for name, keys in (
        ("signing", PublicKeys(point, good.vrf)),
        ("VRF", PublicKeys(good.signing, point)),
    ):
        said = VERIFIER.key_fault(keys)
        assert said.startswith(f"the {name} key ")
        assert fault in said


def test_good_keys_have_no_fault_but_one_key_for_both_is_one():
    good = SIGNER.public
    assert VERIFIER.key_fault(good) is None
    assert "must differ" in VERIFIER.key_fault(PublicKeys(good.vrf, good.vrf))


def test_hashing_to_the_curve_skips_what_is_no_canonical_y():
    # About every second candidate is no point; all that come out lie in the prime-order subgroup.
    points = [ecvrf.encode_to_curve(KEY.public, bytes([i])) for i in range(64)]
    assert len(set(points)) == 64
    assert all(sodium.crypto_core_ed25519_is_valid_point(point) for point in points)


@pytest.mark.parametrize(
    ("seeds", "message"),
    [
        ((b"", b"v" * 32), "signing seed must have 32 bytes; got 0"),
        ((b"s" * 32, b"v" * 33), "VRF seed must have 32 bytes; got 33"),
        ((b"s" * 32, b"s" * 32), "must differ"),
    ],
)
def test_bad_seeds_are_refused(seeds, message):
    with pytest.raises(UserError, match=message):
        Ed25519Signer.from_seeds(*seeds)


def test_a_library_that_accepts_foreign_points_is_refused(monkeypatch):
    monkeypatch.setattr(sodium, "crypto_core_ed25519_is_valid_point", lambda _: True)
    with pytest.raises(UserError, match=r"1\.6\.2"):
        Ed25519Verifier()


def test_secrets_are_not_printed():
    assert KEY.scalar.hex() not in repr(KEY)
    assert repr(KEY.scalar) not in repr(KEY)


def test_the_real_verifier_may_be_remembered():
    verifier = MemoVerifier(VERIFIER)
    proof, out = SIGNER.prove(ALPHA)
    signed = SIGNER.sign(ALPHA)
    for _ in range(3):
        assert verifier.vrf(SIGNER.public.vrf, ALPHA, proof) == out
        assert verifier.signature(SIGNER.public.signing, ALPHA, signed)
    assert (verifier.signature_checks, verifier.vrf_checks) == (1, 1)
