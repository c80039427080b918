"""The packs that refer to an image: found, fetched, and put where programs look for them.

for pack in attached_packs(source, image):
    pack.fetch(source, place)
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec

from torchtailor.core.disk import disk_errors, is_intact, staging_folder
from torchtailor.core.errors import BadInputError, NoMatchError
from torchtailor.core.progress import Progress
from torchtailor.core.trust import Sha256, Size
from torchtailor.oci.compression import UnpackedLayer
from torchtailor.oci.descriptor import Descriptor
from torchtailor.oci.imagespec import ImageConfig, read_manifest
from torchtailor.oci.transports.base import ImageSource
from torchtailor.oci.transports.choose import open_source
from torchtailor.tailoring.image.cold import LABEL, PACK, PACKS, PATH, SHA256, SIZE, inside_packs, packs_label
from torchtailor.tailoring.image.survey import counted_pieces
from torchtailor.workload.pack import PACK_FOLDER, PACK_SUFFIX

_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.+!-]*"
_PATH = (
    rf"\A(?!(?:.*/)?\.{{0,2}}/)[^\x00-\x1f\x7f]{{0,3000}}(?<![^/]){PACK_FOLDER}/(?:{_NAME}/)?{_NAME}"
    rf"{re.escape(PACK_SUFFIX)}\Z"
)
_AGAIN = "Cut the image again."


class _Manifest(msgspec.Struct, rename="camel"):
    layers: tuple[Descriptor, ...]


class _About(msgspec.Struct, rename={"path": PATH, "sha256": SHA256, "size": SIZE}):
    """What a manifest says of a pack; nothing that leads out of a folder, or is no pack, is taken."""

    path: Annotated[str, msgspec.Meta(pattern=_PATH)]
    sha256: Sha256
    size: Annotated[str, msgspec.Meta(pattern=r"\A[0-9]{1,15}\Z")]


@dataclass(frozen=True)
class AttachedPack:
    """A pack that refers to an image."""

    path: str  # in the image
    sha256: Sha256
    size: Size
    blob: Descriptor

    @property
    def name(self) -> str:
        """Its path below a folder of packs."""
        return inside_packs(self.path)

    @classmethod
    def of(cls, blob: Descriptor) -> AttachedPack:
        about = msgspec.convert(blob.annotations or {}, _About)
        return cls(about.path, about.sha256, int(about.size), blob)

    def fetch(self, source: ImageSource, place: Path, progress: Progress) -> None:
        """Write it, unpacked, to a new file; one that is not what its manifest says is an error."""
        hasher, left = hashlib.sha256(), self.size
        where = f"{self.name} of {source.name}"
        with source.blob(self.blob) as packed, place.open("xb") as out:
            for piece in UnpackedLayer(counted_pieces(packed, progress), self.blob.size, where):
                left -= len(piece)
                if left < 0:
                    break
                hasher.update(piece)
                out.write(piece)
        if left or hasher.hexdigest() != self.sha256:
            raise BadInputError(f"{where} is not the pack that is listed for the image.", _AGAIN)


def attached_packs(source: ImageSource, image: Descriptor, label: str) -> list[AttachedPack]:
    """The packs that refer to an image, and are those that its label names; others can refer to it as well."""
    for row in source.referrers(image) if label else ():
        if row.get("artifactType") != PACKS:
            continue
        try:
            document = source.document(msgspec.convert(row, Descriptor))
            manifest = msgspec.json.decode(document.data, type=_Manifest)
            packs = [AttachedPack.of(blob) for blob in manifest.layers if blob.media_type == PACK]
        except (msgspec.MsgspecError, RecursionError) as error:
            raise BadInputError(f"The list of packs of {source.name} is damaged: {error}.", _AGAIN) from error
        if packs_label((pack.path, pack.sha256) for pack in packs) == label:
            return packs
    return []


@dataclass(frozen=True)
class PulledPacks:
    """What was fetched into a folder, and what was there already: their paths there."""

    image: str
    folder: Path
    dry_run: bool
    fetched: tuple[str, ...]
    there: tuple[str, ...]
    size: Annotated[Size, msgspec.Meta(description="bytes that were fetched, compressed")]


def pull_packs(
    name: str,
    folder: Path,
    *,
    platform: str | None = None,
    insecure: bool = False,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> PulledPacks:
    """Fetch the packs that refer to an image into a folder; each appears there when it is whole."""
    from torchtailor.tailoring.image.opened import one_image

    progress = progress or Progress()
    with open_source(name, insecure=insecure) as source:
        image = one_image(source, platform)
        label = ImageConfig.read(source, read_manifest(image, source.name)).label(LABEL)
        packs = attached_packs(source, image.descriptor, label)
        if not packs:
            raise NoMatchError(
                f"No packs refer to {source.name}.",
                "Name an image that `torchtailor image --cold artifact` made, by the name that it was given.",
            )
        there = {pack.name for pack in packs if is_intact(folder / pack.name, pack.sha256)}
        missing = [pack for pack in packs if pack.name not in there]
        names, size = tuple(pack.name for pack in missing), sum(pack.blob.size for pack in missing)
        pulled = PulledPacks(source.name, folder, dry_run, names, tuple(sorted(there)), size)
        if dry_run:
            return pulled
        progress.begin("Fetching packs", size)
        with disk_errors(folder, unchanged="Packs that are there are whole."), staging_folder(folder) as staging:
            for pack in missing:
                pack.fetch(source, staging / "pack", progress)
                place = folder / pack.name
                place.parent.mkdir(exist_ok=True)
                (staging / "pack").replace(place)
        return pulled
