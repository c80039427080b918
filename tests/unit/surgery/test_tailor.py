"""Libraries of every kind, tailored: what is reached through pointers is what it was, and all else is the same."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.unit.gpucode.builders import ARCH, Entry, cubin
from tests.unit.surgery.checks import EMPTY, bare_reached, containers_reached, host_bytes, options, tailor
from tests.unit.surgery.libraries import Linker, Recipe, byte_at, memory
from tests.unit.surgery.recipes import CUBIN, LTOIR, PTX, entry, random_recipe
from torchtailor.code.gpucode.policy import Policy
from torchtailor.code.gpucode.scan import CodeContainer, Reference
from torchtailor.core.errors import CheckFailedError
from torchtailor.surgery.layout import Span
from torchtailor.surgery.library import tailor_library
from torchtailor.surgery.plan import ContainerPlan
from torchtailor.surgery.result import LibraryStatus

DICE = random.Random(7)


def kept(target: int, entries: list[tuple[int, int, bytes]]) -> list[tuple[int, int, bytes]]:
    """What plain nvcc code needs for a desktop target without minors: the exact cubins, else the newest PTX."""
    flags = [int.from_bytes(entry[2][40:48], "little") for entry in entries]
    exact = [e for e, f in zip(entries, flags, strict=True) if e[0] == CUBIN and e[1] == target and not f & ARCH]
    special = [e for e, f in zip(entries, flags, strict=True) if e[0] == CUBIN and e[1] == target and f & ARCH]
    chosen = special + exact if special else exact  # the spare one holds kernels whose names cannot be read
    if not chosen:
        newest = max((e[1] for e in entries if e[0] == PTX and e[1] <= target), default=None)
        chosen = [e for e in entries if e[0] == PTX and e[1] == newest]
    chosen += [e for e in entries if e[0] == LTOIR and e[1] <= target]
    return [e for e in entries if e in chosen]


def kept_of_object(target: int, entries: list[tuple[int, int, bytes]]) -> list[tuple[int, int, bytes]]:
    """What the driver may link: cubins, and the newest PTX beside them; never LTO-IR."""
    by_kind = ([e for e in entries if e[0] == kind] for kind in (CUBIN, PTX))
    chosen = [e for some in by_kind for e in kept(target, some)]
    return [e for e in entries if e in chosen]


def for_90(stored: bytes) -> bool:
    """Whether a bare cubin, raw or a frame, is for 9.0."""
    raw = zstandard.ZstdDecompressor().decompress(stored) if stored[0] == 0x28 else stored
    return raw[8] == 7 and raw[48] == 90


@settings(max_examples=examples(60), deadline=None)
@given(seed=st.integers(0, 2**32), strip=st.booleans())
def test_any_library(tmp_path_factory: pytest.TempPathFactory, seed: int, strip: bool) -> None:
    recipe = random_recipe(seed)
    linker, stock, output, result = tailor(tmp_path_factory.mktemp("any"), recipe, strip=strip)
    before = containers_reached(linker, stock)
    after = containers_reached(linker, output)
    if not result.status.changed:
        assert result.status in (LibraryStatus.NOTHING_FOR_TARGET, LibraryStatus.UNCHANGED)
        return
    relocatable = set(range(len(recipe.wrapped), len(recipe.wrapped) + len(recipe.relocatable)))
    jit_link = any(all((e.kind, e.sm) != (CUBIN, 90) for e in linked) for linked in recipe.linked)
    for index, (old, new) in enumerate(zip(before, after, strict=True)):
        if recipe.linked and index in relocatable:
            assert new == (kept_of_object(90, old) if jit_link else [])
        else:
            assert new == kept(90, old)
    for number, stored in bare_reached(linker, output):
        own = recipe.bare[number]
        assert stored == (own if recipe.bare_by == "nothing" or for_90(own) else EMPTY)
    assert host_bytes(linker, stock) == host_bytes(linker, output)
    assert len(output) == result.size_after <= len(stock) == result.size_before  # what is pinned stays as zeros
    assert len(output) < len(stock) or recipe.hidden or result.zeroed  # what cannot move becomes zeros
    if recipe.bare_by != "records" or recipe.bare_in != ".rodata":  # those leave .rodata, and all of it is looked at
        assert_mapped(linker, stock, output)
    assert result.floor <= result.size_after


def rich(machine: int = 62, **options: object) -> Recipe:
    """A library with something of everything and room for holes."""
    size = 17_000 if machine == 62 else 90_000
    alignment = 0x1000 if machine == 62 else 0x10000

    def all_of(*sms: int) -> tuple[Entry, ...]:
        return tuple(entry(DICE, sm, size=size) for sm in sms)

    recipe = Recipe(
        wrapped=[all_of(80, 90, 120) for _ in range(4)],
        linked=[all_of(80, 90)],
        relocatable=[all_of(80, 90)],
        recorded=[b"\1" * 504, all_of(100), all_of(120), b"\2" * 800, all_of(80, 90)],
        immediate=[all_of(80, 90, 120) for _ in range(22)] if machine == 62 else [],
        hidden=[all_of(90, 80)],
        machine=machine,
        alignment=alignment,
    )
    for name, value in options.items():
        setattr(recipe, name, value)
    return recipe


def assert_mapped(linker: Linker, stock: bytes, output: bytes) -> None:
    """What code reaches by itself, with a length of its own, it can still read: here all but wrappers and records."""
    old, new = memory(stock), memory(output)
    rodata = next(section for section in linker.sections if section.name == ".rodata")
    byte_at(new, rodata.address, rodata.size)
    text = next(section for section in linker.sections if section.name == ".text")
    got = next(section for section in linker.sections if section.name == ".got.plt").address
    for at, _ in linker.immediates:
        distances = [struct.unpack("<q", byte_at(ranges, text.address + at, 8))[0] for ranges in (old, new)]
        (size,) = struct.unpack("<Q", byte_at(old, got + distances[0] + 8, 8))
        byte_at(new, got + distances[1], 16 + size)


def test_a_pinned_container_is_mapped_at_its_old_length(tmp_path: Path) -> None:
    """The `sizeof` of an embedded fatbin is in the code that copies it; only the disk gets the space back."""
    entries = tuple(entry(DICE, sm, size=100_000) for sm in (80, 90, 120))
    linker, stock, output, result = tailor(tmp_path, Recipe(hidden=[entries, entries], symtab=False))
    assert result.status is LibraryStatus.CUT
    assert set(result.dropped) == {"sm_80", "sm_120"}
    assert_mapped(linker, stock, output)
    assert output.count(bytes(150_000)) == 2
    again = tailor_library(tmp_path / "out" / "libtest.so", tmp_path / "again.so", options("9.0"))
    assert again.status is LibraryStatus.UNCHANGED


def test_the_proof_finds_what_is_no_longer_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def short(plan: ContainerPlan) -> Span:
        return Span(plan.address or 0, (plan.address or 0) + plan.size)

    monkeypatch.setattr(ContainerPlan, "reach", property(short))
    with pytest.raises(CheckFailedError, match="no longer maps"):
        tailor(tmp_path, rich(immediate=[], hidden=[tuple(entry(DICE, sm, size=90_000) for sm in (90, 80))]))
    with pytest.raises(CheckFailedError, match="no longer maps"):
        tailor(tmp_path, rich(hidden=[]))


@pytest.mark.parametrize("machine", [62, 183])
@pytest.mark.parametrize("relr", [False, True])
def test_the_file_really_shrinks(tmp_path: Path, machine: int, relr: bool) -> None:
    _, stock, output, result = tailor(tmp_path, rich(machine, relr=relr))
    page = 0x1000 if machine == 62 else 0x10000
    assert result.status is LibraryStatus.CUT
    assert len(output) < result.floor + 8 * page < len(stock)  # a page a hole at most stays behind


def test_two_mebibyte_text_keeps_its_alignment(tmp_path: Path) -> None:
    _, stock, output, _ = tailor(tmp_path, rich(183, text_alignment=0x200000))
    assert len(output) < len(stock)
    aligned = [row for row in program_headers(output) if row[7] == 0x200000]
    assert [(row[2] - row[3]) % 0x200000 for row in aligned] == [0]
    assert aligned[0][1] & 1


def program_headers(image: bytes) -> list[tuple[int, ...]]:
    (phoff,), (phnum,) = struct.unpack_from("<Q", image, 32), struct.unpack_from("<H", image, 56)
    return [struct.unpack_from("<IIQQQQQQ", image, phoff + 56 * i) for i in range(phnum)]


@pytest.mark.parametrize("slack", [b"", b"stay" * 200])
def test_table_gets_a_segment_of_its_own(tmp_path: Path, slack: bytes) -> None:
    _, _, output, _ = tailor(tmp_path, rich(phdr_slack=slack, phdr_segment=True))
    table = int.from_bytes(output[32:40], "little")
    assert table != 64
    loads = [row for row in program_headers(output) if row[0] == 1]
    (own,) = [row for row in loads if row[2] == table]
    (phdr,) = [row for row in program_headers(output) if row[0] == 6]
    assert (phdr[3], phdr[5]) == (own[3], 56 * len(program_headers(output)))
    assert b"program headers\0" in output[table : table + own[5]]
    assert slack in output


@pytest.mark.parametrize("slack", [b"Z" * 900, bytes(900)])
def test_table_grows_into_filling(tmp_path: Path, slack: bytes) -> None:
    _, _, output, _ = tailor(tmp_path, rich(phdr_slack=slack))
    assert int.from_bytes(output[32:40], "little") == 64


@pytest.mark.parametrize("slack", [b"", b"Z" * 900])
def test_the_table_of_a_program_never_moves(tmp_path: Path, slack: bytes) -> None:
    _, stock, output, _ = tailor(tmp_path, rich(program=True, phdr_slack=slack, phdr_segment=True))
    assert int.from_bytes(output[32:40], "little") == 64
    assert (len(output) < len(stock) / 2) is bool(slack)  # where it cannot grow there are no holes


def test_unstripped_keeps_every_section(tmp_path: Path) -> None:
    _, _, output, result = tailor(tmp_path, rich(), strip=False)
    assert result.stripped == ()
    assert b".symtab\0" in output
    _, _, output, result = tailor(tmp_path, rich(), strip=True)
    assert set(result.stripped) == {".symtab", ".strtab", ".debug_info"}


def test_two_targets_keep_what_each_needs(tmp_path: Path) -> None:
    linker, _, output, result = tailor(tmp_path, rich(), "8.0,12.0")
    assert set(result.kept) == {"sm_80", "sm_120"}
    assert [sm for _, sm, _ in containers_reached(linker, output)[0]] == [80, 120]


def test_tailoring_again_uses_the_spare_headers(tmp_path: Path) -> None:
    _, _, output, _ = tailor(tmp_path, rich(), "9.0,12.0")
    tailor_library(tmp_path / "out" / "libtest.so", tmp_path / "again.so", options("9.0"))
    again = (tmp_path / "again.so").read_bytes()
    assert len(again) < len(output)
    assert again.count(b"program headers\0") == output.count(b"program headers\0") == 1


def test_tailoring_again_splits_what_was_split(tmp_path: Path) -> None:
    """The first cut leaves several sections of one name, and the second cuts a piece off a later one."""

    def code(arch: str, size: int) -> Entry:
        return Entry(cubin(arch, size), sm=int(arch))

    first = (code("80", 24_000), code("120", 60_000))
    second = (code("80", 90_000), code("90", 8_000))
    recipe = Recipe(recorded=[first, b"O" * 5000, second, b"P" * 5000])
    linker, _, output, _ = tailor(tmp_path, recipe, "8.0;9.0")
    again = tailor_library(tmp_path / "out" / "libtest.so", tmp_path / "again.so", options("9.0"))
    assert again.size_after < len(output)
    reached = containers_reached(linker, (tmp_path / "again.so").read_bytes())
    assert [sm for entries in reached for _, sm, _ in entries] == [90]


def test_tailoring_twice_changes_nothing(tmp_path: Path) -> None:
    tailor(tmp_path, rich())
    first = tmp_path / "out" / "libtest.so"
    again = tailor_library(first, tmp_path / "again.so", options("9.0"))
    assert again.status is LibraryStatus.UNCHANGED
    assert not (tmp_path / "again.so").exists()


def rdc(*objects: tuple[int, int], linked: tuple[int, ...] = (80,)) -> Recipe:
    """A library of relocatable device code: two objects of (kind, SM) and the cubins of their device link."""
    of_objects = tuple(entry(DICE, sm, kind, size=9000) for kind, sm in objects)
    link = tuple(entry(DICE, sm, size=9000) for sm in linked)
    return Recipe(linked=[link], relocatable=[of_objects, of_objects])


@pytest.mark.parametrize(
    ("targets", "objects", "expected"),
    [
        ("9.0", [(CUBIN, 80), (PTX, 80)], "compute_80"),  # seen on an H200: without it error 500
        ("9.0", [(CUBIN, 80), (PTX, 75), (PTX, 80), (PTX, 120)], "compute_80"),
        ("9.0", [(CUBIN, 80), (CUBIN, 90)], "sm_90"),  # seen on an H200: relocatable cubins are linked too
        ("9.0", [(CUBIN, 80), (CUBIN, 90), (PTX, 80)], "compute_80 sm_90"),  # from either
        ("8.0", [(CUBIN, 80), (PTX, 80)], "sm_80"),
        ("8.6", [(CUBIN, 80), (PTX, 80)], "sm_80"),
        ("8.0,9.0", [(CUBIN, 80), (PTX, 80)], "compute_80 sm_80"),
    ],
)
def test_a_device_link(tmp_path: Path, targets: str, objects: list[tuple[int, int]], expected: str) -> None:
    _, _, _, result = tailor(tmp_path, rdc(*objects), targets)
    assert result.status is LibraryStatus.CUT
    assert " ".join(sorted(result.kept)) == expected
    assert result.warnings == ()


def test_objects_that_the_driver_cannot_link(tmp_path: Path) -> None:
    """LTO-IR in them is not used, as seen on an H200: then there is nothing for the target."""
    _, _, _, result = tailor(tmp_path, rdc((LTOIR, 80)))
    assert result.status is LibraryStatus.NOTHING_FOR_TARGET


def test_kept_ptx_of_a_device_link(tmp_path: Path) -> None:
    """The PTX is in the objects alone: without it `--keep-ptx` would keep nothing for future GPUs."""
    _, _, _, result = tailor(tmp_path, rdc((CUBIN, 80), (PTX, 75), (PTX, 80)), "8.0", keep_ptx=True)
    assert set(result.kept) == {"sm_80", "compute_80"}
    assert result.kept["compute_80"].images == 2
    assert result.kept["sm_80"].images == 1


def test_the_proof_finds_objects_that_were_emptied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a reading of its own: here the policy itself takes them for unused."""

    def without_objects(policy: Policy, containers: Sequence[CodeContainer]) -> list[Policy | None]:
        return [None if one.reference is Reference.PRELINKED else policy for one in containers]

    recipe = rdc((CUBIN, 80), (PTX, 80))
    recipe.wrapped = [(entry(DICE, 90, size=9000),)]
    monkeypatch.setattr(Policy, "for_each", without_objects)
    with pytest.raises(CheckFailedError, match=r"lost compute_80, from which the driver links code for 9\.0"):
        tailor(tmp_path, recipe)
    assert not (tmp_path / "out" / "libtest.so").exists()
