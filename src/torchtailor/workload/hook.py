"""The hook: the C libraries that record what a program loads, and that hand the driver code from a pack."""

from __future__ import annotations

from enum import Enum
from functools import cache
from pathlib import Path

from torchtailor.binary.elf_headers import ElfMachine
from torchtailor.errors import EnvironmentProblem

_NATIVE = Path(__file__).parent / "native"
PREFIX = "torchtailor_"  # of what renamed symbols become


class HookKind(Enum):
    """How the hook gets into a process; the value is its file's name."""

    NEEDED = "libtorchtailor-hook.so.1"  # cut libraries bring it
    PRELOAD = "libtorchtailor-preload.so"  # LD_PRELOAD names it


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
def renamed_symbols() -> tuple[str, ...]:
    """Undefined symbols that cut libraries import under `PREFIX` instead; what a library defines keeps its name."""
    lines = (_NATIVE / "renamed.txt").read_text("utf-8").splitlines()
    return tuple(line for line in lines if line and not line.startswith("#"))
