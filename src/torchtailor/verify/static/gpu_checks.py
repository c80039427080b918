"""GPU code: everything the GPU needs is there, nothing foreign is left, and nothing was lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from torchtailor.artifact.artifact import Artifact, installed_path
from torchtailor.catalog import Capability, Catalog, Fit, TorchArch
from torchtailor.gpucode.fitness import gpu_fit
from torchtailor.gpucode.policy import Policy
from torchtailor.gpucode.report import LibraryReport
from torchtailor.gpucode.targets import Targets
from torchtailor.ui.format import human_bytes
from torchtailor.verify.result import Check, Level
from torchtailor.verify.static.coverage import Coverage
from torchtailor.verify.static.read import LibraryFacts

_CHANGED = frozenset({"", "cut", "stripped"})  # the first: not in the manifest
_SHOWN = 4
_NO_KERNEL = 1024  # bytes: the headers of a cubin alone; nvcc leaves such images where a file has no device code


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
    emptied = {facts.name for facts in with_code if _dropped(artifact, facts)}
    if not reports:
        yield Check.not_applicable(Level.STATIC, "GPU code", "no library holds GPU code: this is a CPU build")
        return
    if not gpus:
        held = ", ".join(_labels(reports))
        yield Check.not_applicable(
            Level.STATIC, "GPU code", f"no GPU was named (--gpu or --variant); the libraries hold {held}"
        )
        return
    alike = Counter(Path(report.name).name for report in reports)
    for gpu in gpus:
        for report in reports:
            short = Path(report.name).name
            name = f"GPU code for {gpu.sm}: {short if alike[short] == 1 else report.name}"
            yield _fit_check(name, report, gpu, catalog, stock.get(report.name), cut=report.name in emptied)


def _fit_check(
    name: str, report: LibraryReport, gpu: Capability, catalog: Catalog, stock: LibraryReport | None, *, cut: bool
) -> Check:
    fit = gpu_fit(report, gpu, catalog.rules)
    held = [group.label for group in report.architectures]
    details: dict[str, Any] = {"library": report.name, "gpu": str(gpu), "verdict": fit.verdict, "holds": held}
    if fit.fit.runs or fit.linked_at_run_time:
        through = f" ({fit.code})" if fit.code else ""
        reason = f"{fit.verdict}{through}"
        if fit.fit is Fit.JIT:
            reason += ": the driver compiles it at first use, which takes minutes once"
        return Check.of(Level.STATIC, name, True, reason, **details)
    if stock is not None and not gpu_fit(stock, gpu, catalog.rules).fit.runs:
        return Check.not_applicable(Level.STATIC, name, "stock holds nothing for this GPU either", **details)
    if all(group.raw <= group.images * _NO_KERNEL for group in report.architectures) and not (cut and not held):
        reason = f"holds {', '.join(held) or 'empty containers'} without a single kernel: nothing is missing"
        return Check.not_applicable(Level.STATIC, name, reason, **details)
    what = catalog.gpus[gpu].describe(2) if gpu in catalog.gpus else str(gpu)
    reason = (
        f"holds {', '.join(held) or 'nothing'}, and none of it runs on {gpu} ({what}): its kernels would end in"
        f" 'no kernel image is available for execution on the device'; tailor the stock with --gpu {gpu}"
    )
    return Check.of(Level.STATIC, name, False, reason, **details)


def foreign_checks(artifact: Artifact, libraries: Sequence[LibraryFacts], catalog: Catalog) -> Iterator[Check]:
    """Nothing that no target can use is left in what was cut; the policy is the one in the manifest."""
    name = "GPU code: nothing foreign"
    if not artifact.tailored:
        total = sum(facts.gpu.stored for facts in libraries if facts.gpu)
        if total:
            reason = f"not tailored: there is no torchtailor.json; all {human_bytes(total)} of GPU code are there"
            yield Check.not_applicable(Level.STATIC, name, reason)
        return
    foreign: Counter[str] = Counter()
    looked_at = kept = 0
    for facts in libraries:
        manifest = _manifest_of(artifact, facts)
        if manifest is None or facts.gpu is None or _status(manifest, facts.name) not in _CHANGED:
            continue
        policy = policy_of(manifest, facts.name, catalog)
        looked_at += facts.gpu.has_code
        for group in facts.gpu.container_groups:
            for image, size in zip(group.images, group.stored_by_image, strict=True):
                if not group.loaded or policy.allows(image):
                    kept += size
                else:
                    foreign[f"{facts.file.short_name} ({image.label})"] += size
    if foreign:
        worst = ", ".join(f"{where} {human_bytes(size)}" for where, size in foreign.most_common(_SHOWN))
        yield Check.of(Level.STATIC, name, False, f"code that no target can use is left: {worst}", foreign=foreign)
        return
    gpus = ", ".join(sorted({gpu for m in artifact.tailored.values() for gpu in m.get("target", {}).get("gpus", ())}))
    what = "1 library was" if looked_at == 1 else f"{looked_at} libraries were"
    yield Check.of(
        Level.STATIC,
        name,
        True,
        f"{what} cut for {gpus}; all {human_bytes(kept)} of GPU code left are for it",
        libraries=looked_at,
        bytes=kept,
    )


def coverage_checks(
    coverages: Sequence[Coverage], missing: Sequence[str], gpus: Sequence[Capability]
) -> Iterator[Check]:
    """Against stock: every image that the GPUs use is there, byte for byte."""
    for path in missing:
        yield Check.of(
            Level.STATIC, f"coverage: {path.rsplit('/', 1)[-1]}", False, "stock has this library", library=path
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
        yield Check.of(
            Level.STATIC,
            "coverage against stock",
            True,
            f"all {images} images that {named} uses of stock are in {len(whole)} libraries, byte for byte",
            libraries=len(whole),
            images=images,
        )
    elif not coverages:
        yield Check.not_applicable(Level.STATIC, "coverage against stock", "no library of stock holds GPU code")


def policy_of(manifest: Mapping[str, Any], library: str, catalog: Catalog) -> Policy:
    """The policy a library was cut by."""
    target = manifest.get("target", {})
    archs = TorchArch.parse_list(" ".join(target.get("archs") or target.get("gpus", ())))
    targets = Targets(archs, bool(target.get("keep_ptx")))
    policy = Policy(targets, catalog.rules, unified_tegra=unified_tegra(manifest))
    return policy.for_library(library)


def _manifest_of(artifact: Artifact, facts: LibraryFacts) -> Mapping[str, Any] | None:
    """The manifest that tells of a library; where several do, the one that wrote the very file."""
    if facts.file.owner:
        return artifact.tailored.get(facts.file.owner)
    telling = [manifest for manifest in artifact.tailored.values() if _row(manifest, facts.name)]
    wrote = (one for one in telling if _row(one, facts.name).get("sha256_after") == facts.sha256)
    return next(wrote, telling[-1] if telling else None)


def unified_tegra(manifest: Mapping[str, Any]) -> bool:
    """Whether a library was cut for the driver stack on which a Tegra part takes desktop cubins."""
    return bool(manifest.get("target", {}).get("unified_tegra"))


def _dropped(artifact: Artifact, facts: LibraryFacts) -> bool:
    """Whether GPU code was cut out of a library, according to its manifest."""
    manifest = _manifest_of(artifact, facts)
    return manifest is not None and bool(_row(manifest, facts.name).get("dropped"))


def _status(manifest: Mapping[str, Any], library: str) -> str:
    """What was done to a library according to the manifest; empty where it does not name it."""
    return str(_row(manifest, library).get("status", ""))


def _row(manifest: Mapping[str, Any], library: str) -> Mapping[str, Any]:
    rows = manifest.get("libraries", ())
    return next((row for row in rows if installed_path(str(row.get("path", ""))) == library), {})


def _labels(reports: Sequence[LibraryReport]) -> list[str]:
    return list(dict.fromkeys(group.label for report in reports for group in report.architectures))
