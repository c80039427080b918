"""`torchtailor cache`: list and prune downloaded and cut wheels."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Annotated

import typer

from torchtailor.cli import _options
from torchtailor.cli._age import seconds_of
from torchtailor.cli._layout import GroupedCommand, GroupedGroup
from torchtailor.core.errors import UsageError

if TYPE_CHECKING:
    from torchtailor.fetch.cache import Cache, Entry

app = typer.Typer(
    cls=GroupedGroup, add_completion=False, rich_markup_mode=None, help="Show or empty the cache of wheels."
)


@app.callback(invoke_without_command=True)
def main(context: typer.Context) -> None:
    """Show or empty the cache of wheels."""
    if context.invoked_subcommand is None:
        list_command()


@app.command("list", cls=GroupedCommand)
def list_command(
    json: _options.Json = False,
) -> None:
    """List wheels, partial downloads and cut wheels."""
    from torchtailor.cli import ui
    from torchtailor.core.documents import document
    from torchtailor.core.format import counted
    from torchtailor.fetch.cache import Cache, CacheListing, EntryDocument

    cache = Cache()
    entries = sorted([*cache.entries(), *_farm(cache, math.inf)], key=lambda entry: -entry.size)
    if json:
        listed = [document(EntryDocument, entry) for entry in entries]
        ui.print_json("cache", CacheListing(cache.root, listed))
        return
    lines = [
        (
            entry.kind.value,
            entry.name,
            ui.human_bytes(entry.size),
            entry.last_used.strftime("%Y-%m-%d %H:%M"),
        )
        for entry in entries
    ]
    if lines:
        ui.out().print(ui.table(("kind", "name", "size", "used"), lines))
    total = ui.human_bytes(sum(entry.size for entry in entries))
    ui.out().print(f"{counted(len(entries), 'entry', 'entries')}, {total} in {cache.root}", markup=False)


@app.command(cls=GroupedCommand)
def prune(
    older_than: Annotated[str | None, typer.Option(help="Only what was not used for this long: 12h, 30d, 8w.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Everything.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", "-n", help="Show what would be removed.")] = False,
    json: _options.Json = False,
) -> None:
    """Remove what was not used for 30 days, or for --older-than."""
    from torchtailor.cli import ui
    from torchtailor.core.format import counted
    from torchtailor.fetch.cache import Cache, CachePruned

    if everything and older_than:
        raise UsageError("--all and --older-than are mutually exclusive.", "Give one of them.")
    age = None if everything else seconds_of(older_than or "30d", "--older-than")
    cache = Cache()
    farm = _farm(cache, math.inf if age is None else time.time() - age)
    gone = (*cache.prune(older_than=age, dry_run=dry_run), *farm)
    if not dry_run:
        for path in (path for entry in farm for path in entry.files):
            path.unlink(missing_ok=True)
    size = sum(entry.size for entry in gone)
    if json:
        ui.print_json("cache-prune", CachePruned([entry.name for entry in gone], size, dry_run))
        return
    done = "would be removed" if dry_run else "removed"
    ui.out().print(f"{counted(len(gone), 'entry', 'entries')}, {ui.human_bytes(size)} {done}.", markup=False)


@app.command("dir", cls=GroupedCommand)
def dir_command() -> None:
    """Print the folder of the cache."""
    from torchtailor.core.disk import cache_folder

    typer.echo(cache_folder())


def _farm(cache: Cache, before: float) -> list[Entry]:
    """What the farm's store holds and was last used before a time; files that it shares with the cache count there."""
    from torchtailor.building.farm.store import unused_files
    from torchtailor.fetch.cache import Entry, EntryKind

    root = cache.root / "farm"
    files = unused_files(root, before)
    if not files:
        return []
    status = [path.stat() for path in files]
    size = sum(one.st_size for one in status if one.st_nlink == 1)
    used = max(one.st_mtime for one in status)
    return [Entry(EntryKind.FARM, "outputs of farm jobs", size, used, root, files)]
