"""Reads the catalog's TOML with the user's `torchtailor.toml`, and answers by the names people use."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from torchtailor.catalog.compiled import CompiledBuild
from torchtailor.catalog.cpus import CpuName, Isa, Microarchitecture, clean_cpu_name
from torchtailor.catalog.gpus import Capability, Gpu, GpuRules
from torchtailor.catalog.methods import Method
from torchtailor.catalog.products import GpuMatch, find_product, unclear
from torchtailor.catalog.releases import Build, ExtraRow, Release, VariantRow
from torchtailor.catalog.schema import Dotted
from torchtailor.catalog.tables import CatalogTables, FarmSettings, TailorSettings, read_tables
from torchtailor.catalog.toolkits import CudaToolkit, Cudnn, DriverBranch, Triton
from torchtailor.core.errors import BadInputError, NoMatchError, UsageError
from torchtailor.core.tables import read_table
from torchtailor.core.trust import Limit, decode_toml, read_limited

_log = logging.getLogger(__name__)
USER_FILE = "torchtailor.toml"
_SHOWN = 500  # letters of an error of a file
_FILES = ("gpus.toml", "cpus.toml", "cpu_names.toml", "cuda.toml", "pytorch.toml", "compiled.toml", "methods.toml")
_SUFFIXED = re.compile(r"(?<=\d)[af]\s*$")  # sm_90a, 10.0f: kinds of code, not of GPUs


@dataclass(frozen=True)
class Catalog:
    """All that is known, indexed by the names people use."""

    gpus: Mapping[Capability, Gpu]
    isas: Mapping[str, Isa]
    microarchitectures: Mapping[str, Microarchitecture]
    cpu_names: tuple[CpuName, ...]
    toolkits: Mapping[Dotted, CudaToolkit]
    cudnns: tuple[Cudnn, ...]
    tritons: tuple[Triton, ...]
    drivers: Mapping[int, DriverBranch]
    releases: Mapping[str, Release]
    compiled: Mapping[str, CompiledBuild]  # by instruction set
    methods: Mapping[str, Method]
    sources: Mapping[str, str]
    checked: str
    wheel_index: str
    tailor: TailorSettings
    farms: Mapping[str, FarmSettings] = field(default_factory=dict)
    user_file: Path | None = None

    @cached_property
    def rules(self) -> GpuRules:
        return GpuRules(self.gpus.values())

    def gpu(self, text: str) -> Gpu:
        """The architecture for `9.0`, `sm_90`, `sm90`, a product name such as `RTX 4090` or a PCI number.

        A name that several chips carry is refused: what is cut for the wrong one does not run.
        """
        match = self.find_gpu(text)
        if match.doubt:
            raise unclear(text, match.readings)
        return match.gpu

    def find_gpu(self, text: str, driver: Dotted | None = None) -> GpuMatch:
        """The same, but a name that several chips carry is taken for one of them; a driver may rule some out."""
        match = self._find_gpu(text)
        return match.under(driver, self.gpus) if driver is not None else match

    def _find_gpu(self, text: str) -> GpuMatch:
        try:
            capability = Capability.parse(_SUFFIXED.sub("", text))
        except ValueError:
            return find_product(text, self.gpus)
        suffix = _SUFFIXED.search(text)
        gpu = self.gpus.get(capability)
        if gpu and suffix and not (gpu.arch_specific if suffix[0].strip() == "a" else gpu.family_members):
            return find_product(text, self.gpus)  # there is no sm_80a
        if capability not in self.gpus:
            with suppress(NoMatchError):
                return find_product(text, self.gpus)  # 980 is a GeForce
            known = ", ".join(str(known) for known in sorted(self.gpus))
            raise NoMatchError(
                f"No GPU of compute capability {capability} is known.",
                f"Known: {known}; add another with a [[gpu]] row in {USER_FILE}.",
            )
        return GpuMatch(self.gpus[capability])

    def isa(self, name: str) -> Isa:
        if name not in self.isas:
            raise NoMatchError(
                f"No CPU instruction set is called {name!r}.",
                f"Known: {', '.join(self.isas)}; add another with an [[isa]] row in {USER_FILE}.",
            )
        return self.isas[name]

    def toolkit(self, version: str | Dotted) -> CudaToolkit:
        """The toolkit line of `12.9` or `12.9.1`."""
        try:
            asked = version if isinstance(version, Dotted) else Dotted(version)
        except ValueError:
            asked = Dotted("0")
        if (toolkit := self.toolkits.get(asked)) is not None:
            return toolkit
        line = Dotted(".".join(str(part) for part in asked.parts[:2]))
        if line not in self.toolkits:
            known = ", ".join(str(known) for known in self.toolkits)
            raise NoMatchError(f"CUDA {version} is not in the catalog.", f"Known: {known}.")
        return self.toolkits[line]

    def release(self, name: str) -> Release:
        """A release by its name (`2.15`), PyTorch version (`2.10.0`, `2.14.0`) or branch of recipes (`cuda-13_0`)."""
        if (release := self._releases_by_name.get(name)) is not None:
            return release
        known = sorted(self.releases, key=lambda one: self.releases[one].version)
        raise NoMatchError(
            f"No release is called {name!r}.",
            f"Known: {', '.join(known)}; PyTorch versions such as 2.10.0 or 2.14.0 work too.",
        )

    def for_python(self, release: Release, python: str) -> Release:
        """The release, or the newest of its older patch releases where these alone are available for this Python."""
        if python in release.pythons:
            return release
        patches = [patch for patch in release.patches if python in patch.pythons]
        newest = sorted(patches, key=lambda patch: patch.version, reverse=True)
        return self.release(str(newest[0].version)) if newest else release

    def method(self, name: str) -> Method:
        """A build method by its name."""
        if name not in self.methods:
            known = ", ".join(self.methods)
            raise UsageError(f"{name!r} is not a build method.", f"Choose one of {known} with --via.")
        return self.methods[name]

    @cached_property
    def tags(self) -> frozenset[str]:
        """The tags of all releases, older patch releases included: `pytorch215`, `pytorch214_0`."""
        return frozenset(release.tag for release in self._releases_by_name.values())

    @cached_property
    def _releases_by_name(self) -> Mapping[str, Release]:
        """The releases by every name; kept, so that one name means one object."""
        found = dict(self.releases)
        found |= {known.branch: known.of_recipes for known in self.releases.values() if known.branch}
        for release in self.releases.values():
            for one in (release, *map(release.at, release.patches)):
                found.setdefault(str(one.version), one)
                found.setdefault(one.tag, one)
            found.setdefault(str(release.version).rsplit(".", 1)[0], release)
        return found

    def microarchitecture(self, name: str) -> tuple[Microarchitecture, str]:
        """The core behind a name (`zen4`, `Graviton3`, `i9-12900K`), and what the name was taken for."""
        key = name.strip().lower().replace("-", "_")
        if key in self.microarchitectures:
            return self.microarchitectures[key], key
        if (known := self.cpu_name(name)) is not None:
            return self.microarchitectures[known.microarchitecture], known.label
        if (core := _from_archspec(key)) is not None:
            return core, key
        brand = "Write its brand too (Ryzen 9 9950X, Core i9-12900K, Xeon Gold 6248). " if key[:3].isdecimal() else ""
        near = self._near_cpu(name)
        meant = f"Did you mean {near!r}? " if near else ""
        raise NoMatchError(
            f"No CPU is known as {name!r}.",
            f"{meant}{brand}Give archspec's name for it (zen4, icelake, neoverse_v2), or run `torchtailor detect "
            "--json` on the machine and pass the file with --from.",
        )

    def _near_cpu(self, name: str) -> str | None:
        """The name with each word as a known one is spelt, where that names a CPU."""
        known = {word for row in self.cpu_names for word in re.findall(r"[a-z]{4,}", row.label.lower())}
        known |= set(self.microarchitectures)
        words = clean_cpu_name(name).split()
        near = " ".join((get_close_matches(word, known, n=1, cutoff=0.75) or [word])[0] for word in words)
        return near if near in self.microarchitectures or self.cpu_name(near) else None

    def cpu_name(self, name: str) -> CpuName | None:
        """The first row of names that covers this one."""
        return next((known for known in self.cpu_names if known.matches(name)), None)

    def cpu_with(self, text: str, gpu: Gpu) -> tuple[Microarchitecture, str] | None:
        """The CPU that a GPU always comes with, and its name: Grace for a GH200, a Jetson's own cores."""
        for known in self.cpu_names:
            if known.with_gpu and known.matches(text):
                return self.microarchitectures[known.microarchitecture], known.label
        if gpu.cpu is None:
            return None
        return self.microarchitectures[gpu.cpu], gpu.cpu


def load_catalog(directory: Path | None = None) -> Catalog:
    """The package's catalog with the `torchtailor.toml` of a directory (the current one) added to it."""
    user_file = (directory or Path.cwd()) / USER_FILE
    if not user_file.exists():
        return _own_catalog()
    _log.info("%s is added to the catalog", user_file)
    documents = [_read(name) for name in _FILES]
    try:
        added = decode_toml(read_limited(user_file, Limit.CONFIGURATION).decode("utf-8"))
        _check_methods(documents, added)
        documents.append(added)
        return _catalog(read_tables(documents), user_file)
    except (OSError, ValueError, BadInputError, RecursionError) as error:  # of TOML, of its characters, of a row
        page = "farm" if str(error).startswith(("farm", "[farm")) else "extending"
        raise UsageError(
            f"{user_file} cannot be used: {str(error)[:_SHOWN].rstrip('.')}.",
            f"`torchtailor help {page}` has its tables.",
        ) from error


@cache
def _own_catalog() -> Catalog:
    return _catalog(read_tables([_read(name) for name in _FILES]), None)


def _check_methods(documents: list[dict[str, Any]], added: Mapping[str, Any]) -> None:
    """A folder that somebody else wrote must not say what code `--via wheel` runs."""
    own = {row["name"] for document in documents for row in document.get("method", ())}
    rows = added.get("method", ())
    for row in rows if isinstance(rows, list) else ():
        if isinstance(row, Mapping) and row.get("name") in own:
            raise ValueError(f"[[method]] {row['name']!r} is one of torchtailor's own; give yours another name")


@cache
def _read(name: str) -> dict[str, Any]:
    """A file of the package, which nobody changes while we run."""
    return read_table("catalog", name, dict[str, Any])


def _catalog(tables: CatalogTables, user_file: Path | None) -> Catalog:
    """The tables, indexed and checked."""
    releases = {release.name: release for release in tables.release}
    for row in tables.row:
        extended = _extend(releases, row)
        releases[extended.name] = extended
    catalog = Catalog(
        gpus={gpu.capability: gpu for gpu in sorted(tables.gpu, key=lambda gpu: gpu.capability)},
        isas={isa.name: isa for isa in tables.isa},
        microarchitectures={core.name: core for core in tables.microarchitecture},
        cpu_names=tables.cpu_name,
        toolkits={toolkit.version: toolkit for toolkit in tables.cuda},
        cudnns=tables.cudnn,
        tritons=tables.triton,
        drivers={driver.branch: driver for driver in tables.driver},
        releases=releases,
        compiled={row.isa: row for row in tables.compiled},
        methods={method.name: method for method in tables.method},
        sources=tables.sources,
        checked=tables.checked,
        wheel_index=tables.wheel_index,
        tailor=tables.tailor,
        farms=tables.farm,
        user_file=user_file,
    )
    _check_references(catalog)
    _check_farms(catalog)
    _check_wheel_index(catalog.wheel_index)
    return catalog


def _check_farms(catalog: Catalog) -> None:
    """A name that `--on` takes for something else would never be used."""
    for name in catalog.farms:
        if name in ("here", "local") or ":" in name or not name.strip():
            raise ValueError(
                f"[farm.{name}]: --on takes {name!r} for a place of its own and would never use this section; give it "
                "another name"
            )


def _check_wheel_index(url: str) -> None:
    try:
        url.format(label="cpu")
    except (KeyError, IndexError, ValueError, AttributeError) as error:
        raise ValueError(f"wheel_index {url!r}: only {{label}} can stand in it") from error


def _from_archspec(name: str) -> Microarchitecture | None:
    from archspec.cpu import TARGETS

    target = TARGETS.get(name)
    if target is None:
        return None
    return Microarchitecture(name=name, arch=str(target.family), flags=frozenset(_archspec_flags(target)))


def _archspec_flags(target: object) -> set[str]:
    """archspec's features; it names a few differently from /proc/cpuinfo and leaves x86's oldest ones out."""
    flags = set(getattr(target, "features", ()))
    if "avx" in flags:
        flags |= {"xsave", "popcnt", "sse4_1", "sse4_2", "ssse3", "pni"}
    return flags


def _find_release(releases: Mapping[str, Release], name: str) -> Release | None:
    if name in releases:
        return releases[name]
    for release in releases.values():
        known = {release.branch, str(release.version).rsplit(".", 1)[0]} - {""}
        for one in (release, *map(release.at, release.patches)):
            known |= {str(one.version), one.tag}
        if name in known:
            return release
    return None


def _extend(releases: Mapping[str, Release], row: ExtraRow) -> Release:
    """The release of a row with the row's variants added to its build."""
    if (release := _find_release(releases, row.release)) is None:
        raise ValueError(f"[[row]] names the release {row.release!r}, which does not exist")
    wanted = "cpu" if not row.gpus else row.cuda and Build(cuda=row.cuda, rows=()).label
    builds = [build for build in release.builds if build.label == wanted] if wanted else release.cuda_builds[-1:]
    if not builds:
        raise ValueError(f"[[row]]: release {row.release!r} has no build {wanted or 'with CUDA'}")
    extended = replace(builds[0], rows=(*builds[0].rows, VariantRow(gpus=row.gpus, cpus=row.cpus)))
    return replace(release, builds=tuple(extended if build is builds[0] else build for build in release.builds))


def _check_references(catalog: Catalog) -> None:
    """Everything a row names must exist."""
    tags: dict[str, str] = {}
    for release in catalog.releases.values():
        if (other := tags.setdefault(release.tag, release.name)) != release.name:
            raise ValueError(
                f"the variants of releases {other!r} and {release.name!r} would share their names, {release.tag}-...: "
                f"name yours {other!r}, and add replace = true to have it instead of that one"
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
    for isa, compiled in catalog.compiled.items():
        if isa not in catalog.isas:
            raise ValueError(f"a row of [[compiled]] names the unknown ISA {isa!r}")
        core = compiled.microarchitecture
        if core and core not in catalog.microarchitectures:
            raise ValueError(f"a row of [[compiled]] names the unknown microarchitecture {core!r}")
    _check_cores(catalog)


def _check_cores(catalog: Catalog) -> None:
    """The CPU cores that rows name must exist."""
    for gpu in catalog.gpus.values():
        if gpu.cpu is not None and gpu.cpu not in catalog.microarchitectures:
            raise ValueError(f"GPU {gpu.capability} names an unknown core {gpu.cpu!r}")
    for name in catalog.cpu_names:
        if catalog.user_file is not None:
            name.check()  # compiling the package's own patterns takes a third of loading; tests do it
        if name.microarchitecture not in catalog.microarchitectures:
            raise ValueError(f"CPU name {name.label!r} means an unknown core {name.microarchitecture!r}")
