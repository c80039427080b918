"""Recorded machines and how tests get at them."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from tests.catalogs import load_pinned
from torchtailor.advise.host.detect import detect
from torchtailor.advise.host.model import Host
from torchtailor.advise.host.probe import Recording, ReplayProbe
from torchtailor.catalog import Catalog
from torchtailor.catalog.variants import Matrix

FOLDER = Path(__file__).parent
NAMES = tuple(sorted(path.stem for path in FOLDER.glob("*.json")))


@cache
def catalog() -> Catalog:
    return load_pinned(FOLDER)  # a folder without a torchtailor.toml


@cache
def matrix() -> Matrix:
    return Matrix(catalog())


def recording(name: str, **changes: Any) -> Recording:
    """A machine's recording; `env`, `files`, `folders`, `programs`, `commands` are added to it, the rest replaced."""
    read = msgspec.json.decode((FOLDER / f"{name}.json").read_bytes(), type=Recording)
    merged = {
        key: {**getattr(read, key), **value} if isinstance(value, dict) else value for key, value in changes.items()
    }
    return msgspec.structs.replace(read, **merged)


def host(name: str, **changes: Any) -> Host:
    """The description of a recorded machine."""
    return detect(ReplayProbe(recording(name, **changes)), catalog())
