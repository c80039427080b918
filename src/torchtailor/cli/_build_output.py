"""Plans and results of builds as people read them: each method says what is shown of its own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from torchtailor.cli import ui
from torchtailor.core.format import counted

if TYPE_CHECKING:
    from torchtailor.building.base import BuildPlan, Unavailable
    from torchtailor.building.shown import Shown


def show_plan(plan: BuildPlan, *, dry_run: bool) -> None:
    """Before a build to stderr, since stdout is for results; in a dry run of a method without wheels to stdout."""
    from torchtailor.building.shown import plan_lines

    show_unavailable(plan.unavailable)
    show(plan_lines(plan, dry_run=dry_run))


def show_unavailable(unavailable: Unavailable) -> None:
    """What was selected and is not built, with the reason."""
    for reason, names in unavailable.items():
        shown = ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")
        ui.err().print(f"warning: {counted(len(names), 'variant')} not available: {shown}", markup=False)
        ui.err().print(f"  {reason}", markup=False)


def show(lines: Iterable[Shown]) -> None:
    from rich.text import Text

    from torchtailor.building.shown import Line

    for item in lines:
        say = ui.out() if item.result else ui.err()
        if isinstance(item, Line) and item.whole:
            say.print(item.text, markup=False, soft_wrap=True)
        elif isinstance(item, Line):
            say.print(ui.hanging(Text(item.text), len(item.text) - len(item.text.lstrip())))
        else:
            say.print(ui.table(item.columns, item.rows, optional=("from", "download")))
