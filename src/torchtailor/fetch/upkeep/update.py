"""`catalog update`: survey the indexes, read what is new, and make the rows for it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta, Struct

from torchtailor.catalog import Catalog, Dotted
from torchtailor.core.disk import cache_folder
from torchtailor.core.documents import Date, Seconds
from torchtailor.core.errors import BadInputError, NetworkError
from torchtailor.core.progress import Progress
from torchtailor.fetch.finder import Finder
from torchtailor.fetch.upkeep.facts import read_facts
from torchtailor.fetch.upkeep.news import News, ReadBuild, describe, new_lines
from torchtailor.fetch.upkeep.remote import open_listed
from torchtailor.fetch.upkeep.rows import RowMaker
from torchtailor.fetch.upkeep.survey import ListedBuild, survey
from torchtailor.fetch.upkeep.write import NewRows

if TYPE_CHECKING:
    from torchtailor.fetch.upkeep.measure import Measured
    from torchtailor.fetch.upkeep.remote import ListedWheel

    _Measuring = Callable[[ListedWheel], Measured]


@dataclass(frozen=True)
class MeasuredWheel:
    """What was measured in one wheel; `special` is code that only some of its containers hold, such as sm_90a."""

    wheel: str
    architectures: str  # as TORCH_CUDA_ARCH_LIST has them
    special: tuple[str, ...]
    baseline: tuple[str, ...]
    loading: tuple[str, ...]
    libraries: int

    @classmethod
    def of(cls, wheel: str, measured: Measured) -> MeasuredWheel:
        special = tuple(map(str, measured.special))
        return cls(wheel, measured.arch_list, special, measured.baseline, measured.loading, measured.libraries)


@dataclass(frozen=True)
class CatalogUpdate:
    """What is new, the rows for it, and what it took to find out."""

    checked: str
    catalog_checked: str
    news: tuple[News, ...]
    measured: tuple[MeasuredWheel, ...]
    rows: NewRows
    locations: tuple[str, ...]
    problems: tuple[str, ...]
    complete: bool  # whether every configured index and every new wheel was read
    wheels_read: int
    bytes_read: int
    seconds: float
    written: tuple[Path, ...] = ()  # files that have the rows now

    @property
    def behind(self) -> bool:
        return bool(self.news)

    @property
    def toml(self) -> str:
        """The rows to add."""
        return self.rows.text


class CatalogUpdateDocument(Struct):
    """What is new on the indexes, and the rows for it."""

    behind: bool
    checked: Date
    catalog_checked: Date
    news: tuple[News, ...]
    measured: tuple[MeasuredWheel, ...]
    toml: Annotated[str, Meta(description="the rows to add")]
    written: tuple[Path, ...]
    locations: tuple[str, ...]
    problems: tuple[str, ...]
    complete: Annotated[bool, Meta(description="whether every configured index and every new wheel was read")]
    wheels_read: int
    bytes_read: int
    seconds: Seconds


def find_updates(
    catalog: Catalog,
    finder: Finder,
    *,
    measured: bool = False,
    since: Dotted | None = None,
    today: date | None = None,
    progress: Progress | None = None,
    scratch: Path | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> CatalogUpdate:
    """Compare the indexes with the catalog; with `measured`, also read the libraries of new wheels.

    With `since`, older lines that the catalog leaves out count too.
    """
    start, day = clock(), (today or date.today()).isoformat()
    measuring = _measuring(scratch or cache_folder(), progress or Progress()) if measured else None
    listed = survey(finder, catalog)
    reader = _Reader(finder, measuring)
    maker = RowMaker(catalog, day)
    news: list[News] = []
    releases = []
    for line in new_lines(listed, catalog, since):
        read = tuple(found for build in line.builds if (found := reader.read(build)))
        earlier = tuple(found for build in line.earlier if (found := reader.read(build, measured=False)))
        news += describe(line, read, catalog)
        if row := maker.release_row(line, read, earlier):
            releases.append(row)
    complete = listed.complete and not reader.problems
    return CatalogUpdate(
        checked=day,
        catalog_checked=catalog.checked,
        news=tuple(news),
        measured=tuple(reader.measured),
        rows=NewRows(day if complete else "", tuple(releases), tuple(maker.toolkits.values()), maker.sources),
        locations=listed.locations,
        problems=(*listed.problems, *reader.problems, *maker.problems),
        complete=complete,
        wheels_read=reader.count,
        bytes_read=finder.client.received,
        seconds=clock() - start,
    )


def _measuring(scratch: Path, progress: Progress) -> _Measuring:
    """How to measure a wheel; asked for before any index is read, because what it needs may not be installed."""
    from torchtailor.fetch.upkeep.measure import measure

    return lambda wheel: measure(wheel, scratch, progress)


class _Reader:
    """Reads wheels one by one; one that cannot be read is reported, and the others are still read."""

    def __init__(self, finder: Finder, measuring: _Measuring | None) -> None:
        self._finder, self._measuring = finder, measuring
        self.count = 0
        self.problems: list[str] = []
        self.measured: list[MeasuredWheel] = []

    def read(self, build: ListedBuild, *, measured: bool = True) -> ReadBuild | None:
        python, file = build.newest
        try:
            with open_listed(file, self._finder.client) as wheel:
                facts = read_facts(wheel, python, build.arch)
                found = self._measuring(wheel) if self._measuring and measured else None
        except (BadInputError, NetworkError) as error:
            self.problems.append(error.message)
            return None
        self.count += 1
        if found is not None:
            self.measured.append(MeasuredWheel.of(file.filename, found))
        return ReadBuild(build, facts, found)
