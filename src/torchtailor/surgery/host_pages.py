"""Cuts the pages that a workload did not touch out of a library, for its pack to map them back when it is loaded.

Addresses stay. Each segment that is not writable becomes a row of pieces: touched ("hot") ones with their bytes, and
others ("cold") with none. The loader maps only what it reads itself; the rest of a segment is one program header
without bytes and without access, which says whose the addresses are: each piece would cost every start a system call or
two, and all who look through program headers their time. One segment is added behind all others, with the program
headers, what the library says of its pages (`workload/host_table.py`), the tables of the dynamic linker that grow, and
a few instructions that call the hook: as the last relocation (the resolver of an IRELATIVE one), before anything of
this library or of others that are loaded with it runs, and again at its start, for programs that are started with it:
the hook can read its settings only then. The hook maps the pack over the segments; without a raw one, the hot pieces
from the file. This comes last: `strip` and `patchelf` do not know such a file.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
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
    FileType,
    Section,
    SectionFlag,
    SectionType,
    Segment,
    SegmentType,
)
from torchtailor.code.binary.symbols import dynamic_text, needed_libraries
from torchtailor.code.gpucode.scan import CONTAINER_SECTIONS
from torchtailor.core.disk import write_at
from torchtailor.surgery.files import CHUNK, FileSource, copy_range
from torchtailor.surgery.headers import TABLE_SECTION, SectionLayout, SectionPlan, header_row
from torchtailor.surgery.layout import (
    AddressMap,
    SegmentPiece,
    Span,
    align_up,
    merge,
    page_size,
    place,
    subtract,
)
from torchtailor.workload.hook import HOOK_NAME
from torchtailor.workload.host_table import NOTE_HEADER, NOTE_OWNER, HostTable, PagedSegment, SegmentFlag
from torchtailor.workload.pack import KEY_SIZE, PAGE_BLOCK, hashed

HOOK_FUNCTION = "torchtailor_host_pages"
NOTE_SECTION = ".note.torchtailor"
WORTH = 1 << 20  # bytes; for less no library is changed
WORTH_UNOPENED = 64 << 10  # of one that was never loaded, and so costs nothing to map

_UNWIND = (".eh_frame", ".eh_frame_hdr", ".gcc_except_table")
# read by the loader before the hook is called, or too small to be worth a hole
_ALWAYS = (".note", ".gnu.hash", ".hash", ".gnu.version", ".rel", ".init", ".fini", ".plt", ".iplt", ".interp")
_EXECUTE, _WRITE, _READ = 1, 2, 4
_TEXTREL, _FLAGS, _INIT = 22, 30, 12
_TEXTREL_FLAG = 4
_GLOB_DAT = {ElfMachine.X86_64: 6, ElfMachine.AARCH64: 1025}
_IRELATIVE = {ElfMachine.X86_64: 37, ElfMachine.AARCH64: 1032}
_GLOBAL_FUNCTION = 0x12
_GLOBAL_VERSION = 1
_WORD = 8
_PAGE_BITS = 12  # of the instruction adrp
_CODE_ALIGNMENT = 16
_CODE_SIZE = 64
_AGAIN = 1  # added to the address of the table in the second call
_MOST_PIECES = 1 << 16  # that the hook reads
_MOST_NAMES = 8 << 10  # bytes: what is said of a library in words, and what its tables grow by
_LITTLE = 64 << 10  # bytes: for less, data has no mapping of its own
_SMALL, _SMALL_IN_ALL = 256 << 10, 4 << 20  # bytes: of what can be written to
# bytes: a hole between two segments that the pack maps as zeros, or a segment without cold runs beside one with some;
# each saves mappings
_COVERED = 16 << 20


class NotPagedError(Exception):
    """Why a library keeps all its pages."""


@dataclass(frozen=True, slots=True)
class WantedPages:
    """What of a library stays in the file."""

    touched: tuple[tuple[int, int], ...]  # addresses, as (start, end)
    identity: str
    data: bool  # read-only data that was not touched leaves the file, too
    gap: int  # smaller runs of cold pages stay
    unwind: bool  # all unwind tables stay, for debuggers
    place: str = ""  # the folder of pack and hook, from the library's
    pack: str = ""  # a name as long as that of its pack
    apart: bool = False  # data that is needed at load is apart from code in the pack, which unpacks it when it is run
    worth: int = WORTH  # for less it is not changed


@dataclass(frozen=True, slots=True)
class _Tables:
    """The tables that grow by entries for the hook's function, and others that move, as sections; None where there is
    none."""

    symbols: Section
    strings: Section
    versions: Section | None
    relocations: Section | None
    whole: tuple[tuple[DynamicTag, Section], ...]  # that move with them as they are

    @property
    def all(self) -> tuple[Section, ...]:
        found = (self.symbols, self.strings, self.versions, self.relocations, *(section for _, section in self.whole))
        return tuple(section for section in found if section is not None)

    @property
    def spans(self) -> list[Span]:
        """The addresses that they leave: nobody reads these any more."""
        return merge(Span(section.address, section.memory_end) for section in self.all)


@dataclass(frozen=True, slots=True)
class PagePlan:
    """Which addresses of a library stay in its file, and what its pack maps."""

    elf: ElfFile
    loads: tuple[Segment, ...]  # the loaded segments, without those that held nothing but tables
    page: int
    tables: _Tables
    stale: tuple[Span, ...]  # where tables were that have moved
    segments: tuple[tuple[Segment, Span], ...]  # what a pack covers, each with the first of the segments there
    cold: tuple[Span, ...]
    gone: tuple[Span, ...]  # of the cold ones, those that held tables which have moved
    fixed: tuple[Span, ...]  # what the loader itself maps
    wanted: WantedPages
    behind: Segment | None  # the code at whose end there is room for the instructions that call the hook
    start: int = 0  # where what is added goes
    code: tuple[tuple[int, bytes], ...] = ()  # these instructions, where they are there

    @property
    def saved(self) -> int:
        return sum(span.size for span in self.cold)

    @property
    def moved(self) -> int:
        """Bytes of the tables that move to the end of the file."""
        return sum(section.size for section in self.tables.all)

    @property
    def left(self) -> int:
        """Bytes of segments without write access that stay."""
        return sum(load.file_size for load in self.loads if not load.flags & _WRITE) - self.saved

    @property
    def runs(self) -> int:
        """Pieces that the file has."""
        return sum(bool(piece.file_size) for piece in _pieces(self))

    def by_hook(self, piece: SegmentPiece) -> bool:
        """Whether the hook maps a piece, from the pack or from the file."""
        if _is_cold(piece):
            return True
        inside = any(cover.start < piece.end and piece.address < cover.end for _, cover in self.segments)
        return inside and not any(span.start < piece.end and piece.address < span.end for span in self.fixed)

    @classmethod
    def of(cls, elf: ElfFile, wanted: WantedPages) -> PagePlan:
        """The plan, or NotPagedError."""
        tables = _tables(elf)
        page = _checked_page(elf)
        dead = [load for load in elf.loads[1:] if _holds_tables(elf, load, tables)]
        loads = tuple(load for load in elf.loads if load not in dead)
        stale = merge([*tables.spans, *(_whole(load, page) for load in dead)])
        gone = [Span(align_up(span.start, page), span.end // page * page) for span in stale]
        gone = [span for span in gone if span.size > 0]
        behind = next((load for load in loads if _has_room(load, page)), None)
        fixed = _fixed(elf, tables, wanted, page)
        if behind:
            fixed = merge([*fixed, *_pages([Span(behind.memory_end - 1, behind.memory_end)], page)])
        hot = merge([*fixed, *_pages((Span(*run) for run in wanted.touched), page)])
        cold: list[Span] = []
        segments: list[tuple[Segment, Span]] = []
        for group in _groups(loads, page):
            runs: list[Span] = []
            for load in group:
                free = subtract([_whole(load, page)], subtract(hot, gone))
                runs += [run for run in free if run.size >= max(wanted.gap, page)]
            if sum(run.size for run in subtract(runs, gone)) < _LITTLE and sum(run.size for run in runs) < 4 * _LITTLE:
                continue
            with_cold = [index for index, load in enumerate(group) if _within(runs, _whole(load, page))]
            first, last = with_cold[0], with_cold[-1]
            while first and group[first - 1].file_size <= _COVERED:
                first -= 1
            while last + 1 < len(group) and group[last + 1].file_size <= _COVERED:
                last += 1
            # the first page of the library stays its own: who reads the mappings of a process knows it by that
            own = page if group[first] is elf.loads[0] else 0
            cover = Span(_whole(group[first], page).start + own, _whole(group[last], page).end)
            for part in _parts(elf, group, cover, page) if wanted.apart else [cover]:
                inside = _within(runs, part)
                cold += inside
                segments += [(group[first], part)] if inside else []
        places = tuple(segments), tuple(cold), tuple(gone), tuple(fixed)
        plan = cls(elf, loads, page, tables, tuple(stale), *places, wanted, behind)
        if plan.saved < wanted.worth:
            raise NotPagedError("too little of it was not touched")
        frame = _Frame.of(plan)
        code = frame.calls(elf, align_up(behind.memory_end, _CODE_ALIGNMENT)) if behind else ()
        plan = replace(plan, start=frame.start, code=code)
        if wanted.apart:
            return plan
        added = _Writing.of(plan, [bytes(KEY_SIZE)] * len(segments), wanted.pack).addition  # as large as it will be
        return replace(plan, segments=_over_holes(plan, Span(added.start, align_up(added.end, page))))


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
        calls = ((at, self.table_at + _AGAIN, elf.dynamic_value(_INIT)), (at + _CODE_SIZE, self.table_at, None))
        return tuple(
            (begin, _first_code(elf.machine, begin, given, self.slot_at, then).ljust(_CODE_SIZE, b"\0"))
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
        old = _pieces(plan)
        if len(old) > _MOST_PIECES:
            raise NotPagedError("it would be in too many pieces")
        headers = 1 + len(_loads(plan, old)) + (2 if spare is None else 1) + len(_others(elf)) + 1
        size = headers * PROGRAM_HEADER.size + _MOST_NAMES + sum(table.size for table in plan.tables.all)
        size += (len(plan.cold) + len(plan.segments) + 2 * len(old)) * (_CODE_SIZE - _WORD)
        end = align_up(max(load.memory_end for load in plan.loads) + 2 * _WORD, page)
        behind = end if spare else align_up(end + 2 * _WORD + (count + 1) * DYNAMIC_ENTRY.size, page)
        return cls(count, spare, end, headers, _gap(plan, size, behind), size)


def _gap(plan: PagePlan, size: int, behind: int) -> int:
    """The first address with so much room behind data that the loader maps from the file, in one mapping with it; else
    behind everything."""
    covers = [cover for _, cover in plan.segments]
    for before, after in pairwise(plan.loads):
        gap = Span(_whole(before, plan.page).end, after.address // plan.page * plan.page)
        mapped = not any(cover.start < gap.end and gap.start <= cover.end for cover in covers)
        if before.flags == _READ and gap.size >= size and mapped:
            return gap.start
    return behind


def _over_holes(plan: PagePlan, added: Span) -> tuple[tuple[Segment, Span], ...]:
    """What the pack covers, with the small holes beside it, which are mappings too: first those beside data."""
    spans = {cover: cover for _, cover in plan.segments}
    for load, cover in sorted(plan.segments, key=lambda row: row[0].flags & _EXECUTE):
        taken = merge([added, *spans.values(), *(_whole(load, plan.page) for load in plan.loads)])
        below, above = max(cover.start - _COVERED, 0), cover.end + _COVERED
        start = next((s.start for s in subtract([Span(below, cover.start)], taken) if s.end == cover.start), below)
        end = next((s.end for s in subtract([Span(cover.end, above)], taken) if s.start == cover.end), above)
        spans[cover] = Span(start if start > below else cover.start, end if end < above else cover.end)
    return tuple((load, spans[cover]) for load, cover in plan.segments)


def _others(elf: ElfFile) -> tuple[Segment, ...]:
    """The program headers of what is not loaded by itself."""
    return tuple(s for s in elf.segments if s.type not in (SegmentType.LOAD, SegmentType.PHDR))


def _has_room(load: Segment, page: int) -> bool:
    """Whether behind a segment of code there is room for a few instructions in its last page."""
    at = align_up(load.memory_end, _CODE_ALIGNMENT)
    fits = load.memory_end % page and at + 2 * _CODE_SIZE <= align_up(load.memory_end, page)
    return bool(fits and load.flags == _READ | _EXECUTE and load.memory_size == load.file_size)


def _holds_tables(elf: ElfFile, load: Segment, tables: _Tables) -> bool:
    """Whether a segment has nothing but tables that move, what were program headers, and zeros."""
    whole = Span(load.address, load.memory_end)
    moved = {section.index for section in tables.all}
    inside = [s for s in elf.sections if s.allocated and s.address < whole.end and whole.start < s.memory_end]
    others = [s for s in _others(elf) if s.memory_size and s.address < whole.end and whole.start < s.memory_end]
    known = all(section.index in moved or section.name == TABLE_SECTION for section in inside)
    if load.flags & _WRITE or load.memory_size != load.file_size or others or not known or not load.file_size:
        return False
    table = elf.address_of(elf.header.segment_table_offset) or 0
    spans = [*tables.spans, Span(table, table + len(elf.segments) * PROGRAM_HEADER.size)]
    spans += [Span(section.address, section.memory_end) for section in inside]
    rest = subtract([whole], merge(spans))
    return not any(bytes(elf.read(load.offset + s.start - load.address, s.size)).strip(b"\0") for s in rest)


def _whole(load: Segment, page: int) -> Span:
    return Span(load.address // page * page, align_up(load.memory_end, page))


def _groups(loads: Sequence[Segment], page: int) -> Iterator[list[Segment]]:
    """The segments that can be in packs; those with the same rights and little between them together."""
    group: list[Segment] = []
    for load in loads:
        fits = not load.flags & _WRITE and load.memory_size == load.file_size > 0
        if group and not (
            fits
            and load.flags == group[-1].flags
            and _whole(load, page).start - _whole(group[-1], page).end <= _COVERED
        ):
            yield group
            group = []
        group += [load] if fits else []
    if group:
        yield group


def _tables(elf: ElfFile) -> _Tables:
    if elf.header.type is not FileType.SHARED or any(s.type == SegmentType.INTERP for s in elf.segments):
        raise NotPagedError("it is a program, not a library")
    tags = [entry.tag for entry in elf.dynamic]
    if any("musl" in name or name == "libc.so" for name in needed_libraries(elf)):  # glibc's is libc.so.6
        raise NotPagedError("it is for musl, and the hook for glibc")
    if _TEXTREL in tags or (elf.dynamic_value(_FLAGS) or 0) & _TEXTREL_FLAG:
        raise NotPagedError("its code is relocated")
    by_address = {s.address: s for s in elf.sections if s.allocated and s.in_file}

    def table(tag: DynamicTag, kind: SectionType) -> Section | None:
        address = elf.dynamic_value(tag)
        section = by_address.get(address) if address is not None else None
        if address is not None and (section is None or section.type != kind or tags.count(tag) != 1):
            raise NotPagedError("its tables are laid out in another way than linkers do")
        return section

    symbols, strings = table(DynamicTag.SYMTAB, SectionType.DYNSYM), table(DynamicTag.STRTAB, SectionType.STRTAB)
    versions, relocations = table(DynamicTag.VERSYM, SectionType.VERSYM), table(DynamicTag.RELA, SectionType.RELA)
    if symbols is None or strings is None or symbols.size % SYMBOL.size:
        raise NotPagedError("it has no dynamic symbols")
    if relocations is not None and elf.dynamic_value(DynamicTag.RELASZ) != relocations.size:
        raise NotPagedError("its relocations are laid out in another way than linkers do")
    kinds = {
        DynamicTag.VERNEED: (SectionType.VERNEED, None),
        DynamicTag.RELR: (SectionType.RELR, DynamicTag.RELRSZ),
        DynamicTag.JMPREL: (SectionType.RELA, DynamicTag.PLTRELSZ),
    }
    whole: list[tuple[DynamicTag, Section]] = []
    for tag, (kind, size) in kinds.items():
        section = by_address.get(elf.dynamic_value(tag) or 0)
        if section and section.type == kind and (size is None or elf.dynamic_value(size) == section.size):
            whole.append((tag, section))
    return _Tables(symbols, strings, versions, relocations, tuple(whole))


def _checked_page(elf: ElfFile) -> int:
    """The size of the pages that it is cut by: the largest that a kernel for its processor may have."""
    page = page_size(elf.machine, elf.loads)
    if elf.machine is ElfMachine.AARCH64 and page != page_size(elf.machine, ()):
        raise NotPagedError("its segments are aligned for small pages only")
    reached = 0
    for load in elf.loads:
        if (load.address - load.offset) % page:
            raise NotPagedError("a segment of it is not aligned to pages")
        if load.address // page * page < reached:
            raise NotPagedError("two of its segments share a page")
        reached = align_up(load.memory_end, page)
    return page


def _fixed(elf: ElfFile, tables: _Tables, wanted: WantedPages, page: int) -> list[Span]:
    """The addresses that stay in the file whatever was touched, as whole pages."""
    moved = {section.index for section in tables.all}
    spans = [Span(load.address, load.address + 1) for load in elf.loads[:1]]
    for section in elf.sections:
        if not (section.allocated and section.in_file) or section.index in moved:
            continue
        data = not section.executable and section.name not in _UNWIND and not wanted.data
        unwind = section.name in _UNWIND and wanted.unwind
        gpu = section.name in CONTAINER_SECTIONS
        if data or unwind or gpu or section.name.startswith(_ALWAYS):
            spans.append(Span(section.address, section.memory_end))
    # patchelf and others put small tables anywhere
    spans += [
        Span(s.address, s.memory_end)
        for s in elf.segments
        if s.memory_size and s.type in (SegmentType.NOTE, SegmentType.TLS, SegmentType.DYNAMIC)
    ]
    return _pages(spans, page)


def _pages(spans: Iterable[Span], page: int) -> list[Span]:
    return merge(Span(span.start // page * page, align_up(span.end, page)) for span in spans)


def segment_bytes(plan: PagePlan, source: FileSource, cover: Span) -> Iterator[bytes]:
    """The bytes that a pack maps over segments: those of the file, the call of the hook, and zeros where tables were
    that have moved, between segments, and to the end of the last page."""
    at = cover.start
    for load in plan.loads:
        for part in subtract(_within([Span(load.address, load.address + load.file_size)], cover), plan.stale):
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
    kept = subtract([cover], _needed(plan))
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

    def add(self, data: bytes, section: Section | None = None, alignment: int = _CODE_ALIGNMENT) -> int:
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
            PagedSegment(cover.start, cover.size, key, _flags(load, cover, plan))
            for (load, cover), key in zip(plan.segments, keys, strict=True)
        )
        cold = tuple((span.start, span.end) for span in _needed(plan))
        pieces = _pieces(plan)
        if frame.spare:
            room = next(s for s in elf.segments if s.type == SegmentType.DYNAMIC)
            dynamic_at, size = room.address, room.file_size
            last = next(index for index, piece in enumerate(pieces) if piece.segment is frame.spare[0])
            pieces[last] = replace(pieces[last], memory_size=frame.slot_at + _WORD - pieces[last].address)
        else:
            dynamic_at, size = frame.writable_at + 2 * _WORD, (frame.entries + 1) * DYNAMIC_ENTRY.size
            pieces.append(_new_piece(_READ | _WRITE, frame.writable_at, 2 * _WORD + size, page))
        hot = tuple((piece.address, piece.end, 0) for piece in pieces if plan.by_hook(piece) and not _is_cold(piece))
        joined = tuple(_joined(elf, pieces, page))
        table = HostTable(
            plan.wanted.identity, frame.table_at, 0, page, segments, cold, hot, joined, pack, plan.wanted.place
        )
        addition.add(table.note(), alignment=_WORD)
        new = _grown_tables(plan, addition, strings, function)
        code = plan.code or frame.calls(elf, align_up(addition.end, _CODE_ALIGNMENT))
        addition.contents |= () if plan.code else code
        addition.end = addition.end if plan.code else code[-1][0] + _CODE_SIZE
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
        filled = iter(place(piece for piece in pieces if not _is_cold(piece)))
        placed = tuple(piece if _is_cold(piece) else next(filled) for piece in pieces)
        offsets = {piece.address: piece.offset for piece in placed}
        hot = tuple((start, end, offsets[start]) for start, end, _ in hot)
        table = replace(table, offset=offsets[plan.start] + frame.table_at - plan.start, hot=hot)
        addition.contents[frame.note_at] = table.note()
        return cls(plan, table, placed, addition, frame, (dynamic_at, data))

    @property
    def addresses(self) -> AddressMap:
        return AddressMap([piece for piece in self.pieces if not _is_cold(piece)])

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
        for piece in _loads(self.plan, self.pieces):
            flags = 0 if _is_cold(piece) else piece.segment.flags
            where = (piece.offset, piece.address, piece.address)
            rows.append((SegmentType.LOAD, flags, *where, piece.file_size, piece.memory_size, piece.alignment))
        for other in _others(self.plan.elf):
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


def _is_cold(piece: SegmentPiece) -> bool:
    return piece.file_size == 0 and piece.segment.file_size > 0


def _flags(load: Segment, cover: Span, plan: PagePlan) -> SegmentFlag:
    flags = SegmentFlag(load.flags & (_READ | _EXECUTE))
    holds_data = bool(_within(_data(plan.elf, plan.page), cover))
    return flags | SegmentFlag.AT_LOAD if plan.wanted.data and holds_data else flags


def _data(elf: ElfFile, page: int) -> list[Span]:
    """The pages with data that is neither code nor for unwinding."""
    return merge(
        Span(s.address // page * page, align_up(s.memory_end, page))
        for s in elf.sections
        if s.allocated and s.in_file and not s.executable and s.name not in _UNWIND
    )


def _parts(elf: ElfFile, group: Sequence[Segment], cover: Span, page: int) -> list[Span]:
    """Segments in parts with data, and without; a hole between two of them is at no end of a part."""
    code = subtract([cover], _data(elf, page))
    parts = []
    for part in sorted([*code, *subtract([cover], code)]):
        under = _within([_whole(load, page) for load in group], part)
        parts += [Span(under[0].start, under[-1].end)] if under else []
    return parts


def _needed(plan: PagePlan) -> list[Span]:
    """The cold runs that anybody may ask for: not those of tables that have moved."""
    return subtract(plan.cold, plan.gone)


def _pieces(plan: PagePlan) -> list[SegmentPiece]:
    """The old segments: each a piece, or hot and cold pieces in turns."""
    pieces: list[SegmentPiece] = []
    for load in plan.loads:
        end = plan.code[-1][0] + _CODE_SIZE if load is plan.behind and plan.code else load.address + load.file_size
        inside = [run for run in plan.cold if run.start < load.memory_end and load.address < run.end]
        if not inside:
            size = end - load.address
            keeps = load is plan.loads[0] or load.flags & _EXECUTE  # as when GPU code leaves
            alignment = load.alignment if keeps else plan.page
            pieces.append(SegmentPiece(load, load.address, size, max(size, load.memory_size), alignment))
            continue
        covers = [cover for _, cover in plan.segments]
        hot = subtract([_whole(load, plan.page)], inside)
        outside = subtract(hot, covers)
        for span in sorted([*outside, *(part for cover in covers for part in _within(hot, cover)), *inside]):
            alignment = load.alignment if load is plan.elf.loads[0] and not pieces else plan.page
            if span in inside:
                pieces.append(SegmentPiece(load, span.start, 0, span.size, plan.page))
                continue
            start, last = max(span.start, load.address), min(span.end, end)
            pieces.append(SegmentPiece(load, start, last - start, last - start, alignment))
    return pieces


def _within(spans: Sequence[Span], whole: Span) -> list[Span]:
    inside = (Span(max(span.start, whole.start), min(span.end, whole.end)) for span in spans)
    return [span for span in inside if span.size > 0]


def _loads(plan: PagePlan, pieces: Sequence[SegmentPiece]) -> list[SegmentPiece]:
    """What the loader maps: pieces with their bytes, and one without any for what the hook maps between them, that lies
    in one segment of the pack."""
    starts = {cover.start for _, cover in plan.segments}
    loads: list[SegmentPiece] = []
    for piece in pieces:
        if not plan.by_hook(piece):
            loads.append(piece)
            continue
        start, end = piece.address // plan.page * plan.page, align_up(piece.address + piece.memory_size, plan.page)
        last = loads[-1] if loads else None
        if last and _is_cold(last) and last.address + last.memory_size == start and start not in starts:
            loads[-1] = replace(last, memory_size=end - last.address)
        else:
            loads.append(SegmentPiece(piece.segment, start, 0, end - start, plan.page))
    return loads


def _joined(elf: ElfFile, pieces: Sequence[SegmentPiece], page: int) -> Iterator[tuple[int, int, bool]]:
    """Small pieces of writable memory, and holes before them, of which the hook makes one mapping with what is before;
    a library that was cut, and then patched, has dozens."""
    relro = [_whole(s, page) for s in elf.segments if s.type == SegmentType.GNU_RELRO]
    end, zeroed, content = 0, False, 0  # of the writable memory before
    for piece in sorted(pieces, key=lambda piece: piece.address):
        start, stored = piece.address // page * page, align_up(piece.end, page)
        own = [Span(start, stored)]
        if not piece.segment.flags & _WRITE:
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
    relro = [_whole(s, page) for s in elf.segments if s.type == SegmentType.GNU_RELRO]
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
