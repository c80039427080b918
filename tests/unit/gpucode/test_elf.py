"""The ELF reader on real small libraries, and on damaged ones."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.unit.gpucode.builders import FIXTURES, Place, elf
from torchtailor.code.binary.elf import ElfFile, NotElfError, RelaTable, UnsupportedElfError
from torchtailor.code.binary.elf_headers import DynamicTag, ElfMachine, SegmentType
from torchtailor.core.errors import BadInputError

LIBRARIES = sorted(FIXTURES.glob("*.so"))
SIZE = (FIXTURES / "size.so").read_bytes()
PLAIN = elf(Place(".rodata", bytes(64)), Place(".data", b"x" * 32, flags=3))


def test_real_headers_agree_with_readelf() -> None:
    """`readelf -hSlW size.so`, recorded."""
    file = ElfFile.from_buffer(SIZE)
    assert file.machine is ElfMachine.X86_64
    assert len(file.sections) == file.header.section_count
    wrapper = file.section(".nvFatBinSegment")
    assert wrapper is not None and wrapper.size == 24 and wrapper.allocated
    assert [s.type for s in file.segments].count(SegmentType.LOAD) == len(file.loads) == 4
    assert file.section("no such section") is None


def test_addresses_and_offsets_are_inverse() -> None:
    file = ElfFile.from_buffer(SIZE)
    for segment in file.loads:
        assert file.offset_of(segment.address) == segment.offset
        assert file.address_of(segment.offset + segment.file_size - 1) == segment.address + segment.file_size - 1
    assert file.offset_of(1 << 40) is None
    assert file.load_at(1 << 40) is None


@pytest.mark.parametrize("name", ["places-aarch64.so", "places-relr.so"])
def test_pointers_are_found_in_rela_and_in_relr(name: str) -> None:
    file = ElfFile.from_buffer((FIXTURES / name).read_bytes())
    wrappers, fatbin = file.section(".nvFatBinSegment"), file.section(".nv_fatbin")
    assert wrappers is not None and fatbin is not None
    found = file.relocations_in(wrappers.address, wrappers.memory_end)
    assert sorted(found) == [wrappers.address + 8, wrappers.address + 32]
    assert next(found[place].addend for place in sorted(found)) == fatbin.address
    assert all((one.record_offset is None) == name.endswith("relr.so") for one in found.values())
    assert {one.place for one in file.relocations_into(fatbin.address, fatbin.memory_end)} == set(found)


@pytest.mark.parametrize("rows", [0, 1, 1024, 5000])
def test_a_long_table_of_relocations_is_searched_as_row_by_row(rows: int) -> None:
    """Blocks without an address in the range are passed over."""
    some = random.Random(rows)
    table = [
        (
            some.randrange(1 << 20) if some.random() < 0.1 else row * 8,
            some.choice((8, 1 << 32 | 6)),
            some.randrange(999),
        )
        for row in range(rows)
    ]
    relocations = RelaTable(b"".join(struct.pack("<QQq", *row) for row in table), 64, 8)
    for start, end in ((0, 0), (0, 1 << 40), (rows * 4, rows * 4 + 80), (500, 501), (8191, 8193), (1 << 30, 1 << 31)):
        assert relocations.placed_in(start, end) == [i for i, row in enumerate(table) if start <= row[0] < end]
        into = [i for i, row in enumerate(table) if row[1] == 8 and start <= row[2] < end]
        assert relocations.pointing_into(start, end) == into
    for wanted in ((), (7,), (3, 500, 998), (5000,)):
        to = [i for i, row in enumerate(table) if row[1] == 8 and row[2] in wanted]
        assert relocations.pointing_to(wanted) == to
        assert [*relocations.relocations(to)] == [(64 + i * 24, table[i][0], table[i][2]) for i in to]


def test_relr_names_every_pointer_and_no_other() -> None:
    """The two wrappers' pointers and the two of the table in `.data` (src/places.S)."""
    file = ElfFile.from_buffer((FIXTURES / "places-relr.so").read_bytes())
    wrappers, data = file.section(".nvFatBinSegment"), file.section(".data")
    assert wrappers is not None and data is not None
    expected = [wrappers.address + 8, wrappers.address + 32, data.address, data.address + 8]
    assert sorted(file.relr) == sorted(expected)
    assert len(file.rela) == 0


def test_an_object_without_a_dynamic_table_has_no_relocations() -> None:
    file = ElfFile.from_buffer(PLAIN)
    assert file.dynamic == ()
    assert len(file.rela) == len(file.relr) == 0


@pytest.mark.parametrize("data", [b"", b"\x7fEL", b"MZ" + bytes(100), b"#!/bin/sh\n", bytes(1000)])
def test_what_is_no_elf_is_told_apart(data: bytes) -> None:
    with pytest.raises(NotElfError):
        ElfFile.from_buffer(data)


def patched(offset: int, form: str, value: int, data: bytes = SIZE) -> bytes:
    copy = bytearray(data)
    struct.pack_into(form, copy, offset, value)
    return bytes(copy)


def section_header(field: int, index: int = 1, data: bytes = SIZE) -> int:
    (table,) = struct.unpack_from("<Q", data, 40)
    return int(table) + 64 * index + field


@pytest.mark.parametrize(
    ("data", "error", "why"),
    [
        (patched(4, "<B", 1), UnsupportedElfError, "64-bit"),
        (patched(5, "<B", 2), UnsupportedElfError, "big-endian"),
        (patched(18, "<H", 190), UnsupportedElfError, "machine number 190"),
        (patched(16, "<H", 77), BadInputError, "type 77"),
        (patched(6, "<B", 9), BadInputError, "version"),
        (patched(52, "<H", 63), BadInputError, "header says"),
        (patched(54, "<H", 1), BadInputError, "program headers|Program headers"),
        (patched(58, "<H", 1), BadInputError, "Section headers"),
        (patched(32, "<Q", 1 << 62), BadInputError, "outside"),
        (patched(40, "<Q", 1 << 62), BadInputError, "outside"),
        (patched(56, "<H", 0xFFFE), BadInputError, "outside|past the end|address space|overlap|more bytes"),
        (patched(62, "<H", 500), BadInputError, "names"),
        (patched(section_header(0), "<I", 1 << 30), BadInputError, "name of section 1"),
        (patched(section_header(24), "<Q", 1 << 40), BadInputError, "past the end"),
        (patched(section_header(32), "<Q", (1 << 64) - 1), BadInputError, "past the end"),
        (patched(section_header(24, 2), "<Q", 64), BadInputError, "overlap"),
        (patched(64 + 32, "<Q", 1 << 50), BadInputError, "past the end"),
        (SIZE[:40], BadInputError, "cut short"),
    ],
)
def test_damage_is_named(data: bytes, error: type[BadInputError], why: str) -> None:
    with pytest.raises(error, match=why):
        ElfFile.from_buffer(data)


def test_segments_that_claim_the_same_addresses_are_refused() -> None:
    file = ElfFile.from_buffer(SIZE)
    second = file.loads[1]
    with pytest.raises(BadInputError, match="overlap in memory"):
        ElfFile.from_buffer(patched(64 + 56 * second.index + 16, "<Q", file.loads[0].address))


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda path: str(path.name))
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.999])
def test_truncated_libraries_are_refused(library: object, share: float) -> None:
    data = (FIXTURES / str(library)).read_bytes()
    with pytest.raises(BadInputError):
        ElfFile.from_buffer(data[: int(len(data) * share)])


def everything(file: ElfFile) -> None:
    """Asks for all that is read lazily."""
    lookups: tuple[Callable[[], object], ...] = (
        lambda: file.rela,
        lambda: file.relr,
        lambda: file.relocations_in(0, 1 << 64),
        lambda: list(file.relocations_into(0, 1 << 64)),
        lambda: [file.content(section) for section in file.sections],
    )
    for lookup in lookups:
        lookup()


@settings(max_examples=examples(300))
@given(st.sampled_from([path.name for path in LIBRARIES]), st.data())
def test_flipped_bits_never_crash(name: str, data: st.DataObject) -> None:
    image = bytearray((FIXTURES / name).read_bytes())
    (table,) = struct.unpack_from("<Q", image, 40)
    headers = st.one_of(st.integers(0, 600), st.integers(table, len(image) - 1), st.integers(0, len(image) - 1))
    for position in data.draw(st.lists(headers, min_size=1, max_size=6)):
        image[position] ^= 1 << data.draw(st.integers(0, 7))
    try:
        everything(ElfFile.from_buffer(bytes(image)))
    except BadInputError as error:
        assert error.message.endswith(".")


def test_relocations_that_would_fill_memory_are_refused() -> None:
    """A RELR word of all ones stands for 63 pointers: a file could promise many times its own size."""
    image = bytearray((FIXTURES / "places-relr.so").read_bytes())
    file = ElfFile.from_buffer(bytes(image))
    dynamic = {entry.tag: entry for entry in file.dynamic}
    fatbin = file.section(".nv_fatbin")
    assert fatbin is not None
    struct.pack_into("<Q", image, dynamic[DynamicTag.RELR].offset + 8, fatbin.address)
    struct.pack_into("<Q", image, dynamic[DynamicTag.RELRSZ].offset + 8, 4096)
    image[fatbin.offset : fatbin.offset + 4096] = b"\xff" * 4096
    with pytest.raises(BadInputError, match="room"):
        _ = ElfFile.from_buffer(bytes(image)).relr
