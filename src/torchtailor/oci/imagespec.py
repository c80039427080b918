"""The JSON of an image: its manifest and configuration, read with all that is in them, and written anew after a cut.

What is not known here stays as it is; nothing depends on the time or the machine, so the same cut has the same digest.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import msgspec

from torchtailor.core.errors import BadInputError
from torchtailor.core.shapes import shaped
from torchtailor.oci.compression import LayerCompression
from torchtailor.oci.descriptor import Descriptor, MediaType, Platform
from torchtailor.oci.manifests import to_oci
from torchtailor.oci.transports.base import Document, ImageSource

_CONFIG_LIMIT = 16 << 20  # bytes; real ones have a few kB
MOST_LAYERS = 1000  # docker and containerd take 127

_AGAIN = "Fetch or build the image again."
_CONFIGS = (MediaType.OCI_CONFIG.value, MediaType.DOCKER_CONFIG.value)
_LAYERS = {
    LayerCompression.NONE: (MediaType.OCI_LAYER, MediaType.DOCKER_LAYER),
    LayerCompression.GZIP: (MediaType.OCI_LAYER_GZIP, MediaType.DOCKER_LAYER_GZIP),
    # Docker's format has none, and no annotations
    LayerCompression.ZSTD: (MediaType.OCI_LAYER_ZSTD, MediaType.OCI_LAYER_ZSTD),
    LayerCompression.ESTARGZ: (MediaType.OCI_LAYER_GZIP, MediaType.OCI_LAYER_GZIP),
}
_LAYER_TYPES = frozenset(kind.value for pair in _LAYERS.values() for kind in pair) | {MediaType.DOCKER_LAYER_ZSTD.value}
# Annotations that describe the bytes of a layer for who fetches it in parts: they are not true of a new one.
_OF_PARTS = ("io.github.containers.zstd-chunked.", "containerd.io/snapshot/", "io.containers.")
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}  # as images name processors
_ATTESTATION = "vnd.docker.reference.type"


@dataclass(frozen=True)
class ImageManifest:
    """One image of one platform."""

    document: Document
    data: Mapping[str, Any]
    config: Descriptor
    layers: tuple[Descriptor, ...]

    @property
    def is_docker(self) -> bool:
        return self.document.descriptor.media_type == MediaType.DOCKER_MANIFEST.value


@dataclass(frozen=True)
class NewLayer:
    """A layer of the new image; the descriptor says nothing else where it is unchanged."""

    descriptor: Descriptor
    diff_id: str
    compression: LayerCompression | None = None  # None: unchanged


def read_manifest(document: Document, where: str) -> ImageManifest:
    """The manifest of an image; that of anything else is refused."""
    data = _object(document.data, f"The manifest of {where}")
    try:
        config = msgspec.convert(data.get("config"), shaped(Descriptor))
        layers = msgspec.convert(data.get("layers"), shaped(tuple[Descriptor, ...]))
    except msgspec.ValidationError as error:
        raise BadInputError(f"The manifest of {where} is damaged: {error}.", _AGAIN) from error
    if config.media_type not in _CONFIGS:
        raise BadInputError(
            f"{where} is not a container image: its configuration is of the type {config.media_type[:100]}.",
            "Name an image that can be run.",
        )
    if len(layers) > MOST_LAYERS:
        raise BadInputError(f"{where} has {len(layers)} layers, which nothing can run.", _AGAIN)
    for number, layer in enumerate(layers, 1):
        _check_layer(number, layer, where)
    return ImageManifest(document, data, config, layers)


def wrong_layer(where: str, found: str, listed: str) -> BadInputError:
    """The error for a layer that is not the one of the configuration."""
    return BadInputError(
        f"{where} unpacks to {found[:19]}, and the configuration says {listed[:19]}.",
        "The image is damaged, or was changed by hand: build it again.",
    )


def is_image(document: Document) -> bool:
    """Whether a manifest is of an image, and not of something else that registries store."""
    config = _object(document.data, "A manifest").get("config")
    return isinstance(config, dict) and config.get("mediaType") in _CONFIGS


def _check_layer(number: int, layer: Descriptor, where: str) -> None:
    kind = layer.media_type
    name = f"Layer {number} of {where} ({layer.digest[:19]})"
    if kind in _LAYER_TYPES:
        return
    if "encrypted" in kind:
        raise BadInputError(f"{name} is encrypted.", "Decrypt it first: skopeo copy --decryption-key KEY ...")
    if "foreign" in kind or "nondistributable" in kind:
        raise BadInputError(
            f"{name} is a foreign layer: the image stores only a link to it.",
            "Only Windows images have such layers: give a Linux image.",
        )
    raise BadInputError(f"{name} is of the unknown type {kind[:100]!r}.", "Only layers that are tar archives are cut.")


@dataclass(frozen=True)
class ImageConfig:
    """The configuration of an image, with all that is in it."""

    data: Mapping[str, Any]
    diff_ids: tuple[str, ...]

    @classmethod
    def parse(cls, data: bytes, layers: int, where: str) -> ImageConfig:
        document = _object(data, f"The configuration of {where}")
        rootfs = document.get("rootfs")
        ids = rootfs.get("diff_ids") if isinstance(rootfs, dict) else None
        if not isinstance(ids, list) or not all(isinstance(one, str) for one in ids):
            raise BadInputError(f"The configuration of {where} does not list its layers.", _AGAIN)
        if len(ids) != layers:
            raise BadInputError(
                f"The configuration of {where} lists {len(ids)} layers, and its manifest {layers}.", _AGAIN
            )
        return cls(document, tuple(ids))

    @classmethod
    def read(cls, source: ImageSource, manifest: ImageManifest) -> ImageConfig:
        """The configuration that a manifest names."""
        wanted, where = manifest.config, source.name
        if wanted.size > _CONFIG_LIMIT:
            raise BadInputError(f"The configuration of {where} is too large: {wanted.size} bytes.", _AGAIN)
        with source.blob(wanted) as pieces:
            return cls.parse(b"".join(pieces), len(manifest.layers), where)

    @property
    def platform(self) -> str:
        parts = (self.data.get(key) for key in ("os", "architecture", "variant"))
        return "/".join(str(part) for part in parts if part)

    @property
    def machine(self) -> str:
        """The processor as the kernel names it; empty for others."""
        return next((name for name, own in ARCHITECTURES.items() if own == self.data.get("architecture")), "")

    @property
    def labels(self) -> Mapping[str, Any]:
        settings = self.data.get("config")
        labels = settings.get("Labels") if isinstance(settings, dict) else None
        return labels if isinstance(labels, dict) else {}

    def label(self, name: str) -> str:
        """The text of a label; empty where there is none."""
        text = self.labels.get(name, "")
        if not isinstance(text, str):
            raise BadInputError(f"The label {name} of the image is not text.", _AGAIN)
        return text

    def created_by(self) -> list[str]:
        """What made each layer, as far as it is known."""
        rows = [row for row in self._history() if not row.get("empty_layer")]
        words = [str(row.get("created_by", "")) for row in rows]
        return words if len(words) == len(self.diff_ids) else [""] * len(self.diff_ids)

    def _history(self) -> list[dict[str, Any]]:
        rows = self.data.get("history")
        return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []

    def updated(self, diff_ids: Sequence[str], line: str, labels: Mapping[str, str]) -> bytes:
        """The configuration of the cut image: its layers, of which the last may be new, one line more of history, and
        labels."""
        history = self._history() or [{} for _ in self.diff_ids]
        times = [row["created"] for row in history if isinstance(row.get("created"), str)]
        created = times[-1:] or ([self.data["created"]] if isinstance(self.data.get("created"), str) else [])
        entry = {**({"created": created[0]} if created else {}), "created_by": line}
        if len(diff_ids) == len(self.diff_ids):
            entry["empty_layer"] = True
        settings = self.data.get("config")
        settings = settings if isinstance(settings, dict) else {}
        rootfs = {**self.data["rootfs"], "diff_ids": list(diff_ids)}
        return encode(
            {
                **self.data,
                "config": {**settings, "Labels": {**self.labels, **labels}},
                "rootfs": rootfs,
                "history": [*history, entry],
            }
        )


def new_manifest(
    manifest: ImageManifest,
    config: Descriptor,
    layers: Sequence[NewLayer],
    annotations: Mapping[str, str],
    *,
    wants_oci: bool,
) -> Document:
    """The manifest of the cut image, which may have a layer more; one of Docker's becomes one of OCI's where the place
    or a layer needs that.

    An annotation without a text removes what the stock image says there.
    """
    needs_oci = any(layer.compression in (LayerCompression.ZSTD, LayerCompression.ESTARGZ) for layer in layers)
    docker = manifest.is_docker and not needs_oci and not wants_oci
    rows = [_layer_row(raw, layer, docker=docker) for raw, layer in zip_longest(manifest.data["layers"], layers)]
    data = {
        **manifest.data,
        "config": {**manifest.data["config"], "digest": config.digest, "size": config.size},
        "layers": rows,
    }
    data["config"].pop("data", None)
    if not docker:
        own = data.get("annotations")
        merged = {**(own if isinstance(own, dict) else {}), **annotations}
        data["annotations"] = {name: text for name, text in merged.items() if text or name not in annotations}
    made = make_json_document(data, manifest.document.descriptor.media_type)
    return made if docker else to_oci(made)


def _layer_row(raw: Mapping[str, Any] | None, layer: NewLayer, *, docker: bool) -> dict[str, Any]:
    raw = raw or {}
    if layer.compression is None:
        return dict(raw)
    row = {key: value for key, value in raw.items() if key not in ("urls", "data", "annotations")}
    own = raw.get("annotations")
    kept = {k: v for k, v in own.items() if not k.startswith(_OF_PARTS)} if isinstance(own, dict) else {}
    if about := {**kept, **(layer.descriptor.annotations or {})}:
        row["annotations"] = about
    kind = _LAYERS[layer.compression][1 if docker else 0].value
    return {**row, "mediaType": kind, "digest": layer.descriptor.digest, "size": layer.descriptor.size}


def layer_type(compression: LayerCompression, *, docker: bool) -> str:
    """The media type of a layer that is packed so."""
    return _LAYERS[compression][1 if docker else 0].value


@dataclass(frozen=True)
class ImageIndex:
    """Images of several platforms under one name."""

    document: Document
    data: Mapping[str, Any]
    manifests: tuple[Descriptor, ...]


def read_index(document: Document, where: str) -> ImageIndex:
    data = _object(document.data, f"The index of {where}")
    try:
        manifests = msgspec.convert(data.get("manifests"), shaped(tuple[Descriptor, ...]))
    except msgspec.ValidationError as error:
        raise BadInputError(f"The index of {where} is damaged: {error}.", _AGAIN) from error
    if not 0 < len(manifests) <= MOST_LAYERS:
        raise BadInputError(f"The index of {where} lists {len(manifests)} images.", _AGAIN)
    return ImageIndex(document, data, manifests)


def is_attestation(descriptor: Descriptor) -> bool:
    """Whether an entry of an index says how another was built (BuildKit's provenance and SBOM)."""
    return bool(descriptor.annotations and _ATTESTATION in descriptor.annotations)


def new_index(index: ImageIndex, replaced: Mapping[int, Document], left_out: Sequence[int]) -> Document:
    """The index with the new manifests in place of the old, and without some."""
    rows = []
    for number, raw in enumerate(index.data["manifests"]):
        if number in left_out:
            continue
        row = dict(raw)
        if new := replaced.get(number):
            own = new.descriptor
            row |= {"mediaType": own.media_type, "digest": own.digest, "size": own.size}
            row.pop("data", None)
        rows.append(row)
    return make_json_document({**index.data, "manifests": rows}, index.document.descriptor.media_type)


def fits_platform(platform: Platform | None, wanted: str) -> bool:
    """Whether `linux/arm64` or `linux/arm64/v8` means this platform."""
    if platform is None:
        return False
    parts = wanted.split("/")
    own = (platform.os, platform.architecture, platform.variant or "")
    return tuple(parts) == own[: len(parts)] and len(parts) >= 2


def make_json_document(data: Mapping[str, Any], media_type: str) -> Document:
    encoded = encode(data)
    return Document(encoded, Descriptor(media_type, digest_of(encoded), len(encoded)))


def encode(data: Mapping[str, Any]) -> bytes:
    return json.dumps(data, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _object(data: bytes, name: str) -> dict[str, Any]:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BadInputError(f"{name} is not JSON.", _AGAIN) from error
    if not isinstance(document, dict):
        raise BadInputError(f"{name} is not a JSON object.", _AGAIN)
    return document
