"""The run folder: what an experiment leaves behind, written so that nothing done is lost.

    config.toml     the complete config, defaults filled in
    results.jsonl   one line per round, streamed; see `holdout.rounds.RoundRecord`
    summary.json    one entry per curve
    shards.json     who holds how many rows of which labels
    model/          the trained models; see `holdout.saved_models`
    report.html     the report, and its charts as pictures: accuracy.png, loss.png and others
    checkpoint/     the state to resume from, and the state in which each curve ended

A file appears whole or not at all: it is written under a temporary name, synced and renamed. The
exception is `results.jsonl`, which grows: a checkpoint states how much of it is good, and resuming
cuts off the rest, once everything is known to fit. A lock keeps a second process out.
"""

import fcntl
import glob
import hashlib
import json
import math
import os
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tomli_w

from holdout import checkpoint_files
from holdout.checkpoint_files import ENDS, Checkpoint, end_path
from holdout.curve_rows import NO_ATTACK, CurveKey, in_order, judges_in, planned_curves
from holdout.errors import RunFolderError, WriteError
from holdout.runs import Run
from holdout.saved_models import Weights, weights_in

if TYPE_CHECKING:
    # Only its type: experiments are a layer above this one.
    from holdout.experiments.runner import Result

CONFIG, ROUNDS, SUMMARY = "config.toml", "results.jsonl", "summary.json"
CHECKPOINT = Path("checkpoint") / "state.npz"
LOCK = ".lock"


@dataclass(frozen=True, slots=True)
class ResultsMark:
    """A length of `results.jsonl` and the hash of what it holds up to there."""

    length: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Stored:
    """What a run folder holds when it is opened to go on."""

    path: Path
    config: Mapping[str, Any]
    checkpoint: Checkpoint
    rows: Sequence[Mapping[str, Any]]
    """The rounds that the checkpoint vouches for, in the order of the file."""


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
        """Append one round's line; returns how far the results now reach."""
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
            **jsonable(checkpoint.meta),
            "results_bytes": mark.length,
            "results_sha256": mark.sha256,
        }
        content = checkpoint_files.encode(Checkpoint(meta, checkpoint.arrays))
        with self._writing(CHECKPOINT):
            write_atomic(self.path / CHECKPOINT, content)

    def save_end(self, key: CurveKey, round_number: int, checkpoint: Checkpoint) -> None:
        """Keep the state in which a curve ended, for more rounds than were asked for so far."""
        content = checkpoint_files.encode(Checkpoint(jsonable(checkpoint.meta), checkpoint.arrays))
        self.write_bytes(end_path(key, round_number), content)

    def drop_earlier_ends(self, key: CurveKey, round_number: int) -> None:
        """Remove what `save_end` kept of this curve's earlier rounds."""
        for path in (self.path / ENDS).glob(f"{glob.escape(key.file_name())}-round-*.npz"):
            if path.name != end_path(key, round_number).name:
                path.unlink()

    def write(self, name: str, content: str) -> None:
        """Write a whole file of the folder."""
        with self._writing(name):
            write_atomic(self.path / name, content.encode())

    def write_bytes(self, place: Path, content: bytes) -> None:
        """Write a whole file, at this place below the folder."""
        path = self.path / place
        with self._writing(place):
            path.parent.mkdir(exist_ok=True)
            write_atomic(path, content)

    def close(self) -> None:
        """Close the stream of rounds."""
        self._rounds.close()

    def _writing(self, name: Path | str) -> AbstractContextManager[None]:
        return writing(self.path / name, resumable=True)


@contextmanager
def create(
    path: Path,
    config_toml: str,
    *,
    advice: str = "choose another --out, or continue with --resume",
) -> Iterator[RunFolder]:
    """Make a run folder; one that is taken is refused, with advice on what to do instead."""
    with ExitStack() as stack:
        with explained(path):
            path.mkdir(parents=True, exist_ok=True)
            # Before the lock, so that nothing is put into a folder of others; and after it, since
            # the folder may have changed meanwhile.
            _refuse_unless_free(path, advice)
            stack.enter_context(lock(path))
            _refuse_unless_free(path, advice)
            (path / CHECKPOINT).parent.mkdir(exist_ok=True)
            write_atomic(path / ROUNDS, b"")
            # Last, since a folder with a config counts as a run.
            write_atomic(path / CONFIG, config_toml.encode())
            folder = stack.enter_context(closing(RunFolder(path)))
        yield folder


def _refuse_unless_free(path: Path, advice: str) -> None:
    """Refuse a folder that holds more than the empty files that `create` begins with."""
    partial = {f".{ROUNDS}.partial", f".{CONFIG}.partial"}
    empty = {LOCK, ROUNDS, CHECKPOINT.parent.name}
    for entry in path.iterdir():
        holds = any(entry.iterdir()) if entry.is_dir() else entry.stat().st_size > 0
        if entry.name not in partial and (holds or entry.name not in empty):
            raise RunFolderError(f"{path} exists and is not empty; {advice}")


@contextmanager
def resume(
    path: Path,
    config: Mapping[str, Any],
    *,
    check: Callable[[Stored], None],
    may_extend: bool = False,
) -> Iterator[tuple[RunFolder, Stored | None]]:
    """Open a run folder to continue it; refused if the config differs or the folder is damaged.

    Args:
        path: The run folder.
        config: The complete config with which it goes on.
        check: Sees what the folder holds before anything is changed.
        may_extend: Whether the config may ask for more rounds, rules or seeds than the stored one.

    Yields:
        The folder, and what it held; None without a checkpoint.
    """
    before, adds = _config_to_go_on(path, config, may_extend=may_extend)
    with ExitStack() as stack:
        with explained(path):
            stack.enter_context(lock(path))
            checkpoint, stored = _read_checkpoint(path), None
            length = checkpoint.meta["results_bytes"] if checkpoint else 0
            with (path / ROUNDS).open("r+b") as file:
                if checkpoint:
                    stored = Stored(path, before, checkpoint, _read_rounds(path, file.read(length)))
                    check(stored)
                elif adds and file.read(1):
                    raise RunFolderError(
                        f"{path / CHECKPOINT} is missing: the run can be resumed as it is, which "
                        "begins anew, but not extended"
                    )
                # Lines past the checkpoint are done again, with the same result.
                file.truncate(length)
            (path / CHECKPOINT).parent.mkdir(exist_ok=True)
            if before != config:
                # Nothing else has to change with it: what is left to do follows from the rounds.
                write_atomic(path / CONFIG, tomli_w.dumps(config).encode())
            folder = stack.enter_context(closing(RunFolder(path)))
        yield folder, stored


def _config_to_go_on(
    path: Path, config: Mapping[str, Any], *, may_extend: bool
) -> tuple[Mapping[str, Any], bool]:
    """The stored config, if a run of it can go on with this one, and whether that adds to it."""
    # Slow to import, and needed here alone.
    from holdout.config import with_defaults
    from holdout.config.changes import differences, is_extension, is_same_run

    stored = with_defaults(read_config(path), like=config)
    if is_same_run(stored, config):
        return stored, False
    if may_extend and is_extension(stored, config):
        return stored, True
    told = "; ".join(
        f"{key} was {old!r}, is {new!r}" for key, (old, new) in differences(stored, config).items()
    )
    rule = "a run is resumed with the config it was started with"
    if may_extend:
        rule += ", to which only rounds, rules and seeds can be added"
    raise RunFolderError(f"{path} holds a run with a different config: {told}; {rule}")


def read_config(path: Path) -> dict[str, Any]:
    """The config that a run folder holds."""
    try:
        return tomllib.loads((path / CONFIG).read_text("utf-8-sig"))
    except FileNotFoundError:
        raise RunFolderError(f"{path} is not a run folder: {CONFIG} is missing") from None
    except (OSError, ValueError, RecursionError) as error:
        raise RunFolderError(f"{path / CONFIG} cannot be read: {error}") from error


def read_run(source: "Path | str | Result") -> Run:
    """What a run folder holds, or a result in memory: rows, config, trained weights.

    A last line cut short is left out.

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
        summary, judges = source.summary, judges_in(source.summary)
        return Run(source.folder, summary["config"], source.rounds, source.weights, judges)
    path = Path(source)
    config = read_config(path)
    try:
        content = (path / ROUNDS).read_bytes()
    except OSError as error:
        raise RunFolderError(f"{path / ROUNDS} cannot be read: {error.strerror}") from error
    rows = in_order(_read_rounds(path, content), config)
    judges = judges_in(read_json(path / SUMMARY))
    return Run(path, config, rows, folder_weights(path, config), judges)


def read_json(file: Path) -> Mapping[str, Any]:
    """What a JSON file of a run folder holds; nothing if it is missing or damaged."""
    try:
        found = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def folder_weights(path: Path, config: Mapping[str, Any]) -> Weights:
    """The trained weights in a run folder."""
    attack = config.get("attack")
    name = attack.get("name") if isinstance(attack, Mapping) else None
    return weights_in(path, str(name or NO_ATTACK), planned_curves(config))


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
def explained(path: Path) -> Iterator[None]:
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
def lock(path: Path) -> Iterator[None]:
    """Keep a second process out of a folder."""
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
        checkpoint = checkpoint_files.decode(file.read_bytes())
        expected, length = checkpoint.meta["results_sha256"], checkpoint.meta["results_bytes"]
        if not isinstance(length, int):
            raise ValueError("its schema is unknown")  # noqa: TRY004, TRY301
        with (path / ROUNDS).open("rb") as rounds:
            actual = hashlib.sha256(rounds.read(length)).hexdigest()
    except (OSError, ValueError, KeyError, TypeError, EOFError) as error:
        raise RunFolderError(f"{file} is damaged ({error}); the run cannot be resumed") from error
    if actual != expected:
        raise RunFolderError(
            f"{path / ROUNDS} does not match {CHECKPOINT}; the run cannot be resumed"
        )
    return checkpoint
