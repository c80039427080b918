"""Recipes as text: templates filled in and stamped, ready to be written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from torchtailor.catalog.load import Catalog
from torchtailor.catalog.releases import DEFAULT_PYTHON
from torchtailor.recipes import require
from torchtailor.recipes.blueprint import BlasChoice, Blueprint, can_use_mkl, cuda_tag
from torchtailor.recipes.pins import UNKNOWN_HASH, Pins
from torchtailor.recipes.recipe import Recipe
from torchtailor.recipes.tree import MARKDOWN, stamp
from torchtailor.variants.variant import Variant


@cache
def _environment() -> Any:
    jinja2 = require("jinja2")
    return jinja2.Environment(
        loader=jinja2.PackageLoader("torchtailor.recipes", "templates"),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,
        # Nix, shell and CMake are full of braces
        block_start_string="<%",
        block_end_string="%>",
        variable_start_string="[[",
        variable_end_string="]]",
        comment_start_string="<#",
        comment_end_string="#>",
    )


def _fill(template: str, values: Mapping[str, object]) -> str:
    return str(_environment().get_template(template).render(values))


def render(blueprint: Blueprint) -> str:
    """The recipe of one variant."""
    body = _fill("torch.nix.j2", {**blueprint.values(), "unknown_hash": UNKNOWN_HASH})
    cuda = f", CUDA {blueprint.cuda}" if blueprint.cuda else ""
    title = blueprint.description.replace("\n", " ").rstrip(".")
    return stamp(body, f"{title}{cuda}, Python {blueprint.variant.python}.")


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
    nightly = Blueprint(catalog, pins, variant, nightly=spark.nightly, components=spark.component)
    shared = {
        "pin": nightly.pin,
        "pin_hash": pins.hash_of(nightly.pin),
        "cuda_set": nightly.cuda_set,
        "cuda_tag": cuda_tag(spark.cuda),
        "capability": spark.gpu,
    }
    texts = {
        f"{component.name}-{cuda_tag(spark.cuda)}": stamp(
            _fill("component.nix.j2", {**shared, "component": component}),
            f"{component.summary}, {component.version}, for CUDA {spark.cuda}.",
        )
        for component in spark.component
    }
    texts[nightly.file_name] = render(nightly)
    wrapper = {
        **shared,
        "components": spark.component,
        "nightly_name": nightly.file_name,
        "repository": spark.repository,
    }
    texts[f"{nightly.file_name}-wrapper"] = stamp(
        _fill("nightly-wrapper.nix.j2", wrapper),
        f"{nightly.file_name} with the CUDA {spark.cuda} components from a sibling repository.",
    )
    return texts


def environment_files(
    catalog: Catalog,
    pins: Pins,
    variants: Sequence[Variant],
    spark: Sequence[str] = (),
    *,
    selection: Sequence[str] = (),
) -> Mapping[str, str]:
    """The tree's other files, by their path under `.flox`: manifest, environment and the table of recipes."""
    release = variants[0].release
    gpus = [variant for variant in variants if variant.gpu]
    example = next((v.name for v in gpus if v.short_name == "sm90-avx512"), (gpus or list(variants))[0].name)
    cuda = next((variant.build.cuda for variant in gpus), None)
    blueprints = [Blueprint(catalog, pins, variant) for variant in variants]
    shared: dict[str, object] = {
        "release": release,
        "count": len(variants),
        "example": example,
        "cuda": cuda,
        "pin": blueprints[0].pin,
        "systems": sorted({variant.platform for variant in variants}),
        "spark": spark,
        "selection": " ".join(selection),
        "rows": [
            {
                "name": item.file_name,
                "gpu": f"{item.variant.gpu.sm.upper()} ({item.variant.gpu.describe()})" if item.variant.gpu else "none",
                "cpu": item.variant.isa.label,
                "platform": item.variant.platform,
                "driver": item.driver,
            }
            for item in blueprints
        ],
    }
    name = f"pytorch-{release.name}".replace("_", "-")
    return {
        "env.json": f'{{\n  "name": "{name}",\n  "version": 1\n}}\n',
        "env/manifest.toml": stamp(
            _fill("manifest.toml.j2", shared), f"The build environment of release {release.name}."
        ),
        "README.md": stamp(_fill("readme.md.j2", shared), f"The recipes of release {release.name}.", MARKDOWN),
    }


def render_all(
    catalog: Catalog,
    pins: Pins,
    variants: Sequence[Variant],
    *,
    blas: BlasChoice = BlasChoice.OPENBLAS,
    spark: bool = False,
) -> Mapping[str, str]:
    """Every recipe of a tree, by its path under `.flox`."""
    texts = {}
    for variant in variants:
        own = blas if can_use_mkl(variant) else BlasChoice.OPENBLAS
        texts[f"pkgs/{variant.name}.nix"] = render(Blueprint(catalog, pins, variant, own))
    extra = spark_recipes(catalog, pins) if spark else {}
    return texts | {f"pkgs/{name}.nix": text for name, text in extra.items()}


def rerender(catalog: Catalog, pins: Pins, recipe: Recipe) -> str | None:
    """A recipe as the catalog would write it now; None if the catalog has no such recipe."""
    name = recipe.recipe_name
    if recipe.variant and name and not name.suffix:
        uses_mkl = any(selection.text.endswith(".mkl") for selection in recipe.source.selections)
        blas = BlasChoice.MKL if uses_mkl else BlasChoice.OPENBLAS
        return render(Blueprint(catalog, pins, recipe.variant, blas))
    return spark_recipes(catalog, pins)[recipe.name] if recipe.name in spark_names(pins) else None
