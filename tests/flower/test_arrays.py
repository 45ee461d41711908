"""A model's arrays as nodes send them: every malformed one is a fault with a name."""

import struct

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st
from tests.flower.flower_grid import arrays

from holdout.errors import ModelError
from holdout.flower.answers import ReplyFault
from holdout.flower.arrays import ArrayRole, Layout, read_proposal

LAYOUT = Layout.of(arrays())
GOOD = np.arange(12, dtype=np.float32).reshape(3, 4)


def raw(data: bytes, *, dtype="float32", shape=(3, 4), stype="numpy.ndarray") -> Array:
    return Array(dtype=dtype, shape=shape, stype=stype, data=data)


def saved(array: np.ndarray) -> bytes:
    return Array(array).data


def with_header(header: str, body: bytes = GOOD.tobytes(), version: int = 1) -> bytes:
    text = header.encode("latin1")
    size = struct.pack("<H" if version == 1 else "<I", len(text))
    return b"\x93NUMPY" + bytes([version, 0]) + size + text + body


HEADER = "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }\n"

MALFORMED_ARRAYS = {
    "of another shape": (Array(np.zeros((4, 3), np.float32)), ReplyFault.MISSHAPEN),
    "of no dimension": (Array(np.array(1.0, np.float32)), ReplyFault.MISSHAPEN),
    "too long": (Array(np.zeros((300, 4), np.float32)), ReplyFault.MISSHAPEN),
    "too long, said to fit": (raw(saved(np.zeros(9000, np.float32))), ReplyFault.MISSHAPEN),
    "another shape than it says": (raw(saved(GOOD.T.copy())), ReplyFault.MISSHAPEN),
    "integers": (Array(np.zeros((3, 4), np.int64)), ReplyFault.WRONG_DTYPE),
    "integers, said to be floats": (raw(saved(np.zeros((3, 4), np.int32))), ReplyFault.WRONG_DTYPE),
    "floats, said to be integers": (raw(saved(GOOD), dtype="int64"), ReplyFault.WRONG_DTYPE),
    "complex": (Array(np.zeros((3, 4), np.complex64)), ReplyFault.WRONG_DTYPE),
    "booleans": (Array(np.zeros((3, 4), bool)), ReplyFault.WRONG_DTYPE),
    "no bytes": (raw(b""), ReplyFault.UNREADABLE),
    "junk": (raw(b"not an array"), ReplyFault.UNREADABLE),
    "magic alone": (raw(b"\x93NUMPY"), ReplyFault.UNREADABLE),
    "cut off in the header": (raw(saved(GOOD)[:40]), ReplyFault.UNREADABLE),
    "cut off in the numbers": (raw(saved(GOOD)[:-1]), ReplyFault.UNREADABLE),
    "something after the numbers": (raw(saved(GOOD) + b"\0"), ReplyFault.UNREADABLE),
    "a zip archive": (raw(b"PK\x03\x04" + bytes(60)), ReplyFault.UNREADABLE),
    "a pickle": (raw(b"\x80\x04K\x01."), ReplyFault.UNREADABLE),
    "another serialisation": (raw(saved(GOOD), stype="pickle"), ReplyFault.UNREADABLE),
    "an unknown version": (raw(with_header(HEADER, version=9)), ReplyFault.UNREADABLE),
    "a header that is code": (
        raw(with_header("__import__('os').abort()\n")),
        ReplyFault.UNREADABLE,
    ),
    "a header of nested brackets": (raw(with_header("(" * 3000)), ReplyFault.UNREADABLE),
    "objects": (raw(with_header(HEADER.replace("<f4", "|O8"))), ReplyFault.WRONG_DTYPE),
    "a dtype that is none": (raw(with_header(HEADER.replace("<f4", "<z9"))), ReplyFault.UNREADABLE),
    "a size beyond memory": (
        raw(with_header(HEADER.replace("(3, 4)", "(999999999999, 999999999)"))),
        ReplyFault.MISSHAPEN,
    ),
}


@pytest.mark.parametrize("case", MALFORMED_ARRAYS)
def test_a_malformed_array_is_a_fault_with_a_name(case):
    array, fault = MALFORMED_ARRAYS[case]
    assert LAYOUT.read(arrays(weight=array)) is fault


@pytest.mark.parametrize(
    "record",
    [
        ArrayRecord(),
        ArrayRecord({"weight": Array(GOOD)}),
        arrays(extra=Array(GOOD)),
        ArrayRecord([GOOD, GOOD[:, 0]]),
    ],
    ids=["empty", "one missing", "one too many", "other names"],
)
def test_arrays_of_other_names_are_malformed(record):
    assert LAYOUT.read(record) is ReplyFault.MALFORMED


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", ">f4"])
def test_floats_of_any_width_and_byte_order_are_read(dtype):
    read = LAYOUT.read(arrays(weight=Array(GOOD.astype(dtype))))
    assert torch.equal(read[:12], torch.from_numpy(GOOD).flatten())
    assert read.dtype == torch.float32


def test_arrays_stored_by_columns_are_read_as_they_were():
    read = LAYOUT.read(arrays(weight=Array(np.asfortranarray(GOOD))))
    assert torch.equal(read[:12], torch.from_numpy(GOOD).flatten())


def test_every_version_of_the_file_format_is_read():
    for version in (1, 2, 3):
        read = LAYOUT.read(arrays(weight=raw(with_header(HEADER, version=version))))
        assert torch.equal(read[:12], torch.from_numpy(GOOD).flatten())


def test_what_float32_cannot_hold_comes_out_as_not_finite():
    read = LAYOUT.read(arrays(weight=Array(np.full((3, 4), 1e300))))
    assert not read.isfinite().all()


@given(st.binary(max_size=400))
def test_random_bytes_never_raise(data):
    result = LAYOUT.read(arrays(weight=raw(data)))
    assert isinstance(result, ReplyFault | torch.Tensor)


@given(st.integers(0, 200), st.binary(min_size=1, max_size=8))
def test_damaged_arrays_never_raise(place, damage):
    data = bytearray(saved(GOOD))
    data[place : place + len(damage)] = damage
    result = LAYOUT.read(arrays(weight=raw(bytes(data))))
    assert isinstance(result, ReplyFault | torch.Tensor)


def test_a_vector_becomes_arrays_and_back():
    vector = torch.randn(15, generator=torch.Generator().manual_seed(0))
    record = LAYOUT.fill(vector, {})
    assert list(record) == ["weight", "bias"]
    assert torch.equal(LAYOUT.read(record), vector)


def test_arrays_that_are_no_floats_stay_as_the_current_model_has_them():
    current = arrays(1.0, steps=Array(np.array(7)))
    layout = Layout.of(current)
    assert layout.dimension == 15
    filled = layout.fill(torch.zeros(15), layout.others(current))
    assert filled["steps"].numpy() == 7
    # Whatever a client says about its counters is not looked at.
    reply = arrays(1.0, steps=Array(np.array(-1)))
    assert torch.equal(layout.read(reply), torch.ones(15))


def test_the_dtype_of_the_model_is_kept():
    halves = ArrayRecord({"w": Array(np.ones(4, np.float16))})
    layout = Layout.of(halves)
    assert layout.fill(torch.full((4,), 0.5), {})["w"].numpy().dtype == np.float16


def test_a_model_without_floats_is_refused():
    with pytest.raises(ModelError, match="at least one array of float16"):
        Layout.of(ArrayRecord({"w": Array(np.ones(4, np.int64))}))


def test_a_current_model_that_is_not_finite_is_refused():
    with pytest.raises(ModelError, match="not finite"):
        LAYOUT.flatten(arrays(np.nan))


@pytest.mark.parametrize(
    "content",
    [
        RecordDict(),
        RecordDict({"weights": arrays()}),
        RecordDict({"arrays": arrays(), "more": arrays()}),
        RecordDict({"arrays": MetricRecord({"loss": 1.0})}),
    ],
    ids=["nothing", "another name", "two", "no arrays"],
)
def test_a_proposal_is_one_record_of_arrays_under_its_name(content):
    assert read_proposal(content, LAYOUT, key="arrays") is ReplyFault.MALFORMED


def test_the_metrics_of_a_proposal_do_not_matter():
    received = read_proposal(RecordDict({"arrays": arrays(2.0)}), LAYOUT, key="arrays")
    assert torch.equal(received.weights, torch.full((15,), 2.0))
    assert received.buffers == {}


# ------------------------------------------------------------------- buffers, counters, adapters


def bn_model(value: float = 0.0, mean: float = 0.0, count: int = 3) -> ArrayRecord:
    return ArrayRecord(
        {
            "conv.weight": Array(np.full((2, 2), value, np.float32)),
            "bn.running_mean": Array(np.full(2, mean, np.float32)),
            "bn.num_batches_tracked": Array(np.array(count, np.int64)),
        }
    )


def test_statistics_and_counters_are_no_part_of_the_vector():
    layout = Layout.of(bn_model())
    assert layout.dimension == 4
    assert layout.roles == (ArrayRole.TRAINED, ArrayRole.BUFFER, ArrayRole.BUFFER)
    assert Layout.from_json(layout.to_json()) == layout


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"bn.running_mean": Array(np.full(2, np.nan, np.float32))}, ReplyFault.NOT_FINITE),
        ({"bn.running_mean": Array(np.zeros(3, np.float32))}, ReplyFault.MISSHAPEN),
        ({"bn.num_batches_tracked": Array(np.array(1.5))}, ReplyFault.WRONG_DTYPE),
        ({"bn.num_batches_tracked": Array(np.array(1, np.uint8))}, ReplyFault.WRONG_DTYPE),
    ],
)
def test_a_malformed_buffer_is_a_fault_with_a_name(changes, fault):
    content = RecordDict({"arrays": ArrayRecord({**bn_model(), **changes})})
    assert read_proposal(content, Layout.of(bn_model()), key="arrays") is fault


def test_a_buffer_must_be_sent():
    record = ArrayRecord({"conv.weight": bn_model()["conv.weight"]})
    assert Layout.of(bn_model()).read(record) is ReplyFault.MALFORMED


@given(
    st.lists(st.floats(-10, 10, width=32), min_size=3, max_size=9),
    st.sampled_from([-1e30, 1e30]),
)
def test_one_liar_s_statistics_do_not_leave_what_others_say(honest, lie):
    layout = Layout.of(bn_model())
    held = [
        layout.read_buffers(bn_model(mean=value, count=count))
        for count, value in enumerate([*honest, lie])
    ]
    averaged = layout.average_buffers(held, cut=1)
    mean = averaged["bn.running_mean"].numpy()
    assert mean.dtype == np.float32
    assert min(honest) - 1e-3 <= mean[0] <= max(honest) + 1e-3


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64", "uint64", "bool", "float16"])
def test_buffers_of_any_dtype_keep_it(dtype):
    record = ArrayRecord({"w": Array(np.zeros(1)), "n": Array(np.array([0, 1, 1]).astype(dtype))})
    layout = Layout.of(record, buffers=["n"])
    held = [layout.read_buffers(record)] * 3
    averaged = layout.average_buffers(held, cut=1)["n"].numpy()
    assert str(averaged.dtype) == dtype
    assert averaged.astype(int).tolist() == [0, 1, 1]


@pytest.mark.parametrize("dtype", ["int64", "uint64", "int8"])
def test_the_largest_integers_do_not_overflow(dtype):
    top = np.iinfo(dtype).max
    record = ArrayRecord({"w": Array(np.zeros(1)), "n": Array(np.full(1, top, dtype))})
    layout = Layout.of(record)
    averaged = layout.average_buffers([layout.read_buffers(record)] * 2, cut=0)["n"].numpy()
    assert abs(int(averaged[0]) - int(top)) <= top * 1e-12


def test_what_is_not_trained_is_kept_and_may_be_left_out():
    whole = ArrayRecord(
        {"base.weight": Array(np.ones(4)), "base.lora_A": Array(np.zeros((2, 1), np.float32))}
    )
    layout = Layout.of(whole, trained=["*lora*"])
    assert layout.dimension == 2
    assert layout.roles == (ArrayRole.KEPT, ArrayRole.TRAINED)
    part = ArrayRecord({"base.lora_A": Array(np.full((2, 1), 3.0))})
    assert layout.read(part).tolist() == [3.0, 3.0]
    filled = layout.fill(layout.read(part), layout.others(whole))
    assert filled["base.weight"].numpy().tolist() == [1.0] * 4
    assert layout.read(whole).tolist() == [0.0, 0.0]
    with pytest.raises(ModelError, match="that is trained"):
        Layout.of(whole, trained=["*adapter*"])


def test_numbers_that_cannot_be_averaged_are_kept():
    record = ArrayRecord({"w": Array(np.zeros(2)), "phase": Array(np.zeros(2, np.complex64))})
    assert Layout.of(record).roles == (ArrayRole.TRAINED, ArrayRole.KEPT)
