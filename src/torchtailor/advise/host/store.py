"""Saves a description as JSON and loads one that was saved elsewhere."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec

from torchtailor.advise.host.model import SCHEMA, Host
from torchtailor.advise.host.system import with_known_system
from torchtailor.core.disk import write_output
from torchtailor.core.errors import BadInputError, NoMatchError
from torchtailor.core.shapes import shaped

_LIMIT = 4 << 20  # a real description is some tens of kilobytes
_AGAIN = "Create it again with `torchtailor detect --json` on that machine."


def write(data: bytes, path: Path) -> None:
    """Save a description in a folder that exists."""
    write_output(path, data, parents=False)


def load(path: Path) -> Host:
    """The description in a file; `-` is standard input."""
    name = "standard input" if str(path) == "-" else str(path)
    try:
        data = sys.stdin.buffer.read(_LIMIT + 1) if str(path) == "-" else _read(path)
    except FileNotFoundError as error:
        raise NoMatchError(f"{name} does not exist.", _AGAIN) from error
    except OSError as error:
        raise BadInputError(f"{name} cannot be read: {error.strerror}.", _AGAIN) from error
    return loads(data, name)


def loads(data: bytes, name: str) -> Host:
    """The description in a document; `name` is what an error calls it."""
    if len(data) > _LIMIT:
        raise BadInputError(f"{name} is too large for the description of a machine.", _AGAIN)
    try:
        document = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadInputError(f"{name} is not JSON: {error}.", _AGAIN) from error
    schema = document.get("schema") if isinstance(document, dict) else None
    if not isinstance(schema, str) or not schema.startswith("torchtailor-host/"):
        raise BadInputError(f"{name} is JSON, but not the description of a machine.", _AGAIN)
    if schema != SCHEMA:
        raise BadInputError(
            f"{name} is a description of version {schema.partition('/')[2]!r}; this torchtailor reads version "
            f"{SCHEMA.partition('/')[2]}.",
            "Use the same version of torchtailor on both machines.",
        )
    try:
        return with_known_system(msgspec.convert(document, shaped(Host)))
    except (msgspec.ValidationError, ValueError) as error:
        raise BadInputError(f"{name} is damaged: {error}.", _AGAIN) from error


def _read(path: Path) -> bytes:
    """A pipe of the shell, `<(...)`, has its writer; one that nobody writes to is empty, and not waited for."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    os.set_blocking(descriptor, True)
    with os.fdopen(descriptor, "rb") as file:
        return file.read(_LIMIT + 1)
