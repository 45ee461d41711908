"""Simulated keys, and the memo that lets a cluster check each message once."""

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdout.agreement.keys import Memo, MemoVerifier, PublicKeys, SimulatedKeys

SOURCES = Path(__file__).resolve().parents[2] / "src" / "holdout" / "agreement"
KEYS = SimulatedKeys(seed=1, n=4)


class Counting:
    """A verifier that takes everything that ends in `!` and counts how often it is asked."""

    def __init__(self):
        self.asked = 0

    def signature(self, *question):
        self.asked += 1
        return question[-1].endswith(b"!")

    def vrf(self, *question):
        self.asked += 1
        return b"o" * 64 if question[-1].endswith(b"!") else None

    def key_fault(self, _keys):
        return "none is good"


def test_a_signature_holds_for_its_signer_and_message_alone():
    verifier = KEYS.verifier()
    signed = KEYS.signer(0).sign(b"message")
    public = KEYS.signer(0).public.signing
    assert len(signed) == 64
    assert verifier.signature(public, b"message", signed)
    assert not verifier.signature(KEYS.signer(1).public.signing, b"message", signed)
    assert not verifier.signature(KEYS.signer(0).public.vrf, b"message", signed)
    assert not verifier.signature(public, b"messagf", signed)
    assert not verifier.signature(public, b"message", signed[:-1] + bytes([signed[-1] ^ 1]))
    assert not verifier.signature(b"nobody", b"message", signed)


def test_an_output_is_the_one_that_its_owner_proves():
    proof, out = KEYS.signer(2).prove(b"alpha")
    public = KEYS.signer(2).public.vrf
    verifier = KEYS.verifier()
    assert (proof, len(out)) == (b"", 64)
    assert verifier.vrf(public, b"alpha", proof) == out
    assert verifier.vrf(public, b"beta", proof) not in {None, out}
    assert verifier.vrf(public, b"alpha", b"anything") is None
    assert verifier.vrf(KEYS.signer(2).public.signing, b"alpha", proof) is None
    assert verifier.vrf(KEYS.signer(3).public.vrf, b"alpha", proof) not in {None, out}


def test_the_seed_decides_all_keys():
    def publics(keys):
        return [keys.signer(i).public for i in range(4)]

    assert publics(SimulatedKeys(1, 4)) == publics(KEYS)
    everything = [
        key
        for keys in (KEYS, SimulatedKeys(2, 4))
        for public in publics(keys)
        for key in (public.signing, public.vrf)
    ]
    assert len(set(everything)) == 16
    assert {len(key) for key in everything} == {32}


def test_foreign_keys_are_refused_at_genesis():
    mine, other = KEYS.signer(0).public, SimulatedKeys(2, 1).signer(0).public
    fault = KEYS.verifier().key_fault
    assert fault(mine) is None
    assert "signing key" in fault(PublicKeys(other.signing, mine.vrf))
    assert "VRF key" in fault(PublicKeys(mine.signing, other.vrf))
    assert "VRF key" in fault(PublicKeys(mine.signing, b""))


@pytest.mark.parametrize("good", [True, False])
def test_each_answer_is_asked_for_once(good):
    inner = Counting()
    verifier = MemoVerifier(inner)
    end = b"!" if good else b"?"
    for _ in range(3):
        assert verifier.signature(b"key", b"message", end) is good
        assert verifier.vrf(b"key", b"alpha", end) == (b"o" * 64 if good else None)
    assert (inner.asked, verifier.signature_checks, verifier.vrf_checks) == (2, 1, 1)
    assert verifier.key_fault(KEYS.signer(0).public) == "none is good"


def test_no_two_questions_share_an_answer():
    inner = Counting()
    verifier = MemoVerifier(inner)
    questions = [(b"a", b"b", b"c!"), (b"a", b"c!", b"b"), (b"b", b"a", b"c!"), (b"ab", b"", b"c!")]
    for question in questions * 2:
        assert verifier.signature(*question) is question[2].endswith(b"!")
    assert inner.asked == 4


def test_the_memo_stays_within_its_bound_under_a_flood():
    verifier = MemoVerifier(Counting(), entries_max=100)
    for i in range(1000):
        verifier.signature(b"key", i.to_bytes(4, "big"), b"!")
        verifier.vrf(b"key", i.to_bytes(4, "big"), b"?")
        assert len(verifier) <= 100
    assert verifier.signature_checks == verifier.vrf_checks == 1000


def test_what_is_used_again_and_again_survives_a_flood():
    inner = Counting()
    verifier = MemoVerifier(inner, entries_max=100)
    for i in range(500):
        verifier.signature(b"key", i.to_bytes(4, "big"), b"!")
        verifier.signature(b"key", b"often", b"!")
    assert inner.asked == 501


@given(st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=60), st.integers(1, 8))
def test_a_memo_never_answers_wrongly(steps, bound):
    memo = Memo(bound)
    for key, asks in steps:
        if asks:
            assert memo.get(key) in {None, key * 10}
        else:
            memo.put(key, key * 10)
            assert memo.get(key) == key * 10
        assert len(memo) <= max(2, bound)


def test_the_core_loads_neither_torch_nor_a_library_of_cryptography():
    real = {"ecvrf", "ed25519"}
    names = sorted(p.stem for p in SOURCES.glob("*.py") if p.stem not in real | {"__init__"})
    assert {"keys", "sortition", "draws", "sizing"} <= set(names)
    script = "import sys, holdout.agreement\n" + "".join(
        f"import holdout.agreement.{name}\n" for name in names
    )
    script += "print([m for m in ('torch', 'nacl', 'scipy', 'cryptography') if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
