"""Names that the translation knows: builtins, functions of the standard library, words that JavaScript reserves."""

from __future__ import annotations

BUILTINS = frozenset(
    [
        "tuple",
        "list",
        "set",
        "frozenset",
        "dict",
        "sorted",
        "max",
        "min",
        "sum",
        "any",
        "all",
        "len",
        "str",
        "int",
        "float",
        "bool",
        "repr",
        "enumerate",
        "zip",
        "map",
        "filter",
        "range",
        "reversed",
        "iter",
        "next",
        "isinstance",
        "type",
        "getattr",
        "hash",
        "id",
        "abs",
        "round",
        "object",
        "Exception",
        "ValueError",
        "KeyError",
        "TypeError",
        "IndexError",
        "LookupError",
        "AssertionError",
        "NotImplementedError",
    ]
)
EXTERNALS = {
    ("contextlib", "suppress"): "$suppress",
    ("collections", "Counter"): "$Counter",
    ("dataclasses", "replace"): "$replace",
    ("difflib", "get_close_matches"): "$close_matches",
    ("functools", "cache"): "$cache",
    ("html", "escape"): "$escape",
    ("json", "dumps"): "$dumps",
    ("msgspec.structs", "replace"): "$replace",
    ("shlex", "quote"): "$quote",
    ("archspec.cpu", "TARGETS"): "$archspec",
}
RE_NAMES = frozenset(
    [
        "compile",
        "sub",
        "search",
        "match",
        "fullmatch",
        "findall",
        "finditer",
        "split",
        "escape",
        "IGNORECASE",
        "MULTILINE",
        "DOTALL",
    ]
)
# Methods that JavaScript's own strings and arrays have under the same name with another meaning.
RENAMED = {"split": "py_split", "replace": "py_replace", "sort": "py_sort", "pop": "py_pop"}
BUILTIN_METHODS = frozenset(
    [
        "index",
        "get",
        "join",
        "lower",
        "upper",
        "strip",
        "append",
        "add",
        "items",
        "values",
        "keys",
        "startswith",
        "endswith",
    ]
)
RESERVED = frozenset(
    [
        "arguments",
        "await",
        "break",
        "case",
        "catch",
        "class",
        "const",
        "continue",
        "debugger",
        "default",
        "delete",
        "do",
        "else",
        "enum",
        "eval",
        "export",
        "extends",
        "false",
        "finally",
        "for",
        "function",
        "if",
        "implements",
        "import",
        "in",
        "instanceof",
        "interface",
        "let",
        "new",
        "null",
        "package",
        "private",
        "protected",
        "public",
        "return",
        "static",
        "super",
        "switch",
        "this",
        "throw",
        "true",
        "try",
        "typeof",
        "undefined",
        "var",
        "void",
        "while",
        "with",
        "yield",
    ]
)
CONSUMERS = frozenset(
    ["tuple", "list", "set", "frozenset", "sorted", "max", "min", "sum", "dict"]
)  # read all they are given


def safe_name(name: str | None) -> str:
    """A name of Python that JavaScript takes."""
    return f"{name}_" if name in RESERVED else str(name)
