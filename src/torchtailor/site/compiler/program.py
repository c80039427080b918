"""The modules of the package as syntax trees, and what a name in one of them means."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

PACKAGE = "torchtailor"


class NotCompilable(Exception):  # noqa: N818  (a fault of this package, never of its user)
    """Python that has no translation yet; says where it stands."""


@dataclass(frozen=True, slots=True)
class Definition:
    """A function, class or value at the top of a module."""

    module: str
    name: str


@dataclass(frozen=True, slots=True)
class External:
    """A name from outside of the package: `re`, or `quote` of `shlex`."""

    module: str
    name: str | None


Meaning = Definition | External | str  # a string is a module of the package


@dataclass
class Module:
    """One source file: its definitions in their order, and its imports."""

    name: str
    tree: ast.Module
    definitions: dict[str, ast.stmt] = field(default_factory=dict)
    imports: dict[str, tuple[str, str | None]] = field(default_factory=dict)

    @classmethod
    def read(cls, name: str) -> Module:
        spec = find_spec(name)
        if spec is None or spec.origin is None:
            raise NotCompilable(f"there is no module {name}")
        found = cls(name, ast.parse(Path(spec.origin).read_text("utf-8"), spec.origin))
        for node in found.tree.body:
            found._add(node)
        return found

    def _add(self, node: ast.stmt) -> None:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            self.definitions[node.name] = node
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            self.definitions[node.targets[0].id] = node
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            self.definitions[node.target.id] = node
        elif isinstance(node, ast.Import | ast.ImportFrom):
            self.imports.update(imported(node))

    @property
    def imported_modules(self) -> Iterator[str]:
        """The package's modules that importing this one imports, in order."""
        for module, name in self.imports.values():
            if module.split(".")[0] == PACKAGE:
                yield module
                if name is not None and _is_module(f"{module}.{name}"):
                    yield f"{module}.{name}"


def imported(node: ast.Import | ast.ImportFrom) -> dict[str, tuple[str, str | None]]:
    """The names that an import binds, and what each is: a module, or a name in one."""
    if isinstance(node, ast.Import):
        return {alias.asname or alias.name.split(".")[0]: (alias.name, None) for alias in node.names}
    return {alias.asname or alias.name: (node.module or "", alias.name) for alias in node.names}


def _is_module(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False


class Sources:
    """Reads each module once, and follows names through imports to where they are defined."""

    def __init__(self) -> None:
        self._modules: dict[str, Module] = {}

    def module(self, name: str) -> Module:
        if name not in self._modules:
            self._modules[name] = Module.read(name)
        return self._modules[name]

    def node(self, item: Definition) -> ast.stmt:
        return self.module(item.module).definitions[item.name]

    def meaning(self, module: str, name: str) -> Meaning | None:
        """What a name at the top of a module means; None for builtins."""
        here = self.module(module)
        if name in here.definitions:
            return Definition(module, name)
        if name in here.imports:
            return self.follow(*here.imports[name])
        return None

    def follow(self, module: str, name: str | None) -> Meaning | None:
        """What an import means."""
        if module.split(".", maxsplit=1)[0] != PACKAGE:
            return External(module, name)
        if name is None:
            return module
        return self.meaning(module, name) or (f"{module}.{name}" if _is_module(f"{module}.{name}") else None)

    def in_import_order(self, modules: set[str]) -> list[str]:
        """Modules in the order in which Python runs them: what one imports comes before it."""
        order: dict[str, None] = {}
        open_: set[str] = set()

        def visit(name: str) -> None:
            if name in order or name in open_:
                return
            open_.add(name)
            for other in self.module(name).imported_modules:
                visit(other)
            order[name] = None

        for name in sorted(modules):
            visit(name)
        return [name for name in order if name in modules]
