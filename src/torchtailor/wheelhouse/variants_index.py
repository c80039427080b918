"""The index of wheel variants of one build: every cut wheel under a label, the stock ones as a fallback."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from packaging.version import Version

from torchtailor.disk import hash_file, new_folder
from torchtailor.index.pages import IndexedFile, index_pages
from torchtailor.index.variants import Properties, VariantLabel, index_document_name, make_variant, variants_document
from torchtailor.wheelhouse.entry import StockWheel, WheelhouseEntry, WheelStep
from torchtailor.wheelhouse.wheelhouse import SIMPLE, WHEELS, add_metadata, add_wheel, write_pages
from torchtailor.wheels.name import WheelName

FOLDER = "variants"


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
            for entry in entries:
                if entry.stock is None:
                    continue
                stock = entry.stock
                if stock.filename not in files:
                    files[stock.filename] = add_wheel(stock.path, stock.filename, stock.sha256, wheels, cache)
                if entry.step is WheelStep.CUT and label:
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


def _add_document(name: str, content: bytes, wheels: Path, files: dict[str, IndexedFile]) -> None:
    (wheels / name).write_bytes(content)
    digest = hashlib.sha256(content).hexdigest()
    files[name] = IndexedFile(name, f"../../{WHEELS}/{quote(name)}", digest, len(content))
