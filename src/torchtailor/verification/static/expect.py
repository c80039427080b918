"""What an artifact should be: from --variant, from its own manifest, or from single options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from torchtailor.catalog import Capability, Catalog
from torchtailor.catalog.cpus import Isa
from torchtailor.catalog.variants.matrix import matrix_of
from torchtailor.catalog.variants.variant import Variant
from torchtailor.core.errors import NoMatchError
from torchtailor.trees.artifact.artifact import Artifact


@dataclass(frozen=True)
class Expectation:
    """The machine an artifact is meant for, as far as it is known."""

    name: str = ""
    source: str = ""
    gpus: tuple[Capability, ...] = ()
    isa: Isa | None = None
    arch: str = ""
    python: str = ""
    torch: str = ""
    isa_asked: bool = False  # by an option, not by a manifest

    @property
    def allowed(self) -> frozenset[str]:
        """The CPU features that code may need unconditionally."""
        return self.isa.requires if self.isa else frozenset()


def expectation(
    artifact: Artifact, catalog: Catalog, *, variant: str = "", gpus: Sequence[Capability] = (), isa: str = ""
) -> Expectation:
    """The options win over the manifest."""
    if variant:
        expected = replace(_of_variant(_resolve(catalog, variant, artifact.torch_version), "--variant"), isa_asked=True)
    elif own := str(artifact.manifest.get("variant", "")):
        try:
            expected = _of_variant(_resolve(catalog, own, ""), "manifest.json")
        except NoMatchError:  # of another catalog: its own target is enough
            expected = _of_target(own, artifact.manifest.get("target", {}), catalog)
    elif artifact.made_for:
        labelled = tuple(Capability.parse(text) for text in artifact.made_for)
        expected = Expectation(source="the image's label", gpus=labelled)
    elif own_gpus := _manifest_gpus(artifact):
        expected = Expectation(source="torchtailor.json", gpus=own_gpus)
    else:
        expected = Expectation()
    if gpus and set(gpus) != set(expected.gpus):
        expected = replace(expected, name="", gpus=tuple(gpus), source="--gpu")
    elif gpus:
        expected = replace(expected, source=f"--gpu, as in {expected.source}")
    if isa:
        named = catalog.isa(isa)
        expected = replace(expected, isa=named, arch=named.arch, source=expected.source or "--cpu", isa_asked=True)
    return expected


def _resolve(catalog: Catalog, name: str, torch: str) -> Variant:
    """The variant of a name; a short name means that of the PyTorch which is there, where it has one."""
    matrix = matrix_of(catalog)
    if torch:
        with suppress(NoMatchError):
            return matrix.resolve(name, release=torch).variant
    return matrix.resolve(name).variant


def _of_variant(variant: Variant, source: str) -> Expectation:
    gpus = tuple(gpu.capability for gpu in variant.gpus)
    torch = str(variant.release.version)
    return Expectation(variant.unique_name, source, gpus, variant.isa, variant.arch, variant.python, torch)


def _of_target(name: str, target: Mapping[str, Any], catalog: Catalog) -> Expectation:
    gpus = tuple(map(Capability.parse, str(target["gpu"]).split(","))) if target.get("gpu") else ()
    isa = catalog.isas.get(str(target.get("isa", "")))
    arch = str(target.get("arch", isa.arch if isa else ""))
    return Expectation(name, "manifest.json", gpus, isa, arch, str(target.get("python", "")))


def _manifest_gpus(artifact: Artifact) -> tuple[Capability, ...]:
    """The GPUs that all cut distributions of the artifact were cut for; of one that was split, those of its packs."""
    sets: dict[str, set[Capability]] = {}
    for owner, manifest in artifact.tailored.items():
        gpus = {Capability.parse(text) for text in manifest.get("target", {}).get("gpus", ())}
        if manifest.get("output", {}).get("kind") == "packs":
            sets.setdefault(f"packs of {manifest['input']['name']}", set()).update(gpus)
        elif gpus or not manifest.get("policy", {}).get("split"):
            sets[owner] = gpus
    return tuple(sorted(set.intersection(*sets.values()))) if sets else ()
