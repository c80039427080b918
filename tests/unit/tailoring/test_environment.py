"""Environments in place: replaced atomically, recorded, restored to the last byte."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import random
import shutil
import struct
import subprocess
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zstandard

from tests.unit.gpucode.builders import Entry, Place, container, elf
from tests.unit.surgery.libraries import Recipe, library
from tests.unit.tailoring.helpers import check_records, install, options, tree
from tests.unit.wheels.builder import build_wheel
from torchtailor.cli import main
from torchtailor.core import disk
from torchtailor.core.disk import locked
from torchtailor.core.errors import BadInputError, CheckFailedError, EnvironmentProblem, ImpossibleError, NoMatchError
from torchtailor.surgery.result import LibraryStatus
from torchtailor.tailoring import in_place, journal
from torchtailor.tailoring.environment import tailor_environment
from torchtailor.tailoring.environment_plan import environment_sites
from torchtailor.tailoring.folder import tailor_file
from torchtailor.tailoring.in_place import InPlace
from torchtailor.tailoring.journal import Change, Journal
from torchtailor.tailoring.restore import restore_environment

NVIDIA = "NVIDIA Proprietary Software"


@pytest.fixture
def site(tmp_path: Path, fat: bytes) -> Path:
    """torch with two libraries, and one of NVIDIA's packages."""
    site = tmp_path / "env" / "lib" / "python3.13" / "site-packages"
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    torch = {"torch/__init__.py": b"", "torch/lib/libtorch_cuda.so": fat, "torch/lib/libtwo.so": fat}
    install(build_wheel(wheels, torch, name="torch", version="2.10.0"), site)
    (site / "torch/lib/libtorch_cuda.so").chmod(0o755)
    cublas = {"nvidia/cublas/lib/libcublas.so.12": fat}
    install(build_wheel(wheels, cublas, name="nvidia-cublas-cu12", version="12.8.4.1", licence=NVIDIA), site)
    install(build_wheel(wheels, {"plain/__init__.py": b""}, name="plain"), site)
    return site


def test_cut_and_recorded(site: Path, fat: bytes) -> None:
    outcome = tailor_environment(site, options())
    statuses = {library.path: library.status for library in outcome.libraries}
    assert statuses == {
        "torch/lib/libtorch_cuda.so": LibraryStatus.CUT,
        "torch/lib/libtwo.so": LibraryStatus.CUT,
        "nvidia/cublas/lib/libcublas.so.12": LibraryStatus.NEEDS_NVIDIA_OPTION,
    }
    assert (site / "torch/lib/libtorch_cuda.so").stat().st_size < len(fat)
    assert (site / "torch/lib/libtorch_cuda.so").stat().st_mode & 0o777 == 0o755
    assert (site / "nvidia/cublas/lib/libcublas.so.12").read_bytes() == fat
    check_records(site)
    document = json.loads((site / "torch-2.10.0.dist-info/torchtailor.json").read_text())
    assert [row["path"] for row in document["libraries"]] == ["torch/lib/libtorch_cuda.so", "torch/lib/libtwo.so"]
    assert document["input"] == {"kind": "environment", "name": "torch", "version": "2.10.0"}
    assert not (site / "nvidia_cublas_cu12-12.8.4.1.dist-info/torchtailor.json").exists()
    assert list((site / ".torchtailor" / "removed").iterdir()) == []


def test_a_second_run_has_nothing_to_do(site: Path) -> None:
    tailor_environment(site, options())
    before = tree(site)
    again = tailor_environment(site, options())
    assert not again.changed
    assert tree(site) == before


@pytest.mark.parametrize("other", [Place(".hip_fatbin", b"__CLANG_OFFLOAD_BUNDLE__"), None])
def test_a_second_run_and_its_dry_run_say_that_it_is_already_cut(
    site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], other: Place | None
) -> None:
    """Also beside what a cut never changes: libraries for ROCm, and one that has nothing for the target."""
    data = elf(other) if other else elf(Place(".nv_fatbin", container(Entry(b"x" * 5000, sm=70))))
    install(build_wheel(tmp_path, {"other/lib.so": data}, name="other"), site)
    command = ["tailor", "--env", str(site.parents[2]), "--gpu", "9.0"]
    assert main(command) == 0
    before = tree(site)
    capsys.readouterr()
    for more in ([], ["--dry-run"]):
        assert main([*command, *more]) == 0
        said = capsys.readouterr()
        assert "2 libraries: it was already cut for this target" in " ".join(said.out.split())
        assert "error" not in said.err
    assert tree(site) == before


def test_a_package_that_is_cut_loses_its_symbol_tables_and_no_other_does(site: Path, tmp_path: Path) -> None:
    """The order of the libraries does not matter: `aaa.so` is done long before GPU code of its package is cut."""
    symbols = library(Recipe(symtab=True))
    fat = (site / "torch/lib/libtwo.so").read_bytes()
    both = {"mixed/aaa.so": symbols, "mixed/mmm.so": fat, "mixed/zzz.so": symbols}
    install(build_wheel(tmp_path / "wheels", both, name="mixed"), site)
    install(build_wheel(tmp_path / "wheels", {"other/aaa.so": symbols}, name="other"), site)
    planned = {
        one.path: (one.status, one.size_after) for one in tailor_environment(site, options(dry_run=True)).libraries
    }
    done = {one.path: one for one in tailor_environment(site, options()).libraries}
    assert {path: (one.status, one.size_after) for path, one in done.items()} == planned
    assert [done[f"mixed/{name}.so"].status for name in ("aaa", "mmm", "zzz")] == [
        LibraryStatus.STRIPPED,
        LibraryStatus.CUT,
        LibraryStatus.STRIPPED,
    ]
    assert (site / "mixed/aaa.so").stat().st_size < len(symbols)
    assert (site / "other/aaa.so").read_bytes() == symbols
    assert done["other/aaa.so"].could_strip > 0
    check_records(site)
    kept = tree(site)
    assert not tailor_environment(site, options()).changed
    assert tree(site) == kept
    assert [one.path for one in tailor_environment(site, options(strip=True)).changed] == ["other/aaa.so"]


def test_a_package_whose_gpu_code_is_nvidias_loses_its_own_symbol_tables(
    site: Path, tmp_path: Path, fat: bytes
) -> None:
    """As Triton: its CUPTI is left alone without --nvidia, its own library is not."""
    symbols = library(Recipe(symtab=True))
    both = {"triton/_C/libtriton.so": symbols, "triton/backends/nvidia/lib/cupti/libcupti.so.12": fat}
    install(build_wheel(tmp_path / "wheels", both, name="triton"), site)
    done = {one.path: one.status for one in tailor_environment(site, options()).libraries}
    assert done["triton/_C/libtriton.so"] is LibraryStatus.STRIPPED
    assert done["triton/backends/nvidia/lib/cupti/libcupti.so.12"] is LibraryStatus.NEEDS_NVIDIA_OPTION
    check_records(site)


def test_nothing_is_stripped_where_nothing_is_for_the_target(tmp_path: Path, fat: bytes) -> None:
    site = tmp_path / "env" / "lib" / "python3.13" / "site-packages"
    (tmp_path / "wheels").mkdir()
    both = {"old/libx.so": fat, "old/liby.so": library(Recipe(symtab=True))}
    install(build_wheel(tmp_path / "wheels", both, name="old"), site)
    before = tree(site)
    assert tailor_environment(site, options("6.0")).useless_for_target
    assert tree(site) == before


def test_symbol_tables_stay_where_asked(site: Path) -> None:
    assert not any(one.stripped for one in tailor_environment(site, options(strip=False)).libraries)


def test_restore_to_the_last_byte(site: Path) -> None:
    before = tree(site)
    tailor_environment(site, options(nvidia=True, keep_removed=True))
    assert tree(site) != before
    removed = sum(path.stat().st_size for path in (site / ".torchtailor/removed").iterdir())
    assert 0 < removed < 40_000
    result = restore_environment(site)
    assert len(result.libraries) == 3
    assert result.commands == ()
    assert tree(site) == before
    assert restore_environment(site).libraries == ()


def test_two_cuts_and_back(site: Path, tmp_path: Path, wide: bytes) -> None:
    install(build_wheel(tmp_path / "wheels", {"wide/libwide.so": wide}, name="wide"), site)
    before = tree(site)
    tailor_environment(site, options("8.0,9.0", keep_removed=True))
    middle = (site / "wide/libwide.so").stat().st_size
    tailor_environment(site, options("9.0", keep_removed=True))
    assert (site / "wide/libwide.so").stat().st_size < middle < len(wide)
    check_records(site)
    document = json.loads((site / "wide-1.0.dist-info/torchtailor.json").read_text())
    assert document["libraries"][0]["sha256_before"] == before["wide/libwide.so"]
    assert document["libraries"][0]["size_before"] == len(wide)
    assert document["target"]["gpus"] == ["9.0"]
    restore_environment(site)
    assert tree(site) == before


def test_what_was_cut_out_cannot_be_a_target(site: Path) -> None:
    tailor_environment(site, options("9.0"))
    for dry_run in (True, False):
        before = tree(site)
        with pytest.raises(ImpossibleError, match=r"cut for 9\.0 and has no code for 8\.0"):
            tailor_environment(site, options("8.0", dry_run=dry_run))
        assert tree(site) == before
    check_records(site)
    assert main(["inspect", str(site), "--gpu", "8.0"]) == 0


def test_what_no_lto_removed_cannot_be_kept_later(site: Path, tmp_path: Path) -> None:
    code = random.Random(2)
    linkable = container(Entry(code.randbytes(60_000), sm=90), Entry(code.randbytes(1_200_000), kind=8, sm=80))
    install(build_wheel(tmp_path / "wheels", {"lto/liblto.so": elf(Place(".nv_fatbin", linkable))}, name="lto"), site)
    without = options(lto=False)
    (kept,) = [one for one in tailor_environment(site, options(dry_run=True)).libraries if one.path == "lto/liblto.so"]
    assert kept.status is LibraryStatus.UNCHANGED
    result = tailor_environment(site, without)
    (cut,) = [one for one in result.changed if one.path == "lto/liblto.so"]
    assert (list(cut.kept), list(cut.dropped), cut.lto_kept) == (["sm_90"], ["lto_80"], 0)
    assert json.loads((site / "lto-1.0.dist-info/torchtailor.json").read_text())["policy"]["lto"] is False
    with pytest.raises(ImpossibleError, match="has no LTO-IR any more"):
        tailor_environment(site, options())
    assert not tailor_environment(site, without).changed


def test_the_hint_names_the_environment(site: Path) -> None:
    tailor_environment(site, options("9.0", keep_removed=True))
    with pytest.raises(ImpossibleError) as caught:
        tailor_environment(site, options("8.0"))
    assert caught.value.hint == f"Run `torchtailor restore --env {site}` first."


@pytest.mark.parametrize("keep", [False, True])
def test_a_cut_says_how_it_is_undone(site: Path, capsys: pytest.CaptureFixture[str], keep: bool) -> None:
    command = ["tailor", "--env", str(site.parents[2]), *(["--keep-removed"] if keep else [])]
    assert main([*command, "--gpu", "9.0", "--dry-run"]) == 0
    assert "To undo" not in capsys.readouterr().out
    assert main([*command, "--gpu", "9.0"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert f"To undo: `torchtailor restore --env {site}`" in said
    assert ("prints the command that reinstalls what was cut" in said) is not keep
    assert main([*command, "--gpu", "8.0"]) == 5
    assert ("reinstall the packages first" in " ".join(capsys.readouterr().err.split())) is not keep


def test_a_package_with_an_unusual_record_is_left_alone_and_named(site: Path, tmp_path: Path) -> None:
    wheel = build_wheel(tmp_path, {"blinker/__init__.py": b"x"}, name="blinker", version="1.5")
    install(wheel, site)
    record = site / "blinker-1.5.dist-info" / "RECORD"
    record.write_text("blinker/__init__.py,sha256=" + "0f" * 32 + ",1\n")
    before = record.read_bytes()
    result = tailor_environment(site, options("9.0"))
    assert result.changed
    assert record.read_bytes() == before
    (note,) = result.notes
    assert note.startswith("blinker-1.5 is left alone: RECORD holds the hash 'sha256=0f0f")


def test_restore_without_kept_bytes_says_the_command(site: Path) -> None:
    (site / "pip").mkdir()
    tailor_environment(site, options(nvidia=True))
    (site.parents[2] / "bin").mkdir()
    (site.parents[2] / "bin" / "python").touch()
    result = restore_environment(site)
    python = site.parents[2] / "bin" / "python"
    packages = "nvidia-cublas-cu12==12.8.4.1 torch==2.10.0"
    assert result.commands == (f"{python} -m pip install --force-reinstall --no-deps {packages}",)
    assert result.to_reinstall == ("nvidia-cublas-cu12==12.8.4.1", "torch==2.10.0")


def test_the_command_names_the_tool_and_the_source(site: Path) -> None:
    info = site / "torch-2.10.0.dist-info"
    (info / "INSTALLER").write_text("uv")
    (info / "direct_url.json").write_text(json.dumps({"url": "file:///wheels/torch.whl"}))
    tailor_environment(site, options())
    (command,) = restore_environment(site).commands
    assert command.startswith("uv pip install --python")
    assert command.endswith("--reinstall --no-deps file:///wheels/torch.whl")


def test_the_command_of_an_environment_without_pip(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tailor_environment(site, options())
    (site.parents[2] / "bin").mkdir()
    python = site.parents[2] / "bin" / "python"
    python.touch()
    monkeypatch.setattr("torchtailor.tailoring.restore.find_uv", lambda: "/usr/bin/uv")
    (command,) = restore_environment(site).commands
    assert command == f"uv pip install --python {python} --reinstall --no-deps torch==2.10.0"
    monkeypatch.setattr("torchtailor.tailoring.restore.find_uv", lambda: None)
    (command,) = restore_environment(site).commands
    assert command.startswith(f"{python} -m ensurepip && {python} -m pip install ")


def test_a_package_of_conda_is_reinstalled_by_its_name_there(site: Path) -> None:
    """PyPI's torch is conda-forge's pytorch, and direct_url.json names a folder of the machine that built it."""
    prefix = site.parents[2]
    (prefix / "bin").mkdir()
    (prefix / "bin" / "python").touch()
    info = site / "torch-2.10.0.dist-info"
    (info / "INSTALLER").write_text("conda")
    (info / "direct_url.json").write_text(json.dumps({"url": "file:///home/conda/feedstock_root/work"}))
    tailor_environment(site, options())
    meta = prefix / "conda-meta"
    meta.mkdir()
    (meta / "damaged.json").write_text("[")
    (meta / "numpy.json").write_text(json.dumps({"name": "numpy", "version": "2.4", "files": ["lib/x"]}))
    files = [f"{info.relative_to(prefix)}/METADATA"]
    (meta / "pytorch.json").write_text(json.dumps({"name": "pytorch", "version": "2.10.0", "files": files}))
    (command,) = restore_environment(site).commands
    assert command == f"conda install --prefix {prefix} --force-reinstall --no-deps pytorch=2.10.0"


@pytest.mark.parametrize("name", ["RECORD", "METADATA", "INSTALLER"])
@pytest.mark.parametrize("kind", ["loop", "folder", "fifo", "endless"])
def test_odd_files_of_a_package_are_refused_in_a_sentence_or_harmless(site: Path, name: str, kind: str) -> None:
    place = site / "torch-2.10.0.dist-info" / name
    place.unlink(missing_ok=True)
    match kind:
        case "loop":
            place.symlink_to(place.name)
        case "folder":
            place.mkdir()
        case "fifo":
            os.mkfifo(place)
        case "endless":
            place.symlink_to("/dev/zero")
    if name == "INSTALLER":
        assert tailor_environment(site, options()).changed
        return
    with pytest.raises(BadInputError, match=r"torch-2\.10\.0\.dist-info"):
        tailor_environment(site, options())


def test_after_a_reinstall_nothing_is_left_to_restore(site: Path, tmp_path: Path) -> None:
    before = tree(site)
    tailor_environment(site, options())
    for wheel in (tmp_path / "wheels").glob("torch*.whl"):
        install(wheel, site)
    assert restore_environment(site).commands == ()
    after = tree(site)
    after.pop("torch-2.10.0.dist-info/torchtailor.json", None)  # a real installer removes what RECORD lists
    assert after == before


def test_uninstalled_since(site: Path) -> None:
    import shutil

    tailor_environment(site, options(nvidia=True, keep_removed=True))
    shutil.rmtree(site / "torch")
    shutil.rmtree(site / "torch-2.10.0.dist-info")
    result = restore_environment(site)
    assert result.libraries == ("nvidia/cublas/lib/libcublas.so.12",)
    assert not (site / ".torchtailor").exists()


def test_hard_links_of_a_cache_keep_their_bytes(site: Path, tmp_path: Path, fat: bytes) -> None:
    """uv links files from its cache: the cache must never change."""
    cached = tmp_path / "cache.so"
    record = site / "torch-2.10.0.dist-info/RECORD"
    os.link(site / "torch/lib/libtorch_cuda.so", cached)
    os.link(record, tmp_path / "RECORD")
    stock_record = record.read_bytes()
    tailor_environment(site, options(keep_removed=True))
    assert cached.read_bytes() == fat
    assert (tmp_path / "RECORD").read_bytes() == stock_record
    assert not cached.samefile(site / "torch/lib/libtorch_cuda.so")
    restore_environment(site)
    assert cached.read_bytes() == fat


def test_symbolic_links_into_a_cache_are_replaced(site: Path, tmp_path: Path, fat: bytes) -> None:
    """`uv --link-mode=symlink`."""
    cached = (site / "torch/lib/libtwo.so").rename(tmp_path / "cached.so")
    (site / "torch/lib/libtwo.so").symlink_to(cached)
    tailor_environment(site, options())
    assert cached.read_bytes() == fat
    assert not (site / "torch/lib/libtwo.so").is_symlink()
    check_records(site)


def test_packages_behind_a_link_are_left_alone(site: Path, tmp_path: Path, fat: bytes) -> None:
    outside = (site / "torch" / "lib").rename(tmp_path / "outside")
    (site / "torch" / "lib").symlink_to(outside)
    outcome = tailor_environment(site, options())
    skipped = [library for library in outcome.libraries if library.status is LibraryStatus.SKIPPED]
    assert len(skipped) == 2 and "outside of the environment" in skipped[0].reason
    assert (outside / "libtwo.so").read_bytes() == fat


def test_file_that_differs_from_its_record_is_left_alone(site: Path, fat: bytes) -> None:
    path = site / "torch/lib/libtwo.so"
    path.write_bytes(fat + b"\0" * 8)
    outcome = tailor_environment(site, options())
    (skipped,) = [library for library in outcome.libraries if library.status is LibraryStatus.SKIPPED]
    assert skipped.path == "torch/lib/libtwo.so"
    assert "RECORD of torch" in skipped.reason
    assert path.read_bytes() == fat + b"\0" * 8


def test_dry_run_touches_nothing(site: Path) -> None:
    before = tree(site)
    outcome = tailor_environment(site, options(dry_run=True, keep_removed=True))
    assert len(outcome.changed) == 2
    assert tree(site) == before


def test_nothing_of_ours_stays_where_nothing_was_cut(site: Path) -> None:
    before = tree(site)
    outcome = tailor_environment(site, options("5.0", nvidia=True))
    assert outcome.useless_for_target
    assert tree(site) == before


def test_two_runs_at_once_are_refused(site: Path) -> None:
    (site / ".torchtailor").mkdir()
    with (site / ".torchtailor" / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for run in (lambda: tailor_environment(site, options()), lambda: restore_environment(site)):
            with pytest.raises(EnvironmentProblem, match="in use by another torchtailor"):
                run()
    tailor_environment(site, options())


def test_an_error_halfway_leaves_right_records(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put = InPlace._put
    calls = []

    def second_fails(*arguments: object) -> object:
        calls.append(1)
        if len(calls) == 3:
            raise OSError(28, "No space left on device")
        return put(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(InPlace, "_put", second_fails)
    with pytest.raises(EnvironmentProblem, match="disk is full"):
        tailor_environment(site, options())
    check_records(site)
    monkeypatch.undo()
    outcome = tailor_environment(site, options())
    assert len(outcome.changed) == 1
    check_records(site)


def test_torn_last_line_of_the_journal(site: Path) -> None:
    before = tree(site)
    tailor_environment(site, options(keep_removed=True))
    with (site / ".torchtailor" / "journal.jsonl").open("ab") as file:
        file.write(b'{"path": "torch/li')
    restore_environment(site)
    assert tree(site) == before


def test_damaged_journal(site: Path) -> None:
    tailor_environment(site, options())
    (site / ".torchtailor" / "journal.jsonl").write_bytes(b"nonsense\n")
    with pytest.raises(BadInputError, match="damaged"):
        restore_environment(site)


@pytest.mark.parametrize("position", [0, 20, 40, -10])
def test_damaged_kept_bytes_restore_nothing(site: Path, position: int) -> None:
    tailor_environment(site, options(keep_removed=True))
    cut = tree(site)
    for path in (site / ".torchtailor" / "removed").iterdir():
        data = bytearray(path.read_bytes())
        data[position] ^= 0xFF
        path.write_bytes(data)
    with pytest.raises((BadInputError, CheckFailedError)):
        restore_environment(site)
    after = tree(site)
    assert {name: after[name] for name in after if "removed" not in name} == {
        name: cut[name] for name in cut if "removed" not in name
    }


def test_journal_is_written_before_the_file_is_replaced(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed between the two, the next run sees that the file is still stock."""
    before = tree(site)

    def killed(journal: Journal, *_: object) -> None:
        add(journal, *_)  # type: ignore[arg-type]
        raise KeyboardInterrupt

    add = Journal.add
    monkeypatch.setattr(Journal, "add", killed)
    with pytest.raises(KeyboardInterrupt):
        tailor_environment(site, options())
    after = tree(site)
    assert all(after[name] == digest for name, digest in before.items())
    check_records(site)


def test_finding_environments(tmp_path: Path, site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    env = tmp_path / "env"
    assert environment_sites(env) == (site,)
    assert environment_sites(site) == (site,)
    (env / "lib64").symlink_to("lib")
    assert len(environment_sites(env)) == 1
    monkeypatch.setenv("VIRTUAL_ENV", str(env))
    assert environment_sites(None)[0].resolve() == site
    monkeypatch.delenv("VIRTUAL_ENV")
    monkeypatch.delenv("CONDA_PREFIX", raising=False)
    assert environment_sites(None)[0].is_dir()
    with pytest.raises(NoMatchError, match="no installed Python packages"):
        environment_sites(tmp_path / "wheels")
    with pytest.raises(NoMatchError, match="does not exist"):
        environment_sites(tmp_path / "none")


def test_damaged_record_of_a_package(site: Path) -> None:
    (site / "plain-1.0.dist-info" / "RECORD").write_bytes(b"a,b\n")
    before = tree(site)
    with pytest.raises(BadInputError, match=r"plain-1\.0\.dist-info"):
        tailor_environment(site, options())
    after = tree(site)
    assert all(after[name] == digest for name, digest in before.items())


# Environments of others: think of root restoring a user's


def journal_lines(site: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (site / ".torchtailor/journal.jsonl").read_text().splitlines()]


def write_journal(site: Path, lines: list[dict[str, Any]]) -> None:
    (site / ".torchtailor/journal.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("path", "../../../../victim"),
        ("path", "torch/../../../../../victim"),
        ("path", "/etc/passwd"),
        ("path", ""),
        ("removed", "../../../../../victim"),
        ("removed", "/etc/passwd"),
        ("distributions", ["../../../other"]),
        ("distributions", ["/"]),
        ("before", {"sha256": "../x", "size": 5}),
        ("before", {"sha256": "0" * 64, "size": -5}),
        ("same_as", "../../../../victim"),
        ("options", {}),
        ("options", {"target": {"gpus": 5}}),
        ("options", {"target": {"gpus": ["8.0"]}}),
        ("options", {"target": {"gpus": ["8.0"]}, "policy": None}),
    ],
)
def test_a_hostile_journal(site: Path, tmp_path: Path, key: str, value: object) -> None:
    tailor_environment(site, options(keep_removed=True))
    victim = tmp_path / "victim"
    victim.write_bytes((site / "torch/lib/libtwo.so").read_bytes())
    lines = journal_lines(site)
    lines[0][key] = value
    write_journal(site, lines)
    before = tree(tmp_path)
    for run in (lambda: restore_environment(site), lambda: tailor_environment(site, options(keep_removed=True))):
        with pytest.raises(BadInputError, match="damaged"):
            run()
    assert tree(tmp_path) == before


def test_a_journal_behind_a_link(site: Path, tmp_path: Path) -> None:
    """A folder inside that leads outside is no way out either."""
    tailor_environment(site, options(keep_removed=True))
    outside = (site / "torch/lib").rename(tmp_path / "outside")
    (site / "torch/lib").symlink_to(outside)
    before = tree(outside)
    with pytest.raises(BadInputError, match="not a path inside"):
        restore_environment(site)
    assert tree(outside) == before


def test_a_file_that_became_a_link_outwards(site: Path, tmp_path: Path) -> None:
    tailor_environment(site, options(keep_removed=True))
    outside = (site / "torch/lib/libtwo.so").rename(tmp_path / "outside.so")
    (site / "torch/lib/libtwo.so").symlink_to(outside)
    before = outside.read_bytes()
    assert "torch/lib/libtwo.so" not in restore_environment(site).libraries
    assert outside.read_bytes() == before
    assert (site / "torch/lib/libtwo.so").is_symlink()


@pytest.mark.parametrize("name", ["", "removed", "staging", "lock", "journal.jsonl"])
def test_a_state_folder_of_links(site: Path, tmp_path: Path, name: str) -> None:
    """They could lead to a folder that is emptied, or to a file that is overwritten."""
    tailor_environment(site, options(keep_removed=True))
    state = site / ".torchtailor"
    (state / "staging").mkdir(exist_ok=True)
    place = state / name if name else state
    victim = place.rename(tmp_path / "victim")
    (victim / "precious").touch() if victim.is_dir() else victim.write_text("precious")
    place.symlink_to(victim)
    before = tree(tmp_path)
    for run in (lambda: restore_environment(site), lambda: tailor_environment(site, options())):
        with pytest.raises(BadInputError, match="is a link"):
            run()
    assert tree(tmp_path) == before


def test_a_lock_that_leads_elsewhere_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "lock").symlink_to(victim)
    with pytest.raises(OSError, match="symbolic links"), locked(tmp_path / "lock", "it"):
        pass
    assert victim.read_text() == "precious"


def test_kept_bytes_that_would_fill_the_disk(site: Path) -> None:
    tailor_environment(site, options(keep_removed=True))
    (kept,) = (site / ".torchtailor/removed").iterdir()
    table = struct.pack("<QQ", 2**64 - 1, 1 << 40)
    packed = zstandard.ZstdCompressor().compress(table)
    header = struct.pack("<8sQQI", b"TTREMOV1", 1, len(packed), zlib.crc32(table))
    kept.write_bytes(header + packed + zstandard.ZstdCompressor().compress(bytes(50 << 20)))
    with pytest.raises(CheckFailedError, match="cannot be restored"):
        restore_environment(site)
    assert not list(site.rglob("0-*"))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_what_root_restores_stays_its_owners(site: Path) -> None:
    for path in [site, *site.rglob("*")]:
        os.chown(path, 12345, 12345)
    tailor_environment(site, options(nvidia=True, keep_removed=True))
    assert {path.stat().st_uid for path in site.rglob("*")} == {12345}
    tailor_environment(site, options(nvidia=True, keep_removed=True))
    restore_environment(site)
    assert {path.stat().st_uid for path in site.rglob("*")} == {12345}


# What happens to the files meanwhile, and to those with two names


def test_an_error_of_the_last_step_is_reported(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as a RECORD that nobody can write."""
    write = disk.write_atomically

    def immutable(path: Path, *arguments: Any, **options: Any) -> None:
        if path.name == "RECORD":
            raise PermissionError(errno.EPERM, "Operation not permitted", str(path))
        write(path, *arguments, **options)

    monkeypatch.setattr(journal, "write_atomically", immutable)
    with pytest.raises(EnvironmentProblem, match="RECORD cannot be written"):
        tailor_environment(site, options())
    monkeypatch.undo()
    tailor_environment(site, options())
    check_records(site)


@pytest.fixture
def chattr() -> Iterator[Callable[[str, Path], None]]:
    """Sets flags of files, and takes them back."""
    changed: list[tuple[str, Path]] = []

    def change(flag: str, path: Path) -> None:
        done = subprocess.run(["chattr", f"+{flag}", path], capture_output=True, check=False)
        if done.returncode:
            pytest.skip("chattr needs root and a file system with flags")
        changed.append((flag, path))

    if not shutil.which("chattr"):
        pytest.skip("needs chattr")
    yield change
    for flag, path in reversed(changed):
        subprocess.run(["chattr", f"-{flag}", path], check=True)


@pytest.mark.parametrize("flag", ["i", "a"])
@pytest.mark.parametrize("what", ["RECORD", "", "library"])
def test_what_cannot_be_replaced_is_not_cut(
    site: Path, chattr: Callable[[str, Path], None], flag: str, what: str
) -> None:
    """A file, its folder or a RECORD that is immutable: the package stays in line with its RECORD, others are cut."""
    dist_info = site / "torch-2.10.0.dist-info"
    path = site / "torch/lib/libtwo.so" if what == "library" else dist_info / what
    before = {one.name: one.read_bytes() for one in (site / "torch/lib").iterdir()}
    chattr(flag, path)
    if what == "RECORD" and flag == "i":
        outcome = tailor_environment(site, options(nvidia=True, dry_run=True))
        assert {one.path for one in outcome.changed} == {"nvidia/cublas/lib/libcublas.so.12"}
    outcome = tailor_environment(site, options(nvidia=True))
    check_records(site)
    cut = {one.path for one in outcome.changed}
    assert "nvidia/cublas/lib/libcublas.so.12" in cut
    assert ("torch/lib/libtorch_cuda.so" in cut) == (what == "library")
    left = next(one for one in outcome.libraries if one.path == "torch/lib/libtwo.so")
    assert left.status is LibraryStatus.SKIPPED
    assert left.reason == f"{path} is immutable (chattr)"
    assert (site / "torch/lib/libtwo.so").read_bytes() == before["libtwo.so"]


@pytest.mark.parametrize("kind", ["hard", "symbolic"])
def test_two_names_of_a_library_stay_one_file(site: Path, tmp_path: Path, fat: bytes, kind: str) -> None:
    files = {"links/libone.so.1": fat, "links/libone.so": fat, "links/__init__.py": b""}
    install(build_wheel(tmp_path / "wheels", files, name="links"), site)
    first, second = site / "links/libone.so.1", site / "links/libone.so"
    second.unlink()
    if kind == "hard":
        second.hardlink_to(first)
    else:
        second.symlink_to("libone.so.1")
    before = tree(site)
    outcome = tailor_environment(site, options(keep_removed=True))
    assert len([one for one in outcome.changed if "libone" in one.path]) == 1
    assert first.samefile(second)
    assert second.is_symlink() is (kind == "symbolic")
    assert first.stat().st_size < len(fat)
    check_records(site)
    assert tailor_environment(site, options(keep_removed=True)).changed == ()
    restore_environment(site)
    assert first.samefile(second)
    assert tree(site) == before


def access_list(*rows: tuple[int, int, int]) -> bytes:
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *row) for row in rows)


@pytest.mark.parametrize("mode", [0o644, 0o444])
def test_access_lists_and_attributes_stay(site: Path, mode: int) -> None:
    path = site / "torch/lib/libtorch_cuda.so"
    nobody, owner, wide = 0xFFFF_FFFF, mode >> 6, 4
    acl = access_list((1, owner, nobody), (2, 4, 1234), (4, wide, nobody), (16, 4, nobody), (32, 4, nobody))
    attributes = {"user.x": b"1", "system.posix_acl_access": acl}
    try:
        for name, value in attributes.items():
            os.setxattr(path, name, value)
    except OSError:
        pytest.skip("the file system has no access lists")

    def seen() -> dict[str, bytes]:
        return {name: os.getxattr(path, name) for name in os.listxattr(path) if not name.startswith("security.")}

    tailor_environment(site, options(keep_removed=True))
    assert seen() == attributes
    assert path.stat().st_mode & 0o777 == mode
    restore_environment(site)
    assert seen() == attributes
    assert path.stat().st_mode & 0o777 == mode


def test_an_interrupted_second_cut_of_a_library_with_two_names(
    site: Path, tmp_path: Path, wide: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"links/libone.so.1": wide, "links/libone.so": wide, "links/__init__.py": b""}
    install(build_wheel(tmp_path / "wheels", files, name="links"), site)
    first, second = site / "links/libone.so", site / "links/libone.so.1"
    second.unlink()
    second.hardlink_to(first)
    tailor_environment(site, options("8.0,9.0"))
    size = first.stat().st_size

    def interrupted(folder: Path) -> None:
        if folder == site / "links":  # both names are of the new file
            raise KeyboardInterrupt
        disk.sync_folder(folder)

    monkeypatch.setattr(in_place, "sync_folder", interrupted)
    with pytest.raises(KeyboardInterrupt):
        tailor_environment(site, options("9.0", processes=1))
    assert first.samefile(second)
    assert first.stat().st_size < size
    check_records(site)


def test_an_oddly_laid_out_library_is_skipped(site: Path, tmp_path: Path) -> None:
    image = bytearray(library(Recipe()))
    image[64 + 48 : 64 + 56] = (16).to_bytes(8, "little")  # the alignment of the first segment
    install(build_wheel(tmp_path / "wheels", {"odd/libodd.so": bytes(image)}, name="odd"), site)
    outcome = tailor_environment(site, options())
    found = {one.path: one for one in outcome.libraries}
    assert found["torch/lib/libtorch_cuda.so"].status is LibraryStatus.CUT
    assert found["odd/libodd.so"].status is LibraryStatus.SKIPPED
    assert found["odd/libodd.so"].reason == "Program header 0 is not aligned as the loader demands."
    assert (site / "odd/libodd.so").read_bytes() == image
    check_records(site)
    with pytest.raises(ImpossibleError, match="is not aligned"):
        tailor_file(site / "odd/libodd.so", tmp_path / "out.so", options())


def test_a_library_with_data_behind_it_is_skipped(site: Path, tmp_path: Path, fat: bytes) -> None:
    install(build_wheel(tmp_path / "wheels", {"signed/libx.so": fat + b"signature"}, name="signed"), site)
    outcome = tailor_environment(site, options())
    (skipped,) = [one for one in outcome.libraries if one.status is LibraryStatus.SKIPPED]
    assert (skipped.path, "follows its last section" in skipped.reason) == ("signed/libx.so", True)
    assert (site / "signed/libx.so").read_bytes() == fat + b"signature"
    check_records(site)


def test_a_library_that_was_upgraded_meanwhile(site: Path, fat: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """pip puts a new one in place while the old one is being cut."""
    add = Journal.add
    newer = fat + b"newer"
    path = site / "torch/lib/libtwo.so"

    def upgraded(self: Journal, change: Change) -> None:
        add(self, change)
        if change.path == "torch/lib/libtwo.so":
            beside = path.with_name("new")
            beside.write_bytes(newer)
            beside.replace(path)

    monkeypatch.setattr(Journal, "add", upgraded)
    outcome = tailor_environment(site, options())
    (skipped,) = [one for one in outcome.libraries if one.status is LibraryStatus.SKIPPED]
    assert (skipped.path, "replaced while" in skipped.reason) == ("torch/lib/libtwo.so", True)
    assert path.read_bytes() == newer
    assert "torch/lib/libtwo.so" not in {line["path"] for line in journal_lines(site)}
