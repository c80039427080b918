"""Writes a library without the pages that its pack maps back, and what the pack maps, as `page_plan.py` says.

One segment is added behind all others, or where there is room between them, with the program headers, what the library
says of its pages (`workload/host_table.py`), the tables of the dynamic linker that grow, and a few instructions that
call the hook: as the last relocation (the resolver of an IRELATIVE one), before anything of this library or of others
that are loaded with it runs, and again at its start, for programs that are started with it: the hook can read its
settings only then. This comes last: `strip` and `patchelf` do not know such a file.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from torchtailor.code.binary.elf import ElfFile
from torchtailor.code.binary.elf_headers import (
    DYNAMIC_ENTRY,
    HEADER,
    PROGRAM_HEADER,
    RELA,
    SYMBOL,
    DynamicTag,
    ElfMachine,
    Section,
    SectionFlag,
    SectionType,
    Segment,
    SegmentType,
)
from torchtailor.code.binary.symbols import dynamic_text, needed_libraries
from torchtailor.core.disk import write_at
from torchtailor.surgery.files import CHUNK, FileSource, copy_range
from torchtailor.surgery.headers import TABLE_SECTION, SectionLayout, SectionPlan, header_row
from torchtailor.surgery.layout import AddressMap, SegmentPiece, Span, align_up, place, subtract
from torchtailor.surgery.page_plan import (
    CODE_ALIGNMENT,
    CODE_SIZE,
    NotPagedError,
    PagePlan,
    WantedPages,
    is_cold,
    others,
    whole,
    within,
)
from torchtailor.workload.hook import HOOK_NAME
from torchtailor.workload.host_table import NOTE_HEADER, NOTE_OWNER, HostTable, PagedSegment
from torchtailor.workload.pack import KEY_SIZE, PAGE_BLOCK, hashed

HOOK_FUNCTION = "torchtailor_host_pages"
NOTE_SECTION = ".note.torchtailor"

_EXECUTE, _WRITE, _READ = 1, 2, 4
_INIT = 12
_GLOB_DAT = {ElfMachine.X86_64: 6, ElfMachine.AARCH64: 1025}
_IRELATIVE = {ElfMachine.X86_64: 37, ElfMachine.AARCH64: 1032}
_GLOBAL_FUNCTION = 0x12
_GLOBAL_VERSION = 1
_WORD = 8
_PAGE_BITS = 12  # of the instruction adrp
_AGAIN = 1  # added to the address of the table in the second call
_MOST_PIECES = 1 << 16  # that the hook reads
_MOST_NAMES = 8 << 10  # bytes: what is said of a library in words, and what its tables grow by
_SMALL, _SMALL_IN_ALL = 256 << 10, 4 << 20  # bytes: of what can be written to


def plan_pages(elf: ElfFile, wanted: WantedPages) -> PagePlan:
    """The plan, with the place of what is added; or NotPagedError."""
    plan = PagePlan.of(elf, wanted)
    frame = _Frame.of(plan)
    code = frame.calls(elf, align_up(plan.behind.memory_end, CODE_ALIGNMENT)) if plan.behind else ()
    plan = replace(plan, start=frame.start, code=code)
    if wanted.apart:
        return plan
    added = _Writing.of(plan, [bytes(KEY_SIZE)] * len(plan.segments), wanted.pack).addition  # as large as it will be
    return plan.over_holes(Span(added.start, align_up(added.end, plan.page)))


@dataclass(frozen=True, slots=True)
class _Frame:
    """Where what is added goes: all that does not depend on the content of pages."""

    entries: int  # of the dynamic section
    spare: tuple[Segment, int] | None  # the place of a word in a writable segment; else one is added
    writable_at: int  # the address of that
    headers: int
    start: int
    size: int  # bytes that are added at most, without the writable ones

    @property
    def slot_at(self) -> int:
        return self.spare[1] if self.spare else self.writable_at

    @property
    def note_at(self) -> int:
        return align_up(self.start + self.headers * PROGRAM_HEADER.size, _WORD)

    @property
    def table_at(self) -> int:
        return self.note_at + NOTE_HEADER.size + len(NOTE_OWNER)

    def calls(self, elf: ElfFile, at: int) -> tuple[tuple[int, bytes], ...]:
        """The instructions that call the hook from an address on: for the initialiser, and for the last relocation."""
        calls = ((at, self.table_at + _AGAIN, elf.dynamic_value(_INIT)), (at + CODE_SIZE, self.table_at, None))
        return tuple(
            (begin, _first_code(elf.machine, begin, given, self.slot_at, then).ljust(CODE_SIZE, b"\0"))
            for begin, given, then in calls
        )

    @classmethod
    def of(cls, plan: PagePlan) -> _Frame:
        elf, page = plan.elf, plan.page
        entries = _entries(elf, _Strings(b""), plan.wanted.place)
        room = next(s for s in elf.segments if s.type == SegmentType.DYNAMIC)
        new_tags = {_INIT, DynamicTag.RELA, DynamicTag.RELASZ, DynamicTag.RELAENT} - {tag for tag, _ in entries}
        count = len(entries) + len(new_tags)
        spare = _spare_word(elf, page) if count < room.file_size // DYNAMIC_ENTRY.size else None
        old = plan.pieces
        if len(old) > _MOST_PIECES:
            raise NotPagedError("it would be in too many pieces")
        headers = 1 + len(plan.mapped(old)) + (2 if spare is None else 1) + len(others(elf)) + 1
        size = headers * PROGRAM_HEADER.size + _MOST_NAMES + sum(table.size for table in plan.tables.all)
        size += (len(plan.cold) + len(plan.segments) + 2 * len(old)) * (CODE_SIZE - _WORD)
        end = align_up(max(load.memory_end for load in plan.loads) + 2 * _WORD, page)
        behind = end if spare else align_up(end + 2 * _WORD + (count + 1) * DYNAMIC_ENTRY.size, page)
        return cls(count, spare, end, headers, _gap(plan, size, behind), size)


def _gap(plan: PagePlan, size: int, behind: int) -> int:
    """The first address with so much room behind data that the loader maps from the file, in one mapping with it; else
    behind everything."""
    covers = [cover for _, cover in plan.segments]
    for before, after in pairwise(plan.loads):
        gap = Span(whole(before, plan.page).end, after.address // plan.page * plan.page)
        mapped = not any(cover.start < gap.end and gap.start <= cover.end for cover in covers)
        if before.flags == _READ and gap.size >= size and mapped:
            return gap.start
    return behind


def segment_bytes(plan: PagePlan, source: FileSource, cover: Span) -> Iterator[bytes]:
    """The bytes that a pack maps over segments: those of the file, the call of the hook, and zeros where tables were
    that have moved, between segments, and to the end of the last page."""
    at = cover.start
    for load in plan.loads:
        for part in subtract(within([Span(load.address, load.address + load.file_size)], cover), plan.stale):
            yield from _zeros(part.start - at)
            yield from source.chunks(load.offset + part.start - load.address, part.size)
            at = part.end
        for start, data in plan.code if load is plan.behind else ():
            if cover.start <= start < cover.end:
                yield from _zeros(start - at)
                yield data
                at = start + len(data)
    yield from _zeros(cover.end - at)


def cold_blocks(plan: PagePlan, source: FileSource, cover: Span) -> Iterator[bytes]:
    """The same in blocks of a pack, with zeros for what stays in the file."""
    kept = subtract([cover], plan.needed)
    data, at = bytearray(), cover.start
    for chunk in segment_bytes(plan, source, cover):
        data += chunk
        while len(data) >= PAGE_BLOCK:
            yield _cold_block(data[:PAGE_BLOCK], at, kept)
            del data[:PAGE_BLOCK]
            at += PAGE_BLOCK
    if data:
        yield _cold_block(data, at, kept)


def _cold_block(data: bytearray, at: int, kept: Sequence[Span]) -> bytes:
    for span in kept:
        low, high = max(span.start - at, 0), min(span.end - at, len(data))
        if low < high:
            data[low:high] = bytes(high - low)
    return bytes(data)


def _zeros(size: int) -> Iterator[bytes]:
    while size > 0:
        yield bytes(min(size, CHUNK))
        size -= CHUNK


def page_keys(plan: PagePlan, source: FileSource) -> list[bytes]:
    """The key of each segment."""
    return [hashed(segment_bytes(plan, source, cover)) for _, cover in plan.segments]


@dataclass(frozen=True, slots=True)
class PagedLibrary:
    """What was cut out of a library."""

    table: HostTable
    plan: PagePlan
    hot: int  # bytes of segments without write access that are left in the file
    runs: int  # in how many pieces


def write_hot(plan: PagePlan, keys: Sequence[bytes], source: FileSource, fd: int, pack: str) -> PagedLibrary:
    """Write the library without its cold pages to an empty file; `pack` is the name of its pack."""
    writing = _Writing.of(plan, keys, pack)
    writing.write(source, fd)
    old = (piece for piece in writing.pieces if piece.segment.index >= 0)
    left = sum(piece.file_size for piece in old if not piece.segment.flags & _WRITE)
    runs = sum(bool(piece.file_size) for piece in writing.pieces)
    return PagedLibrary(writing.table, plan, left, runs)


class _Addition:
    """What is added, in order of address."""

    def __init__(self, start: int) -> None:
        self.start = self.end = start
        self.contents: dict[int, bytes] = {}
        self.moved: dict[int, tuple[int, int]] = {}  # by the number of a section: its new address and size

    def add(self, data: bytes, section: Section | None = None, alignment: int = CODE_ALIGNMENT) -> int:
        at = align_up(self.end, alignment)
        self.contents[at] = data
        if section is not None:
            self.moved[section.index] = (at, len(data))
        self.end = at + len(data)
        return at


@dataclass(frozen=True)
class _Writing:
    """Everything that is known about the output before a byte of it is written."""

    plan: PagePlan
    table: HostTable
    pieces: tuple[SegmentPiece, ...]  # in order of address
    addition: _Addition
    frame: _Frame
    dynamic: tuple[int, bytes]  # where the dynamic section is, and its content

    @classmethod
    def of(cls, plan: PagePlan, keys: Sequence[bytes], pack: str) -> _Writing:
        elf, page, tables, frame = plan.elf, plan.page, plan.tables, _Frame.of(plan)
        frame = replace(frame, start=plan.start)  # the holes are smaller now
        strings = _Strings(bytes(elf.content(tables.strings)))
        function = strings.add(HOOK_FUNCTION)
        entries = _entries(elf, strings, plan.wanted.place)
        addition = _Addition(plan.start)
        addition.add(bytes(frame.headers * PROGRAM_HEADER.size))
        segments = tuple(
            PagedSegment(cover.start, cover.size, key, plan.flags(load, cover))
            for (load, cover), key in zip(plan.segments, keys, strict=True)
        )
        cold = tuple((span.start, span.end) for span in plan.needed)
        pieces = plan.pieces
        if frame.spare:
            room = next(s for s in elf.segments if s.type == SegmentType.DYNAMIC)
            dynamic_at, size = room.address, room.file_size
            last = max(index for index, piece in enumerate(pieces) if piece.segment is frame.spare[0])
            pieces[last] = replace(pieces[last], memory_size=frame.slot_at + _WORD - pieces[last].address)
        else:
            dynamic_at, size = frame.writable_at + 2 * _WORD, (frame.entries + 1) * DYNAMIC_ENTRY.size
            pieces.append(_new_piece(_READ | _WRITE, frame.writable_at, 2 * _WORD + size, page))
        hot = tuple((piece.address, piece.end, 0) for piece in pieces if plan.by_hook(piece) and not is_cold(piece))
        joined = tuple(_joined(elf, pieces, page))
        table = HostTable(
            plan.wanted.identity, frame.table_at, 0, page, segments, cold, hot, joined, pack, plan.wanted.place
        )
        addition.add(table.note(), alignment=_WORD)
        new = _grown_tables(plan, addition, strings, function)
        code = plan.code or frame.calls(elf, align_up(addition.end, CODE_ALIGNMENT))
        addition.contents |= () if plan.code else code
        addition.end = addition.end if plan.code else code[-1][0] + CODE_SIZE
        (code_at, _), (early_at, _) = code
        number = tables.symbols.size // SYMBOL.size
        rows = addition.contents[new[DynamicTag.RELA]][: -2 * RELA.size]
        rows += RELA.pack(frame.slot_at, number << 32 | _GLOB_DAT[elf.machine], 0)
        addition.contents[new[DynamicTag.RELA]] = rows + RELA.pack(frame.slot_at, _IRELATIVE[elf.machine], early_at)
        values = {**new, _INIT: code_at}
        listed = [(tag, values.pop(tag, value)) for tag, value in entries]
        data = b"".join(DYNAMIC_ENTRY.pack(*entry) for entry in (*listed, *sorted(values.items()))).ljust(size, b"\0")
        rights = _READ if plan.code else _READ | _EXECUTE
        pieces.append(_new_piece(rights, addition.start, addition.end - addition.start, page))
        pieces.sort(key=lambda piece: piece.address)
        filled = iter(place(piece for piece in pieces if not is_cold(piece)))
        placed = tuple(piece if is_cold(piece) else next(filled) for piece in pieces)
        offsets = {piece.address: piece.offset for piece in placed}
        hot = tuple((start, end, offsets[start]) for start, end, _ in hot)
        table = replace(table, offset=offsets[plan.start] + frame.table_at - plan.start, hot=hot)
        addition.contents[frame.note_at] = table.note()
        return cls(plan, table, placed, addition, frame, (dynamic_at, data))

    @property
    def addresses(self) -> AddressMap:
        return AddressMap([piece for piece in self.pieces if not is_cold(piece)])

    def write(self, source: FileSource, fd: int) -> None:
        elf, addresses = self.plan.elf, self.addresses
        for piece in self.pieces:
            if piece.segment.index < 0 or not piece.file_size:
                continue
            end = min(piece.end, piece.segment.address + piece.segment.file_size)
            for span in subtract([Span(piece.address, end)], self.plan.stale):
                shift = span.start - piece.address
                copy_range(source, piece.old_offset + shift, fd, piece.offset + shift, span.size)
        for at, data in (*self.addition.contents.items(), *self.plan.code):
            write_at(fd, _at(addresses, at), data)
        write_at(fd, _at(addresses, self.dynamic[0]), self.dynamic[1])
        sections = self._sections(addresses)
        for old, new, size in sections.unloaded:
            copy_range(source, old, fd, new, size)
        write_at(fd, *sections.names)
        write_at(fd, sections.table.offset, sections.table.data)
        headers = self._program_headers(addresses)
        write_at(fd, _at(addresses, self.plan.start), headers)
        fields = list(HEADER.unpack(elf.read(0, HEADER.size)))
        fields[5:7] = [_at(addresses, self.plan.start), sections.table.offset]
        fields[10] = len(headers) // PROGRAM_HEADER.size
        fields[12] = sections.table.count
        write_at(fd, 0, HEADER.pack(*fields))

    def _program_headers(self, addresses: AddressMap) -> bytes:
        rows: list[tuple[int, ...]] = []
        for piece in self.plan.mapped(self.pieces):
            flags = 0 if is_cold(piece) else piece.segment.flags
            where = (piece.offset, piece.address, piece.address)
            rows.append((SegmentType.LOAD, flags, *where, piece.file_size, piece.memory_size, piece.alignment))
        for other in others(self.plan.elf):
            address, size, memory = other.address, other.file_size, other.memory_size
            if other.type == SegmentType.DYNAMIC:
                address, size, memory = self.dynamic[0], len(self.dynamic[1]), len(self.dynamic[1])
            piece_ = addresses.piece(address)
            whole = piece_ is not None and address + size <= piece_.address + piece_.memory_size
            if not size:
                offset = addresses.empty_offset(address)
            elif whole:
                offset = _at(addresses, address)
            else:  # in the pack
                offset = size = 0
            rows.append((other.type, other.flags, offset, address, address, size, memory, other.alignment))
        size = len(self.addition.contents[self.frame.note_at])
        note = (_at(addresses, self.frame.note_at), self.frame.note_at, self.frame.note_at, size, size, 4)
        rows.append((SegmentType.NOTE, _READ, *note))
        size = (len(rows) + 1) * PROGRAM_HEADER.size
        start = self.plan.start
        table = (SegmentType.PHDR, _READ, _at(addresses, start), start, start, size, size, _WORD)
        return b"".join(PROGRAM_HEADER.pack(*row) for row in (table, *rows))

    def _sections(self, addresses: AddressMap) -> SectionPlan:
        elf = self.plan.elf
        names = bytes(elf.content(elf.sections[elf.header.name_section])) or b"\0"
        names, note_name = names + NOTE_SECTION.encode() + b"\0", len(names)
        last = max(self.pieces, key=lambda piece: piece.offset + piece.file_size)
        layout = SectionLayout(addresses, last.offset + last.file_size)
        rows: list[list[int]] = []
        for section in elf.sections:
            row = header_row(section)
            if section.index in self.addition.moved:
                row[3], row[5] = self.addition.moved[section.index]
                row[4] = _at(addresses, row[3])
            elif section.index == elf.header.name_section:
                pass  # goes last, with the new name in it
            elif section.type == SectionType.DYNAMIC and section.allocated:
                row[3], row[4], row[5] = self.dynamic[0], _at(addresses, self.dynamic[0]), len(self.dynamic[1])
            elif section.name == TABLE_SECTION and elf.load_at(section.address) not in self.plan.loads:
                row = [0] * len(row)  # went with its segment
            elif section.allocated and section.in_file and elf.load_at(section.address) is not None:
                piece = addresses.piece(section.address)
                if piece is not None and section.memory_end <= piece.end:
                    row[4] = _at(addresses, section.address)
                else:  # some of it is in the pack
                    row[1], row[4] = SectionType.NOBITS, addresses.empty_offset(section.address)
            else:
                row[4] = layout.place(section)
            rows.append(row)
        where = [
            self.frame.note_at,
            _at(addresses, self.frame.note_at),
            len(self.addition.contents[self.frame.note_at]),
        ]
        rows.append([note_name, SectionType.NOTE, SectionFlag.ALLOC, *where, 0, 0, 4, 0])
        return layout.finish(rows, elf.header.name_section, names)


def _at(addresses: AddressMap, address: int) -> int:
    offset = addresses.offset(address)
    if offset is None:
        raise AssertionError(f"{address:#x} is in the pack")
    return offset


def _joined(elf: ElfFile, pieces: Sequence[SegmentPiece], page: int) -> Iterator[tuple[int, int, bool]]:
    """Small pieces of writable memory, and holes before them, of which the hook makes one mapping with what is before;
    a library that was cut, and then patched, has dozens."""
    relro = [whole(s, page) for s in elf.segments if s.type == SegmentType.GNU_RELRO]
    end, zeroed, content = 0, False, 0  # of the writable memory before
    for piece in sorted(pieces, key=lambda piece: piece.address):
        start, stored = piece.address // page * page, align_up(piece.end, page)
        own = [Span(start, stored)]
        if not piece.segment.flags & _WRITE or is_cold(piece):
            end = 0
            continue
        small = 0 < piece.file_size <= _SMALL and subtract(own, relro) == own
        joins = bool(end) and small and content < _SMALL_IN_ALL and (zeroed or start > end)
        if joins:
            yield from [(end, start, False)] if start > end else []
            yield start, stored, True
            content += stored - start
        end = align_up(piece.address + piece.memory_size, page)
        zeroed = joins or end > stored


class _Strings:
    """The dynamic strings, to which some are added."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def add(self, text: str) -> int:
        self.data, at = self.data + text.encode() + b"\0", len(self.data)
        return at


def _grown_tables(plan: PagePlan, addition: _Addition, strings: _Strings, function: int) -> dict[int, int]:
    """Add the tables with their new entries; the last two relocations are not known yet. Returns their dynamic
    entries."""
    elf, tables = plan.elf, plan.tables
    symbols = bytes(elf.content(tables.symbols)) + SYMBOL.pack(function, _GLOBAL_FUNCTION, 0, 0, 0, 0)
    new: dict[int, int] = {DynamicTag.SYMTAB: addition.add(symbols, tables.symbols)}
    if tables.versions is not None:
        versions = bytes(elf.content(tables.versions)) + struct.pack("<H", _GLOBAL_VERSION)
        new[DynamicTag.VERSYM] = addition.add(versions, tables.versions)
    rows = bytes(elf.content(tables.relocations)) if tables.relocations else b""
    new[DynamicTag.RELA] = addition.add(rows + bytes(2 * RELA.size), tables.relocations)
    new |= {DynamicTag.RELASZ: len(rows) + 2 * RELA.size, DynamicTag.RELAENT: RELA.size}
    new |= {tag: addition.add(bytes(elf.content(section)), section) for tag, section in tables.whole}
    return new | {DynamicTag.STRTAB: addition.add(strings.data, tables.strings), DynamicTag.STRSZ: len(strings.data)}


def _new_piece(flags: int, address: int, size: int, page: int) -> SegmentPiece:
    segment = Segment(-1, SegmentType.LOAD, flags, 0, address, address, size, size, page)
    return SegmentPiece(segment, address, size, size, page)


def _entries(elf: ElfFile, strings: _Strings, where: str) -> list[tuple[int, int]]:
    """The dynamic entries, with the hook as the first library that is needed and the folder where it is found."""
    entries = [(entry.tag, entry.value) for entry in elf.dynamic]
    if HOOK_NAME not in needed_libraries(elf):
        entries.insert(0, (DynamicTag.NEEDED, strings.add(HOOK_NAME)))
    search = f"$ORIGIN/{where}" if where else "$ORIGIN"
    runpath, rpath = dynamic_text(elf, DynamicTag.RUNPATH), dynamic_text(elf, DynamicTag.RPATH)
    if search in f"{runpath}:{rpath}".split(":"):
        return entries
    # What a library with a RUNPATH needs is not looked for where its own RPATH and that of its users say.
    tag = DynamicTag.RUNPATH if runpath else DynamicTag.RPATH
    text = strings.add(":".join(part for part in (runpath or rpath, search) if part))
    rest = [(one, value) for one, value in entries if one != tag]
    return [*rest, (int(tag), text)]


def _spare_word(elf: ElfFile, page: int) -> tuple[Segment, int] | None:
    """A writable segment with a word behind its memory, in its last page, and the address of that; None where there is
    no room."""
    relro = [whole(s, page) for s in elf.segments if s.type == SegmentType.GNU_RELRO]
    for load in elf.loads:
        at = align_up(load.memory_end, _WORD)
        free = at % page and at % page + _WORD <= page and not any(span.start <= at < span.end for span in relro)
        if load.flags & _WRITE and free:
            return load, at
    return None


def _first_code(machine: ElfMachine, at: int, table: int, slot: int, then: int | None) -> bytes:
    """Instructions for an address: call what the slot names with the address of the table, and go on to the
    initialiser that the library had, with the arguments that it would have had; else return what was returned."""
    if machine is ElfMachine.X86_64:
        code = bytearray(b"\xf3\x0f\x1e\xfa\x57\x56\x52")  # endbr64; push %rdi, %rsi, %rdx
        code += b"\x48\x8d\x3d" + struct.pack("<i", table - (at + len(code) + 7))  # lea table(%rip), %rdi
        code += b"\xff\x15" + struct.pack("<i", slot - (at + len(code) + 6))  # call *slot(%rip)
        code += b"\x5a\x5e\x5f"  # pop %rdx, %rsi, %rdi
        return bytes(code) + (b"\xc3" if then is None else b"\xe9" + struct.pack("<i", then - (at + len(code) + 5)))
    # bti c; stp x29, x30, [sp, #-48]!; mov x29, sp; stp x0, x1, [sp, #16]; str x2, [sp, #32]
    words = [0xD503245F, 0xA9BD7BFD, 0x910003FD, 0xA90107E0, 0xF90013E2]

    def page_of(register: int, target: int) -> int:  # adrp
        pages = (target >> _PAGE_BITS) - ((at + 4 * len(words)) >> _PAGE_BITS)
        return 0x90000000 | (pages & 3) << 29 | (pages >> 2 & 0x7FFFF) << 5 | register

    def low(target: int) -> int:
        return target & ((1 << _PAGE_BITS) - 1)

    words.append(page_of(0, table))
    words.append(0x91000000 | low(table) << 10)  # add x0, x0, :lo12:table
    words.append(page_of(16, slot))
    words.append(0xF9400000 | low(slot) // _WORD << 10 | 16 << 5 | 16)  # ldr x16, [x16, :lo12:slot]
    words.append(0xD63F0200)  # blr x16
    if then is None:
        words += [0xA8C37BFD, 0xD65F03C0]  # ldp x29, x30, [sp], #48; ret
    else:
        words += [0xA94107E0, 0xF94013E2, 0xA8C37BFD]  # ldp x0, x1; ldr x2; ldp x29, x30, [sp], #48
        words.append(page_of(16, then))
        words.append(0x91000000 | low(then) << 10 | 16 << 5 | 16)
        words.append(0xD61F0200)  # br x16
    return struct.pack(f"<{len(words)}I", *words)
