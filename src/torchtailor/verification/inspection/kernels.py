"""The functions inside GPU code by their bytes, the instances of a template together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from torchtailor.catalog.gpus import CodeKind
from torchtailor.code.binary.elf import ElfFile
from torchtailor.code.binary.source import ByteSource
from torchtailor.code.binary.symbols import all_symbols
from torchtailor.code.gpucode.demangle import demangled, template_of, unit_of
from torchtailor.code.gpucode.fatbin import Image, Part, decompress
from torchtailor.code.gpucode.kernels import functions_in_cubin
from torchtailor.core.documents import Bytes
from torchtailor.core.errors import BadInputError

REST = "(shared by functions)"  # headers, symbols and strings of cubins
_NO_FUNCTIONS = {CodeKind.PTX: "(PTX)", CodeKind.LTOIR: "(LTO-IR)"}
UNREAD = "(not unpacked)"  # code that only its own library can unpack
HOST = "host"
_PREFIX = 2  # parts of a name that say whose a function is: at::native


class KernelRow(msgspec.Struct, frozen=True):
    """All functions of one name or template in one library, for one architecture; bytes are those unpacked."""

    library: str
    code: str
    name: str
    unit: str
    functions: int
    text: Bytes
    constants: Bytes
    tables: Bytes

    @property
    def size(self) -> int:
        return self.text + self.constants + self.tables


def read_kernels(source: ByteSource, library: str, images: Iterable[Image]) -> Iterator[KernelRow]:
    """The functions of all cubins of a library, or of a file that is GPU code itself, as rows."""
    groups: dict[tuple[str, str, str], list[int]] = {}
    names: dict[str, tuple[str, str]] = {}  # a kernel is there for each architecture: its name is taken apart once

    def add(label: str, name: str, unit: str, *numbers: int) -> None:
        counted = groups.setdefault((label, name, unit), [0, 0, 0, 0])
        for column, number in enumerate(numbers):
            counted[column] += number

    for image in images:
        for piece, cubin, size in _cubins(source, image):
            label, found = piece.label, functions_in_cubin(cubin)
            if found is None:
                kind = piece.target.kind if piece.target else None
                add(label, _NO_FUNCTIONS.get(kind, UNREAD) if kind else UNREAD, "", 0, 0, 0, size)
                continue
            functions, rest = found
            for function, sizes in functions.items():
                if function not in names:
                    names[function] = template_of(demangled(function)), unit_of(function)
                add(label, *names[function], 1, sizes.code, sizes.constants, sizes.tables)
            add(label, REST, "", 0, 0, 0, rest)
    for (label, name, unit), counted in groups.items():
        yield KernelRow(library, label, name, unit, *counted)


def merged(rows: Iterable[KernelRow]) -> list[KernelRow]:
    """The rows of all libraries together, the largest first."""
    sums: dict[tuple[str, str, str], list[int]] = {}
    for row in rows:
        counted = sums.setdefault((row.code, row.name, row.unit), [0, 0, 0, 0])
        for column, number in enumerate((row.functions, row.text, row.constants, row.tables)):
            counted[column] += number
    together = (KernelRow("", *names, *counted) for names, counted in sums.items())
    return sorted(together, key=lambda row: (-row.size, row.name, row.code))


def host_functions(elf: ElfFile, library: str) -> Iterator[KernelRow]:
    """The functions of host code by the beginning of their names, as far as a symbol table names them."""
    named: dict[str, list[int]] = {}
    ends: dict[int, int] = {}  # one address may have several names
    for symbol in all_symbols(elf):
        if symbol.is_function and symbol.size and symbol.value not in ends:
            ends[symbol.value] = symbol.size
            counted = named.setdefault(_prefix(symbol.name), [0, 0])
            counted[0] += 1
            counted[1] += symbol.size
    for name, (functions, size) in named.items():
        yield KernelRow(library, HOST, name, "", functions, size, 0, 0)


def _prefix(symbol: str) -> str:
    """`at::native::*` of any function in that namespace; a C function stands for itself up to its first underscore."""
    plain = template_of(demangled(symbol))
    parts = plain.split("::")
    if len(parts) > 1:
        return "::".join([*parts[: min(_PREFIX, len(parts) - 1)], "*"])
    head, underscore, _ = plain.partition("_")
    return f"{head}_*" if head and underscore else plain


def _cubins(source: ByteSource, image: Image) -> Iterator[tuple[Image | Part, bytes, int]]:
    """The pieces of an image, unpacked, with their sizes; what cannot be unpacked has no bytes."""
    try:
        unpacked = decompress(source, image)
    except BadInputError:
        yield image, b"", image.raw_size
        return
    if not image.parts:
        yield image, unpacked, len(unpacked)
    for part in image.parts:
        yield part, unpacked[part.offset : part.offset + part.size], part.size
