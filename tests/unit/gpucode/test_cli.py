"""`torchtailor inspect` as a user sees it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.gpucode.builders import FIXTURES
from torchtailor.catalog import load_catalog
from torchtailor.cli import main
from torchtailor.errors import ExitCode
from torchtailor.host.targets import read_targets


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["inspect", *arguments, "--json"]) == ExitCode.OK
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_one_library_as_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(FIXTURES / "speed.so"), "--gpu", "8.9,9.0"]) == ExitCode.OK
    text = capsys.readouterr().out
    for word in ("sm_90a", "compute_120f", "lto_90", "lz4", ".nv_fatbin", "Tailoring for 8.9", "Tailoring for 9.0"):
        assert word in text
    assert "On 8.9: compatible through 8.0 (containers: 1 compatible)." in text
    assert "On 9.0: native (containers: 1 native)." in text


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
        "name", "size", "machine", "device_linked", "lookalikes", "containers", "images", "stored", "raw",
        "architectures", "places", "ptx_texts", "gpus",
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
    assert document["totals"]["tailored"] == [
        {"gpu": "9.0", "saved": gpu["saved"], "saved_only_with_nvidia": 0, "saved_by_no_lto": 0}
    ]


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
