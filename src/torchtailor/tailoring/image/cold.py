"""The packs of an image as an artifact that refers to it: each pack a blob, compressed for the way."""

from __future__ import annotations

import hashlib
import posixpath
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from torchtailor.core.trust import Sha256, Size
from torchtailor.oci.compression import LayerCompression, LayerWriter
from torchtailor.oci.descriptor import Descriptor
from torchtailor.oci.referrers import Attachment
from torchtailor.tailoring.tree import NewFile
from torchtailor.workload.pack import PACK_FOLDER

LABEL = "torchtailor.packs"  # of the image
PACKS = "application/vnd.torchtailor.packs.v1"
PACK = "application/vnd.torchtailor.pack.v1+zstd"
TITLE = "org.opencontainers.image.title"  # the file that oras makes of a blob
PATH, SIZE, SHA256 = "torchtailor.path", "torchtailor.size", "torchtailor.sha256"  # in the image, and unpacked
_PIECE = 1 << 20
_TOLD_APART = 8  # digits of a hash


@dataclass(frozen=True)
class ColdPack:
    """A pack that is, or will be, a blob of the artifact."""

    path: str  # in the image
    sha256: Sha256
    size: Size
    blob: Descriptor


def packed_cold(file: NewFile, place: Path, threads: int) -> ColdPack:
    """Compress a pack that an image would get to a file; it goes."""
    assert isinstance(file.content, Path)
    with file.content.open("rb") as pack, LayerWriter(place, LayerCompression.ZSTD, threads) as writer:
        while piece := pack.read(_PIECE):
            writer.write(piece)
        written = writer.finish()
    file.content.unlink()
    about = {PATH: file.path, SIZE: str(file.state.size), SHA256: file.state.sha256}
    blob = Descriptor(PACK, written.digest, written.size, annotations=about)
    return ColdPack(file.path, file.state.sha256, file.state.size, blob)


def by_name(packs: Iterable[ColdPack]) -> Mapping[str, ColdPack]:
    """Packs by their place in a folder of packs: in a folder of their distribution, if they have one.

    Two environments of an image may have packs of one name: the same one is there once, and of others each has a
    folder of its own, beside those of distributions, as programs look no deeper.
    """
    groups: dict[str, dict[Sha256, ColdPack]] = {}
    for pack in packs:
        groups.setdefault(pack.path.rpartition(f"{PACK_FOLDER}/")[2], {}).setdefault(pack.sha256, pack)
    named = {}
    for name, group in groups.items():
        folder, last = posixpath.split(name)
        for pack in group.values():
            own = f"{folder or 'packs'}-{pack.sha256[:_TOLD_APART]}/{last}"
            named[own if len(group) > 1 else name] = pack
    return named


def packs_label(packs: Iterable[ColdPack]) -> str:
    """What an image says of its packs, by path and hash: with it nobody can attach others to an image that is known by
    digest."""
    lines = "".join(f"{sha256}  {path}\n" for path, sha256 in sorted((pack.path, pack.sha256) for pack in packs))
    return f"sha256:{hashlib.sha256(lines.encode('utf-8', 'surrogatepass')).hexdigest()}"


def attachment_of(packs: Iterable[ColdPack]) -> Attachment:
    """Packs whose blobs are there already, each with the name that oras gives it: of the same ones, one."""
    packs = sorted(packs, key=lambda pack: pack.path)
    titles = {pack.path: {TITLE: f"{name}.zst"} for name, pack in by_name(packs).items()}
    return Attachment(PACKS, tuple(_annotated(pack.blob, titles.get(pack.path, {})) for pack in packs))


def _annotated(blob: Descriptor, more: dict[str, str]) -> Descriptor:
    return msgspec.structs.replace(blob, annotations=(blob.annotations or {}) | more)
