"""Canonical bytes: one encoding for each value, one value for each encoding."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdout.agreement.codec import (
    BOTTOM,
    Reader,
    blob,
    decode,
    digest,
    f64,
    items,
    text,
    u8,
    u32,
    u64,
)
from holdout.errors import InvalidMessage

BLOB_MAX = 40
ITEMS_MAX = 5

# Each kind of field: how it is read, and how what was read is written.
FIELDS = {
    "u8": (Reader.u8, u8),
    "u32": (Reader.u32, u32),
    "u64": (Reader.u64, u64),
    "f64": (Reader.f64, f64),
    "blob": (lambda reader: reader.blob(BLOB_MAX), blob),
    "four bytes": (lambda reader: reader.exactly(4), blob),
    "digest": (Reader.digest, blob),
    "pairs": (
        lambda reader: reader.items(lambda r: (r.u8(), r.blob(BLOB_MAX)), ITEMS_MAX),
        lambda pairs: items(u8(a) + blob(b) for a, b in pairs),
    ),
}
VALUES = {
    "u8": st.integers(0, 2**8 - 1),
    "u32": st.integers(0, 2**32 - 1),
    "u64": st.integers(0, 2**64 - 1),
    "f64": st.floats(allow_nan=False),
    "blob": st.binary(max_size=BLOB_MAX),
    "four bytes": st.binary(min_size=4, max_size=4),
    "digest": st.binary(min_size=32, max_size=32),
    "pairs": st.lists(
        st.tuples(st.integers(0, 255), st.binary(max_size=BLOB_MAX)), max_size=ITEMS_MAX
    ).map(tuple),
}
SHAPES = st.lists(st.sampled_from(sorted(FIELDS)), max_size=4)


def reading(shape):
    return lambda reader: tuple(FIELDS[kind][0](reader) for kind in shape)


def written(shape, values):
    return b"".join(FIELDS[kind][1](value) for kind, value in zip(shape, values, strict=True))


@st.composite
def almost_messages(draw):
    """A message of some shape, cut, stretched or changed in places."""
    shape = draw(SHAPES)
    data = bytearray(written(shape, [draw(VALUES[kind]) for kind in shape]))
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, len(data)))
        data[at : at + draw(st.integers(0, 2))] = draw(st.binary(max_size=2))
    return shape, bytes(data)


@given(
    SHAPES.flatmap(
        lambda shape: st.tuples(*(VALUES[kind] for kind in shape)).map(lambda v: (shape, v))
    )
)
def test_what_is_written_is_read(made):
    shape, values = made
    assert decode(written(shape, values), reading(shape)) == values


@given(almost_messages() | st.tuples(SHAPES, st.binary(max_size=60)))
def test_any_bytes_hold_one_value_that_encodes_to_them_or_none(made):
    shape, data = made
    try:
        values = decode(data, reading(shape))
    except InvalidMessage:
        return
    assert written(shape, values) == data


@given(st.binary(min_size=8, max_size=8))
def test_every_float_keeps_its_bits(data):
    assert f64(decode(data, Reader.f64)) == data


@given(SHAPES, st.data())
def test_a_message_cut_anywhere_is_none(shape, data):
    whole = written(shape, [data.draw(VALUES[kind]) for kind in shape])
    for end in range(len(whole)):
        with pytest.raises(InvalidMessage, match="cut off"):
            decode(whole[:end], reading(shape))


@pytest.mark.parametrize(
    ("data", "read", "message"),
    [
        (b"\x00\x00", Reader.u8, "goes on for 1 bytes after its end"),
        (u32(41) + bytes(41), lambda r: r.blob(40), "at most 40 bytes; got 41"),
        (u32(3) + bytes(3), lambda r: r.exactly(4), "must hold 4 bytes; got 3"),
        (u32(31) + bytes(31), Reader.digest, "must hold 32 bytes; got 31"),
        (u32(6) + bytes(6), lambda r: r.items(Reader.u8, 5), "at most 5 items; got 6"),
        (b"\xff" * 4, lambda r: r.items(Reader.u8, 5), "at most 5 items"),
        (b"\xff" * 4, lambda r: r.blob(40), "at most 40 bytes"),
    ],
)
def test_what_is_no_message_says_why(data, read, message):
    with pytest.raises(InvalidMessage, match=message):
        decode(data, read)


def test_the_encoding_is_pinned():
    encoded = u8(1) + u32(3) + u64(4) + blob(b"ab") + text("cd") + items([u8(5), u8(6)])
    assert encoded.hex(" ") == (
        "01 00 00 00 03 00 00 00 00 00 00 00 04 "
        "00 00 00 02 61 62 00 00 00 02 63 64 00 00 00 02 05 06"
    )
    assert f64(-1.5) == struct.pack(">d", -1.5) == bytes.fromhex("bff8000000000000")
    assert digest("tag", u8(1)).hex() == (
        "296a2a5ac1176d899d5eb9fa72a53c2455f090ffc399ea254083e915b335c674"
    )


def test_tag_and_fields_cannot_run_into_each_other():
    assert len({digest("ab", b"c"), digest("a", b"bc"), digest("abc"), digest("", b"abc")}) == 4


def test_bottom_is_no_digest_of_anything_known():
    assert bytes(32) == BOTTOM


@pytest.mark.parametrize("write", [u8, u32, u64])
@pytest.mark.parametrize("value", [-1, 2**64])
def test_an_integer_that_does_not_fit_is_our_bug(write, value):
    with pytest.raises(OverflowError):
        write(value)
