"""What a name, a hash or a path from elsewhere may be: the one place that decides, for every file we did not write.

Wheelhouses, journals, indexes and caches may come from other people. Each value in them that becomes part of a path, of
a page or of a command line has one of these types, so that it is checked while it is read:

    class _File(msgspec.Struct):
        filename: FileName
        sha256: Sha256

`read_limited` reads such a file: never more of it than any real one has.
"""

from __future__ import annotations

import os
import re
import stat
import tomllib
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from torchtailor.core.errors import BadInputError, UsageError
from torchtailor.core.shapes import shaped

_SHA256 = r"\A[0-9a-f]{64}\Z"
# one name, which no shell, browser or command line takes for anything else
_FILE_NAME = r"\A[A-Za-z0-9_][A-Za-z0-9_.+!-]{0,239}\Z"
_LABEL = r"\A[A-Za-z0-9][A-Za-z0-9_.+-]{0,119}\Z"
_EXTRAS = r"\[[a-z0-9._-]+(?:,[a-z0-9._-]+)*\]"
_REQUIREMENT = rf"\A[A-Za-z0-9][A-Za-z0-9._-]*(?:{_EXTRAS})?={{2,3}}[A-Za-z0-9][A-Za-z0-9.+!_-]*\Z"
_PART = r"\A(?!\.{1,2}\Z)[^/\x00-\x1f\x7f]{1,255}\Z"
# no step up, no root, no empty or invisible part
_RELATIVE = r"\A(?!/)(?!(?:.*/)?\.{0,2}(?:/|\Z))[^\x00-\x1f\x7f]{1,4000}\Z"
_URL = r"\A(?:https?://[^\s<>\"'\x00-\x1f\x7f]{1,4000})?\Z"

Sha256 = Annotated[str, msgspec.Meta(pattern=_SHA256, description="64 hexadecimal digits")]
FileName = Annotated[str, msgspec.Meta(pattern=_FILE_NAME, description="a plain file name")]
Label = Annotated[str, msgspec.Meta(pattern=_LABEL, description="a plain name")]
Gpus = Annotated[str, msgspec.Meta(pattern=r"\A[0-9]{1,2}\.[0-9](,[0-9]{1,2}\.[0-9])*\Z", description="capabilities")]
PinnedRequirement = Annotated[
    str, msgspec.Meta(pattern=_REQUIREMENT, description="NAME==VERSION or NAME[EXTRA]==VERSION")
]
PathPart = Annotated[str, msgspec.Meta(pattern=_PART, description="one part of a path")]
RelativePath = Annotated[str, msgspec.Meta(pattern=_RELATIVE, description="a path inside a folder")]
WebAddress = Annotated[str, msgspec.Meta(pattern=_URL, description="an http address, or nothing")]
Size = Annotated[int, msgspec.Meta(ge=0, le=1 << 50)]

_is_sha256, _is_file_name = re.compile(_SHA256).match, re.compile(_FILE_NAME).match
_is_relative = re.compile(_RELATIVE).match
_CHUNK = 1 << 20
_DOTS = 2000  # in a line of TOML: the parser's time grows with the square of the parts of a key
_SHOWN = 120

Shape = TypeVar("Shape")


class NotPlainError(BadInputError):
    """What was read as a file is a device, pipe or folder, or has more bytes than any such file."""

    def __init__(self, path: Path | int, reason: str) -> None:
        super().__init__(f"{path} {reason}.", "Check that it is the right file.")
        self.reason = reason


class Limit:
    """The most bytes that are read at once of a kind of file, and how much real ones have."""

    MANIFEST = 256 << 20  # of a wheelhouse or wheel: 23,000 containers in cuFFT make 2 MB
    JOURNAL = 256 << 20  # of an environment: 2 kB for each library
    PAGE = 256 << 20  # of an index: 40 MB for all files of the largest project
    METADATA = 16 << 20  # of a wheel: 200 kB with a long README
    RECORD = 64 << 20  # of a wheel: 2 MB in torch, with 12,000 files
    RECIPE = 4 << 20  # of a tree for Nix, a document or script beside it: 20 kB
    CONFIGURATION = 4 << 20  # of pip, uv or torchtailor: a few lines
    NOTE = 256 << 20  # of our own cache: a page, or what is known about a wheel
    STATE = 1 << 20  # beside a partial download: one line
    SMALL = 4 << 20  # the rest: descriptions of machines, direct_url.json


def is_sha256(text: str) -> bool:
    """Whether a text is the SHA-256 of something: 64 lower-case hexadecimal digits."""
    return _is_sha256(text) is not None


def whole_number(text: str) -> int | None:
    """A size or position that somebody else wrote; None where it is none, or one that nothing has."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else None


def is_file_name(text: str) -> bool:
    """Whether a text is one plain name: no folder, nothing that a shell or browser reads as something else."""
    return _is_file_name(text) is not None


def is_relative_path(text: str) -> bool:
    """Whether a text is a path that stays inside the folder it is taken from."""
    return _is_relative(text) is not None


def inside(root: Path, relative: str) -> Path:
    """The place of a relative path below a folder; refused where it, or a link on the way, leads out of it."""
    try:
        msgspec.convert(relative, shaped(RelativePath))
    except msgspec.ValidationError as error:
        raise _outside(root, relative) from error
    place = root / relative
    above = place.parent.resolve()
    if above != root.resolve() and root.resolve() not in above.parents:
        raise _outside(root, relative)
    return place


def leads_inside(root: Path, place: Path) -> bool:
    """Whether a file is below a folder, wherever links lead."""
    return root.resolve() in place.resolve().parents


def _outside(root: Path, relative: str) -> BadInputError:
    return BadInputError(
        f"{relative[:_SHOWN]!r} is not a path inside of {root}.", "What names it was not written by torchtailor."
    )


def no_option(value: str, what: str) -> str:
    """A value that a tool gets as an argument; refused where the tool would read it as one of its options."""
    if value.startswith("-"):
        raise UsageError(f"{what} cannot begin with a dash: {value[:_SHOWN]!r}.", "Write ./ before a path.")
    return value


def read_limited(path: Path | int, limit: int) -> bytes:
    """The bytes of a plain file, at most as many as any real one has; OSError as `Path.read_bytes` raises it."""
    descriptor = path if isinstance(path, int) else os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise NotPlainError(path, "is not a plain file")
        parts = []
        left = limit + 1
        while left > 0 and (part := os.read(descriptor, min(left, _CHUNK))):
            parts.append(part)
            left -= len(part)
    finally:
        if not isinstance(path, int):
            os.close(descriptor)
    if left <= 0:
        raise NotPlainError(path, f"is larger than {limit >> 20} MB")
    return b"".join(parts)


def decode_json(data: bytes, shape: type[Shape], name: str, hint: str = "") -> Shape:
    """A JSON document of this shape; `name` is what an error calls it."""
    try:
        return msgspec.json.decode(data, type=shaped(shape))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise BadInputError(f"{name} is damaged: {_said(error)}.", hint) from error


def decode_toml(text: str) -> dict[str, Any]:
    """A TOML document; a key of so many parts that the parser takes minutes for it is an error of its syntax."""
    if any(line.count(".") > _DOTS for line in text.split("\n")):
        raise tomllib.TOMLDecodeError(f"a line has more than {_DOTS} dots")
    return tomllib.loads(text)


def _said(error: Exception) -> str:
    """One line about what is wrong, of bounded length: it may quote the document."""
    text: Any = str(error) or type(error).__name__
    return " ".join(text.split())[:_SHOWN].rstrip(".")
