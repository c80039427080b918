"""`torchtailor tailor`: cut libraries, wheels, folders, or an environment in place."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from torchtailor.errors import UsageError

if TYPE_CHECKING:
    from torchtailor.tailor.outcome import Outcome
    from torchtailor.tailor.run import Failure
    from torchtailor.tailor.settings import Settings


def command(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(metavar="PATH", help="Libraries, wheels, folders; without any, the active environment."),
    ] = None,
    gpu: Annotated[
        list[str] | None,
        typer.Option(
            help="Targets: 9.0, sm_90, 8.0,9.0a, 12.0+PTX, 'RTX 4090', native. Default: TORCH_CUDA_ARCH_LIST."
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="OUT", help="The new file or folder; for wheels a folder.")
    ] = None,
    env: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="Cut this environment in place (restore: `torchtailor restore`)."),
    ] = None,
    nvidia: Annotated[
        bool, typer.Option("--nvidia", help="Cut NVIDIA's own libraries too (docs/licences.md says what that means).")
    ] = False,
    keep_ptx: Annotated[bool, typer.Option("--keep-ptx", help="Keep PTX as well, for GPUs yet to come.")] = False,
    strip: Annotated[
        bool | None, typer.Option("--strip/--no-strip", help="Remove symbol tables; by default from wheels only.")
    ] = None,
    recompress: Annotated[
        bool, typer.Option("--recompress", help="Store GPU code anew as zstd (needs driver 550.54 or newer).")
    ] = False,
    level: Annotated[int, typer.Option(min=1, max=22, help="The zstd level of --recompress.")] = 19,
    driver: Annotated[
        str | None, typer.Option(metavar="VERSION", help="The oldest driver the result must run on, such as 550.54.")
    ] = None,
    keep_removed: Annotated[
        bool, typer.Option("--keep-removed", help="In place: keep what is cut out, so that it can be restored.")
    ] = False,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=0, help="Processes; 0 means one per core.")] = 0,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", "-n", help="Say what would be done, and write nothing.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON (docs/tailor.md has the schema).")] = False,
) -> None:
    """Cut out the GPU code that a target cannot run."""
    from torchtailor.cgroups import available_cores
    from torchtailor.tailor.run import Failure, check_all, tailor_in_place, tailor_paths
    from torchtailor.ui import ProgressBar, err, print_json

    in_place = env is not None or not paths
    if env is not None and paths:
        raise UsageError("--env cuts an environment in place; it takes no other PATH.", "Run the command twice.")
    if in_place and output is not None:
        raise UsageError("An environment is cut in place; -o does not go with it.", "Leave out -o, or name a PATH.")
    if keep_removed and not in_place:
        raise UsageError("--keep-removed is for environments: other inputs are never changed.", "Leave it out.")
    settings = _settings(
        gpu or (),
        nvidia=nvidia,
        keep_ptx=keep_ptx,
        strip=strip,
        recompress=recompress,
        level=level,
        driver=driver,
        keep_removed=keep_removed,
        processes=jobs or available_cores(),
        dry_run=dry_run,
    )
    if settings.targets.source != "--gpu":
        err().print(f"Target {settings.targets}, from {settings.targets.source}.", markup=False)
    started = time.monotonic()
    with ProgressBar(quiet=json) as bar:
        results: list[Outcome | Failure] = (
            [*tailor_in_place(env, settings, bar)] if in_place else [*tailor_paths(paths or (), output, settings, bar)]
        )
    outcomes = [result for result in results if not isinstance(result, Failure)]
    failures = [result for result in results if isinstance(result, Failure)]
    seconds = time.monotonic() - started
    if json:
        print_json(_document(outcomes, failures, settings, seconds))
    elif outcomes:
        _print(outcomes, settings, seconds)
    for failure in failures[1:]:
        err().print(f"error: {failure.error.message}", markup=False)
    check_all(outcomes, failures, settings)


def _settings(
    gpus: Sequence[str],
    *,
    nvidia: bool,
    keep_ptx: bool,
    strip: bool | None,
    recompress: bool,
    level: int,
    driver: str | None,
    keep_removed: bool,
    processes: int,
    dry_run: bool,
) -> Settings:
    from torchtailor.catalog import load_catalog
    from torchtailor.gpucode.policy import Policy
    from torchtailor.gpucode.targets import read_targets
    from torchtailor.surgery.recompress import Recompress
    from torchtailor.tailor.settings import Settings

    catalog = load_catalog()
    targets = read_targets(gpus, catalog, os.environ, keep_ptx=keep_ptx)
    how = Recompress(level=level, driver=driver, processes=processes) if recompress else None
    if how:
        how.check()
    return Settings(
        targets=targets,
        policy=Policy(targets.archs, catalog.rules, keep_ptx=targets.keep_ptx),
        strip=strip,
        nvidia=nvidia or catalog.tailor.nvidia,
        recompress=how,
        dry_run=dry_run,
        keep_removed=keep_removed,
        processes=processes,
    )


def _document(
    outcomes: Sequence[Outcome], failures: Sequence[Failure], settings: Settings, seconds: float
) -> dict[str, Any]:
    from torchtailor.tailor.manifest import library_json

    return {
        "dry_run": settings.dry_run,
        "seconds": round(seconds, 3),
        **settings.choices(usually_strip=False).to_json(),
        "inputs": [
            {
                "kind": outcome.kind,
                "source": str(outcome.source),
                "output": outcome.output and str(outcome.output),
                "size_before": outcome.size_before,
                "size_after": outcome.size_after,
                "sha256_before": outcome.sha256_before,
                "sha256_after": outcome.sha256_after,
                "could_save": outcome.could_save,
                "useless_for_target": outcome.useless_for_target,
                "notes": list(outcome.notes),
                "libraries": [library_json(library) for library in outcome.libraries],
            }
            for outcome in outcomes
        ],
        "failures": [
            {"source": str(failure.source), "error": failure.error.message, "hint": failure.error.hint}
            for failure in failures
        ],
    }


def _print(outcomes: Sequence[Outcome], settings: Settings, seconds: float) -> None:
    from torchtailor.tailor.outcome import Fate
    from torchtailor.ui import err, human_bytes, human_seconds, out, table

    changed = [library for outcome in outcomes for library in outcome.changed]
    if changed:
        rows = [
            [library.path, *_sizes(library.size_before, library.size_after), _kept(library.result)]
            for library in sorted(changed, key=lambda library: library.size_before, reverse=True)
        ]
        out().print(table(["Library", "Before", "After", "Left", "GPU code kept"], rows))
    if len(outcomes) > 1:
        inputs = [
            [outcome.source.name, *_sizes(outcome.size_before, outcome.size_after), _result(outcome)]
            for outcome in outcomes
        ]
        out().print(table(["Input", "Before", "After", "Left", "Result"], inputs))
    else:
        for outcome in outcomes:
            before, after, left = _sizes(outcome.size_before, outcome.size_after)
            sizes = f": {before} -> {after} ({left})" if outcome.changed and not outcome.dry_run else ""
            out().print(f"{outcome.source} -> {_result(outcome)}{sizes}", markup=False)
    for outcome in outcomes:
        for library in outcome.libraries:
            if library.fate is Fate.SKIPPED:
                err().print(f"warning: {library.path} was left as it is: {library.reason}.", markup=False)
            for warning in library.warnings:
                err().print(f"warning: {library.path} {warning}.", markup=False)
    if missed := sum(outcome.could_save for outcome in outcomes):
        out().print(
            f"NVIDIA's own libraries were left as they are: --nvidia would save another {human_bytes(missed)} "
            "(docs/licences.md says what that means).",
            markup=False,
        )
    saved = sum(library.size_before - library.size_after for library in changed)
    verb = "Would save" if settings.dry_run else "Saved"
    out().print(
        f"{verb} {human_bytes(saved)} of libraries for {settings.targets} in {human_seconds(seconds)}.", markup=False
    )


def _result(outcome: Outcome) -> str:
    """What became of an input, in a few words."""
    if outcome.useless_for_target:
        return "nothing for the target"
    if not outcome.changed:
        return "nothing to cut" if outcome.output is None or outcome.kind == "environment" else "copied as it is"
    if outcome.output is None:
        return "would be cut"
    return "cut in place" if outcome.output == outcome.source else str(outcome.output)


def _sizes(before: int, after: int) -> tuple[str, str, str]:
    from torchtailor.ui import human_bytes

    return human_bytes(before), human_bytes(after), f"{100 * after / before:.0f} %" if before else ""


def _kept(result: Any) -> str:
    return ", ".join(result.kept) if result else ""
