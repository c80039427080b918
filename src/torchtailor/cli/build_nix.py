"""`torchtailor build --via nix`: recipes built by Flox or Nix, shown as they go."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchtailor.catalog import Catalog
    from torchtailor.recipes.nixlog import NixProgress

_GLOB_SIGNS = "*?[{"


def build_via_nix(
    catalog: Catalog,
    words: Sequence[str],
    *,
    release: str | None,
    python: str | None,
    out: Path,
    dry_run: bool,
    json: bool,
) -> None:
    """Build the recipes of variants one after another: of this folder's tree, or written below `out`."""
    from torchtailor import ui
    from torchtailor.backends.choose import choose
    from torchtailor.backends.nix import plan_nix, run_nix_job
    from torchtailor.catalog import Method
    from torchtailor.ledger.ledger import Ledger
    from torchtailor.recipes.write import recipe_releases

    if release is None and any(sign in word for word in words for sign in _GLOB_SIGNS):
        release = recipe_releases(catalog)[-1]
    variants = [item.variant for item in choose(catalog, words, release=release, python=python, via=Method.NIX)]
    jobs = [(variant, plan_nix(catalog, variant, out, write=not dry_run)) for variant in variants]
    if dry_run:
        if json:
            ui.print_json([job.to_json() for _, job in jobs])
        else:
            for _, job in jobs:
                ui.out().print(f"{job.name}: {' '.join(job.command)}", markup=False, soft_wrap=True)
        return
    results = []
    for variant, job in jobs:
        ui.err().print(f"Building {job.name} with {job.tool}, {job.cores} jobs; logs in {job.logs}", markup=False)
        with _Shown() as shown:
            result = run_nix_job(job, watcher=shown, ledger=Ledger(), release=variant.release.name)
        results.append(result)
        if not json:
            took = f"{ui.human_bytes(result.output_bytes)} in {ui.human_seconds(result.seconds)}"
            ui.out().print(f"{result.link}: {took}", markup=False, soft_wrap=True)
    if json:
        ui.print_json([result.to_json() for result in results])


class _Shown:
    """A bar on a terminal; elsewhere a line for each phase of each build."""

    def __init__(self) -> None:
        from torchtailor import ui

        self._bar: Any = ui.progress()
        self._task: Any = None
        self._said = ""

    def __enter__(self) -> _Shown:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def nix_progress(self, progress: NixProgress) -> None:
        if sys.stderr.isatty():
            if self._task is None:
                self._task = self._bar.add_task("", total=None)
            total = progress.steps or None
            self._bar.update(self._task, description=str(progress), total=total, completed=progress.step)
            return
        said = f"{progress.current} {progress.phase}".strip()
        if said and said != self._said:
            from torchtailor import ui

            self._said = said
            ui.err().print(said, markup=False)
