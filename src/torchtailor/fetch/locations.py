"""Places that list wheels: package indexes, folders and pages of links, and what pip and uv are configured with."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from urllib.parse import SplitResult, urlsplit, urlunsplit

from torchtailor.core.disk import expand_home
from torchtailor.core.errors import NoMatchError, UsageError
from torchtailor.core.urls import local_path, redact

_LONGEST = 4000  # letters of an address
_PORTS = {"http": 80, "https": 443}


class LocationKind(Enum):
    """How a location lists its files."""

    INDEX = "index"  # a page for each project: the simple API
    LINKS = "links"  # one folder or page with files of any project: --find-links


@dataclass(frozen=True, slots=True)
class IndexLocation:
    """One place to look for wheels, and the setting that names it."""

    url: str
    kind: LocationKind
    origin: str

    @property
    def shown(self) -> str:
        """The URL without its password."""
        return redact(self.url)

    @property
    def local_path(self) -> Path | None:
        return local_path(self.url)

    def project_url(self, project: str) -> str:
        """The page of a project on an index."""
        return f"{self.url.rstrip('/')}/{project}/"


@dataclass(slots=True)
class ConfiguredIndexes:
    """What one configuration (pip's or uv's) names, before both are joined."""

    index: IndexLocation | None = None
    extra: list[IndexLocation] = field(default_factory=list)
    links: list[IndexLocation] = field(default_factory=list)
    no_index: bool = False
    offline: bool = False
    strategy: str = ""
    values: dict[str, str] = field(default_factory=dict)


def make_location(text: str, kind: LocationKind, origin: str, directory: Path) -> IndexLocation:
    """A location from a URL or a path; a relative path starts at the given directory."""
    text = text.strip()
    if re.match(r"(https?|file):(?!//)", text, re.IGNORECASE):  # a path, it would be shown with the password in it
        raise UsageError(f"{origin} has an address without //, which is neither a URL nor a path.", "Write https://...")
    if len(text) > _LONGEST:
        raise UsageError(f"{origin} has an address of {len(text)} letters.", "Give a URL, or a folder.")
    if re.match(r"[a-z][a-z0-9+.-]+://", text, re.IGNORECASE):
        scheme = text.split(":", 1)[0].lower()
        if scheme not in ("http", "https", "file"):
            raise UsageError(
                f"{origin} has the URL {redact(text)}, which is not http, https or file.",
                "Give such a URL, or a folder.",
            )
        try:
            urlsplit(text).port  # noqa: B018  (what is no number is only found when it is read)
        except ValueError as error:
            raise UsageError(f"{origin} has the URL {redact(text)}, which is not valid: {error}.") from error
        return IndexLocation(text, kind, origin)
    if "://" in text or "\0" in text:
        raise UsageError(f"{origin} has {redact(text)!r}, which is neither a URL nor a path.")
    path = (directory / expand_home(text)).resolve()
    if origin.startswith("--") and not path.exists():
        raise NoMatchError(f"{origin}: {redact(text)} does not exist.", "Give a URL, or what is there.")
    return IndexLocation(path.as_uri(), kind, origin)


def with_login_of(source: str, url: str) -> str:
    """A link with the login of the location that lists it, where it leads to the same server and has none itself."""
    ours, own = urlsplit(source), urlsplit(url)
    login = ours.netloc.rpartition("@")[0]
    if not login or "@" in own.netloc or _server(own) != _server(ours):
        return url
    return urlunsplit(own._replace(netloc=f"{login}@{own.netloc}"))


def _server(parts: SplitResult) -> tuple[str, str | None, int | None]:
    return parts.scheme, parts.hostname, parts.port or _PORTS.get(parts.scheme)


def is_this_machine(host: str) -> bool:
    """Whether a name or address can only be this machine's own."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
