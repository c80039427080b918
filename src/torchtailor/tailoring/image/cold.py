"""The packs of an image as an artifact that refers to it: each pack a blob, compressed for the way."""

from __future__ import annotations

import hashlib
import posixpath
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from torchtailor.core.disk import hash_file
from torchtailor.oci.descriptor import Descriptor
from torchtailor.oci.referrers import Attachment
from torchtailor.tailoring.tree import NewFile
from torchtailor.workload.pack import PACK_FOLDER

LABEL = "torchtailor.packs"  # of the image
PACKS = "application/vnd.torchtailor.packs.v1"
PACK = "application/vnd.torchtailor.pack.v1+zstd"
TITLE = "org.opencontainers.image.title"  # the file that oras makes of a blob
PATH, SIZE, SHA256 = "torchtailor.path", "torchtailor.size", "torchtailor.sha256"  # in the image, and unpacked
_LEVEL = 3


@dataclass(frozen=True)
class PackedPack:
    """A pack, compressed for the way, in a file."""

    descriptor: Descriptor
    path: Path

    @classmethod
    def of(cls, file: NewFile, place: Path, threads: int) -> PackedPack:
        """Compress a pack that an image would get; it goes."""
        from zstandard import ZstdCompressor

        assert isinstance(file.content, Path)
        with file.content.open("rb") as pack, place.open("wb") as out:
            ZstdCompressor(level=_LEVEL, threads=threads).copy_stream(pack, out, size=file.state.size)
        file.content.unlink()
        about = {
            TITLE: f"{inside_packs(file.path)}.zst",
            PATH: file.path,
            SIZE: str(file.state.size),
            SHA256: file.state.sha256,
        }
        digest = f"sha256:{hash_file(place)}"
        return cls(Descriptor(PACK, digest, place.stat().st_size, annotations=about), place)


def inside_packs(path: str) -> str:
    """The path of a pack below the folder of packs: in a folder of its distribution, if it has one."""
    parts = path.split("/")
    last = len(parts) - 1 - parts[::-1].index(PACK_FOLDER)
    return posixpath.join(*parts[last + 1 :])


def packs_label(packs: Iterable[tuple[str, str]]) -> str:
    """What an image says of its packs, by path and hash: with it nobody can attach others to an image that is known by
    digest."""
    lines = "".join(f"{sha256}  {path}\n" for path, sha256 in sorted(packs))
    return f"sha256:{hashlib.sha256(lines.encode('utf-8', 'surrogatepass')).hexdigest()}"


def attachment_of(packs: Sequence[Descriptor]) -> Attachment:
    """Packs whose blobs are there already."""
    return Attachment(PACKS, tuple(packs))
