"""Stands in for torchvision, which ByzFL imports for data sets that the benchmark does not use.

The real one would pull gigabytes of CUDA and does not load beside a torch for the CPU.
"""

from typing import Any


class _Anything:
    """Whatever is made of it at import; nothing of it is ever used."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_arguments, **_options: None


datasets = transforms = _Anything()
