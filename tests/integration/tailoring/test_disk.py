"""A full or read-only disk is one clear sentence, and nothing is left behind or changed."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.unit.gpucode.builders import Entry, Place, container, elf
from tests.unit.oci.builder import stock, tar_of
from tests.unit.tailoring.helpers import check_records, install, options, tree
from tests.unit.wheels.builder import build_wheel
from torchtailor.core.errors import EnvironmentProblem
from torchtailor.oci.referrers import referrer_of
from torchtailor.oci.transports.choose import open_destination, open_source
from torchtailor.tailoring.environment import tailor_environment
from torchtailor.tailoring.folder import tailor_file, tailor_folder
from torchtailor.tailoring.image.attached import pull_packs
from torchtailor.tailoring.image.cold import LABEL, attachment_of, packed_cold, packs_label
from torchtailor.tailoring.restore import restore_environment
from torchtailor.tailoring.tree import FileState, NewFile
from torchtailor.tailoring.wheel import tailor_wheel

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount a small disk")

LIBRARY = 1_200_000


@contextmanager
def small_disk(folder: Path, size: int) -> Iterator[Path]:
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode:
        pytest.skip(f"cannot mount a tmpfs: {made.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.fixture
def library() -> bytes:
    code = [Entry(os.urandom(LIBRARY // 3), sm=sm) for sm in (80, 90, 100)]
    return elf(Place(".nv_fatbin", container(*code)))


@pytest.fixture
def runs(tmp_path: Path, library: bytes) -> dict[str, Callable[[Path], object]]:
    """Each kind of input, with its output on a disk that is given."""
    wheel = build_wheel(tmp_path, {"demo/libx.so": library, "demo/a.py": b"1" * 1000})
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "libx.so").write_bytes(library)
    (folder / "data.bin").write_bytes(os.urandom(600_000))
    both = options("9.0,10.0")
    return {
        "wheel": lambda disk: tailor_wheel(wheel, disk / "out", both),
        "folder": lambda disk: tailor_folder(folder, disk / "out", both),
        "file": lambda disk: tailor_file(folder / "libx.so", disk / "out.so", both),
    }


@pytest.mark.parametrize("kind", ["wheel", "folder", "file"])
def test_full(tmp_path: Path, runs: dict[str, Callable[[Path], object]], kind: str) -> None:
    with small_disk(tmp_path / "disk", 500_000) as disk:
        before = tree(tmp_path)
        with pytest.raises(EnvironmentProblem, match=r"The disk is full: .*disk") as caught:
            runs[kind](disk)
        assert "Free some space" in caught.value.hint
        assert tree(tmp_path) == before


@pytest.mark.parametrize("kind", ["wheel", "folder", "file"])
def test_read_only(tmp_path: Path, runs: dict[str, Callable[[Path], object]], kind: str) -> None:
    with small_disk(tmp_path / "disk", 500_000) as disk:
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        with pytest.raises(EnvironmentProblem, match="read-only disk"):
            runs[kind](disk)


@pytest.mark.parametrize("room", [0, 100_000, 450_000])
def test_environment_on_a_full_disk(tmp_path: Path, library: bytes, room: int) -> None:
    """However little room is left, files are stock or cut, and RECORD is right as soon as there is room again."""
    with small_disk(tmp_path / "disk", 5_000_000) as disk:
        site = disk / "site-packages"
        for name in ("one", "two"):
            install(build_wheel(tmp_path, {f"{name}/libx.so": library}, name=name), site)
        before = tree(site)
        filler = disk / "filler"
        free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
        filler.write_bytes(bytes(max(0, free - room)))
        with pytest.raises(EnvironmentProblem, match="The disk is full"):
            tailor_environment(site, options("9.0,10.0", keep_removed=True))
        after = tree(site)
        changed = [name for name, digest in before.items() if after[name] != digest]
        assert all(name.endswith((".so", "RECORD")) for name in changed)
        filler.unlink()
        tailor_environment(site, options("9.0,10.0", keep_removed=True))
        check_records(site)
        restore_environment(site)
        assert tree(site) == before


def test_packs_that_are_pulled_to_a_full_disk(tmp_path: Path) -> None:
    """What is there is whole, and the same command finishes when there is room."""
    bytes_of = {f"lib{number}.so-12345678.ttpack": os.urandom(300_000) for number in range(4)}
    packs = {}
    for name, data in bytes_of.items():
        (tmp_path / name).write_bytes(data)
        new = NewFile(f"site-packages/torchtailor-packs/{name}", tmp_path / name, FileState.of_bytes(data), None)
        place = tmp_path / f"{name}.zst"
        packs[place] = packed_cold(new, place, 1)
    config = {"config": {"Labels": {LABEL: packs_label(packs.values())}}}
    stock(tmp_path / "image", [tar_of({"a": b"x"})], config=config)
    with open_source(f"oci:{tmp_path}/image") as source, open_destination(f"oci:{tmp_path}/image:x") as image:
        for place, pack in packs.items():
            image.put_file(pack.blob, place)
        image.attach(referrer_of(source.root().descriptor, attachment_of(packs.values())))
        image.commit(source.root())
    with small_disk(tmp_path / "disk", 700_000) as disk:
        with pytest.raises(EnvironmentProblem, match="The disk is full") as caught:
            pull_packs(f"oci:{tmp_path}/image:x", disk / "packs")
        assert "Packs that are there are whole" in caught.value.hint
        there = {path.name: path.read_bytes() for path in (disk / "packs").iterdir()}
        assert there.items() <= bytes_of.items() and len(there) < len(bytes_of)
        subprocess.run(["mount", "-o", "remount,size=5000000", str(disk)], check=True)
        assert len(pull_packs(f"oci:{tmp_path}/image:x", disk / "packs").there) == len(there)
        assert {path.name: path.read_bytes() for path in (disk / "packs").iterdir()} == bytes_of


def test_environment_on_a_read_only_disk(tmp_path: Path, library: bytes) -> None:
    with small_disk(tmp_path / "disk", 5_000_000) as disk:
        site = disk / "site-packages"
        install(build_wheel(tmp_path, {"one/libx.so": library}, name="one"), site)
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        with pytest.raises(EnvironmentProblem, match="read-only disk"):
            tailor_environment(site, options())
        assert tailor_environment(site, options(dry_run=True)).changed
