"""What a build needs, looked at before minutes are spent; each miss with the command that mends it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from torchtailor.backends.source.configuration import Configuration
from torchtailor.backends.source.tables import Blas, Tables
from torchtailor.backends.source.toolchain import Cuda, HostCompiler, find_cuda, host_compilers, limits
from torchtailor.catalog import Capability, Catalog, CodeKind, CodeTarget
from torchtailor.errors import EnvironmentProblem, NoMatchError, UsageError
from torchtailor.host.capacity import Capacity, capacity
from torchtailor.host.probe import Probe
from torchtailor.variants.variant import Variant

_TIMEOUT = 10.0
_HEADERS = "import sysconfig,os;p=sysconfig.get_paths()['include'];print(p, os.path.exists(p + '/Python.h'))"


CHECKS = (
    "machine",
    "compiler",
    "python",
    "cmake",
    "ninja",
    "git",
    "cuda",
    "architecture",
    "cudnn",
    "nccl",
    "blas",
    "memory",
    "disk",
)


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at."""

    name: str
    passed: bool
    found: str
    mend: str = ""


@dataclass(frozen=True)
class Preflight:
    """The checks, and the tools that were found on the way."""

    checks: tuple[Check, ...]
    compiler: HostCompiler | None
    cuda: Cuda | None
    blas: str | None
    capacity: Capacity

    @property
    def misses(self) -> tuple[Check, ...]:
        return tuple(check for check in self.checks if not check.passed)

    def demand(self, skipped: Sequence[str] = ()) -> None:
        """Stop where something is missing that was not told to be passed over."""
        if unknown := [name for name in skipped if name not in CHECKS]:
            raise UsageError(f"No check is called {unknown[0]!r}.", f"The checks are {', '.join(CHECKS)}.")
        missing = [check for check in self.misses if check.name not in skipped]
        if missing:
            told = "; ".join(f"{check.name}: {check.found}" for check in missing)
            mends = "\n".join(f"  {check.name}: {check.mend}" for check in missing)
            raise EnvironmentProblem(
                f"This machine cannot build it yet. {told}.",
                f"Mend it:\n{mends}\nor pass over a check with --skip-check NAME.",
            )

    def to_json(self) -> list[dict[str, object]]:
        return [
            {"name": check.name, "passed": check.passed, "found": check.found, "mend": check.mend}
            for check in self.checks
        ]


class Inspector:
    """Looks at one machine for one variant."""

    def __init__(self, catalog: Catalog, tables: Tables, probe: Probe, variant: Variant) -> None:
        self._catalog, self._tables, self._probe, self._variant = catalog, tables, probe, variant

    def look(
        self,
        configuration: Configuration,
        *,
        python: Path | None,
        work: Path,
        disk_free: int,
        cuda_home: Path | None = None,
        git: bool = False,
    ) -> Preflight:
        compiler = self._compiler()
        cuda = find_cuda(self._probe, self._variant, home=cuda_home) if self._variant.gpu else None
        blas = self._blas()
        room = capacity(self._probe)
        checks = [self._machine(), self._compiler_check(compiler), self._python(python), *self._tools(git=git)]
        checks += self._cuda_checks(configuration, cuda)
        checks += [self._blas_check(configuration, blas), self._memory(room), self._disk(work, disk_free)]
        return Preflight(tuple(checks), compiler, cuda, blas.name if blas else None, room)

    def _machine(self) -> Check:
        here, wanted = self._probe.basics().arch, self._variant.arch
        return Check("machine", here == wanted, here, f"build {self._variant.short_name} on a machine with {wanted}")

    def _compiler(self) -> HostCompiler | None:
        allowed = limits(self._catalog, self._variant)
        found = list(host_compilers(self._probe))
        return next((compiler for compiler in found if allowed.allow(compiler)), found[0] if found else None)

    def _compiler_check(self, compiler: HostCompiler | None) -> Check:
        allowed = limits(self._catalog, self._variant)
        number = min(allowed.gcc[1], 14)
        mend = f"sudo apt-get install gcc-{number} g++-{number}"
        if compiler is None:
            return Check("compiler", False, f"there is no C++ compiler; it takes {allowed}", mend)
        if not allowed.allow(compiler):
            cuda = f" with CUDA {self._variant.build.cuda}" if self._variant.build.cuda else ""
            return Check("compiler", False, f"{compiler}, but {self._variant.short_name}{cuda} takes {allowed}", mend)
        return Check("compiler", True, str(compiler))

    def _python(self, python: Path | None) -> Check:
        version = self._variant.python
        plain = version.rstrip("t")
        if python is None:
            mend = f"sudo apt-get install python{plain}-dev python{plain}-venv (or: uv python install {version})"
            return Check("python", False, f"there is no Python {version}", mend)
        ran = self._probe.run((str(python), "-c", _HEADERS), _TIMEOUT)
        include, _, there = ran.output.strip().rpartition(" ")
        if not ran.done or there != "True":
            said = f"{python} has no headers" + (f" in {include}" if include else "")
            return Check("python", False, said, f"sudo apt-get install python{plain}-dev")
        return Check("python", True, f"{python}, headers in {include}")

    def _tools(self, *, git: bool) -> Iterator[Check]:
        for package in self._tables.environment.packages:
            name, _, version = package.partition("==")
            if name in ("cmake", "ninja"):
                yield Check(name, True, f"{version}, in the build environment")
        if git:
            path = self._probe.which("git")
            yield Check("git", bool(path), path or "there is no git", "sudo apt-get install git")

    def _cuda_checks(self, configuration: Configuration, cuda: Cuda | None) -> Iterator[Check]:
        wanted = self._variant.build.cuda
        if wanted is None:
            return
        line = ".".join(str(part) for part in wanted.parts[:2])
        mend = f"add --toolchain wheels, or: sudo apt-get install cuda-toolkit-{line.replace('.', '-')}"
        if cuda is None:
            yield Check("cuda", False, "there is no nvcc in $CUDA_HOME, /usr/local/cuda or on the path", mend)
            return
        same = str(cuda.version) == line
        yield Check("cuda", same, f"CUDA {cuda.version} in {cuda.home}" + ("" if same else f", not {line}"), mend)
        yield self._gpu_check(configuration.gpus, cuda)
        if not configuration.off("USE_CUDNN"):
            yield self._cudnn(configuration.gpus, cuda)
        if not configuration.off("USE_NCCL"):
            yield self._library("nccl", cuda, "nccl.h", "libnccl.so", "libnccl-dev", "USE_NCCL")

    def _gpu_check(self, gpus: Sequence[Capability], cuda: Cuda) -> Check:
        try:
            toolkit = self._catalog.toolkit(cuda.version)
        except NoMatchError:
            toolkit = None
        unknown = [
            gpu
            for gpu in gpus
            if (cuda.codes and f"sm_{gpu.major}{gpu.minor}" not in cuda.codes)
            or (toolkit and not toolkit.compiles(CodeTarget(CodeKind.CUBIN, gpu)))
        ]
        known = ", ".join(str(gpu) for gpu in gpus)
        if not unknown:
            return Check("architecture", True, f"nvcc of CUDA {cuda.version} compiles for {known}")
        gpu = self._catalog.gpus.get(unknown[0])
        needs = f"from CUDA {gpu.first_cuda}" + (f" to {gpu.last_cuda}" if gpu.last_cuda else " on") if gpu else ""
        found = f"nvcc of CUDA {cuda.version} does not compile for {unknown[0]}"
        return Check("architecture", False, found, f"take a toolkit {needs}: --toolchain wheels has the right one")

    def _cudnn(self, gpus: Sequence[Capability], cuda: Cuda) -> Check:
        check = self._library("cudnn", cuda, "cudnn_version.h", "libcudnn.so", "libcudnn9-dev", "USE_CUDNN")
        if not check.passed:
            return check
        text = self._probe.read(f"{check.found}/cudnn_version.h") or ""
        numbers = [re.search(rf"#define CUDNN_{part} (\d+)", text) for part in ("MAJOR", "MINOR", "PATCHLEVEL")]
        version = ".".join(found[1] for found in numbers if found)
        rows = [row for row in self._catalog.cudnns if version and _at_least(version, row.version)]
        floor = max((Capability.parse(row.min_capability) for row in rows), default=None)
        if floor and gpus and min(gpus) < floor:
            said = f"cuDNN {version} runs from compute capability {floor} on, not on {min(gpus)}"
            return Check("cudnn", False, said, "add --set USE_CUDNN=0, or install an older cuDNN")
        return Check("cudnn", True, f"cuDNN {version or 'of unknown version'} in {check.found}")

    def _library(self, name: str, cuda: Cuda, header: str, library: str, package: str, switch: str) -> Check:
        """Found is the folder of the header."""
        for root in (cuda.home, "/usr", "/usr/local"):
            folder = self._header_folder(root, header)
            if folder and self._library_folder(root, library):
                return Check(name, True, folder)
        looked = f"{header} and {library} are not in {cuda.home}, /usr or /usr/local"
        mend = f"sudo apt-get install {package}, add --toolchain wheels, or go without: --set {switch}=0"
        return Check(name, False, looked, mend)

    def _blas(self) -> Blas | None:
        for row in self._tables.blas_for(self._variant.arch):
            for place in row.places:
                if self._header_folder(place, row.header) and self._library_folder(place, row.library):
                    return row
        return None

    def _blas_check(self, configuration: Configuration, found: Blas | None) -> Check:
        asked = configuration.switches.get("BLAS")
        if found is not None:
            return Check("blas", True, found.name)
        if asked:
            return Check("blas", True, f"{asked}, as --set says")
        rows = self._tables.blas_for(self._variant.arch)
        names = " and ".join(dict.fromkeys(row.name for row in rows))
        mend = next(row.mend for row in rows if row.name == "OpenBLAS")
        return Check(
            "blas", False, f"{names} are not here, and without one matrices are slow and LAPACK is missing", mend
        )

    def _memory(self, room: Capacity) -> Check:
        needed = self._tables.cost.memory_gigabytes
        free = room.memory / 1e9
        mend = f"free some memory or add swap until {needed:.0f} GB are free"
        return Check("memory", free >= needed, f"{free:.1f} GB free", mend)

    def _disk(self, work: Path, free: int) -> Check:
        needed = self._tables.cost.disk_gigabytes
        said = f"{free / 1e9:.1f} GB free in {work}"
        return Check(
            "disk", free >= needed * 1e9, said, f"free some space, or set --work to a disk with {needed:.0f} GB"
        )

    def _header_folder(self, root: str, header: str) -> str | None:
        triplet = f"{self._probe.basics().arch}-linux-gnu"
        folders = [f"{root}/include", f"{root}/include/{triplet}", f"{root}/include/openblas"]
        folders += [f"{root}/targets/{name}-linux/include" for name in ("x86_64", "sbsa", "aarch64")]
        return next((folder for folder in folders if header in self._probe.list(folder)), None)

    def _library_folder(self, root: str, library: str) -> str | None:
        triplet = f"{self._probe.basics().arch}-linux-gnu"
        folders = [f"{root}/lib", f"{root}/lib64", f"{root}/lib/{triplet}", f"{root}/lib/intel64"]
        folders += [f"{root}/targets/{name}-linux/lib" for name in ("x86_64", "sbsa", "aarch64")]
        for folder in folders:
            if any(name == library or name.startswith(f"{library}.") for name in self._probe.list(folder)):
                return folder
        return None


def _at_least(version: str, floor: str) -> bool:
    def key(text: str) -> tuple[int, ...]:
        return tuple(int(part) for part in text.split(".")[:3] if part.isdigit())

    return key(version) >= key(floor)
