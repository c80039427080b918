"""Proof, part one: the images of the output are those of the stock library, and enough of them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from torchtailor.catalog.gpus import CodeKind
from torchtailor.code.binary.source import ByteSource
from torchtailor.code.gpucode.fatbin import Compression, EntryFlag, Image
from torchtailor.code.gpucode.kernels import kernel_names
from torchtailor.code.gpucode.policy import Policy
from torchtailor.code.gpucode.runnable import driver_readings, lost_code
from torchtailor.surgery.files import CHUNK, FileSource, same_bytes
from torchtailor.surgery.image_cache import ProvenImages
from torchtailor.surgery.opened import OpenLibrary
from torchtailor.surgery.proof.pairs import ContainerPair
from torchtailor.workload.pack import Pack

_STORAGE = int(EntryFlag.LZ4 | EntryFlag.ZSTD)
_MAX_PADDING = 64
# bytes of an entry's header that recompression changes: padded and compressed size, flags, raw size
_STORAGE_FIELDS = ((8, 20), (40, 48), (56, 64))


def check_images(
    before: OpenLibrary,
    after: OpenLibrary,
    pairs: Sequence[ContainerPair],
    policy: Policy | None,
    proven: ProvenImages | None,
    pack: Pack | None = None,
    *,
    split: bool = False,
) -> None:
    """Check each image that was kept, and what was lost with those that were not; what is in a pack counts as kept."""
    same = _copied_whole(before.source, after.source, pairs)
    pairs = [_with_packed(before.source, pair, pack) for pair in pairs]
    policies = policy.for_each([pair.before for pair in pairs]) if policy else [None] * len(pairs)
    for pair, is_same, own in zip(pairs, same, policies, strict=True):
        images = pair.before.images
        packed = pack if pair.after.container.ticket else None
        source = packed.source if packed else after.source
        kept = list(images) if is_same else _match(before.source, source, pair, proven)
        if split and packed is None:
            if not is_same:
                raise pair.problem("was not moved to a pack and is not as it was")
        elif policy is None or not pair.before.can_be_cut:
            if len(kept) != len(images):
                raise pair.problem("lost images although nothing was to be cut")
        elif own is None:
            if kept:
                raise pair.problem("is from before the device link and should be empty")
        else:
            _check_policy(before.source, pair, kept, own)
    if policy:
        _check_runnable(pairs, policy)


def _with_packed(stock: ByteSource, pair: ContainerPair, pack: Pack | None) -> ContainerPair:
    """The pair with what the pack has in place of a container that was moved there, under the key of the stock one."""
    key = pair.after.container.ticket
    if not key or key == pair.before.container.ticket:
        return pair
    start, end = pair.before.container.offset, pair.before.container.end
    hasher = hashlib.blake2b(digest_size=len(key))
    for at in range(start, end, CHUNK):
        hasher.update(stock.read(at, min(CHUNK, end - at)))
    if hasher.digest() != key:
        raise pair.problem("was moved to a pack under a key that is not its own")
    row = pack.find(key) if pack else None
    if pack is None or row is None:
        raise pair.problem("was moved to a pack that does not have it")
    container = pack.container(row)._replace(ticket=key)
    return ContainerPair(pair.before, pair.after._replace(container=container))


def _check_runnable(pairs: Sequence[ContainerPair], policy: Policy) -> None:
    """What the driver uses of the stock library it can use of the output: by its own reading, not the policy's."""
    readings = driver_readings(policy.devices, policy.rules, lto=policy.keep_lto)
    for lost in lost_code([pair.before for pair in pairs], [pair.after for pair in pairs], readings):
        raise pairs[lost.container].problem(str(lost))


def _copied_whole(stock: FileSource, output: FileSource, pairs: Sequence[ContainerPair]) -> list[bool]:
    """Which containers are byte for byte what they were; those that moved together are compared as one."""
    same = [False] * len(pairs)
    first = 0
    for index in range(1, len(pairs) + 1):
        if index < len(pairs) and _together(pairs[index - 1], pairs[index]):
            continue
        start, end = pairs[first].before.container.offset, pairs[index - 1].before.container.end
        if _unresized(pairs[first]) and same_bytes(
            stock, start, output, pairs[first].after.container.offset, end - start
        ):
            same[first:index] = [True] * (index - first)
        first = index
    return same


def _unresized(pair: ContainerPair) -> bool:
    return pair.before.container.size == pair.after.container.size


def _together(one: ContainerPair, other: ContainerPair) -> bool:
    """Whether two neighbours kept their sizes and their distance."""
    shift = one.after.container.offset - one.before.container.offset
    return (
        _unresized(one)
        and _unresized(other)
        and other.after.container.offset - other.before.container.offset == shift
        and 0 <= other.before.container.offset - one.before.container.end < _MAX_PADDING
    )


def _match(stock: FileSource, output: ByteSource, pair: ContainerPair, proven: ProvenImages | None) -> list[Image]:
    """The stock images that the images of the output are, in the same order."""
    matched: list[Image] = []
    position = 0
    candidates = pair.before.images
    for image in pair.after.images:
        while position < len(candidates):
            candidate = candidates[position]
            position += 1
            if _same_image(stock, candidate, output, image, proven):
                matched.append(candidate)
                break
        else:
            raise pair.problem(f"has an image for {image.label} that is not the stock one")
    return matched


def _same_image(stock: FileSource, old: Image, output: ByteSource, new: Image, proven: ProvenImages | None) -> bool:
    if (old.kind_number, old.sm, old.name, old.flags & ~_STORAGE) != (
        new.kind_number,
        new.sm,
        new.name,
        new.flags & ~_STORAGE,
    ):
        return False
    if (old.header_size, old.padded_size) == (new.header_size, new.padded_size) and same_bytes(
        stock, old.offset, output, new.offset, old.stored_size
    ):
        return True
    if proven is None or new.compression is not Compression.ZSTD or old.raw_size != new.raw_size:
        return False
    headers = [bytearray(stock.read(old.offset, old.header_size)), bytearray(output.read(new.offset, new.header_size))]
    for header in headers:
        for start, end in _STORAGE_FIELDS:
            header[start:end] = bytes(end - start)
    payload_end = new.payload_offset + new.payload_size
    if headers[0] != headers[1] or any(output.read(payload_end, new.end - payload_end)):
        return False
    return proven.same_code(old, output, new)


def _check_policy(stock: FileSource, pair: ContainerPair, kept: list[Image], policy: Policy) -> None:
    for image in kept:
        if not policy.allows(image):
            raise pair.problem(f"still has {image.label}, which no target can use")
    images = pair.before.images
    if len(kept) == len(images):
        return
    lost = policy.usable(images) - policy.usable(kept)
    if lost:
        names = ", ".join(map(str, sorted(lost)))
        raise pair.problem(f"had code for {names} and has none now")
    gone = policy.loaded(images) - {piece.target for image in kept for piece in image.pieces}
    if gone:
        raise pair.problem(f"lost {min(map(str, gone))}, which the driver would load")
    _check_kernels(stock, pair, kept, policy)


def _check_kernels(stock: FileSource, pair: ContainerPair, kept: list[Image], policy: Policy) -> None:
    """Where cubins were removed because better ones stay: do those have all their kernels?"""
    stay = set(map(id, kept))
    gone = [
        image
        for image in pair.before.images
        if id(image) not in stay and image.target and image.target.kind is CodeKind.CUBIN and policy.usable((image,))
    ]
    for image in gone:
        own = kernel_names(stock, image)  # None: unreadable; empty: a cubin of data or device functions alone
        for device in policy.usable((image,)):  # each must have them in code that it runs
            names: set[str] = set()
            for other in kept:
                if device in policy.usable((other,)):
                    names |= kernel_names(stock, other) or frozenset()
            missing = ({"(unreadable)"} if own is None else own) - names
            if missing:
                raise pair.problem(f"lost the kernel {min(missing)} with {image.label}")
