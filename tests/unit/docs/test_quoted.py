"""What pages quote of commands is what they print: every quoted command is run here, or was a measurement."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.calling import call
from tests.unit.gpucode.builders import FIXTURES

ROOT = Path(__file__).resolve().parents[3]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
# What needs gigabytes, an index or another machine: by page and the beginning of the line, where it is tested, or what
# was measured.
MEASURED = {
    ("catalog.md", "catalog update --measure"): "tests/unit/upkeep/test_update.py, with a made-up release",
    ("doctor.md", "doctor --env .venv"): "tests/unit/doctor/test_doctor.py",
    ("in-place.md", "restore --env"): "tests/unit/tailoring/test_environment.py",
    ("tailor.md", "tailor torch-2.10.0-3"): "torch 2.10.0, of which the wheel has 916 MB",
    ("verify.md", "verify dist/"): "tests/integration/test_bare.py",
    ("verify-results.md", "verify torch-2.10.0-3"): "torch 2.10.0, of which the wheel has 916 MB",
    ("verify-results.md", "verify startup_wide.so"): "tests/integration/verification/test_compilers.py compiles it",
}
Quote = tuple[str, str, tuple[str, ...]]


def quotes() -> Iterator[Quote]:
    """Page, command, and the lines that it is said to print; a command without any is only one to copy."""
    for page in PAGES:
        lines = page.read_text().splitlines()
        for number, line in enumerate(lines):
            if found := re.match(r"( *)\$ torchtailor (.*)", line):
                indent, said = found[1], []
                for after in lines[number + 1 :]:
                    left = after.startswith(indent) if indent else not after.startswith("```")
                    if (after and not left) or after.strip().startswith("$ "):
                        break
                    said.append(after.strip())
                if any(said):
                    yield page.name, found[2], tuple(filter(None, said))


QUOTES = tuple(quotes())


def measured(page: str, command: str) -> bool:
    return any(page == name and command.startswith(first) for name, first in MEASURED)


def test_what_is_not_run_here_is_known() -> None:
    assert len(QUOTES) > 5
    for name, first in MEASURED:
        assert any(page == name and command.startswith(first) for page, command, _ in QUOTES), first


@pytest.mark.parametrize("quote", [one for one in QUOTES if not measured(*one[:2])], ids=lambda one: " ".join(one[:2]))
def test_a_quoted_command_prints_what_is_quoted(quote: Quote, tmp_path: Path) -> None:
    """These lines in this order; `...` stands for any, at the end of a line too."""
    _, command, said = quote
    words = shlex.split(command.partition(" 2>")[0], comments=True)
    for library in (word for word in words if word.endswith(".so")):
        shutil.copy(FIXTURES / library, tmp_path)
    printed = [" ".join(line.split()) for line in call(*words, cwd=tmp_path).stdout.splitlines()]
    for line in said:
        wanted = " ".join(line.split())
        if wanted == "...":
            continue
        start, more, _ = wanted.partition("...")
        place = next((at for at, one in enumerate(printed) if one == wanted or (more and one.startswith(start))), None)
        assert place is not None, f"{wanted!r} is not, or not there, in {printed}"
        del printed[: place + 1]
