"""The package's own facts: TOML files in folders called `data`."""

from __future__ import annotations

import tomllib
from importlib.resources import files
from typing import TypeVar

import msgspec

from torchtailor.core.shapes import shaped

T = TypeVar("T")


def read_table(package: str, name: str, shape: type[T]) -> T:
    """A file in the folder `data` of a package, as a type."""
    text = files(f"torchtailor.{package}").joinpath("data", name).read_text("utf-8")
    return msgspec.convert(tomllib.loads(text), shaped(shape))
