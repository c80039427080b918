"""Level 1 as a whole: reads an artifact (and its stock) and gives all checks and facts."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torchtailor.catalog import Catalog
from torchtailor.code.gpucode.report import LibraryReport
from torchtailor.code.gpucode.runnable import driver_readings
from torchtailor.core.errors import EnvironmentProblem
from torchtailor.core.progress import Progress
from torchtailor.trees.artifact.artifact import Artifact
from torchtailor.verification.result import Check, Level
from torchtailor.verification.static.cuts import cut_for_no_gpu, dropped_files, keeps_lto
from torchtailor.verification.static.elf_checks import elf_checks
from torchtailor.verification.static.expect import Expectation
from torchtailor.verification.static.facts import artifact_facts
from torchtailor.verification.static.gpu_checks import coverage_checks, fit_checks, foreign_checks
from torchtailor.verification.static.pack_checks import pack_checks
from torchtailor.verification.static.package_checks import package_checks
from torchtailor.verification.static.packed import packs_of
from torchtailor.verification.static.read import LibraryComparison, LibraryFacts, read_libraries, read_rest
from torchtailor.verification.static.stock_code import checks_without_extra, read_host_code


@dataclass(frozen=True)
class StaticProof:
    """What level 1 found: the lines, and the facts that the report draws."""

    checks: tuple[Check, ...]
    facts: dict[str, Any]


def verify_static(
    artifact: Artifact,
    expected: Expectation,
    catalog: Catalog,
    *,
    stock: Artifact | None = None,
    progress: Progress | None = None,
) -> StaticProof:
    """Read everything once and check it."""
    started = time.perf_counter()
    progress = progress or Progress()
    lto = all(keeps_lto(manifest) for manifest in artifact.tailored.values())
    readings = driver_readings(expected.gpus, catalog.rules, lto=lto) if stock else []
    with packs_of(artifact) as packs:
        read = read_libraries(artifact, stock, readings, progress, packs)
        libraries, as_stock = read_host_code(artifact, stock, read, expected, progress, packs)
    compared = [one.comparison for one in read if one.comparison]
    stock_libraries = [*(one.stock for one in compared), *(read_rest(artifact, stock, progress) if stock else ())]
    reports = {facts.name: facts.gpu for facts in stock_libraries if facts.gpu}
    checks = [
        *fit_checks(artifact, libraries, expected.gpus, catalog, reports),
        *foreign_checks(artifact, libraries, expected.gpus, catalog),
        *pack_checks(artifact, libraries, catalog),
        *(_coverage(artifact, compared, reports, libraries, expected) if stock else ()),
        *_host(artifact, libraries, as_stock, expected, catalog),
        *elf_checks(artifact, libraries, stock_libraries),
        *package_checks(artifact, libraries, expected),
    ]
    facts = artifact_facts(artifact, libraries, expected, stock, stock_libraries)
    facts["seconds"] = round(time.perf_counter() - started, 3)
    return StaticProof(tuple(checks), facts)


def _host(
    artifact: Artifact,
    libraries: Sequence[LibraryFacts],
    as_stock: Collection[str],
    expected: Expectation,
    catalog: Catalog,
) -> Iterator[Check]:
    try:
        from torchtailor.verification.static.host_checks import host_checks
    except EnvironmentProblem as missing:
        return checks_without_extra(libraries, as_stock, expected, missing)
    return host_checks(libraries, expected.isa, catalog, as_stock, torch=expected.torch or artifact.torch_version)


def _coverage(
    artifact: Artifact,
    compared: Sequence[LibraryComparison],
    reports: dict[str, LibraryReport],
    libraries: Sequence[LibraryFacts],
    expected: Expectation,
) -> list[Check]:
    dropped = dropped_files(artifact)
    here = {facts.name for facts in libraries}
    absent = [name for name, report in reports.items() if report.has_code and name not in here]
    missing = [name for name in absent if name not in dropped]
    by_choice = [name for name in absent if name in dropped]
    if libraries and not compared:
        reason = f"stock has none of the {len(libraries)} libraries here: it is not what this was made of"
        return [Check.of(Level.STATIC, "coverage against stock", False, reason, missing=missing)]
    if cut_for_no_gpu(artifact) and not expected.gpus:
        reason = "cut for machines without a GPU, which use none of stock's GPU code"
        return [Check.not_applicable(Level.STATIC, "coverage against stock", reason)]
    coverages = [one.coverage for one in compared if one.coverage]
    return list(coverage_checks(coverages, missing, expected.gpus, by_choice))
