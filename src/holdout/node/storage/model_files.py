"""Models as files: safetensors, readable by any tool without running code, and canonical bytes."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from holdout.agreement import aggregate
from holdout.errors import UserError
from holdout.node.membership.genesis import ModelSection, TensorShape
from holdout.results import write_atomic

MODEL = "model.safetensors"
Tensors = Mapping[str, "np.ndarray[Any, np.dtype[np.float32]]"]


def describe_model(name: str, tensors: Tensors) -> tuple[ModelSection, bytes]:
    """A model's part of the file, and its canonical bytes, from its tensors in order."""
    data = b"".join(aggregate.canonical(np.ravel(tensor)) for tensor in tensors.values())
    empty = [key for key, tensor in tensors.items() if not tensor.size]
    if empty or not tensors:
        raise UserError(f"a model needs tensors with weights in them; got {empty or 'none'}")
    shapes = [TensorShape(name=key, shape=list(t.shape)) for key, t in tensors.items()]
    listed = tuple(tuple(shape.shape) for shape in shapes)
    section = ModelSection(
        name=name, digest=aggregate.model_digest(listed, data).hex(), tensors=shapes
    )
    return section, data


def save_model(path: Path, model: ModelSection, data: bytes, metadata: Mapping[str, str]) -> None:
    """Canonical bytes as a file that any tool can read without running code."""
    values = np.frombuffer(data, "<f4")
    tensors, start = {}, 0
    for tensor in model.tensors:
        stop = start + int(np.prod(tensor.shape, dtype=np.int64))
        tensors[tensor.name] = values[start:stop].reshape(tensor.shape)
        start = stop
    write_atomic(path, save_tensors(tensors, dict(metadata)))


def load_model(path: Path, model: ModelSection) -> bytes:
    """The canonical bytes of a model file; it must be the one that the digest names."""
    tensors = read_tensors(path)
    try:
        data = b"".join(aggregate.canonical(np.ravel(tensors[t.name])) for t in model.tensors)
    except KeyError as error:
        raise UserError(f"{path} lacks the tensor {error}") from None
    if aggregate.model_digest(model.shapes, data).hex() != model.digest:
        raise UserError(f"{path} is not the model that the genesis file names")
    return data


def read_tensors(path: Path) -> Tensors:
    """The tensors of a safetensors file, in its order."""
    try:
        found = load_tensors(path.read_bytes())
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    except (SafetensorError, ValueError, TypeError, KeyError) as error:
        raise UserError(f"{path} is no safetensors file: {error}") from None
    return {name: np.ascontiguousarray(tensor, np.float32) for name, tensor in found.items()}
