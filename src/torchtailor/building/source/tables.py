"""The tables of builds from source (`catalog/data/source.toml`), read and validated."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property

import msgspec

from torchtailor.catalog import Capability, Dotted
from torchtailor.catalog.schema import Strict
from torchtailor.catalog.variants.variant import Variant
from torchtailor.core.errors import NoMatchError
from torchtailor.core.tables import read_table


class When(Strict, frozen=True):
    """When a rule applies; conditions that are absent always hold."""

    arch: str | None = None
    isas: tuple[str, ...] = ()
    gpu: bool | None = None
    gpu_below: str | None = None
    tegra: bool | None = None
    cuda_from: str | None = None
    ccache: bool | None = None

    def holds(self, variant: Variant, *, ccache: bool) -> bool:
        gpu, cuda = variant.gpu, variant.build.cuda
        below = Capability.parse(self.gpu_below) if self.gpu_below else None
        return (
            self.arch in (None, variant.arch)
            and (not self.isas or variant.isa.name in self.isas)
            and self.gpu in (None, gpu is not None)
            and (below is None or (gpu is not None and gpu.capability < below))
            and self.tegra in (None, bool(gpu and gpu.tegra))
            and (self.cuda_from is None or (cuda is not None and cuda >= Dotted(self.cuda_from)))
            and self.ccache in (None, ccache)
        )


class SwitchRule(Strict, frozen=True):
    """Switches that some variants need, and why."""

    why: str
    source: str
    when: When = When()
    switches: dict[str, str] = msgspec.field(default_factory=dict)
    cache: dict[str, str] = msgspec.field(default_factory=dict)
    flags: tuple[str, ...] = ()  # of the C and C++ compiler, after those of the ISA


class PrecompiledHeaders(Strict, frozen=True):
    """Headers that clang precompiles for a target of PyTorch's build, in addition to PyTorch's own."""

    target: str
    headers: tuple[str, ...]
    source: str
    without: tuple[str, ...] = ()  # files that do not compile after these headers

    @property
    def cmake_arguments(self) -> tuple[str, ...]:
        """What `torchtailor_precompile` in the toolchain file takes."""
        return (self.target, "HEADERS", *self.headers, *(("EXCEPT", *self.without) if self.without else ()))


class Profile(Strict, frozen=True):
    """How much of PyTorch is built."""

    name: str
    label: str
    switches: dict[str, str]


class BlasLibrary(Strict, frozen=True):
    """A BLAS library, the files to find it by, and how to install it."""

    name: str
    arch: str
    header: str
    library: str
    places: tuple[str, ...]
    fix: str = ""  # of one row for each name
    switches: dict[str, str] = msgspec.field(default_factory=dict)
    bundles: bool = True  # False: it loads further libraries when it runs, which cannot be found in advance


class SystemLibrary(Strict, frozen=True):
    """A library of the system instead of a submodule, which is slower than that as some systems have it."""

    name: str
    switches: tuple[str, ...]  # any of them takes it from the system
    fast: str
    slow: str
    why: str
    fix: str
    source: str


class FileKind(Strict, frozen=True):
    """A kind of file that is compiled, and what one costs."""

    name: str
    pattern: str
    seconds: float
    gigabytes: float
    source: str
    heavy: bool = False

    @property
    def memory(self) -> int:
        return int(self.gigabytes * 1e9)


class CostRow(Strict, frozen=True):
    """What a whole PyTorch costs."""

    host_files: int
    host_core_hours: float
    python_core_hours: float  # of these, files that include Python's headers
    toolkit_files: int  # host files that only builds with CUDA have
    toolkit_core_hours: float
    device_files: int
    device_core_hours: float
    link_core_hours: float
    cut_core_hours: float
    disk_gigabytes: float
    memory_gigabytes: float
    source: str


class EnvironmentRow(Strict, frozen=True):
    """The build environment's packages, and the variables that are kept of the user's shell."""

    packages: tuple[str, ...]
    passed: tuple[str, ...]


class CudaWheels(Strict, frozen=True):
    """NVIDIA's wheels that together are a CUDA toolkit."""

    majors: tuple[int, ...]
    packages: tuple[str, ...]


class _File(Strict, frozen=True):
    checked: str
    sources: dict[str, str]
    profile: tuple[Profile, ...]
    rule: tuple[SwitchRule, ...]
    precompiled: tuple[PrecompiledHeaders, ...]
    blas: tuple[BlasLibrary, ...]
    system_library: tuple[SystemLibrary, ...]
    kind: tuple[FileKind, ...]
    cost: CostRow
    environment: EnvironmentRow
    cuda_wheels: tuple[CudaWheels, ...]


@dataclass(frozen=True)
class Tables:
    """All tables of builds from source."""

    profiles: Mapping[str, Profile]
    rules: tuple[SwitchRule, ...]
    precompiled: tuple[PrecompiledHeaders, ...]
    blas: tuple[BlasLibrary, ...]
    system_libraries: tuple[SystemLibrary, ...]
    kinds: tuple[FileKind, ...]
    cost: CostRow
    environment: EnvironmentRow
    cuda_wheels: tuple[CudaWheels, ...]

    @cached_property
    def _patterns(self) -> tuple[tuple[re.Pattern[str], FileKind], ...]:
        return tuple((re.compile(kind.pattern), kind) for kind in self.kinds)

    @cached_property
    def switch_names(self) -> tuple[str, ...]:
        """Every switch and cache variable that a table sets."""
        settings = [row.switches for row in self.profiles.values()] + [row.switches for row in self.blas]
        settings += [settings for rule in self.rules for settings in (rule.switches, rule.cache)]
        return tuple(sorted({name for setting in settings for name in setting}))

    def profile(self, name: str) -> Profile:
        if name not in self.profiles:
            raise NoMatchError(f"There is no profile {name!r}.", f"Profiles: {', '.join(self.profiles)}.")
        return self.profiles[name]

    def kind(self, output: str) -> FileKind | None:
        """What kind of file an output of the build is; None for what is neither compiled nor linked."""
        return next((kind for pattern, kind in self._patterns if pattern.search(output)), None)

    def blas_for(self, arch: str) -> tuple[BlasLibrary, ...]:
        return tuple(row for row in self.blas if row.arch == arch)


@cache
def load_tables() -> Tables:
    """The package's tables."""
    read = read_table("catalog", "source.toml", _File)
    return Tables(
        profiles={row.name: row for row in read.profile},
        rules=read.rule,
        precompiled=read.precompiled,
        blas=read.blas,
        system_libraries=read.system_library,
        kinds=read.kind,
        cost=read.cost,
        environment=read.environment,
        cuda_wheels=read.cuda_wheels,
    )
