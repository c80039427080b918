"""A small linker: writes shared libraries with GPU code reached in every way that was met in real ones.

It is independent of the code under test, and so is `memory`, which loads a file as the dynamic loader would.
"""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass, field

from tests.unit.gpucode.builders import Entry, container

PHDR, SHDR = struct.Struct("<IIQQQQQQ"), struct.Struct("<IIQQQQIIQQ")
LOAD, DYNAMIC, NOTE, PHDR_TYPE, STACK, RELRO = 1, 2, 4, 6, 0x6474E551, 0x6474E552
R, W, X = 4, 2, 1


@dataclass
class Recipe:
    """What to put into a library; each container is a tuple of entries."""

    wrapped: list[tuple[Entry, ...]] = field(default_factory=list)
    linked: list[tuple[Entry, ...]] = field(default_factory=list)  # in .nv_fatbin, by a version 2 wrapper
    relocatable: list[tuple[Entry, ...]] = field(default_factory=list)  # in __nv_relfatbin
    recorded: list[tuple[Entry, ...] | bytes] = field(default_factory=list)  # .cask_resource, bytes are opaque
    immediate: list[tuple[Entry, ...]] = field(default_factory=list)  # .ldata, by movabs (x86_64 only)
    hidden: list[tuple[Entry, ...]] = field(default_factory=list)  # .rodata, by nothing that is visible
    bare: list[bytes] = field(default_factory=list)  # cubins or zstd frames without a container
    bare_in: str = ".data"
    bare_by: str = "records"  # or "pointers" without a size, "code", "nothing"
    machine: int = 62
    alignment: int = 0x1000
    text_alignment: int | None = None
    container_alignment: int = 8
    relr: bool = False
    in_place: bool = True  # whether RELA pointers also hold their addend
    phdr_slack: bytes = b""  # filling behind the program headers
    phdr_segment: bool = False
    symtab: bool = True
    program: bool = False  # asks for a loader, as programs do
    zeroed_segment: bool = False  # a loaded segment without a byte in the file
    named: bool = False  # dynamic symbols of the first and the last bytes of .cask_resource
    host_bytes: int = 700
    seed: int = 1

    def host(self, salt: str, size: int | None = None) -> bytes:
        return random.Random(f"{self.seed}{salt}").randbytes(size if size is not None else self.host_bytes)


@dataclass
class _Section:
    name: str
    data: bytearray
    flags: int = 2
    type: int = 1
    align: int = 8
    link: str = ""
    entsize: int = 0
    info: int = 0
    address: int = 0
    offset: int = 0
    nobits: int = 0

    @property
    def size(self) -> int:
        return self.nobits or len(self.data)


class Linker:
    """Lays a recipe out and writes it."""

    def __init__(self, recipe: Recipe) -> None:
        self.r = recipe
        self.pointers: list[tuple[_Section, int, _Section, int]] = []  # (section, offset, target, offset)
        self.records: list[tuple[_Section, int]] = []  # places of {end, begin}
        self.immediates: list[tuple[int, int]] = []  # (offset in .text, offset in .ldata)
        self.bare: list[tuple[_Section, int]] = []  # (section, offset)
        self.bare_pointers: list[tuple[_Section, int, int]] = []  # (section, offset, which of them)
        self.in_code: list[tuple[int, _Section, int]] = []  # (offset in .text, section, offset)
        self.sections: list[_Section] = []
        self.relative = 8 if recipe.machine == 62 else 1027

    def build(self) -> bytes:
        r = self.r
        fat, rel, cask = _Section(".nv_fatbin", bytearray(), align=r.container_alignment), None, None
        segment = _Section(".nvFatBinSegment", bytearray(), flags=3)
        data = _Section(".data", bytearray(r.host("data")), flags=3, align=32)
        rodata = _Section(".rodata", bytearray(r.host("rodata")), align=32)
        text = _Section(".text", bytearray(r.host("text")), flags=6, align=16)
        for entries in r.wrapped:
            self._wrap(segment, 1, fat, self._add(fat, entries, r.container_alignment))
        if r.relocatable:
            rel = _Section("__nv_relfatbin", bytearray())
            for entries in r.relocatable:
                self._wrap(segment, 1, rel, self._add(rel, entries, 8))
        array_at = []
        for entries in r.linked:
            at = self._add(fat, entries, r.container_alignment)
            self._wrap(segment, 2, fat, at)
            array_at.append((len(segment.data) - 8, at))
        for slot, at in array_at:  # the array of the device link
            self._pad(data, 8)
            self.pointers.append((segment, slot, data, len(data.data)))
            self.pointers.append((data, len(data.data), fat, at))
            data.data += bytes(16)
        if r.recorded:
            cask = _Section(".cask_resource", bytearray())
            self._records(cask, data)
        for entries in r.hidden:
            self._add(rodata, entries, 8)
            rodata.data += r.host("between", 40)
        ldata = None
        if r.immediate:
            ldata = _Section(".ldata", bytearray(r.host("ldata", 96)), flags=3, align=32)
            for entries in r.immediate:
                at = self._add(ldata, entries, 32)
                text.data += b"\x48\xb9"
                self.immediates.append((len(text.data), at))
                text.data += bytes(8) + r.host(f"code{at}", 9).replace(b"\x48", b"\x90").replace(b"\x49", b"\x90")
            ldata.data += r.host("ldata end", 96)
        if r.bare and r.bare_in == ".ldata":
            ldata = ldata or _Section(".ldata", bytearray(r.host("ldata", 96)), flags=3, align=32)
        if r.bare:
            homes = {".data": data, ".rodata": rodata, ".ldata": ldata}
            self._bare(homes[r.bare_in] or data, data, text)
        eh = _Section(".eh_frame", bytearray(r.host("eh")))
        return self._link(
            text, [rodata, *([rel] if rel else []), fat, *([cask] if cask else []), eh], data, segment, ldata
        )

    def _pad(self, section: _Section, to: int) -> None:
        section.data += bytes(-len(section.data) % to)

    def _add(self, section: _Section, entries: tuple[Entry, ...], align: int) -> int:
        self._pad(section, align)
        at = len(section.data)
        section.data += container(*entries)
        return at

    def _wrap(self, segment: _Section, version: int, target: _Section, at: int) -> None:
        start = len(segment.data)
        segment.data += struct.pack("<iiQQ", 0x466243B1, version, 0, 0)
        self.pointers.append((segment, start + 8, target, at))

    def _bare(self, home: _Section, data: _Section, text: _Section) -> None:
        """Cubins one after another, and twice as many records: {name, sm, pointer, cache, both sizes}."""
        for stored in self.r.bare:
            self._pad(home, 32)
            self.bare.append((home, len(home.data)))
            home.data += stored
        home.data += self.r.host("behind", 40)
        for number, (section, at) in [*enumerate(self.bare)] * 2:
            if self.r.bare_by in ("records", "pointers"):
                self._pad(data, 8)
                place = len(data.data) + 16
                self.pointers.append((data, place, section, at))
                self.bare_pointers.append((data, place, number))
                sizes = (len(self.r.bare[number]), 1 << 20) if self.r.bare_by == "records" else (0, 0)
                data.data += struct.pack("<QIIQQII", 0, 90, 1, 0, 0, *sizes) + bytes(88)
            elif self.r.bare_by == "code":
                self._pad(text, 4)
                self.in_code.append((len(text.data), section, at))
                text.data += bytes(16)

    def _records(self, cask: _Section, data: _Section) -> None:
        spans = []
        for item in self.r.recorded:
            at = len(cask.data)
            cask.data += item if isinstance(item, bytes) else container(*item) + bytes(8)
            self._pad(cask, 8)
            spans.append((at, len(cask.data)))
        self._pad(data, 8)
        for start, end in spans:  # {end, begin}, as CASK has it
            self.records.append((data, len(data.data)))
            self.pointers.append((data, len(data.data), cask, end))
            self.pointers.append((data, len(data.data) + 8, cask, start))
            data.data += bytes(16)

    def _link(
        self, text: _Section, readonly: list[_Section], data: _Section, segment: _Section, ldata: _Section | None
    ) -> bytes:
        r = self.r
        dynstr = _Section(".dynstr", bytearray(b"\0function\0libtest.so\0"), type=3, align=1)
        dynsym = _Section(".dynsym", bytearray(24), type=11, link=".dynstr", entsize=24, info=1)
        rela = _Section(".rela.dyn", bytearray(), type=4, link=".dynsym", entsize=24)
        relr = _Section(".relr.dyn", bytearray(), type=19, entsize=8)
        note = _Section(
            ".note.gnu.build-id",
            bytearray(struct.pack("<III", 4, 20, 3) + b"GNU\0" + r.host("id", 20)),
            type=7,
            align=4,
        )
        got = _Section(".got.plt", bytearray(24), flags=3)
        dynamic = _Section(".dynamic", bytearray(16 * 16), type=6, flags=3, link=".dynstr", entsize=16)
        bss = _Section(".bss", bytearray(), type=8, flags=3, align=32, nobits=5000)
        zeroed = _Section(".lbss", bytearray(), type=8, flags=3, align=32, nobits=9000)
        # a RELR table of plain addresses; otherwise RELA, with one relocation that names a symbol
        if r.relr:
            relr.data = bytearray(8 * len(self.pointers))
        rela.data = bytearray(24 * ((0 if r.relr else len(self.pointers)) + 1))
        dynsym.data += bytes(24 + 48 * r.named)
        text_align = r.text_alignment or r.alignment
        loads = [
            (R, r.alignment, [note, dynsym, dynstr, rela, *([relr] if r.relr else [])]),
            (R | X, text_align, [text]),
            (R, r.alignment, readonly),
            (R | W, r.alignment, [dynamic, data, segment, got, bss]),
            *([(R | W, r.alignment, [ldata])] if ldata else []),
            *([(R | W, r.alignment, [zeroed])] if r.zeroed_segment else []),
        ]
        count = len(loads) + 4 + r.phdr_segment + r.program
        headers = 64 + count * PHDR.size + len(r.phdr_slack)
        offset, address, table = headers, headers, []
        for index, (flags, align, sections) in enumerate(loads):
            if index:
                address = -(-address // align) * align + align + offset % align
            start, at = (0, 0) if index == 0 else (offset, address)
            for section in sections:
                step = -address % section.align
                offset, address = offset + (0 if section.nobits else step), address + step
                section.address, section.offset = address, offset
                address += section.size
                offset += 0 if section.nobits else section.size
            table.append((LOAD, flags, start, at, at, offset - start, address - at, align))
        self._fill(dynsym, dynstr, rela, relr, dynamic, text, got, ldata)
        if r.named:
            cask = next(section for section in readonly if section.name == ".cask_resource")
            index = 1 + [section for _, _, group in loads for section in group].index(cask)
            for row, value in enumerate((cask.address, cask.address + cask.size - 8), 2):
                struct.pack_into("<IBBHQQ", dynsym.data, 24 * row, 1, 0x11, 0, index, value, 8)
        rows: list[tuple[int, ...]] = [*table]
        rows.append((DYNAMIC, 6, dynamic.offset, dynamic.address, dynamic.address, dynamic.size, dynamic.size, 8))
        rows.append((NOTE, 4, note.offset, note.address, note.address, note.size, note.size, 4))
        rows.append((STACK, 6, 0, 0, 0, 0, 0, 16))
        rows.append((RELRO, 4, dynamic.offset, dynamic.address, dynamic.address, dynamic.size, dynamic.size, 1))
        if r.program:
            rows.append((3, 4, dynstr.offset, dynstr.address, dynstr.address, dynstr.size, dynstr.size, 1))
        if r.phdr_segment:
            rows.insert(0, (PHDR_TYPE, 4, 64, 64, 64, count * PHDR.size, count * PHDR.size, 8))
        return self._write(rows, [s for _, _, group in loads for s in group], offset)

    def _fill(
        self,
        dynsym: _Section,
        dynstr: _Section,
        rela: _Section,
        relr: _Section,
        dynamic: _Section,
        text: _Section,
        got: _Section,
        ldata: _Section | None,
    ) -> None:
        struct.pack_into("<IBBHQQ", dynsym.data, 24, 1, 0x12, 0, 2, text.address, 16)
        records = []
        places = []
        for section, at, target, to in self.pointers:
            goal = target.address + to
            if self.r.in_place or self.r.relr:
                struct.pack_into("<Q", section.data, at, goal)
            places.append(section.address + at)
            records.append((section.address + at, self.relative, goal))
        if self.r.relr:
            relr.data[:] = b"".join(struct.pack("<Q", place) for place in sorted(places))
            records = []
        symbolic = 1 if self.r.machine == 62 else 257
        records.append((got.address, 1 << 32 | symbolic, 0))
        rela.data[:] = b"".join(struct.pack("<QQq", *record) for record in records)
        for at, to in self.immediates:
            assert ldata is not None
            struct.pack_into("<q", text.data, at, ldata.address + to - got.address)
        for at, target_section, to in self.in_code:
            here, goal = text.address + at, target_section.address + to
            if self.r.machine == 62:  # lea goal(%rip), %rdi
                text.data[at : at + 7] = b"\x48\x8d\x3d" + struct.pack("<i", goal - here - 7)
            else:  # adrp x3, goal; nop; add x0, x3, :lo12:goal
                pages = (goal >> 12) - (here >> 12)
                adrp = 0x90000003 | (pages & 3) << 29 | (pages >> 2 & 0x7FFFF) << 5
                text.data[at : at + 12] = struct.pack("<III", adrp, 0xD503201F, 0x91000060 | (goal & 0xFFF) << 10)
        tags = [(5, dynstr.address), (6, dynsym.address), (10, dynstr.size), (14, 10), (3, got.address)]
        tags += [(7, rela.address), (8, rela.size), (9, 24)]
        if self.r.relr:
            tags += [(36, relr.address), (35, relr.size), (37, 8)]
        dynamic.data[:] = b"".join(struct.pack("<qQ", *tag) for tag in tags).ljust(len(dynamic.data), b"\0")

    def _write(self, rows: list[tuple[int, ...]], loaded: list[_Section], end: int) -> bytes:
        r = self.r
        comment = _Section(".comment", bytearray(b"GCC: test\0"), flags=0, align=1)
        others = [comment]
        if r.symtab:
            others.append(_Section(".symtab", bytearray(bytes(480)), 0, 2, 8, ".strtab", 24, 1))
            others.append(_Section(".strtab", bytearray(b"\0" + r.host("strings", 300)), 0, 3, 1))
            others.append(_Section(".debug_info", bytearray(r.host("debug", 900)), 0, 1, 1))
        names = bytearray(b"\0")
        name_section = _Section(".shstrtab", names, 0, 3, 1)
        sections = self.sections = [*loaded, *others, name_section]
        numbers = {section.name: index for index, section in enumerate(sections, 1)}
        at = {}
        for section in sections:
            at[section.name] = len(names)
            names += section.name.encode() + b"\0"
        image = bytearray(end)
        for section in loaded:
            if not section.nobits:
                image[section.offset : section.offset + section.size] = section.data
        for section in [*others, name_section]:
            image += bytes(-len(image) % section.align)
            section.offset = len(image)
            image += section.data
        image += bytes(-len(image) % 8)
        table = len(image)
        image += bytes(64)
        for s in sections:
            link = numbers.get(s.link, 0)
            image += SHDR.pack(
                at[s.name], s.type, s.flags, s.address, s.offset, s.size, link, s.info, s.align, s.entsize
            )
        ident = b"\x7fELF\x02\x01\x01" + bytes(9)
        count = len(sections) + 1
        fields = (ident, 3, r.machine, 1, 0, 64, table, 0, 64, 56, len(rows), 64, count, count - 1)
        image[:64] = struct.pack("<16sHHIQQQIHHHHHH", *fields)
        headers = b"".join(PHDR.pack(*row) for row in rows) + r.phdr_slack
        image[64 : 64 + len(headers)] = headers
        return bytes(image)


def library(recipe: Recipe) -> bytes:
    return Linker(recipe).build()


def memory(image: bytes) -> dict[int, bytes]:
    """The loaded ranges of a file by address, relocated as if it were loaded at 0."""
    (phoff,) = struct.unpack_from("<Q", image, 32)
    (phnum,) = struct.unpack_from("<H", image, 56)
    ranges = {}
    for index in range(phnum):
        kind, _, offset, address, _, filesz, memsz, _ = PHDR.unpack_from(image, phoff + index * PHDR.size)
        if kind == LOAD:
            ranges[address] = image[offset : offset + filesz] + bytes(memsz - filesz)
    return ranges


def byte_at(ranges: dict[int, bytes], address: int, size: int) -> bytes:
    """Bytes of loaded memory; fails where they are not all loaded."""
    for start, data in ranges.items():
        if start <= address and address + size <= start + len(data):
            return data[address - start : address - start + size]
    raise AssertionError(f"{address:#x} is not loaded")
