"""Wheel variants (PEP 817, 825 and 850, drafts): wheels of one version, of which an installer picks one by the GPU.

A variant wheel has a label at the end of its name and `variant.json` inside; an index has `NAME-VERSION-variants.json`
beside them. uv from 0.13 on reads them with `--preview-features wheel-variants`; pip ignores them. The stock wheel
stays on the index without a label: it is installed where no variant fits, and never where one does.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from torchtailor.catalog import Capability
from torchtailor.catalog.schema import Dotted
from torchtailor.core.trust import Label, decode_json
from torchtailor.trees.wheels.archive import WheelArchive
from torchtailor.trees.wheels.distribution import MANIFEST, WheelDistribution
from torchtailor.trees.wheels.metadata import with_version
from torchtailor.trees.wheels.write import DEFAULT_MODE, new_wheel

SCHEMA = "https://variants-schema.wheelnext.dev/peps/850/v0.2.0.json"
INSIDE = "variant.json"
NAMESPACE = "nvidia"
# uv maps this provider to its built-in one, but only when it is spelt exactly like this.
_PROVIDER = {
    "requires": ["nvidia-variant-provider"],
    "plugin-api": "nvidia_variant_provider.plugin:NvidiaVariantPlugin",
}

Properties = Mapping[str, Mapping[str, list[str]]]


@dataclass(frozen=True, slots=True)
class VariantLabel:
    """What a variant wheel is for: one CUDA build and one GPU."""

    build: str
    cuda: Dotted
    gpu: Capability

    def __str__(self) -> str:
        return f"{self.build}_{self.gpu.sm}"

    @property
    def properties(self) -> Properties:
        """A driver that runs this CUDA, and a GPU that runs this code."""
        return {
            NAMESPACE: {
                "cuda_version_lower_bound": [".".join(map(str, self.cuda.parts[:2]))],
                "sm_arch": [f"{self.gpu.number}_real"],
            }
        }


class _Document(msgspec.Struct):
    variants: dict[Label, dict[Label, dict[Label, list[Label]]]]


def variants_document(variants: Mapping[str, Properties]) -> bytes:
    """`variant.json` with one label, `NAME-VERSION-variants.json` with all."""
    document = {
        "$schema": SCHEMA,
        "default-priorities": {"namespace": [NAMESPACE]},
        "providers": {NAMESPACE: _PROVIDER},
        "variants": {label: variants[label] for label in sorted(variants)},
    }
    return (json.dumps(document, indent=1) + "\n").encode()


def index_document_name(distribution: str, version: str) -> str:
    return f"{distribution}-{version}-variants.json"


def read_document(content: bytes) -> dict[str, Properties]:
    """The variants of a document written before."""
    return dict(decode_json(content, _Document, "A variants.json on the index", "Move it away.").variants)


def join_documents(contents: Iterable[bytes]) -> bytes:
    """One document with the labels of all; the same label later wins."""
    joined: dict[str, Properties] = {}
    for content in contents:
        joined |= read_document(content)
    return variants_document(joined)


def make_variant(wheel: Path, folder: Path, label: VariantLabel, version: str) -> Path:
    """A cut wheel as a variant: with a label in its name and the stock version; all else unchanged."""
    with WheelArchive(wheel) as archive:
        distribution = WheelDistribution.of(archive)
        target = folder / f"{str(distribution.name.with_version(version)).removesuffix('.whl')}-{label}.whl"
        dist_info = distribution.renamed(f"{distribution.dist_info}/", version)
        metadata_name, manifest_name = (f"{distribution.dist_info}/{name}" for name in ("METADATA", MANIFEST))
        with new_wheel(target) as writer:
            for member in distribution.payload():
                name = distribution.renamed(member.name, version)
                if member.name == metadata_name:
                    data = with_version(archive.read(metadata_name), version)
                    writer.add_bytes(name, data, member.mode or DEFAULT_MODE)
                else:
                    writer.copy(archive, member, name, distribution.hash_of(member))
            written = {INSIDE: variants_document({str(label): label.properties})}
            if manifest_name in archive.members:
                written[MANIFEST] = archive.read(manifest_name)
            for name, data in written.items():
                writer.add_bytes(f"{dist_info}{name}", data)
            writer.add_record(f"{dist_info}RECORD")
    return target


def make_choice(
    folder: Path, distribution: str, version: str, requires: str = "", label: VariantLabel | None = None
) -> Path:
    """A wheel without files that requires another distribution: a variant of it for each GPU, and one for none."""
    name = distribution.replace("-", "_")
    ending = f"-{label}" if label else ""
    target = folder / f"{name}-{version}-py3-none-any{ending}.whl"
    required = [f"Requires-Dist: {requires}"] if requires else []
    about = "Summary: Chooses the packages with the GPU code for a GPU"
    lines = ["Metadata-Version: 2.1", f"Name: {distribution}", f"Version: {version}", about, *required, "", ""]
    written = {
        "METADATA": "\n".join(lines).encode(),
        "WHEEL": b"Wheel-Version: 1.0\nGenerator: torchtailor\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    if label:
        written[INSIDE] = variants_document({str(label): label.properties})
    with new_wheel(target) as writer:
        for file, data in written.items():
            writer.add_bytes(f"{name}-{version}.dist-info/{file}", data)
        writer.add_record(f"{name}-{version}.dist-info/RECORD")
    return target
