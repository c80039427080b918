"""Inspection: what inputs hold, what the numbers are, and what a GPU can do with the code."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import pytest

from tests.unit.gpucode.builders import ARCH, BASE_FLAGS, FAMILY, FIXTURES, Entry, Place, container, elf
from tests.unit.surgery.checks import policy
from tests.unit.surgery.libraries import Linker, Recipe
from torchtailor.catalog import Capability, Fit, load_catalog
from torchtailor.code.binary.source import BufferSource
from torchtailor.code.gpucode.fatbin import Image
from torchtailor.code.gpucode.fitness import gpu_fit, kept_bytes
from torchtailor.code.gpucode.report import LibraryReport, merge_groups, summarise
from torchtailor.code.gpucode.scan import scan_source
from torchtailor.core.errors import BadInputError, NoMatchError
from torchtailor.core.progress import Progress
from torchtailor.trees.artifact.artifact import ArtifactKind, open_artifact
from torchtailor.verification.inspection.inspect import inspect

RULES = load_catalog().rules
ORIN = "JetPack 7.2 (L4T R39.2) or newer, whose driver stack is SBSA"
PTX, LTO = 1, 8


def report(*containers: bytes, section: str = ".nv_fatbin") -> LibraryReport:
    data = elf(Place(section, b"".join(containers)))
    return summarise("lib.so", scan_source(BufferSource(data)))


def parts_of(image: Image) -> list[str]:
    return [part.label for part in image.parts]


def code(sm: int, kind: int = 2, flags: int = 0) -> Entry:
    return Entry(b"x" * 100, sm=sm, kind=kind, flags=BASE_FLAGS | flags)


def link_all(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for library in FIXTURES.glob("*.so"):
        (folder / library.name).write_bytes(library.read_bytes())
    return folder


class Recorder(Progress):
    """Progress that is remembered."""

    def __init__(self) -> None:
        self.total = 0
        self.steps: list[int] = []

    def begin(self, what: str, total: int) -> None:
        self.total = total

    def advance(self, size: int) -> None:
        self.steps.append(size)


# -- inputs ---------


def test_a_folder_lists_each_library_once(tmp_path: Path) -> None:
    folder = link_all(tmp_path / "lib")
    (folder / "libsize.so.1").symlink_to("size.so")
    os.link(folder / "raw.so", folder / "hard.so.2")
    (folder / "broken.so").symlink_to("nowhere")
    (folder / "loop").symlink_to(folder)
    (folder / "module.py").write_bytes(b"\x7fELF is how it starts")
    (folder / "text.so").write_text("/* GNU ld script */")
    found = open_artifact(tmp_path)
    assert found.kind is ArtifactKind.FOLDER
    assert len(found.libraries) == len(list(FIXTURES.glob("*.so")))


@pytest.mark.parametrize("marker", ["pyvenv.cfg", "conda-meta/history", ""])
def test_environments_are_known(tmp_path: Path, marker: str) -> None:
    packages = tmp_path / "lib" / "python3.13" / "site-packages"
    link_all(packages / "torch" / "lib")
    if marker:
        (tmp_path / marker).parent.mkdir(exist_ok=True)
        (tmp_path / marker).write_text("")
    found = open_artifact(tmp_path if marker else packages)
    assert found.kind is ArtifactKind.ENVIRONMENT
    assert all(item.name.startswith("torch/lib/") for item in found.libraries)


def test_what_does_not_exist_is_said(tmp_path: Path) -> None:
    with pytest.raises(NoMatchError, match="does not exist"):
        open_artifact(tmp_path / "nothing.so")


def test_a_file_given_by_name_must_be_readable(tmp_path: Path) -> None:
    path = tmp_path / "no.so"
    path.write_bytes(b"not a library")
    with pytest.raises(BadInputError, match="is not a library, wheel, folder or environment"):
        inspect([path])


def test_damage_in_a_folder_is_skipped_and_reported(tmp_path: Path) -> None:
    folder = link_all(tmp_path)
    (folder / "cut.so").write_bytes((FIXTURES / "raw.so").read_bytes()[:20000])
    foreign = bytearray((FIXTURES / "raw.so").read_bytes())
    foreign[18] = 190
    (folder / "kernel.cubin").write_bytes(foreign)
    (found,) = inspect(folder).artifacts
    assert {(skipped.name, skipped.damaged) for skipped in found.skipped} == {
        ("cut.so", True),
        ("kernel.cubin", False),
    }
    assert len(found.libraries) == len(list(FIXTURES.glob("*.so")))


def test_a_wheel_a_folder_and_processes_give_the_same_answers(tmp_path: Path) -> None:
    folder = link_all(tmp_path / "lib")
    wheel = tmp_path / "x.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for library in sorted(folder.iterdir()):
            archive.write(library, library.name)
    (unpacked,) = inspect([folder]).artifacts
    (packed,) = inspect(str(wheel)).artifacts
    assert packed.kind is ArtifactKind.WHEEL
    assert packed.libraries == unpacked.libraries


def test_processes_give_the_same_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = link_all(tmp_path)
    alone = inspect([folder])
    monkeypatch.setattr("torchtailor.core.processes._WORTH_PROCESSES", 0)
    progress = Recorder()
    assert inspect([folder], processes=2, progress=progress).artifacts == alone.artifacts
    sizes = [library.size for library in alone.libraries]
    assert (sum(sizes), sorted(sizes)) == (progress.total, sorted(progress.steps))


# -- numbers ---------


def test_numbers_add_up() -> None:
    entries = (code(80), Entry(b"y" * 999, sm=80, compression="zstd"), code(90, PTX))
    blob = container(*entries)
    found = report(blob, blob)
    assert [(group.label, group.images, dict(group.compression)) for group in found.architectures] == [
        ("sm_80", 4, {"none": 2, "zstd": 2}),
        ("compute_90", 2, {"none": 2}),
    ]
    assert found.stored == 2 * len(blob)
    assert sum(group.stored for group in found.architectures) == 2 * (len(blob) - 16)
    assert found.architectures[0].raw == 2 * (104 + 999)
    assert (found.containers, found.images) == (2, 6)


def test_concatenated_code_is_counted_by_its_parts() -> None:
    data = (FIXTURES / "concat.so").read_bytes()
    found = summarise("concat.so", scan_source(BufferSource(data)))
    assert [group.label for group in found.architectures if group.label.startswith("sm")] == [
        "sm_75",
        "sm_80",
        "sm_90a",
        "sm_100f",
        "sm_120",
        "sm_120a",
    ]
    (group,) = found.container_groups
    whole = [
        size for image, size in zip(group.images, group.stored_by_image, strict=True) if "sm_80" in parts_of(image)
    ]
    assert kept_bytes(found, policy("8.0")) == 16 + sum(whole)  # compressed together, so all of that entry stays


def test_the_same_architecture_of_two_libraries_is_one_row() -> None:
    one, two = report(container(code(80))), report(container(code(80), code(90)))
    merged = merge_groups([*one.architectures, *two.architectures])
    assert [(group.label, group.images) for group in merged] == [("sm_80", 2), ("sm_90", 1)]


# -- GPUs ---------


@pytest.mark.parametrize(
    ("gpu", "entries", "fit", "verdict"),
    [
        ("9.0", [code(90)], Fit.NATIVE, "native"),
        ("9.0", [code(90, flags=ARCH), code(80)], Fit.NATIVE, "native"),
        ("8.9", [code(80), code(86), code(90)], Fit.COMPATIBLE, "compatible through 8.6"),
        ("8.9", [code(90), code(80, PTX)], Fit.JIT, "JIT from PTX 8.0"),
        ("8.9", [code(90), code(90, PTX)], Fit.NONE, "nothing"),
        ("8.9", [code(80, LTO)], Fit.NONE, "linked at run time"),
        ("10.0", [code(90, flags=ARCH)], Fit.NONE, "nothing"),
        ("10.3", [code(100, flags=FAMILY)], Fit.COMPATIBLE, "compatible through 10.0"),
        ("8.7", [code(86)], Fit.COMPATIBLE, f"compatible through 8.6, given {ORIN}"),
        ("8.7", [code(86), code(80, PTX)], Fit.JIT, "JIT from PTX 8.0"),
        ("8.7", [code(90)], Fit.NONE, "nothing"),
    ],
)
def test_verdicts(gpu: str, entries: list[Entry], fit: Fit, verdict: str) -> None:
    answer = gpu_fit(report(container(*entries)), Capability.parse(gpu), RULES)
    assert (answer.fit, answer.verdict) == (fit, verdict)


def test_most_of_the_bytes_decide() -> None:
    """One container with native code does not make a library native."""
    found = report(container(code(86), code(89)), *[container(code(86)) for _ in range(9)])
    answer = gpu_fit(found, Capability(8, 9), RULES)
    assert answer.verdict == "compatible through 8.6"
    assert answer.containers == {Fit.NATIVE: 1, Fit.COMPATIBLE: 9}


def test_containers_of_ptx_alone_do_not_outweigh_cubins_beside_them() -> None:
    found = report(container(code(89)), *[container(code(70, PTX)) for _ in range(9)])
    assert gpu_fit(found, Capability(8, 9), RULES).verdict == "native"


@pytest.mark.parametrize(
    ("gpus", "every_minor", "kept"),
    [
        ("9.0", False, ["sm_90", "lto_50"]),
        ("8.9", False, ["sm_86", "lto_50"]),
        ("8.9", True, ["sm_80", "sm_86", "lto_50"]),
        ("9.0,8.0", False, ["sm_80", "sm_90", "lto_50"]),
        ("12.0", False, ["compute_90", "lto_50"]),
    ],
)
def test_what_would_be_kept(gpus: str, every_minor: bool, kept: list[str]) -> None:
    found = report(container(code(80), code(86), code(90), code(90, PTX), code(50, LTO)))
    expected = 16 + sum(group.stored for group in found.architectures if group.label in kept)
    assert kept_bytes(found, policy(gpus, keep_all_minors=every_minor)) == expected


@pytest.mark.parametrize(
    ("gpu", "objects", "fit", "verdict"),
    [
        ("8.0", [code(80), code(80, PTX)], Fit.NATIVE, "native"),
        ("8.6", [code(80), code(80, PTX)], Fit.COMPATIBLE, "compatible through 8.0"),
        ("9.0", [code(80), code(80, PTX)], Fit.JIT, "JIT link from PTX 8.0"),
        ("9.0", [code(80), code(90)], Fit.JIT, "JIT link from cubins for 9.0"),
        ("9.0", [code(80), code(80, LTO)], Fit.NONE, "nothing"),
        ("7.5", [code(80), code(80, PTX)], Fit.NONE, "nothing"),
    ],
)
def test_verdicts_of_a_device_link(gpu: str, objects: list[Entry], fit: Fit, verdict: str) -> None:
    data = Linker(Recipe(linked=[(code(80),)], relocatable=[tuple(objects)])).build()
    found = summarise("lib.so", scan_source(BufferSource(data)))
    answer = gpu_fit(found, Capability.parse(gpu), RULES)
    assert (answer.fit, answer.verdict) == (fit, verdict)
    assert answer.containers == {fit: 1}


def test_what_the_device_link_was_made_from_is_not_kept() -> None:
    data = (FIXTURES / "linked.so").read_bytes()
    found = summarise("linked.so", scan_source(BufferSource(data)))
    assert found.device_linked
    linked = next(group for group in found.container_groups if group.section == ".nv_fatbin")
    sm_90 = sum(size for target, size in linked.bytes_by_target.items() if str(target) == "sm_90")
    assert kept_bytes(found, policy("9.0")) == sm_90 + 3 * 16


def test_what_is_unknown_is_kept() -> None:
    found = report(container(Entry(b"?", kind=99, sm=80), code(80), code(90)))
    kept = [group.stored for group in found.architectures if group.label != "sm_80"]
    assert kept_bytes(found, policy("9.0")) == 16 + sum(kept)


def test_what_runs_on_no_target_is_not_cut() -> None:
    """`tailor` leaves such a library unchanged, so there is nothing to save."""
    found = report(container(code(80)), container(code(100)))
    assert kept_bytes(found, policy("9.0")) == found.stored
