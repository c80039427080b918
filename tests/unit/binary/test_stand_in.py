"""Stand-ins are libraries that readers, tools and the dynamic linker take: every name is found, under its version."""

from __future__ import annotations

import platform
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchtailor.code.binary.elf import ElfFile
from torchtailor.code.binary.elf_headers import (
    DynamicTag,
    ElfMachine,
    SectionType,
    SegmentType,
)
from torchtailor.code.binary.stand_in import ERROR, StandInSymbol, gnu_hash, sysv_hash, write_stand_in
from torchtailor.code.binary.symbols import dynamic_symbols, dynamic_text, needed_libraries

SENTENCE = "torchtailor: there is no GPU here."
SYMBOLS = (
    StandInSymbol("cublasCreate_v2", "libcublas.so.13"),
    StandInSymbol("cublasDestroy_v2", "libcublas.so.13"),
    StandInSymbol("cublasGetStatusString", "libcublas.so.13"),
    StandInSymbol("cublasOld", "V1"),
    StandInSymbol("cublasOld", "V2"),
    StandInSymbol("ncclPlain"),
    StandInSymbol("cublasTable", is_data=True),
)
names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1)
symbols = st.builds(StandInSymbol, names, st.just("") | names, st.booleans())


def found(data: bytes, name: str, version: str = "") -> int | None:
    """The row that the dynamic linker finds for a name, as glibc looks it up; by its hash table alone."""
    elf = ElfFile.from_buffer(data)
    table = bytes(elf.content(next(one for one in elf.sections if one.type == SectionType.GNU_HASH)))
    buckets, first, words, shift = struct.unpack_from("<4I", table)
    value = gnu_hash(name)
    (word,) = struct.unpack_from("<Q", table, 16 + value // 64 % words * 8)
    if not word >> value % 64 & word >> (value >> shift) % 64 & 1:
        return None
    at = 16 + words * 8
    row: int = struct.unpack_from("<I", table, at + value % buckets * 4)[0]
    rows = list(dynamic_symbols(elf))
    while row:
        (chained,) = struct.unpack_from("<I", table, at + buckets * 4 + (row - first) * 4)
        if chained | 1 == value | 1 and rows[row].name == name and version_of(elf, row) in (version, ""):
            return row
        row = 0 if chained & 1 else row + 1
    return None


def version_of(elf: ElfFile, row: int) -> str:
    section = next((one for one in elf.sections if one.type == SectionType.VERSYM), None)
    if section is None:
        return ""
    (number,) = struct.unpack_from("<H", bytes(elf.content(section)), row * 2)
    return versions(elf)[number & 0x7FFF] if number & 0x7FFF > 1 else ""


def versions(elf: ElfFile) -> dict[int, str]:
    section = next(one for one in elf.sections if one.type == SectionType.VERDEF)
    data, texts = bytes(elf.content(section)), bytes(elf.content(elf.sections[section.link]))
    defined, at = {}, 0
    for _ in range(section.info):
        _, _, number, _, hashed, aux, after = struct.unpack_from("<HHHHIII", data, at)
        (name,) = struct.unpack_from("<I", data, at + aux)
        defined[number] = texts[name : texts.index(b"\0", name)].decode()
        assert hashed == sysv_hash(defined[number])
        at += after
    return defined


@pytest.mark.parametrize("machine", ElfMachine)
@given(wanted=st.sets(symbols, max_size=40), absent=names)
def test_every_name_is_found_under_its_version(machine: ElfMachine, wanted: set[StandInSymbol], absent: str) -> None:
    wanted = set({(one.name, one.version): one for one in wanted}.values())
    data = write_stand_in(machine, "libx.so.1", wanted, SENTENCE)
    elf = ElfFile.from_buffer(data)
    assert elf.machine is machine
    assert dynamic_text(elf, DynamicTag.SONAME) == "libx.so.1"
    assert needed_libraries(elf) == ()
    rows = list(dynamic_symbols(elf))
    assert len(rows) == len(wanted) + 1
    for symbol in wanted:
        row = found(data, symbol.name, symbol.version)
        assert row is not None
        assert rows[row].is_data is symbol.is_data
        assert not rows[row].undefined
    if absent not in {one.name for one in wanted}:
        assert found(data, absent) is None


@pytest.mark.parametrize("machine", ElfMachine)
def test_segments(machine: ElfMachine) -> None:
    """Nothing is writable and executable, the stack neither; segments share no page of the largest size."""
    elf = ElfFile.from_buffer(write_stand_in(machine, "libx.so.1", SYMBOLS, SENTENCE))
    page = 0x10000 if machine is ElfMachine.AARCH64 else 0x1000
    assert [load.flags for load in elf.loads] == [4, 5, 6]
    assert all(load.alignment == page and load.address % page == load.offset % page for load in elf.loads)
    pages = [{load.address // page, (load.memory_end - 1) // page} for load in elf.loads]
    assert not pages[0] & pages[1]
    assert not pages[1] & pages[2]
    (stack,) = [one for one in elf.segments if one.type == SegmentType.GNU_STACK]
    assert stack.flags == 6


@pytest.mark.parametrize("machine", ElfMachine)
def test_tools_read_it(machine: ElfMachine, tmp_path: Path) -> None:
    if not shutil.which("readelf") or not shutil.which("nm"):
        pytest.skip("readelf and nm (binutils) are not installed")
    library = tmp_path / "libcublas.so.13"
    library.write_bytes(write_stand_in(machine, library.name, SYMBOLS, SENTENCE))
    read = subprocess.run(["readelf", "-aW", library], capture_output=True, text=True, check=True)
    assert read.stderr == ""
    assert "Library soname: [libcublas.so.13]" in read.stdout
    listed = subprocess.run(["nm", "-D", library], capture_output=True, text=True, check=True).stdout.split("\n")
    assert {line.split(maxsplit=1)[1] for line in listed if line} == {
        "T cublasCreate_v2@@libcublas.so.13",
        "T cublasDestroy_v2@@libcublas.so.13",
        "T cublasGetStatusString@@libcublas.so.13",
        "T cublasOld@V1",
        "T cublasOld@@V2",
        "T ncclPlain",
        "B cublasTable",
    }


CALLS = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
assert library.cublasCreate_v2(1, 2, 3) == library.ncclPlain() == library.cublasOld() == int(sys.argv[2])
library.cublasGetStatusString.restype = ctypes.c_char_p
print(library.cublasGetStatusString().decode(), end="")
table = (ctypes.c_char * 64).in_dll(library, "cublasTable")
assert bytes(table) == bytes(64)
table[63] = b"x"
"""


@pytest.mark.parametrize("tool", ["", "strip", "patchelf --set-rpath /opt/a/very/long/path"])
def test_calls(tool: str, tmp_path: Path) -> None:
    """It is loaded and called here: an error each time, the sentence once; also after others have written it anew."""
    library = tmp_path / "libcublas.so.13"
    machine = ElfMachine[platform.machine().upper()]
    library.write_bytes(write_stand_in(machine, library.name, SYMBOLS, SENTENCE))
    if tool:
        if not shutil.which(tool.split(maxsplit=1)[0]):
            pytest.skip(f"{tool.split(maxsplit=1)[0]} is not installed")
        subprocess.run([*tool.split(), library], check=True)
    done = subprocess.run(
        [sys.executable, "-c", CALLS, library, str(ERROR)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{SENTENCE}\n", f"{SENTENCE}\n")


PROGRAM = """
#include <dlfcn.h>
#include <stdio.h>
int main(int argc, char **argv) {
    void *library = dlopen(argv[1], RTLD_NOW);
    if (!library) return puts(dlerror()), 1;
    long (*create)(int) = (long (*)(int))dlvsym(library, "cublasCreate_v2", "libcublas.so.13");
    const char *(*text)(int) = (const char *(*)(int))dlsym(library, "cublasGetStatusString");
    if (!create || !text || create(1) != 1 || create(2) != 1) return 2;
    return printf("%s", text(1)) < 0;
}
"""


@pytest.mark.parametrize("machine", ElfMachine)
def test_calls_on_another_processor(machine: ElfMachine, tmp_path: Path) -> None:
    """The same in C, under QEMU where it is another processor than this."""
    compiler, qemu = f"{machine.arch}-linux-gnu-gcc", f"qemu-{machine.arch}"
    own = platform.machine() == machine.arch
    missing = [tool for tool in ([compiler] if own else [compiler, qemu]) if not shutil.which(tool)]
    if missing:
        pytest.skip(f"{' and '.join(missing)} not installed")
    library = tmp_path / "libcublas.so.13"
    library.write_bytes(write_stand_in(machine, library.name, SYMBOLS, SENTENCE))
    (tmp_path / "main.c").write_text(f"#define _GNU_SOURCE\n{PROGRAM}")
    subprocess.run([compiler, "-o", tmp_path / "main", tmp_path / "main.c", "-ldl"], check=True)
    start = [] if own else [qemu, "-L", f"/usr/{machine.arch}-linux-gnu"]
    done = subprocess.run([*start, tmp_path / "main", library], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{SENTENCE}\n", f"{SENTENCE}\n")
