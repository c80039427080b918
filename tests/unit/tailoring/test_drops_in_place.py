"""Files that rules leave out of an environment: deleted, recorded, restored to the last byte."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.unit.gpucode.builders import cubin
from tests.unit.tailoring.helpers import check_records, install, options, tree
from tests.unit.wheels.builder import build_wheel
from torchtailor.catalog import Capability, load_catalog
from torchtailor.cli import main
from torchtailor.core.errors import CheckFailedError, ExitCode, ImpossibleError
from torchtailor.surgery.result import LibraryStatus
from torchtailor.tailoring.environment import tailor_environment
from torchtailor.tailoring.in_place import InPlace
from torchtailor.tailoring.inputs import tailor_inputs
from torchtailor.tailoring.restore import restore_environment
from torchtailor.trees.artifact.artifact import open_artifact
from torchtailor.verification.static.expect import expectation
from torchtailor.verification.static.verify import verify_static

BITCODE = b"BC\xc0\xde" + bytes(3000)
CUPTI = "triton/backends/nvidia/lib/cupti/libcupti.so.12"
FILES = {
    "x/__init__.py": b"",
    "x/bin/tool.a": b"!<arch>\n" + bytes(range(256)),
    "x/lib/empty.a": b"",
    "x/lib/libx.a": b"!<arch>\n" + os.urandom(4000),
    **{f"x/lib/libx_device_sm_{sm}.bc": BITCODE for sm in (80, 90, 100)},
    "x/cubins/a_sm90.cubin": cubin("90"),
    "x/cubins/a_sm120.cubin": cubin("120"),
    "x/z.py": b"",
}
GONE = {"x/bin/tool.a", "x/lib/empty.a", "x/lib/libx.a", "x/lib/libx_device_sm_80.bc", "x/lib/libx_device_sm_100.bc"}


@pytest.fixture
def site(tmp_path: Path, fat: bytes) -> Path:
    site = tmp_path / "env" / "lib" / "python3.13" / "site-packages"
    (tmp_path / "wheels").mkdir()
    install(build_wheel(tmp_path / "wheels", {**FILES, "x/libx.so": fat}, name="x", version="1.0"), site)
    install(build_wheel(tmp_path / "wheels", {CUPTI: fat, "triton/a.a": b"!<arch>\n"}, name="triton"), site)
    (site / "x/bin/tool.a").chmod(0o755)
    return site


def missing(site: Path, before: dict[str, str]) -> set[str]:
    return set(before) - set(tree(site))


def test_left_out_recorded_and_restored_to_the_last_byte(site: Path) -> None:
    before = tree(site)
    modes = {path: (site / path).stat().st_mode for path in before}
    chosen = options(drop=("static-libs", "loose-cubins", "triton-profiler"), keep_removed=True)
    outcome = tailor_environment(site, chosen)
    gone = {*GONE, "x/cubins/a_sm120.cubin", "triton/a.a", CUPTI}
    assert missing(site, before) == gone == {file.path for file in outcome.dropped_files}
    assert CUPTI not in {library.path for library in outcome.libraries}
    check_records(site)
    for record in site.glob("*.dist-info/RECORD"):
        assert not [path for path in gone if path in record.read_text()]
    document = json.loads((site / "x-1.0.dist-info/torchtailor.json").read_text())
    rows = {row["path"]: (row["rule"], row.get("code")) for row in document["dropped_files"]}
    assert rows["x/lib/libx.a"] == ("static-libs", None)
    assert rows["x/lib/libx_device_sm_80.bc"] == ("foreign-bitcode", "bitcode_80")
    assert document["policy"]["drop"] == ["loose-cubins", "static-libs", "triton-profiler"]
    assert [row["path"] for row in document["libraries"]] == ["x/libx.so"]
    restored = restore_environment(site)
    assert gone <= set(restored.libraries)
    assert not restored.commands
    assert tree(site) == before
    assert {path: (site / path).stat().st_mode for path in before} == modes


def test_bitcode_goes_without_being_asked_and_nvidias_stays(tmp_path: Path) -> None:
    site = tmp_path / "site-packages"
    (tmp_path / "wheels").mkdir()
    licence = "LicenseRef-NVIDIA-Proprietary"
    install(build_wheel(tmp_path / "wheels", FILES, name="nvidia-x-cu13", licence=licence), site)
    before = tree(site)
    tailor_environment(site, options())
    assert tree(site) == before
    tailor_environment(site, options(nvidia=True))
    assert missing(site, before) == {name for name in GONE if name.endswith(".bc")}


def test_a_dry_run_says_the_same_and_does_nothing(site: Path) -> None:
    before = tree(site)
    told = tailor_environment(site, options(drop=("static-libs",), dry_run=True))
    assert tree(site) == before
    done = tailor_environment(site, options(drop=("static-libs",)))
    assert told.dropped_files == done.dropped_files
    assert (told.size_before, told.size_after) == (done.size_before, done.size_after)


def test_nothing_is_left_out_where_nothing_is_for_the_target(site: Path) -> None:
    before = tree(site)
    assert tailor_environment(site, options("6.0", drop=("static-libs",))).useless_for_target
    assert tree(site) == before


def test_a_library_that_was_cut_before_comes_back_whole(site: Path, fat: bytes) -> None:
    before = tree(site)
    tailor_environment(site, options(nvidia=True, keep_removed=True))
    assert (site / CUPTI).stat().st_size < len(fat)
    again = tailor_environment(site, options(nvidia=True, keep_removed=True, drop=("triton-profiler",)))
    assert not (site / CUPTI).exists()
    assert {one.status for one in again.libraries} == {LibraryStatus.UNCHANGED}  # nothing is read a second time
    restore_environment(site)
    assert tree(site) == before


def test_without_keep_removed_the_packages_are_named(site: Path) -> None:
    tailor_environment(site, options(drop=("static-libs",)))
    result = restore_environment(site)
    assert result.libraries == ()
    assert result.to_reinstall == ("triton==1.0", "x==1.0")
    assert not (site / "x/lib/libx.a").exists()


def test_a_second_run_has_nothing_to_do_and_other_gpus_need_a_restore(site: Path) -> None:
    tailor_environment(site, options("8.0,9.0", drop=("static-libs",)))
    kept = tree(site)
    tailor_environment(site, options("8.0,9.0", drop=("static-libs",)))
    tailor_environment(site, options("8.0,9.0"))
    assert tree(site) == kept
    with pytest.raises(ImpossibleError, match=r"was left out for|was cut for"):
        tailor_environment(site, options("12.0"))


def test_what_depends_on_no_gpu_does_not_stop_another(tmp_path: Path) -> None:
    site = tmp_path / "site-packages"
    (tmp_path / "wheels").mkdir()
    install(build_wheel(tmp_path / "wheels", {"x/libx.a": b"!<arch>\n"}, name="x"), site)
    report = tailor_inputs((), options("9.0", drop=("static-libs",)), env=site)
    assert report.results[0].differs
    tailor_environment(site, options("12.0"))


def test_a_package_that_was_installed_again_or_removed_is_forgotten(site: Path, tmp_path: Path) -> None:
    tailor_environment(site, options(drop=("static-libs",), keep_removed=True))
    install(next((tmp_path / "wheels").glob("x-*.whl")), site)
    for path in ("triton", "triton-1.0.dist-info"):
        for file in sorted((site / path).rglob("*"), reverse=True):
            file.unlink() if file.is_file() else file.rmdir()
        (site / path).rmdir()
    assert restore_environment(site).libraries == ()
    assert (site / "x/lib/libx.a").read_bytes() == FILES["x/lib/libx.a"]
    assert not (site / "triton").exists()
    assert not (site / ".torchtailor").exists()


@pytest.mark.parametrize("step", ["journal", "first", "records"])
def test_a_run_that_is_killed_goes_on(site: Path, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the first file goes, after it, and before RECORD is written."""
    before = tree(site)
    real_unlink, real_settle = Path.unlink, InPlace.settle
    calls = 0

    def unlink(path: Path, missing_ok: bool = False) -> None:
        nonlocal calls
        if path.suffix == ".a":
            calls += 1
            if step == "journal" or (step == "first" and calls == 2):
                raise KeyboardInterrupt
        real_unlink(path, missing_ok=missing_ok)

    def settle(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "unlink", unlink)
    monkeypatch.setattr(InPlace, "settle", settle)
    chosen = options(drop=("static-libs",), keep_removed=True)
    with pytest.raises(KeyboardInterrupt):
        tailor_environment(site, chosen)
    monkeypatch.setattr(Path, "unlink", real_unlink)
    monkeypatch.setattr(InPlace, "settle", real_settle)
    tailor_environment(site, chosen)
    assert missing(site, before) == {*GONE, "triton/a.a"}
    check_records(site)
    restore_environment(site)
    assert tree(site) == before


@pytest.mark.parametrize("step", ["replace_library", "leave_out"])
def test_ctrl_c_says_what_has_changed(
    site: Path, step: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before the first library, and behind it."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(InPlace, step, stop)
    monkeypatch.setattr("torchtailor.tailoring.inputs.environment_sites", lambda _: (site,))
    assert main(["tailor", "--env", str(site), "--gpu", "9.0", "-j", "1"]) == ExitCode.INTERRUPTED
    said = "".join(capsys.readouterr().err.split())
    whole = f"Stopped. Changed so far in {site}: 1 file, each whole and recorded."
    expected = f"Stopped. Nothing was changed in {site}." if step == "replace_library" else whole
    assert "".join(expected.split()) in said
    assert ("restore" in said) == (step == "leave_out")


def test_a_changed_file_stays_and_is_named(site: Path) -> None:
    (site / "x/lib/libx.a").write_bytes(b"mine")
    outcome = tailor_environment(site, options(drop=("static-libs",)))
    assert (site / "x/lib/libx.a").read_bytes() == b"mine"
    assert any("x/lib/libx.a stays" in note for note in outcome.notes)


def test_damaged_bytes_are_not_put_back(site: Path) -> None:
    tailor_environment(site, options(drop=("static-libs",), keep_removed=True))
    for file in (site / ".torchtailor/removed").glob(f"*-{'0' * 24}"):
        data = bytearray(file.read_bytes())
        data[-1] ^= 1
        file.write_bytes(data)
    with pytest.raises((CheckFailedError, Exception), match="damaged"):
        restore_environment(site)


def test_a_link_out_of_the_environment_is_left_alone(site: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (site / "x/lib").rename(outside)
    (site / "x/lib").symlink_to(outside)
    outcome = tailor_environment(site, options(drop=("static-libs",)))
    assert (outside / "libx.a").exists()
    assert any("behind a symbolic link" in note for note in outcome.notes)


def test_verify_accepts_it(site: Path) -> None:
    catalog = load_catalog()
    tailor_environment(site, options(drop=("static-libs", "loose-cubins")))
    artifact = open_artifact(site.parents[2])
    checks = verify_static(artifact, expectation(artifact, catalog, gpus=[Capability.parse("9.0")]), catalog).checks
    assert not [check.name for check in checks if check.failed]
