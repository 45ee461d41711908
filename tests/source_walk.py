"""Finds, in syntax trees, functions that nobody uses and optional parameters that nobody passes.

Names are all that is compared: a method counts as used where any attribute of its name is, whatever
the object. So what is found is certainly dead (or is called from outside), but not all that is dead
is found.
"""

import ast
import importlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, eq=False)
class Definition:
    """A class, function or method, and the class that the method stands in."""

    module: str
    node: Function | ast.ClassDef
    owner: str = ""

    @property
    def place(self) -> str:
        """Such as `holdout.voting.tally:tally` and `holdout.voting.terms:Terms.paper`."""
        return f"{self.module}:{self.owner and self.owner + '.'}{self.node.name}"

    def is_called_from_outside(self) -> bool:
        """Python's own method, one of a class that is not ours, or one that pydantic calls."""
        name = self.node.name
        if name.startswith("__") and name.endswith("__"):
            return True
        if any("validator" in ast.unparse(d) for d in self.node.decorator_list):
            return True
        owner = getattr(importlib.import_module(self.module), self.owner, None)
        bases = owner.__mro__ if owner else ()
        return any(name in vars(b) and not b.__module__.startswith("holdout") for b in bases)


@dataclass
class Uses:
    """What some files say: names that are read, and what is passed to functions of each name."""

    read_in: dict[str, list[ast.AST | None]] = field(default_factory=dict)
    """`module:name`, `module.name` or `.name` -> the functions that read it; None: no function."""
    positions: dict[str, int] = field(default_factory=dict)
    """Name -> the most arguments that a call passes by position."""
    keywords: dict[str, set[str | None]] = field(default_factory=dict)
    """Name -> the keywords that calls pass; None where one passes `**something`."""

    def add(self, module: str, tree: ast.Module) -> None:
        """Note what a module says."""
        aliases = {
            alias.asname: alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
            if alias.asname
        }
        for owner, within, node in _walk(tree):
            for name in _reads(module, node, aliases):
                self.read_in.setdefault(name, []).append(within)
            if isinstance(node, ast.Call):
                self._add_call(node, owner)

    def _add_call(self, call: ast.Call, owner: ast.ClassDef | None) -> None:
        starred = any(isinstance(argument, ast.Starred) for argument in call.args)
        # What is handed a function (`partial`, `submit`) passes it the arguments that follow.
        for shift, target in enumerate([call.func, *call.args]):
            names = [_name(target)]
            if owner and names == ["cls"]:
                names = [owner.name]
            elif owner and names == ["__init__"]:
                names = [_name(base) for base in owner.bases]
            for name in names:
                count = 99 if starred else len(call.args) - shift
                self.positions[name] = max(count, self.positions.get(name, 0))
                self.keywords.setdefault(name, set()).update(k.arg for k in call.keywords)


def definitions(module: str, tree: ast.Module) -> Iterator[Definition]:
    """The classes, functions and methods of a module; not what is defined inside of functions."""
    for node in tree.body:
        if isinstance(node, Function | ast.ClassDef):
            yield Definition(module, node)
        if isinstance(node, ast.ClassDef):
            methods = (inner for inner in node.body if isinstance(inner, Function))
            yield from (Definition(module, method, node.name) for method in methods)


def is_used(definition: Definition, uses: Uses) -> bool:
    """Whether anything but the definition itself reads its name."""
    name, module = definition.node.name, definition.module
    written = [f"{module}:{name}", f"{module.rpartition('.')[2]}.{name}"]
    names = [f".{name}"] if definition.owner else written
    return any(within is not definition.node for n in names for within in uses.read_in.get(n, ()))


def never_passed(definition: Definition, uses: Uses, subclasses: dict[str, set[str]]) -> list[str]:
    """The parameters with a default that no call passes, as `place(parameter)`."""
    node = definition.node
    if isinstance(node, ast.ClassDef):
        return []
    names = {node.name}
    if node.name == "__init__":
        names = {definition.owner, *subclasses.get(definition.owner, ())}
    keywords = set().union(*(uses.keywords.get(name, set()) for name in names))
    static = any("staticmethod" in ast.unparse(decorator) for decorator in node.decorator_list)
    itself = 1 if definition.owner and not static else 0
    count = itself + max(uses.positions.get(name, 0) for name in names)
    parameters = [*node.args.posonlyargs, *node.args.args]
    required = len(parameters) - len(node.args.defaults)
    missing = parameters[max(required, count) :]
    pairs = zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
    missing += [parameter for parameter, default in pairs if default is not None]
    return [f"{definition.place}({p.arg})" for p in missing if not keywords & {p.arg, None}]


def homes_of_classes(trees: dict[str, ast.Module]) -> dict[str, list[str]]:
    """Class name -> the modules that define one of that name."""
    homes: dict[str, list[str]] = {}
    for module, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, []).append(module)
    return homes


def subclasses(trees: dict[str, ast.Module]) -> dict[str, set[str]]:
    """Class name -> the names of the classes that inherit from it, directly."""
    found: dict[str, set[str]] = {}
    for tree in trees.values():
        for node in ast.walk(tree):
            for base in node.bases if isinstance(node, ast.ClassDef) else ():
                found.setdefault(_name(base), set()).add(node.name)
    return found


def read_trees(root: Path, *folders: str) -> dict[str, ast.Module]:
    """Every Python file in these folders, parsed, by the name of the module."""
    trees = {}
    for folder in folders:
        above = root / folder if folder == "src" else root
        for path in sorted((root / folder).rglob("*.py")):
            parts = path.relative_to(above).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            trees[name] = ast.parse(path.read_text("utf-8"))
    return trees


def _reads(module: str, node: ast.AST, aliases: dict[str, str]) -> Iterator[str]:
    match node:
        case ast.Name(id=name, ctx=ast.Load()):
            yield f"{module}:{name}"
        case ast.ImportFrom(module=origin, names=aliases):
            yield from (f"{origin}:{alias.name}" for alias in aliases)
        case ast.Attribute(value=value, attr=name, ctx=ast.Load()):
            yield f".{name}"
            if isinstance(value, ast.Name):
                yield f"{aliases.get(value.id, value.id)}.{name}"
        case ast.Call(func=ast.Name(id="getattr"), args=[_, ast.Constant(value=name), *_]):
            yield f".{name}"
        # A plug-in is named as "package.module:name"; an annotation may be a string.
        case ast.Constant(value=str(text)):
            yield text if ":" in text else f"{module}:{text}"


def _name(node: ast.AST) -> str:
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else ""


def _walk(
    node: ast.AST, owner: ast.ClassDef | None = None, within: Function | None = None
) -> Iterator[tuple[ast.ClassDef | None, Function | None, ast.AST]]:
    """All nodes below one, each with the class and the outermost function around it."""
    for child in ast.iter_child_nodes(node):
        inner = child if isinstance(child, ast.ClassDef) else owner
        inside = within or (child if isinstance(child, Function) else None)
        yield inner, inside, child
        yield from _walk(child, inner, inside)
