"""The runner, from a source to an installed wheel, with a small project that has PyTorch's build contract."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.building.source.conftest import Build
from torchtailor.building.ledger.ledger import Ledger, Result
from torchtailor.building.source.attempt import BuildStoppedError
from torchtailor.catalog import SOURCE, Catalog
from torchtailor.catalog.variants import Matrix, Variant
from torchtailor.core.errors import BadInputError, CheckFailedError, EnvironmentProblem

pytestmark = pytest.mark.xdist_group("source")  # one environment for all, one compiler at a time


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def imported(wheel: Path, folder: Path, expression: str) -> str:
    """What an expression is in a Python that has the wheel installed."""
    zipfile.ZipFile(wheel).extractall(folder)
    code = f"import sys; sys.path.insert(0, {str(folder)!r}); import torch; print(({expression}))"
    return subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_from_a_folder_to_a_wheelhouse(
    build: Build, project: Path, variant: Variant, ledger: Ledger, tmp_path: Path
) -> None:
    before = snapshot(project)
    result = build()
    assert snapshot(project) == before, "the user's folder was changed"
    (house,) = result.wheelhouses
    named = variant.unique_name.replace(variant.release.tag, "pytorch299")  # the source's version, not the release's
    assert house.path == tmp_path / "dist" / named
    local = ".".join(["cpu", *variant.isa.name.split("_")])
    assert house.torch_version == f"2.99.0+{local}"
    assert result.wheel is not None
    assert imported(result.wheel, tmp_path / "site", "torch.value, torch.__version__") == f"(28, '2.99.0+{local}')"
    other = "avx512" if variant.arch == "x86_64" else "sve256"
    assert imported(result.wheel, tmp_path / "site", f"torch.{other}") == "False"
    ninja = (result.build / "src" / "build" / "build.ninja").read_text()
    assert " ".join(variant.isa.compile_flags) in ninja
    assert "pool torchtailor_heavy" in ninja
    assert ninja.count("pool = torchtailor_heavy") == 3  # two generated files and the link
    manifest = json.loads((house.path / "manifest.json").read_bytes())
    assert manifest["way"] == "source"
    assert manifest["configuration"]["USE_CUDA"] == "0"
    assert str(tmp_path) not in json.dumps(manifest)
    (attempt,) = ledger.attempts()
    assert attempt.result is Result.DONE
    assert attempt.percent == 100
    assert attempt.configuration["jobs"] == 2
    assert Path(attempt.log).read_text().count("Building CXX object") == 6


def test_a_library_is_in_the_wheel_once(build: Build, project: Path) -> None:
    """Debian's source gives libraries versions: links in a folder, which become copies in a wheel."""
    versions = "set_target_properties(torch_cpu PROPERTIES VERSION 2.99.0 SOVERSION 2.99)"
    with (project / "CMakeLists.txt").open("a") as file:
        file.write(f'option(HAVE_SOVERSION "" ON)\nif(HAVE_SOVERSION)\n  {versions}\nendif()\n')
    setup = project / "setup.py"
    setup.write_text(setup.read_text().replace("lib/*.so", "lib/*.so*"))
    wheel = build().wheel
    assert wheel is not None
    assert [name for name in zipfile.ZipFile(wheel).namelist() if ".so" in name] == ["torch/lib/libtorch_cpu.so"]


def test_what_another_configuration_installed_is_not_packed(build: Build) -> None:
    first = build()
    source = first.build / "src"
    old = source / "torch" / "lib" / "libold.so"
    old.write_bytes(b"left by a configuration with another switch")
    with (source / "build" / "install_manifest.txt").open("a") as file:
        file.write(f"\n{old}")
    (first.build / "state.json").write_text("{}")
    wheel = build().wheel
    assert wheel is not None
    assert "torch/lib/libold.so" not in zipfile.ZipFile(wheel).namelist()


def test_a_wheel_that_is_not_what_it_should_be_is_a_failed_attempt(
    build: Build, ledger: Ledger, tmp_path: Path
) -> None:
    """This torch is none: compiling went well, the proof did not, and the ledger says so."""
    with pytest.raises(CheckFailedError, match="not what"):
        build(verify=True, with_dependencies=True)
    (attempt,) = ledger.attempts()
    assert (attempt.result, attempt.stage) == (Result.FAILED, "proof")
    assert "not what" in attempt.error
    assert not list((tmp_path / "dist").glob("*"))


def test_cache_variables_reach_cmake_without_setup_py(
    build: Build, project: Path, variant: Variant, tmp_path: Path
) -> None:
    """Since 2.12 setup.py hands nothing on: CMake reads the environment itself, after `project()`."""
    setup, lists = project / "setup.py", project / "CMakeLists.txt"
    setup.write_text(setup.read_text().replace("*options, ", ""))
    lists.write_text(
        lists.read_text().replace("project(Torch CXX)\n", "project(Torch CXX)\ninclude(EnvVarForwarding.cmake)\n")
    )
    wheel = build().wheel
    assert wheel is not None
    other = "avx512" if variant.arch == "x86_64" else "sve256"
    assert imported(wheel, tmp_path / "site", f"torch.{other}") == "False"


def test_nothing_leaks_from_the_shell(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXXFLAGS", "-DLEAKED=1 --no-such-flag")
    monkeypatch.setenv("USE_XNNPACK", "1")
    monkeypatch.setenv("PYTHONPATH", "/nonexistent")
    result = build()
    cache = (result.build / "src" / "build" / "CMakeCache.txt").read_text()
    assert "USE_XNNPACK:BOOL=0" in cache or "USE_XNNPACK:UNINITIALIZED=0" in cache
    assert "LEAKED" not in cache


def test_a_tarball_and_a_git_ref_are_sources_too(build: Build, project: Path, tmp_path: Path) -> None:
    tarball = tmp_path / "pytorch-2.99.0.tar.gz"
    with tarfile.open(tarball, "w:gz") as archive:
        archive.add(project, "pytorch-2.99.0")
    assert build(source=str(tarball)).wheelhouses[0].torch_version.startswith("2.99.0+")
    (project / "version.txt").write_text("2.100.0a0\n")
    git = ["git", "-C", str(project), "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q", "-b", "main"], ["add", "-A"], ["commit", "-qm", "x"]):
        subprocess.run([*git, *words], check=True)
    commit = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    version = build(source=f"file://{project}@main").wheelhouses[0].torch_version
    assert version.startswith(f"2.100.0a0+git{commit[:7]}.cpu.")


def test_what_is_no_source(build: Build, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadInputError, match="no PyTorch source"):
        build(source=str(tmp_path / "empty"))
    damaged = tmp_path / "x.tar.gz"
    damaged.write_bytes(b"no tarball")
    with pytest.raises(BadInputError, match="damaged"):
        build(source=str(damaged))


def test_out_of_memory_goes_on_with_fewer_jobs(
    build: Build, ledger: Ledger, wrapped_compiler: Callable[[str], Path]
) -> None:
    """A compiler that is killed whenever another one runs, as the kernel does."""
    wrapped_compiler(
        'case "$*" in *" -c "*) ;; *) exec $REAL "$@";; esac\nexec 9>"$HERE/lock"; flock -n 9 || kill -9 $$\nsleep 0.3'
    )
    result = build(jobs=4)
    assert result.wheelhouses
    attempts = ledger.attempts()
    assert [attempt.result for attempt in attempts] == [Result.FAILED] * (len(attempts) - 1) + [Result.DONE]
    assert {attempt.failure for attempt in attempts[:-1]} == {"out-of-memory"}
    assert [attempt.configuration["jobs"] for attempt in attempts] == [4, 2, 1]
    logs = [Path(attempt.log) for attempt in attempts]
    assert len(set(logs)) == len(logs)
    assert "configured as before" in logs[-1].read_text()


def test_another_compiler_configures_and_compiles_again(
    build: Build, ledger: Ledger, wrapped_compiler: Callable[[str], Path]
) -> None:
    """CMake keeps the compiler of its cache, whatever CXX says later."""
    build()
    build()
    folder = wrapped_compiler('echo "$@" >> "$HERE/calls"')
    build()
    first, same, other = (Path(attempt.log).read_text() for attempt in ledger.attempts())
    compiled = first.count("Building CXX object")
    assert compiled > 0
    assert "configured as before" in same
    assert same.count("Building CXX object") == 0
    assert "configured as before" not in other
    assert other.count("Building CXX object") == compiled
    assert (folder / "calls").read_text().count(" -c ") >= compiled


def test_an_updated_compiler_compiles_everything_again(
    build: Build, ledger: Ledger, wrapped_compiler: Callable[[str], Path]
) -> None:
    """Its path, and so every command line, is the same; ninja kept the objects of the old one."""
    folder = wrapped_compiler('[ "$1" != --version ] || exec cat "$HERE/version"')
    version = folder / "version"
    version.write_text("g++ (Debian 14.2.0-1) 14.2.0\n")
    library = build().build / "src" / "torch" / "lib" / "libold.so"
    library.write_bytes(b"installed by the old compiler")
    with (library.parents[2] / "build" / "install_manifest.txt").open("a") as file:
        file.write(f"\n{library}")
    version.write_text("g++ (Debian 15.1.0-1) 15.1.0\n")
    build()
    assert not library.exists()
    old, new = (Path(attempt.log).read_text() for attempt in ledger.attempts())
    assert "compiled by gcc 14.2.0 until now: starting over with gcc 15.1.0" in new
    assert new.count("Building CXX object") == old.count("Building CXX object") > 0


def test_a_missing_header_is_named(build: Build, project: Path, ledger: Ledger) -> None:
    (project / "c10" / "tailor_values.h").unlink()
    with pytest.raises(BuildStoppedError, match=r"tailor_values\.h"):
        build()
    (attempt,) = ledger.attempts()
    assert attempt.failure == "missing-header"
    assert attempt.stage == "compile"
    assert attempt.percent is not None
    assert attempt.percent < 100


def test_a_missing_compiler_stops_before_anything_is_done(
    build: Build, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ledger: Ledger
) -> None:
    import os

    bare = tmp_path / "bin"
    bare.mkdir()
    for name in ("sh", "bash", "git", "uv"):
        for folder in os.environ["PATH"].split(":"):
            if (Path(folder) / name).exists():
                (bare / name).symlink_to(Path(folder) / name)
                break
    monkeypatch.setenv("PATH", str(bare))
    with pytest.raises(EnvironmentProblem, match="no C\\+\\+ compiler") as raised:
        build()
    assert "apt-get install gcc" in raised.value.hint
    assert not ledger.attempts()


def test_an_architecture_that_is_not_known(
    build: Build, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, catalog: Catalog, variant: Variant
) -> None:
    """PyTorch's CMake refuses a wrong spelling; the diagnosis says the right one."""
    from torchtailor.building.source.configuration import Configuration

    monkeypatch.setattr(Configuration, "arch_list", "sm_121")
    named = Matrix(catalog).resolve(f"sm90-{variant.isa.name}", via=SOURCE, python=variant.python).variant
    skipped = ("blas", "disk", "memory", "compiler", "cuda", "architecture", "cudnn", "nccl")
    with pytest.raises(BuildStoppedError, match="sm_121"):
        build(variant=named, skip_checks=skipped)
    (attempt,) = ledger.attempts()
    assert attempt.failure == "unknown-arch-name"
    assert attempt.stage == "configure"


def test_a_safe_fix_is_applied_as_often_as_allowed(build: Build, ledger: Ledger) -> None:
    with pytest.raises(BuildStoppedError, match="XNNPACK"):
        build(profile="full", overrides=("USE_XNNPACK=1",))
    result = build(profile="full", overrides=("USE_XNNPACK=1",), auto_fix=1)
    assert result.attempts == 2
    manifest = json.loads((result.wheelhouses[0].path / "manifest.json").read_bytes())
    assert manifest["configuration"]["USE_XNNPACK"] == "0"
    attempts = ledger.attempts()
    assert [attempt.configuration["USE_XNNPACK"] for attempt in attempts] == ["1", "1", "0"]
    assert [attempt.failure for attempt in attempts] == ["xnnpack-arm", "xnnpack-arm", ""]
