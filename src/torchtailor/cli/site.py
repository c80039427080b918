"""`torchtailor site`: the selector, the matrix and the guides as static pages."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from torchtailor.cli import _options
from torchtailor.core.errors import UsageError


def command(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The folder to write to; it is made if it is missing.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", "-n", help="Make the pages, and write nothing.")] = False,
    json: _options.Json = False,
    quiet: _options.Quiet = False,
) -> None:
    """Write a page on which one picks hardware and gets the command.

    index.html asks for the hardware and answers as `torchtailor recommend` does: the page runs the same code, compiled,
    and needs neither a server nor a network. matrix.html, gpus.html and cpus.html are the catalog as tables. Rows of
    torchtailor.toml are part of it.
    """
    from torchtailor.catalog import load_catalog
    from torchtailor.cli import ui
    from torchtailor.site.pages import SiteDocument, render_site, site_sizes, write_site

    if out.exists() and not out.is_dir():
        raise UsageError(f"{out} is a file.", "Give a folder.")
    shown = not (quiet or json) and sys.stderr.isatty()
    with ui.err().status("Compiling the recommendation for the page") if shown else nullcontext():
        pages = render_site(load_catalog())
    if not dry_run:
        write_site(out, pages)
    sizes = site_sizes(pages)
    if json:
        ui.print_json("site", SiteDocument(out, dry_run, sizes))
    elif not quiet:
        rows = [(str(out / page.name), ui.human_bytes(page.size), ui.human_bytes(page.gzip)) for page in sizes]
        ui.out().print(ui.table(("page", "size", "with gzip"), rows))
        if dry_run:
            ui.err().print("Nothing was written.", markup=False)
