"""Names of C++ functions as people write them."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from functools import cache

_ANONYMOUS = "(anonymous namespace)"
_UNIT = re.compile(r"_GLOBAL__N__[0-9a-f]{8}_\d+_(\w+?)_(cu|cpp|cc)_[0-9a-f]{8}")
_INTERNAL = re.compile(r"__?nv_static_\d+__[0-9a-f]{8}_\d+_(\w+?)_(cu|cpp|cc)_[0-9a-f]{8}(?:_\d+)?")


def demangled(name: str) -> str:
    """A function's name with its types; as it is where it is no C++ name, or this system has no C++ library."""
    if not name.startswith("_Z") or (demangle := _demangler()) is None:
        return name
    return demangle(name.encode()) or name


def template_of(name: str) -> str:
    """`void at::native::fill<float, 4>(int, float*)` -> `at::native::fill`: what all instances of a template share."""
    text = name.replace(_ANONYMOUS, "{anonymous}")
    kept: list[str] = []
    depth = 0
    for position, letter in enumerate(text):
        if letter == "<" and not text[:position].endswith("operator"):
            depth += 1
        elif letter == ">" and depth and text[position - 1] != "-":
            depth -= 1
        elif depth == 0:
            if letter == "(" and not text[:position].endswith("operator"):
                break
            kept.append(letter)
    plain = "".join(kept).strip()
    head, _, last = plain.rpartition(" ")
    plain = plain if head.endswith("operator") else last or plain
    return (plain or name).replace("{anonymous}", _ANONYMOUS)


def unit_of(name: str) -> str:
    """The source file that nvcc wrote into the name of a function of internal linkage: `Sort.cu`; empty elsewhere."""
    match = _UNIT.search(name) or _INTERNAL.search(name)
    return f"{match[1]}.{match[2]}" if match else ""


@cache
def _demangler() -> Callable[[bytes], str] | None:
    try:
        library = ctypes.CDLL("libstdc++.so.6")
        free = ctypes.CDLL(None).free
    except OSError:
        return None
    function = library.__cxa_demangle
    function.restype = ctypes.c_void_p
    function.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int)]
    free.argtypes = [ctypes.c_void_p]

    def demangle(name: bytes) -> str:
        status = ctypes.c_int()
        text = function(name, None, None, ctypes.byref(status))
        if not text:
            return ""
        try:
            return ctypes.string_at(text).decode("utf-8", "backslashreplace")
        finally:
            free(text)

    return demangle
