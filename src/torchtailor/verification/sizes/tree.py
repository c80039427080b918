"""The map of a page of sizes: every byte has its area, from packages down to kernels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

import msgspec

from torchtailor.verification.inspection.kernels import HOST as HOST_FUNCTIONS
from torchtailor.verification.inspection.kernels import KernelRow
from torchtailor.verification.inspection.measure import SizeRow, Sizes
from torchtailor.verification.inspection.parts import PLAIN_FILES, ByteClass
from torchtailor.verification.report.chart import OTHERS
from torchtailor.verification.result import HOST
from torchtailor.verification.sizes.compare import unversioned, unversioned_function

_SMALL = 0.0005  # of everything: what is smaller is drawn together
_UNNAMED = "(no symbol names it)"
_Path = tuple[str, ...]


class Node(msgspec.Struct):
    """One area of the map."""

    name: str
    size: int = 0
    old: int | msgspec.UnsetType = msgspec.UNSET
    colour: str = ""
    children: list[Node] = []


def tree_of(name: str, sizes: Sizes, old: Sizes | None, colours: Mapping[str, str]) -> Node:
    """Packages, their files, what is in them, and the kernels of that; colours are those of the chart's labels."""
    before = _areas(old) if old else {}
    top = Node(name)
    places: dict[_Path, Node] = {(): top}
    codes: dict[_Path, str] = {_path(row): row.code for row in sizes.rows}
    for path, size in _areas(sizes).items():
        node = places[path] = top if not path else Node(path[-1])
        node.size = size
        if old:
            node.old = before.get(path, 0)
        if path:
            places[path[:-1]].children.append(node)
        if len(path) > 2:
            code = codes[path[:3]]
            node.colour = colours.get(code) or colours.get(OTHERS if code else HOST, "host")
    _tidy(top, top.size * _SMALL)
    return top if len(top.children) != 1 else top.children[0]


def _areas(sizes: Sizes) -> Mapping[_Path, int]:
    """The bytes of every place, those that hold others before these."""
    areas: Counter[_Path] = Counter({(): 0})
    inside: dict[_Path, dict[tuple[str, str], None]] = {}
    for row in sizes.rows:
        path: _Path = _path(row)
        for depth in range(4):
            areas[path[:depth]] += row.size
        if row.kind in (ByteClass.GPU, ByteClass.HOST):
            inside.setdefault(path, {})[row.file, row.code if row.kind is ByteClass.GPU else HOST_FUNCTIONS] = None
    kernels: dict[tuple[str, str], list[KernelRow]] = {}
    for kernel in sizes.kernels:
        kernels.setdefault((kernel.library, kernel.code), []).append(kernel)
    for path, keys in inside.items():
        rows = [row for key in keys for row in kernels.get(key, ())]
        for name, size in _shares(rows, areas[path], as_named=path[-1] == ByteClass.HOST.value):
            areas[*path, name] += size
    return areas


def _path(row: SizeRow) -> tuple[str, str, str]:
    """Package, file and what of it; of the thousands of files without machine code, their class before the file."""
    package, file = row.package or "(no package)", unversioned(row.file)
    if row.kind in PLAIN_FILES:
        return (package, row.kind.value, file)
    return (package, file, row.code or row.kind.value)


def _shares(kernels: list[KernelRow], stored: int, *, as_named: bool) -> Iterator[tuple[str, int]]:
    """Kernels share what their code takes as it is stored, by their size unpacked; symbols name a part of host code."""
    whole = sum(row.size for row in kernels)
    share = max(whole, stored) if as_named else whole
    for row in kernels:
        yield unversioned_function(row.name), stored * row.size // (share or 1)
    if kernels and share > whole:
        yield _UNNAMED, stored - whole


def _tidy(node: Node, small: float) -> None:
    """The largest first, and what cannot be seen together; a colour for each, that of its largest part."""
    node.children.sort(key=lambda child: -child.size)
    rest = [child for child in node.children if child.size < small]
    if len(rest) > 1:
        node.children = [child for child in node.children if child.size >= small]
        together = Node(f"{len(rest)} smaller", sum(child.size for child in rest), colour=rest[0].colour)
        if node.old is not msgspec.UNSET:
            together.old = sum(child.old for child in rest if child.old is not msgspec.UNSET)
        node.children.append(together)
    for child in node.children:
        _tidy(child, small)
        if not child.colour:
            child.colour = max(_colours(child).items(), key=lambda pair: pair[1], default=("host", 0))[0]


def _colours(node: Node) -> Counter[str]:
    sizes: Counter[str] = Counter()
    for child in node.children:
        sizes[child.colour] += child.size
    return sizes
