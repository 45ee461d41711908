"""Packages whose names are imported at first use (PEP 562): importing them costs nothing."""

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence


def attributes(
    package: str, homes: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """The `__getattr__` and `__dir__` of a package.

    Args:
        package: The package's name.
        homes: For each module, the names that the package takes from it. A module without names
            is a sub-package, which the package exports as it is.
    """
    module_of = {name: module for module, names in homes.items() for name in names}
    subpackages = {
        module.rpartition(".")[2]: module for module, names in homes.items() if not names
    }

    def get(name: str) -> object:
        module = subpackages.get(name) or module_of.get(name)
        if module is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            found = importlib.import_module(module)
        except ModuleNotFoundError as error:
            # So that `hasattr` and `help` work without an optional dependency.
            raise AttributeError(f"{package}.{name}: {error}") from error
        value = found if name in subpackages else getattr(found, name)
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        dunders = {name for name in vars(sys.modules[package]) if name.startswith("__")}
        return sorted({*dunders, *module_of, *subpackages})

    return get, names
