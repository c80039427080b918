"""`torchtailor recommend`: which PyTorch fits a machine, and why not the others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from torchtailor.catalog.releases import Method
from torchtailor.errors import ExitCode
from torchtailor.recommend.request import Workload

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from torchtailor.catalog import Catalog
    from torchtailor.host.model import Host
    from torchtailor.recommend.result import Pick, Recommendation, WayOut

_POINT = "  - "


def command(
    source: Annotated[
        Path | None,
        typer.Option("--from", metavar="FILE", help="A description made by `detect --json`; `-` is standard input."),
    ] = None,
    gpu: Annotated[
        list[str] | None, typer.Option(help="A GPU by name or capability: 'RTX 4090', 9.0, none. May be repeated.")
    ] = None,
    cpu: Annotated[str | None, typer.Option(help="The CPU by name: zen4, Graviton3, i9-12900K.")] = None,
    driver: Annotated[str | None, typer.Option(help="The NVIDIA driver's version: 570.26.")] = None,
    jetpack: Annotated[str | None, typer.Option(help="The JetPack of a Jetson: 6.2, 7.2.")] = None,
    workload: Annotated[Workload, typer.Option(help="What the CPU mostly has to do.")] = Workload.GENERAL,
    python: Annotated[str | None, typer.Option(help="The Python, if not 3.13.")] = None,
    release: Annotated[str | None, typer.Option(help="Only this release: 2.15, cuda-13_0.")] = None,
    via: Annotated[Method | None, typer.Option(help="Only this way; wheel comes first by itself.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> int:
    """Say which PyTorch fits a machine, and why not the others."""
    from torchtailor.catalog import load_catalog
    from torchtailor.recommend import Request, recommend
    from torchtailor.recommend.hypothetical import Named
    from torchtailor.ui import out, print_json
    from torchtailor.variants import Matrix

    catalog = load_catalog()
    named = Named(tuple(gpu or ()), cpu, driver, jetpack)
    request = Request(workload, python, release, via)
    answer = recommend(Matrix(catalog), _host(catalog, named, source), request)
    if json:
        print_json(answer)
    else:
        for line in _lines(answer):
            out().print(_indented(line) if out().is_terminal else line)
    return ExitCode.OK if answer.best else ExitCode.NO_MATCH


def _host(catalog: Catalog, named: object, source: Path | None) -> Host:
    """The machine that is meant: from a file, named, changed, or this one."""
    from torchtailor.host.cpu import detect_cpu
    from torchtailor.host.detect import detect
    from torchtailor.host.probe import LiveProbe
    from torchtailor.host.store import load
    from torchtailor.recommend.hypothetical import Named, plan

    assert isinstance(named, Named)
    base = load(source) if source is not None else None
    if base is None and not named.whole_machine:
        base = detect(catalog=catalog)
    if named == Named() and base is not None:
        return base
    return plan(catalog, named, base, lambda: detect_cpu(LiveProbe()))


def _indented(line: Text) -> Text | Table:
    """A point of a list whose further lines on the terminal stand below its first word."""
    from rich.table import Table

    if not line.plain.startswith(_POINT):
        return line
    drawn = Table.grid()
    drawn.add_column(no_wrap=True)
    drawn.add_column(overflow="fold")
    drawn.add_row(_POINT, line[len(_POINT) :])
    return drawn


def _lines(answer: Recommendation) -> Iterator[Text]:
    """The answer as people read it."""
    from rich.text import Text

    yield Text(f"Machine: {answer.machine}")
    for note in answer.notes:
        yield Text(f"Note: {note}", style="yellow")
    yield Text()
    if answer.best is None:
        yield Text("No variant in the matrix runs here.", style="bold red")
    else:
        yield Text.assemble("Recommended: ", (answer.best.variant, "bold green"), f" by way of {answer.best.way}")
        for reason in answer.best.reasons:
            yield Text(f"{_POINT}{reason}")
    if answer.unlocks:
        yield from _heading("One change would give more")
        for unlock in answer.unlocks:
            yield Text(f"{_POINT}{unlock.text}")
    if answer.per_gpu:
        yield from _heading("For each GPU")
        yield from _picks(answer.per_gpu)
    if answer.ways_out:
        yield from _heading("A variant of your own" if answer.best else "Ways out")
        for way_out in answer.ways_out:
            yield from _way_out(way_out)
    if answer.alternatives:
        yield from _heading("Alternatives")
        yield from _picks(answer.alternatives)
    if answer.rejected:
        yield from _heading("Not these")
        for rejection in answer.rejected:
            yield Text.assemble(_POINT, (rejection.what, "bold"), f": {rejection.reason}")


def _heading(text: str) -> Iterator[Text]:
    from rich.text import Text

    yield Text()
    yield Text(f"{text}:", style="bold")


def _picks(picks: tuple[Pick, ...]) -> Iterator[Text]:
    from rich.text import Text

    for pick in picks:
        yield Text.assemble(_POINT, (pick.variant, "bold"), f" ({pick.way}): {' '.join(pick.reasons)}")


def _way_out(way_out: WayOut) -> Iterator[Text]:
    from rich.text import Text

    yield Text(f"{_POINT}{way_out.text}")
    for line in (way_out.toml or "").splitlines():
        yield Text(f"      {line}", style="cyan")
