"""Reads the libraries of an artifact once, each for all checks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from torchtailor.artifact.artifact import Artifact, Unpacked
from torchtailor.artifact.libraries import LibraryFile
from torchtailor.binary.elf import ElfFile, UnsupportedElfError
from torchtailor.binary.elf_headers import FileType
from torchtailor.binary.source import open_source
from torchtailor.errors import BadInputError
from torchtailor.gpucode.report import LibraryReport, summarise
from torchtailor.gpucode.scan import scan_elf
from torchtailor.hostcode.analyse import HostCode
from torchtailor.verification.progress import NoVerifyProgress, VerifyProgress
from torchtailor.verification.static.elf_facts import ElfFacts, read_elf

WhileOpen = Callable[[LibraryFile, Path], None]


@dataclass(frozen=True)
class LibraryFacts:
    """All that was read of one library; what could not be read has `problem` and nothing else."""

    file: LibraryFile
    sha256: str = ""
    elf: ElfFacts | None = None
    gpu: LibraryReport | None = None
    host: HostCode | None = None
    problem: str = ""
    foreign: bool = False  # whole, but for another processor: a payload, not something this Python loads

    @property
    def name(self) -> str:
        return self.file.name


def read_libraries(
    artifact: Artifact,
    *,
    allowed: frozenset[str] = frozenset(),
    host_code: bool = True,
    while_open: WhileOpen | None = None,
    progress: VerifyProgress | None = None,
) -> tuple[LibraryFacts, ...]:
    """Read every library; `while_open` is called with each while it is a file on disk."""
    return tuple(_read_all(artifact, allowed, host_code, while_open, progress or NoVerifyProgress()))


def _read_all(
    artifact: Artifact, allowed: frozenset[str], host_code: bool, while_open: WhileOpen | None, progress: VerifyProgress
) -> Iterator[LibraryFacts]:
    progress.begin("Reading libraries", sum(library.size for library in artifact.libraries))
    for library in artifact.libraries:
        progress.reading(library.short_name)
        yield read_safely(artifact, library, allowed, host_code=host_code, while_open=while_open)
        progress.advance(library.size)


def read_safely(
    artifact: Artifact,
    library: LibraryFile,
    allowed: frozenset[str] = frozenset(),
    *,
    host_code: bool = True,
    while_open: WhileOpen | None = None,
) -> LibraryFacts:
    """All facts of one library, or the problem with it."""
    try:
        with artifact.unpacked(library) as file:
            facts = read_library(library, file, allowed, host_code=host_code)
            if while_open:
                while_open(library, file.path)
            return facts
    except UnsupportedElfError as error:
        return LibraryFacts(library, problem=error.message, foreign=True)
    except BadInputError as error:
        return LibraryFacts(library, problem=error.message)
    except OSError as error:
        return LibraryFacts(library, problem=f"it cannot be read: {error.strerror}")


def read_library(
    library: LibraryFile, file: Unpacked, allowed: frozenset[str] = frozenset(), *, host_code: bool = True
) -> LibraryFacts:
    """All facts of one library."""
    path = file.path
    with open_source(path) as source:
        elf = ElfFile(source)
        facts = read_elf(elf)
        gpu = summarise(library.name, scan_elf(elf))
        linked = elf.header.type is not FileType.RELOCATABLE
    host = None
    if host_code and linked:
        from torchtailor.hostcode.cache import host_code as read_host_code

        host = read_host_code(path, allowed, sha256=file.sha256)
    return LibraryFacts(library, file.sha256, facts, gpu, host)
