"""Which libraries have the very instructions of their stock, and the host code of all that has to be read.

A cut never changes an instruction: its proof compared them, and torchtailor.json has their hash. A library that has
this hash is as good or as bad as its stock on every CPU, and disassembling it again would show nothing about the cut.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from torchtailor.core.disk import hash_file
from torchtailor.core.errors import EnvironmentProblem
from torchtailor.core.progress import Progress
from torchtailor.trees.artifact.artifact import Artifact
from torchtailor.trees.wheels.record import FileHash
from torchtailor.verification.result import Check, Level
from torchtailor.verification.static.cuts import cut_record
from torchtailor.verification.static.expect import Expectation
from torchtailor.verification.static.read import LibraryFacts, LibraryRead
from torchtailor.verification.static.whole import whole_library

if TYPE_CHECKING:
    from torchtailor.code.hostcode.analyse import HostCode


@dataclass(frozen=True)
class StockCode:
    """The libraries of an artifact whose instructions are stock's, as far as it records that."""

    artifact: Artifact

    def stock_of(self, facts: LibraryFacts) -> str | None:
        """The SHA-256 of a file with the same instructions; None where they are not known to be stock's."""
        record = cut_record(self.artifact, facts)
        if record is None:
            return facts.sha256 if facts.file.owner in self._unchanged_wheels else None
        if record.row and not record.untouched:
            same = bool(record.instructions) and record.instructions == facts.instructions
            return record.sha256_before if same else None
        return facts.sha256 if self._as_recorded(facts) else None

    def _as_recorded(self, facts: LibraryFacts) -> bool:
        """Whether a library that the cut did not change has the hash in RECORD; in a wheel that was checked."""
        if facts.file.member is not None:
            return True
        status = facts.file.path.stat()
        recorded = self._recorded.get((status.st_dev, status.st_ino))
        return recorded is not None and recorded == FileHash.from_hex(facts.sha256)

    @cached_property
    def _recorded(self) -> dict[tuple[int, int], FileHash]:
        rows = (found for one in self.artifact.installed for found in one.rows_on_disk())
        return {(status.st_dev, status.st_ino): row.hash for row, status in rows if status and row.hash}

    @cached_property
    def _unchanged_wheels(self) -> frozenset[str]:
        """The official wheels in a wheelhouse: its manifest has the hash they came with, and they still have it."""
        official = {
            str(row["output"]["filename"]): str(row["input"]["sha256"])
            for row in self.artifact.manifest.get("wheels", ())
            if row.get("input") and row["output"]["sha256"] == row["input"]["sha256"]
        }
        found = (wheel for wheel in self.artifact.wheels if wheel.name in official)
        return frozenset(wheel.name for wheel in found if hash_file(wheel) == official[wheel.name])


def read_host_code(
    artifact: Artifact,
    stock: Artifact | None,
    libraries: Sequence[LibraryRead],
    expected: Expectation,
    progress: Progress,
    packs: Sequence[Path] = (),
) -> tuple[tuple[LibraryFacts, ...], frozenset[str]]:
    """The libraries with their host code, and the names of those that have stock's instructions.

    What is stock's is read only where an instruction set was asked for, or where it is known from an earlier time.
    """
    known = StockCode(artifact)
    as_stock: set[str] = set()
    if expected.isa_asked:
        import torchtailor.code.hostcode  # noqa: F401  # without the extra, nothing of what was asked for is checked
    progress.begin("Reading host code", sum(read.facts.file.size for read in libraries))
    facts = []
    for found in _with_host_code(artifact, stock, libraries, expected, progress, known, as_stock, packs):
        facts.append(found)
        progress.advance(found.file.size)
    return tuple(facts), frozenset(as_stock)


def as_stock_check(names: Sequence[str]) -> Check:
    """That libraries have the instructions of an official wheel: these are not read again."""
    have = "1 library has" if len(names) == 1 else f"{len(names)} libraries have"
    reason = f"{have} the instructions of stock, byte for byte: not read again"
    return Check.of(Level.STATIC, "host code as stock", True, reason, libraries=list(names))


def checks_without_extra(
    libraries: Sequence[LibraryFacts], as_stock: Collection[str], expected: Expectation, missing: EnvironmentProblem
) -> Iterator[Check]:
    """What is known of host code where nothing can read it."""
    linked = [facts.name for facts in libraries if facts.instructions]
    if names := [name for name in linked if name in as_stock]:
        yield as_stock_check(names)
    if expected.isa is not None or len(names) < len(linked):
        yield Check.not_applicable(Level.STATIC, "host code", f"{missing.message} {missing.hint}")


def _with_host_code(
    artifact: Artifact,
    stock: Artifact | None,
    libraries: Sequence[LibraryRead],
    expected: Expectation,
    progress: Progress,
    known: StockCode,
    as_stock: set[str],
    packs: Sequence[Path],
) -> Iterator[LibraryFacts]:
    extra = _extra()
    for read in libraries:
        facts, compared = read.facts, read.comparison
        if not facts.instructions:
            yield facts
            continue
        place, source = artifact, facts
        if stock is not None and compared is not None and compared.same_instructions:
            # a stripped library has fewer names than its stock has for the same instructions
            place, source = stock, compared.stock
            original: str | None = source.sha256
        else:
            # what an artifact says of its stock does not count beside a stock that is there
            original = known.stock_of(facts) if stock is None else None
        if original is not None:
            as_stock.add(facts.name)
        contents = (content for content in (original, source.sha256) if content)
        if extra is None:
            yield facts
            continue
        known_host_code, host_code = extra
        host = next((found for one in contents if (found := known_host_code(one, expected.allowed))), None)
        if host is None and (original is None or expected.isa_asked):
            progress.reading(f"the host code of {facts.file.short_name}")
            with place.unpacked(source.file) as file, whole_library(file.path, packs) as (whole, _):
                host = host_code(whole, expected.allowed, sha256=file.sha256)
        yield replace(facts, host=host)


def _extra() -> tuple[Callable[..., HostCode | None], Callable[..., HostCode]] | None:
    """What looks host code up and what reads it; None without the extra."""
    try:
        from torchtailor.code.hostcode.cache import host_code, known_host_code
    except EnvironmentProblem:
        return None
    return known_host_code, host_code
