"""A misbehaving server, an empty cache, and settings that look nowhere else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.unit.fetch.serving import Site, serve
from torchtailor.fetch import client
from torchtailor.fetch.cache import Cache
from torchtailor.fetch.locations import IndexLocation, LocationKind
from torchtailor.fetch.settings import IndexSettings


@pytest.fixture
def site() -> Iterator[Site]:
    with serve(Site()) as running:
        yield running


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits between tries are real, but short."""
    monkeypatch.setattr(client, "_FIRST_WAIT", 0.005)


@pytest.fixture
def settings(site: Site) -> Callable[..., IndexSettings]:
    def make(**changes: object) -> IndexSettings:
        source = IndexLocation(f"{site.url}/simple", LocationKind.INDEX, "test")
        values: dict[str, object] = {"sources": (source,), "timeout": 1.0, "retries": 3} | changes
        return IndexSettings(**values)  # type: ignore[arg-type]

    return make
