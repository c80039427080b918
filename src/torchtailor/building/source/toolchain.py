"""The compilers of a build: a host compiler that the toolkit supports, and a CUDA toolkit where one is needed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from torchtailor.advise.host.probe import Probe
from torchtailor.catalog import Catalog, Dotted
from torchtailor.catalog.variants.variant import Variant

_TIMEOUT = 10.0
_PLACES = ("/usr/local/cuda", "/opt/cuda", "/usr/lib/cuda")
_NEWEST, _OLDEST = 20, 9
SYSTEM_PATH = ("/usr/local/bin", "/usr/bin", "/bin")


@dataclass(frozen=True, slots=True)
class HostCompiler:
    """A pair of C and C++ compilers of one version."""

    cc: str
    cxx: str
    family: str  # gcc or clang
    version: Dotted
    openmp: str = ""  # clang: the folder of its OpenMP library, where CMake does not look; GCC knows its own

    @property
    def name(self) -> str:
        return f"{self.family} {self.version}"

    def __str__(self) -> str:
        return f"{self.name} ({self.cxx})"


@dataclass(frozen=True, slots=True)
class Cuda:
    """A CUDA toolkit on disk."""

    home: str
    version: Dotted
    codes: tuple[str, ...]  # what nvcc compiles for: sm_90, ...; empty where it does not list them

    @property
    def nvcc(self) -> str:
        return f"{self.home}/bin/nvcc"


@dataclass(frozen=True, slots=True)
class Limits:
    """Which host compilers may be used."""

    gcc: tuple[int, int]
    clang: tuple[int, int]

    def allow(self, compiler: HostCompiler) -> bool:
        low, high = self.gcc if compiler.family == "gcc" else self.clang
        return low <= compiler.version.major <= high

    def __str__(self) -> str:
        def text(name: str, low: int, high: int) -> str:
            return f"{name} {low} or newer" if high >= _NEWEST * 5 else f"{name} {low} to {high}"

        return f"{text('gcc', *self.gcc)}, or {text('clang', *self.clang)}"


def limits(catalog: Catalog, variant: Variant) -> Limits:
    """What PyTorch, the ISA and the toolkit allow together."""
    unlimited = _NEWEST * 5
    toolkit = catalog.toolkit(variant.build.cuda) if variant.build.cuda else None
    return Limits(
        gcc=(max(variant.release.gcc_min, variant.isa.gcc_min), toolkit.gcc_max if toolkit else unlimited),
        clang=(max(14, variant.isa.clang_min), toolkit.clang_max if toolkit else unlimited),
    )


_C_OF = {"clang++": "clang", "g++": "gcc", "c++": "cc"}


def _partner(compiler: str, names: Mapping[str, str]) -> str:
    """The C compiler that belongs to a C++ compiler or the other way round: `/opt/bin/g++-14` -> `/opt/bin/gcc-14`."""
    folder, slash, name = compiler.rpartition("/")
    for known, other in names.items():
        if re.search(rf"(?:^|-){re.escape(known)}(?:-[\d.]+)?$", name):
            return folder + slash + other.join(name.rsplit(known, 1))
    return ""


def asked_compiler(probe: Probe) -> dict[str, str]:
    """What the environment says: CC, CXX or both; empty where it says nothing."""
    return {name: value for name in ("CC", "CXX") if (value := (probe.env(name) or "").strip())}


def host_compilers(probe: Probe) -> Iterator[HostCompiler]:
    """The compiler of $CC and $CXX; without them all that are installed, the default ones first."""
    names = [("cc", "c++"), ("gcc", "g++")]
    names += [(f"gcc-{number}", f"g++-{number}") for number in range(_NEWEST, _OLDEST - 1, -1)]
    names += [("clang", "clang++")]
    names += [(f"clang-{number}", f"clang++-{number}") for number in range(_NEWEST + 5, _OLDEST, -1)]
    if asked := asked_compiler(probe):
        cc, cxx = asked.get("CC", ""), asked.get("CXX", "")
        names = [(cc or _partner(cxx, _C_OF), cxx or _partner(cc, {value: key for key, value in _C_OF.items()}))]
    seen: set[tuple[str, Dotted]] = set()
    for cc, cxx in names:
        c_path, cxx_path = _program(probe, cc), _program(probe, cxx)
        about = _about(probe, cxx_path) if c_path and cxx_path else None
        if about and about not in seen and _about(probe, c_path) == about:
            seen.add(about)
            yield HostCompiler(c_path, cxx_path, *about)


def _program(probe: Probe, name: str) -> str:
    """The absolute path of a compiler, and not of a link to ccache with its name: whether there is a cache is decided
    by the build."""
    found = probe.which(name) if name else None
    if not found:
        return ""
    path = Path(found).absolute()
    if "ccache" in path.parts:
        return next((f"{folder}/{path.name}" for folder in SYSTEM_PATH if path.name in probe.list(folder)), str(path))
    return str(path)


def _about(probe: Probe, compiler: str) -> tuple[str, Dotted] | None:
    """Family and version of a compiler."""
    ran = probe.run((compiler, "--version"), _TIMEOUT)
    first = ran.output.splitlines()[0] if ran.done and ran.output.strip() else ""
    version = re.search(r"(\d+(?:\.\d+)+)", re.sub(r"\([^)]*\)", "", first))
    return ("clang" if "clang" in first else "gcc", Dotted(version[1])) if version else None


def openmp_folder(probe: Probe, compiler: HostCompiler) -> str:
    """Where clang's OpenMP library is; empty where it is not installed."""
    ran = probe.run((compiler.cxx, "-print-file-name=libomp.so"), _TIMEOUT)
    folder, _, _ = ran.output.strip().rpartition("/")  # clang prints the bare name of a file that it does not find
    return folder if ran.done else ""


def find_cuda(probe: Probe, variant: Variant, *, home: Path | None = None) -> Cuda | None:
    """The toolkit of the variant's CUDA version; else another one, so that the error can name it."""
    line = ".".join(str(part) for part in variant.build.cuda.parts[:2]) if variant.build.cuda else ""
    homes = [str(home)] if home else [probe.env("CUDA_HOME"), probe.env("CUDA_PATH")]
    if not home:
        homes += [f"/usr/local/cuda-{line}", *_PLACES]
        if nvcc := probe.which("nvcc"):
            homes.append(str(Path(nvcc).resolve().parent.parent))
    found = [cuda for place in dict.fromkeys(filter(None, homes)) if (cuda := _cuda_at(probe, str(place)))]
    return next((cuda for cuda in found if cuda.version == Dotted(line)), found[0] if found else None)


def _cuda_at(probe: Probe, home: str) -> Cuda | None:
    if "nvcc" not in probe.list(f"{home}/bin"):
        return None
    ran = probe.run((f"{home}/bin/nvcc", "--version"), _TIMEOUT)
    version = re.search(r"release (\d+\.\d+)", ran.output) if ran.done else None
    if not version:
        return None
    listed = probe.run((f"{home}/bin/nvcc", "--list-gpu-code"), _TIMEOUT)
    return Cuda(home, Dotted(version[1]), tuple(re.findall(r"sm_\d+", listed.output)) if listed.done else ())
