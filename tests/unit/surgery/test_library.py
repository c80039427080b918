"""One library from file to file: what ends how, and that nothing is left half done."""

from __future__ import annotations

import errno
import hashlib
import os
import random
import struct
from contextlib import suppress
from pathlib import Path

import pytest

from tests.unit.gpucode.builders import FIXTURES, Entry, Place, container, cubin, elf
from tests.unit.surgery.checks import options
from tests.unit.surgery.libraries import Recipe, library
from tests.unit.surgery.test_tailor import rich
from torchtailor.code.binary.elf import ElfFile
from torchtailor.core.errors import BadInputError, CheckFailedError, EnvironmentProblem, TorchtailorError
from torchtailor.surgery import write as shrink
from torchtailor.surgery.layout import UnsupportedLayoutError
from torchtailor.surgery.library import tailor_library
from torchtailor.surgery.result import LibraryStatus

DICE = random.Random(11)
BIG = DICE.randbytes(30_000)


def write(folder: Path, recipe: Recipe, name: str = "libtest.so") -> Path:
    path = folder / name
    path.write_bytes(library(recipe))
    return path


def test_what_is_reported(tmp_path: Path) -> None:
    source = write(tmp_path, rich())
    source.chmod(0o751)
    result = tailor_library(source, tmp_path / "deep" / "er" / "out.so", options("9.0"))
    output = tmp_path / "deep" / "er" / "out.so"
    assert output.stat().st_mode & 0o777 == 0o751
    assert result.size_after == output.stat().st_size
    assert result.saved == source.stat().st_size - output.stat().st_size
    assert result.sha256_in == hashlib.sha256(source.read_bytes()).hexdigest()
    assert result.sha256_out == hashlib.sha256(output.read_bytes()).hexdigest()
    assert set(result.kept) == {"sm_90"}
    assert set(result.dropped) == {"sm_80", "sm_90", "sm_100", "sm_120"}  # sm_90: from before the device link
    assert result.dropped["sm_90"].images == 1
    containers = 4 + 1 + 1 + 3 + 22 + 1
    assert result.kept["sm_90"].stored + 16 * containers == result.gpu_after


def test_code_of_a_program_becomes_zeros(tmp_path: Path) -> None:
    """Its program headers cannot move, so the file stays as long; wheels and disks store no zeros."""
    entries = tuple(Entry(BIG, sm=sm) for sm in (80, 90))
    source = write(tmp_path, Recipe(wrapped=[entries] * 4, program=True), "tool")
    result = tailor_library(source, tmp_path / "out", options("9.0", strip=False))
    assert (result.status, result.saved) == (LibraryStatus.CUT, 0)
    assert result.dropped["sm_80"].images == 4
    assert (tmp_path / "out").read_bytes().count(BIG) == 4
    assert source.read_bytes().count(BIG) == 8


def test_dynamic_symbols_follow_the_sections_that_are_split(tmp_path: Path) -> None:
    code = tuple(Entry(BIG, sm=sm) for sm in (80, 90, 100, 120))
    source = write(tmp_path, Recipe(recorded=[b"\1" * 504, code, b"\2" * 800], named=True))
    result = tailor_library(source, tmp_path / "out.so", options("9.0"))
    assert result.status is LibraryStatus.CUT
    for path in (source, tmp_path / "out.so"):
        elf = ElfFile.from_buffer(path.read_bytes())
        symbols = elf.section(".dynsym")
        assert symbols is not None
        rows = list(struct.iter_unpack("<IBBHQQ", elf.content(symbols)))
        assert [row[1] for row in rows] == [0, 0x12, 0x11, 0x11]
        assert (rows[2][3] == rows[3][3]) is (path == source)
        for _, _, _, index, value, size in rows[2:]:
            section = elf.sections[index]
            assert section.name == ".cask_resource"
            assert section.address <= value
            assert value + size <= section.memory_end


def test_dry_run_is_exact(tmp_path: Path) -> None:
    source = write(tmp_path, rich())
    dry = tailor_library(source, None, options("9.0"))
    real = tailor_library(source, tmp_path / "out.so", options("9.0"))
    assert (dry.size_after, dry.kept, dry.floor) == (real.size_after, real.kept, real.floor)
    assert dry.sha256_out == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == ["libtest.so", "out.so"]


def test_in_place(tmp_path: Path) -> None:
    source = write(tmp_path, rich())
    expected = tailor_library(source, tmp_path / "out.so", options("9.0")).sha256_out
    result = tailor_library(source, source, options("9.0"), durable=True)
    assert result.sha256_out == hashlib.sha256(source.read_bytes()).hexdigest() == expected


def test_same_input_same_bytes(tmp_path: Path) -> None:
    source = write(tmp_path, rich())
    one = tailor_library(source, tmp_path / "one.so", options("9.0"))
    other = tailor_library(source, tmp_path / "two.so", options("9.0"))
    assert one.sha256_out == other.sha256_out


def test_nothing_for_the_target(tmp_path: Path) -> None:
    source = write(tmp_path, Recipe(wrapped=[(Entry(BIG, sm=80), Entry(BIG, sm=120))]))
    result = tailor_library(source, tmp_path / "out.so", options("9.0"))
    assert result.status is LibraryStatus.NOTHING_FOR_TARGET
    assert result.warnings == ("has nothing for 9.0",)
    assert not (tmp_path / "out.so").exists()


def test_a_library_without_a_kernel_has_no_warning(tmp_path: Path) -> None:
    """nvcc leaves an empty image where a source has no device code: there was nothing for any GPU."""
    source = write(tmp_path, Recipe(wrapped=[(Entry(cubin("80").replace(b".text.", b".data."), sm=80),)]))
    result = tailor_library(source, tmp_path / "out.so", options("9.0"))
    assert result.status is LibraryStatus.NOTHING_FOR_TARGET
    assert result.warnings == ()


def test_nothing_for_one_of_two_targets(tmp_path: Path) -> None:
    source = write(tmp_path, Recipe(wrapped=[(Entry(BIG, sm=80), Entry(BIG, sm=120))]))
    result = tailor_library(source, tmp_path / "out.so", options("9.0,8.0"))
    assert result.status is LibraryStatus.CUT
    assert result.warnings == ("has nothing for 9.0",)


def test_no_gpu_code(tmp_path: Path) -> None:
    with_symbols = write(tmp_path, Recipe(), "libone.so")
    result = tailor_library(with_symbols, tmp_path / "out.so", options("9.0"))
    assert result.status is LibraryStatus.STRIPPED
    assert ".symtab" in result.stripped
    without = write(tmp_path, Recipe(symtab=False), "libtwo.so")
    assert tailor_library(without, tmp_path / "no.so", options("9.0")).status is LibraryStatus.NO_GPU_CODE
    assert (
        tailor_library(with_symbols, tmp_path / "no.so", options("9.0", strip=False)).status
        is LibraryStatus.NO_GPU_CODE
    )
    assert not (tmp_path / "no.so").exists()


def test_nvidias_own_by_soname_or_name(tmp_path: Path) -> None:
    images = (Entry(BIG, sm=80), Entry(BIG, sm=86), Entry(BIG, sm=90))
    cubins = Recipe(wrapped=[images])
    own = tailor_library(write(tmp_path, cubins, "libcublas.so.12"), tmp_path / "a.so", options("8.6"))
    assert set(own.kept) == {"sm_80", "sm_86"}


@pytest.mark.parametrize("name", sorted(path.name for path in FIXTURES.glob("*.so")))
@pytest.mark.parametrize("target", ["8.0", "9.0", "12.0"])
def test_what_nvcc_made(tmp_path: Path, name: str, target: str) -> None:
    result = tailor_library(FIXTURES / name, tmp_path / name, options(target))
    assert result.size_after <= result.size_before
    if result.status.changed:
        again = tailor_library(tmp_path / name, tmp_path / "again.so", options(target))
        assert again.kept in ({}, result.kept)
        assert again.dropped == {}


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"", BadInputError),
        (b"\x7fELF", BadInputError),
        (b"hello, world\n" * 20, BadInputError),
        (b"\x7fELF\x01\x01\x01" + bytes(200), BadInputError),
    ],
)
def test_bad_input(tmp_path: Path, content: bytes, error: type[TorchtailorError]) -> None:
    source = tmp_path / "bad.so"
    source.write_bytes(content)
    with pytest.raises(error, match=r"bad\.so"):
        tailor_library(source, tmp_path / "out.so", options("9.0"))
    assert [path.name for path in tmp_path.iterdir()] == ["bad.so"]


def test_missing_input_and_folder_input(tmp_path: Path) -> None:
    for path in (tmp_path / "no.so", tmp_path):
        with pytest.raises(EnvironmentProblem):
            tailor_library(path, tmp_path / "out.so", options("9.0"))


def test_misaligned_segments_are_refused(tmp_path: Path) -> None:
    image = bytearray(library(rich()))
    image[64 + 48 : 64 + 56] = (16).to_bytes(8, "little")
    (tmp_path / "odd.so").write_bytes(image)
    with pytest.raises(UnsupportedLayoutError, match="aligned"):
        tailor_library(tmp_path / "odd.so", tmp_path / "out.so", options("9.0"))


def test_data_behind_the_last_section_is_not_lost(tmp_path: Path) -> None:
    source = tmp_path / "signed.so"
    source.write_bytes(library(rich()) + bytes(5000) + b"signature")
    with pytest.raises(BadInputError, match="follows its last section") as caught:
        tailor_library(source, source, options("9.0"))
    assert "before that data is added" in caught.value.hint
    assert source.read_bytes().endswith(b"signature")


def test_zeros_behind_the_last_section_are_nothing(tmp_path: Path) -> None:
    source = tmp_path / "padded.so"
    source.write_bytes(library(rich()) + bytes(5000))
    assert tailor_library(source, tmp_path / "out.so", options("9.0")).status is LibraryStatus.CUT
    source.write_bytes(library(Recipe(wrapped=[(Entry(BIG, sm=90),)])) + bytes(5000))
    nothing = tailor_library(source, source, options("9.0", strip=False))
    assert nothing.status is LibraryStatus.UNCHANGED
    assert source.read_bytes().endswith(bytes(5000))


def test_no_section_headers(tmp_path: Path) -> None:
    image = bytearray(library(rich()))
    image[40:48] = bytes(8)
    image[60:64] = bytes(4)
    (tmp_path / "bare.so").write_bytes(image)
    with pytest.raises(BadInputError, match="section headers"):
        tailor_library(tmp_path / "bare.so", tmp_path / "out.so", options("9.0"))


def test_full_disk_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write(tmp_path, rich())

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("os.copy_file_range", full)
    with pytest.raises(EnvironmentProblem, match="No space left"):
        tailor_library(source, tmp_path / "out.so", options("9.0"))
    assert [path.name for path in tmp_path.iterdir()] == ["libtest.so"]


def test_without_copy_file_range(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write(tmp_path, rich())
    expected = tailor_library(source, tmp_path / "one.so", options("9.0")).sha256_out

    def none(*_: object) -> int:
        raise OSError(errno.EXDEV, "other file system")

    monkeypatch.setattr("os.copy_file_range", none)
    assert tailor_library(source, tmp_path / "two.so", options("9.0")).sha256_out == expected


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_read_only_folder(tmp_path: Path) -> None:
    source = write(tmp_path, rich())
    (tmp_path / "locked").mkdir(mode=0o500)
    with pytest.raises(EnvironmentProblem):
        tailor_library(source, tmp_path / "locked" / "out.so", options("9.0"))


def test_a_failed_proof_means_no_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write(tmp_path, rich())
    real = shrink.patches

    def forgetful(surgery: shrink.Surgery) -> list[tuple[int, bytes]]:
        return list(real(surgery))[:-1]

    monkeypatch.setattr(shrink, "patches", forgetful)
    with pytest.raises(CheckFailedError):
        tailor_library(source, tmp_path / "out.so", options("9.0"))
    assert [path.name for path in tmp_path.iterdir()] == ["libtest.so"]


@pytest.mark.parametrize(("kept", "status"), [(True, LibraryStatus.CUT), (False, None)])
def test_the_number_of_the_names_may_stand_in_section_zero(
    tmp_path: Path, kept: bool, status: LibraryStatus | None
) -> None:
    """As in files of more than 65,279 sections; `e_shstrndx` is 0xFFFF then."""
    source = write(tmp_path, rich())
    image = bytearray(source.read_bytes())
    (table,), (names,) = struct.unpack_from("<Q", image, 40), struct.unpack_from("<H", image, 62)
    struct.pack_into("<H", image, 62, 0xFFFF)
    struct.pack_into("<I", image, table + 40, names if kept else 0)
    source.write_bytes(image)
    if status:
        assert tailor_library(source, tmp_path / "out.so", options("9.0")).status is status
        assert ElfFile.from_buffer((tmp_path / "out.so").read_bytes()).section(".nv_fatbin")
    else:
        with suppress(TorchtailorError):
            tailor_library(source, tmp_path / "out.so", options("9.0"))


def test_foreign_code_that_cannot_move_becomes_zeros(tmp_path: Path) -> None:
    """cuFFT on aarch64: thousands of small containers in `.data`, which host code reaches in a way we do not know."""
    one = container(Entry(b"\x11" * 5000, sm=80), Entry(b"\x22" * 3000, sm=90))
    source = tmp_path / "libx.so"
    source.write_bytes(elf(Place(".data", b"".join(one + b"own data" * 3 for _ in range(300))), machine=183))
    result = tailor_library(source, tmp_path / "out.so", options("9.0"))
    output = (tmp_path / "out.so").read_bytes()
    assert (result.status, result.saved, result.gpu_after) == (LibraryStatus.CUT, 0, 300 * (16 + 64 + 3000))
    assert result.zeroed == 300 * (64 + 5000)
    assert b"\x11" * 100 not in output and output.count(b"\x22" * 3000) == output.count(b"own data" * 3) == 300
    again = tailor_library(tmp_path / "out.so", tmp_path / "again.so", options("9.0"))
    assert (again.status, again.zeroed) == (LibraryStatus.UNCHANGED, 0)


def test_a_few_zeros_are_not_worth_a_new_file(tmp_path: Path) -> None:
    source = tmp_path / "libx.so"
    code = container(Entry(b"\x11" * 5000, sm=80), Entry(b"\x22" * 3000, sm=90))
    source.write_bytes(elf(Place(".data", code * 100)))
    assert tailor_library(source, tmp_path / "out.so", options("9.0")).status is LibraryStatus.UNCHANGED
