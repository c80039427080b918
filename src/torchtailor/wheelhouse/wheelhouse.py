"""The wheelhouse of a variant: wheels, a static index, a manifest; written beside its place and swapped into it.

    dist/VARIANT/wheels/*.whl, *.whl.metadata     hard links to the cache where the disk allows it, else copies
    dist/VARIANT/simple/...                       the index for pip and uv
    dist/VARIANT/manifest.json                    every input with its hash, every step, every size

No times and no paths of this machine are in it: the same input and version give the same bytes.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType
from packaging.version import Version

from torchtailor.core.disk import new_folder, place_verified
from torchtailor.core.documents import plain
from torchtailor.core.errors import BadInputError
from torchtailor.core.trust import (
    FileName,
    Gpus,
    Label,
    Limit,
    PinnedRequirement,
    Sha256,
    Size,
    WebAddress,
    decode_json,
    read_limited,
)
from torchtailor.core.version import __version__
from torchtailor.fetch.metadata import read_local
from torchtailor.fetch.target import Target
from torchtailor.tailoring.places import manifest_entry, refusal
from torchtailor.trees.index.pages import METADATA_SUFFIX, IndexedFile, index_pages, indexed
from torchtailor.wheelhouse.entry import WheelhouseDescription, WheelhouseEntry, WheelStep

MANIFEST_NAME = "manifest.json"
WHEELS = "wheels"
SIMPLE = "simple"
SCHEMA = 1


@dataclass(frozen=True)
class Wheelhouse:
    """A finished wheelhouse."""

    variant: str
    path: Path
    torch_version: str
    requirements: tuple[str, ...]
    target: Target
    input_bytes: int
    output_bytes: int
    changed: int
    wheels: int

    @property
    def index_url(self) -> str:
        return (self.path / SIMPLE).absolute().as_uri()

    @property
    def pip_line(self) -> str:
        return f"pip install --index-url {self.index_url} {shlex.join(self.requirements)}"

    @property
    def uv_line(self) -> str:
        return f"uv pip install --default-index {self.index_url} {shlex.join(self.requirements)}"


class WheelhouseDocument(msgspec.Struct):
    """A folder that pip and uv install from."""

    variant: str
    path: Path
    torch_version: str = msgspec.field(name="torch")
    index_url: str
    pip_line: Annotated[str, Meta(description="the command that installs it")] = msgspec.field(name="pip")
    uv_line: Annotated[str, Meta(description="the command that installs it")] = msgspec.field(name="uv")
    input_bytes: int
    output_bytes: int
    wheels: int
    changed: int = msgspec.field(name="wheels_cut")


CheckWheels = Callable[[Path], Mapping[str, object]]


def write_wheelhouse(
    description: WheelhouseDescription,
    entries: Sequence[WheelhouseEntry],
    out: Path,
    *,
    cache: Path,
    check: CheckWheels | None = None,
) -> Wheelhouse:
    """Put a variant's wheels, index and manifest at `out/VARIANT`; readers see the old one or the new one, whole.

    Each wheel is read and must have its hash; what lies in `cache` is linked, all else copied. `check` gets the folder
    of the wheels before anything is put in place; it raises where they are wrong, and what it returns is added to the
    manifest.
    """
    place = out / description.variant
    with new_folder(place) as stage:
        files = [add_wheel(entry.path, entry.filename, entry.sha256, stage / WHEELS, cache) for entry in entries]
        write_pages(index_pages(files), stage / SIMPLE)
        more = check(stage / WHEELS) if check else {}
        (stage / MANIFEST_NAME).write_bytes(manifest(description, entries, more))
    return read_wheelhouse(place)


def add_wheel(path: Path, filename: str, sha256: str, folder: Path, cache: Path) -> IndexedFile:
    """Put a wheel and its metadata file into a folder of wheels; returns what the index beside it lists."""
    folder.mkdir(exist_ok=True)
    place_verified(path, folder / filename, sha256, link=path.is_relative_to(cache))
    return add_metadata(folder / filename, sha256)


def add_metadata(wheel: Path, sha256: str) -> IndexedFile:
    """Write the metadata file of a wheel in a folder of wheels; returns what the index beside it lists."""
    metadata = read_local(wheel)
    wheel.with_name(wheel.name + METADATA_SUFFIX).write_bytes(metadata)
    return indexed(wheel, sha256, metadata, f"../../{WHEELS}/")


def write_pages(pages: Mapping[str, bytes], folder: Path) -> None:
    """Write the pages of an index, by relative path."""
    for name, content in pages.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def manifest(
    description: WheelhouseDescription, entries: Sequence[WheelhouseEntry], more: Mapping[str, object]
) -> bytes:
    """What was made, from what, and how; nothing in it depends on when or where."""
    versions = {entry.name.project: str(Version(entry.name.version)) for entry in entries}
    written = Manifest(
        variant=description.variant,
        target=_ListedTarget(description.python, description.arch, description.gpu, description.isa),
        pytorch=_ListedBuild(description.build, description.pytorch, description.release),
        way=description.method,
        requirements=[
            f"{name}=={versions[project]}"
            for name in description.requested
            if (project := name.partition("[")[0]) in versions
        ],
        wheels=[_listed(entry) for entry in sorted(entries, key=lambda entry: entry.name.project)],
        totals=_ListedTotals(sum(entry.input_size for entry in entries), sum(entry.size for entry in entries)),
    )
    tool = {"name": "torchtailor", "version": __version__}
    document = {**description.details, **more, **plain(written), "schema": SCHEMA, "tool": tool}
    return (json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode()


def _listed(entry: WheelhouseEntry) -> ManifestWheel:
    stock = entry.stock
    return ManifestWheel(
        ManifestFile(entry.filename, entry.sha256, entry.size),
        entry.step,
        input=ManifestFile(stock.filename, stock.sha256, stock.size, stock.url or UNSET) if stock else UNSET,
        name=entry.name.project,
        required_by=entry.required_by,
        libraries=entry.libraries or UNSET,
        why=entry.why or UNSET,
    )


class ManifestFile(msgspec.Struct):
    """A file of a manifest; no address where it is a path of the machine that made it."""

    filename: FileName
    sha256: Sha256
    size: Size
    url: WebAddress | UnsetType = UNSET


class ManifestWheel(msgspec.Struct):
    """A wheel of a manifest: what it is, what was done to it, and of what it was made."""

    output: ManifestFile
    step: WheelStep
    input: ManifestFile | UnsetType = UNSET
    name: str = ""
    required_by: tuple[str, ...] = ()
    libraries: tuple[Mapping[str, object], ...] | UnsetType = UNSET  # what was cut
    why: str | UnsetType = UNSET  # why it was not cut


class _ListedTarget(msgspec.Struct):
    python: Label
    arch: Label
    gpu: Gpus | None = None
    isa: str = ""


class _ListedBuild(msgspec.Struct):
    build: Label
    version: str = ""
    release: str = ""


class _ListedTotals(msgspec.Struct):
    input_bytes: Size
    output_bytes: Size


class Manifest(msgspec.Struct):
    """The manifest of a wheelhouse, which others may have written; what a build method adds is not read."""

    variant: Label
    target: _ListedTarget
    pytorch: _ListedBuild
    requirements: Annotated[list[PinnedRequirement], Meta(min_length=1)]
    wheels: list[ManifestWheel]
    totals: _ListedTotals
    way: str = ""

    @property
    def index_name(self) -> str:
        """The folder of a shared index that it goes to: `cu128-sm90`."""
        gpu = self.target.gpu
        return f"{self.pytorch.build}-sm{gpu.replace('.', '').replace(',', '_')}" if gpu else self.pytorch.build


def read_manifest(path: Path) -> Manifest:
    """The manifest of a wheelhouse."""
    hint = "Give a folder that `torchtailor build` wrote."
    try:
        content = read_limited(path / MANIFEST_NAME, Limit.MANIFEST)
    except OSError as error:
        raise BadInputError(f"{path} is not a wheelhouse of torchtailor.", hint) from error
    return decode_json(content, Manifest, f"{path} is not a wheelhouse of torchtailor: its manifest", hint)


def read_wheelhouse(path: Path) -> Wheelhouse:
    """A wheelhouse that was written before, from its manifest."""
    found = read_manifest(path)
    return Wheelhouse(
        variant=found.variant,
        path=path,
        torch_version=found.requirements[0].partition("==")[2],
        requirements=tuple(found.requirements),
        target=Target(found.target.python, found.target.arch),
        input_bytes=found.totals.input_bytes,
        output_bytes=found.totals.output_bytes,
        changed=sum(wheel.step is WheelStep.CUT for wheel in found.wheels),
        wheels=len(found.wheels),
    )


def check_place(place: Path) -> None:
    """Refuse to replace what no build made; an empty folder is as good as none."""
    if not os.path.lexists(place) or _is_wheelhouse(place):
        return
    try:
        inside = {path.name for path in place.iterdir()}
    except OSError:  # a file, or a folder that we may not look into
        raise refusal(place) from None
    is_index = inside == {SIMPLE, WHEELS} and (place / SIMPLE / "index.json").is_file()  # of wheel variants
    if inside and not is_index:
        raise refusal(place)


def _is_wheelhouse(place: Path) -> bool:
    return manifest_entry(place / MANIFEST_NAME, "tool", "name") == "torchtailor"
