"""Translates functions, statement by statement."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from torchtailor.site.compiler.calls import Calls
from torchtailor.site.compiler.names import safe_name
from torchtailor.site.compiler.program import imported
from torchtailor.site.compiler.scopes import FunctionScope, is_generator, own_nodes


class Statements(Calls):
    """Translates a function and what is in it."""

    def function(self, node: ast.FunctionDef, outer: FunctionScope, name: str, method: str = "") -> str:
        """A function, or a method (`methods`, `getters`, `kept`, `statics`) whose first argument is `this`."""
        arguments = node.args
        if arguments.kwarg or (arguments.vararg and arguments.kwonlyargs):
            raise self._cannot(node, "arguments by any name")
        positional = [*arguments.posonlyargs, *arguments.args]
        bound = method and not any(ast.unparse(decorator) == "staticmethod" for decorator in node.decorator_list)
        first = positional.pop(0).arg if bound else None
        scope = self._function_scope(node, outer)
        count = len(positional) - len(arguments.defaults)
        shown = [safe_name(one.arg) for one in positional[:count]]
        pairs = [*zip(positional[count:], arguments.defaults, strict=True)]
        shown += [f"{safe_name(one.arg)} = {self.expression(value, outer)}" for one, value in pairs]
        for one, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
            value = f" = {self.expression(default, outer)}" if default is not None else ""
            shown.append(f"{safe_name(one.arg)}{value}")
        if arguments.vararg:
            shown.append(f"...{safe_name(arguments.vararg.arg)}")
        given = {one.arg for one in (*positional, *arguments.kwonlyargs)} | {first or ""}
        given |= {arguments.vararg.arg} if arguments.vararg else set()
        fresh = sorted(map(safe_name, scope.names - given))
        head = f"const {safe_name(first)} = this; " if first else ""
        head += f"let {', '.join(fresh)}; " if fresh else ""
        star = "*" if is_generator(node) else ""
        return f"function{star} {name}({', '.join(shown)}) {{ {head}{self.block(node.body, scope)} }}"

    def _function_scope(self, node: ast.FunctionDef, outer: FunctionScope) -> FunctionScope:
        scope = FunctionScope(outer.module, parent=outer, owner=outer.owner)
        arguments = node.args
        every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg]
        scope.names |= {one.arg for one in every if one is not None}
        for inner in own_nodes(node.body):
            if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
                scope.names.add(inner.id)
            elif isinstance(inner, ast.ExceptHandler) and inner.name:
                scope.names.add(inner.name)
            elif isinstance(inner, ast.FunctionDef):
                scope.names.add(inner.name)
                scope.functions[inner.name] = inner
            elif isinstance(inner, ast.Import | ast.ImportFrom):
                scope.imports |= imported(inner)
        return scope

    def block(self, body: Sequence[ast.stmt], scope: FunctionScope) -> str:
        return " ".join(code for line in body if (code := self.statement(line, scope)))

    def statement(self, node: ast.stmt, scope: FunctionScope) -> str:  # noqa: PLR0912  (a case for each kind)
        match node:
            case ast.Expr(value=ast.Constant()) | ast.Pass() | ast.Assert() | ast.Import() | ast.ImportFrom():
                return ""
            case ast.Expr():
                return f"{self.expression(node.value, scope)};"
            case ast.Assign(targets=targets, value=value):
                return self._assign(targets, self.expression(value, scope), scope)
            case ast.AnnAssign(target=target, value=value):
                return self._assign([target], self.expression(value, scope), scope) if value is not None else ""
            case ast.AugAssign(target=target, op=op, value=value):
                now = self._operate(op, self._loaded(target, scope), self.expression(value, scope), node, in_place=True)
                return self._assign([target], now, scope)
            case ast.Return(value=value):
                return f"return {self.expression(value, scope) if value is not None else 'null'};"
            case ast.If(test=test, body=body, orelse=orelse):
                rest = f" else {{ {self.block(orelse, scope)} }}" if orelse else ""
                return f"if ({self.condition(test, scope)}) {{ {self.block(body, scope)} }}{rest}"
            case ast.For(target=target, iter=source, body=body, orelse=[]):
                return (
                    f"for ({self._target(target, scope)} of {self.operand(source, scope)}) "
                    f"{{ {self.block(body, scope)} }}"
                )
            case ast.While(test=test, body=body, orelse=[]):
                return f"while ({self.condition(test, scope)}) {{ {self.block(body, scope)} }}"
            case ast.Raise(exc=value) if value is not None:
                return f"throw {self.expression(value, scope)};"
            case ast.Break():
                return "break;"
            case ast.Continue():
                return "continue;"
            case ast.FunctionDef(name=name):
                return f"{safe_name(name)} = {self.function(node, scope, '')};"
            case ast.Try():
                return self._try(node, scope)
            case ast.With(items=[ast.withitem(context_expr=ast.Call(args=kinds) as call)], body=body):
                if self.expression(call.func, scope) == "$suppress":
                    caught = ", ".join(self.expression(kind, scope) for kind in kinds)
                    return f"try {{ {self.block(body, scope)} }} catch ($e) {{ if (!$is($e, [{caught}])) throw $e; }}"
        raise self._cannot(node, type(node).__name__)

    def _assign(self, targets: Sequence[ast.expr], value: str, scope: FunctionScope) -> str:
        if len(targets) > 1:
            each = " ".join(self._assign([target], "$v", scope) for target in targets)
            return f"{{ const $v = {value}; {each} }}"
        target = targets[0]
        if isinstance(target, ast.Subscript):
            return f"$set({self.expression(target.value, scope)}, {self.expression(target.slice, scope)}, {value});"
        shown = self._target(target, scope)
        return f"{shown} = [...{value}];" if isinstance(target, ast.Tuple | ast.List) else f"{shown} = {value};"

    def _loaded(self, target: ast.expr, scope: FunctionScope) -> str:
        return self.expression(target, scope)

    def _try(self, node: ast.Try, scope: FunctionScope) -> str:
        if node.orelse or node.finalbody:
            raise self._cannot(node, "try with else or finally")
        chain = ""
        for handler in node.handlers:
            kind = self.expression(handler.type, scope) if handler.type is not None else "$b.Exception"
            bind = f"{safe_name(handler.name)} = $e; " if handler.name else ""
            chain += f"if ($is($e, {kind})) {{ {bind}{self.block(handler.body, scope)} }} else "
        return f"try {{ {self.block(node.body, scope)} }} catch ($e) {{ {chain}throw $e; }}"
