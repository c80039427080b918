"""The names of a function: its own, those of functions around it, and what it imports."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache

from torchtailor.site.compiler.classes import ClassInfo


@dataclass
class FunctionScope:
    """The names of one function, inside of another or of a module."""

    module: str
    names: set[str] = field(default_factory=set)
    imports: dict[str, tuple[str, str | None]] = field(default_factory=dict)
    functions: dict[str, ast.FunctionDef] = field(default_factory=dict)
    parent: FunctionScope | None = None
    owner: ClassInfo | None = None

    def inner(self, names: Iterable[str]) -> FunctionScope:
        return FunctionScope(self.module, set(names), parent=self, owner=self.owner)

    def has(self, name: str) -> bool:
        return name in self.names or (self.parent is not None and self.parent.has(name))

    def imported(self, name: str) -> tuple[str, str | None] | None:
        return self.imports.get(name) or (self.parent.imported(name) if self.parent else None)

    def function(self, name: str) -> ast.FunctionDef | None:
        return self.functions.get(name) or (self.parent.function(name) if self.parent else None)


def parameter_names(node: ast.FunctionDef) -> tuple[str, ...]:
    arguments = node.args
    return tuple(one.arg for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs))


def own_nodes(body: Sequence[ast.stmt]) -> Iterable[ast.AST]:
    """The nodes of a function's own scope: not those of functions in it, nor the variables of comprehensions."""
    for node in body:
        yield from _own_of(node)


@cache
def _own_of(node: ast.stmt) -> tuple[ast.AST, ...]:
    """Kept: a program is translated several times until it knows all names."""
    return tuple(_own(node))


def _own(node: ast.AST) -> Iterable[ast.AST]:
    yield node
    if isinstance(node, ast.FunctionDef | ast.Lambda):
        return
    for child in ast.iter_child_nodes(node):
        if isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
            yield from (node for node in ast.walk(child) if isinstance(node, ast.NamedExpr))
            yield from (node.target for node in ast.walk(child) if isinstance(node, ast.NamedExpr))
        else:
            yield from _own(child)


def is_generator(node: ast.FunctionDef) -> bool:
    return any(isinstance(one, ast.Yield | ast.YieldFrom) for one in own_nodes(node.body))
