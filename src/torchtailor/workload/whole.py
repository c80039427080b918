"""A library whose data is in a pack, with the data: what is looked for in sections is found where stock has it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from torchtailor.code.binary.elf import ElfFile
from torchtailor.code.binary.elf_headers import Section, SectionFlag, SectionType
from torchtailor.code.binary.source import BufferSource, Bytes, ByteSource, check_range
from torchtailor.code.gpucode.scan import UNWIND_TABLES
from torchtailor.core.errors import BadInputError
from torchtailor.workload.host_table import HostTable, host_table
from torchtailor.workload.pack import PACK_VARIABLE, Pack, open_pack


def packed_sections(elf: ElfFile) -> list[Section]:
    """The sections in which GPU code may be, and of which some bytes are in the library's pack alone."""
    table = host_table(elf)
    return [
        section
        for section in elf.sections
        if table and section.type == SectionType.NOBITS and section.allocated and not section.executable
        if not section.flags & SectionFlag.WRITE and section.name not in UNWIND_TABLES
        if any(start < section.memory_end and section.address < end for start, end in table.cold)
    ]


@contextmanager
def whole_elf(path: Path, elf: ElfFile) -> Iterator[ElfFile]:
    """The library with these sections as stock has them; BadInputError where no pack has their bytes."""
    table, packed = host_table(elf), packed_sections(elf)
    if table is None or not packed:
        yield elf
        return
    for place in _places(path, table):
        with open_pack(place) as pack:
            if all(pack.find(segment.key) for segment in table.segments):
                parts = [_content(elf, table, pack, section) for section in packed]
                break
    else:
        raise BadInputError(
            f"some of its data is in the pack {table.pack}, which was not found; name its folder in {PACK_VARIABLE}, "
            "or run `torchtailor restore`, and record again"
        )
    whole = ElfFile(elf.source)
    ends = {section.index: elf.size + sum(map(len, parts[:number])) for number, section in enumerate(packed)}
    whole.sections = tuple(
        replace(section, type=SectionType.PROGBITS, offset=ends[section.index]) if section.index in ends else section
        for section in elf.sections
    )
    whole.source = _Appended(elf.source, b"".join(parts))
    yield whole


def _places(path: Path, table: HostTable) -> Iterator[Path]:
    """The pack of a library, beside it and where the variable says."""
    named = [Path(part) for part in os.environ.get(PACK_VARIABLE, "").split(":") if part]
    beside = path.resolve().parent / table.place
    for folder in (beside, *named):
        inside = folder.glob(f"*/{table.pack}") if folder in named else ()
        yield from (place for place in (folder, folder / table.pack, *inside) if place.is_file())


def _content(elf: ElfFile, table: HostTable, pack: Pack, section: Section) -> bytearray:
    """The bytes of a section, from the pack, and over them those that the library has itself."""
    data = bytearray(section.size)

    def put(address: int, part: Bytes) -> None:
        start = max(section.address, address)
        end = min(section.memory_end, address + len(part))
        if start < end:
            data[start - section.address : end - section.address] = part[start - address : end - address]

    for segment in table.segments:
        row = pack.find(segment.key)
        if row and segment.address < section.memory_end and section.address < segment.end:
            at = segment.address
            for part in pack.pages(row):
                put(at, part)
                at += len(part)
    for load in elf.loads:
        put(load.address, elf.read(load.offset, load.file_size))
    for start, end, offset in table.hot:
        put(start, elf.read(offset, end - start))
    return data


class _Appended:
    """A source, and bytes behind it; no read and no search is in both."""

    def __init__(self, first: ByteSource, rest: bytes) -> None:
        self._first, self._rest, self.size = first, BufferSource(rest), first.size + len(rest)

    def read(self, offset: int, size: int) -> Bytes:
        check_range(offset, size, self.size)
        behind = offset - self._first.size
        return self._first.read(offset, size) if behind < 0 else self._rest.read(behind, size)

    def find(self, needle: bytes | tuple[bytes, ...], start: int, end: int) -> int:
        behind = start - self._first.size
        if behind < 0:
            return self._first.find(needle, start, end)
        found = self._rest.find(needle, behind, end - self._first.size)
        return found if found < 0 else found + self._first.size

    def keep(self, ranges: Sequence[tuple[int, int]]) -> None:
        pass  # everything is at hand

    def verify(self) -> None:
        self._first.verify()
