"""What an index or a folder lists: the simple API as JSON (PEP 691) and HTML (PEP 503), and find-links."""

from __future__ import annotations

import hashlib
import html
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

import msgspec
from packaging.tags import Tag
from packaging.utils import BuildTag, NormalizedName, parse_wheel_filename
from packaging.version import Version

from torchtailor.core.errors import NetworkError
from torchtailor.core.shapes import shaped
from torchtailor.core.trust import Size, is_file_name
from torchtailor.core.urls import local_path, redact, without_login
from torchtailor.fetch.locations import IndexLocation, with_login_of

JSON_TYPE = "application/vnd.pypi.simple.v1+json"
ACCEPT = f"{JSON_TYPE}, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"

# Best first; md5 and sha1 no longer prove anything.
_HASHES = ("sha256", "sha512", "sha384", "sha3_256", "sha3_512", "blake2b", "blake2s")


_HEX = {
    name: re.compile(rf"[0-9a-f]{{{2 * hashlib.new(name).digest_size}}}").fullmatch
    for name in _HASHES
    if name in hashlib.algorithms_available
}


def _anything(_: str) -> bool:
    return True


_parse = lru_cache(maxsize=1 << 16)(parse_wheel_filename)


@dataclass(frozen=True, slots=True)
class WheelAddress:
    """A wheel to fetch: its name, its URL, and the hashes and the size that are known beforehand."""

    filename: str
    url: str
    hashes: Mapping[str, str]
    size: int | None = None

    @property
    def parsed(self) -> tuple[NormalizedName, Version, BuildTag, frozenset[Tag]]:
        return _parse(self.filename)

    @property
    def name(self) -> NormalizedName:
        return self.parsed[0]

    @property
    def version(self) -> Version:
        return self.parsed[1]

    @property
    def local_path(self) -> Path | None:
        return local_path(self.url)

    @property
    def sha256(self) -> str | None:
        return self.hashes.get("sha256")

    @property
    def best_hash(self) -> tuple[str, str] | None:
        """The strongest hash that the index gives and Python knows."""
        for name in _HASHES:
            if name in self.hashes and name in hashlib.algorithms_available:
                return name, self.hashes[name]
        return None

    @property
    def key(self) -> str:
        """A name for its content, as far as that is known before the download."""
        known = self.best_hash
        return content_key(*known) if known else content_key("url", without_login(self.url))

    @property
    def shown(self) -> str:
        """The URL without its password."""
        return redact(self.url)


def content_key(algorithm: str, digest: str) -> str:
    """The key of a file whose hash is known before the download."""
    return hashlib.sha256(f"{algorithm}:{digest}".encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelFile(WheelAddress):
    """A wheel as an index or a folder lists it."""

    source: IndexLocation
    requires_python: str = ""
    yanked: bool = False
    metadata: Mapping[str, str] | None = None  # hashes of its metadata file, empty if none are given

    @property
    def address(self) -> WheelAddress:
        return WheelAddress(self.filename, self.url, self.hashes, self.size)


class _JsonFile(msgspec.Struct):
    filename: str
    url: str
    hashes: dict[str, str]
    size: Size | None = None
    requires_python: str | None = msgspec.field(name="requires-python", default=None)
    yanked: bool | str = False
    core_metadata: bool | dict[str, str] = msgspec.field(name="core-metadata", default=False)
    dist_info_metadata: bool | dict[str, str] = msgspec.field(name="dist-info-metadata", default=False)


class _JsonPage(msgspec.Struct):
    files: list[_JsonFile]


@dataclass(frozen=True, slots=True)
class Anchor:
    """One link of an HTML page."""

    text: str
    attributes: Mapping[str, str]


_TAG_NAME = re.compile(r"</?([a-zA-Z][a-zA-Z0-9]*)(?=[\s/>])")
_ATTRIBUTE = re.compile(r"""([^\s"'<>/=]+)(?:\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s"'<>]+)))?""")


def read_anchors(text: str) -> tuple[list[Anchor], str | None]:
    """The links of a page and its base URL, in one pass: what is never closed ends the page."""
    anchors: list[Anchor] = []
    base: str | None = None
    opened: dict[str, str] | None = None
    words: list[str] = []

    def flush() -> None:
        nonlocal opened
        if opened is not None and "href" in opened:
            anchors.append(Anchor(html.unescape("".join(words)).strip(), opened))
        opened = None
        words.clear()

    position = 0
    while (start := text.find("<", position)) >= 0:
        if opened is not None:
            words.append(text[position:start])
        if text.startswith("<!--", start):
            end = text.find("-->", start + 4) + 2
            if end < 3:
                break
        elif (found := _TAG_NAME.match(text, start)) is None:
            end = start  # a lone < is text
        else:
            end = _end_of_tag(text, found.end())
            if end < 0:
                break
            name = found[1].lower()
            if name == "a":
                flush()
            if text[start + 1] != "/" and (name == "a" or (name == "base" and base is None)):
                attributes = _attributes(text[found.end() : end])
                if name == "a":
                    opened = attributes
                else:
                    base = attributes.get("href")
        position = end + 1
    flush()
    return anchors, base


def _end_of_tag(text: str, position: int) -> int:
    """Where the > of a tag is, which is not one inside of quotes; -1 where there is none."""
    while True:
        end = text.find(">", position)
        if end < 0:
            return -1
        quotes = [(at, mark) for mark in "\"'" if (at := text.find(mark, position, end)) >= 0]
        if not quotes:
            return end
        at, mark = min(quotes)
        closed = text.find(mark, at + 1)
        if closed < 0:
            return -1
        position = closed + 1


def _attributes(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, *values in _ATTRIBUTE.findall(text):
        found.setdefault(name.lower(), html.unescape("".join(values)))
    return found


def parse_page(body: bytes, content_type: str, url: str, source: IndexLocation) -> tuple[WheelFile, ...]:
    """The wheels on a page; other files and invalid wheel names are skipped."""
    kind = content_type.split(";", maxsplit=1)[0].strip().lower()
    if kind in (JSON_TYPE, "application/json"):
        return tuple(_from_json(body, url, source))
    return tuple(_from_html(body, url, source))


def _from_json(body: bytes, url: str, source: IndexLocation) -> Iterator[WheelFile]:
    try:
        page = msgspec.json.decode(body, type=shaped(_JsonPage))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise NetworkError(
            f"The page {redact(url)} is not valid JSON of a package index: {error}.",
            "Check that the URL is that of an index (the simple API).",
        ) from error
    for item in page.files:
        metadata = item.core_metadata or item.dist_info_metadata
        yield from _wheel(
            item.filename,
            _joined(url, item.url),
            source,
            hashes={name.lower(): value.lower() for name, value in item.hashes.items()},
            size=item.size,
            requires_python=item.requires_python or "",
            yanked=item.yanked is not False,
            metadata=metadata if isinstance(metadata, dict) else ({} if metadata else None),
        )


def _from_html(body: bytes, url: str, source: IndexLocation) -> Iterator[WheelFile]:
    anchors, base = read_anchors(body.decode("utf-8", "replace"))
    base = _joined(url, base) if base else url
    for anchor in anchors:
        target, _, fragment = _joined(base, anchor.attributes["href"]).partition("#")
        hashed = re.search(r"(?:^|&)(\w+)=([0-9a-fA-F]+)(?:&|$)", fragment)
        yield from _wheel(
            unquote(target.partition("?")[0].rsplit("/", 1)[-1]),
            target,
            source,
            hashes={hashed[1].lower(): hashed[2].lower()} if hashed else {},
            requires_python=anchor.attributes.get("data-requires-python", ""),
            yanked="data-yanked" in anchor.attributes,
            metadata=_metadata_attribute(anchor.attributes),
        )


def _joined(base: str, url: str) -> str:
    """The address of a link; empty where it is none (`http://[x`), or where a server names a file of this machine."""
    try:
        joined = urljoin(base, url)
        parts = urlsplit(joined)
        parts.port  # noqa: B018  (what is no number is only found when it is read)
        local = parts.scheme == "file" == urlsplit(base).scheme
    except ValueError:
        return ""
    return joined if local or parts.scheme in ("http", "https") else ""


def _metadata_attribute(attributes: Mapping[str, str]) -> Mapping[str, str] | None:
    """PEP 714's attribute, or PEP 658's older name for it: a hash, or only that the file exists."""
    for name in ("data-core-metadata", "data-dist-info-metadata"):
        if (value := attributes.get(name)) is not None and value.lower() != "false":
            algorithm, found, digest = value.partition("=")
            return {algorithm.lower(): digest.lower()} if found else {}
    return None


def list_folder(folder: Path, source: IndexLocation) -> tuple[WheelFile, ...]:
    """The wheels in a local folder."""
    try:
        wheels = (path for path in sorted(folder.iterdir()) if path.suffix == ".whl" and path.is_file())
        sizes = {path: path.stat().st_size for path in wheels}
    except OSError as error:
        raise NetworkError(f"The folder {folder} ({source.origin}) cannot be read: {error.strerror}.") from error
    return tuple(
        file
        for path, size in sizes.items()
        for file in _wheel(path.name, path.resolve().as_uri(), source, hashes={}, size=size)
    )


def _wheel(
    filename: str,
    url: str,
    source: IndexLocation,
    *,
    hashes: Mapping[str, str],
    size: int | None = None,
    requires_python: str = "",
    yanked: bool = False,
    metadata: Mapping[str, str] | None = None,
) -> Iterator[WheelFile]:
    if not filename.endswith(".whl") or not is_file_name(filename) or not url:
        return
    if not all(_HEX.get(name, _anything)(value) for name, value in hashes.items()):
        return  # what cannot be checked is not offered
    try:
        _parse(filename)
    except ValueError:  # InvalidWheelFilename: a wheel variant, or a name older than the specification
        return
    if metadata:
        metadata = {name: value for name, value in metadata.items() if name in _HASHES}
    yield WheelFile(
        filename,
        with_login_of(source.url, url),
        hashes,
        size,
        source=source,
        requires_python=requires_python,
        yanked=yanked,
        metadata=metadata,
    )
