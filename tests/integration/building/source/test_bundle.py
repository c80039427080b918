"""Wheels that run elsewhere: what they were linked with comes along, found by the loader in a system without it."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.integration.building.source.conftest import Build
from tests.unit.building.stack import FAT
from tests.unit.wheels.builder import build_wheel
from torchtailor.building.cutting import Cutter
from torchtailor.building.ledger.ledger import Ledger, Result
from torchtailor.building.source.buildenv import BuildEnvironment, make_tools
from torchtailor.building.source.bundling import bundle as bundling
from torchtailor.building.source.bundling.bundle import Bundle, Bundler
from torchtailor.building.source.bundling.owners import LibraryOwner
from torchtailor.building.source.bundling.tables import load_bundle_tables
from torchtailor.building.source.folders import Folders
from torchtailor.building.source.runner import SourceBuildRow
from torchtailor.catalog import Capability, load_catalog
from torchtailor.core.disk import hash_file
from torchtailor.core.documents import document, plain
from torchtailor.core.errors import EnvironmentProblem, NetworkError, NoMatchError, UsageError
from torchtailor.fetch.cache import Cache
from torchtailor.surgery.cut import Cut
from torchtailor.trees.artifact.artifact import open_artifact
from torchtailor.trees.artifact.launch import FinishedProcess, start
from torchtailor.trees.artifact.roots import SystemRoot
from torchtailor.trees.wheels.archive import WheelArchive
from torchtailor.trees.wheels.distribution import WheelDistribution
from torchtailor.trees.wheels.metadata import licence_files
from torchtailor.verification import imports
from torchtailor.verification.result import CheckOutcome
from torchtailor.verification.suite_results import SuiteResults
from torchtailor.verification.verify import verify

pytestmark = pytest.mark.xdist_group("source")
MACHINE = platform.machine()
VERSION = "2.99.0+cpu"
INFO = f"torch-{VERSION}.dist-info"
BARE = Path(__file__).parents[4] / "tools" / "bare.sh"

# As much of torch as `verify` asks for at its import
TORCH = """
import ctypes, os, types
_library = ctypes.CDLL(os.path.join(os.path.dirname(__file__), "lib", "libtorch_cpu.so"))
value = _library.value()
__version__ = "2.99.0+cpu"
version = types.SimpleNamespace(git_version="abc", cuda=None)
__config__ = types.SimpleNamespace(show=lambda: "PyTorch built with: nothing", parallel_info=lambda: "")
backends = types.SimpleNamespace(cpu=types.SimpleNamespace(get_cpu_capability=lambda: "DEFAULT"))
get_num_threads = lambda: 2
"""
WITH_OPENMP = """
find_package(OpenMP REQUIRED)
target_link_libraries(torch_cpu OpenMP::OpenMP_CXX)
target_link_options(torch_cpu PRIVATE -Wl,--no-as-needed)
"""
MAPPED = "sorted({line.split()[-1] for line in open('/proc/self/maps') if '.so' in line})"


@pytest.fixture(scope="session")
def bundler(work: Path) -> Bundler:
    tables = load_bundle_tables()
    try:
        return Bundler(make_tools(Folders(work, work), tables.tools, Path(sys.executable)), tables)
    except NetworkError as error:
        pytest.skip(f"auditwheel cannot be installed: {error.message}")


Make = Callable[..., Path]


@pytest.fixture
def library(tmp_path: Path) -> Make:
    """Compile a library of one function, linked with others."""

    def compiled(name: str, code: str, *others: Path, soname: str = "") -> Path:
        folder = tmp_path / "own"
        folder.mkdir(exist_ok=True)
        source, target = folder / f"{name}.c", folder / (soname or f"{name}.so")
        source.write_text(code)
        named = [f"-Wl,-soname,{soname}"] if soname else []
        line = ["cc", "-shared", "-fPIC", *named, str(source), "-Wl,--no-as-needed", *map(str, others)]
        subprocess.run([*line, "-o", str(target)], check=True)
        return target

    return compiled


@pytest.fixture
def torch(tmp_path: Path, library: Make) -> Callable[..., Path]:
    """A wheel of a torch that needs these libraries; its METADATA names a licence as older ones do."""

    def made(*others: Path, code: str = "int value(void) { return 7; }", tag: str = "") -> Path:
        data = library("libtorch_cpu", code, *others).read_bytes()
        files = {"torch/__init__.py": TORCH.encode(), "torch/version.py": b"cuda = None\n"}
        files |= {"torch/lib/libtorch_cpu.so": data, f"{INFO}/LICENSE": b"of torch"}
        tag = tag or f"cp311-cp311-linux_{MACHINE}"
        return build_wheel(tmp_path, files, name="torch", version=VERSION, tag=tag, metadata="License-File: LICENSE\n")

    return made


def bundled(bundler: Bundler, wheel: Path, out: Path) -> Bundle:
    found = bundler.bundle(wheel, out, lambda line: None)
    with WheelArchive(found.wheel) as archive:
        whole = WheelDistribution.of(archive)  # RECORD and files agree
        for member in archive.files:
            whole.check(member)
    return found


def gomp() -> Path:
    said = subprocess.run(["cc", "-print-file-name=libgomp.so"], capture_output=True, text=True, check=True).stdout
    path = Path(said.strip())
    if not path.is_absolute():
        pytest.skip("the compiler has no OpenMP here")
    return path


def test_a_build_brings_the_libraries_it_was_linked_with(
    build: Build, project: Path, ledger: Ledger, tmp_path: Path
) -> None:
    """From the source to a wheelhouse: the loader takes OpenMP from the wheel, though this system has it too."""
    with (project / "CMakeLists.txt").open("a") as file:
        file.write(WITH_OPENMP)
    result = build(bundle=True)
    assert result.bundle is not None and result.wheel is not None
    (one,) = [library for library in result.bundle.libraries if library.soname == "libgomp.so.1"]
    assert result.wheel.name.endswith(f"-{result.bundle.platform}.whl")
    assert result.bundle.platform.startswith("manylinux_2_")
    (house,) = result.wheelhouses
    manifest = json.loads((house.path / "manifest.json").read_bytes())
    printed = json.loads(json.dumps(plain(document(SourceBuildRow, result))))
    assert manifest["bundle"] == printed["bundle"] == json.loads(json.dumps(result.bundle.manifest))
    (listed,) = manifest["wheels"]
    assert listed["output"]["filename"] == result.wheel.name
    assert str(tmp_path) not in json.dumps(manifest)
    site = tmp_path / "site"
    zipfile.ZipFile(house.path / "wheels" / result.wheel.name).extractall(site)
    code = f"import sys; sys.path.insert(0, {str(site)!r}); import torch; print(torch.value, *{MAPPED})"
    said = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True).stdout
    value, *mapped = said.split()
    assert value == "28"
    assert [path for path in mapped if "gomp" in path] == [str(site / "torch.libs" / one.name)]
    if shutil.which("dpkg-query"):
        assert one.owner is not None and one.owner.package.startswith("libgomp")
        info = next(path for path in site.iterdir() if path.suffix == ".dist-info")
        assert "GPL" in (info / "licenses" / "torch.libs" / one.owner.package / "copyright").read_text()
    again = build(bundle=True)
    assert again.wheel is not None
    assert ledger.attempts()[-1].result is Result.DONE
    first, second = (zipfile.ZipFile(path).read(f"torch.libs/{one.name}") for path in (result.wheel, again.wheel))
    assert first == second


def test_the_same_wheel_gives_the_same_bytes(
    bundler: Bundler, torch: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = torch(gomp())
    first = bundled(bundler, wheel, tmp_path / "first")
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    os.utime(wheel)
    second = bundled(bundler, wheel, tmp_path / "second")
    assert first.wheel.name == second.wheel.name
    assert first.wheel.read_bytes() == second.wheel.read_bytes()
    assert [path.name for path in (tmp_path / "first").iterdir()] == [first.wheel.name]  # nothing else is left


def test_tags_licences_and_the_list_of_parts_agree(
    bundler: Bundler, torch: Callable[..., Path], tmp_path: Path
) -> None:
    made = bundled(bundler, torch(gomp()), tmp_path / "out")
    archive = zipfile.ZipFile(made.wheel)
    names = set(archive.namelist())
    tags = [line for line in archive.read(f"{INFO}/WHEEL").decode().splitlines() if line.startswith("Tag: ")]
    assert tags == [f"Tag: cp311-cp311-{tag}" for tag in made.platform.split(".")]
    metadata = archive.read(f"{INFO}/METADATA")
    assert metadata.startswith(b"Metadata-Version: 2.4\n")
    listed = licence_files(metadata)
    assert listed[0] == "LICENSE"
    assert f"{INFO}/LICENSE" not in names  # in the folder that version 2.4 says
    assert all(f"{INFO}/licenses/{name}" in names for name in listed)
    owner = made.libraries[0].owner
    if owner is not None and owner.texts:
        assert set(listed[1:]) == {f"torch.libs/{place}" for place in owner.texts}
        parts = json.loads(archive.read(f"{INFO}/sboms/auditwheel.cdx.json"))
        assert made.wheel.name.replace("+", "%2B") in parts["metadata"]["component"]["purl"]
        assert owner.package in [part["name"] for part in parts["components"]]


def test_what_a_bundled_library_needs_comes_along(
    bundler: Bundler, torch: Callable[..., Path], library: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chain of two: each finds the next beside it; both belong to no package, which is said by name."""
    deep = library("deep", "int deep(void) { return 35; }", soname="libdeep.so.3")
    middle = library("middle", "int deep(void); int middle(void) { return deep() + 7; }", deep, soname="libmiddle.so.1")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(deep.parent))
    wheel = torch(middle, code="int middle(void); int value(void) { return middle(); }")
    made = bundled(bundler, wheel, tmp_path / "out")
    assert [one.soname for one in made.libraries] == ["libdeep.so.3", "libmiddle.so.1"]
    assert [one.size > 0 for one in made.libraries] == [True, True]
    assert [warning.split()[0] for warning in made.warnings] == ["libdeep.so.3", "libmiddle.so.1"]
    assert all("belongs to no package" in warning for warning in made.warnings)
    monkeypatch.delenv("LD_LIBRARY_PATH")
    with start(open_artifact(made.wheel), Path(sys.executable)) as launch:
        assert launch.run(["-c", "import torch; print(torch.value)"]).output == "42\n"


def test_a_library_that_the_loader_does_not_find(
    bundler: Bundler, torch: Callable[..., Path], library: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    gone = library("gone", "int gone(void) { return 1; }", soname="libgone.so.5")
    with pytest.raises(EnvironmentProblem, match=r"needs libgone\.so\.5, which") as raised:
        bundled(bundler, torch(gone), tmp_path / "out")
    assert "--no-bundle" in raised.value.hint
    assert not list((tmp_path / "out").iterdir())


def test_a_failed_bundle_is_a_failed_attempt(build: Build, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> Bundle:
        raise EnvironmentProblem("torch needs libgone.so.5, which is not there.")

    monkeypatch.setattr(Bundler, "bundle", fails)
    with pytest.raises(EnvironmentProblem, match="libgone"):
        build(bundle=True)
    (attempt,) = ledger.attempts()
    assert (attempt.result, attempt.stage) == (Result.FAILED, "bundle")


def test_nvidia_is_never_bundled(
    bundler: Bundler, torch: Callable[..., Path], library: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither its runtime nor the driver, though both are found; what is beside them is bundled."""
    runtime = library("cudart", "int cudart(void) { return 1; }", soname="libcudart.so.13")
    driver = library("cuda", "int cuda(void) { return 1; }", soname="libcuda.so.1")
    other = library("other", "int other(void) { return 1; }", soname="libother.so.1")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(runtime.parent))
    made = bundled(bundler, torch(runtime, driver, other), tmp_path / "out")
    assert [one.soname for one in made.libraries] == ["libother.so.1"]
    assert list(made.left) == ["libcudart.so.13", "libcuda.so.1"]
    assert "NVIDIA" in made.left["libcudart.so.13"] and "driver" in made.left["libcuda.so.1"]


def test_a_bundled_library_may_need_a_newer_glibc_than_the_wheel(
    bundler: Bundler, torch: Callable[..., Path], library: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tag promises what the whole wheel needs, and the check of `verify` agrees."""
    call = "unsigned arc4random(void); int newer(void) { return arc4random() != 0; }"  # since glibc 2.36
    try:
        newer = library("newer", call, soname="libnewer.so.1")
    except subprocess.CalledProcessError:
        pytest.skip("this glibc is older than 2.36")
    old = bundled(bundler, torch(), tmp_path / "old")
    assert not old.libraries and old.platform != f"linux_{MACHINE}"  # nothing to bundle; the tag is still right
    monkeypatch.setenv("LD_LIBRARY_PATH", str(newer.parent))
    made = bundled(bundler, torch(newer), tmp_path / "out")
    if "GLIBC_2.36" not in subprocess.run(["readelf", "-V", newer], capture_output=True, text=True, check=True).stdout:
        pytest.skip("this glibc has no arc4random of its own")
    assert made.platform == f"manylinux_2_36_{MACHINE}"
    report = verify(made.wheel, level="static")
    (glibc,) = [check for check in report.checks if check.name.startswith("glibc")]
    assert glibc.outcome is CheckOutcome.PASS and glibc.details["needs"] == "2.36"


def test_the_gpl_is_said(
    bundler: Bundler,
    torch: Callable[..., Path],
    library: Make,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    owner = LibraryOwner("libfree8", "8.2-1", "GPL-3+", {"libfree8/copyright": b"GPL"})
    monkeypatch.setattr(bundling, "find_owner", lambda path: owner)
    free = library("free", "int f(void) { return 1; }", soname="libfree.so.8")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(free.parent))
    (warning,) = bundled(bundler, torch(free), tmp_path / "out").warnings
    assert "libfree.so.8 (libfree8 8.2-1) is under GPL-3+" in warning


def test_a_wheel_for_another_machine(bundler: Bundler, torch: Callable[..., Path], tmp_path: Path) -> None:
    other = {"x86_64": "aarch64", "aarch64": "x86_64"}[MACHINE]
    with pytest.raises(EnvironmentProblem, match=f"is for {other}; this machine is {MACHINE}"):
        bundled(bundler, torch(tag=f"cp311-cp311-linux_{other}"), tmp_path / "out")


def test_a_wheel_without_libraries(bundler: Bundler, tmp_path: Path) -> None:
    wheel = build_wheel(
        tmp_path, {"torch/__init__.py": b""}, name="torch", version=VERSION, tag=f"cp311-cp311-linux_{MACHINE}"
    )
    made = bundled(bundler, wheel, tmp_path / "out")
    assert made.libraries == () and made.wheel.name == wheel.name


def test_tools_that_are_gone(bundler: Bundler, torch: Callable[..., Path], tmp_path: Path) -> None:
    """An environment that lost a program is named, with what to do; the system's own patchelf is not taken."""
    broken = tmp_path / "tools" / "bin"
    broken.mkdir(parents=True)
    (broken / "python").symlink_to(bundler.tools.python)
    with pytest.raises(EnvironmentProblem, match="patchelf is missing") as raised:
        bundled(replace(bundler, tools=BuildEnvironment(broken.parent)), torch(), tmp_path / "out")
    assert str(broken.parent) in raised.value.hint


def test_a_bundled_wheel_is_cut_for_each_gpu(bundler: Bundler, torch: Callable[..., Path], tmp_path: Path) -> None:
    """Bundled once, where it was linked; each GPU's wheel has the libraries, their licences and the tag."""
    plain = torch(gomp())
    with zipfile.ZipFile(plain) as archive:
        files = {name: archive.read(name) for name in archive.namelist() if not name.startswith(INFO)}
    files["torch/lib/libtorch_cuda.so"] = FAT
    tag = f"cp313-cp313-linux_{MACHINE}"
    fat = build_wheel(tmp_path, files, name="torch", version="2.99.0+cu130.avx512", tag=tag)
    made = bundled(bundler, fat, tmp_path / "out")
    gpus = [Capability(8, 0), Capability(9, 0)]
    cutter = Cutter(load_catalog(Path("/")), Cache(tmp_path / "cache"), Cut().for_job)
    cuts = cutter.cut(made.wheel, hash_file(made.wheel), made.wheel.name, [(gpu,) for gpu in gpus])
    for gpu in gpus:
        with WheelArchive(cuts[gpu,].path) as archive:
            whole = WheelDistribution.of(archive)
            for member in archive.files:
                whole.check(member)
            names = set(archive.members)
            assert cuts[gpu,].path.name.endswith(f"-{made.platform}.whl")
            assert f"torch.libs/{made.libraries[0].name}" in names
            listed = licence_files(archive.read(f"{whole.dist_info}/METADATA"))
            assert all(f"{whole.dist_info}/licenses/{name}" in names for name in listed)
            before = zipfile.ZipFile(made.wheel).read("torch/lib/libtorch_cpu.so")
            assert b"".join(archive.chunks(archive.members["torch/lib/libtorch_cpu.so"])) == before


# Another system


@pytest.fixture(scope="session")
def smallest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A system of nothing but this Python and what that needs."""
    root = tmp_path_factory.mktemp("smallest")
    base, python = Path(sys.base_prefix), Path(sys.executable).resolve()
    name = f"python3.{sys.version_info[1]}"
    for folder in ("tmp", "proc", "sys", "dev", "usr/bin", "etc"):
        (root / folder).mkdir(parents=True)
    (root / "etc" / "os-release").write_text('PRETTY_NAME="Nothing but Python"\n')
    unused = shutil.ignore_patterns("site-packages", "dist-packages", "test", "idlelib", "ensurepip", "__pycache__")
    library = Path(os.__file__).parent
    shutil.copytree(library, root / str(library).lstrip("/"), ignore=unused)
    (root / str(python).lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(python, root / str(python).lstrip("/"))
    programs = [python, *library.glob("lib-dynload/*.so")]
    said = subprocess.run(["ldd", *programs], capture_output=True, text=True, check=True).stdout
    for word in {word for word in said.split() if word.startswith("/") and not word.endswith(":")}:
        place = root / word.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(word, place)
    if not (root / "usr" / "bin" / "python3").exists():
        (root / "usr" / "bin" / "python3").symlink_to(python)
    if not (root / "usr" / "bin" / name).exists():
        (root / "usr" / "bin" / name).symlink_to(python)
    system = SystemRoot.open(root)
    line = system.command(["/usr/bin/python3", "-c", f"import ctypes; print({str(base)!r})"])
    done = subprocess.run(line, capture_output=True, text=True, check=False, env=system.environment)
    if done.returncode:
        pytest.skip(f"nothing can be mounted here: {done.stderr.strip()[-200:]}")
    return root


def in_root(wheel: Path, root: Path) -> FinishedProcess:
    with start(open_artifact(wheel), None, SystemRoot.open(root)) as launch:
        return launch.run(["-c", f"import torch; print(torch.value, *{MAPPED})"])


def test_a_system_without_the_libraries(
    bundler: Bundler,
    torch: Callable[..., Path],
    smallest: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What was linked with OpenMP does not start there; with it inside, it does, and `verify` says both."""
    monkeypatch.setattr(imports, "run_suite", lambda *_, **__: SuiteResults(1, {}, None, ()))  # this torch has no ops
    wheel = torch(gomp())
    made = bundled(bundler, wheel, tmp_path / "out")
    before = sorted(smallest.rglob("*"))
    assert in_root(made.wheel, smallest).output.startswith("7 ")
    assert "libgomp.so.1" in in_root(wheel, smallest).errors
    found = {check.name: check for check in verify(wheel, level="import", root=smallest).checks}
    assert found["import torch"].outcome is CheckOutcome.FAIL
    assert "libgomp.so.1" in found["import torch"].reason
    found = {check.name: check for check in verify(made.wheel, level="import", root=smallest).checks}
    assert found["import torch"].outcome is CheckOutcome.PASS
    assert "Nothing but Python" in found["system"].reason
    assert sorted(smallest.rglob("*")) == before, "the system was written to"


@pytest.mark.slow
def test_a_bare_debian(build: Build, project: Path, tmp_path: Path) -> None:
    """The small project, linked with OpenMP, in a Debian of which only Python was installed."""
    if os.geteuid() != 0 or not shutil.which("debootstrap"):
        pytest.skip("needs root and debootstrap")
    with (project / "CMakeLists.txt").open("a") as file:
        file.write(WITH_OPENMP)
    result = build(bundle=True)
    assert result.wheel is not None and result.bundle is not None
    bare = tmp_path / "bare"
    made = subprocess.run([str(BARE), str(bare)], capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stdout + made.stderr
    assert in_root(result.wheel, bare).output.startswith("28 ")
    plain = build(bundle=False)
    assert plain.wheel is not None
    assert "libgomp.so.1" in in_root(plain.wheel, bare).errors


def test_what_is_no_system(tmp_path: Path, torch: Callable[..., Path], smallest: Path) -> None:
    with pytest.raises(NoMatchError, match="is no folder"):
        verify(torch(), level="import", root=tmp_path / "missing")
    with pytest.raises(NoMatchError, match="holds no system"):
        verify(torch(), level="import", root=tmp_path)
    loose = tmp_path / "loose" / "torch" / "lib"
    loose.mkdir(parents=True)
    shutil.copy(tmp_path / "own" / "libtorch_cpu.so", loose)
    with pytest.raises(UsageError, match="no wheels"):
        verify(tmp_path / "loose", level="import", root=smallest)


def test_the_script_shows_its_steps(tmp_path: Path) -> None:
    variables = {**os.environ, "MIRROR": "http://mirror.invalid/debian"}
    line = [str(BARE), str(tmp_path / "root"), "trixie", "--dry-run"]
    done = subprocess.run(line, capture_output=True, text=True, check=False, env=variables)
    assert done.returncode == 0, done.stderr
    assert "--variant=minbase --include=python3 trixie" in done.stdout
    assert "http://mirror.invalid/debian" in done.stdout
    assert not (tmp_path / "root").exists()
