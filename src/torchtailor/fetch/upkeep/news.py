"""What the indexes list and the catalog does not know."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from torchtailor.catalog import Catalog, Dotted, Release
from torchtailor.catalog.schema import python_key
from torchtailor.fetch.upkeep.facts import TorchFacts
from torchtailor.fetch.upkeep.survey import ListedBuild, Survey

if TYPE_CHECKING:
    from torchtailor.fetch.upkeep.measure import Measured


class NewsKind(Enum):
    """What is new."""

    RELEASE = "release"
    PATCH = "patch release"
    BUILD = "build"
    PLATFORM = "platform"
    PYTHON = "Python"
    CUDA = "CUDA"
    PACKAGE = "package"


@dataclass(frozen=True, slots=True)
class News:
    """One thing that is new, in words, and where it was seen."""

    kind: NewsKind
    release: str
    text: str
    source: str


@dataclass(frozen=True)
class ReadBuild:
    """A listed build with what its wheel says, and what was measured in it."""

    listed: ListedBuild
    facts: TorchFacts
    measured: Measured | None = None

    @property
    def source(self) -> str:
        return self.facts.wheel


@dataclass(frozen=True)
class NewLine:
    """What is new of one line of releases (2.16): its version, and the builds whose wheels have to be read."""

    version: Dotted
    known: Release | None  # the catalog's release of this line
    neighbour: Release  # whose facts count where they were not read: its own, or those of the next line that is known
    pythons: tuple[str, ...]  # those that the catalog does not list
    builds: tuple[ListedBuild, ...]
    earlier: tuple[ListedBuild, ...] = ()  # older patch releases, where the line itself is new

    @property
    def name(self) -> str:
        return self.known.name if self.known else ".".join(str(part) for part in self.version.parts[:2])

    @property
    def is_patch(self) -> bool:
        return self.known is not None and self.known.version < self.version


def new_lines(listed: Survey, catalog: Catalog, since: Dotted | None = None) -> tuple[NewLine, ...]:
    """Every line of which there is something new; older ones that the catalog leaves out count from `since` on."""
    known: dict[tuple[int, ...], Release] = {}
    for release in catalog.releases.values():
        line = release.version.parts[:2]
        known[line] = max(known.get(line, release), release, key=lambda item: item.version)
    newest = max(known, default=())
    oldest = since.parts[:2] if since else newest
    lines = []
    for line, version in sorted(listed.newest_by_line.items()):
        before = known.get(line)
        if (before is None and line < min(newest, oldest)) or (before and version < before.version):
            continue
        builds = listed.of(version)
        every = {python for build in builds for python in build.pythons}
        if before and before.version == version:
            builds = tuple(build for build in builds if not _is_known(before, build))
        pythons = sorted(every - set(before.pythons if before else ()), key=python_key)
        earlier = () if before else tuple(build for build in listed.line(line) if build.version != version)
        if builds or pythons:
            neighbour = before or known[min((other for other in known if other > line), default=newest)]
            lines.append(NewLine(version, before, neighbour, tuple(pythons), builds, earlier))
    return tuple(lines)


def _is_known(release: Release, listed: ListedBuild) -> bool:
    """Whether the catalog has the contents of this build; one of the default index is known by its platform."""
    label = listed.local or release.default_index.get(listed.arch)
    if label == "cpu":
        return True  # it has no GPU code to know
    build = release.build(label) if label else None
    return build is not None and build.wheels and (build.cuda is None or listed.arch in build.architectures)


def describe(line: NewLine, read: tuple[ReadBuild, ...], catalog: Catalog) -> Iterator[News]:
    """One line of news in words."""
    wheels = next((build.source for build in read), "the index's page")
    if line.known is None:
        yield News(NewsKind.RELEASE, line.name, f"PyTorch {line.version}", wheels)
    elif line.is_patch:
        yield News(NewsKind.PATCH, line.name, f"PyTorch {line.version}, after {line.known.version}", wheels)
    for build in read:
        yield from _about_build(line, build, catalog)
    if line.known is not None and line.pythons:
        text = f"PyTorch {line.version} for Python {', '.join(line.pythons)}"
        yield News(NewsKind.PYTHON, line.name, text, "the index's page")
    before = line.neighbour
    if line.known is None or line.is_patch:
        for build in read[:1]:
            for name in ("cudnn", "nccl", "triton"):
                old, new = getattr(before, name), getattr(build.facts, name)
                if new and old != new:
                    when = "was" if before.version < line.version else "is"
                    text = f"{_PACKAGES[name]} {new}, {when} {old} in {before.version}"
                    yield News(NewsKind.PACKAGE, line.name, text, build.source)


_PACKAGES = {"cudnn": "cuDNN", "nccl": "NCCL", "triton": "Triton"}


def _about_build(line: NewLine, build: ReadBuild, catalog: Catalog) -> Iterator[News]:
    label, arch = build.facts.label, build.listed.arch
    known = line.known.build(label) if line.known else None
    kind = NewsKind.PLATFORM if known and known.wheels and not line.is_patch else NewsKind.BUILD
    contents = "architectures not measured (--measure reads them)"
    if build.facts.cuda is None:
        contents = "without CUDA"
    elif build.measured:
        contents = build.measured.arch_list or "no GPU code"
    text = f"{label} for {arch}, Python {', '.join(build.listed.pythons)}: {contents}"
    yield News(kind, line.name, text, build.source)
    if build.facts.cuda and build.facts.cuda not in catalog.toolkits:
        yield News(NewsKind.CUDA, line.name, f"CUDA {build.facts.cuda} has no [[cuda]] row", build.source)
