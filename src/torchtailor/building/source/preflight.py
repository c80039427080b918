"""Checks before a build: compiler, Python, CUDA, memory, disk; each failure with the command that fixes it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from torchtailor.advise.host.capacity import Capacity, capacity
from torchtailor.advise.host.probe import Probe
from torchtailor.building.source.configuration import Configuration
from torchtailor.building.source.tables import BlasLibrary, Tables
from torchtailor.building.source.toolchain import (
    Cuda,
    HostCompiler,
    asked_compiler,
    find_cuda,
    host_compilers,
    limits,
    openmp_folder,
)
from torchtailor.catalog import Capability, Catalog, CodeKind, CodeTarget
from torchtailor.catalog.variants.variant import Variant
from torchtailor.core.errors import EnvironmentProblem, NoMatchError, UsageError

_TIMEOUT = 10.0
_HEADERS = "import sysconfig,os;p=sysconfig.get_paths()['include'];print(p, os.path.exists(p + '/Python.h'))"


CHECKS = (
    "machine",
    "compiler",
    "openmp",
    "python",
    "cmake",
    "ninja",
    "git",
    "cuda",
    "architecture",
    "cudnn",
    "nccl",
    "blas",
    "sleef",
    "memory",
    "disk",
    "verify",
)


@dataclass(frozen=True, slots=True)
class PreflightCheck:
    """The result of one check."""

    name: str
    passed: bool
    found: str
    fix: str = ""


@dataclass(frozen=True)
class Preflight:
    """The checks, and the tools that they found."""

    checks: tuple[PreflightCheck, ...]
    compiler: HostCompiler | None
    cuda: Cuda | None
    blas: BlasLibrary | None
    capacity: Capacity

    def blocking(self, skipped: Collection[str] = ()) -> tuple[PreflightCheck, ...]:
        """The failed checks that are not skipped: with one of them, no build starts."""
        return tuple(check for check in self.checks if not check.passed and check.name not in skipped)

    def require(self, skipped: Collection[str] = ()) -> None:
        """Raise where a check failed that is not skipped."""
        if failed := self.blocking(skipped):
            found = "; ".join(f"{check.name}: {check.found}" for check in failed)
            fixes = "\n".join(f"  {check.name}: {check.fix}" for check in failed)
            raise EnvironmentProblem(
                f"This machine cannot build it yet. {found}.",
                f"Fix it:\n{fixes}\nor skip a check with --skip-check NAME.",
            )

    @property
    def rows(self) -> tuple[PreflightCheck, ...]:
        """The checks, with a fix only where one is needed."""
        return tuple(replace(check, fix="") if check.passed else check for check in self.checks)


def check_names(names: Iterable[str]) -> None:
    """Refuse names that no check has."""
    if unknown := [name for name in names if name not in CHECKS]:
        raise UsageError(f"There is no check {unknown[0]!r}.", f"The checks are {', '.join(CHECKS)}.")


class Inspector:
    """Checks one machine for one variant."""

    def __init__(self, catalog: Catalog, tables: Tables, probe: Probe, variant: Variant) -> None:
        self._catalog, self._tables, self._probe, self._variant = catalog, tables, probe, variant

    def check(
        self,
        configuration: Configuration,
        *,
        python: Path | None,
        work: Path,
        disk_free: int,
        cuda_home: Path | None = None,
        git: bool = False,
        bundle: bool = False,
    ) -> Preflight:
        compiler = self._compiler()
        cuda = find_cuda(self._probe, self._variant, home=cuda_home) if self._variant.gpu else None
        asked = configuration.switches.get("BLAS", "")
        rows = self._blas_rows(asked)
        blas = self._blas(rows)
        room = capacity(self._probe)
        checks = [self._machine(), self._compiler_check(compiler), *self._openmp(configuration, compiler)]
        checks += [self._python(python), *self._tools(git=git)]
        checks += self._cuda_checks(configuration, cuda)
        checks += [self._blas_check(rows, blas, asked=asked, bundle=bundle), *self._system_libraries(configuration)]
        checks += [self._memory(room), self._disk(work, disk_free)]
        return Preflight(tuple(checks), compiler, cuda, blas, room)

    @staticmethod
    def verifying() -> PreflightCheck:
        """Whether the wheel can be verified: better asked now than after hours of compiling."""
        try:
            import torchtailor.code.hostcode  # noqa: F401
        except EnvironmentProblem as error:
            return PreflightCheck("verify", False, error.message.rstrip("."), f"{error.hint} Or add --no-verify.")
        return PreflightCheck("verify", True, "the wheel will be verified")

    def _machine(self) -> PreflightCheck:
        own, wanted = self._probe.basics().arch, self._variant.arch
        fix = f"build {self._variant.short_name} on a machine with {wanted}"
        return PreflightCheck("machine", own == wanted, own, fix)

    def _compiler(self) -> HostCompiler | None:
        allowed = limits(self._catalog, self._variant)
        found = list(host_compilers(self._probe))
        chosen = next((compiler for compiler in found if allowed.allow(compiler)), found[0] if found else None)
        if chosen and chosen.family == "clang":
            return replace(chosen, openmp=openmp_folder(self._probe, chosen))
        return chosen

    def _compiler_check(self, compiler: HostCompiler | None) -> PreflightCheck:
        allowed = limits(self._catalog, self._variant)
        number = min(allowed.gcc[1], 14)
        fix = f"sudo apt-get install gcc-{number} g++-{number}"
        if asked := asked_compiler(self._probe):
            fix = f"unset {' '.join(asked)}, or set CC and CXX to {allowed}"
            if any(Path(value.split()[0]).name in ("ccache", "sccache") for value in asked.values()):
                fix += "; without ccache, which is used where it is installed"
        if compiler is None and asked:
            words = " ".join(f"{name}={shlex.quote(value)}" for name, value in asked.items())
            return PreflightCheck(
                "compiler", False, f"{words} does not name an installed C and C++ compiler of one version", fix
            )
        if compiler is None:
            return PreflightCheck("compiler", False, f"no C++ compiler is installed; {allowed} is needed", fix)
        if not allowed.allow(compiler):
            cuda = f" with CUDA {self._variant.build.cuda}" if self._variant.build.cuda else ""
            found = f"{compiler}, but {self._variant.short_name}{cuda} needs {allowed}"
            return PreflightCheck("compiler", False, found, fix)
        return PreflightCheck("compiler", True, str(compiler))

    @staticmethod
    def _openmp(configuration: Configuration, compiler: HostCompiler | None) -> Iterator[PreflightCheck]:
        """Without it, PyTorch's CMake goes on, and the wheel computes with one thread."""
        if compiler is None or compiler.family != "clang" or configuration.off("USE_OPENMP"):
            return
        fix = f"sudo apt-get install libomp-{compiler.version.major}-dev, or build without it: --set USE_OPENMP=0"
        found = f"libomp in {compiler.openmp}" if compiler.openmp else f"clang {compiler.version} has no OpenMP library"
        yield PreflightCheck("openmp", bool(compiler.openmp), found, fix)

    def _python(self, python: Path | None) -> PreflightCheck:
        version = self._variant.python
        plain = version.rstrip("t")
        if python is None:
            fix = f"sudo apt-get install python{plain}-dev python{plain}-venv (or: uv python install {version})"
            return PreflightCheck("python", False, f"Python {version} is not installed", fix)
        ran = self._probe.run((str(python), "-c", _HEADERS), _TIMEOUT)
        include, _, there = ran.output.strip().rpartition(" ")
        if not ran.done or there != "True":
            found = f"{python} has no headers" + (f" in {include}" if include else "")
            return PreflightCheck("python", False, found, f"sudo apt-get install python{plain}-dev")
        return PreflightCheck("python", True, f"{python}, headers in {include}")

    def _tools(self, *, git: bool) -> Iterator[PreflightCheck]:
        for package in self._tables.environment.packages:
            name, _, version = package.partition("==")
            if name in ("cmake", "ninja"):
                yield PreflightCheck(name, True, f"{version}, in the build environment")
        if git:
            path = self._probe.which("git")
            yield PreflightCheck("git", bool(path), path or "git is not installed", "sudo apt-get install git")

    def _cuda_checks(self, configuration: Configuration, cuda: Cuda | None) -> Iterator[PreflightCheck]:
        wanted = self._variant.build.cuda
        if wanted is None:
            return
        line = ".".join(str(part) for part in wanted.parts[:2])
        fix = f"add --toolchain wheels, or: sudo apt-get install cuda-toolkit-{line.replace('.', '-')}"
        if cuda is None:
            yield PreflightCheck("cuda", False, "no nvcc in $CUDA_HOME, /usr/local/cuda or on the PATH", fix)
            return
        same = str(cuda.version) == line
        found = f"CUDA {cuda.version} in {cuda.home}" + ("" if same else f", not {line}")
        yield PreflightCheck("cuda", same, found, fix)
        yield self._gpu_check(configuration.gpus, cuda)
        if not configuration.off("USE_CUDNN"):
            yield self._cudnn(configuration.gpus, cuda)
        if not configuration.off("USE_NCCL"):
            yield self._library("nccl", cuda, "nccl.h", "libnccl.so", "libnccl-dev", "USE_NCCL")

    def _gpu_check(self, gpus: Sequence[Capability], cuda: Cuda) -> PreflightCheck:
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
            return PreflightCheck("architecture", True, f"nvcc of CUDA {cuda.version} compiles for {known}")
        gpu = self._catalog.gpus.get(unknown[0])
        needs = f"from CUDA {gpu.first_cuda}" + (f" to {gpu.last_cuda}" if gpu.last_cuda else " on") if gpu else ""
        found = f"nvcc of CUDA {cuda.version} does not compile for {unknown[0]}"
        return PreflightCheck(
            "architecture", False, found, f"use a toolkit {needs}: --toolchain wheels has the right one"
        )

    def _cudnn(self, gpus: Sequence[Capability], cuda: Cuda) -> PreflightCheck:
        check = self._library("cudnn", cuda, "cudnn_version.h", "libcudnn.so", "libcudnn9-dev", "USE_CUDNN")
        if not check.passed:
            return check
        text = self._probe.read(f"{check.found}/cudnn_version.h") or ""
        numbers = [re.search(rf"#define CUDNN_{part} (\d+)", text) for part in ("MAJOR", "MINOR", "PATCHLEVEL")]
        version = ".".join(number[1] for number in numbers if number)
        rows = [row for row in self._catalog.cudnns if version and _at_least(version, str(row.version))]
        floor = max((row.min_capability for row in rows), default=None)
        if floor and gpus and min(gpus) < floor:
            found = f"cuDNN {version} needs compute capability {floor} or newer, not {min(gpus)}"
            return PreflightCheck("cudnn", False, found, "add --set USE_CUDNN=0, or install an older cuDNN")
        return PreflightCheck("cudnn", True, f"cuDNN {version or 'of unknown version'} in {check.found}")

    def _library(self, name: str, cuda: Cuda, header: str, library: str, package: str, switch: str) -> PreflightCheck:
        """A check whose `found` is the folder of the header."""
        for root in (cuda.home, "/usr", "/usr/local"):
            folder = self._header_folder(root, header)
            if folder and self._library_folder(root, library):
                return PreflightCheck(name, True, folder)
        found = f"{header} and {library} are not in {cuda.home}, /usr or /usr/local"
        fix = f"sudo apt-get install {package}, add --toolchain wheels, or build without it: --set {switch}=0"
        return PreflightCheck(name, False, found, fix)

    def _blas_rows(self, asked: str) -> tuple[BlasLibrary, ...]:
        """The libraries to look for, best first; where the user has named one, that or none."""
        rows = self._tables.blas_for(self._variant.arch)
        return tuple(row for row in rows if not asked or row.name.casefold() == asked.casefold())

    def _blas(self, rows: Sequence[BlasLibrary]) -> BlasLibrary | None:
        for row in rows:
            for place in row.places:
                if self._header_folder(place, row.header) and self._library_folder(place, row.library):
                    return row
        return None

    @staticmethod
    def _blas_check(
        rows: Sequence[BlasLibrary], found: BlasLibrary | None, *, asked: str, bundle: bool
    ) -> PreflightCheck:
        fixes = [row.fix for row in rows if row.fix]
        if found is not None and bundle and not found.bundles:
            reason = f"{found.library} loads further libraries when it runs, which cannot be put into the wheel"
            return PreflightCheck("blas", False, reason, f"{fixes[0]}, or: add --no-bundle")
        if found is not None:
            return PreflightCheck("blas", True, found.name)
        if asked and not rows:
            return PreflightCheck("blas", True, f"{asked}, from --set")
        if asked:
            return PreflightCheck("blas", False, f"{asked}, from --set, is not installed", fixes[0])
        names = list(dict.fromkeys(row.name for row in rows))
        reason = f"{' and '.join(names)} are not installed; without a BLAS matmul is slow and LAPACK is missing"
        return PreflightCheck("blas", False, reason, ", or: ".join(fixes))

    def _system_libraries(self, configuration: Configuration) -> Iterator[PreflightCheck]:
        """The wheel would work, only slowly: it is worth a stop before hours of compiling."""
        for row in self._tables.system_libraries:
            if not any(map(configuration.on, row.switches)):
                continue
            # The shared one of the system was taken even where a static one was in /usr/local.
            names = ((place, name) for name in (row.slow, row.fast) for place in ("/usr/local", "/usr"))
            found = next((name for place, name in names if self._library_folder(place, name)), None)
            if found == row.fast:
                yield PreflightCheck(row.name, True, f"{found}, linked statically")
            else:
                what = f"{found}: {row.why}" if found else f"neither {row.fast} nor {row.slow} is installed"
                yield PreflightCheck(row.name, False, what, row.fix)

    def _memory(self, room: Capacity) -> PreflightCheck:
        needed = self._tables.cost.memory_gigabytes
        free = room.memory / 1e9
        fix = f"free some memory or add swap until {needed:.0f} GB are free"
        return PreflightCheck("memory", free >= needed, f"{free:.1f} GB free", fix)

    def _disk(self, work: Path, free: int) -> PreflightCheck:
        needed = self._tables.cost.disk_gigabytes
        found = f"{free / 1e9:.1f} GB free in {work}"
        fix = f"free some space, or set --work to a disk with {needed:.0f} GB"
        return PreflightCheck("disk", free >= needed * 1e9, found, fix)

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
