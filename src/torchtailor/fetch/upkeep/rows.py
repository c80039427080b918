"""Rows of the catalog for what is new; a fact that was not read is inherited and listed as believed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchtailor.catalog import Build, Capability, Catalog, CodeKind, CodeTarget, CudaToolkit, Dotted, Release
from torchtailor.catalog.releases import WHEEL_GLIBC, HostBaseline, VariantRow
from torchtailor.catalog.schema import python_key
from torchtailor.code.binary.elf_headers import ElfMachine
from torchtailor.fetch.upkeep.news import NewLine, ReadBuild
from torchtailor.trees.wheels.name import WheelName

if TYPE_CHECKING:
    from torchtailor.code.hostcode.features import FeatureTable

Row = dict[str, Any]
_MANYLINUX2014 = Dotted("2.17")

# The levels of a platform, from the oldest on.
_LEVELS = {
    "x86_64": [level for level in HostBaseline if level.value.startswith("x86")],
    "aarch64": [level for level in HostBaseline if level.value.startswith("arm")],
}


def _features(arch: str) -> FeatureTable:
    """Asked for only where host code was measured: it comes with the extra that measuring needs."""
    from torchtailor.code.hostcode.features import feature_table

    return feature_table(ElfMachine[arch.upper()])


class RowMaker:
    """Makes rows that `torchtailor.toml` and the catalog's own files take."""

    def __init__(self, catalog: Catalog, today: str) -> None:
        self._catalog, self._today = catalog, today
        self.problems: list[str] = []
        self.sources: dict[str, str] = {}
        self.toolkits: dict[Dotted, Row] = {}

    def release_row(
        self, line: NewLine, read: tuple[ReadBuild, ...], earlier: tuple[ReadBuild, ...] = ()
    ) -> Row | None:
        """The row of a line of releases: a whole one, or what has to be merged into the catalog's.

        None for a patch release of which a wheel could not be read: once it is in the catalog, nobody reads it again.
        """
        if line.is_patch and len(read) < len(line.builds):
            return None
        before = line.neighbour
        read = tuple(build for build in read if self._has_toolkit(build))
        if line.known is None and not read:
            return None
        row: Row = {"name": line.name}
        if line.known is None or line.is_patch:
            row |= self._identity(line, read)
        if line.known is not None and line.is_patch:
            row["patches"] = [_older_patch(line.known, read)]
        elif patches := list(_patches(line, read, earlier)):
            row["patches"] = patches
        if line.pythons:
            row["pythons"] = list(line.pythons)
        if served := {build.listed.arch: build.facts.label for build in read if not build.listed.local}:
            row["default_index"] = served
        if line.known is None:
            row |= {"cxx": before.cxx, "gcc_min": before.gcc_min}
            if older := {arch: str(glibc) for arch, glibc in _glibc(read).items() if glibc < WHEEL_GLIBC}:
                row["glibc"] = older
        row |= self._host_facts(line, before, read)
        source = f"index-{line.version}"
        row |= self._trust(line, read, row)
        row["sources"] = [source]
        wheels = "; ".join(build.source for build in read)
        where = f"METADATA and torch/version.py of {wheels}" if wheels else "the index's page of torch"
        self.sources[source] = f"{where}; read {self._today} by torchtailor catalog update"
        row["build"] = list(self._builds(line, before, read))
        return row

    def _identity(self, line: NewLine, read: tuple[ReadBuild, ...]) -> Row:
        row: Row = {"version": str(line.version)}
        if line.known is not None and line.known.date:
            row["date"] = ""  # an index's page does not tell it, and the older patch release's is not this one's
        for name in ("git_commit", "triton", "cudnn", "nccl"):
            values = [value for build in read if (value := getattr(build.facts, name))]
            if values:
                row[name] = values[0]
        return row

    def _trust(self, line: NewLine, read: tuple[ReadBuild, ...], row: Row) -> Row:
        measured = [f"{b.facts.label} architectures on {b.listed.arch}" for b in read if b.measured and b.facts.cuda]
        guessed = [f"{b.facts.label} architectures on {b.listed.arch}" for b in read if not b.measured and b.facts.cuda]
        guessed = guessed if line.is_patch else []  # of a new release nothing is written that was not measured
        verified = [*(["pythons"] if line.pythons else []), *(["git_commit"] if "git_commit" in row else []), *measured]
        believed = [*(["cxx", "gcc_min", "rows"] if line.known is None else []), *guessed]
        believed += ["glibc"] if "glibc" in row else []
        if "baseline" in row:
            (verified if any(b.measured for b in read) else believed).append("baseline")
        if "exceptions" in row:
            (verified if any(b.measured for b in read) else believed).append("exceptions")
        return {"verified": verified} | ({"believed": believed} if believed else {})

    def _host_facts(self, line: NewLine, before: Release, read: tuple[ReadBuild, ...]) -> Row:
        """What the host code needs: as measured, else (of a new release) as in the release before it."""
        levels = {arch: level.value for arch, level in before.baseline.items()} if line.known is None else {}
        more = {arch: _exceptions(found.needs, found.text) for arch, found in before.exceptions.items() if levels}
        for build in read:
            if build.measured is None:
                continue
            arch, table = build.listed.arch, _features(build.listed.arch)
            loading, always = set(build.measured.loading), set(build.measured.baseline)
            fitting = [level for level in _LEVELS[arch] if loading <= table.closure(level.requires)]
            more.pop(arch, None)
            levels.pop(arch, None)
            if not fitting:
                words = ", ".join(table.sorted(loading))
                self.problems.append(f"{build.source} needs {words} to be loaded, which is no level of {arch}.")
                continue
            levels[arch] = fitting[0].value
            if beyond := table.sorted(always - table.closure(fitting[0].requires)):
                text = f"Some functions may end with an illegal instruction on CPUs without {', '.join(beyond)}."
                more[arch] = _exceptions(beyond, text)
        return ({"baseline": levels} if levels else {}) | ({"exceptions": more} if more else {})

    def _builds(self, line: NewLine, before: Release, read: tuple[ReadBuild, ...]) -> Iterator[Row]:
        by_label: dict[str, list[ReadBuild]] = {}
        for build in read:
            by_label.setdefault(build.facts.label, []).append(build)
        if line.known is None and before.cpu_build is not None:
            yield {"rows": [_row(row) for row in before.cpu_build.rows]}
        for label, builds in sorted(by_label.items()):
            cuda = builds[0].facts.cuda
            if cuda is None:
                continue
            known = line.known.build(label) if line.known else None
            row: Row = {"cuda": str(cuda)}
            if toolkit := builds[0].facts.toolkit:
                row["toolkit"] = toolkit
            if known is not None and not known.wheels:
                row["wheels"] = True
            lists = {b.listed.arch: b.measured.arch_list for b in builds if b.measured and b.measured.arch_list}
            if lists:
                row["architectures"] = lists
            if known is None:
                row["rows"] = list(self._rows(before, cuda, builds))
            if known is None or len(row) > 1:
                yield row

    def _rows(self, before: Release, cuda: Dotted, builds: Iterable[ReadBuild]) -> Iterator[Row]:
        """The variants of the nearest build, and one row for GPUs that this wheel has code for and that build not."""
        nearest = _nearest(before, cuda)
        rows = nearest.rows if nearest else ()
        compiled = self._compiled_by(cuda)
        for row in rows:
            if gpus := [gpu for gpu in row.gpus if gpu in compiled]:
                yield _row(VariantRow(gpus=tuple(gpus), cpus=row.cpus))
        listed = {gpu for row in rows for gpu in row.gpus}
        cpus = {cpu for row in rows for cpu in row.cpus}
        native = {item.capability for build in builds if build.measured for item in build.measured.architectures}
        for capability in sorted((native & compiled) - listed):
            gpu = self._catalog.gpus.get(capability)
            if gpu is None or not gpu.offered:
                self.problems.append(f"The wheel has code for {capability}, which no [[gpu]] row describes.")
                continue
            fitting = [isa.name for isa in self._catalog.isas.values() if isa.name in cpus and isa.arch in gpu.hosts]
            if fitting:
                yield {"gpus": [str(capability)], "cpus": fitting}

    def _compiled_by(self, cuda: Dotted) -> set[Capability]:
        toolkit = self._catalog.toolkits.get(cuda) or self._like(cuda)
        assert toolkit is not None
        return {gpu for gpu in self._catalog.gpus if toolkit.compiles(CodeTarget(CodeKind.CUBIN, gpu))}

    def _like(self, cuda: Dotted) -> CudaToolkit | None:
        """The newest known toolkit of the same major."""
        same = [kit for line, kit in self._catalog.toolkits.items() if line.major == cuda.major and line < cuda]
        return max(same, key=lambda kit: kit.version, default=None)

    def _has_toolkit(self, build: ReadBuild) -> bool:
        """Whether the build's CUDA is known, or can be described by the line before it."""
        cuda = build.facts.cuda
        if cuda is None or cuda in self._catalog.toolkits:
            return True
        like = self._like(cuda)
        if like is None:
            self.problems.append(
                f"{build.source} is built with CUDA {cuda}, of whose major no toolkit is known: add a [[cuda]] row "
                "with its drivers, and run the command again."
            )
            return False
        native = {item.capability for item in build.measured.architectures} if build.measured else set()
        self.sources[f"cuda-{cuda}"] = (
            f"the row of CUDA {like.version}, {self._today}; CUDA {cuda} is in {build.source}"
        )
        self.toolkits[cuda] = {
            "version": str(cuda),
            "toolkits": [build.facts.toolkit or f"{cuda}.0"],
            "architectures": [str(item) for item in sorted(like.architectures | native)],
            "arch_specific": [str(item) for item in sorted(like.arch_specific)],
            "family_specific": [str(item) for item in sorted(like.family_specific)],
            "gcc_max": like.gcc_max,
            "clang_max": like.clang_max,
            "driver_full": str(like.driver_full),
            "driver_minor": str(like.driver_minor),
            "note": f"inherited from CUDA {like.version}; only its minor-version driver is certain",
            "believed": ["architectures", "gcc_max", "clang_max", "driver_full"],
            "sources": [f"cuda-{cuda}"],
        }
        return True


def _row(row: VariantRow) -> Row:
    gpus: Mapping[str, Any] = {"gpus": [str(gpu) for gpu in row.gpus]} if row.gpus else {}
    return {**gpus, "cpus": list(row.cpus)}


def _older_patch(known: Release, read: Iterable[ReadBuild]) -> Row:
    """What the catalog knew about the release so far, kept beside the newer patch release."""
    new = {build.facts.label for build in read} - {build.label for build in known.builds}
    facts: Row = {
        "version": str(known.version),
        "date": known.date,
        "git_commit": known.git_commit,
        "pythons": list(known.pythons),
        "triton": known.triton,
        "without": sorted(new),
    }
    return {name: value for name, value in facts.items() if value}


def _patches(line: NewLine, read: Iterable[ReadBuild], earlier: tuple[ReadBuild, ...]) -> Iterator[Row]:
    """The older patch releases of a new line, as far as they differ from its newest."""
    labels = {build.facts.label for build in read}
    triton = next((build.facts.triton for build in read if build.facts.triton), "")
    for version in sorted({build.listed.version for build in earlier}, reverse=True):
        builds = [build for build in earlier if build.listed.version == version]
        pythons = sorted({python for build in builds for python in build.listed.pythons}, key=python_key)
        own = next((build.facts.triton for build in builds if build.facts.triton), "")
        facts: Row = {
            "version": str(version),
            "git_commit": next((build.facts.git_commit for build in builds if build.facts.git_commit), ""),
            "pythons": pythons if pythons != list(line.pythons) else [],
            "triton": own if own != triton else "",
            "without": sorted(labels - {build.facts.label for build in builds}),
        }
        yield {name: value for name, value in facts.items() if value}


def _glibc(read: Iterable[ReadBuild]) -> dict[str, Dotted]:
    """The oldest glibc that the wheels' names promise; PyTorch's manylinux1 wheels were built in manylinux2014."""
    oldest: dict[str, Dotted] = {}
    for build in read:
        _, file = build.listed.newest
        if promised := WheelName.parse(Path(file.filename)).oldest_glibc:
            oldest[build.listed.arch] = max(Dotted("{}.{}".format(*promised)), _MANYLINUX2014)
    return oldest


def _nearest(release: Release, cuda: Dotted) -> Build | None:
    """The build of a release with this CUDA, or with the newest one before it, or its oldest."""
    builds = sorted((build for build in release.cuda_builds if build.wheels), key=lambda build: build.cuda or cuda)
    older = [build for build in builds if build.cuda and build.cuda <= cuda]
    return older[-1] if older else next(iter(builds), None)


def _exceptions(needs: Iterable[str], text: str) -> Row:
    return {"needs": sorted(needs), "text": text}
