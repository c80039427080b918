"""The Nix backend: builds a recipe with Flox or Nix, shows how it goes, and explains why it failed."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from torchtailor.catalog.load import Catalog
from torchtailor.catalog.releases import Method
from torchtailor.disk import existing_parent
from torchtailor.errors import EnvironmentProblem, ImpossibleError
from torchtailor.host.capacity import capacity
from torchtailor.host.probe import LiveProbe, Probe
from torchtailor.ledger.ledger import Ledger, Running
from torchtailor.recipes.blueprint import GIGABYTES_PER_JOB
from torchtailor.recipes.nix import find_tool, need_tool
from torchtailor.recipes.nixerrors import NixFailure, explain
from torchtailor.recipes.nixlog import NixLog, Progress
from torchtailor.recipes.tree import tree_at
from torchtailor.recipes.write import plan_trees, written_release
from torchtailor.variants.variant import Variant

NEEDED_BYTES = 20_000_000_000


class NixWatcher(Protocol):
    """Is told how a build goes on."""

    def nix_progress(self, progress: Progress) -> None: ...


@dataclass(frozen=True)
class NixJob:
    """What is going to be run."""

    name: str
    recipe: Path
    link: Path
    logs: Path
    command: tuple[str, ...]
    folder: Path
    cores: int
    environment: Mapping[str, str]

    @property
    def tool(self) -> str:
        return Path(self.command[0]).name

    def to_json(self) -> dict[str, object]:
        return {
            "name": self.name,
            "recipe": str(self.recipe),
            "link": str(self.link),
            "command": list(self.command),
            "cores": self.cores,
        }


@dataclass(frozen=True)
class NixResult:
    """What a build with Nix gave."""

    name: str
    link: Path
    store_path: Path
    logs: Mapping[str, Path]
    seconds: float
    tool: str
    output_bytes: int

    def to_json(self) -> dict[str, object]:
        return {
            "name": self.name,
            "link": str(self.link),
            "store_path": str(self.store_path),
            "logs": {name: str(path) for name, path in self.logs.items()},
            "seconds": round(self.seconds, 2),
            "tool": self.tool,
            "output_bytes": self.output_bytes,
        }


def build_nix(
    catalog: Catalog,
    variant: Variant,
    out: Path,
    *,
    tree: Path | None = None,
    cores: int | None = None,
    watcher: NixWatcher | None = None,
    ledger: Ledger | None = None,
) -> NixResult:
    """Build a variant's recipe: that of a tree where it has one, else one written into `out`."""
    job = plan_nix(catalog, variant, out, tree=tree, cores=cores)
    return run_nix_job(job, watcher=watcher, ledger=ledger, release=variant.release.name)


def plan_nix(
    catalog: Catalog,
    variant: Variant,
    out: Path,
    *,
    tree: Path | None = None,
    cores: int | None = None,
    write: bool = True,
) -> NixJob:
    """What is run for a variant; writes its recipe (unless told not to) where the tree has none."""
    here = f"{platform.machine()}-linux"
    if variant.platform != here:
        raise ImpossibleError(
            f"{variant.name} is for {variant.platform}, and this machine is {here}.",
            "Build it on a machine of that platform; `torchtailor recommend` says what fits this one.",
        )
    root = (tree or Path()).resolve()
    recipe = tree_at(root).pkgs / f"{variant.name}.nix"
    if not recipe.is_file() or variant.release.name not in (written_release(tree_at(root)) or [variant.release.name]):
        root = out.resolve() / "recipes" / variant.release.name
        recipe = tree_at(root).pkgs / f"{variant.name}.nix"
        if write:
            _write_recipe(catalog, variant, root)
    return nix_job(variant.name, recipe, out, tree=root, cores=cores)


def _write_recipe(catalog: Catalog, variant: Variant, root: Path) -> None:
    plans = plan_trees(
        catalog, root, releases=[variant.release.name], globs=[variant.name], pythons=[variant.python], force=True
    )
    for plan in plans:
        plan.apply()


def nix_job(name: str, recipe: Path, out: Path, *, tree: Path | None = None, cores: int | None = None) -> NixJob:
    """How a recipe is built here: with Flox in a tree of its own where there is Flox, else with Nix."""
    out = out.resolve()
    jobs = cores or default_cores()
    environment = {"NIX_BUILD_CORES": str(jobs)}
    logs = out / "logs" / name
    if tree and (tree / ".flox" / "env.json").is_file() and (flox := find_tool("flox")):
        in_tree = (str(flox), "build", name)
        return NixJob(name, recipe, tree / f"result-{name}", logs, in_tree, tree, jobs, environment)
    link = out / f"result-{name}"
    options = ("--log-format", "internal-json", "-v", "--cores", str(jobs))
    command: tuple[str, ...]
    if nix_build := find_tool("nix-build"):
        command = (str(nix_build), str(recipe.resolve()), "--out-link", str(link), *options)
    else:
        experimental = ("--extra-experimental-features", "nix-command", "--impure")
        command = (
            *(str(need_tool("nix")), "build", *experimental),
            *("--file", str(recipe.resolve()), "--out-link", str(link), *options),
        )
    return NixJob(name, recipe, link, logs, command, out, jobs, environment)


def run_nix_job(
    job: NixJob,
    *,
    watcher: NixWatcher | None = None,
    ledger: Ledger | None = None,
    release: str = "",
    needed: int | None = None,
) -> NixResult:
    """Run it; the attempt is in the ledger, and a failure is explained."""
    configuration = {"release": release, "tool": job.tool, "cores": job.cores}
    attempt = ledger.attempt(job.name, Method.NIX, configuration=configuration) if ledger else nullcontext(Running(0))
    with attempt as running:
        running.stage = "disk"
        check_disk(NEEDED_BYTES if needed is None else needed)
        running.stage = "build"
        result = _run(job, watcher, running)
        running.stage = ""
        running.output_bytes = result.output_bytes
        return result


def default_cores(probe: Probe | None = None) -> int:
    """As many compilers as this process has cores and memory for, within the limits of its container."""
    room = capacity(probe or LiveProbe())
    return max(1, min(room.cores, room.memory // (GIGABYTES_PER_JOB * 1024**3)))


def check_disk(needed: int) -> None:
    """Whether the store and the build folder have room."""
    places = {
        "the Nix store": Path(os.environ.get("NIX_STORE_DIR", "/nix/store")),
        "the build folder": Path(os.environ.get("TMPDIR", "/tmp")),
    }
    for what, place in places.items():
        there = existing_parent(place)
        free = shutil.disk_usage(there).free
        if free < needed:
            raise EnvironmentProblem(
                f"{what[0].upper()}{what[1:]} ({there}) has {free / 1e9:.1f} GB free; "
                f"a build of PyTorch needs {needed / 1e9:.0f} GB.",
                "Free some with `nix-collect-garbage -d`, or set TMPDIR to a larger disk.",
            )


def _run(job: NixJob, watcher: NixWatcher | None, running: Running) -> NixResult:
    job.logs.mkdir(parents=True, exist_ok=True)
    job.link.parent.mkdir(parents=True, exist_ok=True)
    log = NixLog(job.logs)
    began = time.monotonic()
    try:
        process = subprocess.Popen(
            job.command,
            cwd=job.folder,
            env={**os.environ, **job.environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
    except OSError as error:
        raise EnvironmentProblem(f"{job.tool} could not be started: {error.strerror}.", "Is Nix installed?") from error
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if log.feed(line):
                running.stage = str(log.progress)
                if watcher:
                    watcher.nix_progress(log.progress)
        code = process.wait()
    except BaseException:
        process.terminate()
        process.wait()
        raise
    finally:
        log.close()
        (job.logs / "nix.log").write_text(log.errors + "\n", encoding="utf-8")
    if code != 0:
        raise _with_log(explain(log.errors, log.tail), job).error()
    if not job.link.exists():
        raise EnvironmentProblem(
            f"{job.tool} ended well, but {job.link} is not there.", f"Its messages are in {job.logs}."
        )
    store_path = job.link.resolve()
    return NixResult(
        job.name, job.link, store_path, dict(log.logs), time.monotonic() - began, job.tool, _size(store_path)
    )


def _with_log(failure: NixFailure, job: NixJob) -> NixFailure:
    hint = failure.hint.replace("NAME", job.name)
    return NixFailure(failure.cause, failure.message, f"{hint} The logs are in {job.logs}.", failure.kind, failure.got)


def _size(path: Path) -> int:
    if path.is_file():
        return path.stat().st_size
    return sum(file.lstat().st_size for file in path.rglob("*") if not file.is_dir())
