"""Level 1 as a whole: reads an artifact (and its stock) and gives all checks and facts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torchtailor.artifact.artifact import Artifact, ArtifactKind
from torchtailor.artifact.libraries import LibraryFile
from torchtailor.catalog import Catalog
from torchtailor.gpucode.report import LibraryReport
from torchtailor.gpucode.runnable import DriverReading
from torchtailor.hostcode.analyse import HostCode
from torchtailor.hostcode.cache import host_code
from torchtailor.hostcode.image import same_code, stripped
from torchtailor.verification.progress import VerifyProgress
from torchtailor.verification.result import Check
from torchtailor.verification.static.coverage import CodeCoverage, compare_code
from torchtailor.verification.static.cuts import dropped_files, keeps_lto, unified_tegra
from torchtailor.verification.static.elf_checks import elf_checks
from torchtailor.verification.static.expect import Expectation
from torchtailor.verification.static.facts import artifact_facts
from torchtailor.verification.static.gpu_checks import coverage_checks, fit_checks, foreign_checks
from torchtailor.verification.static.host_checks import host_checks
from torchtailor.verification.static.package_checks import package_checks
from torchtailor.verification.static.read import LibraryFacts, read_libraries, read_library, read_safely


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
    progress: VerifyProgress | None = None,
) -> StaticProof:
    """Read everything once and check it."""
    started = time.perf_counter()
    comparison = _Comparison(artifact, stock, expected, catalog) if stock else None
    libraries = read_libraries(
        artifact,
        allowed=expected.allowed,
        while_open=comparison.compare if comparison else None,
        progress=progress,
    )
    if comparison:
        libraries = tuple(comparison.named(facts) for facts in libraries)
    stock_libraries = comparison.all_of_stock() if comparison else ()
    reports = {facts.name: facts.gpu for facts in stock_libraries if facts.gpu}
    checks = [
        *fit_checks(artifact, libraries, expected.gpus, catalog, reports),
        *foreign_checks(artifact, libraries, expected.gpus, catalog),
        *(_coverage(comparison, reports, libraries, expected, dropped_files(artifact)) if comparison else ()),
        *host_checks(libraries, expected.isa, catalog, comparison.same_code if comparison else ()),
        *elf_checks(artifact, libraries),
        *package_checks(artifact, libraries, expected),
    ]
    facts = artifact_facts(artifact, libraries, expected, stock, stock_libraries)
    facts["seconds"] = round(time.perf_counter() - started, 3)
    return StaticProof(tuple(checks), facts)


class _Comparison:
    """Compares each library with stock's of the same name while both are files."""

    def __init__(self, artifact: Artifact, stock: Artifact, expected: Expectation, catalog: Catalog) -> None:
        self._artifact = stock
        self._stock = {library.name: library for library in stock.libraries}
        if artifact.kind is stock.kind is ArtifactKind.LIBRARY:  # whatever they are called: these two are compared
            name = artifact.libraries[0].name
            self._stock = {name: replace(stock.libraries[0], name=name)}
        self._expected = expected
        unified = any(unified_tegra(manifest) for manifest in artifact.tailored.values())
        lto = all(keeps_lto(manifest) for manifest in artifact.tailored.values())
        self._readings = [DriverReading(gpu, catalog.rules, unified, lto) for gpu in expected.gpus]
        self.coverages: list[CodeCoverage] = []
        self.stock_facts: dict[str, LibraryFacts] = {}
        self.host_of_stock: dict[str, HostCode] = {}
        self.same_code: set[str] = set()

    def compare(self, library: LibraryFile, path: Path) -> None:
        other = self._stock.get(library.name)
        if other is None:
            return
        with self._artifact.unpacked(other) as file:
            self.stock_facts[library.name] = read_library(other, file, host_code=False)
            found = compare_code(library.name, file.path, path, self._readings)
            if same_code(file.path, path):
                self.same_code.add(library.name)
            if library.name in self.same_code and stripped(path) and not stripped(file.path):
                self.host_of_stock[library.name] = host_code(file.path, self._expected.allowed, sha256=file.sha256)
        if found is not None:
            self.coverages.append(found)

    def all_of_stock(self) -> tuple[LibraryFacts, ...]:
        """Every library of stock; those that the artifact does not have are read now."""
        for name, library in self._stock.items():
            if name not in self.stock_facts:
                self.stock_facts[name] = read_safely(self._artifact, library, host_code=False)
        return tuple(self.stock_facts.values())

    def named(self, facts: LibraryFacts) -> LibraryFacts:
        """A stripped library with the names that its stock has for the very same instructions."""
        host = self.host_of_stock.get(facts.name)
        return replace(facts, host=host) if host else facts


def _coverage(
    comparison: _Comparison,
    reports: dict[str, LibraryReport],
    libraries: Sequence[LibraryFacts],
    expected: Expectation,
    dropped: frozenset[str],
) -> list[Check]:
    here = {facts.name for facts in libraries}
    absent = [name for name, report in reports.items() if report.has_code and name not in here]
    missing = [name for name in absent if name not in dropped]
    by_choice = [name for name in absent if name in dropped]
    return list(coverage_checks(comparison.coverages, missing, expected.gpus, by_choice))
