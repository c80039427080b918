"""Proof, part seven: a library without its untouched pages is, with its pack, what it was.

It reads program headers as a loader does, and packs as the hook does, with code of its own. What it shows: every loaded
byte is at its address, from the file or from the pack, with the same rights; the tables of the dynamic linker have the
same entries and those of the hook; and the first instructions, of the last relocation and of the initialiser, call the
hook, and the latter then what the library began with before.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from torchtailor.code.binary.source import ByteSource
from torchtailor.core.errors import BadInputError, CheckFailedError

_EHDR = struct.Struct("<16sHHIQQQIHHHHHH")
_PHDR = struct.Struct("<IIQQQQQQ")
_DYN = struct.Struct("<qQ")
_SYM = struct.Struct("<IBBHQQ")
_RELA = struct.Struct("<QQq")
_LOAD, _DYNAMIC, _NOTE, _PHDR_TYPE, _EH_FRAME = 1, 2, 4, 6, 0x6474E550
_X, _W, _R = 1, 2, 4
_NEEDED, _STRTAB, _SYMTAB, _RELA_TAG, _RELASZ, _RELAENT, _STRSZ = 1, 5, 6, 7, 8, 9, 10
_INIT, _RPATH, _RUNPATH = 12, 15, 29
_VERSYM, _VERNEED, _RELR, _RELRSZ = 0x6FFFFFF0, 0x6FFFFFFE, 36, 35
_JMPREL, _PLTRELSZ = 23, 2
_RELRO = 0x6474E552
_GLOB_DAT = {62: 6, 183: 1025}
_IRELATIVE = {62: 37, 183: 1032}
_X86_64 = 62
_STEP = 1 << 20
_PAGE = 1 << 12
_AT_LOAD = 0x100
_AGAIN = 1  # what the initialiser adds to the address of the note
_FUNCTION = b"torchtailor_host_pages"
_HOOK = b"libtorchtailor-hook.so.1"
_OWNER = b"torchtailor\0"
_MARK = b"program headers\0"


@dataclass(frozen=True, slots=True)
class _Part:
    """A program header."""

    type: int
    flags: int
    offset: int
    address: int
    size: int
    memory: int
    alignment: int

    @property
    def end(self) -> int:
        return self.address + self.memory


@dataclass
class LoadedImage:
    """A library as a loader sees it."""

    source: ByteSource
    header: tuple[int | bytes, ...] = field(init=False)
    parts: list[_Part] = field(init=False)

    def __post_init__(self) -> None:
        self.header = _EHDR.unpack(self.source.read(0, _EHDR.size))
        at, count = int(self.header[5]), int(self.header[10])
        self.parts = []
        for index in range(count):
            kind, flags, offset, address, _, size, memory, alignment = _PHDR.unpack(
                self.source.read(at + index * _PHDR.size, _PHDR.size)
            )
            self.parts.append(_Part(kind, flags, offset, address, size, memory, alignment))

    @property
    def loads(self) -> list[_Part]:
        return [part for part in self.parts if part.type == _LOAD]

    @cached_property
    def memory(self) -> list[_Part]:
        """What is mapped: by the loader, and between it by the hook, from the file."""
        note = read_note(self)
        if note is None:
            return self.loads
        parts = [load for load in self.loads if load.size or load.flags]
        for load in (load for load in self.loads if not load.size and not load.flags):
            at = load.address
            for start, end, offset in [one for one in note.hot if load.address <= one[0] < load.end]:
                flags = next((row.flags & 7 for row in note.rows if row.address <= start < row.address + row.size), 0)
                if start < at or end <= start or end > load.end or (start - offset) % _PAGE:
                    raise BadInputError("What the library says of its pages is damaged.", "Install it again.")
                parts.append(_Part(_LOAD, 0, 0, at, 0, start - at, load.alignment))
                parts.append(_Part(_LOAD, flags, offset, start, end - start, end - start, load.alignment))
                at = end
            parts.append(_Part(_LOAD, 0, 0, at, 0, load.end - at, load.alignment))
        return sorted((part for part in parts if part.memory), key=lambda part: part.address)

    @cached_property
    def _starts(self) -> list[int]:
        return [load.address for load in self.memory]

    def spans(self, start: int, end: int) -> Iterator[tuple[int, int, _Part | None]]:
        """The parts of an address range, each with the segment that it lies in."""
        loads = self.memory
        at = start
        while at < end:
            index = bisect_left(self._starts, at + 1) - 1
            load = loads[index] if index >= 0 and at < loads[index].end else None
            after = index + 1
            until = load.end if load else (loads[after].address if after < len(loads) else end)
            until = min(until, end)
            yield at, until, load
            at = until

    def bytes_at(self, address: int, size: int) -> bytes:
        """The bytes of an address range that is in the file, or zeroed memory."""
        data = b""
        for start, end, load in self.spans(address, address + size):
            if load is None:
                raise CheckFailedError(f"The output has nothing at {start:#x}.")
            stored = min(end, load.address + load.size)
            if start < stored:
                data += bytes(self.source.read(load.offset + start - load.address, stored - start))
            data += bytes(end - max(start, stored))
        return data

    @cached_property
    def dynamic(self) -> list[tuple[int, int]]:
        part = next((part for part in self.parts if part.type == _DYNAMIC), None)
        if part is None:
            return []
        entries: list[tuple[int, int]] = []
        for at in range(part.address, part.address + part.size - part.size % _DYN.size, _DYN.size):
            tag, value = _DYN.unpack(self.bytes_at(at, _DYN.size))
            if tag == 0:
                break
            entries.append((tag, value))
        return entries

    def value(self, tag: int) -> int | None:
        return next((value for one, value in self.dynamic if one == tag), None)

    def text(self, at: int) -> bytes:
        start, limit = (self.value(_STRTAB) or 0) + at, self.value(_STRSZ) or 0
        return self.bytes_at(start, min(4096, limit - at)).partition(b"\0")[0]


@dataclass(frozen=True, slots=True)
class PagesRow:
    """A segment with pages in a pack, as the library's note lists it."""

    address: int
    size: int
    key: bytes
    flags: int


@dataclass(frozen=True, slots=True)
class PagesNote:
    """What a library says of its pages."""

    at: int
    offset: int  # where it is in the file
    rows: tuple[PagesRow, ...]
    cold: tuple[tuple[int, int], ...]
    hot: tuple[tuple[int, int, int], ...]  # what the hook maps from the file: (start, end, offset)
    joined: tuple[
        tuple[int, int], ...
    ]  # what it makes memory without a file, the start with a bit: it keeps its content


def read_note(image: LoadedImage) -> PagesNote | None:
    """The note of a library that was cut to its pages; None for others."""
    for part in image.parts:
        at, end = part.offset, part.offset + part.size
        while part.type == _NOTE and at + 12 <= end:
            name, size, kind = struct.unpack("<III", image.source.read(at, 12))
            body = at + 12 + (name + 3 & ~3)
            if body + size > end:
                break
            if kind == 1 and bytes(image.source.read(at + 12, name)) == _OWNER:
                data = bytes(image.source.read(body, size))
                try:
                    return _note(data)
                except struct.error as error:
                    raise BadInputError(
                        "What the library says of its pages is damaged.", "Install it again."
                    ) from error
            at = body + (size + 3 & ~3)
    return None


def _note(data: bytes) -> PagesNote:
    at, offset, _, count, runs, hot, _, joined = struct.unpack_from("<QQIIIIII", data, 16)
    rows = tuple(PagesRow(*struct.unpack_from("<QQ16sQ", data, 56 + 40 * index)) for index in range(count))
    start = 56 + 40 * count
    cold = tuple(struct.unpack_from("<QQ", data, start + 16 * index) for index in range(runs))
    start += 16 * runs
    pieces = tuple(struct.unpack_from("<QQQ", data, start + 24 * index) for index in range(hot))
    start += 24 * hot
    together = tuple(struct.unpack_from("<QQ", data, start + 16 * index) for index in range(joined))
    return PagesNote(at, offset, rows, cold, pieces, together)


class PackedPages:
    """The pages of one segment in a pack."""

    def __init__(self, source: ByteSource, at: int, size: int, row: PagesRow) -> None:
        magic, key, length, block, count, index_crc, crc = struct.unpack("<8s16sQIII16xI", source.read(at, 64))
        if magic != b"TTPAGES\0" or key != row.key or length != row.size or zlib.crc32(source.read(at, 60)) != crc:
            raise BadInputError("The pack is damaged: a segment is another than its row names.", "Make it again.")
        self._source, self._at, self.size, self.packed = source, at, length, count > 0
        self._block = block
        self._rows: list[tuple[int, int, int]] = []
        if count:
            index = bytes(source.read(at + 64, 16 * count))
            if zlib.crc32(index) != index_crc or block != _STEP or count != -(-length // block):
                raise BadInputError("The pack is damaged: the index of a segment is wrong.", "Make it again.")
            self._rows = [struct.unpack_from("<QII", index, 16 * number) for number in range(count)]
        elif size != 64 + length or (at + 64) % 4096:
            raise BadInputError("The pack is damaged: a segment has another size.", "Make it again.")

    def chunks(self) -> Iterator[bytes]:
        """All bytes of the segment; of a packed one, those that stay in the library are zeros."""
        from zstandard import ZstdDecompressor, ZstdError, frame_content_size

        if not self.packed:
            for start in range(0, self.size, _STEP):
                yield bytes(self._source.read(self._at + 64 + start, min(_STEP, self.size - start)))
            return
        for number, (offset, size, crc) in enumerate(self._rows):
            expected = min(self._block, self.size - number * self._block)
            try:
                stored = bytes(self._source.read(self._at + offset, size))
                data = ZstdDecompressor().decompress(stored) if frame_content_size(stored) == expected else b""
            except ZstdError as error:
                raise BadInputError("The pack is damaged: a block cannot be unpacked.", "Make it again.") from error
            if len(data) != expected or zlib.crc32(data) != crc:
                raise BadInputError("The pack is damaged: the checksum of a block is wrong.", "Make it again.")
            yield data


def find_pages(pack: ByteSource, row: PagesRow) -> PackedPages | None:
    """A segment in a pack, by its key; None where the pack has it not."""
    magic, _, count, rows_at, _, _, size = struct.unpack("<8sIIQQQQ", pack.read(0, 48))
    if magic != b"TTPACK\r\n" or size != pack.size:
        raise BadInputError("It is not a whole pack.", "Make it again.")
    for index in range(count):
        key, offset, length, _, kind = struct.unpack("<16sQQII", pack.read(rows_at + 40 * index, 40))
        if kind == 1 and key == row.key:
            return PackedPages(pack, offset, length, row)
    return None


def check_segment(image: LoadedImage, note: PagesNote, row: PagesRow, pages: PackedPages) -> None:
    """Raise CheckFailedError unless the library's own bytes and the pack's have the key of the segment, together."""
    hasher = hashlib.blake2b(digest_size=16)
    at = row.address
    for chunk in pages.chunks():
        data = bytearray(chunk)
        for start, end, load in image.spans(at, at + len(data)):
            cold = load is None or not load.size
            stored = start if load is None else min(end, load.address + load.size)
            if cold or start >= stored:
                continue
            own = image.bytes_at(start, stored - start)
            if not pages.packed and own != data[start - at : stored - at]:
                raise CheckFailedError(f"The library and its pack have different bytes at {start:#x}.")
            data[start - at : stored - at] = own
        hasher.update(data)
        at += len(data)
    if hasher.digest() != row.key:
        raise CheckFailedError(f"The pages at {row.address:#x} are not those that were cut out of the library.")


def whole_bytes(image: LoadedImage, row: PagesRow, pages: PackedPages) -> Iterator[bytes]:
    """The bytes of a segment, from the library and its pack."""
    at = row.address
    for chunk in pages.chunks():
        data = bytearray(chunk)
        for start, end, load in image.spans(at, at + len(data)):
            if load is not None and load.size and start < (stored := min(end, load.address + load.size)):
                data[start - at : stored - at] = image.bytes_at(start, stored - start)
        yield bytes(data)
        at += len(data)


def whole_headers(image: LoadedImage, places: Mapping[PagesRow, int]) -> Iterator[tuple[int, bytes]]:
    """Where the headers of a library change, if the bytes of its segments stand in its file at these places."""

    def place(address: int) -> int | None:
        found = (
            at + address - row.address for row, at in places.items() if row.address <= address < row.address + row.size
        )
        return next(found, None)

    rights = {row: row.flags & 7 for row in places}
    for index, part in enumerate(image.parts):
        at = place(part.address) if part.type in (_LOAD, _EH_FRAME) and not part.size and part.memory else None
        if at is not None and not part.flags & _W:
            row = next(row for row in places if row.address <= part.address < row.address + row.size)
            flags = rights[row] if part.type == _LOAD else part.flags
            fields = (part.type, flags, at, part.address, part.address, part.memory, part.memory, part.alignment)
            yield int(image.header[5]) + index * _PHDR.size, _PHDR.pack(*fields)
    for index in range(int(image.header[12])):
        where = int(image.header[6]) + index * 64
        name, kind, flags, address, _, *rest = struct.unpack("<IIQQQQIIQQ", image.source.read(where, 64))
        at = place(address) if kind == 8 and flags & 3 == 2 else None  # loaded, not writable, without bytes
        if at is not None:
            yield where, struct.pack("<IIQQQQIIQQ", name, 1, flags, address, at, *rest)


def prove_pages(before: ByteSource, after: ByteSource, pack: ByteSource, search: str) -> None:
    """Raise CheckFailedError unless `after` is, with its pack, the library `before`, and finds the hook in `search`."""
    old, new = LoadedImage(before), LoadedImage(after)
    note = read_note(new)
    if note is None:
        raise CheckFailedError("The output does not say which pages were cut out of it.")
    if any(old.header[index] != new.header[index] for index in (0, 1, 2, 3, 4, 7, 8, 9, 11)):
        raise CheckFailedError("The file header of the output is that of another library.")
    tables = _check_tables(old, new)
    _check_dynamic(old, new, search)
    old = _without_tables(before, tables)
    _check_parts(old, new, note)
    _check_rows(old, new, note)
    _check_joined(new, note)
    tables = [*tables, *_check_first_code(old, new, note)]
    packed = {row: find_pages(pack, row) for row in note.rows}
    for row, pages in packed.items():
        if pages is None:
            raise CheckFailedError("The pack lacks a segment.")
        check_segment(new, note, row, pages)
        _check_pack(old, note, row, pages, tables)
    _check_file(old, new, note, tables)


Spans = Sequence[tuple[int, int]]


def _check_tables(old: LoadedImage, new: LoadedImage) -> Spans:
    """The tables of the dynamic linker have the same entries, and those of the hook; returns where they were."""
    sizes = {
        _SYMTAB: _symbol_count(old) * _SYM.size,
        _STRTAB: old.value(_STRSZ) or 0,
        _RELA_TAG: old.value(_RELASZ) or 0,
        _VERSYM: _symbol_count(old) * 2,
        _VERNEED: _section_size(old, 0x6FFFFFFE),
        _RELR: old.value(_RELRSZ) or 0,
        _JMPREL: old.value(_PLTRELSZ) or 0,
    }
    places = []
    for tag, size in sizes.items():
        where, there = old.value(tag), new.value(tag)
        if where is None:
            continue
        if there is None or (size and old.bytes_at(where, size) != new.bytes_at(there, size)):
            raise CheckFailedError("The tables of the dynamic linker have other entries than before.")
        places.append((where, where + size))
    number = sizes[_SYMTAB] // _SYM.size
    symbol = _SYM.unpack(new.bytes_at((new.value(_SYMTAB) or 0) + sizes[_SYMTAB], _SYM.size))
    if symbol[1:] != (0x12, 0, 0, 0, 0) or new.text(symbol[0]) != _FUNCTION:
        raise CheckFailedError("The output does not name the function of the hook.")
    if old.value(_VERSYM) is not None:
        at = (new.value(_VERSYM) or 0) + sizes[_VERSYM]
        if new.bytes_at(at, 2) != b"\1\0":
            raise CheckFailedError("The function of the hook has a version in the output.")
    relocations = new.value(_RELA_TAG) or 0
    slot, info, addend = _RELA.unpack(new.bytes_at(relocations + sizes[_RELA_TAG], _RELA.size))
    if (info, addend) != (number << 32 | _GLOB_DAT[int(new.header[2])], 0):
        raise CheckFailedError("The function of the hook is not looked up as it should be.")
    if new.value(_RELASZ) != sizes[_RELA_TAG] + 2 * _RELA.size or new.value(_RELAENT) != _RELA.size:
        raise CheckFailedError("The output's relocations have another size than they should.")
    if not any(load.flags & _W and load.address <= slot <= load.end - 8 for load in new.loads) or any(
        load.address < slot + 8 and slot < load.end for load in old.loads
    ):
        raise CheckFailedError("The address of the hook's function has no place of its own.")
    return places


def _check_dynamic(old: LoadedImage, new: LoadedImage, search: str) -> None:
    """The dynamic section says what it did, but for these tables and the hook."""
    changed: tuple[int, ...] = (
        _SYMTAB,
        _STRTAB,
        _STRSZ,
        _RELA_TAG,
        _RELASZ,
        _RELAENT,
        _VERSYM,
        _VERNEED,
        _RELR,
        _JMPREL,
    )
    changed = (*changed, _INIT, _RPATH, _RUNPATH, _NEEDED)
    if [e for e in old.dynamic if e[0] not in changed] != [e for e in new.dynamic if e[0] not in changed]:
        raise CheckFailedError("The dynamic section of the output says something else.")
    needed = [[image.text(value) for tag, value in image.dynamic if tag == _NEEDED] for image in (old, new)]
    if needed[1] != ([] if _HOOK in needed[0] else [_HOOK]) + needed[0]:
        raise CheckFailedError("The output needs other libraries than before.")
    folders: list[list[bytes]] = []
    for image in (old, new):
        both = [b":".join(image.text(v) for tag, v in image.dynamic if tag == one) for one in (_RUNPATH, _RPATH)]
        folders.append([part for part in (both[0] or both[1]).split(b":") if part])
    if search.encode() not in folders[1] or [f for f in folders[1] if f != search.encode()] != [
        f for f in folders[0] if f != search.encode()
    ]:
        raise CheckFailedError("The output is searched for libraries in other folders than it should be.")


def _symbol_count(image: LoadedImage) -> int:
    """The number of dynamic symbols, from the section headers, which alone have it."""
    return _section_size(image, 11) // _SYM.size


def _section_size(image: LoadedImage, kind: int) -> int:
    """The size of the first section of a type, or 0."""
    return next((int(row[5]) for row in _sections(image) if row[1] == kind), 0)


def _sections(image: LoadedImage) -> Iterator[tuple[int, ...]]:
    at, count = int(image.header[6]), int(image.header[12])
    for index in range(count):
        yield struct.unpack("<IIQQQQIIQQ", image.source.read(at + 64 * index, 64))


def _without_tables(before: ByteSource, tables: Spans) -> LoadedImage:
    """The input without the segments that are not needed any more."""
    whole, left = LoadedImage(before), LoadedImage(before)
    left.parts = [p for p in whole.parts if p not in whole.loads[1:] or not _held_tables(whole, p, tables)]
    return left


def _held_tables(old: LoadedImage, part: _Part, tables: Spans) -> bool:
    """Whether a segment of the input has nothing but the tables that moved, its program headers, and zeros."""
    inside = [row for row in _sections(old) if row[2] & 2 and row[3] < part.end and part.address < row[3] + row[5]]
    marks = [(row[3], row[3] + row[5]) for row in inside if row[5] == len(_MARK)]
    marks = [(start, end) for start, end in marks if old.bytes_at(start, end - start) == _MARK]
    at = _address(old, int(old.header[5])) or 0
    known = [*tables, *marks, (at, at + int(old.header[10]) * _PHDR.size)]
    named = all(any(start <= row[3] and row[3] + row[5] <= end for start, end in known) for row in inside)
    others = any(
        one.type not in (_LOAD, _PHDR_TYPE) and one.memory and one.address < part.end and part.address < one.end
        for one in old.parts
    )
    if part.flags & _W or part.memory != part.size or not part.size or others or not named:
        return False
    return not any(_stock(old, part.address, part.end, known))


def _address(image: LoadedImage, offset: int) -> int | None:
    load = next((load for load in image.loads if load.offset <= offset < load.offset + load.size), None)
    return load.address + offset - load.offset if load else None


def _check_parts(old: LoadedImage, new: LoadedImage, note: PagesNote) -> None:
    """The other program headers are those of before, memory ends where it did, and nothing is writable and runs."""
    skipped = (_LOAD, _PHDR_TYPE, _DYNAMIC)
    rows = []
    for image in (old, new):
        notes = [
            (p.type, p.flags, p.address, p.memory, p.alignment)
            for p in image.parts
            if p.type not in skipped and not (image is new and p.type == _NOTE and p.address <= note.at < p.end)
        ]
        rows.append(sorted(notes))
    if rows[0] != rows[1]:
        raise CheckFailedError("The output has other program headers than the input.")
    for load in new.loads:
        if load.flags & _W and load.flags & _X and not any(one.flags == load.flags for one in old.loads):
            raise CheckFailedError("A segment of the output can be written to and run.")
        inside = any(one.address // 65536 * 65536 <= load.address < one.end for one in old.loads)
        over = any(one.address // _PAGE * _PAGE < load.end and load.address < one.end for one in old.loads)
        if (load.address - load.offset) % load.alignment or (over and not inside):
            raise CheckFailedError("A segment of the output is not aligned, or where the input has none.")
    for one in old.loads:
        for start, end, part in new.spans(one.address, one.end):
            if part is None:
                raise CheckFailedError(f"The output has no memory at {start:#x}.")
            covered = any(row.address <= start and end <= row.address + row.size for row in note.rows)
            if part.flags != one.flags and not (part.flags == 0 and not part.size and covered):
                raise CheckFailedError(f"The memory at {start:#x} has other rights in the output.")


def _check_rows(old: LoadedImage, new: LoadedImage, note: PagesNote) -> None:
    """What the pack maps lies over segments of the input without write access, with their rights, and over holes; or
    over what can be written to, but never is before the library runs."""
    for row in note.rows:
        start, end = row.address, row.address + row.size
        writable = next(
            (load for load in old.loads if load.flags & _W and start < load.end and load.address < end), None
        )
        if writable is not None:
            _check_writable_row(old, new, note, row, writable)
            continue
        under = [load for load in old.loads if start < load.end and load.address < end]
        if not under or any(row.flags & 0xFF != one.flags or one.flags & _W or one.memory != one.size for one in under):
            raise CheckFailedError(f"The pack's pages at {start:#x} have other rights than the segments there.")
        over = [load for load in new.loads if start < load.end and load.address // _PAGE * _PAGE < end]
        if any(one.flags not in (0, row.flags & 0xFF) for one in over):
            raise CheckFailedError(f"The pack's pages at {start:#x} reach beyond the segments there.")


def _check_writable_row(old: LoadedImage, new: LoadedImage, note: PagesNote, row: PagesRow, load: _Part) -> None:
    """Pages of a segment that can be written to lie in the pack alone, and the dynamic linker changes nothing in them;
    they have its rights, or those that they have once the library is relocated."""
    start, end = row.address, row.address + row.size
    relro = [part for part in old.parts if part.type == _RELRO]
    inside = any(part.address <= start and end <= part.end for part in relro)
    outside = not any(start < part.end and part.address < end for part in relro)
    rights = {load.flags: outside, _R: inside}.get(row.flags & 0xFF, False)
    cold = (start, end) in note.cold and row.flags & _AT_LOAD
    if start % _PAGE or end % _PAGE or start < load.address or end > load.address + load.size or not rights or not cold:
        raise CheckFailedError(f"The pack's pages at {start:#x} have other rights than the data there.")
    if any(
        part.size and start < part.address + part.size and part.address // _PAGE * _PAGE < end for part in new.loads
    ):
        raise CheckFailedError(f"The pack's pages at {start:#x} lie over data of the library's file.")
    if any(start - _RELA.size < place < end for place in _relocated(new)):
        raise CheckFailedError(f"The dynamic linker writes to the pack's pages at {start:#x}.")


def _relocated(image: LoadedImage) -> Iterator[int]:
    """All addresses that the dynamic linker writes to."""
    for where, size in ((_RELA_TAG, _RELASZ), (_JMPREL, _PLTRELSZ)):
        table = image.bytes_at(image.value(where) or 0, image.value(size) or 0)
        yield from (place for place, _, _ in _RELA.iter_unpack(table))
    place = 0
    table = image.bytes_at(image.value(_RELR) or 0, image.value(_RELRSZ) or 0)
    for (word,) in struct.iter_unpack("<Q", table):
        if word & 1:
            yield from (place + 8 * bit for bit in range(63) if word >> bit + 1 & 1)
            place += 63 * 8
        else:
            yield word
            place = word + 8


def _check_joined(new: LoadedImage, note: PagesNote) -> None:
    """What becomes memory without a file could be written to and keeps its content, or was nobody's."""
    for at, end in note.joined:
        start = at & ~1
        under = [
            part for part in new.parts if start < -(-part.end // _PAGE) * _PAGE and part.address // _PAGE * _PAGE < end
        ]
        loads = [one for one in under if one.type == _LOAD]
        kept = at & 1 and all(load.flags & _W for load in loads) and not any(one.type == _RELRO for one in under)
        if start % _PAGE or end % _PAGE or end <= start or (loads and not kept):
            raise CheckFailedError(f"The memory at {start:#x} would lose its content or its rights.")


def _check_first_code(old: LoadedImage, new: LoadedImage, note: PagesNote) -> Spans:
    """Where the output's first instructions are; they hand the note to the function of the hook, and go on where the
    input began."""
    last = (new.value(_RELA_TAG) or 0) + (new.value(_RELASZ) or 0) - 2 * _RELA.size
    machine = int(new.header[2])
    slot = _RELA.unpack(new.bytes_at(last, _RELA.size))[0]
    place, info, early = _RELA.unpack(new.bytes_at(last + _RELA.size, _RELA.size))
    if (place, info) != (slot, _IRELATIVE[machine]) or note.offset != _offset(new, note.at):
        raise CheckFailedError("The output does not call the hook when it is relocated.")
    calls = ((early, note.at, None), (new.value(_INIT) or 0, note.at + _AGAIN, old.value(_INIT)))
    for begin, given, then in calls:
        x86 = machine == _X86_64
        found = _x86(new.bytes_at(begin, 32), begin) if x86 else _arm(new.bytes_at(begin, 64), begin)
        if found != (given, slot, then):
            raise CheckFailedError("The output does not begin with a call of the hook.")
    spans = [(begin, begin + 64) for begin, _, _ in calls]
    if any(load.address < end and start < load.end for start, end in spans for load in old.loads):
        raise CheckFailedError("The call of the hook is in the place of something else.")
    return spans


def _offset(image: LoadedImage, address: int) -> int | None:
    load = next((load for load in image.loads if load.address <= address < load.address + load.size), None)
    return load.offset + address - load.address if load else None


def _x86(code: bytes, at: int) -> tuple[int, int, int | None] | None:
    if (
        code[:10] != bytes.fromhex("f30f1efa575652488d3d")
        or code[14:16] != b"\xff\x15"
        or code[20:23] != b"\x5a\x5e\x5f"
    ):
        return None
    table = at + 14 + struct.unpack_from("<i", code, 10)[0]
    slot = at + 20 + struct.unpack_from("<i", code, 16)[0]
    if code[23] == 0xC3:
        return table, slot, None
    return (table, slot, at + 28 + struct.unpack_from("<i", code, 24)[0]) if code[23] == 0xE9 else None


def _arm(code: bytes, at: int) -> tuple[int, int, int | None] | None:
    words = struct.unpack("<16I", code)

    def page(index: int) -> int:
        word = int(words[index])
        distance = (word >> 5 & 0x7FFFF) << 2 | (word >> 29 & 3)
        return ((at + 4 * index) & ~0xFFF) + ((distance - (1 << 21) if distance >> 20 else distance) << 12)

    fixed = {0: 0xD503245F, 1: 0xA9BD7BFD, 2: 0x910003FD, 3: 0xA90107E0, 4: 0xF90013E2, 9: 0xD63F0200}
    returns = words[10:12] == (0xA8C37BFD, 0xD65F03C0)
    fixed |= {} if returns else {10: 0xA94107E0, 11: 0xF94013E2, 12: 0xA8C37BFD}
    if any(words[index] != word for index, word in fixed.items()):
        return None
    if words[5] & 0x9F00001F != 0x90000000 or words[6] & 0xFFC003FF != 0x91000000:
        return None
    if words[7] & 0x9F00001F != 0x90000010 or words[8] & 0xFFC003FF != 0xF9400210:
        return None
    table, slot = page(5) + (words[6] >> 10 & 0xFFF), page(7) + (words[8] >> 10 & 0xFFF) * 8
    if returns:
        return table, slot, None
    if words[13] & 0x9F00001F != 0x90000010 or words[14] & 0xFFC003FF != 0x91000210 or words[15] != 0xD61F0200:
        return None
    return table, slot, page(13) + (words[14] >> 10 & 0xFFF)


def _without(data: bytes | bytearray, at: int, spans: Spans) -> bytearray:
    """The bytes with those of these addresses as zeros."""
    plain = bytearray(data)
    for start, end in spans:
        low, high = max(start - at, 0), min(end - at, len(plain))
        if low < high:
            plain[low:high] = bytes(high - low)
    return plain


def _check_pack(old: LoadedImage, note: PagesNote, row: PagesRow, pages: PackedPages, tables: Spans) -> None:
    """What the pack maps is what the input has there; a packed one has at least what the output lacks."""
    at = row.address
    for data in pages.chunks():
        if pages.packed:
            for start, end in note.cold:
                low, high = max(start, at), min(end, at + len(data))
                if low < high and _stock(old, low, high, tables) != _without(data[low - at : high - at], low, tables):
                    raise CheckFailedError(f"The pack has other bytes than the input at {low:#x}.")
        elif _stock(old, at, at + len(data), tables) != _without(data, at, tables):
            raise CheckFailedError(f"The pack has other bytes than the input at {at:#x}.")
        at += len(data)


def _stock(old: LoadedImage, start: int, end: int, tables: Spans) -> bytearray:
    """The bytes of the input's file in a range of addresses, with zeros around its segments."""
    data = bytearray(end - start)
    for low, high, load in old.spans(start, end):
        if load is not None:
            data[low - start : high - start] = old.bytes_at(low, high - low)
    return _without(data, start, tables)


def _check_file(old: LoadedImage, new: LoadedImage, note: PagesNote, tables: Spans) -> None:
    """What the output has in its file is what the input has there, and what it has not is in the pack."""
    dynamic = next((p for p in old.parts if p.type == _DYNAMIC), None)
    may_differ = [*tables, (old.loads[0].address, old.loads[0].address + _EHDR.size)]
    if dynamic is not None:
        may_differ.append((dynamic.address, dynamic.end))
    cold = sorted(note.cold)
    for load in old.loads:
        for start, end, part in new.spans(load.address, load.end):
            if part is not None and not part.size and load.size:
                left = _uncovered(start, min(end, load.address + load.size), [*cold, *tables])
                if left is not None:
                    raise CheckFailedError(f"The bytes at {left:#x} are neither in the output nor in its pack.")
                continue
            for at in range(start, end, _STEP):
                until = min(at + _STEP, end)
                if _stock(old, at, until, may_differ) != _without(new.bytes_at(at, until - at), at, may_differ):
                    raise CheckFailedError(f"A loaded byte at {at:#x} or behind is not what it was.")


def _uncovered(start: int, end: int, spans: Spans) -> int | None:
    """The first address of a range that none of these has."""
    at = start
    for low, high in sorted(spans):
        if low > at:
            break
        at = max(at, high)
    return at if at < end else None
