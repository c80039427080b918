"""What each GPU would load of a library, and what none would: the code that a build could leave out."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from functools import partial

import msgspec

from torchtailor.catalog import Capability, CodeKind, TorchArch, load_catalog
from torchtailor.code.binary.source import ByteSource
from torchtailor.code.gpucode.fatbin import Image, codes_of
from torchtailor.code.gpucode.kernels import kernel_names
from torchtailor.code.gpucode.policy import Policy, read_ahead
from torchtailor.code.gpucode.scan import FoundContainer, LibraryCode, Reference
from torchtailor.code.gpucode.targets import Targets
from torchtailor.core.documents import Bytes

_WORTH = 1 << 12  # bytes: smaller pieces are alike by chance, and nobody gains by them


class Why(Enum):
    """Why no GPU loads some code, and what avoids it."""

    PTX = "PTX"
    LINKED = "linked"
    PASSED_OVER = "passed over"
    UNKNOWN_GPU = "for no known GPU"
    REPEATED = "repeated"

    @property
    def meaning(self) -> str:
        return _MEANINGS[self][0]

    @property
    def remedy(self) -> str:
        return _MEANINGS[self][1]


_MEANINGS = {
    Why.PTX: (
        "PTX beside machine code for every known GPU that could compile it",
        "leave out +PTX of TORCH_CUDA_ARCH_LIST, or code=compute_XX of -gencode; newer GPUs then need a newer build",
    ),
    Why.LINKED: (
        "objects of a device link, of which GPUs load the linked code",
        "compile without -rdc=true (CUDA_SEPARABLE_COMPILATION) where no kernel calls code of another file",
    ),
    Why.PASSED_OVER: (
        "machine code that every GPU passes over for another in the same place",
        "leave out its -gencode arch=compute_XX,code=sm_XX",
    ),
    Why.UNKNOWN_GPU: (
        "machine code that no known GPU runs",
        "leave out its -gencode arch=compute_XX,code=sm_XX",
    ),
    Why.REPEATED: (
        "the same machine code in several places",
        "compile the source into one library that the others link, or give kernels internal linkage in one file only",
    ),
}


class UnusedCode(msgspec.Struct, frozen=True):
    """Code of one architecture in one library that no GPU loads; `why` names the reason."""

    library: str
    code: str
    why: Why
    images: int
    size: Bytes


class Loaded(msgspec.Struct, frozen=True):
    """What one GPU would load of one library, by architecture."""

    library: str
    gpu: Capability
    code: str
    size: Bytes


class CodeUse(msgspec.Struct, frozen=True):
    """How GPUs use the code of one library."""

    unused: tuple[UnusedCode, ...]
    loaded: tuple[Loaded, ...]
    pieces: Mapping[bytes, tuple[str, int, int]]  # by hash of what is stored: architecture, size, how often


def code_use(source: ByteSource, library: str, code: LibraryCode) -> CodeUse:
    """Ask for each GPU of the catalog what a cut for it would keep; what none keeps is unused."""
    catalog = load_catalog()
    policies = {
        device: Policy(Targets((TorchArch(device),)), catalog.rules).for_library(library, code.soname)
        for device in sorted(catalog.gpus)
    }
    names = read_ahead(policies.values(), code.containers, partial(kernel_names, source))
    loaded: list[Loaded] = []
    used: set[int] = set()
    for device, policy in policies.items():
        kept = policy.keep(code.containers, names)
        if device not in kept.served:
            continue
        sizes: Counter[str] = Counter()
        for image in (image for images in kept.images for image in images):
            used.add(id(image))
            sizes[image.label] += image.stored_size
        loaded += (Loaded(library, device, label, size) for label, size in sizes.items())
    unused: dict[tuple[str, Why], list[int]] = {}
    for container in code.containers:
        for image in container.images if container.can_be_cut else ():
            if id(image) not in used:
                counted = unused.setdefault((image.label, _why(image, container, policies.values())), [0, 0])
                counted[0] += 1
                counted[1] += image.stored_size
    return CodeUse(
        tuple(UnusedCode(library, label, why, *counted) for (label, why), counted in unused.items()),
        tuple(loaded),
        _pieces(source, code.images),
    )


def repeated(uses: Iterable[tuple[str, CodeUse]]) -> Iterator[UnusedCode]:
    """Machine code that lies in several places of the libraries: all but the first of each."""
    seen: set[bytes] = set()
    for library, use in uses:
        again: dict[str, list[int]] = {}
        for digest, (label, size, times) in use.pieces.items():
            extra = times - (digest not in seen)
            seen.add(digest)
            if extra:
                counted = again.setdefault(label, [0, 0])
                counted[0] += extra
                counted[1] += extra * size
        yield from (UnusedCode(library, label, Why.REPEATED, *counted) for label, counted in again.items())


def _why(image: Image, container: FoundContainer, policies: Iterable[Policy]) -> Why:
    if container.reference is Reference.PRELINKED:
        return Why.LINKED
    kinds = {code.kind for code in codes_of((image,))}
    if kinds == {CodeKind.PTX}:
        return Why.PTX
    return Why.PASSED_OVER if any(policy.usable((image,)) for policy in policies) else Why.UNKNOWN_GPU


def _pieces(source: ByteSource, images: Iterable[Image]) -> Mapping[bytes, tuple[str, int, int]]:
    pieces: dict[bytes, tuple[str, int, int]] = {}
    for image in images:
        if image.stored_size < _WORTH or image.target is None or image.target.kind is not CodeKind.CUBIN:
            continue
        digest = hashlib.sha256(source.read(image.payload_offset, image.payload_size)).digest()[:16]
        times = pieces[digest][2] if digest in pieces else 0
        pieces[digest] = (image.label, image.stored_size, times + 1)
    return pieces
