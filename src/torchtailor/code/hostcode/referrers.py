"""Who refers to functions: through calls, stubs of the PLT, slots of the GOT, and tables of pointers in data."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import numpy as np

from torchtailor.code.hostcode.image import CodeImage
from torchtailor.code.hostcode.links import Links


class Knowledge(Protocol):
    """What is already known about functions when their references are looked at."""

    def family(self, function: int) -> str:
        """The dispatched family a function belongs to; empty for none."""
        ...

    def named_family(self, name: str, source: str) -> str:
        """The dispatched family that a name or source file belongs to; empty for none."""
        ...

    def asks_cpu(self, function: int) -> bool:
        """Whether the function asks what the CPU can do."""
        ...

    def label(self, function: int) -> str:
        """A name to show."""
        ...


Range = tuple[int, int]


class Referrers:
    """Who refers to each of some functions."""

    def __init__(self, knowledge: Knowledge, image: CodeImage, links: Links, functions: Iterable[int]) -> None:
        self._knowledge = knowledge
        self._image = image
        self._links = links
        self._wanted = set(functions)
        self._callers: dict[int, set[int]] = {function: set() for function in self._wanted}
        self._data: dict[int, set[str]] = {function: set() for function in self._wanted}
        ways = self._ways()
        self._find_callers(ways)
        self._confirm_callers(ways)

    def any(self, function: int) -> bool:
        """Whether anything at all refers to the function."""
        return bool(self._callers[function] or self._data[function])

    def in_question(self, function: int) -> set[int]:
        """The callers that are themselves among the functions asked about."""
        return self._callers[function] & self._wanted

    def guarded(self, function: int) -> bool:
        """Whether a plain function is among the callers; with none exposing it, all of those ask the CPU."""
        return any(not self._knowledge.family(caller) for caller in self._callers[function] - self._wanted)

    def exposed_by(self, function: int) -> str:
        """The plain code through which anybody gets to the function; empty where there is none."""
        for caller in sorted(self._callers[function] - self._wanted):
            if not self._knowledge.family(caller) and not self._knowledge.asks_cpu(caller):
                return f"called by {self._knowledge.label(caller)}"
        return next((f"reached through {where}" for where in sorted(self._data[function]) if where), "")

    def _ways(self) -> dict[Range, set[int]]:
        """Ranges of addresses, and the functions that a reference into them leads to."""
        image, starts = self._image, self._image.functions.starts
        by_start = {int(starts[function]): function for function in self._wanted}
        ways: dict[Range, set[int]] = {(start, start + 1): {f} for start, f in by_start.items()}
        slots: dict[int, int] = {}
        pointers = self._links.pointers_to(np.array(sorted(by_start), np.int64))
        for place, target in zip(pointers.places.tolist(), pointers.targets.tolist(), strict=True):
            section = next(
                (s for s in image.elf.sections if s.in_file and s.allocated and s.address <= place < s.memory_end), None
            )
            if section is not None and section.name.startswith(".got"):
                slots[place] = by_start[target]
                ways.setdefault((place, place + 1), set()).add(by_start[target])
            else:
                self._through_data(place, section.name if section else "data", by_start[target], ways)
        stubs = self._links.stubs
        for stub, slot in zip(stubs.places.tolist(), stubs.targets.tolist(), strict=True):
            if slot in slots:
                ways.setdefault((stub, stub + 1), set()).add(slots[slot])
        return ways

    def _through_data(self, place: int, section: str, function: int, ways: dict[Range, set[int]]) -> None:
        """A pointer in a table: whoever refers to the table gets to the function."""
        objects = self._image.objects
        found = objects.index_at(place)
        if found < 0:
            self._data[function].add(f"a pointer in {section}")
            return
        if self._knowledge.named_family(self._image.object_name(found), self._image.object_source(found)):
            self._data[function].add("")  # seen, and behind dispatch
            return
        start = int(objects.starts[found])
        ways.setdefault((start, start + max(int(objects.sizes[found]), 1)), set()).add(function)

    def _find_callers(self, ways: dict[Range, set[int]]) -> None:
        ranges = sorted(ways)
        starts = np.array([start for start, _ in ranges], np.int64)
        # ranges that overlap would hide each other: each ends where the next begins
        ends = np.minimum([end for _, end in ranges], np.append(starts[1:], np.iinfo(np.int64).max))
        for place, target in self._links.code_to(starts, ends):
            caller = self._image.functions.index_at(place)
            for function in ways[ranges[int(np.searchsorted(starts, target, side="right")) - 1]]:
                if caller >= 0 and caller != function:
                    self._callers[function].add(caller)

    def _confirm_callers(self, ways: dict[Range, set[int]]) -> None:
        """Drop callers that a full decoding does not show: bytes that only looked like a reference."""
        lead: dict[int, list[Range]] = {}
        for place, functions in ways.items():
            for function in functions:
                lead.setdefault(function, []).append(place)
        decoded: dict[int, set[int]] = {}
        for function, callers in self._callers.items():
            for caller in list(callers):
                if caller not in decoded:
                    decoded[caller] = self._links.called_by(caller)
                if not any(start <= t < end for t in decoded[caller] for start, end in lead[function]):
                    callers.discard(caller)
