"""What every function of a library needs: both architectures, all cores, one number per function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from torchtailor.code.binary.elf_headers import ElfMachine
from torchtailor.code.hostcode.image import CodeImage, Functions
from torchtailor.core.cgroups import available_cores
from torchtailor.core.processes import run_all

Words = frozenset[str]

_SMALL = 2 << 20  # bytes of code for which starting processes costs more than it saves
_PROCESSES = 8  # at most: each takes some 250 MB
_PARTS = 32  # shares of the work, so that a slow one does not keep the other processes waiting
_CHUNK = 4 << 20  # instructions classified at a time on aarch64
_X86_PART = 1 << 19  # bytes decoded at a time on x86_64, at every one of them


@dataclass(frozen=True, slots=True)
class Needs:
    """The words that each function needs: an index into the distinct sets for each function."""

    sets: tuple[Words, ...]
    indices: npt.NDArray[np.uint16]

    def of(self, function: int) -> Words:
        return self.sets[int(self.indices[function])]

    def matching(self, wanted: Callable[[Words], bool]) -> npt.NDArray[np.int64]:
        """The functions whose set satisfies a predicate."""
        chosen = np.array([wanted(words) for words in self.sets], bool)
        return np.flatnonzero(chosen[self.indices]) if len(self.indices) else np.empty(0, np.int64)


def read_needs(image: CodeImage, *, processes: int = 0) -> Needs:
    """Read all instructions of a library, in as many processes as there are cores where no number is given."""
    processes = processes or min(available_cores(), _PROCESSES)
    functions = image.functions
    if not len(functions):
        return Needs((frozenset(),), np.empty(0, np.uint16))
    # equal shares of bytes, not of functions: the largest functions hold most of the code
    ends = np.cumsum(functions.ends - functions.starts)
    total = int(ends[-1])
    parts = _PARTS if total >= _SMALL else 1
    cuts = np.unique(np.searchsorted(ends, [total * i // parts for i in range(1, parts)]))
    bounds = [0, *(int(cut) for cut in cuts if 0 < cut < len(functions)), len(functions)]
    shares = [_Share(image, start, end) for start, end in pairwise(bounds)]
    read = dict(run_all(_read_share, shares, processes=processes, worth=0))
    return _join([read[share] for share in shares])


@dataclass(frozen=True, eq=False)
class _Share:
    """The functions of a library that one process reads."""

    image: CodeImage
    start: int
    end: int

    @property
    def size(self) -> int:
        functions = self.image.functions
        return int(functions.ends[self.end - 1] - functions.starts[self.start])


def _read_share(share: _Share) -> Needs:
    read = _x86 if share.image.machine is ElfMachine.X86_64 else _arm
    return read(share.image, share.image.functions, share.start, share.end)


def _x86(image: CodeImage, functions: Functions, start: int, end: int) -> Needs:
    from torchtailor.code.hostcode import x86, x86_decode

    starts, ends = functions.starts[start:end], functions.ends[start:end]
    found: list[npt.NDArray[np.int64]] = []
    first = 0
    while first < len(starts):
        # as many functions as a part of the code holds; a larger one alone
        limit = max(int(starts[first]) + _X86_PART, int(ends[first]))
        low = int(starts[first])
        segment = image.elf.load_at(low)  # the next one may be elsewhere in the file
        limit = min(limit, segment.address + segment.file_size) if segment else limit
        last = max(int(np.searchsorted(ends, limit, "right")), first + 1)
        code = x86_decode.superset(image.bytes_at(low, int(np.max(ends[first:last]))))
        places: list[int] = []
        counts: list[int] = []
        for one in range(first, last):
            begun = x86_decode.starts(code.lengths, int(starts[one]) - low, int(ends[one]) - low)
            places += begun
            counts.append(len(begun))
        classes = x86.classify(code, np.array(places, np.int64))
        owners = np.repeat(np.arange(first, last), counts)
        found.append(np.unique((owners << 8) | classes))
        first = last
    return _collected(found, x86.table().sets, end - start)


def _arm(image: CodeImage, functions: Functions, start: int, end: int) -> Needs:
    from torchtailor.code.hostcode import arm

    starts, ends = functions.starts[start:end], functions.ends[start:end]
    found: list[npt.NDArray[np.int64]] = []
    for section in image.code_sections:
        low, high = max(section.address, int(starts[0])), min(section.memory_end, int(ends[-1]))
        for address in range(low, high, _CHUNK * 4):
            stop = min(address + _CHUNK * 4, high)
            words = np.frombuffer(image.bytes_at(address, stop - (stop - address) % 4), "<u4")
            classes = arm.classify(words)
            at = np.flatnonzero(classes)
            confirmed = arm.confirm(words[at], classes[at])
            owners = functions.indices_at(address + at * 4)
            inside = (owners >= start) & (owners < end)
            found.append(np.unique(((owners[inside] - start) << 8) | confirmed[inside]))
    return _collected(found, [frozenset({word} if word else ()) for word in arm.class_words()], end - start)


def _collected(found: list[npt.NDArray[np.int64]], words: Sequence[Words], count: int) -> Needs:
    """The words of each function, from pairs of a function's number and a class."""
    members: dict[int, list[int]] = {}
    for pair in np.unique(np.concatenate(found)).tolist() if found else ():
        members.setdefault(pair >> 8, []).append(pair & 255)
    distinct: dict[tuple[int, ...], int] = {}
    sets: dict[Words, int] = {frozenset(): 0}
    indices = np.zeros(count, np.uint16)
    for position, classes in members.items():
        group = tuple(classes)
        if group not in distinct:
            distinct[group] = sets.setdefault(frozenset().union(*(words[number] for number in group)), len(sets))
        indices[position] = distinct[group]
    return Needs(tuple(sets), indices)


def _join(parts: list[Needs]) -> Needs:
    sets: dict[Words, int] = {}
    indices = []
    for part in parts:
        renumbered = np.array([sets.setdefault(words, len(sets)) for words in part.sets], np.uint16)
        indices.append(renumbered[part.indices])
    return Needs(tuple(sets), np.concatenate(indices))
