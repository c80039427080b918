"""`torchtailor inspect` as a user sees it."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest

from tests.unit.gpucode.builders import FIXTURES, Entry, cubin
from tests.unit.surgery.libraries import Recipe, library
from tests.unit.tailoring.helpers import install
from tests.unit.wheels.builder import build_wheel
from torchtailor.advise.host.targets import read_targets
from torchtailor.catalog import load_catalog
from torchtailor.cli import main
from torchtailor.core.errors import ExitCode
from torchtailor.core.format import human_bytes


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["inspect", *arguments, "--json"]) == ExitCode.OK
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_one_library_as_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(FIXTURES / "speed.so"), "--gpu", "8.9,9.0"]) == ExitCode.OK
    text = capsys.readouterr().out
    for word in ("sm_90a", "compute_120f", "lto_90", "lz4", ".nv_fatbin", "Tailoring for 8.9", "Tailoring for 9.0"):
        assert word in text
    assert "On 8.9: compatible through 8.0 (fat binaries, one for each source file: 1 compatible)." in text
    assert "On 9.0: native (fat binaries, one for each source file: 1 native)." in text


def test_a_folder_as_tables(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(FIXTURES), "--gpu", "RTX 4090", "--detail"]) == ExitCode.OK
    text = capsys.readouterr().out
    for word in ("places-aarch64.so", "compatible through 8.0", "All libraries", "only look like GPU code"):
        assert word in text


def test_the_json_document(capsys: pytest.CaptureFixture[str]) -> None:
    """The schema of docs/inspect.md: names may be added, these stay."""
    document = run_json(capsys, str(FIXTURES / "places-relr.so"), "--gpu", "9.0")
    assert document["schema"] == "torchtailor-inspect/1"
    assert document["gpus"] == ["9.0"]
    (one,) = document["inputs"]
    assert (one["kind"], one["skipped"]) == ("library", [])
    (library,) = one["libraries"]
    assert set(library) == {
        "name", "size", "machine", "device_linked", "lookalikes", "hot", "cold", "containers", "images",
        "stored", "raw", "architectures", "places", "ptx_texts", "gpus",
    }  # fmt: skip
    assert (library["machine"], library["containers"], library["images"]) == ("x86_64", 6, 18)
    assert {place["section"]: (place["reference"], place["containers"]) for place in library["places"]} == {
        ".nv_fatbin": ("wrapper", 2),
        ".cask_resource": ("pointer", 1),
        ".ldata": ("none", 1),
        ".rodata": ("none", 1),
        ".extra_note": ("none", 1),
    }
    assert library["architectures"][0] == {
        "name": "sm_80",
        "kind": "cubin",
        "images": 6,
        "stored": library["architectures"][0]["stored"],
        "raw": library["architectures"][0]["raw"],
        "compression": {"zstd": 6},
        "sections": {".nv_fatbin": 2, ".rodata": 1, ".cask_resource": 1, ".ldata": 1, ".extra_note": 1},
    }
    (gpu,) = library["gpus"]
    assert (gpu["gpu"], gpu["fit"], gpu["through"], gpu["verdict"]) == ("9.0", "native", "sm_90", "native")
    assert gpu["containers"] == {"native": 6, "compatible": 0, "jit": 0, "none": 0}
    assert 0 < gpu["saved"] < library["stored"]
    (tailored,) = document["totals"]["tailored"]
    assert tailored == {
        "gpu": "9.0", "saved": gpu["saved"], "saved_only_with_nvidia": 0, "saved_as_zeros": 0, "saved_by_no_lto": 0,
        "only_ptx": 0,
    }  # fmt: skip


@pytest.mark.parametrize("words", [["sm_90a"], ["9.0a,8.9"], ["8.9 9.0"], ["H100", "RTX 4090"], ["9.0+PTX"]])
def test_gpus_are_named_as_for_tailor_and_verify(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    options = [option for word in words for option in ("--gpu", word)]
    gpus = run_json(capsys, str(FIXTURES / "size.so"), *options)["gpus"]
    assert gpus == [str(gpu) for gpu in read_targets(words, load_catalog(), {}).devices]


def test_nvidias_own_libraries_are_told_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "libcurand.so.10").write_bytes((FIXTURES / "raw.so").read_bytes())
    (tmp_path / "libmine.so").write_bytes((FIXTURES / "raw.so").read_bytes())
    (tailored,) = run_json(capsys, str(tmp_path), "--gpu", "9.0")["totals"]["tailored"]
    assert tailored["saved"] == 2 * tailored["saved_only_with_nvidia"] > 0


def test_libraries_of_nvidias_packages_are_nvidias_whatever_their_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As nvidia-cutlass-dsl-libs-base: in a wheel, installed, and in a folder."""
    files = {"nvidia_x/lib/libdsl.so": (FIXTURES / "raw.so").read_bytes(), "nvidia_x/lib/libdsl.a": bytes(5000)}
    licence = "NVIDIA Proprietary Software"
    wheel = build_wheel(tmp_path, files, name="nvidia-x-libs-base", licence=licence)
    install(wheel, tmp_path / "env" / "site-packages")
    install(wheel, tmp_path / "folder" / "deep")
    for place in (wheel, tmp_path / "env" / "site-packages", tmp_path / "folder"):
        document = run_json(capsys, str(place), "--gpu", "9.0")
        (tailored,) = document["totals"]["tailored"]
        assert tailored["saved"] == tailored["saved_only_with_nvidia"] > 0, place
        assert document["droppable"] == [{"rule": "static-libs", "files": 1, "size": 5000, "only_with_nvidia": 5000}], (
            place
        )
    assert main(["inspect", str(wheel)]) == ExitCode.OK
    assert "could leave out: static-libs 5 kB (with --nvidia)." in " ".join(capsys.readouterr().out.split())
    mine = build_wheel(tmp_path, files, name="mine")
    (tailored,) = run_json(capsys, str(mine), "--gpu", "9.0")["totals"]["tailored"]
    assert tailored["saved_only_with_nvidia"] == 0


def test_programs_are_counted_as_by_tailor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Programs without GPU code are not; one that is never cut is named, and saves nothing."""
    fat = (FIXTURES / "raw.so").read_bytes()
    files = {
        "x/libx.so": fat,
        "x/bin/tool": fat,
        "x/bin/plain": library(Recipe(program=True)),
        "x/bin/installer": fat + b"its own data",
    }
    wheel = build_wheel(tmp_path, files)
    document = run_json(capsys, str(wheel), "--gpu", "9.0")
    saved = {one["name"]: one["gpus"][0]["saved"] for one in document["inputs"][0]["libraries"]}
    assert saved.keys() == {"x/libx.so", "x/bin/tool", "x/bin/installer"}
    assert saved["x/libx.so"] > saved["x/bin/tool"] > saved["x/bin/installer"] == 0  # of a program no symbols go
    assert main(["inspect", str(wheel), "--gpu", "9.0"]) == ExitCode.OK
    said = " ".join(capsys.readouterr().out.split())
    assert "`tailor` leaves x/bin/installer as it is: other data follows its last section." in said


def test_what_would_only_be_zeros_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = random.Random(1)
    images = tuple(Entry(code.randbytes(50_000), sm=sm) for sm in (80, 90))
    (tmp_path / "tool").write_bytes(library(Recipe(wrapped=[images], program=True)))
    (tmp_path / "libx.so").write_bytes(library(Recipe(wrapped=[images])))
    (tailored,) = run_json(capsys, str(tmp_path), "--gpu", "9.0")["totals"]["tailored"]
    assert tailored["saved"] > 40_000 < tailored["saved_as_zeros"]  # of the library, and of the program
    assert main(["inspect", str(tmp_path), "--gpu", "9.0"]) == ExitCode.OK
    assert "Another 50.1 kB would stay in the files as zeros" in " ".join(capsys.readouterr().out.split())


def test_the_promise_is_what_a_cut_saves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of an environment, a wheel, a folder and a library: to the byte, with the options that it names."""
    files = {"torch/lib/libtorch.so": (FIXTURES / "raw.so").read_bytes()}
    site = tmp_path / "env" / "lib" / "python3.13" / "site-packages"
    wheel = build_wheel(tmp_path, files, name="torch")
    install(wheel, site)
    (tmp_path / "folder").mkdir()
    for name in ("libx.so", "libcurand.so.10"):  # the second is NVIDIA's own
        (tmp_path / "folder" / name).write_bytes(files["torch/lib/libtorch.so"])
    (tmp_path / "env" / "pyvenv.cfg").touch()
    for place, words in {
        tmp_path / "env": ["--env", tmp_path / "env"],
        wheel: [wheel, "-o", tmp_path / "new"],
        tmp_path / "folder": [tmp_path / "folder", "-o", tmp_path / "cut"],
        tmp_path / "folder" / "libx.so": [tmp_path / "folder" / "libx.so", "-o", tmp_path / "one.so"],
    }.items():
        (tailored,) = run_json(capsys, str(place), "--gpu", "9.0")["totals"]["tailored"]
        assert main(["inspect", str(place), "--gpu", "9.0"]) == ExitCode.OK
        promised = re.search(r"would save ([\d.]+ kB)", " ".join(capsys.readouterr().out.split()))
        assert main(["tailor", *map(str, words), "--gpu", "9.0", "--nvidia", "--json"]) == ExitCode.OK
        inputs = json.loads(capsys.readouterr().out)["inputs"]
        saved = sum(one["size_before"] - one["size_after"] for each in inputs for one in each["libraries"])
        assert (tailored["saved"], promised and promised[1]) == (saved, human_bytes(saved))
        assert (tailored["saved_only_with_nvidia"] > 0) is (place.name == "folder")


def test_libraries_with_nothing_but_ptx_for_the_gpu_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ptx = (Entry(bytes(5_000), sm=80, kind=1),)
    for name, entries in {"libptx.so": ptx, "libboth.so": (*ptx, Entry(cubin("90"), sm=90))}.items():
        (tmp_path / name).write_bytes(library(Recipe(wrapped=[entries])))
    (tailored,) = run_json(capsys, str(tmp_path), "--gpu", "9.0")["totals"]["tailored"]
    assert tailored["only_ptx"] == 1
    assert main(["inspect", str(tmp_path), "--gpu", "9.0"]) == ExitCode.OK
    assert "1 library has no machine code for 9.0, only PTX" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["{fixtures}/make.sh"], ExitCode.BAD_INPUT, "is not a library, wheel, folder or environment"),
        (["{fixtures}/nothing"], ExitCode.NO_MATCH, "does not exist"),
        (["{fixtures}/size.so", "--gpu", "1.7"], ExitCode.NO_MATCH, "1.7"),
        (["{fixtures}/size.so", "--gpu", "Radeon"], ExitCode.NO_MATCH, "Radeon"),
        ([], ExitCode.USAGE, "PATH"),
    ],
)
def test_errors(capsys: pytest.CaptureFixture[str], arguments: list[str], code: ExitCode, words: str) -> None:
    assert main(["inspect", *(word.format(fixtures=FIXTURES) for word in arguments)]) == code
    captured = capsys.readouterr()
    assert words in captured.err
    assert "Traceback" not in captured.err
    assert captured.out == ""


def test_damage_in_a_folder_is_reported_and_changes_the_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "good.so").write_bytes((FIXTURES / "raw.so").read_bytes())
    (tmp_path / "cut.so").write_bytes((FIXTURES / "raw.so").read_bytes()[:20000])
    assert main(["inspect", str(tmp_path)]) == ExitCode.BAD_INPUT
    captured = capsys.readouterr()
    assert "sm_90a" in captured.out
    assert "cut.so" in captured.err


def test_a_program_without_a_table_of_sections(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As sstrip and UPX leave one: the rest is listed."""
    program = bytearray(library(Recipe(program=True)))
    program[40:48] = bytes(8)  # e_shoff
    program[60:64] = bytes(4)  # e_shnum, e_shstrndx
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "tool").write_bytes(program)
    (folder / "libx.so").write_bytes((FIXTURES / "raw.so").read_bytes())
    document = run_json(capsys, str(folder), "--gpu", "9.0")
    assert [one["name"] for one in document["inputs"][0]["libraries"]] == ["libx.so"]
    assert main(["tailor", str(folder), "-o", str(tmp_path / "out"), "--gpu", "9.0", "--dry-run"]) == ExitCode.OK
