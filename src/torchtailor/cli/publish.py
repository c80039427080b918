"""`torchtailor publish`: adds wheelhouses to a shared index, or a Nix variant to a Flox catalog."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from torchtailor.cli import _options
from torchtailor.cli._age import seconds_of
from torchtailor.core.errors import UsageError
from torchtailor.core.format import counted

if TYPE_CHECKING:
    from torchtailor.publish.lifecycle import Changed
    from torchtailor.publish.publish import Published


_LIFE = "The life of an index (with --to)"
_NIX = "Nix variants"


def command(
    dist: Annotated[
        Path, typer.Argument(metavar="DIST", help="A folder that `torchtailor build` wrote, or one of its wheelhouses.")
    ] = Path("dist"),
    selectors: Annotated[
        list[str] | None,
        typer.Argument(metavar="SELECTOR", help="Only variants such as 'sm90-*' or sm{80,90}-avx2; default: all."),
    ] = None,
    to: Annotated[
        str | None,
        typer.Option(metavar="WHERE", help="A folder, or a URL that fsspec supports, such as s3://bucket/torch."),
    ] = None,
    publish_nvidia: Annotated[
        bool,
        typer.Option(
            "--publish-nvidia",
            help="Changed NVIDIA libraries too: you confirm that you may (`torchtailor help licences`).",
        ),
    ] = False,
    list_: Annotated[
        bool, typer.Option("--list", help="Show what the index offers, and its generations.", rich_help_panel=_LIFE)
    ] = False,
    promote: Annotated[
        str | None,
        typer.Option(metavar="STAGING", help="Add everything that this other index offers.", rich_help_panel=_LIFE),
    ] = None,
    yank: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="No new installations of a file, a glob such as 'cu128-sm90/torch-*', or torch==2.10.0.",
            rich_help_panel=_LIFE,
        ),
    ] = None,
    unyank: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Undo --yank.", rich_help_panel=_LIFE)
    ] = None,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="With --yank: why.", rich_help_panel=_LIFE)] = "",
    rollback: Annotated[
        str | None,
        typer.Option(
            metavar="N|previous", help="Offer again what generation N of --list offered.", rich_help_panel=_LIFE
        ),
    ] = None,
    prune: Annotated[
        bool,
        typer.Option("--prune", help="Remove old generations, and files that nothing lists.", rich_help_panel=_LIFE),
    ] = False,
    keep: Annotated[
        int | None, typer.Option(min=1, help="With --prune: generations to keep, if not 10.", rich_help_panel=_LIFE)
    ] = None,
    grace: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="With --prune: how long an unlisted file stays, if not 1d.", rich_help_panel=_LIFE
        ),
    ] = None,
    flox: Annotated[
        str | None,
        typer.Option("--flox", metavar="ORG", help="Publish to this Flox organisation.", rich_help_panel=_NIX),
    ] = None,
    variant: Annotated[
        str | None, typer.Option(metavar="NAME", help="With --flox: the variant's name.", rich_help_panel=_NIX)
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", "-n", help="Check, and show what would be done.")] = False,
    json: _options.Json = False,
    quiet: _options.Quiet = False,
) -> None:
    """Add built variants to an index for others.

    The index has a folder per target, such as cu128-sm90, for pip and uv, and one with wheel variants if they were
    built. With --flox, DIST is the recipes' checkout; `flox publish` runs after checks of that checkout.
    """
    if selectors and (list_ or promote or yank or unyank or rollback or prune or flox):
        raise UsageError("A selector chooses what is published of DIST.", "Leave it out here.")
    if to is not None and flox is not None:
        raise UsageError("--to and --flox are two destinations.", "Give either --to or --flox.")
    if to is None and flox is None:
        raise UsageError(
            "No destination was given.", "Give --to FOLDER or --to s3://bucket/path, or --flox ORG for a Nix variant."
        )
    actions = [list_, promote is not None, bool(yank), bool(unyank), rollback is not None, prune, flox is not None]
    if sum(actions) > 1:
        raise UsageError(
            "Only one of --list, --promote, --yank, --unyank, --rollback, --prune at a time.", "Choose one."
        )
    _refuse_without("--yank", bool(yank), {"--reason": reason})
    _refuse_without("--prune", prune, {"--keep": keep, "--grace": grace})
    _refuse_without("--flox", flox is not None, {"--variant": variant})
    if flox is not None:
        _flox(dist, variant, flox, dry_run=dry_run, json=json)
        return
    assert to is not None
    say = None if quiet or json else _say
    if list_:
        _list(to, json=json)
        return
    from torchtailor.core.store import open_store
    from torchtailor.publish import lifecycle
    from torchtailor.publish.dry_run import DryStore

    store = DryStore.of(to) if dry_run else open_store(to, "--to")
    if promote is not None:
        done = lifecycle.promote(open_store(promote, "--promote"), store, nvidia_too=publish_nvidia, say=say)
    elif yank:
        done = lifecycle.yank(store, yank, reason)
    elif unyank:
        done = lifecycle.unyank(store, unyank)
    elif rollback is not None:
        done = lifecycle.rollback(store, rollback)
    elif prune:
        unlisted = lifecycle.GRACE if grace is None else seconds_of(grace, "--grace")
        done = lifecycle.prune(store, keep=keep or lifecycle.KEPT_GENERATIONS, grace=unlisted)
    else:
        result = lifecycle.publish_recorded(
            dist, store, selectors=selectors or (), nvidia_too=publish_nvidia, say=None if dry_run else say
        )
        _show_published(result, to, dry_run=dry_run, json=json)
        return
    _show_changed(done, dry_run=dry_run, json=json)


def _refuse_without(action: str, wanted: bool, options: Mapping[str, object]) -> None:
    """Refuse options of an action that was not asked for: without it everything would be published."""
    for option, value in options.items():
        if value and not wanted:
            raise UsageError(f"{option} is for {action} alone.", f"Add {action}, or leave {option} out.")


def _say(text: str) -> None:
    from torchtailor.cli import ui

    ui.err().print(text, markup=False)


def _show_published(result: Published, to: str, *, dry_run: bool, json: bool) -> None:
    from torchtailor.cli import ui
    from torchtailor.core.urls import redact

    if json:
        ui.print_json("publish", replace(result, to=redact(to), dry_run=dry_run))
        return
    for note in result.notes:
        _say(note)
    if result.left_out:
        _say(
            f"{len(result.left_out)} changed NVIDIA wheels are not published (their licence); the index has the stock "
            "ones. If you may publish them, add --publish-nvidia."
        )
    verb = "would be added" if dry_run else "added"
    ui.out().print(
        f"{', '.join(result.targets)}: {counted(result.uploaded, 'file')} {verb} "
        f"({ui.human_bytes(result.uploaded_bytes)}), {result.already_there} were there before.",
        markup=False,
    )


def _show_changed(done: Changed, *, dry_run: bool, json: bool) -> None:
    from torchtailor.cli import ui

    if json:
        ui.print_json("publish-change", replace(done, dry_run=dry_run))
        return
    for name in (*done.changed, *done.removed):
        ui.out().print(f"  {name}", markup=False)
    would = "would be " if dry_run else ""
    parts = [f"{len(done.changed)} entries of pages {would}changed"]
    if done.copied_bytes:
        parts.append(f"{ui.human_bytes(done.copied_bytes)} {would}copied")
    if done.action == "prune":
        parts = [f"{counted(len(done.removed), 'file')} ({ui.human_bytes(done.removed_bytes)}) {would}removed"]
    if done.generation and not dry_run:
        parts.append(f"this is generation {done.generation}")
    ui.out().print(f"{done.action}: {', '.join(parts)}.", markup=False)


def _list(to: str, *, json: bool) -> None:
    from torchtailor.cli import ui
    from torchtailor.core.urls import redact
    from torchtailor.publish.dry_run import DryStore
    from torchtailor.publish.lifecycle import list_index

    listing = list_index(DryStore.of(to))
    if json:
        ui.print_json("publish-list", listing, to=redact(to))
        return
    rows = [(target, file.filename, ui.human_bytes(file.size), file.yanked) for target, file in listing.files]
    ui.out().print(ui.table(("target", "file", "size", "yanked"), rows))
    generations = [
        (
            generation.number,
            generation.time.astimezone().strftime("%Y-%m-%d %H:%M"),
            generation.files,
            generation.action,
        )
        for generation in listing.generations
    ]
    ui.out().print(ui.table(("generation", "time", "files", "change"), generations))


def _flox(folder: Path, variant: str | None, organisation: str, *, dry_run: bool, json: bool) -> None:
    from torchtailor.cli import ui
    from torchtailor.publish.flox import FloxCall, FloxPublished

    if variant is None:
        raise UsageError("No Nix variant was given.", "Add --variant with its name.")
    call = FloxCall.for_variant(variant, folder, organisation)
    if dry_run:
        call.check()
        if call.without_flox:
            ui.err().print(call.without_flox, markup=False)
    else:
        call.run()
    if json:
        ui.print_json("publish-flox", FloxPublished(call.line, not dry_run))
    elif dry_run:
        ui.out().print(f"Would run {' '.join(call.line)} in {folder.resolve()}.", markup=False)
