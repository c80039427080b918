"""The Python packages of an image: whose a library is, and RECORDs that say what the layers hold after a cut."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from torchtailor.errors import BadInputError
from torchtailor.format import printable
from torchtailor.images.filesystem import Content, LayerFile
from torchtailor.images.survey import ImageSurvey, PackageText
from torchtailor.surgery.result import LibraryResult
from torchtailor.wheels.metadata import Metadata
from torchtailor.wheels.record import FileHash, Record, RecordRow, UnusualRecordError


@dataclass
class Packages:
    """All RECORDs of an image; each is true of the image whose last layer is its own."""

    survey: ImageSurvey
    owners: dict[str, list[Metadata]] = field(default_factory=dict)  # by path of a library or file of GPU code
    notes: list[str] = field(default_factory=list)
    _named: dict[str, list[LayerFile]] = field(default_factory=dict)
    _unreadable: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        for files in self.survey.names().values():
            for file in files:
                self._named.setdefault(file.path, []).append(file)
        for text in self.survey.records:
            package = self.survey.metadata.get(text.dist_info)
            record = self._parse(text)
            if record is None or package is None:
                continue
            for path, _ in self._rows(text, record):
                if path in self._named or path in self.survey.code:
                    self.owners.setdefault(path, []).append(package)

    def of(self, files: Iterable[LayerFile]) -> list[Metadata | None]:
        """The packages that list a library under any of its names; [None] where none does."""
        found = {package.name: package for file in files for package in self.owners.get(file.path, ())}
        return list(found.values()) or [None]

    def updated(
        self, layer: int, results: Mapping[Content, LibraryResult], gone: frozenset[str]
    ) -> Iterator[tuple[int, bytes]]:
        """The RECORDs of a layer that change, by the number of their member."""
        for text in self.survey.records:
            if text.file.layer != layer:
                continue
            record = self._parse(text)
            changes: dict[str, RecordRow | None] = {}
            for path, row in self._rows(text, record) if record else ():
                if path in gone:
                    changes[row.path] = None
                    continue
                file = next((one for one in self._named.get(path, ()) if one.seen_after(layer)), None)
                result = results.get(file.content) if file else None
                if result and result.status.changed:
                    changes[row.path] = RecordRow(row.path, FileHash.from_hex(result.sha256_out), result.size_after)
            if record and changes:
                yield text.file.number, record.updated(changes).encode()

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
