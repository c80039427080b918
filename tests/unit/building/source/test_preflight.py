"""Preflight on recorded machines: what is found, what is missing, and the command that fixes it."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from torchtailor.advise.host.probe import Basics, CommandOutcome, CommandResult, Recording, ReplayProbe
from torchtailor.building.source.configuration import configure
from torchtailor.building.source.preflight import Inspector, Preflight, PreflightCheck, check_names
from torchtailor.building.source.tables import Tables
from torchtailor.catalog import Catalog
from torchtailor.catalog.variants import Variant
from torchtailor.core.errors import EnvironmentProblem, UsageError

Named = Callable[[str], Variant]
PYTHON = Path("/usr/bin/python3.13")
LIBRARIES = "/usr/lib/x86_64-linux-gnu"


def said(text: str) -> CommandResult:
    return CommandResult(outcome=CommandOutcome.DONE, output=text)


def gcc(version: str) -> CommandResult:
    return said(f"g++ (Debian {version}-14) {version}\nCopyright")


class Machine:
    """A workstation with all that a build needs; tests take things away."""

    def __init__(self) -> None:
        from torchtailor.building.source.preflight import _HEADERS

        self.arch = "x86_64"
        self.programs = {"cc": "/usr/bin/cc", "c++": "/usr/bin/c++", "git": "/usr/bin/git"}
        self.commands = {
            "/usr/bin/c++ --version": gcc("14.2.0"),
            f"{PYTHON} -c {_HEADERS}": said("/usr/include/python3.13 True\n"),
            "/usr/local/cuda-13.0/bin/nvcc --version": said("Cuda compilation tools, release 13.0, V13.0.88"),
            "/usr/local/cuda-13.0/bin/nvcc --list-gpu-code": said("sm_75\nsm_80\nsm_90\nsm_121\n"),
        }
        self.folders: dict[str, tuple[str, ...]] = {
            "/usr/local/cuda-13.0/bin": ("nvcc",),
            "/usr/local/cuda-13.0/include": ("nccl.h", "cudnn_version.h"),
            "/usr/local/cuda-13.0/lib64": ("libnccl.so.2", "libcudnn.so.9"),
            "/usr/include": ("cblas.h",),
            LIBRARIES: ("libopenblas.so",),
        }
        self.environment: dict[str, str] = {}
        self.files = {
            "/proc/meminfo": "MemTotal: 32000000 kB\nMemAvailable: 30000000 kB\n",
            "/usr/local/cuda-13.0/include/cudnn_version.h": "#define CUDNN_MAJOR 9\n#define CUDNN_MINOR 13\n"
            "#define CUDNN_PATCHLEVEL 0\n",
        }

    def _of_c(self) -> dict[str, CommandResult]:
        """The C compiler is of the version of the C++ compiler beside it."""
        return {
            name.replace("clang++", "clang").replace("g++", "gcc").replace("c++", "cc"): ran
            for name, ran in self.commands.items()
        }

    def probe(self) -> ReplayProbe:
        recording = Recording(
            basics=Basics(arch=self.arch, kernel="6", affinity=16),
            programs=dict(self.programs),
            commands={**self._of_c(), **self.commands},
            folders=dict(self.folders),
            files=dict(self.files),
            env=dict(self.environment),
        )
        return ReplayProbe(recording)


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
def look(catalog: Catalog, tables: Tables, variant: Named, machine: Machine) -> Callable[..., Preflight]:
    def run(
        name: str = "pytorch-python313-cuda13_0-sm90-avx512",
        free: int = 10**11,
        python: Path | None = PYTHON,
        overrides: tuple[str, ...] = (),
        bundle: bool = False,
    ) -> Preflight:
        named = variant(name)
        configuration = configure(tables, named, overrides=overrides)
        inspector = Inspector(catalog, tables, machine.probe(), named)
        return inspector.check(configuration, python=python, work=Path("/w"), disk_free=free, git=True, bundle=bundle)

    return run


Look = Callable[..., Preflight]


def miss(seen: Preflight, name: str) -> tuple[str, str]:
    check = next(check for check in seen.blocking() if check.name == name)
    return check.found, check.fix


def test_a_machine_that_has_everything(look: Look) -> None:
    seen = look()
    assert seen.blocking() == ()
    seen.require()
    assert seen.compiler is not None
    assert str(seen.compiler.version) == "14.2.0"
    assert seen.cuda is not None
    assert seen.blas is not None
    assert seen.blas.name == "OpenBLAS"
    assert seen.capacity.cores == 16


def test_no_compiler(look: Look, machine: Machine) -> None:
    machine.programs.clear()
    seen = look("cpu-avx2")
    found, fix = miss(seen, "compiler")
    assert "no C++ compiler" in found
    assert fix == "sudo apt-get install gcc-14 g++-14"
    assert "git" in {check.name for check in seen.blocking()}
    with pytest.raises(EnvironmentProblem, match="compiler") as raised:
        seen.require()
    assert "apt-get install gcc-14" in raised.value.hint


def test_clang_needs_an_openmp_library(look: Look, machine: Machine) -> None:
    machine.commands["/usr/bin/c++ --version"] = said("Debian clang version 19.1.7 (3+b1)\nTarget: x86_64-pc-linux-gnu")
    asked = "/usr/bin/c++ -print-file-name=libomp.so"
    machine.commands[asked] = said("libomp.so\n")
    found, fix = miss(look("cpu-avx2"), "openmp")
    assert "clang 19.1.7 has no OpenMP library" in found
    assert fix == "sudo apt-get install libomp-19-dev, or build without it: --set USE_OPENMP=0"
    assert "openmp" not in {check.name for check in look("cpu-avx2", overrides=("USE_OPENMP=0",)).checks}
    machine.commands[asked] = said("/usr/lib/llvm-19/lib/libomp.so\n")
    seen = look("cpu-avx2")
    assert seen.blocking() == ()
    assert seen.compiler is not None
    assert seen.compiler.openmp == "/usr/lib/llvm-19/lib"


def test_gcc_has_openmp_by_itself(look: Look) -> None:
    assert "openmp" not in {check.name for check in look().checks}


def test_a_compiler_beyond_the_toolkits_limit_and_one_beside_it(look: Look, machine: Machine) -> None:
    machine.commands["/usr/bin/c++ --version"] = gcc("16.1.0")
    found, fix = miss(look(), "compiler")
    assert "gcc 16.1.0" in found
    assert "to 15" in found
    assert "gcc-14" in fix
    machine.programs |= {"gcc-15": "/usr/bin/gcc-15", "g++-15": "/usr/bin/g++-15"}
    machine.commands["/usr/bin/g++-15 --version"] = gcc("15.2.0")
    seen = look()
    assert seen.blocking() == ()
    assert seen.compiler is not None
    assert seen.compiler.cxx == "/usr/bin/g++-15"
    assert look("cpu-avx2").compiler.version.major == 16  # type: ignore[union-attr]  # no toolkit, no limit


@pytest.mark.parametrize("given", [{"CXX": "g++-16"}, {"CC": "no such thing"}, {"CC": "gcc-14", "CXX": "g++-15"}])
def test_the_compiler_of_the_environment_is_used_or_refused(
    look: Look, machine: Machine, given: dict[str, str]
) -> None:
    machine.environment |= given
    for number in (14, 15):
        machine.programs |= {name: f"/usr/bin/{name}" for name in (f"gcc-{number}", f"g++-{number}")}
        machine.commands[f"/usr/bin/g++-{number} --version"] = gcc(f"{number}.2.0")
    seen = look()
    found, fix = miss(seen, "compiler")
    name, value = next(iter(given.items()))
    assert seen.compiler is None
    assert f"{name}={shlex.quote(value)}" in found
    assert fix.startswith(f"unset {' '.join(given)}, or set CC and CXX to gcc ")


@pytest.mark.parametrize("folder", ["/usr/lib/ccache", "/usr/lib64/ccache", "/usr/lib/ccache/bin"])
def test_a_link_to_ccache_is_not_the_compiler(look: Look, machine: Machine, folder: str) -> None:
    """With its folder on the PATH, --no-ccache used the user's own cache."""
    machine.programs |= {"cc": f"{folder}/cc", "c++": f"{folder}/c++"}
    machine.commands[f"{folder}/c++ --version"] = gcc("14.2.0")
    machine.folders["/usr/bin"] = ("c++", "cc")
    seen = look()
    assert seen.compiler is not None
    assert (seen.compiler.cc, seen.compiler.cxx) == ("/usr/bin/cc", "/usr/bin/c++")


def test_a_compiler_behind_ccache_is_refused_with_the_reason(look: Look, machine: Machine) -> None:
    machine.environment["CXX"] = "ccache g++"
    found, fix = miss(look(), "compiler")
    assert "CXX='ccache g++' does not name" in found
    assert fix.endswith("without ccache, which is used where it is installed")


def test_a_relative_path_of_a_compiler_is_made_absolute(look: Look, machine: Machine) -> None:
    """CMake runs in another folder."""
    machine.environment |= {"CC": "./bin/gcc", "CXX": "./bin/g++"}
    machine.programs |= {"./bin/gcc": "./bin/gcc", "./bin/g++": "./bin/g++"}
    here = Path.cwd()
    machine.commands[f"{here}/bin/g++ --version"] = gcc("14.2.0")
    seen = look()
    assert seen.compiler is not None
    assert (seen.compiler.cc, seen.compiler.cxx) == (f"{here}/bin/gcc", f"{here}/bin/g++")


def test_the_compiler_of_the_environment_has_the_toolkits_limit(look: Look, machine: Machine) -> None:
    machine.environment["CXX"] = "g++-16"
    machine.programs |= {"gcc-16": "/usr/bin/gcc-16", "g++-16": "/usr/bin/g++-16"}
    machine.commands["/usr/bin/g++-16 --version"] = gcc("16.1.0")
    found, fix = miss(look(), "compiler")
    assert "gcc 16.1.0" in found
    assert fix.startswith("unset CXX, or set CC and CXX to gcc ")
    assert look("cpu-avx2").compiler.cxx == "/usr/bin/g++-16"  # type: ignore[union-attr]


def test_no_cuda_and_the_wrong_one(look: Look, machine: Machine) -> None:
    machine.commands["/usr/local/cuda-13.0/bin/nvcc --version"] = said("release 12.8, V12.8.93")
    found, fix = miss(look(), "cuda")
    assert "CUDA 12.8" in found
    assert "cuda-toolkit-13-0" in fix
    assert "--toolchain wheels" in fix
    machine.folders["/usr/local/cuda-13.0/bin"] = ()
    assert "no nvcc" in miss(look(), "cuda")[0]


def test_an_architecture_that_this_nvcc_does_not_know(look: Look, machine: Machine) -> None:
    machine.commands["/usr/local/cuda-13.0/bin/nvcc --list-gpu-code"] = said("sm_75\nsm_80\n")
    found, fix = miss(look(), "architecture")
    assert "9.0" in found
    assert "--toolchain wheels" in fix


def test_cudnn_and_nccl(look: Look, machine: Machine) -> None:
    machine.folders["/usr/local/cuda-13.0/lib64"] = ()
    seen = look()
    assert "USE_CUDNN=0" in miss(seen, "cudnn")[1]
    assert "USE_NCCL=0" in miss(seen, "nccl")[1]


def test_a_cudnn_that_has_left_the_gpu_behind(look: Look, machine: Machine, variant: Named) -> None:
    name = "sm61-avx2"
    cuda = str(variant(name).build.cuda)
    machine.folders = {key.replace("13.0", cuda): value for key, value in machine.folders.items()}
    machine.files = {key.replace("13.0", cuda): value for key, value in machine.files.items()}
    machine.commands[f"/usr/local/cuda-{cuda}/bin/nvcc --version"] = said(f"release {cuda}, V{cuda}.85")
    machine.commands["/usr/bin/c++ --version"] = gcc("13.2.0")
    found, fix = miss(look(name), "cudnn")
    assert "7.5" in found
    assert "USE_CUDNN=0" in fix


def test_python_and_its_headers(look: Look, machine: Machine) -> None:
    assert "Python 3.13 is not installed" in miss(look(python=None), "python")[0]
    machine.commands = {key: value for key, value in machine.commands.items() if not key.startswith(str(PYTHON))}
    assert miss(look(), "python")[1] == "sudo apt-get install python3.13-dev"


def test_blas_of_the_platform(look: Look, machine: Machine) -> None:
    machine.folders[LIBRARIES] = ()
    assert "libopenblas-dev" in miss(look(), "blas")[1]
    machine.folders["/opt/intel/oneapi/mkl/latest/include"] = ("mkl.h",)
    machine.folders["/opt/intel/oneapi/mkl/latest/lib"] = ("libmkl_rt.so.2",)
    shared = look().blas
    assert shared is not None
    assert (shared.name, shared.switches) == ("MKL", {})
    found, fix = miss(look(bundle=True), "blas")
    assert "libmkl_rt.so loads further libraries" in found
    assert "mkl-static" in fix and "--no-bundle" in fix
    found, fix = miss(look(bundle=True, overrides=("BLAS=OpenBLAS",)), "blas")
    assert found == "OpenBLAS, from --set, is not installed"
    assert "libopenblas-dev" in fix
    assert not look(bundle=True, overrides=("BLAS=FlexiBLAS",)).blocking()  # not known: the user's business
    machine.folders[LIBRARIES] = ("libopenblas.so",)
    chosen = look(bundle=True, overrides=("BLAS=OpenBLAS",))
    assert not chosen.blocking()
    assert chosen.blas is not None
    assert (chosen.blas.name, chosen.blas.switches) == ("OpenBLAS", {})
    machine.folders["/opt/intel/oneapi/mkl/latest/lib"] = ("libmkl_core.a", "libmkl_rt.so.2")
    assert not look(bundle=True).blocking()
    static = look().blas
    assert static is not None
    assert (static.name, static.switches) == ("MKL", {"USE_STATIC_MKL": "1"})


@pytest.mark.parametrize("switch", ["USE_SYSTEM_LIBS=ON", "USE_SYSTEM_SLEEF=1"])
def test_a_shared_sleef_of_the_system_is_slow(look: Look, machine: Machine, switch: str) -> None:
    def sleef() -> PreflightCheck:
        return next(check for check in look(overrides=(switch,)).checks if check.name == "sleef")

    assert "sleef" not in {check.name for check in look().checks}  # the submodule is used
    assert "sleef" not in {check.name for check in look(overrides=("USE_SYSTEM_SLEEF=0",)).checks}
    assert "neither libsleef.a nor libsleef.so" in sleef().found
    machine.folders["/usr/local/lib"] = ("libsleef.a",)
    assert sleef().passed
    machine.folders[LIBRARIES] = ("libopenblas.so", "libsleef.so", "libsleef.so.3")
    assert not sleef().passed
    assert "slower than in the official wheel" in sleef().found
    seen = look(overrides=(switch,))
    seen.require(("sleef",))
    with pytest.raises(EnvironmentProblem, match="sleef: libsleef"):
        seen.require()


def test_room(look: Look, machine: Machine) -> None:
    machine.files["/proc/meminfo"] = "MemTotal: 3000000 kB\nMemAvailable: 2000000 kB\n"
    seen = look(free=5_000_000_000)
    assert "2.0 GB" in miss(seen, "memory")[0]
    assert "5.0 GB free in /w" in miss(seen, "disk")[0]
    seen.require(["memory", "disk"])
    with pytest.raises(UsageError, match="nonsense"):
        check_names(["memory", "nonsense"])


def test_a_variant_for_another_machine(look: Look, machine: Machine) -> None:
    machine.arch = "aarch64"
    assert "x86_64" in miss(look(), "machine")[1]


def test_memory_of_a_container(machine: Machine) -> None:
    from torchtailor.advise.host.capacity import capacity

    machine.files |= {
        "/proc/self/cgroup": "0::/pod\n",
        "/sys/fs/cgroup/pod/memory.max": "8000000000\n",
        "/sys/fs/cgroup/pod/memory.current": "3000000000\n",
        "/sys/fs/cgroup/pod/memory.stat": "anon 1000000000\ninactive_file 1500000000\nactive_file 500000000\n",
        "/sys/fs/cgroup/pod/cpu.max": "400000 100000\n",
    }
    room = capacity(machine.probe())
    assert room.cores == 4
    assert room.memory == 7_000_000_000
