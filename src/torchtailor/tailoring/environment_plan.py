"""What is cut and left out in an environment, and the work on each library."""

from __future__ import annotations

import sysconfig
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Any

from torchtailor.core.disk import give_to, sync_folder, why_fixed
from torchtailor.core.errors import NoMatchError
from torchtailor.core.trust import leads_inside
from torchtailor.surgery.cut import Cut, FilesLeftOut
from torchtailor.surgery.result import LibraryResult, LibraryStatus
from torchtailor.tailoring.delta import write_delta
from torchtailor.tailoring.gpu_stand_ins import GpuStandIn
from torchtailor.tailoring.journal import STATE_FOLDER
from torchtailor.tailoring.libraries import LibraryJob, is_library
from torchtailor.tailoring.moved_paths import MovedPath, moved_from
from torchtailor.tailoring.tree import FileState, InstalledTree, Package, left_out_of
from torchtailor.tailoring.without_gpu import WithoutGpu, asking_in
from torchtailor.trees.artifact.artifact import open_artifact
from torchtailor.trees.artifact.drops import DroppedFile
from torchtailor.trees.artifact.installed import InstalledDistribution, installed_in, owners_by_file
from torchtailor.trees.artifact.libraries import is_placeholder, is_shared_name
from torchtailor.trees.artifact.sites import active_environment, project_environment
from torchtailor.trees.wheels.no_gpu import is_gpu_package


def environment_sites(environment: Path | None) -> tuple[Path, ...]:
    """The site-packages folders of an environment; without one, of the active one, of the project's `.venv`, or of the
    one that torchtailor runs in."""
    environment = environment or active_environment() or project_environment(Path.cwd())
    if environment is None:
        paths = dict.fromkeys(sysconfig.get_path(kind) for kind in ("platlib", "purelib"))
        return tuple(Path(path) for path in paths)
    if not environment.exists():
        raise NoMatchError(
            f"{environment} does not exist.",
            "Name the folder of an environment that is there.",
        )
    found = open_artifact(environment).site_packages or (environment,)
    sites = tuple(site for site in found if _has_packages(site))
    if not sites:
        raise NoMatchError(
            f"{environment} holds no installed Python packages.",
            "Name an environment in which torch is installed.",
        )
    return sites


def _has_packages(folder: Path) -> bool:
    return any(folder.glob("*.dist-info")) or (folder / STATE_FOLDER).is_dir()


class _EnvironmentTree(InstalledTree):
    def brings_back(self, path: str) -> str:
        return "`torchtailor restore`"


@dataclass(frozen=True)
class EnvironmentPlan:
    """The files of an environment and whose they are, and those that rules leave out."""

    site: Path
    tree: InstalledTree
    found: Mapping[str, tuple[InstalledDistribution, ...]]
    fixed: Mapping[Path, str]  # dist-info folders whose RECORD cannot be replaced, and why
    dropped: Mapping[str, DroppedFile]
    kept: tuple[DroppedFile, ...]  # of NVIDIA's packages, for want of --nvidia
    notes: tuple[str, ...]
    moved: Mapping[MovedPath, Package]
    without: WithoutGpu
    stand_ins: tuple[GpuStandIn, ...]  # for libraries that only a GPU needs, where they are not there yet
    replaced: tuple[DroppedFile, ...]  # the libraries that have these in their places

    @classmethod
    def of(cls, site: Path, options: Cut) -> EnvironmentPlan:
        installed = installed_in(site)
        owners = owners_by_file(installed)
        if options.targets.none:
            owners |= dict.fromkeys(_unlisted(site, installed, owners), ())
        found = {
            name: owners[name]
            for name in sorted(owners)
            if (site / name).is_file() and not (is_shared_name(name) and is_placeholder(site / name))
        }
        sizes = {name: (site / name).lstat().st_size for name in found}
        tree = _EnvironmentTree(site, sizes, owners)
        without = WithoutGpu.of(tree, options).with_stand_ins(asking_in(tree))
        left_out = left_out_of(tree, options).and_also(without.gone)
        dropped = left_out.files
        root = site.resolve()
        outside = [name for name in dropped if root not in (folder := (site / name).parent.resolve(), *folder.parents)]
        notes = [*without.notes]
        notes += [f"{name} stays: it is outside of the environment, behind a symbolic link." for name in outside]
        owning = {owner.dist_info: owner for name in {*found, *dropped} for owner in owners.get(name, ())}
        fixed = {place: why for place, owner in owning.items() if (why := why_fixed(owner.record_path))}
        for name in dropped:
            if why := next((fixed[owner.dist_info] for owner in owners.get(name, ()) if owner.dist_info in fixed), ""):
                outside.append(name)
                notes.append(f"{name} stays: {why}.")
        places = {
            stand_in.path for stand_in in without.stand_ins
        }  # also of NVIDIA's libraries, and of earlier stand-ins
        going = {name: dropped[name] for name in dropped if name not in outside and name not in places}
        left_out, moved = moved_from(tree, FilesLeftOut(going, left_out.refused), options)
        new = tuple(
            stand_in
            for stand_in in without.stand_ins
            if stand_in.path not in outside
            and FileState.of(site / stand_in.path, sizes=[stand_in.size]) != stand_in.file.state
        )
        replaced = tuple(dropped[one.path] for one in new if one.path in dropped)
        kept = tuple(left_out.refused.values())
        return cls(site, tree, found, fixed, left_out.files, kept, tuple(notes), moved, without, new, replaced)


def _unlisted(site: Path, installed: Iterable[InstalledDistribution], listed: Collection[str]) -> Iterator[str]:
    """Files of packages for a GPU that no RECORD lists: what Python compiled, what an installer noted."""
    for one in installed:
        if is_gpu_package(one.metadata.name):
            folders = {PurePosixPath(path).parent for path in one.files if path.endswith(".py")}
            for place in (*(site / folder / "__pycache__" for folder in folders), one.dist_info):
                names = (path.relative_to(site).as_posix() for path in sorted(place.glob("*")) if path.is_file())
                yield from (name for name in names if name not in listed)


def place_jobs(plan: EnvironmentPlan, state: Path, options: Cut) -> tuple[list[PlaceJob], list[LibraryResult]]:
    """The libraries to cut, and those that cannot be replaced."""
    site = plan.site
    root, device = site.resolve(), site.stat().st_dev
    jobs: list[PlaceJob] = []
    skipped: list[LibraryResult] = []
    gone = {*plan.dropped, *(stand_in.path for stand_in in plan.without.stand_ins)}
    found = {name: owners for name, owners in plan.found.items() if name not in gone}
    links = _second_names(site, found)
    second_names = {name for names in links.values() for name in names}
    for name, owners in found.items():
        path = site / name
        if name in second_names or not is_library(plan.tree.file(name)):
            continue
        size = path.stat().st_size
        folder = path.parent.resolve()
        if root not in (folder, *folder.parents):
            reason = "it is outside of the environment, behind a symbolic link"
            skipped.append(LibraryResult.not_read(LibraryStatus.SKIPPED, name, size, reason))
        elif folder.stat().st_dev != device:
            reason = "it is on another file system than site-packages"
            skipped.append(LibraryResult.not_read(LibraryStatus.SKIPPED, name, size, reason))
        elif reason := _why_fixed(plan, path, owners, [found[other] for other in links.get(name, ())]):
            skipped.append(LibraryResult.not_read(LibraryStatus.SKIPPED, name, size, reason))
        else:
            jobs.append(
                PlaceJob.of(
                    plan.tree,
                    name,
                    size,
                    path,
                    state / "staging" / str(len(jobs)) / path.name,
                    options,
                    owners=owners,
                    removed=state / "removed" if options.keep_removed else None,
                    seen=stamp_of(path),
                    second_names=tuple((other, found[other]) for other in links.get(name, ())),
                )
            )
    return jobs, skipped


def _why_fixed(
    plan: EnvironmentPlan,
    path: Path,
    owners: Iterable[InstalledDistribution],
    others: Iterable[Iterable[InstalledDistribution]],
) -> str:
    """Why a library, or a RECORD that lists it, cannot be replaced: then it is not cut, and both stay in line."""
    for owner in (*owners, *chain.from_iterable(others)):
        if why := plan.fixed.get(owner.dist_info):
            return why
    return why_fixed(path)


def _second_names(site: Path, names: Iterable[str]) -> dict[str, list[str]]:
    """By its first name, the other names of a file: hard links, and symbolic ones that stay inside."""
    by_file: dict[tuple[int, int], list[str]] = {}
    for name in names:
        place = site / name
        if not place.is_symlink() or leads_inside(site, place):  # else it is in the cache of an installer
            status = place.stat()
            by_file.setdefault((status.st_dev, status.st_ino), []).append(name)
    several = (sorted(group, key=lambda name: (site / name).is_symlink()) for group in by_file.values() if group[1:])
    return {group[0]: group[1:] for group in several if not (site / group[0]).is_symlink()}


@dataclass(frozen=True)
class PlaceJob(LibraryJob):
    """One installed library: cut into the staging folder; what is needed to restore it goes to `removed`."""

    owners: tuple[InstalledDistribution, ...] = ()
    removed: Path | None = None
    seen: tuple[int, ...] = ()  # what tells whether somebody replaced it
    second_names: tuple[tuple[str, tuple[InstalledDistribution, ...]], ...] = ()  # links to it, and whose they are

    def __getstate__(self) -> dict[str, Any]:
        """Workers do not need the owners' tables of files."""
        return {**self.__dict__, "owners": (), "second_names": ()}

    @property
    def packages(self) -> list[str]:
        """The names of the .dist-info folders whose RECORD lists it."""
        return [owner.dist_info.name for owner in self.owners]

    @property
    def is_unchanged(self) -> bool:
        """Whether the file still is the one that was found: an installer may replace it meanwhile."""
        try:
            return stamp_of(self.source) == self.seen
        except OSError:
            return False


def stamp_of(path: Path) -> tuple[int, ...]:
    status = path.stat()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def stage(job: PlaceJob) -> LibraryResult:
    """In a worker: cut a library into the staging folder; the environment is not touched."""
    if not job.options.dry_run:
        job.target.parent.mkdir()
    result = job.cut(durable=True)
    if result.status.changed and job.removed and not job.options.dry_run:
        delta = job.target.with_name("removed")
        write_delta(job.source, job.target, delta, result.sha256_in)
        give_to(delta, job.source.lstat())
        delta.replace(job.removed / removed_name(result))  # two packages may hold the same library
        sync_folder(job.removed)
    return result


def removed_name(result: LibraryResult) -> str:
    return f"{result.sha256_in[:24]}-{result.sha256_out[:24]}"
