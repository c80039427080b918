"""The code of one library as a table of functions: from its symbols, its unwind tables, and what lies between."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from torchtailor.code.binary.elf import ElfFile
from torchtailor.code.binary.elf_headers import ElfMachine, FileType, Section, SectionType
from torchtailor.core.errors import BadInputError

Addresses = npt.NDArray[np.int64]

SYMBOL = np.dtype(
    [("name", "<u4"), ("info", "u1"), ("other", "u1"), ("section", "<u2"), ("address", "<i8"), ("size", "<i8")]
)
RELA = np.dtype([("place", "<i8"), ("type", "<u4"), ("symbol", "<u4"), ("addend", "<i8")])

_OBJECT, _FUNC, _FILE, _IFUNC = 1, 2, 4, 10
_LOCAL = 0
_UNDEFINED = 0


class FunctionOrigin:
    """How the bounds of a function are known (stored as one byte per function)."""

    SYMBOL = 0
    FRAME = 1  # the unwind table only: the function has no name
    GAP = 2  # between functions: padding, hand-written assembly, or data


@dataclass(frozen=True, slots=True)
class Functions:
    """All functions in the order of their addresses, column by column; they do not overlap."""

    starts: Addresses
    ends: Addresses
    origins: npt.NDArray[np.uint8]
    name_tables: npt.NDArray[np.uint8]  # 0: none, 1: .symtab, 2: .dynsym
    name_offsets: npt.NDArray[np.uint32]
    file_offsets: npt.NDArray[np.uint32]  # name of the source file in .symtab's strings, for local functions; 0: none

    def __len__(self) -> int:
        return len(self.starts)

    def index_at(self, address: int) -> int:
        """The function that covers an address, or -1."""
        found = int(np.searchsorted(self.starts, address, side="right")) - 1
        return found if found >= 0 and address < self.ends[found] else -1

    def indices_at(self, addresses: Addresses) -> npt.NDArray[np.int64]:
        """`index_at` for many addresses."""
        found = np.searchsorted(self.starts, addresses, side="right").astype(np.int64) - 1
        if not len(self.starts):
            return found
        inside = (found >= 0) & (addresses < self.ends[np.maximum(found, 0)])
        return np.where(inside, found, -1)


class CodeImage:
    """A mapped ELF library or program, and the questions the analysis of host code has for it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("rb") as file:
            if file.seek(0, 2) == 0:
                raise BadInputError(f"{path} is empty.", "Fetch it again.")
            self.data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self.elf = ElfFile.from_buffer(self.data)
        if self.elf.header.type is FileType.RELOCATABLE:
            raise BadInputError(f"{path} is an object file that was not linked.", "Give a shared library or a program.")

    def __reduce__(self) -> tuple[Callable[[Path], CodeImage], tuple[Path]]:
        return _mapped_once, (self.path,)

    @property
    def machine(self) -> ElfMachine:
        return self.elf.machine

    @cached_property
    def code_sections(self) -> tuple[Section, ...]:
        """Sections with instructions of the library itself; stubs that only jump are left out."""
        return tuple(
            sorted(
                (
                    section
                    for section in self.elf.sections
                    if section.executable and section.in_file and not section.name.startswith(".plt")
                ),
                key=lambda section: section.address,
            )
        )

    def bytes_at(self, start: int, end: int) -> bytes:
        """The instructions of an address range, which must lie in the file."""
        offset = self.elf.offset_of(start)
        if offset is None or offset + end - start > len(self.data):
            raise BadInputError(f"{self.path}: the code at {start:#x} is not in the file.", "Fetch it again.")
        return self.data[offset : offset + end - start]

    def records(self, section: Section | None, shape: np.dtype[Any]) -> npt.NDArray[Any]:
        """A section as a table; empty where there is no such section."""
        if section is None or not section.in_file:
            return np.empty(0, shape)
        count = section.size // shape.itemsize
        return np.frombuffer(self.data, shape, count, section.offset)

    # -- symbols --------

    @cached_property
    def symtab(self) -> Section | None:
        return next((s for s in self.elf.sections if s.type == SectionType.SYMTAB), None)

    @cached_property
    def dynsym(self) -> Section | None:
        return next((s for s in self.elf.sections if s.type == SectionType.DYNSYM), None)

    @property
    def stripped(self) -> bool:
        """Whether only the exported functions have names."""
        return self.symtab is None

    def _name_table(self, table: int) -> Section | None:
        symbols = {1: self.symtab, 2: self.dynsym}.get(table)
        if symbols is None or symbols.link >= len(self.elf.sections):
            return None
        return self.elf.sections[symbols.link]

    def text_at(self, table: int, offset: int) -> str:
        """A name from the strings of .symtab (1) or .dynsym (2)."""
        strings = self._name_table(table)
        if strings is None or offset >= strings.size:
            return ""
        start = strings.offset + offset
        end = self.data.find(b"\0", start, strings.file_end)
        return self.data[start : end if end >= 0 else strings.file_end].decode("utf-8", "replace")

    def name_of(self, index: int) -> str:
        """The (mangled) name of a function; empty where it has none."""
        table = int(self.functions.name_tables[index])
        return self.text_at(table, int(self.functions.name_offsets[index])) if table else ""

    def source_of(self, index: int) -> str:
        """The source file a local function was compiled from; empty where that is not known."""
        offset = int(self.functions.file_offsets[index])
        return self.text_at(1, offset) if offset else ""

    @cached_property
    def _all_symbols(self) -> tuple[_Symbols, ...]:
        """The defined functions and objects of .symtab (1) and .dynsym (2)."""
        tables = []
        for table, section in ((1, self.symtab), (2, self.dynsym)):
            symbols = self.records(section, SYMBOL)
            kind = symbols["info"] & 15
            positions = np.maximum.accumulate(np.where(kind == _FILE, np.arange(len(symbols)), 0))
            # A local symbol belongs to the last file named before it. Linkers put hidden functions, which they make
            # local, after all others and so behind the last file: what stands there has no file we know.
            known = (symbols["info"] >> 4 == _LOCAL) & (positions != positions.max(initial=0))
            files = np.where(known, symbols["name"][positions], 0)
            wanted = np.isin(kind, (_OBJECT, _FUNC, _IFUNC)) & (symbols["section"] != _UNDEFINED)
            if table == 2 or not len(symbols):
                files = np.zeros(len(symbols), np.uint32)
            tables.append(_Symbols(table, symbols[wanted], files[wanted].astype(np.uint32)))
        return tuple(tables)

    @cached_property
    def objects(self) -> DataObjects:
        """The named data of the library, in the order of addresses."""
        rows = [symbols.of_kinds(_OBJECT) for symbols in self._all_symbols]
        starts = np.concatenate([row.records["address"] for row in rows])
        order = np.argsort(starts, kind="stable")
        return DataObjects(
            starts[order],
            np.concatenate([row.records["size"] for row in rows])[order],
            np.concatenate([np.full(len(row.records), row.table, np.uint8) for row in rows])[order],
            np.concatenate([row.records["name"] for row in rows])[order],
            np.concatenate([row.files for row in rows])[order],
        )

    def object_name(self, index: int) -> str:
        """The name of a data object; empty for none."""
        if index < 0:
            return ""
        return self.text_at(int(self.objects.name_tables[index]), int(self.objects.name_offsets[index]))

    def object_source(self, index: int) -> str:
        offset = int(self.objects.file_offsets[index])
        return self.text_at(1, offset) if offset else ""

    @cached_property
    def _exported(self) -> frozenset[int]:
        return frozenset(self._all_symbols[1].of_kinds(_FUNC, _IFUNC).records["address"].tolist())

    def is_exported(self, function: int) -> bool:
        """Whether other libraries can call a function by its name."""
        return int(self.functions.starts[function]) in self._exported

    @cached_property
    def resolvers(self) -> frozenset[int]:
        """Addresses of IFUNC resolvers: the loader runs them while it relocates the library."""
        return frozenset(
            int(address) for symbols in self._all_symbols for address in symbols.of_kinds(_IFUNC).records["address"]
        )

    @cached_property
    def imports(self) -> frozenset[str]:
        """Names that other libraries must define."""
        symbols = self.records(self.dynsym, SYMBOL)
        wanted = symbols["name"][(symbols["section"] == _UNDEFINED) & (symbols["name"] != 0)]
        return frozenset(self.text_at(2, int(offset)) for offset in wanted)

    # -- functions --------

    @cached_property
    def functions(self) -> Functions:
        """Every byte of code belongs to exactly one row."""
        rows = [symbols.of_kinds(_FUNC, _IFUNC) for symbols in self._all_symbols]
        frame_starts, frame_sizes = frame_ranges(self.elf, self.data)
        frames = len(frame_starts)
        blank = np.zeros(frames, np.uint32)
        counts = [len(row.records) for row in rows]
        return _table(
            self.code_sections,
            np.concatenate([*(row.records["address"] for row in rows), frame_starts]).astype(np.int64),
            np.concatenate([*(row.records["size"] for row in rows), frame_sizes]).astype(np.int64),
            (
                np.repeat(np.array([FunctionOrigin.SYMBOL, FunctionOrigin.FRAME], np.uint8), [sum(counts), frames]),
                np.repeat(np.array([1, 2, 0], np.uint8), [*counts, frames]),
                np.concatenate([*(row.records["name"] for row in rows), blank]).astype(np.uint32),
                np.concatenate([*(row.files for row in rows), blank]).astype(np.uint32),
            ),
        )


@dataclass(frozen=True, slots=True)
class _Symbols:
    """Symbols of one table with the source files of the local ones."""

    table: int
    records: npt.NDArray[Any]
    files: npt.NDArray[np.uint32]

    def of_kinds(self, *kinds: int) -> _Symbols:
        wanted = np.isin(self.records["info"] & 15, kinds)
        return _Symbols(self.table, self.records[wanted], self.files[wanted])


@dataclass(frozen=True, slots=True)
class DataObjects:
    """Named data, column by column."""

    starts: Addresses
    sizes: Addresses
    name_tables: npt.NDArray[np.uint8]
    name_offsets: npt.NDArray[np.uint32]
    file_offsets: npt.NDArray[np.uint32]

    def index_at(self, address: int) -> int:
        """The object that covers an address, or -1."""
        found = int(np.searchsorted(self.starts, address, side="right")) - 1
        while found >= 0 and self.starts[found] + max(int(self.sizes[found]), 1) <= address:
            # an object of no size may stand between a larger one's start and the address
            if self.sizes[found] or found == 0:
                return -1
            found -= 1
        return found


def _table(
    sections: tuple[Section, ...], starts: Addresses, sizes: Addresses, columns: tuple[npt.NDArray[Any], ...]
) -> Functions:
    """Functions that do not overlap, and the gaps between them, section by section.

    `columns` are origin, table of the name, name and source file; a blank row of them describes a gap.
    """
    parts: list[list[npt.NDArray[Any]]] = []
    for section in sections:
        inside = (starts >= section.address) & (starts < section.memory_end)
        named = columns[1][inside] > 0
        order = np.lexsort((-sizes[inside], ~named, starts[inside]))
        first, size = starts[inside][order], sizes[inside][order]
        rest = [column[inside][order] for column in columns]
        if len(first):
            # one row per address: a symbol gives the name, and the largest of all sizes given for it counts
            fresh = np.concatenate(([True], first[1:] != first[:-1]))
            size = np.maximum.reduceat(size, np.flatnonzero(fresh))
            first, rest = first[fresh], [column[fresh] for column in rest]
            # an unwind entry in the middle of a named function is a part of it
            reach = np.maximum.accumulate(np.where(rest[1] > 0, first + size, 0))
            apart = (rest[1] > 0) | np.concatenate(([True], first[1:] >= reach[:-1]))
            first, size, rest = first[apart], size[apart], [column[apart] for column in rest]
        following = np.concatenate((first[1:], [section.memory_end])).astype(np.int64)
        last = np.where(size > 0, np.minimum(first + size, following), following)
        gap_starts = np.concatenate(([section.address], last)).astype(np.int64)
        gap_ends = np.concatenate((first, [section.memory_end])).astype(np.int64)
        gaps = gap_starts < gap_ends
        blanks = [np.zeros(int(gaps.sum()), column.dtype) for column in rest]
        blanks[0] += FunctionOrigin.GAP
        parts.append(
            [
                np.concatenate((first, gap_starts[gaps])),
                np.concatenate((last, gap_ends[gaps])),
                *(np.concatenate(pair) for pair in zip(rest, blanks, strict=True)),
            ]
        )
    if not parts:
        empty = np.empty(0, np.int64)
        return Functions(empty, empty, *(column[:0] for column in columns))
    whole = [np.concatenate(column) for column in zip(*parts, strict=True)]
    order = np.argsort(whole[0], kind="stable")
    return Functions(*(column[order] for column in whole))


@lru_cache(maxsize=1)
def _mapped_once(path: Path) -> CodeImage:
    """In a worker process that gets many shares of one library."""
    return CodeImage(path)


_PCREL_SDATA4 = 0x1B  # what every compiler of today writes for position-independent code
_DATAREL_SDATA4 = 0x3B
_UDATA4 = 0x03


def frame_ranges(elf: ElfFile, data: mmap.mmap) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Start and size of every function with an unwind entry, through the sorted table in .eh_frame_hdr.

    Anything unusual in the tables gives no functions rather than wrong ones: bounds then come from symbols.
    """
    nothing = np.empty(0, np.int64), np.empty(0, np.int64)
    header, frames = elf.section(".eh_frame_hdr"), elf.section(".eh_frame")
    if header is None or frames is None or not header.in_file or not frames.in_file or header.size < 12:
        return nothing
    version, pointer_kind, count_kind, table_kind = data[header.offset : header.offset + 4]
    if (version, pointer_kind, count_kind, table_kind) != (1, _PCREL_SDATA4, _UDATA4, _DATAREL_SDATA4):
        return nothing
    count = int.from_bytes(data[header.offset + 8 : header.offset + 12], "little")
    count = min(count, (header.size - 12) // 8)
    table = np.frombuffer(data, "<i4", count * 2, header.offset + 12).reshape(count, 2).astype(np.int64)
    starts = table[:, 0] + header.address
    entries = table[:, 1] + header.address - frames.address  # offsets inside .eh_frame
    inside = (entries >= 0) & (entries + 16 <= frames.size)
    starts, entries = starts[inside], entries[inside]
    section = np.frombuffer(data, np.uint8, frames.size, frames.offset)
    sizes = np.zeros(len(entries), np.int64)
    for byte in range(4):  # length, CIE pointer, first address, then the size: all four bytes each
        sizes |= section[entries + 12 + byte].astype(np.int64) << (8 * byte)
    usual = section[entries] != 0xFF  # a 64-bit entry would begin with 0xffffffff
    return starts[usual], sizes[usual]
