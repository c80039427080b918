"""Where wheels come from: the command line, then the environment and the configuration files of pip and uv."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from torchtailor.core.disk import expand_home
from torchtailor.core.errors import UsageError
from torchtailor.fetch import pipconfig, uvconfig
from torchtailor.fetch.locations import IndexLocation, LocationKind, make_location

_log = logging.getLogger(__name__)
DEFAULT_TIMEOUT = 30.0
DEFAULT_RETRIES = 5


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

    @property
    def indexes(self) -> tuple[IndexLocation, ...]:
        return tuple(source for source in self.sources if source.kind is LocationKind.INDEX)

    def with_index(self, source: IndexLocation) -> IndexSettings:
        """The same with one more index, searched first."""
        if any(known.url.rstrip("/") == source.url.rstrip("/") for known in self.sources):
            return self
        return replace(self, sources=(source, *self.sources))


def read_settings(
    *,
    index_url: str | None = None,
    extra_index_urls: Sequence[str] = (),
    find_links: Sequence[str] = (),
    offline: bool = False,
    environment: Mapping[str, str] | None = None,
    directory: Path | None = None,
) -> IndexSettings:
    """Join the command line with pip's and uv's settings; the command line's `--index-url` replaces theirs."""
    environment = os.environ if environment is None else environment
    directory = directory or Path.cwd()
    pip = pipconfig.read(environment)
    uv = uvconfig.read(environment, directory)

    if index_url:
        indexes = [make_location(index_url, LocationKind.INDEX, "--index-url", directory)]
    else:
        indexes = [source for source in (pip.index, uv.index) if source]
        if not indexes and not pip.no_index and not uv.no_index:
            indexes = [pipconfig.default_index()]
        indexes += [*pip.extra, *uv.extra]
    indexes += [make_location(url, LocationKind.INDEX, "--extra-index-url", directory) for url in extra_index_urls]
    links = [make_location(url, LocationKind.LINKS, "--find-links", directory) for url in find_links]
    links += [*pip.links, *uv.links]

    for source in _distinct([*links, *indexes]):
        _log.info("packages come from %s (%s)", source.shown, source.origin)
    bundle, folder = certificates(environment)
    return IndexSettings(
        sources=_distinct([*links, *indexes]),
        explicit_index=index_url is not None,
        offline=offline or uv.offline,
        ca_bundle=_existing(pip.values.get("cert"), "pip's cert") or bundle,
        ca_folder=folder,
        client_cert=_existing(pip.values.get("client-cert"), "pip's client-cert"),
        trusted_hosts=frozenset(pip.values.get("trusted-host", "").split()),
        proxy=pip.values.get("proxy") or None,
        timeout=_number(pip.values.get("timeout") or pip.values.get("default-timeout"), DEFAULT_TIMEOUT, 0.001, 86_400),
        retries=int(_number(pip.values.get("retries"), DEFAULT_RETRIES, 0, 1000)),
    )


def certificates(environment: Mapping[str, str]) -> tuple[Path | None, Path | None]:
    """The file and the folder of certificates that the usual variables name."""
    bundle = _first_existing(environment, ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"))
    folder = environment.get("SSL_CERT_DIR")
    return bundle, Path(folder) if folder and Path(folder).is_dir() else None


def _distinct(sources: Sequence[IndexLocation]) -> tuple[IndexLocation, ...]:
    return tuple({source.url.rstrip("/"): source for source in reversed(sources)}.values())[::-1]


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
