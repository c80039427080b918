"""RECORD: the table of a distribution's files with their hashes and sizes."""

from __future__ import annotations

import base64
import binascii
import csv
import hashlib
import io
import re
import string
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torchtailor.core.errors import BadInputError

if TYPE_CHECKING:
    from hashlib import _Hash

_ALGORITHMS = ("sha256", "sha384", "sha512")  # the specification forbids weaker ones
_UNNAMED = re.compile(r"[A-Za-z0-9_-]{43}")
_USUAL = re.compile(r"sha256=([A-Za-z0-9_-]{43})")
_AGAIN = "Fetch the wheel again, or reinstall the package."


class UnusualRecordError(BadInputError):
    """A RECORD that its publisher wrote in a form of their own; the package may be whole, and is left alone."""


@dataclass(frozen=True, slots=True)
class FileHash:
    """A hash as RECORD spells it: `sha256=` and urlsafe base64 without padding."""

    algorithm: str
    digest: bytes
    unnamed: bool = field(default=False, compare=False)  # RECORD does not say the algorithm, and goes on so

    @classmethod
    def parse(cls, text: str) -> FileHash:
        if usual := _USUAL.fullmatch(text):  # nearly all, and there may be ten thousand
            return cls("sha256", base64.urlsafe_b64decode(f"{usual[1]}="))
        unnamed = bool(_UNNAMED.fullmatch(text))  # mlx-cuda: what has this length can only be SHA-256
        algorithm, separator, encoded = ("sha256", "=", text) if unnamed else text.partition("=")
        if not separator or algorithm not in _ALGORITHMS or _is_hex(algorithm, encoded):
            raise UnusualRecordError(
                f"RECORD holds the hash {text!r}, which is none of {', '.join(_ALGORITHMS)} in base64.",
                "Such a package is left unchanged: ask its publisher for one whose RECORD follows the specification.",
            )
        try:
            digest = base64.b64decode(encoded + "=" * (-len(encoded) % 4), altchars=b"-_", validate=True)
        except (binascii.Error, ValueError) as error:
            raise BadInputError(f"RECORD holds the unreadable hash {text!r}.", _AGAIN) from error
        if len(digest) != hashlib.new(algorithm).digest_size:
            raise BadInputError(f"RECORD holds the hash {text!r}, which has the wrong length.", _AGAIN)
        return cls(algorithm, digest, unnamed)

    @classmethod
    def from_hex(cls, sha256: str) -> FileHash:
        return cls("sha256", bytes.fromhex(sha256))

    @classmethod
    def of(cls, data: bytes) -> FileHash:
        return cls("sha256", hashlib.sha256(data).digest())

    def new(self) -> _Hash:
        """A fresh hasher of this algorithm."""
        return hashlib.new(self.algorithm)

    def __str__(self) -> str:
        encoded = base64.urlsafe_b64encode(self.digest).rstrip(b"=").decode()
        return encoded if self.unnamed else f"{self.algorithm}={encoded}"


@dataclass(frozen=True, slots=True)
class RecordRow:
    """One file; hash and size are missing for RECORD itself and, in environments, for compiled Python."""

    path: str
    hash: FileHash | None = None
    size: int | None = None


class Record:
    """The rows of a RECORD in their order; `newline` ends each (pip writes CR LF, and what it wrote stays so)."""

    def __init__(self, rows: Iterable[RecordRow], newline: str = "\n") -> None:
        self._rows: dict[str, RecordRow] = {}
        self._newline = newline
        for row in rows:
            if row.path in self._rows:
                raise BadInputError(f"RECORD lists {row.path} twice.", _AGAIN)
            self._rows[row.path] = row

    @classmethod
    def parse(cls, data: bytes) -> Record:
        try:
            text = data.decode("utf-8")
            newline = "\r\n" if text.endswith("\r\n") else "\n"
            cells = csv.reader(io.StringIO(text, newline=""), strict=True)
            return cls((_row(row) for row in cells if row), newline)
        except UnicodeDecodeError as error:
            raise BadInputError("RECORD is not UTF-8 text.", _AGAIN) from error
        except csv.Error as error:
            raise BadInputError(f"RECORD is no table: {error}.", _AGAIN) from error

    def encode(self) -> bytes:
        lines = (
            f"{_quoted(row.path)},{row.hash or ''},{'' if row.size is None else row.size}{self._newline}"
            for row in self._rows.values()
        )
        return "".join(lines).encode()

    def __iter__(self) -> Iterator[RecordRow]:
        return iter(self._rows.values())

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, path: object) -> bool:
        return path in self._rows

    def get(self, path: str) -> RecordRow | None:
        return self._rows.get(path)

    def updated(self, changes: Mapping[str, RecordRow | None]) -> Record:
        """A copy with rows replaced (None: taken out); new rows come before the last one, which is RECORD's own."""
        rows = dict(self._rows)
        last = rows.popitem() if rows and next(reversed(rows.values())).hash is None else None
        for path, row in changes.items():
            if last and path == last[0]:
                last = (path, row) if row else None
            elif row is None:
                rows.pop(path, None)
            else:
                rows[path] = row
        return Record([*rows.values(), *([last[1]] if last else [])], self._newline)

    def with_rows_at(self, rows: Iterable[tuple[int, RecordRow]]) -> Record:
        """A copy that has these rows too, at these places."""
        placed = sorted(rows, key=lambda item: (item[0], item[1].path))
        every = list(self._rows.values())
        for place, row in placed:
            every.insert(place, row)
        return Record(every, self._newline) if placed else self


def _is_hex(algorithm: str, encoded: str) -> bool:
    """Debian writes hashes as hex digits."""
    return len(encoded) == 2 * hashlib.new(algorithm).digest_size and set(encoded) <= set(string.hexdigits)


def _quoted(path: str) -> str:
    """The csv module of Python 3.11 does not quote a lone carriage return."""
    return '"' + path.replace('"', '""') + '"' if any(mark in path for mark in ',"\r\n') else path


def _row(cells: list[str]) -> RecordRow:
    if len(cells) != 3 or not cells[0]:
        raise BadInputError(f"RECORD holds the line {','.join(cells)!r}, which is not path,hash,size.", _AGAIN)
    path, digest, size = cells
    if size and not (size.isascii() and size.isdigit() and len(size) < 20):
        raise BadInputError(f"RECORD gives {path} the size {size!r}.", _AGAIN)
    return RecordRow(path, FileHash.parse(digest) if digest else None, int(size) if size else None)
