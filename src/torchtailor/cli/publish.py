"""`torchtailor publish`: adds wheelhouses to a shared index, or a Nix variant to a Flox catalog."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from torchtailor.errors import UsageError


def command(
    dist: Annotated[
        Path, typer.Argument(metavar="DIST", help="A folder that `torchtailor build` wrote, or one of its wheelhouses.")
    ] = Path("dist"),
    to: Annotated[
        str | None, typer.Option(help="A folder, or a URL that fsspec supports, such as s3://bucket/torch.")
    ] = None,
    publish_nvidia: Annotated[
        bool,
        typer.Option(
            "--publish-nvidia", help="Changed NVIDIA libraries too: you confirm that you may (docs/licences.md)."
        ),
    ] = False,
    flox: Annotated[
        str | None, typer.Option("--flox", metavar="ORG", help="Publish a Nix variant to this Flox organisation.")
    ] = None,
    package: Annotated[str | None, typer.Option(help="With --flox: the variant's name.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check, and show what would be done.")] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON document for scripts.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only results and errors.")] = False,
) -> None:
    """Add built variants to an index for others.

    The index has a folder per target, such as cu128-sm90, for pip and uv, and one with wheel variants if they were
    built. With --flox, DIST is the recipes' checkout; `flox publish` runs after checks of that checkout.
    """
    if (to is None) == (flox is None):
        raise UsageError(
            "No destination was given.", "Give --to FOLDER or --to s3://bucket/path, or --flox ORG for a Nix variant."
        )
    if flox is not None:
        _flox(dist, package, flox, dry_run=dry_run, json=json)
    else:
        assert to is not None
        _index(dist, to, publish_nvidia=publish_nvidia, dry_run=dry_run, json=json, quiet=quiet)


def _index(dist: Path, to: str, *, publish_nvidia: bool, dry_run: bool, json: bool, quiet: bool) -> None:
    from torchtailor import ui
    from torchtailor.publish.publish import find_wheelhouses, publish
    from torchtailor.publish.store import open_store
    from torchtailor.wheelhouse.wheelhouse import read_wheelhouse

    wheelhouses = [read_wheelhouse(path) for path in find_wheelhouses(dist)]
    if dry_run:
        size = sum(wheelhouse.output_bytes for wheelhouse in wheelhouses)
        names = [wheelhouse.variant for wheelhouse in wheelhouses]
        if json:
            ui.print_json({"to": to, "variants": names, "bytes": size})
        else:
            ui.out().print(f"Would add {', '.join(names)} ({ui.human_bytes(size)}) to {to}.", markup=False)
        return
    say = None if quiet or json else lambda text: ui.err().print(text, markup=False)
    result = publish(dist, open_store(to), nvidia_too=publish_nvidia, say=say)
    if json:
        ui.print_json(result)
        return
    for note in result.notes:
        ui.err().print(note, markup=False)
    if result.left_out:
        ui.err().print(
            f"{len(result.left_out)} changed NVIDIA wheels were not published (their licence); the index has the stock "
            "ones. If you may publish them, add --publish-nvidia.",
            markup=False,
        )
    ui.out().print(
        f"{', '.join(result.targets)}: {result.uploaded} files added ({ui.human_bytes(result.uploaded_bytes)}), "
        f"{result.already_there} were there before.",
        markup=False,
    )


def _flox(folder: Path, package: str | None, organisation: str, *, dry_run: bool, json: bool) -> None:
    from torchtailor import ui
    from torchtailor.publish.flox import FloxCall

    if package is None:
        raise UsageError("No Nix variant was given.", "Add --package with its name.")
    call = FloxCall.for_variant(package, folder, organisation)
    if dry_run:
        call.check()
    else:
        call.run()
    if json:
        ui.print_json({"command": call.line, "done": not dry_run})
    elif dry_run:
        ui.out().print(f"Would run {' '.join(call.line)} in {folder}.", markup=False)
