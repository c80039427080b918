"""Every cut can run on its GPU what stock could, and holds nothing foreign: judged by a reader that is not ours."""

from __future__ import annotations

import hashlib
import platform
import re
import subprocess
import sys
import zipfile
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.integration.oracle.fixtures import ARCHIVE, MANIFEST, NAMES, tailor
from tests.oracle import Container, Entry, Library, fits, foreign, read_library, runnable, unused
from tests.tars import unpack_tar

TARGETS = ("7.5", "8.0", "8.6", "8.9", "9.0", "10.0", "10.3", "12.0", "8.0,9.0")
# Each library is unpacked, and each target cut, once.
pytestmark = pytest.mark.xdist_group("oracle")
CUOBJDUMP = "nvidia-cuda-cuobjdump==13.4.92"

Cuts = Callable[[str], Path]


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack_tar(ARCHIVE, tmp_path_factory.mktemp("stock"))


@pytest.fixture(scope="module")
def cuts(stock: Path, tmp_path_factory: pytest.TempPathFactory) -> Cuts:
    """All libraries cut for a target, by one call of the command."""

    @cache
    def cut(target: str) -> Path:
        output = tmp_path_factory.mktemp("cut") / "out"
        assert tailor(stock, output, "--gpu", target)
        return output

    return cut


def devices_of(target: str) -> list[tuple[int, int]]:
    return [(int(major), int(minor)) for major, minor in (word.split(".") for word in target.split(","))]


@pytest.mark.parametrize("name", NAMES)
def test_cuts_run_what_stock_runs(name: str, stock: Path, cuts: Cuts) -> None:
    before = read_library(stock / f"{name}.so")
    for target in TARGETS:
        devices = devices_of(target)
        after = read_library(cuts(target) / f"{name}.so")
        runs = {device: runnable(before, device) for device in devices}
        lost = {device: runs[device] - runnable(after, device) for device in devices}
        assert not any(lost.values()), (target, lost)
        if not any(runs.values()):
            assert after.size == before.size, target  # nothing for the target: the library is left as it is
            continue
        left = [(container.id, entry.label, entry.size) for container, entry in foreign(after, devices)]
        if after.size == before.size:  # too little to gain: a library is not rewritten for a page
            assert sum(size for *_, size in left) < page_of(name), target
        else:
            assert not left, target


def page_of(name: str) -> int:
    """What a cut must free at least: four pages of 4 KiB, or one of 64 KiB, and what lies beside whole pages."""
    return 24 << 10 if name.endswith("x86_64") else 128 << 10


@pytest.mark.parametrize("name", NAMES)
def test_archive_is_what_the_manifest_says(name: str, stock: Path) -> None:
    data = (stock / f"{name}.so").read_bytes()
    assert hashlib.sha256(data).hexdigest() == MANIFEST[f"{name}.so"]["sha256"]
    assert b"libcudart" not in data  # nothing of NVIDIA's is in the repository


@pytest.mark.parametrize("name", NAMES)
def test_oracle_reads_what_was_compiled(name: str, stock: Path) -> None:
    row = MANIFEST[f"{name}.so"]
    library = read_library(stock / f"{name}.so")
    assert not library.unread
    compiled = [sorted(archs) for archs in row["archs"]]
    found = [sorted(entry.label for entry in container.entries) for container in library.containers]
    prelinked = [labels for labels, one in zip(found, library.containers, strict=True) if one.prelinked]
    linked = [one for one in library.containers if one.linked]
    if row["form"] == "rdc":
        assert prelinked == [archs for archs in compiled for _ in ("caller", "callee")]
        for container, archs in zip(linked, compiled, strict=True):
            cubins = {entry.label for entry in container.entries if entry.kind == "cubin"}
            assert cubins == set(row["linked"] or [arch for arch in archs if arch.startswith("sm_")])
    elif row["form"] == "bare":
        assert found == [[arch] for arch in compiled[0]]
        assert {one.form for one in library.containers} == {"cubin"}
    else:
        assert found == compiled
        assert {one.wrapped for one in library.containers} == {row["form"] == "plain"}
    for container, entry in library.entries:
        if entry.kind != "lto" and not container.prelinked and not entry.relocatable:
            assert any("fill" in kernel for kernel in entry.kernels), (container.id, entry.label)


def test_oracle_notices_what_is_lost(stock: Path, tmp_path: Path) -> None:
    """Emptied by hand: the objects of a device link that has nothing for 9.0."""
    path = stock / "rdc-sm80-ptx80-x86_64.so"
    before = read_library(path)
    data = bytearray(path.read_bytes())
    for container in before.containers:
        if container.prelinked:
            data[container.offset + 8 : container.offset + container.size] = bytes(container.size - 8)
    emptied = tmp_path / "emptied.so"
    emptied.write_bytes(data)
    after = read_library(emptied)
    assert [len(one.entries) for one in after.containers] == [0, 0, 1]
    assert runnable(before, (8, 0)) == runnable(after, (8, 0))
    assert {run.how for run in runnable(before, (9, 0))} == {"linked:compute_80"}
    assert not runnable(after, (9, 0))
    assert [entry.label for _, entry in foreign(after, [(9, 0)])] == ["sm_80"]


def test_oracle_names_what_is_never_taken(stock: Path) -> None:
    library = read_library(stock / "rdc-sm75-sm90-ptx75-x86_64.so")
    assert Counter(entry.label for _, entry in unused(library, [(9, 0)])) == {"compute_75": 2, "sm_90": 2}
    assert unused(library, [(8, 0)]) == []


@pytest.mark.parametrize(
    ("code", "device", "expected"),
    [
        ("sm_80", (8, 0), True),
        ("sm_80", (8, 6), True),
        ("sm_86", (8, 0), False),
        ("sm_80", (9, 0), False),
        ("sm_80", (8, 7), False),  # Orin
        ("sm_87", (8, 7), True),
        ("sm_87", (8, 9), False),
        ("sm_90a", (9, 0), True),
        ("sm_100a", (10, 3), False),
        ("sm_100f", (10, 3), True),
        ("sm_103f", (10, 0), False),
        ("sm_120f", (12, 1), True),
        ("sm_100", (12, 0), False),
        ("compute_80", (9, 0), True),
        ("compute_90", (8, 9), False),
        ("compute_90a", (9, 0), True),
        ("compute_90a", (10, 0), False),
        ("compute_100f", (12, 0), False),
        ("lto_80", (9, 0), True),
        ("lto_90a", (10, 0), False),
    ],
)
def test_rules(code: str, device: tuple[int, int], expected: bool) -> None:
    match = re.fullmatch(r"(sm|compute|lto)_(\d+)([af]?)", code)
    assert match
    kind = {"sm": "cubin", "compute": "ptx", "lto": "lto"}[match[1]]
    assert fits(device, Entry(kind, int(match[2]), match[3], 0, 0, "", 0)) is expected


_LISTED = re.compile(r"^\t?Fatbin (?:relocatable )?(elf|ptx|nvvm) code:\n\t?=+\n\t?arch = sm_(\S+)", re.MULTILINE)
_PREFIX = {"elf": "sm", "ptx": "compute", "nvvm": "lto"}


@pytest.fixture(scope="module")
def cuobjdump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """NVIDIA's own reader, from its package."""
    folder = tmp_path_factory.mktemp("cuobjdump")
    platforms = [
        word for tag in ("manylinux_2_17", "manylinux2014") for word in ("--platform", f"{tag}_{platform.machine()}")
    ]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", *platforms]
    done = subprocess.run([*command, "--dest", str(folder), CUOBJDUMP], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"{CUOBJDUMP} could not be downloaded: {done.stderr.strip().splitlines()[-1:]}")
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as archive:
        archive.extractall(folder)
    tool = next(folder.rglob("cuobjdump"))
    tool.chmod(0o755)
    return tool


@pytest.mark.network
@pytest.mark.parametrize("name", NAMES)
def test_oracle_agrees_with_cuobjdump(name: str, stock: Path, cuobjdump: Path, tmp_path: Path) -> None:
    """The same images, byte for byte. It does not look into .rodata: what lies there is handed to it as files."""
    library = read_library(stock / f"{name}.so")
    for number, (path, containers) in enumerate(readable(library, tmp_path)):
        entries = [entry for container in containers for entry in container.entries]
        listed = subprocess.run([cuobjdump, "-all", path], capture_output=True, text=True, check=True).stdout
        if path.suffix != ".cubin":
            assert Counter(f"{_PREFIX[kind]}_{arch}" for kind, arch in _LISTED.findall(listed)) == Counter(
                entry.label for entry in entries
            )
        folder = tmp_path / f"extracted{number}"
        folder.mkdir()
        for option in ("-xelf", "-xptx"):
            subprocess.run([cuobjdump, "-all", option, "all", path], cwd=folder, capture_output=True, check=False)
        extracted = {hashlib.sha256(file.read_bytes().rstrip(b"\0")).hexdigest() for file in folder.iterdir()}
        ours = {hashlib.sha256(entry.raw.rstrip(b"\0")).hexdigest() for entry in entries if entry.kind != "lto"}
        assert extracted == ours


def readable(library: Library, folder: Path) -> list[tuple[Path, list[Container]]]:
    """Files that cuobjdump reads, and what it should find in each."""
    data = library.path.read_bytes()
    own = [one for one in library.containers if one.section in (".nv_fatbin", "__nv_relfatbin")]
    files = [(library.path, own)] if own else []
    for number, container in enumerate(one for one in library.containers if one not in own):
        path = folder / f"{number}.{'fatbin' if container.form == 'container' else 'cubin'}"
        path.write_bytes(data[container.offset : container.offset + container.size])
        files.append((path, [container]))
    return files
