"""Trained models as safetensors files, which any tool reads without running code.

A run folder keeps them in `model/`: the final model of each curve and, if asked for, those of
earlier rounds. The metadata of a file says which it is.
"""

import glob
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from holdout.curve_rows import CurveKey
from holdout.errors import RunFolderError, UserError

if TYPE_CHECKING:
    # Slow to import, and needed only once a model is read or written.
    from torch import Tensor

FOLDER, ENDING = "model", ".safetensors"
HEADER_LENGTH_BYTES = 8
ALIGNMENT = 8

NamedTensors: TypeAlias = "dict[str, Tensor]"
Key: TypeAlias = "tuple[str, int] | tuple[str, int, str]"
PARTS_MAX = 3


class Weights(Mapping[Any, "dict[str, Tensor]"]):
    """The trained weights of a run's curves; each is read when it is asked for.

    `weights["holdout", 0]` are those of the rule `holdout` and seed 0 under the run's attack. A
    third part names another attack: `weights["mean", 0, "none"]` is the mean without attack, the
    baseline. The keys that the mapping lists have all three parts. A value maps the names of the
    model's parameters to tensors of its own, as `load_state_dict` takes them.

    >>> import holdout, torch
    >>> x, y = [[-3.0], [3.0]] * 20, [0, 1] * 20
    >>> setting = {
    ...     "experiment": {"rules": ["holdout"], "rounds": 3, "threads": 1},
    ...     "data": {"samples_per_worker": 10},
    ...     "federation": {"workers": 9, "proposers": 4, "voters": 4},
    ...     "training": {"batch_size": 5}, "vote": {"samples": 10},
    ... }
    >>> result = holdout.run(setting, plugins=holdout.Plugins(data=(x, y, x, y)))
    >>> list(result.weights)
    [('mean', 0, 'none'), ('holdout', 0, 'alie')]
    >>> make_model = holdout.learning.MODELS["mlp"]
    >>> model = make_model((1,), 2)
    >>> model.load_state_dict(result.weights["holdout", 0])
    <All keys matched successfully>
    """

    def __init__(
        self, attack: str, find: Callable[[], Mapping[CurveKey, Callable[[], NamedTensors]]]
    ) -> None:
        self._attack = attack
        self._find = find

    def __getitem__(self, key: Key) -> NamedTensors:
        rule, seed, attack = self._parts(key)
        found = self._find()
        read = found.get(CurveKey(rule, attack, seed))
        if read is None:
            have = "; ".join(map(str, found)) or "none"
            raise KeyError(
                f"no model of {CurveKey(rule, attack, seed)}; the curves that have one: {have}"
            )
        return read()

    def __iter__(self) -> Iterator[tuple[str, int, str]]:
        return iter([(key.rule, key.seed, key.attack) for key in self._find()])

    def __len__(self) -> int:
        return len(self._find())

    def __repr__(self) -> str:
        return f"<Weights: {'; '.join(map(str, self._find())) or 'none'}>"

    def _parts(self, key: Any) -> tuple[str, int, str]:
        if not isinstance(key, tuple) or not 1 < len(key) <= PARTS_MAX:
            raise KeyError(f"a key is (rule, seed) or (rule, seed, attack); got {key!r}")
        rule, seed, *others = key
        return rule, seed, others[0] if others else self._attack


def weights_in(folder: Path, attack: str, order: list[CurveKey]) -> Weights:
    """The weights that a run folder holds, in this order."""

    def find() -> Mapping[CurveKey, Callable[[], NamedTensors]]:
        known = {key: file_of(folder, key) for key in order}
        return {key: _reader(path) for key, path in known.items() if path.exists()}

    return Weights(attack, find)


def weights_of(attack: str, tensors: Mapping[CurveKey, NamedTensors]) -> Weights:
    """The weights that are in memory."""

    def copy(kept: NamedTensors) -> Callable[[], NamedTensors]:
        return lambda: {name: tensor.clone() for name, tensor in kept.items()}

    return Weights(attack, lambda: {key: copy(kept) for key, kept in tensors.items()})


def file_of(folder: Path, key: CurveKey, round_number: int | None = None) -> Path:
    """Where a run folder keeps the model of a curve: the final one, or that of a round."""
    return folder / FOLDER / f"{key.file_name(round_number)}{ENDING}"


def find_model(
    folder: Path, key: CurveKey, round_number: int | None, known: Sequence[CurveKey]
) -> Path:
    """Where the model of a curve is; if it does not exist, the error lists those that do.

    Args:
        folder: The run folder.
        key: The curve.
        round_number: The round; None for the last one.
        known: The curves of the run.
    """
    if key not in known:
        raise UserError(f"{folder} has no curve {key}; its curves: {'; '.join(map(str, known))}")
    final = file_of(folder, key)
    if round_number is None:
        if not final.exists():
            raise UserError(
                f"{folder} has no final model of {key}: the curve is not finished, or was run "
                "before models were kept"
            )
        return final
    path = file_of(folder, key, round_number)
    if path.exists():
        return path
    if final.exists() and read_metadata(final).get("round") == str(round_number):
        return final
    there = sorted({*_rounds_kept(folder, key)}, key=int)
    raise UserError(
        f"{folder} keeps no model of {key} after round {round_number}; rounds that it keeps: "
        f"{', '.join(there) or 'none'} (experiment.save_every says which)"
    )


def _rounds_kept(folder: Path, key: CurveKey) -> list[str]:
    names = glob.escape(key.file_name())
    pattern = (f"{names}{ENDING}", f"{names}-round-*{ENDING}")
    paths = [path for each in pattern for path in (folder / FOLDER).glob(each)]
    return [round_number for p in paths if (round_number := read_metadata(p).get("round"))]


def encode(tensors: Mapping[str, "Tensor"], metadata: Mapping[str, str]) -> bytes:
    """The bytes of a safetensors file; equal tensors and metadata give equal bytes."""
    from safetensors.numpy import save

    from holdout import device

    plain = save({name: device.to_numpy(tensor) for name, tensor in tensors.items()})
    start = HEADER_LENGTH_BYTES + int.from_bytes(plain[:HEADER_LENGTH_BYTES], "little")
    header = json.loads(plain[HEADER_LENGTH_BYTES:start])
    # The package itself writes metadata in an order that changes from one process to the next.
    whole = json.dumps({"__metadata__": dict(sorted(metadata.items())), **header}).encode()
    whole += b" " * (-len(whole) % ALIGNMENT)
    return len(whole).to_bytes(HEADER_LENGTH_BYTES, "little") + whole + plain[start:]


def read(path: Path) -> NamedTensors:
    """The named tensors of a file."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    from holdout.device import DEVICE

    try:
        found = load(path.read_bytes())
    except OSError as error:
        raise RunFolderError(f"{path} cannot be read: {error.strerror}") from error
    except (SafetensorError, ValueError, TypeError, KeyError) as error:
        raise RunFolderError(f"{path} is not a safetensors file: {error}") from error
    return {name: tensor.to(DEVICE) for name, tensor in found.items()}


def read_metadata(path: Path) -> dict[str, str]:
    """What a file says about itself, without its tensors."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np") as file:
            return dict(file.metadata() or {})
    except OSError as error:
        raise RunFolderError(f"{path} cannot be read: {error.strerror or error}") from error
    except (SafetensorError, ValueError, TypeError, KeyError) as error:
        raise RunFolderError(f"{path} is not a safetensors file: {error}") from error


def _reader(path: Path) -> Callable[[], NamedTensors]:
    return lambda: read(path)
