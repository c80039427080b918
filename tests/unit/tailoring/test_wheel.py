"""A tailored wheel: right in every table, the same every time, and the input untouched."""

from __future__ import annotations

import hashlib
import json
import stat
import sysconfig
import zipfile
from pathlib import Path

import pytest
from packaging.utils import parse_wheel_filename

from tests.calling import call
from tests.unit.gpucode.builders import FIXTURES, Entry, Place, container, cubin, elf
from tests.unit.surgery.libraries import Recipe, library
from tests.unit.tailoring.helpers import options
from tests.unit.wheels.builder import build_wheel
from torchtailor.cli._dispatch import run_command
from torchtailor.core.documents import plain
from torchtailor.core.errors import BadInputError, EnvironmentProblem, ExitCode, ImpossibleError, UsageError
from torchtailor.surgery.result import LibraryResult, LibraryStatus
from torchtailor.tailoring.folder import tailor_file
from torchtailor.tailoring.wheel import WheelOrder, _effort, tailor_wheel, tailor_wheel_each
from torchtailor.trees.wheels.archive import WheelArchive
from torchtailor.trees.wheels.deflate import Effort
from torchtailor.trees.wheels.distribution import WheelDistribution


@pytest.fixture
def wheel(tmp_path: Path, fat: bytes) -> Path:
    files = {
        "torch/__init__.py": b"x = 1\n",
        "torch/version.py": b"__version__ = '2.10.0+cu128'\n",
        "torch/lib/libtorch_cuda.so": fat,
        "torch/lib/libtorch.so.txt": b"not a library",
        "torch-2.10.0.data/scripts/tool": b"#!python\n",
    }
    modes = {"torch/lib/libtorch_cuda.so": stat.S_IFREG | 0o755}
    tag = "cp313-cp313-manylinux_2_28_x86_64"
    folder = tmp_path / "in"
    folder.mkdir()
    return build_wheel(folder, files, name="torch", version="2.10.0", tag=tag, build="3", modes=modes)


def check_wheel(path: Path) -> None:
    """Read it as strictly as an input."""
    with WheelArchive(path) as archive:
        distribution = WheelDistribution.of(archive)
        for member in archive.files:
            distribution.check(member)


def test_everything_in_it(tmp_path: Path, wheel: Path, fat: bytes) -> None:
    before = wheel.read_bytes()
    outcome = tailor_wheel(wheel, tmp_path / "out", options())
    assert wheel.read_bytes() == before
    assert outcome.output is not None
    assert outcome.output.name == "torch-2.10.0+cu128.sm90-3-cp313-cp313-manylinux_2_28_x86_64.whl"
    assert str(parse_wheel_filename(outcome.output.name)[1]) == "2.10.0+cu128.sm90"
    check_wheel(outcome.output)
    with zipfile.ZipFile(outcome.output) as archive:
        names = archive.namelist()
        info = "torch-2.10.0+cu128.sm90.dist-info"
        assert names[-2:] == [f"{info}/torchtailor.json", f"{info}/RECORD"]
        assert "torch-2.10.0+cu128.sm90.data/scripts/tool" in names
        metadata = archive.read(f"{info}/METADATA").decode()
        assert "Version: 2.10.0+cu128.sm90\n" in metadata
        assert metadata.endswith("Long text\nVersion: 9\n")  # only the header's line is the version
        assert archive.read("torch/version.py") == b"__version__ = '2.10.0+cu128'\n"
        assert archive.read("torch/lib/libtorch.so.txt") == b"not a library"
        cut = archive.read("torch/lib/libtorch_cuda.so")
        assert len(cut) < len(fat)
        assert archive.getinfo("torch/lib/libtorch_cuda.so").external_attr >> 16 == stat.S_IFREG | 0o755
        document = json.loads(archive.read(f"{info}/torchtailor.json"))
    (row,) = document["libraries"]
    assert row["sha256_before"] == hashlib.sha256(fat).hexdigest()
    assert row["sha256_after"] == hashlib.sha256(cut).hexdigest()
    assert (row["size_before"], row["size_after"]) == (len(fat), len(cut))
    assert "sm_90a" in row["kept"] and "sm_75" in row["dropped"]
    assert document["target"]["gpus"] == ["9.0"]
    assert document["input"]["sha256"] == hashlib.sha256(before).hexdigest()
    assert document["policy"] == {"nvidia": False, "recompress": None, "strip": True}
    assert str(tmp_path) not in json.dumps(document)


def test_the_same_bytes_every_time(tmp_path: Path, wheel: Path) -> None:
    first = tailor_wheel(wheel, tmp_path / "one", options())
    second = tailor_wheel(wheel, tmp_path / "two", options(processes=1))
    assert first.output and second.output
    assert first.output.read_bytes() == second.output.read_bytes()
    assert first.sha256_after == hashlib.sha256(first.output.read_bytes()).hexdigest()


def test_nothing_else_is_left_in_the_output_folder(tmp_path: Path, wheel: Path) -> None:
    outcome = tailor_wheel(wheel, tmp_path / "out", options())
    assert list((tmp_path / "out").iterdir()) == [outcome.output]


def test_cutting_again_replaces_the_label(tmp_path: Path, wide: bytes) -> None:
    files = {"torch/version.py": b"__version__ = '2.10.0+cu128'\n", "torch/lib/libx.so": wide}
    wheel = build_wheel(tmp_path, files, name="torch", version="2.10.0")
    first = tailor_wheel(wheel, tmp_path / "one", options("8.0,9.0"))
    assert first.output and "+cu128.sm80.sm90-" in first.output.name
    second = tailor_wheel(first.output, tmp_path / "two", options("9.0"))
    assert second.output and "+cu128.sm90-" in second.output.name
    check_wheel(second.output)
    direct = tailor_wheel(wheel, tmp_path / "three", options("9.0"))
    assert direct.output
    with zipfile.ZipFile(second.output) as twice, zipfile.ZipFile(direct.output) as once:
        assert twice.read("torch/lib/libx.so") == once.read("torch/lib/libx.so")


def test_nvidias_are_left_without_consent(tmp_path: Path, fat: bytes) -> None:
    licence = "NVIDIA Proprietary Software"
    files = {"nvidia/cublas/lib/libcublas.so.12": fat}
    wheel = build_wheel(tmp_path, files, name="nvidia-cublas-cu12", version="12.8.4.1", licence=licence)
    outcome = tailor_wheel(wheel, tmp_path / "out", options())
    assert outcome.output and outcome.output.read_bytes() == wheel.read_bytes()
    assert outcome.libraries[0].status is LibraryStatus.NEEDS_NVIDIA_OPTION
    assert outcome.could_save > 10_000
    agreed = tailor_wheel(wheel, tmp_path / "out", options(nvidia=True))
    assert agreed.output and agreed.output.name.startswith("nvidia_cublas_cu12-12.8.4.1+sm90-")
    assert agreed.libraries[0].size_before - agreed.libraries[0].size_after == outcome.could_save


def test_wheel_without_gpu_code_is_copied(tmp_path: Path) -> None:
    wheel = build_wheel(tmp_path, {"demo/a.py": b"1"})
    outcome = tailor_wheel(wheel, tmp_path / "out", options())
    assert outcome.output == tmp_path / "out" / wheel.name
    assert outcome.output.read_bytes() == wheel.read_bytes()
    same_place = tailor_wheel(wheel, tmp_path, options())
    assert same_place.output == wheel


def test_dry_run_writes_nothing(tmp_path: Path, wheel: Path) -> None:
    outcome = tailor_wheel(wheel, tmp_path / "out" / "deep", options(dry_run=True))
    assert outcome.output is None
    assert outcome.changed
    assert not (tmp_path / "out").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_nothing_for_the_target(tmp_path: Path, wheel: Path) -> None:
    outcome = tailor_wheel(wheel, tmp_path / "out", options("5.0"))
    assert outcome.useless_for_target
    assert outcome.output is None
    assert list((tmp_path / "out").iterdir()) == []


def test_a_damaged_library_is_skipped_and_said(tmp_path: Path, fat: bytes) -> None:
    files = {"demo/good.so": fat, "demo/bad.so": fat[: len(fat) // 2], "demo/script.so": b"INPUT(libx.so)"}
    outcome = tailor_wheel(build_wheel(tmp_path, files), tmp_path / "out", options())
    statuses = {library.path: library.status for library in outcome.libraries}
    assert statuses == {"demo/good.so": LibraryStatus.CUT, "demo/bad.so": LibraryStatus.SKIPPED}
    assert outcome.output
    with zipfile.ZipFile(outcome.output) as archive:
        assert archive.read("demo/bad.so") == files["demo/bad.so"]


def test_a_library_that_is_not_what_record_says(tmp_path: Path, fat: bytes) -> None:
    with zipfile.ZipFile(build_wheel(tmp_path, {"demo/a.so": fat, "demo/b.py": b"1"})) as archive:
        record = archive.read("demo-1.0.dist-info/RECORD").decode()
    for files in ({"demo/a.so": fat[:-1] + b"\1", "demo/b.py": b"1"}, {"demo/a.so": fat, "demo/b.py": b"2"}):
        wheel = build_wheel(tmp_path, files, record=record)
        with pytest.raises(BadInputError, match=r"hash .*RECORD"):
            tailor_wheel(wheel, tmp_path / "out", options())
        assert list((tmp_path / "out").iterdir()) == []


def test_output_names(tmp_path: Path, wheel: Path) -> None:
    with pytest.raises(UsageError, match="name follows from its content"):
        tailor_wheel(wheel, tmp_path / "mine-1.0-py3-none-any.whl", options())
    blocked = tmp_path / "file"
    blocked.write_bytes(b"")
    with pytest.raises(EnvironmentProblem, match="file"):
        tailor_wheel(wheel, blocked / "sub", options())


def test_in_processes(tmp_path: Path, fat: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several libraries at once give the same wheel as one after the other."""
    wheel = build_wheel(tmp_path, {f"demo/lib{number}.so": fat for number in range(4)})
    alone = tailor_wheel(wheel, tmp_path / "one", options(processes=1))
    monkeypatch.setattr("torchtailor.core.processes._WORTH_PROCESSES", 1)
    together = tailor_wheel(wheel, tmp_path / "two", options())
    assert alone.output and together.output
    assert alone.output.read_bytes() == together.output.read_bytes()


def test_a_wheel_is_not_made_anew_for_symbol_tables_alone(tmp_path: Path) -> None:
    """Without GPU code there is nothing to label; with --strip the user asked for it."""
    symbols = next((path for path in _libraries() if b".symtab" in path.read_bytes()), None)
    if symbols is None:
        pytest.skip("no installed library has a symbol table")
    wheel = build_wheel(tmp_path, {"demo/libx.so": symbols.read_bytes()})
    assert tailor_wheel(wheel, tmp_path / "one", options()).output == tmp_path / "one" / wheel.name
    stripped = tailor_wheel(wheel, tmp_path / "two", options(strip=True))
    assert stripped.libraries[0].status is LibraryStatus.STRIPPED
    assert stripped.output and stripped.output.name == "demo-1.0+tailored-py3-none-any.whl"


def test_what_strip_would_save_is_always_reported(tmp_path: Path) -> None:
    symbols = library(Recipe(symtab=True))
    wheel = build_wheel(tmp_path, {"demo/libx.so": symbols})
    unchanged = tailor_wheel(wheel, tmp_path / "one", options())
    stripped = tailor_wheel(wheel, tmp_path / "two", options(strip=True))
    assert unchanged.could_strip == stripped.libraries[0].saved > 0
    assert stripped.could_strip == 0
    assert tailor_wheel(wheel, tmp_path / "three", options(strip=False)).could_strip > 0
    assert unchanged.document.could_strip == unchanged.could_strip
    proprietary = build_wheel(tmp_path, {"demo/libcublas.so.12": symbols})
    assert tailor_wheel(proprietary, tmp_path / "four", options()).could_strip == 0


def test_an_old_driver_is_refused_what_it_cannot_read(tmp_path: Path, fat: bytes) -> None:
    """Drivers before 550.54 do not read zstd, whoever compressed it."""
    zstd = (FIXTURES / "size.so").read_bytes()
    wheel = build_wheel(tmp_path, {"demo/libx.so": zstd})
    with pytest.raises(ImpossibleError, match=r"demo/libx\.so.* sm_90a .*zstd.* 550\.54 .* 525\.60"):
        tailor_wheel(wheel, tmp_path / "one", options(driver="525.60"))
    assert not list((tmp_path / "one").glob("*.whl"))
    assert tailor_wheel(wheel, tmp_path / "two", options(driver="550.54.14")).output
    lz4 = build_wheel(tmp_path, {"demo/libx.so": (FIXTURES / "speed.so").read_bytes()})
    assert tailor_wheel(lz4, tmp_path / "three", options(driver="525.60")).output
    with pytest.raises(UsageError, match="driver"):
        options(driver="new")


def test_programs_with_gpu_code_are_cut_and_others_are_not_touched(tmp_path: Path, fat: bytes) -> None:
    """What `inspect` counts is cut: nvCOMP's programs hold as much GPU code as its library."""
    files = {
        "demo/libx.so": fat,
        "demo/bin/tool": fat,
        "demo/bin/plain": library(Recipe(program=True)),
        "demo/bin/installer": fat + b"its own data",
        "demo/one.cubin": fat[:18] + b"\xbe\0" + fat[20:],
    }
    outcome = tailor_wheel(build_wheel(tmp_path, files), tmp_path / "out", options())
    assert [one.path for one in outcome.changed] == ["demo/bin/tool", "demo/libx.so"]
    tool, shared = outcome.changed
    assert tool.dropped == shared.dropped
    assert (tool.stripped, tool.could_strip) == ((), 0)
    assert outcome.output
    check_wheel(outcome.output)
    with zipfile.ZipFile(outcome.output) as archive:
        for name in ("demo/bin/plain", "demo/bin/installer", "demo/one.cubin"):
            assert archive.read(name) == files[name]


def test_programs_of_nvidia_keep_every_minor_as_its_libraries_do(tmp_path: Path) -> None:
    """As nvCOMP's nvlzcat: it is not named as a library of NVIDIA's."""
    code = container(*(Entry(cubin(str(sm)) + bytes(50_000), sm=sm) for sm in (80, 86, 90)))
    program = elf(Place(".nv_fatbin", code))
    licence = "NVIDIA Proprietary Software"
    wheel = build_wheel(tmp_path, {"nvidia/bin/nvlzcat": program}, name="nvidia-x", licence=licence)
    outcome = tailor_wheel(wheel, tmp_path / "out", options("8.9", nvidia=True, dry_run=True))
    assert [list(one.kept) for one in outcome.libraries] == [["sm_80", "sm_86"]]
    other = build_wheel(tmp_path, {"demo/bin/nvlzcat": program})
    outcome = tailor_wheel(other, tmp_path / "out", options("8.9", dry_run=True))
    assert [list(one.kept) for one in outcome.libraries] == [["sm_86"]]


def test_manifest_names_libraries_as_they_are_in_the_new_wheel(tmp_path: Path, fat: bytes) -> None:
    places = ("purelib/demo/libx.so", "data/lib/liby.so", "platlib/libz.so")
    wheel = build_wheel(tmp_path, {f"demo-1.0.data/{place}": fat for place in places})
    outcome = tailor_wheel(wheel, tmp_path / "out", options())
    assert outcome.output
    with zipfile.ZipFile(outcome.output) as archive:
        document = json.loads(archive.read("demo-1.0+sm90.dist-info/torchtailor.json"))
        rows = document["libraries"]
        assert {row["path"] for row in rows} == {f"demo-1.0+sm90.data/{place}" for place in places}
        for row in rows:
            assert hashlib.sha256(archive.read(row["path"])).hexdigest() == row["sha256_after"]


def _libraries() -> list[Path]:
    return sorted(Path(sysconfig.get_path("platlib")).glob("*/*.so"))


def test_gpu_code_that_all_stays_is_no_cut(tmp_path: Path, fat: bytes) -> None:
    """A wheel already cut for the target has nothing more to cut: it is copied, not labelled anew."""
    first = tailor_wheel(build_wheel(tmp_path, {"demo/libx.so": fat}), tmp_path / "one", options(strip=False))
    assert first.output
    second = tailor_wheel(first.output, tmp_path / "two", options())
    assert second.output == tmp_path / "two" / first.output.name
    assert second.output.read_bytes() == first.output.read_bytes()


def test_recompression_is_done_and_written_down(tmp_path: Path, fat: bytes) -> None:
    wheel = build_wheel(tmp_path, {"demo/libx.so": fat})
    plain = tailor_wheel(wheel, tmp_path / "one", options("8.0,9.0,10.0"))
    how = options("8.0,9.0,10.0", recompress=True, level=3, driver="550.54.14", image_cache=tmp_path / "cache")
    packed = tailor_wheel(wheel, tmp_path / "two", how)
    assert packed.output and packed.libraries[0].size_after < plain.libraries[0].size_after
    check_wheel(packed.output)
    with zipfile.ZipFile(packed.output) as archive:
        document = json.loads(archive.read("demo-1.0+sm80.sm90.sm100.dist-info/torchtailor.json"))
    assert document["policy"]["recompress"] == {"driver": "550.54.14", "level": 3}
    assert document["libraries"][0]["recompressed"]["images"] > 0
    again = tailor_wheel(wheel, tmp_path / "three", how)
    assert again.output and again.output.read_bytes() == packed.output.read_bytes()


def test_dropped_files_are_gone_from_wheel_and_record(tmp_path: Path, fat: bytes) -> None:
    files = {
        "demo/libx.so": fat,
        "demo/lib/libx.a": b"!<arch>\n" * 9,
        "demo/lib/x.py": b"",
        "demo/include/x.h": b"int x;",
    }
    wheel = build_wheel(tmp_path, files)
    outcome = tailor_wheel(wheel, tmp_path / "out", options(drop=("static-libs",)))
    assert outcome.output
    check_wheel(outcome.output)
    with zipfile.ZipFile(outcome.output) as archive:
        names = archive.namelist()
        document = json.loads(archive.read("demo-1.0+sm90.dist-info/torchtailor.json"))
    assert "demo/lib/libx.a" not in names and {"demo/lib/x.py", "demo/include/x.h"} <= set(names)
    assert document["policy"]["drop"] == ["static-libs"]
    assert document["dropped_files"] == [{"path": "demo/lib/libx.a", "rule": "static-libs", "size": 72}]
    planned = tailor_wheel(wheel, tmp_path / "none", options(drop=("static-libs",), dry_run=True))
    assert planned.dropped_files == outcome.dropped_files and not (tmp_path / "none").exists()


def test_a_library_that_is_dropped_is_not_cut(tmp_path: Path, fat: bytes) -> None:
    """Also where nothing else is cut, and once for each target that lets it go."""
    cupti = "triton/backends/nvidia/lib/cupti/libcupti.so"
    wheel = build_wheel(tmp_path, {cupti: fat, "triton/__init__.py": b""}, name="triton")
    outcome = tailor_wheel(wheel, tmp_path / "out", options(drop=("triton-profiler", "headers")))
    assert (outcome.libraries, [file.path for file in outcome.dropped_files]) == ((), [cupti])
    assert outcome.output and outcome.output.name == "triton-1.0+tailored-py3-none-any.whl"
    check_wheel(outcome.output)
    tools = {f"triton/backends/nvidia/bin/{name}": fat for name in ("ptxas", "ptxas-blackwell")}
    (tmp_path / "two").mkdir()
    says = (
        b"def get_ptxas(arch: int):\n    return knobs.nvidia.ptxas_blackwell if arch >= 100 else knobs.nvidia.ptxas\n"
    )
    code = {"triton/backends/nvidia/compiler.py": says}
    wheel = build_wheel(tmp_path / "two", {"triton/libx.so": fat, **tools, **code}, name="triton")
    orders = [WheelOrder(tmp_path / gpu, options(gpu, drop=("ptxas-copies",))) for gpu in ("8.0", "9.0", "12.0")]
    made = tailor_wheel_each(wheel, orders)
    gone = [[file.path.rsplit("/", 1)[-1] for file in one.dropped_files] for one in made]
    assert gone == [["ptxas-blackwell"], ["ptxas-blackwell"], ["ptxas"]]
    for one in made:
        assert one.output
        check_wheel(one.output)


def test_a_label_names_a_gpu_only_if_something_was_taken_out_for_it(tmp_path: Path, fat: bytes) -> None:
    symbols = {"demo/libx.so": library(Recipe(symtab=True)), "demo/libx.a": b"!<arch>\n" * 9}
    for more in ({"strip": True}, {"drop": ("static-libs",)}):
        made = tailor_wheel(build_wheel(tmp_path, symbols), tmp_path / "out", options(**more)).output
        assert made and made.name == "demo-1.0+tailored-py3-none-any.whl"
        check_wheel(made)
        with zipfile.ZipFile(made) as archive:
            assert "Version: 1.0+tailored\n" in archive.read("demo-1.0+tailored.dist-info/METADATA").decode()
            document = json.loads(archive.read("demo-1.0+tailored.dist-info/torchtailor.json"))
        assert document["target"]["label"] == "tailored"
        assert document["output"] == {"name": made.name, "version": "1.0+tailored"}
        again = tailor_wheel(made, tmp_path / "again", options(strip=True)).output
        assert again and again.name == made.name  # an earlier label is not there twice
    wheel = build_wheel(tmp_path, {"demo/libx.so": fat, "demo/libx.a": b"!<arch>\n" * 9})
    cut = tailor_wheel(wheel, tmp_path / "cut", options()).output
    assert cut and "+sm90-" in cut.name
    less = tailor_wheel(cut, tmp_path / "less", options(drop=("static-libs",))).output  # which still is for that GPU
    assert less and less.name == cut.name
    with zipfile.ZipFile(less) as archive:
        assert "demo/libx.a" not in archive.namelist()


def test_a_wheel_from_which_little_is_taken_is_packed_as_hard_as_it_was() -> None:
    """nvidia-cuda-cupti-cu12 was 9 % larger with --relr than without: quick packing lost more than that gained."""
    little = [LibraryResult(LibraryStatus.STRIPPED, 40_000_000, 38_000_000)]
    much = [LibraryResult(LibraryStatus.CUT, 1_044_000_000, 229_000_000)]
    zeroed = [LibraryResult(LibraryStatus.CUT, 300_000_000, 300_000_000, zeroed=200_000_000)]
    small = [LibraryResult(LibraryStatus.CUT, 9_000_000, 1_000_000)]
    assert _effort(options(), little) is Effort.SMALL
    assert _effort(options(), much) is Effort.FAST
    assert _effort(options(), zeroed) is Effort.FAST
    assert _effort(options(), small) is Effort.SMALL
    assert _effort(options(recompress=True), much) is Effort.SMALL


@pytest.mark.parametrize(("ptx", "label"), [(True, "+sm90.ptx"), (False, "+sm90")])
def test_the_label_says_ptx_only_if_there_was_some_to_keep(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], ptx: bool, label: str
) -> None:
    kept = [Entry(b"\x44" * 3000, kind=1, sm=90)] if ptx else []
    code = container(Entry(b"\x11" * 90000, sm=80), Entry(b"\x22" * 3000, sm=90), *kept)
    wheel = build_wheel(tmp_path, {"demo/libdemo.so": elf(Place(".nv_fatbin", code))})
    command = [str(wheel), "--gpu", "9.0", "--keep-ptx", "-o", f"{tmp_path / 'out'}"]
    assert run_command("tailor", command) == 0
    (made,) = (tmp_path / "out").iterdir()
    assert made.name == f"demo-1.0{label}-py3-none-any.whl"
    told = "There was no PTX to keep in the libraries of demo-1.0-py3-none-any.whl."
    assert (told in " ".join(capsys.readouterr().out.split())) is not ptx


def test_a_dry_run_does_not_know_what_only_a_finished_wheel_has(tmp_path: Path, fat: bytes) -> None:
    wheel = build_wheel(tmp_path, {"demo/libdemo.so": fat})
    row = plain(tailor_wheel(wheel, tmp_path / "out", options("9.0", dry_run=True)).document)
    assert (row["size_after"], row["sha256_after"]) == (None, None)
    assert row["sha256_before"] == hashlib.sha256(wheel.read_bytes()).hexdigest()
    assert row["libraries"][0]["sha256_after"] is None


@pytest.mark.parametrize("dry_run", [True, False])
def test_the_hashes_of_a_library_that_is_not_changed(tmp_path: Path, dry_run: bool) -> None:
    stock = elf(Place(".nv_fatbin", container(Entry(b"\x22" * 3000, sm=90))))
    (tmp_path / "libx.so").write_bytes(stock)
    how = options("9.0", dry_run=dry_run)
    row = plain(tailor_file(tmp_path / "libx.so", tmp_path / "out.so", how).document)
    assert row["libraries"][0]["status"] == "unchanged"
    assert row["sha256_before"] == row["sha256_after"] == hashlib.sha256(stock).hexdigest()


class TestCutForAnotherBefore:
    """A library that lost its code for the target by an earlier cut is refused, whatever the others still have."""

    def test_wheels_and_folders(self, tmp_path: Path) -> None:
        files = {"demo/a.so": (FIXTURES / "raw.so").read_bytes(), "demo/b.so": only_80()}
        first = call("tailor", build_wheel(tmp_path, files), "--gpu", "9.0", "-o", f"{tmp_path}/9.0/")
        assert first.returncode == 0, first.stderr
        (cut,) = (tmp_path / "9.0").iterdir()
        (tmp_path / "stock").mkdir()
        for name, data in files.items():
            (tmp_path / "stock" / Path(name).name).write_bytes(data)
        assert call("tailor", tmp_path / "stock", "--gpu", "9.0", "-o", tmp_path / "cut").returncode == 0
        for source in (cut, tmp_path / "cut"):
            done = call("tailor", source, "--gpu", "8.0", "-o", f"{tmp_path}/8.0/")
            assert done.returncode == ExitCode.IMPOSSIBLE
            assert "a.so lost its code for 8.0" in done.stderr
            assert not (tmp_path / "8.0").exists()
            again = call("tailor", source, "--gpu", "9.0", "-o", f"{tmp_path}/again-{source.stem}/")
            assert again.returncode == 0, again.stderr


def only_80() -> bytes:
    return elf(Place(".nv_fatbin", container(Entry(b"\x7fELF" + bytes(60), sm=80))))
