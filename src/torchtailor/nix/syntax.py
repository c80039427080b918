"""Nix source parsed with tree-sitter: bindings, selections, strings and comments, each with its line.

Every answer comes from the syntax tree, so comments and string contents are never mistaken for code.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

from torchtailor.core.extras import need_module

Value = str | bool | tuple[str, ...] | None
_STRINGS = ("string_expression", "indented_string_expression")
# The parser's time grows with the square of an expression's operators, and nothing can stop it: what has more of them
# than anybody writes is a syntax error.
_PARTS, _OPERATORS, _LONGEST = re.compile(r"[;{}]"), re.compile(r"[-.+*/<>=&|?!:@]"), 2000
_ATTRSETS = ("attrset_expression", "rec_attrset_expression")


@cache
def _parser() -> Any:
    tree_sitter, grammar = (
        need_module(name, extra="recipes", purpose="Recipes need") for name in ("tree_sitter", "tree_sitter_nix")
    )
    return tree_sitter.Parser(tree_sitter.Language(grammar.language()))


@dataclass(frozen=True, slots=True)
class TextLine:
    """A piece of text and its line number."""

    number: int
    text: str


@dataclass(frozen=True, slots=True)
class Binding:
    """`path = value;` with its line and its node."""

    path: tuple[str, ...]
    line: int
    node: Any

    @property
    def name(self) -> str:
        return self.path[-1]


@dataclass(frozen=True)
class NixSource:
    """A Nix file as a syntax tree."""

    text: str

    @cached_property
    def root(self) -> Any:
        text = "(" if any(len(_OPERATORS.findall(part)) > _LONGEST for part in _PARTS.split(self.text)) else self.text
        return _parser().parse(text.encode()).root_node

    @cached_property
    def _nodes(self) -> tuple[Any, ...]:
        return tuple(_walk(self.root))

    @cached_property
    def error_line(self) -> int | None:
        """The line of the first syntax error; None without one."""
        if not self.root.has_error:  # nothing but comments is no error to the parser
            return None if self.root.child_by_field_name("expression") is not None else 1
        wrong = list(_wrong(self.root))
        return min((_line(node) for node in wrong if not _trailing_comma(node)), default=None if wrong else 1)

    @cached_property
    def comments(self) -> tuple[TextLine, ...]:
        found = []
        for node in self._nodes:
            if node.type == "comment":
                for offset, text in enumerate(_text(node).splitlines()):
                    found.append(TextLine(_line(node) + offset, text.lstrip("#/* ").rstrip("*/ ")))
        return tuple(found)

    @property
    def head_comments(self) -> tuple[TextLine, ...]:
        """The comments above the code."""
        code = self.root.child_by_field_name("expression")
        first = _line(code) if code is not None else 0
        return tuple(comment for comment in self.comments if comment.number < first and comment.text.strip())

    @cached_property
    def bindings(self) -> tuple[Binding, ...]:
        """Every binding, in the order of the file."""
        return tuple(
            Binding(
                _attrpath(node.child_by_field_name("attrpath")),
                _line(node),
                node.child_by_field_name("expression"),
            )
            for node in self._nodes
            if node.type == "binding" and node.child_by_field_name("expression") is not None
        )

    @cached_property
    def formals(self) -> tuple[TextLine, ...]:
        """The names of the file's own arguments."""
        function = self.root.child_by_field_name("expression")
        formals = function.child_by_field_name("formals") if function is not None else None
        if formals is None:
            return ()
        names = [node.child_by_field_name("name") for node in formals.named_children if node.type == "formal"]
        return tuple(TextLine(_line(name), _text(name)) for name in names if _text(name))

    @cached_property
    def selections(self) -> tuple[TextLine, ...]:
        """`a.b.c` and bare variables, dotted, with their lines."""
        found = []
        for node in self._nodes:
            if node.type == "select_expression":
                base = node.child_by_field_name("expression")
                path = _attrpath(node.child_by_field_name("attrpath"))
                found.append(
                    TextLine(
                        _line(node),
                        ".".join((_text(base) if base.type == "variable_expression" else "", *path)),
                    )
                )
            elif node.type == "variable_expression":
                found.append(TextLine(_line(node), _text(node)))
        return tuple(found)

    @cached_property
    def paths(self) -> tuple[TextLine, ...]:
        """Path literals: `./file.nix`, `<nixpkgs>`."""
        kinds = ("path_expression", "spath_expression", "hpath_expression")
        return tuple(TextLine(_line(node), _text(node)) for node in self._nodes if node.type in kinds)

    @cached_property
    def strings(self) -> tuple[TextLine, ...]:
        """Every string, line by line."""
        return tuple(line for node in self._nodes if node.type in _STRINGS for line in self.lines(node))

    @cached_property
    def calls(self) -> tuple[tuple[str, int, Any], ...]:
        """Applications `function argument`: the function's dotted name, the line, the argument's node."""
        found = []
        for node in self._nodes:
            if node.type == "apply_expression":
                function = node.child_by_field_name("function")
                found.append((_dotted(function), _line(node), node.child_by_field_name("argument")))
        return tuple(found)

    def named(self, *names: str) -> tuple[Binding, ...]:
        """Bindings whose last name is one of these."""
        return tuple(binding for binding in self.bindings if binding.name in names)

    def last(self, *names: str) -> Binding | None:
        """The last binding of this name, which in a recipe is the effective one."""
        found = self.named(*names)
        return found[-1] if found else None

    def inside(self, node: Any) -> tuple[Binding, ...]:
        """The bindings of an attribute set, also through parentheses and the body of a function."""
        node = unwrap(node)
        if node is None or node.type not in _ATTRSETS:
            return ()
        start, end = node.start_byte, node.end_byte
        direct = []
        for binding in self.bindings:
            if start <= binding.node.start_byte and binding.node.end_byte <= end:
                owner = binding.node.parent
                while owner is not None and owner.type not in _ATTRSETS:
                    owner = owner.parent
                if owner is not None and owner.start_byte == start:
                    direct.append(binding)
        return tuple(direct)

    def below(self, outer: Binding) -> tuple[Binding, ...]:
        """The bindings anywhere in the value of another one."""
        start, end = outer.node.start_byte, outer.node.end_byte
        return tuple(b for b in self.bindings if start <= b.node.start_byte and b.node.end_byte <= end and b != outer)

    def code(self, node: Any) -> str:
        """An expression's text without its comments."""
        return " ".join(_text(leaf) for leaf in _walk(node) if leaf.child_count == 0 and leaf.type != "comment")

    @cached_property
    def code_text(self) -> str:
        """The file without its comments."""
        raw = self.text.encode()
        for node in reversed([node for node in self._nodes if node.type == "comment"]):
            raw = raw[: node.start_byte] + raw[node.end_byte :]
        return raw.decode()

    def returns(self, node: Any) -> bool:
        """Whether a node is part of what the file evaluates to, and not of its definitions."""
        body = unwrap(self.root.child_by_field_name("expression"))
        return body is not None and body.start_byte <= node.start_byte and node.end_byte <= body.end_byte

    @cached_property
    def returned_call(self) -> tuple[str, Any] | None:
        """The function and the first argument of the call that the file evaluates to."""
        node = unwrap(self.root.child_by_field_name("expression"))
        first = None
        while node is not None and node.type == "apply_expression":
            first = node.child_by_field_name("argument")
            node = node.child_by_field_name("function")
        return (_dotted(node), first) if first is not None else None

    def raw(self, node: Any) -> str:
        """An expression as it is written, on one line."""
        return " ".join(_text(node).split())

    def value(self, node: Any, depth: int = 0) -> Value:
        """A literal, or the literal that a name is bound to; None if it needs evaluation."""
        node = unwrap(node)
        if node is None or depth > 8:
            return None
        if node.type in _STRINGS:
            return "\n".join(line.text for line in self.lines(node)) if node.named_child_count else ""
        if node.type == "list_expression":
            items = [self.value(item, depth + 1) for item in node.named_children if item.type != "comment"]
            return tuple(item for item in items if isinstance(item, str))
        if node.type == "variable_expression":
            name = _text(node)
            if name in ("true", "false"):
                return name == "true"
            bound = next((binding for binding in self.bindings if binding.path == (name,)), None)
            return self.value(bound.node, depth + 1) if bound else None
        if node.type == "binary_expression":
            return self._combined(node, depth)
        return _text(node) if node.type in ("integer_expression", "float_expression") else None

    def _combined(self, node: Any, depth: int) -> Value:
        left = self.value(node.child_by_field_name("left"), depth + 1)
        right = self.value(node.child_by_field_name("right"), depth + 1)
        operator = _text(node.child_by_field_name("operator"))
        if operator == "+":
            return "".join(part for part in (left, right) if isinstance(part, str))
        if operator == "++":
            return tuple(item for part in (left, right) if isinstance(part, tuple) for item in part)
        return None

    def lines(self, node: Any) -> tuple[TextLine, ...]:
        """The lines of all strings in an expression, with interpolations resolved where possible."""
        found: list[TextLine] = []
        for string in _strings(unwrap(node)):
            current, number = "", _line(string)
            for part in string.named_children:
                if part.type == "interpolation":
                    inner = part.child_by_field_name("expression")
                    value = self.value(inner)
                    current += value if isinstance(value, str) else "${" + " ".join(_text(inner).split()) + "}"
                    continue
                if part.type != "string_fragment":
                    continue
                pieces = _text(part).split("\n")
                current += pieces[0]
                for offset, piece in enumerate(pieces[1:], start=1):
                    found.append(TextLine(number, current))
                    current, number = piece, part.start_point[0] + 1 + offset
            found.append(TextLine(number, current))
        return tuple(line for line in found if line.text.strip())


def unwrap(node: Any) -> Any:
    """The expression inside parentheses, functions and `let`."""
    while node is not None:
        if node.type == "parenthesized_expression":
            node = node.child_by_field_name("expression")
        elif node.type in ("function_expression", "let_expression", "with_expression", "assert_expression"):
            node = node.child_by_field_name("body")
        else:
            return node
    return None


def _walk(node: Any) -> Iterator[Any]:
    """All nodes in the order of the file; without recursion, since Nix files nest deeply."""
    stack = [node]
    while stack:
        current = stack.pop()
        yield current
        stack.extend(reversed(current.named_children))


def _wrong(node: Any) -> Iterator[Any]:
    """Nodes that the parser could not place or had to insert, such as a missing bracket."""
    stack = [node]
    while stack:
        current = stack.pop()
        if current.type == "ERROR" or current.is_missing:
            yield current
        if current.has_error:
            stack.extend(current.children)


def _trailing_comma(node: Any) -> bool:
    """`{ a, b, }:` is valid Nix, but the grammar reports a stray comma or a missing name."""
    owner = node.parent
    if node.is_missing and owner is not None and owner.type == "formal":
        return bool(owner.prev_sibling and owner.next_sibling and _text(owner.next_sibling) == "}")
    return _text(node) == "," and owner is not None and owner.type == "formals"


def _strings(node: Any) -> Iterator[Any]:
    """The outermost strings of an expression: both sides of `a + ''...''`, not those in interpolations."""
    if node is None:
        return
    if node.type in _STRINGS:
        yield node
        return
    for child in node.named_children:
        yield from _strings(child)


def _line(node: Any) -> int:
    return int(node.start_point[0]) + 1


def _text(node: Any) -> str:
    return bytes(node.text).decode() if node is not None else ""


def _attrpath(node: Any) -> tuple[str, ...]:
    return tuple(_text(child).strip('"') for child in node.named_children) if node is not None else ()


def _dotted(node: Any) -> str:
    """`pkgs.torch.override`; on the result of a call, `pkgs.torch.override().overrideAttrs`."""
    node = unwrap(node)
    if node is None:
        return ""
    if node.type == "select_expression":
        base = _dotted(node.child_by_field_name("expression"))
        return ".".join((base, *_attrpath(node.child_by_field_name("attrpath"))))
    if node.type == "apply_expression":
        return _dotted(node.child_by_field_name("function")) + "()"
    return _text(node) if node.type == "variable_expression" else ""
