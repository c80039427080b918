"""How functions are reached: at load time, behind run-time dispatch, or plainly.

A function that its name or source file does not place is placed by whoever refers to it: if only functions behind
dispatch do, it is behind dispatch as well. This is what tells a template that an AVX2 file alone uses from one that
the linker took from the AVX2 file for everybody (the cause of pytorch#37577).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import cached_property

import numpy as np
import numpy.typing as npt

from torchtailor.code.binary.elf_headers import ElfMachine, SectionType
from torchtailor.code.hostcode.dispatch import DispatchTable
from torchtailor.code.hostcode.features import ASKS_CPU
from torchtailor.code.hostcode.image import RELA, SYMBOL, CodeImage, FunctionOrigin
from torchtailor.code.hostcode.links import Links
from torchtailor.code.hostcode.needs import Needs
from torchtailor.code.hostcode.referrers import Referrers

_INIT, _INIT_ARRAY, _INIT_ARRAY_SIZE = 12, 25, 27  # dynamic tags
_BOLT_ORIGINAL = ".org.0"
_TOO_MANY = 20_000  # functions beyond which asking who calls each of them takes minutes


class Reach(Enum):
    """How a function comes to run."""

    STARTUP = "startup"  # runs when the library is loaded: constructors, static initialisers, IFUNC resolvers
    PLAIN = "plain"  # nothing stands between a caller and it
    GUARDED = "guarded"  # asks the CPU itself, or is called by a function that does
    DISPATCHED = "dispatched"  # behind run-time dispatch by its name, its source file or all its callers
    UNATTRIBUTED = "unattributed"  # no name and no visible caller: nothing is certain


@dataclass(frozen=True, slots=True)
class Placement:
    """How one function is reached and how that is known."""

    reach: Reach
    because: str


class Placer:
    """Places the functions of one library that need more than the architecture's baseline."""

    def __init__(self, image: CodeImage, needs: Needs, table: DispatchTable, allowed: frozenset[str]) -> None:
        self.image = image
        self.allowed = allowed
        self.needs = needs
        self.table = table
        self.links = Links(image)
        self._families: dict[int, str] = {}
        self._asks: dict[int, bool] = {}

    def place(self, functions: list[int]) -> dict[int, Placement]:
        """Where each of these functions stands."""
        placed: dict[int, Placement] = {}
        open_questions = []
        for function in functions:
            root = self.roots.get(int(self.image.functions.starts[function]))
            if root and ASKS_CPU not in self.needs.of(function):
                placed[function] = Placement(Reach.STARTUP, root)
            elif family := self.family(function):
                placed[function] = Placement(Reach.DISPATCHED, family)
            else:
                open_questions.append(function)
        placed |= self._by_references(open_questions)
        exposed = [function for function, place in placed.items() if place.reach is Reach.PLAIN]
        for function, chain in self._called_at_startup(exposed).items():
            placed[function] = Placement(Reach.STARTUP, chain)
        return placed

    def family(self, function: int) -> str:
        """The dispatched family a function belongs to by its name or source file; empty for none."""
        if function not in self._families:
            name, source = self.image.name_of(function), self.image.source_of(function)
            if not name and function and (before := self.image.name_of(function - 1)).endswith(_BOLT_ORIGINAL):
                name = before  # the rest of a function that BOLT has moved and left a jump in place of
            self._families[function] = self.table.family(name, source) or self._surroundings(function)
        return self._families[function]

    def _surroundings(self, function: int) -> str:
        """The family that a local or nameless function lies in the middle of, where that says something."""
        functions, globals_ = self.image.functions, self._global_functions
        if not self.table.contiguous or not len(globals_):
            return ""
        if functions.name_tables[function] and not functions.file_offsets[function]:
            return ""  # a global function has its own name
        after = int(np.searchsorted(globals_, function))
        if after in (0, len(globals_)):
            return ""
        before_name = self.image.name_of(int(globals_[after - 1]))
        after_name = self.image.name_of(int(globals_[after]))
        family = self.table.family(before_name, "")
        same = family in self.table.contiguous and family == self.table.family(after_name, "")
        return family if same else ""

    @cached_property
    def _global_functions(self) -> npt.NDArray[np.int64]:
        functions = self.image.functions
        return np.flatnonzero((functions.name_tables > 0) & (functions.file_offsets == 0))

    def named_family(self, name: str, source: str) -> str:
        return self.table.family(name, source)

    def asks_cpu(self, function: int) -> bool:
        """Whether a function asks what the CPU can do, itself or through a function that is known to."""
        if function not in self._asks:
            self._asks[function] = (
                ASKS_CPU in self.needs.of(function)
                or any(self.table.is_guard(self._name_at(target)) for target in self.links.called_by(function))
                or self._looks_first(function)
            )
        return self._asks[function]

    def _looks_first(self, function: int) -> bool:
        """Whether it is one of libgcc's helpers that test before they use, in a library without names."""
        if self.image.machine is not ElfMachine.AARCH64 or not self.needs.of(function):
            return False
        from torchtailor.code.hostcode import arm

        functions = self.image.functions
        return arm.asks_first(self.image.bytes_at(int(functions.starts[function]), int(functions.ends[function])))

    @cached_property
    def library_asks_cpu(self) -> bool:
        """Whether anything in the library asks the CPU: without that there is no dispatch in it."""
        return bool(len(self.needs.matching(lambda words: ASKS_CPU in words))) or any(
            self.table.is_guard(name) for name in self.image.imports
        )

    # -- what the loader runs --------

    @cached_property
    def roots(self) -> dict[int, str]:
        """Addresses that run while the library is loaded, and what makes them run."""
        elf, found = self.image.elf, {}
        array, size = elf.dynamic_value(_INIT_ARRAY), elf.dynamic_value(_INIT_ARRAY_SIZE)
        if array is not None and size:
            pointers = self.links.pointers
            inside = (pointers.places >= array) & (pointers.places < array + size)
            for target in pointers.targets[inside].tolist():
                found[target] = "static initialiser (.init_array)"
        init = elf.dynamic_value(_INIT)
        if init is not None:
            found[init] = "initialiser (.init)"
        for resolver in self.image.resolvers:
            found[resolver] = "IFUNC resolver"
        return found

    def _called_at_startup(self, wanted: list[int]) -> dict[int, str]:
        """Those of the functions that a static initialiser calls, directly or through others, and through whom."""
        functions, remaining = self.image.functions, set(wanted)
        if not remaining:
            return {}
        graph = self.links.call_graph(self._through_stub)
        parents: dict[int, int] = {}
        frontier = sorted({functions.index_at(address) for address in self.roots} - {-1})
        seen = set(frontier)
        found: dict[int, str] = {}
        while frontier and remaining:
            reached: dict[int, int] = {}
            for function in frontier:
                if function in remaining:
                    remaining.discard(function)
                    if chain := self._chain(function, parents):
                        found[function] = chain
                if self.family(function):
                    continue  # what lies behind is for dispatch to choose
                for callee in graph.callees(function):
                    if callee not in seen:
                        reached.setdefault(callee, function)
            parents |= reached
            seen.update(reached)
            frontier = list(reached)
        return found

    def _chain(self, function: int, parents: dict[int, int]) -> str:
        """The calls from a static initialiser to a function; empty where somebody on the way asks the CPU."""
        chain = []
        while function in parents:
            function = parents[function]
            if self.asks_cpu(function):
                return ""
            chain.append(self.label(function))
        return "called at load time by " + " <- ".join(chain[:4] + ["..."] * (len(chain) > 4))

    # -- names of addresses --------

    @cached_property
    def _through_stub(self) -> dict[int, int]:
        """Address of a PLT stub -> the library's own function that it leads to."""
        slots = dict(zip(self.links.pointers.places.tolist(), self.links.pointers.targets.tolist(), strict=True))
        return {
            stub: slots[slot]
            for stub, slot in zip(self.links.stubs.places.tolist(), self.links.stubs.targets.tolist(), strict=True)
            if slot in slots
        }

    @cached_property
    def _imported_at(self) -> dict[int, str]:
        """Addresses (stubs and slots) that stand for a name that other libraries define or may replace."""
        symbols = self.image.records(self.image.dynsym, SYMBOL)
        names: dict[int, str] = {}
        for section in self.image.elf.sections:
            if section.type == SectionType.RELA and section.allocated:
                records = self.image.records(section, RELA)
                for record in records[(records["symbol"] > 0) & (records["symbol"] < len(symbols))]:
                    symbol = symbols[record["symbol"]]
                    if symbol["section"] == 0:
                        names[int(record["place"])] = self.image.text_at(2, int(symbol["name"]))
        for stub, slot in zip(self.links.stubs.places.tolist(), self.links.stubs.targets.tolist(), strict=True):
            if slot in names:
                names[stub] = names[slot]
        return names

    def _name_at(self, address: int) -> str:
        if name := self._imported_at.get(address):
            return name
        address = self._through_stub.get(address, address)
        function = self.image.functions.index_at(address)
        if function >= 0:
            return self.image.name_of(function) if self.image.functions.starts[function] == address else ""
        return self.image.object_name(self.image.objects.index_at(address))

    # -- references --------

    def _by_references(self, functions: list[int]) -> dict[int, Placement]:
        """Place functions by who refers to them, until nothing changes."""
        if not functions:
            return {}
        if len(functions) > _TOO_MANY:
            return self._compiled_so(functions)
        referrers = Referrers(self, self.image, self.links, functions)
        exposed: dict[int, str] = {}
        unknown: dict[int, str] = {}
        guarded: dict[int, str] = {}
        for function in functions:
            if self.asks_cpu(function):
                guarded[function] = "asks the CPU itself"
            elif why := referrers.exposed_by(function):
                exposed[function] = why
            elif not referrers.any(function):
                self._without_referrers(function, exposed, unknown)
        changed = True
        while changed:
            changed = False
            for function in functions:
                if function in exposed or function in guarded:
                    continue
                through = next((f for f in referrers.in_question(function) if f in exposed), None)
                if through is not None:
                    exposed[function] = f"called by {self.label(through)}"
                    unknown.pop(function, None)
                    changed = True
        return {function: self._placement(function, exposed, unknown, guarded, referrers) for function in functions}

    def _compiled_so(self, functions: list[int]) -> dict[int, Placement]:
        """So many functions without a family are no exception; those beyond what was meant still may be."""
        meant = {f for f in functions if self.needs.of(f) <= self.allowed}
        unmeant = [f for f in functions if f not in meant]
        placed = dict.fromkeys(meant, Placement(Reach.PLAIN, "the library was compiled so throughout"))
        if len(unmeant) > _TOO_MANY:
            why = Placement(Reach.PLAIN, f"one of {len(unmeant)} functions that need it")
            return placed | dict.fromkeys(unmeant, why)
        return placed | self._by_references(unmeant)

    def _without_referrers(self, function: int, exposed: dict[int, str], unknown: dict[int, str]) -> None:
        functions = self.image.functions
        if functions.origins[function] == FunctionOrigin.GAP:
            unknown[function] = "between functions: code without a name, or data"
        elif self.image.is_exported(function):
            exposed[function] = "exported: other libraries may call it"
        elif not self.library_asks_cpu:
            exposed[function] = "nothing in the library asks what the CPU can do"
        else:
            unknown[function] = "nothing visible refers to it"

    def _placement(
        self,
        function: int,
        exposed: dict[int, str],
        unknown: dict[int, str],
        guarded: dict[int, str],
        referrers: Referrers,
    ) -> Placement:
        if function in guarded:
            return Placement(Reach.GUARDED, guarded[function])
        if function in exposed:
            if self.library_asks_cpu and not self.table.tells(self.image.name_of(function)):
                return Placement(
                    Reach.UNATTRIBUTED,
                    "the library checks CPU features, but its symbols do not show which functions are guarded",
                )
            return Placement(Reach.PLAIN, exposed[function])
        if function in unknown:
            return Placement(Reach.UNATTRIBUTED, unknown[function])
        if referrers.guarded(function):
            return Placement(Reach.GUARDED, "its callers ask the CPU")
        return Placement(Reach.DISPATCHED, "all its callers are behind dispatch")

    def label(self, function: int) -> str:
        """A function's name, or its address where it has none."""
        return self.image.name_of(function) or f"{int(self.image.functions.starts[function]):#x}"
