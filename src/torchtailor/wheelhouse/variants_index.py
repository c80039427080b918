"""The index of wheel variants of one build: every cut wheel under a label, the stock ones as a fallback."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from packaging.version import Version

from torchtailor.core.disk import hash_file, new_folder
from torchtailor.trees.index.pages import IndexedFile, index_pages
from torchtailor.trees.index.variants import (
    Properties,
    VariantLabel,
    index_document_name,
    make_choice,
    make_variant,
    variants_document,
)
from torchtailor.trees.wheels.name import WheelName
from torchtailor.wheelhouse.entry import StockWheel, WheelhouseEntry, WheelStep
from torchtailor.wheelhouse.wheelhouse import SIMPLE, WHEELS, add_metadata, add_wheel, write_pages

FOLDER = "variants"
_TORCH = "torch"  # others may hold libraries of NVIDIA's: where they are not published, the stock ones are


def write_variants_index(
    wheelhouses: Sequence[tuple[VariantLabel | None, Sequence[WheelhouseEntry]]], out: Path, *, cache: Path
) -> Path:
    """Put an index of all cut wheels, and of the stock wheels they were made of, at `out/variants`."""
    with new_folder(out / FOLDER) as stage:
        wheels = stage / WHEELS
        wheels.mkdir()
        files: dict[str, IndexedFile] = {}
        documents: dict[str, dict[str, Properties]] = {}
        for label, entries in wheelhouses:
            split = {entry.required_by[0].partition("[")[0] for entry in entries if entry.step is WheelStep.PACKS}
            for entry in entries:
                is_split = entry.name.project in split
                if (is_split or entry.step is WheelStep.PACKS) and entry.filename not in files:
                    files[entry.filename] = add_wheel(entry.path, entry.filename, entry.sha256, wheels, cache)
                if entry.step is WheelStep.PACKS and label:
                    _add_choice(entry, label, wheels, files, documents)
                if entry.stock is None or (is_split and entry.name.project == _TORCH):
                    continue
                stock = entry.stock
                if stock.filename not in files:
                    files[stock.filename] = add_wheel(stock.path, stock.filename, stock.sha256, wheels, cache)
                if entry.step is WheelStep.CUT and label and not is_split:
                    _add_variant(entry.path, stock, label, wheels, files, documents)
        for name, variants in documents.items():
            _add_document(name, variants_document(variants), wheels, files)
        write_pages(index_pages(list(files.values())), stage / SIMPLE)
    return out / FOLDER


def _add_variant(
    cut: Path,
    stock: StockWheel,
    label: VariantLabel,
    wheels: Path,
    files: dict[str, IndexedFile],
    documents: dict[str, dict[str, Properties]],
) -> None:
    if f"{stock.filename.removesuffix('.whl')}-{label}.whl" in files:
        return  # variants that differ only in the ISA share the wheel
    name = WheelName.parse(Path(stock.filename))
    version = str(Version(name.version))
    wheel = make_variant(cut, wheels, label, version)
    documents.setdefault(index_document_name(name.distribution, version), {})[str(label)] = label.properties
    files[wheel.name] = add_metadata(wheel, hash_file(wheel))


def _add_choice(
    packs: WheelhouseEntry,
    label: VariantLabel,
    wheels: Path,
    files: dict[str, IndexedFile],
    documents: dict[str, dict[str, Properties]],
) -> None:
    """A variant that requires the packs for its GPU, and an empty wheel for where none fits."""
    choice, version = packs.name.project.rpartition("-")[0], packs.name.version
    document = index_document_name(choice.replace("-", "_"), version)
    if str(label) in documents.setdefault(document, {}):
        return
    documents[document][str(label)] = label.properties
    for wheel in (
        make_choice(wheels, choice, version, f"{packs.name.project}=={version}", label),
        make_choice(wheels, choice, version),
    ):
        files[wheel.name] = add_metadata(wheel, hash_file(wheel))


def _add_document(name: str, content: bytes, wheels: Path, files: dict[str, IndexedFile]) -> None:
    (wheels / name).write_bytes(content)
    digest = hashlib.sha256(content).hexdigest()
    files[name] = IndexedFile(name, f"../../{WHEELS}/{quote(name)}", digest, len(content))
