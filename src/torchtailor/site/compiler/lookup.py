"""What the names in a program mean, and what the program needs of them in turn."""

from __future__ import annotations

import ast

from torchtailor.site.compiler.classes import Classes
from torchtailor.site.compiler.names import BUILTINS, EXTERNALS, RE_NAMES, safe_name
from torchtailor.site.compiler.program import Definition, External, NotCompilable, Sources
from torchtailor.site.compiler.scopes import FunctionScope


class Lookup:
    """Looks names up, and collects the definitions and attributes that are used."""

    def __init__(self, sources: Sources) -> None:
        self.sources = sources
        self.needed: dict[Definition, None] = {}
        self.constructed: set[Definition] = set()
        self.attributes: set[str] = set()
        self.left_out: dict[str, str] = {}  # methods without a translation, and why
        self.classes = Classes(sources)
        self._place = ""
        self.settled = False  # while the classes of the program are still being found, their methods are not known

    def need(self, item: Definition) -> str:
        self.needed.setdefault(item)
        return self.identifier(item)

    def identifier(self, item: Definition) -> str:
        """A name that is unique in the program: the definition's and its module's."""
        return f"{item.name}${item.module.removeprefix('torchtailor.').replace('.', '_')}"

    def _name(self, node: ast.expr, name: str, scope: FunctionScope) -> str:
        if scope.has(name):
            return safe_name(name)
        if found := scope.imported(name):
            meaning = self.sources.follow(*found)
        else:
            meaning = self.sources.meaning(scope.module, name)
        if isinstance(meaning, Definition):
            return self.need(meaning)
        if isinstance(meaning, External):
            return self._external(node, meaning)
        if meaning is None and name in BUILTINS:
            return f"$b.{name}"
        raise self._cannot(node, f"the name {name}")

    def _external(self, node: ast.expr, item: External) -> str:
        if item.module == "re" and item.name in RE_NAMES:
            return f"$re.{item.name}"
        if (item.module, item.name or "") in EXTERNALS:
            return EXTERNALS[item.module, item.name or ""]
        raise self._cannot(node, f"{item.module}.{item.name}")

    def _module_member(self, node: ast.Attribute, scope: FunctionScope) -> Definition | External | None:
        """What `module.name` means, where the left side is a module."""
        path = ast.unparse(node.value)
        head, *inner = path.split(".") if all(part.isidentifier() for part in path.split(".")) else ("",)
        if not head or scope.has(head):
            return None
        found = scope.imported(head)
        meaning = self.sources.follow(*found) if found else self.sources.meaning(scope.module, head)
        if isinstance(meaning, External) and meaning.name is None:
            return External(".".join([head, *inner]), node.attr)
        if isinstance(meaning, str):
            member = self.sources.meaning(".".join([meaning, *inner]), node.attr)
            return member if isinstance(member, Definition | External) else None
        return None

    def _is_cached(self, node: ast.FunctionDef) -> bool:
        known = {
            ast.unparse(decorator).partition("(")[0].removeprefix("functools.") for decorator in node.decorator_list
        }
        if unknown := known - {"cache", "lru_cache", "property", "classmethod", "staticmethod", "cached_property"}:
            raise self._cannot(node, f"the decorator {unknown.pop()}")
        return bool(known & {"cache", "lru_cache"})

    def _kind(self, method: ast.FunctionDef) -> str:
        names = {ast.unparse(decorator) for decorator in method.decorator_list}
        self._is_cached(method)
        if "property" in names:
            return "getters"
        if "cached_property" in names:
            return "kept"
        return "statics" if names & {"classmethod", "staticmethod"} else "methods"

    def _is_method(self, name: str) -> bool:
        return any(
            name in info.methods and self._kind(info.methods[name]) in ("methods", "statics")
            for info in self.classes.known
        )

    def _cannot(self, node: ast.AST, what: str) -> NotCompilable:
        return NotCompilable(f"{self._place}, line {getattr(node, 'lineno', '?')}: no translation for {what}")
