"""Where containers are found, how they are reached, and what is not taken for one."""

from __future__ import annotations

import struct
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.unit.gpucode.builders import FIXTURES, Entry, Place, container, elf
from torchtailor.code.binary.elf import ElfFile
from torchtailor.code.binary.elf_headers import ElfMachine
from torchtailor.code.binary.source import BufferSource
from torchtailor.code.gpucode.fatbin import decompress
from torchtailor.code.gpucode.scan import LibraryCode, Reference, scan_file, scan_source
from torchtailor.core.errors import BadInputError

ONE = container(Entry(b"code" * 30), Entry(b"ptx" * 30, kind=1))


def scan(data: bytes) -> LibraryCode:
    return scan_source(BufferSource(data))


def labels(code: LibraryCode) -> list[str]:
    return [image.label for image in code.images]


ALL = [
    "sm_75",
    "sm_80",
    "compute_90a",
    "sm_90a",
    "sm_100f",
    "sm_120",
    "sm_120a",
    "lto_90",
    "compute_90",
    "compute_120f",
]


@pytest.mark.parametrize(
    ("name", "compressions"),
    [
        ("size.so", {"zstd": 10}),
        ("speed.so", {"none": 6, "lz4": 4}),
        ("raw.so", {"none": 10}),
    ],
)
def test_what_nvcc_made(name: str, compressions: dict[str, int]) -> None:
    code = scan_file(FIXTURES / name)
    assert labels(code) == ALL
    assert Counter(image.compression.value for image in code.images) == compressions
    (found,) = code.containers
    assert (found.section, found.reference, len(found.pointers)) == (".nv_fatbin", Reference.WRAPPER, 1)
    assert code.machine is ElfMachine.X86_64


def test_payloads_are_what_they_say() -> None:
    """The same source, stored in three ways, unpacks to the same code."""
    unpacked = {}
    for name in ("size.so", "speed.so", "raw.so"):
        source = BufferSource((FIXTURES / name).read_bytes())
        images = [image for image in scan_source(source).images if not image.scrambled]
        unpacked[name] = {image.label: decompress(source, image).rstrip(b"\0") for image in images}
    raw = {label: data for label, data in unpacked["raw.so"].items() if label != "lto_90"}
    assert unpacked["size.so"] == unpacked["speed.so"] == raw
    assert all(data.startswith(b"\x7fELF") for label, data in raw.items() if label.startswith("sm_"))
    assert all(b".target" in data for label, data in raw.items() if label.startswith("compute_"))


def test_concatenated_entries_name_their_parts() -> None:
    code = scan_file(FIXTURES / "concat.so")
    parts = [part.label for image in code.images for part in image.parts]
    assert sorted(parts) == sorted(set(ALL) - {"lto_90"})
    source = BufferSource((FIXTURES / "concat.so").read_bytes())
    for image in code.images:
        data = decompress(source, image)
        for part in image.parts:
            start = data[part.offset : part.offset + part.size].lstrip()[:8]
            assert start.startswith((b"\x7fELF", b".version"))


def test_a_device_link_and_what_it_was_made_from() -> None:
    code = scan_file(FIXTURES / "linked.so")
    assert code.device_linked
    assert Counter((found.section, found.reference) for found in code.containers) == {
        ("__nv_relfatbin", Reference.PRELINKED): 2,
        (".nv_fatbin", Reference.LINKED): 1,
    }


@pytest.mark.parametrize(
    ("name", "machine"), [("places-aarch64.so", ElfMachine.AARCH64), ("places-relr.so", ElfMachine.X86_64)]
)
def test_every_place(name: str, machine: ElfMachine) -> None:
    code = scan_file(FIXTURES / name)
    assert code.machine is machine
    places = Counter((found.section, found.reference) for found in code.containers)
    assert places == {
        (".nv_fatbin", Reference.WRAPPER): 2,
        (".cask_resource", Reference.POINTER): 1,
        (".ldata", Reference.NONE): 1,
        (".rodata", Reference.NONE): 1,
        (".extra_note", Reference.NONE): 1,
    }
    assert [found.section for found in code.containers if found.address is None] == [".extra_note"]
    assert len(code.lookalikes) == 1


def test_addresses_lead_to_the_containers() -> None:
    data = (FIXTURES / "places-aarch64.so").read_bytes()
    file = ElfFile.from_buffer(data)
    for found in scan(data).containers:
        if found.address is not None:
            assert file.offset_of(found.address) == found.container.offset


def test_a_library_without_section_headers_is_searched_all_the_same() -> None:
    data = bytearray((FIXTURES / "size.so").read_bytes())
    struct.pack_into("<Q", data, 40, 0)
    struct.pack_into("<HH", data, 60, 0, 0)
    code = scan(bytes(data))
    assert labels(code) == ALL
    assert code.containers[0].reference is Reference.POINTER


def test_containers_inside_payloads_are_not_found() -> None:
    outer = container(Entry(b"12345678" + ONE))
    assert len(scan(elf(Place(".rodata", outer))).containers) == 1


def test_code_and_debug_sections_are_not_searched() -> None:
    code = scan(elf(Place(".text", ONE, flags=6), Place(".debug_info", ONE, flags=0), Place(".data", ONE, flags=3)))
    assert [found.section for found in code.containers] == [".data"]


@pytest.mark.parametrize("gap", [0, 8, 240, 1 << 21])
def test_zeros_between_containers_are_no_damage(gap: int) -> None:
    assert len(scan(elf(Place(".nv_fatbin", ONE + bytes(gap) + ONE + bytes(gap)))).containers) == 2


def test_anything_else_between_containers_is_damage() -> None:
    with pytest.raises(BadInputError, match=r"\.nv_fatbin holds something"):
        scan(elf(Place(".nv_fatbin", ONE + bytes(2000) + b"\1" + bytes(7) + ONE)))


def test_a_damaged_container_is_damage_in_nv_fatbin_and_no_container_elsewhere() -> None:
    broken = bytearray(ONE)
    broken[16 + 4] = 1  # the header size of the first entry
    with pytest.raises(BadInputError, match="impossible sizes"):
        scan(elf(Place(".nv_fatbin", bytes(broken))))
    code = scan(elf(Place(".rodata", bytes(broken) + ONE)))
    assert (len(code.containers), len(code.lookalikes)) == (1, 1)


def test_many_lookalikes_are_refused_and_quickly() -> None:
    lookalike = struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 1 << 20)
    with pytest.raises(BadInputError, match="begin like"):
        scan(elf(Place(".rodata", lookalike * 100000 + bytes(1 << 20))))


@pytest.mark.parametrize("shift", [1, 2, 4, 7])
def test_containers_among_other_data_may_lie_anywhere(shift: int) -> None:
    """libcudf and TensorRT embed containers as bytes, at odd addresses and more than a few."""
    data = b"".join(bytes([255]) * shift + ONE + bytes(-len(ONE) % 8) for _ in range(40))
    code = scan(elf(Place(".rodata", data)))
    assert (len(code.containers), code.lookalikes) == (40, ())
    assert {found.reference for found in code.containers} == {Reference.NONE}


def test_a_few_hundred_lookalikes_are_no_damage() -> None:
    lookalike = struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 1 << 60)
    code = scan(elf(Place(".rodata", lookalike * 300 + ONE)))
    assert (len(code.containers), len(code.lookalikes)) == (1, 300)


def test_a_file_made_to_be_slow_is_refused_quickly() -> None:
    """In the payload of each entry a container begins that reads well until the last entry, which all share."""
    start = struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 1 << 20)
    chain = start + container(Entry(start))[16:] * 8000
    with pytest.raises(BadInputError, match="begin like"):
        scan(elf(Place(".rodata", chain + bytes(1 << 21))))


def test_a_wrapper_must_lead_to_a_container() -> None:
    data = bytearray((FIXTURES / "places-aarch64.so").read_bytes())
    file = ElfFile.from_buffer(bytes(data))
    wrappers = file.section(".nvFatBinSegment")
    assert wrappers is not None
    relocation = file.relocations_in(wrappers.address, wrappers.memory_end)[wrappers.address + 8]
    assert relocation.record_offset is not None
    struct.pack_into("<q", data, relocation.record_offset + 16, relocation.addend + 8)
    with pytest.raises(BadInputError, match="where no container is"):
        scan(bytes(data))


def test_the_error_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "cut.so"
    path.write_bytes((FIXTURES / "size.so").read_bytes()[:9000])
    with pytest.raises(BadInputError, match=r"cut\.so: "):
        scan_file(path)
    path.write_bytes(b"")
    with pytest.raises(BadInputError, match="empty"):
        scan_file(path)


@settings(max_examples=examples(400), deadline=None)
@given(st.sampled_from(sorted(path.name for path in FIXTURES.glob("*.so"))), st.data())
def test_flipped_bits_never_crash(name: str, data: st.DataObject) -> None:
    image = bytearray((FIXTURES / name).read_bytes())
    for position in data.draw(st.lists(st.integers(0, len(image) * 8 - 1), min_size=1, max_size=10)):
        image[position // 8] ^= 1 << position % 8
    try:
        scan(bytes(image))
    except BadInputError as error:
        assert error.message.endswith(".")
