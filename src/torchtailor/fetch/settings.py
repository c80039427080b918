"""Where wheels come from: the command line, then the environment and the configuration files of pip and uv."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

from torchtailor.core.disk import expand_home
from torchtailor.core.errors import UsageError
from torchtailor.fetch import pipconfig, uvconfig
from torchtailor.fetch.locations import IndexLocation, LocationKind, make_location
from torchtailor.fetch.options import IndexOptions

_log = logging.getLogger(__name__)
DEFAULT_TIMEOUT = 30.0
DEFAULT_RETRIES = 5


class IndexStrategy(Enum):
    """Which indexes a package may come from, in uv's words."""

    FIRST_INDEX = "first-index"  # the first that has the name: nobody can publish a newer one elsewhere
    UNSAFE_BEST_MATCH = "unsafe-best-match"  # the best version of all, as pip does

    @classmethod
    def read(cls, text: str) -> IndexStrategy:
        """As it is written after --index-strategy."""
        known = [strategy.value for strategy in cls]
        if text not in known:
            raise UsageError(f"--index-strategy {text[:80]!r} is not {' or '.join(known)}.", f"Write {known[0]}.")
        return cls(text)


@dataclass(frozen=True, slots=True)
class IndexSettings:
    """Everything that decides how wheels are found and fetched."""

    sources: tuple[IndexLocation, ...]
    explicit_index: bool = False
    offline: bool = False
    ca_bundle: Path | None = None
    ca_folder: Path | None = None
    client_cert: Path | None = None
    trusted_hosts: frozenset[str] = frozenset()
    proxy: str | None = None
    timeout: float = DEFAULT_TIMEOUT
    retries: int = DEFAULT_RETRIES
    strategy: IndexStrategy = IndexStrategy.FIRST_INDEX
    own: tuple[IndexLocation, ...] = ()  # of PyTorch: asked for every package, whichever index has it

    @property
    def indexes(self) -> tuple[IndexLocation, ...]:
        return tuple(source for source in self.sources if source.kind is LocationKind.INDEX)

    def with_index(self, source: IndexLocation) -> IndexSettings:
        """The same with one more index, searched first."""
        if any(known.url.rstrip("/") == source.url.rstrip("/") for known in self.sources):
            return self
        return replace(self, sources=(source, *self.sources), own=(source, *self.own))


def read_settings(
    options: IndexOptions | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    directory: Path | None = None,
) -> IndexSettings:
    """Join the command line with pip's and uv's settings; the command line's `--index-url` replaces theirs.

    As with uv, additional indexes come before the default one, and those of the command line before those of files.
    """
    options = options or IndexOptions()
    environment = os.environ if environment is None else environment
    directory = directory or Path.cwd()
    pip = pipconfig.read(environment)
    uv = uvconfig.read(environment, directory)

    more = [make_location(url, LocationKind.INDEX, "--extra-index-url", directory) for url in options.extra_index_urls]
    if options.index_url:
        indexes = [make_location(options.index_url, LocationKind.INDEX, "--index-url", directory)]
    else:
        indexes = [source for source in (pip.index, uv.index) if source]
        if not indexes and not pip.no_index and not uv.no_index:
            indexes = [pipconfig.default_index()]
        more += [*uv.extra, *pip.extra]
    indexes = [*more, *indexes]
    links = [make_location(url, LocationKind.LINKS, "--find-links", directory) for url in options.find_links]
    links += [*pip.links, *uv.links]

    for source in _distinct([*links, *indexes]):
        _log.info("packages come from %s (%s)", source.shown, source.origin)
    bundle, folder = certificates(environment)
    return IndexSettings(
        sources=_distinct([*links, *indexes]),
        explicit_index=options.index_url is not None,
        offline=options.offline or uv.offline,
        ca_bundle=_existing(pip.values.get("cert"), "pip's cert") or bundle,
        ca_folder=folder,
        client_cert=_existing(pip.values.get("client-cert"), "pip's client-cert"),
        trusted_hosts=frozenset(pip.values.get("trusted-host", "").split()),
        proxy=pip.values.get("proxy") or None,
        strategy=_strategy(options.index_strategy, uv.strategy),
        timeout=_number(pip.values.get("timeout") or pip.values.get("default-timeout"), DEFAULT_TIMEOUT, 0.001, 86_400),
        retries=int(_number(pip.values.get("retries"), DEFAULT_RETRIES, 0, 1000)),
    )


def _strategy(given: str | None, configured: str) -> IndexStrategy:
    """As given, else as uv is configured; of its third value, which mixes indexes only where one has nothing that fits,
    the safe part."""
    if given:
        return IndexStrategy.read(given)
    best = IndexStrategy.UNSAFE_BEST_MATCH
    return best if configured == best.value else IndexStrategy.FIRST_INDEX


def certificates(environment: Mapping[str, str]) -> tuple[Path | None, Path | None]:
    """The file and the folder of certificates that the usual variables name."""
    bundle = _first_existing(environment, ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"))
    folder = environment.get("SSL_CERT_DIR")
    return bundle, Path(folder) if folder and Path(folder).is_dir() else None


def _distinct(sources: Sequence[IndexLocation]) -> tuple[IndexLocation, ...]:
    """Each once, where it is named first."""
    found: dict[str, IndexLocation] = {}
    for source in sources:
        found.setdefault(source.url.rstrip("/"), source)
    return tuple(found.values())


def _existing(text: str | None, what: str) -> Path | None:
    if not text:
        return None
    path = expand_home(text)
    if not path.exists():
        raise UsageError(f"The file {text} ({what}) does not exist.", "Correct pip's configuration.")
    return path


def _first_existing(environment: Mapping[str, str], names: Sequence[str]) -> Path | None:
    paths = (Path(environment[name]) for name in names if environment.get(name))
    return next((path for path in paths if path.exists()), None)


def _number(text: str | None, default: float, least: float, most: float) -> float:
    """A number of pip's configuration, within what makes sense."""
    try:
        number = float(text) if text else default
    except ValueError:
        number = math.nan
    if not least <= number <= most:  # what is there is not shown: it may be an address with a password
        raise UsageError(
            f"A setting in pip's configuration is not a number from {least:g} to {most:g}.",
            "Correct PIP_TIMEOUT, PIP_RETRIES or pip.conf.",
        )
    return number
