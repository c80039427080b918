"""Writes a small shared library that stands in for one that is not installed.

It has the functions and data that other libraries ask for, under the versions they ask for, so that these load. A
function that is called says so once, on stderr, and returns an error; one that gives the text of an error returns that
sentence. It needs no other library, nor a compiler to be made.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from torchtailor.binary.elf_headers import (
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
    name: str
    type: int
    flags: int
    content: bytes
    alignment: int = 8
    link: str = ""
    info: int = 0
    entry_size: int = 0
    size: int = -1  # where it has no bytes in the file

    @property
    def length(self) -> int:
        return len(self.content) if self.size < 0 else self.size


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
    def __init__(self, machine: ElfMachine, soname: str, symbols: Sequence[StandInSymbol], message: bytes) -> None:
        self.machine, self.soname, self.message = machine, soname, message
        self.names = _Names()
        self.names.add(soname)
        self.versions = sorted({symbol.version for symbol in symbols} - {"", soname})
        if any(symbol.version == soname for symbol in symbols):  # NVIDIA's version is the library's name
            self.versions.insert(0, soname)
        self.buckets = max(1, len(symbols) // 2)
        self.symbols = sorted(symbols, key=lambda symbol: (gnu_hash(symbol.name) % self.buckets, symbol))
        self.code = _code(machine, message)

    def write(self) -> bytes:
        """Three segments, to read, to run and to write, each in pages of its own in memory and not in the file."""
        page = _PAGE[self.machine]
        head = HEADER.size + 5 * PROGRAM_HEADER.size
        own = [index + 2 for index in range(len(self.versions))]
        definitions = self._version_definitions(own)
        versioned = (
            [
                _Section(".gnu.version", SectionType.VERSYM, SectionFlag.ALLOC, self._version_numbers(own), 2, ".dynsym", 0, 2),
                _Section(
                    ".gnu.version_d", SectionType.VERDEF, SectionFlag.ALLOC, definitions, 8, ".dynstr", len(own) + 1
                ),
            ]
            if own
            else []
        )  # fmt: skip
        rows = [self.names.add(symbol.name) for symbol in self.symbols]
        readable = [
            _Section(".gnu.hash", SectionType.GNU_HASH, SectionFlag.ALLOC, self._hash_table(), 8, ".dynsym"),
            _Section(
                ".dynsym", SectionType.DYNSYM, SectionFlag.ALLOC, bytes(SYMBOL.size * (len(rows) + 1)), 8, ".dynstr", 1,
                SYMBOL.size,
            ),
            _Section(".dynstr", SectionType.STRTAB, SectionFlag.ALLOC, bytes(self.names.data), 1),
            *versioned,
            _Section(".rodata", SectionType.PROGBITS, SectionFlag.ALLOC, self.message + b"\0", 1),
        ]  # fmt: skip
        runs = SectionFlag.ALLOC | SectionFlag.EXECUTE
        text = _Section(".text", SectionType.PROGBITS, runs, bytes(self.code.size), 16)
        writes = SectionFlag.ALLOC | SectionFlag.WRITE
        entries = 8 + (3 if own else 0)
        dynamic = _Section(
            ".dynamic", SectionType.DYNAMIC, writes, bytes(entries * DYNAMIC_ENTRY.size), 8, ".dynstr", 0,
            DYNAMIC_ENTRY.size,
        )  # fmt: skip
        variables = sum(symbol.is_data for symbol in self.symbols)
        zeros = _Section(
            ".bss", SectionType.NOBITS, writes, b"", 16, size=16 + variables * _OBJECT_SIZE
        )
        placed: dict[str, tuple[int, int, _Section]] = {}  # offset and address
        offset = head
        spans = []
        for shift, sections in ((0, readable), (page, [text]), (2 * page, [dynamic, zeros])):
            start = 0 if shift == 0 else _aligned(offset, sections[0].alignment)
            for section in sections:
                offset = _aligned(offset, section.alignment)
                placed[section.name] = (offset, offset + shift, section)
                offset += len(section.content)
            last_offset, last_address, last = placed[sections[-1].name]
            spans.append((start, start + shift, offset - start, last_address + last.length - start - shift))
            assert last_offset <= offset
        return self._filled(placed, spans, page, offset)

    def _filled(
        self,
        placed: dict[str, tuple[int, int, _Section]],
        spans: Sequence[tuple[int, int, int, int]],
        page: int,
        end: int,
    ) -> bytes:
        """All contents, now that every address is known."""
        address = {name: at for name, (_, at, _) in placed.items()}
        index = {name: number for number, name in enumerate(placed, 1)}
        content = {name: section.content for name, (_, _, section) in placed.items()}
        said = address[".bss"]
        bodies, content[".text"] = self.code.at(address[".text"], said, address[".rodata"])
        content[".dynsym"] = self._symbol_table(bodies, index, said + 16)
        content[".dynamic"] = self._dynamic_table(address)
        section_names = _Names()
        headers = [bytes(SECTION_HEADER.size)]
        for name, (offset, at, section) in placed.items():
            fields = (section_names.add(name), section.type, section.flags, at, offset, section.length)
            link = index.get(section.link, 0)
            headers.append(
                SECTION_HEADER.pack(*fields, link, section.info, section.alignment, section.entry_size)
            )
        name_at = section_names.add(".shstrtab")
        fields = (name_at, SectionType.STRTAB, 0, 0, end, len(section_names.data), 0, 0, 1, 0)
        headers.append(SECTION_HEADER.pack(*fields))
        table_at = _aligned(end + len(section_names.data), 8)
        data = bytearray(table_at)
        numbers = (HEADER.size, PROGRAM_HEADER.size, 5, SECTION_HEADER.size, len(headers), len(headers) - 1)
        data[: HEADER.size] = HEADER.pack(
            _IDENT, FileType.SHARED, self.machine, 1, 0, HEADER.size, table_at, 0, *numbers
        )
        kinds = zip((_READ, _READ_EXECUTE, _READ_WRITE), spans, strict=True)
        segments = [(SegmentType.LOAD, flags, *span, page) for flags, span in kinds]
        where, at, section = placed[".dynamic"]
        segments.append((SegmentType.DYNAMIC, _READ_WRITE, where, at, section.length, section.length, 8))
        segments.append((SegmentType.GNU_STACK, _READ_WRITE, 0, 0, 0, 0, 16))
        for number, (kind, flags, offset, at, in_file, in_memory, alignment) in enumerate(segments):
            fields = (kind, flags, offset, at, at, in_file, in_memory, alignment)
            PROGRAM_HEADER.pack_into(data, HEADER.size + number * PROGRAM_HEADER.size, *fields)
        for name, (offset, _, _) in placed.items():
            data[offset : offset + len(content[name])] = content[name]
        data[end : end + len(section_names.data)] = section_names.data
        return bytes(data) + b"".join(headers)

    def _symbol_table(self, bodies: Sequence[tuple[int, int]], index: dict[str, int], variables: int) -> bytes:
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

    def _dynamic_table(self, address: dict[str, int]) -> bytes:
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

    def _version_numbers(self, own: Sequence[int]) -> bytes:
        """For each symbol the number of its version; of a name with several the last is for those who name none."""
        number = dict(zip(self.versions, own, strict=True))
        last = {symbol.name: symbol.version for symbol in self.symbols}
        rows = [0]
        for symbol in self.symbols:
            hidden = _HIDDEN if symbol.version != last[symbol.name] and symbol.version else 0
            rows.append(number.get(symbol.version, _BASE) | hidden)
        return struct.pack(f"<{len(rows)}H", *rows)

    def _version_definitions(self, own: Sequence[int]) -> bytes:
        data = b""
        rows = [(self.soname, _BASE, _BASE), *((name, 0, number) for name, number in zip(self.versions, own, strict=True))]
        size = VERSION_DEFINITION.size + VERSION_NAME.size
        for position, (name, flags, number) in enumerate(rows, 1):
            after = size if position < len(rows) else 0
            hashed = sysv_hash(name)
            data += VERSION_DEFINITION.pack(1, flags, number, 1, hashed, VERSION_DEFINITION.size, after)
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
        return struct.pack(
            f"<4I{words}Q{self.buckets}I{len(chain)}I", *numbers, *bloom, *buckets, *chain
        )


@dataclass(frozen=True, slots=True)
class _Code:
    """Two functions: one returns an error and the other the sentence, both after it was said."""

    size: int
    at: Callable[[int, int, int], tuple[list[tuple[int, int]], bytes]]


def _code(machine: ElfMachine, message: bytes) -> _Code:
    function = _x86_64_function if machine is ElfMachine.X86_64 else _aarch64_function

    def both(at: int, said: int, text: int) -> tuple[list[tuple[int, int]], bytes]:
        data, bodies = b"", []
        for gives_text in (False, True):
            data += bytes(-len(data) % 16)
            body = function(at + len(data), said, text, len(message), gives_text)
            bodies.append((at + len(data), len(body)))
            data += body
        return bodies, data

    return _Code(len(both(0, 0, 0)[1]), both)


def _x86_64_function(at: int, said: int, text: int, length: int, gives_text: bool) -> bytes:
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
        + b"\x8b\x05" + relative(said, 10)  # mov said(%rip), %eax
        + b"\x85\xc0"  # test %eax, %eax
        + b"\x75" + struct.pack("<b", len(say))  # jne past it
    )  # fmt: skip
    end = len(start) + len(say)
    result = b"\x48\x8d\x05" + relative(text, end + 7) if gives_text else b"\xb8" + struct.pack("<I", ERROR)
    return start + say + result + b"\xc3"


def _aarch64_function(at: int, said: int, text: int, length: int, gives_text: bool) -> bytes:
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
