"""Environments in place: replaced atomically, recorded, restored to the last byte."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path

import pytest

from tests.unit.surgery.libraries import Recipe, library
from tests.unit.tailoring.helpers import check_records, install, options, tree
from tests.unit.wheels.builder import build_wheel
from torchtailor.errors import BadInputError, CheckFailedError, EnvironmentProblem, ImpossibleError, NoMatchError
from torchtailor.surgery.result import LibraryStatus
from torchtailor.tailoring import environment
from torchtailor.tailoring.environment import environment_sites, tailor_environment
from torchtailor.tailoring.journal import Journal
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
    with pytest.raises(ImpossibleError, match=r"cut for 9\.0 and has no code for 8\.0"):
        tailor_environment(site, options("8.0"))
    check_records(site)


def test_restore_without_kept_bytes_says_the_command(site: Path) -> None:
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
    put = environment._put_in_place
    calls = []

    def second_fails(*arguments: object) -> object:
        calls.append(1)
        if len(calls) == 3:
            raise OSError(28, "No space left on device")
        return put(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(environment, "_put_in_place", second_fails)
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
    journal = site / ".torchtailor" / "journal.jsonl"
    with journal.open("ab") as file:
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
