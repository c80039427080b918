"""Levels 2 and 3 for a target: started where this machine can start it, and said where it cannot."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

from torchtailor.artifact.artifact import Artifact, ArtifactKind
from torchtailor.verify.result import Check, Level
from torchtailor.verify.static.expect import Expectation

if TYPE_CHECKING:
    from pathlib import Path

    from torchtailor.catalog import Catalog

Say = Callable[[str], None]


def running_checks(
    artifact: Artifact,
    expected: Expectation,
    catalog: Catalog,
    levels: frozenset[Level],
    *,
    stock: Artifact | None = None,
    python: Path | None = None,
    asked: bool = False,
    say: Say | None = None,
) -> Iterator[Check]:
    """The checks of levels 2 and 3 that were asked for; `asked` says that the user named the level."""
    wanted = [level for level in (Level.IMPORT, Level.GPU) if level in levels]
    if not wanted:
        return
    if why := _cannot_start(artifact, asked=asked):
        yield from (Check.not_applicable(level, _NAMES[level], why) for level in wanted)
        return
    from torchtailor.artifact.launch import NotHereError, start
    from torchtailor.errors import NoMatchError

    with ExitStack() as stack:
        try:
            launch = stack.enter_context(start(artifact, python))
            against = stack.enter_context(start(stock, python)) if stock and Level.GPU in levels else None
        except (NotHereError, NoMatchError) as error:
            yield from (Check.not_applicable(level, _NAMES[level], error.message) for level in wanted)
            return
        if Level.IMPORT in levels:
            from torchtailor.verify.imports import verify_imports

            yield from verify_imports(launch, say)
        if Level.GPU in levels:
            from torchtailor.host.detect import detect
            from torchtailor.verify.ongpu import verify_on_gpu

            proof = verify_on_gpu(launch, detect(), catalog, wanted=expected.gpus, against=against, progress=say)
            yield from proof.checks


_NAMES = {Level.IMPORT: "import torch", Level.GPU: "op suite"}


def _cannot_start(artifact: Artifact, *, asked: bool) -> str:
    """Why this kind of target is not started; empty where it is."""
    if artifact.kind is ArtifactKind.LIBRARY:
        return "a library alone cannot be imported"
    if not any(library.name.startswith("torch/") for library in artifact.libraries):
        return "there is no torch in it"
    if artifact.kind is ArtifactKind.WHEEL and not asked:
        return "a wheel alone lacks what it depends on: install it and verify the environment, or ask with --level"
    return ""
