"""--split for wheels and folders: what is made, what is refused, and that nothing is lost."""

from __future__ import annotations

import json
import shutil
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.tailoring.helpers import check_records, install, options, tree
from tests.unit.wheels.builder import build_wheel
from torchtailor.catalog import load_catalog
from torchtailor.cli._dispatch import run_command
from torchtailor.code.binary.elf_headers import ElfMachine
from torchtailor.core.errors import CheckFailedError, EnvironmentProblem, UsageError
from torchtailor.surgery import moved
from torchtailor.surgery.cut import Cut
from torchtailor.surgery.library import tailor_library
from torchtailor.tailoring import inputs
from torchtailor.tailoring import packs as packing
from torchtailor.tailoring.environment import tailor_environment
from torchtailor.tailoring.folder import tailor_file, tailor_folder
from torchtailor.tailoring.wheel import tailor_wheel
from torchtailor.trees.artifact.artifact import open_artifact
from torchtailor.trees.wheels.metadata import Metadata, with_lines
from torchtailor.verification.inspection.torch_code import read_torch
from torchtailor.verification.result import CheckOutcome
from torchtailor.verification.static.expect import expectation
from torchtailor.verification.static.verify import verify_static
from torchtailor.workload.choice import TracedWorkload
from torchtailor.workload.hook import HOOK_NAME, HookKind, hook_library
from torchtailor.workload.pack import PackPlace, open_pack
from torchtailor.workload.trace import Trace, write_trace

LICENCE = {"torch-2.10.0.dist-info/licenses/LICENSE": b"BSD", "torch-2.10.0.dist-info/entry_points.txt": b""}


@pytest.fixture
def wheel(tmp_path: Path, fat: bytes) -> Path:
    content = {"torch/__init__.py": b"", "torch/lib/libtorch_cuda.so": fat, **LICENCE}
    return build_wheel(tmp_path, content, name="torch", version="2.10.0", tag="cp313-cp313-manylinux_2_28_x86_64")


def split(gpu: str = "9.0", **more: object) -> Cut:
    return replace(options(gpu), split=True, **more)  # type: ignore[arg-type]


def test_a_wheel_for_two_gpus(tmp_path: Path, wheel: Path) -> None:
    result = tailor_wheel(wheel, tmp_path / "out", split("8.0,9.0"))
    assert result.output is not None
    assert [pack.target for pack in result.pack_wheels] == ["sm80", "sm90"]
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        result.output.name,
        *(pack.path.name for pack in result.pack_wheels),
    }
    assert {label.removesuffix("a") for label in result.libraries[0].packed} >= {"sm_80", "sm_90"}
    site = tmp_path / "site"
    for made in (result.output, *(pack.path for pack in result.pack_wheels)):
        with zipfile.ZipFile(made) as archive:
            assert archive.testzip() is None
        install(made, site)
    check_records(site)
    with zipfile.ZipFile(result.pack_wheels[1].path) as archive:
        names = archive.namelist()
    (info,) = {name.split("/")[0] for name in names if ".dist-info/" in name}
    assert f"{info}/licenses/LICENSE" in names  # the code is under the licence of its wheel
    assert f"{info}/entry_points.txt" not in names
    code = read_torch(site / "torch")
    found = {str(target) for target in code.targets}
    assert {"sm_80", "sm_90"} <= {name.removesuffix("a") for name in found}
    assert code.main is not None and not code.main.architectures


def test_a_library_that_has_nothing_for_one_of_the_gpus(tmp_path: Path, wheel: Path) -> None:
    """The packs for that GPU are not made, and the wheel for all is the same."""
    both = tailor_wheel(wheel, tmp_path / "both", split("3.5,9.0"))
    alone = tailor_wheel(wheel, tmp_path / "alone", split("9.0"))
    assert [pack.target for pack in both.pack_wheels] == ["sm90"]
    assert tree(tmp_path / "both") == tree(tmp_path / "alone")
    assert alone.output is not None
    own = [note for note in both.notes if note not in alone.notes]
    assert ["runs on 3.5" in note for note in own] == [True]


def test_nothing_at_all_for_the_gpu(tmp_path: Path, wheel: Path) -> None:
    report = inputs.tailor_inputs([wheel], split("3.5"), output=tmp_path / "out")
    assert report.error is not None and "no GPU code that runs on 3.5" in report.error.message
    assert not list((tmp_path / "out").glob("*.whl"))


@pytest.mark.parametrize("several", [False, True], ids=["one wheel", "two wheels"])
def test_nothing_for_the_gpu_is_said_and_leaves_nothing(
    tmp_path: Path, wheel: Path, fat: bytes, capsys: pytest.CaptureFixture[str], several: bool
) -> None:
    hook_library(ElfMachine.X86_64, HookKind.NEEDED)  # skips where there is none
    loose = tmp_path / "libx.so"
    loose.write_bytes(fat)
    other = build_wheel(tmp_path, {"other/liby.so": fat}, name="other", version="1", tag="py3-none-any")
    for words in ([wheel, other] if several else [wheel], [loose]):
        out = tmp_path / "out" / ""
        command = [*map(str, words), "--gpu", "3.5", "--split", "-o", f"{out}/"]
        assert run_command("tailor", command) == 5
        said = capsys.readouterr()
        assert "no output was written" in said.err
        assert ("Saved 0 B" in said.out) == (len(words) > 1) and "is in packs" not in said.out
        assert len(words) > 1 or said.err.count("3.5") == 1
        assert not out.exists()
        assert run_command("tailor", [*command, "--json"]) == 5
        for row in json.loads(capsys.readouterr().out)["inputs"]:
            assert row["size_after"] == row["size_before"] and row["output"] is None
            assert {one["status"] for one in row["libraries"]} == {"nothing-for-target"}


def test_a_dry_run_writes_nothing_and_knows_the_sizes(tmp_path: Path, wheel: Path) -> None:
    result = tailor_wheel(wheel, tmp_path / "out", split("9.0", dry_run=True))
    assert not (tmp_path / "out").exists()
    (library,) = result.libraries
    assert library.packed
    assert library.size_after < library.size_before


def test_a_folder(tmp_path: Path, wheel: Path) -> None:
    site = tmp_path / "env" / "lib" / "python3.13" / "site-packages"
    install(wheel, site)
    result = tailor_folder(tmp_path / "env", tmp_path / "out", split("8.0,9.0"))
    (library,) = result.libraries
    there = tmp_path / "out" / "lib" / "python3.13" / "site-packages"
    assert {path.name for path in (there / "torchtailor-packs" / "torch").iterdir()} == {library.pack, HOOK_NAME}
    check_records(there)
    with open_pack(there / "torchtailor-packs" / "torch" / library.pack) as pack:
        labels = {image.label.removesuffix("a") for row in pack.rows for image in pack.container(row).entries}
    assert {"sm_80", "sm_90"} <= labels


def test_a_folder_for_several_gpus_is_verified(tmp_path: Path, wheel: Path) -> None:
    """Its one pack has the code of all of them, and none of that is foreign."""
    install(wheel, tmp_path / "env" / "lib" / "python3.13" / "site-packages")
    tailor_folder(tmp_path / "env", tmp_path / "out", split("8.0,9.0"))
    artifact, catalog = open_artifact(tmp_path / "out"), load_catalog()
    proof = verify_static(artifact, expectation(artifact, catalog), catalog, stock=open_artifact(tmp_path / "env"))
    outcomes = {check.name: check.outcome for check in proof.checks if check.name.startswith(("packs", "coverage"))}
    assert len(outcomes) == 3 and set(outcomes.values()) == {CheckOutcome.PASS}


def test_a_damaged_pack_is_named(tmp_path: Path, wheel: Path) -> None:
    install(wheel, tmp_path / "env" / "lib" / "python3.13" / "site-packages")
    tailor_folder(tmp_path / "env", tmp_path / "out", split())
    (pack,) = (tmp_path / "out").rglob("*.ttpack")
    data = bytearray(pack.read_bytes())
    data[-1] ^= 1
    pack.write_bytes(data)
    artifact, catalog = open_artifact(tmp_path / "out"), load_catalog()
    checks = {check.name: check for check in verify_static(artifact, expectation(artifact, catalog), catalog).checks}
    assert checks["packs"].outcome is CheckOutcome.FAIL
    assert checks["packs"].reason.startswith("The pack of libtorch_cuda.so for sm90 is damaged: the checksum")


def test_what_the_commands_say(tmp_path: Path, fat: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    hook_library(ElfMachine.X86_64, HookKind.NEEDED)  # skips where there is none
    content = {"torch/__init__.py": b"", "torch/lib/libtorch_cuda.so": fat, "torch/include/a.h": b"int a;"}
    wheel = build_wheel(tmp_path, content, name="torch", version="2.10.0", tag="cp313-cp313-manylinux_2_28_x86_64")
    site = tmp_path / "env" / "lib" / "python3.13" / "site-packages"
    install(wheel, site)
    assert run_command("tailor", ["--env", str(tmp_path / "env"), "--gpu", "9.0", "--dry-run"]) == 0
    assert "would be cut in place" in capsys.readouterr().out
    write_trace(tmp_path / "a.trace", Trace(opened=("torch/__init__.py",)))
    words = [str(wheel), "--gpu", "9.0", "--workload", str(tmp_path / "a.trace"), "--drop-unopened", "--dry-run"]
    assert run_command("tailor", words) == 0
    assert "(--drop-unopened)" in " ".join(capsys.readouterr().out.split())
    assert run_command("tailor", [str(wheel), "--gpu", "8.0,9.0", "--split", "-o", str(tmp_path / "out")]) == 0
    assert "of 1 library is in packs. For sm80:" in " ".join(capsys.readouterr().out.split())
    (host,) = (tmp_path / "out").glob("torch-*.whl")
    assert run_command("inspect", [str(host), "--gpu", "9.0"]) == 0
    assert "in 1 library is in packs and not counted here" in " ".join(capsys.readouterr().out.split())


def test_what_is_split_is_not_cut_again(tmp_path: Path, wheel: Path) -> None:
    host = tailor_wheel(wheel, tmp_path / "out", split()).output
    assert host is not None
    (library,) = (one for one in tailor_wheel(host, tmp_path / "again", split()).libraries if one.warnings)
    assert "or split" in library.warnings[0]


def test_a_container_that_the_gpu_does_not_use_is_in_the_pack_and_empty(tmp_path: Path, wheel: Path) -> None:
    """So that the driver answers as it does on stock, without a sentence about packs."""
    nothing = split("3.5")
    (tmp_path / "libx.so").write_bytes(zipfile.ZipFile(wheel).read("torch/lib/libtorch_cuda.so"))
    library = tailor_library(
        tmp_path / "libx.so", tmp_path / "y.so", nothing, pack=PackPlace(tmp_path / "packs", "packs")
    )
    with open_pack(tmp_path / "packs" / library.pack) as pack:
        assert pack.rows
        assert [len(pack.container(row).entries) for row in pack.rows] == [0] * len(pack.rows)
        assert len({row.offset for row in pack.rows}) == 1


def test_the_proof_finds_a_pack_that_lacks_code(tmp_path: Path, wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        moved, "_content", lambda _source, _images: iter([bytes.fromhex("50ed55ba01001000") + bytes(8)])
    )
    with pytest.raises(CheckFailedError):
        tailor_wheel(wheel, tmp_path / "out", split())
    assert not list((tmp_path / "out").glob("*.whl"))


def test_an_environment_is_not_split_in_place(tmp_path: Path, wheel: Path) -> None:
    install(wheel, tmp_path / "env" / "lib" / "python3.13" / "site-packages")
    with pytest.raises(UsageError, match="not split in place"):
        inputs.tailor_inputs([], split(), env=tmp_path / "env")


def test_what_does_not_go_with_it() -> None:
    workload = TracedWorkload(Trace(opened=("x",)))
    for more in ({"workload": workload}, {"recompress": True}):
        with pytest.raises(UsageError, match="--split"):
            split(**more)
    with pytest.raises(UsageError, match="--split"):
        split("9.0+PTX")


@pytest.mark.parametrize("how", ["wheel", "folder", "library", "environment"])
@pytest.mark.parametrize("missing", ["patchelf", "hook"])
def test_what_is_not_installed_is_said_before_anything_is_written(
    tmp_path: Path, wheel: Path, monkeypatch: pytest.MonkeyPatch, how: str, missing: str
) -> None:
    def absent(*_: object) -> None:
        raise EnvironmentProblem(f"no {missing}.", "Install it.")

    monkeypatch.setattr(packing, "patchelf" if missing == "patchelf" else "hook_library", absent)
    site = tmp_path / "env" / "lib" / "python3.13" / "site-packages"
    install(wheel, site)
    chosen = replace(options(), workload=TracedWorkload(Trace(opened=("x",))))
    before = tree(tmp_path / "env")
    out = tmp_path / "a" / "out"
    with pytest.raises(EnvironmentProblem, match=missing):
        match how:
            case "wheel":
                tailor_wheel(wheel, out, chosen)
            case "folder":
                tailor_folder(tmp_path / "env", out, chosen)
            case "library":
                tailor_file(site / "torch" / "lib" / "libtorch_cuda.so", out / "libx.so", chosen)
            case "environment":
                tailor_environment(site, chosen)
    assert not (tmp_path / "a").exists()
    assert tree(tmp_path / "env") == before


def test_a_folder_for_packs_with_a_colon(tmp_path: Path) -> None:
    workload = TracedWorkload(Trace(opened=("x",)))
    with pytest.raises(UsageError, match="colon"):
        replace(options(), workload=workload, packs=tmp_path / "a:b")


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("body", ["", "\n\nA description\n\nVersion: none\n"])
def test_more_lines_in_metadata(newline: str, body: str) -> None:
    text = f"Metadata-Version: 2.1\nName: torch\nVersion: 2.10.0{body}".replace("\n", newline)
    changed = with_lines(text.encode(), ["Provides-Extra: sm90", 'Requires-Dist: torch-gpu-sm90==1; extra == "sm90"'])
    assert Metadata.parse(changed, "x").requires == ('torch-gpu-sm90==1; extra == "sm90"',)
    assert changed.decode().rstrip().endswith("Version: none" if body else '"sm90"')


def test_gpus_of_extras_are_those_that_the_code_serves(tmp_path: Path, wheel: Path) -> None:
    result = tailor_wheel(wheel, tmp_path / "out", split())
    assert result.output is not None
    with zipfile.ZipFile(result.output) as archive:
        (name,) = [one for one in archive.namelist() if one.endswith("METADATA")]
        lines = archive.read(name).decode().splitlines()
    extras = {line.removeprefix("Provides-Extra: ") for line in lines if line.startswith("Provides-Extra: sm")}
    known = {gpu.sm for gpu in load_catalog().gpus}
    assert {"sm80", "sm90"} <= extras <= known
    assert "sm35" not in extras
    shutil.rmtree(tmp_path / "out")


def test_inspect_of_split_libraries_names_the_packs(
    tmp_path: Path, fat: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without GPU code of their own, they are not called useless."""
    for name in ("liba.so", "libb.so"):
        (tmp_path / name).write_bytes(fat)
        tailor_file(tmp_path / name, tmp_path / "out" / name, split("9.0"))
    assert run_command("inspect", [str(tmp_path / "out" / "liba.so"), "--gpu", "9.0"]) == 0
    said = capsys.readouterr().out
    assert "is in packs" in said and "On 9.0: nothing" not in said and "would save 0 B" in said
    assert run_command("inspect", [str(tmp_path / "out"), "--gpu", "9.0"]) == 0
    said = capsys.readouterr().out
    assert "in packs" in said and "nothing" not in said


@pytest.mark.parametrize("more", [{"packs": Path("packs")}, {"no_pack": True}, {"drop_unopened": True}])
def test_options_of_workloads_are_refused_without_naming_traces(more: dict[str, object]) -> None:
    with pytest.raises(UsageError) as refused:
        split("9.0", **more)
    assert "--split" in refused.value.message and "--workload" not in refused.value.message + refused.value.hint


def test_verify_speaks_of_the_package_that_was_split(tmp_path: Path, fat: bytes) -> None:
    wheel = build_wheel(tmp_path, {"demo/libdemo.so": fat}, name="demo-gpu", version="1.0")
    host = tailor_wheel(wheel, tmp_path / "out", split()).output
    assert host is not None
    catalog, artifact = load_catalog(), open_artifact(host)
    proof = verify_static(artifact, expectation(artifact, catalog), catalog)
    checks = {check.name: check.reason for check in proof.checks}
    assert "the libraries hold none themselves: it is in packs" in checks["GPU code"]
    assert (
        "1 library was split: the code for each GPU is in a package of its own" in checks["GPU code: nothing foreign"]
    )
    assert "such as demo-gpu[sm90]" in checks["packs"]
