"""Packed relocations: libraries of real linkers load and work, and the proof finds what is wrong with an output."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.integration.surgery.builds import Toolchain, build, run, runner, toolchain
from tests.integration.surgery.test_elflint import complaints
from tests.integration.surgery.test_survival import VARIANTS, patchelf, quietly
from tests.unit.surgery.checks import options
from tests.unit.wheels.builder import build_wheel
from torchtailor.cli import main
from torchtailor.code.binary.elf import ElfFile
from torchtailor.code.binary.elf_headers import DynamicTag, SegmentType
from torchtailor.core.errors import BadInputError, CheckFailedError
from torchtailor.surgery.files import FileSource
from torchtailor.surgery.library import tailor_library
from torchtailor.surgery.proof.relr import prove_relr
from torchtailor.surgery.relr import with_relr
from torchtailor.tailoring.wheel import tailor_wheel
from torchtailor.trees.wheels.archive import WheelArchive
from torchtailor.trees.wheels.distribution import WheelDistribution

COUNT = 6000
# pointers side by side, with gaps, at odd addresses, in a constant table and in zeroed memory's neighbourhood
POINTERS = r"""
#include <stdlib.h>
#include <string.h>
static char base[%(count)d];
void *table[] = { %(table)s };
void *const fixed[] = { %(fixed)s };
struct __attribute__((packed)) odd { char mark; void *pointer; };
struct odd odd[] = { {1, base + 1}, {2, base + 2}, {3, base + 3} };
struct { long before; void *pointer; long behind[90]; } far[40] = { [7] = {1, base + 70, {2}}, [39] = {3, base, {4}} };
__attribute__((constructor)) static void check_pointers(void) {
    for (int i = 0; i < %(count)d; i++) if (table[i] != base + i) abort();
    for (int i = 0; i < 100; i++) if (fixed[i] != base + 7 * i) abort();
    for (int i = 0; i < 3; i++) if (odd[i].pointer != base + i + 1 || odd[i].mark != i + 1) abort();
    if (far[7].pointer != base + 70 || far[39].pointer != base || far[38].pointer || far[7].behind[0] != 2) abort();
}
"""
# with pages of two mebibytes, less than that many relocations gain nothing: what follows cannot move up
LINKED = {name: flags for name, flags in VARIANTS.items() if name not in ("packed relocations", "two mebibytes")}


@pytest.fixture(scope="module", params=["x86_64", "aarch64"])
def tools(request: pytest.FixtureRequest) -> Toolchain:
    return toolchain(request.param)


@pytest.fixture(scope="module")
def program(tools: Toolchain, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return runner(tmp_path_factory.mktemp("program"), tools)


def with_pointers(folder: Path, tools: Toolchain, *flags: str, **code: int) -> Path:
    source = folder / "pointers.c"
    table = ", ".join(f"base + {index}" for index in range(COUNT))
    fixed = ", ".join(f"base + {7 * index}" for index in range(100))
    source.write_text(POINTERS % {"count": COUNT, "table": table, "fixed": fixed})
    return build(folder, tools, *flags, str(source), **code)


def relative_places(library: Path) -> set[int]:
    """The addresses of relative relocations, as binutils reads them."""
    said = quietly("readelf", "-rW", library)
    places = {int(match[1], 16) for match in re.finditer(r"^([0-9a-f]{12,16}) .*_RELATIVE", said, re.MULTILINE)}
    packed = said.partition(".relr.dyn")[2]
    return places | {int(match[1], 16) for match in re.finditer(r"^([0-9a-f]{16})\s*$", packed, re.MULTILINE)}


@pytest.mark.parametrize("variant", LINKED)
@pytest.mark.parametrize("patched_before", [False, True], ids=["as linked", "patched before"])
def test_a_packed_library_works(
    tmp_path: Path, tools: Toolchain, program: Path, variant: str, patched_before: bool
) -> None:
    stock = with_pointers(tmp_path, tools, *LINKED[variant])
    if patched_before:
        patchelf("--set-rpath", "$ORIGIN", stock)
    cut, packed = tmp_path / "cut" / stock.name, tmp_path / "packed" / stock.name
    plain = tailor_library(stock, cut, options("9.0", strip=True))
    result = tailor_library(stock, packed, options("9.0", strip=True, relr=True))
    assert result.relr > COUNT * 20
    assert result.size_after == packed.stat().st_size == plain.size_after - result.relr
    said = run(program, tools, cut)
    assert said.startswith("0 ")
    assert run(program, tools, packed) == said
    assert relative_places(packed) == relative_places(stock)
    assert "GLIBC_ABI_DT_RELR" in quietly("readelf", "-VW", packed)
    unknown = "section [] '.relr.dyn' has wrong type: expected REL, is <unknown>:"  # of elfutils before 0.190
    assert {one for one in complaints(packed) if not one.startswith(unknown)} <= complaints(stock)

    for steps in (("strip",), ("patchelf",), ("strip", "patchelf"), ("patchelf", "strip")):
        copy = tmp_path / f"{'-'.join(steps)}.so"
        shutil.copy(packed, copy)
        for step in steps:
            if step == "strip":
                quietly(tools.strip, copy)
            else:
                patchelf("--set-rpath", "$ORIGIN/" + "x" * 200, copy)
            assert run(program, tools, copy) == said, (steps, step)


@pytest.mark.parametrize("patched_before", [False, True], ids=["as linked", "patched before"])
def test_symbols_of_sections_follow_them(tmp_path: Path, tools: Toolchain, patched_before: bool) -> None:
    """Some linkers, such as that of aarch64, write one for each section, and `strip` was not asked for."""
    stock = with_pointers(tmp_path, tools)
    if patched_before:
        patchelf("--set-rpath", "$ORIGIN", stock)
    packed = tmp_path / "packed" / stock.name
    assert tailor_library(stock, packed, options("9.0", strip=False, relr=True)).relr
    places = {
        section.index: section.address
        for section in ElfFile.from_buffer(packed.read_bytes()).sections
        if section.name in (".rela.dyn", ".dynstr", ".gnu.version_r")
    }
    said = quietly("readelf", "-sW", packed)
    found = re.findall(r"^ *\d+: ([0-9a-f]{16}) +0 SECTION +LOCAL +DEFAULT +(\d+)", said, re.MULTILINE)
    wrong = {int(number): value for value, number in found if int(value, 16) != places.get(int(number), int(value, 16))}
    assert not wrong
    assert bool(found) == ("SECTION" in quietly("readelf", "-sW", stock))


def test_it_can_be_cut_again(tmp_path: Path, tools: Toolchain, program: Path) -> None:
    stock = with_pointers(tmp_path, tools)
    both, again, once = (tmp_path / name for name in ("both.so", "again.so", "once.so"))
    assert tailor_library(stock, both, options("9.0,12.0", relr=True)).relr
    assert not tailor_library(both, again, options("9.0", relr=True)).relr
    tailor_library(stock, once, options("9.0"))
    assert run(program, tools, again) == run(program, tools, once) != run(program, tools, both)


def test_a_wheel_says_which_glibc_it_needs(tmp_path: Path, tools: Toolchain) -> None:
    library = with_pointers(tmp_path, tools).read_bytes()
    wheel = build_wheel(
        tmp_path, {"x/libx.so": library}, name="x", version="1.0", tag="cp313-cp313-manylinux_2_28_x86_64"
    )
    result = tailor_wheel(wheel, tmp_path / "out", options("9.0", relr=True))
    assert result.output is not None
    assert result.output.name == "x-1.0+sm90-cp313-cp313-manylinux_2_36_x86_64.whl"
    with WheelArchive(result.output) as archive:
        distribution = WheelDistribution.of(archive)
        for member in archive.files:
            distribution.check(member)
        text = archive.read(f"{distribution.dist_info}/WHEEL").decode()
    assert re.findall("^Tag: (.*)$", text, re.MULTILINE) == ["cp313-cp313-manylinux_2_36_x86_64"]
    plain = tailor_wheel(wheel, tmp_path / "plain", options("9.0"))
    assert plain.output is not None
    assert "manylinux_2_28" in plain.output.name


def test_code_that_is_too_small_to_cut_is_no_failure(
    tmp_path: Path, tools: Toolchain, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its library is written again for the relocations alone."""
    library = with_pointers(tmp_path, tools, "-s", containers=1, size=120)
    files = {"x/libx.so": library.read_bytes()}
    wheel = build_wheel(tmp_path, files, name="x", version="1.0", tag=f"py3-none-manylinux_2_28_{tools.name}")
    assert not tailor_library(library, tmp_path / "none.so", options("9.0")).status.changed
    result = tailor_wheel(wheel, tmp_path / "out", options("9.0", relr=True))
    assert result.output is not None
    words = ["verify", str(result.output), "--against", str(wheel), "--gpu", "9.0", "--level", "static", "--json"]
    code = main(words)
    checks = {check["name"]: check for check in json.loads(capsys.readouterr().out)["checks"]}
    found = checks["GPU code: nothing foreign"]
    assert (found["outcome"], code) == ("pass", 0), checks
    assert "removing them would save nothing" in found["reason"]


def test_only_where_it_gains(tmp_path: Path, tools: Toolchain) -> None:
    stock = build(tmp_path, tools)
    target = tmp_path / "out.so"
    assert tailor_library(stock, target, options("9.0", relr=True)).relr == 0
    without_code = tmp_path / "plain.so"
    subprocess.run([tools.compiler, "-shared", "-s", "-o", without_code, "-xc", "/dev/null"], check=True)
    assert not tailor_library(without_code, tmp_path / "none.so", options("9.0", relr=True)).status.changed
    assert not (tmp_path / "none.so").exists()


@pytest.mark.parametrize("bits", [4, pytest.param(25, marks=pytest.mark.slow)])
def test_the_proof_finds_every_change(tmp_path: Path, tools: Toolchain, bits: int) -> None:
    stock, packed = with_pointers(tmp_path, tools, "-s"), tmp_path / "packed.so"
    shutil.copy(stock, packed)
    with packed.open("rb+") as file:
        assert with_relr(file.fileno(), tmp_path).saved
    with stock.open("rb") as one, packed.open("rb") as other:
        before, after = ElfFile(FileSource(one.fileno())), ElfFile(FileSource(other.fileno()))
        prove_relr(before, after)
        places = list(_places_that_matter(before, after))
    whole = packed.read_bytes()
    dice = random.Random(7)
    missed = []
    with stock.open("rb") as one, packed.open("rb+") as other:
        for what, start, size in places:
            for at in {start, start + size - 1, *(start + dice.randrange(size) for _ in range(bits))}:
                os.pwrite(other.fileno(), bytes((whole[at] ^ 1 << dice.randrange(8),)), at)
                try:
                    prove_relr(ElfFile(FileSource(one.fileno())), ElfFile(FileSource(other.fileno())))
                    missed.append((what, at - start))
                except (CheckFailedError, BadInputError):
                    pass
                finally:
                    os.pwrite(other.fileno(), whole[at : at + 1], at)
    assert not missed


def _places_that_matter(before: ElfFile, after: ElfFile) -> list[tuple[str, int, int]]:
    def table(name: str, where: DynamicTag, size: DynamicTag) -> tuple[str, int, int]:
        at = after.offset_of(after.dynamic_value(where) or 0)
        assert at is not None
        return name, at, after.dynamic_value(size) or 0

    dynamic = next(segment for segment in after.segments if segment.type == SegmentType.DYNAMIC)
    needs = next(section for section in after.sections if section.name == ".gnu.version_r")
    words = [after.offset_of(place) or 0 for place in after.relr]
    text, data = (after.section(name) for name in (".text", ".data"))
    assert text and data and words
    return [
        table("bitmap", DynamicTag.RELR, DynamicTag.RELRSZ),
        table("relocations", DynamicTag.RELA, DynamicTag.RELASZ),
        table("strings", DynamicTag.STRTAB, DynamicTag.STRSZ),
        ("dynamic section", dynamic.offset, len(after.dynamic) * 16),
        ("versions", needs.offset, needs.size),
        ("first words", words[0], 800),
        ("last word", words[-1], 8),
        ("code", text.offset, text.size),
        ("program headers", after.header.segment_table_offset, len(after.segments) * 56),
    ]
