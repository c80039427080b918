"""Cuts what a name means, one image or an index of several, into a new name.

report = cut_image("oci:stock:latest", "oci:cut:latest", options)
"""

from __future__ import annotations

import socket
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from torchtailor.core.disk import staging_folder
from torchtailor.core.errors import BadInputError, NetworkError, NoMatchError, UsageError
from torchtailor.core.format import counted
from torchtailor.core.progress import Progress
from torchtailor.core.shapes import shaped
from torchtailor.oci.compression import LayerCompression
from torchtailor.oci.descriptor import Descriptor
from torchtailor.oci.imagespec import (
    ImageIndex,
    fits_platform,
    is_attestation,
    is_image,
    new_index,
    read_index,
)
from torchtailor.oci.manifests import is_index, to_oci
from torchtailor.oci.reference import ImageReference, RepositoryName, host_and_port, parse_reference
from torchtailor.oci.referrers import Proofs, referrer_of
from torchtailor.oci.transports.base import Document, ImageDestination, ImageSource
from torchtailor.oci.transports.choose import open_destination, open_source
from torchtailor.oci.transports.layout import OciFolderSource
from torchtailor.tailoring.image.cut import ImageCutter
from torchtailor.tailoring.image.options import Cold, ImageOptions
from torchtailor.tailoring.image.result import ImageReport, ImageResult

_DEEPEST = 3  # indexes in indexes
EVERY_PLATFORM = "all"


class _Parts(msgspec.Struct):
    """What a manifest of any kind consists of."""

    config: dict[str, Any] | None = None
    layers: list[dict[str, Any]] | None = None
    blobs: list[dict[str, Any]] | None = None


def cut_image(
    source: str,
    destination: str,
    options: ImageOptions,
    *,
    platform: str | None = None,
    insecure: bool = False,
    progress: Progress | None = None,
) -> ImageReport:
    """Cut an image into a new one; the destination gets its name last, when all of it is there."""
    if options.cut.split:
        raise UsageError("The packs of all GPUs would be in the same image.", "Cut the image once for each GPU.")
    platform = None if platform == EVERY_PLATFORM else platform
    started = time.monotonic()
    with ExitStack() as stack:
        progress = progress or Progress()
        origin, goal = parse_reference(source), parse_reference(destination)
        image = stack.enter_context(open_source(origin, insecure=insecure, received=_received(progress)))
        target = open_destination(goal, insecure=insecure)  # a dry run is refused where the real one would be
        asked = "--attest" if options.attest else "--cold artifact" if options.cold is Cold.ARTIFACT else ""
        if asked and not target.takes_referrers:
            raise UsageError(
                f"{target.name} cannot hold what {asked} attaches.", "Write to a registry, an oci: or an oci-archive:."
            )
        if options.compression is LayerCompression.ESTARGZ and not target.takes_referrers:
            raise UsageError(
                f"{target.name} has no annotations, which --compress estargz needs.",
                "Write to a registry, an oci: or an oci-archive:.",
            )
        if _replaces(goal, origin, image, insecure=insecure):
            raise UsageError(
                f"{target.name} is the image itself, which is never changed.", "Give the new one another name."
            )
        place = None if options.cut.dry_run else stack.enter_context(target)
        staging = place.staging if place and place.staging else None
        if staging is None:
            staging = stack.enter_context(staging_folder(Path(tempfile.gettempdir())))
        base = str(replace(origin.image, digest=None)) if origin.image and origin.path is None else ""
        named = str(goal.image) if goal.image and goal.path is None else goal.ref or "image"
        cutter = ImageCutter(image, target, place, options, progress, staging, base, named)
        run = _NamedImages(image, target, place, cutter)
        root = run.fitting(run.cut(image.root(), platform))
        if place is not None:
            place.commit(root)
        digest = None if place is None else root.descriptor.digest
        notes = (*run.notes, *filter(None, [run.proofs.said]))
    return ImageReport(image.name, target.name, options, tuple(run.results), digest, notes, time.monotonic() - started)


def _replaces(goal: ImageReference, origin: ImageReference, image: ImageSource, *, insecure: bool) -> bool:
    """Whether the new image would take the place of the one that is read, however both are written."""
    if goal.image and origin.image and goal.path is None and origin.path is None:
        return _takes_tag(goal, goal.image, origin.image, image, insecure=insecure)
    if goal.path is None or origin.path is None:
        return False
    if goal.is_pipe or origin.is_pipe or goal.path.resolve() != origin.path.resolve():
        return False
    return not isinstance(image, OciFolderSource) or image.stored_name == goal.ref


def _takes_tag(
    goal: ImageReference, new: RepositoryName, old: RepositoryName, image: ImageSource, *, insecure: bool
) -> bool:
    """The same question in registries. A source that was given by digest, and hosts with other names but the same
    address, are judged by what the tag leads to now."""
    if new.repository != old.repository:
        return False
    same_host = new.shares_registry(old)
    if not old.digest and new.tag != old.tag:
        return False
    if same_host and not old.digest:
        return True
    if not same_host and not _same_address(new.server, old.server):
        return False
    try:
        with open_source(goal, insecure=insecure) as there:
            return there.root().data == image.root().data
    except (NoMatchError, NetworkError, BadInputError):  # there is none, or none that can be read
        return False


def _same_address(one: str, other: str) -> bool:
    """Whether two hosts with the same port have an address in common."""
    found: list[set[object]] = []
    (name, port), (other_name, other_port) = host_and_port(one), host_and_port(other)
    if port != other_port:
        return False
    for host in (name, other_name):
        try:
            found.append({row[4][0] for row in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)})
        except (OSError, UnicodeError):
            return False
    return not found[0].isdisjoint(found[1])


def _received(progress: Progress) -> Callable[[int], None]:
    """Shows the bytes of an archive that comes through a pipe, whose size nobody knows."""
    began: list[bool] = []

    def received(size: int) -> None:
        if not began:
            began.append(True)
            progress.begin("Receiving the archive", 0)
        progress.advance(size)

    return received


class _NamedImages:
    """All images under one name."""

    def __init__(
        self, source: ImageSource, target: ImageDestination, destination: ImageDestination | None, cutter: ImageCutter
    ) -> None:
        self._source, self._target, self._destination, self._cutter = source, target, destination, cutter
        self.results: list[ImageResult] = []
        self.notes: list[str] = []
        self.proofs = Proofs()  # of stock images that were cut

    def cut(self, root: Document, platform: str | None) -> Document:
        if not is_index(root):
            return self._image(root, platform)
        index = read_index(root, self._source.name)
        chosen = chosen_image(index, platform, self._source.name)
        only = [manifest for manifest in index.manifests if not is_attestation(manifest)]
        if not only:
            raise no_image(self._source.name, "attestations of how one was built")
        if chosen is None and not self._target.takes_index:
            names = ", ".join(str(one.platform) for one in only)
            if len(only) > 1:
                raise UsageError(
                    f"{self._target.name} holds one platform, and the image has {names}.",
                    "Choose one: --platform.",
                )
            chosen = only[0]
        if chosen is not None:
            return self.cut(self._source.document(chosen), None)
        new = self._index(index, 1)
        if not self.results:
            raise no_image(self._source.name, "other artifacts")
        if new is not root:
            self.proofs += self._source.proofs(root.descriptor)
        return new

    def fitting(self, document: Document) -> Document:
        """The document in the form that the destination takes."""
        return to_oci(document) if self._destination and self._destination.wants_oci else document

    def _image(self, document: Document, platform: str | None) -> Document:
        cut = self._cutter.cut(document, platform)
        self.results.append(cut.result)
        if cut.result.differs:
            self.proofs += self._source.proofs(document.descriptor)
        new = self.fitting(cut.document)
        if self._destination:
            for attached in cut.attached(new.descriptor):
                self._destination.attach(referrer_of(new.descriptor, attached))
        return new

    def _index(self, index: ImageIndex, depth: int) -> Document:
        if depth > _DEEPEST:
            raise BadInputError(f"{self._source.name} has indexes in indexes.", "Name one of its images by digest.")
        replaced: dict[int, Document] = {}
        left_out = [number for number, one in enumerate(index.manifests) if is_attestation(one)]
        for number, one in enumerate(index.manifests):
            if number in left_out:
                continue
            document = self._source.document(one)
            if is_index(document):
                new = self._index(read_index(document, self._source.name), depth + 1)
            elif is_image(document):
                new = self._image(document, None)
            else:
                new = document
                for blob in _blobs(document):
                    self._cutter.send(blob)
            new = self.fitting(new)
            if self._destination:
                self._destination.put_document(new)
            if new.descriptor.digest != document.descriptor.digest:
                replaced[number] = new
        if not replaced:
            self._keep_attestations(index, left_out)
            return index.document
        if left_out:
            proofs = counted(len(left_out), "attestation")
            self.notes.append(f"Left out {proofs} of how the stock image was built: that is not how the cut one was.")
        return new_index(index, replaced, left_out)

    def _keep_attestations(self, index: ImageIndex, numbers: list[int]) -> None:
        """Nothing was cut: then all of it is still true."""
        for number in numbers:
            document = self._source.document(index.manifests[number])
            for blob in _blobs(document):
                self._cutter.send(blob)
            if self._destination:
                self._destination.put_document(document)


def no_image(where: str, what: str) -> BadInputError:
    """The error for an index without any image."""
    return BadInputError(f"{where} has no image, only {what}.", "Name an image that can be run.")


def chosen_image(index: ImageIndex, platform: str | None, where: str) -> Descriptor | None:
    """The image of an index for a platform; None where none was asked for."""
    if platform is None:
        return None
    found = next((manifest for manifest in index.manifests if fits_platform(manifest.platform, platform)), None)
    if found is None:
        names = ", ".join(
            str(manifest.platform) for manifest in index.manifests if manifest.platform and not is_attestation(manifest)
        )
        raise NoMatchError(f"{where} has no image for {platform}.", f"It has {names}.")
    return found


def _blobs(document: Document) -> list[Descriptor]:
    """All blobs of a manifest of any kind."""
    try:
        parts = msgspec.json.decode(document.data, type=shaped(_Parts))
        rows = [parts.config, *(parts.layers or ()), *(parts.blobs or ())]
        found = [msgspec.convert(row, shaped(Descriptor)) for row in rows if row]
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise BadInputError(f"A manifest is damaged: {error}.", "Fetch the image again.") from error
    return found
