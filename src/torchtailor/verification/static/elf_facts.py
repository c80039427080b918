"""What the loader will make of a library: its segments, what it needs from others, from which glibc."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from torchtailor.catalog import Dotted
from torchtailor.code.binary.elf import ElfFile
from torchtailor.code.binary.elf_headers import DynamicTag, SegmentType
from torchtailor.core.errors import BadInputError

_WRITE, _EXECUTE = 2, 1  # PF_W, PF_X
_VERNEED, _VERNEED_COUNT = 0x6FFFFFFE, 0x6FFFFFFF
_NEED = struct.Struct("<HHIII")
_AUX = struct.Struct("<IHHII")
_MAX_NAME = 4096
_GLIBC = re.compile(r"GLIBC_(\d+\.\d+(?:\.\d+)?)")
EXECUTABLE_STACK = "it asks for an executable stack, which glibc 2.41 refuses"
_RELR_VERSION, _RELR_GLIBC = "GLIBC_ABI_DT_RELR", Dotted("2.36")  # of packed relocations


@dataclass(frozen=True, slots=True)
class ElfFacts:
    """One library, as the loader sees it."""

    machine: str
    soname: str
    needed: tuple[str, ...]
    search: tuple[str, ...]  # RPATH or RUNPATH, in order
    versions: tuple[str, ...]  # of symbols it takes from others: GLIBC_2.28, GLIBCXX_3.4.26
    problems: tuple[str, ...]

    @property
    def glibc(self) -> Dotted | None:
        """The oldest glibc that has all symbols it needs."""
        found = [Dotted(match[1]) for version in self.versions if (match := _GLIBC.fullmatch(version))]
        found += [_RELR_GLIBC for version in self.versions if version == _RELR_VERSION]
        return max(found, default=None)


def read_elf(elf: ElfFile) -> ElfFacts:
    """Read the headers and the dynamic table."""
    strings = _Strings(elf)
    names = {
        tag: tuple(strings.at(entry.value) for entry in elf.dynamic if entry.tag == tag)
        for tag in (DynamicTag.SONAME, DynamicTag.NEEDED, DynamicTag.RPATH, DynamicTag.RUNPATH)
    }
    paths = names[DynamicTag.RUNPATH] or names[DynamicTag.RPATH]  # RPATH is not looked at where both are
    return ElfFacts(
        machine=elf.machine.arch,
        soname=next(iter(names[DynamicTag.SONAME]), ""),
        needed=names[DynamicTag.NEEDED],
        search=tuple(part for path in paths for part in path.split(":") if part),
        versions=tuple(sorted(set(_versions(elf, strings)))),
        problems=tuple(_problems(elf)),
    )


class _Strings:
    """The names of the dynamic table.

    Not by way of `code/binary/symbols.py`: surgery writes these names with its help, and this checks what was written.
    Here a name that cannot be read is an error, there it is empty.
    """

    def __init__(self, elf: ElfFile) -> None:
        self._elf = elf
        address = elf.dynamic_value(DynamicTag.STRTAB)
        self._offset = elf.offset_of(address) if address is not None else None
        self._size = elf.dynamic_value(DynamicTag.STRSZ) or 0

    def at(self, position: int) -> str:
        if self._offset is None or position >= self._size:
            raise BadInputError("a name of the dynamic table is outside its string table")
        raw = bytes(self._elf.read(self._offset + position, min(_MAX_NAME, self._size - position)))
        return raw.split(b"\0", 1)[0].decode("utf-8", "replace")


def _versions(elf: ElfFile, strings: _Strings) -> Iterator[str]:
    """The versions named in .gnu.version_r."""
    address, count = elf.dynamic_value(_VERNEED), elf.dynamic_value(_VERNEED_COUNT) or 0
    offset = elf.offset_of(address) if address is not None else None
    for _ in range(count if offset is not None else 0):
        assert offset is not None
        _, number, _, first, following = _NEED.unpack(elf.read(offset, _NEED.size))
        at = offset + first
        for _ in range(number):
            _, _, _, name, step = _AUX.unpack(elf.read(at, _AUX.size))
            yield strings.at(name)
            if not step:
                break
            at += step
        if not following:
            return
        offset += following


def _problems(elf: ElfFile) -> Iterator[str]:
    if not elf.loads:
        yield "it has no segment to load"
    for segment in elf.loads:
        if segment.flags & _WRITE and segment.flags & _EXECUTE:
            yield f"the segment at {segment.address:#x} is both writable and executable"
        if segment.alignment > 1 and segment.offset % segment.alignment != segment.address % segment.alignment:
            yield f"the segment at {segment.address:#x} cannot be mapped: offset and address do not agree"
    if any(s.type == SegmentType.GNU_STACK and s.flags & _EXECUTE for s in elf.segments):
        yield EXECUTABLE_STACK
    if elf.dynamic and not any(s.type == SegmentType.DYNAMIC for s in elf.segments):
        yield "its dynamic table is outside all segments"
