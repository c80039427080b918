"""What the user chose for an image."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torchtailor.oci.compression import LayerCompression
from torchtailor.surgery.cut import DEFAULT_GAP, DEFAULT_LEVEL, Cut, HostPages, PackCompression


@dataclass(frozen=True)
class ImageOptions:
    """What the user chose for an image."""

    cut: Cut
    squash_shadowed: bool = False
    compression: LayerCompression | None = None  # of the layers that change; None: as it was
    publish_nvidia: bool = False
    attest: bool = False  # attach how it was cut, and what is in it

    def line(self) -> str:
        """What history says: the options that decide the bytes."""
        chosen = self.cut
        words = ["torchtailor image", "--gpu", ",".join(str(arch) for arch in chosen.targets.archs)]
        words += [
            word
            for word, wanted in (
                ("--nvidia", chosen.nvidia),
                ("--keep-ptx", chosen.targets.keep_ptx),
                ("--no-lto", not chosen.lto),
                ("--strip", chosen.strip is True),
                ("--no-strip", chosen.strip is False),
                ("--relr", chosen.relr),
                ("--recompress", chosen.recompress),
                (f"--level {chosen.level}", chosen.recompress and chosen.level != DEFAULT_LEVEL),
                (f"--driver {chosen.driver}", chosen.driver is not None),
                (f"--workload {chosen.workload.label}" if chosen.workload else "", chosen.workload is not None),
                (f"--margin {chosen.workload.margin}" if chosen.workload else "", chosen.workload is not None),
                ("--no-pack", chosen.no_pack),
                (
                    f"--host-pages {chosen.pages.value}",
                    chosen.host_pages is not None or chosen.pages is not HostPages.KEEP,
                ),
                (f"--gap {chosen.gap}", chosen.gap != DEFAULT_GAP),
                ("--debuggable", chosen.debuggable),
                ("--pack-compress zstd", chosen.pack_compress is PackCompression.ZSTD),
                ("--drop-unopened", chosen.drop_unopened),
                (f"--drop {','.join(sorted(chosen.drop))}", bool(chosen.drop)),
                ("--squash-shadowed", self.squash_shadowed),
            )
            if wanted
        ]
        return " ".join(words)

    def to_json(self) -> dict[str, Any]:
        """What decides the bytes of the output."""
        return {
            **self.cut.document.to_json(),
            "squash_shadowed": self.squash_shadowed,
            "compression": self.compression.value if self.compression else None,
        }
