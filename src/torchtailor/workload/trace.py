"""Traces: which containers of which libraries a program loaded, which pages of them it touched, and which files of its
environment it opened.

A library is known by what does not change when it is cut (`identity.py`), a container by its position in it, and a
file by its path below site-packages: a trace taken on one machine counts on every other.
"""

from __future__ import annotations

import hashlib
import re
import tempfile
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import chain, pairwise
from pathlib import Path
from typing import Annotated

import msgspec

from torchtailor.core.disk import check_replaceable, disk_errors, write_atomically
from torchtailor.core.documents import Bytes
from torchtailor.core.errors import BadInputError, NoMatchError, UsageError
from torchtailor.core.shapes import shaped
from torchtailor.core.trust import Limit, PathPart, RelativePath, Size, read_limited

SCHEMA = "torchtailor-trace"
VERSION = 1
FILES_UNKNOWN = "which files were opened"  # among what was lost: a hook without LD_PRELOAD sees none
_LABEL_DIGITS = 7
# of Python's own library
STANDARD = re.compile(r".*/lib(?:64)?/python3\.\d+t?/(?!(?:site|dist)-packages/)(.+\.(?:pyc?|so))")

Identity = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{32}\Z", description="the identity of a library")]
Position = Annotated[int, msgspec.Meta(ge=0, le=1 << 24)]
PageNumber = Annotated[int, msgspec.Meta(ge=0, le=1 << 40)]

PAGE = 4096  # bytes of the pages that traces count in, whatever the pages of the machine


class TracedLibrary(msgspec.Struct, frozen=True, order=True):
    """What was loaded of one library; sizes are bytes, of the library as it was recorded."""

    identity: Identity
    name: PathPart
    containers: Position  # that it has; 0 also where none was loaded, and they are in a pack
    used: tuple[Position, ...]
    stored: Size = 0  # of all containers
    stored_used: Size = 0  # of those that were loaded
    sizes: tuple[Size, ...] = ()  # of each of those, in the order of `used`; a union of traces is counted by them
    pages: tuple[tuple[PageNumber, PageNumber], ...] = ()  # (first, count): touched

    def __post_init__(self) -> None:
        if list(self.used) != sorted(set(self.used)) or (self.used and self.used[-1] >= self.containers):
            raise ValueError("the positions of used containers are not sorted, or more than there are")
        if self.stored_used > self.stored:
            raise ValueError("more bytes were used than there are")
        if self.sizes and len(self.sizes) != len(self.used):
            raise ValueError("there is not one size for each used container")
        if any(not count for _, count in self.pages) or any(
            first + count > following for (first, count), (following, _) in pairwise(self.pages)
        ):
            raise ValueError("the ranges of pages are empty, not sorted, or overlap")

    @property
    def touched(self) -> tuple[tuple[int, int], ...]:
        """The ranges of addresses of the stock library that were touched, as (start, end); its base is 0."""
        return tuple((first * PAGE, (first + count) * PAGE) for first, count in self.pages)

    @property
    def touched_size(self) -> int:
        return sum(count for _, count in self.pages) * PAGE


class _Kind(msgspec.Struct, frozen=True):
    """What a document says that it is; all else in a trace may be absent."""

    schema: str = ""
    version: int = 0


class Trace(msgspec.Struct, frozen=True, dict=True):
    """What one program used, or several."""

    libraries: tuple[TracedLibrary, ...] = ()
    opened: tuple[RelativePath, ...] = ()  # below site-packages, in the order of their first use, as the next two
    programs: tuple[str, ...] = ()
    processes: Size = 0
    lost: tuple[str, ...] = ()  # what could not be recorded, in words
    looked: tuple[RelativePath, ...] = ()  # files that were only looked for, and have to be there
    standard: tuple[RelativePath, ...] = ()  # of Python's own library, opened
    elsewhere: tuple[RelativePath, ...] = ()  # opened as well, from the root
    neighbours: bool = False  # the kernel mapped pages in groups: those beside touched ones are named too
    schema: str = SCHEMA
    version: int = VERSION

    @cached_property
    def digest(self) -> str:
        """The hash of what was used: of the same use it is the same, whoever ran it."""
        hasher = hashlib.sha256()
        for library in sorted(self.libraries):
            if library.used:
                hasher.update(f"{library.identity} {' '.join(map(str, library.used))}\n".encode())
            if library.pages:
                pages = " ".join(f"{first}+{count}" for first, count in library.pages)
                hasher.update(f"{library.identity} pages {pages}\n".encode())
        for path in sorted({*self.opened, *self.looked}):
            hasher.update(f"{path}\n".encode(errors="surrogateescape"))
        return hasher.hexdigest()

    @property
    def label(self) -> str:
        """For the version of a wheel: `w1a2b3c4`."""
        return f"w{self.digest[:_LABEL_DIGITS]}"

    @property
    def stored_used(self) -> int:
        return sum(library.stored_used for library in self.libraries)

    @property
    def touched_size(self) -> int:
        return sum(library.touched_size for library in self.libraries)

    def to_bytes(self) -> bytes:
        return msgspec.json.format(msgspec.json.encode(self, order="sorted"), indent=1) + b"\n"


class TraceLibrary(msgspec.Struct):
    """What was used of one library; sizes are of the library that was recorded."""

    name: str
    identity: Annotated[str, msgspec.Meta(description="the same for a library and whatever was cut from it")]
    containers: int
    used: int
    stored: Bytes
    stored_used: Bytes
    touched: Annotated[Bytes, msgspec.Meta(description="bytes of code and data, in pages of 4 KiB")] = 0


class TraceDocument(msgspec.Struct):
    """What a trace holds, in figures."""

    trace: Annotated[str, msgspec.Meta(description="the file")]
    label: Annotated[str, msgspec.Meta(description="what the versions of wheels are labelled with")]
    processes: int
    programs: tuple[str, ...]
    libraries: tuple[TraceLibrary, ...]
    opened: Annotated[int, msgspec.Meta(description="files that were opened")]
    lost: Annotated[tuple[str, ...], msgspec.Meta(description="what could not be recorded")]
    neighbours: Annotated[bool, msgspec.Meta(description="pages beside touched ones are counted too")] = False


def trace_facts(trace: Trace, name: str) -> TraceDocument:
    """What a trace holds, in figures."""
    libraries = tuple(
        TraceLibrary(
            library.name,
            library.identity,
            library.containers,
            len(library.used),
            library.stored,
            library.stored_used,
            library.touched_size,
        )
        for library in trace.libraries
    )
    return TraceDocument(
        name, trace.label, trace.processes, trace.programs, libraries, len(trace.opened), trace.lost, trace.neighbours
    )


def merge_traces(traces: Iterable[Trace]) -> Trace:
    """One trace of all that any of them used."""
    traces = list(traces)
    by_identity: dict[str, list[TracedLibrary]] = {}
    for trace in traces:
        for library in trace.libraries:
            by_identity.setdefault(library.identity, []).append(library)
    opened = _in_order(trace.opened for trace in traces)
    return Trace(
        libraries=tuple(sorted(map(_merged, by_identity.values()), key=lambda one: (one.name, one.identity))),
        opened=opened,
        looked=tuple(sorted({path for trace in traces for path in trace.looked}.difference(opened))),
        standard=_in_order(trace.standard for trace in traces),
        elsewhere=_in_order(trace.elsewhere for trace in traces),
        programs=_in_order(trace.programs for trace in traces),
        processes=sum(trace.processes for trace in traces),
        lost=_in_order(trace.lost for trace in traces),
        neighbours=any(trace.neighbours for trace in traces),
    )


def _in_order(several: Iterable[Iterable[str]]) -> tuple[str, ...]:
    """Each once, where it comes first."""
    return tuple(dict.fromkeys(chain.from_iterable(several)))


def _merged(same: Sequence[TracedLibrary]) -> TracedLibrary:
    """One library that several traces have; the largest sizes are those of the stock one."""
    first = max(same, key=lambda one: (one.stored, one.containers))
    first = msgspec.structs.replace(first, pages=merged_pages(pages for one in same for pages in one.pages))
    if any(one.containers not in (0, first.containers) for one in same):
        raise BadInputError(
            f"Two traces name {first.name} with {first.containers} and another number of GPU code containers.",
            "Record them again with the same release.",
        )
    used = tuple(sorted({position for one in same for position in one.used}))
    sizes: dict[int, int] = {}
    for one in same:
        for position, size in zip(one.used, one.sizes, strict=False):
            sizes[position] = max(size, sizes.get(position, 0))
    if len(sizes) < len(used):  # of a trace without sizes no more is known than its sum
        known = max(one.stored_used for one in same)
        return msgspec.structs.replace(first, used=used, stored_used=known, sizes=())
    known = sum(sizes.values())
    return msgspec.structs.replace(
        first,
        used=used,
        stored=max(first.stored, known),  # where each was recorded on a library that was cut
        stored_used=known,
        sizes=tuple(sizes[position] for position in used),
    )


def ranges_of_pages(numbers: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Numbers of pages as the sorted, disjoint ranges (first, count) of a trace."""
    return merged_pages((number, 1) for number in numbers)


def merged_pages(ranges: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Ranges (first, count) in as few as possible."""
    merged: list[tuple[int, int]] = []
    for first, count in sorted(ranges):
        if merged and first <= sum(merged[-1]):
            start, length = merged[-1]
            merged[-1] = (start, max(length, first + count - start))
        else:
            merged.append((first, count))
    return tuple(merged)


def read_trace(path: Path) -> Trace:
    """Read a trace file."""
    if path.is_dir():
        raise BadInputError(
            f"{path} is a folder, not a trace.",
            f"If programs recorded to it, make a trace of it: torchtailor trace merge {path} -o app.trace",
        )
    try:
        data = read_limited(path, Limit.MANIFEST)
    except FileNotFoundError as error:
        raise NoMatchError(
            f"{path} does not exist.", "Make a trace with `torchtailor record -o FILE -- ...`."
        ) from error
    return decode_trace(data, str(path))


def decode_trace(data: bytes, name: str = "The trace") -> Trace:
    """A trace from its bytes; `name` is what an error calls it."""
    try:
        kind = msgspec.json.decode(data, type=shaped(_Kind))
        if kind.schema == SCHEMA and kind.version == VERSION:
            return msgspec.json.decode(data, type=shaped(Trace))
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise BadInputError(f"{name} is not a trace: {error}.", "Record it again.") from error
    raise BadInputError(
        f"{name} is not a trace of version {VERSION}.", "Record it again with this version of torchtailor."
    )


def write_trace(path: Path, trace: Trace) -> None:
    """Write a trace file, and the folder it is in."""
    with disk_errors(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, trace.to_bytes(), durable=True)


def check_trace_output(path: Path) -> None:
    """Refuse a place where no trace can be written, before a program runs for it."""
    check_replaceable(path)
    if path.is_dir():
        raise UsageError(f"{path} is a folder.", "Give the name of a file for the trace, such as app.trace.")
    with disk_errors(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
