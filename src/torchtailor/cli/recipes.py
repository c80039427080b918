"""`torchtailor recipes`: write, check, migrate and complete Nix/Flox recipes."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchtailor.recipes.audit import Report
    from torchtailor.recipes.migrate import Migration
    from torchtailor.recipes.write import WritePlan

app = typer.Typer(
    help="Nix/Flox recipes: write the matrix, check any tree, migrate hand-made ones, find hashes.",
    add_completion=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Folder = Annotated[
    Path, typer.Argument(metavar="FOLDER", help="The tree: the folder that has (or will have) .flox/pkgs.")
]
Json = Annotated[bool, typer.Option("--json", help="One JSON document for scripts.")]
DryRun = Annotated[bool, typer.Option("--dry-run", "-n", help="Show what would be done, and do nothing.")]
OneRelease = Annotated[
    str | None, typer.Option("--release", help="The release to hold the tree against; found out if not given.")
]


_DONE = {
    "create": "created",
    "update": "updated",
    "unchanged": "unchanged",
    "keep-edited": "changed by hand and kept",
    "keep-foreign": "not ours and kept",
}


class Format(Enum):
    """How a report is printed."""

    TEXT = "text"
    JSON = "json"
    GITHUB = "github"


class BlasName(Enum):
    """The host's BLAS."""

    OPENBLAS = "openblas"
    MKL = "mkl"


@app.command("write", short_help="Write the matrix as recipes.")
def write(
    folder: Folder,
    globs: Annotated[list[str] | None, typer.Argument(metavar="GLOB", help="Variants: sm90-*, cpu-avx512.")] = None,
    release: Annotated[
        list[str] | None, typer.Option("--release", help="main, cuda-12_9, cuda-13_0 or all; may be repeated.")
    ] = None,
    python: Annotated[list[str] | None, typer.Option("--python", help="3.11, 3.12 or 3.13; may be repeated.")] = None,
    blas: Annotated[BlasName, typer.Option("--blas", help="The BLAS of CPU-only x86_64 recipes.")] = BlasName.OPENBLAS,
    spark: Annotated[bool, typer.Option("--spark", help="Also the DGX Spark components, nightly and wrapper.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite recipes that were changed by hand.")] = False,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Write .flox/pkgs/NAME.nix for variants of the matrix, the manifest and a table.

    Of several releases each gets a folder of its own. What torchtailor did not write is never touched.
    """
    from torchtailor.catalog import load_catalog
    from torchtailor.recipes.blueprint import Blas
    from torchtailor.recipes.write import plan_trees

    plans = plan_trees(
        load_catalog(),
        folder,
        releases=release or (),
        globs=globs or (),
        pythons=python or (),
        blas=Blas(blas.value),
        spark=spark,
        force=force,
    )
    if not dry_run:
        for plan in plans:
            plan.apply()
    _say_written(plans, dry_run=dry_run, json=json)


@app.command("check", short_help="Audit a tree of recipes.")
def check(
    folder: Folder,
    format: Annotated[Format, typer.Option("--format", help="text, json or github (annotations).")] = Format.TEXT,
    strict: Annotated[bool, typer.Option("--strict", help="Warnings fail the audit too.")] = False,
    nix: Annotated[bool, typer.Option("--nix/--no-nix", help="Evaluate with Nix where it is installed.")] = True,
    ignore: Annotated[
        list[str] | None, typer.Option("--ignore", help="Leave a rule out: variant-missing; may be repeated.")
    ] = None,
    release: OneRelease = None,
    json: Json = False,
) -> None:
    """Audit a tree of recipes, ours or hand-made; the exit code says whether it passed."""
    from torchtailor.catalog import load_catalog
    from torchtailor.errors import ExitCode
    from torchtailor.recipes.audit import audit

    with _working("Reading and evaluating recipes"):
        reports = audit(load_catalog(), folder, release=release, use_nix=None if nix else False, ignore=ignore or ())
    _say_report(reports, Format.JSON if json else format, strict=strict)
    if not all(report.passed(strict=strict) for report in reports):
        raise typer.Exit(ExitCode.CHECK_FAILED)


@app.command("migrate", short_help="Take a hand-made tree to the canonical form.")
def migrate(
    folder: Folder,
    prune: Annotated[bool, typer.Option("--prune", help="Delete redundant, impossible and unlisted recipes.")] = False,
    diff: Annotated[bool, typer.Option("--diff/--no-diff", help="Show what changes in each recipe.")] = True,
    release: OneRelease = None,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Take a hand-made tree to the canonical form; .flox/MIGRATION.md says what became of every recipe."""
    from torchtailor.catalog import load_catalog
    from torchtailor.recipes.migrate import plan_migration
    from torchtailor.recipes.nix import has_nix
    from torchtailor.recipes.tree import find_trees

    with _working("Reading and evaluating recipes"):
        migrations = [
            plan_migration(load_catalog(), tree, release=release, prune=prune, by_nix=has_nix())
            for tree in find_trees(folder)
        ]
    if not dry_run:
        for migration in migrations:
            migration.apply()
    _say_migrated(migrations, diff=diff, dry_run=dry_run, json=json)


@app.command("hash", short_help="Find hashes that are not known yet.")
def hash_(
    names: Annotated[list[str] | None, typer.Argument(metavar="NAME", help="Recipes; without a name, all.")] = None,
    tree: Annotated[Path, typer.Option("--tree", help="The folder that has .flox/pkgs.")] = Path(),
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Find hashes that are not known yet: fetch, read the right one from Nix's error, write it down."""
    from torchtailor import ui
    from torchtailor.catalog import load_catalog
    from torchtailor.recipes.hashes import find_hashes
    from torchtailor.recipes.tree import find_trees

    catalog = load_catalog()
    with _working("Fetching what has no hash"):
        results = [find_hashes(catalog, found, names or (), dry_run=dry_run) for found in find_trees(tree)]
    if json:
        ui.print_json([{"found": item.found, "written": [str(path) for path in item.written]} for item in results])
        return
    found = {item.key: item for result in results for item in result.found}
    for item in found.values():
        ui.out().print(f"{item.key}: {item.after}", markup=False)
    written = sum(len(result.written) for result in results)
    ui.out().print(
        "Every hash is known." if not found else f"Written into {written} files." if written else "Nothing was written."
    )


@app.command("rules", short_help="List the rules of the audit.")
def rules(
    markdown: Annotated[bool, typer.Option("--markdown", help="The table of docs/recipe-rules.md.")] = False,
    json: Json = False,
) -> None:
    """List the rules of the audit: what each looks for and how to mend it."""
    import sys

    from torchtailor import ui
    from torchtailor.recipes.report import rules_table
    from torchtailor.recipes.rules import RULES

    rows = [(rule.id, rule.severity.value, rule.looks_for, rule.mend) for _, rule in sorted(RULES.items())]
    columns = ("rule", "severity", "looks for", "how to mend")
    if json:
        ui.print_json([dict(zip(columns, row, strict=True)) for row in rows])
    elif markdown:
        sys.stdout.write(rules_table())
    else:
        ui.out().print(ui.table(columns, rows))


def _working(text: str) -> AbstractContextManager[object]:
    """Says what is being done, on a terminal."""
    import sys

    from torchtailor import ui

    return ui.err().status(text) if sys.stderr.isatty() else nullcontext()


def _say_written(plans: Sequence[WritePlan], *, dry_run: bool, json: bool) -> None:
    from torchtailor import ui
    from torchtailor.recipes.write import Action

    if json:
        ui.print_json(
            [
                {
                    "root": str(plan.tree.root),
                    "release": plan.release,
                    "files": [{"path": str(step.path), "action": step.action.value} for step in plan.steps],
                }
                for plan in plans
            ]
        )
        return
    for plan in plans:
        counts = ", ".join(f"{len(steps)} {_DONE[action.value]}" for action in Action if (steps := plan.of(action)))
        prefix = "would be: " if dry_run else ""
        ui.out().print(f"{plan.tree.root}: release {plan.release}: {prefix}{counts}.", markup=False)
        for step in plan.of(Action.KEEP_EDITED):
            ui.err().print(f"changed by hand, not overwritten (--force does): {plan.tree.shown(step.path)}")
        for step in plan.of(Action.KEEP_FOREIGN):
            ui.err().print(f"not written by torchtailor, not touched: {plan.tree.shown(step.path)}")


def _say_report(reports: Sequence[Report], format: Format, *, strict: bool) -> None:
    import sys

    from rich.text import Text

    from torchtailor import ui
    from torchtailor.recipes.report import as_json, github_lines, text_lines
    from torchtailor.recipes.rules import Severity

    if format is Format.JSON:
        ui.print_json(as_json(reports, strict=strict))
    elif format is Format.GITHUB:
        sys.stdout.writelines(f"{line}\n" for line in github_lines(reports, Path()))
    else:
        colours = {Severity.ERROR: "red", Severity.WARNING: "yellow", None: ""}
        for report in reports:
            for severity, line in text_lines(report):
                ui.out().print(Text(line, style=colours[severity]), soft_wrap=True)


def _say_migrated(migrations: Sequence[Migration], *, diff: bool, dry_run: bool, json: bool) -> None:
    from rich.text import Text

    from torchtailor import ui
    from torchtailor.recipes.migrate import Fate

    if json:
        ui.print_json(
            [
                {
                    "root": str(migration.tree.root),
                    "release": migration.release,
                    "total": migration.total,
                    "recipes": [
                        {"name": move.name, "fate": move.fate.value, "why": move.why} for move in migration.moves
                    ],
                }
                for migration in migrations
            ]
        )
        return
    colours = {"+": "green", "-": "red", "@": "cyan"}
    for migration in migrations:
        if diff:
            for move in migration.of(Fate.REWRITTEN):
                for line in move.diff().splitlines():
                    ui.out().print(Text(line, style=colours.get(line[:1], "")), soft_wrap=True)
        for fate in (Fate.REWRITTEN, Fate.DELETED, Fate.LEFT):
            for move in migration.of(fate):
                ui.out().print(Text(f"{fate.value}: {move.name}: {move.why}"), soft_wrap=True)
        counts = ", ".join(f"{len(moves)} {fate.value}" for fate in Fate if (moves := migration.of(fate)))
        there = f"{migration.total} {'would be' if dry_run else 'are'} there"
        ui.out().print(f"{migration.tree.root}: release {migration.release}: {counts}; {there}.", markup=False)
        if left := migration.of(Fate.LEFT):
            ui.err().print(f"{len(left)} recipes are redundant, impossible or unlisted: --prune deletes them.")
