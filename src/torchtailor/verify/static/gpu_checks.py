"""GPU code: everything the GPU needs is there, nothing foreign is left, and nothing was lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from torchtailor.artifact.artifact import Artifact
from torchtailor.artifact.sites import installed_path
from torchtailor.catalog import Capability, Catalog, CodeKind, CodeTarget, Fit, TorchArch
from torchtailor.gpucode.fitness import gpu_fit
from torchtailor.gpucode.policy import Policy
from torchtailor.gpucode.report import LibraryReport
from torchtailor.licences import maker_of
from torchtailor.ui.format import human_bytes
from torchtailor.verify.result import Check, Level
from torchtailor.verify.static.coverage import Coverage
from torchtailor.verify.static.read import LibraryFacts

_UNTOUCHED = frozenset({"left-to-consent", "skipped", "nothing-for-target", "unchanged"})
_SHOWN = 4
_NO_KERNEL = 1024  # bytes: the headers of a cubin alone; nvcc leaves such images where a file has no device code


def fit_checks(
    libraries: Sequence[LibraryFacts],
    gpus: Sequence[Capability],
    catalog: Catalog,
    stock: Mapping[str, LibraryReport],
) -> Iterator[Check]:
    """For each GPU and each library with GPU code: does it hold something the GPU runs?"""
    reports = [facts.gpu for facts in libraries if facts.gpu and facts.gpu.has_code]
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
            yield _fit_check(name, report, gpu, catalog, stock.get(report.name))


def _fit_check(
    name: str, report: LibraryReport, gpu: Capability, catalog: Catalog, stock: LibraryReport | None
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
    if all(group.raw <= group.images * _NO_KERNEL for group in report.architectures):
        reason = f"holds {', '.join(held)} without a single kernel: nothing is missing"
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
        if manifest is None or facts.gpu is None or _fate(manifest, facts.name) in _UNTOUCHED:
            continue
        policy = policy_of(manifest, facts.name, catalog)
        looked_at += facts.gpu.has_code
        for group in facts.gpu.container_groups:
            for code, size in group.bytes_by_target.items():
                if group.solid or code is None or _allowed(policy, code):
                    kept += size
                elif size:
                    foreign[f"{facts.file.short_name} ({code})"] += size
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
    """Against stock: every image that the GPU would load is there, byte for byte."""
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
                f"{found.lost} of {found.needed} images that {named} would load are not there{kernels}",
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
            f"all {images} images that {named} would load from stock are in {len(whole)} libraries, byte for byte",
            libraries=len(whole),
            images=images,
        )
    elif not coverages:
        yield Check.not_applicable(Level.STATIC, "coverage against stock", "no library of stock holds GPU code")


def policy_of(manifest: Mapping[str, Any], library: str, catalog: Catalog) -> Policy:
    """The policy a library was cut by."""
    target = manifest.get("target", {})
    archs = TorchArch.parse_list(" ".join(target.get("archs") or target.get("gpus", ())))
    return Policy(
        targets=archs,
        rules=catalog.rules,
        keep_ptx=bool(target.get("keep_ptx")),
        keep_all_minors=maker_of(library) is not None,
    )


def _allowed(policy: Policy, code: CodeTarget) -> bool:
    """Whether the policy leaves code of this architecture: some target uses it, or PTX was to be kept."""
    if any(policy.fits(device, code) for device in policy.devices):
        return True
    return policy.keep_ptx and code.kind is CodeKind.PTX


def _manifest_of(artifact: Artifact, facts: LibraryFacts) -> Mapping[str, Any] | None:
    """The manifest that tells of a library; where several do, the one that wrote the very file."""
    if facts.file.owner:
        return artifact.tailored.get(facts.file.owner)
    telling = [manifest for manifest in artifact.tailored.values() if _row(manifest, facts.name)]
    wrote = (one for one in telling if _row(one, facts.name).get("sha256_after") == facts.sha256)
    return next(wrote, telling[-1] if telling else None)


def _fate(manifest: Mapping[str, Any], library: str) -> str:
    """What the manifest says was done to a library; empty where it does not name it."""
    return str(_row(manifest, library).get("fate", ""))


def _row(manifest: Mapping[str, Any], library: str) -> Mapping[str, Any]:
    rows = manifest.get("libraries", ())
    return next((row for row in rows if installed_path(str(row.get("path", ""))) == library), {})


def _labels(reports: Sequence[LibraryReport]) -> list[str]:
    return list(dict.fromkeys(group.label for report in reports for group in report.architectures))
