"""Tailors a folder into a new folder, or a single library into a new file."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from operator import attrgetter
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
from torchtailor.core.progress import Progress, followed
from torchtailor.surgery.cut import Cut
from torchtailor.surgery.hooked import is_hooked
from torchtailor.surgery.result import LibraryResult
from torchtailor.tailoring.caches import baked_caches
from torchtailor.tailoring.left_out import distinct, for_pythonpath, stand_ins
from torchtailor.tailoring.libraries import LibraryJob, is_library
from torchtailor.tailoring.manifest import manifest
from torchtailor.tailoring.module_index import module_indexes
from torchtailor.tailoring.moved_paths import MovedPath, moved_from
from torchtailor.tailoring.packs import check_tools, libraries_below, packs_beside, size_of_packs
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
    NewFile,
    Package,
    StripRule,
    changed_rows,
    left_out_of,
    new_rows,
    remove_empty,
    stripped_with,
)
from torchtailor.tailoring.without_gpu import WithoutGpu, asking_in
from torchtailor.trees.artifact.artifact import ArtifactKind, nothing_in
from torchtailor.trees.artifact.installed import InstalledDistribution, find_installed, owners_by_file
from torchtailor.trees.artifact.libraries import is_shared_name, loose_code_files, may_be_elf
from torchtailor.trees.wheels.distribution import MANIFEST

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
            target = scratch / "tree"
            tree = InstalledTree(folder, listing.sizes, owners_by_file(installed))
            without = WithoutGpu.of(tree, options).with_stand_ins(asking_in(tree))
            left_out, moved = moved_from(tree, left_out_of(tree, options).and_also(without.gone), options)
            dropped = left_out.files
            copy = _Copy(listing, tree, target, dropped, copying=not options.dry_run)
            if not copy.libraries and not any(loose_code_files([folder])):
                raise nothing_in(folder)
            jobs = [
                LibraryJob.of(
                    tree,
                    name,
                    size,
                    folder / name,
                    target / name,
                    options,
                    packs=target / packs_beside(tree, name),
                    sha256=tree.recorded_sha256(name),
                )
                for name, size in copy.libraries.items()
            ]
            every: list[LibraryJob | _CopyJob] = [*jobs, *copy.jobs()]
            work = run_all(_do, every, processes=options.workers)
            progress.begin(folder.name, sum(job.size for job in every))
            results = {}
            for job, result in followed(every, work, progress):
                if isinstance(job, LibraryJob) and result:
                    results[job.name] = result
            results = _whole_where_wanted(jobs, results, asked=asked)
            libraries = tuple(results[name] for name in sorted(results))
            before = copy.size_of_others + copy.size_of_dropped + sum(library.size_before for library in libraries)
            after = copy.size_of_others + sum(library.size_after for library in libraries)
            after += sum(stand_in.size for stand_in in without.stand_ins) - sum(one.size for one in moved)
            indexes, baked = module_indexes(tree, options, dropped), baked_caches(tree, options)
            whole = TailorResult(
                ArtifactKind.FOLDER,
                folder,
                None,
                libraries,
                before,
                after,
                options.dry_run,
                notes=(*left_alone, *without.notes),
                dropped_files=tuple(dropped.values()),
                kept_files=tuple(left_out.refused.values()),
                moved_files=tuple(moved),
                unopened=options.unopened(left_out.others(tree.sizes)),
                stand_ins=without.stand_ins,
                gone_packages=without.names,
                changed_requirements=without.changed_requirements,
                module_indexes=tuple(made.index for made in indexes),
                baked_caches=tuple(made.caches for made in baked),
            )
            if options.dry_run or whole.useless_for_target:
                return whole
            copy.link_second_names()
            added = [
                file for job in sorted(jobs, key=attrgetter("name")) for file in job.added(tree, results[job.name])
            ]
            beside = [*stand_ins(tree, dropped).values(), *((stand_in.file,) for stand_in in without.stand_ins)]
            added += distinct([*beside, *(index.files for index in indexes), *(one.files for one in baked)], added)
            added += [*without.new_metadata(tree), *for_pythonpath(tree, added)]
            for file in added:
                file.put((target / file.path).parent)
            remove_empty(target, without.gone)
            for one in moved:
                one.move(target)
            _update_records(tree, target, installed, results, dropped, added, moved)
            (target / MANIFEST).write_bytes(_manifest(whole, options))
            copy.set_modes()
            packs = size_of_packs(target, options)
            whole = replace(whole, packs_size=packs, size_after=after + packs - size_of_packs(folder, options))
            check_nothing_lost(output, target)
            replace_folder(target, output)
    return replace(whole, output=output)


def _manifest(whole: TailorResult, options: Cut) -> bytes:
    return manifest(
        options,
        {"kind": whole.kind.value, "name": whole.source.resolve().name},
        {},
        whole.libraries,
        whole.dropped_files,
        whole.moved_files,
        stand_ins=whole.stand_ins,
        changed_requirements=whole.changed_requirements,
        indexes=whole.module_indexes,
        caches=whole.baked_caches,
    )


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
    tree = InstalledTree(library.parent, {library.name: library.stat().st_size})
    with disk_errors(target.parent):
        progress.begin(library.name, library.stat().st_size)
        if not options.dry_run:
            target.parent.mkdir(parents=True, exist_ok=True)
            remove_abandoned(target.parent)
        packs = target.parent / packs_beside(tree, library.name)
        job = LibraryJob.of(tree, library.name, 0, library, target, options, packs=packs)
        cut = job.cut_strictly(durable=True)
        for file in job.added(tree, cut):
            file.put(packs)
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
        if options.dry_run or result.useless_for_target:
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
    folders: tuple[tuple[str, os.stat_result], ...]
    files: tuple[tuple[str, os.stat_result], ...]  # and links, also those to folders
    links_to_folders: frozenset[str]
    dist_infos: tuple[Path, ...]

    @classmethod
    def of(cls, folder: Path) -> _Listing:
        """Strings, not Paths: there may be a hundred thousand files."""
        folders: list[tuple[str, os.stat_result]] = []
        files: list[tuple[str, os.stat_result]] = []
        linked: set[str] = set()
        dist_infos: list[Path] = []
        skipped: set[str] = set()  # folders that hold no distributions, and what is below them
        top = len(os.path.join(folder, ""))  # noqa: PTH118
        for place, names, others in os.walk(folder):
            names.sort()
            below = place[top:]
            prefix = f"{below}/" if below else ""
            folders.append((below, os.stat(place)))  # noqa: PTH116
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


class _Copy:
    """The copy of a folder: its subfolders are made at once, its libraries by the workers."""

    def __init__(
        self, listing: _Listing, tree: InstalledTree, target: Path, dropped: Collection[str], *, copying: bool
    ) -> None:
        self._source = str(listing.folder)
        self._tree = tree
        self._dropped = dropped
        self._target = target
        self._copying = copying
        self._others: list[tuple[str, int]] = []  # with their sizes
        self._links: list[str] = []
        self._folders: list[tuple[Path, os.stat_result]] = []
        self._second_names: list[tuple[str, str]] = []
        self._first_names: dict[tuple[int, int], str] = {}
        self._dropped_files: dict[tuple[int, int], int] = {}
        self.size_of_others = 0
        self.libraries: dict[str, int] = {}  # with their sizes
        for below, status in listing.folders if copying else ():
            place = target / below
            place.mkdir(parents=True)
            self._folders.append((place, status))
        for below, status in listing.files:
            self._sort(below, status)

    def _sort(self, below: str, status: os.stat_result) -> None:
        if below in self._dropped:
            self._dropped_files[(status.st_dev, status.st_ino)] = status.st_size
            return
        if stat.S_ISLNK(status.st_mode):
            self._links.append(below)
            return
        if not stat.S_ISREG(status.st_mode):
            raise BadInputError(f"{self._source}/{below} is neither a file nor a folder.", "Remove it from the folder.")
        first = self._first_names.setdefault((status.st_dev, status.st_ino), below) if status.st_nlink > 1 else below
        if first is not below:
            self._second_names.append((first, below))
            return
        if (is_shared_name(below) or may_be_elf(below)) and is_library(self._tree.file(below)):
            self.libraries[below] = status.st_size
        else:
            self.size_of_others += status.st_size
            self._others.append((below, status.st_size))

    @property
    def size_of_dropped(self) -> int:
        """The bytes of files none of whose names is copied."""
        return sum(size for file, size in self._dropped_files.items() if file not in self._first_names)

    def jobs(self) -> Iterator[_CopyJob]:
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
        """Folders get their modes and times last: one may be read-only, and an index of modules goes by the times."""
        for folder, status in reversed(self._folders):
            if folder.exists():
                folder.chmod(status.st_mode & 0o7777)
                os.utime(folder, ns=(status.st_atime_ns, status.st_mtime_ns))


def _update_records(
    tree: InstalledTree,
    target: Path,
    installed: Sequence[InstalledDistribution],
    results: Mapping[str, LibraryResult],
    gone: Collection[str],
    added: Sequence[NewFile],
    moved: Mapping[MovedPath, Package],
) -> None:
    """A RECORD in the copy must describe the copy, also where it lists a library by its second name, or the RECORD of a
    package inside of its own, which is changed before it."""
    by_file = {_file(target / name): result for name, result in results.items() if result.status.changed}
    records: dict[str, FileState] = {}

    def now(path: str) -> FileState | Gone | None:
        if path in gone:
            return Gone.GONE
        if path in records:
            return records[path]
        elf = is_shared_name(path) or may_be_elf(path)
        result = by_file.get(_file(target / path)) if elf else None
        return FileState(result.sha256_out, result.size_after) if result else None

    for one in sorted(installed, key=lambda one: -len(one.dist_info.parts)):
        if not (target / one.dist_info.relative_to(tree.folder)).exists():
            continue
        package = tree.package(one)
        rows = [place.row(one.files, package.site) for place, whose in moved.items() if whose == package]
        changes = changed_rows(one.files.items(), now) | new_rows(added, package) | {row.path: row for row in rows}
        if changes:
            place, modified = target / one.record_path.relative_to(tree.folder), one.record_path.stat().st_mtime_ns
            data = one.record.updated(changes).encode()
            records[place.relative_to(target).as_posix()] = FileState.of_bytes(data)
            write_atomically(place, data, modified=modified)


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
