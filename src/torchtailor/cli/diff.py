"""`torchtailor diff`: how two libraries, wheels, folders, environments or images differ in size."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from torchtailor.cli import _options
from torchtailor.cli._sizes import SizeSources, takes_sources
from torchtailor.core.errors import ExitCode

if TYPE_CHECKING:
    from torchtailor.verification.sizes.compare import KernelChange, SizeChange, SizeComparison

_WHAT = "A library, wheel, folder or environment; an image as docker://, oci: ...; a release as torch==2.11.0."


@takes_sources
def command(
    old: Annotated[str, typer.Argument(metavar="OLD", help=_WHAT)],
    new: Annotated[str, typer.Argument(metavar="NEW", help="The same.")],
    kernels: Annotated[bool, typer.Option("--kernels", help="Also compare the functions inside GPU code.")] = False,
    top: Annotated[int, typer.Option("--top", min=1, help="Rows of each table.")] = 10,
    budget: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Fail with exit code 10 where NEW exceeds the [budget] of FILE.")
    ] = None,
    *,
    sources: SizeSources,
    markdown: Annotated[bool, typer.Option("--markdown", help="A few lines for a pull request.")] = False,
    report: _options.Report = None,
    json: _options.Json = False,
) -> int:
    """Show where two artifacts differ in size; fail over a budget."""
    from torchtailor.cli.ui import ProgressBar, err, out, print_json, print_text
    from torchtailor.verification.sizes.budget import exceeded, read_budget, unmatched
    from torchtailor.verification.sizes.compare import SizeComparison
    from torchtailor.verification.sizes.markdown import markdown as as_markdown

    allowed = read_budget(budget) if budget else None
    with ProgressBar(quiet=json or markdown) as bar:
        before, after = (sources.measured(one, bar, kernels=kernels) for one in (old, new))
    comparison = SizeComparison(before, after)
    over = tuple(exceeded(comparison, allowed)) if allowed else ()
    if report:
        from torchtailor.verification.sizes.page import write_page

        write_page(comparison, report)
    if json:
        print_json("diff", comparison.document, exceeded=[str(one) for one in over])
    elif markdown:
        print_text(as_markdown(comparison, over))
    else:
        _print(comparison, top)
        for one in over:
            out().print(str(one), markup=False)
    for name in unmatched(comparison, allowed) if allowed else ():
        err().print(f"warning: nothing is called {name}, which the budget names.", markup=False)
    for text in (*comparison.old.skipped, *comparison.new.skipped):
        err().print(f"warning: {text.rstrip('.')}; it is counted as other files.", markup=False)
    return ExitCode.OVER_BUDGET if over else ExitCode.OK


def _print(comparison: SizeComparison, top: int) -> None:
    from torchtailor.cli.ui import human_bytes, out
    from torchtailor.verification.sizes.compare import SizeChange
    from torchtailor.verification.sizes.markdown import share, signed

    if len(comparison.packages) > 1:
        _table("Package", comparison.packages, top)
    _table("Bytes", comparison.classes, top)
    codes = sorted(comparison.architectures, key=lambda one: not one.growth)
    changed = sum(1 for one in codes if one.growth)
    _table("Code for", codes, max(top, min(changed, 4 * top)))
    _table("Largest changes", [SizeChange(one.name, one.old, one.new) for one in comparison.causes], top)
    if comparison.functions:
        _kernel_table(comparison.functions, top)
    total = comparison.total
    line = f"{human_bytes(total.old)} -> {human_bytes(total.new)}: {signed(total.growth)}{share(total)}"
    if total.old_packed is not None and total.new_packed is not None:
        packed = SizeChange("", total.old_packed, total.new_packed)
        line += f"; compressed {human_bytes(packed.old)} -> {human_bytes(packed.new)}"
        line += f": {signed(packed.growth)}{share(packed)}"
    out().print(f"{line}.", markup=False)


def _table(title: str, changes: Sequence[SizeChange], top: int) -> None:
    from torchtailor.cli.ui import human_bytes, out, table
    from torchtailor.verification.sizes.markdown import signed

    packed = any(change.new_packed is not None and change.old_packed is not None for change in changes)
    columns = [title, "Before", "After", "Change", *(["Compressed"] if packed else [])]
    rows = []
    for change in changes[:top]:
        more = [signed((change.new_packed or 0) - (change.old_packed or 0))] if packed else []
        rows.append([change.name, human_bytes(change.old), human_bytes(change.new), signed(change.growth), *more])
    if rest := changes[top:]:
        old, new = sum(one.old for one in rest), sum(one.new for one in rest)
        more = [signed(sum((one.new_packed or 0) - (one.old_packed or 0) for one in rest))] if packed else []
        rows.append([f"{len(rest)} more", human_bytes(old), human_bytes(new), signed(new - old), *more])
    if rows:
        out().print(table(columns, rows, optional=["Compressed"]))


def _kernel_table(kernels: Sequence[KernelChange], top: int) -> None:
    from torchtailor.cli.ui import human_bytes, out, table
    from torchtailor.verification.sizes.markdown import signed

    rows = [
        [
            one.name,
            one.code,
            f"{one.old_functions} -> {one.new_functions}" if one.old_functions or one.new_functions else "",
            human_bytes(one.new),
            signed(one.growth),
        ]
        for one in [kernel for kernel in kernels if kernel.growth][:top]
    ]
    if rows:
        out().print(table(["Kernel (unpacked)", "Code for", "Functions", "After", "Change"], rows))
