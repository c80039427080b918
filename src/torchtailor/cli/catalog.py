"""`torchtailor catalog`: what the indexes have that the catalog does not know, and rows for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from torchtailor.cli import _options
from torchtailor.cli._layout import GroupedCommand, GroupedGroup
from torchtailor.core.errors import ExitCode
from torchtailor.fetch.options import IndexOptions

if TYPE_CHECKING:
    from torchtailor.catalog import Dotted
    from torchtailor.fetch.upkeep.update import CatalogUpdate

app = typer.Typer(
    cls=GroupedGroup,
    help="The catalog of GPUs, CUDA toolkits and PyTorch releases: keep it up to date.",
    add_completion=False,
    rich_markup_mode=None,
)


@app.callback()
def group() -> None:
    """Keep the catalog up to date."""


@app.command("update", cls=GroupedCommand, short_help="Add what is new on the indexes.")
@_options.takes_indexes("index_url", "extra_index_urls", "find_links")
def update(
    measure: Annotated[
        bool, typer.Option("--measure", help="Also read the libraries of new wheels (hundreds of MB each).")
    ] = False,
    since: Annotated[
        str | None, typer.Option("--since", metavar="RELEASE", help="Also add older releases, from this one on: 2.1.")
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Write nothing; exit 6 if the catalog is behind.")] = False,
    write_data: Annotated[
        bool, typer.Option("--write-data", help="Write to the catalog of this repository, not to torchtailor.toml.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", "-n", help="Print the rows, and write nothing.")] = False,
    *,
    indexes: IndexOptions,
    json: _options.Json = False,
    quiet: _options.Quiet = False,
) -> int:
    """Show what is new on the configured indexes, and add it to torchtailor.toml.

    Releases, patch releases, CUDA builds, platforms, Pythons and the versions of NVIDIA's packages are read from the
    wheels' METADATA and torch/version.py by range requests; with --measure the architectures and the needs of the host
    code come from the libraries themselves. No wheel is stored.
    """
    from torchtailor.catalog import load_catalog
    from torchtailor.catalog.age import today
    from torchtailor.cli.ui import ProgressBar, err, out, print_json
    from torchtailor.fetch.finder import Finder
    from torchtailor.fetch.upkeep import write
    from torchtailor.fetch.upkeep.update import find_updates

    data = write.repository_data() if write_data else None
    catalog = load_catalog(data)  # a user's file is not part of the repository's catalog
    with ProgressBar(quiet=quiet or json) as bar:
        found = find_updates(
            catalog,
            Finder.of(indexes),
            measured=measure,
            since=_release_line(since) if since else None,
            today=today(),
            progress=bar,
        )
    if not json:  # before anything is written, which may fail
        for problem in found.problems:
            err().print(f"Note: {problem}", style="yellow", markup=False)
        for line in _lines(found):
            out().print(line, markup=False)
        if dry_run and found.rows:
            out().print(f"\n{found.rows.text}", markup=False, end="")
    written = () if check or dry_run else _write(found, data)
    if json:
        print_json("catalog-update", replace(found, written=written))
    else:
        for path in written:
            out().print(f"Written to {path}.", markup=False)
        if written and data is not None:
            out().print("Run `make docs`: the tables in docs are made from the catalog.", markup=False)
    if check and found.behind:
        return ExitCode.CHECK_FAILED
    return ExitCode.OK if found.complete else ExitCode.NETWORK


def _release_line(text: str) -> Dotted:
    from torchtailor.catalog import Dotted
    from torchtailor.core.errors import UsageError

    try:
        return Dotted(text)
    except ValueError:
        raise UsageError(f"--since {text!r} is not a release such as 2.1.", "Write --since 2.1.") from None


def _write(found: CatalogUpdate, data: Path | None) -> tuple[Path, ...]:
    """Put the rows into the repository's catalog or the user's file; that it was read today counts as news where the
    catalog is old."""
    from torchtailor.catalog.age import age_note
    from torchtailor.catalog.load import USER_FILE
    from torchtailor.fetch.upkeep import write

    if data is not None:
        return write.write_data(data, found.rows) if found.rows or found.complete else ()
    if not found.rows and not (found.complete and age_note(found.catalog_checked)):
        return ()
    path = Path.cwd() / USER_FILE
    write.write_user_file(path, found.rows)
    return (path,)


def _lines(found: CatalogUpdate) -> Iterator[str]:
    from torchtailor.cli.ui import human_bytes, human_seconds

    for news in found.news:
        yield f"New {news.kind.value} ({news.release}): {news.text}"
    for item in found.measured:
        needs = ", ".join(item.baseline) or "nothing beyond the platform's oldest CPU"
        yield f"Measured {item.wheel}: {item.architectures or 'no GPU code'}; host code needs {needs}"
    if not found.news and not found.complete:
        yield "Nothing new was found, but not every configured index and new wheel could be read."
    elif not found.news and found.problems:
        yield "Nothing is new on the indexes that could be read."
    elif not found.news:
        yield f"Nothing is new: the catalog of {found.catalog_checked} knows all that the indexes list."
    indexes = "1 index" if len(found.locations) == 1 else f"{len(found.locations)} indexes"
    wheels = "1 wheel" if found.wheels_read == 1 else f"{found.wheels_read} wheels"
    yield f"{indexes}, {wheels}, {human_bytes(found.bytes_read)} read in {human_seconds(found.seconds)}"
