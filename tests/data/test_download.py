"""From a mirror into the cache. The mirror is a web server on this machine."""

import gzip
import io
import socket
import tarfile
from pathlib import Path

import pytest

from holdout.data import datasets, download
from holdout.data.datasets import load
from holdout.data.download import CIFAR10, MNIST
from holdout.errors import DataError


@pytest.fixture
def mnist(tiny_mnist, mirror, monkeypatch):
    """The mirror serves a tiny MNIST, which is now the known one."""
    source, served = tiny_mnist
    monkeypatch.setitem(datasets.SOURCES, "mnist", source)
    mirror.files = dict(served)
    return source


def fetched(tmp_path, mirror, name="mnist"):
    return load(name, cache=tmp_path, mirrors={name: mirror.address}, normalise=False)


def leftovers(tmp_path):
    return [path for path in tmp_path.rglob("*") if path.is_file()]


def test_files_are_downloaded_once_and_then_come_from_the_cache(tmp_path, mnist, mirror, capfd):
    first = fetched(tmp_path, mirror)
    assert first.x_train.shape == (20, 1, 28, 28)
    assert mirror.asked == [known.name for known in mnist.downloads]
    assert sorted(path.name for path in leftovers(tmp_path)) == sorted(mirror.asked)
    captured = capfd.readouterr()
    assert captured.out == ""
    lines = captured.err.splitlines()
    assert [line.split()[0] for line in lines] == ["downloading"] * 4

    fetched(tmp_path, mirror)
    assert len(mirror.asked) == 4
    assert capfd.readouterr().err == ""


def test_a_terminal_gets_a_bar(tmp_path, mnist, mirror, monkeypatch, capfd):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    fetched(tmp_path, mirror)
    captured = capfd.readouterr()
    assert "downloading train-images-idx3-ubyte.gz" in captured.err
    assert captured.out == ""


def test_only_what_is_missing_is_asked_for(tmp_path, mnist, mirror):
    fetched(tmp_path, mirror)
    (tmp_path / "mnist" / "t10k-labels-idx1-ubyte.gz").unlink()
    mirror.asked.clear()
    fetched(tmp_path, mirror)
    assert mirror.asked == ["t10k-labels-idx1-ubyte.gz"]


def test_mirror_and_cache_can_be_set_in_the_environment(tmp_path, mnist, mirror, monkeypatch):
    monkeypatch.setenv("HOLDOUT_MIRROR_MNIST", mirror.address)
    monkeypatch.setenv("HOLDOUT_DATA", str(tmp_path / "elsewhere"))
    assert load("mnist").classes == 10
    assert (tmp_path / "elsewhere" / "mnist" / "t10k-images-idx3-ubyte.gz").is_file()
    assert download.cache_folder("mnist", tmp_path) == tmp_path / "mnist"
    monkeypatch.delenv("HOLDOUT_DATA")
    assert download.cache_folder("mnist").parts[-2:] == ("holdout", "mnist")


def test_only_the_known_members_leave_the_archive(tmp_path, tiny_cifar10, mirror, monkeypatch):
    source, served = tiny_cifar10
    monkeypatch.setitem(datasets.SOURCES, "cifar10", source)
    mirror.files = served
    own = fetched(tmp_path / "cache", mirror, "cifar10")
    assert own.x_train.shape == (15, 3, 32, 32)
    expected = {tmp_path / "cache" / "cifar10" / known.name for known in source.files}
    assert set(leftovers(tmp_path)) == expected


def refuse(mirror):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        mirror.address = f"http://127.0.0.1:{free.getsockname()[1]}"


def damage(mirror):
    name = "t10k-labels-idx1-ubyte.gz"
    mirror.files[name] = mirror.files[name][:-1] + b"!"


def lengthen(mirror):
    mirror.files["t10k-labels-idx1-ubyte.gz"] += bytes(200_000)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (damage, "does not match the known hash"),
        (lambda mirror: mirror.files.pop("t10k-labels-idx1-ubyte.gz"), "404"),
        (lambda mirror: setattr(mirror, "missing_bytes", 10), "IncompleteRead|bytes read"),
        (lengthen, "longer than the known file"),
        (refuse, "refused"),
        (lambda mirror: setattr(mirror, "address", "no-address"), "no-address"),
        (lambda mirror: setattr(mirror, "address", "gopher://127.0.0.1"), "gopher"),
    ],
    ids=["checksum", "absent", "truncated", "endless", "refused", "no-address", "scheme"],
)
def test_a_failed_download_says_which_files_and_where_to_put_them(
    tmp_path, mnist, mirror, spoil, reason
):
    spoil(mirror)
    with pytest.raises(DataError, match=reason) as caught:
        fetched(tmp_path, mirror)
    message = str(caught.value)
    assert str(tmp_path / "mnist") in message
    assert all(known.name in message for known in mnist.files)
    assert "data.path" in message
    # Whatever arrived is whole, and under its own name.
    whole = {known.name: known.size for known in mnist.downloads}
    assert all(path.stat().st_size == whole[path.name] for path in leftovers(tmp_path))


def test_a_cache_that_cannot_be_written_is_a_data_error(tmp_path, mnist, mirror):
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=r"data\.path"):
        fetched(tmp_path / "file", mirror)


def test_a_damaged_file_in_the_cache_is_named(tmp_path, mnist, mirror):
    fetched(tmp_path, mirror)
    path = tmp_path / "mnist" / "t10k-labels-idx1-ubyte.gz"
    path.write_bytes(gzip.compress(bytes(18)))
    with pytest.raises(DataError, match=r"t10k-labels-idx1-ubyte\.gz: damaged"):
        fetched(tmp_path, mirror)


def archive(tmp_path, **members):
    path = tmp_path / "archive.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            if content is None:
                member.type, member.linkname = tarfile.SYMTYPE, "elsewhere"
            else:
                member.size = len(content)
            tar.addfile(member, io.BytesIO(content or b""))
    return path


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"right!", "expected 5 bytes of data, found more"),
        (b"wrong", "expected sha256"),
        (None, "lacks wanted"),
    ],
    ids=["too-long", "other-content", "symbolic-link"],
)
def test_a_member_that_is_not_the_known_file_is_refused(tmp_path, known, content, message):
    folder = tmp_path / "out"
    folder.mkdir()
    path = archive(tmp_path, wanted=content)
    with pytest.raises(DataError, match=message):
        download.unpack(path, (known("wanted", b"right"),), folder)
    assert leftovers(folder) == []


def test_a_full_disk_leaves_no_half_a_file(tmp_path, monkeypatch):
    class Full:
        def __init__(self, **_):
            self.name = str(tmp_path / "temporary")
            Path(self.name).touch()

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def write(self, _):
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(download.tempfile, "NamedTemporaryFile", Full)
    with pytest.raises(OSError, match="No space left"):
        download._write(tmp_path / "wanted", b"content")
    assert leftovers(tmp_path) == []


def test_the_official_mirrors_are_reached_over_https():
    assert all(source.mirror.startswith("https://") for source in (MNIST, CIFAR10))
    assert all(source.mirror.endswith("/") for source in (MNIST, CIFAR10))
