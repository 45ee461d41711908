"""Small files in the formats that we read, and a mirror on this machine that serves them."""

import gzip
import hashlib
import io
import struct
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from holdout.data.download import CIFAR10, MNIST, Source
from holdout.data.files import KnownFile


def _idx(array):
    header = bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.astype(np.uint8).tobytes()


def _cifar(images, labels, label=b"training batch 1 of 5", tail=b"tb."):
    """The opcodes of an official batch, up to the file names, which nobody reads."""
    size = images.size
    return b"".join(
        [
            b"\x80\x02}q\x01(U\x0bbatch_labelq\x02U" + bytes([len(label)]) + label + b"q\x03",
            b"U\x06labelsq\x04]q\x05(" + b"".join(b"K" + bytes([x]) for x in labels) + b"e",
            b"U\x04dataq\x06cnumpy.core.multiarray\n_reconstruct\nq\x07cnumpy\nndarray\nq\x08",
            b"K\x00\x85U\x01b\x87Rq\t(K\x01M" + struct.pack("<H", len(images)) + b"M\x00\x0c\x86",
            b"cnumpy\ndtype\nq\nU\x02u1K\x00K\x01\x87Rq\x0b(K\x03U\x01|NNN",
            b"J\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89T" + struct.pack("<I", size),
            images.astype(np.uint8).tobytes() + tail,
        ]
    )


def _npz(**arrays):
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    return buffer.getvalue()


def _known(name, content):
    return KnownFile(name, len(content), hashlib.sha256(content).hexdigest())


@pytest.fixture(scope="session")
def idx():
    """Array -> bytes of an IDX file."""
    return _idx


@pytest.fixture(scope="session")
def cifar():
    """Images and labels -> bytes of a CIFAR-10 python batch."""
    return _cifar


@pytest.fixture(scope="session")
def npz():
    """Arrays -> bytes of an npz file."""
    return _npz


@pytest.fixture(scope="session")
def known():
    """Name and content -> the KnownFile that the content satisfies."""
    return _known


@pytest.fixture(scope="session")
def digits(idx):
    """The four IDX files of a tiny MNIST: name -> bytes."""
    rng = np.random.Generator(np.random.Philox(0))
    return {
        "train-images-idx3-ubyte": idx(rng.integers(0, 256, (20, 28, 28))),
        "train-labels-idx1-ubyte": idx(np.arange(20) % 10),
        "t10k-images-idx3-ubyte": idx(rng.integers(0, 256, (10, 28, 28))),
        "t10k-labels-idx1-ubyte": idx(np.arange(10)),
    }


@pytest.fixture(scope="session")
def batches(cifar):
    """The six batch files of a tiny CIFAR-10: name -> bytes."""
    rng = np.random.Generator(np.random.Philox(0))
    names = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    return {
        name: cifar(rng.integers(0, 256, (3, 3, 32, 32)), rng.integers(0, 10, 3).tolist())
        for name in names
    }


@pytest.fixture
def tiny_mnist(digits):
    """A Source whose known files are the tiny digits, and what its mirror serves."""
    served = {f"{name}.gz": gzip.compress(content, mtime=0) for name, content in digits.items()}
    source = Source(
        name="mnist",
        files=tuple(_known(*item) for item in digits.items()),
        subfolder=MNIST.subfolder,
        mirror="http://127.0.0.1:9/",
        downloads=tuple(_known(*item) for item in served.items()),
    )
    return source, served


@pytest.fixture
def tiny_cifar10(batches):
    """The same for CIFAR-10: one tar.gz, with members that must not be taken."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in [*batches.items(), ("readme.html", b"hello"), ("../../up", b"no")]:
            member = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    served = {"cifar-10-python.tar.gz": buffer.getvalue()}
    source = Source(
        name="cifar10",
        files=tuple(_known(*item) for item in batches.items()),
        subfolder=CIFAR10.subfolder,
        mirror="http://127.0.0.1:9/",
        downloads=tuple(_known(*item) for item in served.items()),
    )
    return source, served


class Mirror:
    """A web server on an ephemeral local port; tests put files in and read what was asked."""

    def __init__(self):
        self.files = {}
        self.asked = []
        self.missing_bytes = 0  # How much less than promised is sent.
        mirror = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                name = self.path.removeprefix("/data/")
                mirror.asked.append(name)
                if name not in mirror.files:
                    self.send_error(404)
                    return
                content = mirror.files[name]
                self.send_response(200)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content[: len(content) - mirror.missing_bytes])

            def log_message(self, *args):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_port}/data"


@pytest.fixture
def mirror(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    mirror = Mirror()
    thread = threading.Thread(target=mirror.server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield mirror
    mirror.server.shutdown()
    mirror.server.server_close()
    thread.join()
