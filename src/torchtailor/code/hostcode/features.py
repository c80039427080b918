"""The words of /proc/cpuinfo that instructions need, and which words imply which."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache

from torchtailor.code.binary.elf_headers import ElfMachine
from torchtailor.core.tables import read_table

ASKS_CPU = "@asks-cpu"  # an instruction that asks what the CPU can do
UNKNOWN = "@unknown"  # bytes that are no instruction the decoder knows: data, or newer than the decoder
NEWER = "@newer"  # an instruction by its form (VEX, EVEX) that the decoder does not know: newer than the decoder


@dataclass(frozen=True)
class FeatureTable:
    """What words mean on one architecture."""

    baseline: frozenset[str]  # words every CPU of the architecture has
    implies: Mapping[str, tuple[str, ...]]
    order: tuple[str, ...]  # from the oldest word to the newest, for people to read

    def closure(self, words: Iterable[str]) -> frozenset[str]:
        """The words with all that any CPU that has them must have as well."""
        found, waiting = set(self.baseline), list(words)
        while waiting:
            word = waiting.pop()
            if word not in found:
                found.add(word)
                waiting += self.implies.get(word, ())
        return frozenset(found)

    def needed(self, words: Iterable[str]) -> frozenset[str]:
        """What is left of the words beyond the architecture's baseline, without marks such as `@unknown`."""
        return frozenset(word for word in words if word[0] != "@" and word not in self.baseline)

    def strongest(self, words: Iterable[str]) -> tuple[str, ...]:
        """The words that no other word of the set implies, oldest first: `avx2` for avx, avx2 and sse4_1."""
        kept = set(words)
        for word in words:
            kept -= self.closure([word]) - {word}
        return self.sorted(kept)

    def sorted(self, words: Iterable[str]) -> tuple[str, ...]:
        rank = {word: index for index, word in enumerate(self.order)}
        return tuple(sorted(words, key=lambda word: (rank.get(word, len(rank)), word)))


@cache
def feature_table(machine: ElfMachine) -> FeatureTable:
    """The table of an architecture, from data/features.toml."""
    return read_table("code.hostcode", "features.toml", dict[str, FeatureTable])[machine.arch]
