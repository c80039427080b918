"""The packs that refer to an image: found, fetched, and put where programs look for them.

for pack in attached_packs(source, image, label):
    fetch_pack(pack, source, place)
"""

from __future__ import annotations

import hashlib
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec

from torchtailor.core.disk import disk_errors, is_intact, staging_folder
from torchtailor.core.errors import BadInputError, NoMatchError
from torchtailor.core.progress import Progress
from torchtailor.core.shapes import shaped
from torchtailor.core.trust import Sha256, Size
from torchtailor.fetch.client import worker_threads
from torchtailor.oci.compression import UnpackedLayer
from torchtailor.oci.descriptor import Descriptor
from torchtailor.oci.imagespec import ImageConfig, read_manifest
from torchtailor.oci.transports.base import ImageSource
from torchtailor.oci.transports.choose import open_source
from torchtailor.tailoring.image.cold import LABEL, PACK, PACKS, PATH, SHA256, SIZE, ColdPack, by_name, packs_label
from torchtailor.tailoring.image.survey import counted_pieces
from torchtailor.workload.moved_modules import MODULES, PACK_OF_MODULES
from torchtailor.workload.pack import PACK_FOLDER, PACK_SUFFIX

_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.+!-]*"
_PATH = (
    rf"\A(?!(?:.*/)?\.{{0,2}}/)[^\x00-\x1f\x7f]{{0,3000}}(?<![^/]){PACK_FOLDER}/(?:{_NAME}/)?"
    rf"(?:{_NAME}{re.escape(PACK_SUFFIX)}|{MODULES}{_NAME}{re.escape(PACK_OF_MODULES)})\Z"
)
_AT_A_TIME = 4


class _Manifest(msgspec.Struct, rename="camel"):
    layers: tuple[Descriptor, ...]


class _About(msgspec.Struct, rename={"path": PATH, "sha256": SHA256, "size": SIZE}):
    """What a manifest says of a pack; nothing that leads out of a folder, or is no pack, is taken."""

    path: Annotated[str, msgspec.Meta(pattern=_PATH)]
    sha256: Sha256
    size: Annotated[str, msgspec.Meta(pattern=r"\A[0-9]{1,15}\Z")]


def _read(blob: Descriptor) -> ColdPack:
    about = msgspec.convert(blob.annotations or {}, shaped(_About))
    return ColdPack(about.path, about.sha256, int(about.size), blob)


def fetch_pack(pack: ColdPack, source: ImageSource, place: Path, progress: Progress) -> None:
    """Write it, unpacked, to a new file; one that is not what its manifest says is an error."""
    hasher, left = hashlib.sha256(), pack.size
    where = f"{pack.path} of {source.name}"
    with source.blob(pack.blob) as packed, place.open("xb") as out:
        for piece in UnpackedLayer(counted_pieces(packed, progress), pack.blob.size, where):
            left -= len(piece)
            if left < 0:
                break
            hasher.update(piece)
            out.write(piece)
    if left or hasher.hexdigest() != pack.sha256:
        raise BadInputError(f"{where} is not the pack that is listed for the image.", "Cut the image again.")


def attached_packs(source: ImageSource, image: Descriptor, label: str) -> list[ColdPack]:
    """The packs that refer to an image, and are those that its label names.

    Others can refer to it as well: what they attached is passed over, whatever it is.
    """
    for row in source.referrers(image) if label else ():
        if row.get("artifactType") != PACKS:
            continue
        with suppress(msgspec.MsgspecError, RecursionError, BadInputError, NoMatchError):
            document = source.document(msgspec.convert(row, shaped(Descriptor)))
            manifest = msgspec.json.decode(document.data, type=shaped(_Manifest))
            packs = [_read(blob) for blob in manifest.layers if blob.media_type == PACK]
            if packs_label(packs) == label:
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
                "A copy of an image has its packs only if what refers to it was copied too: name the first one."
                if label
                else "Name an image that `torchtailor image --cold artifact` made, by the name that it was given.",
            )
        named = by_name(packs)
        there = {name for name, pack in named.items() if is_intact(folder / name, pack.sha256)}
        missing = {name: pack for name, pack in named.items() if name not in there}
        size = sum(pack.blob.size for pack in missing.values())
        pulled = PulledPacks(source.name, folder, dry_run, tuple(missing), tuple(sorted(there)), size)
        if dry_run:
            return pulled
        progress.begin("Fetching packs", size)
        with disk_errors(folder, unchanged="Packs that are there are whole."), staging_folder(folder) as staging:

            def pull(name: str) -> None:
                staged, place = staging / name, folder / name
                staged.parent.mkdir(exist_ok=True)
                fetch_pack(missing[name], source, staged, progress)
                place.parent.mkdir(exist_ok=True)
                staged.replace(place)

            with worker_threads(_AT_A_TIME) as pool:
                for _ in pool.map(pull, missing):
                    pass
        return pulled
