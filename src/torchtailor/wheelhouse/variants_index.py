"""The index of wheel variants of one build: every cut wheel under a label, the stock ones to fall back to."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from torchtailor.backends.wheel.plan import VariantPlan
from torchtailor.disk import hash_file, link_or_copy, new_folder
from torchtailor.fetch.metadata import read_local
from torchtailor.index.pages import METADATA_SUFFIX, IndexedFile, index_pages, indexed
from torchtailor.index.variants import Properties, VariantLabel, index_document_name, make_variant, variants_document
from torchtailor.wheelhouse.wheelhouse import SIMPLE, WHEELS, Placed, write_pages

FOLDER = "variants"


@dataclass(frozen=True)
class _Labelled:
    """A wheel that becomes a variant."""

    placed: Placed
    label: VariantLabel


def write_variants_index(made: Sequence[tuple[VariantPlan, Sequence[Placed]]], out: Path) -> Path:
    """Put an index of all cut wheels, and of the stock wheels they came from, at `out/variants`."""
    with new_folder(out / FOLDER) as stage:
        wheels = stage / WHEELS
        wheels.mkdir()
        files: dict[str, IndexedFile] = {}
        documents: dict[str, dict[str, Properties]] = {}
        for plan, placed in made:
            for item in placed:
                _add_stock(item, wheels, files)
                if item.changed and plan.variant.gpu and plan.variant.build.cuda:
                    label = VariantLabel(plan.label, plan.variant.build.cuda, plan.variant.gpu.capability)
                    _add_variant(_Labelled(item, label), wheels, files, documents)
        for name, variants in documents.items():
            _add_document(name, variants_document(variants), wheels, files)
        write_pages(index_pages(list(files.values())), stage / SIMPLE)
    return out / FOLDER


def _add_stock(item: Placed, wheels: Path, files: dict[str, IndexedFile]) -> None:
    filename = item.source.file.filename
    if filename not in files:
        link_or_copy(item.stock.path, wheels / filename)
        files[filename] = _shown(wheels / filename, item.stock.sha256, item.source.metadata)


def _add_variant(
    item: _Labelled, wheels: Path, files: dict[str, IndexedFile], documents: dict[str, dict[str, Properties]]
) -> None:
    stock = item.placed.source.file
    version = str(stock.version)
    document = index_document_name(stock.filename.split("-")[0], version)
    labels = documents.setdefault(document, {})
    if f"{stock.filename.removesuffix('.whl')}-{item.label}.whl" in files:
        return  # variants that differ only in the ISA share the wheel
    wheel = make_variant(item.placed.path, wheels, item.label, version)
    labels[str(item.label)] = item.label.properties
    files[wheel.name] = _shown(wheel, hash_file(wheel), read_local(wheel))


def _add_document(name: str, content: bytes, wheels: Path, files: dict[str, IndexedFile]) -> None:
    (wheels / name).write_bytes(content)
    digest = hashlib.sha256(content).hexdigest()
    files[name] = IndexedFile(name, f"../../{WHEELS}/{quote(name)}", digest, len(content))


def _shown(path: Path, sha256: str, metadata: bytes) -> IndexedFile:
    path.with_name(path.name + METADATA_SUFFIX).write_bytes(metadata)
    return indexed(path, sha256, metadata, f"../../{WHEELS}/")
