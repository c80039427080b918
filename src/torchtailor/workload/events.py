"""Reads what the hook recorded, process by process, and makes a trace of it.

The hook knows addresses; which container lies there is read from the library itself. The format of the lines is in
`native/record.c`, and in `native/touched.c` that of what a process had mapped at its end.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache
from operator import attrgetter
from pathlib import Path

import msgspec

from torchtailor.code.binary.elf import ElfFile
from torchtailor.code.binary.source import open_source
from torchtailor.code.gpucode.scan import LibraryCode, scan_elf
from torchtailor.core.disk import open_plain
from torchtailor.core.errors import BadInputError
from torchtailor.core.format import counted
from torchtailor.core.shapes import shaped
from torchtailor.core.trust import PathPart, RelativePath
from torchtailor.workload.identity import library_identity, loaded_containers
from torchtailor.workload.pack import container_key
from torchtailor.workload.trace import PAGE, STANDARD, Trace, TracedLibrary, merge_traces, merged_pages
from torchtailor.workload.whole import packed_sections, whole_elf

PAGES_SUFFIX = ".pages"
_SITE = re.compile(r".*/(?:site|dist)-packages/(.+)")
_TEMPORARY = re.compile(r"/(?:tmp|run|proc|sys|dev|var/(?:tmp|run|cache))/")
_MOST_ELSEWHERE = 20_000  # files: a program may read a million of data
_ESCAPED = re.compile(r"\\(.)")
_MEANING = {"t": "\t", "n": "\n", "\\": "\\"}
_MAX_LINE = 64 << 10  # the hook's lines hold at most a path and some numbers
_MAX_RUNS = 64 << 20  # and those of touched pages all runs of one mapping: 3 MB where every second page of 2 GB is
_MAX_SAID = 500

_WRITE = 2  # of the flags of a segment
_NEIGHBOURS = "neighbours"
_NO_EVENT = "a line that is no event"


@dataclass
class MappedPages:
    """Memory of a process: of which file, and what of it was touched."""

    start: int
    end: int
    offset: int
    path: str
    touched: list[tuple[int, int]] = field(default_factory=list)  # (first page, count), from the start on


@dataclass
class ProcessMemory:
    """What one process had mapped at its end, by address."""

    mappings: list[MappedPages] = field(default_factory=list)
    how: str = ""  # empty where its end is missing

    def read(self, path: Path) -> None:
        with open_plain(path) as file:
            while line := file.readline(_MAX_RUNS):
                if len(line) == _MAX_RUNS:
                    raise _not_recorded(path)
                self._add([_unescaped(word) for word in os.fsdecode(line.rstrip(b"\n")).split("\t")])

    def _add(self, words: list[str]) -> None:
        match words:
            case ["map", start, end, offset, path]:
                self.mappings.append(MappedPages(int(start, 16), int(end, 16), int(offset, 16), path))
            case ["at", runs] if self.mappings:
                pairs = (run.split("+") for run in runs.split())
                self.mappings[-1].touched += [(int(first, 16), int(count, 16)) for first, count in pairs]
            case ["end", how]:
                self.how = how

    def begins(self) -> Iterator[tuple[str, int]]:
        """The files of which the start is mapped, and where."""
        return (
            (mapping.path, mapping.start)
            for mapping in self.mappings
            if mapping.path.startswith("/") and not mapping.offset
        )

    def between(self, start: int, end: int) -> Iterator[MappedPages]:
        """What was mapped between two addresses; of a library that was cut also what was mapped from its pack."""
        for mapping in self.mappings[bisect_left(self.mappings, start, key=attrgetter("start")) :]:
            if mapping.end > end:
                return
            yield mapping


@dataclass
class Recorded:
    """What the lines of all processes say."""

    loads: dict[str, set[int]] = field(default_factory=dict)  # by the path of a library, addresses
    misses: dict[str, set[tuple[int, bytes]]] = field(default_factory=dict)  # the same, with the keys of containers
    opened: dict[str, None] = field(default_factory=dict)  # in the order of their first use
    looked: set[str] = field(default_factory=set)  # for files that were there
    processes: set[str] = field(default_factory=set)
    unknown: int = 0  # raw code that belongs to no library
    lost: set[str] = field(default_factory=set)
    memories: list[ProcessMemory] = field(default_factory=list)

    @cached_property
    def mapped(self) -> dict[str, list[tuple[ProcessMemory, int]]]:
        """By the path of a file, the processes that had mapped its start, and where."""
        found: dict[str, list[tuple[ProcessMemory, int]]] = {}
        for memory in self.memories:
            for path, start in memory.begins():
                found.setdefault(path, []).append((memory, start))
        return found

    def read(self, path: Path) -> None:
        """Add the lines of one file; a last line without its end was cut off by a kill."""
        events = others = 0
        with open_plain(path) as file:
            while (line := file.readline(_MAX_LINE)).endswith(b"\n"):
                try:
                    self._add([_unescaped(word) for word in os.fsdecode(line[:-1]).split("\t")])
                    events += 1
                except ValueError:
                    self.lost.add(_NO_EVENT)
                    others += 1
            if len(line) == _MAX_LINE or (others and not events):
                raise _not_recorded(path)

    def _add(self, words: list[str]) -> None:
        """Add one event; ValueError where the line is none."""
        match words:
            case ["load" | "link", library, address, _, *_]:
                self.loads.setdefault(library, set()).add(int(address, 16))
            case ["miss", library, address, _, key]:
                self.misses.setdefault(library, set()).add((int(address, 16), bytes.fromhex(key)))
            case ["open", opened]:
                self.opened.setdefault(opened)
            case ["look", looked]:
                self.looked.add(looked)
            case ["proc", process, *program]:
                self.processes.add(process)
                self.opened |= dict.fromkeys(program[:1])  # by the kernel
            case ["cubin", *_]:
                self.unknown += 1
            case ["lost", what]:
                self.lost.add(_plain(what[:_MAX_SAID]))
            case _:
                raise ValueError(words[0])


def _not_recorded(path: Path) -> BadInputError:
    return BadInputError(f"{path} is not what a program recorded.", "Give a folder or .tsv file that it wrote.")


def _unescaped(word: str) -> str:
    return _ESCAPED.sub(lambda match: _MEANING.get(match[1], match[1]), word) if "\\" in word else word


def read_events(paths: Iterable[Path]) -> Recorded:
    """Read the files that the processes of a run left."""
    recorded = Recorded()
    files = sorted(paths, key=_start)
    for path in (path for path in files if path.suffix != PAGES_SUFFIX):
        recorded.read(path)
    for path in (path for path in files if path.suffix == PAGES_SUFFIX):
        memory = ProcessMemory()
        with suppress(ValueError):  # the line of a process that was killed while it wrote
            memory.read(path)
        recorded.memories.append(memory)
    if count := sum(not memory.how for memory in recorded.memories):
        recorded.lost.add(f"the pages of {counted(count, 'process', 'processes')} that had not ended")
    return recorded


def _start(path: Path) -> tuple[int, int, str]:
    """When the process of a file began, by the clock of the kernel, and its number; files are named `NUMBER-START`."""
    number, start = (*map(int, re.findall(r"\d+", path.name)), 0, 0)[:2]
    return start, number, path.name


def make_trace(
    recorded: Recorded, programs: Iterable[str] = (), roots: Iterable[Path] = (), system: Path = Path("/")
) -> Trace:
    """The trace of a run; `roots` are folders beside site-packages from which it imports, and below `system` are the
    files that it ran with."""
    lost = sorted(recorded.lost)
    libraries = []
    mapped = (path for path in recorded.mapped if _is_elf(system / path.lstrip("/")))
    for path in sorted({*recorded.loads, *recorded.misses, *mapped}):
        missed = recorded.misses.get(path, set())
        loads = recorded.loads.get(path, set())
        try:
            library, unplaced = _library(system / path.lstrip("/"), loads, missed, recorded.mapped.get(path, ()))
            if loads or missed or library.pages:
                libraries.append(library)
            if unplaced:
                number = counted(unplaced, "miss", "misses")
                lost.append(_plain(f"{number} of {path[:_MAX_SAID]}, which is another file now"))
        except (BadInputError, OSError, ValueError) as error:
            why = getattr(error, "message", "") or getattr(error, "strerror", "") or str(error)
            lost.append(_plain(f"{path[:_MAX_SAID]} cannot be read: {why[:_MAX_SAID].rstrip('.')}"))
    folders = [str(root.absolute()) for root in roots]
    opened: dict[str, None] = {}
    standard: dict[str, None] = {}
    elsewhere: dict[str, None] = {}
    for path in recorded.opened:
        if below := [*_below_sites([path], folders, system)]:
            opened |= dict.fromkeys(below)
        elif match := _standard(path):
            standard.setdefault(match[1])
        elif not _TEMPORARY.match(path) and _fits(place := os.path.normpath(path).lstrip("/"), RelativePath):
            elsewhere.setdefault(place)
    trace = Trace(
        libraries=tuple(libraries),
        opened=tuple(opened),
        standard=tuple(standard),
        elsewhere=tuple(elsewhere)[:_MOST_ELSEWHERE],
        looked=tuple(sorted(set(_below_sites(recorded.looked, folders, system)) - opened.keys())),
        programs=tuple(map(_plain, programs)),
        processes=len(recorded.processes),
        lost=tuple(lost),
        neighbours=any(memory.how == _NEIGHBOURS for memory in recorded.memories),
    )
    return merge_traces([trace])  # a library may have been loaded by two paths


def _standard(path: str) -> re.Match[str] | None:
    """A file of Python's own library."""
    match = STANDARD.fullmatch(os.path.normpath(path))
    return match if match and _fits(match[1], RelativePath) else None


def _below_sites(paths: Iterable[str], roots: list[str], system: Path) -> Iterator[str]:
    for path in paths:
        whole = os.path.normpath(path)
        if match := _SITE.fullmatch(whole):
            found = [match[1]]
        else:
            found = [whole[len(root) + 1 :] for root in roots if whole.startswith(f"{root}/")]
        there = system / whole.lstrip("/")
        if not found and (place := _installed_place(there.parent)) is not None:
            found = [str(there.relative_to(place))]
        yield from (name for name in found if _fits(name, RelativePath))


@lru_cache(maxsize=65536)
def _installed_place(folder: Path) -> Path | None:
    """The outermost of a folder and its parents that packages were installed into, as by `pip install --target`."""
    if folder.parent != folder and (place := _installed_place(folder.parent)) is not None:
        return place
    try:
        return folder if any(entry.name.endswith(".dist-info") for entry in folder.iterdir()) else None
    except (OSError, ValueError):
        return None


def _fits(name: str, kind: object) -> bool:
    """Whether a trace may hold this name, so that it can be read again."""
    try:
        name.encode()
        msgspec.convert(name, shaped(kind))
    except (UnicodeEncodeError, msgspec.ValidationError):
        return False
    return True


def _plain(text: str) -> str:
    """A text as it is shown and written: names of files need not be UTF-8."""
    return text.encode("utf-8", "backslashreplace").decode()


def _is_elf(path: Path) -> bool:
    try:
        if not path.is_file():
            return False  # it is gone
        with path.open("rb") as file:
            return file.read(4) == b"\x7fELF"
    except (OSError, ValueError):
        return False


def _pages(elf: ElfFile, mapped: Iterable[tuple[ProcessMemory, int]]) -> tuple[tuple[int, int], ...]:
    """The pages of a library that processes touched, by its own addresses. What can be written to and is mapped from no
    file counts as touched: that of a library which was cut."""
    lowest = min((load.address for load in elf.loads), default=0) // PAGE
    highest = max((load.address + load.memory_size for load in elf.loads), default=0)
    ranges = [(load.address // PAGE, -(-(load.address + load.file_size) // PAGE)) for load in elf.loads]
    writable = [span for span, load in zip(ranges, elf.loads, strict=True) if load.flags & _WRITE]
    touched: list[tuple[int, int]] = []
    for memory, start in mapped:
        known = []
        for mapping in memory.between(start, start + highest - lowest * PAGE + PAGE - 1):
            at = (mapping.start - start) // PAGE + lowest
            known.append((at, (mapping.end - mapping.start) // PAGE))
            touched += ((at + first, count) for first, count in mapping.touched)
        if len(known) > 1:  # else it was read, not loaded
            touched += _outside(writable, merged_pages(known))
    inside = (
        (max(first, low), min(first + count, high) - max(first, low))
        for first, count in merged_pages(touched)
        for low, high in ranges
    )
    return merged_pages((first, count) for first, count in inside if count > 0)


def _outside(ranges: Iterable[tuple[int, int]], known: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """What of ranges (first, end) none of the others (first, count) has, as (first, count)."""
    for low, high in ranges:
        reached = low
        for first, count in [*known, (high, 0)]:
            if reached < min(first, high):
                yield reached, min(first, high) - reached
            reached = max(reached, first + count)


def _library(
    path: Path, addresses: set[int], misses: set[tuple[int, bytes]], mapped: Iterable[tuple[ProcessMemory, int]]
) -> tuple[TracedLibrary, int]:
    """What was used of a library, and the number of misses that it does not have.

    An address inside of a container means it, as data may be handed out in parts. Misses outlast the file that they
    were seen in: it may have been restored or cut again since, and then the address is another container's.
    """
    if path.exists() and not path.is_file():
        raise BadInputError("It is not a plain file.")
    with ExitStack() as files:
        elf = ElfFile(files.enter_context(open_source(path)))
        pages = _pages(elf, mapped)
        if not addresses and not misses and packed_sections(elf):
            code = LibraryCode(elf.machine, elf.size, (), (), ())  # nobody asks what it has
        else:
            elf = files.enter_context(whole_elf(path, elf))
            code = scan_elf(elf)
        found = [code.containers[index] for index in loaded_containers(code)]
        places = sorted((one.address or 0, position) for position, one in enumerate(found))
        starts = [start for start, _ in places]

        def at(address: int) -> int | None:
            index = bisect_right(starts, address) - 1
            inside = index >= 0 and address < starts[index] + found[places[index][1]].container.stored_size
            return places[index][1] if inside else None

        @cache
        def key(position: int) -> bytes:
            container = found[position].container
            return container.ticket or container_key(elf.source, container)

        placed = [at(address) for address in addresses]
        for address, missed in misses:
            position = at(address)
            if position is None or key(position) != missed:
                position = next((other for other in range(len(found)) if key(other) == missed), None)
            placed.append(position)
        used = {position for position in placed if position is not None}
        unplaced = sum(position is None for position in placed[len(addresses) :])
        sizes = tuple(found[position].container.stored_size for position in sorted(used))
        library = TracedLibrary(
            identity=library_identity(elf, code),
            name=path.name if _fits(path.name, PathPart) else "library",
            containers=len(found),
            used=tuple(sorted(used)),
            stored=sum(one.container.stored_size for one in found),
            stored_used=sum(sizes),
            sizes=sizes,
            pages=pages,
        )
        return library, unplaced
