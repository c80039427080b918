"""Compiles functions of this package, and all that they call, to one JavaScript program.

The page in a browser then answers with the very code that the command line runs: there is nothing to keep in step by
hand. Tests compare the two.
"""

from __future__ import annotations

import ast
import importlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from torchtailor.site.compiler.program import Definition, NotCompilable, Sources
from torchtailor.site.compiler.translate import Translator
from torchtailor.site.compiler.values import Encoder, archspec_targets

__all__ = ["NotCompilable", "Program", "compile_program"]

_MOST_ROUNDS = 12  # each finds names that the last one did not know; three or four do


@dataclass(frozen=True, slots=True)
class Program:
    """JavaScript that defines `NAME` with the compiled functions, and the values they start from."""

    code: str
    data: str
    definitions: tuple[str, ...]
    left_out: Mapping[str, str]  # methods that were not compiled, because only their name is used, and why


def compile_program(functions: Mapping[str, Callable[..., Any]], values: Mapping[str, Any]) -> Program:
    """Compile functions, by the names that the page calls them; each value becomes a constant of that name."""
    translator = Translator(Sources())
    entries = {name: Definition(one.__module__, one.__qualname__) for name, one in functions.items()}
    exported = {name: translator.need(item) for name, item in entries.items()}
    translator.constructed |= {entries[name] for name, one in functions.items() if isinstance(one, type)}
    before: object = None
    for _ in range(_MOST_ROUNDS):
        encoder = Encoder(translator)
        code = _everything(translator)
        data = {name: encoder.encode(value) for name, value in {**values, **_embedded(translator)}.items()}
        now = (len(translator.needed), len(translator.attributes), len(translator.constructed), len(encoder.classes))
        if now == before and translator.settled:
            break
        translator.settled = now == before
        before = now
    else:
        raise NotCompilable("the program does not come to an end")
    if "$archspec" in code:
        data["$archspec"] = archspec_targets()
    fields = {item: () if _enum(translator, item) else encoder.fields(_type(item)) for item in encoder.classes}
    rows = [f"[{translator.identifier(item)}, {json.dumps(names)}]" for item, names in fields.items()]
    embedded = "".join(
        f"$values[{json.dumps(name)}] = $data[{json.dumps(name)}];\n" for name in sorted(_embedded(translator))
    )
    exports = ", ".join(f"{name}: {identifier}" for name, identifier in exported.items())
    names = ", ".join(json.dumps(name) for name in values)
    whole = (
        f"{_asset('runtime.js')}\nconst $values = {{}};\n{code}\n"
        f"const $classes = [{', '.join(rows)}];\n"
        f"const $start = ($encoded) => {{ const $data = $decode_all($encoded, $classes);\n{embedded}"
        f"return {{ {exports}, values: Object.fromEntries([{names}].map((n) => [n, $data[n]])), to_json: $to_json, "
        f"from_json: $from_json }}; }};"
    )
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")
    return Program(whole, text, tuple(f"{item.module}.{item.name}" for item in translator.needed), translator.left_out)


def _everything(translator: Translator) -> str:
    """All that is needed, in the order in which Python would define it."""
    codes: dict[Definition, str] = {}
    while todo := [item for item in translator.needed if item not in codes]:
        for item in todo:
            codes[item] = _code(translator, item)
    lines = []
    for module in translator.sources.in_import_order({item.module for item in codes}):
        order = list(translator.sources.module(module).definitions)
        lines += [
            codes[item]
            for item in sorted((code for code in codes if code.module == module), key=lambda one: order.index(one.name))
        ]
    return "\n".join(lines)


def _code(translator: Translator, item: Definition) -> str:
    node = translator.sources.node(item)
    if isinstance(node, ast.ClassDef):
        return translator.class_code(translator.classes.info(item))
    if _is_embedded(node):
        return f"const {translator.identifier(item)} = () => $values[{json.dumps(_label(item))}];"
    return translator.definition(item)


def _is_embedded(node: ast.stmt) -> bool:
    """A kept function without arguments that reads one of the package's data files: its value is written instead."""
    return (
        isinstance(node, ast.FunctionDef)
        and any(ast.unparse(decorator) == "cache" for decorator in node.decorator_list)
        and not (node.args.args or node.args.kwonlyargs or node.args.vararg)
        and any(isinstance(one, ast.Constant) and str(one.value).endswith(".toml") for one in ast.walk(node))
    )


def _embedded(translator: Translator) -> dict[str, Any]:
    found = {}
    for item in translator.needed:
        if _is_embedded(translator.sources.node(item)):
            found[_label(item)] = getattr(importlib.import_module(item.module), item.name)()
    return found


def _label(item: Definition) -> str:
    return f"{item.module}.{item.name}"


def _type(item: Definition) -> type:
    found = getattr(importlib.import_module(item.module), item.name)
    assert isinstance(found, type)
    return found


def _enum(translator: Translator, item: Definition) -> bool:
    return translator.classes.info(item).enum


def _asset(name: str) -> str:
    return files("torchtailor.site").joinpath("assets", name).read_text("utf-8")
