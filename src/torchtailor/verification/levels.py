"""Levels 2 and 3 for a target, where this machine can start it; else the reason why it cannot."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

from torchtailor.advise.host.detect import detect
from torchtailor.catalog import Catalog
from torchtailor.core.errors import NoMatchError, TorchtailorError
from torchtailor.trees.artifact.artifact import Artifact, ArtifactKind
from torchtailor.trees.artifact.launch import NotHereError, start
from torchtailor.trees.artifact.roots import SystemRoot
from torchtailor.verification.imports import verify_imports
from torchtailor.verification.ongpu import stock_not_run, verify_on_gpu
from torchtailor.verification.result import Check, CheckOutcome, Level
from torchtailor.verification.static.expect import Expectation

Say = Callable[[str], None]


def running_checks(
    artifact: Artifact,
    expected: Expectation,
    catalog: Catalog,
    last: Level,
    *,
    stock: Artifact | None = None,
    python: Path | None = None,
    root: SystemRoot | None = None,
    asked: bool = False,
    say: Say | None = None,
) -> Iterator[Check]:
    """The checks of levels 2 and 3 up to the last one wanted; `asked` where the user named it."""
    wanted = [level for level in (Level.IMPORT, Level.GPU) if level.number <= last.number]
    if not wanted:
        return
    if why := _cannot_start(artifact, asked=asked):
        yield from (Check.not_applicable(level, _NAMES[level], why) for level in wanted)
        return
    with ExitStack() as stack:
        try:
            launch = stack.enter_context(start(artifact, python, root))
        except (NotHereError, NoMatchError) as error:
            yield from (Check.not_applicable(level, _NAMES[level], error.message) for level in wanted)
            return
        imported = verify_imports(launch, say)
        yield from imported
        if Level.GPU not in wanted:
            return
        importing = next(check for check in imported if check.name == _NAMES[Level.IMPORT])
        if importing.outcome is not CheckOutcome.PASS:
            why = f"torch could not be imported: {importing.reason.rstrip('.')}"
            yield Check.not_applicable(Level.GPU, _NAMES[Level.GPU], why)
            return
        against = None
        try:
            against = stack.enter_context(start(stock, python, root)) if stock else None
        except TorchtailorError as error:
            yield stock_not_run(error.message)
        yield from verify_on_gpu(launch, detect(), catalog, wanted=expected.gpus, against=against, progress=say)


_NAMES = {Level.IMPORT: "import torch", Level.GPU: "op suite"}


def _cannot_start(artifact: Artifact, *, asked: bool) -> str:
    """Why this kind of target is not started; empty where it is."""
    if artifact.kind is ArtifactKind.LIBRARY:
        return "a library alone cannot be imported"
    if artifact.kind is ArtifactKind.IMAGE:
        return "an image is not run: unpack it and verify in a chroot or container"
    if not any(library.name.startswith("torch/") for library in artifact.libraries):
        return "there is no torch in it"
    if artifact.kind is ArtifactKind.WHEEL and not asked:
        return "a wheel alone lacks its dependencies: install it and verify the environment, or set --level"
    return ""
