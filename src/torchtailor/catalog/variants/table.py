"""Variants as rows: one record each, written as CSV or Markdown."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from torchtailor.catalog.load import Catalog
from torchtailor.catalog.variants.rules import available_methods
from torchtailor.catalog.variants.variant import Variant
from torchtailor.core.format import markdown_table

COLUMNS = ("name", "release", "PyTorch", "CUDA", "GPU", "CPU", "Python", "platform", "build methods")
IN_THE_NAME = ("platform", "Python", "CUDA", "GPU", "CPU", "PyTorch", "release")  # columns a narrow window can spare


@dataclass(frozen=True, slots=True)
class MatrixRow:
    """What a script wants to know about a variant."""

    unique_name: str
    name: str
    short_name: str
    release: str
    pytorch: str
    cuda: str | None
    gpu: str | None
    capability: str | None
    isa: str
    python: str
    platform: str
    methods: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MatrixTable:
    """The variants that were asked for."""

    count: int
    variants: tuple[MatrixRow, ...]


def row(catalog: Catalog, variant: Variant) -> MatrixRow:
    return MatrixRow(
        unique_name=variant.unique_name,
        name=variant.name,
        short_name=variant.short_name,
        release=variant.release_name,
        pytorch=str(variant.release.version),
        cuda=str(variant.build.cuda) if variant.build.cuda else None,
        gpu=variant.gpu.sm if variant.gpu else None,
        capability=str(variant.gpu.capability) if variant.gpu else None,
        isa=variant.isa.name,
        python=variant.python,
        platform=variant.platform,
        methods=available_methods(catalog, variant),
    )


def cells(item: MatrixRow) -> tuple[str, ...]:
    """A row as people read it, in the order of COLUMNS."""
    return (
        item.unique_name,
        item.release,
        item.pytorch,
        item.cuda or "",
        item.gpu or "cpu",
        item.isa,
        item.python,
        item.platform,
        ", ".join(item.methods),
    )


def as_csv(rows: Sequence[MatrixRow]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=[*MatrixRow.__dataclass_fields__], lineterminator="\n")
    writer.writeheader()
    for item in rows:
        writer.writerow({**asdict(item), "methods": " ".join(item.methods)})
    return text.getvalue()


def as_markdown(rows: Sequence[MatrixRow]) -> str:
    return markdown_table(COLUMNS, map(cells, rows))
