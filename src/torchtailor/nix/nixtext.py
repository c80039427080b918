"""Python values as Nix, laid out as nixfmt does it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_'-]*")


class NixCode(str):
    """Nix that is written as it is."""

    __slots__ = ()


def nix_string(text: str) -> str:
    """Text between the quotes of a Nix string."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("${", "\\${").replace("\n", "\\n")


def nix_value(value: object, indent: int = 0) -> str:
    """A value at this indentation; empty collections and null are as short as nixfmt makes them."""
    inner = "  " * (indent + 1)
    if isinstance(value, NixCode):
        return value
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, str):
        return f'"{nix_string(value)}"'
    if isinstance(value, Mapping):
        lines = [f"{inner}{_name(key)} = {nix_value(item, indent + 1)};" for key, item in value.items()]
        return "\n".join(["{", *lines, "  " * indent + "}"]) if lines else "{ }"
    assert isinstance(value, Sequence)
    if len(value) < 2 and all(isinstance(item, str) for item in value):
        return f"[ {nix_value(value[0], indent)} ]" if value else "[ ]"
    return "\n".join(["[", *(f"{inner}{nix_value(item, indent + 1)}" for item in value), "  " * indent + "]"])


def _name(key: str) -> str:
    return key if _IDENTIFIER.fullmatch(key) else f'"{nix_string(key)}"'
