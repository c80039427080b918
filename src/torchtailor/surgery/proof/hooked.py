"""Proof, part six: with the hook a library is what it was, but for the hook.

patchelf moves the tables of the dynamic linker and writes them anew, so these are compared by what they say: the same
symbols with the same versions, found by name; the same relocations; the same needed libraries after the hook. All
other loaded bytes must be the same at the same address.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Collection, Iterator

from torchtailor.code.binary.elf import ElfFile
from torchtailor.code.binary.elf_headers import HEADER, RELA, DynamicTag, SegmentType
from torchtailor.code.binary.symbols import Symbol, dynamic_symbols, dynamic_text, needed_libraries
from torchtailor.core.errors import CheckFailedError
from torchtailor.surgery.files import CHUNK
from torchtailor.surgery.headers import TABLE_SECTION
from torchtailor.surgery.layout import Span, merge, subtract

_JMPREL, _PLTRELSZ = 23, 2
_GNU_HASH, _VERSYM, _VERNEED, _VERNEEDNUM, _VERDEF, _VERDEFNUM = (
    0x6FFFFEF5,
    0x6FFFFFF0,
    0x6FFFFFFE,
    0x6FFFFFFF,
    0x6FFFFFFC,
    0x6FFFFFFD,
)
# the dynamic linker's own tables, which patchelf may write anew in another place
_TABLES = frozenset(
    [
        ".dynamic",
        ".dynsym",
        ".dynstr",
        ".gnu.hash",
        ".hash",
        ".gnu.version",
        ".gnu.version_r",
        ".gnu.version_d",
        ".rela.dyn",
        ".rela.plt",
        ".interp",
    ]
)
_MOVED_TAGS = frozenset({4, 5, 6, 10, _GNU_HASH, _VERSYM, _VERNEED, _VERNEEDNUM, _VERDEF})
_NAMING_TAGS = frozenset({DynamicTag.NEEDED, DynamicTag.SONAME, DynamicTag.RPATH, DynamicTag.RUNPATH})
_PREFIX = "torchtailor_"
_HIDDEN = 0x7FFF


def prove_hooked(before: ElfFile, after: ElfFile, hook: str, search: str, renamed: Collection[str]) -> None:
    """Raise CheckFailedError unless `after` is `before` with the hook, found in the folder `search`, in it."""
    _check_dynamic(before, after, hook, search)
    new_names = {name: f"{_PREFIX}{name}" for name in renamed}
    old, new = list(dynamic_symbols(before)), list(dynamic_symbols(after))
    _check_symbols(before, after, old, new, new_names)
    _check_relocations(before, after, old, new, new_names)
    _check_lookup(after, new)
    _check_segments(before, after)
    _check_bytes(before, after)


def _check_dynamic(before: ElfFile, after: ElfFile, hook: str, search: str) -> None:
    if sorted(needed_libraries(after)) != sorted([*needed_libraries(before), hook]):
        raise CheckFailedError("With the hook the library needs other libraries than before.")
    if dynamic_text(before, DynamicTag.SONAME) != dynamic_text(after, DynamicTag.SONAME):
        raise CheckFailedError("With the hook the library has another soname.")
    for tag in (DynamicTag.RPATH, DynamicTag.RUNPATH):
        old = [path for path in dynamic_text(before, tag).split(":") if path]
        new = [path for path in dynamic_text(after, tag).split(":") if path]
        if new[: len(old)] != old or new[len(old) :] not in ([], [search]):
            raise CheckFailedError("With the hook the library is searched for others in other places.")
    if search not in f"{dynamic_text(after, DynamicTag.RPATH)}:{dynamic_text(after, DynamicTag.RUNPATH)}".split(":"):
        raise CheckFailedError("The library would not find the hook.")
    ignored = _MOVED_TAGS | _NAMING_TAGS
    rows = [Counter((e.tag, e.value) for e in elf.dynamic if e.tag not in ignored) for elf in (before, after)]
    if rows[0] != rows[1]:
        raise CheckFailedError("With the hook the dynamic section says something else.")


def _check_symbols(
    before: ElfFile, after: ElfFile, old: list[Symbol], new: list[Symbol], renamed: dict[str, str]
) -> None:
    def said(elf: ElfFile, symbols: list[Symbol], names: dict[str, str]) -> Counter[tuple[object, ...]]:
        versions = _versions(elf, len(symbols))
        return Counter(
            (
                names.get(one.name, one.name) if one.undefined else one.name,
                one.info,
                one.other,
                _section_of(elf, one.section),
                one.value,
                one.size,
                versions[index],
            )
            for index, one in enumerate(symbols)
        )

    if said(before, old, renamed) != said(after, new, {}):
        raise CheckFailedError("With the hook the library has other dynamic symbols.")


def _section_of(elf: ElfFile, number: int) -> str | int:
    return elf.sections[number].name if 0 < number < len(elf.sections) else number


def _versions(elf: ElfFile, count: int) -> list[str]:
    """The version of each symbol by name; `` where it has none."""
    address = elf.dynamic_value(_VERSYM)
    offset = elf.offset_of(address) if address is not None else None
    if offset is None:
        return [""] * count
    names = {0: "local", 1: "global"}
    names.update(_version_names(elf, _VERNEED, _VERNEEDNUM))
    names.update(_version_names(elf, _VERDEF, _VERDEFNUM))
    numbers = struct.unpack(f"<{count}H", elf.read(offset, 2 * count))
    return [f"{names.get(number & _HIDDEN, '?')}{'@' if number > _HIDDEN else ''}" for number in numbers]


def _version_names(elf: ElfFile, tag: int, count_tag: int) -> Iterator[tuple[int, str]]:
    """The versions of other libraries (verneed), or of this one (verdef), by their number."""
    address, count = elf.dynamic_value(tag), elf.dynamic_value(count_tag) or 0
    strings = elf.offset_of(elf.dynamic_value(DynamicTag.STRTAB) or 0) or 0
    at = elf.offset_of(address) if address is not None else None
    for _ in range(count if at is not None else 0):
        assert at is not None
        if tag == _VERNEED:
            _, rows, file, first, step = struct.unpack("<HHIII", elf.read(at, 16))
            row = at + first
            for _ in range(rows):
                _, _, number, name, next_row = struct.unpack("<IHHII", elf.read(row, 16))
                yield number & _HIDDEN, f"{_string(elf, strings + name)} of {_string(elf, strings + file)}"
                row += next_row
        else:
            _, _, number, _, _, first, step = struct.unpack("<HHHHIII", elf.read(at, 20))
            (name,) = struct.unpack("<I", elf.read(at + first, 4))
            yield number & _HIDDEN, _string(elf, strings + name)
        at += step


def _string(elf: ElfFile, offset: int) -> str:
    return bytes(elf.read(offset, min(256, elf.size - offset))).partition(b"\0")[0].decode("utf-8", "replace")


def _check_relocations(
    before: ElfFile, after: ElfFile, old: list[Symbol], new: list[Symbol], renamed: dict[str, str]
) -> None:
    if before.relr != after.relr:
        raise CheckFailedError("With the hook the library has other relocations.")
    for one, other in zip(_tables(before), _tables(after), strict=True):
        if len(one) != len(other):
            raise CheckFailedError("With the hook the library has other relocations.")
        pairs = zip(RELA.iter_unpack(one), RELA.iter_unpack(other), strict=True)
        for (place, info, addend), (new_place, new_info, new_addend) in pairs:
            name, new_name = old[info >> 32].name, new[new_info >> 32].name
            undefined = old[info >> 32].undefined
            if (place, info & 0xFFFFFFFF, addend) != (new_place, new_info & 0xFFFFFFFF, new_addend) or (
                renamed.get(name, name) if undefined else name
            ) != new_name:
                raise CheckFailedError(f"With the hook the relocation at {place:#x} is another.")


def _tables(elf: ElfFile) -> tuple[bytes, bytes]:
    """The relocations of data and of the PLT, as stored."""
    found = []
    for where, size in ((DynamicTag.RELA, DynamicTag.RELASZ), (_JMPREL, _PLTRELSZ)):
        address, length = elf.dynamic_value(where), elf.dynamic_value(size) or 0
        offset = elf.offset_of(address) if address is not None else None
        found.append(bytes(elf.read(offset, length)) if offset is not None else b"")
    return found[0], found[1]


def _check_lookup(elf: ElfFile, symbols: list[Symbol]) -> None:
    """Each symbol that others may use is found through the hash table, as the dynamic linker looks for it."""
    address = elf.dynamic_value(_GNU_HASH)
    offset = elf.offset_of(address) if address is not None else None
    if offset is None:
        return
    buckets, first, words, shift = struct.unpack("<IIII", elf.read(offset, 16))
    bloom = struct.unpack(f"<{words}Q", elf.read(offset + 16, 8 * words))
    starts = struct.unpack(f"<{buckets}I", elf.read(offset + 16 + 8 * words, 4 * buckets))
    chain = offset + 16 + 8 * words + 4 * buckets
    count = max(0, len(symbols) - first)
    hashes = struct.unpack(f"<{count}I", elf.read(chain, 4 * count))
    for index in range(first, len(symbols)):
        name = symbols[index].name
        value = 5381
        for byte in name.encode("utf-8", "surrogateescape"):
            value = (value * 33 + byte) & 0xFFFFFFFF
        word = bloom[value // 64 % words]
        there = word >> (value % 64) & 1 and word >> ((value >> shift) % 64) & 1
        at = starts[value % buckets]
        while there and at >= first and at != index and not hashes[at - first] & 1:
            at += 1
        if not there or at != index or hashes[at - first] | 1 != value | 1:
            raise CheckFailedError(f"With the hook the symbol {name} is not found any more.")
    exported = sum(not symbol.undefined and bool(symbol.info >> 4) for symbol in symbols[:first])
    if exported:
        raise CheckFailedError("With the hook symbols are not found any more.")


def _check_segments(before: ElfFile, after: ElfFile) -> None:
    """What was mapped is mapped with the same rights, and thread-local data, RELRO and the stack are as they were."""
    kinds = (SegmentType.TLS, SegmentType.GNU_RELRO, SegmentType.GNU_STACK, SegmentType.GNU_EH_FRAME)
    for kind in kinds:
        rows = [
            [(s.address, s.memory_size, s.flags) for s in elf.segments if s.type == kind] for elf in (before, after)
        ]
        if rows[0] != rows[1]:
            raise CheckFailedError(f"With the hook the segment {kind.name} is another.")
    for load in before.loads:
        now = after.load_at(load.address)
        last = after.load_at(load.memory_end - 1) if load.memory_size else now
        if now is None or last is not now or now.flags != load.flags:
            raise CheckFailedError(f"With the hook the memory at {load.address:#x} is mapped in another way.")
        if now.alignment < load.alignment or (now.address - now.offset) % now.alignment:
            raise CheckFailedError(f"With the hook the memory at {load.address:#x} is aligned in another way.")


def _check_bytes(before: ElfFile, after: ElfFile) -> None:
    """All loaded bytes but those of the dynamic linker's tables, old and new, and of the headers."""
    skipped = [
        Span(section.address, section.memory_end)
        for elf in (before, after)
        for section in elf.sections
        if section.allocated and section.size and (section.name in _TABLES or section.name == TABLE_SECTION)
    ]
    for elf in (before, after):
        table = elf.address_of(elf.header.segment_table_offset)
        if table is not None:
            skipped.append(Span(table, table + len(elf.segments) * 56))
        skipped.append(Span(elf.loads[0].address, elf.loads[0].address + HEADER.size))
    for load in before.loads:
        whole = Span(load.address, load.address + load.file_size)
        for span in subtract([whole], merge(skipped)):
            for start in range(span.start, span.end, CHUNK):
                size = min(CHUNK, span.end - start)
                here, there = before.offset_of(start), after.offset_of(start)
                if here is None or there is None or before.read(here, size) != after.read(there, size):
                    raise CheckFailedError(f"With the hook a loaded byte at {start:#x} or behind is another.")
