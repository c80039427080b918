"""Tailors a wheel: a new wheel with a label in its version, a right RECORD and a manifest."""

from __future__ import annotations

import stat
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from torchtailor.disk import copy_file, disk_errors, existing_parent, hash_file, staging_folder
from torchtailor.errors import BadInputError, UsageError
from torchtailor.licences import needs_nvidia_option
from torchtailor.progress import NoProgress, Progress
from torchtailor.surgery.library import reading_once
from torchtailor.tailor.manifest import label_of, library_json, manifest
from torchtailor.tailor.outcome import COPIED, Fate, LibraryOutcome, Outcome
from torchtailor.tailor.settings import Settings
from torchtailor.tailor.work import ELF_MAGIC, LibraryWork, is_library_name, run_all
from torchtailor.wheels.archive import Member, WheelArchive, open_member
from torchtailor.wheels.deflate import Effort
from torchtailor.wheels.distribution import MANIFEST, WheelDistribution
from torchtailor.wheels.metadata import with_version
from torchtailor.wheels.name import labelled_version
from torchtailor.wheels.record import FileHash, Record, RecordRow
from torchtailor.wheels.write import DEFAULT_MODE, WheelWriter, new_wheel

KIND = "wheel"


@dataclass(frozen=True)
class Order:
    """A wheel to be made of a stock one: where (a folder, or the file's name) and how."""

    output: Path
    settings: Settings

    @property
    def folder(self) -> Path:
        return self.output.parent if self.output.suffix == ".whl" else self.output


@dataclass(frozen=True)
class _MemberJob:
    """One library of a wheel: unpacked to `folder` once, cut there in each of the ways asked for."""

    wheel: Path
    member: Member
    hash: FileHash | None
    folder: Path
    works: tuple[LibraryWork, ...]

    @property
    def size(self) -> int:
        return self.member.size

    @property
    def unpacked(self) -> Path:
        return self.folder / "stock" / Path(self.member.name).name

    def cut(self, way: int) -> Path:
        return self.folder / f"cut{way}" / Path(self.member.name).name


def tailor_wheel(wheel: Path, output: Path, settings: Settings, progress: Progress | None = None) -> Outcome:
    """Cut the libraries of a wheel; `output` is the folder for the new wheel, or its file name.

    A wheel in which nothing is cut is copied as it is, so that a folder of wheels stays complete.
    """
    return tailor_wheel_each(wheel, [Order(output, settings)], progress)[0]


def tailor_wheel_each(wheel: Path, orders: Sequence[Order], progress: Progress | None = None) -> tuple[Outcome, ...]:
    """Cut one wheel in several ways; each gives the bytes it would give alone.

    Reading, unpacking and checking is done once, and so is the packing of libraries that come out the same.
    """
    progress = progress or NoProgress()
    first = orders[0]
    with WheelArchive(wheel) as archive, disk_errors(first.folder):
        distribution = WheelDistribution.of(archive)
        makings = [_Making.of(distribution, order) for order in orders]
        for order in orders:
            if not order.settings.dry_run:
                order.folder.mkdir(parents=True, exist_ok=True)
        with staging_folder(existing_parent(first.folder)) as scratch, ExitStack() as finished:
            jobs = _jobs(distribution, scratch, [order.settings for order in orders])
            progress.begin(wheel.name, sum(job.size for job in jobs))
            outcomes = _cut_all(distribution, jobs, first.settings, progress)
            stock_sha256 = hash_file(wheel)
            packed: _Packed = {}
            results = []
            for way, making in enumerate(makings):
                own = {name: each[way] for name, each in outcomes.items()}
                results.append(making.finish(way, jobs, own, stock_sha256, packed, finished))
    return tuple(results)


# Libraries that are in a finished wheel already, by their hash, their mode and how hard they were packed.
_Packed = dict[tuple[str, int, Effort], tuple[WheelArchive, Member]]


@dataclass(frozen=True)
class _Making:
    """One of the wheels that are made of a stock one."""

    distribution: WheelDistribution
    order: Order
    version: str
    target: Path

    @classmethod
    def of(cls, distribution: WheelDistribution, order: Order) -> _Making:
        version = _new_version(distribution, order.settings)
        target = order.folder / str(distribution.name.with_version(version))
        output = order.output
        if output.suffix == ".whl" and output.name not in (target.name, distribution.path.name):
            raise UsageError(
                f"A wheel's name is fixed by what is in it: this one is {target.name}.",
                f"Write -o {output.parent} instead.",
            )
        return cls(distribution, order, version, target)

    def finish(
        self,
        way: int,
        jobs: Sequence[_MemberJob],
        outcomes: dict[str, LibraryOutcome],
        stock_sha256: str,
        packed: _Packed,
        finished: ExitStack,
    ) -> Outcome:
        """Write the wheel, or copy the stock one where nothing was cut."""
        settings, wheel, target = self.order.settings, self.distribution.path, self.target
        outcomes = _worth_it(outcomes, settings)
        changed = {job.member.name: job.cut(way) for job in jobs if outcomes[job.member.name].fate.changed}
        libraries = tuple(outcomes[name] for name in sorted(outcomes))
        size = self.distribution.archive.size
        outcome = Outcome(KIND, wheel, None, libraries, size, size, settings.dry_run, stock_sha256, stock_sha256)
        if settings.dry_run or outcome.useless_for_target:
            return outcome
        if not changed:
            return _copied(outcome, self.order.folder)
        if target.exists() and target.samefile(wheel):
            raise UsageError("The new wheel would have the name and place of the old one.", "Choose another -o.")
        document = manifest(
            settings.choices(usually_strip=True),
            {"kind": KIND, "name": wheel.name, "sha256": stock_sha256, "size": size},
            {"name": target.name, "version": self.version},
            map(library_json, libraries),
        )
        effort = settings.effort(sum(outcomes[name].size_after for name in changed))
        with new_wheel(target, effort=effort, threads=settings.processes) as writer:
            _write(writer, self.distribution, self.version, changed, outcomes, document, packed, effort)
        made = finished.enter_context(WheelArchive(target))
        for name in changed:
            result = outcomes[name].result
            assert result is not None
            member = made.members[self.distribution.renamed(name, self.version)]
            packed.setdefault((result.sha256_out, member.mode, effort), (made, member))
        return replace(outcome, output=target, size_after=target.stat().st_size, sha256_after=hash_file(target))


def _new_version(distribution: WheelDistribution, settings: Settings) -> str:
    earlier = f"{distribution.dist_info}/{MANIFEST}"
    archive = distribution.archive
    return labelled_version(
        distribution.metadata.version,
        settings.targets.label,
        stock_local=distribution.stock_local,
        earlier_label=label_of(archive.read(earlier)) if earlier in archive.members else "",
    )


def _jobs(distribution: WheelDistribution, scratch: Path, ways: Sequence[Settings]) -> list[_MemberJob]:
    jobs: list[_MemberJob] = []
    for member in distribution.archive.files:
        if not is_library_name(member.name) or not distribution.archive.begins_with(member, ELF_MAGIC):
            continue
        consent = needs_nvidia_option(member.name, distribution.metadata)
        works = tuple(
            LibraryWork(
                settings.policy,
                settings.strips(usually=True),
                settings.recompress,
                consent and not settings.nvidia,
                settings.dry_run,
            )
            for settings in ways
        )
        row = distribution.record.get(member.name)
        folder = scratch / str(len(jobs))
        jobs.append(_MemberJob(distribution.path, member, row.hash if row else None, folder, works))
    return jobs


def _cut_all(
    distribution: WheelDistribution, jobs: list[_MemberJob], settings: Settings, progress: Progress
) -> dict[str, tuple[LibraryOutcome, ...]]:
    """Cut the libraries in processes, and meanwhile check all other files against RECORD."""
    names = {job.member.name for job in jobs}
    others = [member for member in distribution.archive.files if member.name not in names]
    results = run_all(_cut, jobs, processes=settings.processes)
    outcomes = {}
    with ThreadPoolExecutor(1) as checker:
        checked = [checker.submit(distribution.check, member) for member in others]
        for job, each in results:
            outcomes[job.member.name] = each
            progress.advance(job.size)
        for check in checked:
            check.result()
    return outcomes


def _worth_it(outcomes: dict[str, LibraryOutcome], settings: Settings) -> dict[str, LibraryOutcome]:
    """Where no GPU code is cut, a wheel is not made anew for its symbol tables, unless that was asked for."""
    if settings.strip or any(outcome.fate is Fate.CUT for outcome in outcomes.values()):
        return outcomes
    return {
        name: replace(outcome, fate=Fate.UNCHANGED) if outcome.fate.changed else outcome
        for name, outcome in outcomes.items()
    }


def _cut(job: _MemberJob) -> tuple[LibraryOutcome, ...]:
    """In a worker: unpack a library, see that it is what RECORD says, cut it in each way, and keep only the results."""
    hasher = job.hash.new() if job.hash else None
    job.unpacked.parent.mkdir(parents=True)
    try:
        with open_member(job.wheel, job.member) as chunks, job.unpacked.open("wb") as file:
            for chunk in chunks:
                file.write(chunk)
                if hasher:
                    hasher.update(chunk)
        if job.hash and hasher and hasher.digest() != job.hash.digest:
            raise BadInputError(
                f"{job.wheel.name}: {job.member.name} does not have the hash its RECORD says", "fetch the wheel again"
            )
        outcomes: list[LibraryOutcome] = []
        with reading_once():
            for way, work in enumerate(job.works):
                outcomes.append(_cut_one(job, way, work, outcomes))
        return tuple(outcomes)
    finally:
        job.unpacked.unlink(missing_ok=True)


def _cut_one(job: _MemberJob, way: int, work: LibraryWork, earlier: Sequence[LibraryOutcome]) -> LibraryOutcome:
    """Cut a library in one way; without GPU code it comes out the same for every target."""
    job.cut(way).parent.mkdir()
    for other, outcome in enumerate(earlier):
        if outcome.result and not outcome.has_gpu_code and replace(job.works[other], policy=work.policy) == work:
            if outcome.fate.changed:
                job.cut(way).hardlink_to(job.cut(other))
            return outcome
    return work.cut(job.member.name, job.unpacked, job.cut(way))


def _copied(outcome: Outcome, folder: Path) -> Outcome:
    target = folder / outcome.source.name
    if not (target.exists() and target.samefile(outcome.source)):
        copy_file(outcome.source, target)
    return Outcome(
        KIND,
        outcome.source,
        target,
        outcome.libraries,
        outcome.size_before,
        outcome.size_before,
        sha256_before=outcome.sha256_before,
        sha256_after=outcome.sha256_before,
        notes=(COPIED,),
    )


def _write(
    writer: WheelWriter,
    distribution: WheelDistribution,
    version: str,
    changed: Mapping[str, Path],
    outcomes: Mapping[str, LibraryOutcome],
    document: bytes,
    packed: _Packed,
    effort: Effort,
) -> None:
    """All members in their order, the changed ones packed anew; manifest and RECORD come last."""
    rows: list[RecordRow] = []
    metadata_name = f"{distribution.dist_info}/METADATA"
    for member in distribution.payload():
        name = distribution.renamed(member.name, version)
        if member.name in changed:
            cut, result = changed[member.name], outcomes[member.name].result
            assert result is not None
            mode = member.mode or stat.S_IFREG | 0o755
            if known := packed.get((result.sha256_out, mode, effort)):
                writer.copy(*known, name)
            else:
                writer.add_file(name, cut, mode)
            rows.append(RecordRow(name, FileHash.from_hex(result.sha256_out), result.size_after))
            cut.unlink()
        elif member.name == metadata_name:
            metadata = with_version(distribution.archive.read(metadata_name), version)
            writer.add_bytes(name, metadata, member.mode or DEFAULT_MODE)
            rows.append(RecordRow(name, FileHash.of(metadata), len(metadata)))
        else:
            writer.copy(distribution.archive, member, name)
            row = distribution.record.get(member.name)
            if row:
                rows.append(RecordRow(name, row.hash, member.size))
    dist_info = distribution.renamed(f"{distribution.dist_info}/", version)
    writer.add_bytes(f"{dist_info}{MANIFEST}", document)
    rows.append(RecordRow(f"{dist_info}{MANIFEST}", FileHash.of(document), len(document)))
    rows.append(RecordRow(f"{dist_info}RECORD"))
    writer.add_bytes(f"{dist_info}RECORD", Record(rows).encode())
