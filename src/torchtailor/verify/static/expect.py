"""What an artifact should be: from --variant, from its own manifest, or from single options."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torchtailor.catalog import Capability, Catalog
from torchtailor.catalog.cpus import Isa
from torchtailor.errors import NoMatchError
from torchtailor.variants.matrix import Matrix
from torchtailor.variants.variant import Variant
from torchtailor.verify.static.artifact import Artifact


@dataclass(frozen=True)
class Expectation:
    """The machine an artifact is meant for, as far as anybody said."""

    name: str = ""
    said_by: str = ""
    gpus: tuple[Capability, ...] = ()
    isa: Isa | None = None
    arch: str = ""
    python: str = ""

    @property
    def allowed(self) -> frozenset[str]:
        """The CPU features that code may need without asking."""
        return self.isa.requires if self.isa else frozenset()


def expectation(
    artifact: Artifact, catalog: Catalog, *, variant: str = "", gpus: Sequence[Capability] = (), isa: str = ""
) -> Expectation:
    """The options win over the manifest."""
    said_by = "--variant"
    if not variant and (own := artifact.manifest.get("variant")):
        variant, said_by = str(own), "manifest.json"
    if variant:
        expected = _of_variant(_resolve(catalog, variant, said_by), said_by)
        expected = Expectation(
            expected.name, said_by, tuple(gpus) or expected.gpus, expected.isa, expected.arch, expected.python
        )
    else:
        own_gpus = tuple(gpus) or _manifest_gpus(artifact)
        expected = Expectation(said_by="--gpu" if gpus else "torchtailor.json" if own_gpus else "", gpus=own_gpus)
    if isa:
        named = catalog.isa(isa)
        return Expectation(expected.name, expected.said_by, expected.gpus, named, named.arch, expected.python)
    return expected


def _resolve(catalog: Catalog, name: str, said_by: str) -> Variant:
    try:
        return Matrix(catalog).resolve(name).variant
    except NoMatchError as error:
        hint = "Give the variant with --variant." if said_by != "--variant" else error.hint
        raise NoMatchError(error.message, hint) from error


def _of_variant(variant: Variant, said_by: str) -> Expectation:
    gpus = (variant.gpu.capability,) if variant.gpu else ()
    return Expectation(variant.unique_name, said_by, gpus, variant.isa, variant.arch, variant.python)


def _manifest_gpus(artifact: Artifact) -> tuple[Capability, ...]:
    """The GPUs that all cut distributions of the artifact were cut for."""
    sets = [
        {Capability.parse(text) for text in manifest.get("target", {}).get("gpus", ())}
        for manifest in artifact.tailored.values()
    ]
    return tuple(sorted(set.intersection(*sets))) if sets else ()
