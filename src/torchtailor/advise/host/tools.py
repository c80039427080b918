"""Compilers, package managers and caches: where they are and which version."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from torchtailor.advise.host.model import Tool
from torchtailor.advise.host.probe import Probe

_TIMEOUT = 3.0
# Compilers installed beside the default one: the planner needs to know which a toolkit could take instead.
_VERSIONED = tuple(f"gcc-{number}" for number in range(9, 17))


@dataclass(frozen=True, slots=True)
class KnownTool:
    """A program, how to ask its version, and where its answer holds it; one that answers slowly is not asked."""

    name: str
    question: str | None = "--version"
    answer: str = r"(\d+(?:\.\d+)+)"
    elsewhere: tuple[str, ...] = ()


KNOWN = (
    KnownTool("gcc", "-dumpfullversion", r"(\d+(?:\.\d+)*)"),
    KnownTool("clang", answer=r"clang version (\d+(?:\.\d+)+)"),
    KnownTool("nvcc", answer=r"release (\d+\.\d+)", elsewhere=("$CUDA_HOME", "$CUDA_PATH", "/usr/local/cuda")),
    KnownTool("cmake"),
    KnownTool("ninja"),
    KnownTool("nix"),
    KnownTool("flox"),
    KnownTool("ccache"),
    KnownTool("sccache"),
    KnownTool("uv"),
    KnownTool("pip", question=None),
    KnownTool("git"),
)


def tool_questions(probe: Probe) -> list[Callable[[], Tool | None]]:
    """One question per tool that is there, to be asked at the same time."""
    questions = [_question(probe, known, path) for known in KNOWN if (path := _find(probe, known))]
    for name in _VERSIONED:
        if path := probe.which(name):
            tool = Tool(name=name, path=path, version=name.partition("-")[2])
            questions.append(lambda tool=tool: tool)  # type: ignore[misc]
    return questions


def _find(probe: Probe, known: KnownTool) -> str | None:
    if path := probe.which(known.name):
        return path
    for place in known.elsewhere:
        root = probe.env(place[1:]) if place.startswith("$") else place
        if root and known.name in probe.list(f"{root}/bin"):
            return f"{root}/bin/{known.name}"
    return None


def _question(probe: Probe, known: KnownTool, path: str) -> Callable[[], Tool | None]:
    def ask() -> Tool | None:
        if known.question is None:
            return Tool(name=known.name, path=path)
        ran = probe.run((path, known.question), _TIMEOUT)
        match = re.search(known.answer, ran.output) if ran.done else None
        return Tool(name=known.name, path=path, version=match[1] if match else None)

    return ask
