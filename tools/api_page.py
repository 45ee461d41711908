"""Write docs/api.md: every public name with its signature, arguments and example.

Usage: python tools/api_page.py

The public names are the `__all__` of `holdout` and of the sub-packages that it lists. Everything on
the page comes from the source: signatures as they are written there, docstrings, and the strings
that stand below fields and constants.
"""

import ast
import builtins
import enum
import functools
import importlib
import inspect
import json
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from doctest import DocTestParser
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, Literal, get_args, get_origin

import holdout
from holdout.config import Config

PAGE = Path(__file__).resolve().parent.parent / "docs" / "api.md"
WIDTH = 88
"""Longer signatures get a line for each argument."""

INTRODUCTION = """\
# The public names

The names on this page are public: they follow [semantic versioning](https://semver.org), and the
[changelog](../CHANGELOG.md) lists every change. Until 1.0.0 a minor version may break a public
name; a patch never does. Everything else, in any module, may change or disappear at any time.

`import holdout` is enough: sub-packages are loaded at first use, as in `holdout.rules.krum`.
`holdout.__version__` is the version. Each example runs on its own, and the tests run it.
`make docs` writes this page from the docstrings.
"""


@dataclass(frozen=True)
class Docstring:
    """A docstring in parts."""

    summary: str
    body: str
    arguments: Mapping[str, str]
    example: str


@dataclass(frozen=True)
class Name:
    """A public name: the package that exports it, and what it stands for."""

    package: str
    name: str
    value: Any

    def __str__(self) -> str:
        return f"{self.package}.{self.name}"

    @property
    def is_exception(self) -> bool:
        """Whether it is something to catch."""
        return isinstance(self.value, type) and issubclass(self.value, BaseException)

    @property
    def needs_example(self) -> bool:
        """Whether it is something to call: a function or a class, but no exception."""
        return self.documented is not None and not self.is_exception

    @functools.cached_property
    def documented(self) -> Any:
        """The function or class whose docstring and signature these are; None for a constant."""
        if isinstance(self.value, type | FunctionType):
            return self.value
        wrapped = inspect.unwrap(self.value) if callable(self.value) else None
        if isinstance(wrapped, FunctionType):
            return wrapped
        if is_dataclass(self.value) and not isinstance(self.value, type) and callable(self.value):
            # An object that is called like a function, and holds the one that does the work.
            held = (getattr(self.value, field.name) for field in fields(self.value))
            return next((value for value in held if isinstance(value, FunctionType)), None)
        return None

    @functools.cached_property
    def docstring(self) -> Docstring:
        """What the source says about it; empty if it says nothing."""
        texts = [inspect.getdoc(self.documented)] if self.documented is not None else []
        if not isinstance(self.value, type | FunctionType):
            texts.insert(0, _assigned(self)[1])
            if self.value.__doc__ != type(self.value).__doc__:
                texts.insert(0, inspect.getdoc(self.value))
        return parse(next(filter(None, texts), ""))


def subpackages() -> list[str]:
    """The public sub-packages, by their full names."""
    names = [f"holdout.{name}" for name in holdout.__all__]
    return [name for name in names if isinstance(_attribute(name), ModuleType)]


def public_names() -> list[Name]:
    """Every public name that is no sub-package, the front door's first."""
    found = []
    for package in ("holdout", *subpackages()):
        for name in importlib.import_module(package).__all__:
            value = _attribute(f"{package}.{name}")
            if not isinstance(value, ModuleType) and name != "__version__":
                found.append(Name(package, name, value))
    return found


def _attribute(full_name: str) -> Any:
    package, _, name = full_name.rpartition(".")
    return getattr(importlib.import_module(package), name)


def page() -> str:
    """The whole page."""
    parts = [INTRODUCTION]
    names = public_names()
    for package in ("holdout", *subpackages()):
        listed = ", ".join(f"`{name.name}`" for name in names if name.package == package)
        parts.append(f"- [{package}](#{package.replace('.', '')}): {listed}")
    for package in ("holdout", *subpackages()):
        about = parse(inspect.getdoc(importlib.import_module(package)) or "").summary
        parts.append(f"\n## {package}\n\n{about}")
        parts += [f"\n{entry(name)}" for name in names if name.package == package]
    return "\n".join(parts).rstrip() + "\n"


def entry(name: Name) -> str:
    """What the page says about one name."""
    docstring = name.docstring
    parts = [f"### `{name}`"]
    if signature := _signature(name):
        parts.append(f"```py\n{signature}\n```")
    parts += [docstring.summary, docstring.body]
    parts.append("\n".join(_item(key, text) for key, text in docstring.arguments.items()))
    if isinstance(name.value, type) and not name.is_exception:
        described = [] if docstring.arguments else _field_items(name.value)
        items = [*described, *_member_items(name.value)]
        parts += ["\n".join(items), *_config_tables(name.value)]
    elif isinstance(name.value, Mapping):
        parts.append("Holds " + ", ".join(f"`{key}`" for key in name.value) + ".")
    if docstring.example:
        lines = [*_imports(name), docstring.example]
        parts.append("```pycon\n" + "\n".join(lines) + "\n```")
    return "\n\n".join(part for part in parts if part) + "\n"


def parse(text: str) -> Docstring:
    r"""The parts of a docstring.

    >>> found = parse("Add.\n\nArgs:\n    a: A\n        number.\n\n>>> add(1, 2)\n3")
    >>> found.summary, found.arguments, found.example
    ('Add.', {'a': 'A number.'}, '>>> add(1, 2)\n3')
    """
    summary, _, rest = inspect.cleandoc(text).partition("\n\n")
    body: list[str] = []
    examples: list[str] = []
    arguments: dict[str, str] = {}
    for paragraph in rest.split("\n\n"):
        if paragraph.startswith((">>> ", "Example:\n    >>> ")):
            examples.append(textwrap.dedent(paragraph.removeprefix("Example:\n")))
        elif re.match(r"(Args|Attributes):\n", paragraph):
            arguments |= _arguments(textwrap.dedent(paragraph.partition("\n")[2]))
        else:
            body.append(paragraph)
    return Docstring(
        " ".join(summary.split()), "\n\n".join(body).strip("\n"), arguments, "\n\n".join(examples)
    )


def _arguments(text: str) -> dict[str, str]:
    found = re.findall(r"^(\*{0,2}\w+): (.*(?:\n[ ]+.*)*)", text, re.MULTILINE)
    return {name: " ".join(words.split()) for name, words in found}


def _item(name: str, text: str) -> str:
    return f"- `{name}`" + (f": {text}" if text else "")


def _imports(name: Name) -> Iterator[str]:
    """What an example must import to run by itself, where its module has it already."""
    examples = DocTestParser().get_examples(name.docstring.example)
    home = name.package if name.documented is None else name.documented.__module__
    known = vars(sys.modules[home])
    for free in sorted(_free_names("".join(example.source for example in examples))):
        value = known.get(free)
        if free in importlib.import_module(name.package).__all__:
            yield f">>> from {name.package} import {free}"
        elif isinstance(value, ModuleType):
            parent, _, last = value.__name__.rpartition(".")
            source = f"from {parent} import {last}" if parent else f"import {last}"
            yield f">>> {source}" + (f" as {free}" if free != last else "")
        elif value is not None:
            yield f">>> from {value.__module__} import {free}"


def _free_names(source: str) -> set[str]:
    """The names that code uses and does not make."""
    used: set[str] = set()
    made: set[str] = set(dir(builtins))
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Name(id=name, ctx=ast.Load()):
                used.add(name)
            case ast.Name(id=name):
                made.add(name)
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.arg(arg=name):
                made.add(name)
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                made.update(alias.asname or alias.name for alias in aliases)
    return used - made


# -- signatures -----------------------------------------------------------------------------------


def _signature(name: Name) -> str:
    value = name.value
    if isinstance(value, type):
        return _class_signature(name.name, value)
    if name.documented is not None:
        return _function_signature(name.name, _tree(name.documented))
    text = _assigned(name)[0]
    return f"{name.name}{text}" if text else ""


def _class_signature(name: str, kind: type) -> str:
    if issubclass(kind, BaseException | enum.Enum) or getattr(kind, "_is_protocol", False):
        return f"class {name}({kind.__bases__[0].__name__})"
    for node in _tree(kind).body:
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            return f"class {_function_signature(name, node, returns=False)}"
    arguments = []
    made = getattr(kind, "__dataclass_fields__", {})
    for field in _fields(kind):
        if field.name in made and made[field.name].kw_only and "*" not in arguments:
            arguments.append("*")
        default = "" if field.default is None else f" = {_default(field.default)}"
        arguments.append(f"{field.name}: {field.annotation}{default}")
    return f"class {_joined(name, arguments)}"


def _default(node: ast.expr) -> str:
    """A field's default as a caller would write it."""
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "field":
        for keyword in node.keywords:
            if keyword.arg == "default_factory":
                return f"{ast.unparse(keyword.value)}()"
    return ast.unparse(node)


def _function_signature(name: str, tree: Any, *, returns: bool = True) -> str:
    arguments = tree.args
    positional = [*arguments.posonlyargs, *arguments.args]
    missing = [None] * (len(positional) - len(arguments.defaults))
    shown = [
        _argument(node, default)
        for node, default in zip(positional, [*missing, *arguments.defaults], strict=True)
        if node.arg not in {"self", "cls"}
    ]
    if arguments.vararg:
        shown.append(f"*{_argument(arguments.vararg, None)}")
    elif arguments.kwonlyargs:
        shown.append("*")
    shown += [
        _argument(node, default)
        for node, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    ]
    if arguments.kwarg:
        shown.append(f"**{_argument(arguments.kwarg, None)}")
    result = f" -> {_unquoted(tree.returns)}" if returns and tree.returns else ""
    return _joined(name, shown, result)


def _argument(node: ast.arg, default: ast.expr | None) -> str:
    text = node.arg + (f": {_unquoted(node.annotation)}" if node.annotation else "")
    return text if default is None else f"{text} = {ast.unparse(default)}"


def _unquoted(node: ast.expr) -> str:
    quoted = isinstance(node, ast.Constant) and isinstance(node.value, str)
    return str(node.value) if quoted else ast.unparse(node)  # type: ignore[attr-defined]


def _joined(name: str, arguments: list[str], result: str = "") -> str:
    line = f"{name}({', '.join(arguments)}){result}"
    if len(line) <= WIDTH:
        return line
    return f"{name}(\n" + "".join(f"    {argument},\n" for argument in arguments) + f"){result}"


# -- what is in a class ---------------------------------------------------------------------------


def _field_items(kind: type) -> list[str]:
    # A config's fields are sections, which have tables.
    return [_item(f.name, f.about) for f in _fields(kind) if not hasattr(kind, "model_fields")]


def _member_items(kind: type) -> Iterator[str]:
    if issubclass(kind, enum.Enum):
        for member, _, about in _assignments(_tree(kind).body):
            yield _item(member, about)
        return
    for node in _tree(kind).body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            is_property = any("property" in ast.unparse(d) for d in node.decorator_list)
            text = node.name if is_property else _function_signature(node.name, node)
            line = re.sub(r"\(\s+", "(", re.sub(r",\s+\)", ")", " ".join(text.split())))
            yield _item(line, parse(ast.get_docstring(node) or "").summary)


def _config_tables(kind: type) -> Iterator[str]:
    """Each section of a config, with every key."""
    if kind is not Config:
        return
    defaults = Config().as_dict()
    for section, field in Config.model_fields.items():
        owner: Any = field.annotation
        about = parse(inspect.getdoc(owner) or "").summary
        below = {key: text for key, _, text in _assignments(_tree(owner).body)}
        lines = [f"**`[{section}]`** {about}"]
        if owner.model_fields:
            lines += ["", "| key | default | meaning |", "|---|---|---|"]
        for key, value in owner.model_fields.items():
            default = json.dumps(defaults[section][key]) if key in defaults[section] else "none"
            meaning = " ".join(filter(None, [below.get(key, ""), _choices(value.annotation)]))
            lines.append(f"| `{key}` | `{default}` | {meaning} |")
        yield "\n".join(lines)


def _choices(annotation: Any) -> str:
    if get_origin(annotation) is not Literal:
        return ""
    return "One of " + ", ".join(f"`{json.dumps(choice)}`" for choice in get_args(annotation)) + "."


@dataclass(frozen=True)
class Field:
    """A field of a dataclass or a config, as it is written."""

    name: str
    annotation: str
    default: ast.expr | None
    about: str


def _fields(kind: type) -> list[Field]:
    """The fields of a class in the order of its constructor, those of its bases first."""
    found: dict[str, Field] = {}
    for base in reversed(kind.__mro__):
        has_fields = "__dataclass_fields__" in vars(base) or hasattr(base, "model_fields")
        if not has_fields or base.__module__.partition(".")[0] != "holdout":
            continue
        body = _tree(base).body
        about = {name: text for name, _, text in _assignments(body)}
        for node in body:
            match node:
                case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation, value=value):
                    written = re.sub(r"^InitVar\[(.*)\]$", r"\1", ast.unparse(annotation))
                    if not name.startswith("_") and not written.startswith("ClassVar"):
                        found[name] = Field(name, written, value, about[name])
    return list(found.values())


# -- source ---------------------------------------------------------------------------------------


def _tree(documented: Any) -> Any:
    """The definition of a class or function."""
    return ast.parse(textwrap.dedent(inspect.getsource(documented))).body[0]


def written_below(kind: type) -> dict[str, str]:
    """What is written below each field of a class, by the field's name."""
    return {name: text for name, _, text in _assignments(_tree(kind).body)}


@functools.cache
def _module_assignments(file: str) -> dict[str, tuple[str, str]]:
    tree = ast.parse(Path(file).read_text("utf-8"))
    return {name: (text, below) for name, text, below in _assignments(tree.body)}


def _assignments(body: list[ast.stmt]) -> Iterator[tuple[str, str, str]]:
    """The names assigned, to what, and the string below each."""
    for node, following in zip(body, [*body[1:], ast.Pass()], strict=True):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                text = f" = {ast.unparse(value)}"
            case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation):
                text = f": {ast.unparse(annotation)}"
            case _:
                continue
        match following:
            case ast.Expr(value=ast.Constant(value=str() as below)):
                yield name, text, " ".join(below.split()) if ">>>" not in below else below
            case _:
                yield name, text, ""


def _assigned(name: Name) -> tuple[str, str]:
    """How the constant of that name is written, and the string below it."""
    for module_name, module in sorted(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if not file or module_name.partition(".")[0] != "holdout":
            continue
        if vars(module).get(name.name) is name.value:
            found = _module_assignments(file).get(name.name)
            if found:
                return found
    return "", ""


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
