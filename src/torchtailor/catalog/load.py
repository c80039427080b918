"""Reads the catalog's TOML, validates it, adds the user's `torchtailor.toml`, and makes domain types of it."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import TypeVar

import msgspec

from torchtailor.catalog import schema
from torchtailor.catalog.cpus import CpuName, Isa, Microarchitecture
from torchtailor.catalog.gpus import Capability, Gpu, GpuRules, TorchArch, UnifiedTegra
from torchtailor.catalog.products import find_product
from torchtailor.catalog.releases import Build, Release, VariantRow
from torchtailor.catalog.toolkits import CudaToolkit, Dotted
from torchtailor.errors import NoMatchError, UsageError

USER_FILE = "torchtailor.toml"

T = TypeVar("T")
KeyT = TypeVar("KeyT")
FileT = TypeVar("FileT", bound=schema.Strict)


@dataclass(frozen=True)
class Catalog:
    """All that is known, indexed by the names people use."""

    gpus: Mapping[Capability, Gpu]
    families: Mapping[Capability, frozenset[Capability]]
    isas: Mapping[str, Isa]
    microarchitectures: Mapping[str, Microarchitecture]
    cpu_names: tuple[CpuName, ...]
    toolkits: Mapping[Dotted, CudaToolkit]
    cudnns: tuple[schema.CudnnRow, ...]
    tritons: tuple[schema.TritonRow, ...]
    releases: Mapping[str, Release]
    sources: Mapping[str, str]
    checked: str
    wheel_index: str
    tailor: schema.TailorSettings
    user_file: Path | None = None

    @cached_property
    def rules(self) -> GpuRules:
        return GpuRules(self.gpus.values(), self.families)

    def gpu(self, text: str) -> Gpu:
        """The architecture for `9.0`, `sm_90`, `sm90` or a product name such as `RTX 4090`."""
        try:
            capability = Capability.parse(text)
        except ValueError:
            return find_product(text, self.gpus.values())
        if capability not in self.gpus:
            known = ", ".join(str(known) for known in sorted(self.gpus))
            raise NoMatchError(
                f"No GPU of compute capability {capability} is known.",
                f"Known are {known}; add another with a [[gpu]] row in {USER_FILE}.",
            )
        return self.gpus[capability]

    def isa(self, name: str) -> Isa:
        if name not in self.isas:
            raise NoMatchError(
                f"No CPU instruction set is called {name!r}.",
                f"Known are {', '.join(self.isas)}; add another with an [[isa]] row in {USER_FILE}.",
            )
        return self.isas[name]

    def toolkit(self, version: str | Dotted) -> CudaToolkit:
        """The toolkit line of `12.9` or `12.9.1`."""
        parts = (version if isinstance(version, Dotted) else Dotted(version)).parts
        line = Dotted(".".join(str(part) for part in parts[:2]))
        if line not in self.toolkits:
            known = ", ".join(str(known) for known in self.toolkits)
            raise NoMatchError(f"CUDA {version} is not in the catalog.", f"Known are {known}.")
        return self.toolkits[line]

    def release(self, name: str) -> Release:
        """A release by its name (`cuda-13_0`, `2.15`) or PyTorch version (`2.10.0`, `2.10`)."""
        if (release := _find_release(self.releases, name)) is not None:
            return release
        raise NoMatchError(
            f"No release is called {name!r}.",
            f"Known are {', '.join(self.releases)}; PyTorch versions such as 2.10.0 work too.",
        )

    def microarchitecture(self, name: str) -> tuple[Microarchitecture, str]:
        """The core behind a name (`zen4`, `Graviton3`, `i9-12900K`), and what the name was taken for."""
        key = name.strip().lower().replace("-", "_")
        if key in self.microarchitectures:
            return self.microarchitectures[key], key
        for known in self.cpu_names:
            if known.matches(name):
                return self.microarchitectures[known.microarchitecture], known.label
        if (core := _from_archspec(key)) is not None:
            return core, f"archspec's {key}"
        raise NoMatchError(
            f"No CPU is known as {name!r}.",
            "Give archspec's name for it (zen4, icelake, neoverse_v2), or run `torchtailor detect --json` on the "
            "machine and pass the file with --from.",
        )


def load_catalog(directory: Path | None = None) -> Catalog:
    """The package's catalog with the `torchtailor.toml` of a directory (the current one) added to it."""
    user_file = (directory or Path.cwd()) / USER_FILE
    user = _read_user_file(user_file) if user_file.exists() else schema.UserFile()
    gpu_file = _read("gpus.toml", schema.GpusFile)
    cpu_file = _read("cpus.toml", schema.CpusFile)
    cuda_file = _read("cuda.toml", schema.CudaFile)
    torch_file = _read("pytorch.toml", schema.PytorchFile)

    with _Explained(user_file if user != schema.UserFile() else None):
        gpus = _index(map(_gpu, (*gpu_file.gpu, *user.gpu)), lambda gpu: gpu.capability)
        families = {
            Capability.parse(key): frozenset(map(Capability.parse, members))
            for key, members in {**gpu_file.families, **user.families}.items()
        }
        gpus = {cap: replace(gpu, family_members=families.get(cap, frozenset())) for cap, gpu in gpus.items()}
        isas = _index(map(_isa, (*cpu_file.isa, *user.isa)), lambda isa: isa.name)
        toolkits = _index(map(_toolkit, (*cuda_file.cuda, *user.cuda)), lambda toolkit: toolkit.version)
        cores = [Microarchitecture(row.name, row.arch, frozenset(row.flags)) for row in cpu_file.microarchitecture]
        releases = _index(map(_release, (*torch_file.release, *user.release)), lambda release: release.name)
        for row in user.row:
            extended = _extend(releases, row)
            releases[extended.name] = extended
        catalog = Catalog(
            gpus=dict(sorted(gpus.items())),
            families=families,
            isas=isas,
            microarchitectures=_index(cores, lambda core: core.name),
            cpu_names=tuple(
                CpuName(re.compile(row.pattern, re.IGNORECASE), row.microarchitecture, row.label)
                for row in cpu_file.cpu_name
            ),
            toolkits=toolkits,
            cudnns=cuda_file.cudnn,
            tritons=cuda_file.triton,
            releases=releases,
            sources={**gpu_file.sources, **cpu_file.sources, **cuda_file.sources, **torch_file.sources},
            checked=max(gpu_file.checked, cpu_file.checked, cuda_file.checked, torch_file.checked),
            wheel_index=user.wheel_index or torch_file.wheel_index,
            tailor=user.tailor,
            user_file=user_file if user_file.exists() else None,
        )
        _check_references(catalog)
    return catalog


class _Explained:
    """Turns a ValueError in data into a sentence that names the user's file, where there is one."""

    def __init__(self, user_file: Path | None) -> None:
        self._user_file = user_file

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, ValueError) and self._user_file is not None:
            raise UsageError(f"{self._user_file}: {error}.", "See docs/extending.md for its tables.") from error


def _read(name: str, shape: type[FileT]) -> FileT:
    text = files("torchtailor.catalog").joinpath("data", name).read_text("utf-8")
    return msgspec.convert(tomllib.loads(text), shape)


def _read_user_file(path: Path) -> schema.UserFile:
    try:
        return msgspec.convert(tomllib.loads(path.read_text("utf-8")), schema.UserFile)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise UsageError(f"{path} cannot be used: {error}.", "See docs/extending.md for its tables.") from error


def _index(items: Iterable[T], key: Callable[[T], KeyT]) -> dict[KeyT, T]:
    """A dictionary of items; a later one (the user's) replaces an earlier one of the same key."""
    return {key(item): item for item in items}


def _from_archspec(name: str) -> Microarchitecture | None:
    from archspec.cpu import TARGETS

    target = TARGETS.get(name)
    if target is None:
        return None
    return Microarchitecture(name, str(target.family), frozenset(_archspec_flags(target)))


def _archspec_flags(target: object) -> set[str]:
    """archspec's features; it names a few differently from /proc/cpuinfo and leaves x86's oldest ones out."""
    flags = set(getattr(target, "features", ()))
    if "avx" in flags:
        flags |= {"xsave", "popcnt", "sse4_1", "sse4_2", "ssse3", "pni"}
    return flags


def _gpu(row: schema.GpuRow) -> Gpu:
    for version in filter(None, (row.first_cuda, row.last_cuda, row.first_driver)):
        Dotted(version)
    unified = row.unified and UnifiedTegra(
        row.unified.cuda, frozenset(map(Capability.parse, row.unified.capabilities)), row.unified.condition
    )
    return Gpu(
        capability=Capability.parse(row.capability),
        family=row.family,
        products={
            "datacenter": row.datacenter,
            "workstation": row.workstation,
            "consumer": row.consumer,
            "embedded": row.embedded,
        },
        first_cuda=row.first_cuda,
        last_cuda=row.last_cuda,
        first_driver=row.first_driver,
        last_driver_branch=row.last_driver_branch,
        host_archs=frozenset(row.hosts),
        tegra=row.tegra,
        offered=row.offered,
        arch_specific=row.arch_specific,
        family_members=frozenset(),
        same_silicon=frozenset(map(Capability.parse, row.same_silicon)),
        unified=unified or None,
        note=row.note,
        sources=row.sources,
    )


def _isa(row: schema.IsaRow) -> Isa:
    if not re.fullmatch(r"[a-z0-9_]+", row.name):
        raise ValueError(f"the ISA name {row.name!r} may hold only small letters, digits and _, as variants' names do")
    return Isa(
        name=row.name,
        arch=row.arch,
        label=row.label,
        requires=frozenset(row.requires),
        compile_flags=row.compile_flags,
        seed_flags=row.seed_flags or row.compile_flags,
        gcc_min=row.gcc_min,
        clang_min=row.clang_min,
        workloads=row.workloads,
        level=row.level,
        first=row.first,
        not_on=row.not_on,
        note=row.note,
        sources=row.sources,
    )


def _toolkit(row: schema.CudaRow) -> CudaToolkit:
    return CudaToolkit(
        version=Dotted(row.version),
        updates=tuple(map(Dotted, row.toolkits)),
        architectures=frozenset(map(Capability.parse, row.architectures)),
        arch_specific=frozenset(map(Capability.parse, row.arch_specific)),
        family_specific=frozenset(map(Capability.parse, row.family_specific)),
        ptx_isa=row.ptx_isa,
        gcc_max=row.gcc_max,
        clang_max=row.clang_max,
        driver_full=Dotted(row.driver_full),
        driver_updates={update: Dotted(driver) for update, driver in row.driver_updates.items()},
        driver_minor=Dotted(row.driver_minor),
        cudnn_of_torch=row.cudnn_of_torch,
        nccl_of_torch=row.nccl_of_torch,
        note=row.note,
        sources=row.sources,
    )


def _release(row: schema.ReleaseRow) -> Release:
    if not row.pythons:
        raise ValueError(f"release {row.name!r} names no Python")
    return Release(
        name=row.name,
        version=Dotted(row.version),
        date=row.date,
        git_commit=row.git_commit,
        pythons=row.pythons,
        builds=tuple(map(_build, row.build)),
        default_index={str(arch): label for arch, label in row.default_index.items()},
        triton=row.triton,
        cudnn=row.cudnn,
        nccl=row.nccl,
        cxx=row.cxx,
        gcc_min=row.gcc_min,
        nixpkgs=row.nixpkgs,
        note=row.note,
        sources=row.sources,
    )


def _build(row: schema.BuildRow) -> Build:
    return Build(
        cuda=Dotted(row.cuda) if row.cuda else None,
        toolkit=Dotted(row.toolkit) if row.toolkit else None,
        wheels=row.wheels,
        architectures={arch: TorchArch.parse_list(text) for arch, text in row.architectures.items()},
        rows=tuple(VariantRow(tuple(map(Capability.parse, r.gpus)), r.cpus) for r in row.rows),
        note=row.note,
    )


def _find_release(releases: Mapping[str, Release], name: str) -> Release | None:
    if name in releases:
        return releases[name]
    for release in releases.values():
        version = str(release.version)
        if name in (version, version.rsplit(".", 1)[0], release.tag):
            return release
    return None


def _extend(releases: Mapping[str, Release], row: schema.ExtraRow) -> Release:
    if (release := _find_release(releases, row.release)) is None:
        raise ValueError(f"[[row]] names the release {row.release!r}, which does not exist")
    label = "cpu" if not row.gpus else row.cuda and Build(Dotted(row.cuda), None, True, {}, ()).label
    candidates = [b for b in release.builds if b.label == label] if label else list(release.cuda_builds[-1:])
    if not candidates:
        raise ValueError(f"[[row]]: release {row.release!r} has no build {label or 'with CUDA'}")
    more = VariantRow(tuple(map(Capability.parse, row.gpus)), row.cpus)
    extended = replace(candidates[0], rows=(*candidates[0].rows, more))
    return replace(release, builds=tuple(extended if b is candidates[0] else b for b in release.builds))


def _check_references(catalog: Catalog) -> None:
    """Everything a row names must exist."""
    tags: dict[str, str] = {}
    for release in catalog.releases.values():
        if (other := tags.setdefault(release.tag, release.name)) != release.name:
            raise ValueError(
                f"the variants of releases {other!r} and {release.name!r} would share their names, {release.tag}-...: "
                f"name yours {other!r} to replace that one"
            )
        for build in release.builds:
            if build.cuda and build.cuda not in catalog.toolkits:
                raise ValueError(f"release {release.name!r} names CUDA {build.cuda}, which is not in the catalog")
            for row in build.rows:
                if missing := [str(gpu) for gpu in row.gpus if gpu not in catalog.gpus]:
                    raise ValueError(f"release {release.name!r} names the unknown GPU {missing[0]}")
                if unknown := [cpu for cpu in row.cpus if cpu not in catalog.isas]:
                    raise ValueError(f"release {release.name!r} names the unknown ISA {unknown[0]!r}")
                if bool(row.gpus) != (build.cuda is not None):
                    raise ValueError(f"release {release.name!r}: GPUs belong to builds with CUDA, and to no other")
    for name in catalog.cpu_names:
        if name.microarchitecture not in catalog.microarchitectures:
            raise ValueError(f"CPU name {name.label!r} means an unknown core {name.microarchitecture!r}")
