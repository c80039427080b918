"""What the command line says and does, from its words to its exit code."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.unit.gpucode.builders import Entry, cubin
from tests.unit.surgery.libraries import Recipe
from tests.unit.surgery.libraries import library as build_library
from tests.unit.tailoring.helpers import install, tree
from tests.unit.wheels.builder import build_wheel
from torchtailor.cli import main
from torchtailor.core.errors import ExitCode, ImpossibleError, NoMatchError, UsageError
from torchtailor.core.format import human_bytes
from torchtailor.surgery.result import LibraryStatus
from torchtailor.tailoring.inputs import plan_tasks, tailor
from torchtailor.trees.artifact.artifact import ArtifactKind


@pytest.fixture
def library(tmp_path: Path, fat: bytes) -> Path:
    path = tmp_path / "libx.so"
    path.write_bytes(fat)
    return path


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = main([str(word) for word in words])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_table_and_totals(capsys: pytest.CaptureFixture[str], tmp_path: Path, library: Path) -> None:
    code, out, _ = run(capsys, "tailor", library, "--gpu", "H100", "-o", tmp_path / "out.so")
    assert code == ExitCode.OK
    assert "libx.so" in out and "sm_90a" in out and "45 %" in out
    assert "Saved 27.8 kB of libraries for 9.0" in out


def test_json(capsys: pytest.CaptureFixture[str], tmp_path: Path, library: Path) -> None:
    code, out, _ = run(capsys, "tailor", library, "--gpu", "9.0", "-o", tmp_path / "out.so", "--json")
    document = json.loads(out)
    assert code == ExitCode.OK
    assert document["inputs"][0]["output"] == str(tmp_path / "out.so")
    assert document["inputs"][0]["libraries"][0]["status"] == "cut"
    assert document["target"]["gpus"] == ["9.0"]


def test_nvidia_hint_and_setting(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cublas = library.rename(tmp_path / "libcublas.so.12")
    monkeypatch.chdir(tmp_path)
    code, out, _ = run(capsys, "tailor", cublas, "--gpu", "9.0", "-o", tmp_path / "out")
    assert code == ExitCode.OK
    *_, hint, total = out.splitlines()
    assert "--nvidia would save another 27.8 kB" in hint and "torchtailor help licences" in hint
    assert total.startswith("Saved 0 B")
    (tmp_path / "torchtailor.toml").write_text("[tailor]\nnvidia = true\n")
    code, out, _ = run(capsys, "tailor", cublas, "--gpu", "9.0", "-o", tmp_path / "out2")
    assert code == ExitCode.OK
    assert "--nvidia" not in out and "Saved 27.8 kB" in out


def test_arch_list_of_the_environment_is_used_and_said(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "9.0a")
    code, _, err = run(capsys, "tailor", library, "-o", tmp_path / "out.so")
    assert code == ExitCode.OK
    assert "Target 9.0, from TORCH_CUDA_ARCH_LIST." in err


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["LIB", "-o", "OUT"], ExitCode.USAGE, "No GPU was given"),
        (["LIB", "--gpu", "9.0"], ExitCode.USAGE, "No output was given for libx.so"),
        (["LIB", "--gpu", "9.0", "--env", "."], ExitCode.USAGE, "takes no other PATH"),
        (["--gpu", "9.0", "--env", ".", "-o", "x"], ExitCode.USAGE, "in place"),
        (["LIB", "--gpu", "9.0", "-o", "OUT", "--keep-removed"], ExitCode.USAGE, "--keep-removed is for environments"),
        (["LIB", "--gpu", "9.0", "-o", "OUT", "--drop", "all"], ExitCode.NO_MATCH, "There is no rule all"),
        (["none.so", "--gpu", "9.0", "-o", "OUT"], ExitCode.NO_MATCH, "none.so does not exist"),
        (["LIB", "--gpu", "2.0", "-o", "OUT"], ExitCode.NO_MATCH, "2.0"),
        (["LIB", "--gpu", "5.0", "-o", "OUT"], ExitCode.IMPOSSIBLE, "no GPU code that runs on 5.0"),
        (["TEXT", "--gpu", "9.0", "-o", "OUT"], ExitCode.BAD_INPUT, "text.so"),
        (["LIB", "--gpu", "9.0", "-o", "OUT", "--recompress", "--driver", "535.10"], ExitCode.IMPOSSIBLE, "550.54"),
        (["LIB", "--gpu", "9.0", "-o", "OUT", "--zstd-level", "99"], ExitCode.USAGE, "--zstd-level"),
        (["--gpu", "9.0", "--env", "EMPTY"], ExitCode.NO_MATCH, "no installed Python packages"),
    ],
)
def test_what_goes_wrong_is_said(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, library: Path, words: list[str], code: ExitCode, said: str
) -> None:
    (tmp_path / "text.so").write_text("text")
    (tmp_path / "empty").mkdir()
    places = {"LIB": library, "OUT": tmp_path / "out.so", "TEXT": tmp_path / "text.so", "EMPTY": tmp_path / "empty"}
    actual, _, err = run(capsys, "tailor", *(places.get(word, word) for word in words))
    assert (actual, said in err.replace("\n", " ")) == (code, True), err
    assert "Traceback" not in err
    assert not (tmp_path / "out.so").exists()


def test_in_place_and_back(capsys: pytest.CaptureFixture[str], tmp_path: Path, fat: bytes) -> None:
    site = tmp_path / "env" / "lib" / "python3.13" / "site-packages"
    install(build_wheel(tmp_path, {"torch/libx.so": fat}, name="torch", version="2.10.0"), site)
    before = tree(site)
    code, out, _ = run(capsys, "tailor", "--env", tmp_path / "env", "--gpu", "9.0", "--dry-run")
    assert code == ExitCode.OK and "Would save 27.8 kB" in out and tree(site) == before
    assert "Nothing was written; looking took" in out  # its own time read as an estimate of the cut's
    code, out, _ = run(capsys, "tailor", "--env", tmp_path / "env", "--gpu", "9.0")
    assert code == ExitCode.OK and tree(site) != before
    code, out, _ = run(capsys, "restore", "--env", tmp_path / "env")
    assert code == ExitCode.ENVIRONMENT
    assert "pip install --force-reinstall --no-deps torch==2.10.0" in out
    install(tmp_path / "torch-2.10.0-py3-none-any.whl", site)
    code, out, _ = run(capsys, "tailor", "--env", tmp_path / "env", "--gpu", "9.0", "--keep-removed")
    code, out, _ = run(capsys, "restore", "--env", tmp_path / "env", "--dry-run")
    assert code == ExitCode.OK and "Would restore 1 file" in out
    code, out, _ = run(capsys, "restore", "--env", tmp_path / "env", "--json")
    assert json.loads(out)["environments"][0]["libraries"] == ["torch/libx.so"]
    assert tree(site) == before
    code, out, _ = run(capsys, "restore", "--env", tmp_path / "env")
    assert code == ExitCode.OK and "nothing to restore" in out


def test_many_restored_files_are_not_all_named(capsys: pytest.CaptureFixture[str], tmp_path: Path, fat: bytes) -> None:
    site = tmp_path / "env" / "lib" / "python3.13" / "site-packages"
    files = {"torch/libx.so": fat} | {f"torch/include/{number}.h": b"// c" for number in range(25)}
    install(build_wheel(tmp_path, files, name="torch", version="2.10.0"), site)
    before = tree(site)
    cut = ("tailor", "--env", tmp_path / "env", "--gpu", "9.0", "--drop", "headers", "--keep-removed")
    assert run(capsys, *cut)[0] == ExitCode.OK
    code, out, _ = run(capsys, "restore", "--env", tmp_path / "env")
    assert code == ExitCode.OK and tree(site) == before
    assert "Restored 26 files" in out and "and 6 more, which --json lists" in out and len(out.splitlines()) < 25


def test_several_inputs_and_folders_of_wheels(tmp_path: Path, library: Path, fat: bytes) -> None:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    first = build_wheel(wheels, {"a/x.so": fat}, name="a")
    second = build_wheel(wheels, {"b/x.so": fat}, name="b")
    tasks = plan_tasks([wheels, library], tmp_path / "out")
    assert [(task.kind, task.source) for task in tasks] == [
        (ArtifactKind.WHEEL, first),
        (ArtifactKind.WHEEL, second),
        (ArtifactKind.LIBRARY, library),
    ]
    assert tasks[2].output == tmp_path / "out" / "libx.so"
    (wheels / "sub").mkdir()
    assert plan_tasks([wheels], tmp_path / "out")[0].kind is ArtifactKind.WHEEL
    (wheels / "sub" / "libx.so").write_bytes(fat)
    assert plan_tasks([wheels], tmp_path / "out")[0].kind is ArtifactKind.FOLDER
    with pytest.raises(UsageError, match="2 inputs"):
        plan_tasks([first, second], library)
    with pytest.raises(NoMatchError):
        plan_tasks([], None)


def test_a_slash_at_the_end_of_the_output_means_a_folder(
    tmp_path: Path, fat: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    library = tmp_path / "libfat.so"
    library.write_bytes(fat)
    line = ["tailor", str(library), "--gpu", "9.0", "-o", f"{tmp_path}/new/deep/"]
    assert main([*line, "--dry-run"]) == ExitCode.OK
    assert not (tmp_path / "new").exists()
    assert main(line) == ExitCode.OK
    place = tmp_path / "new" / "deep"
    assert place.is_dir()
    assert (place / "libfat.so").stat().st_size < len(fat)
    (result,) = tailor(library, gpus="9.0", output=f"{tmp_path}/other/")
    assert result.output == tmp_path / "other" / "libfat.so"
    (result,) = tailor(library, gpus="9.0", output=tmp_path / "plain")  # as before: a file
    assert result.output == tmp_path / "plain"
    assert (tmp_path / "plain").is_file()
    assert main([*line[:-1], f"{tmp_path}/plain/"]) == ExitCode.USAGE
    assert "plain is a file, not a folder" in capsys.readouterr().err


def test_a_slash_changes_nothing_for_folders_and_wheels(tmp_path: Path, fat: bytes) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "libfat.so").write_bytes(fat)
    (result,) = tailor(folder, gpus="9.0", output=f"{tmp_path}/out/")
    assert result.output == tmp_path / "out"
    assert (tmp_path / "out" / "libfat.so").is_file()
    wheel = build_wheel(tmp_path, {"demo/libfat.so": fat})
    (result,) = tailor(wheel, gpus="9.0", output=f"{tmp_path}/house/")
    assert result.output is not None and result.output.parent == tmp_path / "house"


def test_a_wheel_goes_to_the_current_folder(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, fat: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = build_wheel(tmp_path, {"demo/x.so": fat})
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert run(capsys, "tailor", wheel, "--gpu", "9.0")[0] == ExitCode.OK
    assert [path.name for path in (tmp_path / "here").iterdir()] == ["demo-1.0+sm90-py3-none-any.whl"]


def test_one_bad_input_does_not_stop_the_others(capsys: pytest.CaptureFixture[str], tmp_path: Path, fat: bytes) -> None:
    good = build_wheel(tmp_path, {"good/x.so": fat}, name="good")
    bad = build_wheel(tmp_path, {"bad/x.so": fat}, name="bad", record="nonsense\n")
    worse = tmp_path / "worse-1.0-py3-none-any.whl"
    worse.write_bytes(b"PK")
    code, out, err = run(capsys, "tailor", bad, worse, good, "--gpu", "9.0", "-o", tmp_path / "out")
    assert code == ExitCode.BAD_INPUT
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["good-1.0+sm90-py3-none-any.whl"]
    assert "RECORD" in err and "worse-1.0" in err and "good/x.so" in out
    code, out, _ = run(capsys, "tailor", bad, good, "--gpu", "9.0", "-o", tmp_path / "out", "--json")
    assert code == ExitCode.BAD_INPUT
    assert [failure["source"] for failure in json.loads(out)["failures"]] == [str(bad)]


def test_wheels_at_the_same_time_give_what_they_give_alone(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, fat: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the order they were named, with the failure of one among them, and nothing else in the output folder."""
    wheels = [build_wheel(tmp_path, {f"{name}/x.so": fat}, name=name) for name in ("large", "small", "tiny")]
    bad = build_wheel(tmp_path, {"bad/x.so": fat}, name="bad", record="nonsense\n")
    run(capsys, "tailor", *wheels, "--gpu", "9.0", "-o", tmp_path / "alone", "--jobs", 1)
    monkeypatch.setattr("torchtailor.core.processes._WORTH_PROCESSES", 1)
    words = [*wheels[:1], bad, *wheels[1:], "--gpu", "9.0", "-o", tmp_path / "together", "--jobs", 3, "--json"]
    code, out, _ = run(capsys, "tailor", *words)
    document = json.loads(out)
    assert code == ExitCode.BAD_INPUT
    assert [one["source"] for one in document["inputs"]] == [str(wheel) for wheel in wheels]
    assert [(one["source"], bool(one["hint"])) for one in document["failures"]] == [(str(bad), True)]
    assert tree(tmp_path / "together") == tree(tmp_path / "alone")
    assert len(tree(tmp_path / "alone")) == 3


def test_ctrl_c_leaves_nothing_of_wheels_that_are_cut_at_the_same_time(tmp_path: Path, fat: bytes) -> None:
    """Workers remove what they have staged before they end."""
    wheels = [build_wheel(tmp_path, {f"{name}/x.so": fat}, name=name) for name in ("a", "b")]
    script = """
import os, sys, time
import torchtailor.core.processes as processes, torchtailor.tailoring.wheel as wheel
from torchtailor.cli import main
processes._WORTH_PROCESSES = 1
def wait(job):
    os.write(1, b"staged\\n")  # at once, so that the lines of two processes do not mix
    time.sleep(600)
wheel._cut = wait
sys.exit(main(sys.argv[1:]))
"""
    words = [sys.executable, "-c", script, "tailor", *map(str, wheels), "--gpu", "9.0", "-o", str(tmp_path / "out")]
    with subprocess.Popen([*words, "--jobs", "2"], stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout
        try:
            assert [process.stdout.readline() for _ in wheels] == [b"staged\n"] * 2
            os.killpg(process.pid, signal.SIGINT)  # as a terminal does
            assert process.wait(60) == ExitCode.INTERRUPTED
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    assert [path for path in tmp_path.rglob("*") if path not in (*wheels, tmp_path / "out")] == []


def test_drop_rules_are_listed_and_what_they_save_is_said(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, fat: bytes
) -> None:
    code, out, _ = run(capsys, "tailor", "--drop", "list")
    assert code == ExitCode.OK and "static-libs" in out and "Triton on AMD GPUs" in out
    assert {rule["name"] for rule in json.loads(run(capsys, "tailor", "--drop", "list", "--json")[1])["rules"]} > {
        "cmake"
    }
    wheel = build_wheel(tmp_path, {"demo/x.so": fat, "demo/libx.a": b"0" * 5000, "demo/include/x.h": b"1" * 700})
    _, out, _ = run(capsys, "inspect", wheel)
    assert "`tailor --drop` could leave out: static-libs 5 kB, headers 700 B." in out
    document = json.loads(run(capsys, "inspect", wheel, "--json")[1])
    assert document["droppable"][0] == {"rule": "static-libs", "files": 1, "size": 5000, "only_with_nvidia": 0}
    words = [
        "tailor",
        wheel,
        "--gpu",
        "9.0",
        "-o",
        tmp_path / "out",
        "--drop",
        "static-libs,headers",
        "--drop",
        "cmake",
    ]
    code, out, _ = run(capsys, *words)
    assert code == ExitCode.OK
    assert "Left out 1 file of 5 kB, libx.a (--drop static-libs)." in out
    assert "Left out 1 file of 700 B, x.h (--drop headers)." in out


def test_from_python(tmp_path: Path, library: Path, fat: bytes) -> None:
    (result,) = tailor(library, gpus=["9.0"], output=tmp_path / "out.so", strip=True)
    assert result.output == tmp_path / "out.so"
    assert result.libraries[0].status is LibraryStatus.CUT
    assert result.size_after == result.output.stat().st_size < len(fat)
    with pytest.raises(ImpossibleError, match=r"no GPU code that runs on 5\.0"):
        tailor(library, gpus=["5.0"], output=tmp_path / "none.so")
    with pytest.raises(UsageError, match="in place"):
        tailor(gpus=["9.0"], env=tmp_path, output=tmp_path / "none.so")


def test_a_dry_run_needs_no_output(capsys: pytest.CaptureFixture[str], tmp_path: Path, library: Path) -> None:
    code, out, _ = run(capsys, "tailor", library, "--gpu", "9.0", "--dry-run")
    assert code == ExitCode.OK
    assert "Would save 27.8 kB" in out
    assert list(tmp_path.iterdir()) == [library]


def test_nothing_saved_is_explained(capsys: pytest.CaptureFixture[str], tmp_path: Path, library: Path) -> None:
    assert run(capsys, "tailor", library, "--gpu", "9.0", "-o", tmp_path / "once.so")[0] == ExitCode.OK
    code, out, _ = run(capsys, "tailor", tmp_path / "once.so", "--gpu", "9.0", "-o", tmp_path / "twice.so")
    assert code == ExitCode.OK
    assert "Saved 0 B" in out
    assert "Nothing is smaller: 1 library: all GPU code is needed" in out


def test_libraries_without_gpu_code_are_not_counted_among_those_that_need_theirs(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    needed = build_library(Recipe(wrapped=[(Entry(cubin("90"), sm=90),)], symtab=False))
    files = {"x/a.so": needed, "x/b.so": needed, "x/host.so": build_library(Recipe(symtab=True))}
    wheel = build_wheel(tmp_path, files, name="x")
    code, out, _ = run(capsys, "tailor", wheel, "--gpu", "9.0", "-o", tmp_path / "out")
    assert code == ExitCode.OK
    why = " ".join(out.split()).partition("Nothing is smaller: ")[2]
    assert why.startswith("2 libraries: all GPU code is needed, or")
    assert "; 1 library: no GPU code." in why


def test_the_environment_of_a_project_is_meant_where_none_is_active(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, fat: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`uvx torchtailor tailor` runs in an environment of its own, which holds nothing to cut."""
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    monkeypatch.delenv("CONDA_PREFIX", raising=False)
    site = tmp_path / "project" / ".venv" / "lib" / "python3.13" / "site-packages"
    install(build_wheel(tmp_path, {"x/libx.so": fat}, name="x"), site)
    (tmp_path / "project" / ".venv" / "pyvenv.cfg").write_text("home = /usr\n")
    (tmp_path / "project" / "src").mkdir()
    monkeypatch.chdir(tmp_path / "project" / "src")
    code, out, _ = run(capsys, "tailor", "--gpu", "9.0")
    assert code == ExitCode.OK
    assert "Saved 27.8 kB" in out
    assert str(site) in out.replace("\n", "")


def test_an_environment_without_gpu_code_is_an_error(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    site = tmp_path / "env" / "lib" / "python3.13" / "site-packages"
    install(build_wheel(tmp_path, {"x/__init__.py": b""}, name="x"), site)
    (tmp_path / "env" / "pyvenv.cfg").write_text("home = /usr\n")
    code, _, err = run(capsys, "tailor", "--env", tmp_path / "env", "--gpu", "9.0")
    assert code == ExitCode.NO_MATCH
    assert "holds no library with GPU code" in err


def test_a_wheel_with_an_unusual_record_is_copied_and_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, fat: bytes
) -> None:
    record = f"x/libx.so,{'a' * 64},{len(fat)}\n"
    wheel = build_wheel(tmp_path, {"x/libx.so": fat}, name="x", record=record)
    code, _, err = run(capsys, "tailor", wheel, "--gpu", "9.0", "-o", tmp_path / "out")
    assert code == ExitCode.OK
    assert "is left unchanged: RECORD holds the hash" in " ".join(err.split())
    assert (tmp_path / "out" / wheel.name).read_bytes() == wheel.read_bytes()


def test_keep_removed_tells_what_the_disk_gained(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, fat: bytes
) -> None:
    site = tmp_path / "env" / "lib" / "python3.13" / "site-packages"
    install(build_wheel(tmp_path, {"x/libx.so": fat}, name="x"), site)
    (tmp_path / "env" / "pyvenv.cfg").write_text("home = /usr\n")
    code, out, _ = run(capsys, "tailor", "--env", tmp_path / "env", "--gpu", "9.0", "--keep-removed")
    kept = sum(path.stat().st_size for path in (site / ".torchtailor" / "removed").iterdir())
    assert code == ExitCode.OK
    assert kept > 0
    assert f"What was cut out is kept ({human_bytes(kept)}): " in out and "of disk were freed" in out


def test_why_relr_had_no_effect_is_said(capsys: pytest.CaptureFixture[str], tmp_path: Path, library: Path) -> None:
    code, out, _ = run(capsys, "tailor", library, "--gpu", "9.0", "--relr", "-o", tmp_path / "out.so")
    said = " ".join(out.split())
    assert code == ExitCode.OK
    assert "--relr packed nothing: 1 library: fewer relative relocations than are worth it" in said
    cublas = tmp_path / "libcublas.so.12"
    cublas.write_bytes(library.read_bytes())
    _, out, _ = run(capsys, "tailor", cublas, "--gpu", "9.0", "--relr", "-o", tmp_path / "new" / "libcublas.so.12")
    assert "--relr packed nothing: 1 library: NVIDIA's own, unchanged without --nvidia." in " ".join(out.split())
    _, out, _ = run(capsys, "tailor", library, "--gpu", "9.0", "--relr", "--dry-run")
    assert "a dry run does not count it" in " ".join(out.split())


def test_libraries_with_nothing_but_ptx_for_the_target_are_counted(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Whether they are cut or not."""
    ptx = Entry(random.Random(1).randbytes(50_000), sm=80, kind=1)
    old = Entry(random.Random(2).randbytes(50_000), sm=80)
    files = {
        "x/cut.so": build_library(Recipe(wrapped=[(old, ptx)], symtab=False, phdr_slack=bytes(600))),
        "x/whole.so": build_library(Recipe(wrapped=[(ptx,)], symtab=False)),
        "x/native.so": build_library(Recipe(wrapped=[(Entry(cubin("90"), sm=90), ptx)], symtab=False)),
    }
    wheel = build_wheel(tmp_path, files, name="x")
    code, out, _ = run(capsys, "tailor", wheel, "--gpu", "9.0", "-o", tmp_path / "out")
    assert code == ExitCode.OK
    assert "2 libraries have no machine code for 9.0, only PTX (x/cut.so, x/whole.so): the" in " ".join(out.split())
    _, out, _ = run(capsys, "tailor", wheel, "--gpu", "9.0", "-o", tmp_path / "out", "--json")
    rows = {row["path"]: row.get("only_ptx") for row in json.loads(out)["inputs"][0]["libraries"]}
    assert rows == {"x/cut.so": ["9.0"], "x/whole.so": ["9.0"], "x/native.so": None}


def test_files_of_nvidias_packages_are_left_out_only_when_asked_for(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, fat: bytes
) -> None:
    files = {"nvidia/x/lib/libx.a": b"0" * 5000, "nvidia/x/lib/libx.so": fat}
    licence = "NVIDIA Proprietary Software"
    wheel = build_wheel(tmp_path, files, name="nvidia-x", licence=licence)
    words = ["tailor", wheel, "--gpu", "9.0", "--drop", "static-libs", "-o", tmp_path / "out"]
    code, out, _ = run(capsys, *words)
    assert code == ExitCode.OK
    assert "Kept 1 file of 5 kB of NVIDIA's packages: --nvidia leaves such files out too" in " ".join(out.split())
    assert (tmp_path / "out" / wheel.name).read_bytes() == wheel.read_bytes()
    (row,) = json.loads(run(capsys, *words, "--json")[1])["inputs"]
    assert (row["could_leave_out"], row["dropped_files"]) == (5000, [])
    code, out, _ = run(capsys, *words, "--nvidia")
    assert code == ExitCode.OK
    assert "Left out 1 file of 5 kB, libx.a" in out and "Kept" not in out
    install(wheel, tmp_path / "site-packages")
    for nvidia in (False, True):
        (result,) = tailor(
            tmp_path / "site-packages", gpus="9.0", drop=["static-libs"], nvidia=nvidia, output=tmp_path / f"{nvidia}"
        )
        assert (tmp_path / f"{nvidia}" / "nvidia/x/lib/libx.a").exists() is not nvidia
        assert bool(result.kept_files) is not nvidia
    for nvidia in (False, True):
        (result,) = tailor(env=tmp_path / "site-packages", gpus="9.0", drop=["static-libs"], nvidia=nvidia)
        assert (tmp_path / "site-packages" / "nvidia/x/lib/libx.a").exists() is not nvidia


@pytest.mark.parametrize("command", ["tailor", "inspect"])
def test_a_library_that_was_cut_short(capsys: pytest.CaptureFixture[str], library: Path, command: str) -> None:
    library.write_bytes(library.read_bytes()[:9000])
    more = ("-o", library.with_name("out.so")) if command == "tailor" else ()
    code, _, err = run(capsys, command, library, "--gpu", "9.0", *more)
    said = " ".join(err.split())
    assert code == ExitCode.BAD_INPUT
    assert f"{library.name}: " in said
    assert "Fetch the library again and compare its hash with the publisher's." in said


def test_a_skipped_library_is_said_with_one_full_stop(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, fat: bytes
) -> None:
    old = bytearray(fat)
    old[4] = 1  # 32-bit
    wheel = build_wheel(tmp_path, {"demo/libdemo.so": fat, "demo/libold.so": bytes(old)})
    _, _, err = run(capsys, "tailor", wheel, "--gpu", "9.0", "-o", tmp_path / "out")
    assert "demo/libold.so is unchanged: The ELF file is not 64-bit." in " ".join(err.split())
    assert ".." not in err


def test_a_damaged_record_is_said_with_the_name_of_its_wheel(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, fat: bytes
) -> None:
    good = build_wheel(tmp_path, {"good/libgood.so": fat}, name="good")
    bad = build_wheel(tmp_path, {"bad/libbad.so": fat}, name="bad", record="bad/libbad.so,sha256=AAAA,9\n")
    code, _, err = run(capsys, "tailor", good, bad, "--gpu", "9.0", "-o", tmp_path / "out")
    assert code == ExitCode.BAD_INPUT
    assert f"{bad.name}: RECORD holds the hash 'sha256=AAAA'" in " ".join(err.split())


def test_what_is_given_twice_is_cut_once(tmp_path: Path, fat: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    wheel = build_wheel(tmp_path, {"demo/libdemo.so": fat})
    assert [task.source for task in plan_tasks([wheel, Path(wheel.name), wheel], tmp_path / "out")] == [wheel]


def test_the_folder_itself_as_output(capsys: pytest.CaptureFixture[str], tmp_path: Path, library: Path) -> None:
    (tmp_path / "tree").mkdir()
    library.rename(tmp_path / "tree" / "libx.so")
    code, _, err = run(capsys, "tailor", tmp_path / "tree", "--gpu", "9.0", "-o", tmp_path / "tree")
    assert code == ExitCode.USAGE
    assert "tree is the folder to copy." in " ".join(err.split())


def test_restore_of_an_environment_that_is_not_there(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, _, err = run(capsys, "restore", "--env", tmp_path / "none")
    said = " ".join(err.split())
    assert code == ExitCode.NO_MATCH
    assert "none does not exist." in said
    assert "Name the folder of an environment that is there." in said and "wheel" not in said


def test_an_empty_zip_is_no_wheel(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "demo-1.0-py3-none-any.whl"
    zipfile.ZipFile(path, "w").close()
    code, _, err = run(capsys, "inspect", path, "--gpu", "9.0")
    assert code == ExitCode.BAD_INPUT
    assert "is an empty zip file, not a wheel." in " ".join(err.split())


def test_restore_says_what_came_here_cut(capsys: pytest.CaptureFixture[str], tmp_path: Path, fat: bytes) -> None:
    """A copy that `tailor -o` made, and a package from a wheel that was cut: "nothing was cut" was not true."""
    wheel = build_wheel(tmp_path, {"demo/lib/libdemo.so": fat}, name="demo", version="1.0")
    install(wheel, stock := tmp_path / "stock" / "lib" / "python3.13" / "site-packages")
    assert run(capsys, "tailor", stock, "-o", tmp_path / "copy", "--gpu", "9.0")[0] == ExitCode.OK
    code, out, _ = run(capsys, "restore", "--env", tmp_path / "copy")
    assert code == ExitCode.ENVIRONMENT and f"{tmp_path / 'copy'} came here as torchtailor had cut it" in out
    assert run(capsys, "tailor", wheel, "-o", tmp_path / "wheels", "--gpu", "9.0")[0] == ExitCode.OK
    (cut,) = (tmp_path / "wheels").glob("*.whl")
    install(cut, tmp_path / "env" / "lib" / "python3.13" / "site-packages")
    code, out, _ = run(capsys, "restore", "--env", tmp_path / "env")
    assert code == ExitCode.ENVIRONMENT and out.startswith("demo==1.0+sm90 came here as torchtailor had cut it")
    code, out, _ = run(capsys, "restore", "--env", tmp_path / "env", "--json")
    assert json.loads(out)["environments"][0]["came_cut"] == ["demo==1.0+sm90"]
