"""`torchtailor tailor`: cut libraries, wheels, folders, or an environment in place."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from torchtailor.cli import _cut, _options
from torchtailor.core.errors import StoppedError

if TYPE_CHECKING:
    from torchtailor.tailoring.inputs import TailorReport
    from torchtailor.tailoring.result import TailorResult

_IN_PLACE = "In place"


@_cut.takes_cut("tailor")
def command(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(metavar="PATH", help="Libraries, wheels, folders; without any, the active environment."),
    ] = None,
    output: Annotated[
        str | None,  # a Path forgets the / at its end
        typer.Option(
            "--out",
            "-o",
            metavar="OUT",
            help="The new file or folder; for wheels, or with a / at its end, a folder. A wheel without it goes to the "
            "current folder, under a new name.",
        ),
    ] = None,
    env: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH", help="Cut this environment (undo: `torchtailor restore`).", rich_help_panel=_IN_PLACE
        ),
    ] = None,
    *,
    cut: _cut.ChosenCut,
    keep_removed: Annotated[
        bool,
        typer.Option(
            "--keep-removed", help="Keep what is cut out, so that it can be restored.", rich_help_panel=_IN_PLACE
        ),
    ] = False,
    jobs: _options.CutJobs = 0,
    dry_run: _options.CutDryRun = False,
    json: _options.Json = False,
) -> None:
    """Cut out the GPU code that a target cannot run."""
    from torchtailor.cli.ui import ProgressBar, err, print_json
    from torchtailor.tailoring.choices import cut_for
    from torchtailor.tailoring.inputs import tailor_inputs

    if cut.choices.get("drop") == ("list",):
        _print_drop_rules(json=json)
        return
    gpus = cut.given.get("gpu", ())
    options = cut_for(gpus, **cut.choices, keep_removed=keep_removed, dry_run=dry_run, processes=jobs)
    _cut.say_elsewhere_chosen(cut, options)
    in_place = env is not None or not paths
    with ProgressBar(quiet=json) as bar, _saying_what_changed(in_place=in_place, dry_run=dry_run):
        report = tailor_inputs(paths or (), options, output=output, env=env, progress=bar)
    if json:
        print_json("tailor", report.document)
    elif not _told_by_error(report):
        _print(report)
    for failure in report.failures[1:]:
        err().print(f"error: {failure.error.message}", markup=False)
    if report.error:
        raise report.error


@contextmanager
def _saying_what_changed(*, in_place: bool, dry_run: bool) -> Iterator[None]:
    """Say with Ctrl-C what is different now."""
    try:
        yield
    except KeyboardInterrupt as stop:
        notes = getattr(stop, "__notes__", ())
        if in_place and notes and not dry_run:
            undo = "" if notes[-1].startswith("Nothing") else " `torchtailor restore` undoes it."
            raise StoppedError(f"Stopped. {notes[-1]}", f"Run the same command to go on.{undo}") from stop
        unchanged = (
            "Nothing was changed." if in_place or dry_run else "Inputs are unchanged, and what is written is whole."
        )
        raise StoppedError(f"Stopped. {unchanged}", "Run the same command again.") from stop


def _told_by_error(report: TailorReport) -> bool:
    """Whether the error says all: nothing of another input, and nothing was cut, although it was read."""
    results = report.results
    alone = len(results) == 1 and not report.failures and results[0].useless_for_target and not results[0].differs
    return alone or all(result.foreign for result in results)


def _print_drop_rules(*, json: bool) -> None:
    from torchtailor.cli.ui import out, print_json, table
    from torchtailor.trees.artifact.drops import DropRules, drop_rules

    rules = tuple(drop_rules().values())
    if json:
        print_json("drop-rules", DropRules(rules))
        return
    rows = [[rule.name, rule.what, rule.breaks] for rule in rules]
    out().print(table(["Rule", "Leaves out", "What no longer works"], rows))


def _print(report: TailorReport) -> None:
    from torchtailor.cli.ui import human_bytes, out, table

    results = report.results
    changed = [library for result in results for library in result.changed]
    if changed:
        out().print(_cut.library_table([(library, "") for library in changed]))
    if len(results) > 1:
        inputs = [[result.source.name, *_input_sizes(result), _done(result)] for result in results]
        out().print(table(["Input", "Before", "After", "Left", "Result"], inputs))
    else:
        for result in results:
            before, after, left = _cut.sizes(result.size_before, result.size_after)
            sizes = f": {before} -> {after} ({left} left)" if result.differs and not result.size_after_unknown else ""
            if result.packs_size and sizes:
                sizes += f", {human_bytes(result.size_after - result.packs_size)} without its packs"
            elif _apart(report, [result]) and result.dry_run and sizes:
                sizes += " without its packs"
            out().print(f"{result.source} -> {_done(result)}{sizes}", markup=False)
    for result in results:
        _warn(result)
    _print_leftovers(report)
    saved = max(sum(library.saved for library in changed), 0)  # code that lies in small pieces leaves zeros
    if kept := sum(result.removed_size for result in results):
        gained = sum(result.size_before - result.size_after for result in results) - kept
        disk = f"{human_bytes(gained)} of disk were freed" if gained >= 0 else f"{human_bytes(-gained)} more are in use"
        out().print(f"What was cut out is kept ({human_bytes(kept)}): {disk}.", markup=False)
    if not any(result.differs for result in results):
        out().print(report.why_nothing, markup=False)
    for line in _explained(report):
        out().print(line, markup=False)
    _print_nvidias(results)
    out().print(_last_line(report, saved), markup=False)
    for line in _how_to_undo(report):
        out().print(line, markup=False)


def _apart(report: TailorReport, results: Sequence[TailorResult]) -> bool:
    """Whether the libraries' sizes leave out packs, which take room themselves."""
    moved = any(library.moved or library.pages for result in results for library in result.changed)
    return moved and not report.options.no_pack


def _last_line(report: TailorReport, saved: int) -> str:
    """What it gained; where code went to packs, which take room themselves, what is left of the libraries."""
    from torchtailor.cli.ui import human_bytes, human_seconds

    dry_run, targets, took = report.options.dry_run, report.options.targets, human_seconds(report.seconds)
    size = sum(library.size_before for result in report.results for library in result.libraries)
    before, after, left = _cut.sizes(size, size - saved)
    if _apart(report, report.results):
        line = f"Libraries for {targets}: {before} -> {after} ({left} left) without their packs"
        return f"{line}. Nothing was written; looking took {took}." if dry_run else f"{line}, in {took}."
    line = f"{'Would save' if dry_run else 'Saved'} {human_bytes(saved)} of libraries for {targets}"
    line += "" if dry_run else f" in {took}"
    line += f": {before} -> {after} ({left} left)." if saved else "."
    return f"{line} Nothing was written; looking took {took}." if dry_run else line  # it reads all that a cut reads


def _input_sizes(result: TailorResult) -> tuple[str, ...]:
    """Before, after and the share that is left; the size of a wheel that was not written is not known."""
    from torchtailor.cli.ui import human_bytes

    if result.size_after_unknown:
        return human_bytes(result.size_before), "", ""
    return _cut.sizes(result.size_before, result.size_after)


def _explained(report: TailorReport) -> Iterator[str]:
    """Why an option had no effect, and what may surprise in the code that is left."""
    from torchtailor.code.gpucode.fitness import only_ptx

    yield from filter(None, (report.why_not_packed, report.why_not_paged, report.why_no_ptx))
    targets = report.options.targets
    for device in targets.devices:
        if names := report.only_ptx(device):
            yield only_ptx(len(names), str(device), names)
    if report.leaves_unloaded:
        gone = "would go" if report.options.dry_run else "went"
        yield f"Code for {targets} that no driver loads {gone} too: `torchtailor inspect --unused`, of stock, says why."


def _how_to_undo(report: TailorReport) -> Iterator[str]:
    """What undoes a cut in place."""
    for result in report.results:
        if result.output != result.source or not result.differs or result.dry_run:
            continue
        restore = f"To undo: `torchtailor restore --env {shlex.quote(str(result.source))}`"
        if report.options.keep_removed:
            yield f"{restore}."
        else:
            yield f"{restore} prints the command that reinstalls what was cut, which --keep-removed would have kept."


def _print_nvidias(results: Sequence[TailorResult]) -> None:
    """What --nvidia would do in addition."""
    from torchtailor.cli.ui import human_bytes, out
    from torchtailor.core.format import counted

    first = "(read `torchtailor help licences` first)."
    if kept := [file for result in results for file in result.kept_files]:
        what = f"{counted(len(kept), 'file')} of {human_bytes(sum(file.size for file in kept))}"
        out().print(f"Kept {what} of NVIDIA's packages: --nvidia leaves such files out too {first}", markup=False)
    if missed := sum(result.could_save for result in results):
        more = f"--nvidia would save another {human_bytes(missed)}"
        out().print(f"NVIDIA's own libraries are unchanged: {more} {first}", markup=False)


def _print_leftovers(report: TailorReport) -> None:
    """Files that were left out, what other options would save, and what stays as zeros."""
    from torchtailor.cli.ui import human_bytes, out

    results = report.results
    for line in (line for result in results for line in _cut.said_of_left_out(result, report.options)):
        out().print(line, markup=False)
    dry_run = report.options.dry_run
    said = [line for result in results for line in _cut.said_of_no_gpu(result, dry_run=dry_run)]
    said += [line for result in results for line in _cut.said_of_indexes(result, dry_run=dry_run)]
    for line in (*said, *_cut.said_of_cpu_builds(stand_in for result in results for stand_in in result.stand_ins)):
        out().print(line, markup=False)
    wheels = any(result.pack_wheels for result in results)  # the size of each is below
    libraries = [library for result in results for library in result.changed]
    for line in _cut.said_of_packs(libraries, report.options, sizes=not wheels):
        out().print(line, markup=False)
    for pack in (pack for result in results for pack in result.pack_wheels):
        out().print(f"For {pack.target}: {pack.path} ({human_bytes(pack.size)}).", markup=False)
    if unopened := sum(result.unopened for result in results):
        out().print(
            f"Files that the workload never opened take {human_bytes(unopened)}: --drop-unopened moves or drops them.",
            markup=False,
        )
    if symbols := sum(result.could_strip for result in results):
        out().print(f"--strip would cut out another {human_bytes(symbols)} of symbol tables.", markup=False)
    if linkable := sum(result.could_drop_lto for result in results):
        out().print(
            f"LTO-IR is unchanged: --no-lto would save another {human_bytes(linkable)} "
            "(`torchtailor help left-out` says what needs it).",
            markup=False,
        )
    if zeroed := sum(library.zeroed for result in results for library in result.changed):
        out().print(
            f"Another {human_bytes(zeroed)} of removed code stays in the files as zeros: wheels compress them away, "
            "and disks do not store whole blocks of them.",
            markup=False,
        )


def _warn(result: TailorResult) -> None:
    """What was left unchanged although nobody asked for that."""
    from torchtailor.cli.ui import err
    from torchtailor.surgery.result import LibraryStatus
    from torchtailor.tailoring.result import COPIED

    for library in result.libraries:
        if library.status is LibraryStatus.SKIPPED:
            err().print(f"warning: {library.path} is unchanged: {library.reason.rstrip('.')}.", markup=False)
        for warning in library.warnings:
            err().print(f"warning: {library.path} {warning}.", markup=False)
    for note in result.notes:
        if note != COPIED:
            err().print(f"warning: {note}", markup=False)


def _done(result: TailorResult) -> str:
    """What was done to an input, in a few words."""
    if result.not_needed:
        return "not needed without a GPU"
    if result.useless_for_target:
        return "nothing for the target"
    if not result.differs:
        return "nothing to cut" if result.output in (None, result.source) else "copied unchanged"
    if result.output is None:
        return "would be cut"
    if result.output == result.source:
        return "would be cut in place" if result.dry_run else "cut in place"
    return str(result.output)
