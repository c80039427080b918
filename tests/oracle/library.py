"""Reads all GPU code of a file: containers wherever they lie, bare cubins, cubins that are bare zstd frames."""

from __future__ import annotations

import hashlib
import mmap
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import lz4.block
import zstandard

CONTAINER_MAGIC = bytes.fromhex("50ed55ba01001000")
ELF_MAGIC = b"\x7fELF\x02\x01"
ZSTD_MAGIC = bytes.fromhex("28b52ffd")
WRAPPER_MAGIC = 0x466243B1
EM_CUDA = 190
PRELINKED = "__nv_relfatbin"

_KINDS = {1: "ptx", 2: "cubin", 4: "cubin", 8: "lto", 64: "ptx"}
_LZ4, _ZSTD, _SCRAMBLED, _ARCH, _FAMILY = 0x2000, 0x8000, 0x10000, 0x100000, 0x200000
_SHT_PROGBITS, _SHT_RELA, _SHT_NOTE, _SHT_RELR = 1, 4, 7, 19
_SHF_ALLOC, _SHF_EXECUTE, _SHF_COMPRESSED = 2, 4, 0x800
_LARGE_DATA = (".ldata", ".lrodata")
_MAX_GAP = 64  # between a container and what follows it in a table
_RELATIVE = {62: 8, 183: 1027}  # by the ELF machine
_PTX_ENTRY = re.compile(rb"^\s*(?:\.visible\s+|\.weak\s+)?\.entry\s+([\w$]+)", re.MULTILINE)
_TOOL_ARCH = re.compile(rb"-arch[ =]sm_(\d+)([af]?)\b")

_known: dict[bytes, str] = {}  # the hash of what is stored to that of the code


@dataclass(frozen=True)
class Entry:
    """One piece of GPU code for one architecture."""

    kind: str  # cubin, ptx, lto, or `unknown` and its number
    sm: int
    suffix: str  # "", "a" or "f"
    offset: int  # of the stored payload, in the file
    size: int  # of the stored payload
    compressed: str  # "", "lz4", "zstd"
    raw_size: int
    name: str = ""
    scrambled: bool = False
    solid: bool = False  # compressed together with others: stays or goes with them
    relocatable: bool = False  # PTX of one object among several that are linked when they are loaded
    part: tuple[int, int] | None = None  # where in the unpacked bytes of a solid entry
    _file: mmap.mmap | None = field(default=None, repr=False, compare=False)

    @property
    def label(self) -> str:
        prefix = {"cubin": "sm", "ptx": "compute", "lto": "lto"}.get(self.kind, self.kind)
        return f"{prefix}_{self.sm}{self.suffix}"

    @property
    def stored(self) -> bytes:
        assert self._file is not None
        return self._file[self.offset : self.offset + self.size]

    @property
    def raw(self) -> bytes:
        """The code as the driver gets it; LTO-IR that is scrambled stays as it is stored."""
        if self.scrambled or not self.compressed:
            data = self.stored
        elif self.compressed == "lz4":
            data = bytes(lz4.block.decompress(self.stored, uncompressed_size=self.raw_size))
        else:
            data = zstandard.ZstdDecompressor().decompress(self.stored, max_output_size=self.raw_size)
        return data[self.part[0] : self.part[0] + self.part[1]] if self.part else data

    @cached_property
    def raw_sha256(self) -> str:
        if self.compressed and not self.part:  # a cut mostly copies: what is stored alike is unpacked once
            key = hashlib.sha256(self.stored).digest()
            if key not in _known:
                _known[key] = self._sha256()
            return _known[key]
        return self._sha256()

    def _sha256(self) -> str:
        raw = self.raw
        if self.kind == "ptx":
            raw = raw.rstrip(b"\0")  # how many zeros close it depends on how it was stored
        return hashlib.sha256(raw).hexdigest()

    @cached_property
    def kernels(self) -> frozenset[str]:
        """The functions of a cubin and the entries of PTX."""
        if self.kind == "cubin":
            return frozenset(cubin_functions(self.raw))
        if self.kind == "ptx":
            return frozenset(name.decode() for name in _PTX_ENTRY.findall(self.raw))
        return frozenset()


@dataclass(frozen=True)
class Container:
    """A fatbin container, or a cubin that lies there without one."""

    section: str
    reached: str  # how host code finds it, in addresses that a cut leaves alone
    offset: int
    size: int
    form: str  # container, cubin, zstd
    prelinked: bool  # an object from before the device link
    linked: bool  # what a device link has made
    wrapped: bool  # a wrapper leads to it, so the CUDA runtime registers it
    entries: tuple[Entry, ...]

    @property
    def id(self) -> str:
        """By which it is found again in a cut library: a cut leaves an empty container where it takes out all."""
        return f"{self.section} {self.reached}" if self.form == "container" else f"{self.section}, bare"


@dataclass(frozen=True)
class Library:
    """A file and its GPU code, in the order of the file."""

    path: Path
    size: int
    containers: tuple[Container, ...]
    unread: tuple[str, ...] = ()  # what looks like a container and is none, with the reason

    @property
    def entries(self) -> Iterator[tuple[Container, Entry]]:
        return ((container, entry) for container in self.containers for entry in container.entries)


@dataclass(frozen=True)
class _Section:
    name: str
    type: int
    flags: int
    address: int
    offset: int
    size: int


def read_library(path: Path) -> Library:
    """All GPU code of a shared library, an object, a .cubin or a .fatbin."""
    size = path.stat().st_size
    if size < 16:
        return Library(path, size, ())
    with path.open("rb") as file:
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    is_host_library = data[:6] == ELF_MAGIC and _machine(data, 0) != EM_CUDA
    sections = _sections(data) if is_host_library else [_Section("", _SHT_PROGBITS, 0, 0, 0, size)]
    pointers = _pointers(data, sections) if is_host_library else _Pointers({}, {})
    wrappers = _wrappers(data, sections, pointers)
    unread: list[str] = []
    pieces = [
        (section, piece) for section in sections if _searched(section) for piece in _pieces(data, section, unread)
    ]
    addresses = [_address(section, piece) for section, piece in pieces]
    found = []
    for address, (section, (form, offset, length, entries)) in zip(addresses, pieces, strict=True):
        wrapper, version = wrappers.get(address, (-1, 0))
        if wrapper >= 0:
            reached = f"from wrapper {wrapper:#x}"
        elif starts := _starts(address, address + length, pointers):
            reached = f"from pointer {min(starts):#x}"
        elif section.name in _LARGE_DATA:  # code holds the distance: it may be moved, and is known by what it holds
            reached = "from code"
        else:
            reached = f"at {address:#x}" if address >= 0 else f"at {offset - section.offset:#x} of the section"
        found.append(
            Container(
                section.name, reached, offset, length, form,
                prelinked=section.name == PRELINKED, linked=version == 2, wrapped=version > 0, entries=entries,
            )
        )  # fmt: skip
    return Library(path, size, tuple(found), tuple(unread))


def _searched(section: _Section) -> bool:
    data = section.type in (_SHT_PROGBITS, _SHT_NOTE) and not section.flags & (_SHF_EXECUTE | _SHF_COMPRESSED)
    return data and not section.name.startswith(".debug_")


def _address(section: _Section, piece: _Piece) -> int:
    return piece[1] - section.offset + section.address if section.flags & _SHF_ALLOC else -1


def _starts(address: int, end: int, pointers: _Pointers) -> list[int]:
    """The pointers to a container, without those that mean the end of what lies before it.

    Tables hold both ends of a container side by side, and one's end is where the next begins.
    """
    places = pointers.to.get(address, [])
    beside = {place: (pointers.at.get(place - 8, 0), pointers.at.get(place + 8, 0)) for place in places}
    records = [place for place in places if any(end <= other <= end + _MAX_GAP for other in beside[place])]
    return records or places


def _machine(data: mmap.mmap, at: int) -> int:
    return int.from_bytes(data[at + 18 : at + 20], "little")


def _sections(data: mmap.mmap) -> list[_Section]:
    table, count, names = (
        int.from_bytes(data[40:48], "little"),
        int.from_bytes(data[60:62], "little"),
        int.from_bytes(data[62:64], "little"),
    )
    if not table:  # no section headers: the loaded segments are all there is
        first, number = int.from_bytes(data[32:40], "little"), int.from_bytes(data[56:58], "little")
        segments = [struct.unpack_from("<IIQQQQQQ", data, first + 56 * i) for i in range(number)]
        return [_Section("", _SHT_PROGBITS, _SHF_ALLOC, s[3], s[2], s[5]) for s in segments if s[0] == 1]
    headers = [struct.unpack_from("<IIQQQQIIQQ", data, table + 64 * i) for i in range(count)]
    start = headers[names][4]
    sections = []
    for name, kind, flags, address, offset, size, *_ in headers:
        end = data.find(b"\0", start + name)
        sections.append(_Section(data[start + name : end].decode(), kind, flags, address, offset, size))
    return sorted(sections, key=lambda section: section.offset)


@dataclass(frozen=True)
class _Pointers:
    """All pointers that the loader relocates."""

    to: dict[int, list[int]]  # places, by the address to which they lead
    at: dict[int, int]  # addresses, by place


def _pointers(data: mmap.mmap, sections: list[_Section]) -> _Pointers:
    relative = _RELATIVE.get(_machine(data, 0))
    places: dict[int, list[int]] = {}
    for section in sections:
        rows = data[section.offset : section.offset + section.size] if section.flags & _SHF_ALLOC else b""
        if section.type == _SHT_RELA:
            for where, info, addend in struct.iter_unpack("<QQq", rows):
                if info & 0xFFFFFFFF == relative:
                    places.setdefault(addend, []).append(where)
        elif section.type == _SHT_RELR:
            for where in _packed_places(rows):
                for home in sections:
                    if home.flags & _SHF_ALLOC and home.address <= where < home.address + home.size:
                        at = where - home.address + home.offset
                        places.setdefault(int.from_bytes(data[at : at + 8], "little"), []).append(where)
                        break
    return _Pointers(places, {where: target for target, at in places.items() for where in at})


def _packed_places(rows: bytes) -> Iterator[int]:
    """RELR: an address, then bit maps of the 63 words that follow it."""
    base = 0
    for (word,) in struct.iter_unpack("<Q", rows):
        if word & 1:
            yield from (base + 8 * bit for bit in range(63) if word >> (bit + 1) & 1)
            base += 8 * 63
        else:
            yield word
            base = word + 8


def _wrappers(data: mmap.mmap, sections: list[_Section], pointers: _Pointers) -> dict[int, tuple[int, int]]:
    """The address of each wrapped container: where its wrapper is, and the wrapper's version."""
    found: dict[int, tuple[int, int]] = {}
    for section in sections:
        if section.name == ".nvFatBinSegment" and section.flags & _SHF_ALLOC:
            for step in range(0, section.size - 23, 24):
                magic, version, pointer, _ = struct.unpack_from("<IIQQ", data, section.offset + step)
                if magic == WRAPPER_MAGIC:
                    place = section.address + step
                    found[pointers.at.get(place + 8, pointer)] = (place, version)
    return found


_Piece = tuple[str, int, int, tuple[Entry, ...]]


def _pieces(data: mmap.mmap, section: _Section, unread: list[str]) -> Iterator[_Piece]:
    """What begins like GPU code and is; nothing inside of what was found is searched."""
    position, end = section.offset, section.offset + section.size
    following = dict.fromkeys((CONTAINER_MAGIC, ELF_MAGIC, ZSTD_MAGIC), -1)
    while True:
        for magic, known in following.items():
            if known < position:
                place = data.find(magic, position, end)
                following[magic] = place if place >= 0 else end
        at = min(following.values())
        if at >= end:
            return
        position = at + 1
        piece: _Piece | None = None
        if following[CONTAINER_MAGIC] == at:
            try:
                piece = _container(data, at, end)
            except ValueError as error:
                unread.append(f"{section.name}+{at - section.offset:#x}: {error}")
        elif following[ELF_MAGIC] == at:
            piece = _bare_cubin(data, at, end)
        else:
            piece = _bare_frame(data, at, end)
        if piece:
            yield piece
            position = at + piece[2]


def read_container(path: Path, offset: int, size: int) -> tuple[Entry, ...]:
    """The code of one container that lies in a file which is no library."""
    with path.open("rb") as file:
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)  # the entries hold it
    assert data[offset : offset + len(CONTAINER_MAGIC)] == CONTAINER_MAGIC
    _, _, stored, entries = _container(data, offset, offset + size)
    assert stored == size
    return entries


def _container(data: mmap.mmap, at: int, limit: int) -> _Piece:
    size = int.from_bytes(data[at + 8 : at + 16], "little")
    end = at + 16 + size
    if end > limit:
        raise ValueError("reaches past its section")
    entries: list[Entry] = []
    position = at + 16
    while position < end:
        if position + 64 > end:
            raise ValueError("entry cut short")
        entries += _entry(data, position, end)
        header, padded = struct.unpack_from("<IQ", data, position + 4)
        position += header + padded
    return "container", at, 16 + size, tuple(entries)


def _entry(data: mmap.mmap, at: int, end: int) -> list[Entry]:
    (kind, version, header, padded, packed, record, _minor, _major, sm, name_at, name_size, flags, _, raw) = (
        struct.unpack_from("<HHIQIIHHIIIQQQ", data, at)
    )
    if version != 0x0101 or header < 64 or at + header + padded > end or packed > padded:
        raise ValueError("not an entry")
    compressed = ("lz4" if flags & _LZ4 else "zstd" if flags & _ZSTD else "unknown") if packed else ""
    name = data[at + name_at : at + name_at + name_size].rstrip(b"\0").decode() if name_size else ""
    entry = Entry(
        _KINDS.get(kind, f"unknown{kind}"),
        sm,
        _suffix(flags),
        at + header,
        packed or padded,
        compressed,
        raw if packed else padded,
        name,
        scrambled=bool(flags & _SCRAMBLED),
        relocatable=kind == 64,
        _file=data,
    )
    return list(_parts(data[at : at + header], record, entry)) if kind == 256 else [entry]


def _parts(header: bytes, record: int, whole: Entry) -> Iterator[Entry]:
    """The rows of an entry that holds several images compressed as one."""
    count, _ = struct.unpack_from("<II", header, record)
    at = record + 8
    for _ in range(count):
        kind, _, offset, length, _, options, _, _, sm, _, _, flags = struct.unpack_from("<HHIQIIHHIIIQ", header, at)
        name = _KINDS.get(kind, f"unknown{kind}")
        yield replace(whole, kind=name, sm=sm, suffix=_suffix(flags), solid=True, part=(offset, length))
        at += 64
        if options:
            at += 8 + (struct.unpack_from("<I", header, at + 4)[0] // 8 + 1) * 8


def _suffix(flags: int) -> str:
    return "a" if flags & _ARCH else "f" if flags & _FAMILY else ""


def _bare_cubin(data: mmap.mmap, at: int, end: int) -> _Piece | None:
    if at + 64 > end or _machine(data, at) != EM_CUDA:
        return None
    table = int.from_bytes(data[at + 40 : at + 48], "little")
    programs = int.from_bytes(data[at + 32 : at + 40], "little")
    counts = struct.unpack_from("<HHHHH", data, at + 54)  # sizes and numbers of program and section headers
    length = max(table + counts[2] * counts[3], programs + counts[0] * counts[1])
    if at + length > end:
        return None
    sm, suffix = cubin_arch(data[at : at + length])
    entry = Entry("cubin", sm, suffix, at, length, "", length, _file=data)
    return "cubin", at, length, (entry,)


def _bare_frame(data: mmap.mmap, at: int, end: int) -> _Piece | None:
    """A zstd frame whose first bytes unpack to the header of a cubin."""
    window = data[at : min(at + (1 << 17), end)]
    try:
        head = zstandard.ZstdDecompressor().decompressobj().decompress(window)[:64]
    except zstandard.ZstdError:
        return None
    if head[:6] != ELF_MAGIC or int.from_bytes(head[18:20], "little") != EM_CUDA:
        return None
    unpacker = zstandard.ZstdDecompressor().decompressobj()
    raw = bytearray()
    length = 0
    try:
        while at + length < end and not unpacker.eof:
            step = data[at + length : min(at + length + (1 << 16), end)]
            raw += unpacker.decompress(step)
            length += len(step)
    except zstandard.ZstdError:
        return None
    if not unpacker.eof:
        return None
    length -= len(unpacker.unused_data)
    sm, suffix = cubin_arch(bytes(raw))
    entry = Entry("cubin", sm, suffix, at, length, "zstd", len(raw), _file=data)
    return "zstd", at, length, (entry,)


def cubin_arch(cubin: bytes) -> tuple[int, str]:
    """The architecture that a cubin says of itself."""
    flags = int.from_bytes(cubin[48:52], "little")
    sm = flags >> 8 & 0xFFFF if cubin[8] >= 8 else flags & 0xFF
    if (said := _TOOL_ARCH.search(cubin)) and int(said[1]) == sm:
        return sm, said[2].decode()
    sections = dict(_cubin_sections(cubin))
    compat = sections.get(".nv.compat", b"")
    if b"\x02\x09\x01\x00" in compat or (cubin[8] < 8 and flags & 0x800):
        return sm, "a"
    return sm, ""


def cubin_functions(cubin: bytes) -> Iterator[str]:
    """The names of the code sections of a cubin."""
    for name, _ in _cubin_sections(cubin):
        if name.startswith(".text."):
            yield name.removeprefix(".text.")


def _cubin_sections(cubin: bytes) -> Iterator[tuple[str, bytes]]:
    table, count, names = (
        int.from_bytes(cubin[40:48], "little"),
        int.from_bytes(cubin[60:62], "little"),
        int.from_bytes(cubin[62:64], "little"),
    )
    headers = [struct.unpack_from("<IIQQQQ", cubin, table + 64 * i) for i in range(count)]
    start = headers[names][4]
    for name, _, _, _, offset, size in headers:
        end = cubin.find(b"\0", start + name)
        yield cubin[start + name : end].decode(), cubin[offset : offset + size]
