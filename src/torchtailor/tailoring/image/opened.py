"""An image as an artifact: what inspecting and verifying it need is unpacked, and gone afterwards.

with opened_image("docker://registry.local/app:1") as artifact:
    inspect(artifact)

Libraries of Python packages, whatever has GPU code and what packages say of themselves are real files; of all others
only names and sizes are, as files that take no space. Nothing is written outside of the folder, whatever names and
links the layers have: the tree is made of the merged view, in which every folder is a folder.
"""

from __future__ import annotations

import os
import platform as host_platform
import posixpath
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import chain
from pathlib import Path

from torchtailor.code.binary.elf_headers import MAGIC
from torchtailor.code.binary.source import open_source as open_bytes
from torchtailor.code.gpucode.files import HEAD_SIZE, is_code_file, known_by_head
from torchtailor.code.gpucode.scan import scan_source
from torchtailor.core.disk import disk_errors, staging_folder
from torchtailor.core.errors import BadInputError
from torchtailor.core.progress import Progress
from torchtailor.oci.compression import UnpackedLayer
from torchtailor.oci.filesystem import Content, LayerFile, MemberKind
from torchtailor.oci.imagespec import (
    ARCHITECTURES,
    ImageConfig,
    ImageManifest,
    is_attestation,
    read_index,
    read_manifest,
)
from torchtailor.oci.manifests import is_index
from torchtailor.oci.tarstream import TarReader
from torchtailor.oci.transports.base import Document, ImageSource
from torchtailor.oci.transports.choose import open_source
from torchtailor.tailoring.image.attached import attached_packs, fetch_pack
from torchtailor.tailoring.image.cold import LABEL
from torchtailor.tailoring.image.cut import ANNOTATION_GPUS
from torchtailor.tailoring.image.cut_image import chosen_image, no_image
from torchtailor.tailoring.image.survey import LayerScan, counted_pieces, store
from torchtailor.trees.artifact.artifact import Artifact, ArtifactKind
from torchtailor.trees.artifact.drops import is_decider
from torchtailor.trees.artifact.libraries import may_be_elf
from torchtailor.trees.artifact.sites import installed_path
from torchtailor.workload.pack import PACK_SUFFIX

_PACKAGE_TEXT = re.compile(r"(?:.*/)?(?:[^/]+\.dist-info/.+|torchtailor\.json|conda-meta/[^/]+\.json|pyvenv\.cfg)")
_IN_SITE = re.compile(r"(?:.*/)?(?:site|dist)-packages/.*")
_MOST_TEXT = 64 << 20


@contextmanager
def opened_image(
    name: str,
    *,
    platform: str | None = None,
    insecure: bool = False,
    packs: bool = True,
    progress: Progress | None = None,
) -> Iterator[Artifact]:
    """Unpack what matters of an image for as long as the block runs; of packs, only the sizes may be wanted."""
    progress = progress or Progress()
    place = Path(tempfile.gettempdir())
    with ExitStack() as stack:
        source = stack.enter_context(open_source(name, insecure=insecure))
        with disk_errors(place, unchanged="Set TMPDIR to a folder on a disk with more room."):
            folder = stack.enter_context(staging_folder(place))
            image = one_image(source, platform)
            manifest = read_manifest(image, source.name)
            config = ImageConfig.read(source, manifest)
            root = _Unpacking(source, manifest, config, folder, packs, progress).run()
            for pack in attached_packs(source, image.descriptor, config.label(LABEL)) if packs else ():
                place = root / pack.path
                place.parent.mkdir(parents=True, exist_ok=True)
                fetch_pack(pack, source, place, progress)
        gpus = tuple(filter(None, config.label(ANNOTATION_GPUS).split(",")))
        yield Artifact(root, ArtifactKind.IMAGE, label=source.name, made_for=gpus)


def one_image(source: ImageSource, platform: str | None) -> Document:
    """The image for a platform: the one that was asked for, this machine's, or the only one."""
    document = source.root()
    if not is_index(document):
        return document
    index = read_index(document, source.name)
    images = [manifest for manifest in index.manifests if not is_attestation(manifest)]
    if not images:
        raise no_image(source.name, "attestations of how one was built")
    own = f"linux/{ARCHITECTURES.get(host_platform.machine(), host_platform.machine())}"
    if platform is None and any(str(image.platform).startswith(own) for image in images):
        platform = own
    chosen = chosen_image(index, platform, source.name) or (images[0] if len(images) == 1 else None)
    if chosen is None:
        names = ", ".join(str(image.platform) for image in images)
        raise BadInputError(f"{source.name} has images for {names}.", "Choose one with --platform.")
    return source.document(chosen)


class _Unpacking:
    """Stores the files that matter by layer and number, and makes the tree of them when all layers are known."""

    def __init__(
        self,
        source: ImageSource,
        manifest: ImageManifest,
        config: ImageConfig,
        folder: Path,
        packs: bool,
        progress: Progress,
    ) -> None:
        self._source, self._manifest, self._config, self._packs = source, manifest, config, packs
        self._store, self._root, self._progress = folder / "store", folder / "root", progress
        self._scan = LayerScan(self._file)
        self._stored: dict[Content, Path] = {}

    def run(self) -> Path:
        self._store.mkdir()
        self._root.mkdir()
        layers = self._manifest.layers
        self._progress.begin("Reading layers", sum(layer.size for layer in layers))
        for number, layer in enumerate(layers):
            where = f"Layer {number + 1} of {self._source.name}"
            with self._source.blob(layer) as pieces:
                tar = UnpackedLayer(counted_pieces(pieces, self._progress), layer.size, where)
                self._scan.add_layer(tar, self._config.diff_ids[number], where)
        self._build()
        return self._root

    def _file(self, reader: TarReader, file: LayerFile) -> None:
        """Store the bytes of one file, if they matter."""
        name = file.path.rpartition("/")[2]
        if known_by_head(name) or is_decider(
            installed_path(file.path)
        ):  # thousands of cubins: the rest of each is a hole
            place = self._keep((reader.head(HEAD_SIZE),), file)
            os.truncate(place, file.size)
            return
        is_text = _PACKAGE_TEXT.fullmatch(file.path) and file.size <= _MOST_TEXT
        if is_text or is_code_file(name) or (self._packs and name.endswith(PACK_SUFFIX)):
            self._keep(reader.data(), file)
            return
        head = reader.head(len(MAGIC))
        if head != MAGIC or not may_be_elf(name):
            return
        place = self._keep(chain((head,), reader.data()), file)
        if not _IN_SITE.fullmatch(file.path) and not _has_code(place):
            place.unlink()
            del self._stored[file.content]

    def _keep(self, pieces: Iterable[bytes], file: LayerFile) -> Path:
        folder = self._store / f"{file.layer}"
        folder.mkdir(exist_ok=True)
        place = folder / f"{file.number}"
        store(place, pieces, file)
        self._stored[file.content] = place
        return place

    def _build(self) -> None:
        placed: dict[Content, Path] = {}
        links: list[LayerFile] = []
        for file in self._scan.view.visible():
            if file.kind is MemberKind.SYMLINK:
                links.append(file)
                continue
            if file.kind is MemberKind.OTHER:
                continue
            place = self._root / file.path
            with suppress(OSError):  # a name that this disk cannot have
                place.parent.mkdir(parents=True, exist_ok=True)
                if first := placed.get(file.content):
                    place.hardlink_to(first)
                    continue
                if stored := self._stored.get(file.content):
                    stored.rename(place)
                else:
                    with place.open("xb") as empty:
                        empty.truncate(file.size)
                placed[file.content] = place
        for file in links:
            self._link(file)
        shutil.rmtree(self._store)

    def _link(self, file: LayerFile) -> None:
        """A symbolic link, relative and to something inside; one that leads nowhere is left out."""
        target = self._scan.view.resolve(file.path)
        if target == file.path or not os.path.lexists(self._root / target) or not target:
            return
        place = self._root / file.path
        with suppress(OSError):
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to(posixpath.relpath(target, posixpath.dirname(file.path)))


def _has_code(place: Path) -> bool:
    try:
        with open_bytes(place) as source:
            return bool(scan_source(source).containers)
    except BadInputError:
        return False
