"""The run folder: what an experiment leaves behind, written so that nothing done is lost.

    config.toml     the complete config, defaults filled in
    results.jsonl   one line a round, streamed; see `holdout.rounds.RoundRecord`
    summary.json    one entry a curve
    shards.json     who holds how many rows of which labels
    accuracy.png, report.html
    checkpoint/     where to continue after an interruption

A file appears whole or not at all: it is written under a temporary name, synced and renamed. The
exception is `results.jsonl`, which grows: a checkpoint states how much of it is good, and resuming
cuts off the rest, once everything is known to fit. A lock keeps a second process out.
"""

import fcntl
import hashlib
import io
import json
import math
import os
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import numpy.typing as npt

from holdout.curve_rows import SCHEMA
from holdout.errors import RunFolderError, WriteError

if TYPE_CHECKING:
    # Only its type: experiments are a layer above this one.
    from holdout.experiments.runner import Result

CONFIG, ROUNDS, SUMMARY = "config.toml", "results.jsonl", "summary.json"
CHECKPOINT = Path("checkpoint") / "state.npz"
LOCK = ".lock"

Arrays = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The state to continue from: how many rounds are recorded, and what the next one needs."""

    meta: Mapping[str, Any]
    arrays: Arrays


@dataclass(frozen=True, slots=True)
class ResultsMark:
    """A length of `results.jsonl` and the hash of what it holds up to there."""

    length: int
    sha256: str


@dataclass(frozen=True, slots=True, repr=False)
class Run:
    """The rounds of an experiment as plain rows, one a round, and the config they came from.

    A run can be iterated, indexed and measured with `len` like the list of its rows.

    >>> from holdout import Run
    >>> run = Run(None, {"experiment": {"rounds": 1}}, [{"rule": "mean", "round": 1}])
    >>> run, len(run), run[0]["rule"]
    (<Run: 1 round of mean>, 1, 'mean')
    """

    folder: Path | None
    """Where it was read from; None for a result that was never written."""
    config: Mapping[str, Any]
    """The complete config, by section and key."""
    rows: Sequence[Mapping[str, Any]]
    """One mapping a round: the lines of `results.jsonl`, whose fields docs/results-format.md
    describes."""

    def to_pandas(self) -> Any:
        """The rows as a `pandas.DataFrame`, if pandas is there."""
        try:
            import pandas as pd
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                "Run.to_pandas needs pandas: pip install pandas", name=error.name
            ) from error
        return pd.DataFrame(self.rows)

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, place: int) -> Mapping[str, Any]: ...

    @overload
    def __getitem__(self, place: slice) -> Sequence[Mapping[str, Any]]: ...

    def __getitem__(self, place: int | slice) -> Mapping[str, Any] | Sequence[Mapping[str, Any]]:
        return self.rows[place]

    def __repr__(self) -> str:
        rules = ", ".join(dict.fromkeys(str(row.get("rule")) for row in self.rows))
        count = f"{len(self)} round{'s' * (len(self) != 1)}"
        name = "Run" if self.folder is None else f"Run {str(self.folder)!r}"
        return f"<{name}: {count}{f' of {rules}' if rules else ''}>"


def jsonable(value: Any) -> Any:
    """The value with every number that is not finite as null, tuples as lists, enums as text."""
    if isinstance(value, StrEnum):
        return value.value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(k): jsonable(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(v) for v in value]
    return value


def to_json(value: Any, *, indent: int | None = None) -> str:
    """The value as JSON that any reader accepts."""
    return json.dumps(jsonable(value), allow_nan=False, indent=indent, ensure_ascii=False)


def write_atomic(path: Path, content: bytes) -> None:
    """Write the file whole or not at all, and have it on the disk when this returns."""
    temporary = path.with_name(f".{path.name}.partial")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        # On a full disk, what is of no use must not take the room of what is.
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        if error.errno is not None:
            error.filename = str(path)
        raise
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


@contextmanager
def writing(path: Path, *, resumable: bool = False) -> Iterator[None]:
    """Turn what keeps a file from being written, such as a full disk, into a message."""
    try:
        yield
    except OSError as error:
        why = error.strerror or error
        kept = "; what was written before is kept, and resuming goes on from there" * resumable
        raise WriteError(f"{error.filename or path}: cannot be written ({why}){kept}") from error


class RunFolder:
    """A run folder opened for writing, by this process alone. Use `create` or `resume`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # Without a buffer: what a full disk did not take is not tried again when this is closed.
        self._rounds = (path / ROUNDS).open("ab", buffering=0)
        self._digest = hashlib.sha256((path / ROUNDS).read_bytes())

    def append(self, record: Mapping[str, Any]) -> ResultsMark:
        """Append one round's line; how far the results now reach."""
        line = (to_json(record) + "\n").encode()
        with self._writing(ROUNDS):
            left = line
            while left:
                left = left[self._rounds.write(left) :]
        self._digest.update(line)
        return self.mark()

    def mark(self) -> ResultsMark:
        """How far the results reach."""
        return ResultsMark(self._rounds.tell(), self._digest.hexdigest())

    def save(self, checkpoint: Checkpoint, mark: ResultsMark) -> None:
        """Make the results durable up to `mark`, and the checkpoint the place to continue from."""
        with self._writing(ROUNDS):
            os.fsync(self._rounds.fileno())
        meta = {
            **checkpoint.meta,
            "schema": SCHEMA,
            "results_bytes": mark.length,
            "results_sha256": mark.sha256,
        }
        buffer = io.BytesIO()
        header = np.frombuffer(to_json(meta).encode(), np.uint8)
        np.savez(buffer, allow_pickle=False, **{"meta": header, **checkpoint.arrays})
        content = buffer.getvalue()
        # A zip's own checksums leave its headers out.
        with self._writing(CHECKPOINT):
            write_atomic(self.path / CHECKPOINT, content + hashlib.sha256(content).digest())

    def write(self, name: str, content: str) -> None:
        """Write a whole file of the folder."""
        with self._writing(name):
            write_atomic(self.path / name, content.encode())

    def close(self) -> None:
        """Close the stream of rounds."""
        self._rounds.close()

    def _writing(self, name: Path | str) -> AbstractContextManager[None]:
        return writing(self.path / name, resumable=True)


@contextmanager
def create(path: Path, config_toml: str) -> Iterator[RunFolder]:
    """Make a run folder; refuse one that holds more than what an interrupted start left behind."""
    with ExitStack() as stack:
        with _explained(path):
            path.mkdir(parents=True, exist_ok=True)
            # Before the lock, so that nothing is put into a folder of others; and after it, since
            # the folder may have changed meanwhile.
            _refuse_unless_free(path)
            stack.enter_context(_lock(path))
            _refuse_unless_free(path)
            (path / CHECKPOINT).parent.mkdir(exist_ok=True)
            write_atomic(path / ROUNDS, b"")
            # Last, since a folder with a config counts as a run.
            write_atomic(path / CONFIG, config_toml.encode())
            folder = stack.enter_context(closing(RunFolder(path)))
        yield folder


def _refuse_unless_free(path: Path) -> None:
    """Refuse a folder that holds more than the empty files that `create` begins with."""
    partial = {f".{ROUNDS}.partial", f".{CONFIG}.partial"}
    empty = {LOCK, ROUNDS, CHECKPOINT.parent.name}
    for entry in path.iterdir():
        holds = any(entry.iterdir()) if entry.is_dir() else entry.stat().st_size > 0
        if entry.name not in partial and (holds or entry.name not in empty):
            raise RunFolderError(
                f"{path} exists and is not empty; choose another --out, or continue with --resume"
            )


@contextmanager
def resume(
    path: Path,
    config: Mapping[str, Any],
    *,
    check: Callable[[Checkpoint, Sequence[Mapping[str, Any]]], None],
) -> Iterator[tuple[RunFolder, Checkpoint | None]]:
    """Open a run folder to continue it; refused if the config differs or the folder is damaged.

    `check` sees the checkpoint and the rounds that it vouches for before anything is changed.
    """
    from holdout.config import with_defaults  # Slow to import, and needed here alone.

    stored = with_defaults(read_config(path), like=config)
    if stored != config:
        raise RunFolderError(
            f"{path} holds a run with a different config: {_differences(stored, config)}; "
            "a run is resumed with the config it was started with"
        )
    with ExitStack() as stack:
        with _explained(path):
            stack.enter_context(_lock(path))
            checkpoint = _read_checkpoint(path)
            length = checkpoint.meta["results_bytes"] if checkpoint else 0
            with (path / ROUNDS).open("r+b") as file:
                if checkpoint:
                    check(checkpoint, _read_rounds(path, file.read(length)))
                # Lines past the checkpoint are done again, with the same result.
                file.truncate(length)
            (path / CHECKPOINT).parent.mkdir(exist_ok=True)
            folder = stack.enter_context(closing(RunFolder(path)))
        yield folder, checkpoint


def read_config(path: Path) -> dict[str, Any]:
    """The config that a run folder holds."""
    try:
        return tomllib.loads((path / CONFIG).read_text("utf-8-sig"))
    except FileNotFoundError:
        raise RunFolderError(f"{path} is not a run folder: {CONFIG} is missing") from None
    except (OSError, ValueError, RecursionError) as error:
        raise RunFolderError(f"{path / CONFIG} cannot be read: {error}") from error


def read_run(source: "Path | str | Result") -> Run:
    """The rows of a run folder, or of a result in memory; a last line cut short is left out.

    Args:
        source: A run folder, finished or not, or what `holdout.run` returned.

    >>> import holdout
    >>> x, y = [[-3.0], [3.0]] * 20, [0, 1] * 20
    >>> setting = {
    ...     "experiment": {"rules": ["mean"], "rounds": 2, "threads": 1},
    ...     "data": {"samples_per_worker": 10},
    ...     "federation": {"workers": 9, "proposers": 4, "voters": 4},
    ...     "training": {"batch_size": 5}, "vote": {"samples": 10}, "attack": {"name": "none"},
    ... }
    >>> run = holdout.read_run(holdout.run(setting, plugins=holdout.Plugins(data=(x, y, x, y))))
    >>> run, [row["round"] for row in run]
    (<Run: 2 rounds of mean>, [1, 2])
    """
    if not isinstance(source, str | Path):
        return Run(source.folder, source.summary["config"], source.rounds)
    path = Path(source)
    config = read_config(path)
    try:
        content = (path / ROUNDS).read_bytes()
    except OSError as error:
        raise RunFolderError(f"{path / ROUNDS} cannot be read: {error.strerror}") from error
    return Run(path, config, _read_rounds(path, content))


def _read_rounds(path: Path, content: bytes) -> list[Mapping[str, Any]]:
    lines = content.splitlines(keepends=True)
    rounds: list[Mapping[str, Any]] = []
    for number, line in enumerate(lines, start=1):
        if number == len(lines) and not line.endswith(b"\n"):
            break
        try:
            record = json.loads(line)
        except ValueError:
            record = None
        if not isinstance(record, dict):
            raise RunFolderError(f"{path / ROUNDS}, line {number}: not a JSON object")
        rounds.append(record)
    return rounds


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Turn an error of the file system into a message about the run folder."""
    try:
        yield
    except (NotADirectoryError, FileExistsError) as error:
        raise RunFolderError(f"{path}: not a folder") from error
    except OSError as error:
        raise RunFolderError(
            f"{error.filename or path}: cannot be used ({error.strerror})"
        ) from error


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    with (path / LOCK).open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunFolderError(f"{path} is in use by another process") from None
        yield


def _read_checkpoint(path: Path) -> Checkpoint | None:
    file = path / CHECKPOINT
    if not file.exists():
        return None
    try:
        content, digest = _split(file.read_bytes())
        if hashlib.sha256(content).digest() != digest:
            raise ValueError("its checksum is wrong")  # noqa: TRY301
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            found = {name: arrays[name] for name in arrays.files}
        meta = json.loads(found.pop("meta").tobytes())
        expected, length = meta["results_sha256"], meta["results_bytes"]
        if meta["schema"] != SCHEMA or not isinstance(length, int):
            raise ValueError("its schema is unknown")  # noqa: TRY301
        with (path / ROUNDS).open("rb") as rounds:
            actual = hashlib.sha256(rounds.read(length)).hexdigest()
    except (OSError, ValueError, KeyError, TypeError, EOFError) as error:
        raise RunFolderError(f"{file} is damaged ({error}); the run cannot be resumed") from error
    if actual != expected:
        raise RunFolderError(
            f"{path / ROUNDS} does not match {CHECKPOINT}; the run cannot be resumed"
        )
    return Checkpoint(meta, found)


def _split(content: bytes) -> tuple[bytes, bytes]:
    """A checkpoint's arrays, and the SHA-256 that follows them."""
    size = hashlib.sha256().digest_size
    return content[:-size], content[-size:]


def _differences(stored: Mapping[str, Any], given: Mapping[str, Any]) -> str:
    old, new = _flat(stored), _flat(given)
    return "; ".join(
        f"{key} was {old.get(key)!r}, is {new.get(key)!r}"
        for key in sorted({*old, *new})
        if old.get(key) != new.get(key)
    )


def _flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """The values by "section.key"."""
    flat: dict[str, Any] = {}
    for section, values in config.items():
        if isinstance(values, Mapping):
            flat |= {f"{section}.{key}": value for key, value in values.items()}
        else:
            flat[section] = values
    return flat
