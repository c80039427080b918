"""The life of a published index: its generations, and going back to one; yanking; promotion; pruning.

    history/000007.json     what every page listed after the seventh change
    history/last            the number of the last one

A reader never finds a page that lists a missing file: files come before pages, pages go back only to files that are
kept, and a file is removed only when no page and no kept generation lists it, and none has for a while, since a reader
may still hold the page of a moment ago.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from torchtailor.core.disk import cache_folder, staging_folder
from torchtailor.core.errors import BadInputError, ImpossibleError, NoMatchError
from torchtailor.core.store import Store, StoredFile
from torchtailor.core.trust import Label, Limit, decode_json
from torchtailor.fetch.cache import Cache
from torchtailor.publish.front import copy_about, write_front
from torchtailor.publish.places import FILES, TARGETS, stored_at
from torchtailor.publish.publish import (
    Published,
    Say,
    add_wheelhouses,
    holds_changed_nvidia,
    put_pages,
    selected_wheelhouses,
    still_yanked,
)
from torchtailor.trees.index.pages import (
    JSON_NAME,
    METADATA_SUFFIX,
    FileRow,
    IndexedFile,
    project_pages,
    read_project_json,
    read_root_json,
    read_targets,
    root_pages,
)

HISTORY = "history"
KEPT_GENERATIONS = 10
GRACE = 24 * 3600.0  # seconds for which a file stays after the last page that listed it

Pages = Mapping[str, Mapping[str, tuple[IndexedFile, ...]]]  # target, project, files


class _Recorded(msgspec.Struct):
    number: int
    time: datetime
    action: str
    pages: dict[Label, dict[Label, tuple[FileRow, ...]]]


@dataclass(frozen=True)
class Generation:
    """The index after one change."""

    number: int
    time: datetime
    action: str
    pages: Pages

    @property
    def stored(self) -> frozenset[str]:
        """The paths in the store that its pages list."""
        return frozenset(path for path in map(stored_at, _rows(self.pages)) if path)

    @property
    def second(self) -> datetime:
        return self.time.replace(microsecond=0)

    @property
    def files(self) -> int:
        return sum(1 for _ in _rows(self.pages))


@dataclass(frozen=True)
class Listing:
    """What an index offers now, and the generations it can go back to."""

    pages: Pages
    generations: tuple[Generation, ...]

    @property
    def files(self) -> tuple[tuple[str, IndexedFile], ...]:
        return tuple((target, file) for target, projects in self.pages.items() for file in _rows({target: projects}))

    @property
    def targets(self) -> dict[str, list[ListedFile]]:
        """By target its files, each with its project."""
        return {
            target: [
                ListedFile(**msgspec.structs.asdict(file.row), project=name)
                for name, files in projects.items()
                for file in files
            ]
            for target, projects in self.pages.items()
        }


class ListedFile(FileRow, frozen=True, kw_only=True):
    """A file as the index's JSON pages have it."""

    project: str


class ListedGeneration(msgspec.Struct):
    """A state that the index can go back to."""

    number: int
    second: datetime = msgspec.field(name="time")
    action: str
    files: int


class ListingDocument(msgspec.Struct):
    """What an index offers now, and the generations it can go back to."""

    to: str
    targets: Annotated[dict[str, list[ListedFile]], Meta(description="its files, by target")]
    generations: tuple[ListedGeneration, ...]


@dataclass(frozen=True)
class Changed:
    """What one change of an index did, or in a dry run would do."""

    action: str
    changed: Annotated[
        tuple[str, ...], Meta(description="`TARGET/FILE` of every entry of a page that is not as before")
    ]
    removed: Annotated[tuple[str, ...], Meta(description="stored files that are gone")] = ()
    removed_bytes: int = 0
    copied_bytes: int = 0
    generation: int | None = None
    dry_run: bool = False


def list_index(store: Store) -> Listing:
    """What an index offers now."""
    _require_index(store)
    pages = read_pages(store)
    return Listing(pages, _generations(store))


def publish_recorded(
    dist: Path,
    store: Store,
    *,
    selectors: Sequence[str] = (),
    nvidia_too: bool = False,
    cache: Cache | None = None,
    say: Say | None = None,
) -> Published:
    """Publish, and record the index as a generation that can be gone back to; no other publisher comes in between."""
    selected_wheelhouses(dist, selectors)  # before an index is made for nothing
    with store.lock():
        _record(store, "before recorded changes")
        result = add_wheelhouses(dist, store, selectors=selectors, nvidia_too=nvidia_too, cache=cache, say=say)
        _record(store, f"publish {', '.join(result.targets)}")
    return result


def yank(store: Store, names: Sequence[str], reason: str) -> Changed:
    """Mark files as not to be installed; whoever pins one exactly still gets it."""
    why = reason or "yanked"
    return _mark(store, names, f"yank {', '.join(names)}", lambda file: replace(file, yanked=why))


def unyank(store: Store, names: Sequence[str]) -> Changed:
    """Undo `yank`."""
    return _mark(store, names, f"unyank {', '.join(names)}", lambda file: replace(file, yanked=""))


def rollback(store: Store, to: str) -> Changed:
    """Make every page list what it listed in an earlier generation; that is a new generation in turn."""
    _require_index(store)
    with store.lock():
        _record(store, "before rollback")
        known = _generations(store)
        wanted = _generation(known, to)
        listed = ((file, stored_at(file)) for file in _rows(wanted.pages))
        missing = sorted(
            file.filename
            for file, place in listed
            if place and not store.has(place, file.size, file.sha256, listed=True)
        )
        if missing:
            raise ImpossibleError(
                f"Generation {wanted.number} lists {missing[0]}, which is not stored any more.",
                "`torchtailor publish --list` has the generations; publish those wheels again.",
            )
        return _change(store, wanted.pages, f"rollback to {wanted.number}")


def promote(staging: Store, store: Store, *, nvidia_too: bool = False, say: Say | None = None) -> Changed:
    """Add everything that another index offers: files first, then pages."""
    pages = read_pages(staging)
    if not pages:
        raise NoMatchError("The index to promote is empty.", "Publish to it first.")
    for file in _rows(pages):
        stored_at(file)  # all of them, before anything is copied
    if staging.local and not store.local and not nvidia_too:
        _refuse_changed_nvidia(staging, pages)
    with store.lock():
        _record(store, "before promotion")
        copied = sum(_copy(staging, store, file, say) for file in _rows(pages))
        now = read_pages(store)
        joined = {
            target: {
                project: _joined(now.get(target, {}).get(project, ()), pages.get(target, {}).get(project, ()))
                for project in {*now.get(target, {}), *pages.get(target, {})}
            }
            for target in {*now, *pages}
        }
        copy_about(staging, store)
        return replace(_change(store, joined, "promote"), copied_bytes=copied)


def prune(
    store: Store,
    *,
    keep: int = KEPT_GENERATIONS,
    grace: float = GRACE,
    now: float | None = None,
) -> Changed:
    """Forget all but the last generations, and remove files that no page and no generation lists any more."""
    moment = time.time() if now is None else now
    _require_index(store)
    with store.lock():
        _record(store, "before pruning")
        generations = _generations(store)
        kept = generations[-max(keep, 1) :]
        needed = {path for generation in kept for path in generation.stored}
        stored = tuple(store.files(""))
        needed |= set(_listed_anywhere(store, stored))
        needed |= {path + METADATA_SUFFIX for path in needed}
        listed_until = _listed_until(generations)
        gone = []
        for file in stored:
            last = max(file.stored if file.stored is not None else moment, listed_until.get(_wheel(file.path), 0.0))
            if file.path.startswith(f"{FILES}/") and file.path not in needed and moment - last >= grace:
                gone.append(file)
        for generation in generations[: -len(kept)]:
            store.remove(_place(generation.number))
        for file in gone:
            store.remove(file.path)
    return Changed("prune", (), tuple(file.path for file in gone), sum(file.size for file in gone))


def read_pages(store: Store) -> dict[str, dict[str, tuple[IndexedFile, ...]]]:
    """What the pages of an index list now, by target and project."""
    pages: dict[str, dict[str, tuple[IndexedFile, ...]]] = {}
    for target in sorted(read_targets(store.read(TARGETS) or b"[]", TARGETS)):
        root = store.read(f"{target}/{JSON_NAME}")
        names = read_root_json(root, f"The page {target}/{JSON_NAME}") if root else ()
        pages[target] = {
            name: read_project_json(content, f"The page {target}/{name}/{JSON_NAME}")
            for name in sorted(names)
            if (content := store.read(f"{target}/{name}/{JSON_NAME}"))
        }
    return pages


def _listed_anywhere(store: Store, stored: Iterable[StoredFile]) -> Iterator[str]:
    """The paths that any page lists, also one that a lost update has left out of the names or targets."""
    for file in stored:
        if file.path.count("/") == 2 and file.path.endswith(f"/{JSON_NAME}"):
            with suppress(BadInputError):  # what is there beside the index
                yield from map(stored_at, read_project_json(store.read(file.path) or b"", file.path))


def _rows(pages: Pages) -> Iterator[IndexedFile]:
    for projects in pages.values():
        for files in projects.values():
            yield from files


def _joined(before: Iterable[IndexedFile], added: Iterable[IndexedFile]) -> tuple[IndexedFile, ...]:
    known = {file.filename: file for file in before}
    files = known | {file.filename: still_yanked(file, known) for file in added}
    return tuple(files[name] for name in sorted(files))


def _require_index(store: Store) -> None:
    """Else changing one that is not there, by a slip of the pen, would make an empty one."""
    if store.read(TARGETS) is None:
        raise NoMatchError("There is no index yet.", "Publish to it first: `torchtailor publish DIST --to WHERE`.")


def _mark(store: Store, names: Sequence[str], action: str, change: Callable[[IndexedFile], IndexedFile]) -> Changed:
    _require_index(store)
    with store.lock():
        _record(store, "before recorded changes")
        pages = read_pages(store)
        tests = [(name, _matcher(name)) for name in names]
        found: set[str] = set()
        marked: dict[str, dict[str, tuple[IndexedFile, ...]]] = {}
        for target, projects in pages.items():
            marked[target] = {}
            for project, files in projects.items():
                hits = {(file.filename, name) for file in files for name, test in tests if test(target, file)}
                found.update(name for _, name in hits)
                named = {filename for filename, _ in hits}
                marked[target][project] = tuple(change(file) if file.filename in named else file for file in files)
        for name in names:
            if name not in found:
                raise NoMatchError(
                    f"The index has no file {name!r}.",
                    "Name a file, a glob such as 'cu128-sm90/torch-2.10.*', or torch==2.10.0; --list shows them.",
                )
        return _change(store, marked, action)


def _matcher(name: str) -> Callable[[str, IndexedFile], bool]:
    """A file name, a glob with or without the target, or a requirement such as `torch==2.10.0`."""
    if "==" in name:
        try:
            wanted = Requirement(name)
        except InvalidRequirement as error:
            raise BadInputError(f"{name!r} is not a requirement: {error}.", "Write torch==2.10.0.") from error
        project = canonicalize_name(wanted.name)
        return lambda _, file: (
            file.project == project
            and file.filename.endswith(".whl")
            and wanted.specifier.contains(file.filename.split("-")[1], prereleases=True)
        )
    if "/" in name:
        return lambda target, file: fnmatchcase(f"{target}/{file.filename}", name)
    return lambda _, file: fnmatchcase(file.filename, name)


def _change(store: Store, pages: Pages, action: str) -> Changed:
    """Write the pages that differ, and record the generation."""
    before = read_pages(store)
    changed = []
    for target in sorted({*before, *pages}):
        old, new = before.get(target, {}), pages.get(target, {})
        for project in sorted({*old, *new}):
            was = {file.filename: file for file in old.get(project, ())}
            now = {file.filename: file for file in new.get(project, ())}
            changed += [f"{target}/{name}" for name in sorted({*was, *now}) if was.get(name) != now.get(name)]
            if was != now:  # a page that nothing is left of stays, empty: its readers find an answer
                put_pages(store, f"{target}/{project}", project_pages(project, now.values()))
        if set(old) != set(new) or target not in before:
            put_pages(store, target, root_pages(new))
    targets = sorted(target for target, projects in pages.items() if projects)
    if targets != sorted(read_targets(store.read(TARGETS) or b"[]", TARGETS)):
        store.put_bytes((json.dumps(targets) + "\n").encode(), TARGETS, "application/json")
    write_front(store)
    number = _record(store, action)
    return Changed(action, tuple(changed), generation=number)


def _record(store: Store, action: str) -> int | None:
    """The index as a new generation, where it is not the last one already."""
    pages = {target: projects for target, projects in read_pages(store).items() if projects}
    number = _last(store)
    last = _read(store, number) if number else None
    if last is not None and last.pages == pages:
        return number
    if not pages and last is None:
        return None
    rows = {
        target: {project: tuple(file.row for file in files) for project, files in projects.items()}
        for target, projects in pages.items()
    }
    while True:
        number += 1
        recorded = _Recorded(number, datetime.now(UTC), action, rows)
        if store.create(msgspec.json.encode(recorded) + b"\n", _place(number), "application/json"):
            break
        there = _read(store, number)  # of a publisher that was killed, or is not heard of any more
        if there is not None and there.pages == pages:
            break
    store.put_bytes(f"{number}\n".encode(), f"{HISTORY}/last", "text/plain")
    return number


def _last(store: Store) -> int:
    content = store.read(f"{HISTORY}/last") or b"0"
    if not re.fullmatch(rb"[0-9]{1,9}\n?", content):
        raise BadInputError(f"{HISTORY}/last of the index is damaged: it is not a number.", "Remove that file.")
    return int(content)


def _place(number: int) -> str:
    return f"{HISTORY}/{number:06}.json"


def _read(store: Store, number: int) -> Generation | None:
    content = store.read(_place(number))
    if content is None:
        return None
    name = f"{_place(number)} of the index"
    found = decode_json(content, _Recorded, name, "Remove that file.")
    pages = {
        target: {project: tuple(row.file for row in rows) for project, rows in projects.items()}
        for target, projects in found.pages.items()
    }
    return Generation(found.number, found.time, found.action, pages)


def _generations(store: Store) -> tuple[Generation, ...]:
    """All that are kept, from the oldest on."""
    found = []
    for number in range(_last(store), 0, -1):
        generation = _read(store, number)
        if generation is None:
            break  # pruned, as all before it
        found.append(generation)
    return tuple(reversed(found))


def _generation(known: Sequence[Generation], name: str) -> Generation:
    if name == "previous":
        if len(known) < 2:
            raise NoMatchError("There is no generation before this one.", "`torchtailor publish --list` has them.")
        return known[-2]
    found = next((one for one in known if str(one.number) == name.lstrip("#")), None)
    if found is None:
        numbers = ", ".join(str(one.number) for one in known) or "none"
        raise NoMatchError(f"There is no generation {name}.", f"Known: {numbers}; or write `previous`.")
    return found


def _listed_until(generations: Sequence[Generation]) -> dict[str, float]:
    """Until when each file that is not listed any more was: the time of the generation that came after."""
    return {
        path: after.time.timestamp() for before, after in pairwise(generations) for path in before.stored - after.stored
    }


def _wheel(path: str) -> str:
    return path.removesuffix(METADATA_SUFFIX)


def _copy(staging: Store, store: Store, file: IndexedFile, say: Say | None) -> int:
    """Copy one file and its metadata, unless the store has it; returns its size if it was copied."""
    place = stored_at(file)
    if not place or store.has(place, file.size, file.sha256, listed=False):
        return 0
    with _scratch() as folder:
        metadata = (place + METADATA_SUFFIX, file.metadata_sha256, Limit.METADATA)
        for path, sha256, most in (metadata, (place, file.sha256, file.size)):  # the wheel last: `has` asks for it
            local = staging.fetch_file(path, sha256, folder / path.rpartition("/")[2], most=most) if sha256 else None
            if local is not None:
                store.put_file(local, path, sha256)
            elif path == place:
                raise BadInputError(f"The index to promote lists {file.filename}, but lacks it.", "Publish it again.")
    if say:
        say(f"  {file.filename}")
    return file.size


def _refuse_changed_nvidia(staging: Store, pages: Pages) -> None:
    for file in _rows(pages):
        place = stored_at(file)
        if not place or not file.filename.endswith(".whl"):
            continue
        with _scratch() as folder:
            local = staging.fetch_file(place, file.sha256, folder / file.filename, most=file.size)
            if local is not None and holds_changed_nvidia(local):
                raise ImpossibleError(
                    f"{file.filename} holds changed NVIDIA libraries, which their licence keeps on your own machines.",
                    "If you may publish them, add --publish-nvidia (`torchtailor help licences`).",
                )


def _scratch() -> AbstractContextManager[Path]:
    parent = cache_folder()
    parent.mkdir(parents=True, exist_ok=True)
    return staging_folder(parent)
