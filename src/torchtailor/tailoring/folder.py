"""Tailors a folder into a new folder, or a single library into a new file."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from torchtailor.code.binary.elf import ElfFile
from torchtailor.code.binary.source import open_source
from torchtailor.core.disk import (
    check_replaceable,
    copy_file,
    copy_into_staging,
    disk_errors,
    existing_parent,
    hash_file,
    remove_abandoned,
    replace_folder,
    staging_folder,
    write_atomically,
)
from torchtailor.core.errors import BadInputError, ImpossibleError, NoMatchError, UsageError
from torchtailor.core.processes import run_all
from torchtailor.core.progress import Progress
from torchtailor.surgery.cut import Cut
from torchtailor.surgery.hooked import is_hooked
from torchtailor.surgery.result import LibraryResult, LibraryStatus
from torchtailor.tailoring.left_out import read_chunks, stand_ins
from torchtailor.tailoring.libraries import LibraryJob, cut_strictly, is_library
from torchtailor.tailoring.manifest import manifest
from torchtailor.tailoring.packs import (
    check_tools,
    folder_name,
    libraries_below,
    pack_folder,
    pack_place,
    put_hook,
)
from torchtailor.tailoring.places import (
    check_folder_place,
    check_library_place,
    check_nothing_lost,
    manifest_beside,
)
from torchtailor.tailoring.result import COPIED, TailorResult
from torchtailor.tailoring.tree import (
    FileState,
    Gone,
    InstalledTree,
    StripRule,
    changed_rows,
    is_refused,
    left_out_of,
    stripped_with,
)
from torchtailor.trees.artifact.artifact import ArtifactKind, nothing_in
from torchtailor.trees.artifact.drops import DroppedFile
from torchtailor.trees.artifact.installed import InstalledDistribution, find_installed, owners_by_file
from torchtailor.trees.artifact.libraries import is_shared_name, loose_code_files, may_be_elf
from torchtailor.trees.licences import needs_nvidia_option
from torchtailor.trees.wheels.distribution import MANIFEST
from torchtailor.trees.wheels.record import FileHash, RecordRow
from torchtailor.workload.pack import PACK_FOLDER

_NO_DISTRIBUTIONS = ("__pycache__", "include")
_FILES_AT_ONCE = 256
_COST = 256 << 10  # bytes of a library that take as long as one more file


@dataclass(frozen=True)
class _CopyJob:
    """Files that are copied as they are."""

    files: tuple[tuple[str, str], ...]
    bytes: int

    @property
    def size(self) -> int:
        return self.bytes + len(self.files) * _COST


def tailor_folder(folder: Path, output: Path, options: Cut, progress: Progress | None = None) -> TailorResult:
    """Copy a folder with its libraries cut; the copy gets its name when it is complete."""
    asked = options.strip
    options = options.with_default_strip()
    progress = progress or Progress()
    _check_places(folder, output)
    check_tools(options, libraries_below(folder))
    with disk_errors(output.parent):
        if not options.dry_run:
            output.parent.mkdir(parents=True, exist_ok=True)
        listing = _Listing.of(folder)
        installed, left_alone = find_installed(folder, listing.dist_infos)
        with staging_folder(existing_parent(output.parent)) as scratch:
            owners = owners_by_file(installed)
            sizes = listing.sizes
            whole_tree = InstalledTree(folder, sizes, owners)
            left_out = left_out_of(whole_tree, options)
            dropped = left_out.files
            tree = _Tree(listing, scratch / "tree", frozenset(dropped), copying=not options.dry_run)
            if not tree.libraries and not any(loose_code_files([folder])):
                raise nothing_in(folder)
            jobs = _jobs(whole_tree, scratch / "tree", tree.libraries, options)
            every: list[LibraryJob | _CopyJob] = [*jobs, *tree.copies()]
            work = run_all(_do, every, processes=options.workers)
            progress.begin(folder.name, sum(job.size for job in every))
            results = {}
            for job, result in work:
                if isinstance(job, LibraryJob) and result:
                    results[job.name] = result
                progress.advance(job.size)
            results = _whole_where_wanted(jobs, results, asked=asked)
            libraries = tuple(results[name] for name in sorted(results))
            gone = tree.size_of_dropped
            before = tree.size_of_others + gone + sum(library.size_before for library in libraries)
            after = tree.size_of_others + sum(library.size_after for library in libraries)
            after += 0 if options.packs or options.no_pack else sum(library.pack_size for library in libraries)
            whole = TailorResult(ArtifactKind.FOLDER, folder, None, libraries, before, after, options.dry_run)
            kept = tuple(left_out.refused.values())
            unopened = options.unopened(left_out.others(sizes))
            whole = replace(whole, notes=left_alone, dropped_files=tuple(dropped.values()), unopened=unopened)
            whole = replace(whole, kept_files=kept)
            if options.dry_run or whole.useless_for_target:
                return whole
            tree.link_second_names()
            added = _put_hooks(folder, scratch / "tree", owners, results, options)
            _put_stand_ins(folder, scratch / "tree", owners, dropped, sizes, added)
            _update_records(folder, scratch / "tree", installed, results, frozenset(dropped), added)
            names = {"kind": ArtifactKind.FOLDER.value, "name": folder.resolve().name}
            document = manifest(options, names, {}, libraries, dropped.values())
            (scratch / "tree" / MANIFEST).write_bytes(document)
            tree.set_modes()
            check_nothing_lost(output, scratch / "tree")
            replace_folder(scratch / "tree", output)
    return replace(whole, output=output)


def _check_not_hooked(library: Path) -> None:
    """A library that was cut to a program is nothing without the hook and the packs beside it."""
    with suppress(BadInputError), open_source(library) as source:  # what is no library is said later
        if is_hooked(ElfFile(source)):
            raise ImpossibleError(
                f"{library} was cut to a program already, and its hook and packs would stay behind.",
                "Cut the stock library instead.",
            )


def tailor_file(library: Path, output: Path, options: Cut, progress: Progress | None = None) -> TailorResult:
    """Cut one library into a new file, with its manifest beside it; a damaged library is an error."""
    asked = options.strip
    options = options.with_default_strip()
    progress = progress or Progress()
    target = output / library.name if output.is_dir() else output
    if target.exists() and target.samefile(library):
        raise UsageError("Input and output are the same file.", "Choose another -o; the input is never changed.")
    check_replaceable(target)
    check_library_place(target, library)
    _check_not_hooked(library)
    check_tools(options, [library])
    if options.split and not options.dry_run:  # a pack for nothing is not written
        trial = tailor_file(library, output, replace(options, dry_run=True), Progress())
        if trial.useless_for_target:
            return replace(trial, dry_run=False)
    proprietary = needs_nvidia_option(library.name, None)
    with disk_errors(target.parent):
        progress.begin(library.name, library.stat().st_size)
        if not options.dry_run:
            target.parent.mkdir(parents=True, exist_ok=True)
            remove_abandoned(target.parent)
        pack = pack_place(target.parent, library.name, options)
        cut = cut_strictly(library.name, library, target, options, proprietary=proprietary, durable=True, pack=pack)
        if cut.pack:
            put_hook(target.parent / pack_folder(), target)
        progress.advance(cut.size_before)
        if not StripRule(asked=asked).wanted((), cut):
            if not options.dry_run:
                target.unlink()
            cut = cut.with_symbols()
        kind = ArtifactKind.LIBRARY
        result = TailorResult(kind, library, None, (cut,), cut.size_before, cut.size_after, options.dry_run)
        if options.dry_run or not cut.status.changed:
            same = hash_file(library)
            result = replace(result, sha256_before=same, sha256_after="" if cut.status.changed else same)
        if options.dry_run or cut.status is LibraryStatus.NOTHING_FOR_TARGET:
            return result
        if not cut.status.changed:
            copy_file(library, target)
            manifest_beside(target).unlink(missing_ok=True)  # of an earlier output
            return replace(result, output=target, notes=(COPIED,))
        names = {"kind": kind.value, "name": library.name, "sha256": cut.sha256_in, "size": cut.size_before}
        output_names = {"name": target.name, "sha256": cut.sha256_out, "size": cut.size_after}
        document = manifest(options, names, output_names, [cut])
        write_atomically(manifest_beside(target), document, durable=True)
    return replace(result, output=target, sha256_before=cut.sha256_in, sha256_after=cut.sha256_out)


def _check_places(folder: Path, output: Path) -> None:
    if not folder.is_dir():
        raise NoMatchError(f"{folder} is not a folder.", "Check the path.")
    source, target = folder.resolve(), output.resolve()
    if target == source or source in target.parents:
        where = "is" if target == source else "is inside"
        raise UsageError(f"{output} {where} the folder to copy.", "Choose another -o; the input is never changed.")
    check_folder_place(output)


@dataclass(frozen=True, slots=True)
class _Listing:
    """What is in a folder, seen once: paths below it, in a fixed order."""

    folder: Path
    folders: tuple[tuple[str, int], ...]  # with their modes
    files: tuple[tuple[str, os.stat_result], ...]  # and links, also those to folders
    links_to_folders: frozenset[str]
    dist_infos: tuple[Path, ...]

    @classmethod
    def of(cls, folder: Path) -> _Listing:
        """Strings, not Paths: there may be a hundred thousand files."""
        folders: list[tuple[str, int]] = []
        files: list[tuple[str, os.stat_result]] = []
        linked: set[str] = set()
        dist_infos: list[Path] = []
        skipped: set[str] = set()  # folders that hold no distributions, and what is below them
        top = len(os.path.join(folder, ""))  # noqa: PTH118
        for place, names, others in os.walk(folder):
            names.sort()
            below = place[top:]
            prefix = f"{below}/" if below else ""
            folders.append((below, os.stat(place).st_mode))  # noqa: PTH116
            links = [name for name in names if os.path.islink(f"{place}/{name}")]  # noqa: PTH114
            linked.update(prefix + name for name in links)
            files += [(prefix + name, os.lstat(f"{place}/{name}")) for name in sorted([*others, *links])]
            if below not in skipped:
                dist_infos += [Path(place, name) for name in names if name.endswith(".dist-info")]
            without = names if below in skipped else [name for name in names if name in _NO_DISTRIBUTIONS]
            skipped.update(prefix + name for name in without)
        return cls(folder, tuple(folders), tuple(files), frozenset(linked), tuple(dist_infos))

    @property
    def sizes(self) -> dict[str, int]:
        """The files and the links to files, with their sizes."""
        return {path: status.st_size for path, status in self.files if path not in self.links_to_folders}


class _Tree:
    """The copy of a folder: its subfolders are made at once, its libraries by the workers."""

    def __init__(self, listing: _Listing, target: Path, dropped: frozenset[str], *, copying: bool) -> None:
        self._source = str(listing.folder)
        self._dropped = dropped
        self._target = target
        self._copying = copying
        self._others: list[tuple[str, int]] = []  # with their sizes
        self._links: list[str] = []
        self._modes: list[tuple[Path, int]] = []
        self._second_names: list[tuple[str, str]] = []
        self._first_names: dict[tuple[int, int], str] = {}
        self._dropped_files: dict[tuple[int, int], int] = {}
        self.size_of_others = 0
        self.libraries: list[Path] = []
        for below, mode in listing.folders if copying else ():
            place = target / below
            place.mkdir(parents=True)
            self._modes.append((place, mode))
        for below, status in listing.files:
            self._sort(below, status)

    def _sort(self, below: str, status: os.stat_result) -> None:
        if below in self._dropped:
            self._dropped_files[(status.st_dev, status.st_ino)] = status.st_size
            return
        if stat.S_ISLNK(status.st_mode):
            self._links.append(below)
            return
        path = f"{self._source}/{below}"
        if not stat.S_ISREG(status.st_mode):
            raise BadInputError(f"{path} is neither a file nor a folder.", "Remove it from the folder.")
        first = self._first_names.setdefault((status.st_dev, status.st_ino), below) if status.st_nlink > 1 else below
        if first is not below:
            self._second_names.append((first, below))
            return
        name = below.rpartition("/")[2]
        if (is_shared_name(name) or may_be_elf(name)) and is_library(Path(path)):
            self.libraries.append(Path(path))
        else:
            self.size_of_others += status.st_size
            self._others.append((below, status.st_size))

    @property
    def size_of_dropped(self) -> int:
        """The bytes of files none of whose names is copied."""
        return sum(size for file, size in self._dropped_files.items() if file not in self._first_names)

    def copies(self) -> Iterator[_CopyJob]:
        """The work of copying what is no library; links are made at once."""
        for below in self._links if self._copying else ():
            (self._target / below).symlink_to(os.readlink(f"{self._source}/{below}"))  # noqa: PTH115
        files: list[tuple[str, str]] = []
        size = 0
        for below, bytes_ in self._others if self._copying else ():
            files.append((f"{self._source}/{below}", f"{self._target}/{below}"))
            size += bytes_
            if len(files) == _FILES_AT_ONCE or size >= _FILES_AT_ONCE * _COST:
                yield _CopyJob(tuple(files), size)
                files, size = [], 0
        if files:
            yield _CopyJob(tuple(files), size)

    def link_second_names(self) -> None:
        """What was one file with two names is so again."""
        for first, second in self._second_names:
            (self._target / second).hardlink_to(self._target / first)

    def set_modes(self) -> None:
        """Folders get their modes last: one may be read-only."""
        for folder, mode in reversed(self._modes):
            folder.chmod(mode & 0o7777)


def _jobs(tree: InstalledTree, target: Path, libraries: list[Path], options: Cut) -> list[LibraryJob]:
    jobs = []
    for path in libraries:
        name = path.relative_to(tree.folder).as_posix()
        pack = pack_place(target, name, options, _packs_of(tree.folder, name, tree.owners))
        refused = is_refused(tree, name)
        jobs.append(LibraryJob(name, path.stat().st_size, path, target / name, options, refused, pack))
    return jobs


def _packs_of(folder: Path, name: str, owners: Mapping[str, tuple[InstalledDistribution, ...]]) -> str:
    """Where packs of a library go: in the site-packages of its distribution, if it belongs to one."""
    owner = next(iter(owners.get(name, ())), None)
    if owner is None:
        return pack_folder()
    site = owner.dist_info.parent.relative_to(folder).as_posix()
    return f"{site}/{pack_folder(folder_name(owner.metadata.name))}".removeprefix("./")


def _put_hooks(
    folder: Path,
    tree: Path,
    owners: Mapping[str, tuple[InstalledDistribution, ...]],
    results: Mapping[str, LibraryResult],
    options: Cut,
) -> dict[Path, list[RecordRow]]:
    """Put the hook where libraries look for it; the rows of it and of packs, by the distribution that has them."""
    rows: dict[Path, dict[str, RecordRow]] = {}
    for name, result in results.items():
        if not (result.pack and result.status.changed):
            continue
        packs = _packs_of(folder, name, owners)
        hook = put_hook(tree / packs, tree / name)
        listed = packs[packs.index(PACK_FOLDER) :]
        own = [RecordRow(f"{listed}/{hook.name}", FileHash.from_hex(hash_file(hook)), hook.stat().st_size)]
        if options.packs is None and not options.no_pack:
            own.append(RecordRow(f"{listed}/{result.pack}", FileHash.from_hex(result.pack_sha256), result.pack_size))
        for owner in owners.get(name, ())[:1]:
            rows.setdefault(owner.dist_info, {}).update((row.path, row) for row in own)
    return {place: list(own.values()) for place, own in rows.items()}


def _put_stand_ins(
    folder: Path,
    tree: Path,
    owners: Mapping[str, tuple[InstalledDistribution, ...]],
    dropped: Mapping[str, DroppedFile],
    sizes: Mapping[str, int],
    added: dict[Path, list[RecordRow]],
) -> None:
    """Write what stands in for extension modules and libraries that were left out; their rows go to those that are
    added. A library that no package lists leaves nothing: nobody would remove it, and it would hide another of its
    name."""

    def command(name: str) -> str:
        owner = next(iter(owners.get(name, ())), None)
        return f"installing {owner.metadata.name} {owner.metadata.version} again" if owner else "the stock folder"

    present = [name for name in sizes if name not in dropped]
    for name, (place, text) in stand_ins(
        dropped.values(), present, lambda name: read_chunks(folder / name), command
    ).items():
        if place == name and name not in owners:
            continue
        (tree / place).write_bytes(text)
        for owner in owners.get(name, ())[:1]:
            site = owner.dist_info.parent.relative_to(folder).as_posix()
            listed = place if site == "." else place.removeprefix(f"{site}/")
            added.setdefault(owner.dist_info, []).append(RecordRow(listed, FileHash.of(text), len(text)))


def _update_records(
    folder: Path,
    target: Path,
    installed: tuple[InstalledDistribution, ...],
    results: Mapping[str, LibraryResult],
    gone: frozenset[str],
    added: Mapping[Path, Sequence[RecordRow]],
) -> None:
    """A RECORD in the copy must describe the copy, also where it lists a library by its second name."""
    by_file = {_file(target / name): result for name, result in results.items() if result.status.changed}

    def now(path: str) -> FileState | Gone | None:
        if path in gone:
            return Gone.GONE
        elf = is_shared_name(path) or may_be_elf(path)
        result = by_file.get(_file(target / path)) if elf else None
        return FileState(result.sha256_out, result.size_after) if result else None

    for one in installed:
        changes = changed_rows(one.files.items(), now)
        changes |= {row.path: row for row in added.get(one.dist_info, ())}
        if changes:
            write_atomically(target / one.record_path.relative_to(folder), one.record.updated(changes).encode())


def _file(path: Path) -> tuple[int, int] | None:
    """What two names of one file share; None where there is no file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _whole_where_wanted(
    jobs: Sequence[LibraryJob], cut: Mapping[str, LibraryResult], *, asked: bool | None
) -> dict[str, LibraryResult]:
    """The results by the rule for symbol tables; a library that is to have them is copied as it is."""
    results = stripped_with(cut, asked=asked)
    for job in jobs:
        if not job.options.dry_run and results[job.name] is not cut[job.name]:
            job.target.unlink()
            copy_file(job.source, job.target)
    return results


def _do(job: LibraryJob | _CopyJob) -> LibraryResult | None:
    if isinstance(job, LibraryJob):
        return _cut_or_copy(job)
    for source, target in job.files:
        copy_into_staging(source, target)
    return None


def _cut_or_copy(job: LibraryJob) -> LibraryResult:
    result = job.cut()
    if not result.status.changed and not job.options.dry_run:
        copy_file(job.source, job.target)
    return result
