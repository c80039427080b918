"""Code that a workload does not use: in the pack whole, in the library a ticket, and proven."""

from __future__ import annotations

import ctypes
import hashlib
import random
import shutil
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.gpucode.builders import Entry, container
from tests.unit.surgery.libraries import Recipe, library
from tests.unit.workload.compiled import compiled
from torchtailor.catalog.gpus import TorchArch
from torchtailor.code.binary.elf import ElfFile
from torchtailor.code.binary.source import open_source
from torchtailor.code.binary.symbols import needed_libraries, undefined_symbols
from torchtailor.code.gpucode.scan import scan_elf, scan_file
from torchtailor.code.gpucode.targets import Targets
from torchtailor.core.errors import CheckFailedError
from torchtailor.surgery.cut import Cut
from torchtailor.surgery.files import FileSource, open_file
from torchtailor.surgery.hooked import patchelf
from torchtailor.surgery.library import tailor_library
from torchtailor.surgery.opened import OpenLibrary
from torchtailor.surgery.proof.hooked import prove_hooked
from torchtailor.surgery.proof.prove import prove
from torchtailor.workload.choice import TracedWorkload
from torchtailor.workload.hook import HOOK_NAME, HookKind, hook_library, renamed_symbols
from torchtailor.workload.identity import library_identity
from torchtailor.workload.pack import PackPlace, RowKind, open_pack
from torchtailor.workload.trace import Trace, TracedLibrary

FIXTURES = Path(__file__).parents[1] / "gpucode" / "fixtures"


def options(trace: Trace | None = None, gpus: str = "9.0", **more: object) -> Cut:
    targets = Targets(TorchArch.parse_list(gpus))
    return Cut(targets, strip=True, workload=TracedWorkload(trace or Trace()), **more)  # type: ignore[arg-type]


def identity(path: Path) -> str:
    with open_source(path) as source:
        elf = ElfFile(source)
        return library_identity(elf, scan_elf(elf))


def cut(src: Path, folder: Path, chosen: Cut, place: str = "packs") -> Path:
    out = folder / src.name
    result = tailor_library(src, out, chosen, pack=PackPlace(folder / "packs", place))
    assert result.pack and (folder / "packs" / result.pack).stat().st_size == result.pack_size
    assert hashlib.sha256((folder / "packs" / result.pack).read_bytes()).hexdigest() == result.pack_sha256
    assert hashlib.sha256(out.read_bytes()).hexdigest() == result.sha256_out
    return out


@pytest.mark.parametrize("name", ["raw.so", "speed.so", "size.so", "concat.so"])
def test_everything_goes_to_the_pack(tmp_path: Path, name: str) -> None:
    """Kept and moved code together are the cut for the GPU alone, byte for byte."""
    src = FIXTURES / name
    out = cut(src, tmp_path, options())
    plain = tmp_path / "plain.so"
    tailor_library(src, plain, replace(options(), workload=None))
    stock, without = scan_file(src), scan_file(plain if plain.exists() else src)
    reference = plain if plain.exists() else src
    data = src.read_bytes()
    moved = scan_file(out)
    (pack_path,) = (tmp_path / "packs").iterdir()
    with open_pack(pack_path) as pack, open_source(reference) as source:
        for old, arch, new in zip(stock.containers, without.containers, moved.containers, strict=True):
            if not arch.images:
                assert not new.container.ticket
                continue
            key = hashlib.blake2b(data[old.container.offset : old.container.end], digest_size=16).digest()
            assert new.container.ticket == key and not new.images
            row = pack.find(key)
            assert row is not None
            assert bytes(pack.source.read(row.offset, row.size)) == bytes(
                source.read(arch.container.offset, arch.container.stored_size)
            )
    assert identity(out) == identity(src)


def test_what_the_trace_names_stays(tmp_path: Path) -> None:
    code = random.Random(3)
    units = [container(*(Entry(code.randbytes(30_000), sm=sm) for sm in (80, 90))) for _ in range(4)]
    src = compiled(tmp_path / "stock" / "libx.so", units)
    trace = Trace((TracedLibrary(identity(src), "libx.so", 4, (2,)),))
    out = cut(src, tmp_path, options(trace))
    found = scan_file(out).containers
    assert [bool(one.container.ticket) for one in found] == [True, True, False, True]
    assert [image.sm for image in found[2].images] == [90]
    assert out.stat().st_size < src.stat().st_size
    loaded = ctypes.CDLL(str(src))  # it is a library that loads; the cut one asks for the hook
    assert loaded.reach is not None


def test_containers_and_pages_of_a_library_are_in_one_pack(tmp_path: Path) -> None:
    code = random.Random(37)
    units = [container(*(Entry(code.randbytes(30_000), sm=sm) for sm in (80, 90))) for _ in range(4)]
    far = '__asm__(".text; .balign 4096; .fill 2097152, 1, 0xcc; .balign 4096"); int far(int x) { return x * 3; }'
    src = compiled(tmp_path / "stock" / "libx.so", units, far)
    with open_source(src) as source:
        first = next(section.address for section in ElfFile(source).sections if section.name == ".text") // 4096
    trace = Trace((TracedLibrary(identity(src), "libx.so", 4, (2,), pages=((0, 1), (first, 1))),))
    place = "torchtailor-packs"
    out = tmp_path / "out" / "libx.so"
    result = tailor_library(src, out, options(trace), pack=PackPlace(tmp_path / "out" / place, place))
    assert result.moved and result.pages and result.pages.cold > 2_000_000
    (path,) = (tmp_path / "out" / place).iterdir()
    with open_pack(path) as pack:
        assert sorted(row.kind for row in pack.rows) == [RowKind.CONTAINER] * 3 + [RowKind.PAGES]
    assert [bool(one.container.ticket) for one in scan_file(out).containers] == [True, True, False, True]
    assert out.stat().st_size < src.stat().st_size - 2_000_000
    assert identity(out) == identity(src)
    with open_source(out) as source:
        machine = ElfFile(source).machine
    shutil.copy(hook_library(machine, HookKind.NEEDED), tmp_path / "out" / place / HOOK_NAME)
    work = "say = lambda n: os.write(1, f'{x.far(n)} '.encode()); say(5); os.fork(); say(7)"
    program = f"import ctypes, os; x = ctypes.CDLL({str(out)!r}); {work}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert sorted(done.stdout.split()) == ["15", "21", "21"] and not done.stderr


def test_a_margin_keeps_the_library(tmp_path: Path) -> None:
    src = FIXTURES / "raw.so"
    count = sum(one.loaded for one in scan_file(src).containers)
    trace = Trace((TracedLibrary(identity(src), "raw.so", count, (0,)),))
    chosen = replace(options(), workload=TracedWorkload(trace, "library"))
    result = tailor_library(src, tmp_path / "raw.so", chosen, pack=PackPlace(tmp_path / "packs"))
    assert not result.pack and not (tmp_path / "packs").exists()


def test_the_library_brings_the_hook(tmp_path: Path) -> None:
    out = cut(FIXTURES / "raw.so", tmp_path, options(), "../../packs/torch")
    with open_source(out) as source:
        elf = ElfFile(source)
        assert HOOK_NAME in needed_libraries(elf)
        assert "torchtailor___cudaRegisterFatBinary" in undefined_symbols(elf)

    def said(option: str) -> list[str]:
        line = [patchelf(), option, str(out)]
        return subprocess.run(line, capture_output=True, text=True, check=True).stdout.split()

    assert said("--print-rpath") == ["$ORIGIN/../../packs/torch"]
    assert said("--print-needed").count(HOOK_NAME) == 1


def test_the_hook_costs_no_large_page(tmp_path: Path) -> None:
    """As NVIDIA's libraries: one segment is aligned to 2 MB, and what patchelf adds need not be."""
    data = bytearray((FIXTURES / "raw.so").read_bytes())
    first = ElfFile.from_buffer(data).loads[0]
    table = ElfFile.from_buffer(data).header.segment_table_offset
    struct.pack_into("<Q", data, table + first.index * 56 + 48, 2 << 20)
    (tmp_path / "src").mkdir()
    src = tmp_path / "src" / "raw.so"
    src.write_bytes(data)
    out = cut(src, tmp_path, options())
    assert out.stat().st_size < len(data) + (64 << 10)
    assert ElfFile.from_buffer(out.read_bytes()).loads[0].alignment == 2 << 20


def test_device_links_and_others_stay(tmp_path: Path) -> None:
    """The driver links objects by itself, and a library that no hook can reach keeps its code."""
    result = tailor_library(FIXTURES / "linked.so", tmp_path / "a.so", options(), pack=PackPlace(tmp_path / "packs"))
    assert "sm_90" not in result.moved or result.kept
    src = tmp_path / "stock.so"
    src.write_bytes(library(Recipe(wrapped=[(Entry(bytes(9000), sm=80), Entry(bytes(9000), sm=90))], symtab=False)))
    result = tailor_library(src, tmp_path / "b.so", options(), pack=PackPlace(tmp_path / "packs"))
    assert not result.pack and any("hook" in warning for warning in result.warnings)


def test_without_a_place_the_pack_is_not_kept(tmp_path: Path) -> None:
    result = tailor_library(FIXTURES / "raw.so", tmp_path / "raw.so", options())
    assert result.moved and result.pack
    assert [path.name for path in tmp_path.iterdir()] == ["raw.so"]


def test_the_same_input_gives_the_same_bytes(tmp_path: Path) -> None:
    one, two = (cut(FIXTURES / "raw.so", tmp_path / name, options()) for name in ("a", "b"))
    assert one.read_bytes() == two.read_bytes()
    packs = [next((tmp_path / name / "packs").iterdir()) for name in ("a", "b")]
    assert packs[0].name == packs[1].name and packs[0].read_bytes() == packs[1].read_bytes()


def test_cut_again_keeps_tickets(tmp_path: Path) -> None:
    """A cut of a library of which some code was moved leaves the tickets alone."""
    out = cut(FIXTURES / "raw.so", tmp_path, options(gpus="8.0,9.0"))
    result = tailor_library(out, tmp_path / "again.so", replace(options(), workload=None))
    assert not result.status.changed


def _proof(src: Path, out: Path, pack: Path) -> None:
    with open_file(src) as before, open_pack(pack) as packed, out.open("rb") as after:
        prove(
            OpenLibrary.read(before),
            FileSource(after.fileno()),
            options().policy,
            stripped=True,
            proven=None,
            pack=packed,
        )


@pytest.fixture
def unhooked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The proof of the cut is of what the surgery wrote, before patchelf."""
    monkeypatch.setattr("torchtailor.surgery.library.with_hook", lambda *_: None)


@pytest.mark.usefixtures("unhooked")
def test_the_proof_finds_a_wrong_ticket_and_a_lost_container(tmp_path: Path) -> None:
    out = cut(FIXTURES / "raw.so", tmp_path, options())
    (pack,) = (tmp_path / "packs").iterdir()
    _proof(FIXTURES / "raw.so", out, pack)
    whole = out.read_bytes()
    at = whole.index(b"TTPACK1\0") + 8
    out.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    with pytest.raises(CheckFailedError, match="key"):
        _proof(FIXTURES / "raw.so", out, pack)
    out.write_bytes(whole)
    other = cut(FIXTURES / "raw.so", tmp_path / "other", options(gpus="8.0"))
    (foreign,) = (tmp_path / "other" / "packs").iterdir()
    with pytest.raises(CheckFailedError):
        _proof(FIXTURES / "raw.so", out, foreign)
    assert other.exists()


def _patched(src: Path, out: Path, *words: str) -> None:
    subprocess.run([patchelf(), *words, "--output", str(out), str(src)], check=True, capture_output=True)


@pytest.mark.parametrize(
    "words",
    [
        ["--remove-needed", "libc.so.6"],
        ["--add-needed", "libevil.so"],
        ["--set-soname", "other.so"],
        ["--set-rpath", "/evil"],
    ],
)
def test_the_proof_of_the_hook_finds_other_changes(tmp_path: Path, words: list[str]) -> None:
    src = FIXTURES / "raw.so"
    names = tmp_path / "names"
    renamed = sorted(renamed_symbols() & undefined_symbols(ElfFile.from_buffer(src.read_bytes())))
    names.write_text("".join(f"{name} torchtailor_{name}\n" for name in renamed))
    hook = ["--add-needed", HOOK_NAME, "--rename-dynamic-symbols", str(names), "--add-rpath", "$ORIGIN"]
    _patched(src, tmp_path / "good.so", *hook)
    before, good = (ElfFile.from_buffer(path.read_bytes()) for path in (src, tmp_path / "good.so"))
    prove_hooked(before, good, HOOK_NAME, "$ORIGIN", renamed)
    _patched(tmp_path / "good.so", tmp_path / "bad.so", *words)
    with pytest.raises(CheckFailedError):
        prove_hooked(before, ElfFile.from_buffer((tmp_path / "bad.so").read_bytes()), HOOK_NAME, "$ORIGIN", renamed)


def test_the_proof_of_the_hook_finds_a_changed_byte(tmp_path: Path) -> None:
    src = FIXTURES / "raw.so"
    _patched(src, tmp_path / "good.so", "--add-needed", HOOK_NAME, "--add-rpath", "$ORIGIN")
    before, data = ElfFile.from_buffer(src.read_bytes()), bytearray((tmp_path / "good.so").read_bytes())
    prove_hooked(before, ElfFile.from_buffer(bytes(data)), HOOK_NAME, "$ORIGIN", [])
    good = ElfFile.from_buffer(bytes(data))
    for name in (".text", ".nv_fatbin", ".data.rel.ro", ".rodata"):
        section = good.section(name)
        if section is None or not section.size:
            continue
        changed = bytearray(data)
        changed[section.offset + section.size // 2] ^= 1
        with pytest.raises(CheckFailedError):
            prove_hooked(before, ElfFile.from_buffer(bytes(changed)), HOOK_NAME, "$ORIGIN", [])
