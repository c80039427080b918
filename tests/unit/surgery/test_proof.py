"""The proof against sabotage: whatever matters in an output is changed, and each change must be found."""

from __future__ import annotations

import os
import random
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.unit.surgery.checks import policy, tailor
from tests.unit.surgery.libraries import PHDR, SHDR
from tests.unit.surgery.test_tailor import rich
from torchtailor.core.errors import CheckFailedError
from torchtailor.surgery.files import open_file
from torchtailor.surgery.layout import Span, merge, subtract
from torchtailor.surgery.opened import OpenLibrary
from torchtailor.surgery.proof.prove import prove


def pure_code(section: str) -> bool:
    """Whether a section holds nothing but what the host needs."""
    mixed = (".nv_fatbin", "__nv_relfatbin", ".cask_resource", ".ldata", ".rodata", ".torchtailor")
    return section not in mixed


class Bench:
    """A tailored library, and what of it matters."""

    def __init__(self, folder: Path, machine: int, relr: bool) -> None:
        self.linker, stock, self.output, _ = tailor(folder, rich(machine, relr=relr))
        self.stock = folder / "stock.so"
        self.stock.write_bytes(stock)
        self.changed = folder / "changed.so"
        self.flipped = folder / "flipped.so"
        self.matters = self._matters()

    def check(self, image: bytes, targets: str = "9.0", *, stripped: bool = True) -> None:
        self.changed.write_bytes(image)
        with open_file(self.stock) as stock, open_file(self.changed) as output:
            prove(OpenLibrary.read(stock), output, policy(targets), stripped=stripped, proven=None)

    def check_flipped(self, at: int, bit: int) -> None:
        """Check the output with one bit changed; only that byte is written, there and back."""
        if not self.flipped.exists():
            self.flipped.write_bytes(self.output)
        with self.flipped.open("r+b", buffering=0) as file, open_file(self.stock) as stock:
            os.pwrite(file.fileno(), bytes([self.output[at] ^ 1 << bit]), at)
            try:
                with open_file(self.flipped) as output:
                    prove(OpenLibrary.read(stock), output, policy("9.0"), stripped=True, proven=None)
            finally:
                os.pwrite(file.fileno(), self.output[at : at + 1], at)

    def _matters(self) -> list[range]:
        """Offsets in the output of: all containers, all loaded bytes that are not GPU code, all headers."""
        with open_file(self.stock) as stock, open_file(self.stock.parent / "out" / "libtest.so") as output:
            before, after = OpenLibrary.read(stock), OpenLibrary.read(output)
        containers = {found.address: found for found in after.code.containers}
        spans = [range(f.container.offset, f.container.end) for f in containers.values()]
        spans += [
            range(section.offset, section.file_end)
            for section in after.elf.sections
            if section.allocated and section.in_file and pure_code(section.name)
        ]
        header = after.elf.header
        table, sections = header.segment_table_offset, header.section_table_offset
        spans.append(range(64))
        spans.append(range(table, table + PHDR.size * header.segment_count))
        # of section headers the name and what says where it is; NOBITS has no place
        for index, section in enumerate(after.elf.sections[1:], 1):
            if section.in_file and index != header.name_section:
                at = sections + index * SHDR.size
                spans.append(range(at + 4, at + 32))
                spans.append(range(at + 40, at + 64))
                if pure_code(section.name):
                    spans.append(range(at + 32, at + 40))  # the size of others may be anything less
        assert before.elf.loads
        return spans


@pytest.fixture(scope="module", params=[(62, False), (62, True), (183, False)], ids=["x86", "relr", "arm"])
def bench(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(tmp_path_factory.mktemp("bench"), *request.param)


def test_the_output_itself_passes(bench: Bench) -> None:
    bench.check(bench.output)


@settings(max_examples=examples(150), deadline=None)
@given(where=st.floats(0, 1, exclude_max=True), span=st.integers(0, 10**6), bit=st.integers(0, 7))
def test_any_flipped_bit_is_found(bench: Bench, where: float, span: int, bit: int) -> None:
    chosen = bench.matters[span % len(bench.matters)]
    with pytest.raises(CheckFailedError):
        bench.check_flipped(chosen[int(where * len(chosen))], bit)


@pytest.mark.parametrize("stride", [5, pytest.param(1, marks=pytest.mark.slow)])
def test_every_byte_of_every_header_matters(bench: Bench, stride: int) -> None:
    dice = random.Random(5)
    table = int.from_bytes(bench.output[32:40], "little")
    count = int.from_bytes(bench.output[56:58], "little")
    for at in [*range(64), *range(table, table + PHDR.size * count)][::stride]:
        with pytest.raises(CheckFailedError):
            bench.check_flipped(at, dice.randrange(8))


def test_a_wrapper_that_leads_to_another_container(bench: Bench) -> None:
    segment = next(s for s in bench.linker.sections if s.name == ".nvFatBinSegment")
    with open_file(bench.stock.parent / "out" / "libtest.so") as output:
        elf = OpenLibrary.read(output).elf
    offset = elf.offset_of(segment.address)
    assert offset is not None
    image = bytearray(bench.output)
    if len(elf.relr):
        image[offset + 8 : offset + 16], image[offset + 32 : offset + 40] = (
            image[offset + 32 : offset + 40],
            image[offset + 8 : offset + 16],
        )
    else:
        first, second = (
            index for index, place in enumerate(elf.rela.places) if place in (segment.address + 8, segment.address + 32)
        )
        one, other = elf.rela.record_offset(first) + 16, elf.rela.record_offset(second) + 16
        image[one : one + 8], image[other : other + 8] = image[other : other + 8], image[one : one + 8]
    with pytest.raises(CheckFailedError):
        bench.check(bytes(image))


def test_an_image_that_should_have_gone(bench: Bench, tmp_path: Path) -> None:
    _, stock, output, _ = tailor(tmp_path, rich(bench.linker.r.machine, relr=bench.linker.r.relr), "9.0,12.0")
    (tmp_path / "stock.so").write_bytes(stock)
    bench_two = Bench.__new__(Bench)
    bench_two.stock, bench_two.changed = tmp_path / "stock.so", tmp_path / "changed.so"
    bench_two.check(output, "9.0,12.0")
    with pytest.raises(CheckFailedError, match="sm_120, which no target can use"):
        bench_two.check(output, "9.0")
    with pytest.raises(CheckFailedError, match=r"had code for 8\.0|lost sm_80|no target"):
        bench_two.check(output, "9.0,8.0,12.0")


def test_removed_code_that_is_still_there(bench: Bench) -> None:
    """What containers left is zero: code without a header could not be found by its magic."""
    with open_file(bench.stock) as stock, open_file(bench.stock.parent / "out" / "libtest.so") as output:
        before, after = OpenLibrary.read(stock), OpenLibrary.read(output)
        old, new = (
            [Span(f.address, f.address + f.container.stored_size) for f in one.code.containers if f.address is not None]
            for one in (before, after)
        )
        freed = [after.elf.offset_of(span.end - 1) for span in subtract(merge(old), merge(new))]
        places = [at for at in freed if at is not None and not bench.output[at]]
    assert places
    for at in places[:3]:
        with pytest.raises(CheckFailedError):
            bench.check_flipped(at, 3)


def test_an_image_that_was_lost(bench: Bench) -> None:
    """A container is emptied by its size field alone; everything else stays."""
    with open_file(bench.stock.parent / "out" / "libtest.so") as output:
        code = OpenLibrary.read(output).code
    last = [found for found in code.containers if found.section == ".nv_fatbin"][-1]
    image = bytearray(bench.output)
    at = last.container.offset
    image[at + 8 : at + 16] = bytes(8)
    image[at + 16 : last.container.end] = bytes(last.container.size)
    with pytest.raises(CheckFailedError, match=r"had code for 9\.0 and has none now"):
        bench.check(bytes(image))


def test_symbol_tables_may_only_go_if_asked(bench: Bench) -> None:
    with pytest.raises(CheckFailedError, match="lacks section"):
        bench.check(bench.output, stripped=False)


def test_truncated_or_grown(bench: Bench) -> None:
    for image in (bench.output[:-1], bench.output[: len(bench.output) // 2], b"not an ELF file"):
        with pytest.raises(CheckFailedError):
            bench.check(image)
    with pytest.raises(CheckFailedError, match="larger"):
        bench.check(bench.output + bytes(bench.stock.stat().st_size))


def test_a_segment_that_loads_less(bench: Bench) -> None:
    table = int.from_bytes(bench.output[32:40], "little")
    count = int.from_bytes(bench.output[56:58], "little")
    for index in range(count):
        at = table + index * PHDR.size
        row = list(PHDR.unpack_from(bench.output, at))
        if row[0] == 1:
            image = bytearray(bench.output)
            row[5] -= 8
            row[6] -= 8
            struct.pack_into("<IIQQQQQQ", image, at, *row)
            with pytest.raises(CheckFailedError):
                bench.check(bytes(image))
