"""Tailors a wheel: a new wheel with a label in its version, a correct RECORD and a manifest."""

from __future__ import annotations

import stat
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from torchtailor.code.binary.elf import ElfFile
from torchtailor.code.binary.source import open_source
from torchtailor.core.disk import copy_file, disk_errors, existing_parent, hash_file, link_or_copy, staging_folder
from torchtailor.core.errors import BadInputError, CheckFailedError, UsageError
from torchtailor.core.processes import run_all
from torchtailor.core.progress import Progress, followed
from torchtailor.surgery.cut import Cut, FilesLeftOut
from torchtailor.surgery.library import reading_once
from torchtailor.surgery.result import CodeTally, LibraryResult, LibraryStatus
from torchtailor.tailoring.gpu_stand_ins import AskingLibrary, GpuStandIn
from torchtailor.tailoring.left_out import distinct, stand_ins
from torchtailor.tailoring.libraries import LibraryJob, is_library
from torchtailor.tailoring.manifest import label_of, manifest
from torchtailor.tailoring.module_index import MadeIndex, module_indexes
from torchtailor.tailoring.packs import check_tools_for, folder_name, pack_folder
from torchtailor.tailoring.places import check_wheel_place
from torchtailor.tailoring.remarks import larger_wheel, newer_hook
from torchtailor.tailoring.result import COPIED, TailorResult
from torchtailor.tailoring.split import (
    SPLIT_NOTE,
    host_metadata,
    pack_version,
    served_gpus,
    split_note,
    write_pack_wheel,
)
from torchtailor.tailoring.tree import FileState, NewFile, WheelTree, left_out_of, stripped_with
from torchtailor.tailoring.without_gpu import WithoutGpu, asking_in
from torchtailor.trees.artifact.artifact import ArtifactKind
from torchtailor.trees.artifact.drops import DroppedFile, drop_rules
from torchtailor.trees.wheels.archive import Member, WheelArchive, open_member
from torchtailor.trees.wheels.deflate import Effort
from torchtailor.trees.wheels.distribution import MANIFEST, WheelDistribution
from torchtailor.trees.wheels.metadata import with_tags, with_version
from torchtailor.trees.wheels.name import TAILORED, WheelName, labelled_version
from torchtailor.trees.wheels.no_gpu import is_gpu_package
from torchtailor.trees.wheels.record import FileHash, UnusualRecordError
from torchtailor.trees.wheels.write import DEFAULT_MODE, WheelWriter, new_wheel
from torchtailor.workload.hook import HOOK_NAME
from torchtailor.workload.pack import PACK_SUFFIX

_QUICK_TO_PACK = 16 << 20  # bytes
_MUCH = 0.1  # of the libraries: quick packing gives about a tenth more
_WRITTEN_ANEW = (".dist-info/METADATA", ".dist-info/WHEEL")
RELR_GLIBC = (2, 36)  # the first that reads packed relocations


@dataclass(frozen=True)
class WheelOrder:
    """A wheel to make from a stock one: where (a folder, or the file's name) and how."""

    output: Path
    options: Cut

    @property
    def folder(self) -> Path:
        return self.output.parent if self.output.suffix == ".whl" else self.output


@dataclass(frozen=True)
class _MemberJob:
    """One library of a wheel: unpacked once, and cut for each of the wheels that are made of it."""

    wheel: Path
    member: Member
    hash: FileHash | None
    cuts: tuple[LibraryJob, ...]

    @property
    def name(self) -> str:
        return self.member.name

    @property
    def size(self) -> int:
        return self.member.size


def tailor_wheel(wheel: Path, output: Path, options: Cut, progress: Progress | None = None) -> TailorResult:
    """Cut the libraries of a wheel; `output` is the folder for the new wheel, or its file name.

    A wheel in which nothing is cut is copied unchanged, so that a folder of wheels stays complete. A split gives a
    wheel of packs for each target beside it.
    """
    if not options.split:
        return tailor_wheel_each(wheel, [WheelOrder(output, options)], progress)[0]
    targets = options.for_each_target
    each = tailor_wheel_each(wheel, [WheelOrder(output, target) for target in targets], progress)
    served = [result for result in each if not result.useless_for_target]
    if not served:
        return each[0]
    notes = [
        f"{wheel.name} has no GPU code that runs on {one.targets}: there are no packs for it."
        for one, result in zip(targets, each, strict=True)
        if result.useless_for_target
    ]
    return replace(
        served[0],
        libraries=tuple(_packed_for_all(same) for same in zip(*(result.libraries for result in served), strict=True)),
        pack_wheels=tuple(pack for result in each for pack in result.pack_wheels),
        notes=(*served[0].notes, *notes),
    )


def _packed_for_all(same: Sequence[LibraryResult]) -> LibraryResult:
    """One library of a split, with what the packs of all GPUs have of it."""
    packed: dict[str, CodeTally] = {}
    for label, tally in (row for one in same for row in one.packed.items()):
        packed[label] = max(tally, packed.get(label, tally), key=lambda known: known.stored)
    return replace(same[0], packed=packed, only_ptx=tuple(dict.fromkeys(gpu for one in same for gpu in one.only_ptx)))


def tailor_wheel_each(
    wheel: Path, orders: Sequence[WheelOrder], progress: Progress | None = None
) -> tuple[TailorResult, ...]:
    """Make several wheels from one; each gets the bytes it would get alone.

    Reading, unpacking and checking is done once, and so is the packing of libraries that come out the same.
    """
    progress = progress or Progress()
    first = orders[0]
    with WheelArchive(wheel) as archive, disk_errors(first.folder):
        try:
            distribution = WheelDistribution.of(archive)
        except UnusualRecordError as error:
            return tuple(_left_alone(wheel, order, error) for order in orders)
        if first.options.targets.none and is_gpu_package(distribution.metadata.name):
            return tuple(_not_needed(wheel, order) for order in orders)
        check_tools_for(first.options, distribution.name.platform)
        makings = [_Making.of(distribution, order) for order in orders]
        for order in orders:
            if not order.options.dry_run:
                order.folder.mkdir(parents=True, exist_ok=True)
        with staging_folder(existing_parent(first.folder)) as scratch, ExitStack() as finished:
            jobs = _jobs(distribution, scratch, makings)
            progress.begin(wheel.name, sum(job.size for job in jobs))
            libraries, stock_sha256 = _cut_all(distribution, jobs, first.options, progress)
            if first.options.split:
                return _finish_split(makings, jobs, libraries, stock_sha256, finished)
            packed: _Packed = {}
            results = []
            for index, making in enumerate(makings):
                own = {name: each[index] for name, each in libraries.items()}
                results.append(making.named_after(own).finish(index, jobs, own, stock_sha256, packed, finished))
    return tuple(results)


def _finish_split(
    makings: Sequence[_Making],
    jobs: Sequence[_MemberJob],
    libraries: Mapping[str, tuple[LibraryResult, ...]],
    stock_sha256: str,
    finished: ExitStack,
) -> tuple[TailorResult, ...]:
    """One wheel without GPU code for all orders, and for each a wheel of packs."""
    first = makings[0]
    for name, each in libraries.items():
        if len({one.sha256_out for one in each}) != 1:
            raise CheckFailedError(f"{name} without its GPU code is not the same for all GPUs.", "Report it.")
    by_order = [{name: each[index] for name, each in libraries.items()} for index in range(len(makings))]
    split = stripped_with(by_order[0], asked=first.options.strip)
    version = pack_version(first.distribution, split.values(), _earlier_label(first.distribution))
    served = any(one.packed for each in by_order for one in each.values())
    host = first.finish(0, jobs, by_order[0], stock_sha256, {}, finished, packs=version if served else "")
    results = []
    for index, making in enumerate(makings):
        own = {name: replace(one, path=name) for name, one in by_order[index].items() if name in split}
        result = replace(host, libraries=tuple(own[name] for name in sorted(own)))
        if host.output is None or not host.changed or result.useless_for_target:
            results.append(result)
            continue
        folder = making.order.folder
        if folder != first.order.folder:
            link_or_copy(host.output, folder / host.output.name)
            result = replace(result, output=folder / host.output.name)
        packs = {
            job.name: place.folder / one.pack
            for job in jobs
            if (one := own[job.name]).moved_digest and job.name not in making.dropped
            if (place := job.cuts[index].pack) and place.folder
        }
        rows = [own[name] for name in packs]
        wheel = write_pack_wheel(making.distribution, folder, version, making.options, packs, rows)
        results.append(replace(result, pack_wheels=(wheel,)))
    return tuple(results)


def _not_needed(wheel: Path, order: WheelOrder) -> TailorResult:
    """A package that is for a GPU only: nothing is written, and others get stand-ins for its libraries."""
    size, sha256 = wheel.stat().st_size, hash_file(wheel)
    result = TailorResult(ArtifactKind.WHEEL, wheel, None, (), size, 0, order.options.dry_run, sha256)
    return replace(result, not_needed=True)


def _left_alone(wheel: Path, order: WheelOrder, error: UnusualRecordError) -> TailorResult:
    """A wheel whose RECORD cannot be written anew is copied as it is."""
    size, sha256 = wheel.stat().st_size, hash_file(wheel)
    dry_run = order.options.dry_run
    result = TailorResult(ArtifactKind.WHEEL, wheel, None, (), size, size, dry_run, sha256, sha256)
    note = f"{wheel.name} is left unchanged: {error.message.rstrip('.')}."
    if dry_run:
        return replace(result, notes=(note,))
    order.folder.mkdir(parents=True, exist_ok=True)
    return replace(_copied(result, order.folder), notes=(note,))


# Libraries that are in a finished wheel already, by their hash, their mode and the effort of packing.
_Packed = dict[tuple[str, int, Effort], tuple[WheelArchive, Member]]


@dataclass(frozen=True)
class _Making:
    """One of the wheels that are made from a stock one."""

    tree: WheelTree
    order: WheelOrder
    label: str
    left_out: FilesLeftOut
    without: WithoutGpu

    @property
    def distribution(self) -> WheelDistribution:
        return self.tree.distribution

    @cached_property
    def version(self) -> str:
        return _new_version(self.distribution, self.label)

    @cached_property
    def target(self) -> Path:
        return self.order.folder / _new_name(self.distribution, self.label)

    def named_after(self, libraries: Mapping[str, LibraryResult]) -> _Making:
        """The same with the label of what was done: that of the GPUs only if something was taken out for them."""
        cut = [one for name, one in libraries.items() if one.status is LibraryStatus.CUT and name not in self.dropped]
        rules = [drop_rules().get(file.rule) for file in self.dropped.values()]
        for_gpus = any(one.dropped or one.moved for one in cut) or any(rule and rule.by_target for rule in rules)
        if not (for_gpus or self.options.workload or self.options.targets.none):
            return replace(self, label=_plain_label(self.distribution))
        files = (member.name for member in self.distribution.archive.files if member.name not in self.dropped)
        ptx = any(library.ptx for library in libraries.values()) or any(name.endswith(".ptx") for name in files)
        return self if ptx else replace(self, label=self.options.without_ptx.label)

    @cached_property
    def indexes(self) -> tuple[MadeIndex, ...]:
        def renamed(name: str) -> str:
            return self.distribution.renamed(name, self.version)

        return module_indexes(self.tree, self.options, self.dropped, renamed=renamed)

    @property
    def dropped(self) -> Mapping[str, DroppedFile]:
        return self.left_out.files

    @property
    def options(self) -> Cut:
        return self.order.options

    @classmethod
    def of(cls, distribution: WheelDistribution, order: WheelOrder) -> _Making:
        output, label = order.output, order.options.label
        labels = (label, order.options.without_ptx.label, _plain_label(distribution))
        targets = [order.folder / _new_name(distribution, one) for one in labels]
        names = {one.name for target in targets for one in (target, *_with_relr_tag(target, order.options))}
        if output.suffix == ".whl" and output.name not in {*names, distribution.path.name}:
            raise UsageError(
                f"A wheel's name follows from its content: this one is {targets[0].name}.",
                f"Write -o {output.parent} instead.",
            )
        tree = WheelTree(distribution)
        without = WithoutGpu.of(tree, order.options)
        return cls(tree, order, label, left_out_of(tree, order.options).and_also(without.gone), without)

    def finish(
        self,
        index: int,
        jobs: Sequence[_MemberJob],
        cut: dict[str, LibraryResult],
        stock_sha256: str,
        packed: _Packed,
        finished: ExitStack,
        packs: str = "",
    ) -> TailorResult:
        """Write the wheel, or copy the stock one where nothing was cut; `packs` is the version of a split's packs."""
        options, wheel, target = self.order.options, self.distribution.path, self.target
        cut = {name: one for name, one in stripped_with(cut, asked=options.strip).items() if name not in self.dropped}
        own = {job.name: job.cuts[index] for job in jobs if job.name in cut and cut[job.name].status.changed}
        changed = {name: job.target for name, job in own.items()}
        libraries = tuple(cut[name] for name in sorted(cut))
        size = self.distribution.archive.size
        kind = ArtifactKind.WHEEL
        # as they are in the output: the name of a `.data` folder has the version in it
        renamed = self.distribution.renamed
        dropped = tuple(replace(one, path=renamed(name, self.version)) for name, one in self.dropped.items())
        result = TailorResult(kind, wheel, None, libraries, size, size, options.dry_run, stock_sha256, stock_sha256)
        others = self.left_out.others(self.tree.sizes)
        kept = tuple(self.left_out.refused.values())
        result = replace(result, dropped_files=dropped, kept_files=kept, unopened=options.unopened(others))
        result = replace(result, module_indexes=tuple(made.index for made in self.indexes))
        if options.targets.none:
            standing = self._gpu_stand_ins({} if options.dry_run else changed)
            result = replace(result, stand_ins=standing, changed_requirements=self.without.changed_requirements)
        if options.dry_run or (result.useless_for_target and not packs):
            return result
        if not result.differs:
            return _copied(result, self.order.folder)
        if target.exists() and target.samefile(wheel):
            raise UsageError("The new wheel would have the name and place of the old one.", "Choose another -o.")
        if packed_in := _with_relr(changed, cut):
            target = _for_relr(target, map(_machine, packed_in))
        check_wheel_place(target)
        listed = [replace(library, path=self.distribution.renamed(library.path, self.version)) for library in libraries]
        if packs:  # what is for one GPU is in its packs' manifest
            listed = [replace(one, pack="", pack_size=0, pack_sha256="", packed={}) for one in listed]
        document = manifest(
            (options.without_targets if packs else options).with_default_strip(),
            {"kind": kind.value, "name": wheel.name, "sha256": stock_sha256, "size": size},
            {"name": target.name, "version": self.version},
            listed,
            dropped,
            label=self.label,
            stand_ins=result.stand_ins,
            changed_requirements=result.changed_requirements,
            indexes=result.module_indexes,
        )
        effort = _effort(options, [cut[name] for name in changed])
        added = self._added(own, cut, result.stand_ins)
        if packs:
            name = folder_name(self.distribution.metadata.name)
            note = split_note(name, self.version, cut.values())
            added.append(self._new(f"{pack_folder(name)}/{SPLIT_NOTE}", note))
        with new_wheel(target, effort=effort, threads=options.workers) as writer:
            _write(writer, self, changed, cut, document, packed, effort, added, packs)
        made = finished.enter_context(WheelArchive(target))
        self._check_members(made, changed, frozenset(file.path for file in added if file.path in self.dropped))
        for name in changed:
            member = made.members[self.distribution.renamed(name, self.version)]
            packed.setdefault((cut[name].sha256_out, member.mode, effort), (made, member))
        result = replace(result, output=target, size_after=target.stat().st_size, sha256_after=hash_file(target))
        hooks = [file.content for file in added if isinstance(file.content, Path) and file.path.endswith(HOOK_NAME)]
        notes = [note for hook in hooks for note in newer_hook(target, hook)]
        return replace(result, notes=(*notes, *(() if packs else larger_wheel(result))))

    def _added(
        self, jobs: Mapping[str, LibraryJob], cut: Mapping[str, LibraryResult], for_gpus: Sequence[GpuStandIn]
    ) -> list[NewFile]:
        """What the wheel has besides: packs, unless they are wheels of their own, the hook, and what stands in for
        others."""
        beside = {file.path: file for name, job in jobs.items() for file in job.added(self.tree, cut[name])}
        kept = [beside[path] for path in sorted(beside) if not (self.options.split and path.endswith(PACK_SUFFIX))]
        kept += distinct(stand_ins(self.tree, self.dropped).values())
        return [*kept, *(gpu.file for gpu in for_gpus), *distinct([made.files for made in self.indexes], kept)]

    def _new(self, path: str, content: bytes) -> NewFile:
        return NewFile(path, content, FileState.of_bytes(content), self.tree.package)

    def _gpu_stand_ins(self, changed: Mapping[str, Path]) -> tuple[GpuStandIn, ...]:
        """Stand-ins for the libraries of NVIDIA's that those of the wheel ask for."""
        stock = asking_in(self.tree)

        def read(path: str) -> AskingLibrary | None:
            if not (cut := changed.get(path)):
                return stock(path)
            with open_source(cut) as source:
                return AskingLibrary.read(path, ElfFile(source))

        return self.without.with_stand_ins(read).stand_ins

    def _check_members(self, made: WheelArchive, changed: Mapping[str, Path], replaced: frozenset[str]) -> None:
        """What the stock wheel has the new one has too, the same by its checksum, but for what was cut or dropped."""
        for member in self.distribution.payload():
            there = made.members.get(self.distribution.renamed(member.name, self.version))
            if (there is None) is not (member.name in self.dropped and member.name not in replaced):
                what = "lacks" if there is None else "still has"
                raise CheckFailedError(f"The new wheel {what} {member.name}.", "Report it.")
            same = there is None or (there.size, there.crc) == (member.size, member.crc)
            new = member.name in changed or member.name in replaced or member.name.endswith(_WRITTEN_ANEW)
            if not same and not new:
                raise CheckFailedError(f"{member.name} is another file in the new wheel.", "Report it.")


def _with_relr(changed: Mapping[str, Path], results: Mapping[str, LibraryResult]) -> list[Path]:
    return [path for name, path in changed.items() if results[name].relr]


def _with_relr_tag(target: Path, options: Cut) -> tuple[Path, ...]:
    return (_for_relr(target, ()),) if options.relr else ()


def _for_relr(target: Path, machines: Iterable[str]) -> Path:
    """The name of a wheel whose libraries need a newer glibc than its stock one promises."""
    return target.with_name(str(WheelName.parse(target).for_glibc(RELR_GLIBC, set(machines))))


def _machine(library: Path) -> str:
    with open_source(library) as source:
        return ElfFile(source).machine.arch


def _effort(options: Cut, libraries: Sequence[LibraryResult]) -> Effort:
    """How hard to pack what was changed: harder with --recompress, which is slow and for size anyway, where it takes no
    noticeable time, and where so little was taken out that quick packing could make the wheel larger than it was."""
    quick = sum(library.size_after for library in libraries) < _QUICK_TO_PACK
    little = (
        sum(library.saved + library.zeroed for library in libraries)
        < sum(library.size_before for library in libraries) * _MUCH
    )
    return Effort.SMALL if options.recompress or quick or little else Effort.FAST


def _new_version(distribution: WheelDistribution, label: str) -> str:
    return labelled_version(
        distribution.metadata.version,
        label,
        stock_local=distribution.stock_local,
        earlier_label=_earlier_label(distribution),
    )


def _new_name(distribution: WheelDistribution, label: str) -> str:
    return str(distribution.name.with_version(_new_version(distribution, label)))


def _plain_label(distribution: WheelDistribution) -> str:
    """The label of a wheel from which nothing is taken out for a GPU: that of an earlier cut still holds."""
    return _earlier_label(distribution) or TAILORED


def _earlier_label(distribution: WheelDistribution) -> str:
    earlier = f"{distribution.dist_info}/{MANIFEST}"
    archive = distribution.archive
    return label_of(archive.read(earlier)) if earlier in archive.members else ""


def _jobs(distribution: WheelDistribution, scratch: Path, makings: Sequence[_Making]) -> list[_MemberJob]:
    tree = makings[0].tree
    jobs: list[_MemberJob] = []
    for member in distribution.archive.files:
        name = member.name
        if all(name in making.dropped for making in makings) or not is_library(tree.file(name)):
            continue
        row = distribution.record.get(name)
        folder, short = scratch / str(len(jobs)), Path(name).name
        unpacked, cut = folder / "stock" / short, [folder / f"cut{index}" / short for index, _ in enumerate(makings)]
        cuts = (
            LibraryJob.of(tree, name, member.size, unpacked, target, making.options.with_default_strip())
            for making, target in zip(makings, cut, strict=True)
        )
        jobs.append(_MemberJob(distribution.path, member, row.hash if row else None, tuple(cuts)))
    return jobs


def _cut_all(
    distribution: WheelDistribution, jobs: list[_MemberJob], options: Cut, progress: Progress
) -> tuple[dict[str, tuple[LibraryResult, ...]], str]:
    """Cut the libraries in processes, and meanwhile check all other files against RECORD; also the wheel's hash."""
    names = {job.name for job in jobs}
    others = [member for member in distribution.archive.files if member.name not in names]
    work = run_all(_cut, jobs, processes=options.workers)
    results = {}
    with ThreadPoolExecutor(1) as checker:
        checked = checker.submit(_check_all, distribution, others)
        sha256 = checker.submit(hash_file, distribution.path)
        for job, each in followed(jobs, work, progress):
            results[job.name] = each
        checked.result()
        return results, sha256.result()


def _check_all(distribution: WheelDistribution, members: Sequence[Member]) -> None:
    for member in members:
        distribution.check(member)


def _cut(job: _MemberJob) -> tuple[LibraryResult, ...]:
    """In a worker: unpack a library, check it against RECORD, cut it with each of the options."""
    hasher = job.hash.new() if job.hash else None
    unpacked = job.cuts[0].source
    unpacked.parent.mkdir(parents=True)
    try:
        with open_member(job.wheel, job.member) as source, unpacked.open("wb") as file:
            for chunk in source.chunks():
                file.write(chunk)
                if hasher:
                    hasher.update(chunk)
        if job.hash and hasher and hasher.digest() != job.hash.digest:
            raise BadInputError(
                f"{job.wheel.name}: {job.name} does not have the hash in RECORD.", "Fetch the wheel again."
            )
        sha256 = job.hash.digest.hex() if job.hash and job.hash.algorithm == "sha256" else ""
        results: list[LibraryResult] = []
        with reading_once():
            for index, one in enumerate(job.cuts):
                results.append(_cut_one(one, list(zip(job.cuts[:index], results, strict=True)), sha256))
        return tuple(results)
    finally:
        unpacked.unlink(missing_ok=True)


def _cut_one(job: LibraryJob, earlier: Sequence[tuple[LibraryJob, LibraryResult]], sha256: str) -> LibraryResult:
    """Cut a library with one of the options; without GPU code the output is the same for every target."""
    job.target.parent.mkdir()
    for other, result in earlier:
        same = replace(other.options, targets=job.options.targets) == job.options
        if same and not result.has_gpu_code and not result.reason:
            if result.status.changed:
                job.target.hardlink_to(other.target)
            return result
    result = replace(job, sha256=sha256).cut()
    if job.options.split and any(one.sha256_out == result.sha256_out for _, one in earlier):
        job.target.unlink(missing_ok=True)  # the first is what is written
    return result


def _copied(result: TailorResult, folder: Path) -> TailorResult:
    target = folder / result.source.name
    if not (target.exists() and target.samefile(result.source)):
        check_wheel_place(target, result.source)
        copy_file(result.source, target)
    return replace(result, output=target, notes=(COPIED,))


def _written_anew(
    making: _Making, changed: Mapping[str, Path], results: Mapping[str, LibraryResult], packs: str
) -> dict[str, bytes]:
    """METADATA with the new version, and WHEEL where the tags are others."""
    distribution = making.distribution
    metadata_name, wheel_name = (f"{distribution.dist_info}/{name}" for name in ("METADATA", "WHEEL"))
    metadata = with_version(distribution.archive.read(metadata_name), making.version)
    metadata = making.without.metadata(distribution.dist_info, metadata)
    if packs:
        gpus = served_gpus(making.options, results.values())
        metadata = host_metadata(metadata, distribution.metadata.name, packs, gpus, making.options.also)
    packed_in = _with_relr(changed, results)
    if not packed_in:
        return {metadata_name: metadata}
    tags = WheelName.parse(_for_relr(making.target, map(_machine, packed_in))).tags
    return {metadata_name: metadata, wheel_name: with_tags(distribution.archive.read(wheel_name), tags)}


def _write(
    writer: WheelWriter,
    making: _Making,
    changed: Mapping[str, Path],
    results: Mapping[str, LibraryResult],
    document: bytes,
    packed: _Packed,
    effort: Effort,
    added: Sequence[NewFile],
    packs: str,
) -> None:
    """All members in their order, the changed ones compressed again; packs, manifest and RECORD come last."""
    distribution, version = making.distribution, making.version
    anew = _written_anew(making, changed, results, packs)
    for member in distribution.payload():
        if member.name in making.dropped:
            continue
        name = distribution.renamed(member.name, version)
        if member.name in changed:
            cut, sha256 = changed[member.name], results[member.name].sha256_out
            mode = member.mode or stat.S_IFREG | 0o755
            if known := packed.get((sha256, mode, effort)):
                writer.copy(*known, name, FileHash.from_hex(sha256))
            else:
                writer.add_file(name, cut, mode, sha256=FileHash.from_hex(sha256))
            cut.unlink()
        elif member.name in anew:
            writer.add_bytes(name, anew[member.name], member.mode or DEFAULT_MODE)
        else:
            writer.copy(distribution.archive, member, name, distribution.hash_of(member))
    for file in added:
        name = distribution.renamed(file.path, version)
        if isinstance(file.content, bytes):
            writer.add_bytes(name, file.content)
        else:
            writer.add_file(name, file.content, sha256=FileHash.from_hex(file.state.sha256))
    dist_info = distribution.renamed(f"{distribution.dist_info}/", version)
    writer.add_bytes(f"{dist_info}{MANIFEST}", document)
    writer.add_record(f"{dist_info}RECORD")
