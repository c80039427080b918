"""The host code of one library: what it needs, what of that always runs, and what is behind dispatch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from torchtailor.code.binary.elf_headers import ElfMachine
from torchtailor.code.hostcode.dispatch import dispatch_table
from torchtailor.code.hostcode.features import NEWER, UNKNOWN, FeatureTable, feature_table
from torchtailor.code.hostcode.image import CodeImage, FunctionOrigin
from torchtailor.code.hostcode.needs import Needs, read_needs
from torchtailor.code.hostcode.reach import Placement, Placer, Reach

_EXAMPLES = 8


@dataclass(frozen=True, slots=True)
class Use:
    """One function that needs more than the baseline."""

    function: str
    address: int
    because: str
    instruction: str


@dataclass(frozen=True, slots=True)
class UseGroup:
    """All functions that are reached alike and need the same."""

    reach: Reach
    needs: tuple[str, ...]
    functions: int
    examples: tuple[Use, ...]


@dataclass(frozen=True, slots=True)
class HostCode:
    """What a library's own instructions say.

    `groups` are the functions that need more than the architecture's baseline; `uses` counts all functions that
    need a word; `families` counts functions behind dispatch by whose dispatch it is; `unknown` are the functions that
    always run and hold instructions which are newer than the table of instructions.
    """

    arch: str
    stripped: bool
    functions: int
    code_bytes: int
    uses: Mapping[str, int]
    families: Mapping[str, int]
    groups: tuple[UseGroup, ...]
    unknown: tuple[UseGroup, ...] = ()

    @property
    def machine(self) -> ElfMachine:
        return ElfMachine[self.arch.upper()]

    def needs(self, *reaches: Reach) -> frozenset[str]:
        """The words that functions reached in these ways need."""
        return frozenset(word for group in self.groups if group.reach in reaches for word in group.needs)

    def count(self, *reaches: Reach) -> int:
        return sum(group.functions for group in self.groups if group.reach in reaches)

    def beyond(self, allowed: Iterable[str], *reaches: Reach) -> tuple[UseGroup, ...]:
        """The groups reached in these ways that need a word which is not allowed."""
        permitted = frozenset(allowed)
        return tuple(g for g in self.groups if g.reach in reaches and not permitted.issuperset(g.needs))


def analyse(path: Path, allowed: frozenset[str] = frozenset(), *, needs: Needs | None = None) -> HostCode:
    """Read a library; `allowed` is what it was meant to be compiled for, which spares asking about each function."""
    image = CodeImage(path)
    table = feature_table(image.machine)
    needs = needs or read_needs(image)
    wanted = needs.matching(lambda words: bool(table.needed(words))).tolist()
    placer = Placer(image, needs, dispatch_table(image.machine.arch), table.closure(allowed))
    placed = placer.place(wanted)
    families = Counter(place.because for place in placed.values() if place.reach is Reach.DISPATCHED)
    functions = image.functions
    return HostCode(
        arch=image.machine.arch,
        stripped=image.stripped,
        functions=int((functions.origins < 2).sum()),
        code_bytes=int((functions.ends - functions.starts).sum()),
        uses=_uses(needs, table),
        families=dict(families.most_common()),
        groups=tuple(_groups(image, needs, table, placed)),
        unknown=tuple(_unknown(image, needs, placer)),
    )


def _unknown(image: CodeImage, needs: Needs, placer: Placer) -> Iterator[UseGroup]:
    """The functions that always run and hold instructions newer than the table, and nothing that looks like data."""
    found = needs.matching(lambda words: NEWER in words and UNKNOWN not in words)
    placed = placer.place(found[image.functions.origins[found] != FunctionOrigin.GAP].tolist())
    for reach in (Reach.STARTUP, Reach.PLAIN):
        members = [function for function, place in placed.items() if place.reach is reach]
        if members:
            examples = tuple(_use(image, function, placed[function], (NEWER,)) for function in members[:_EXAMPLES])
            yield UseGroup(reach, (), len(members), examples)


def _uses(needs: Needs, table: FeatureTable) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for words in needs.sets:
        number = len(needs.matching(lambda other, words=words: other is words))  # type: ignore[misc]
        for word in table.needed(words):
            counts[word] += number
    return {word: counts[word] for word in table.sorted(counts)}


def _groups(image: CodeImage, needs: Needs, table: FeatureTable, placed: Mapping[int, Placement]) -> list[UseGroup]:
    members: dict[tuple[Reach, tuple[str, ...]], list[int]] = {}
    for function, place in placed.items():
        members.setdefault((place.reach, table.sorted(table.needed(needs.of(function)))), []).append(function)
    order = list(Reach)
    rows = sorted(members.items(), key=lambda row: (order.index(row[0][0]), -len(row[1])))
    return [
        UseGroup(
            reach,
            words,
            len(functions),
            tuple(_use(image, f, placed[f], table.strongest(words)) for f in functions[:_EXAMPLES]),
        )
        for (reach, words), functions in rows
    ]


def _use(image: CodeImage, function: int, place: Placement, words: tuple[str, ...]) -> Use:
    start, end = int(image.functions.starts[function]), int(image.functions.ends[function])
    name = image.name_of(function) or f"{start:#x}"
    return Use(name, start, place.because, _example(image, start, end, frozenset(words)))


def _example(image: CodeImage, start: int, end: int, words: frozenset[str]) -> str:
    code = image.bytes_at(start, end)
    if image.machine is ElfMachine.X86_64:
        from torchtailor.code.hostcode import x86

        return x86.example(code, start, words)
    from torchtailor.code.hostcode import arm

    return arm.example(code, start, words)
