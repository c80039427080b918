"""The libraries of tests/fixtures/rdc, unpacked, and cut for a GPU by the command itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.calling import call

FOLDER = Path(__file__).parents[2] / "fixtures/rdc"
ARCHIVE = FOLDER / "libraries.tar.xz"
MANIFEST: dict[str, dict[str, Any]] = json.loads((FOLDER / "manifest.json").read_text())
NAMES = sorted(name.removesuffix(".so") for name in MANIFEST)

NOTHING_FOR_TARGET = 5


def tailor(source: Path, output: Path, *options: str) -> bool:
    """Whether `torchtailor tailor` has written an output; it writes none where the source has nothing for the GPU."""
    done = call("tailor", source, "-o", output, *options)
    assert done.returncode in (0, NOTHING_FOR_TARGET), done.stderr
    return done.returncode == 0
