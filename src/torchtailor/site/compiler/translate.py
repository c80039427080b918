"""Translates functions and classes of this package to JavaScript.

Only the Python that the package is written in: what has no translation is an error that names its place, never a
guess. Objects of Python that JavaScript lacks (dictionaries by value, sets, enums, data classes) are in
`assets/runtime.js`; names that begin with `$` are its helpers.
"""

from __future__ import annotations

import ast
import json

from torchtailor.site.compiler.classes import ClassInfo
from torchtailor.site.compiler.names import RENAMED, safe_name
from torchtailor.site.compiler.program import Definition, NotCompilable
from torchtailor.site.compiler.scopes import FunctionScope, is_generator
from torchtailor.site.compiler.statements import Statements


class Translator(Statements):
    """Translates definitions, and collects what they need in turn."""

    def definition(self, item: Definition) -> str:
        """A function or value at the top of a module, as one statement; classes are `class_code`."""
        node = self.sources.node(item)
        self._place = f"{item.module}.{item.name}"
        scope = FunctionScope(item.module)
        name = self.identifier(item)
        if isinstance(node, ast.FunctionDef):
            code = self.function(node, scope, name)
            if self._is_cached(node):
                return f"const {name} = $cache({code});"
            return code
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            return f"const {name} = {self.expression(node.value, scope)};"
        raise self._cannot(node, "this definition")

    def class_code(self, info: ClassInfo) -> str:
        """A class with the members that the program names."""
        item = info.definition
        base = self.need(info.base) if isinstance(info.base, Definition) else info.base or "null"
        scope = FunctionScope(item.module, owner=info)
        parts = []
        if info.enum:
            rows = [f"[{json.dumps(name)}, {self.expression(value, scope)}]" for name, value in info.attributes.items()]
            parts.append(f"members: [{', '.join(rows)}]")
        elif used := {name: value for name, value in info.attributes.items() if name in self.attributes}:
            rows = [f"{name}: {self.expression(value, scope)}" for name, value in used.items()]
            parts.append(f"attributes: {{{', '.join(rows)}}}")
        if info.data:
            parts.append(f"fields: {json.dumps(list(self.classes.fields(info)))}")
            if item in self.constructed and not self.classes.method(info, "__init__"):
                parts.append(f"make: {self._constructor(info)}")
        kinds: dict[str, list[str]] = {"methods": [], "getters": [], "kept": [], "statics": []}
        for method in info.methods.values():
            if self._wanted(info, method.name):
                self._place = f"{item.module}.{item.name}.{method.name}"
                kind = self._kind(method)
                if (
                    kind == "getters"
                    and (info.data or self.classes.method(info, "__hash__"))
                    and not is_generator(method)
                ):
                    kind = "kept"  # of objects that do not change
                code = self._method_code(method, scope, kind)
                kinds[kind].append(f"{RENAMED.get(method.name, method.name)}: {code}")
        parts += [f"{kind}: {{{', '.join(codes)}}}" for kind, codes in kinds.items() if codes]
        return f"const {self.identifier(item)} = $class({json.dumps(item.name)}, {base}, {{{', '.join(parts)}}});"

    def _method_code(self, method: ast.FunctionDef, scope: FunctionScope, kind: str) -> str:
        """A method; one that has no translation raises when it is called: it may only share the name of another."""
        place = self._place
        try:
            code = self.function(method, scope, "", method=kind)
        except NotCompilable as error:
            self.left_out[place] = str(error)
            return f"function () {{ throw $b.NotImplementedError({json.dumps(str(error))}); }}"
        self.left_out.pop(place, None)
        return code

    def _wanted(self, info: ClassInfo, name: str) -> bool:
        if name in ("__init__", "__post_init__"):
            return any(info in self.classes.bases(self.classes.info(one)) for one in self.constructed)
        return name in ("__str__", "__eq__", "__lt__", "__hash__") or name in self.attributes

    def _constructor(self, info: ClassInfo) -> str:
        """A function that sets every field of a data class, in their order."""
        fields = self.classes.fields(info)
        given = [f"{safe_name(name)} = {self._default(name, *row)}" for name, row in fields.items()]
        body = " ".join(f"this.{name} = {safe_name(name)};" for name in fields)
        after = " this.__post_init__();" if self.classes.method(info, "__post_init__") else ""
        return f"function ({', '.join(given)}) {{ {body}{after} }}"

    def _default(self, name: str, default: ast.expr | None, module: str) -> str:
        if isinstance(default, ast.Call) and ast.unparse(default.func).rpartition(".")[2] == "field":
            given = {word.arg: word.value for word in default.keywords}
            if "default_factory" in given:
                return f"{self.expression(given['default_factory'], FunctionScope(module))}()"
            default = given.get("default")
        return f"$missing({json.dumps(name)})" if default is None else self.expression(default, FunctionScope(module))
