"""Runs a build with Flox or Nix: its progress, its logs, and the reason where it fails."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from torchtailor.building.ledger.ledger import Ledger, Running
from torchtailor.building.nix.job import NixJob
from torchtailor.building.process import BuildCommand, run
from torchtailor.catalog.methods import NIX
from torchtailor.core.documents import Seconds
from torchtailor.core.errors import EnvironmentProblem
from torchtailor.core.progress import Progress
from torchtailor.core.room import DiskNeed, check_room, free_at
from torchtailor.nix.nixerrors import NixFailure, explain
from torchtailor.nix.nixlog import NixLog

NEEDED_BYTES = 20_000_000_000


@dataclass(frozen=True)
class NixOutput:
    """What the build of one recipe gave."""

    name: str
    link: Path
    store_path: Path
    logs: Mapping[str, Path]
    seconds: Seconds
    tool: str
    output_bytes: int


def run_nix_job(
    job: NixJob,
    *,
    progress: Progress | None = None,
    ledger: Ledger | None = None,
    release: str = "",
    needed: int | None = None,
) -> NixOutput:
    """Run a job; the attempt is in the ledger, and a failure is explained."""
    configuration = {"release": release, "tool": job.tool, "cores": job.cores}
    attempt = ledger.attempt(job.name, NIX, configuration=configuration) if ledger else nullcontext(Running(0))
    with attempt as running:
        running.stage = "disk"
        check_disk(NEEDED_BYTES if needed is None else needed)
        running.stage = "build"
        result = _run(job, progress, running)
        running.stage = ""
        running.output_bytes = result.output_bytes
        return result


def check_disk(needed: int) -> None:
    """Raise where the store or the build folder is too small."""
    places = (os.environ.get("NIX_STORE_DIR", "/nix/store"), os.environ.get("TMPDIR", "/tmp"))
    needs = [DiskNeed(Path(place), needed, free_at(Path(place))) for place in places]
    hint = "Free some with `nix-collect-garbage -d`, or set TMPDIR to a larger disk."
    check_room("This build", needs, hint)


def _run(job: NixJob, progress: Progress | None, running: Running) -> NixOutput:
    job.logs.mkdir(parents=True, exist_ok=True)
    job.link.parent.mkdir(parents=True, exist_ok=True)
    log = NixLog(job.logs)
    began = time.monotonic()

    def take(line: str) -> None:
        if log.feed(line):
            running.stage = str(log.progress)
            if progress:
                progress.nix_progress(log.progress)

    try:
        command = BuildCommand(job.command, job.folder, {**os.environ, **job.environment}, "Install Nix or Flox.")
        code = run(command, take)
    finally:
        log.close()
        (job.logs / "nix.log").write_text(log.errors + "\n", encoding="utf-8")
    if code != 0:
        raise _with_log(explain(log.errors, log.tail), job).error()
    if not job.link.exists():
        raise EnvironmentProblem(
            f"{job.tool} succeeded, but {job.link} does not exist.", f"Its messages are in {job.logs}."
        )
    store_path = job.link.resolve()
    return NixOutput(
        job.name, job.link, store_path, dict(log.logs), round(time.monotonic() - began, 2), job.tool, _size(store_path)
    )


def _with_log(failure: NixFailure, job: NixJob) -> NixFailure:
    hint = failure.hint.replace("NAME", job.name)
    return NixFailure(failure.cause, failure.message, f"{hint} The logs are in {job.logs}.", failure.kind, failure.got)


def _size(path: Path) -> int:
    if path.is_file():
        return path.stat().st_size
    return sum(file.lstat().st_size for file in path.rglob("*") if not file.is_dir())
