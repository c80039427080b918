"""Adds wheelhouses to a shared index: a folder per target for pip, one of wheel variants for uv.

    cu128-sm90/index.html, cu128-sm90/torch/index.html      the index for one target
    variants/...                                            the index of wheel variants
    index.html                                              the page for people: what is there, and the commands
    files/ab/abcd.../torch-....whl                          every file once, by its hash

Files are uploaded before the pages that list them, and a listed file is never removed or changed. So a reader always
finds what a page lists.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import msgspec
from msgspec import Meta

from torchtailor.catalog.variants.select import NothingMatchesError, expand_braces, name_matches
from torchtailor.core.disk import DamagedFileError
from torchtailor.core.errors import BadInputError, NoMatchError
from torchtailor.core.store import Store
from torchtailor.core.trust import Limit, decode_json, read_limited
from torchtailor.core.urls import without_login
from torchtailor.fetch.cache import Cache
from torchtailor.publish.additions import add_entries
from torchtailor.publish.front import AboutVariant, describe, write_front
from torchtailor.publish.places import FILES, TARGETS, stored_at
from torchtailor.surgery.result import LibraryStatus
from torchtailor.trees.index.pages import (
    HTML_NAME,
    HTML_TYPE,
    JSON_NAME,
    JSON_TYPE,
    METADATA_SUFFIX,
    IndexedFile,
    project_pages,
    read_project_json,
    read_root_json,
    read_targets,
    root_pages,
)
from torchtailor.trees.index.variants import join_documents
from torchtailor.wheelhouse.entry import WheelStep
from torchtailor.wheelhouse.variants_index import FOLDER as VARIANTS
from torchtailor.wheelhouse.wheelhouse import MANIFEST_NAME, SIMPLE, WHEELS, ManifestWheel, read_manifest

_VARIANTS_JSON = "-variants.json"

Say = Callable[[str], None]


@dataclass(frozen=True)
class Offer:
    """A file for a page: a local one to be uploaded, or a URL elsewhere."""

    file: IndexedFile
    path: Path | None
    metadata: bytes | None = None


@dataclass
class Published:
    """What publishing did, or in a dry run would do."""

    to: str = ""
    dry_run: bool = False
    targets: list[str] = field(default_factory=list)
    uploaded: Annotated[int, Meta(description="files")] = 0
    uploaded_bytes: int = 0
    already_there: Annotated[int, Meta(description="files")] = 0
    left_out: Annotated[list[str], Meta(description="changed NVIDIA wheels")] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def find_wheelhouses(dist: Path) -> tuple[Path, ...]:
    """The wheelhouses of a path: itself, or those in it."""
    if (dist / MANIFEST_NAME).is_file():
        return (dist,)
    found = sorted(path.parent for path in dist.glob(f"*/{MANIFEST_NAME}")) if dist.is_dir() else []
    if not found:
        if not dist.exists():
            raise NoMatchError(f"{dist} does not exist.", "Make a wheelhouse with `torchtailor build`.")
        raise BadInputError(f"There is no wheelhouse in {dist}.", "Make one with `torchtailor build`.")
    return tuple(found)


def selected_wheelhouses(dist: Path, selectors: Sequence[str]) -> tuple[Path, ...]:
    """Of the wheelhouses of a path those whose variant any selector matches; all of them without one."""
    found = find_wheelhouses(dist)
    if not selectors:
        return found
    names = {wheelhouse: read_manifest(wheelhouse).variant for wheelhouse in found}
    for selector in selectors:
        if not any(name_matches(name, expand_braces(selector.lower())) for name in names.values()):
            raise NothingMatchesError(
                f"No wheelhouse in {dist} matches {selector!r}.", f"There are {', '.join(sorted(names.values()))}."
            )
    patterns = [pattern for selector in selectors for pattern in expand_braces(selector.lower())]
    return tuple(wheelhouse for wheelhouse, name in names.items() if name_matches(name, patterns))


def publish(
    dist: Path,
    store: Store,
    *,
    selectors: Sequence[str] = (),
    nvidia_too: bool = False,
    cache: Cache | None = None,
    say: Say | None = None,
) -> Published:
    """Add the wheelhouses of a folder to a store; changed NVIDIA libraries are uploaded only with `nvidia_too`."""
    selected_wheelhouses(dist, selectors)  # before an index is made for nothing
    with store.lock():
        return add_wheelhouses(dist, store, selectors=selectors, nvidia_too=nvidia_too, cache=cache, say=say)


def add_wheelhouses(
    dist: Path,
    store: Store,
    *,
    selectors: Sequence[str] = (),
    nvidia_too: bool = False,
    cache: Cache | None = None,
    say: Say | None = None,
) -> Published:
    """The same in a store whose lock is held."""
    work = _Publishing(store, nvidia_too or store.local, cache or Cache(), say or (lambda _: None))
    for wheelhouse in selected_wheelhouses(dist, selectors):
        work.add_wheelhouse(wheelhouse)
    variants = dist / VARIANTS
    if (variants / SIMPLE).is_dir() and selectors:
        work.result.notes.append(f"{VARIANTS}/, the index of wheel variants, is of all of them and is left out.")
    elif (variants / SIMPLE).is_dir():
        work.add_variants(variants)
    work.finish()
    return work.result


class _Publishing:
    def __init__(self, store: Store, changed_nvidia: bool, cache: Cache, say: Say) -> None:
        self._store, self._changed_nvidia, self._cache, self._say = store, changed_nvidia, cache, say
        self.result = Published()
        self._about: list[AboutVariant] = []
        self._checked: set[str] = set()  # files whose bytes were compared or written by this run

    def add_wheelhouse(self, wheelhouse: Path) -> None:
        manifest = read_manifest(wheelhouse)
        self._say(f"{wheelhouse.name} -> {manifest.index_name}/")
        listed = {file.filename: file for file in _listed(wheelhouse)}
        offers: list[Offer] = []
        for wheel in manifest.wheels:
            filename = wheel.output.filename
            path = wheelhouse / WHEELS / filename
            if filename not in listed or not path.is_file():
                raise BadInputError(f"{wheelhouse} lacks {filename}, which its manifest lists.", "Build it again.")
            if listed[filename].sha256 != wheel.output.sha256:
                raise BadInputError(
                    f"The manifest and the index of {wheelhouse} list two hashes of {filename}.", "Build it again."
                )
            changed = wheel.step in (WheelStep.CUT, WheelStep.PACKS)
            if changed and not self._changed_nvidia and holds_changed_nvidia(path):
                offers += self._stock_instead(wheel)
            else:
                offers.append(_offer(listed[filename], path))
        self._add(manifest.index_name, offers)
        self._about.append(describe(wheelhouse, manifest, self._store))

    def _stock_instead(self, wheel: ManifestWheel) -> Iterable[Offer]:
        """NVIDIA's unchanged wheel instead of a changed one: by its URL, or from the cache."""
        self.result.left_out.append(wheel.output.filename)
        stock = wheel.input
        if wheel.step is WheelStep.PACKS:
            return  # what they were made of is there with all its code
        if not stock:
            self.result.notes.append(f"{wheel.output.filename} was made of a wheel that is not listed.")
            return
        shown = IndexedFile(stock.filename, without_login(stock.url or ""), stock.sha256, stock.size)
        if shown.url:
            yield Offer(shown, None)
        elif (path := self._cache.find(stock.sha256, stock.filename)) is not None:
            yield Offer(shown, path)
        else:
            self.result.notes.append(f"{stock.filename} is not in the cache: clients need another index for it.")

    def add_variants(self, folder: Path) -> None:
        self._say(f"{folder.name} -> {VARIANTS}/")
        offers = []
        for file in _listed(folder):
            path = folder / WHEELS / file.filename
            if not self._changed_nvidia and path.suffix == ".whl" and holds_changed_nvidia(path):
                self.result.left_out.append(file.filename)
            else:
                offers.append(_offer(file, path))
        labelled = {offer.file.project for offer in offers if _is_variant(offer.file.filename)}
        self._add(VARIANTS, [item for item in offers if _keeps(item, labelled)])

    def finish(self) -> None:
        """The page at the top, for people."""
        add_entries(TARGETS, self._targets, lambda _: dict.fromkeys(self.result.targets), self._put_targets)
        write_front(self._store, self._about)

    def _targets(self) -> dict[str, None]:
        return dict.fromkeys(read_targets(self._store.read(TARGETS) or b"[]", TARGETS))

    def _put_targets(self, targets: Iterable[str]) -> None:
        self._store.put_bytes((json.dumps(sorted(targets)) + "\n").encode(), TARGETS, "application/json")

    def _add(self, target: str, offers: Sequence[Offer]) -> None:
        projects: dict[str, list[Offer]] = {}
        for offer in offers:
            projects.setdefault(offer.file.project, []).append(offer)
        for project, group in sorted(projects.items()):
            self._add_project(f"{target}/{project}", project, group)
        self._add_names(target, set(projects))
        if target not in self.result.targets:
            self.result.targets.append(target)

    def _add_project(self, folder: str, project: str, offers: Sequence[Offer]) -> None:
        def added(known: dict[str, IndexedFile]) -> dict[str, IndexedFile]:
            stored = (self._store_offer(offer, known) for offer in offers)
            return {file.filename: still_yanked(file, known) for file in stored}

        add_entries(
            f"The page {folder}",
            lambda: self._known(folder),
            added,
            lambda files: put_pages(self._store, folder, project_pages(project, files.values())),
        )

    def _known(self, folder: str) -> dict[str, IndexedFile]:
        content = self._store.read(f"{folder}/{JSON_NAME}")
        found = read_project_json(content, f"The page {folder}/{JSON_NAME}") if content else ()
        return {file.filename: file for file in found}

    def _add_names(self, target: str, projects: set[str]) -> None:
        add_entries(
            f"The page {target}",
            lambda: self._names(target),
            lambda _: dict.fromkeys(projects),
            lambda names: put_pages(self._store, target, root_pages(names)),
        )

    def _names(self, target: str) -> dict[str, None]:
        content = self._store.read(f"{target}/{JSON_NAME}")
        return dict.fromkeys(read_root_json(content, f"The page {target}/{JSON_NAME}") if content else ())

    def _store_offer(self, offer: Offer, known: dict[str, IndexedFile]) -> IndexedFile:
        """Upload the file, unless the store has it; returns how a page lists it."""
        file = offer.file
        if offer.path is None:
            return file
        content: bytes | None = None
        if file.filename.endswith(_VARIANTS_JSON):
            content = read_limited(offer.path, Limit.MANIFEST)
            if (older := known.get(file.filename)) is not None and (place := stored_at(older)):
                before = self._store.read(place)
                content = join_documents([*([before] if before else []), content])
            file = replace(file, sha256=hashlib.sha256(content).hexdigest(), size=len(content))
        place = f"{FILES}/{file.sha256[:2]}/{file.sha256}/{file.filename}"
        file = replace(file, url=f"../../{quote(place)}")
        listed = known.get(file.filename) == file
        if place in self._checked or self._store.has(place, file.size, file.sha256, listed=listed):
            self._checked.add(place)
            self.result.already_there += 1
            return file
        if offer.metadata is not None:
            self._store.put_bytes(offer.metadata, place + METADATA_SUFFIX)
        if content is None:
            if offer.path.stat().st_size != file.size:  # nothing of a hole of a terabyte is read
                raise DamagedFileError(offer.path)
            self._store.put_file(offer.path, place, file.sha256)
        else:
            self._store.put_bytes(content, place, "application/json")
        self._checked.add(place)
        self._say(f"  {file.filename}")
        self.result.uploaded += 1
        self.result.uploaded_bytes += file.size
        return file


def put_pages(store: Store, folder: str, pages: Mapping[str, bytes]) -> None:
    """JSON last: it is what the next publisher reads, who then repeats what a kill left out."""
    store.put_bytes(pages[HTML_NAME], f"{folder}/{HTML_NAME}", HTML_TYPE)
    store.put_bytes(pages[JSON_NAME], f"{folder}/{JSON_NAME}", JSON_TYPE)


def still_yanked(file: IndexedFile, known: Mapping[str, IndexedFile]) -> IndexedFile:
    """A file that was yanked stays so, until it is unyanked."""
    before = known.get(file.filename)
    return replace(file, yanked=before.yanked) if before and before.yanked else file


def _listed(wheelhouse: Path) -> list[IndexedFile]:
    return [
        file
        for page in sorted((wheelhouse / SIMPLE).glob(f"*/{JSON_NAME}"))
        for file in read_project_json(read_limited(page, Limit.PAGE), str(page))
    ]


def _offer(file: IndexedFile, path: Path) -> Offer:
    """A file with its metadata, which must be what the index lists."""
    if not file.metadata_sha256:
        return Offer(file, path)
    try:
        metadata = read_limited(path.with_name(path.name + METADATA_SUFFIX), Limit.METADATA)
    except FileNotFoundError:
        return Offer(replace(file, metadata_sha256=""), path)
    if hashlib.sha256(metadata).hexdigest() != file.metadata_sha256:
        raise DamagedFileError(path.with_name(path.name + METADATA_SUFFIX))
    return Offer(file, path, metadata)


def _is_variant(filename: str) -> bool:
    """`name-version-python-abi-platform-label.whl`: one part more than a wheel without a build number has."""
    parts = filename.removesuffix(".whl").split("-")
    build = len(parts) > 2 and parts[2][:1].isdigit()
    return filename.endswith(".whl") and len(parts) == (7 if build else 6)


def _keeps(offer: Offer, labelled: set[str]) -> bool:
    """A list of variants is published only where there are any."""
    return not offer.file.filename.endswith(_VARIANTS_JSON) or offer.file.project in labelled


class _CutLibrary(msgspec.Struct):
    path: str
    status: LibraryStatus


class _CutWheel(msgspec.Struct):
    libraries: list[_CutLibrary]


def holds_changed_nvidia(path: Path) -> bool:
    """Whether a cut wheel holds a changed proprietary library of NVIDIA's, by its own manifest."""
    from torchtailor.trees.licences import needs_nvidia_option
    from torchtailor.trees.wheels.archive import WheelArchive
    from torchtailor.trees.wheels.distribution import MANIFEST, read_metadata

    with WheelArchive(path) as archive:
        folder = next(name.split("/")[0] for name in archive.members if name.endswith(".dist-info/METADATA"))
        if f"{folder}/{MANIFEST}" not in archive.members:
            return False
        metadata = read_metadata(archive)
        content = archive.read(f"{folder}/{MANIFEST}")
    libraries = decode_json(content, _CutWheel, f"{path.name}: {MANIFEST}", "Build it again.").libraries
    return any(row.status.changed and needs_nvidia_option(row.path, metadata) for row in libraries)
