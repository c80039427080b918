"""Where wheels come from: the command line, then what pip and uv are told by environment and files."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from torchtailor.errors import UsageError

DEFAULT_TIMEOUT = 30.0
DEFAULT_RETRIES = 5


class SourceKind(Enum):
    """How a place lists its files."""

    INDEX = "index"  # a page for each project: the simple API
    LINKS = "links"  # one folder or page with files of any project: --find-links


@dataclass(frozen=True, slots=True)
class Source:
    """One place to look for wheels, and who named it."""

    url: str
    kind: SourceKind
    origin: str

    @property
    def shown(self) -> str:
        """The address without its password."""
        return redact(self.url)

    @property
    def local_path(self) -> Path | None:
        return local_path(self.url)

    def project_url(self, project: str) -> str:
        """The page of a project on an index."""
        return f"{self.url.rstrip('/')}/{project}/"


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that decides how wheels are found and fetched."""

    sources: tuple[Source, ...]
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
    def indexes(self) -> tuple[Source, ...]:
        return tuple(source for source in self.sources if source.kind is SourceKind.INDEX)

    def with_index(self, source: Source) -> Settings:
        """The same with one more index, looked at first."""
        if any(known.url.rstrip("/") == source.url.rstrip("/") for known in self.sources):
            return self
        return replace(self, sources=(source, *self.sources))


@dataclass(slots=True)
class Found:
    """What one configuration (pip's or uv's) says, before both are joined."""

    index: Source | None = None
    extra: list[Source] = field(default_factory=list)
    links: list[Source] = field(default_factory=list)
    no_index: bool = False
    offline: bool = False
    values: dict[str, str] = field(default_factory=dict)


def read_settings(
    *,
    index_url: str | None = None,
    extra_index_urls: Sequence[str] = (),
    find_links: Sequence[str] = (),
    offline: bool = False,
    environment: Mapping[str, str] | None = None,
    directory: Path | None = None,
) -> Settings:
    """Join the command line with pip's and uv's settings; the command line's `--index-url` replaces theirs."""
    from torchtailor.fetch import pipconfig, uvconfig

    environment = os.environ if environment is None else environment
    directory = directory or Path.cwd()
    pip = pipconfig.read(environment)
    uv = uvconfig.read(environment, directory)

    if index_url:
        indexes = [make_source(index_url, SourceKind.INDEX, "--index-url", directory)]
    else:
        indexes = [source for source in (pip.index, uv.index) if source]
        if not indexes and not pip.no_index and not uv.no_index:
            indexes = [pipconfig.default_index()]
        indexes += [*pip.extra, *uv.extra]
    indexes += [make_source(url, SourceKind.INDEX, "--extra-index-url", directory) for url in extra_index_urls]
    links = [make_source(url, SourceKind.LINKS, "--find-links", directory) for url in find_links]
    links += [*pip.links, *uv.links]

    bundle = _existing(pip.values.get("cert"), "pip's cert") or _first_existing(
        environment, ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
    )
    folder = environment.get("SSL_CERT_DIR")
    return Settings(
        sources=_distinct([*links, *indexes]),
        explicit_index=index_url is not None,
        offline=offline or uv.offline,
        ca_bundle=bundle,
        ca_folder=Path(folder) if folder and Path(folder).is_dir() else None,
        client_cert=_existing(pip.values.get("client-cert"), "pip's client-cert"),
        trusted_hosts=frozenset(pip.values.get("trusted-host", "").split()),
        proxy=pip.values.get("proxy") or None,
        timeout=_number(pip.values.get("timeout") or pip.values.get("default-timeout"), DEFAULT_TIMEOUT),
        retries=int(_number(pip.values.get("retries"), DEFAULT_RETRIES)),
    )


def make_source(text: str, kind: SourceKind, origin: str, directory: Path) -> Source:
    """A source from an address or a path, which is taken from the given directory."""
    text = text.strip()
    if re.match(r"[a-z][a-z0-9+.-]+://", text, re.IGNORECASE):
        scheme = text.split(":", 1)[0].lower()
        if scheme not in ("http", "https", "file"):
            raise UsageError(f"{origin} has the address {redact(text)}, which is not http, https or file.")
        return Source(text, kind, origin)
    path = (directory / Path(text).expanduser()).resolve()
    if origin.startswith("--") and not path.exists():
        raise UsageError(f"{origin} names {text!r}, which is neither an address nor an existing path.")
    return Source(path.as_uri(), kind, origin)


def local_path(url: str) -> Path | None:
    """The path behind a file: address."""
    from urllib.request import url2pathname

    parts = urlsplit(url)
    return Path(url2pathname(parts.path)) if parts.scheme == "file" else None


def redact(url: str) -> str:
    """`https://user:secret@host/x` -> `https://****@host/x`."""
    parts = urlsplit(url)
    if "@" not in parts.netloc:
        return url
    return urlunsplit(parts._replace(netloc="****@" + parts.netloc.rsplit("@", 1)[1]))


def _distinct(sources: Sequence[Source]) -> tuple[Source, ...]:
    return tuple({source.url.rstrip("/"): source for source in reversed(sources)}.values())[::-1]


def _existing(text: str | None, what: str) -> Path | None:
    if not text:
        return None
    path = Path(text).expanduser()
    if not path.exists():
        raise UsageError(f"The file {text} that {what} names does not exist.")
    return path


def _first_existing(environment: Mapping[str, str], names: Sequence[str]) -> Path | None:
    paths = (Path(environment[name]) for name in names if environment.get(name))
    return next((path for path in paths if path.exists()), None)


def _number(text: str | None, default: float) -> float:
    try:
        return float(text) if text else default
    except ValueError:
        raise UsageError(f"pip's configuration has {text!r} where a number belongs.") from None
