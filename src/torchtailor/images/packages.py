"""The Python packages of an image: whose a library is, and RECORDs that say what the layers hold after a cut."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from torchtailor.artifact.drops import DroppedFile
from torchtailor.artifact.sites import installed_path
from torchtailor.documents import plain
from torchtailor.errors import BadInputError
from torchtailor.format import counted, printable
from torchtailor.images.filesystem import Content, LayerFile
from torchtailor.images.survey import ImageSurvey, PackageText
from torchtailor.surgery.options import TailorOptions
from torchtailor.surgery.result import LibraryResult
from torchtailor.tailoring.manifest import environment_manifest, library_json
from torchtailor.wheels.distribution import MANIFEST
from torchtailor.wheels.metadata import Metadata
from torchtailor.wheels.record import FileHash, Record, RecordRow, UnusualRecordError

_NAMED = 5  # Debian packages that a note lists


@dataclass(frozen=True, slots=True)
class RecordUpdate:
    """A RECORD that changes, and the manifest that says what was done to its package."""

    number: int  # of RECORD's member
    record: bytes
    manifest_path: str
    manifest: bytes  # empty where nothing is known of the package but its RECORD


@dataclass
class Packages:
    """All RECORDs of an image; each is true of the image whose last layer is its own."""

    survey: ImageSurvey
    notes: list[str] = field(default_factory=list)
    _named: dict[str, list[LayerFile]] = field(default_factory=dict)
    _unreadable: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        for files in self.survey.names().values():
            for file in files:
                self._named.setdefault(file.path, []).append(file)

    @cached_property
    def owners(self) -> dict[str, list[Metadata]]:
        """The packages that list a path of a library or of a file of GPU code, in any layer."""
        found: dict[str, list[Metadata]] = {}
        for text in self.survey.records:
            package = self.survey.package(text.dist_info)
            record = self._parse(text)
            if record is None or package is None:
                continue
            for path, _ in self._rows(text, record):
                if path in self._named or path in self.survey.code:
                    found.setdefault(path, []).append(package)
        return found

    def lists_library(self, texts: Iterable[PackageText]) -> bool:
        """Whether one of these RECORDs may have to change, or cannot be read."""
        records = [(text, self._parse(text)) for text in texts]
        return any(
            record is None or any(path in self._named for path, _ in self._rows(text, record))
            for text, record in records
        )

    def of(self, files: Iterable[LayerFile]) -> list[Metadata | None]:
        """The packages that list a library under any of its names; [None] where none does."""
        found = {package.name: package for file in files for package in self.owners.get(file.path, ())}
        return list(found.values()) or [None]

    def updated(
        self,
        layer: int,
        results: Mapping[Content, LibraryResult],
        gone: Mapping[str, DroppedFile],
        options: TailorOptions,
    ) -> Iterator[RecordUpdate]:
        """The RECORDs of a layer that change, and what is written beside each."""
        for text in self.survey.records:
            if text.file.layer != layer:
                continue
            record = self._parse(text)
            changes: dict[str, RecordRow | None] = {}
            libraries: list[dict[str, Any]] = []
            dropped: list[dict[str, Any]] = []
            for path, row in self._rows(text, record) if record else ():
                if path in gone:
                    changes[row.path] = None
                    dropped.append({**plain(gone[path]), "path": installed_path(path)})
                    continue
                file = next((one for one in self._named.get(path, ()) if one.seen_after(layer)), None)
                result = results.get(file.content) if file else None
                if result:
                    libraries.append({**library_json(result), "path": installed_path(path)})
                if result and result.status.changed:
                    changes[row.path] = RecordRow(row.path, FileHash.from_hex(result.sha256_out), result.size_after)
            if record is None or not changes:
                continue
            said = b""
            if package := self.survey.package(text.dist_info):
                said = environment_manifest(options.to_json(), package.name, package.version, libraries, dropped)
                own = f"{text.dist_info.rpartition('/')[2]}/{MANIFEST}"
                changes[own] = RecordRow(own, FileHash.of(said), len(said))
            yield RecordUpdate(text.file.number, record.updated(changes).encode(), f"{text.dist_info}/{MANIFEST}", said)

    def debian_note(self, paths: Iterable[str]) -> Iterator[str]:
        """Says which Debian packages no longer have the files that their lists of sums are of."""
        debian = self.survey.debian
        found = {debian.get(path) or debian.get(path.removeprefix("usr/")) for path in paths}
        names = sorted(filter(None, found))
        if names:
            shown = ", ".join(names[:_NAMED]) + (", ..." if len(names) > _NAMED else "")
            yield (
                f"dpkg --verify and debsums will name files of {counted(len(names), 'Debian package')} ({shown}): "
                "their sums say what Debian distributes, and stay."
            )

    def _parse(self, text: PackageText) -> Record | None:
        try:
            return Record.parse(text.stored.read_bytes())
        except BadInputError as error:
            key = id(text)
            if key not in self._unreadable:
                self._unreadable.add(key)
                name = printable(text.dist_info.rpartition("/")[2].removesuffix(".dist-info"))
                why = error.message.rstrip(".")
                unusual = "is in a form of its own" if isinstance(error, UnusualRecordError) else "is damaged"
                self.notes.append(f"The RECORD of {name} {unusual} and stays as it is: {why}.")
            return None

    def _rows(self, text: PackageText, record: Record) -> Iterator[tuple[str, RecordRow]]:
        """The rows with their paths from the root of the image; links on the way are followed where they must be."""
        for row in record:
            path = os.path.normpath(f"{text.site}/{row.path}").lstrip("/")
            if path.startswith(".."):
                continue
            if path not in self._named and "../" in row.path:
                path = self.survey.view.resolve(path)
            yield path, row
