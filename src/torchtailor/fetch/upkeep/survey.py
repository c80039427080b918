"""What the configured indexes and PyTorch's own list of torch: versions, builds, Pythons and platforms."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from packaging.tags import Tag

from torchtailor.catalog import Catalog, Dotted
from torchtailor.catalog.schema import python_key
from torchtailor.core.errors import NetworkError
from torchtailor.fetch.finder import Finder
from torchtailor.fetch.locations import IndexLocation, LocationKind
from torchtailor.fetch.pages import WheelFile

_INTERPRETER = re.compile(r"cp(\d)(\d+)")
_PLATFORM = re.compile(r"(?:manylinux\w*|linux)_(x86_64|aarch64)")
_LABEL = re.compile(r"cpu|cu\d{3}")
_MINORS_AHEAD = 2  # of CUDA, for whose builds PyTorch's own indexes are tried though the catalog does not know them


@dataclass(frozen=True)
class ListedBuild:
    """The wheels of one torch version for one platform; `local` is empty on the default index."""

    version: Dotted
    arch: str
    local: str
    files: tuple[tuple[str, WheelFile], ...]  # a Python and its wheel

    @property
    def pythons(self) -> tuple[str, ...]:
        return tuple(python for python, _ in self.files)

    @property
    def newest(self) -> tuple[str, WheelFile]:
        """The wheel that stands for all: that of the newest Python with a GIL."""
        return next((pair for pair in reversed(self.files) if not pair[0].endswith("t")), self.files[-1])


@dataclass(frozen=True)
class Survey:
    """All that is listed, the locations that were read, and those that could not be."""

    builds: tuple[ListedBuild, ...]
    locations: tuple[str, ...]
    problems: tuple[str, ...]
    complete: bool  # whether every configured location was read; PyTorch's own indexes are extras

    @cached_property
    def newest_by_line(self) -> dict[tuple[int, ...], Dotted]:
        """The newest version of each line: 2.15 -> 2.15.1."""
        newest: dict[tuple[int, ...], Dotted] = {}
        for build in self.builds:
            line = build.version.parts[:2]
            newest[line] = max(newest.get(line, build.version), build.version)
        return newest

    def line(self, line: tuple[int, ...]) -> tuple[ListedBuild, ...]:
        """All builds of a line's releases."""
        return tuple(build for build in self.builds if build.version.parts[:2] == line)

    def of(self, version: Dotted) -> tuple[ListedBuild, ...]:
        return tuple(build for build in self.builds if build.version == version)


def survey(finder: Finder, catalog: Catalog) -> Survey:
    """Look at all locations; one that cannot be used is reported, and the others are still read."""
    found: dict[tuple[Dotted, str, str], dict[str, WheelFile]] = {}
    read: list[str] = []
    problems: dict[str, None] = {}
    complete = True
    for source in (*finder.settings.sources, *_own_indexes(finder, catalog)):
        try:
            listed = finder.list(source, "torch")
        except NetworkError as error:
            problems[error.message] = None
            complete = complete and source not in finder.settings.sources
            continue
        if listed:
            read.append(f"{source.shown} ({source.origin})")
        for file in listed:
            for version, arch, local, python in _facts_of_name(file):
                found.setdefault((version, arch, local), {}).setdefault(python, file)
    builds = [
        ListedBuild(version, arch, local, tuple(sorted(files.items(), key=lambda pair: python_key(pair[0]))))
        for (version, arch, local), files in found.items()
    ]
    builds.sort(key=lambda build: (build.version, build.local, build.arch != "x86_64"))
    if not builds:
        raise NetworkError(
            f"No index lists a wheel of torch for Linux: {' '.join(problems) or 'they are empty.'}",
            "Check pip's and uv's settings, or give an index with --index-url.",
        )
    return Survey(tuple(builds), tuple(read), tuple(problems), complete)


def _own_indexes(finder: Finder, catalog: Catalog) -> Iterator[IndexLocation]:
    """PyTorch's index of each build, as `build` uses them: not with --index-url or --offline."""
    if finder.settings.explicit_index or finder.settings.offline or not catalog.wheel_index:
        return
    newest = max(catalog.toolkits)
    used = {build.cuda for release in catalog.releases.values() for build in release.cuda_builds if build.cuda}
    lines = {line for line in catalog.toolkits if line >= min(used, default=newest)}
    ahead = {Dotted(f"{newest.major}.{newest.parts[1] + step}") for step in range(1, _MINORS_AHEAD + 1)}
    labels = ["cpu", *("cu" + "".join(map(str, line.parts[:2])) for line in sorted(lines | ahead))]
    for label in labels:
        url = catalog.wheel_index.format(label=label)
        yield IndexLocation(url, LocationKind.INDEX, f"PyTorch's index for {label}")


def _facts_of_name(file: WheelFile) -> Iterator[tuple[Dotted, str, str, str]]:
    """Version, platform, build label and Python of an official wheel for Linux; nothing for any other."""
    _, version, _, tags = file.parsed
    if file.yanked or version.is_prerelease or version.is_postrelease or version.is_devrelease or version.epoch:
        return
    if not re.fullmatch(Dotted.pattern, version.public):
        return
    local = version.local or ""
    if local and not _LABEL.fullmatch(local):
        return
    for python, arch in sorted({pair for tag in tags if (pair := _place(tag))}):
        yield Dotted(version.public), arch, local, python


def _place(tag: Tag) -> tuple[str, str] | None:
    interpreter, platform = _INTERPRETER.fullmatch(tag.interpreter), _PLATFORM.fullmatch(tag.platform)
    if not interpreter or not platform or tag.abi not in (tag.interpreter, f"{tag.interpreter}t"):
        return None
    return f"{interpreter[1]}.{interpreter[2]}{'t' if tag.abi.endswith('t') else ''}", platform[1]
