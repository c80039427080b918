"""Which containers of a library go to a pack, and the writing of that pack."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from torchtailor.code.gpucode.fatbin import CONTAINER_HEADER, CONTAINER_MAGIC, Image
from torchtailor.code.gpucode.scan import FoundContainer, Reference
from torchtailor.core.disk import staging_folder
from torchtailor.core.version import __version__
from torchtailor.surgery.cut import Cut, PackCompression
from torchtailor.surgery.files import FileSource
from torchtailor.surgery.host_pages import cold_blocks, segment_bytes
from torchtailor.surgery.opened import OpenLibrary
from torchtailor.surgery.page_plan import PagePlan
from torchtailor.surgery.plan import KeptImages
from torchtailor.workload.identity import library_identity, loaded_containers
from torchtailor.workload.pack import PACK_SUFFIX, Pack, container_key, new_pack, open_pack

# the driver links the objects of a device link by itself, from a list that the hook does not see
_FIXED = (Reference.LINKED, Reference.PRELINKED)


@dataclass(frozen=True)
class MovedCode:
    """The containers that go to a pack: what is kept of each, and the key it is found by."""

    name: str  # of the pack
    identity: str  # of the library
    keys: Mapping[int, bytes]  # by the offset of the container in the stock library
    keep: KeptImages
    description: Mapping[str, object]

    @property
    def digest(self) -> str:
        """The hash of what was moved, whatever of it the targets use."""
        return hashlib.blake2b(b"".join(sorted(set(self.keys.values()))), digest_size=16).hexdigest()

    @contextmanager
    def written(self, source: FileSource, folder: Path | None, beside: Path) -> Iterator[Pack]:
        """Write the pack to `folder`; without one only for as long as the block runs, on the disk of `beside`."""
        with staging_folder(beside) as scratch:
            path = (folder or scratch) / self.name
            with new_pack(path, len(self.keys), self.description) as writer:
                for key, offset in sorted({key: offset for offset, key in self.keys.items()}.items()):
                    writer.add(key, _content(source, self.keep[offset]))
            with open_pack(path) as pack:
                yield pack


def move_code(library: OpenLibrary, name: str, keep: KeptImages, options: Cut) -> MovedCode | None:
    """What the workload does not use of what is kept, of a split all containers; None where that is nothing."""
    if not options.packing:
        return None
    identity = library_identity(library.elf, library.code)
    keys = {
        found.container.offset: container_key(library.source, found.container)
        for found in _unused(library, options, identity)
        if (found.images if options.split else keep[found.container.offset])
    }
    if not keys:
        return None
    description = describe(name, identity, options)
    return MovedCode(pack_name(name, options, None, keys.values()), identity, keys, keep, description)


def describe(name: str, identity: str, options: Cut) -> dict[str, object]:
    """What a pack says of itself; that of a split serves every library with the same containers."""
    about: dict[str, object] = {"split": True} if options.split else {"identity": identity}
    return {"tool": f"torchtailor {__version__}", "library": name, "target": options.targets.label, **about}


def pack_name(name: str, options: Cut, moved: MovedCode | None, keys: Iterable[bytes]) -> str:
    """The name of a pack, another for each content."""
    every = sorted([*(moved.keys.values() if moved else ()), *keys])
    digest = hashlib.blake2b(options.targets.label.encode() + b"".join(every), digest_size=4)
    if moved or options.pack_compress is not PackCompression.NONE:
        digest.update(options.pack_compress.value.encode())
    return f"{name}-{digest.hexdigest()}{PACK_SUFFIX}"


def write_pages(
    path: Path,
    plan: PagePlan,
    keys: Sequence[bytes],
    source: FileSource,
    code: Pack | None,
    description: Mapping[str, object],
    options: Cut,
) -> None:
    """Write a pack of pages, with the containers of another pack."""
    with new_pack(path, len(keys) + (len(code.rows) if code else 0), description) as writer:
        if code:
            writer.add_from(code)
        for key, (_, cover) in zip(keys, plan.segments, strict=True):
            if options.pack_compress is PackCompression.NONE:
                writer.add_pages(key, cover.size, segment_bytes(plan, source, cover))
            else:
                writer.add_packed_pages(key, cover.size, cold_blocks(plan, source, cover), options.level)


def _unused(library: OpenLibrary, options: Cut, identity: str) -> Iterator[FoundContainer]:
    positions = loaded_containers(library.code)
    stays = options.workload.stays(identity, len(positions)) if options.workload else frozenset()
    for position, index in enumerate(positions):
        found = library.code.containers[index]
        if position not in stays and not found.container.bare and found.reference not in _FIXED:
            yield found


def _content(source: FileSource, images: tuple[Image, ...]) -> Iterator[bytes]:
    """A container of these images."""
    size = sum(image.stored_size for image in images)
    yield CONTAINER_HEADER.pack(CONTAINER_MAGIC, 1, CONTAINER_HEADER.size, size)
    for image in images:
        yield from source.chunks(image.offset, image.stored_size)
