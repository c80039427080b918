"""What a GPU can run of a library, by the rules that NVIDIA publishes and the driver follows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tests.oracle.library import Container, Entry, Library

Capability = tuple[int, int]

# Jetson parts take no code of desktop parts of the same major, nor the other way round.
TEGRA = {(5, 3), (6, 2), (7, 2), (8, 7), (8, 8), (10, 1), (11, 0)}
# On which GPUs `f` code runs.
FAMILIES = {
    (10, 0): {(10, 0), (10, 3), (10, 7)},
    (10, 1): {(10, 1), (11, 0)},
    (10, 3): {(10, 3), (10, 7)},
    (12, 0): {(12, 0), (12, 1)},
}


class Runs(NamedTuple):
    """What a GPU can run, and from what the driver gets it."""

    container: str
    kernel: str  # `*`: all that the image holds
    how: str  # sm_90, compute_80 (compiled by the driver), linked:compute_80 (compiled and linked), lto_80 (nvJitLink)
    code: str  # the SHA-256 of the code


def capability_of(sm: int) -> Capability:
    return divmod(sm, 10)


def fits(device: Capability, entry: Entry) -> bool:
    """Whether the driver takes a cubin as it is, compiles PTX, or nvJitLink can link LTO-IR, for this GPU."""
    code = capability_of(entry.sm)
    if entry.suffix == "a":
        return device == code
    if entry.suffix == "f":
        return device in FAMILIES.get(code, {code})
    if entry.kind == "cubin":
        if device in TEGRA or code in TEGRA:
            return device == code or (code, device) == ((10, 1), (11, 0))  # the same part under its older number
        return device[0] == code[0] and code[1] <= device[1]
    return code <= device


def runnable(library: Library, device: Capability, *, every: bool = False) -> set[Runs]:
    """All that a GPU can run, and from which code.

    Of a container the driver takes the most specific cubin that fits, else the newest PTX. A function that only
    another fitting cubin has is counted with that one, for loaders that choose themselves; with `every`, all fitting
    cubins are, which is what NVIDIA asks for its own libraries. Where a device link has no cubin that fits, the driver
    links the objects from before it; which of an object's PTX and fitting cubin it takes is not known, so both count.
    """
    relink = needs_linking(library, device)
    found: set[Runs] = set()
    for container in library.containers:
        if container.prelinked:
            if relink:
                found.update(_for_the_linker(container, device))
        else:
            found.update(_of_container(container, device, every=every))
    return found


def needs_linking(library: Library, device: Capability) -> bool:
    """Whether a device link has left out this GPU, so that the driver links when the library is loaded."""
    linked = [container for container in library.containers if container.linked]
    return any(not _cubins(container, device) for container in linked)


def foreign(library: Library, devices: Iterable[Capability]) -> list[tuple[Container, Entry]]:
    """Code that none of the GPUs can use in any way. What is compressed together with usable code is excused."""
    devices = tuple(devices)
    left = []
    for container, entry in library.entries:
        if entry.kind.startswith("unknown") or any(fits(device, entry) for device in devices):
            continue
        together = [other for other in container.entries if entry.solid and other.offset == entry.offset]
        if not any(fits(device, other) for other in together for device in devices):
            left.append((container, entry))
    return left


def unused(library: Library, devices: Iterable[Capability]) -> list[tuple[Container, Entry]]:
    """Code that fits a GPU and yet is never taken: PTX beside a fitting cubin, objects of a device link that fits."""
    devices = tuple(devices)
    relink = [device for device in devices if needs_linking(library, device)]
    left = []
    for container, entry in library.entries:
        fitting = [device for device in devices if fits(device, entry)]
        if not fitting or entry.solid:
            continue
        if container.prelinked:
            taken = any(device in relink for device in fitting)
        else:
            taken = entry.kind != "ptx" or any(not _cubins(container, device) for device in fitting)
        if not taken:
            left.append((container, entry))
    return left


def _cubins(container: Container, device: Capability) -> list[Entry]:
    return [entry for entry in container.entries if entry.kind == "cubin" and fits(device, entry)]


def specificity(entry: Entry) -> tuple[Capability, int]:
    return capability_of(entry.sm), {"": 0, "f": 1, "a": 2}[entry.suffix]


def _of_container(container: Container, device: Capability, *, every: bool) -> Iterator[Runs]:
    cubins = _cubins(container, device)
    yield from _linked_at_run_time(container, device)
    if not cubins:
        ptx = [entry for entry in container.entries if entry.kind == "ptx" and fits(device, entry)]
        for entry in _newest(ptx):
            yield _whole(container, entry, "linked:" if entry.relocatable else "")
        return
    best = cubins if every else _newest(cubins)
    for entry in best:
        yield _whole(container, entry)
    others = [entry for entry in cubins if entry not in best]
    if others:
        have = {kernel for entry in best for kernel in entry.kernels}
        for entry in sorted(others, key=specificity, reverse=True):
            missing = entry.kernels - have
            have |= missing
            for kernel in sorted(missing):
                yield Runs(container.id, kernel, entry.label, entry.raw_sha256)


def _for_the_linker(container: Container, device: Capability) -> Iterator[Runs]:
    ptx = [entry for entry in container.entries if entry.kind == "ptx" and fits(device, entry)]
    for entry in [*_newest(_cubins(container, device)), *_newest(ptx)]:
        yield _whole(container, entry, "linked:")


def _linked_at_run_time(container: Container, device: Capability) -> Iterator[Runs]:
    for entry in container.entries:
        if entry.kind == "lto" and fits(device, entry):
            yield _whole(container, entry)


def _newest(entries: list[Entry]) -> list[Entry]:
    """All of the most specific architecture: one container may hold several images of it."""
    best = max(map(specificity, entries), default=None)
    return [entry for entry in entries if specificity(entry) == best]


def _whole(container: Container, entry: Entry, prefix: str = "") -> Runs:
    return Runs(container.id, "*", prefix + entry.label, entry.raw_sha256)
