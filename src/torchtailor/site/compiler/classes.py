"""Classes of the package as far as they matter at run time: bases, fields with defaults, methods."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass

from torchtailor.site.compiler.names import BUILTINS
from torchtailor.site.compiler.program import Definition, NotCompilable, Sources

_DATA_BASES = frozenset({"Struct", "NamedTuple"})
_ENUM_BASES = frozenset({"Enum", "IntEnum"})


@dataclass
class ClassInfo:
    """What a class definition says, as far as it matters at run time."""

    definition: Definition
    node: ast.ClassDef
    base: Definition | str | None  # a string is a class of the runtime
    data: bool
    enum: bool
    methods: dict[str, ast.FunctionDef]
    own_fields: dict[str, ast.expr | None]
    attributes: dict[str, ast.expr]


class Classes:
    """Reads each class once."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._known: dict[Definition, ClassInfo] = {}

    @property
    def known(self) -> tuple[ClassInfo, ...]:
        """Those that were asked for so far."""
        return tuple(self._known.values())

    def info(self, item: Definition) -> ClassInfo:
        if item not in self._known:
            node = self._sources.node(item)
            if not isinstance(node, ast.ClassDef):
                raise NotCompilable(f"{item.module}.{item.name} is not a class")
            self._known[item] = self._read_class(item, node)
        return self._known[item]

    def _read_class(self, item: Definition, node: ast.ClassDef) -> ClassInfo:
        base: Definition | str | None = None
        names = {ast.unparse(base).rpartition(".")[2] for base in node.bases}
        data, enum = bool(names & _DATA_BASES), bool(names & _ENUM_BASES)
        data = data or any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list)
        for one in node.bases:
            if isinstance(one, ast.Name):
                found = self._sources.meaning(item.module, one.id)
                if isinstance(found, Definition):
                    base = found
                    data = data or self.info(found).data
                elif found is None and one.id in BUILTINS:
                    base = f"$b.{one.id}"
        methods, fields, attributes = {}, {}, {}
        for line in node.body:
            if isinstance(line, ast.FunctionDef):
                methods[line.name] = line
            elif isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
                if data and "ClassVar" not in ast.unparse(line.annotation):
                    fields[line.target.id] = line.value
                elif line.value is not None:
                    attributes[line.target.id] = line.value
            elif isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Name):
                attributes[line.targets[0].id] = line.value
        return ClassInfo(item, node, base, data, enum, methods, fields, attributes)

    def bases(self, info: ClassInfo) -> Iterable[ClassInfo]:
        """The class and what it inherits from, itself first."""
        yield info
        if isinstance(info.base, Definition):
            yield from self.bases(self.info(info.base))

    def fields(self, info: ClassInfo) -> dict[str, tuple[ast.expr | None, str]]:
        """All fields of a data class in the constructor's order, with the default and the module it is written in."""
        found: dict[str, tuple[ast.expr | None, str]] = {}
        for base in reversed(list(self.bases(info))):
            found |= {name: (value, base.definition.module) for name, value in base.own_fields.items()}
        return found

    def method(self, info: ClassInfo, name: str) -> ast.FunctionDef | None:
        return next((base.methods[name] for base in self.bases(info) if name in base.methods), None)
