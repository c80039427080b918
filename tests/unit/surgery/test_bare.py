"""Cubins without a container, raw or as zstd frames: found, cut, proven, and never lost."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.oracle import foreign as foreign_code
from tests.oracle import read_library, runnable
from tests.unit.gpucode.builders import Entry, cubin, frame
from tests.unit.surgery.checks import EMPTY, bare_reached, options, policy, tailor
from tests.unit.surgery.libraries import Linker, Recipe, byte_at, memory
from torchtailor.catalog import load_catalog
from torchtailor.code.binary.elf import ElfFile
from torchtailor.code.binary.elf_headers import HEADER, PROGRAM_HEADER
from torchtailor.code.binary.instructions import named_by_code
from torchtailor.code.binary.source import BufferSource
from torchtailor.code.gpucode.bare import cubin_header, read_bare
from torchtailor.code.gpucode.fatbin import Compression
from torchtailor.code.gpucode.report import summarise
from torchtailor.code.gpucode.runnable import DriverReading, driver_readings, lost_code
from torchtailor.code.gpucode.scan import FoundContainer, Reference, scan_elf
from torchtailor.core.errors import CheckFailedError
from torchtailor.surgery.files import open_file
from torchtailor.surgery.library import tailor_library
from torchtailor.surgery.opened import OpenLibrary
from torchtailor.surgery.proof.prove import prove
from torchtailor.surgery.result import LibraryStatus
from torchtailor.tailoring.delta import rebuild, write_delta

ARCHS = ("75", "80", "86", "90", "100", "120")
X86_64, AARCH64 = 62, 183


def framed(machine: int = X86_64, **changes: Any) -> Recipe:
    """As cuBLASLt has them: the architectures of one kernel after another, in .ldata or .data."""
    frames = [frame(arch, 60000, kernel=f"gemm{number}") for number in range(4) for arch in ARCHS]
    home, alignment = (".ldata", 0x1000) if machine == X86_64 else (".data", 0x10000)
    recipe = Recipe(bare=frames, bare_in=home, machine=machine, alignment=alignment)
    return replace(recipe, **changes)


def reached(linker: Linker, image: bytes) -> list[bytes]:
    return [stored for _, stored in bare_reached(linker, image)]


def expected(linker: Linker, *kept: str) -> list[bytes]:
    stored = [linker.r.bare[number] for _, _, number in linker.bare_pointers]
    return [one if arch_of(one) in kept else EMPTY for one in stored]


def arch_of(stored: bytes) -> str:
    raw = zstandard.ZstdDecompressor().decompress(stored) if stored[0] == 0x28 else stored
    header = cubin_header(raw[:64])
    assert header
    return f"{header.sm}{'a' if header.arch_specific else ''}"


@pytest.mark.parametrize("machine", [X86_64, AARCH64])
@pytest.mark.parametrize(
    ("gpu", "kept"), [("9.0", {"90"}), ("8.6", {"80", "86"}), ("12.1", {"120"}), ("10.3", {"100"})]
)
def test_records_lead_to_their_cubin_or_to_nothing(machine: int, gpu: str, kept: set[str], tmp_path: Path) -> None:
    linker, stock, output, result = tailor(tmp_path, framed(machine), gpu)
    assert result.status is LibraryStatus.CUT
    assert reached(linker, stock) == [linker.r.bare[number] for _, _, number in linker.bare_pointers]
    assert reached(linker, output) == expected(linker, *kept)
    assert set(result.kept) == {f"sm_{arch}" for arch in kept}
    foreign = sum(len(one) for one in linker.r.bare if arch_of(one) not in kept)
    page = 0x1000 if machine == X86_64 else 0x10000
    assert len(stock) - len(output) > foreign - 4 * page  # packed together: what is lost is not a page for each


@pytest.mark.parametrize("machine", [X86_64, AARCH64])
def test_the_oracle_agrees(machine: int, tmp_path: Path) -> None:
    _, stock, output, _ = tailor(tmp_path, framed(machine), "9.0")
    (tmp_path / "stock.so").write_bytes(stock)
    (tmp_path / "cut.so").write_bytes(output)
    before, after = read_library(tmp_path / "stock.so"), read_library(tmp_path / "cut.so")
    assert {one.form for one in before.containers} == {"zstd"}
    assert runnable(before, (9, 0)) == runnable(after, (9, 0))
    assert len(runnable(after, (9, 0))) == 4
    assert not foreign_code(after, [(9, 0)])


def test_the_records_themselves_stay_but_for_the_pointer(tmp_path: Path) -> None:
    linker, stock, output, _ = tailor(tmp_path, framed(), "9.0")
    for section, at, _ in linker.bare_pointers:
        old, new = (byte_at(memory(image), section.address + at - 16, 40) for image in (stock, output))
        assert old[:16] + old[24:] == new[:16] + new[24:]


def test_twice_the_same_and_a_second_cut_changes_nothing(tmp_path: Path) -> None:
    _, _, once, _ = tailor(tmp_path, framed(), "9.0")
    _, _, again, _ = tailor(tmp_path, framed(), "9.0")
    assert once == again
    cut = tmp_path / "cut.so"
    cut.write_bytes(once)
    assert not tailor_library(cut, tmp_path / "cut-again.so", options("9.0")).status.changed


def test_what_was_removed_can_be_restored(tmp_path: Path) -> None:
    _, stock, _, result = tailor(tmp_path, framed(), "9.0")
    cut, removed = tmp_path / "out" / "libtest.so", tmp_path / "removed"
    write_delta(tmp_path / "libtest.so", cut, removed, result.sha256_in)
    assert b"".join(rebuild(cut, removed)) == stock


def test_recompression_leaves_them_alone(tmp_path: Path) -> None:
    wrapped = [(Entry(b"\x7fELF" + bytes(4000), sm=90, compression="lz4"),)]
    recipe = framed(wrapped=wrapped, bare=[cubin("90", 9000), frame("90"), frame("80", 60000)])
    linker, _, output, _ = tailor(tmp_path, recipe, "9.0", recompress=True, image_cache=tmp_path / "cache")
    assert reached(linker, output) == expected(linker, "90")


def test_an_old_driver_does_not_matter_to_frames_that_the_library_unpacks(tmp_path: Path) -> None:
    _, _, _, result = tailor(tmp_path, framed(), "9.0", driver="525.60")
    assert result.status is LibraryStatus.CUT


@pytest.mark.parametrize("machine", [X86_64, AARCH64])
@pytest.mark.parametrize(("by", "reference"), [("pointers", Reference.POINTER), ("code", Reference.CODE)])
def test_raw_cubins_are_emptied_in_place(machine: int, by: str, reference: Reference, tmp_path: Path) -> None:
    raw = [cubin(arch, 60000 if machine == X86_64 else 300000) for arch in ARCHS]
    recipe = framed(machine, bare=raw, bare_in=".rodata", bare_by=by)
    linker, stock, output, result = tailor(tmp_path, recipe, "9.0")
    code = scan_elf(ElfFile.from_buffer(stock))
    assert {found.reference for found in code.containers} == {reference}
    assert result.status is LibraryStatus.CUT
    ranges = memory(output)
    for (section, at), stored in zip(linker.bare, raw, strict=True):
        wanted = stored if arch_of(stored) == "90" else EMPTY
        assert byte_at(ranges, section.address + at, len(wanted)) == wanted
    text = next(section for section in linker.sections if section.name == ".text")
    assert byte_at(ranges, text.address, text.size) == byte_at(memory(stock), text.address, text.size)


def with_segment_behind(stock: bytes, alignment: int) -> bytes:
    """As patchelf leaves it: one more segment behind the section headers, which stay where they are."""
    fields = list(HEADER.unpack_from(stock))
    elf = ElfFile.from_buffer(stock)
    offset = -(-len(stock) // alignment) * alignment
    address = -(-max(load.memory_end for load in elf.loads) // alignment) * alignment
    row = PROGRAM_HEADER.pack(1, 4, offset, address, address, 64, 64, alignment)
    fields[10] += 1
    image = bytearray(stock.ljust(offset, b"\0") + b"added by patchelf".ljust(64, b"."))
    image[: HEADER.size] = HEADER.pack(*fields)
    at = elf.header.segment_table_offset + len(elf.segments) * PROGRAM_HEADER.size
    image[at : at + len(row)] = row
    return bytes(image)


def test_a_library_is_emptied_where_a_new_layout_would_be_larger(tmp_path: Path) -> None:
    """The sanitizer's libraries for aarch64: nothing can move, and section headers lie before the last segment."""
    raw = [cubin(arch, 300000) for arch in ARCHS]
    recipe = framed(AARCH64, bare=raw, bare_in=".rodata", bare_by="pointers", phdr_slack=bytes(56), symtab=False)
    stock = with_segment_behind(Linker(recipe).build(), 0x10000)
    (tmp_path / "libtest.so").write_bytes(stock)
    result = tailor_library(tmp_path / "libtest.so", tmp_path / "cut.so", options("9.0"))
    output = (tmp_path / "cut.so").read_bytes()
    assert (result.status, len(output)) == (LibraryStatus.CUT, len(stock))
    assert result.zeroed > 1_000_000
    assert [section.offset for section in ElfFile.from_buffer(output).sections] == [
        section.offset for section in ElfFile.from_buffer(stock).sections
    ]
    assert output.endswith(b"added by patchelf".ljust(64, b"."))


@pytest.mark.parametrize(("by", "zeros"), [("pointers", True), ("records", False)])
def test_inspection_tells_what_would_stay_as_zeros(by: str, zeros: bool) -> None:
    """Only a cubin whose size stands beside the pointer can move, however large it is."""
    stock = Linker(framed(bare=[cubin("90", 60000)], bare_in=".rodata", bare_by=by)).build()
    (group,) = summarise("libtest.so", scan_elf(ElfFile.from_buffer(stock))).container_groups
    assert (group.reference, group.leaves_zeros) == (Reference.POINTER, zeros)


def test_a_cubin_that_nothing_leads_to_stays(tmp_path: Path) -> None:
    recipe = framed(bare_in=".rodata", bare_by="nothing")
    linker, stock, output, result = tailor(tmp_path, recipe, "9.0", strip=False)
    assert result.status is LibraryStatus.UNCHANGED
    assert output == stock
    report = summarise("libtest.so", scan_elf(ElfFile.from_buffer(stock)))
    assert not any(group.can_be_cut for group in report.container_groups)
    assert report.images == len(linker.r.bare)


class _Naming(Linker):
    """Code names the fourth cubin, which is for 9.0 and lies behind three that go."""

    def _bare(self, home: Any, data: Any, text: Any) -> None:
        super()._bare(home, data, text)
        self.in_code.append((len(text.data), *self.bare[3]))
        text.data += bytes(16)


def test_a_cubin_that_code_names_does_not_move(tmp_path: Path) -> None:
    linker = _Naming(framed())
    stock = linker.build()
    home, at = linker.bare[3]
    address, stored = home.address + at, linker.r.bare[3]
    assert named_by_code(ElfFile.from_buffer(stock), {address, address + 32}) == {address}
    (tmp_path / "libtest.so").write_bytes(stock)
    tailor_library(tmp_path / "libtest.so", tmp_path / "cut.so", options("9.0"))
    output = (tmp_path / "cut.so").read_bytes()
    assert byte_at(memory(output), address, len(stored)) == stored
    assert reached(linker, output) == expected(linker, "90")


def changed_copy(folder: Path, image: bytes, at: int, data: bytes) -> Path:
    path = folder / "changed.so"
    path.write_bytes(image[:at] + data + image[at + len(data) :])
    return path


def check(folder: Path, stock: bytes, output: Path, gpu: str = "9.0") -> None:
    (folder / "stock.so").write_bytes(stock)
    with open_file(folder / "stock.so") as before, open_file(output) as after:
        prove(OpenLibrary.read(before), after, policy(gpu), stripped=True, proven=None)


@pytest.fixture(scope="module")
def cut(tmp_path_factory: pytest.TempPathFactory) -> tuple[Linker, bytes, bytes]:
    return tailor(tmp_path_factory.mktemp("cut"), framed(), "9.0")[:3]


class TestProof:
    def test_accepts_the_output(self, cut: tuple[Linker, bytes, bytes], tmp_path: Path) -> None:
        check(tmp_path, cut[1], changed_copy(tmp_path, cut[2], 0, b""))

    @pytest.mark.parametrize("part", [0.0, 0.3, 0.999])
    def test_a_kept_frame_is_byte_for_byte(self, part: float, cut: tuple[Linker, bytes, bytes], tmp_path: Path) -> None:
        _, stock, output = cut
        found = [one for one in scan_elf(ElfFile.from_buffer(output)).containers if one.images]
        at = found[1].container.offset + int(part * found[1].container.size)
        with pytest.raises(CheckFailedError):
            check(tmp_path, stock, changed_copy(tmp_path, output, at, bytes([output[at] ^ 0x10])))

    def test_a_record_that_leads_to_another_frame(self, cut: tuple[Linker, bytes, bytes], tmp_path: Path) -> None:
        _, stock, output = cut
        found = [one for one in scan_elf(ElfFile.from_buffer(output)).containers if one.images]
        record = found[0].pointers[0].record_offset
        assert record
        other = struct.pack("<Q", found[1].address or 0)
        with pytest.raises(CheckFailedError, match="pointer"):
            check(tmp_path, stock, changed_copy(tmp_path, output, record + 16, other))

    def test_a_frame_for_others_that_stayed(self, tmp_path: Path) -> None:
        _, stock, output, _ = tailor(tmp_path, framed(), "9.0,12.0")
        with pytest.raises(CheckFailedError, match="still has sm_120"):
            check(tmp_path, stock, changed_copy(tmp_path, output, 0, b""), "9.0")

    def test_a_frame_that_the_gpu_uses_and_that_is_gone(self, cut: tuple[Linker, bytes, bytes], tmp_path: Path) -> None:
        _, stock, output = cut
        found = next(one for one in scan_elf(ElfFile.from_buffer(output)).containers if one.images)
        emptied = EMPTY + bytes(found.container.size - len(EMPTY))
        with pytest.raises(CheckFailedError, match="had code for"):
            check(tmp_path, stock, changed_copy(tmp_path, output, found.container.offset, emptied))

    def test_the_reading_that_is_not_the_policys_sees_it_too(self, cut: tuple[Linker, bytes, bytes]) -> None:
        stock, output = (scan_elf(ElfFile.from_buffer(image)).containers for image in cut[1:])
        rules = load_catalog().rules
        readings = {str(gpu): DriverReading(gpu, rules) for gpu in rules.gpus}
        assert not list(lost_code(stock, output, [readings["9.0"]]))
        assert len(list(lost_code(stock, output, [readings["8.0"]]))) == 4


@pytest.mark.parametrize(
    ("arch", "gpus"),
    [
        ("90", {"9.0"}),
        ("90a", {"9.0"}),
        ("100", {"10.0", "10.3"}),
        ("100a", {"10.0"}),
        ("101", {"10.1", "11.0"}),
        ("120", {"12.0", "12.1"}),
        ("80", {"8.0", "8.6", "8.7", "8.9"}),
    ],
)
def test_which_gpus_keep_a_bare_cubin(arch: str, gpus: set[str]) -> None:
    stored = frame(arch)
    container = read_bare(BufferSource(stored), 0, len(stored))
    assert container
    rules = load_catalog().rules
    keeping = {str(gpu) for gpu in rules.gpus if policy(str(gpu)).usable(container.entries)}
    found = FoundContainer(container, ".data", 0x1000, Reference.POINTER, ())
    running = {str(one.device) for one in driver_readings(rules.gpus, rules, lto=True) if one.used([found])[0]}
    assert keeping == running
    assert gpus <= keeping
    assert not keeping & ({"9.0", "8.0", "10.0", "12.0", "10.3"} - gpus)


class TestReading:
    @pytest.mark.parametrize("arch", ["50", "75", "90", "90a", "100", "100a", "121"])
    def test_raw_and_packed(self, arch: str) -> None:
        raw = cubin(arch)
        for stored, compression in ((raw, Compression.NONE), (frame(arch), Compression.ZSTD)):
            data = b"before" + stored + b"behind"
            found = read_bare(BufferSource(data), 6, len(data))
            assert found
            image = found.entries[0]
            assert (found.offset, found.size, found.bare) == (6, len(stored), True)
            assert (image.label, image.raw_size, image.compression) == (f"sm_{arch}", len(raw), compression)

    @pytest.mark.parametrize("checksum", [True, False])
    @pytest.mark.parametrize("sized", [True, False])
    def test_all_kinds_of_frames(self, checksum: bool, sized: bool) -> None:
        raw = cubin("90", 400_000)
        packer = zstandard.ZstdCompressor(level=1, write_checksum=checksum, write_content_size=sized)
        stored = packer.compress(raw)
        found = read_bare(BufferSource(stored + bytes(9)), 0, len(stored) + 9)
        assert found
        assert (found.size, found.entries[0].raw_size) == (len(stored), len(raw))

    def test_what_is_no_cubin(self) -> None:
        host = bytearray(cubin("90"))
        host[18:20] = (62).to_bytes(2, "little")
        texts = zstandard.ZstdCompressor().compress(b"text " * 1000)
        for data in (bytes(host), texts, cubin("90")[:-1], frame("90")[:-1], frame("90")[:20], b"\x7fELF", b"\x28\xb5"):
            assert read_bare(BufferSource(data), 0, len(data)) is None

    @given(st.data())
    @settings(max_examples=examples(200), deadline=None)
    def test_damage_never_crashes(self, data: st.DataObject) -> None:
        image = bytearray(data.draw(st.sampled_from((cubin("90", 400), frame("100", 400)))))
        for _ in range(data.draw(st.integers(1, 4))):
            image[data.draw(st.integers(4, len(image) - 1))] = data.draw(st.integers(0, 255))
        found = read_bare(BufferSource(bytes(image)), 0, len(image))
        assert found is None or 64 <= found.size <= len(image)
