"""A catalog that stays the same when releases are added to the real one.

Tables of expected answers (this machine gets that release) hold for the releases of one day. New lines of releases are
left out of this catalog, and patch releases keep the version of that day. What holds for any catalog is tested with
the real one.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from torchtailor.catalog import Catalog, load, load_catalog

# The newest version of each line on the day when the tables were last changed.
VERSIONS: dict[tuple[int, ...], str] = {
    (2, 8): "2.8.0",
    (2, 9): "2.9.1",
    (2, 10): "2.10.0",
    (2, 11): "2.11.0",
    (2, 12): "2.12.1",
    (2, 13): "2.13.0",
    (2, 14): "2.14.1",
    (2, 15): "2.15.0",
}


def pin(patch: pytest.MonkeyPatch, without: Collection[tuple[int, ...]] = ()) -> None:
    """From now on `load_catalog` gives the releases of that day, with the user's file added as ever."""
    real = load._read
    patch.setattr(load, "_read", lambda name: _of_that_day(real(name), without))


def load_pinned(directory: Path, without: Collection[tuple[int, ...]] = ()) -> Catalog:
    with pytest.MonkeyPatch.context() as patch:
        pin(patch, without)
        return load_catalog(directory)


def _of_that_day(document: dict[str, Any], without: Collection[tuple[int, ...]]) -> dict[str, Any]:
    if "release" not in document:
        return document
    names: set[str] = set()
    kept = []
    for row in document["release"]:
        version = row.get("version")
        if version is None:
            kept += [row] if row["name"] in names else []  # more facts about a release, of that day or not
            continue
        line = _parts(version)[:2]
        known = VERSIONS.get(line, version)
        if row["name"] in names and _parts(version) > _parts(known):
            continue  # what `catalog update` adds for a later patch release: its facts are not of that day either
        if line <= max(VERSIONS) and line not in without:
            names.add(row["name"])
            kept.append(row | {"version": min(version, known, key=_parts)})
    return document | {"release": kept}


def _parts(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))
