import contextlib
import math
import os
import struct
import subprocess
import sys
from hashlib import sha256

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.agreement.rig import MODEL, SHAPES, Network, some_params

from holdout.agreement import aggregate
from holdout.agreement.aggregate import (
    LARGEST,
    SMALLEST,
    blob_matches,
    canonical,
    combine,
    known_answer_fault,
    model_digest,
    norm,
    payload_digest,
    payload_fault,
)
from holdout.agreement.codec import digest
from holdout.agreement.events import BlobKind
from holdout.errors import MisuseError

SUBNORMAL = 1e-40


def packed(*values):
    return struct.pack(f"<{len(values)}f", *values)


def unpacked(data):
    return list(struct.unpack(f"<{len(data) // 4}f", data))


def numbers(largest=1e6):
    """Coordinates of valid payloads, over all magnitudes."""
    return st.floats(-largest, largest, width=32, allow_subnormal=False).map(lambda x: x + 0.0)


@st.composite
def steps(draw, largest=1e6):
    """A model, payloads for it, a radius and a rate."""
    size = draw(st.integers(1, 9))
    vector = st.lists(numbers(largest), min_size=size, max_size=size).map(lambda v: packed(*v))
    model, payloads = draw(vector), draw(st.lists(vector, min_size=1, max_size=6))
    radius = draw(st.just(0.0) | st.floats(SMALLEST, 1e9) | st.sampled_from(payloads).map(norm))
    return model, payloads, radius, draw(st.floats(1e-6, 2.0))


# ----------------------------------------------------------- a plain version, number by number


def plain_norm(values):
    squares = [x * x for x in values]
    while len(squares) & (len(squares) - 1):
        squares.append(0.0)
    while len(squares) > 1:
        half = len(squares) // 2
        squares = [squares[i] + squares[half + i] for i in range(half)]
    return math.sqrt(squares[0])


def plain_combine(model, payloads, radius, rate):
    vectors = [unpacked(payload) for payload in payloads]
    norms = [plain_norm(vector) for vector in vectors]
    weights = []
    for k, weight in enumerate(unpacked(model)):
        total = 0.0
        for vector, length in zip(vectors, norms, strict=True):
            scale = 1.0 if radius == 0.0 or length <= radius else radius / length
            total += scale * vector[k]
        moved = weight - rate * (total / len(vectors))
        weights.append(0.0 if abs(moved) < 2.0**-126 else moved)
    middle = sorted(norms)[math.ceil(len(norms) / 2) - 1]
    if radius:
        middle = max(min(max(middle, radius / 1.5), 1.5 * radius), 2.0**-126)
    if any(abs(weight) > LARGEST for weight in weights):
        return None, middle
    return packed(*weights), middle


@given(steps())
def test_a_step_is_the_plain_one_to_the_bit(step):
    model, payloads, radius, rate = step
    assert combine(model, payloads, radius=radius, rate=rate) == plain_combine(*step)


@given(st.lists(numbers(), min_size=1, max_size=40))
def test_the_norm_is_the_plain_one_to_the_bit(values):
    assert norm(packed(*values)) == plain_norm(values)
    assert math.isclose(norm(packed(*values)), math.hypot(*values), rel_tol=1e-14)


@given(st.lists(numbers(), min_size=1, max_size=20), st.integers(0, 30))
def test_zeros_at_the_end_do_not_change_a_norm(values, zeros):
    assert norm(packed(*values, *[0.0] * zeros)) == norm(packed(*values))


# ---------------------------------------------------------------------------- what must not matter


@contextlib.contextmanager
def flushing():
    """The processor flushes subnormal numbers to zero, as some libraries make it do."""
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor has no such switch")
    try:
        assert np.float64(5e-324) * 1.0 == 0.0  # It really does.
        yield
    finally:
        torch.set_flush_denormal(False)


@given(steps(largest=2.0**-120) | steps())
def test_flushing_subnormal_numbers_changes_no_bit(step):
    model, payloads, radius, rate = step
    before = combine(model, payloads, radius=radius, rate=rate)
    with flushing():
        after = combine(model, payloads, radius=radius, rate=rate)
    assert before == after


@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=20))
def test_flushing_changes_neither_validity_nor_the_canonical_form(bits):
    data = np.array(bits, "<u4").tobytes()
    params = some_params(dimension=len(bits))
    values = np.frombuffer(data, "<f4")
    before = payload_fault(data, params), canonical(values)
    with flushing():
        after = payload_fault(data, params), canonical(values)
    assert before == after


def test_the_radius_never_gets_so_small_that_flushing_could_touch_it():
    radius = 1.0
    for _ in range(3000):
        model, radius = combine(packed(1.0), [packed(0.0)], radius=radius, rate=1.0)
    assert (model, radius) == (packed(1.0), SMALLEST)


def test_the_number_of_threads_changes_no_bit():
    words = np.random.default_rng(0)
    model, *payloads = (canonical(words.normal(size=200_000).astype(np.float32)) for _ in range(6))
    before = combine(model, payloads, radius=400.0, rate=0.1)
    torch.set_num_threads(2)  # A fixture sets it back.
    assert combine(model, payloads, radius=400.0, rate=0.1) == before


SCRIPT = """
import numpy as np
from hashlib import sha256
from holdout.agreement.aggregate import combine, known_answer_fault
words = np.random.Generator(np.random.PCG64(7))
vectors = [(words.integers(-2**20, 2**20, 10_007) / 3).astype("<f4").tobytes() for _ in range(6)]
model, radius = combine(vectors[0], vectors[1:], radius=2e7, rate=0.1)
print(known_answer_fault(), sha256(model).hexdigest(), radius.hex())
"""


@pytest.mark.parametrize(
    "setting",
    [
        {"OMP_NUM_THREADS": "4", "OPENBLAS_NUM_THREADS": "4"},
        {"NPY_DISABLE_CPU_FEATURES": "AVX2 FMA3"},
        {"NPY_DISABLE_CPU_FEATURES": "X86_V3 X86_V4 AVX512F AVX512_SKX"},
    ],
    ids=lambda setting: next(iter(setting.values())),
)
def test_another_process_with_other_settings_gets_the_same_bits(setting):
    found = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT],
        env={**os.environ, **setting},
        capture_output=True,
        text=True,
        check=True,
    )
    words = np.random.Generator(np.random.PCG64(7))
    vectors = [
        (words.integers(-(2**20), 2**20, 10_007) / 3).astype("<f4").tobytes() for _ in range(6)
    ]
    model, radius = plain_combine(vectors[0], vectors[1:], 2e7, 0.1)
    assert found.stdout.split() == ["None", sha256(model).hexdigest(), radius.hex()]


# ------------------------------------------------------------------------------------ known answer


def test_this_machine_gives_the_known_answer_and_so_does_the_plain_version():
    assert known_answer_fault() is None
    model, *payloads = (aggregate._known_vector(k) for k in range(8))
    radius = sorted(plain_norm(unpacked(payload)) for payload in payloads)[2]
    found, radius = plain_combine(model, payloads, radius, 0.1)
    norms = [plain_norm(unpacked(p[cut:])) for p in payloads for cut in range(0, 2_000, 100)]
    answer = sha256(found + struct.pack(">141d", radius, *norms))
    assert answer.hexdigest() == aggregate._KNOWN_ANSWER


def test_a_machine_that_sums_in_another_order_is_found_out(monkeypatch):
    def pairwise_norm(values):
        return math.sqrt(float((values * values).sum()))

    monkeypatch.setattr(aggregate, "_norm", pairwise_norm)
    assert known_answer_fault() is not None


def test_a_machine_that_rounds_the_model_otherwise_is_found_out(monkeypatch):
    def in_single(model, payloads, *, radius, rate):
        found, next_radius = combine(model, payloads, radius=radius, rate=np.float32(rate))
        return found, next_radius

    monkeypatch.setattr(aggregate, "combine", in_single)
    assert known_answer_fault() is not None


# ------------------------------------------------------------------------------------ single cases


def test_updates_are_added_in_the_order_of_their_proposers():
    large, small = 1e6, 2.0**-40  # The small one is lost next to the large one.
    one, two, three = packed(large), packed(-large), packed(small)
    model, _ = combine(packed(0.0), [one, two, three], radius=0.0, rate=3.0)
    assert unpacked(model) == [-small]
    model, _ = combine(packed(0.0), [three, one, two], radius=0.0, rate=3.0)
    assert unpacked(model) == [0.0]


def test_without_a_radius_the_first_step_is_unbounded_and_sets_it():
    model, radius = combine(
        packed(0.0, 0.0), [packed(3.0, 4.0), packed(30.0, 40.0), packed(0.0, 1.0)],
        radius=0.0, rate=1.0,
    )  # fmt: skip
    assert unpacked(model) == [-11.0, -15.0]
    assert radius == 5.0


def test_longer_updates_are_shortened_to_the_radius_and_shorter_ones_left():
    model, _ = combine(packed(0.0), [packed(100.0), packed(1.0)], radius=4.0, rate=1.0)
    assert unpacked(model) == [-2.5]
    model, _ = combine(packed(0.0), [packed(-4.0), packed(1.0)], radius=4.0, rate=1.0)
    assert unpacked(model) == [1.5]


@pytest.mark.parametrize(
    ("norms", "radius", "expected"),
    [
        ([1.0, 2.0, 3.0], 2.0, 2.0),
        ([2.0, 2.5], 2.0, 2.0),  # The lower of the two in the middle.
        ([9.0, 9.0, 9.0], 2.0, 3.0),
        ([0.25, 0.25, 9.0], 3.0, 2.0),
        ([9.0], 0.0, 9.0),
        ([0.0], 0.0, 0.0),  # Still none.
    ],
)
def test_the_radius_follows_the_median_norm_by_at_most_half_as_much_again(norms, radius, expected):
    payloads = [packed(length, 0.0) for length in norms]
    assert combine(packed(0.0, 0.0), payloads, radius=radius, rate=1.0)[1] == expected


@pytest.mark.parametrize(
    ("weight", "gradient", "expected"),
    [
        (1.0, 1.0, 0.0),
        (-1.0, -1.0, 0.0),  # And not -0.0.
        (2.0**-126, 2.0**-126, 0.0),
        (1.5 * 2.0**-126, 2.0**-126, 0.0),  # Half of the smallest normal number is flushed.
        (3 * 2.0**-126, 2 * 2.0**-126, 2.0**-126),
        (16777216.0, -1.0, 16777216.0),  # Half way: to even.
        (16777218.0, -1.0, 16777220.0),
        (LARGEST, -1e6, LARGEST),  # The sum is the same float64.
    ],
)
def test_weights_are_rounded_to_even_and_flushed(weight, gradient, expected):
    model, _ = combine(packed(weight), [packed(gradient)], radius=0.0, rate=1.0)
    assert model == packed(expected)


def test_what_lies_above_the_largest_number_does_not_fit_even_if_it_would_round_to_it():
    step = 2.0**75  # LARGEST is 24 bits below 2^128: the next float64 above it is 2^75 further.
    assert packed(LARGEST + step) == packed(LARGEST)
    model, _ = combine(packed(LARGEST), [packed(-step)], radius=0.0, rate=1.0)
    assert model is None


def test_a_model_that_does_not_fit_is_none_and_nothing_warns():
    for payload in (packed(-1e6), packed(float("inf")), packed(float("nan"))):
        model, _ = combine(packed(LARGEST), [payload], radius=0.0, rate=1e300)
        assert model is None


@pytest.mark.parametrize("payloads", [[], [packed(1.0, 2.0)]])
def test_a_step_of_nothing_or_of_another_size_is_refused(payloads):
    with pytest.raises(MisuseError, match="at least one payload"):
        combine(packed(1.0), payloads, radius=0.0, rate=1.0)


# ----------------------------------------------------------------------------------------- payloads


@pytest.mark.parametrize(
    ("values", "fault"),
    [
        ([0.0, 1.0, -1.0], None),
        ([SMALLEST, -SMALLEST, 0.0], None),
        ([1e6, -1e6, 0.0], None),
        ([1.0, float("nan"), 0.0], "finite"),
        ([1.0, float("inf"), 0.0], "finite"),
        ([1.0, float("-inf"), 0.0], "finite"),
        ([1.0, -0.0, 0.0], "-0.0"),
        ([1.0, SUBNORMAL, 0.0], "subnormal"),
        ([1.0, -SUBNORMAL, 0.0], "subnormal"),
        ([1.0, 1000000.0625, 0.0], "at most"),
        ([1.0, -LARGEST, 0.0], "at most"),
        ([1.0, 0.0], "12 bytes"),
        ([1.0, 0.0, 0.0, 0.0], "12 bytes"),
        ([], "12 bytes"),
    ],
)
def test_a_payload_is_valid_or_says_why_not(values, fault):
    found = payload_fault(packed(*values), some_params(dimension=3))
    assert found is None if fault is None else fault in found


def test_a_payload_with_a_broken_number_at_its_end_has_the_wrong_length():
    assert "12 bytes" in payload_fault(packed(1.0, 2.0, 3.0)[:-1], some_params(dimension=3))


@given(st.lists(st.floats(width=32), min_size=1, max_size=20))
def test_the_canonical_form_flushes_and_changes_nothing_else(values):
    assume(not any(math.isnan(x) for x in values))
    data = canonical(np.array(values, np.float32))
    assert data == packed(*(x if abs(x) >= SMALLEST else 0.0 for x in values))
    assert canonical(np.frombuffer(data, "<f4")) == data
    if all(abs(x) <= 1e6 for x in values):
        assert payload_fault(data, some_params(dimension=len(values))) is None


def test_the_canonical_form_does_not_depend_on_how_an_array_lies_in_memory():
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert canonical(values) == packed(0, 1, 2, 3, 4, 5)
    assert canonical(values.astype(">f4")) == canonical(values)
    assert canonical(values.T) == packed(0, 3, 1, 4, 2, 5)
    assert canonical(values[0, ::2]) == packed(0, 2)


# ------------------------------------------------------------------------------------------- blobs


def test_blobs_are_known_by_their_digests():
    net = Network()
    matches = lambda kind, name, data: blob_matches(kind, name, data, net.params)  # noqa: E731  # Short names for a table.
    data = packed(1.0, float("nan"))
    assert matches(BlobKind.PAYLOAD, payload_digest(data), data)
    assert not matches(BlobKind.PAYLOAD, payload_digest(data), data + b"\0")
    assert matches(BlobKind.MODEL, model_digest(SHAPES, MODEL), MODEL)
    assert not matches(BlobKind.MODEL, model_digest(SHAPES, MODEL), MODEL[:-4] + packed(7.0))
    assert not matches(BlobKind.MODEL, model_digest(SHAPES[:1], MODEL), MODEL)
    assert not matches(BlobKind.MODEL, model_digest(SHAPES, data), data)
    update = net.update(1)
    block = net.finish(net.draft([update], [net.ballot(2, [update])]))
    assert matches(BlobKind.BLOCK, block.header.digest, block.encode())
    assert not matches(BlobKind.BLOCK, digest("other"), block.encode())
    assert not matches(BlobKind.BLOCK, block.header.digest, block.encode()[:-1])
    bare = net.finish(net.draft([], []))
    swapped = bare.encode()
    header = block.header.encode()
    cut = len(bare.header.encode()) + 4
    swapped = len(header).to_bytes(4, "big") + header + swapped[cut:]
    assert not matches(BlobKind.BLOCK, block.header.digest, swapped)


def test_models_of_other_shapes_have_other_digests():
    assert model_digest(((2, 3),), MODEL) != model_digest(((3, 2),), MODEL)
    assert model_digest(((2,), (4,)), MODEL) != model_digest(((2, 4),), MODEL)
