"""A served stack, a cache and a ledger of its own, and one call that plans and builds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.catalogs import load_pinned
from tests.unit.building.stack import fill
from tests.unit.fetch.serving import Site, serve
from torchtailor.building.choose import choose
from torchtailor.building.ledger.ledger import Ledger
from torchtailor.building.wheel.backend import WheelBackend
from torchtailor.building.wheel.builder import WheelBuildResult
from torchtailor.building.wheel.options import WheelOptions
from torchtailor.building.wheel.plan import WheelPlan
from torchtailor.catalog import Catalog
from torchtailor.core.progress import Progress
from torchtailor.fetch import client
from torchtailor.fetch.cache import Cache
from torchtailor.fetch.finder import Finder
from torchtailor.fetch.locations import IndexLocation, LocationKind
from torchtailor.fetch.settings import IndexSettings


@pytest.fixture
def site() -> Iterator[Site]:
    with serve(Site()) as running:
        yield fill(running)


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_FIRST_WAIT", 0.005)


@pytest.fixture(scope="session")
def catalog() -> Catalog:
    return load_pinned(Path("/"))


class Workshop:
    """Plans and builds from the served stack."""

    def __init__(self, site: Site, catalog: Catalog, root: Path) -> None:
        self.site, self.catalog, self.root = site, catalog, root
        self.out = root / "dist"
        self.ledger = Ledger(root / "ledger.sqlite")

    def finder(self, **changes: object) -> Finder:
        source = IndexLocation(f"{self.site.url}/simple", LocationKind.INDEX, "test")
        values: dict[str, object] = {"sources": (source,), "timeout": 5.0, "retries": 2} | changes
        return Finder(IndexSettings(**values), Cache(self.root / "cache"))  # type: ignore[arg-type]

    def backend(self, options: WheelOptions | None = None, **changes: object) -> WheelBackend:
        finder = self.finder(**changes)
        return WheelBackend(self.catalog, options or WheelOptions(), ledger=self.ledger, finder=finder)

    def plan(
        self, *names: str, options: WheelOptions | None = None, release: str | None = "main", **changes: object
    ) -> WheelPlan:
        choices = choose(self.catalog, names, release=release)
        return self.backend(options, **changes).plan(choices, self.out)

    def run(self, plan: WheelPlan, **changes: object) -> WheelBuildResult:
        return self.backend(plan.options, **changes).run(plan, Progress())

    def build(self, *names: str, options: WheelOptions | None = None, **changes: Any) -> WheelBuildResult:
        return self.run(self.plan(*names, options=options, **changes), **changes)


@pytest.fixture
def workshop(site: Site, catalog: Catalog, tmp_path: Path) -> Workshop:
    return Workshop(site, catalog, tmp_path)
