"""GPU code: everything the GPU needs is there, nothing foreign is left, and nothing was lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torchtailor.catalog import Capability, Catalog, Fit, TorchArch
from torchtailor.code.gpucode.fatbin import codes_of
from torchtailor.code.gpucode.files import CodeFileKind
from torchtailor.code.gpucode.fitness import GpuFit, gpu_fit
from torchtailor.code.gpucode.policy import Policy
from torchtailor.code.gpucode.report import LibraryReport
from torchtailor.code.gpucode.targets import Targets
from torchtailor.core.format import counted, human_bytes
from torchtailor.trees.artifact.artifact import Artifact
from torchtailor.trees.artifact.drops import Drops, rules_of_code
from torchtailor.verification.inspection.torch_code import MAIN_LIBRARY
from torchtailor.verification.result import Check, Level
from torchtailor.verification.static.coverage import CodeCoverage
from torchtailor.verification.static.cuts import CutRecord, cut_for_no_gpu, cut_record, keeps_lto
from torchtailor.verification.static.read import LibraryFacts

_SHOWN = 4


def fit_checks(
    artifact: Artifact,
    libraries: Sequence[LibraryFacts],
    gpus: Sequence[Capability],
    catalog: Catalog,
    stock: Mapping[str, LibraryReport],
) -> Iterator[Check]:
    """For each GPU and each library with GPU code: does it hold something the GPU runs?"""
    with_code = [facts for facts in libraries if facts.gpu and facts.gpu.has_code]
    reports = [facts.gpu for facts in with_code if facts.gpu]
    if not reports:
        yield Check.not_applicable(Level.STATIC, "GPU code", _no_code(libraries))
        return
    if not gpus:
        where = "they were cut for machines without a GPU" if cut_for_no_gpu(artifact) else "it is in packs"
        held = ", ".join(_labels(reports)) or f"none themselves: {where}"
        yield Check.not_applicable(
            Level.STATIC, "GPU code", f"no GPU was named (--gpu or --variant); the libraries hold {held}"
        )
        return
    alike = Counter(Path(report.name).name for report in reports)
    for gpu in gpus:
        fits = {report.name: gpu_fit(report, gpu, catalog.rules) for report in reports}
        main = [fit for name, fit in fits.items() if Path(name).name == MAIN_LIBRARY]
        sound = any(_runs(fit) for fit in main or fits.values())
        for facts, report in zip(with_code, reports, strict=True):
            short = Path(report.name).name
            name = f"GPU code for {gpu.sm}: {short if alike[short] == 1 else report.name}"
            fit = fits[report.name]
            if _runs(fit):
                yield _fit_check(name, report, fit)
            elif runs := _in_packs(facts, gpu, catalog):
                reason = f"its code for {gpu} ({runs}) is in packs"
                yield Check.of(Level.STATIC, name, True, reason, **_details(report, fit))
            else:
                lost = _lost(artifact, facts, report, gpu, catalog, stock.get(report.name))
                yield _without_code(name, facts, report, fit, lost, catalog, sound=sound)


def _in_packs(facts: LibraryFacts, gpu: Capability, catalog: Catalog) -> str:
    """Code of packs that the GPU uses; empty where there is none."""
    images = (packed.image for packed in facts.packed.images)
    targets = set(codes_of(images))
    policy = Policy(Targets((TorchArch(gpu),)), catalog.rules)
    return ", ".join(sorted(str(target) for target in targets if policy.fits(gpu, target)))


def _no_code(libraries: Sequence[LibraryFacts]) -> str:
    """Why there is no GPU code to look at."""
    if not libraries:
        return "there are no libraries"
    unread = sum(bool(facts.problem) and not facts.foreign for facts in libraries)
    if unread:
        return f"{counted(unread, 'library', 'libraries')} of {len(libraries)} cannot be read, the others hold none"
    torch = any(facts.name.startswith("torch/") for facts in libraries)
    return "no library holds GPU code" + (": this is a CPU build" if torch else "")


def _runs(fit: GpuFit) -> bool:
    return fit.fit.runs or bool(fit.linked_at_run_time)


def _fit_check(name: str, report: LibraryReport, fit: GpuFit) -> Check:
    reason = f"{fit.verdict} ({fit.code})" if fit.code else fit.verdict
    if fit.fit is Fit.JIT:
        reason += ": the driver compiles it at first use, which takes minutes once"
    return Check.of(Level.STATIC, name, True, reason, **_details(report, fit))


def _without_code(
    name: str, facts: LibraryFacts, report: LibraryReport, fit: GpuFit, lost: _Lost, catalog: Catalog, *, sound: bool
) -> Check:
    """A library with nothing for the GPU: a failure, unless it lost nothing and what it belongs to runs (`sound`)."""
    details = _details(report, fit)
    held = ", ".join(group.label for group in report.architectures)
    if report.architectures and not facts.kernels:
        reason = f"holds {held} without a single kernel: nothing is missing"
        return Check.not_applicable(Level.STATIC, name, reason, **details)
    if sound and not lost.code:
        return Check.not_applicable(
            Level.STATIC, name, f"holds {held or 'empty containers'}, nothing for {fit.device}: {lost.why}", **details
        )
    gpu = fit.device
    what = catalog.gpus[gpu].describe(2) if gpu in catalog.gpus else str(gpu)
    reason = (
        f"holds {held or 'nothing'}, and none of it runs on {gpu} ({what}): its kernels would fail with"
        f" 'no kernel image is available for execution on the device'; "
    )
    if lost.split:
        reason += f"its GPU code is in packages of its own: install those of the extra {gpu.sm}"
    else:
        reason += f"tailor the stock with --gpu {gpu}" if lost.code else f"{lost.why}: use another build of the package"
    return Check.of(Level.STATIC, name, False, reason, **details)


@dataclass(frozen=True, slots=True)
class _Lost:
    """Whether a library without code for a GPU lost it by the cut; where not, how that is known."""

    code: bool
    why: str = ""
    split: bool = False  # it went to packs, and those for the GPU are not there


def _lost(
    artifact: Artifact,
    facts: LibraryFacts,
    report: LibraryReport,
    gpu: Capability,
    catalog: Catalog,
    stock: LibraryReport | None,
) -> _Lost:
    record = cut_record(artifact, facts)
    split = record is not None and record.split
    if stock is not None:
        had = _runs(gpu_fit(stock, gpu, catalog.rules))
        return _Lost(had, "stock has none either", had and split)
    if record is None:
        return _Lost(False, "it was not cut by torchtailor")
    policy = Policy(Targets((TorchArch(gpu),)), catalog.rules, keep_lto=keeps_lto(record.manifest))
    had = any(policy.fits(gpu, code) for code in record.codes_before)
    return _Lost(had, "it had none before the cut (torchtailor.json)", had and split)


def _details(report: LibraryReport, fit: GpuFit) -> dict[str, Any]:
    held = [group.label for group in report.architectures]
    return {"library": report.name, "gpu": str(fit.device), "verdict": fit.verdict, "holds": held}


@dataclass
class _LeftCode:
    """The code that is left in what was cut, by whether the targets can use it."""

    libraries: int = 0
    kept: int = 0
    shared: int = 0  # for other GPUs, in libraries that a split makes for all
    foreign: Counter[str] = field(default_factory=Counter)
    left: Counter[str] = field(default_factory=Counter)  # for other GPUs: needed by nobody knows what, or too small
    removed: dict[str, None] = field(default_factory=dict)

    def add(
        self,
        record: CutRecord,
        facts: LibraryFacts,
        report: LibraryReport,
        gpus: Sequence[Capability],
        catalog: Catalog,
    ) -> None:
        policy = record.policy(catalog)
        others = set(gpus) - set(policy.devices)
        if others and not record.split:
            self.removed |= dict.fromkeys(_removed(record, facts, others, catalog))
        if record.split:
            policy = replace(policy, targets=Targets(tuple(TorchArch(gpu) for gpu in gpus)))
        self.libraries += report.has_code
        for group in report.container_groups:
            for image, size in zip(group.images, group.stored_by_image, strict=True):
                where = f"{facts.file.short_name} ({image.label})"
                if policy.allows(image):
                    self.kept += size
                elif record.split:
                    self.shared += size
                elif not group.can_be_cut or record.code_kept:
                    self.left[where] += size
                elif size:
                    self.foreign[where] += size


def foreign_checks(
    artifact: Artifact, libraries: Sequence[LibraryFacts], gpus: Sequence[Capability], catalog: Catalog
) -> Iterator[Check]:
    """Nothing that no target can use is left in what was cut.

    The targets are those in the manifest. A GPU that is asked for and not among them must not have lost its cubins.
    """
    name = "GPU code: nothing foreign"
    if not artifact.tailored:
        total = sum(facts.gpu.stored for facts in libraries if facts.gpu)
        if total:
            reason = f"not tailored: there is no torchtailor.json; all {human_bytes(total)} of GPU code are there"
            yield Check.not_applicable(Level.STATIC, name, reason)
        return
    code = _LeftCode()
    for facts in libraries:
        record = cut_record(artifact, facts)
        if record is not None and not record.untouched and facts.gpu is not None:
            code.add(record, facts, facts.gpu, gpus, catalog)
    foreign, left, removed, looked_at, kept = code.foreign, code.left, code.removed, code.libraries, code.kept
    left += _foreign_files(artifact, catalog)
    cut_for = sorted({gpu for one in artifact.tailored.values() for gpu in one.get("target", {}).get("gpus", ())})
    if foreign or removed:
        worst = ", ".join(f"{where} {human_bytes(size)}" for where, size in foreign.most_common(_SHOWN))
        reason = f"cut for {', '.join(cut_for)}"
        reason += f"; code that it cannot use is left: {worst}" if foreign else ""
        lost = f"; code that {', '.join(map(str, gpus))} would use was removed: {', '.join(list(removed)[:_SHOWN])}"
        reason += lost if removed else ""
        yield Check.of(Level.STATIC, name, False, reason, foreign=foreign, removed=list(removed))
        return
    what = "1 library was" if looked_at == 1 else f"{looked_at} libraries were"
    whose = "for it" if len(cut_for) == 1 else "for them"
    reason = f"{what} cut for {', '.join(cut_for)}; all {human_bytes(kept)} of GPU code left are {whose}"
    if not cut_for and cut_for_no_gpu(artifact):
        stays = f"{human_bytes(left.total())} could not be removed" if left else "no GPU code is left"
        reason = f"{what} cut for machines without a GPU; {stays}"
    elif not cut_for:
        reason = f"{what} split: the code for each GPU is in a package of its own"
    elif left:
        most = ", ".join(f"{where} {human_bytes(size)}" for where, size in left.most_common(_SHOWN))
        reason = (
            f"{what} cut for {', '.join(cut_for)}; {human_bytes(kept)} of GPU code are {whose}, and"
            f" {human_bytes(left.total())} for other GPUs were left, because it is not known that nothing needs"
            f" them, or removing them would save nothing: {most}"
        )
    if code.shared:
        reason += f"; {human_bytes(code.shared)} that no hook can hand out stay for all GPUs"
    yield Check.of(Level.STATIC, name, True, reason, libraries=looked_at, bytes=kept, left=left, shared=code.shared)


def _removed(record: CutRecord, facts: LibraryFacts, others: Collection[Capability], catalog: Catalog) -> Iterator[str]:
    """The code that the cut removed and other GPUs than its own would run, where they run no cubin that is left."""
    assert facts.gpu is not None
    for gpu in sorted(others):
        if gpu_fit(facts.gpu, gpu, catalog.rules).fit not in (Fit.NATIVE, Fit.COMPATIBLE):
            yield from (
                f"{facts.file.short_name} ({code})"
                for code in record.codes_removed
                if catalog.rules.fit(gpu, code) in (Fit.NATIVE, Fit.COMPATIBLE)
            )


def _foreign_files(artifact: Artifact, catalog: Catalog) -> Counter[str]:
    """Bytes of files with code for other GPUs, by what they are for."""
    left: Counter[str] = Counter()
    for owner, manifest in artifact.tailored.items():
        archs = " ".join(manifest.get("target", {}).get("archs", ()))
        if not archs:
            continue  # the wheel of a split that is for all GPUs
        policy = Policy(Targets(TorchArch.parse_list(archs)), catalog.rules)
        found = (file.code() for file in artifact.code_files if file.owner in ("", owner))
        files = [file for file in found if file]
        by_name = {file.name: file for file in files}
        sizes = {file.name: file.size for file in files}
        for foreign in Drops.of(rules_of_code(), policy).find(sizes, by_name.get).values():
            left[f"files of {foreign.code}"] += foreign.size
        for file in files:
            for group in file.architectures if file.kind in (CodeFileKind.ARCHIVE, CodeFileKind.FATBIN) else ():
                if group.target and not any(policy.fits(gpu, group.target) for gpu in policy.devices):
                    left[f"{file.kind.value} ({group.label})"] += group.stored
        if not artifact.wheels:
            break  # loose files belong to all of them
    return left


def coverage_checks(
    coverages: Sequence[CodeCoverage], missing: Sequence[str], gpus: Sequence[Capability], dropped: Sequence[str] = ()
) -> Iterator[Check]:
    """Against stock: every image that the GPUs use is there, byte for byte; `dropped` libraries were left out by
    choice."""
    for path in missing:
        yield Check.of(
            Level.STATIC,
            f"coverage: {path.rsplit('/', 1)[-1]}",
            False,
            "stock has this library, and the artifact does not",
            library=path,
        )
    named = ", ".join(gpu.sm for gpu in gpus) or "any GPU"
    whole = [found for found in coverages if not found.lost]
    for found in coverages:
        if found.lost:
            kernels = (
                f"; {len(found.lost_kernels)} kernels are gone, such as {found.lost_kernels[0]}"
                if found.lost_kernels
                else ""
            )
            yield Check.of(
                Level.STATIC,
                f"coverage: {found.library.rsplit('/', 1)[-1]}",
                False,
                f"{found.lost} of {found.needed} images that {named} uses are missing{kernels}",
                library=found.library,
                lost=found.lost,
                needed=found.needed,
                kernels=found.lost_kernels[:100],
            )
    if whole:
        images = sum(found.needed for found in whole)
        where = counted(len(whole), "library", "libraries")
        yield Check.of(
            Level.STATIC,
            "coverage against stock",
            True,
            f"{'the 1 image' if images == 1 else f'all {images} images'} that {named} uses of stock"
            f" {'is' if images == 1 else 'are'} in {where}, byte for byte",
            libraries=len(whole),
            images=images,
        )
    elif not coverages:
        reason = (
            f"what stock holds GPU code in was left out with --drop: {', '.join(dropped[:_SHOWN])}"
            if dropped
            else "no library of stock holds GPU code"
        )
        yield Check.not_applicable(Level.STATIC, "coverage against stock", reason)


def _labels(reports: Sequence[LibraryReport]) -> list[str]:
    return list(dict.fromkeys(group.label for report in reports for group in report.architectures))
