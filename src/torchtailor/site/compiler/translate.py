"""Translates functions and classes of this package to JavaScript, statement by statement.

Only the Python that the package is written in: what has no translation is an error that names its place, never a
guess. Objects of Python that JavaScript lacks (dictionaries by value, sets, enums, data classes) are in
`assets/runtime.js`; names that begin with `$` are its helpers. Arguments by name are put in their places here, so that
calls are plain calls.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Sequence

from torchtailor.site.compiler.classes import Classes, ClassInfo
from torchtailor.site.compiler.names import (
    BUILTIN_METHODS,
    BUILTINS,
    CONSUMERS,
    EXTERNALS,
    RE_NAMES,
    RENAMED,
    RESERVED,
)
from torchtailor.site.compiler.program import Definition, External, NotCompilable, Sources, imported
from torchtailor.site.compiler.scopes import FunctionScope, is_generator, own_nodes, parameter_names

_BINARY: dict[type[ast.operator], str] = {
    ast.Add: "$add", ast.Sub: "$sub", ast.Mult: "$mul", ast.FloorDiv: "$floordiv", ast.Mod: "$mod",
    ast.BitOr: "$bor", ast.BitAnd: "$band",
}  # fmt: skip
_PLAIN: dict[type[ast.operator], str] = {ast.LShift: "<<", ast.RShift: ">>", ast.Div: "/"}
_ORDER: dict[type[ast.cmpop], str] = {ast.Lt: "$lt", ast.LtE: "$le", ast.Gt: "$gt", ast.GtE: "$ge"}


class Translator:
    """Translates definitions, and collects what they need in turn."""

    def __init__(self, sources: Sources) -> None:
        self.sources = sources
        self.needed: dict[Definition, None] = {}
        self.constructed: set[Definition] = set()
        self.attributes: set[str] = set()
        self.left_out: dict[str, str] = {}  # methods without a translation, and why
        self.classes = Classes(sources)
        self._place = ""
        self.settled = False  # while the classes of the program are still being found, their methods are not known

    # what is needed

    def need(self, item: Definition) -> str:
        self.needed.setdefault(item)
        return self.identifier(item)

    def identifier(self, item: Definition) -> str:
        """A name that is unique in the program: the definition's and its module's."""
        return f"{item.name}${item.module.removeprefix('torchtailor.').replace('.', '_')}"

    # definitions

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

    def _is_cached(self, node: ast.FunctionDef) -> bool:
        known = {ast.unparse(one).partition("(")[0].removeprefix("functools.") for one in node.decorator_list}
        if unknown := known - {"cache", "lru_cache", "property", "classmethod", "staticmethod", "cached_property"}:
            raise self._cannot(node, f"the decorator {unknown.pop()}")
        return bool(known & {"cache", "lru_cache"})

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

    def _kind(self, method: ast.FunctionDef) -> str:
        names = {ast.unparse(one) for one in method.decorator_list}
        self._is_cached(method)
        if "property" in names:
            return "getters"
        if "cached_property" in names:
            return "kept"
        return "statics" if names & {"classmethod", "staticmethod"} else "methods"

    def _constructor(self, info: ClassInfo) -> str:
        """A function that sets every field of a data class, in their order."""
        fields = self.classes.fields(info)
        given = [f"{_safe(name)} = {self._default(name, *row)}" for name, row in fields.items()]
        body = " ".join(f"this.{name} = {_safe(name)};" for name in fields)
        after = " this.__post_init__();" if self.classes.method(info, "__post_init__") else ""
        return f"function ({', '.join(given)}) {{ {body}{after} }}"

    def _default(self, name: str, default: ast.expr | None, module: str) -> str:
        if isinstance(default, ast.Call) and ast.unparse(default.func).rpartition(".")[2] == "field":
            given = {word.arg: word.value for word in default.keywords}
            if "default_factory" in given:
                return f"{self.expression(given['default_factory'], FunctionScope(module))}()"
            default = given.get("default")
        return f"$missing({json.dumps(name)})" if default is None else self.expression(default, FunctionScope(module))

    def function(self, node: ast.FunctionDef, outer: FunctionScope, name: str, method: str = "") -> str:
        """A function, or a method (`methods`, `getters`, `kept`, `statics`) whose first argument is `this`."""
        arguments = node.args
        if arguments.kwarg or (arguments.vararg and arguments.kwonlyargs):
            raise self._cannot(node, "arguments by any name")
        positional = [*arguments.posonlyargs, *arguments.args]
        bound = method and not any(ast.unparse(one) == "staticmethod" for one in node.decorator_list)
        first = positional.pop(0).arg if bound else None
        scope = self._function_scope(node, outer)
        count = len(positional) - len(arguments.defaults)
        shown = [_safe(one.arg) for one in positional[:count]]
        pairs = [*zip(positional[count:], arguments.defaults, strict=True)]
        shown += [f"{_safe(one.arg)} = {self.expression(value, outer)}" for one, value in pairs]
        for one, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
            value = f" = {self.expression(default, outer)}" if default is not None else ""
            shown.append(f"{_safe(one.arg)}{value}")
        if arguments.vararg:
            shown.append(f"...{_safe(arguments.vararg.arg)}")
        given = {one.arg for one in (*positional, *arguments.kwonlyargs)} | {first or ""}
        given |= {arguments.vararg.arg} if arguments.vararg else set()
        fresh = sorted(map(_safe, scope.names - given))
        head = f"const {_safe(first)} = this; " if first else ""
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

    # statements

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
                return f"{_safe(name)} = {self.function(node, scope, '')};"
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

    def _target(self, target: ast.expr, scope: FunctionScope) -> str:
        match target:
            case ast.Name(id=name):
                return _safe(name)
            case ast.Attribute(value=value, attr=name):
                self.attributes.add(name)
                return f"{self.expression(value, scope)}.{name}"
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                if any(isinstance(one, ast.Starred) for one in parts[:-1]):
                    raise self._cannot(target, "a starred target that is not the last")
                return f"[{', '.join(self._target(one, scope) for one in parts)}]"
            case ast.Starred(value=value):
                return f"...{self._target(value, scope)}"
        raise self._cannot(target, "this target")

    def _try(self, node: ast.Try, scope: FunctionScope) -> str:
        if node.orelse or node.finalbody:
            raise self._cannot(node, "try with else or finally")
        chain = ""
        for handler in node.handlers:
            kind = self.expression(handler.type, scope) if handler.type is not None else "$b.Exception"
            bind = f"{_safe(handler.name)} = $e; " if handler.name else ""
            chain += f"if ($is($e, {kind})) {{ {bind}{self.block(handler.body, scope)} }} else "
        return f"try {{ {self.block(node.body, scope)} }} catch ($e) {{ {chain}throw $e; }}"

    # expressions

    def condition(self, node: ast.expr, scope: FunctionScope) -> str:
        """An expression of which only its truth counts, as a JavaScript boolean."""
        match node:
            case ast.BoolOp(op=op, values=values):
                sign = " && " if isinstance(op, ast.And) else " || "
                return f"({sign.join(self.condition(one, scope) for one in values)})"
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
                pieces = ['""', *(self._piece(one, scope) for one in values)]
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
                return f"[{', '.join(self._item(one, scope) for one in parts)}]"
            case ast.Set(elts=parts):
                return f"$b.set([{', '.join(self._item(one, scope) for one in parts)}])"
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
                first, *rest = (self.expression(one, scope) for one in values)
                return f"{helper}({first}, {', '.join(f'() => {one}' for one in rest)})"
            case ast.Compare(left=left, ops=ops, comparators=others):
                return self._compare(left, ops, others, scope)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                yes, no = self.expression(body, scope), self.expression(orelse, scope)
                return f"({self.condition(test, scope)} ? {yes} : {no})"
            case ast.Lambda(args=arguments, body=body):
                names = [one.arg for one in arguments.args]
                inner = scope.inner(names)
                return f"(({', '.join(map(_safe, names))}) => ({self.expression(body, inner)}))"
            case ast.NamedExpr(target=ast.Name(id=name), value=value):
                return f"({_safe(name)} = {self.expression(value, scope)})"
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

    def _name(self, node: ast.expr, name: str, scope: FunctionScope) -> str:
        if scope.has(name):
            return _safe(name)
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

    def _attribute(self, node: ast.Attribute, scope: FunctionScope) -> str:
        if meaning := self._module_member(node, scope):
            return self._external(node, meaning) if isinstance(meaning, External) else self.need(meaning)
        self.attributes.add(node.attr)
        value = self.operand(node.value, scope)
        if node.attr in BUILTIN_METHODS or self._is_method(node.attr):
            return f"$bound({value}, {json.dumps(RENAMED.get(node.attr, node.attr))})"
        return f"{value}.{node.attr}"

    def _is_method(self, name: str) -> bool:
        return any(
            name in info.methods and self._kind(info.methods[name]) in ("methods", "statics")
            for info in self.classes.known
        )

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
        inner = scope.inner(one.id for one in ast.walk(first.target) if isinstance(one, ast.Name))
        tests = " && ".join(self.condition(test, inner) for test in first.ifs)
        inside = self._loop(rest, inner, body) if rest else body(inner)
        guarded = f"if ({tests}) {{ {inside} }}" if tests else inside
        return f"for (const {self._target(first.target, inner)} of {source}) {{ {guarded} }}"

    # calls

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
            shown = [self._item(one, scope) for one in node.args]
            rows = ", ".join(f"{key}: {self.expression(one, scope)}" for key, one in names.items())
            return f"{value}.{name}({', '.join([*shown, f'$kw({{{rows}}})'])})"
        if not names:
            shown = [self._argument(one, scope, consumes=function.attr == "join") for one in node.args]
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
        shown = ", ".join(["self", *(self._item(one, scope) for one in node.args)])
        return f"{base}.prototype.{function.attr}.call({shown})"

    def _cannot(self, node: ast.AST, what: str) -> NotCompilable:
        return NotCompilable(f"{self._place}, line {getattr(node, 'lineno', '?')}: no translation for {what}")


def _safe(name: str | None) -> str:
    return f"{name}_" if name in RESERVED else str(name)


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _is_super(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super"
