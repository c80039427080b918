"""What manifests say of blobs: media type, digest, size."""

from __future__ import annotations

import re
from enum import Enum

import msgspec

from torchtailor.core.errors import BadInputError

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128}")


class MediaType(Enum):
    """The media types that are understood."""

    OCI_INDEX = "application/vnd.oci.image.index.v1+json"
    OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
    OCI_CONFIG = "application/vnd.oci.image.config.v1+json"
    OCI_LAYER = "application/vnd.oci.image.layer.v1.tar"
    OCI_LAYER_GZIP = "application/vnd.oci.image.layer.v1.tar+gzip"
    OCI_LAYER_ZSTD = "application/vnd.oci.image.layer.v1.tar+zstd"
    DOCKER_LIST = "application/vnd.docker.distribution.manifest.list.v2+json"
    DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
    DOCKER_CONFIG = "application/vnd.docker.container.image.v1+json"
    DOCKER_LAYER = "application/vnd.docker.image.rootfs.diff.tar"
    DOCKER_LAYER_GZIP = "application/vnd.docker.image.rootfs.diff.tar.gzip"
    DOCKER_LAYER_ZSTD = "application/vnd.docker.image.rootfs.diff.tar.zstd"


class Platform(msgspec.Struct, frozen=True, rename={"os_version": "os.version", "os_features": "os.features"}):
    """The machine that an image of an index is for."""

    architecture: str
    os: str
    variant: str | None = None
    os_version: str | None = None
    os_features: tuple[str, ...] | None = None

    def __str__(self) -> str:
        return "/".join(part for part in (self.os, self.architecture, self.variant) if part)


class Descriptor(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A blob or manifest by its digest."""

    media_type: str
    digest: str
    size: int
    urls: tuple[str, ...] = ()
    annotations: dict[str, str] | None = None
    data: str | None = None
    artifact_type: str | None = None
    platform: Platform | None = None

    def __post_init__(self) -> None:
        if not _DIGEST.fullmatch(self.digest):
            raise BadInputError(f"{self.digest[:100]!r} is not a digest.", "Fetch the image again.")
        if not 0 <= self.size < 1 << 50:
            raise BadInputError(f"{self.digest[:19]} has the impossible size {self.size}.", "Fetch the image again.")

    @property
    def algorithm(self) -> str:
        return self.digest.partition(":")[0]

    @property
    def hex(self) -> str:
        return self.digest.partition(":")[2]
