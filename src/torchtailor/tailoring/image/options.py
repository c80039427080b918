"""What the user chose for an image."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from torchtailor.core.documents import document
from torchtailor.oci.compression import LayerCompression
from torchtailor.surgery.cut import Cut
from torchtailor.surgery.cut_document import CutDocument
from torchtailor.tailoring.choices import chosen_in, words_of


class Cold(Enum):
    """Where packs go."""

    LAYER = "layer"
    ARTIFACT = "artifact"


class ImageOptionsDocument(CutDocument, frozen=True, kw_only=True):
    """What decides the bytes of the output."""

    squash_shadowed: bool
    cold: Cold | None
    compression: LayerCompression | None


@dataclass(frozen=True)
class ImageOptions:
    """What the user chose for an image."""

    cut: Cut
    squash_shadowed: bool = False
    compression: LayerCompression | None = None  # of the layers that change; None: as it was
    publish_nvidia: bool = False
    attest: bool = False  # attach how it was cut, and what is in it
    cold: Cold = Cold.LAYER

    @property
    def packs_to(self) -> Cold | None:
        """Where packs go; None where none are made, or to a folder here."""
        chosen = self.cut
        return self.cold if chosen.packing and not chosen.no_pack and chosen.packs is None else None

    def line(self) -> str:
        """What history says: the options that decide the bytes."""
        more = ["--squash-shadowed"] if self.squash_shadowed else []
        more += ["--cold artifact"] if self.packs_to is Cold.ARTIFACT else []
        return " ".join(["torchtailor image", *words_of(chosen_in(self.cut)), *more])

    @property
    def document(self) -> ImageOptionsDocument:
        return document(
            ImageOptionsDocument,
            self.cut.document,
            squash_shadowed=self.squash_shadowed,
            cold=self.packs_to,
            compression=self.compression,
        )
