"""Bytes to arrays: what is right is read, what is wrong is a DataError, and nothing is executed."""

import gzip
import io
import lzma
import os
import pickle
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdout.data import files
from holdout.data.datasets import Dataset, load
from holdout.data.download import MNIST
from holdout.data.files import read_cifar, read_idx, read_known, read_npz
from holdout.errors import DataError

HERE = Path("a-file")
IMAGES = np.arange(2 * 3 * 4, dtype=np.uint8).reshape(2, 3, 4)


@st.composite
def damaged(draw, content):
    """Arbitrary bytes, or good ones with a piece replaced."""
    if draw(st.booleans()):
        return draw(st.binary(max_size=200))
    start = draw(st.integers(0, len(content)))
    end = draw(st.integers(start, min(len(content), start + 40)))
    return content[:start] + draw(st.binary(max_size=40)) + content[end:]


def npz_parts(**change):
    good = {
        "x_train": np.zeros((4, 3), np.float32),
        "y_train": np.array([0, 1, 0, 1]),
        "x_test": np.zeros((2, 3), np.float32),
        "y_test": np.array([0, 1]),
    }
    return {name: array for name, array in (good | change).items() if array is not None}


def test_idx_bytes_become_the_array_they_were_made_of(idx):
    read = read_idx(io.BytesIO(idx(IMAGES)), dimensions=3, path=HERE)
    assert read.dtype == np.uint8
    assert np.array_equal(read, IMAGES)


def test_a_cifar_batch_becomes_images_and_labels(cifar):
    images = np.random.Generator(np.random.Philox(0)).integers(0, 256, (3, 3, 32, 32))
    # Pixels may look like opcodes; they come after everything that is matched.
    images[0, 0, 0, :4] = list(b"(K\x01e")
    read, labels = read_cifar(cifar(images, [9, 0, 4]), path=HERE)
    assert np.array_equal(read, images)
    assert labels.tolist() == [9, 0, 4]


def test_an_npz_file_gives_its_four_arrays_whatever_their_byte_order(tmp_path, npz):
    x = np.asfortranarray(np.arange(12, dtype=">f8").reshape(4, 3))
    path = tmp_path / "own.npz"
    path.write_bytes(npz(**npz_parts(x_train=x)))
    assert np.array_equal(read_npz(path).x_train, x)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda _: b"", "found nothing"),
        (lambda good: good[:3], "found 000008"),
        (lambda good: b"\x00\x00\x0d\x03" + good[4:], "expected to begin with 00000803"),
        (lambda good: b"\x00\x00\x08\x01" + good[4:], "in 3 dimensions"),
        (lambda good: good[:10], "16 bytes of header"),
        (lambda good: good[:-1], r"expected 24 bytes for shape \(2, 3, 4\), found 23"),
        (lambda good: good + b"!", r"expected 24 bytes for shape \(2, 3, 4\), found more"),
        (lambda good: good[:4] + b"\xff" * 12, "at most 2147483648 bytes"),
        (lambda good: good[:4] + struct.pack(">3I", 3, 3, 4) + good[16:], "expected 36 bytes"),
    ],
    ids=[
        "empty",
        "no-magic",
        "wrong-type",
        "wrong-dimensions",
        "short-header",
        "truncated",
        "too-long",
        "absurd-claim",
        "wrong-claim",
    ],
)
def test_a_wrong_idx_file_is_refused_saying_what_was_expected(idx, change, message):
    with pytest.raises(DataError, match=f"^a-file: .*{message}"):
        read_idx(io.BytesIO(change(idx(IMAGES))), dimensions=3, path=HERE)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda _: b"", "unexpected layout"),
        (lambda good: good[1:], "unexpected layout"),
        (lambda good: good.replace(b"K\x05", b"K\x0a"), "unexpected layout"),
        (lambda good: good.replace(b"(K\x05", b"(K\x05K\x05"), "2 rows; found 3 labels"),
        (lambda good: good.replace(b"M\x02\x00M", b"M\x03\x00M"), "3 rows; found 2 labels"),
        (lambda good: good.replace(b"T\x00\x18\0\0", b"T\x01\x18\0\0"), "6145 bytes of images"),
        (lambda good: good[:-10], "expected 6144 bytes of images, found 6137"),
    ],
)
def test_a_wrong_cifar_batch_is_refused_saying_what_was_expected(cifar, change, message):
    good = cifar(np.zeros((2, 3, 32, 32)), [5, 6])
    assert change(good) != good
    with pytest.raises(DataError, match=f"^a-file: .*{message}"):
        read_cifar(change(good), path=HERE)


class Exploding:
    """Unpickled, it makes a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_a_malicious_pickle_in_place_of_a_batch_is_not_executed(tmp_path, cifar):
    trace = tmp_path / "executed"
    payload = pickle.dumps(Exploding(trace), protocol=2)
    pickle.loads(payload)
    assert trace.exists()
    trace.unlink()

    with pytest.raises(DataError):
        read_cifar(payload, path=HERE)
    # Right up to the images, and malicious after them: the rest of the file is never looked at.
    _, labels = read_cifar(cifar(np.zeros((1, 3, 32, 32)), [7], tail=payload[2:]), path=HERE)
    assert labels.tolist() == [7]
    assert not trace.exists()


def test_objects_in_an_npz_file_are_not_unpickled(tmp_path, npz):
    trace = tmp_path / "executed"
    path = tmp_path / "own.npz"
    path.write_bytes(npz(**npz_parts(x_train=np.array([Exploding(trace)], dtype=object))))
    with pytest.raises(DataError, match=r"x_train\.npy: expected plain numbers, found type object"):
        read_npz(path)
    assert not trace.exists()


def lying_npy(shape):
    """A header that claims far more than follows."""
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        buffer, {"descr": "<f4", "fortran_order": False, "shape": shape}
    )
    return buffer.getvalue()


def test_an_npz_header_is_not_believed(tmp_path, npz):
    path = tmp_path / "own.npz"
    path.write_bytes(npz(**npz_parts(x_train=None)))
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("x_train.npy", lying_npy((10**9, 10**9)))
    with pytest.raises(DataError, match=r"expected 4000000000000000000 bytes.*found 0"):
        read_npz(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (lambda _: b"", "not a readable npz"),
        (lambda _: b"PK\x03\x04 no", "not a readable npz"),
        (lambda npz: npz(**npz_parts())[:-30], "not a readable npz"),
        (lambda npz: npz(**npz_parts(y_test=None)), "lacks y_test"),
        (lambda npz: npz(**npz_parts(y_test=np.array(["a"]))), "expected plain numbers"),
        (lambda npz: npz(**npz_parts(y_test=np.array([1j]))), "expected plain numbers"),
    ],
)
def test_a_wrong_npz_file_is_refused(tmp_path, npz, content, message):
    path = tmp_path / "own.npz"
    path.write_bytes(content(npz))
    with pytest.raises(DataError, match=f"own.npz: .*{message}"):
        read_npz(path)


def test_an_npz_file_may_not_claim_more_than_the_bound(tmp_path, npz, monkeypatch):
    monkeypatch.setattr(files, "BYTES_MAX", 1000)
    path = tmp_path / "bomb.npz"
    path.write_bytes(npz(**npz_parts(x_train=np.zeros((1000, 1000), np.uint8))))
    with pytest.raises(DataError, match="at most 1000 bytes are read; its index claims 1000"):
        read_npz(path)


@pytest.mark.parametrize("compress", [gzip.compress, lzma.compress])
def test_a_bomb_is_read_up_to_the_expected_size_and_one_byte(
    tmp_path, known, compress, monkeypatch
):
    suffix = ".gz" if compress is gzip.compress else ".xz"
    path = tmp_path / f"bomb{suffix}"
    path.write_bytes(compress(bytes(50_000_000)))
    asked = []
    read_at_most = files.read_at_most
    monkeypatch.setattr(
        files, "read_at_most", lambda s, size: asked.append(size) or read_at_most(s, size)
    )
    with pytest.raises(DataError, match="expected 1000 bytes of data, found more"):
        read_known(path, known("bomb", bytes(1000)))
    assert asked == [1001]


def test_an_idx_bomb_is_read_up_to_what_its_header_says(idx):
    class Endless(io.BytesIO):
        given = 0

        def read(self, size):
            chunk = super().read(size) or bytes(size)
            self.given += len(chunk)
            return chunk

    stream = Endless(idx(IMAGES))
    with pytest.raises(DataError, match="found more"):
        read_idx(stream, dimensions=3, path=HERE)
    assert stream.given == 16 + 24 + 1


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("f", lambda good: good[:-1], "expected 100 bytes of data, found 99"),
        ("f", lambda good: good + b"!", "expected 100 bytes of data, found more"),
        ("f", lambda good: b"!" + good[1:], "expected sha256 .*, found"),
        ("f.gz", lambda good: good, "damaged compression"),
        ("f.gz", lambda good: gzip.compress(good)[:-9], "damaged compression"),
        ("f.gz", lambda good: gzip.compress(good)[:12] + b"\xff" * 30, "damaged compression"),
        ("f.gz", lambda good: gzip.compress(good[::-1]), "expected sha256"),
        ("f.xz", lambda good: good, "damaged compression"),
        ("f.xz", lambda good: lzma.compress(good)[:-9], "damaged compression"),
    ],
)
def test_a_known_file_that_differs_is_refused(tmp_path, known, name, change, message):
    good = bytes(range(100))
    path = tmp_path / name
    path.write_bytes(change(good))
    with pytest.raises(DataError, match=f"{name}: {message}|{name}: .*{message}"):
        read_known(path, known("f", good))


@pytest.mark.parametrize("kind", ["folder", "absent", "forbidden"])
def test_a_file_that_cannot_be_opened_is_a_data_error(tmp_path, known, kind, monkeypatch):
    path = tmp_path / "f"
    if kind == "folder":
        path.mkdir()
    if kind == "forbidden":
        # Tests may run as root, whom no permission stops.
        def forbid(_):
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(files, "_open", forbid)
    expected = {
        "folder": "Is a directory",
        "absent": "No such file or directory",
        "forbidden": "Permission denied",
    }
    with pytest.raises(DataError, match=f"f: cannot be read: {expected[kind]}"):
        read_known(path, known("f", b""))


def assert_dataset_or_data_error(name, path):
    try:
        made = load(name, path=path)
    except DataError:
        return
    assert isinstance(made, Dataset)


@pytest.fixture(scope="session")
def fuzz_folder(tmp_path_factory, digits):
    folder = tmp_path_factory.mktemp("fuzz")
    for name, content in digits.items():
        (folder / name).write_bytes(content)
    return folder


@given(data=st.data())
def test_any_bytes_as_an_idx_file_give_a_dataset_or_a_data_error(fuzz_folder, digits, data):
    name = data.draw(st.sampled_from(sorted(digits)))
    content = data.draw(damaged(digits[name]))
    (fuzz_folder / name).write_bytes(content)
    try:
        assert_dataset_or_data_error("idx", fuzz_folder)
    finally:
        (fuzz_folder / name).write_bytes(digits[name])


@given(data=st.data())
def test_any_bytes_as_a_compressed_file_give_a_dataset_or_a_data_error(fuzz_folder, digits, data):
    name = "t10k-labels-idx1-ubyte"
    suffix, compress = data.draw(st.sampled_from([(".gz", gzip.compress), (".xz", lzma.compress)]))
    path = fuzz_folder / f"{name}{suffix}"
    try:
        (fuzz_folder / name).unlink()
        path.write_bytes(data.draw(damaged(compress(digits[name]))))
        assert_dataset_or_data_error("idx", fuzz_folder)
    finally:
        path.unlink()
        (fuzz_folder / name).write_bytes(digits[name])


@given(data=st.data())
def test_any_bytes_as_a_cifar_batch_give_arrays_or_a_data_error(cifar, data):
    content = data.draw(damaged(cifar(np.zeros((1, 3, 32, 32)), [3])[:400]))
    try:
        images, labels = read_cifar(content + bytes(3072), path=HERE)
    except DataError:
        return
    assert len(images) == len(labels)
    assert labels.max() < 10


@given(data=st.data())
def test_any_bytes_as_an_npz_file_give_a_dataset_or_a_data_error(fuzz_folder, npz, data):
    path = fuzz_folder / "own.npz"
    path.write_bytes(data.draw(damaged(npz(**npz_parts()))))
    assert_dataset_or_data_error("npz", path)


@given(header=st.text(max_size=80) | st.from_regex(r"\{'descr': '.{0,4}', 'shape': \(.{0,9}\)\}"))
def test_any_npy_header_gives_a_dataset_or_a_data_error(fuzz_folder, npz, header):
    path = fuzz_folder / "own.npz"
    path.write_bytes(npz(**npz_parts(x_test=None)))
    encoded = header.encode()
    with zipfile.ZipFile(path, "a") as archive:
        prefix = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(encoded))
        archive.writestr("x_test.npy", prefix + encoded + bytes(24))
    assert_dataset_or_data_error("npz", path)


@pytest.mark.parametrize("name", ["npz", "idx"])
@pytest.mark.parametrize("kind", ["endless", "pipe"])
def test_what_never_ends_or_never_speaks_is_refused_at_once(name, kind, tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    names = [known.name for known in MNIST.files] if name == "idx" else ["own.npz"]
    for file in names:
        if kind == "endless":
            (folder / file).symlink_to("/dev/zero")
        else:
            os.mkfifo(folder / file)
    with pytest.raises(DataError, match=f"^{folder}"):
        load(name, path=folder)
    if name == "npz":
        with pytest.raises(
            DataError, match=r"own\.npz: must be an ordinary file; it is a pipe or a device"
        ):
            load(name, path=folder / "own.npz")


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/stdin", "/dev/full"])
def test_devices_are_no_data(path):
    if not Path(path).is_file():
        for name in ("npz", "idx", "mnist"):
            with pytest.raises(DataError, match=path):
                load(name, path=Path(path))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y_train": np.array([0.0, 1.0, 0.0, 1.0])}, "y_train needs whole numbers"),
        ({"y_train": np.array([0, 1])}, "x_train has 4 rows, y_train has 2 labels"),
        ({"x_test": np.full((2, 3), np.nan, np.float32)}, "x_test must be finite"),
        ({"x_test": np.zeros((2, 5), np.float32)}, "need one shape"),
    ],
)
def test_what_is_wrong_inside_a_file_is_told_with_its_name(tmp_path, npz, change, message):
    path = tmp_path / "own.npz"
    path.write_bytes(npz(**npz_parts(**change)))
    with pytest.raises(DataError, match=f"^{path}: .*{message}"):
        load("npz", path=path)
