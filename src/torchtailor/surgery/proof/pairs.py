"""Each container of the stock library with its counterpart in the output."""

from __future__ import annotations

from dataclasses import dataclass

from torchtailor.code.gpucode.scan import FoundContainer, LibraryCode
from torchtailor.core.errors import CheckFailedError


@dataclass(frozen=True, slots=True)
class ContainerPair:
    """A container of the stock library and the same container in the output."""

    before: FoundContainer
    after: FoundContainer

    def problem(self, what: str) -> CheckFailedError:
        return CheckFailedError(f"The GPU code container at {self.before.container.offset:#x} {what}.")


def pair_containers(before: LibraryCode, after: LibraryCode) -> list[ContainerPair]:
    """The output has the containers of the stock library, all of them and in their order."""
    pairs: list[ContainerPair] = []
    for loaded in (True, False):
        old = [found for found in before.containers if found.loaded is loaded]
        new = [found for found in after.containers if found.loaded is loaded]
        if [found.section for found in old] != [found.section for found in new]:
            raise CheckFailedError(f"The output has {len(new)} GPU code containers and the input {len(old)}.")
        pairs += map(ContainerPair, old, new)
    return pairs
