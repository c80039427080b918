"""The verification of one target, from opening it to the report."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from torchtailor.advise.host.targets import read_gpus
from torchtailor.catalog import Capability, Catalog, load_catalog
from torchtailor.core.errors import NoMatchError, UsageError
from torchtailor.core.progress import Progress
from torchtailor.core.version import __version__
from torchtailor.trees.artifact.artifact import Artifact, ArtifactKind, nothing_in, open_artifact
from torchtailor.trees.artifact.roots import SystemRoot
from torchtailor.verification.levels import running_checks
from torchtailor.verification.result import Level, VerifyReport
from torchtailor.verification.static.expect import expectation
from torchtailor.verification.static.verify import verify_static


def verify(
    path: Path | str | Artifact,
    *,
    variant: str = "",
    gpus: str | Sequence[str | Capability] = (),
    cpu: str = "",
    against: Path | str | Artifact | None = None,
    level: Level | Literal["all", "static", "import", "gpu"] = "all",
    python: Path | None = None,
    root: Path | str | None = None,
    progress: Progress | None = None,
    catalog: Catalog | None = None,
) -> VerifyReport:
    """Check an artifact: its GPU code, host code, files, import, and results on the GPU.

    What it should be is read from its manifest; `variant`, `gpus` and `cpu` override that. `against` is the stock it
    was made from. `level` is the last level to run; `all` runs what this kind of target allows. `root` is the folder of
    another system to import and run it in; `python` is a path inside of it then.
    """
    started = time.time()
    asked = None if level == "all" else Level(level)
    if root is not None and asked is Level.STATIC:
        raise UsageError("--level static starts nothing, so --root has no effect.", "Omit one of them.")
    if root is not None and asked is None:
        asked = Level.IMPORT  # to be imported there is why it was named
    if python is not None and root is None and not python.exists():
        raise NoMatchError(f"{python} does not exist.", "Give the path of a Python: .venv/bin/python.")
    catalog = catalog or load_catalog()
    progress = progress or Progress()
    artifact = path if isinstance(path, Artifact) else open_artifact(Path(path))
    stock = against if isinstance(against, Artifact) else open_artifact(Path(against)) if against else None
    if artifact.kind is ArtifactKind.ENVIRONMENT and not artifact.libraries:
        raise nothing_in(artifact.path)  # that its text files are as installed proves nothing of torch
    within = SystemRoot.open(Path(root)) if root is not None else None
    devices = read_gpus(gpus, catalog)
    expected = expectation(artifact, catalog, variant=variant, gpus=devices, isa=cpu)
    proof = verify_static(artifact, expected, catalog, stock=stock, progress=progress)
    facts = {
        **proof.facts,
        "tool": {"name": "torchtailor", "version": __version__},
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(started)),
    }
    running = running_checks(
        artifact,
        expected,
        catalog,
        Level.GPU if level == "all" else Level(level),
        stock=stock,
        python=python,
        root=within,
        asked=asked is not None,
        say=progress.stage,
    )
    report = VerifyReport(artifact.shown, proof.checks, facts, asked)
    seconds = {Level.STATIC.value: proof.facts["seconds"]}
    before = time.perf_counter()
    for check in running:  # each is made when it is asked for
        now = time.perf_counter()
        seconds[check.level.value] = round(seconds.get(check.level.value, 0.0) + now - before, 3)
        before = now
        report = report.plus((check,))
    return report.plus((), level_seconds=seconds, total_seconds=round(time.time() - started, 3))
