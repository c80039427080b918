"""Translates calls: arguments by name are put in their places, so that they are plain calls."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from torchtailor.site.compiler.expressions import Expressions
from torchtailor.site.compiler.names import BUILTINS, CONSUMERS, RENAMED
from torchtailor.site.compiler.program import Definition
from torchtailor.site.compiler.scopes import FunctionScope, parameter_names


class Calls(Expressions):
    """Translates calls of functions, methods, classes and what the runtime has."""

    def _call(self, node: ast.Call, scope: FunctionScope) -> str:
        function = node.func
        if (
            isinstance(function, ast.Subscript)
            and isinstance(function.value, ast.Name)
            and function.value.id in BUILTINS
        ):
            function = function.value  # list[str]()
        if isinstance(function, ast.Attribute) and _is_super(function.value):
            return self._super(node, function, scope)
        positional = list(node.args)
        names = {word.arg: word.value for word in node.keywords}
        if None in names:
            raise self._cannot(node, "arguments from a mapping")
        if isinstance(function, ast.Attribute) and self._module_member(function, scope) is None:
            return self._method_call(node, function, names, scope)
        called = self.expression(function, scope)
        if called == "$b.getattr" and len(positional) > 1 and isinstance(positional[1], ast.Constant):
            self.attributes.add(str(positional[1].value))
        if called.startswith("$"):
            return self._runtime_call(called, positional, names, scope)
        return f"{called}({self._arguments(node, positional, names, self._parameters(node, function, scope), scope)})"

    def _runtime_call(
        self, called: str, given: list[ast.expr], names: dict[str | None, ast.expr], scope: FunctionScope
    ) -> str:
        if called == "$replace":
            self.attributes |= {name or "" for name in names}
        consumes = called.removeprefix("$b.") in CONSUMERS
        shown = [self._argument(one, scope, consumes=consumes and len(given) == 1) for one in given]
        if names:
            rows = ", ".join(f"{name}: {self.expression(value, scope)}" for name, value in names.items())
            shown.append(f"$kw({{{rows}}})")
        return f"{called}({', '.join(shown)})"

    def _argument(self, node: ast.expr, scope: FunctionScope, *, consumes: bool) -> str:
        if consumes and isinstance(node, ast.GeneratorExp):
            return self._array(node.generators, scope, lambda inner: self.expression(node.elt, inner))
        return self._item(node, scope)

    def _method_call(
        self, node: ast.Call, function: ast.Attribute, names: dict[str | None, ast.expr], scope: FunctionScope
    ) -> str:
        self.attributes.add(function.attr)
        value = self.operand(function.value, scope)
        name = RENAMED.get(function.attr, function.attr)
        if names and function.attr in ("format", "split", "splitlines"):
            shown = [self._item(arg, scope) for arg in node.args]
            rows = ", ".join(f"{key}: {self.expression(one, scope)}" for key, one in names.items())
            return f"{value}.{name}({', '.join([*shown, f'$kw({{{rows}}})'])})"
        if not names:
            shown = [self._argument(arg, scope, consumes=function.attr == "join") for arg in node.args]
            return f"{value}.{name}({', '.join(shown)})"
        return f"{value}.{name}({self._arguments(node, node.args, names, self._method_parameters(node, name), scope)})"

    def _arguments(
        self,
        node: ast.Call,
        given: Sequence[ast.expr],
        names: dict[str | None, ast.expr],
        parameters: Sequence[str],
        scope: FunctionScope,
    ) -> str:
        """The arguments in their places; `undefined` stands for a default."""
        shown = [self._item(one, scope) for one in given]
        if not names:
            return ", ".join(shown)
        if any(isinstance(one, ast.Starred) for one in given):
            raise self._cannot(node, "arguments by name behind starred ones")
        rest = dict(names)
        for name in parameters[len(given) :]:
            shown.append(self.expression(rest.pop(name), scope) if name in rest else "undefined")
            if not rest:
                return ", ".join(shown)
        raise self._cannot(node, f"the argument {next(iter(rest))}")

    def _parameters(self, node: ast.Call, function: ast.expr, scope: FunctionScope) -> Sequence[str]:
        """The names of a function's or constructor's parameters in order."""
        if isinstance(function, ast.Name) and (local := scope.function(function.id)):
            return parameter_names(local)
        item: object = None
        if isinstance(function, ast.Name) and function.id == "cls" and scope.has("cls") and scope.owner:
            item = scope.owner.definition
        elif isinstance(function, ast.Name) and not scope.has(function.id):
            found = scope.imported(function.id)
            item = self.sources.follow(*found) if found else self.sources.meaning(scope.module, function.id)
        elif isinstance(function, ast.Attribute):
            item = self._module_member(function, scope)
        if not isinstance(item, Definition):
            if node.keywords:
                raise self._cannot(node, "arguments by name of a function that is not known here")
            return ()
        target = self.sources.node(item)
        if isinstance(target, ast.ClassDef):
            self.constructed.add(item)
            info = self.classes.info(item)
            made = self.classes.method(info, "__init__")
            return parameter_names(made)[1:] if made else tuple(self.classes.fields(info))
        return parameter_names(target) if isinstance(target, ast.FunctionDef) else ()

    def _method_parameters(self, node: ast.Call, name: str) -> Sequence[str]:
        """Those of a method, which must be the same in every class of the program that has one of that name."""
        words = {word.arg for word in node.keywords}
        known = {
            parameters
            for info in self.classes.known
            if name in info.methods and words <= set(parameters := parameter_names(info.methods[name])[1:])
        }
        if not self.settled:
            return ("",) * len(node.args) + tuple(word.arg or "" for word in node.keywords)
        if len(known) != 1:
            raise self._cannot(node, f"arguments by name of the method {name}, of which {len(known)} are known")
        return next(iter(known))

    def _super(self, node: ast.Call, function: ast.Attribute, scope: FunctionScope) -> str:
        owner = scope.owner
        if owner is None or node.keywords:
            raise self._cannot(node, "this use of super()")
        base = self.need(owner.base) if isinstance(owner.base, Definition) else owner.base
        shown = ", ".join(["self", *(self._item(arg, scope) for arg in node.args)])
        return f"{base}.prototype.{function.attr}.call({shown})"


def _is_super(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super"
