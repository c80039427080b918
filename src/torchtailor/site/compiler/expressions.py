"""Translates expressions: operators, comparisons, comprehensions, attributes."""

from __future__ import annotations

import ast
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from torchtailor.site.compiler.lookup import Lookup
from torchtailor.site.compiler.names import BUILTIN_METHODS, RENAMED, safe_name
from torchtailor.site.compiler.program import External
from torchtailor.site.compiler.scopes import FunctionScope

_BINARY: dict[type[ast.operator], str] = {
    ast.Add: "$add", ast.Sub: "$sub", ast.Mult: "$mul", ast.FloorDiv: "$floordiv", ast.Mod: "$mod",
    ast.BitOr: "$bor", ast.BitAnd: "$band",
}  # fmt: skip
_PLAIN: dict[type[ast.operator], str] = {ast.LShift: "<<", ast.RShift: ">>", ast.Div: "/"}
_ORDER: dict[type[ast.cmpop], str] = {ast.Lt: "$lt", ast.LtE: "$le", ast.Gt: "$gt", ast.GtE: "$ge"}


class Expressions(Lookup, ABC):
    """Translates an expression to one of JavaScript."""

    @abstractmethod
    def _call(self, node: ast.Call, scope: FunctionScope) -> str:
        """A call, which is translated in `calls`."""

    def _target(self, target: ast.expr, scope: FunctionScope) -> str:
        match target:
            case ast.Name(id=name):
                return safe_name(name)
            case ast.Attribute(value=value, attr=name):
                self.attributes.add(name)
                return f"{self.expression(value, scope)}.{name}"
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                if any(isinstance(part, ast.Starred) for part in parts[:-1]):
                    raise self._cannot(target, "a starred target that is not the last")
                return f"[{', '.join(self._target(part, scope) for part in parts)}]"
            case ast.Starred(value=value):
                return f"...{self._target(value, scope)}"
        raise self._cannot(target, "this target")

    def condition(self, node: ast.expr, scope: FunctionScope) -> str:
        """An expression of which only its truth counts, as a JavaScript boolean."""
        match node:
            case ast.BoolOp(op=op, values=values):
                sign = " && " if isinstance(op, ast.And) else " || "
                return f"({sign.join(self.condition(value, scope) for value in values)})"
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return f"!{self.condition(operand, scope)}"
            case ast.Compare():
                return self.expression(node, scope)
        return f"$t({self.operand(node, scope)})"

    def operand(self, node: ast.expr, scope: FunctionScope) -> str:
        """An expression that is used where it stands, so that a method in it need not be bound to its object."""
        if isinstance(node, ast.Attribute) and self._module_member(node, scope) is None:
            self.attributes.add(node.attr)
            return f"{self.operand(node.value, scope)}.{RENAMED.get(node.attr, node.attr)}"
        return self.expression(node, scope)

    def expression(self, node: ast.expr, scope: FunctionScope) -> str:  # noqa: PLR0912  (a case for each kind)
        match node:
            case ast.Constant(value=constant):
                return self._constant(node, constant)
            case ast.JoinedStr(values=values):
                pieces = ['""', *(self._piece(value, scope) for value in values)]
                return f"({' + '.join(pieces)})"
            case ast.Name(id=name):
                return self._name(node, name, scope)
            case ast.Attribute():
                return self._attribute(node, scope)
            case ast.Call():
                return self._call(node, scope)
            case ast.Subscript(value=value, slice=ast.Slice(lower=lower, upper=upper, step=None)):
                ends = [self.expression(one, scope) if one is not None else "null" for one in (lower, upper)]
                return f"$slice({self.operand(value, scope)}, {', '.join(ends)})"
            case ast.Subscript(value=value, slice=key) if not isinstance(key, ast.Slice):
                return f"$at({self.operand(value, scope)}, {self.operand(key, scope)})"
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                return f"[{', '.join(self._item(part, scope) for part in parts)}]"
            case ast.Set(elts=parts):
                return f"$b.set([{', '.join(self._item(part, scope) for part in parts)}])"
            case ast.Dict(keys=keys, values=values):
                return self._dict(keys, values, scope)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return f"!{self.condition(operand, scope)}"
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return f"-{self.expression(operand, scope)}"
            case ast.BinOp(left=left, op=op, right=right):
                return self._operate(op, self.expression(left, scope), self.expression(right, scope), node)
            case ast.BoolOp(op=op, values=values):
                helper = "$and" if isinstance(op, ast.And) else "$or"
                first, *rest = (self.expression(value, scope) for value in values)
                return f"{helper}({first}, {', '.join(f'() => {one}' for one in rest)})"
            case ast.Compare(left=left, ops=ops, comparators=others):
                return self._compare(left, ops, others, scope)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                yes, no = self.expression(body, scope), self.expression(orelse, scope)
                return f"({self.condition(test, scope)} ? {yes} : {no})"
            case ast.Lambda(args=arguments, body=body):
                names = [arg.arg for arg in arguments.args]
                inner = scope.inner(names)
                return f"(({', '.join(map(safe_name, names))}) => ({self.expression(body, inner)}))"
            case ast.NamedExpr(target=ast.Name(id=name), value=value):
                return f"({safe_name(name)} = {self.expression(value, scope)})"
            case ast.ListComp(elt=element, generators=generators):
                return self._array(generators, scope, lambda inner: self._item(element, inner))
            case ast.SetComp(elt=element, generators=generators):
                return f"$b.set({self._array(generators, scope, lambda inner: self.expression(element, inner))})"
            case ast.DictComp(generators=generators):

                def pair(inner: FunctionScope, row: ast.DictComp = node) -> str:
                    return f"[{self.expression(row.key, inner)}, {self.expression(row.value, inner)}]"

                return f"$b.dict({self._array(generators, scope, pair)})"
            case ast.GeneratorExp(elt=element, generators=generators):
                loop = self._loop(generators, scope, lambda inner: f"yield {self.expression(element, inner)};")
                return f"(function* () {{ {loop} }})()"
            case ast.Yield(value=value) if value is not None:
                return f"(yield {self.expression(value, scope)})"
            case ast.YieldFrom(value=value):
                return f"(yield* {self.expression(value, scope)})"
        raise self._cannot(node, type(node).__name__)

    def _constant(self, node: ast.expr, value: object) -> str:
        if value is None:
            return "null"
        if isinstance(value, bool | int | float | str):
            return json.dumps(value).replace("<", "\\u003c")
        raise self._cannot(node, f"the constant {value!r}")

    def _piece(self, node: ast.expr, scope: FunctionScope) -> str:
        """A part of an f-string."""
        if isinstance(node, ast.FormattedValue):
            if node.format_spec is not None or node.conversion not in (-1, ord("r")):
                raise self._cannot(node, f"the format of {ast.unparse(node)}")
            helper = "$str" if node.conversion == -1 else "$repr"
            return f"{helper}({self.operand(node.value, scope)})"
        return self.expression(node, scope)

    def _item(self, node: ast.expr, scope: FunctionScope) -> str:
        if isinstance(node, ast.Starred):
            return f"...{self.expression(node.value, scope)}"
        return self.expression(node, scope)

    def _attribute(self, node: ast.Attribute, scope: FunctionScope) -> str:
        if meaning := self._module_member(node, scope):
            return self._external(node, meaning) if isinstance(meaning, External) else self.need(meaning)
        self.attributes.add(node.attr)
        value = self.operand(node.value, scope)
        if node.attr in BUILTIN_METHODS or self._is_method(node.attr):
            return f"$bound({value}, {json.dumps(RENAMED.get(node.attr, node.attr))})"
        return f"{value}.{node.attr}"

    def _dict(self, keys: Sequence[ast.expr | None], values: Sequence[ast.expr], scope: FunctionScope) -> str:
        rows = []
        for key, value in zip(keys, values, strict=True):
            shown = self.expression(value, scope)
            rows.append(f"...{shown}.items()" if key is None else f"[{self.expression(key, scope)}, {shown}]")
        return f"$b.dict([{', '.join(rows)}])"

    def _operate(self, op: ast.operator, left: str, right: str, node: ast.AST, *, in_place: bool = False) -> str:
        if in_place and isinstance(op, ast.Add):
            return f"$iadd({left}, {right})"
        if type(op) in _BINARY:
            return f"{_BINARY[type(op)]}({left}, {right})"
        if type(op) in _PLAIN:
            return f"({left} {_PLAIN[type(op)]} {right})"
        raise self._cannot(node, type(op).__name__)

    def _compare(
        self, left: ast.expr, ops: Sequence[ast.cmpop], others: Sequence[ast.expr], scope: FunctionScope
    ) -> str:
        terms = [self.operand(one, scope) for one in (left, *others)]
        texts = [_is_text(one) for one in (left, *others)]
        if len(ops) == 1:
            return self._comparison(ops[0], terms[0], terms[1], text=any(texts))
        names = [f"$c{number}" for number in range(len(terms))]  # each is computed once
        parts = [self._comparison(op, names[at], names[at + 1], text=False) for at, op in enumerate(ops)]
        return f"(({', '.join(names)}) => {' && '.join(parts)})({', '.join(terms)})"

    def _comparison(self, op: ast.cmpop, a: str, b: str, *, text: bool) -> str:
        no = "!" if isinstance(op, ast.IsNot | ast.NotIn | ast.NotEq) else ""
        if isinstance(op, ast.Is | ast.IsNot) or (text and isinstance(op, ast.Eq | ast.NotEq)):
            return f"({a} {no or '='}== {b})"
        if isinstance(op, ast.In | ast.NotIn):
            return f"{no}$in({a}, {b})"
        return f"{no}$eq({a}, {b})" if type(op) not in _ORDER else f"{_ORDER[type(op)]}({a}, {b})"

    def _array(
        self, generators: Sequence[ast.comprehension], scope: FunctionScope, item: Callable[[FunctionScope], str]
    ) -> str:
        loop = self._loop(generators, scope, lambda inner: f"$r.push({item(inner)});")
        return f"(() => {{ const $r = []; {loop} return $r; }})()"

    def _loop(
        self, generators: Sequence[ast.comprehension], scope: FunctionScope, body: Callable[[FunctionScope], str]
    ) -> str:
        first, *rest = generators
        source = self.operand(first.iter, scope)
        inner = scope.inner(node.id for node in ast.walk(first.target) if isinstance(node, ast.Name))
        tests = " && ".join(self.condition(test, inner) for test in first.ifs)
        inside = self._loop(rest, inner, body) if rest else body(inner)
        guarded = f"if ({tests}) {{ {inside} }}" if tests else inside
        return f"for (const {self._target(first.target, inner)} of {source}) {{ {guarded} }}"


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)
