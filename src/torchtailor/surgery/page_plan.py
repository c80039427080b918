"""Which pages of a library stay in its file, for what a workload touched of it, and what its pack maps over the others.

Addresses stay. Each segment that is not writable becomes a row of pieces: touched ("hot") ones with their bytes, and
others ("cold") with none. The loader maps only what it reads itself; the rest of a segment is one program header
without bytes and without access, which says whose the addresses are: each piece would cost every start a system call or
two, and all who look through program headers their time. The hook maps the pack over the segments; without a raw one,
the hot pieces from the file. Of segments that can be written to, long runs leave that were not touched, in which the
dynamic linker changes nothing and there is no GPU code: the pack is mapped over these runs alone. What is written of
it all, `host_pages.py` says.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from torchtailor.code.binary.elf import ElfFile
from torchtailor.code.binary.elf_headers import (
    PROGRAM_HEADER,
    RELA,
    SYMBOL,
    DynamicTag,
    ElfMachine,
    FileType,
    Section,
    SectionType,
    Segment,
    SegmentType,
)
from torchtailor.code.binary.symbols import c_library, dynamic_symbols
from torchtailor.code.gpucode.scan import CONTAINER_SECTIONS, UNWIND_TABLES
from torchtailor.surgery.headers import TABLE_SECTION
from torchtailor.surgery.layout import SegmentPiece, Span, align_up, merge, page_size, subtract
from torchtailor.workload.host_table import SegmentFlag

WORTH = 1 << 20  # bytes; for less no library is changed
WORTH_UNOPENED = 64 << 10  # of one that was never loaded, and so costs nothing to map
CODE_ALIGNMENT = 16
CODE_SIZE = 64  # of the instructions of each call of the hook

# read by the loader before the hook is called, or too small to be worth a hole
_ALWAYS = (".note", ".gnu.hash", ".hash", ".gnu.version", ".rel", ".init", ".fini", ".plt", ".iplt", ".interp")
_EXECUTE, _WRITE, _READ = 1, 2, 4
_TEXTREL, _FLAGS = 22, 30
_TEXTREL_FLAG = 4
_POINTERS = 16  # bytes: what a relocation changes at most
_LITTLE = 64 << 10  # bytes: for less, data has no mapping of its own
# bytes: a hole between two segments that the pack maps as zeros, or a segment without cold runs beside one with some;
# each saves mappings
_COVERED = 16 << 20
_WRITABLE_RUN = 1 << 20  # bytes: for less, what can be written to has no mappings of its own


class NotPagedError(Exception):
    """Why a library keeps all its pages."""


@dataclass(frozen=True, slots=True)
class WantedPages:
    """What of a library stays in the file."""

    touched: tuple[tuple[int, int], ...]  # addresses, as (start, end)
    identity: str
    data: bool  # data that was not touched leaves the file, too
    gap: int  # smaller runs of cold pages stay
    unwind: bool  # all unwind tables stay, for debuggers
    place: str = ""  # the folder of pack and hook, from the library's
    pack: str = ""  # a name as long as that of its pack
    apart: bool = False  # data that is needed at load is apart from code in the pack, which unpacks it when it is run
    worth: int = WORTH  # for less it is not changed
    gpu: frozenset[str] = frozenset()  # the sections with GPU code, which readers look for in the file


@dataclass(frozen=True, slots=True)
class LinkerTables:
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
    tables: LinkerTables
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
        writable = sum(cover.size for load, cover in self.segments if load.flags & _WRITE)  # all of it is cold
        return sum(load.file_size for load in self.loads if not load.flags & _WRITE) - self.saved + writable

    @property
    def runs(self) -> int:
        """Pieces that the file has."""
        return sum(bool(piece.file_size) for piece in self.pieces)

    def by_hook(self, piece: SegmentPiece) -> bool:
        """Whether the hook maps a piece, from the pack or from the file."""
        if is_cold(piece):
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
        stale = merge([*tables.spans, *(whole(load, page) for load in dead)])
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
                free = subtract([whole(load, page)], subtract(hot, gone))
                runs += [run for run in free if run.size >= max(wanted.gap, page)]
            if sum(run.size for run in subtract(runs, gone)) < _LITTLE and sum(run.size for run in runs) < 4 * _LITTLE:
                continue
            with_cold = [index for index, load in enumerate(group) if within(runs, whole(load, page))]
            first, last = with_cold[0], with_cold[-1]
            while first and group[first - 1].file_size <= _COVERED:
                first -= 1
            while last + 1 < len(group) and group[last + 1].file_size <= _COVERED:
                last += 1
            # the first page of the library stays its own: who reads the mappings of a process knows it by that
            own = page if group[first] is elf.loads[0] else 0
            cover = Span(whole(group[first], page).start + own, whole(group[last], page).end)
            for part in _parts(elf, group, cover, page) if wanted.apart else [cover]:
                inside = within(runs, part)
                cold += inside
                segments += [(group[first], part)] if inside else []
        for load, run in _writable_runs(elf, loads, wanted, [*hot, *_pages(gone, page)], page):
            cold.append(run)
            segments.append((load, run))
        cold.sort()
        segments.sort(key=lambda row: row[1])
        places = tuple(segments), tuple(cold), tuple(gone), tuple(fixed)
        plan = cls(elf, loads, page, tables, tuple(stale), *places, wanted, behind)
        if plan.saved < wanted.worth:
            raise NotPagedError("too little of it was not touched")
        return plan

    @property
    def needed(self) -> list[Span]:
        """The cold runs that anybody may ask for: not those of tables that have moved."""
        return subtract(self.cold, self.gone)

    @property
    def pieces(self) -> list[SegmentPiece]:
        """The old segments: each a piece, or hot and cold pieces in turns."""
        pieces: list[SegmentPiece] = []
        for load in self.loads:
            end = self.code[-1][0] + CODE_SIZE if load is self.behind and self.code else load.address + load.file_size
            inside = [run for run in self.cold if run.start < load.memory_end and load.address < run.end]
            if not inside:
                size = end - load.address
                keeps = load is self.loads[0] or load.flags & _EXECUTE  # as when GPU code leaves
                alignment = load.alignment if keeps else self.page
                pieces.append(SegmentPiece(load, load.address, size, max(size, load.memory_size), alignment))
                continue
            covers = [cover for _, cover in self.segments]
            hot = subtract([whole(load, self.page)], inside)
            outside = subtract(hot, covers)
            for span in sorted([*outside, *(part for cover in covers for part in within(hot, cover)), *inside]):
                alignment = load.alignment if load is self.elf.loads[0] and not pieces else self.page
                if span in inside:
                    pieces.append(SegmentPiece(load, span.start, 0, span.size, self.page))
                    continue
                start, last = max(span.start, load.address), min(span.end, end)
                zeros = load.memory_end - load.address - load.file_size if last == load.address + load.file_size else 0
                pieces.append(SegmentPiece(load, start, last - start, last - start + zeros, alignment))
        return pieces

    def mapped(self, pieces: Sequence[SegmentPiece]) -> list[SegmentPiece]:
        """What the loader maps: pieces with their bytes, and one without any for what the hook maps between them, that
        lies in one segment of the pack."""
        starts = {cover.start for _, cover in self.segments}
        loads: list[SegmentPiece] = []
        for piece in pieces:
            if not self.by_hook(piece):
                loads.append(piece)
                continue
            start, end = piece.address // self.page * self.page, align_up(piece.address + piece.memory_size, self.page)
            last = loads[-1] if loads else None
            if last and is_cold(last) and last.address + last.memory_size == start and start not in starts:
                loads[-1] = replace(last, memory_size=end - last.address)
            else:
                loads.append(SegmentPiece(piece.segment, start, 0, end - start, self.page))
        return loads

    def flags(self, load: Segment, cover: Span) -> SegmentFlag:
        if load.flags & _WRITE:
            writes = 0 if any(within([cover], span) for span in _protected(self.elf)) else _WRITE
            return SegmentFlag(_READ | writes) | SegmentFlag.AT_LOAD
        flags = SegmentFlag(load.flags & (_READ | _EXECUTE))
        holds_data = bool(within(_data(self.elf, self.page), cover))
        return flags | SegmentFlag.AT_LOAD if self.wanted.data and holds_data else flags

    def over_holes(self, added: Span) -> PagePlan:
        """The same, with the small holes beside what the pack covers, as these are mappings too: first those beside
        data."""
        spans = {cover: cover for _, cover in self.segments}
        read_only = [row for row in self.segments if not row[0].flags & _WRITE]
        for _, cover in sorted(read_only, key=lambda row: row[0].flags & _EXECUTE):
            taken = merge([added, *spans.values(), *(whole(load, self.page) for load in self.loads)])
            below, above = max(cover.start - _COVERED, 0), cover.end + _COVERED
            start = next((s.start for s in subtract([Span(below, cover.start)], taken) if s.end == cover.start), below)
            end = next((s.end for s in subtract([Span(cover.end, above)], taken) if s.start == cover.end), above)
            spans[cover] = Span(start if start > below else cover.start, end if end < above else cover.end)
        return replace(self, segments=tuple((load, spans[cover]) for load, cover in self.segments))


def others(elf: ElfFile) -> tuple[Segment, ...]:
    """The program headers of what is not loaded by itself."""
    return tuple(s for s in elf.segments if s.type not in (SegmentType.LOAD, SegmentType.PHDR))


def _has_room(load: Segment, page: int) -> bool:
    """Whether behind a segment of code there is room for a few instructions in its last page."""
    at = align_up(load.memory_end, CODE_ALIGNMENT)
    fits = load.memory_end % page and at + 2 * CODE_SIZE <= align_up(load.memory_end, page)
    return bool(fits and load.flags == _READ | _EXECUTE and load.memory_size == load.file_size)


def _holds_tables(elf: ElfFile, load: Segment, tables: LinkerTables) -> bool:
    """Whether a segment has nothing but tables that move, what were program headers, and zeros."""
    all_of_it = Span(load.address, load.memory_end)
    moved = {section.index for section in tables.all}
    inside = [s for s in elf.sections if s.allocated and s.address < all_of_it.end and all_of_it.start < s.memory_end]
    told = [s for s in others(elf) if s.memory_size and s.address < all_of_it.end and all_of_it.start < s.memory_end]
    known = all(section.index in moved or section.name == TABLE_SECTION for section in inside)
    if load.flags & _WRITE or load.memory_size != load.file_size or told or not known or not load.file_size:
        return False
    table = elf.address_of(elf.header.segment_table_offset) or 0
    spans = [*tables.spans, Span(table, table + len(elf.segments) * PROGRAM_HEADER.size)]
    spans += [Span(section.address, section.memory_end) for section in inside]
    rest = subtract([all_of_it], merge(spans))
    return not any(bytes(elf.read(load.offset + s.start - load.address, s.size)).strip(b"\0") for s in rest)


def _groups(loads: Sequence[Segment], page: int) -> Iterator[list[Segment]]:
    """The segments that can be in packs; those with the same rights and little between them together."""
    group: list[Segment] = []
    for load in loads:
        fits = not load.flags & _WRITE and load.memory_size == load.file_size > 0
        if group and not (
            fits and load.flags == group[-1].flags and whole(load, page).start - whole(group[-1], page).end <= _COVERED
        ):
            yield group
            group = []
        group += [load] if fits else []
    if group:
        yield group


def _tables(elf: ElfFile) -> LinkerTables:
    if elf.header.type is not FileType.SHARED or any(s.type == SegmentType.INTERP for s in elf.segments):
        raise NotPagedError("it is a program, not a library")
    tags = [entry.tag for entry in elf.dynamic]
    if (libc := c_library(elf)) != "glibc":
        said = f"is for {libc}" if libc else "does not say for which C library it is"
        raise NotPagedError(f"it {said}, and the hook for glibc")
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
    unchanged: list[tuple[DynamicTag, Section]] = []
    for tag, (kind, size) in kinds.items():
        section = by_address.get(elf.dynamic_value(tag) or 0)
        if section and section.type == kind and (size is None or elf.dynamic_value(size) == section.size):
            unchanged.append((tag, section))
    return LinkerTables(symbols, strings, versions, relocations, tuple(unchanged))


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


def _fixed(elf: ElfFile, tables: LinkerTables, wanted: WantedPages, page: int) -> list[Span]:
    """The addresses that stay in the file whatever was touched, as whole pages."""
    moved = {section.index for section in tables.all}
    spans = [Span(load.address, load.address + 1) for load in elf.loads[:1]]
    for section in elf.sections:
        if not (section.allocated and section.in_file) or section.index in moved:
            continue
        data = not section.executable and section.name not in UNWIND_TABLES and not wanted.data
        unwind = section.name in UNWIND_TABLES and wanted.unwind
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


def _protected(elf: ElfFile) -> list[Span]:
    """What nobody can write to any more once the library is relocated."""
    return [Span(s.address, s.memory_end) for s in elf.segments if s.type == SegmentType.GNU_RELRO]


def _writable_runs(
    elf: ElfFile, loads: Sequence[Segment], wanted: WantedPages, hot: Sequence[Span], page: int
) -> Iterator[tuple[Segment, Span]]:
    """The runs of cold pages in segments that can be written to. Traces of older versions name no pages of these; of a
    library that was never loaded, none were touched."""
    writable = [load for load in loads if load.flags & _WRITE and load.file_size]
    inner = [Span(align_up(s.address, page), (s.address + s.file_size - 1) // page * page) for s in writable]
    touched = [Span(*run) for run in wanted.touched]
    known = not touched or any(within(touched, whole(load, page)) for load in writable)
    if not wanted.data or not known:
        return
    gpu = [Span(s.address, s.memory_end) for s in elf.sections if s.name in wanted.gpu]
    # a program that was linked with the library may have copies of its variables made before the hook can be called
    shared = [Span(s.value, s.value + s.size) for s in dynamic_symbols(elf) if s.is_data and not s.undefined]
    kept = merge([*hot, *_pages([*gpu, *shared], page)])
    protected = _protected(elf)
    around = merge(Span(s.start // page * page, align_up(s.end, page)) for s in protected)
    inside = [Span(align_up(s.start, page), s.end // page * page) for s in protected]
    for load, span in zip(writable, inner, strict=True):
        free = subtract([span] if span.size > 0 else [], kept)
        for run in (run for run in free if run.size >= _WRITABLE_RUN):
            changed = _pages((Span(at, at + _POINTERS) for at in _relocated(elf, run)), page)
            left = subtract([run], changed)
            for part in sorted([*subtract(left, around), *(one for s in inside for one in within(left, s))]):
                if part.size >= _WRITABLE_RUN:
                    yield load, part


def _relocated(elf: ElfFile, run: Span) -> Iterator[int]:
    """The addresses in a run, and right before it, that the dynamic linker changes."""
    start = run.start - _POINTERS
    yield from map(elf.rela.places.__getitem__, elf.rela.placed_in(start, run.end))
    yield from (place for place in elf.relr if start < place < run.end)
    calls = elf.dynamic_value(DynamicTag.JMPREL)
    for section in (s for s in elf.sections if s.allocated and s.in_file and s.address == calls):
        yield from (place for place, _, _ in RELA.iter_unpack(elf.content(section)) if start < place < run.end)


def _data(elf: ElfFile, page: int) -> list[Span]:
    """The pages with data that is neither code nor for unwinding."""
    return merge(
        Span(s.address // page * page, align_up(s.memory_end, page))
        for s in elf.sections
        if s.allocated and s.in_file and not s.executable and s.name not in UNWIND_TABLES
    )


def _parts(elf: ElfFile, group: Sequence[Segment], cover: Span, page: int) -> list[Span]:
    """Segments in parts with data, and without; a hole between two of them is at no end of a part."""
    code = subtract([cover], _data(elf, page))
    parts = []
    for part in sorted([*code, *subtract([cover], code)]):
        under = within([whole(load, page) for load in group], part)
        parts += [Span(under[0].start, under[-1].end)] if under else []
    return parts


def whole(load: Segment, page: int) -> Span:
    return Span(load.address // page * page, align_up(load.memory_end, page))


def _pages(spans: Iterable[Span], page: int) -> list[Span]:
    return merge(Span(span.start // page * page, align_up(span.end, page)) for span in spans)


def within(spans: Sequence[Span], whole: Span) -> list[Span]:
    inside = (Span(max(span.start, whole.start), min(span.end, whole.end)) for span in spans)
    return [span for span in inside if span.size > 0]


def is_cold(piece: SegmentPiece) -> bool:
    return piece.file_size == 0 and piece.segment.file_size > 0
