"""The manifest: what was cut, from what and for which GPUs; the same input gives the same bytes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from torchtailor.core.documents import Bytes, document, plain
from torchtailor.core.errors import BadInputError
from torchtailor.core.version import __version__
from torchtailor.surgery.cut import Cut
from torchtailor.surgery.cut_document import CutDocument
from torchtailor.surgery.result import CodeTally, LibraryResult, LibraryStatus
from torchtailor.tailoring.caches import BakedCaches
from torchtailor.tailoring.gpu_stand_ins import GpuStandIn
from torchtailor.tailoring.module_index import ModuleIndex
from torchtailor.tailoring.moved_paths import MovedPath
from torchtailor.trees.artifact.drops import DroppedFile

SCHEMA = 1
PlannedSha256 = Annotated[str | None, Meta(description="hexadecimal; null in a dry run")]


def manifest(
    options: Cut,
    source: Mapping[str, Any],
    output: Mapping[str, Any],
    libraries: Iterable[LibraryResult],
    dropped: Iterable[DroppedFile] = (),
    moved: Iterable[MovedPath] = (),
    *,
    label: str = "",
    stand_ins: Sequence[GpuStandIn] = (),
    changed_requirements: Mapping[str, str | None] | None = None,
    indexes: Iterable[ModuleIndex] = (),
    caches: Iterable[BakedCaches] = (),
) -> bytes:
    """The JSON text of a manifest; `label` is that of the version, where it is not the label of the options."""
    settings = options.document
    if label:
        settings = msgspec.structs.replace(settings, target=msgspec.structs.replace(settings.target, label=label))
    more = added_json(
        map(stand_in_json, stand_ins), changed_requirements or {}, map(plain, indexes), map(plain, caches)
    )
    rows = map(library_json, libraries)
    return _encode({**plain(settings), **more}, source, output, rows, map(plain, dropped), moved)


def environment_manifest(
    options: CutDocument,
    name: str,
    version: str,
    libraries: Iterable[Mapping[str, Any]],
    dropped: Iterable[Mapping[str, Any]],
    more: Mapping[str, Any],
    moved: Iterable[MovedPath] = (),
) -> bytes:
    """The manifest of an installed distribution, from the rows of its journal; `more` is that of `added_json`."""
    source = {"kind": "environment", "name": name, "version": version}
    return _encode({**plain(options), **more}, source, {}, libraries, dropped, moved)


def _encode(
    options: Mapping[str, Any],
    source: Mapping[str, Any],
    output: Mapping[str, Any],
    libraries: Iterable[Mapping[str, Any]],
    dropped: Iterable[Mapping[str, Any]],
    moved: Iterable[MovedPath],
) -> bytes:
    """No times and no paths of this machine, so that manifests can be compared."""
    rows = sorted(libraries, key=lambda library: str(library["path"]))
    left_out = sorted(dropped, key=lambda file: str(file["path"]))
    elsewhere = sorted(map(plain, moved), key=lambda one: str(one["path"]))
    whole = {
        "schema": SCHEMA,
        "tool": {"name": "torchtailor", "version": __version__},
        **options,
        "input": dict(source),
        "output": dict(output),
        "libraries": rows,
        **({"dropped_files": left_out} if left_out else {}),
        **({"moved_files": elsewhere} if elsewhere else {}),
        "totals": {
            "libraries": len(rows),
            "size_before": sum(row["size_before"] for row in rows),
            "size_after": sum(row["size_after"] for row in rows),
        },
    }
    return (json.dumps(whole, indent=2, sort_keys=True) + "\n").encode()


class LibraryPack(Struct):
    """The pack that code of a library went to."""

    name: str
    size: Bytes
    sha256: str


class RecompressedDocument(Struct):
    """Images that are stored smaller, and their bytes."""

    images: int
    before: int
    after: int
    level: int


class PagesDocument(Struct):
    """A library that was cut to the pages that a program touched."""

    hot: Annotated[Bytes, Meta(description="bytes of code and read-only data in the file")]
    cold: Annotated[Bytes, Meta(description="those that are in the pack alone")]
    runs: Annotated[int, Meta(description="pieces that the file has of it")]
    data: Annotated[bool, Meta(description="true: read-only data was cut, too; it does not start without its pack")]


class LibraryDocument(Struct):
    """A library; what was not read has a reason, what was changed has hashes."""

    path: str
    status: LibraryStatus
    size_before: Bytes
    size_after: Bytes
    reason: str | UnsetType = UNSET
    gpu_before: Bytes | UnsetType = UNSET
    gpu_after: Bytes | UnsetType = UNSET
    warnings: tuple[str, ...] | UnsetType = UNSET
    foreign: Annotated[str, Meta(description="the platform of its GPU code: ROCm, Intel XPU")] | UnsetType = UNSET
    sha256_before: PlannedSha256 | UnsetType = UNSET
    sha256_after: PlannedSha256 | UnsetType = UNSET
    instructions_sha256: Annotated[str | None, Meta(description="of its machine code")] | UnsetType = UNSET
    kept: Annotated[Mapping[str, CodeTally], Meta(description="by architecture")] | UnsetType = UNSET
    dropped: Annotated[Mapping[str, CodeTally], Meta(description="by architecture")] | UnsetType = UNSET
    stripped: tuple[str, ...] | UnsetType = UNSET
    moved: Annotated[Mapping[str, CodeTally], Meta(description="to a pack, by architecture")] | UnsetType = UNSET
    packed: (
        Annotated[Mapping[str, CodeTally], Meta(description="of what a split moved, for the targets")] | UnsetType
    ) = UNSET
    pack: LibraryPack | UnsetType = UNSET
    pages: Annotated[PagesDocument, Meta(description="of a cut to touched pages")] | UnsetType = UNSET
    filler: Annotated[int, Meta(description="bytes that patchelf had left, and that went")] | UnsetType = UNSET
    zeroed: Annotated[int, Meta(description="bytes of removed code that stay as zeros")] | UnsetType = UNSET
    relr: Annotated[int, Meta(description="bytes saved by packed relocations")] | UnsetType = UNSET
    recompressed: RecompressedDocument | UnsetType = UNSET
    not_packed: Annotated[str, Meta(description="why --relr packed nothing of it")] | UnsetType = UNSET
    only_ptx: (
        Annotated[tuple[str, ...], Meta(description="the GPUs that have no machine code in it and use its PTX")]
        | UnsetType
    ) = UNSET
    could_save: Annotated[int, Meta(description="bytes that --nvidia would save")] | UnsetType = UNSET
    could_strip: Annotated[int, Meta(description="bytes that --strip would save")] | UnsetType = UNSET


def library_document(library: LibraryResult) -> LibraryDocument:
    """What manifests and documents say of a library."""
    said = LibraryDocument(library.path, library.status, library.size_before, library.size_after)
    if library.reason:
        said.reason = library.reason
        return said
    said.gpu_before, said.gpu_after, said.warnings = library.gpu_before, library.gpu_after, library.warnings
    said.only_ptx, said.not_packed = library.only_ptx or UNSET, library.not_packed or UNSET
    said.foreign = library.foreign or UNSET
    said.could_save, said.could_strip = library.could_save or UNSET, library.could_strip or UNSET
    if not library.status.changed:
        return said
    said.sha256_before, said.sha256_after = library.sha256_in or None, library.sha256_out or None
    said.instructions_sha256 = library.instructions_sha256 or None
    said.kept, said.dropped, said.stripped = library.kept, library.dropped, library.stripped
    if library.moved or library.pages:
        said.moved, said.packed = library.moved or UNSET, library.packed or UNSET
        said.pages = document(PagesDocument, library.pages) if library.pages else UNSET
        said.pack = LibraryPack(library.pack, library.pack_size, library.pack_sha256) if library.pack else UNSET
    said.filler, said.zeroed, said.relr = library.filler or UNSET, library.zeroed or UNSET, library.relr or UNSET
    said.recompressed = document(RecompressedDocument, library.recompressed) if library.recompressed else UNSET
    return said


class StandInDocument(Struct):
    """A library in the place of one of NVIDIA's, with --gpu none."""

    path: str
    symbols: int
    size: Bytes
    sha256: str


def added_json(
    stand_ins: Iterable[Mapping[str, Any]],
    changed_requirements: Mapping[str, str | None],
    indexes: Iterable[Mapping[str, Any]] = (),
    caches: Iterable[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """What replaces the packages that are for a GPU only, what is left of the requirements of them, indexes of
    modules, and compile caches."""
    said = {
        "stand_ins": list(stand_ins),
        "changed_requirements": dict(changed_requirements),
        "module_indexes": list(indexes),
        "baked_caches": list(caches),
    }
    return {name: value for name, value in said.items() if value}


def stand_in_json(stand_in: GpuStandIn) -> dict[str, Any]:
    """One stand-in of a manifest or journal."""
    row: dict[str, Any] = plain(document(StandInDocument, stand_in))
    return row


def library_json(library: LibraryResult) -> dict[str, Any]:
    """One library of a manifest or journal."""
    row: dict[str, Any] = plain(library_document(library))
    return row


def label_of(data: bytes) -> str:
    """The version label an earlier cut gave, from its manifest."""
    try:
        label = json.loads(data)["target"]["label"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadInputError("torchtailor.json is not a torchtailor manifest.", "Fetch the wheel again.") from error
    return str(label)
