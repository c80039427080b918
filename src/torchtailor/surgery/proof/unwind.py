"""Proof that unwind tables which left the output were dead: an unwinder finds all that it found, and never there.

What the unwinder reads is followed in the output, entry by entry, as libgcc and libunwind do: from the program header
to the search table, to each entry, to its common part, and to its table of handlers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from struct import iter_unpack

from torchtailor.code.binary.elf import ElfFile
from torchtailor.code.binary.elf_headers import Section, SegmentType
from torchtailor.code.binary.instructions import code_leads_into
from torchtailor.core.errors import BadInputError, CheckFailedError
from torchtailor.surgery.layout import Span

_OLD_TABLES = (".bolt.org.eh_frame", ".bolt.org.eh_frame_hdr")
_SIZES = {0x0: 8, 0x2: 2, 0x3: 4, 0x4: 8, 0xA: 2, 0xB: 4, 0xC: 8}  # of encoded pointers, by their lower half
_PC_RELATIVE, _OMITTED = 0x10, 0xFF


def left_tables(before: ElfFile, after: ElfFile) -> list[Section]:
    """The old unwind tables of the input that the output does not have."""
    there = {section.name for section in after.sections if section.size}
    return [s for s in before.sections if s.name in _OLD_TABLES and s.allocated and s.name not in there]


def check_dead_tables(before: ElfFile, after: ElfFile, spans: Sequence[Span]) -> None:
    """Raise CheckFailedError unless no entry, and no instruction, of the output leads into these addresses."""
    try:
        _follow(before, after, spans)
    except (BadInputError, IndexError) as error:
        raise CheckFailedError(f"The unwind tables of the output cannot be read: {error}") from error
    if code_leads_into(before, spans):
        raise CheckFailedError(f"Code leads to the unwind tables at {spans[0].start:#x}, which left the output.")


def _follow(before: ElfFile, after: ElfFile, spans: Sequence[Span]) -> None:
    entries = [_search_table(elf) for elf in (before, after)]
    if entries[0] != entries[1] or not entries[0]:
        raise CheckFailedError("The output has another search table for unwinding.")
    known: dict[int, _Common] = {}
    for entry in entries[1]:
        for what, address in _leads_to(after, entry, known):
            if any(span.start <= address < span.end for span in spans) or after.offset_of(address) is None:
                raise CheckFailedError(f"The unwind entry at {entry:#x} has its {what} at {address:#x}, which is gone.")


def _search_table(elf: ElfFile) -> list[int]:
    """The addresses of all entries, from the table that PT_GNU_EH_FRAME names."""
    segment = next((segment for segment in elf.segments if segment.type == SegmentType.GNU_EH_FRAME), None)
    if segment is None:
        return []
    data = bytes(elf.read(segment.offset, segment.file_size))
    if data[:4] != b"\x01\x1b\x03\x3b":  # else it goes through all entries one by one
        raise CheckFailedError("The output has a search table for unwinding that is not sorted.")
    count = int.from_bytes(data[8:12], "little")
    return [segment.address + row[1] for row in iter_unpack("<ii", data[12 : 12 + 8 * count])]


@dataclass(frozen=True, slots=True)
class _Common:
    """The part that entries have in common, as far as it says how to read them."""

    code_encoding: int
    handlers_encoding: int
    has_data: bool


def _leads_to(elf: ElfFile, entry: int, known: dict[int, _Common]) -> Iterator[tuple[str, int]]:
    yield "first byte", entry
    offset = _offset(elf, entry)
    length = int.from_bytes(elf.read(offset, 4), "little")
    yield "last byte", entry + 3 + length
    body = bytes(elf.read(offset + 4, length))
    common = entry + 4 - int.from_bytes(body[:4], "little")
    yield "common part", common
    if common not in known:
        known[common] = _common(elf, common)
    read = known[common]
    if not read.has_data or read.handlers_encoding == _OMITTED:
        return
    size = _SIZES[read.code_encoding & 0xF]
    at = 4 + 2 * size
    _, at = _number(body, at)
    encoding = read.handlers_encoding
    width = _SIZES[encoding & 0xF]
    value = int.from_bytes(body[at : at + width], "little", signed=bool(encoding & 0x8))
    if value and encoding & 0x70 == _PC_RELATIVE:
        yield "handlers", entry + 4 + at + value
    elif value:
        yield "handlers", value


def _common(elf: ElfFile, address: int) -> _Common:
    offset = _offset(elf, address)
    length = int.from_bytes(elf.read(offset, 4), "little")
    body = bytes(elf.read(offset + 4, length))
    if body[:4] != bytes(4):
        raise CheckFailedError(f"An unwind entry leads to {address:#x}, where no common part is.")
    end = body.index(b"\0", 5)
    letters, at = body[5:end].decode("ascii", "replace"), end + 1
    for _ in range(3):  # two alignment factors, and the register of the return address
        _, at = _number(body, at)
    if not letters.startswith("z"):
        return _Common(0, _OMITTED, False)
    _, at = _number(body, at)
    code, handlers = 0, _OMITTED
    for letter in letters[1:]:
        if letter == "R":
            code, at = body[at], at + 1
        elif letter == "L":
            handlers, at = body[at], at + 1
        elif letter == "P":
            at += 1 + _SIZES[body[at] & 0xF]
    return _Common(code, handlers, True)


def _number(data: bytes, at: int) -> tuple[int, int]:
    """A number of seven bits a byte, and where the next begins."""
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def _offset(elf: ElfFile, address: int) -> int:
    offset = elf.offset_of(address)
    if offset is None:
        raise CheckFailedError(f"The unwind tables of the output lead to {address:#x}, which is not loaded.")
    return offset
