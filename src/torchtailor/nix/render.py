"""Recipes and the files beside them as text, stamped and ready to be written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from functools import cache
from types import MappingProxyType
from typing import Any

from torchtailor.catalog.load import Catalog
from torchtailor.catalog.releases import DEFAULT_PYTHON
from torchtailor.catalog.variants.variant import Variant
from torchtailor.core.templates import template_environment
from torchtailor.nix.blueprint import BlasChoice, Blueprint, can_use_mkl, cuda_tag, driver_text
from torchtailor.nix.nixlibrary import call_of, library_files, library_from, recipe_text
from torchtailor.nix.nixtext import NixCode, nix_value
from torchtailor.nix.pins import Pins, SiblingRow
from torchtailor.nix.recipe import TORCH, Recipe
from torchtailor.nix.tree import LIBRARY, MARKDOWN, stamp


class RecipeOrigin(Enum):
    """What a tree's recipes make torch from."""

    SOURCE = "source"
    WHEELS = "wheels"


@cache
def _environment() -> Any:
    return template_environment("torchtailor.nix", extra="recipes", purpose="Recipes need")


def fill(template: str, values: Mapping[str, object]) -> str:
    """A template with its values."""
    return str(_environment().get_template(template).render(values))


def render(blueprint: Blueprint, library: str = f"../{LIBRARY}") -> str:
    """The recipe of one variant."""
    return recipe_text(
        blueprint.pins,
        blueprint.pin,
        "torch",
        blueprint.row,
        blueprint.title,
        story=blueprint.story,
        library=library,
    )


def sibling_name(package: str, variant: Variant) -> str:
    """`torchvision-python313-cuda13_0-sm90-avx512`."""
    return package + variant.name.removeprefix("pytorch")


def render_sibling(blueprint: Blueprint, sibling: SiblingRow, library: str = f"../{LIBRARY}") -> str:
    """The recipe of what is built on a variant's torch."""
    source = sibling.for_torch(blueprint.version)
    version = source.version if source else str(getattr(blueprint.pin, sibling.name))
    description = f"{sibling.name} {version} with PyTorch {blueprint.version} for {blueprint.target}"
    row = {
        "name": sibling_name(sibling.name, blueprint.variant),
        "package": sibling.name,
        "version": version,
        **blueprint.hardware,
        "description": description,
        "torch": call_of(blueprint.file_name),
    }
    cuda = f", CUDA {blueprint.cuda}" if blueprint.cuda else ""
    title = f"{description}{cuda}, Python {blueprint.variant.python}."
    return recipe_text(blueprint.pins, blueprint.pin, "sibling", row, title, library=library)


def spark_names(pins: Pins) -> frozenset[str]:
    """The names of the additional recipes for DGX Spark."""
    spark = pins.file.spark
    tag = cuda_tag(spark.cuda)
    gpu = f"sm{spark.gpu.replace('.', '')}"
    nightly = f"pytorch-python{DEFAULT_PYTHON.replace('.', '')}-cuda{tag}-{gpu}-{spark.isa}-nightly"
    return frozenset({nightly, f"{nightly}-wrapper", *(f"{component.name}-{tag}" for component in spark.component)})


def spark_recipes(catalog: Catalog, pins: Pins) -> Mapping[str, str]:
    """The additional recipes for DGX Spark: components, the nightly that uses them, and its wrapper."""
    spark = pins.file.spark
    release = catalog.release(spark.release)
    build = next(build for build in release.cuda_builds if str(build.cuda) == spark.cuda)
    variant = Variant(release, build, catalog.gpu(spark.gpu), catalog.isas[spark.isa], DEFAULT_PYTHON)
    nightly = Blueprint(catalog, pins, variant, nightly=spark.nightly)
    tag = cuda_tag(spark.cuda)
    texts = {
        f"{component.name}-{tag}": recipe_text(
            pins,
            nightly.pin,
            "component",
            {"package": component.name, "version": component.version, "cuda": spark.cuda, "gpuArchSM": spark.gpu},
            f"{component.summary}, {component.version}, for CUDA {spark.cuda}.",
        )
        for component in spark.component
    }
    own = {component.name: call_of(f"{component.name}-{tag}") for component in spark.component}
    texts[nightly.file_name] = recipe_text(
        pins,
        nightly.pin,
        "torch",
        {**nightly.row, "components": NixCode("components")},
        nightly.title,
        story=(*nightly.story, "Components: those of this folder, unless others are given"),
        arguments=[f"components ? {nix_value(own, 1)}"],
    )
    path = NixCode(f"../../../{spark.repository}")
    texts[f"{nightly.file_name}-wrapper"] = recipe_text(
        pins,
        nightly.pin,
        "torchWithComponents",
        {
            "recipe": NixCode(f"./{nightly.file_name}.nix"),
            "cuda": spark.cuda,
            "repository": NixCode("cudaToolkitRepo"),
            "components": {component.name: f"{component.name}-{tag}" for component in spark.component},
            "library": NixCode("library"),
        },
        f"{nightly.file_name} with the CUDA {spark.cuda} components from a sibling repository.",
        arguments=[f"cudaToolkitRepo ? {path}"],
    )
    return texts


def environment_files(
    catalog: Catalog,
    pins: Pins,
    variants: Sequence[Variant],
    spark: Sequence[str] = (),
    *,
    selection: Mapping[str, Sequence[str]] = MappingProxyType({}),
    siblings: Sequence[str] = (),
    origin: RecipeOrigin = RecipeOrigin.SOURCE,
) -> Mapping[str, str]:
    """The tree's other files, by their path under `.flox`: manifest, environment, attributes, table, library."""
    release = variants[0].release
    gpus = [variant for variant in variants if variant.gpu]
    example = next((v.name for v in gpus if v.short_name == "sm90-avx512"), (gpus or list(variants))[0].name)
    if origin is RecipeOrigin.WHEELS:
        pin = pins.newest
    else:
        kept = {found.rev: found for found in (Blueprint(catalog, pins, variant).pin for variant in variants)}
        pin = next(iter(kept.values())) if len(kept) == 1 else pins.nixpkgs(str(release.nixpkgs))
    platforms = sorted({variant.platform for variant in variants})
    attributes = {
        platform: [
            name
            for variant in variants
            if variant.platform == platform
            for name in (variant.name, *(sibling_name(package, variant) for package in own_recipes(siblings, origin)))
        ]
        for platform in platforms
    }
    if spark:
        attributes.setdefault("aarch64-linux", []).extend(name for name in spark if not name.endswith("-wrapper"))
    shared: dict[str, object] = {
        "release": release,
        "count": len(variants),
        "example": example,
        "cuda": next((variant.build.cuda for variant in gpus), None),
        "pin": pin,
        "pin_hash": pins.hash_of(pin),
        "systems": platforms,
        "attributes": nix_value(attributes, 1),
        "spark": spark,
        "selection": selection,
        "siblings": siblings,
        "origin": origin,
        "wheels": origin is RecipeOrigin.WHEELS,
        "rows": [
            {
                "name": variant.name,
                "gpu": f"{variant.gpu.sm.upper()} ({variant.gpu.describe()})" if variant.gpu else "none",
                "cpu": variant.isa.label,
                "platform": variant.platform,
                "driver": driver_text(catalog, pin if origin is RecipeOrigin.SOURCE else None, variant),
            }
            for variant in variants
        ],
    }
    name = f"pytorch-{release.recipe_name}".replace("_", "-").replace(".", "-")
    return {
        **library_files(catalog, pins),
        "env.json": f'{{\n  "name": "{name}",\n  "version": 1\n}}\n',
        "default.nix": stamp(fill("default.nix.j2", shared), f"The recipes of release {release.recipe_name}."),
        "env/manifest.toml": stamp(
            fill("manifest.toml.j2", shared), f"The build environment of release {release.recipe_name}."
        ),
        "README.md": stamp(fill("readme.md.j2", shared), f"The recipes of release {release.recipe_name}.", MARKDOWN),
    }


def own_recipes(siblings: Sequence[str], origin: RecipeOrigin) -> Sequence[str]:
    """Siblings that have recipes of their own: wheels of them are in the same package as torch."""
    return siblings if origin is RecipeOrigin.SOURCE else ()


def render_all(
    catalog: Catalog,
    pins: Pins,
    variants: Sequence[Variant],
    *,
    blas: BlasChoice = BlasChoice.OPENBLAS,
    spark: bool = False,
    siblings: Sequence[str] = (),
) -> Mapping[str, str]:
    """Every recipe of a tree, by its path under `.flox`."""
    texts = {}
    for variant in variants:
        blueprint = Blueprint(catalog, pins, variant, blas if can_use_mkl(variant) else BlasChoice.OPENBLAS)
        texts[f"pkgs/{variant.name}.nix"] = render(blueprint)
        for name in siblings:
            texts[f"pkgs/{sibling_name(name, variant)}.nix"] = render_sibling(blueprint, pins.sibling(name))
    extra = spark_recipes(catalog, pins) if spark else {}
    return texts | {f"pkgs/{name}.nix": text for name, text in extra.items()}


def rerender(catalog: Catalog, pins: Pins, recipe: Recipe) -> str | None:
    """A recipe as the catalog would write it now; None if the catalog has no such recipe."""
    name = recipe.recipe_name
    library = library_from(recipe.path)
    if recipe.is_wheel:  # its wheels were found in an index
        return None
    if recipe.variant and name and not name.suffix and name.package != TORCH:
        return render_sibling(Blueprint(catalog, pins, recipe.variant), pins.sibling(name.package), library)
    if recipe.variant and name and not name.suffix:
        uses_mkl = recipe.row.get("blas") == BlasChoice.MKL.value or any(
            selection.text.endswith(".mkl") for selection in recipe.source.selections
        )
        blas = BlasChoice.MKL if uses_mkl and can_use_mkl(recipe.variant) else BlasChoice.OPENBLAS
        return render(Blueprint(catalog, pins, recipe.variant, blas), library)
    return spark_recipes(catalog, pins)[recipe.name] if recipe.name in spark_names(pins) else None
