"""METADATA: the few fields that matter here, and a new version written into it with all else unchanged."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from email.parser import HeaderParser

from packaging.utils import canonicalize_name
from packaging.version import Version

from torchtailor.core.errors import BadInputError

_TAG_LINE = re.compile(rb"Tag:", re.IGNORECASE)
_METADATA_VERSION = re.compile(rb"^Metadata-Version:[ \t]*(\d{1,3})\.(\d{1,3})[ \t]*$", re.MULTILINE | re.IGNORECASE)
_LICENCE_FILE = re.compile(r"(?:^|[^a-z])(?:licen[cs]es?|eula|copying)(?:[^a-z]|$)", re.IGNORECASE)
_REQUIREMENT_LINE = re.compile(
    rb"^(?P<field>Requires-Dist:[ \t]*)(?P<stated>[^\r\n]*)(?P<end>\r?\n)", re.MULTILINE | re.IGNORECASE
)
_VERSION_LINE = re.compile(rb"^Version:[^\r\n]*", re.MULTILINE | re.IGNORECASE)


LICENCE_HEAD = 2048  # bytes of a licence file, in which it says what it is


def is_licence_file(path: str) -> bool:
    """Whether a file of a `.dist-info` folder is a licence by its name; NOTICE and the like speak of others' work."""
    return bool(_LICENCE_FILE.search(path.rpartition("/")[2]))


@dataclass(frozen=True, slots=True)
class Metadata:
    """What a distribution says about itself."""

    name: str
    version: str
    licence: str
    classifiers: tuple[str, ...]
    requires: tuple[str, ...]
    author: str = ""
    licence_heads: tuple[str, ...] = ()  # how each licence file of the `.dist-info` folder begins

    @classmethod
    def parse(cls, data: bytes, owner: str, licence_heads: Iterable[bytes] = ()) -> Metadata:
        headers = HeaderParser().parsestr(data.decode("utf-8", "replace"), headersonly=True)
        name, version = headers.get("Name", ""), headers.get("Version", "")
        try:
            Version(version)
        except ValueError as error:  # InvalidVersion, or thousands of digits
            raise BadInputError(
                f"{owner} has no valid version in its METADATA.", "Reinstall or fetch it again."
            ) from error
        if not name:
            raise BadInputError(f"{owner} has no name in its METADATA.", "Reinstall or fetch it again.")
        return cls(
            name=canonicalize_name(name),
            version=version,
            licence=headers.get("License-Expression", "") or headers.get("License", ""),
            classifiers=tuple(headers.get_all("Classifier", ())),
            requires=tuple(headers.get_all("Requires-Dist", ())),
            author=" ".join(headers.get(key, "") for key in ("Author", "Author-email")).strip(),
            licence_heads=tuple(head.decode("utf-8", "replace") for head in licence_heads),
        )


def with_lines(data: bytes, lines: Iterable[str]) -> bytes:
    """The same METADATA with more lines at the end of its headers; every other byte stays."""
    end = re.search(rb"\r?\n\r?\n", data)
    head, body = (data[: end.start()], data[end.start() :]) if end else (data.rstrip(b"\r\n"), b"\n")
    newline = "\r\n" if b"\r\n" in head else "\n"
    return head + "".join(f"{newline}{line}" for line in lines).encode() + body


def with_requirements(data: bytes, change: Callable[[str], str | None]) -> bytes:
    """The same METADATA with what `change` makes of each requirement (None: it goes); every other byte stays."""
    end = re.search(rb"\r?\n\r?\n", data)
    head, body = (data[: end.start()], data[end.start() :]) if end else (data, b"")

    def changed(found: re.Match[bytes]) -> bytes:
        stated = found["stated"].decode("utf-8", "replace").strip()
        new = change(stated)
        if new == stated:
            return found[0]
        return b"" if new is None else found["field"] + new.encode() + found["end"]

    return _REQUIREMENT_LINE.sub(changed, head + b"\n")[:-1] + body


def licence_files(data: bytes) -> tuple[str, ...]:
    """The files that METADATA names as licences."""
    headers = HeaderParser().parsestr(data.decode("utf-8", "replace"), headersonly=True)
    return tuple(headers.get_all("License-File", ()))


def with_licence_files(data: bytes, names: Iterable[str]) -> bytes:
    """The same METADATA with more licence files, which are in the folder `licenses` since version 2.4 of METADATA."""
    changed = _METADATA_VERSION.sub(_at_least_2_4, data, count=1)
    return with_lines(changed, (f"License-File: {name}" for name in names))


def _at_least_2_4(found: re.Match[bytes]) -> bytes:
    return found[0] if (int(found[1]), int(found[2])) >= (2, 4) else b"Metadata-Version: 2.4"


def with_version(data: bytes, version: str) -> bytes:
    """The same METADATA with another version; every other byte stays."""
    end = re.search(rb"\r?\n\r?\n", data)
    head, body = (data[: end.start()], data[end.start() :]) if end else (data, b"")
    changed, count = _VERSION_LINE.subn(b"Version: " + version.encode(), head)
    if count != 1:
        raise BadInputError("METADATA does not have exactly one Version line.", "Fetch the wheel again.")
    return changed + body


def with_tags(data: bytes, tags: Sequence[str]) -> bytes:
    """The same WHEEL file with other tags; every other line stays."""
    lines = data.splitlines(keepends=True)
    places = [index for index, line in enumerate(lines) if _TAG_LINE.match(line)]
    if not places:
        raise BadInputError("WHEEL has no Tag line.", "Fetch the wheel again.")
    end = b"\r\n" if lines[places[0]].endswith(b"\r\n") else b"\n"
    others = [line for index, line in enumerate(lines) if index not in places]
    before = sum(index < places[0] for index in range(len(lines)) if index not in places)
    return b"".join([*others[:before], *(b"Tag: " + tag.encode() + end for tag in tags), *others[before:]])
