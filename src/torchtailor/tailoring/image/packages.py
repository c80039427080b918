"""The Python packages of an image: whose a library is, and RECORDs that say what the layers hold after a cut."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from torchtailor.code.gpucode.files import CodeFile
from torchtailor.core.documents import plain
from torchtailor.core.errors import BadInputError
from torchtailor.core.format import counted, printable
from torchtailor.oci.filesystem import Content, LayerFile
from torchtailor.surgery.cut import Cut
from torchtailor.surgery.result import LibraryResult
from torchtailor.tailoring.caches import MadeCaches
from torchtailor.tailoring.gpu_stand_ins import AskingLibrary, GpuStandIn
from torchtailor.tailoring.image.survey import ImageSurvey, PackageText
from torchtailor.tailoring.manifest import added_json, environment_manifest, library_json, stand_in_json
from torchtailor.tailoring.module_index import MadeIndex
from torchtailor.tailoring.tree import FileState, Gone, NewFile, Package, changed_rows, new_rows, reinstalling
from torchtailor.tailoring.without_gpu import WithoutGpu
from torchtailor.trees.artifact.drops import DroppedFile
from torchtailor.trees.artifact.libraries import SharedFile, is_shared_name
from torchtailor.trees.artifact.sites import installed_path
from torchtailor.trees.wheels.distribution import MANIFEST
from torchtailor.trees.wheels.record import Record, RecordRow, UnusualRecordError
from torchtailor.workload.pack import PACK_FOLDER

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
    """All RECORDs of an image, and what they say of its files."""

    survey: ImageSurvey
    notes: list[str] = field(default_factory=list)
    _named: dict[str, list[LayerFile]] = field(default_factory=dict)
    _unreadable: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        files = (file for names in self.survey.names().values() for file in names)
        for file in sorted(files, key=lambda file: (file.layer, file.number)):
            self._named.setdefault(file.path, []).append(file)

    @cached_property
    def owners(self) -> dict[str, list[Package]]:
        """The packages that list a path, in any layer; first the one that brings others along."""
        listed: dict[str, list[Package]] = {}
        for text in sorted(self.survey.records, key=lambda text: text.dist_info.count("/")):
            package = self._package(text)
            record = self._parse(text)
            if record is None or package is None:
                continue
            for path, _ in self._rows(text, record):
                listed.setdefault(path, []).append(package)
        return listed

    def _package(self, text: PackageText) -> Package | None:
        metadata = self.survey.package(text.dist_info)
        return Package(metadata, text.dist_info) if metadata else None

    @cached_property
    def sizes(self) -> dict[str, int]:
        return {file.path: file.size for file in self.survey.view.files}

    def packages(self, path: str) -> Sequence[Package]:
        return self.owners.get(path, ())

    def code(self, path: str) -> CodeFile | None:
        return self.survey.code.get(path)

    def head(self, path: str) -> bytes:
        return self.survey.heads.get(path, b"")

    def shared(self, path: str) -> SharedFile:
        file = self.survey.view.at(path)
        return (self.survey.shared.get(file.content) if file else None) or SharedFile(None, is_module=False)

    @property
    def gives_sources(self) -> bool:
        return self.survey.packs_unopened

    def source(self, path: str) -> bytes:
        file = self.survey.view.at(path)
        assert file is not None
        return self.survey.source(file)

    def is_plain(self, path: str) -> bool:
        return self.survey.view.at(path) is not None and self.survey.view.resolve(path) == path

    def changed_at(self, folder: str) -> int | None:
        return None

    def installed(self, path: str) -> str:
        return path

    def loose_packs(self, path: str) -> str:
        """Beside the library: links on the way to it may lead anywhere."""
        return f"{posixpath.dirname(path)}/{PACK_FOLDER}"

    def brings_back(self, path: str) -> str:
        return reinstalling(self, path) or "the stock image"

    def lists_library(self, texts: Iterable[PackageText]) -> bool:
        """Whether one of these RECORDs may have to change, also for a library of a later layer, or cannot be read."""
        records = [(text, self._parse(text)) for text in texts]
        return any(
            record is None
            or any(
                path in self._named or (is_shared_name(path) and self.survey.view.at(path) is None)
                for path, _ in self._rows(text, record)
            )
            for text, record in records
        )

    def later_layers(self, layer: int, left_out: Collection[Content]) -> set[int]:
        """The later layers that hold libraries which the RECORDs of a layer list."""
        return {
            file.content[0]
            for text in self.of_layer(layer, left_out)
            for path, _ in self._rows(text, self._parse(text) or Record(()))
            if (file := self._in_effect(path, layer, left_out)) and file.content[0] > layer
        }

    def of_layer(self, layer: int, left_out: Collection[Content]) -> Iterator[PackageText]:
        for text in self.survey.records:
            if text.file.layer == layer and (layer, text.file.number) not in left_out:
                yield text

    def _in_effect(self, path: str, layer: int, left_out: Collection[Content]) -> LayerFile | None:
        """The library that a row of a RECORD in this layer is of: the one that is seen there, or, where that is left
        out or only comes later, the first of a later layer."""
        for file in self._named.get(path, ()):
            replaced = file.hidden_by is not None and file.hidden_by <= layer
            if not replaced and (file.layer, file.number) not in left_out:
                return file
        return None

    def updated(
        self,
        layer: int,
        results: Mapping[Content, LibraryResult],
        added: Mapping[Content, Sequence[NewFile]],
        gone: Mapping[str, DroppedFile],
        standing_in: Mapping[str, NewFile],
        left_out: Collection[Content],
        options: Cut,
        without: WithoutGpu,
        modules: Sequence[NewFile],
        indexes: Sequence[MadeIndex],
        baked: Sequence[MadeCaches],
    ) -> Iterator[RecordUpdate]:
        """The RECORDs of a layer that change, and what is written beside each; those of packages inside of others come
        first, as these list them."""
        records: dict[str, FileState] = {}
        for text in sorted(self.of_layer(layer, left_out), key=lambda text: -text.dist_info.count("/")):
            record = self._parse(text)
            rows = list(self._rows(text, record)) if record else []
            contents = {
                path: file.content
                for path, _ in rows
                if path not in gone and (file := self._in_effect(path, layer, left_out)) and file.content in results
            }
            found = {path: results[content] for path, content in contents.items()}
            now: dict[str, FileState | Gone] = {path: Gone.GONE for path, _ in rows if path in gone}
            now |= {
                path: FileState(one.sha256_out, one.size_after) for path, one in found.items() if one.status.changed
            }
            new = self.new_metadata(text, without)
            now |= {f"{text.dist_info}/METADATA": FileState.of_bytes(new)} if new else {}
            now |= {path: records[path] for path, _ in rows if path in records}
            changes = changed_rows(rows, now.get)
            own_for_gpus = [stand_in for stand_in in without.stand_ins if self.is_of(stand_in, text)]
            own_modules = [module for module in modules if self.is_of(module, text)]
            if record is None or not (changes or own_for_gpus or own_modules):
                continue
            libraries = [{**library_json(one), "path": installed_path(path)} for path, one in found.items()]
            dropped = [{**plain(gone[path]), "path": installed_path(path)} for path, _ in rows if path in gone]
            said = b""
            if package := self._package(text):
                beside = [file for content in contents.values() for file in added.get(content, ())]
                instead = (standing_in[path] for path in now if path in standing_in)
                changes |= new_rows([*beside, *instead, *own_modules, *(gpu.file for gpu in own_for_gpus)], package)
                required = without.requirements.get(text.dist_info, {})
                own_indexes = [plain(made.index) for made in indexes if made.files[0] in own_modules]
                own_caches = [plain(made.caches) for made in baked if made.files[0] in own_modules]
                more = added_json(map(stand_in_json, own_for_gpus), required, own_indexes, own_caches)
                name, version = package.metadata.name, package.metadata.version
                said = environment_manifest(options.document, name, version, libraries, dropped, more)
                own = f"{text.dist_info.rpartition('/')[2]}/{MANIFEST}"
                changes[own] = FileState.of_bytes(said).row(own)
            data = record.updated(changes).encode()
            records[text.file.path] = FileState.of_bytes(data)
            yield RecordUpdate(text.file.number, data, f"{text.dist_info}/{MANIFEST}", said)

    def new_metadata(self, text: PackageText, without: WithoutGpu) -> bytes:
        """METADATA beside a RECORD as it is without a GPU; empty where it stays."""
        file = self.survey.view.at(f"{text.dist_info}/METADATA")
        if file is None or file.layer != text.file.layer or text.dist_info not in without.requirements:
            return b""
        return without.metadata(text.dist_info, self.survey.texts[file.content])

    def is_of(self, new: GpuStandIn | NewFile, text: PackageText) -> bool:
        """Whether it belongs to the package of this RECORD, which is the one that is seen in the end."""
        owner = new.package.dist_info if new.package else ""
        return owner == text.dist_info and text.file.hidden_by is None

    def asking(self, path: str) -> AskingLibrary | None:
        file = self.survey.view.at(path)
        return self.survey.asking.get(file.content) if file else None

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
