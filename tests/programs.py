"""Programs that stand in for others."""

from __future__ import annotations

import sys
from pathlib import Path


def write_program(place: Path, source: str) -> Path:
    """A program in Python, which lies beside it: the path of a Python with a space in it cannot follow `#!`."""
    place.with_name(f"{place.name}.py").write_text(source)
    place.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$0.py" "$@"\n')
    place.chmod(0o755)
    return place
