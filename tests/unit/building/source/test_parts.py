"""Environment, sources, toolkits of wheels, plans, fixes and history: each by itself."""

from __future__ import annotations

import os
import random
import sqlite3
import subprocess
import tarfile
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from torchtailor.advise.host.probe import CommandOutcome, CommandResult
from torchtailor.building.ledger.history import as_markdown, attempt_columns, switch_columns
from torchtailor.building.ledger.ledger import Attempt, Ledger, Result
from torchtailor.building.source.buildenv import BuildEnvironment, process_environment
from torchtailor.building.source.ccache import ccache_environment, prepare, read_hits
from torchtailor.building.source.configuration import configure
from torchtailor.building.source.cudawheels import cuda_packages, join_prefix
from torchtailor.building.source.folders import Folders
from torchtailor.building.source.plan import matrix_cost, plan_matrix
from torchtailor.building.source.runner import local_version, of_tree
from torchtailor.building.source.tables import Tables
from torchtailor.building.source.toolchain import Cuda, HostCompiler, host_compilers
from torchtailor.building.source.tree import SourceOrigin, TorchSource, fetch, knows_gpu, remote_commit
from torchtailor.catalog import SOURCE, Capability, Catalog, Dotted
from torchtailor.catalog.variants import Matrix, Variant
from torchtailor.core.errors import BadInputError, NetworkError, NoMatchError, TorchtailorError, UsageError

Named = Callable[[str], Variant]


def test_the_environment_is_made_from_nothing(tables: Tables, variant: Named, tmp_path: Path) -> None:
    outer = {"HOME": "/h", "LD_PRELOAD": "x", "CXXFLAGS": "-O0", "USE_CUDA": "1", "LD_LIBRARY_PATH": "/evil", "A": "b"}
    values = process_environment(
        tables,
        BuildEnvironment(tmp_path),
        configure(tables, variant("sm90-avx512")),
        version="2.10.0+x",
        include=tmp_path / "i.cmake",
        compiler=HostCompiler("/usr/bin/gcc-14", "/usr/bin/g++-14", "gcc", Dotted("14.2")),
        cuda=Cuda("/cuda", Dotted("13.0"), ()),
        outer=outer,
    )
    assert values["HOME"] == "/h"
    assert not {"LD_PRELOAD", "A"} & set(values)
    assert values["LD_LIBRARY_PATH"] == ""
    assert values["CXXFLAGS"].startswith("-mavx512f")
    assert values["PATH"].startswith(f"{tmp_path}/bin:/cuda/bin:")
    assert values["CMAKE_CUDA_HOST_COMPILER"] == "/usr/bin/g++-14"


@pytest.mark.parametrize(("overrides", "searched"), [((), "/llvm/lib"), (("CMAKE_LIBRARY_PATH=/own",), "/own")])
def test_cmake_looks_where_clang_has_its_openmp(
    tables: Tables, variant: Named, tmp_path: Path, overrides: tuple[str, ...], searched: str
) -> None:
    values = process_environment(
        tables,
        BuildEnvironment(tmp_path),
        configure(tables, variant("cpu-avx2"), overrides=overrides),
        version="1",
        include=tmp_path,
        compiler=HostCompiler("/usr/bin/clang", "/usr/bin/clang++", "clang", Dotted("19.1"), openmp="/llvm/lib"),
        cuda=None,
        outer={},
    )
    assert values["CMAKE_LIBRARY_PATH"] == searched


def test_scripts_with_set_u_find_what_they_expect(tables: Tables, variant: Named, tmp_path: Path) -> None:
    values = process_environment(
        tables,
        BuildEnvironment(tmp_path),
        configure(tables, variant("cpu-avx2")),
        version="1",
        include=tmp_path,
        compiler=None,
        cuda=None,
        outer={},
    )
    script = "set -eu; export LD_LIBRARY_PATH=/x:$LD_LIBRARY_PATH PYTHONPATH=/y:$PYTHONPATH; echo $PATH"
    subprocess.run(["sh", "-c", script], env=values, check=True, capture_output=True)


@pytest.mark.parametrize(
    ("text", "origin", "ref"),
    [
        (None, SourceOrigin.GIT, "v2.15.0"),
        ("https://example.org/pytorch.git@main", SourceOrigin.GIT, "main"),
        ("https://user@example.org/pytorch.git@v2.10.0-rc1", SourceOrigin.GIT, "v2.10.0-rc1"),
        ("https://example.org/pytorch.git", SourceOrigin.GIT, "HEAD"),
        ("git@example.org:pytorch/pytorch.git@nightly", SourceOrigin.GIT, "nightly"),
        ("git@example.org:pytorch/pytorch.git", SourceOrigin.GIT, "HEAD"),
        ("https://me:t0ken@example.org:8443/pytorch.git", SourceOrigin.GIT, "HEAD"),
        ("ssh://git@example.org:2222/pytorch.git@main", SourceOrigin.GIT, "main"),
        ("https://example.org/pytorch.git@release/2.10", SourceOrigin.GIT, "release/2.10"),
        ("git@example.org:pytorch/pytorch.git@viable/strict", SourceOrigin.GIT, "viable/strict"),
    ],
)
def test_git_addresses(variant: Named, text: str | None, origin: SourceOrigin, ref: str) -> None:
    source = TorchSource.parse(text, variant("pytorch215-python313-cpu-avx2"))
    assert (source.origin, source.ref) == (origin, ref)
    assert not source.place.endswith(ref)
    assert source.place.endswith("pytorch.git") and "t0ken" not in str(source)


def test_a_ref_is_not_one_that_only_ends_like_it(tmp_path: Path) -> None:
    def git(*words: str) -> str:
        line = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@example.org", *words]
        return subprocess.run(line, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "-q", "-b", "main")
    commits = []
    for names in (["abc/main", "ci/v2.10.0"], ["main", "v2.10.0"]):
        git("commit", "-q", "--allow-empty", "-m", names[0])
        commits.append(git("rev-parse", "HEAD"))
        git("branch", "-f", names[0]) if names[0] != "main" else None
        git("tag", "-m", "annotated", names[1])
    for ref in ("main", "v2.10.0", "HEAD", "refs/heads/main"):
        assert remote_commit(TorchSource(SourceOrigin.GIT, tmp_path.as_uri(), ref)) == commits[1], ref
    assert remote_commit(TorchSource(SourceOrigin.GIT, tmp_path.as_uri(), "abc/main")) == commits[0]
    with pytest.raises(NetworkError, match="has no 'ain'"):
        remote_commit(TorchSource(SourceOrigin.GIT, tmp_path.as_uri(), "ain"))


@pytest.mark.filterwarnings("ignore:Python 3.14 will:DeprecationWarning")  # of 3.12 and 3.13 made to look like 3.11.2
@pytest.mark.parametrize("kind", ["gz", "xz", "bz2"])
def test_a_damaged_tarball(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    if kind == "gz":
        monkeypatch.delattr(tarfile, "data_filter", raising=False)  # as in Debian 12
    (tmp_path / "pytorch").mkdir()
    for name in ("setup.py", "CMakeLists.txt"):
        (tmp_path / "pytorch" / name).write_bytes(random.Random(name).randbytes(50_000))
    (tmp_path / "pytorch" / "version.txt").write_text("2.10.0\n")
    tarball = tmp_path / f"a.tar.{kind}"
    with tarfile.open(tarball, f"w:{kind}") as archive:  # type: ignore[call-overload]
        archive.add(tmp_path / "pytorch", "pytorch")
    source = TorchSource(SourceOrigin.TARBALL, str(tarball))
    assert fetch(source, Folders(tmp_path / "work", tmp_path / "logs")).version == "2.10.0"
    intact = tarball.read_bytes()
    for position in range(len(intact) // 9, len(intact) - 1, len(intact) // 9):  # each is noticed elsewhere
        tarball.write_bytes(intact[:position] + bytes([intact[position] ^ 0x10]) + intact[position + 1 :])
        with pytest.raises(BadInputError, match="is damaged"):
            fetch(source, Folders(tmp_path / "work", tmp_path / "logs"))


@pytest.mark.parametrize("filters", [True, False])
@pytest.mark.parametrize(
    ("name", "kind", "target"),
    [
        ("../out", tarfile.REGTYPE, ""),
        ("pytorch/../../out", tarfile.REGTYPE, ""),
        ("pytorch/link", tarfile.SYMTYPE, "../../out"),
        ("pytorch/link", tarfile.SYMTYPE, "/etc/passwd"),
        ("pytorch/link", tarfile.LNKTYPE, "../out"),
        ("pytorch/fifo", tarfile.FIFOTYPE, ""),
    ],
)
def test_a_tarball_writes_nothing_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, filters: bool, name: str, kind: bytes, target: str
) -> None:
    """With the filters of newer Pythons and without them."""
    if not filters:
        monkeypatch.delattr(tarfile, "data_filter", raising=False)
    elif not hasattr(tarfile, "data_filter"):
        pytest.skip("this Python has no filters")
    tarball = tmp_path / "a.tar"
    with tarfile.open(tarball, "w") as archive:
        member = tarfile.TarInfo(name)
        member.type, member.linkname = kind, target
        archive.addfile(member)
    with pytest.raises(BadInputError, match="is damaged"):
        fetch(TorchSource(SourceOrigin.TARBALL, str(tarball)), Folders(tmp_path / "work", tmp_path / "logs"))
    assert not [*tmp_path.rglob("out")]


def test_a_folder_by_any_name_and_without_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / os.fsdecode(b"pytorch-\xff")
    (folder / ".git").mkdir(parents=True)
    for name in ("setup.py", "CMakeLists.txt"):
        (folder / name).touch()
    (folder / "version.txt").write_text("2.13.0a0\n")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert (
        fetch(TorchSource(SourceOrigin.FOLDER, str(folder)), Folders(tmp_path / "work", tmp_path / "logs")).version
        == "2.13.0a0"
    )


@pytest.mark.parametrize(
    ("given", "chosen"),
    [
        ({"CXX": "g++"}, ("gcc", "g++")),
        ({"CC": "clang"}, ("clang", "clang++")),
        ({"CXX": "/opt/bin/x86_64-linux-gnu-g++-13"}, ("/opt/bin/x86_64-linux-gnu-gcc-13", None)),
        ({"CC": "gcc-13"}, ("gcc-13", "g++-13")),
        ({"CC": "mine", "CXX": "mine++"}, ("mine", "mine++")),
        ({"CC": "gcc-99", "CXX": " "}, None),
        ({"CXX": "mine++"}, None),
        ({"CC": "mine"}, None),
        ({"CXX": "ccache g++"}, None),
        ({"CC": "gone", "CXX": "g++"}, None),
        ({"CXX": ""}, ("cc", "c++")),
        ({}, ("cc", "c++")),
    ],
)
def test_one_compiler_of_the_environment_brings_the_other(
    given: dict[str, str], chosen: tuple[str, str | None] | None
) -> None:
    missing = ("gcc-99", "gone", "ccache g++")

    class Probe:
        def env(self, name: str) -> str | None:
            return given.get(name)

        def which(self, name: str) -> str | None:
            assert name, "no name is looked for"
            return None if name in missing else str(Path("/usr/bin") / name)

        def run(self, line: tuple[str, ...], _: float) -> CommandResult:
            return CommandResult(outcome=CommandOutcome.DONE, output=f"{line[0]} 14.2.0\n")

    first = next(iter(host_compilers(Probe())), None)  # type: ignore[arg-type]
    if chosen is None or first is None:
        assert first is None and chosen is None, "another one than asked for is not taken"
    else:
        names = (chosen[0], chosen[1] or given["CXX"])
        assert (first.cc, first.cxx) == tuple(str(Path("/usr/bin") / name) for name in names)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("--upload-pack=touch x", UsageError),
        ("--upload-pack=touch x@host:y", UsageError),
        ("-x@host:y", UsageError),
        ("https://example.org/pytorch.git@--upload-pack=x", UsageError),
        ("git@-oProxyCommand=x:y", NoMatchError),  # no URL, and no folder of that name
    ],
)
def test_a_source_is_never_an_option_of_git(variant: Named, text: str, error: type[TorchtailorError]) -> None:
    with pytest.raises(error):
        TorchSource.parse(text, variant("cpu-avx2"))


def test_a_token_in_a_git_url_is_not_shown(variant: Named) -> None:
    source = TorchSource.parse("https://me:t0ken@example.org/pytorch.git@main", variant("cpu-avx2"))
    assert source.place == "https://me:t0ken@example.org/pytorch.git"
    assert str(source) == "https://****@example.org/pytorch.git@main"


def test_files_and_folders(variant: Named, tmp_path: Path) -> None:
    named = variant("cpu-avx2")
    assert TorchSource.parse(str(tmp_path), named).origin is SourceOrigin.FOLDER
    tarball = tmp_path / "a.tar.gz"
    tarball.touch()
    assert TorchSource.parse(str(tarball), named).origin is SourceOrigin.TARBALL
    (tmp_path / "a.zip").touch()
    with pytest.raises(BadInputError):
        TorchSource.parse(str(tmp_path / "a.zip"), named)
    with pytest.raises(NoMatchError):
        TorchSource.parse("no/such/thing", named)


@pytest.mark.parametrize(
    ("pattern", "known"),
    [
        (r"^([0-9]+\\.[0-9]a?(\\([0-9]+\\.[0-9]\\))?)$", {"9.0", "12.1"}),  # PyTorch 2.6
        (r"^([0-9]\\.[0-9]a?(\\([0-9]\\.[0-9]\\))?)$", {"9.0"}),  # PyTorch 2.5
    ],
)
def test_a_tree_knows_its_gpus(tmp_path: Path, pattern: str, known: set[str]) -> None:
    path = tmp_path / "cmake/Modules_CUDA_fix/upstream/FindCUDA/select_compute_arch.cmake"
    path.parent.mkdir(parents=True)
    ptx = r"(.*)\\+PTX$"
    path.write_text(f'    if(arch_name MATCHES "{ptx}")\n    endif()\n    if(arch_name MATCHES "{pattern}")\n')
    asked = ("9.0", "12.1")
    assert {text for text in asked if knows_gpu(tmp_path, Capability.parse(text))} == known
    assert knows_gpu(tmp_path / "elsewhere", Capability(12, 1))


def test_versions_follow_the_source(variant: Named) -> None:
    gpu, cpu = variant("pytorch-python313-cuda13_0-sm90-avx512"), variant("cpu-armv8_2")
    assert local_version("2.10.0", gpu) == "2.10.0+cu130.sm90.avx512"
    assert local_version("2.13.0a0+git1a2b3c4", cpu) == "2.13.0a0+git1a2b3c4.cpu.armv8.2"
    assert local_version("2.10.0", gpu, (Capability(8, 0),)) == "2.10.0+cu130.avx512"
    assert of_tree(cpu, "2.6.0").unique_name == "pytorch26-python313-cpu-armv8_2"
    assert of_tree(cpu, str(cpu.release.version)) is cpu


def test_a_toolkit_joined_of_wheels(tmp_path: Path) -> None:
    wheels = tmp_path / "nvidia"
    for name, content in {
        "cuda_nvcc/bin/nvcc": "#!/bin/sh\necho nvcc",
        "cuda_nvcc/bin/nvcc.profile": "TOP = $(_HERE_)/..",
        "cuda_nvcc/nvvm/bin/cicc": "",
        "cuda_nvcc/include/fatbinary_section.h": "",
        "cuda_runtime/include/cuda_runtime.h": "",
        "cuda_runtime/lib/libcudart.so.12": "elf",
        "cublas/lib/libcublas.so.12": "elf",
        "cublas/__init__.py": "",
    }.items():
        (wheels / name).parent.mkdir(parents=True, exist_ok=True)
        (wheels / name).write_text(content)
    home = tmp_path / "home"
    join_prefix(wheels, home)
    assert (home / "lib64" / "libcudart.so").read_text() == "elf"
    assert (home / "include" / "cuda_runtime.h").exists()
    assert (home / "nvvm" / "bin" / "cicc").exists()
    assert not (home / "bin" / "nvcc").is_symlink(), "nvcc looks for its parts where it really is"
    assert (home / "bin" / "nvcc").stat().st_mode & 0o111


def test_the_wheels_of_a_toolkit(tables: Tables) -> None:
    assert "nvidia-cuda-nvcc-cu12==12.8.*" in cuda_packages(tables, Dotted("12.8.1"))
    assert any(package.startswith("cuda-toolkit[") for package in cuda_packages(tables, Dotted("13.0.2")))
    with pytest.raises(NoMatchError):
        cuda_packages(tables, Dotted("11.8"))


def test_the_matrix_of_the_seeds_costs_a_seventh(catalog: Catalog, tables: Tables) -> None:
    variants = list(Matrix(catalog).variants("cuda-13_0"))
    cost = matrix_cost(tables.cost, variants)
    assert len(variants) == 59
    assert 650 < cost.naive < 800
    assert 100 < cost.shared < 200
    plan = plan_matrix(catalog, tables, variants)
    assert plan.variants == 59
    assert len(plan.groups) == len({(v.build.label, v.isa.name) for v in variants})


def test_all_gpus_of_one_isa_are_one_build(catalog: Catalog, tables: Tables, variant: Named) -> None:
    plan = plan_matrix(catalog, tables, [variant("pytorch-python313-cuda13_0-sm90-avx512")], all_gpus=True)
    (group,) = plan.groups
    assert Capability(8, 0) in group.gpus
    assert Capability(9, 0) in group.gpus
    assert Capability(7, 5) in group.gpus
    fat = configure(tables, group.variant, gpus=group.gpus)
    assert not fat.off("USE_FLASH_ATTENTION"), "one old GPU must not take it from the others"
    single = plan_matrix(catalog, tables, [variant("cpu-avx2")], all_gpus=True)
    assert single.groups[0].gpus == ()
    assert single.cost.naive == pytest.approx(single.cost.shared)


def test_another_python_costs_its_own_part(catalog: Catalog, tables: Tables, variant: Named) -> None:
    first = variant("cpu-avx2")
    one, three = [first], [replace(first, python=python) for python in ("3.11", "3.12", "3.13")]
    more = matrix_cost(tables.cost, three).shared - matrix_cost(tables.cost, one).shared
    assert more == pytest.approx(2 * tables.cost.python_core_hours)
    assert matrix_cost(tables.cost, three).naive == pytest.approx(3 * matrix_cost(tables.cost, one).naive)
    assert {item.any_python for item in three} == {f"{first.release.tag}-cpu-avx2"}


def test_hits_of_the_compiler_cache(tmp_path: Path) -> None:
    environment = ccache_environment("/usr/bin/ccache", Folders(tmp_path, tmp_path), tmp_path)
    prepare(environment)
    assert read_hits(environment) is None
    Path(environment["CCACHE_STATSLOG"]).write_text(
        "# /s/a.cpp\ndirect_cache_hit\nlocal_storage_hit\n# /s/b.cpp\ncache_miss\ndirect_cache_miss\n"
    )
    hits = read_hits(environment)
    assert hits is not None
    assert (hits.hits, hits.misses) == (1, 1)
    assert str(hits) == "1 of 2 (50%)"
    assert environment["CCACHE_BASEDIR"] == str(tmp_path)


def attempt(number: int, **configuration: object) -> Attempt:
    started = datetime(2026, 11, 15, tzinfo=UTC)
    options = {"set": ["USE_NUMPY=0"]} if number == 2 else {}
    return Attempt(
        number, "v", SOURCE, options, configuration, "h", started, 60.0, Result.FAILED, "E", "e", "f", "compile",
        None, None, percent=92.0,
    )  # fmt: skip


def test_history_has_a_column_for_switches_that_matter() -> None:
    attempts = [
        attempt(1, USE_CUDA="1", USE_KINETO="0", USE_MPI="0", USE_NUMPY="0"),
        attempt(2, USE_CUDA="1", USE_KINETO="1", USE_MPI="0", USE_NUMPY="0", jobs=4),
    ]
    assert switch_columns(attempts) == ("USE_CUDA", "USE_KINETO", "USE_NUMPY")
    table = as_markdown(attempt_columns(attempts), attempts).splitlines()
    assert table[0].startswith("| Attempt | Variant | Method | USE_CUDA | USE_KINETO | USE_NUMPY | Configuration |")
    assert "| 1 | 1 | 0 | jobs=4 | failed at 92 % (compile) |" in table[3]
    assert switch_columns([]) == ()


def test_a_ledger_of_the_first_version_is_migrated(tmp_path: Path) -> None:
    from torchtailor.building.ledger.ledger import _SCHEMA

    path = tmp_path / "ledger.sqlite"
    connection = sqlite3.connect(path)
    connection.execute(_SCHEMA)
    connection.execute(
        "INSERT INTO attempt (variant, way, options, configuration, host, pid, boot, started, result)"
        " VALUES ('v', 'wheel', '{}', '{}', 'h', 1, 'b', '2026-01-01T00:00:00+00:00', 'done')"
    )
    connection.execute("PRAGMA user_version = 1")
    connection.commit()
    connection.close()
    ledger = Ledger(path)
    assert [(item.variant, item.log, item.percent) for item in ledger.attempts()] == [("v", "", None)]
    with ledger.attempt("w", SOURCE) as running:
        running.log, running.percent, running.failure = "/l", 12.5, "disk-full"
    last = ledger.attempts()[-1]
    assert (last.log, last.percent, last.failure) == ("/l", 12.5, "disk-full")


def test_automatic_fixes_of_the_catalogue_are_mappings() -> None:
    from torchtailor.verification.failures import load_failures

    for failure in load_failures():
        if failure.auto:
            assert dict(failure.auto.switches) | dict(failure.auto.environment) or failure.auto.jobs
