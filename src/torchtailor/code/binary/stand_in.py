"""Writes a small shared library that stands in for one that is not installed.

It has the functions and data that other libraries ask for, under the versions they ask for, so that these load. A
function that is called says so once, on stderr, and returns an error; one that gives the text of an error returns that
sentence. It needs no other library, nor a compiler to be made.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from torchtailor.code.binary.elf_headers import (
    DYNAMIC_ENTRY,
    HEADER,
    MAGIC,
    PROGRAM_HEADER,
    SECTION_HEADER,
    SYMBOL,
    VERSION_DEFINITION,
    VERSION_NAME,
    DynamicTag,
    ElfMachine,
    FileType,
    SectionFlag,
    SectionType,
    SegmentType,
    SymbolType,
)

ERROR = 1  # in all of NVIDIA's libraries some error

_IDENT = MAGIC + b"\x02\x01\x01" + bytes(9)  # 64-bit, little-endian, version 1
_PAGE = {ElfMachine.X86_64: 1 << 12, ElfMachine.AARCH64: 1 << 16}  # the largest that a system may have
_READ, _READ_EXECUTE, _READ_WRITE = 4, 5, 6
_GLOBAL = 1 << 4
_HIDDEN = 0x8000  # a version that only those who name it are given
_BASE = 1  # the flag and the number of the version that is the library's own name
_SAID_SIZE = 16  # of the word that tells whether the sentence was said, with what aligns what follows
_OBJECT_SIZE = 64  # nobody says how large a variable is that another library defines
_BLOOM_SHIFT = 6


@dataclass(frozen=True, slots=True, order=True)
class StandInSymbol:
    """A function, or a variable, that a stand-in defines."""

    name: str
    version: str = ""
    is_data: bool = False

    @property
    def gives_text(self) -> bool:
        """Whether it is a function such as cublasGetStatusString, whose result is printed with the error."""
        words = self.name.lower()
        return words.endswith(("errorstring", "errorname", "statusstring", "statusname", "ncclgetlasterror"))


@dataclass(frozen=True, slots=True)
class _Section:
    """A section and where it is, once that is known."""

    name: str
    type: SectionType
    flags: int
    size: int
    alignment: int = 8
    link: str = ""
    info: int = 0
    entry_size: int = 0
    offset: int = 0
    address: int = 0

    @property
    def size_in_file(self) -> int:
        return 0 if self.type is SectionType.NOBITS else self.size


@dataclass(frozen=True, slots=True)
class _Segment:
    type: SegmentType
    flags: int
    offset: int
    address: int
    size_in_file: int
    size: int
    alignment: int

    def pack(self) -> bytes:
        sizes = (self.size_in_file, self.size, self.alignment)
        return PROGRAM_HEADER.pack(self.type, self.flags, self.offset, self.address, self.address, *sizes)


def write_stand_in(machine: ElfMachine, soname: str, symbols: Iterable[StandInSymbol], sentence: str) -> bytes:
    """The bytes of a library of this name with these symbols."""
    return _Library(machine, soname, sorted(set(symbols)), f"{sentence}\n".encode()).write()


class _Names:
    """A table of names, each of them once."""

    def __init__(self) -> None:
        self.data = bytearray(1)
        self._at = {"": 0}

    def add(self, name: str) -> int:
        if name not in self._at:
            self._at[name] = len(self.data)
            self.data += name.encode() + b"\0"
        return self._at[name]


class _Library:
    """Three segments, to read, to run and to write, each in pages of its own in memory but not in the file."""

    def __init__(self, machine: ElfMachine, soname: str, symbols: Sequence[StandInSymbol], message: bytes) -> None:
        self.machine, self.soname, self.message = machine, soname, message
        self.page = _PAGE[machine]
        self.versions = sorted({symbol.version for symbol in symbols} - {""})
        self.buckets = max(1, len(symbols) // 2)
        self.symbols = sorted(symbols, key=lambda symbol: (gnu_hash(symbol.name) % self.buckets, symbol))
        self.names = _Names()
        for name in (soname, *self.versions, *(symbol.name for symbol in self.symbols)):
            self.names.add(name)

    def write(self) -> bytes:
        contents = {
            ".gnu.hash": self._hash_table(),
            ".dynstr": bytes(self.names.data),
            ".gnu.version": self._version_numbers(),
            ".gnu.version_d": self._version_definitions(),
            ".rodata": self.message + b"\0",
        }
        sections, segments = self._layout({name: len(content) for name, content in contents.items()})
        at = {section.name: section.address for section in sections}
        index = {section.name: number for number, section in enumerate(sections, 1)}
        bodies, contents[".text"] = self._code(at[".text"], at[".bss"], at[".rodata"])
        contents[".dynsym"] = self._symbol_table(bodies, index, at[".bss"] + _SAID_SIZE)
        contents[".dynamic"] = self._dynamic_table(at)
        section_names = _Names()
        headers = [bytes(SECTION_HEADER.size)]
        for section in sections:
            place = (section.flags, section.address, section.offset, section.size, index.get(section.link, 0))
            rest = (section.info, section.alignment, section.entry_size)
            headers.append(SECTION_HEADER.pack(section_names.add(section.name), section.type, *place, *rest))
        end = sections[-1].offset
        own_name = section_names.add(".shstrtab")
        names = bytes(section_names.data)
        headers.append(SECTION_HEADER.pack(own_name, SectionType.STRTAB, 0, 0, end, len(names), 0, 0, 1, 0))
        table_at = _aligned(end + len(names), 8)
        numbers = (HEADER.size, PROGRAM_HEADER.size, len(segments), SECTION_HEADER.size, len(headers), len(headers) - 1)
        head = HEADER.pack(_IDENT, FileType.SHARED, self.machine, 1, 0, HEADER.size, table_at, 0, *numbers)
        data = bytearray(table_at)
        parts = [(0, head + b"".join(segment.pack() for segment in segments)), (end, names)]
        parts += [(section.offset, contents[section.name]) for section in sections if section.size_in_file]
        for offset, content in parts:
            data[offset : offset + len(content)] = content
        return bytes(data) + b"".join(headers)

    def _layout(self, sizes: Mapping[str, int]) -> tuple[list[_Section], list[_Segment]]:
        """All sections at their places, and the segments they are in; `sizes` are of contents without addresses."""
        read = SectionFlag.ALLOC
        run, write = read | SectionFlag.EXECUTE, read | SectionFlag.WRITE
        count = len(self.symbols) + 1
        of_versions = [
            _Section(".gnu.version", SectionType.VERSYM, read, sizes[".gnu.version"], 2, ".dynsym", 0, 2),
            _Section(
                ".gnu.version_d",
                SectionType.VERDEF,
                read,
                sizes[".gnu.version_d"],
                link=".dynstr",
                info=len(self.versions) + 1,
            ),
        ]
        readable = [
            _Section(".gnu.hash", SectionType.GNU_HASH, read, sizes[".gnu.hash"], link=".dynsym"),
            _Section(".dynsym", SectionType.DYNSYM, read, count * SYMBOL.size, 8, ".dynstr", 1, SYMBOL.size),
            _Section(".dynstr", SectionType.STRTAB, read, sizes[".dynstr"], 1),
            *(of_versions if self.versions else ()),
            _Section(".rodata", SectionType.PROGBITS, read, sizes[".rodata"], 1),
        ]
        code_size = len(self._code(0, 0, 0)[1])
        entries = len(self._dynamic_table(defaultdict(int)))
        variables = sum(symbol.is_data for symbol in self.symbols) * _OBJECT_SIZE
        groups = (
            (_READ, readable),
            (_READ_EXECUTE, [_Section(".text", SectionType.PROGBITS, run, code_size, 16)]),
            (
                _READ_WRITE,
                [
                    _Section(".dynamic", SectionType.DYNAMIC, write, entries, 8, ".dynstr", 0, DYNAMIC_ENTRY.size),
                    _Section(".bss", SectionType.NOBITS, write, _SAID_SIZE + variables, 16),
                ],
            ),
        )
        placed: list[_Section] = []
        segments: list[_Segment] = []
        offset = HEADER.size + (len(groups) + 2) * PROGRAM_HEADER.size
        for number, (flags, group) in enumerate(groups):
            start = _aligned(offset, group[0].alignment) if number else 0
            for section in group:
                offset = _aligned(offset, section.alignment)
                placed.append(replace(section, offset=offset, address=offset + number * self.page))
                offset += section.size_in_file
            address = start + number * self.page
            size = placed[-1].address + placed[-1].size - address
            segments.append(_Segment(SegmentType.LOAD, flags, start, address, offset - start, size, self.page))
        dynamic = placed[-2]
        place = (dynamic.offset, dynamic.address, dynamic.size, dynamic.size)
        segments.append(_Segment(SegmentType.DYNAMIC, _READ_WRITE, *place, 8))
        segments.append(_Segment(SegmentType.GNU_STACK, _READ_WRITE, 0, 0, 0, 0, 16))
        return placed, segments

    def _code(self, at: int, said: int, text: int) -> tuple[list[tuple[int, int]], bytes]:
        """Two functions, with address and size: one returns an error and the other the sentence, both after it was
        said."""
        function = _x86_64_function if self.machine is ElfMachine.X86_64 else _aarch64_function
        data, bodies = b"", []
        for gives_text in (False, True):
            data += bytes(-len(data) % 16)
            body = function(at + len(data), said, text, len(self.message), gives_text=gives_text)
            bodies.append((at + len(data), len(body)))
            data += body
        return bodies, data

    def _symbol_table(self, bodies: Sequence[tuple[int, int]], index: Mapping[str, int], variables: int) -> bytes:
        rows = [bytes(SYMBOL.size)]
        for symbol in self.symbols:
            name = self.names.add(symbol.name)
            if symbol.is_data:
                fields = (_GLOBAL | SymbolType.OBJECT, 0, index[".bss"], variables, _OBJECT_SIZE)
                variables += _OBJECT_SIZE
            else:
                at, size = bodies[symbol.gives_text]
                fields = (_GLOBAL | SymbolType.FUNC, 0, index[".text"], at, size)
            rows.append(SYMBOL.pack(name, *fields))
        return b"".join(rows)

    def _dynamic_table(self, address: Mapping[str, int]) -> bytes:
        entries = [
            (DynamicTag.SONAME, self.names.add(self.soname)),
            (DynamicTag.GNU_HASH, address[".gnu.hash"]),
            (DynamicTag.STRTAB, address[".dynstr"]),
            (DynamicTag.SYMTAB, address[".dynsym"]),
            (DynamicTag.STRSZ, len(self.names.data)),
            (DynamicTag.SYMENT, SYMBOL.size),
        ]
        if self.versions:
            entries.append((DynamicTag.VERSYM, address[".gnu.version"]))
            entries.append((DynamicTag.VERDEF, address[".gnu.version_d"]))
            entries.append((DynamicTag.VERDEFNUM, len(self.versions) + 1))
        entries.append((DynamicTag.NULL, 0))
        return b"".join(DYNAMIC_ENTRY.pack(*entry) for entry in entries)

    def _version_numbers(self) -> bytes:
        """For each symbol the number of its version; of a name with several the last is for those who name none."""
        number = {version: position for position, version in enumerate(self.versions, _BASE + 1)}
        last = {symbol.name: symbol.version for symbol in self.symbols}
        rows = [0]
        for symbol in self.symbols:
            hidden = 0 if symbol.version in ("", last[symbol.name]) else _HIDDEN
            rows.append(number.get(symbol.version, _BASE) | hidden)
        return struct.pack(f"<{len(rows)}H", *rows)

    def _version_definitions(self) -> bytes:
        """The library's own name comes first, and so it may be there twice: NVIDIA's versions are called like that."""
        data = b""
        size = VERSION_DEFINITION.size + VERSION_NAME.size
        for number, name in enumerate((self.soname, *self.versions), _BASE):
            flags = _BASE if number == _BASE else 0
            after = size if number < len(self.versions) + _BASE else 0
            data += VERSION_DEFINITION.pack(1, flags, number, 1, sysv_hash(name), VERSION_DEFINITION.size, after)
            data += VERSION_NAME.pack(self.names.add(name), 0)
        return data

    def _hash_table(self) -> bytes:
        """The table by which the dynamic linker finds a name: a Bloom filter, buckets, and chains of hashes."""
        hashes = [gnu_hash(symbol.name) for symbol in self.symbols]
        words = 1
        while words * 8 < len(hashes):
            words *= 2
        bloom = [0] * words
        for value in hashes:
            bloom[value // 64 % words] |= 1 << value % 64 | 1 << (value >> _BLOOM_SHIFT) % 64
        buckets = [0] * self.buckets
        chain = []
        for position, value in enumerate(hashes):
            bucket = value % self.buckets
            buckets[bucket] = buckets[bucket] or position + 1
            is_last = position + 1 == len(hashes) or hashes[position + 1] % self.buckets != bucket
            chain.append(value & ~1 | is_last)
        numbers = (self.buckets, 1, words, _BLOOM_SHIFT)
        return struct.pack(f"<4I{words}Q{self.buckets}I{len(chain)}I", *numbers, *bloom, *buckets, *chain)


def _x86_64_function(at: int, said: int, text: int, length: int, *, gives_text: bool) -> bytes:
    """write(2, text, length) unless it was done before, then the result; no register is used that must be kept."""

    def relative(target: int, end: int) -> bytes:
        return struct.pack("<i", target - (at + end))

    say = (
        b"\xc7\x05" + relative(said, 24) + struct.pack("<I", 1)  # movl $1, said(%rip)
        + b"\xb8\x01\x00\x00\x00"  # mov $1, %eax: write
        + b"\xbf\x02\x00\x00\x00"  # mov $2, %edi
        + b"\x48\x8d\x35" + relative(text, 41)  # lea text(%rip), %rsi
        + b"\xba" + struct.pack("<I", length)  # mov $length, %edx
        + b"\x0f\x05"  # syscall
    )  # fmt: skip
    start = (
        b"\xf3\x0f\x1e\xfa"  # endbr64
         b"\x8b\x05" + relative(said, 10)  # mov said(%rip), %eax
        + b"\x85\xc0"  # test %eax, %eax
        + b"\x75" + struct.pack("<b", len(say))  # jne past it
    )  # fmt: skip
    end = len(start) + len(say)
    result = b"\x48\x8d\x05" + relative(text, end + 7) if gives_text else b"\xb8" + struct.pack("<I", ERROR)
    return start + say + result + b"\xc3"


def _aarch64_function(at: int, said: int, text: int, length: int, *, gives_text: bool) -> bytes:
    """The same for aarch64."""

    def address_of(register: int, target: int, position: int) -> int:  # adr: within 1 MiB
        distance = (target - (at + 4 * position)) & 0x1FFFFF
        return 0x10000000 | (distance & 3) << 29 | distance >> 2 << 5 | register

    def number(register: int, value: int) -> int:  # movz
        return 0xD2800000 | value << 5 | register

    words = [
        0xD503245F,  # bti c
        address_of(9, said, 1),
        0xB940012A,  # ldr w10, [x9]
        0x3500000A | 8 << 5 | 10,  # cbnz w10, past it: 8 instructions on
        number(10, 1),
        0xB900012A,  # str w10, [x9]
        number(0, 2),
        address_of(1, text, 7),
        number(2, length),
        number(8, 64),  # write
        0xD4000001,  # svc #0
        address_of(0, text, 11) if gives_text else number(0, ERROR),
        0xD65F03C0,  # ret
    ]
    return struct.pack(f"<{len(words)}I", *words)


def gnu_hash(name: str) -> int:
    """The hash of `.gnu.hash`."""
    value = 5381
    for byte in name.encode():
        value = (value * 33 + byte) & 0xFFFFFFFF
    return value


def sysv_hash(name: str) -> int:
    """The hash of versions, from System V."""
    value = 0
    for byte in name.encode():
        value = (value << 4) + byte
        high = value & 0xF0000000
        value = (value ^ high >> 24) & ~high & 0xFFFFFFFF
    return value


def _aligned(offset: int, alignment: int) -> int:
    return -(-offset // alignment) * alignment
