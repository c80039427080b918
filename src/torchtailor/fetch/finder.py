"""Which wheels the indexes have for a target: pages read once, files ranked as pip ranks them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
from packaging.utils import NormalizedName, canonicalize_name

from torchtailor.core.errors import NetworkError, TorchtailorError
from torchtailor.core.shapes import shaped
from torchtailor.core.trust import Limit, read_limited
from torchtailor.core.urls import redact
from torchtailor.fetch.cache import Cache
from torchtailor.fetch.client import Client, StatusError, UnreachableError, worker_threads
from torchtailor.fetch.locations import IndexLocation, LocationKind
from torchtailor.fetch.metadata import Facts, FactsReader
from torchtailor.fetch.options import IndexOptions
from torchtailor.fetch.pages import ACCEPT, JSON_TYPE, WheelFile, list_folder, parse_page
from torchtailor.fetch.settings import IndexSettings, IndexStrategy, read_settings
from torchtailor.fetch.target import Target

_log = logging.getLogger(__name__)
_PARALLEL = 8


class _Page(msgspec.Struct):
    url: str
    content_type: str
    etag: str
    body: bytes


class Finder:
    """Lists and describes the wheels of all locations; downloads only pages and metadata."""

    def __init__(self, settings: IndexSettings, cache: Cache, client: Client | None = None) -> None:
        self.settings = settings
        self.cache = cache
        self.client = client or Client(settings)
        self._facts = FactsReader(self.client, cache, offline=settings.offline)
        self._pages: dict[tuple[IndexLocation, str], tuple[WheelFile, ...] | None] = {}  # None: it has no such page
        self._refused: dict[tuple[IndexLocation, str], StatusError] = {}  # projects that an index may not have
        self._known_facts: dict[str, Facts] = {}
        self._unreachable: dict[str, NetworkError] = {}  # hosts that are not asked again
        self._open: dict[IndexLocation, bool] = {}  # whether an index lets us read at all
        self._lock = threading.Lock()

    @classmethod
    def of(cls, options: IndexOptions | None = None) -> Finder:
        """Of the indexes of a command line, or else of pip and uv, with the user's cache."""
        return cls(read_settings(options), Cache())

    def with_index(self, source: IndexLocation) -> Finder:
        """A finder with one more index."""
        return self._with(self.settings.with_index(source))

    def of_all_indexes(self) -> Finder:
        """A finder that takes what any index has, whoever made it: for what is only read."""
        return self._with(replace(self.settings, strategy=IndexStrategy.UNSAFE_BEST_MATCH))

    def _with(self, settings: IndexSettings) -> Finder:
        """A finder with other settings; pages and metadata that were read are kept."""
        more = Finder(settings, self.cache, self.client)
        more._pages, more._refused = self._pages, self._refused
        more._known_facts, more._unreachable, more._open = self._known_facts, self._unreachable, self._open
        return more

    def all_files(self, project: str) -> tuple[WheelFile, ...]:
        """Every wheel of a project, for all platforms, location by location."""
        name = canonicalize_name(project)
        listed = {source: self._list_if_there(source, name) for source in self.settings.sources}
        left_out = self._left_out(name)
        return tuple(file for source, files in listed.items() if source not in left_out for file in files)

    def notes(self, projects: Iterable[str]) -> tuple[str, ...]:
        """What to say of packages that several indexes have, or may have: which one was used."""
        shared: dict[str, list[str]] = {}
        for name in map(canonicalize_name, projects):
            having = self._having(name)
            first, behind = having[0].shown if having else "", ", ".join(index.shown for index in having[1:])
            refusing = ", ".join(index.shown for index in self._ranked_indexes() if (index, name) in self._refused)
            if behind and self.settings.strategy is IndexStrategy.FIRST_INDEX:
                shared.setdefault(f"taken from {first}, the first to have it, not from {behind}.", []).append(name)
            elif behind:
                text = f"on {first} and on {behind}: the newest is taken, whoever made it."
                shared.setdefault(text, []).append(name)
            if refusing and having:
                text = f"taken from {first}; {refusing} answered 403, which may hide a package of that name."
                shared.setdefault(text, []).append(name)
        said = []
        for text, names in shared.items():
            which, verb = " and ".join(filter(None, (", ".join(names[:-1]), names[-1]))), "are" if names[1:] else "is"
            said.append(f"{which} {verb} {text}")
        return tuple(said)

    def elsewhere(self, project: str) -> str | None:
        """What to do where a package is left out of indexes behind the first that has it; None where none is."""
        having = self._having(canonicalize_name(project))
        if len(having) < 2 or self.settings.strategy is IndexStrategy.UNSAFE_BEST_MATCH:
            return None
        return (
            f"{project} is taken from {having[0].shown}, the first index that has it; "
            f"--index-strategy {IndexStrategy.UNSAFE_BEST_MATCH.value} also takes what others have "
            f"({', '.join(index.shown for index in having[1:])}), whoever made it."
        )

    def _having(self, name: NormalizedName) -> tuple[IndexLocation, ...]:
        """The configured indexes that have a project, in their order; with uv, one that has nothing but source
        archives of it has it too: else a wheel of that name on the next one would replace them."""
        indexes = self._ranked_indexes()
        for index in indexes:
            self._list_if_there(index, name)
        return tuple(index for index in indexes if self._pages.get((index, name)) is not None)

    def _ranked_indexes(self) -> tuple[IndexLocation, ...]:
        """The indexes that are configured, in their order."""
        return tuple(index for index in self.settings.indexes if index not in self.settings.own)

    def _left_out(self, name: NormalizedName) -> frozenset[IndexLocation]:
        """The indexes behind the first that has the package: a newer version there may be anybody's."""
        if self.settings.strategy is IndexStrategy.UNSAFE_BEST_MATCH:
            return frozenset()
        return frozenset(self._having(name)[1:])

    def _list_if_there(self, source: IndexLocation, name: str) -> tuple[WheelFile, ...]:
        """The wheels of a project in one location; none where its answer may mean that it has none."""
        try:
            return self.list(source, name)
        except StatusError as error:
            if source.kind is LocationKind.INDEX and error.may_mean_absent and self._is_open(source):
                with self._lock:
                    self._refused[source, name] = error
                return ()
            raise

    def _is_open(self, source: IndexLocation) -> bool:
        """Whether an index that refuses one page lets us read its first one: one that refuses that too may have the
        package, and the next index somebody else's of that name."""
        if source in self.settings.own:
            return True
        if source not in self._open:
            try:
                self.client.get(source.url)
                self._open[source] = True
            except StatusError as error:
                self._open[source] = not error.may_mean_absent
        return self._open[source]

    def list(self, source: IndexLocation, project: str) -> tuple[WheelFile, ...]:
        """The wheels of a project in one location."""
        name = canonicalize_name(project)
        with self._lock:
            asked = (source, name) in self._pages
            refused = self._refused.get((source, name))
        if refused is not None:
            raise refused
        if not asked:
            listed = self._index_page(source, name) if source.kind is LocationKind.INDEX else self._links(source)
            found = None if listed is None else tuple(file for file in listed if file.name == name)
            with self._lock:
                self._pages[source, name] = found
        return self._pages[source, name] or ()

    def fitting(self, project: str, target: Target) -> tuple[WheelFile, ...]:
        """The wheels that the target can install, best first: version, then tags, then build, then location."""
        ranked = []
        for order, file in enumerate(self.all_files(project)):
            _, version, build, tags = file.parsed
            rank = target.rank(tags)
            if rank is not None and target.accepts_python(file.requires_python):
                ranked.append(((version, -rank, build or (), -order), file))
        return tuple(file for _, file in sorted(ranked, key=lambda pair: pair[0], reverse=True))

    def facts(self, file: WheelFile) -> Facts:
        """A wheel's metadata and size."""
        with self._lock:
            known = self._known_facts.get(file.url)
        if known is None:
            known = self._facts.read(file)
            with self._lock:
                self._known_facts[file.url] = known
        return known

    def warm(self, projects: Sequence[str], target: Target) -> None:
        """Read the pages of several projects in parallel; a failure is raised when the page is needed."""

        def one(name: str) -> None:
            with suppress(TorchtailorError):
                self.fitting(name, target)

        if len(projects) > 1:
            with worker_threads(_PARALLEL) as pool:
                list(pool.map(one, projects))

    def warm_facts(self, files: Iterable[WheelFile]) -> None:
        """Read the metadata of several wheels in parallel."""

        def one(file: WheelFile) -> None:
            with suppress(TorchtailorError):
                self.facts(file)

        with worker_threads(_PARALLEL) as pool:
            list(pool.map(one, files))

    def _index_page(self, source: IndexLocation, name: str) -> tuple[WheelFile, ...] | None:
        """The wheels of a project; None where the index does not have it."""
        folder = source.local_path
        if folder is not None:
            return _local_page(folder / name, source)
        return self._read_page(source.project_url(name), source)

    def _links(self, source: IndexLocation) -> tuple[WheelFile, ...] | None:
        path = source.local_path
        if path is not None:
            if path.is_file():
                return parse_page(read_limited(path, Limit.PAGE), "text/html", path.as_uri(), source)
            return list_folder(path, source) if path.is_dir() else ()
        return self._read_page(source.url, source)

    def _read_page(self, url: str, source: IndexLocation) -> tuple[WheelFile, ...] | None:
        """The wheels of a page; it is kept only if there are any: one that arrived damaged must be asked for again."""
        kept = self._kept_page(url)
        page = self._fetch_page(url, kept)
        files = parse_page(page.body, page.content_type, page.url, source) if page else None
        if files and page is not kept:
            self.cache.write_note("pages", url, msgspec.msgpack.encode(page))
        return files

    def _fetch_page(self, url: str, kept: _Page | None) -> _Page | None:
        if self.settings.offline:
            return kept
        host = urlsplit(url).netloc
        if (known := self._unreachable.get(host)) is not None:
            raise known
        headers = {"Accept": ACCEPT} | ({"If-None-Match": kept.etag} if kept and kept.etag else {})
        try:
            answer = self.client.get(url, headers)
        except UnreachableError as error:
            self._unreachable[host] = error
            raise
        if answer.status == 304 and kept:
            _log.debug("the page that was kept of %s is current", redact(url))
            return kept
        if answer.status != 200:
            return None
        content_type = answer.headers.get("content-type", "text/html")
        return _Page(answer.url, content_type, answer.headers.get("etag", ""), answer.body)

    def _kept_page(self, url: str) -> _Page | None:
        stored = self.cache.read_note("pages", url)
        try:
            return msgspec.msgpack.decode(stored, type=shaped(_Page)) if stored else None
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return None


def _local_page(folder: Path, source: IndexLocation) -> tuple[WheelFile, ...] | None:
    """A project of an index in a local folder."""
    for filename, content_type in (("index.json", JSON_TYPE), ("index.html", "text/html")):
        path = folder / filename
        if path.is_file():
            return parse_page(read_limited(path, Limit.PAGE), content_type, path.resolve().as_uri(), source)
    return list_folder(folder, source) if folder.is_dir() else None
