"""`torchtailor packs`: fetch the packs that refer to an image."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from torchtailor.cli import _options as options
from torchtailor.cli._layout import GroupedCommand, GroupedGroup

_HELP = "Fetch the packs of an image that was cut to a program."

app = typer.Typer(cls=GroupedGroup, add_completion=False, rich_markup_mode=None, help=_HELP)


@app.callback()
def main() -> None:
    """Fetch the packs of an image that was cut to a program."""


@app.command("pull", cls=GroupedCommand)
def pull(
    image: Annotated[
        str,
        typer.Argument(metavar="IMAGE", help="The image: docker://HOST/NAME:TAG, oci:FOLDER:TAG or oci-archive:FILE."),
    ],
    output: Annotated[Path, typer.Option("--out", "-o", metavar="FOLDER", help="Where the packs go.")],
    platform: options.ImagePlatform = None,
    insecure: options.ImageInsecure = False,
    dry_run: options.DryRun = False,
    json: options.Json = False,
) -> None:
    """Fetch the packs that `image --cold artifact` attached to an image; programs find them by TORCHTAILOR_PACK."""
    from torchtailor.cli.ui import ProgressBar, human_bytes, out, print_json
    from torchtailor.core.format import counted
    from torchtailor.tailoring.image.attached import pull_packs

    with ProgressBar(quiet=json) as bar:
        pulled = pull_packs(image, output, platform=platform, insecure=insecure, dry_run=dry_run, progress=bar)
    if json:
        print_json("packs-pull", pulled)
        return
    verb = "Would fetch" if dry_run else "Fetched"
    there = f" ({counted(len(pulled.there), 'other')} there already)" if pulled.there else ""
    line = f"{verb} {counted(len(pulled.fetched), 'pack')} of {human_bytes(pulled.size)} to {output}{there}."
    out().print(line, markup=False)
    if not dry_run:
        out().print(f"Start programs with TORCHTAILOR_PACK={output.absolute()}.", markup=False, soft_wrap=True)
