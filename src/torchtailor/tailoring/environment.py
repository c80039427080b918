"""Tailors an environment in place: each library is replaced by one rename, files that rules leave out are deleted, and
the environment is usable throughout."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import msgspec

from torchtailor.code.binary.elf import ElfFile
from torchtailor.code.binary.source import open_source
from torchtailor.code.gpucode.foreign import foreign_platform
from torchtailor.code.gpucode.scan import CONTAINER_SECTIONS
from torchtailor.core.disk import disk_errors
from torchtailor.core.errors import BadInputError, ImpossibleError, TorchtailorError
from torchtailor.core.processes import run_all
from torchtailor.core.progress import Progress, followed
from torchtailor.surgery.cut import Cut
from torchtailor.surgery.cut_document import CutDocument
from torchtailor.surgery.result import LibraryResult, LibraryStatus
from torchtailor.tailoring.caches import baked_caches
from torchtailor.tailoring.environment_plan import EnvironmentPlan, PlaceJob, place_jobs, stage
from torchtailor.tailoring.in_place import InPlace
from torchtailor.tailoring.journal import STATE_FOLDER, Chains, Change, Journal, changes_in_force, reconcile
from torchtailor.tailoring.module_index import module_indexes
from torchtailor.tailoring.packs import check_tools, libraries_below, size_of_packs
from torchtailor.tailoring.result import TailorResult, not_cut
from torchtailor.tailoring.tree import StripRule
from torchtailor.trees.artifact.artifact import ArtifactKind
from torchtailor.trees.artifact.drops import DroppedFile, drop_rules
from torchtailor.trees.artifact.installed import unreadable_in
from torchtailor.trees.artifact.sites import own_python

_ALREADY_CUT = "it was already cut for this target"


def tailor_environment(site: Path, options: Cut, progress: Progress | None = None) -> TailorResult:
    """Cut the libraries of all distributions of a site-packages folder in place."""
    stripped = _Stripped(asked=options.strip)
    options = options.with_default_strip()
    progress = progress or Progress()
    if options.dry_run:
        chains = changes_in_force(site)
        plan, jobs, skipped = _planned(site, site / STATE_FOLDER, chains, options)
        stripped.note_earlier(chains)
        progress.begin(f"Cutting {site}", sum(job.size for job in jobs))
        done = list(_cut_all(jobs, lambda _, staged: staged, stripped, options, progress))
        indexes = tuple(made.index for made in module_indexes(plan.tree, options, plan.dropped, own_python(site)))
        baked = tuple(made.caches for made in baked_caches(plan.tree, options))
        outcome = _result(plan, [*done, *skipped], [*plan.dropped.values(), *plan.replaced], (), options)
        return replace(outcome, module_indexes=indexes, baked_caches=baked)
    check_tools(options, libraries_below(site))
    unchanged = "What was replaced before is whole and recorded."
    with disk_errors(site, unchanged=unchanged), Journal.locked(site) as journal:
        chains = reconcile(journal)
        earlier = size_of_packs(site, options)
        plan, jobs, skipped = _planned(site, journal.folder, chains, options)
        to_drop = sum(file.size for file in plan.dropped.values())
        progress.begin(str(site), sum(job.size for job in jobs) + to_drop)
        stripped.note_earlier(chains)
        known = {path: chain[-1].state_after for path, chain in chains.items()}
        changes = InPlace(journal, plan.tree, options.document, known)
        try:
            caches = baked_caches(plan.tree, options)
            done = list(_cut_all(jobs, changes.replace_library, stripped, options, progress))
            outcome = _result(plan, [*done, *skipped], (), (), options)
            if not outcome.useless_for_target:
                changes.without_gpu(plan, options)
                dropped, notes = changes.leave_out(plan, options, progress)
                indexes = changes.add_indexes(module_indexes(plan.tree, options, plan.dropped, own_python(site)))
                outcome = _result(plan, [*done, *skipped], [*dropped, *plan.replaced], notes, options)
                outcome = replace(outcome, module_indexes=indexes, baked_caches=changes.add_caches(caches))
        except BaseException as error:
            with suppress(OSError, TorchtailorError):  # the first error is the one to report
                changes.settle()
            if isinstance(error, KeyboardInterrupt):
                error.add_note(changes.so_far(chains))
            raise
        changes.settle()
        packs = size_of_packs(site, options)
        outcome = replace(outcome, packs_size=packs, size_after=outcome.size_after + packs - earlier)
        removed = sum(path.stat().st_size for path in journal.removed.glob("*")) if options.keep_removed else 0
    return replace(outcome, removed_size=removed)


def _planned(
    site: Path, folder: Path, chains: Chains, options: Cut
) -> tuple[EnvironmentPlan, list[PlaceJob], list[LibraryResult]]:
    """What is to be cut, and the libraries that are not read: of some an earlier run made what this one would."""
    _check_earlier(site, chains, options)
    plan = EnvironmentPlan.of(site, options)
    jobs, skipped = place_jobs(plan, folder, options)
    already = {job.name: job.size for job in jobs if _is_cut(chains.get(job.name, ()), options.document)}
    if not already:
        _refuse_foreign(site, jobs, options)
    done = [LibraryResult.not_read(LibraryStatus.UNCHANGED, *named, _ALREADY_CUT) for named in already.items()]
    skipped += [replace(one, cut_before=True) for one in done]
    return plan, [job for job in jobs if job.name not in already], skipped


def _refuse_foreign(site: Path, jobs: Sequence[PlaceJob], options: Cut) -> None:
    """An environment whose GPU code is another maker's stays whole, also where --strip or --relr would change it."""
    if not (options.strip or options.relr):
        return
    platforms: list[str] = []
    for job in jobs:
        with suppress(BadInputError), open_source(job.source) as source:
            elf = ElfFile(source)
            if any(section.name in CONTAINER_SECTIONS for section in elf.sections):
                return
            platforms += filter(None, [foreign_platform(elf)])
    if platforms:
        raise ImpossibleError(*not_cut(str(site), f"has GPU code for {platforms[0]} only"))


class _Stripped(StripRule):
    """In place, also packages whose GPU code for the target is not cut: Triton's is NVIDIA's, and most of its bytes are
    symbol tables."""

    def note_earlier(self, chains: Chains) -> None:
        """What an earlier run cut, which may have been stopped before it came to the package's other libraries."""
        changes = (change for chain in chains.values() for change in chain)
        cut = (change for change in changes if (change.library or {}).get("status") == LibraryStatus.CUT.value)
        self.cut_from.update(name for change in cut for name in change.distributions)

    def note(self, packages: Iterable[str], result: LibraryResult) -> None:
        if result.has_gpu_code and result.status is not LibraryStatus.NOTHING_FOR_TARGET:
            self.cut_from.update(packages)


def _result(
    plan: EnvironmentPlan,
    libraries: Sequence[LibraryResult],
    dropped: Iterable[DroppedFile],
    notes: Sequence[str],
    options: Cut,
) -> TailorResult:
    ordered = tuple(sorted(libraries, key=lambda library: library.path))
    gone = tuple(dropped)
    before = sum(plan.tree.sizes.values())
    after = before - sum(library.saved for library in ordered) + sum(stand_in.size for stand_in in plan.stand_ins)
    after -= sum(file.size for file in gone) + sum(one.size for one in plan.moved)
    site = plan.site
    result = TailorResult(ArtifactKind.ENVIRONMENT, site, site, ordered, before, after, options.dry_run)
    notes = (*unreadable_in(site), *plan.notes, *notes)
    result = replace(result, notes=notes, dropped_files=gone, kept_files=plan.kept, stand_ins=plan.stand_ins)
    requirements = plan.without.changed_requirements
    names = plan.without.names
    return replace(result, moved_files=tuple(plan.moved), gone_packages=names, changed_requirements=requirements)


def _check_earlier(site: Path, chains: Chains, options: Cut) -> None:
    """What an earlier cut removed cannot be kept by this one."""
    wanted = {str(device) for device in options.targets.devices}
    for path, chain in chains.items():
        missing = wanted - set(chain[-1].gpus)
        if missing and _depends_on_targets(chain[-1]):
            had, lacks = ", ".join(chain[-1].gpus) or "machines without a GPU", ", ".join(sorted(missing))
            if chain[-1].dropped:
                raise ImpossibleError(
                    f"{path} was left out for {had}, and {lacks} may need it.", _how_to_undo(site, chains)
                )
            raise ImpossibleError(
                f"{path} was cut for {had} and has no code for {lacks} any more.", _how_to_undo(site, chains)
            )
        if chain[-1].library and options.lto and not chain[-1].options.policy.lto:
            raise ImpossibleError(
                f"{path} was cut with --no-lto and has no LTO-IR any more.",
                "Add --no-lto, or run `torchtailor restore` first.",
            )


def _how_to_undo(site: Path, chains: Chains) -> str:
    """What to do before another cut."""
    restore = f"`torchtailor restore --env {shlex.quote(str(site))}`"
    if all(change.removed or not change.before for chain in chains.values() for change in chain):
        return f"Run {restore} first."
    return f"What was cut out was not kept: reinstall the packages first, with the command that {restore} prints."


def _depends_on_targets(change: Change) -> bool:
    rule = drop_rules().get(change.dropped["rule"]) if change.dropped else None
    return not change.moved and (rule is None or rule.by_target)


def _cut_all(
    jobs: Sequence[PlaceJob],
    put: Callable[[PlaceJob, LibraryResult], LibraryResult],
    stripped: _Stripped,
    options: Cut,
    progress: Progress,
) -> Iterator[LibraryResult]:
    """Cut libraries, and put each in place as soon as it is known that it may lose its symbol tables."""
    by_name = {job.name: job for job in jobs}
    waiting: list[LibraryResult] = []
    for _, staged in followed(jobs, run_all(stage, jobs, processes=options.workers), progress):
        waiting.append(staged)
        if not stripped.wanted(by_name[staged.path].packages, staged):
            continue  # until GPU code of its package is found, or there is none
        for one in _in_order(waiting):
            job = by_name[one.path]
            if not stripped.wanted(job.packages, one):
                continue
            waiting.remove(one)
            result = put(job, one)
            stripped.note(job.packages, result)
            yield result
    for one in waiting:
        by_name[one.path].target.unlink(missing_ok=True)
        yield one.with_symbols()


def _is_cut(chain: Sequence[Change], options: CutDocument) -> bool:
    """Whether a library was cut with the same options."""
    return bool(chain) and _of_libraries(chain[-1].options) == _of_libraries(options)


def _of_libraries(options: CutDocument) -> CutDocument:
    """What decides the bytes of a library."""
    return msgspec.structs.replace(options, policy=msgspec.structs.replace(options.policy, drop=()))


def _in_order(waiting: Sequence[LibraryResult]) -> list[LibraryResult]:
    """The newest first: it may be what the others wait for."""
    return [*waiting[-1:], *waiting[:-1]]
