"""Custom code by name: "package.module:name" -> the object of that name.

This is how a config names a custom loader, model, rule or attack. The module may simply lie in the
folder in which the command is started.
"""

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from holdout.errors import DottedNameError
from holdout.tracebacks import RAISED, summary_of, with_place


def resolve(dotted: str) -> object:
    """The object that "package.module:name" stands for; importing runs that module's code.

    >>> resolve("math:tau")
    6.283185307179586
    """
    module_name, attribute = split(dotted)
    with _working_directory_importable():
        found: object = _import(dotted, module_name)
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise DottedNameError(f'"{dotted}": {module_name} has no "{attribute}"') from None
    return found


def split(dotted: str) -> tuple[str, str]:
    """The module and the attribute in "package.module:name"; anything else is refused."""
    module_name, colon, attribute = dotted.partition(":")
    parts = [*module_name.split("."), *attribute.split(".")]
    if not colon or not all(part.isidentifier() for part in parts):
        raise DottedNameError(f'custom code is named "package.module:name"; got "{dotted}"')
    return module_name, attribute


def _import(dotted: str, module_name: str) -> ModuleType:
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        # The module itself is missing only if the name is its own or a parent's; otherwise it is
        # there, and one of its own imports is not.
        if error.name is not None and f"{module_name}.".startswith(f"{error.name}."):
            raise DottedNameError(f'"{dotted}": there is no module {error.name}') from None
        message = with_place(f'"{dotted}": importing {module_name} failed: {error}', error)
        raise DottedNameError(message) from error
    except RAISED as error:  # User code may raise anything.
        raise DottedNameError(
            with_place(f'"{dotted}": importing {module_name} raised {summary_of(error)}', error)
        ) from error


@contextmanager
def _working_directory_importable() -> Iterator[None]:
    try:
        folder = str(Path.cwd())
    except FileNotFoundError:  # It was deleted: nothing can be imported from it.
        yield
        return
    importlib.invalidate_caches()  # The file may be newer than what was last seen of its folder.
    if sys.path[:1] in ([folder], [""]):
        yield
        return
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)
