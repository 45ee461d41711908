"""A bundle: exactly what one member needs of a network to join it, in one file.

It is a zip file with the genesis file, the first model and the member's certificate. All three are
public; the authority's key and other members' certificates are never in it.
"""

import shutil
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from holdout.errors import UserError
from holdout.node.membership.genesis import GENESIS, Network
from holdout.node.membership.model_files import MODEL, load_model
from holdout.node.membership.network_creation import CERTIFICATES
from holdout.node.membership.seam import PREDECESSOR

BUNDLES, ENDING = "bundles", ".bundle"
BYTES_MAX = 1 << 36
"""How large a bundle may be once it is unpacked: a model of 17 billion weights."""
_DATE = (1980, 1, 1, 0, 0, 0)


def write_bundles(folder: Path, names: Sequence[str], out: Path | None = None) -> list[Path]:
    """Write the bundles of these members, of all if none is named, into a folder.

    Args:
        folder: The network's folder, which holds a genesis file.
        names: Members' names.
        out: Where bundles go; None: into `bundles` in the network's folder.
    """
    if not (folder / GENESIS).exists():
        raise UserError(f"{folder} holds no network, or one whose beacon is not revealed yet")
    network = Network.read(folder / GENESIS)
    load_model(folder / MODEL, network.file.model)
    for name in names:
        network.index(name)
    out = out or folder / BUNDLES
    out.mkdir(parents=True, exist_ok=True)
    written = []
    for name in names or [member.name for member in network.members]:
        written.append(out / f"{name}{ENDING}")
        _write(written[-1], folder, name)
    return written


def _parts(name: str) -> tuple[str, str, str]:
    return GENESIS, MODEL, f"{CERTIFICATES}/{name}.crt"


def _also(folder: Path) -> tuple[str, ...]:
    """A network that succeeds another also hands out the old one's genesis file."""
    return (PREDECESSOR,) if (folder / PREDECESSOR).exists() else ()


def _write(path: Path, folder: Path, name: str) -> None:
    partial = path.with_name(f".{path.name}.partial")
    with zipfile.ZipFile(partial, "w", zipfile.ZIP_STORED) as bundle:
        for part in (*_parts(name), *_also(folder)):
            try:
                content = (folder / part).read_bytes()
            except OSError as error:
                raise UserError(f"{folder / part} cannot be read: {error.strerror}") from None
            # Without today's date: the same network gives the same bytes.
            bundle.writestr(zipfile.ZipInfo(part, _DATE), content)
    partial.replace(path)


@contextmanager
def network_files(path: Path, name: str) -> Iterator[Path]:
    """A folder with a network's files: the network's own, or what this member's bundle holds."""
    if not path.is_file():
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="holdout-") as folder:
        _unpack(path, name, Path(folder))
        yield Path(folder)


def _unpack(path: Path, name: str, folder: Path) -> None:
    """Write the three known parts into a folder, and nothing else that a file may name."""
    try:
        with zipfile.ZipFile(path) as bundle:
            sizes = {info.filename: info.file_size for info in bundle.infolist()}
            if sum(sizes.values()) > BYTES_MAX:
                raise UserError(f"{path} is no bundle: it would be larger than any model")
            others = sorted(part for part in sizes if part.startswith(f"{CERTIFICATES}/"))
            if _parts(name)[2] not in sizes and others:
                member = Path(others[0]).stem
                raise UserError(f"{path} is the bundle of {member}, not of {name}")
            missing = [part for part in _parts(name) if part not in sizes]
            if missing:
                raise UserError(f"{path} is no bundle: it lacks {', '.join(missing)}")
            (folder / CERTIFICATES).mkdir()
            also = [PREDECESSOR] if PREDECESSOR in sizes else []
            for part in (*_parts(name), *also):
                with bundle.open(part) as source, (folder / part).open("wb") as target:
                    shutil.copyfileobj(source, target)
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError) as error:
        raise UserError(f"{path} is no bundle, or it is damaged: {error}") from None
