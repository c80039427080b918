"""Reads what the hook recorded, process by process, and makes a trace of it.

The hook knows addresses; which container lies there is read from the library itself. The format of the lines is in
`native/hook.c`.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from torchtailor.binary.elf import ElfFile
from torchtailor.binary.source import open_source
from torchtailor.errors import BadInputError
from torchtailor.gpucode.scan import scan_elf
from torchtailor.workload.identity import library_identity, loaded_containers
from torchtailor.workload.trace import Trace, TracedLibrary, merge_traces

_SITE = re.compile(r".*/(?:site|dist)-packages/(.+)")
_ESCAPED = re.compile(r"\\(.)")
_MEANING = {"t": "\t", "n": "\n", "\\": "\\"}
_PAGE = 0xFFF


@dataclass
class Recorded:
    """What the lines of all processes say."""

    loads: dict[str, set[int]] = field(default_factory=dict)  # by the path of a library, addresses
    opened: set[str] = field(default_factory=set)
    processes: set[str] = field(default_factory=set)
    unknown: int = 0  # raw code that belongs to no library
    lost: list[str] = field(default_factory=list)

    def read(self, path: Path) -> None:
        """Add the lines of one file; a last line without its end was cut off by a kill."""
        data = path.read_bytes()
        for line in data.split(b"\n")[:-1]:
            self._add([_unescaped(word) for word in os.fsdecode(line).split("\t")])

    def _add(self, words: list[str]) -> None:
        match words:
            case ["load" | "link" | "miss", library, address, _, *_]:
                try:
                    self.loads.setdefault(library, set()).add(int(address, 16))
                except ValueError:
                    self.lost.append(f"a line that is no event: {address[:40]}")
            case ["open", opened]:
                self.opened.add(opened)
            case ["proc", process, *_]:
                self.processes.add(process)
            case ["cubin", *_]:
                self.unknown += 1
            case ["lost", what]:
                self.lost.append(what)
            case _:
                self.lost.append("a line that is no event")


def _unescaped(word: str) -> str:
    return _ESCAPED.sub(lambda match: _MEANING.get(match[1], match[1]), word) if "\\" in word else word


def read_events(paths: Iterable[Path]) -> Recorded:
    """Read the files that the processes of a run left."""
    recorded = Recorded()
    for path in sorted(paths):
        recorded.read(path)
    return recorded


def make_trace(recorded: Recorded, programs: Iterable[str] = (), roots: Iterable[Path] = ()) -> Trace:
    """The trace of a run; `roots` are folders beside site-packages from which it imports."""
    lost = list(dict.fromkeys(recorded.lost))
    libraries = []
    for path, addresses in sorted(recorded.loads.items()):
        try:
            libraries.append(_library(Path(path), addresses))
        except (BadInputError, OSError) as error:
            lost.append(f"{path} cannot be read: {getattr(error, 'message', None) or error}")
    trace = Trace(
        libraries=tuple(libraries),
        opened=tuple(sorted(set(_below_sites(recorded.opened, [str(root.absolute()) for root in roots])))),
        programs=tuple(programs),
        processes=len(recorded.processes),
        lost=tuple(lost),
    )
    return merge_traces([trace])  # a library may have been loaded by two paths


def _below_sites(paths: Iterable[str], roots: list[str]) -> Iterator[str]:
    for path in paths:
        try:
            path.encode()
        except UnicodeEncodeError:
            continue
        whole = os.path.normpath(path)
        if match := _SITE.fullmatch(whole):
            yield match[1]
        else:
            yield from (whole[len(root) + 1 :] for root in roots if whole.startswith(f"{root}/"))


def _library(path: Path, addresses: set[int]) -> TracedLibrary:
    """The containers at these addresses; an address inside of one means it, as data may be handed out in parts."""
    with open_source(path) as source:
        elf = ElfFile(source)
        code = scan_elf(elf)
        found = [code.containers[index] for index in loaded_containers(code)]
        places = sorted((one.address or 0, position) for position, one in enumerate(found))
        starts = [start for start, _ in places]
        base = (elf.loads[0].address if elf.loads else 0) & ~_PAGE
        used = set()
        for address in addresses:
            index = bisect_right(starts, base + address) - 1
            if index >= 0 and base + address < starts[index] + found[places[index][1]].container.stored_size:
                used.add(places[index][1])
        return TracedLibrary(
            identity=library_identity(elf, code),
            name=path.name,
            containers=len(found),
            used=tuple(sorted(used)),
            stored=sum(one.container.stored_size for one in found),
            stored_used=sum(found[position].container.stored_size for position in used),
        )
