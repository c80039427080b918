"""The hook for the other processor, under qemu, and with sanitizers: the same arrives, and nothing is done wrong."""

from __future__ import annotations

import os
import platform
import random
import shutil
import struct
import subprocess
import zlib
from pathlib import Path

import pytest

from tests.integration.surgery.builds import toolchain
from tests.integration.workload.rig import (
    FOLDER,
    WAYS,
    Pack,
    Rig,
    address_of,
    arrival,
    container,
    entry,
    key_of,
    recorded,
)
from tests.integration.workload.test_hook import ALL, CODES, DAMAGED, KEPT, MOVED, NO_BINARY, PACK, STOCK

pytestmark = pytest.mark.xdist_group("hook")  # what is compiled is used by all

OTHER = "aarch64" if platform.machine() == "x86_64" else "x86_64"
SANITIZERS = ["address", "thread"]
KINDS = [f"qemu-{OTHER}", *SANITIZERS]


def runtime_of(sanitizer: str) -> str:
    """gcc's library of a sanitizer, which has to come before what is preloaded."""
    name = {"address": "libasan.so", "thread": "libtsan.so"}[sanitizer]
    found = subprocess.run(
        ["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=True
    ).stdout.strip()
    return str(Path(found).resolve()) if "/" in found else ""


def sanitized(folder: Path, sanitizer: str) -> Rig:
    tools = toolchain(os.uname().machine)
    runtime = runtime_of(sanitizer)
    before = ("setarch", "-R") if shutil.which("setarch") else ()  # gcc's tsan cannot map under much randomness
    kinds = "address,undefined" if sanitizer == "address" else sanitizer
    # Not optimised, it is compiled in a third of the time.
    flags = (
        f"-fsanitize={kinds}",
        "-fno-omit-frame-pointer",
        "-fno-sanitize-recover=all",
        "-O0",
        "-g1",
        "-Wl,-z,undefs",
    )
    settings = {
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0:exitcode=66",
        "UBSAN_OPTIONS": "halt_on_error=1:exitcode=66",
        "TSAN_OPTIONS": "exitcode=66",
    }
    rig = Rig(tools, folder, flags, (runtime,), settings, before)
    probe = folder / "probe.c"
    probe.write_text("int main(void) { return 0; }")
    program = folder / "probe"
    line = ["gcc", *flags, "-o", str(program), str(probe)]
    if not runtime or subprocess.run(line, capture_output=True, check=False).returncode:
        pytest.skip(f"gcc has no {sanitizer} sanitizer")
    if rig.run(program=program).code:
        pytest.skip(f"the {sanitizer} sanitizer does not run here")
    return rig


@pytest.fixture(scope="module", params=KINDS)
def other(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Rig:
    folder = tmp_path_factory.mktemp("other")
    kind = str(request.param)
    if kind.startswith("qemu"):
        return Rig(toolchain(OTHER), folder).build()
    return sanitized(folder, kind).build()


@pytest.fixture(scope="module")
def cut(other: Rig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cut")
    PACK.write(folder / FOLDER / "all.ttpack")
    return other.library(folder / "libcode.so", CODES, renamed=True, imports=True)


@pytest.fixture(scope="module")
def plain(other: Rig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plain")
    PACK.write(folder / FOLDER / "all.ttpack")
    return other.library(folder / "libcode.so", CODES, imports=True)


@pytest.fixture(params=["needed", "preload"])
def variant(request: pytest.FixtureRequest, other: Rig, cut: Path, plain: Path) -> tuple[Path, tuple[Path, ...]]:
    return (cut, ()) if request.param == "needed" else (plain, (other.preload,))


Variant = tuple[Path, tuple[Path, ...]]


def test_every_way(other: Rig, variant: Variant, tmp_path: Path) -> None:
    library, preload = variant
    loads = [(number, way) for way in WAYS for number in range(ALL)]
    words = [f"load={number},{way}" for number, way in loads]
    record = tmp_path / "record"
    done = other.run(f"global={library}", *words, preload=preload, TORCHTAILOR_RECORD=str(record))
    assert done.code == 0, done.said
    assert done.arrived == [arrival(way, [*MOVED, KEPT][number]) for number, way in loads]
    assert done.said.count("\n") == 1, done.said
    places = {int(line[2], 16) for line in recorded(record) if line[0] == "load"}
    assert places == {address_of(library, code) for code in CODES}


def test_threads(other: Rig, variant: Variant, tmp_path: Path) -> None:
    library, preload = variant
    words = [f"threads=8,{ALL},{way}" for way in ("library", "module", "link", "import-library")]
    done = other.run(f"open={library}", *words, preload=preload, TORCHTAILOR_RECORD=str(tmp_path))
    assert done.code == 0, done.said
    assert set(done.arrived) == {arrival(way, code) for way in ("library", "module", "link") for code in [*MOVED, KEPT]}
    assert len(done.arrived) == 4 * 8 * ALL


def test_no_pack(other: Rig, tmp_path: Path) -> None:
    library = other.library(tmp_path / "libcode.so", CODES, renamed=True)
    done = other.run(f"open={library}", "load=0,library", "load=1,module")
    assert (done.code, done.answers) == (0, [NO_BINARY] * 2), done.said
    assert done.said.count("no pack with it was found") == 2


def test_a_closed_library(other: Rig, variant: Variant) -> None:
    library, preload = variant
    words = [f"open={library}", "load=2,library", "close"]
    done = other.run(*words, *words, preload=preload)
    assert (done.code, done.arrived) == (0, [arrival("library", MOVED[2])] * 2), done.said


@pytest.mark.parametrize("in_use", [False, True])
def test_libcudart(other: Rig, tmp_path: Path, in_use: bool) -> None:
    library = other.library(tmp_path / "libcode.so", CODES, renamed=True, runtime=True)
    PACK.write(tmp_path / FOLDER / "a.ttpack")
    before = [f"open={other.folder}/libcudart.so.13", "call=cudart_init"] if in_use else []
    done = other.run(*before, f"open={library}", "load=0,shared", "load=6,shared")
    assert (done.code, done.arrived) == (0, [arrival("library", MOVED[0]), arrival("library", KEPT)]), done.said


def test_files_and_children(other: Rig, variant: Variant, tmp_path: Path) -> None:
    library, preload = variant
    words = [f"read={library}", f"stream={library}", f"open={library}", "load=0,library", "fork", "load=1,library"]
    done = other.run(*words, "leave=0", preload=preload, TORCHTAILOR_RECORD=str(tmp_path))
    assert (done.code, done.arrived) == (0, [arrival("library", MOVED[0]), arrival("library", MOVED[1])]), done.said
    assert len(list(tmp_path.glob("*[0-9].tsv"))) == 2  # beside what was started: a sanitizer starts its program again
    assert (["open", str(library)] in recorded(tmp_path)) == bool(preload)


def test_next_and_default(other: Rig, tmp_path: Path) -> None:
    chain = Path(__file__).parent / "standin" / "chain.c"
    a, b = (other.compile(tmp_path / f"lib{name}.so", "-shared", f'-DNAME="{name}"', chain) for name in "ab")
    done = other.run("ask=next_of,a", "ask=next_of,b", "default=nothing", preload=[a, other.preload, b])
    assert (done.code, done.answers) == (0, ["b", "nobody", "not found error"]), done.said


def test_damaged_packs(other: Rig, cut: Path, tmp_path: Path) -> None:
    """All at once: one process opens them all."""
    folder = tmp_path / FOLDER
    folder.mkdir()
    for number, (content, _) in enumerate(DAMAGED.values()):
        (folder / f"{number}.ttpack").write_bytes(content)
    library = Path(shutil.copyfile(cut, tmp_path / "libcode.so"))
    done = other.run(f"open={library}", "load=0,library")
    assert (done.code, done.answers) == (0, [NO_BINARY]), done.said
    assert done.said.count("is not used") == len(DAMAGED)


def mutant(dice: random.Random) -> bytes:
    """A pack with random damage whose checksums are right where they can be."""
    one = Pack({key_of(stock): moved for stock, moved in zip(STOCK, MOVED, strict=True)})
    if dice.random() < 0.5:  # containers that are whole by their checksum, but of which entries make no sense
        broken = {}
        for key, code in one.containers.items():
            changed = bytearray(code)
            for _ in range(dice.randrange(3)):
                at = dice.randrange(16, len(changed))
                changed[at] = dice.choice([0, 1, 0x7F, 0x80, 0xFF])
            broken[key] = bytes(changed)
        one = Pack(broken)
    content = bytearray(one.to_bytes())
    for _ in range(dice.randrange(4)):
        at = dice.choice([dice.randrange(64), dice.randrange(64, 64 + 40 * 6), dice.randrange(len(content))])
        content[at] = dice.choice([0, 1, 0x3F, 0x40, 0x7F, 0x80, 0xFF])
    rows, offset = struct.unpack_from("<IQ", content, 12)
    if dice.random() < 0.8 and offset + rows * 40 <= len(content):
        struct.pack_into("<I", content, 48, zlib.crc32(content[offset : offset + rows * 40]))
    if dice.random() < 0.9:
        struct.pack_into("<I", content, 60, zlib.crc32(content[:60]))
    return bytes(content[: dice.randrange(len(content))] if dice.random() < 0.1 else content)


def test_random_packs(other: Rig, cut: Path, tmp_path: Path) -> None:
    dice = random.Random(14)
    library = Path(shutil.copyfile(cut, tmp_path / "libcode.so"))
    folder = tmp_path / FOLDER
    folder.mkdir()
    used = 0
    for _ in range(4):
        for number in range(50):
            (folder / f"{number}.ttpack").write_bytes(mutant(dice))
        loads = [f"load={number},{way}" for number in range(ALL) for way in ("library", "link", "nvjitlink")]
        done = other.run(f"open={library}", *loads, TORCHTAILOR_QUIET="1", TORCHTAILOR_MISSES="none")
        assert done.code == 0, done.said
        assert "WRONG SIZE" not in "".join(done.arrived)
        used += done.answers.count("0")
    assert used > 4 * 3


def test_one_container_of_many_packs(other: Rig, cut: Path, tmp_path: Path) -> None:
    library = Path(shutil.copyfile(cut, tmp_path / "libcode.so"))
    entries = [entry(bytes([number]) * (8 + 8 * number), number) for number in range(80)]
    for number, one in enumerate(entries):
        Pack({key_of(STOCK[0]): container(one, entries[0])}).write(tmp_path / FOLDER / f"{number:03}.ttpack")
    done = other.run(f"open={library}", "load=0,library", TORCHTAILOR_QUIET="1")
    first = container(entries[0], *entries[1:64])  # as many packs as are looked at
    assert (done.code, done.arrived) == (0, [arrival("library", first)]), done.said


@pytest.mark.parametrize("other", SANITIZERS, indirect=True)
def test_a_sanitized_program(other: Rig, rig: Rig, plain: Path, tmp_path: Path) -> None:
    """A sanitizer calls our dlsym before anything is ready, also where only the program was compiled with it."""
    done = other.run(f"open={plain}", "load=0,library", preload=[rig.preload], TORCHTAILOR_RECORD=str(tmp_path))
    assert (done.code, done.arrived) == (0, [arrival("library", MOVED[0])]), done.said
    assert ["open", str(plain)] in recorded(tmp_path)
