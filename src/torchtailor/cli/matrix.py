"""`torchtailor matrix`: the variants as a table, JSON, CSV or Markdown, and why one is not possible."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from torchtailor.cli import _options as options
from torchtailor.core.errors import ExitCode, UsageError
from torchtailor.core.format import counted

if TYPE_CHECKING:
    from torchtailor.catalog.variants import Variant


def command(
    globs: Annotated[
        list[str] | None,
        typer.Argument(metavar="GLOB", help="Names, with globs and braces: 'sm{80,90}-*'."),
    ] = None,
    release: Annotated[
        list[str] | None, typer.Option(help="Only these releases: 2.15, 2.10, 2.14.0, cuda-13_0.")
    ] = None,
    gpu: Annotated[list[str] | None, typer.Option(help="Only these GPUs: sm90, 9.0, 'RTX 4090', cpu.")] = None,
    cpu: Annotated[list[str] | None, typer.Option(help="Only these instruction sets: avx2, 'avx512*'.")] = None,
    python: Annotated[
        list[str] | None, typer.Option(help="These Pythons instead of the release's usual one, or `all`.")
    ] = None,
    why: Annotated[
        bool, typer.Option("--why", help="Explain whether this one variant is possible, and how it is built.")
    ] = False,
    json: options.Json = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print a Markdown table.")] = False,
) -> int:
    """List the variants, or explain why one is not possible."""
    from torchtailor.catalog import load_catalog
    from torchtailor.catalog.variants import find_variants, matrix_of
    from torchtailor.catalog.variants import table as tables
    from torchtailor.catalog.variants.select import NothingMatchesError, unmatched
    from torchtailor.cli._age import say_if_old
    from torchtailor.cli.ui import err, out, print_json, table

    if sum((json, csv, markdown)) > 1:
        raise UsageError("--json, --csv and --markdown are mutually exclusive.", "Give one of them.")
    catalog = load_catalog()
    say_if_old(catalog)
    matrix = matrix_of(catalog)
    if why:
        from torchtailor.catalog.variants.why import explain

        version = options.only("--python", python)
        names = globs or []
        if len(names) != 1 or gpu or cpu or csv or markdown or version == "all":
            raise UsageError("--why explains one name.", "Only --release, --python and --json can be combined with it.")
        explanation = explain(matrix, names[0], release=options.only("--release", release), python=version)
        print_json("matrix-why", explanation) if json else out().print(explanation.text, markup=False)
        return ExitCode.OK if explanation.possible or explanation.instead else ExitCode.IMPOSSIBLE
    try:
        chosen = find_variants(matrix, globs or (), release=release, gpus=gpu or (), cpus=cpu or (), python=python)
    except NothingMatchesError:
        if json:  # still one document, for whoever reads it
            print_json("matrix", tables.MatrixTable(0, ()))
        raise
    for name in () if gpu or cpu else unmatched(chosen, globs or ()):
        err().print(f"warning: {name} matches no variant.", markup=False, soft_wrap=True)
    chosen = tuple(sorted(chosen, key=lambda one: one.release.version))
    rows = tuple(tables.row(catalog, variant) for variant in chosen)
    if json:
        print_json("matrix", tables.MatrixTable(len(rows), rows))
    elif csv:
        typer.echo(tables.as_csv(rows), nl=False)
    elif markdown:
        typer.echo(tables.as_markdown(rows), nl=False)
    else:
        out().print(table(tables.COLUMNS, [tables.cells(row) for row in rows], optional=tables.IN_THE_NAME))
        out().print(_counts(chosen), markup=False)
        if not (globs or release or gpu or cpu):
            out().print("Names, --release, --gpu and --cpu show fewer: `torchtailor matrix 'sm90-*' --release 2.15`.")
    return ExitCode.OK


def _counts(chosen: tuple[Variant, ...]) -> str:
    by_release: dict[str, int] = {}
    for variant in chosen:
        by_release[variant.release_name] = by_release.get(variant.release_name, 0) + 1
    parts = ", ".join(f"{count} of {name}" for name, count in by_release.items())
    return f"{counted(len(chosen), 'variant')} ({parts})"
