"""Models as safetensors files, which any tool reads without running code, and canonical bytes."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from holdout import device
from holdout.agreement import aggregate
from holdout.errors import UserError
from holdout.node.membership.genesis import ModelDescription, TensorShape
from holdout.results import write_atomic

MODEL = "model.safetensors"
Tensors = Mapping[str, "np.ndarray[Any, np.dtype[np.float32]]"]


def first_model(
    name: str, shape: tuple[int, ...], classes: int, seed: int
) -> tuple[ModelDescription, bytes]:
    """A built-in model, or a custom one by its dotted name, with fresh weights."""
    from holdout.dotted import resolve
    from holdout.learning.models import MODELS, build
    from holdout.seeds import stream

    factory: Any = MODELS[name] if name in MODELS else resolve(name)
    module = build(factory, shape, classes, seed=stream(seed, "weights").generator_seed())
    tensors = {key: device.to_numpy(p) for key, p in module.named_parameters()}
    return describe_model(name, tensors)


def describe_model(name: str, tensors: Tensors) -> tuple[ModelDescription, bytes]:
    """A model's section of the genesis file and its canonical bytes, tensors in this order."""
    data = b"".join(aggregate.canonical(np.ravel(tensor)) for tensor in tensors.values())
    empty = [key for key, tensor in tensors.items() if not tensor.size]
    if empty or not tensors:
        raise UserError(f"a model needs tensors with weights in them; got {empty or 'none'}")
    shapes = [TensorShape(name=key, shape=list(t.shape)) for key, t in tensors.items()]
    listed = tuple(tuple(shape.shape) for shape in shapes)
    section = ModelDescription(
        name=name, digest=aggregate.model_digest(listed, data).hex(), tensors=shapes
    )
    return section, data


def save_model(
    path: Path, model: ModelDescription, data: bytes, metadata: Mapping[str, str]
) -> None:
    """Write a model, given as canonical bytes, as a safetensors file."""
    values = np.frombuffer(data, "<f4")
    tensors, start = {}, 0
    for tensor in model.tensors:
        stop = start + int(np.prod(tensor.shape, dtype=np.int64))
        tensors[tensor.name] = values[start:stop].reshape(tensor.shape)
        start = stop
    write_atomic(path, save_tensors(tensors, dict(metadata)))


def load_model(path: Path, model: ModelDescription) -> bytes:
    """The canonical bytes of a model file, which must have the digest of this section."""
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
        raise UserError(f"{path} is not a safetensors file: {error}") from None
    return {name: np.ascontiguousarray(tensor, np.float32) for name, tensor in found.items()}
