"""The matrix and the guides to GPUs and CPUs, as rows of text for the site's tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torchtailor.catalog.gpus import Gpu
from torchtailor.catalog.load import Catalog
from torchtailor.catalog.methods import NIX
from torchtailor.catalog.schema import python_key
from torchtailor.catalog.variants import Matrix, Variant, available_methods, coverage


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell: its text, and what it is sorted by where that is not the text."""

    text: str
    key: str = ""
    code: bool = False


@dataclass(frozen=True, slots=True)
class MatrixEntry:
    """A variant for all its Pythons, with what the page filters by."""

    cells: tuple[Cell, ...]
    release: str
    cuda: str
    gpu: str
    isa: str
    pythons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SiteTable:
    """A table with its heading."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


MATRIX_COLUMNS = ("name", "PyTorch", "CUDA", "runs on", "CPU", "driver", "Python", "build methods", "recipe")


def matrix_entries(matrix: Matrix) -> tuple[MatrixEntry, ...]:
    """All variants, newest release first; one row for all Pythons of a release."""
    releases = sorted(matrix.catalog.releases.values(), key=lambda release: release.version, reverse=True)
    variants = (variant for release in releases for variant in matrix.variants(release=str(release.version)))
    return tuple(_entry(matrix.catalog, variant) for variant in variants)


def _entry(catalog: Catalog, variant: Variant) -> MatrixEntry:
    release, build, gpu = variant.release, variant.build, variant.gpu
    driver, driver_key = "", "0"
    if build.cuda is not None:
        needs, full = catalog.toolkit(build.cuda).drivers_for(gpu, str(build.toolkit) if build.toolkit else None)
        last = f", up to R{gpu.last_driver_branch}" if gpu and gpu.last_driver_branch else ""
        driver = f"{needs}{last}" if full == needs else f"{needs} ({full} in full){last}"
        driver_key = ".".join(f"{part:04}" for part in needs.parts)
    methods = available_methods(catalog, variant)
    recipe = f"{variant.name}.nix" if coverage(catalog, variant, NIX).available else ""
    pythons = tuple(sorted(release.pythons, key=python_key))
    cells = (
        Cell(variant.unique_name, code=True),
        Cell(str(release.version), _version_key(str(release.version))),
        Cell(str(build.cuda) if build.cuda else "none", _version_key(str(build.cuda or "0"))),
        Cell(gpu.describe(3) if gpu else "CPU only", f"{gpu.capability.number:04}" if gpu else "0"),
        Cell(variant.isa.label),
        Cell(driver, driver_key),
        Cell(f"{pythons[0]} to {pythons[-1]}", _version_key(pythons[-1].removesuffix("t"))),
        Cell(", ".join(methods)),
        Cell(recipe, code=True),
    )
    return MatrixEntry(
        cells, str(release.version), str(build.cuda or "none"), gpu.sm if gpu else "cpu", variant.isa.name, pythons
    )


def _version_key(version: str) -> str:
    return ".".join(f"{int(part):04}" for part in version.split("."))


def gpu_table(catalog: Catalog) -> SiteTable:
    """Every architecture that a product has, newest first."""
    rows = [_gpu_row(gpu) for gpu in sorted(catalog.gpus.values(), key=lambda one: one.capability, reverse=True)]
    columns = ("capability", "architecture", "products", "driver", "CUDA", "Tensor cores", "formats", "memory", "CPUs")
    return SiteTable(columns, tuple(rows))


def _gpu_row(gpu: Gpu) -> tuple[Cell, ...]:
    first, last = str(gpu.first_driver or ""), gpu.last_driver_branch
    features = gpu.features
    driver = " ".join(filter(None, [f"from {first}" if first else "", f"to R{last}" if last else ""]))
    return (
        Cell(str(gpu.capability), f"{gpu.capability.number:04}"),
        Cell(gpu.family),
        Cell(", ".join(gpu.all_products) if gpu.offered else "no public product with CUDA"),
        Cell(driver, _version_key(first or "0")),
        Cell(f"{gpu.first_cuda} to {gpu.last_cuda}" if gpu.last_cuda else f"from {gpu.first_cuda}",
             _version_key(str(gpu.first_cuda))),
        Cell("not known" if features is None else f"{features.tensor_cores}" if features.tensor_cores else "none"),
        Cell(", ".join(features.formats) if features else ""),
        Cell(", ".join(features.memory) if features else ""),
        Cell(", ".join(sorted(gpu.hosts))),
    )  # fmt: skip


def isa_table(catalog: Catalog) -> SiteTable:
    """Every instruction set that variants are compiled for."""
    rows = [
        (
            Cell(isa.name, code=True),
            Cell(isa.label),
            Cell(isa.arch),
            Cell(", ".join(isa.first)),
            Cell(isa.not_on),
            Cell(", ".join(isa.workloads)),
            Cell(" ".join(sorted(isa.requires)), code=True),
        )
        for isa in catalog.isas.values()
    ]
    columns = ("name", "instruction set", "platform", "first in", "not in", "for", "flags of /proc/cpuinfo")
    return SiteTable(columns, tuple(rows))


def core_table(catalog: Catalog) -> SiteTable:
    """Every CPU core that has a row, and the best instruction set that it runs."""
    rows = []
    for core in catalog.microarchitectures.values():
        runs = [isa for isa in catalog.isas.values() if isa.arch == core.arch and isa.runs_on(core.flags)]
        names = dict.fromkeys(known.label for known in catalog.cpu_names if known.microarchitecture == core.name)
        cells = (
            Cell(core.name, code=True),
            Cell(core.arch),
            Cell(", ".join(isa.label for isa in runs) or "none of the matrix's"),
            Cell(", ".join(names)),
        )
        rows.append(cells)
    return SiteTable(("core", "platform", "runs", "CPUs"), tuple(rows))


def distinct(entries: Sequence[MatrixEntry], name: str) -> tuple[str, ...]:
    """The values of one filter, in the order in which they appear."""
    return tuple(dict.fromkeys(getattr(entry, name) for entry in entries))
