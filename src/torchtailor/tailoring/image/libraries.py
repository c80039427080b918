"""The libraries of an image: unpacked in batches, cut in processes, and whose they are."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from torchtailor.core.processes import run_all
from torchtailor.core.progress import Progress
from torchtailor.oci.compression import UnpackedLayer
from torchtailor.oci.filesystem import Content, LayerFile
from torchtailor.oci.imagespec import ImageManifest
from torchtailor.oci.tarstream import TarReader
from torchtailor.surgery.cut import Cut
from torchtailor.surgery.result import LibraryResult, LibraryStatus
from torchtailor.tailoring.image.packages import Packages
from torchtailor.tailoring.image.survey import FoundLibrary, ImageSurvey, store
from torchtailor.tailoring.libraries import LibraryJob
from torchtailor.tailoring.tree import NewFile, StripRule, is_refused
from torchtailor.workload.pack import PACK_SUFFIX

_BATCH = 2 << 30  # bytes of libraries that are unpacked at once

PackedPieces = Callable[[int], AbstractContextManager[Iterator[bytes]]]


@dataclass(frozen=True, kw_only=True)
class _CutJob(LibraryJob):
    """One library, unpacked."""

    candidate: FoundLibrary
    for_symbols: bool  # whether it changes for its symbol tables alone


@dataclass
class ImageLibraries:
    """All libraries of an image that may change, and what became of them."""

    where: str
    manifest: ImageManifest
    survey: ImageSurvey
    packages: Packages
    options: Cut
    strip: bool | None  # as it was asked for; the options have a default in its place
    packed: PackedPieces  # the bytes of a layer by its number, counted
    progress: Progress
    packs_apart: bool  # whether packs go to an artifact
    cold: Container[Content]  # libraries that go to the last layer, whole
    results: dict[Content, LibraryResult] = field(default_factory=dict)
    added: dict[Content, list[NewFile]] = field(default_factory=dict)  # what comes with those that changed
    apart: list[NewFile] = field(default_factory=list)  # their packs, which the image does not get

    @cached_property
    def names(self) -> dict[Content, list[LayerFile]]:
        return self.survey.names()

    def proprietary(self, content: Content) -> bool:
        return is_refused(self.packages, *self._paths(content))

    def _paths(self, content: Content) -> list[str]:
        return [file.path for file in self.names[content]]

    def cut(self, number: int, wanted: Sequence[FoundLibrary]) -> dict[FoundLibrary, Path]:
        """Cut the libraries of a layer; the new files of those that changed."""
        changed: dict[FoundLibrary, Path] = {}
        self._cut_some(number, [one for one in wanted if one.has_code], changed)
        self._cut_some(number, [one for one in wanted if not one.has_code and self._goes_along(one)], changed)
        return changed

    def _goes_along(self, library: FoundLibrary) -> bool:
        """Whether the symbol tables of a library without GPU code go: as asked for, or with the code of its package."""
        return self.strip is not False and self.stripped.goes_along(self.owners[library.content])

    @cached_property
    def stripped(self) -> StripRule:
        return StripRule(asked=self.strip)

    @cached_property
    def owners(self) -> dict[Content, frozenset[str]]:
        """The packages of each library, by name."""
        return {
            content: frozenset(package.metadata.name for file in files for package in self.packages.packages(file.path))
            for content, files in self.names.items()
        }

    def _cut_some(self, number: int, wanted: Sequence[FoundLibrary], changed: dict[FoundLibrary, Path]) -> None:
        for batch in self._batches(number, wanted):
            jobs = [self._job(candidate, path) for candidate, path in batch]
            self.progress.begin(f"Cutting layer {number + 1}", sum(job.size for job in jobs))
            for job, result in run_all(_cut_one, jobs, processes=self.options.workers):
                self.progress.advance(job.size)
                self.results[job.candidate.content] = result
                self.stripped.note(self.owners[job.candidate.content], result)
                if result.status.changed:
                    changed[job.candidate] = job.target
                    if not self.options.dry_run:
                        new = job.added(self.packages, result)
                        apart = [file for file in new if self.packs_apart and file.path.endswith(PACK_SUFFIX)]
                        self.added[job.candidate.content] = [file for file in new if file not in apart]
                        self.apart += apart

    def _batches(self, number: int, wanted: Sequence[FoundLibrary]) -> Iterator[list[tuple[FoundLibrary, Path]]]:
        if kept := [(one, one.kept) for one in wanted if one.kept]:
            yield kept
        missing = {one.file.number: one for one in wanted if one.kept is None}
        batch: list[tuple[FoundLibrary, Path]] = []
        if not missing:
            return
        layer = self.manifest.layers[number]
        self.progress.begin(f"Reading layer {number + 1} again", layer.size)
        with self.packed(number) as pieces:
            reader = TarReader(UnpackedLayer(pieces, layer.size, self.where), self.where)
            for member in reader:
                if one := missing.pop(member.number, None):
                    place = self.survey.place(one.file)
                    store(place, reader.data(), one.file)
                    batch.append((one, place))
                    if sum(found.file.size for found, _ in batch) > _BATCH:
                        yield batch
                        batch = []
                if not missing:
                    break
        if batch:
            yield batch

    def _job(self, candidate: FoundLibrary, path: Path) -> _CutJob:
        return _CutJob.of(
            self.packages,
            candidate.file.path,
            candidate.file.size,
            path,
            path.with_name("cut"),
            self.options.without_workload if candidate.content in self.cold else self.options,
            names=self._paths(candidate.content),
            candidate=candidate,
            for_symbols=self.strip is True or not candidate.has_code,
        )


def _cut_one(job: _CutJob) -> LibraryResult:
    result = job.cut()
    job.source.unlink(missing_ok=True)
    if result.status is LibraryStatus.STRIPPED and not job.for_symbols:
        job.target.unlink(missing_ok=True)
        result = result.with_symbols()
    return result
