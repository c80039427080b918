"""`--toolchain wheels`: a CUDA toolkit made of NVIDIA's wheels, without root and without a system CUDA."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from torchtailor.building.source.buildenv import BuildEnvironment, install
from torchtailor.building.source.folders import Folders, key_of
from torchtailor.building.source.tables import Tables
from torchtailor.catalog import Dotted
from torchtailor.core.disk import locked
from torchtailor.core.errors import EnvironmentProblem, NoMatchError

_READY = ".ready"
_VERSIONED = re.compile(r"(lib[\w-]+\.so)\.[\d.]+")
_PARTS = ("bin", "include", "lib", "nvvm")
_DRIVER_FUNCTION = re.compile(r"\bCUresult\s+(cu\w+)\s*\(")
_STUB_LIBRARY = 34  # CUDA_ERROR_STUB_LIBRARY, what NVIDIA's own stub answers


@dataclass(frozen=True, slots=True)
class CudaPrefix:
    """The toolkit's folder, for CUDA_HOME, and the paths of cuDNN and NCCL in it."""

    home: Path

    @property
    def paths(self) -> dict[str, str]:
        """The variables by which PyTorch's build finds cuDNN and NCCL."""
        include, library = self.home / "include", self.home / "lib64"
        return {
            "CUDA_PATH": str(self.home),
            "CUDNN_INCLUDE_DIR": str(include),
            "CUDNN_LIBRARY": str(library),
            "NCCL_INCLUDE_DIR": str(include),
            "NCCL_LIB_DIR": str(library),
            "USE_SYSTEM_NCCL": "1",
        }


def cuda_packages(tables: Tables, cuda: Dotted) -> tuple[str, ...]:
    """The requirements of the wheels of a toolkit version."""
    line = ".".join(str(part) for part in cuda.parts[:2])
    for row in tables.cuda_wheels:
        if cuda.major in row.majors:
            return tuple(package.format(line=line, major=cuda.major) for package in row.packages)
    raise NoMatchError(f"NVIDIA's wheels of CUDA {cuda} are not known.", "Install the toolkit and omit --toolchain.")


def make_cuda(
    folders: Folders,
    tables: Tables,
    environment: BuildEnvironment,
    cuda: Dotted,
    packages: Iterable[str] = (),
    *,
    cc: str = "cc",
) -> CudaPrefix:
    """Install the wheels of a toolkit and join them into one prefix; done once."""
    wanted = tuple(packages) or cuda_packages(tables, cuda)
    path = folders.cuda(key_of(*wanted))
    with locked(path.with_name(path.name + ".lock"), "The CUDA toolkit"):
        if not (path / _READY).is_file():
            shutil.rmtree(path, ignore_errors=True)
            path.mkdir(parents=True)
            install(environment.path, wanted, target=path / "wheels")
            join_prefix(path / "wheels" / "nvidia", path / "home")
            write_driver_stub(path / "home", cc)
            (path / _READY).touch()
    return CudaPrefix(path / "home")


def join_prefix(wheels: Path, home: Path) -> None:
    """Links to all files of the wheels, laid out as a toolkit: bin, include, lib64, nvvm.

    Wheels of CUDA 13 share one folder (`nvidia/cu13`), older ones have one each (`nvidia/cuda_nvcc`).
    """
    home.mkdir(parents=True)
    for package in sorted(path for path in wheels.iterdir() if path.is_dir()):
        for part in _PARTS:
            if (package / part).is_dir():
                _link_all(package / part, home / part)
    (home / "lib").mkdir(exist_ok=True)
    for library in sorted((home / "lib").iterdir()):
        plain = _VERSIONED.fullmatch(library.name)
        if plain and not (home / "lib" / plain[1]).exists():
            (home / "lib" / plain[1]).symlink_to(library.name)  # the name that linkers look for
    (home / "lib64").symlink_to("lib")
    nvcc = home / "bin" / "nvcc"
    if nvcc.is_symlink():
        # nvcc finds its tools beside its real path: a copy finds those of the joined prefix.
        real = nvcc.resolve()
        nvcc.unlink()
        shutil.copy2(real, nvcc)
        nvcc.chmod(0o755)
        profile = real.with_name("nvcc.profile")
        if profile.is_file():
            (home / "bin" / "nvcc.profile").unlink(missing_ok=True)
            shutil.copy2(profile, home / "bin" / "nvcc.profile")


def write_driver_stub(home: Path, cc: str) -> None:
    """A libcuda.so to link with: toolkits have one, wheels do not, and the real one is part of the driver."""
    header, stubs = home / "include" / "cuda.h", home / "lib" / "stubs"
    declared = _compile([cc, "-E", "-P", "-x", "c", str(header)], "")
    names = sorted(set(_DRIVER_FUNCTION.findall(declared)))
    stubs.mkdir(parents=True, exist_ok=True)
    line = [cc, "-shared", "-fPIC", "-nostdlib", "-Wl,-soname,libcuda.so.1", "-x", "c", "-"]
    text = "".join(f"int {name}(void) {{ return {_STUB_LIBRARY}; }}\n" for name in names)
    _compile([*line, "-o", str(stubs / "libcuda.so")], text)


def _compile(line: list[str], text: str) -> str:
    done = subprocess.run(line, input=text, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise EnvironmentProblem(
            f"{line[0]} cannot build a libcuda.so to link with: {done.stderr.strip()[:200]}",
            "Check the compiler, or install the toolkit and omit --toolchain.",
        )
    return done.stdout


def _link_all(source: Path, target: Path) -> None:
    """Create folders and link files; a file that two wheels have is that of the first."""
    target.mkdir(parents=True, exist_ok=True)
    for item in sorted(source.iterdir()):
        place = target / item.name
        if item.is_dir():
            _link_all(item, place)
        elif item.name != "__init__.py" and not place.exists():
            place.symlink_to(item)
