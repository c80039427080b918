"""`torchtailor recipes`: write, check, migrate and hash Nix/Flox recipes."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from torchtailor.cli import _options
from torchtailor.cli._layout import GroupedCommand, GroupedGroup

if TYPE_CHECKING:
    from torchtailor.nix.report import LineKind

app = typer.Typer(
    cls=GroupedGroup,
    help="Nix/Flox recipes: write the matrix, check any tree, migrate hand-written ones, find hashes.",
    add_completion=False,
    rich_markup_mode=None,
)

Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder that has (or will have) .flox/pkgs.")]
DryRun = Annotated[bool, typer.Option("--dry-run", "-n", help="Show what would be done, without doing it.")]
OneRelease = Annotated[
    str | None, typer.Option("--release", help="The release to compare the tree with; detected by default.")
]


class Made(Enum):
    """What recipes make torch from."""

    SOURCE = "source"
    WHEEL = "wheel"


class BlasName(Enum):
    """The BLAS on the CPU; `BlasChoice` without its imports, so that --help stays fast."""

    OPENBLAS = "openblas"
    MKL = "mkl"


@app.command("write", cls=GroupedCommand, short_help="Write the matrix as recipes.")
def write(
    folder: Folder,
    globs: Annotated[list[str] | None, typer.Argument(metavar="GLOB", help="Variants: sm90-*, cpu-avx512.")] = None,
    release: Annotated[
        list[str] | None,
        typer.Option(
            "--release",
            help="2.8, 2.9, 2.10 (main, cuda-12_9, cuda-13_0), from wheels all others too, or all; may be repeated.",
        ),
    ] = None,
    python: Annotated[list[str] | None, typer.Option("--python", help="3.11 to 3.14; may be repeated.")] = None,
    blas: Annotated[BlasName, typer.Option("--blas", help="The BLAS of CPU-only x86_64 recipes.")] = BlasName.OPENBLAS,
    with_: Annotated[
        list[str] | None, typer.Option("--with", metavar="NAMES", help="Also torchvision,torchaudio, built on it.")
    ] = None,
    via: Annotated[
        Made, typer.Option("--via", help="source: compile torch. wheel: cut the official ones; any release.")
    ] = Made.SOURCE,
    nvidia: Annotated[
        bool, typer.Option("--nvidia", help="With --via wheel: cut NVIDIA's libraries too; `help licences`.")
    ] = False,
    spark: Annotated[bool, typer.Option("--spark", help="Also write the DGX Spark components and nightly.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite recipes that were changed by hand.")] = False,
    dry_run: DryRun = False,
    json: _options.Json = False,
) -> None:
    """Write .flox/pkgs/NAME.nix for variants of the matrix, the manifest and a table of recipes.

    Several releases get a folder each. Files that torchtailor did not generate are never overwritten.
    """
    from torchtailor.catalog import load_catalog
    from torchtailor.cli import ui
    from torchtailor.core.errors import UsageError
    from torchtailor.nix.blueprint import BlasChoice
    from torchtailor.nix.report import write_lines
    from torchtailor.nix.wheels import WheelPins
    from torchtailor.nix.write import plan_trees

    catalog = load_catalog()
    companions = _options.listed(with_)
    wheels = WheelPins(catalog) if via is Made.WHEEL else None
    if wheels is None and nvidia:
        raise UsageError("--nvidia is for --via wheel.", "Recipes from source compile for one GPU only.")
    plans = plan_trees(
        catalog,
        folder,
        releases=release or (),
        globs=globs or (),
        pythons=python or (),
        blas=BlasChoice(blas.value),
        spark=spark,
        siblings=companions,
        wheels=wheels,
        nvidia=nvidia,
        force=force,
    )
    for plan in () if dry_run else plans:
        plan.apply()
    if json:
        ui.print_json("recipes-write", {"trees": plans})
    else:
        _print(write_lines(plans, dry_run=dry_run))


@app.command("check", cls=GroupedCommand, short_help="Audit a tree of recipes.")
def check(
    folder: Folder,
    strict: Annotated[bool, typer.Option("--strict", help="Fail on warnings too.")] = False,
    nix: Annotated[bool, typer.Option("--nix/--no-nix", help="Evaluate with Nix if it is installed.")] = True,
    ignore: Annotated[
        list[str] | None, typer.Option("--ignore", help="Skip a rule, such as variant-missing; may be repeated.")
    ] = None,
    release: OneRelease = None,
    github: Annotated[bool, typer.Option("--github", help="Print annotations for a workflow on GitHub.")] = False,
    json: _options.Json = False,
) -> None:
    """Audit a tree of recipes, generated or hand-written; exits with 6 if it fails."""

    from torchtailor.catalog import load_catalog
    from torchtailor.cli import ui
    from torchtailor.core.errors import ExitCode
    from torchtailor.nix.audit import audit
    from torchtailor.nix.report import audit_lines, github_lines

    with ui.working("Reading and evaluating recipes"):
        reports = audit(load_catalog(), folder, release=release, use_nix=None if nix else False, ignore=ignore or ())
    passed = all(report.passed(strict=strict) for report in reports)
    if json:
        ui.print_json("recipes-check", {"passed": passed, "trees": reports})
    elif github:
        ui.print_text("".join(f"{line}\n" for line in github_lines(reports, Path())))
    else:
        _print(audit_lines(reports))
    if not passed:
        raise typer.Exit(ExitCode.CHECK_FAILED)


@app.command("migrate", cls=GroupedCommand, short_help="Migrate a hand-written tree to the canonical recipes.")
def migrate(
    folder: Folder,
    prune: Annotated[bool, typer.Option("--prune", help="Delete redundant and impossible recipes.")] = False,
    prune_unlisted: Annotated[
        bool, typer.Option("--prune-unlisted", help="Delete recipes that the release's matrix does not have.")
    ] = False,
    replace_pin: Annotated[
        bool, typer.Option("--replace-pin", help="Replace nixpkgs revisions that the catalog does not know.")
    ] = False,
    diff: Annotated[bool, typer.Option("--diff/--no-diff", help="Show what changes in each recipe.")] = True,
    release: OneRelease = None,
    dry_run: DryRun = False,
    json: _options.Json = False,
) -> None:
    """Migrate a hand-written tree to the canonical recipes; .flox/MIGRATION.md reports on every recipe."""
    from torchtailor.catalog import load_catalog
    from torchtailor.cli import ui
    from torchtailor.nix.migrate import migrate_recipes
    from torchtailor.nix.report import migration_lines

    with ui.working("Reading and evaluating recipes"):
        migrations = migrate_recipes(
            load_catalog(),
            folder,
            release=release,
            prune=prune,
            prune_unlisted=prune_unlisted,
            replace_pin=replace_pin,
            dry_run=dry_run,
        )
    if json:
        ui.print_json("recipes-migrate", {"trees": migrations})
    else:
        _print(migration_lines(migrations, diff=diff, dry_run=dry_run))


@app.command("hash", cls=GroupedCommand, short_help="Find missing hashes and write them.")
def hash_(
    names: Annotated[list[str] | None, typer.Argument(metavar="NAME", help="Recipes; all by default.")] = None,
    tree: Annotated[Path, typer.Option("--tree", help="The folder that has .flox/pkgs.")] = Path(),
    dry_run: DryRun = False,
    json: _options.Json = False,
) -> None:
    """Find missing hashes: run the fetch, read the hash from Nix's error, and write it into lock and recipes."""
    from torchtailor.catalog import load_catalog
    from torchtailor.cli import ui
    from torchtailor.nix.hashes import find_hashes
    from torchtailor.nix.report import hash_lines

    with ui.working("Fetching sources without a hash"):
        results = find_hashes(load_catalog(), tree, names or (), dry_run=dry_run)
    if json:
        ui.print_json("recipes-hash", {"trees": results})
    else:
        _print(hash_lines(results))


@app.command("build", cls=GroupedCommand, short_help="Build recipes of a tree.")
def build(
    globs: Annotated[
        list[str] | None, typer.Argument(metavar="GLOB", help="Recipes: 'sm90-*', NAME; all by default.")
    ] = None,
    tree: Annotated[Path, typer.Option("--tree", help="The folder that has .flox/pkgs.")] = Path(),
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="Recipes to build at the same time.")] = 1,
    cores: Annotated[
        int | None, typer.Option("--cores", min=1, help="Compilers per recipe; default: as many as fit into memory.")
    ] = None,
    push: Annotated[
        str | None, typer.Option("--push", metavar="URL", help="Copy what is built to this binary cache.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Where result links and logs go.")] = Path("dist"),
    dry_run: DryRun = False,
    json: _options.Json = False,
) -> None:
    """Build recipes with Flox or Nix, several at a time; one that fails does not stop the others."""
    import shlex

    from torchtailor.building.nix.many import RecipeBuild, build_recipes, plan_recipes
    from torchtailor.catalog import load_catalog
    from torchtailor.cli import ui
    from torchtailor.core.errors import ExitCode
    from torchtailor.core.format import counted

    plan = plan_recipes(load_catalog(), tree, globs or (), out, parallel=jobs, cores=cores, cache=push)

    def say(item: RecipeBuild) -> None:
        state = f"failed: {item.error.message}" if item.error else f"built: {item.output.link if item.output else ''}"
        ui.err().print(f"{item.name} {state}", markup=False, soft_wrap=True)

    results: tuple[RecipeBuild, ...] = ()
    if not dry_run:
        with ui.working(f"Building {counted(len(plan.jobs), 'recipe')}, {plan.parallel} at a time"):
            results = build_recipes(plan, done=say)
    if json:
        ui.print_json("recipes-build", {"plan": plan, "results": results})
    elif dry_run:
        for job in plan.jobs:
            ui.out().print(shlex.join(job.command), markup=False, soft_wrap=True)
    if plan.elsewhere and not json:
        text = f"Left out, since for another platform: {counted(len(plan.elsewhere), 'recipe')}."
        ui.err().print(text, markup=False, soft_wrap=True)
    if failed := [item for item in results if item.error]:
        ui.err().print(f"{len(failed)} of {counted(len(results), 'recipe')} failed.", markup=False)
        raise typer.Exit(ExitCode.BUILD_FAILED)


@app.command("rules", cls=GroupedCommand, short_help="List the rules of the audit.")
def rules(
    markdown: Annotated[bool, typer.Option("--markdown", help="Print a Markdown table.")] = False,
    json: _options.Json = False,
) -> None:
    """List the rules of the audit: what each looks for and how to fix it."""
    import sys

    from torchtailor.cli import ui
    from torchtailor.nix.report import rules_rows, rules_table
    from torchtailor.nix.rules import RULES

    if json:
        ui.print_json("recipes-rules", {"rules": [rule for _, rule in sorted(RULES.items())]})
    elif markdown:
        sys.stdout.write(rules_table())
    else:
        ui.out().print(ui.table(("rule", "severity", "looks for", "fix"), rules_rows()))


def _print(lines: Iterable[tuple[LineKind, str]]) -> None:
    """Notes go to stderr, results to stdout."""
    from rich.text import Text

    from torchtailor.cli import ui
    from torchtailor.nix.report import LineKind

    colours = {
        LineKind.ERROR: "red",
        LineKind.WARNING: "yellow",
        LineKind.ADDED: "green",
        LineKind.REMOVED: "red",
        LineKind.HUNK: "cyan",
    }
    for kind, line in lines:
        console = ui.err() if kind is LineKind.NOTE else ui.out()
        console.print(Text(line, style=colours.get(kind, "")), soft_wrap=True)
