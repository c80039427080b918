"""The hook: the C libraries that record what a program loads, and that hand the driver code from a pack."""

from __future__ import annotations

import re
import shutil
from enum import Enum
from functools import cache
from pathlib import Path

from torchtailor.code.binary.elf import ElfFile
from torchtailor.code.binary.elf_headers import ElfMachine, SegmentType
from torchtailor.code.binary.source import open_source
from torchtailor.core.errors import BadInputError, EnvironmentProblem, ImpossibleError

_NATIVE = Path(__file__).parent / "native"
_GLIBC = re.compile(rb"\bGLIBC_(\d+)\.(\d+)")
_MAX_SCRIPTS = 4  # as many interpreters of interpreters as Linux follows
PREFIX = "torchtailor_"  # of what renamed symbols become


class HookKind(Enum):
    """How the hook gets into a process; the value is its file's name."""

    NEEDED = "libtorchtailor-hook.so.1"  # cut libraries bring it
    PRELOAD = "libtorchtailor-preload.so"  # LD_PRELOAD names it
    AUDIT = "libtorchtailor-audit.so"  # LD_AUDIT names it, while a program is recorded


HOOK_NAME = HookKind.NEEDED.value


def hook_library(machine: ElfMachine, kind: HookKind) -> Path:
    """The compiled hook for a processor."""
    library = _NATIVE / machine.arch / kind.value
    if not library.is_file():
        raise EnvironmentProblem(
            f"This installation of torchtailor has no workload hook for {machine.arch}.",
            "Install a released wheel, or run `pip install ziglang && python tools/build_hook.py` in the sources.",
        )
    return library


@cache
def hook_glibc(hook: Path) -> tuple[int, int]:
    """The oldest glibc that a compiled hook can be loaded with, from the versions of symbols that it names."""
    with open_source(hook) as source:
        elf = ElfFile(source)
        strings = [bytes(elf.content(section)) for section in elf.sections if section.name == ".dynstr"]
    found = (match for text in strings for match in _GLIBC.finditer(text))
    return max(((int(match[1]), int(match[2])) for match in found), default=(0, 0))


@cache
def renamed_symbols() -> frozenset[str]:
    """Undefined symbols that cut libraries import under `PREFIX` instead; what a library defines keeps its name."""
    lines = (_NATIVE / "renamed.txt").read_text("utf-8").splitlines()
    return frozenset(line for line in lines if line and not line.startswith("#"))


def check_program(name: str) -> ElfMachine | None:
    """The processor of a program that can have the hook, None where only running it tells; an error if it cannot."""
    for _ in range(_MAX_SCRIPTS):
        found = shutil.which(name)
        if not found or not Path(found).is_file():
            return None
        with Path(found).open("rb") as file:
            start = file.read(256)
        if not start.startswith(b"#!"):
            return _check_binary(Path(found))
        words = start.split(b"\n")[0][2:].decode("utf-8", "replace").split()
        if len(words) > 1 and Path(words[0]).name == "env":
            words = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
        if not words:
            return None
        name = words[0]
    return None


def _check_binary(program: Path) -> ElfMachine | None:
    try:
        with open_source(program) as source:
            elf = ElfFile(source)
            machine = elf.machine
            loaders = [
                bytes(elf.read(part.offset, part.file_size)).rstrip(b"\0").decode("utf-8", "replace")
                for part in elf.segments
                if part.type == SegmentType.INTERP
            ]
    except (BadInputError, OSError, ValueError):
        return None
    if not loaders:
        raise ImpossibleError(
            f"{program} is linked statically: no hook can get into it.",
            "Use a program that is linked dynamically, such as the Python of a distribution, uv or conda.",
        )
    if "ld-musl" in loaders[0]:
        raise ImpossibleError(
            f"{program} uses musl (Alpine): the hook is for glibc, as the CUDA libraries are.",
            "Use an image with glibc, such as Debian's or Ubuntu's.",
        )
    return machine
