"""PyTorch releases, their builds, and the official wheels' contents."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Annotated

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from torchtailor.catalog.gpus import Capability, CodeTarget, TorchArchList
from torchtailor.catalog.schema import Arch, Dotted, Sourced, Strict, python_key

DEFAULT_PYTHON = "3.13"
WHEEL_GLIBC = Dotted("2.28")  # current official wheels are tagged manylinux_2_28
PythonVersion = Annotated[str, Meta(pattern=r"^\d+\.\d+t?$")]


class HostBaseline(Enum):
    """What every CPU that loads an official wheel must have: a level of its platform."""

    X86_64 = "x86-64"
    X86_64_V2 = "x86-64-v2"
    X86_64_V3 = "x86-64-v3"
    ARMV8 = "armv8-a"
    ARMV8_1 = "armv8.1-a"

    @property
    def requires(self) -> frozenset[str]:
        """The words of /proc/cpuinfo beyond those that every CPU of the platform has."""
        return _LEVELS[self]

    @property
    def label(self) -> str:
        """As the platforms' owners write it."""
        return {HostBaseline.ARMV8: "Armv8.0-A", HostBaseline.ARMV8_1: "Armv8.1-A"}.get(self, self.value)


_V2 = frozenset({"cx16", "lahf_lm", "popcnt", "pni", "sse4_1", "sse4_2", "ssse3"})
_LEVELS = {
    HostBaseline.X86_64: frozenset[str](),
    HostBaseline.X86_64_V2: _V2,
    HostBaseline.X86_64_V3: _V2 | {"abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "xsave"},
    HostBaseline.ARMV8: frozenset[str](),
    HostBaseline.ARMV8_1: frozenset({"atomics", "asimdrdm", "crc32"}),
}


class HostExceptions(Strict, frozen=True, kw_only=True):
    """Functions of official wheels that need more than the baseline and do not check for it."""

    needs: Annotated[frozenset[str], Meta(description="The words of /proc/cpuinfo that they need.")]
    text: Annotated[str, Meta(description="Which they are, as a sentence about CPUs without these words.")]


class VariantRow(Strict, frozen=True, kw_only=True):
    """GPUs x ISAs of one build; without GPUs, CPU-only variants."""

    cpus: Annotated[tuple[str, ...], Meta(description="Names of [[isa]] rows.")]
    gpus: Annotated[tuple[Capability, ...], Meta(description="Compute capabilities; none for CPU-only variants.")] = ()


class ExtraRow(VariantRow, frozen=True, kw_only=True):
    """More variants of a release in the catalog."""

    release: Annotated[str, Meta(description="The release, by name or PyTorch version.")]
    cuda: Annotated[Dotted | None, Meta(description="The CUDA build, if not the release's newest.")] = None


def label_of(cuda: Dotted | None) -> str:
    """PyTorch's own label of a build: `cu128`, `cpu`."""
    return "cpu" if cuda is None else "cu" + "".join(str(part) for part in cuda.parts[:2])


class Build(Strict, frozen=True, kw_only=True):
    """A release built with one CUDA, or without."""

    rows: Annotated[tuple[VariantRow, ...], Meta(description="The variants of this build.")]
    cuda: Annotated[Dotted | None, Meta(description="The CUDA line; none for the CPU-only build.")] = None
    toolkit: Annotated[Dotted | None, Meta(description="The toolkit's exact release, where it matters.")] = None
    wheels: Annotated[bool, Meta(description="Whether there are official wheels of it.")] = True
    recipes: Annotated[bool, Meta(description="Whether the recipes of its release include it.")] = True
    architectures: Annotated[
        Mapping[Arch, TorchArchList],
        Meta(description="What the official wheel contains, by platform, in the spelling of TORCH_CUDA_ARCH_LIST."),
    ] = {}
    note: Annotated[str, Meta(description="A remark for readers.")] = ""

    @property
    def label(self) -> str:
        return label_of(self.cuda)

    def wheel_codes(self, arch: str) -> tuple[CodeTarget, ...]:
        """The GPU code inside the official wheel for a platform; empty where there is none."""
        if not self.wheels:
            return ()
        return tuple(code for item in self.architectures.get(arch, ()) for code in item.codes)


class PatchRelease(Strict, frozen=True, kw_only=True):
    """An older patch release of a release, and how it differs."""

    version: Annotated[Dotted, Meta(description="The PyTorch version: 2.14.0.")]
    date: Annotated[str, Meta(description="The day it was released.")] = ""
    git_commit: Annotated[str, Meta(description="The commit of its tag.")] = ""
    pythons: Annotated[tuple[PythonVersion, ...], Meta(description="The Pythons it is available for, if others.")] = ()
    triton: Annotated[str, Meta(description="The Triton version it requires, if another.")] = ""
    without: Annotated[tuple[str, ...], Meta(description="The builds that it does not have: cu129.")] = ()


class Release(Sourced, frozen=True, kw_only=True):
    """A PyTorch release and the variants of it that are offered."""

    name: Annotated[str, Meta(description="The release's name in commands; the key of the row.")]
    branch: Annotated[
        str, Meta(description="The branch of its recipes; in commands, the name of the builds that these include.")
    ] = ""
    version: Annotated[Dotted, Meta(description="The PyTorch version.")]
    pythons: Annotated[
        tuple[PythonVersion, ...], Meta(min_length=1, description="The Pythons it is available for: 3.13, 3.13t.")
    ]
    builds: Annotated[tuple[Build, ...], Meta(description="One per CUDA line, and one without; keyed by `cuda`.")] = (
        msgspec.field(name="build")
    )
    date: Annotated[str, Meta(description="The day it was released.")] = ""
    git_commit: Annotated[str, Meta(description="The commit of its tag.")] = ""
    default_index: Annotated[
        Mapping[Arch, str], Meta(description="The build that the default Python index serves, by platform.")
    ] = {}
    baseline: Annotated[
        Mapping[Arch, HostBaseline],
        Meta(description="What every CPU that loads the official wheels must have, by platform."),
    ] = {}
    exceptions: Annotated[
        Mapping[Arch, HostExceptions],
        Meta(description="Functions of the official wheels that need more without checking for it, by platform."),
    ] = {}
    glibc: Annotated[
        Mapping[Arch, Dotted],
        Meta(description="The oldest glibc on which its official wheels run, by platform; absent: 2.28."),
    ] = {}
    false_warnings: Annotated[
        frozenset[Capability], Meta(description="GPUs that it warns about at the start, though it runs on them.")
    ] = frozenset()
    triton: Annotated[str, Meta(description="The Triton version it requires.")] = ""
    cudnn: Annotated[str, Meta(description="The cuDNN version it requires.")] = ""
    nccl: Annotated[str, Meta(description="The NCCL version it requires.")] = ""
    cxx: Annotated[int, Meta(description="The C++ standard of its sources.")] = 17
    gcc_min: Annotated[int, Meta(description="The oldest GCC that compiles it.")] = 9
    nixpkgs: Annotated[str | None, Meta(description="The nixpkgs revision of its recipes.")] = None

    patches: Annotated[tuple[PatchRelease, ...], Meta(description="Its older patch releases.")] = ()

    @property
    def tag(self) -> str:
        """`pytorch210`, as the seeds' package names carry the version; `pytorch214_0` of one named 2.14.0."""
        tag = "pytorch" + "".join(str(part) for part in self.version.parts[:2])
        patch = self.version.parts[2:3] if self.name == str(self.version) else ()
        return "_".join([tag, *map(str, patch)])

    def at(self, patch: PatchRelease) -> Release:
        """One of its older patch releases, named by its version; recipes are written for the newest alone."""
        return replace(
            self,
            name=str(patch.version),
            version=patch.version,
            date=patch.date,
            git_commit=patch.git_commit,
            pythons=patch.pythons or self.pythons,
            triton=patch.triton or self.triton,
            builds=tuple(build for build in self.builds if build.label not in patch.without),
            branch="",
            nixpkgs=None,
            patches=(),
        )

    @property
    def recipe_name(self) -> str:
        """What its recipes are called after."""
        return self.branch or self.name

    @property
    def of_recipes(self) -> Release:
        """What the name of its branch stands for: the builds that its recipes include."""
        return replace(self, builds=tuple(build for build in self.builds if build.recipes))

    @property
    def default_python(self) -> str:
        """The default Python, or the newest of a release that is not offered for it; free-threaded only if it must."""
        if DEFAULT_PYTHON in self.pythons:
            return DEFAULT_PYTHON
        usual = [python for python in self.pythons if not python.endswith("t")]
        return max(usual or self.pythons, key=python_key)

    def wheel_glibc(self, arch: str) -> Dotted:
        """The oldest glibc on which its official wheels for a platform run."""
        return self.glibc.get(arch, WHEEL_GLIBC)

    def missing_for_wheel(self, arch: str, flags: Iterable[str]) -> tuple[str, ...] | None:
        """What a CPU lacks to load the official wheels, sorted; None where their baseline is unknown."""
        level = self.baseline.get(arch)
        return None if level is None else tuple(sorted(level.requires - frozenset(flags)))

    def wheel_exceptions(self, arch: str, flags: Iterable[str]) -> tuple[tuple[str, ...], str] | None:
        """What a CPU that loads the official wheels still lacks, sorted, and what does not work because of it."""
        found = self.exceptions.get(arch)
        missing = tuple(sorted(found.needs - frozenset(flags))) if found else ()
        return (missing, found.text) if found and missing else None

    @property
    def cpu_build(self) -> Build | None:
        return next((build for build in self.builds if build.cuda is None), None)

    @property
    def cuda_builds(self) -> tuple[Build, ...]:
        return tuple(build for build in self.builds if build.cuda is not None)

    def build(self, label: str) -> Build | None:
        """The build with PyTorch's label (`cu128`, `cpu`)."""
        return next((build for build in self.builds if build.label == label), None)
