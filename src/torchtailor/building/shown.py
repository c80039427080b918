"""How plans and results of builds are shown: lines and tables, which the command prints."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from torchtailor.building.base import BuildPlan, BuildResult
from torchtailor.core.format import counted, human_bytes
from torchtailor.wheelhouse.wheelhouse import Wheelhouse


@dataclass(frozen=True)
class Line:
    """A line of text."""

    text: str
    result: bool = False  # what was asked for, on stdout; all else is on stderr
    whole: bool = False  # not wrapped, however narrow the window is: it is copied


@dataclass(frozen=True)
class Rows:
    """A table."""

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    result: bool = False


Shown = Line | Rows


def plan_lines(plan: BuildPlan, *, dry_run: bool) -> Iterable[Shown]:
    """A plan as its method shows it, or its variants and what they cost."""
    own: Callable[..., Iterable[Shown]] | None = getattr(plan, "lines", None)
    if own is not None:
        return own(dry_run=dry_run)
    return (
        Line(text, result=dry_run) for text in (*(variant.unique_name for variant in plan.variants), plan.cost_text)
    )


def result_lines(result: BuildResult) -> Iterable[Shown]:
    """A result as its method shows it, or its wheelhouses."""
    own: Callable[[], Iterable[Shown]] | None = getattr(result, "lines", None)
    return wheelhouse_lines(result.wheelhouses) if own is None else own()


def wheelhouse_lines(wheelhouses: Iterable[Wheelhouse]) -> Iterator[Line]:
    """Wheelhouses with the lines that install from them."""
    for item in wheelhouses:
        cut = f", {item.changed} of them cut" if item.changed else ""
        before = f"{human_bytes(item.input_bytes)} -> " if item.input_bytes != item.output_bytes else ""
        sizes = f"{before}{human_bytes(item.output_bytes)}"
        yield Line(f"{item.path}: {counted(item.wheels, 'wheel')}{cut}, {sizes}", result=True)
        yield Line(f"  {item.pip_line}", result=True, whole=True)
        yield Line(f"  {item.uv_line}", result=True, whole=True)


def index_lines(variants_index: Path | None, first: Wheelhouse | None) -> Iterator[Line]:
    """The index of wheel variants, with the line that installs from it."""
    if variants_index is None or first is None:
        return
    index = (variants_index / "simple").absolute().as_uri()
    torch = f"torch=={first.torch_version.partition('+')[0]}"
    if first.requirements[0].startswith("torch["):  # split: the packs are chosen, torch is the same for all
        torch = f"'torch[gpu]=={first.torch_version}'"
    yield Line(f"{variants_index}: wheel variants, chosen by the GPU", result=True)
    line = f"uv pip install --preview-features wheel-variants --default-index {index} {torch}"
    yield Line(f"  {line}", result=True, whole=True)


def warning_lines(warnings: Iterable[str]) -> Iterator[Line]:
    for warning in warnings:
        yield Line(f"warning: {warning}", whole=True)
